//! `weightfs check`: prints the findings of `inspect::check`.

use crate::cli::CheckArgs;
use crate::opening::{NamedModel, NamedModels};
#[cfg(feature = "parquet")]
use crate::process::parquet::rows as index_rows;
use crate::terminal::output::{ERROR, GOOD, NOTE, StandardOutput, WARNING, to_stdout};
use crate::terminal::progress::ProgressLine;
use anstyle::Style;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
#[cfg(not(feature = "parquet"))]
use weightfs::inspect::check::IndexRow;
use weightfs::inspect::check::{CheckFinding, CheckReport, CheckRule, ModelCheck, Severity};
use weightfs::model::Error;
#[cfg(not(feature = "parquet"))]
use weightfs::source::Source;
use weightfs::source::{self, Location};
use weightfs::text::printable;
use weightfs::units::{format_size, plural};

/// Exit code if something could not be read.
const TROUBLE: u8 = 2;

/// Checks each model. The exit code is 0 if all are sound, 1 if an error was found, and 2 if something could not be
/// read.
pub fn run_check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    to_stdout(|out| {
        let models = NamedModels::find(&args.input.sources, &args.input.remote, out)?;
        let NamedModels { files, copies, failed, mut connecting } = models;
        if args.sha256.is_some() && files.len() + copies.len() > 1 {
            anyhow::bail!("--sha256 is for one file, not for {} models; {SUMS}", files.len() + copies.len());
        }
        let mut code = if failed { TROUBLE } else { 0 };
        // Programs may load a file that no mount shows.
        for NamedModel { location, top } in files.iter().chain(&copies) {
            let checked = check_source(location, top.as_ref(), args)?;
            drop(connecting.take());
            match checked {
                Ok(mut report) => {
                    let counted = report.total(Severity::Error) > 0
                        || args.fail_on_warning && report.total(Severity::Warning) > 0;
                    code = code.max(u8::from(counted));
                    match (args.quiet, args.json) {
                        (true, _) => {}
                        (false, true) => print_check_json(&mut report, location, out)?,
                        (false, false) => print_check(&mut report, location, out)?,
                    }
                }
                Err(error) => {
                    code = TROUBLE;
                    out.complain(&reason(&error))?;
                }
            }
        }
        Ok(ExitCode::from(code))
    })
}

/// The message about a check that could not be completed.
fn reason(error: &Error) -> String {
    match error {
        Error::Source(source::Error::Cut { path, .. } | source::Error::Changed { path }) => {
            format!("{}: changed while it was checked", path.display())
        }
        other => other.to_string(),
    }
}

/// The advice to users who have several sums.
const SUMS: &str = "to check several, put their sums into a file SHA256SUMS beside them";

/// Checks a model. Fails if it has several files and the command line has a sum for one.
fn check_source(
    location: &Location,
    top: Option<&Location>,
    args: &CheckArgs,
) -> anyhow::Result<Result<CheckReport, Error>> {
    let mut check = match ModelCheck::open(location, top) {
        Ok(check) => check,
        Err(error) => return Ok(Err(error)),
    };
    if let Some(Err(files)) = args.sha256.clone().map(|sum| check.expect_sum(sum)) {
        anyhow::bail!("{location}: --sha256 is for one file, and this model has {files}; {SUMS}");
    }
    Ok(read_source(check, args))
}

fn read_source(mut check: ModelCheck, args: &CheckArgs) -> Result<CheckReport, Error> {
    check.compare_index(index_rows)?;
    if !args.no_data {
        check.find_sums();
        let progress = ProgressLine::new("checking", check.bytes_to_read(args.values));
        check.read(args.values, &|bytes| progress.add(bytes))?;
    }
    Ok(check.into_report())
}

/// Reads no index of tensors.
#[cfg(not(feature = "parquet"))]
fn index_rows(_: &dyn Source, _: &mut dyn FnMut(&IndexRow) -> bool) -> Result<(), String> {
    Err("it is not read, because this weightfs was built without support for Parquet".into())
}

/// Maximum number of findings of one rule that are printed.
const SHOWN: u64 = 10;

/// The severities in their order, with their labels and styles.
const SEVERITIES: [(Severity, &str, Style); 3] =
    [(Severity::Error, "error", ERROR), (Severity::Warning, "warning", WARNING), (Severity::Note, "note", NOTE)];

fn print_check(report: &mut CheckReport, location: &Location, out: &mut StandardOutput) -> io::Result<()> {
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
            writeln!(out, "{}: {label}: {more} more of this kind", printable(&location.to_string()))?;
        }
        if let Some(hint) = first.rule.hint() {
            writeln!(out, "    ({hint})")?;
        }
    }
    summarise(report, location, out)
}

/// Prints the last line: the result, and what was checked.
fn summarise(report: &CheckReport, location: &Location, out: &mut StandardOutput) -> io::Result<()> {
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
    writeln!(out, "{}: {verdict} ({})", printable(&location.to_string()), facts.join("; "))
}

fn print_check_json(report: &mut CheckReport, location: &Location, out: &mut StandardOutput) -> anyhow::Result<()> {
    let findings = report.findings().to_vec();
    let errors = report.total(Severity::Error);
    let verified = report.verified.iter().map(|(file, key)| json!({"file": file, "key": key}));
    out.print_json(&json!({
        "source": location.to_string(), "ok": errors == 0, "errors": errors,
        "warnings": report.total(Severity::Warning), "notes": report.total(Severity::Note), "files": report.files, "tensors": report.tensors,
        "nbytes": report.nbytes, "alignment": report.alignment, "values": report.values, "unsearched": report.unsearched,
        "verified": verified.collect::<Vec<_>>(), "findings": findings,
    }))
}
