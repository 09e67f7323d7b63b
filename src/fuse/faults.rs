//! Logging of read errors. Each fault of a file is logged once, however many reads fail because of it.

use crate::content;
use crate::fs;
use crate::source::{self, ErrorCause};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The faults that have been logged.
#[derive(Debug, Default)]
pub(super) struct FaultLog(Mutex<HashSet<LoggedFault>>);

/// Identifies a fault.
#[derive(Debug, PartialEq, Eq, Hash)]
enum LoggedFault {
    /// A fault of a file.
    File(PathBuf, ErrorCause),
    /// Any other fault, identified by its message.
    Other(String),
}

impl FaultLog {
    /// Logs an error of a request, unless it has been logged before or is not a fault of the source.
    pub fn log(&self, error: &fs::Error) {
        let fault = match error {
            fs::Error::Content(content::Error::Source(error)) => return self.log_source(error),
            fs::Error::Model(_) | fs::Error::Changed { .. } => LoggedFault::Other(error.to_string()),
            _ => return,
        };
        self.log_once(fault, error);
    }

    /// Logs an error of a source, unless it has been logged before.
    pub fn log_source(&self, error: &source::Error) {
        let fault = match error.fault() {
            Some((path, cause)) => LoggedFault::File(path.to_owned(), cause),
            None => LoggedFault::Other(error.to_string()),
        };
        self.log_once(fault, error);
    }

    fn log_once(&self, fault: LoggedFault, error: &impl std::fmt::Display) {
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(fault) {
            log::warn!("{error}");
        }
    }
}
