//! Finds everything that is wrong with a damaged file. The strict parser reports only the first broken rule.

use super::METADATA;
use super::error::{SafetensorsError, SafetensorsFault};
use crate::format::error;
use crate::format::header::{Header, SkippedEntry};
use crate::format::lint::{HeaderLint, LintKind};
use crate::text::quote;
use std::cmp::Ordering;
use std::collections::HashSet;

/// Reports everything that is wrong with a file of `len` bytes. `broken` is the error of the strict parser, and
/// `header` the result of the lenient parser.
pub fn safetensors_damage(header: &Header, broken: &error::Error, len: u64, found: &mut dyn FnMut(HeaderLint)) {
    let mut report = |kind, subject: Option<&str>, message| {
        found(HeaderLint { kind, subject: subject.map(str::to_owned), message });
    };
    let (skipped, more) = header.skipped().kept();
    for SkippedEntry { name, reason, .. } in skipped {
        report(LintKind::Entry, Some(name), format!("{}: {reason}", label(name)));
    }
    // The parser gives only one reason for each entry that it leaves out. If the name of such an entry is repeated too,
    // that is reported here.
    let mut seen = HashSet::new();
    for SkippedEntry { name, is_duplicate, .. } in skipped {
        if name != METADATA && !is_duplicate && (header.find(name).is_some() || !seen.insert(name)) {
            report(LintKind::Entry, Some(name), format!("{}: {}", label(name), SafetensorsFault::Duplicate));
        }
    }
    // A hole may hold the data of an entry that was left out.
    let is_left_out = more > 0 || skipped.iter().any(|skipped| skipped.name != METADATA);
    let note = if is_left_out { ", which may belong to a tensor that is left out" } else { "" };
    let mut expected = header.data_start();
    for tensor in header.tensors() {
        let (begin, name) = (tensor.range.start, quote(tensor.name));
        match begin.cmp(&expected) {
            Ordering::Equal => {}
            Ordering::Greater => {
                let fault = SafetensorsFault::Hole { begin, expected };
                report(LintKind::Hole, Some(tensor.name), format!("tensor {name}: {fault}{note}"));
            }
            Ordering::Less => {
                let fault = SafetensorsFault::Overlap { begin, expected };
                report(LintKind::Overlap, Some(tensor.name), format!("tensor {name}: {fault}"));
            }
        }
        expected = expected.max(tensor.range.end);
    }
    // If the file is truncated, its last tensors are left out. The rest of their bytes is not a hole.
    if expected < len && !broken.is_cut() {
        report(LintKind::Hole, None, format!("{}{note}", SafetensorsError::TooLong { end: expected, len }));
    }
}

/// The name of an entry in messages.
fn label(name: &str) -> String {
    if name == METADATA { name.to_owned() } else { format!("tensor {}", quote(name)) }
}
