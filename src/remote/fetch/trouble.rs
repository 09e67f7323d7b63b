//! Errors of the transport and the cache, as the reading process and the planner see them.

use crate::remote::cache::CacheError;
use crate::remote::planner::PartFailure;
use crate::remote::transport::{ErrorKind, TransportError};
use crate::source::{FetchFailure, RemoteFailure};

/// The failure of a file that is not in the cache, if only the cache may be used.
pub(super) fn absent() -> FetchFailure {
    FetchFailure::lasting("not in the cache, and --offline allows nothing else")
}

impl From<TransportError> for FetchFailure {
    fn from(error: TransportError) -> Self {
        let failure = match error.kind() {
            ErrorKind::Changed => RemoteFailure::Changed,
            ErrorKind::Transient { .. } => RemoteFailure::Transient,
            ErrorKind::Forbidden => RemoteFailure::Refused,
            ErrorKind::NoRanges => RemoteFailure::WholeOnly,
            _ => RemoteFailure::Lasting,
        };
        // The reading process names the file.
        Self { failure, reason: error.text().to_owned() }
    }
}

impl From<CacheError> for FetchFailure {
    fn from(error: CacheError) -> Self {
        match error {
            CacheError::TooLarge { len, max, .. } => {
                Self::lasting(format!("it has {len} bytes; the cache takes files of up to {max}"))
            }
            CacheError::TooLong { .. } | CacheError::Secret { .. } => Self::lasting(error.to_string()),
            // The disk may have room later.
            _ => Self::transient(error.to_string()),
        }
    }
}

/// Why a part was not fetched: for those who wait for its bytes, and for the planner.
pub(super) struct TransferFailure {
    pub failure: FetchFailure,
    pub part: PartFailure,
}

impl From<TransportError> for TransferFailure {
    fn from(error: TransportError) -> Self {
        let part = match error.kind() {
            ErrorKind::Transient { retry_after } => PartFailure::Transient { retry_after },
            _ => PartFailure::Final,
        };
        Self { failure: error.into(), part }
    }
}

impl From<CacheError> for TransferFailure {
    fn from(error: CacheError) -> Self {
        Self { failure: error.into(), part: PartFailure::Final }
    }
}
