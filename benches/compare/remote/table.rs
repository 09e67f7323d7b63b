//! The results: medians, ratios and targets, as a table and as JSON.

use super::programs::Program;
use super::{Against, LATENCIES, PATTERNS, Row, Target, Unit};
use crate::patterns::Bound;
use crate::report::{MARGIN, median};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The value of one row in one round, or the reason why there is none.
#[derive(Clone)]
pub enum Sample {
    Value(f64),
    /// The program has no such value.
    None,
    /// Not finished within this many seconds.
    Over(u64),
    Failed,
}

pub struct Table {
    pub machine: String,
    pub rounds: usize,
    /// By added latency, the milliseconds that the first request on a connection takes.
    pub first_request: Vec<(u64, f64)>,
    /// The length of the single file.
    pub bytes: u64,
    pub shards: usize,
    /// By row, added latency and program, one sample for each round.
    pub samples: BTreeMap<(&'static str, u64, Program), Vec<Sample>>,
}

impl Table {
    fn samples(&self, row: &Row, latency: u64, program: Program) -> &[Sample] {
        self.samples.get(&(row.name, latency, program)).map_or(&[], Vec::as_slice)
    }

    fn values(&self, row: &Row, latency: u64, program: Program) -> Vec<f64> {
        let value = |sample: &Sample| if let Sample::Value(value) = sample { Some(*value) } else { None };
        self.samples(row, latency, program).iter().filter_map(value).collect()
    }

    /// Median of the ratios of the rounds. Noise that slows a whole round cancels out.
    fn ratio(&self, row: &Row, latency: u64, against: Against) -> Option<f64> {
        let others: &[Program] = match against {
            Against::Curl => &[Program::Curl],
            Against::Rclone => &[Program::Rclone, Program::RcloneFull],
            Against::Local => &[Program::Local],
            Against::Limit => return median(self.values(row, latency, Program::Weightfs)),
        };
        let value = |program: Program, round: usize| match self.samples(row, latency, program).get(round) {
            Some(Sample::Value(value)) => Some(*value),
            _ => None,
        };
        let better = |one: f64, other: f64| if row.unit == Unit::GBs { one.max(other) } else { one.min(other) };
        let of_round = |round| {
            let best = others.iter().filter_map(|other| value(*other, round)).reduce(better)?;
            Some(value(Program::Weightfs, round)? / best).filter(|ratio| ratio.is_finite())
        };
        median((0..self.rounds).filter_map(of_round).collect())
    }

    /// The median, or why there is none, as text.
    fn shown(&self, row: &Row, latency: u64, program: Program) -> String {
        match (median(self.values(row, latency, program)), self.samples(row, latency, program).last()) {
            (_, Some(Sample::Over(seconds))) => format!("> {seconds} s"),
            (Some(value), _) => match row.unit {
                Unit::GBs | Unit::Ratio => format!("{value:.2}"),
                Unit::Count => format!("{value:.0}"),
                _ if value >= 100.0 => format!("{value:.0}"),
                _ => format!("{value:.1}"),
            },
            (None, Some(Sample::Failed)) => "failed".into(),
            (None, _) => String::new(),
        }
    }

    /// The ratio as text; if it has a target, with the target and whether it is met.
    fn ratio_shown(&self, row: &Row, latency: u64, against: Against) -> String {
        let Some(ratio) = self.ratio(row, latency, against) else { return String::new() };
        let shown = match against {
            Against::Limit => String::new(),
            _ if ratio < 10.0 => format!("{ratio:.2}"),
            _ => format!("{ratio:.1}"),
        };
        let target = row.targets_at(latency).find(|target| target.against == against).map_or(String::new(), |target| {
            let mark = if target.bound.holds(ratio, 1.0) { '✓' } else { '✗' };
            match target.bound {
                Bound::AtLeast(bound) => format!("{mark}≥{bound}"),
                Bound::AtMost(bound) => format!("{mark}≤{bound}"),
            }
        });
        format!("{shown:>5} {target}")
    }

    /// Prints a table for each latency, in at most 100 columns.
    pub fn print(&self) {
        println!("{}; medians of {} rounds. Each round runs every program.", self.machine, self.rounds);
        println!("The server is an nginx of the same machine; its files are in the page cache. Caches of programs are");
        println!("empty, except in rows named again, which mount the whole model a second time.");
        println!("rclone, full: rclone mount, --vfs-cache-mode off and full. local: weightfs without the server.");
        println!("Ratios: weightfs divided by the other, median over rounds; /rclone is to the better mode.");
        println!("✓ meets the target, ✗ misses it. whole: {:.1} GB. shards: {}.", self.bytes as f64 / 1e9, self.shards);
        for latency in LATENCIES {
            self.section(latency);
        }
    }

    fn section(&self, latency: u64) {
        let rows: Vec<&Row> = rows().filter(|row| self.was_run(row, latency)).collect();
        let measured = |program: &Program| rows.iter().any(|row| !self.samples(row, latency, *program).is_empty());
        let programs: Vec<Program> = Program::ALL.into_iter().filter(measured).collect();
        if programs.is_empty() {
            return;
        }
        let heads = programs.iter().map(|program| format!("{:>1$}", program.name(), width(*program)));
        println!(
            "\n{:26}{}  /curl       /rclone     /local, limit",
            format!("{latency} ms added"),
            heads.collect::<String>()
        );
        for row in rows {
            let unit = match row.unit {
                Unit::Ms => ", ms",
                Unit::GBs => ", GB/s",
                Unit::MB => ", MB",
                Unit::Count | Unit::Ratio => "",
            };
            let mut line = format!("{:26}", format!("{}{unit}", row.name));
            for program in &programs {
                line += &format!("{:>1$}", self.shown(row, latency, *program), width(*program));
            }
            let is_limited = row.targets_at(latency).any(|target| target.against == Against::Limit);
            let last = if is_limited { Against::Limit } else { Against::Local };
            for against in [Against::Curl, Against::Rclone, last] {
                // Of bytes and requests, only the numbers matter.
                let has_ratio = matches!(row.unit, Unit::Ms | Unit::GBs) || against == Against::Limit;
                let shown = if has_ratio { self.ratio_shown(row, latency, against) } else { String::new() };
                line += &format!(" {shown:11}");
            }
            println!("{}", line.trim_end());
        }
        if let Some((_, took)) = self.first_request.iter().find(|(of, _)| *of == latency) {
            println!("{:26}{took:8.1}", "first request, ms");
        }
    }

