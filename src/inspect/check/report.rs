//! What a check found: knows the promises, how bad it is that one is broken, and whom it hurts.

use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// How many findings of one rule are kept; the others are counted.
const KEPT: u64 = 1000;

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A promise is broken.
    Error,
    /// It is sound, and somebody may stumble over it.
    Warning,
}

/// What is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "see the table below")]
pub enum Rule {
    Format,
    Entry,
    Hole,
    Overlap,
    Index,
    Hash,
    Nan,
    Manifest,
    IndexTwice,
    IndexTotals,
    Json,
    HeaderSize,
    DataStart,
    Unaligned,
    UnknownDtype,
    ModelSpec,
    Kohya,
    Infinite,
}

impl Rule {
    /// Its name in the output.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// How bad it is.
    pub fn severity(self) -> Severity {
        self.row().1
    }

    /// What it means to whom, where that does not go without saying.
    pub fn hint(self) -> Option<&'static str> {
        Some(self.row().2).filter(|hint| !hint.is_empty())
    }

    fn row(self) -> (&'static str, Severity, &'static str) {
        use Severity::{Error, Warning};
        match self {
            Self::Format => ("format", Error, ""),
            Self::Entry => ("entry", Error, ""),
            Self::Hole => ("hole", Error, ""),
            Self::Overlap => ("overlap", Error, ""),
            Self::Index => ("index", Error, ""),
            Self::Hash => {
                ("hash", Error, "the data was changed since the hash was computed, or written anew in another order")
            }
            Self::Nan => ("nan", Error, ""),
            Self::Manifest => ("manifest", Warning, ""),
            Self::IndexTwice => ("index-twice", Warning, "readers may take the first, or none"),
            Self::IndexTotals => ("index-totals", Warning, "transformers and accelerate do not compare them"),
            Self::Json => ("json", Warning, "the official reader takes it, others may not"),
            Self::HeaderSize => ("header-size", Warning, "huggingface_hub and huggingface.js refuse such headers"),
            Self::DataStart => (
                "data-start",
                Warning,
                "the official writer pads the header to 8; no tensor of wide elements can be used in place",
            ),
            Self::Unaligned => (
                "unaligned",
                Warning,
                "readers that use mapped bytes in place mind: Rust's bytemuck::cast_slice panics, torch cannot view a part of \
                 the file's bytes as another dtype there, others copy; NumPy and the official readers take them",
            ),
            Self::UnknownDtype => ("unknown-dtype", Warning, "the official reader, 0.8.0, refuses the file"),
            Self::ModelSpec => ("modelspec", Warning, ""),
            Self::Kohya => ("kohya", Warning, ""),
            Self::Infinite => ("infinite", Warning, "a mask may have them, weights should not"),
        }
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What is broken.
    pub rule: Rule,
    /// The file that has it.
    pub file: String,
    /// The tensor, shard or key of metadata, where one is to blame.
    pub subject: Option<String>,
    /// A sentence that names it.
    pub message: String,
}

/// All that a check found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    findings: Vec<Finding>,
    counts: BTreeMap<Rule, u64>,
    /// Files that were checked.
    pub files: usize,
    /// Tensors in them that are sound.
    pub tensors: u64,
    /// Size of these, in bytes.
    pub nbytes: u64,
    /// The largest power of two that the places of all tensors with data are multiples of, counted from the start of their
    /// file.
    pub alignment: Option<u64>,
    /// Hashes that are those of the data: file and key.
    pub verified: Vec<(String, String)>,
    /// Whether values were looked at.
    pub values: bool,
}

impl Report {
    /// Of a file in which nothing was found yet.
    pub(super) fn of_one_file() -> Self {
        Self { files: 1, ..Self::default() }
    }

    /// Takes note of something; the message is not made where there are many of its kind already.
    pub(super) fn add(&mut self, rule: Rule, file: &str, subject: Option<&str>, message: impl FnOnce() -> String) {
        let count = self.counts.entry(rule).or_default();
        *count += 1;
        if *count <= KEPT {
            self.findings.push(Finding {
                severity: rule.severity(),
                rule,
                file: file.to_owned(),
                subject: subject.map(str::to_owned),
                message: message(),
            });
        }
    }

    /// Whether it is told already, by one of those that are kept.
    pub(super) fn tells(&self, message: &str) -> bool {
        self.findings.iter().any(|finding| finding.message.starts_with(message))
    }

    /// Counts some of which no more is known.
    pub(super) fn add_unseen(&mut self, rule: Rule, more: usize) {
        if more > 0 {
            *self.counts.entry(rule).or_default() += more as u64;
        }
    }

    /// Takes over what was found elsewhere.
    pub(super) fn merge(&mut self, other: Self) {
        for finding in other.findings {
            let count = self.counts.entry(finding.rule).or_default();
            *count += 1;
            if *count <= KEPT {
                self.findings.push(finding);
            }
        }
        for (rule, count) in other.counts {
            // The first of them were counted just now.
            *self.counts.entry(rule).or_default() += count.saturating_sub(KEPT);
        }
        self.files += other.files;
        self.tensors += other.tensors;
        self.nbytes = self.nbytes.saturating_add(other.nbytes);
        self.alignment = self.alignment.into_iter().chain(other.alignment).min();
        self.verified.extend(other.verified);
        self.values |= other.values;
    }

    /// What was found, by rule, the errors first; of each rule in the order of the data, and not more than a thousand.
    pub fn findings(&mut self) -> &[Finding] {
        self.findings.sort_by_key(|finding| (finding.severity, finding.rule));
        &self.findings
    }

    /// How much was found of a rule.
    pub fn count(&self, rule: Rule) -> u64 {
        self.counts.get(&rule).copied().unwrap_or(0)
    }

    /// How much was found of that severity.
    pub fn total(&self, severity: Severity) -> u64 {
        self.counts.iter().filter(|(rule, _)| rule.severity() == severity).map(|(_, count)| count).sum()
    }
}
