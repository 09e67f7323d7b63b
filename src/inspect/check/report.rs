//! The rules of `check`, and the report of findings.

use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// Maximum number of findings of one rule that are kept. Further ones are only counted.
const KEPT: u64 = 1000;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The model is not sound.
    Error,
    /// The model is sound, but some programs may have problems with it.
    Warning,
    /// The model is sound. Users should know this about it.
    Note,
}

/// A rule that is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "`Rule::row` describes the rules")]
pub enum CheckRule {
    Format,
    Entry,
    Hole,
    Overlap,
    Index,
    Split,
    Hash,
    Nan,
    Archive,
    PickleCode,
    ZeroEnd,
    Manifest,
    TensorIndex,
    IndexTwice,
    IndexTotals,
    SplitName,
    Json,
    GgufKeys,
    GgufPadding,
    Trailing,
    LeftOut,
    Model,
    PickleGlobal,
    HeaderSize,
    DataStart,
    Unaligned,
    UnknownDtype,
    RawDtype,
    ModelSpec,
    Kohya,
    Infinite,
    Scale,
    GroupIndex,
    Companion,
    ZeroWeight,
    Unverified,
    ZeroScale,
    Zero,
    Padding,
    Quantized,
}

impl CheckRule {
    /// The name in the output.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// The severity of a finding.
    pub fn severity(self) -> Severity {
        self.row().1
    }

    /// The consequences of a violation, if they are not obvious.
    pub fn hint(self) -> Option<&'static str> {
        Some(self.row().2).filter(|hint| !hint.is_empty())
    }

    fn row(self) -> (&'static str, Severity, &'static str) {
        use Severity::{Error, Note, Warning};
        match self {
            Self::Format => ("format", Error, ""),
            Self::Entry => ("entry", Error, ""),
            Self::Hole => ("hole", Error, ""),
            Self::Overlap => ("overlap", Error, ""),
            Self::Index => ("index", Error, ""),
            Self::Split => ("split", Error, ""),
            Self::Hash => {
                ("hash", Error, "the data has changed since the hash was computed, or was written in another order")
            }
            Self::Nan => ("nan", Error, ""),
            Self::Archive => ("archive", Error, "programs that read the other description see another file"),
            Self::PickleCode => (
                "pickle-code",
                Error,
                "do not load the file with torch.load or pickle unless you trust its origin; weightfs and torch.load(..., \
                 weights_only=True) do not run it",
            ),
            Self::PickleGlobal => ("pickle-global", Warning, "torch.load(..., weights_only=True) refuses the file"),
            Self::ZeroEnd => ("zero-end", Error, "probably an unfinished download or copy: fetch the file again"),
            Self::Manifest => ("manifest", Warning, ""),
            Self::TensorIndex => ("tensor-index", Warning, ""),
            Self::IndexTwice => ("index-twice", Warning, "readers may take the first entry, or none"),
            Self::IndexTotals => ("index-totals", Warning, "transformers and accelerate do not compare them"),
            Self::SplitName => ("split-name", Warning, "llama.cpp finds the splits of a model by their names and keys"),
            Self::Json => ("json", Warning, "the official reader accepts it, others may not"),
            Self::GgufKeys => ("gguf-keys", Warning, "programs such as llama.cpp may fail to load the model"),
            Self::GgufPadding => ("gguf-padding", Warning, ""),
            Self::Trailing => ("trailing", Warning, ""),
            Self::LeftOut => ("left-out", Warning, ""),
            Self::Model => ("model", Warning, "the program of the format may not load the model"),
            Self::HeaderSize => ("header-size", Warning, "huggingface_hub and huggingface.js reject such headers"),
            Self::DataStart => (
                "data-start",
                Warning,
                "the official writer pads the header to a multiple of 8 bytes; wide elements may not be usable in place",
            ),
            Self::Unaligned => (
                "unaligned",
                Warning,
                "this affects readers that use mapped bytes in place: Rust's bytemuck::cast_slice panics, torch cannot view such \
                 bytes as another dtype, others copy; NumPy and the official readers accept them",
            ),
            Self::UnknownDtype => ("unknown-dtype", Warning, "the official reader (0.8.0) rejects the file"),
            Self::RawDtype => ("raw-dtype", Note, ""),
            Self::ModelSpec => ("modelspec", Warning, ""),
            Self::Kohya => ("kohya", Warning, ""),
            Self::Infinite => ("infinite", Warning, "masks may have infinite values, weights should not"),
            Self::Scale => ("scale", Error, ""),
            Self::GroupIndex => ("group-index", Error, ""),
            Self::Companion => (
                "companion",
                Warning,
                "such weights are shown as stored: the model is incomplete, or weightfs does not recognise a variant of the scheme",
            ),
            Self::ZeroWeight => ("zero-weight", Warning, "a trained weight is not zero; data may be missing"),
            Self::Unverified => ("unverified", Note, ""),
            Self::ZeroScale => ("zero-scale", Note, "normal for groups in which all weights are zero, or nearly so"),
            Self::Zero => (
                "zero",
                Note,
                "normal for biases, and for matrices that are zero before training, such as those of a LoRA",
            ),
            Self::Padding => (
                "padding",
                Note,
                "normal for the last batch of a task if the dataset was written with tail_strategy=pad",
            ),
            Self::Quantized => ("quantized", Note, ""),
        }
    }
}

