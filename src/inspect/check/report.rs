//! The report of the findings of `check`.

use super::like::Likeness;
use crate::rules::{CheckRule, Severity};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of findings of one rule that are kept. Further ones are only counted.
const KEPT: u64 = 1000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckFinding {
    pub severity: Severity,
    pub rule: CheckRule,
    pub file: String,
    /// The tensor, shard or metadata key at fault, if there is one.
    pub subject: Option<String>,
    pub message: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckReport {
    findings: Vec<CheckFinding>,
    counts: BTreeMap<CheckRule, u64>,
    pub files: usize,
    /// Number of sound tensors in them.
    pub tensors: u64,
    /// Size of the sound tensors in bytes.
    pub nbytes: u64,
    /// The largest power of two that divides the offsets of all tensors with data.
    pub alignment: Option<u64>,
    /// Hashes that match the data: file and key.
    pub verified: Vec<(String, String)>,
    pub values: bool,
    /// Number of tensors whose values were not checked, because they overlap with others or repeat many elements.
    pub unsearched: u64,
    /// The comparison with a reference, if there is one. Parts of a check have none.
    #[serde(skip)]
    pub likeness: Option<Box<Likeness>>,
}

impl CheckReport {
    /// An empty report about one file.
    pub(super) fn of_one_file() -> Self {
        Self { files: 1, ..Self::default() }
    }

    /// Adds a finding. The message is only created if the finding is kept.
    pub(super) fn add(&mut self, rule: CheckRule, file: &str, subject: Option<&str>, message: impl FnOnce() -> String) {
        self.add_kept(rule, || CheckFinding {
            severity: rule.severity(),
            rule,
            file: file.to_owned(),
            subject: subject.map(str::to_owned),
            message: message(),
        });
    }

    /// Counts a finding, and keeps it unless there are too many of the rule.
    fn add_kept(&mut self, rule: CheckRule, finding: impl FnOnce() -> CheckFinding) {
        let count = self.counts.entry(rule).or_default();
        *count = count.saturating_add(1);
        if *count <= KEPT {
            self.findings.push(finding());
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

    pub(super) fn merge(&mut self, other: Self) {
        for finding in other.findings {
            self.add_kept(finding.rule, || finding);
        }
        for (rule, count) in other.counts {
            // The kept findings were counted above.
            let counted = self.counts.entry(rule).or_default();
            *counted = counted.saturating_add(count.saturating_sub(KEPT));
        }
        self.files = self.files.saturating_add(other.files);
        self.unsearched = self.unsearched.saturating_add(other.unsearched);
        self.tensors = self.tensors.saturating_add(other.tensors);
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

    pub fn count(&self, rule: CheckRule) -> u64 {
        self.counts.get(&rule).copied().unwrap_or(0)
    }

    pub fn total(&self, severity: Severity) -> u64 {
        self.counts
            .iter()
            .filter(|(rule, _)| rule.severity() == severity)
            .fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
    }
}
