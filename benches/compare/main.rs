//! weightfs beside its peers, in one run: `scripts/bench`, which installs what this needs.
//!
//! In each round every pattern is run on every system, in another order from round to round, each on a fresh mount.
//! What is printed are medians. `inputs.rs` says what is measured on, `systems.rs` who is measured, `patterns.rs` what
//! is done and what weightfs is to reach, `report.rs` what becomes of the numbers.
#![allow(missing_docs, reason = "a program of its own")]

mod inputs;
mod patterns;
mod report;
mod systems;

use anyhow::Context;
use clap::Parser;
use inputs::{Inputs, Size};
use patterns::{Kind, Outcome, PATTERNS, measure, open_header};
use report::{Report, Sample};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use systems::{Site, System, WEIGHTFS};

/// Measure weightfs beside its peers.
#[derive(Parser)]
#[command(name = "scripts/bench")]
struct Args {
    /// Smaller inputs, fewer rounds
    #[arg(long)]
    quick: bool,
    /// Hold the ratios against the targets, but for those against native files, with a margin; exit 1 and name the
    /// misses. The targets are for the large inputs: among 10,000 names what a listing costs besides shows
    #[arg(long, conflicts_with = "quick")]
    check: bool,
    /// Write exact numbers to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Rounds [default: 7, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Another build of weightfs to measure in the same rounds
    #[arg(long, value_name = "PROGRAM")]
    before: Option<PathBuf>,
    /// Only the rows whose names contain this, and those that are measured with them
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// What cargo bench adds
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    if let Some(before) = &args.before {
        let before = before.canonicalize().with_context(|| before.display().to_string())?;
        // The cell was empty.
        let _ = systems::BEFORE.set(before);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let size = Size::new(args.quick);
    let rounds = args.rounds.map_or(if args.quick { 3 } else { 7 }, usize::from);
    let limit = Duration::from_secs(if args.quick { 10 } else { 20 });
    let site = Site::new(root.join(".venv/bin/ratarmount"))?;
    let inputs = Inputs::ready(&root.join(".cache/bench"), size, &site)?;

    let help = Command::new(WEIGHTFS).arg("--help").output().context("weightfs --help")?;
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let mut report = Report {
        machine: machine(),
        rounds,
        size,
        samples: BTreeMap::new(),
        headers: Default::default(),
        absent: Vec::new(),
    };
    let mut wanted = Vec::new();
    for pattern in PATTERNS {
        let is_named = |text: &String| pattern.rows.iter().any(|row| row.name.contains(text.as_str()));
        if !args.only.as_ref().is_none_or(is_named) {
            continue;
        }
        if pattern.args.iter().all(|option| help.contains(option)) {
            wanted.push(pattern);
        } else {
            report.absent.extend(pattern.rows.iter().map(|row| (row.name, "not there in this weightfs")));
        }
    }

    // What took too long or failed once would do so again.
    let mut given_up = BTreeSet::new();
    for round in 0..rounds {
        for (number, pattern) in wanted.iter().enumerate() {
            eprint!("\r\x1b[Kround {}/{rounds}: {}", round + 1, pattern.rows[0].name);
            for turn in 0..System::ALL.len() {
                let turn = if round % 2 == 0 { turn } else { System::ALL.len() - 1 - turn };
                let system = System::ALL[(turn + round) % System::ALL.len()];
                if !pattern.systems.contains(&system) || !system.is_here() || given_up.contains(&(number, system)) {
                    continue;
                }
                let input = match pattern.input {
                    Kind::Model => &inputs.model,
                    Kind::Half => &inputs.half,
                    Kind::Tiny => &inputs.tiny,
                };
                let outcome = measure(pattern, system, input, &site, limit);
                let samples = match outcome {
                    Ok(Outcome::Values(values)) => values.into_iter().map(Sample::Value).collect(),
                    Ok(Outcome::Over) => vec![Sample::Over(limit.as_secs()); pattern.rows.len()],
                    Err(error) => {
                        eprintln!("\r\x1b[K{}, {}: {error:#}", pattern.rows[0].name, system.name());
                        vec![Sample::Failed; pattern.rows.len()]
                    }
                };
                if !samples.iter().all(|sample| matches!(sample, Sample::Value(_))) {
                    given_up.insert((number, system));
                }
                for (row, sample) in pattern.rows.iter().zip(samples) {
                    report.samples.entry((row.name, system)).or_default().push(sample);
                }
            }
        }
        if args.only.is_none() {
            eprint!("\r\x1b[Kround {}/{rounds}: headers", round + 1);
            let opened = open_header(&inputs.header, &root.join(".venv/bin/python"), &site);
            for (times, opened) in report.headers.iter_mut().zip(opened) {
                match opened {
                    Ok(took) => times.push(took),
                    Err(error) => eprintln!("\r\x1b[Kheader: {error:#}"),
                }
            }
        }
    }
    eprint!("\r\x1b[K");
    report.print();
    if let Some(path) = &args.json {
        std::fs::write(path, format!("{:#}\n", report.json())).with_context(|| path.display().to_string())?;
    }
    if !args.check {
        return Ok(ExitCode::SUCCESS);
    }
    let misses = report.misses();
    misses.iter().for_each(|miss| println!("check: {miss}"));
    Ok(ExitCode::from(u8::from(!misses.is_empty())))
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores, Linux {}", kernel.trim())
}
