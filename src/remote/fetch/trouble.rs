//! Why a request fails, in the terms of the planner and of the other process.

use super::super::planner::Failure;
use super::super::protocol::Failed;
use super::super::transport::Kind;
use super::super::{cache, transport};

/// Why something failed.
pub(super) enum Trouble {
    Transport(transport::Error),
    Cache(cache::Error),
    /// The cache does not have it, and only the cache may be used.
    Absent,
}

impl Trouble {
    pub fn failed(&self) -> Failed {
        match self {
            Self::Transport(error) => match error.kind() {
                Kind::Changed => Failed::Changed,
                Kind::Transient { .. } => Failed::Transient,
                Kind::Forbidden => Failed::Refused,
                Kind::NoRanges => Failed::WholeOnly,
                _ => Failed::Lasting,
            },
            Self::Cache(error) if is_lasting(error) => Failed::Lasting,
            // The disk may have room later.
            Self::Cache(_) => Failed::Transient,
            Self::Absent => Failed::Lasting,
        }
    }

    pub fn failure(&self) -> Failure {
        match self {
            Self::Transport(error) => match error.kind() {
                Kind::Transient { retry_after } => Failure::Transient { retry_after },
                _ => Failure::Final,
            },
            Self::Cache(_) | Self::Absent => Failure::Final,
        }
    }

    pub fn reason(&self) -> String {
        match self {
            // The reading process names the file.
            Self::Transport(error) => error.text().to_owned(),
            Self::Cache(cache::Error::TooLarge { len, max, .. }) => {
                format!("it has {len} bytes; the cache takes files of up to {max}")
            }
            Self::Cache(error) => error.to_string(),
            Self::Absent => "not in the cache, and --offline allows nothing else".into(),
        }
    }
}

/// Whether another attempt would fail in the same way.
fn is_lasting(error: &cache::Error) -> bool {
    use cache::Error::{Secret, TooLarge, TooLong};
    matches!(error, TooLarge { .. } | TooLong { .. } | Secret { .. })
}
