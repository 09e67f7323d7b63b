//! Findings about a header, in addition to the result of the parser.

/// Something in a header that is wrong or unusual.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lint {
    /// What kind of finding it is.
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
}
