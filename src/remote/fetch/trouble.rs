//! Why a request fails, in the terms of the planner and of the other process.

use super::super::planner::PartFailure;
use super::super::protocol::WireFailure;
use super::super::transport::ErrorKind;
use super::super::{cache, transport};

/// Why something failed.
pub(super) enum FetchTrouble {
    Transport(transport::TransportError),
    Cache(cache::CacheError),
    /// The cache does not have it, and only the cache may be used.
    Absent,
}

impl FetchTrouble {
    pub fn failed(&self) -> WireFailure {
        match self {
            Self::Transport(error) => match error.kind() {
                ErrorKind::Changed => WireFailure::Changed,
                ErrorKind::Transient { .. } => WireFailure::Transient,
                ErrorKind::Forbidden => WireFailure::Refused,
                ErrorKind::NoRanges => WireFailure::WholeOnly,
                _ => WireFailure::Lasting,
            },
            Self::Cache(error) if is_lasting(error) => WireFailure::Lasting,
            // The disk may have room later.
            Self::Cache(_) => WireFailure::Transient,
            Self::Absent => WireFailure::Lasting,
        }
    }

    pub fn failure(&self) -> PartFailure {
        match self {
            Self::Transport(error) => match error.kind() {
                ErrorKind::Transient { retry_after } => PartFailure::Transient { retry_after },
                _ => PartFailure::Final,
            },
            Self::Cache(_) | Self::Absent => PartFailure::Final,
        }
    }

    pub fn reason(&self) -> String {
        match self {
            // The reading process names the file.
            Self::Transport(error) => error.text().to_owned(),
            Self::Cache(cache::CacheError::TooLarge { len, max, .. }) => {
                format!("it has {len} bytes; the cache takes files of up to {max}")
            }
            Self::Cache(error) => error.to_string(),
            Self::Absent => "not in the cache, and --offline allows nothing else".into(),
        }
    }
}

/// Whether another attempt would fail in the same way.
fn is_lasting(error: &cache::CacheError) -> bool {
    use cache::CacheError::{Secret, TooLarge, TooLong};
    matches!(error, TooLarge { .. } | TooLong { .. } | Secret { .. })
}
