//! Findings about a header, beyond the verdict of the parser.

/// Something in a header that is wrong or unusual.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lint {
    /// What kind of finding it is.
    pub kind: LintKind,
    /// The tensor or metadata key that has it.
    pub subject: Option<String>,
    /// What it is, a sentence.
    pub message: String,
}

/// A kind of finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LintKind {
    /// Some readers reject it, although the parser accepts it.
    Unusual,
    /// An entry breaks a rule.
    Entry,
    /// There are bytes of no tensor between the data of two tensors, or after the last.
    Hole,
    /// Two tensors share bytes.
    Overlap,
}
