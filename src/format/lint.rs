//! Findings about a header, in addition to the result of the parser.

use super::error::Error;
use super::header::Header;
use crate::text::quote;

/// Something in a header that is wrong or unusual.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderLint {
    /// The kind of finding.
    pub kind: LintKind,
    /// The tensor or metadata key that is affected.
    pub subject: Option<String>,
    /// The message, one line.
    pub message: String,
}

/// A kind of finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LintKind {
    /// The parser accepts the header, but some readers reject it.
    Unusual,
    /// Metadata keys are missing, or have values that programs do not expect.
    Keys,
    /// The padding after the data is missing or too long.
    Padding,
    /// An entry breaks a rule.
    Entry,
    /// Bytes between the data of two tensors, or after the last tensor, belong to no tensor.
    Hole,
    /// Two tensors share bytes.
    Overlap,
    /// The file has a checksum that cannot be computed.
    Unverified,
    /// The tensors or the parameters are not those of a complete model of the architecture.
    Model,
    /// Tensors of a sound file cannot be shown.
    LeftOut,
    /// An entry of an archive is described in two ways that differ.
    Archive,
    /// A pickle names a class or a function that is not needed for tensors.
    Global,
    /// A pickle names a function that can run code.
    Code,
    /// Bytes after the data belong to no tensor. Readers of the format ignore them.
    Trailing,
}

/// Reports the entries that the lenient parser left out of a file that the strict parser rejects with the error
/// `broken`, or that error if none was left out.
pub fn left_out(header: &Header, broken: &Error, _: u64, found: &mut dyn FnMut(HeaderLint)) {
    let skipped = header.skipped().listed();
    for skipped in skipped {
        let message = format!("{}: {}", quote(&skipped.name), skipped.reason);
        found(HeaderLint { kind: LintKind::Entry, subject: Some(skipped.name.clone()), message });
    }
    if skipped.is_empty() {
        found(HeaderLint { kind: LintKind::Entry, subject: None, message: broken.to_string() });
    }
}
