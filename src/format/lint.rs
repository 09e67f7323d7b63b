//! Findings about a header, in addition to the result of the parser.

use super::error::Error;
use super::header::{Header, SkippedEntry, SkippedKind};
use crate::rules::CheckRule;
use crate::text::quote;

/// Something in a header that is wrong or unusual.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderLint {
    pub rule: CheckRule,
    /// The tensor or metadata key that is affected.
    pub subject: Option<String>,
    /// The message, one line.
    pub message: String,
}

impl HeaderLint {
    pub fn new(rule: CheckRule, subject: Option<&str>, message: impl Into<String>) -> Self {
        Self { rule, subject: subject.map(str::to_owned), message: message.into() }
    }
}

/// Reports the entries that the lenient parser left out of a file that the strict parser rejects with the error
/// `broken`, or that error if none was left out.
pub fn left_out(header: &Header, broken: &Error, _: u64, found: &mut dyn FnMut(HeaderLint)) {
    let skipped = header.skipped.listed();
    for SkippedEntry { name, reason, kind } in skipped {
        let (rule, subject, message) = match kind {
            SkippedKind::LeftOut | SkippedKind::Duplicate => {
                (CheckRule::Entry, Some(&name[..]), format!("{}: {reason}", quote(name)))
            }
            SkippedKind::Shown => (CheckRule::Overlap, Some(&name[..]), format!("tensor {}: {reason}", quote(name))),
            SkippedKind::Bytes => (CheckRule::Hole, None, reason.clone()),
        };
        found(HeaderLint::new(rule, subject, message));
    }
    if skipped.is_empty() {
        found(HeaderLint::new(CheckRule::Entry, None, broken.to_string()));
    }
}