impl Serialize for CheckRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckFinding {
    /// The severity of the rule.
    pub severity: Severity,
    /// The rule.
    pub rule: CheckRule,
    /// The file.
    pub file: String,
    /// The tensor, shard or metadata key at fault, if there is one.
    pub subject: Option<String>,
    /// The description.
    pub message: String,
}

/// The result of a check.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    findings: Vec<CheckFinding>,
    counts: BTreeMap<CheckRule, u64>,
    /// Files that were checked.
    pub files: usize,
    /// Number of sound tensors in them.
    pub tensors: u64,
    /// Size of the sound tensors in bytes.
    pub nbytes: u64,
    /// The largest power of two that divides the offsets of all tensors with data.
    pub alignment: Option<u64>,
    /// Hashes that match the data: file and key.
    pub verified: Vec<(String, String)>,
    /// Whether values were checked.
    pub values: bool,
    /// Number of tensors whose values were not checked, because they overlap with others or repeat many elements.
    pub unsearched: u64,
}

impl CheckReport {
    /// An empty report about one file.
    pub(super) fn of_one_file() -> Self {
        Self { files: 1, ..Self::default() }
    }

    /// Adds a finding. The message is only created if the finding is kept.
    pub(super) fn add(&mut self, rule: CheckRule, file: &str, subject: Option<&str>, message: impl FnOnce() -> String) {
        let count = self.counts.entry(rule).or_default();
        *count += 1;
        if *count <= KEPT {
            self.findings.push(CheckFinding {
                severity: rule.severity(),
                rule,
                file: file.to_owned(),
                subject: subject.map(str::to_owned),
                message: message(),
            });
        }
    }

    /// Whether the message of a kept finding starts with `message`.
    pub(super) fn contains(&self, message: &str) -> bool {
        self.findings.iter().any(|finding| finding.message.starts_with(message))
    }

    /// Counts `more` findings without details.
    pub(super) fn add_unseen(&mut self, rule: CheckRule, more: usize) {
        if more > 0 {
            *self.counts.entry(rule).or_default() += more as u64;
        }
    }

    /// Adds the findings of another report.
    pub(super) fn merge(&mut self, other: Self) {
        for finding in other.findings {
            let count = self.counts.entry(finding.rule).or_default();
            *count += 1;
            if *count <= KEPT {
                self.findings.push(finding);
            }
        }
        for (rule, count) in other.counts {
            // The kept findings were counted above.
            *self.counts.entry(rule).or_default() += count.saturating_sub(KEPT);
        }
        self.files += other.files;
        self.unsearched += other.unsearched;
        self.tensors += other.tensors;
        self.nbytes = self.nbytes.saturating_add(other.nbytes);
        self.alignment = self.alignment.into_iter().chain(other.alignment).min();
        self.verified.extend(other.verified);
        self.values |= other.values;
    }

    /// The findings, sorted by severity (errors first) and rule; at most 1000 for each rule.
    pub fn findings(&mut self) -> &[CheckFinding] {
        self.findings.sort_by_key(|finding| (finding.severity, finding.rule));
        &self.findings
    }

    /// Number of findings of a rule.
    pub fn count(&self, rule: CheckRule) -> u64 {
        self.counts.get(&rule).copied().unwrap_or(0)
    }

    /// Number of findings of a severity.
    pub fn total(&self, severity: Severity) -> u64 {
        self.counts.iter().filter(|(rule, _)| rule.severity() == severity).map(|(_, count)| count).sum()
    }
}
