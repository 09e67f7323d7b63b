//! Why a model cannot be opened.

use crate::content;
use crate::format;
use crate::source::{self, Location};
use crate::text::shorten;

/// Why a model cannot be opened. The message names the file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Source(#[from] source::Error),
    /// Data that opening the model needs cannot be computed.
    #[error(transparent)]
    Content(content::Error),
    #[error("{location}: {error}{}", if *is_lenient_better { LENIENT } else { "" })]
    Format {
        location: Location,
        error: format::Error,
        /// Whether the lenient parser accepts the file.
        is_lenient_better: bool,
    },
    /// An index, a manifest, splits or a directory are no model.
    #[error("{location}: {fault}")]
    Set { location: Location, fault: String },
    /// Another error, which would quote a file behind a link.
    #[error("{location}: {LINKED}")]
    Linked { location: Location },
}

/// The end of a message about a file or a model of which `--lenient` shows a part.
pub(super) const LENIENT: &str = " (--lenient mounts the rest)";

/// The fault of a model of which no message quotes anything.
pub const LINKED: &str = "not a valid model; a link leads to it or to one of its files, so no message quotes it (name \
                          that file itself, or use -v, to see the reason)";

impl Error {
    pub(super) fn of_set(location: &Location, fault: impl ToString) -> Self {
        Self::Set { location: location.clone(), fault: fault.to_string() }
    }

    /// The error in a message that mentions `--lenient` itself.
    pub(super) fn without_hint(self) -> Self {
        match self {
            Self::Format { location, error, .. } => Self::Format { location, error, is_lenient_better: false },
            other => other,
        }
    }

    /// Whether the message may quote names or numbers from a file.
    pub(super) fn quotes(&self) -> bool {
        use source::Error::{Changed, Dangling, Io, NotAFile, Outside, Replaced};
        let named = |error: &source::Error| {
            let is_of_path = matches!(error, Io { .. } | NotAFile { .. } | Dangling { .. });
            is_of_path || matches!(error, Changed { .. } | Replaced { .. } | Outside { .. })
        };
        !matches!(self, Self::Linked { .. }) && !matches!(self, Self::Source(error) if named(error))
    }

    /// Whether the same operation may succeed later although the files do not change.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Source(error) if error.is_transient())
    }
}

impl From<content::Error> for Error {
    fn from(error: content::Error) -> Self {
        match error {
            content::Error::Source(error) => Self::Source(error),
            error => Self::Content(error),
        }
    }
}

/// The message of the JSON parser, shortened because it may quote text of any length from the file.
pub(super) fn json_fault(what: &str, error: &serde_json::Error) -> String {
    const REASON_MAX: usize = 300;
    format!("not a valid {what}: {}", shorten(&error.to_string(), REASON_MAX))
}
