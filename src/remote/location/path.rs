//! Checks of the paths in locations.

/// Why a text that has the form of a URL is not a location. The text of the error holds no part of a query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(pub(crate) String);

impl ParseError {
    pub(super) fn new(text: impl Into<String>) -> ParseError {
        ParseError(text.into())
    }
}

/// The longest path of a file or directory, in bytes, as in Linux. Keys of object stores have at most 1024.
pub(super) const LONGEST_PATH: usize = 4096;

/// Checks a relative path: no component is empty, `.` or `..`, and there are no control characters. It may be empty.
pub(crate) fn check_path(path: &str) -> Result<(), ParseError> {
    if path.is_empty() {
        return Ok(());
    }
    if path.len() > LONGEST_PATH {
        return Err(ParseError::new(format!("a path has at most {LONGEST_PATH} bytes")));
    }
    if path.chars().any(char::is_control) {
        return Err(ParseError::new("a path cannot contain control characters"));
    }
    match path.split('/').find(|part| matches!(*part, "" | "." | "..")) {
        Some("") => Err(ParseError::new("a path cannot contain an empty component")),
        Some(part) => Err(ParseError::new(format!("a path cannot contain the component `{part}`"))),
        None => Ok(()),
    }
}
