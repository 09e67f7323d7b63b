//! Compares weightfs with native files and other FUSE file systems. Run it as `scripts/bench`, which installs them.
//!
//! Each round runs every pattern on every system, on a fresh mount; the order of the systems changes from round to
//! round. Results are medians over rounds. `inputs.rs` makes the inputs, `systems.rs` mounts each system, `patterns.rs`
//! has the workloads and the targets of weightfs, and `report.rs` prints the results. `remote/` does the same for
//! remote sources, and `reads.rs` compares ways of reading one file.

mod inputs;
mod patterns;
mod reads;
mod remote;
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

/// Compare weightfs with native files and other FUSE file systems; or, on remote sources, with rclone and curl.
#[derive(Parser)]
#[command(name = "scripts/bench")]
struct Args {
    /// Measure remote sources, at a server of this machine, with and without added latency
    #[arg(long)]
    remote: bool,
    /// Measure each way of reading a file: pread, readv, splice, memory maps, direct I/O, by one thread and several
    #[arg(long, conflicts_with_all = ["remote", "check"])]
    reads: bool,
    /// Smaller inputs, fewer rounds
    #[arg(long)]
    quick: bool,
    /// Print the targets that are missed by more than a margin, and exit 1 if there are any. Targets relative to native
    /// files are not checked. The targets are for the large inputs: with 10,000 names the fixed cost of a listing shows
    #[arg(long, conflicts_with = "quick")]
    check: bool,
    /// Write all samples to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Number of rounds [default: 7; 3 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Another build of weightfs to measure in the same rounds
    #[arg(long, value_name = "PROGRAM")]
    before: Option<PathBuf>,
    /// Measure only the rows whose names contain this text, and the rows of the same patterns
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Added by cargo bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    if let Some(before) = &args.before {
        let before = before.canonicalize().with_context(|| before.display().to_string())?;
        // Set only here, so it cannot fail.
        let _ = systems::BEFORE.set(before);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let size = Size::new(args.quick);
    let rounds = args.rounds.map_or(if args.quick { 3 } else { 7 }, usize::from);
    let limit = Duration::from_secs(if args.quick { 10 } else { 20 });
    let cache = root.join(".cache/bench");
    let site = Site::new(&cache, root.join(".venv/bin/ratarmount"))?;
    if args.remote {
        return remote::run(&args, &cache, &site, rounds, machine());
    }
    if args.reads {
        return reads::run(&args, &cache, &site, rounds, &machine());
    }
    let inputs = Inputs::ready(&cache, size, &site)?;

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
            report.absent.extend(pattern.rows.iter().map(|row| (row.name, "not supported by this build of weightfs")));
        }
    }

    // A pattern that took too long or failed once on a system is not tried again.
    let mut given_up = BTreeSet::new();
    for round in 0..rounds {
        for (number, pattern) in wanted.iter().enumerate() {
            eprint!("\r\x1b[Kround {}/{rounds}: {}", round + 1, pattern.rows[0].name);
            for turn in 0..System::ALL.len() {
                let turn = if round % 2 == 0 { turn } else { System::ALL.len() - 1 - turn };
                let system = System::ALL[(turn + round) % System::ALL.len()];
                if !pattern.systems.contains(&system) || !system.is_available() || given_up.contains(&(number, system))
                {
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
            eprint!("\r\x1b[Kround {}/{rounds}: open a header", round + 1);
            let opened = open_header(&inputs.header, &root.join(".venv/bin/python"), &site);
            for (times, opened) in report.headers.iter_mut().zip(opened) {
                match opened {
                    Ok(took) => times.push(took),
                    Err(error) => eprintln!("\r\x1b[Kopen a header: {error:#}"),
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
    misses.iter().for_each(|miss| println!("missed: {miss}"));
    Ok(ExitCode::from(u8::from(!misses.is_empty())))
}

/// The machine in words: cores and kernel.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores, Linux {}", kernel.trim())
}
