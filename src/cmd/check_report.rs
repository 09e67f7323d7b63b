//! The reports of `weightfs check`, as the command and `weightfs combine` print them.

use crate::cli::CheckArgs;
use crate::terminal::output::{ERROR, GOOD, NOTE, StandardOutput, WARNING};
use anstyle::Style;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{self, Write};
use weightfs::inspect::check::{CheckFinding, CheckReport, CheckRule, Severity};
use weightfs::text::printable;
use weightfs::units::{format_size, plural};

/// Exit code if something could not be read.
pub(super) const TROUBLE: u8 = 2;

/// Prints the reports on one model after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CheckPrinter {
    json: bool,
    quiet: bool,
    fail_on_warning: bool,
}

impl CheckPrinter {
    pub fn of(args: &CheckArgs) -> Self {
        Self { json: args.json, quiet: args.quiet, fail_on_warning: args.fail_on_warning }
    }

    /// Returns the exit code.
    pub fn print(self, report: &mut CheckReport, source: &str, out: &mut StandardOutput) -> anyhow::Result<u8> {
        let counted = report.total(Severity::Error) > 0 || self.fail_on_warning && report.total(Severity::Warning) > 0;
        match (self.quiet, self.json) {
            (true, _) => {}
            (false, true) => print_json(report, source, out)?,
            (false, false) => print_text(report, source, out)?,
        }
        Ok(u8::from(counted))
    }
}

/// Maximum number of findings of one rule that are printed.
const SHOWN: u64 = 10;

/// The severities in their order, with their labels and styles.
const SEVERITIES: [(Severity, &str, Style); 3] =
    [(Severity::Error, "error", ERROR), (Severity::Warning, "warning", WARNING), (Severity::Note, "note", NOTE)];

fn print_text(report: &mut CheckReport, source: &str, out: &mut StandardOutput) -> io::Result<()> {
    let findings = report.findings().to_vec();
    for group in findings.chunk_by(|a, b| a.rule == b.rule) {
        let [first, ..] = group else { continue };
        let (_, label, style) = SEVERITIES[first.severity as usize];
        for CheckFinding { file, message, .. } in group.iter().take(SHOWN as usize) {
            let label = out.styled(style, label);
            writeln!(out, "{}: {label}: {}", printable(file), printable(message))?;
        }
        if let Some(more @ 1..) = report.count(first.rule).checked_sub(SHOWN) {
            let label = out.styled(style, label);
            writeln!(out, "{}: {label}: {more} more of this kind", printable(source))?;
        }
        if let Some(hint) = first.rule.hint() {
            writeln!(out, "    ({hint})")?;
        }
    }
    summarise(report, source, out)
}

/// Prints the last line: the result, and what was checked.
fn summarise(report: &CheckReport, source: &str, out: &mut StandardOutput) -> io::Result<()> {
    let counts = SEVERITIES.map(|(severity, label, _)| (report.total(severity), label)).into_iter();
    let counts = counts.filter(|(count, _)| *count > 0).map(|(count, label)| plural(count, label));
    let counts = counts.collect::<Vec<_>>().join(", ");
    let verdict = match (report.total(Severity::Error), &counts[..]) {
        (0, "") => out.styled(GOOD, "OK".to_owned()),
        (0, _) => out.styled(GOOD, format!("OK, with {counts}")),
        _ => out.styled(ERROR, counts),
    };
    let mut facts = vec![format!("{}, {}", plural(report.tensors, "tensor"), format_size(report.nbytes))];
    if report.files > 1 {
        facts.push(plural(report.files as u64, "file"));
    }
    if let Some(alignment) = report.alignment {
        facts.push(format!("data aligned to {}", plural(alignment, "byte")));
    }
    let mut verified: BTreeMap<&str, u64> = BTreeMap::new();
    for (_, key) in &report.verified {
        *verified.entry(key).or_default() += 1;
    }
    for (key, files) in verified {
        let of = if report.files > 1 { format!(" of {}", plural(files, "file")) } else { String::new() };
        facts.push(format!("{} verified{of}", printable(key)));
    }
    // Values of unknown dtypes and of tensors that were skipped are not checked, and overlapping data is not checked
    // twice.
    let not_finite = [
        CheckRule::Nan,
        CheckRule::Infinite,
        CheckRule::Scale,
        CheckRule::GroupIndex,
        CheckRule::UnknownDtype,
        CheckRule::Format,
        CheckRule::Entry,
        CheckRule::Index,
        CheckRule::Overlap,
    ];
    if report.values && report.tensors > 0 && not_finite.iter().all(|rule| report.count(*rule) == 0) {
        facts.push(match report.unsearched {
            0 => "all values finite".to_owned(),
            some => format!("values of {} not searched, all others finite", plural(some, "tensor")),
        });
    }
    if let Some(likeness) = &report.likeness {
        facts.push(printable(&likeness.summary()).into_owned());
    }
    writeln!(out, "{}: {verdict} ({})", printable(source), facts.join("; "))
}

fn print_json(report: &mut CheckReport, source: &str, out: &mut StandardOutput) -> anyhow::Result<()> {
    let findings = report.findings().to_vec();
    let errors = report.total(Severity::Error);
    let verified = report.verified.iter().map(|(file, key)| json!({"file": file, "key": key}));
    let mut object = json!({
        "source": source, "ok": errors == 0, "errors": errors,
        "warnings": report.total(Severity::Warning), "notes": report.total(Severity::Note), "files": report.files, "tensors": report.tensors,
        "nbytes": report.nbytes, "alignment": report.alignment, "values": report.values, "unsearched": report.unsearched,
        "verified": verified.collect::<Vec<_>>(), "findings": findings,
    });
    if let Some(likeness) = &report.likeness {
        object["like"] = serde_json::to_value(likeness)?;
    }
    out.print_json(&object)
}