    /// Targets that are missed by more than the margin, one line each.
    pub fn misses(&self) -> Vec<String> {
        let miss = |latency: u64, row: &Row, target: &Target| {
            let against = match target.against {
                Against::Curl => "of curl",
                Against::Rclone => "of rclone",
                Against::Local => "of a local mount",
                Against::Limit => "",
            };
            // Counts of requests and bytes do not depend on the speed of the machine.
            let margin = if matches!(row.unit, Unit::Ms | Unit::GBs) { MARGIN } else { 1.0 };
            let bound = match target.bound {
                Bound::AtLeast(bound) => format!("at least {:.3} {against}", bound * margin),
                Bound::AtMost(bound) => format!("at most {:.3} {against}", bound / margin),
            };
            match self.ratio(row, latency, target.against) {
                Some(ratio) if target.bound.holds(ratio, margin) => None,
                Some(ratio) => Some(format!("{}, {latency} ms: {ratio:.3}; must be {bound}", row.name)),
                // If weightfs fails or takes too long, that is a miss. If only the peer does, it is not.
                None => self
                    .values(row, latency, Program::Weightfs)
                    .is_empty()
                    .then(|| format!("{}, {latency} ms: not measured; must be {bound}", row.name)),
            }
        };
        let wanted = LATENCIES.iter().flat_map(|latency| rows().map(move |row| (*latency, row)));
        wanted
            .filter(|(latency, row)| self.was_run(row, *latency))
            .flat_map(|(latency, row)| row.targets_at(latency).filter_map(move |target| miss(latency, row, target)))
            .collect()
    }

    /// Whether the row has any samples.
    fn was_run(&self, row: &Row, latency: u64) -> bool {
        Program::ALL.iter().any(|program| !self.samples(row, latency, *program).is_empty())
    }

    /// All samples, medians, ratios and targets.
    pub fn json(&self) -> Value {
        let wanted = LATENCIES.iter().flat_map(|latency| rows().map(move |row| (*latency, row)));
        let rows = wanted.filter(|(latency, row)| self.was_run(row, *latency)).map(|(latency, row)| {
            let programs = Program::ALL.into_iter().filter(|program| !self.samples(row, latency, *program).is_empty());
            let programs = programs.map(|program| {
                let rounds = self.samples(row, latency, program).iter().map(|sample| match sample {
                    Sample::Value(value) => json!(value),
                    Sample::Over(seconds) => json!(format!("over {seconds} s")),
                    Sample::None | Sample::Failed => Value::Null,
                });
                let median = median(self.values(row, latency, program));
                (format!("{program:?}"), json!({"median": median, "rounds": rounds.collect::<Vec<_>>()}))
            });
            let ratios = [Against::Curl, Against::Rclone, Against::Local]
                .map(|against| (name(against).to_owned(), json!(self.ratio(row, latency, against))));
            let targets = row.targets_at(latency).map(|target| {
                let (bound, value) = match target.bound {
                    Bound::AtLeast(bound) => ("at least", bound),
                    Bound::AtMost(bound) => ("at most", bound),
                };
                let met = self.ratio(row, latency, target.against).map(|ratio| target.bound.holds(ratio, 1.0));
                json!({"against": name(target.against), bound: value, "met": met})
            });
            json!({
                "name": row.name,
                "latency_ms": latency,
                "unit": match row.unit {
                    Unit::Ms => "ms",
                    Unit::GBs => "GB/s",
                    Unit::MB => "MB",
                    Unit::Count => "requests",
                    Unit::Ratio => "bytes sent / bytes read",
                },
                "programs": programs.collect::<Map<_, _>>(),
                "ratios": ratios.into_iter().collect::<Map<_, _>>(),
                "targets": targets.collect::<Vec<_>>(),
            })
        });
        json!({
            "machine": self.machine,
            "rounds": self.rounds,
            "bytes": self.bytes,
            "shards": self.shards,
            "first_request_ms": self.first_request.iter().map(|(_, took)| took).collect::<Vec<_>>(),
            "rows": rows.collect::<Vec<_>>(),
        })
    }
}

impl Row {
    /// The targets that apply at this latency.
    fn targets_at(&self, latency: u64) -> impl Iterator<Item = &'static Target> {
        self.targets.iter().filter(move |target| target.at.is_none_or(|at| at == latency))
    }
}

fn rows() -> impl Iterator<Item = &'static Row> {
    PATTERNS.iter().flat_map(|pattern| pattern.rows)
}

fn name(against: Against) -> &'static str {
    match against {
        Against::Curl => "curl",
        Against::Rclone => "rclone",
        Against::Local => "local",
        Against::Limit => "limit",
    }
}

/// The width of the column of a program.
fn width(program: Program) -> usize {
    (program.name().chars().count() + 1).max(8)
}
