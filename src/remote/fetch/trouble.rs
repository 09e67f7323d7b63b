//! Errors of the transport and the cache, as the reading process and the planner see them.

use crate::remote::cache::CacheError;
use crate::remote::planner::PartFailure;
use crate::remote::transport::{ErrorKind, TransportError};
use crate::source::{FetchFailure, RemoteFailure};
use std::time::Duration;

/// The shortest time that a host can ask to wait.
const SHORTEST: Duration = Duration::from_millis(1);

impl From<TransportError> for FetchFailure {
    fn from(error: TransportError) -> Self {
        let failure = match error.kind {
            ErrorKind::Changed => RemoteFailure::Changed,
            ErrorKind::Transient { .. } => RemoteFailure::Transient,
            ErrorKind::Forbidden => RemoteFailure::Refused,
            ErrorKind::NoRanges => RemoteFailure::WholeOnly,
            _ => RemoteFailure::Lasting,
        };
        // The reading process names the file.
        Self { failure, reason: error.text.to_owned() }
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

impl From<TransportError> for PartFailure {
    fn from(error: TransportError) -> Self {
        let retry = match error.kind {
            // A host that asks for a pause of no time asks for one nevertheless.
            ErrorKind::Transient { retry_after } => Some(retry_after.map_or(Duration::ZERO, |time| time.max(SHORTEST))),
            _ => None,
        };
        Self { failure: error.into(), retry }
    }
}

impl From<CacheError> for PartFailure {
    fn from(error: CacheError) -> Self {
        Self { failure: error.into(), retry: None }
    }
}
