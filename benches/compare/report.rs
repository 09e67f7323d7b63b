//! The results: medians, ratios and targets, as a table and as JSON.

use crate::inputs::Size;
use crate::patterns::{Against, Bound, PATTERNS, Row, Target, Unit};
use crate::systems::System;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The fraction of a target that `--check` requires.
pub const MARGIN: f64 = 0.75;

/// The programs that open a header, in the order of the results.
const OPENERS: [&str; 4] =
    ["official crate", "Python package", "weightfs, until stat answers", "before, until stat answers"];

/// The value of one row in one round, or the reason why there is none.
#[derive(Clone)]
pub enum Sample {
    Value(f64),
    /// Not finished within this many seconds.
    Over(u64),
    Failed,
}

pub struct Report {
    pub machine: String,
    pub rounds: usize,
    pub size: Size,
    /// By row and system, one sample for each round.
    pub samples: BTreeMap<(&'static str, System), Vec<Sample>>,
    /// By opener, milliseconds of each round.
    pub headers: [Vec<f64>; 4],
    /// Rows that cannot be measured, and the reason.
    pub absent: Vec<(&'static str, &'static str)>,
}

pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    Some(if values.len() % 2 == 1 { upper } else { (values[values.len() / 2 - 1] + upper) / 2.0 })
}

impl Report {
    fn samples(&self, row: &Row, system: System) -> &[Sample] {
        self.samples.get(&(row.name, system)).map_or(&[], Vec::as_slice)
    }

    fn values(&self, row: &Row, system: System) -> Vec<f64> {
        let value = |sample: &Sample| if let Sample::Value(value) = sample { Some(*value) } else { None };
        self.samples(row, system).iter().filter_map(value).collect()
    }

    /// Median of the ratios of the rounds. Noise that slows a whole round cancels out.
    fn ratio(&self, row: &Row, system: System, against: Against) -> Option<f64> {
        let (other, base) = match against {
            Against::Native => (System::Native, row),
            Against::Squashfuse => (System::Squashfuse, row),
            Against::Build => (System::Before, row),
            Against::Tensors => (system, tensors_row(row)?),
            Against::Limit => return median(self.values(row, system)),
        };
        let pairs = self.samples(row, system).iter().zip(self.samples(base, other));
        median(
            pairs
                .filter_map(|pair| match pair {
                    (Sample::Value(ours), Sample::Value(theirs)) => Some(ours / theirs),
                    _ => None,
                })
                .collect(),
        )
    }

    fn rows() -> impl Iterator<Item = &'static Row> {
        PATTERNS.iter().flat_map(|pattern| pattern.rows)
    }

    /// The median, or why there is none, as text.
    fn shown(&self, row: &Row, system: System) -> String {
        match (median(self.values(row, system)), self.samples(row, system).last()) {
            (_, Some(Sample::Over(seconds))) => format!("> {seconds} s"),
            (Some(value), _) => match row.unit {
                Unit::GBs => format!("{value:.2}"),
                _ if value >= 100.0 => format!("{value:.0}"),
                _ => format!("{value:.1}"),
            },
            (None, Some(_)) => "failed".into(),
            (None, None) => String::new(),
        }
    }

    /// The ratio as text; if it has a target, with the target and whether it is met.
    fn ratio_shown(&self, row: &Row, against: Against) -> String {
        let Some(ratio) = self.ratio(row, System::Weightfs, against) else { return String::new() };
        let shown = match against {
            Against::Limit => String::new(),
            _ if ratio < 10.0 => format!("{ratio:.2}"),
            _ => format!("{ratio:.1}"),
        };
        let target = row.targets.iter().find(|target| target.against == against).map_or(String::new(), |target| {
            let mark = if target.bound.holds(ratio, 1.0) { '✓' } else { '✗' };
            match target.bound {
                Bound::AtLeast(bound) => format!("{mark}≥{bound}"),
                Bound::AtMost(bound) => format!("{mark}≤{bound}"),
            }
        });
        format!("{shown:>5} {target}")
    }

    /// Prints the table, in at most 100 columns.
    pub fn print(&self) {
        let Size { tiny, header, .. } = self.size;
        println!("{}; medians of {} rounds. Each round runs every system.", self.machine, self.rounds);
        println!("Sources are in the page cache. The cache of each mount is cold, except for re-reads.");
        println!("Ratios: weightfs divided by the other, median over rounds. ✓ meets the target, ✗ misses it.");
        println!("by user: weightfs, run by a user other than root. squash: squashfuse_ll. ratar: ratarmount.");
        let throughput = |row: &&Row| row.unit == Unit::GBs && !is_view(row);
        let time = |row: &&Row| matches!(row.unit, Unit::Us | Unit::Ms);
        self.section(&format!("GB/s, {}", if self.size.quick { "small model" } else { "1.3 GB model" }), throughput);
        self.section(&format!("time ({tiny} tiny tensors)"), time);
        self.section("views, first read, GB/s", |row| tensors_row(row).is_some());
        self.section("memory of the daemon, MB", |row| row.unit == Unit::MB);
        for (row, why) in &self.absent {
            println!("{row}: {why}");
        }
        println!("\ntime to open a file of {header} tensors");
        let official = median(self.headers[0].clone());
        for (opener, times) in OPENERS.iter().zip(&self.headers) {
            let Some(ms) = median(times.clone()) else { continue };
            let ratio = official.map_or(String::new(), |official| format!("{:.2}", ms / official));
            println!("{opener:34} {ms:7.0} ms {ratio:>7}");
        }
    }

    /// Prints the rows that pass `filter` and were measured, under a heading; nothing if there are none.
    fn section(&self, title: &str, filter: impl Fn(&&Row) -> bool) {
        let rows: Vec<&Row> = Self::rows().filter(|row| filter(row)).collect();
        let measured = |system: &System| rows.iter().any(|row| !self.samples(row, *system).is_empty());
        let systems: Vec<System> = System::ALL.into_iter().filter(measured).collect();
        if systems.is_empty() {
            return;
        }
        let kinds = [Against::Native, Against::Squashfuse, Against::Tensors, Against::Build, Against::Limit];
        let has = |against: &Against| match against {
            Against::Tensors => rows.iter().any(|row| tensors_row(row).is_some()),
            // Shown in the column of Native, which its row leaves empty.
            Against::Limit => false,
            _ => rows.iter().any(|row| self.ratio(row, System::Weightfs, *against).is_some()),
        };
        let against: Vec<Against> = kinds.into_iter().filter(has).collect();
        let heads = systems.iter().map(|system| format!("{:>1$}", system.name(), width(*system))).collect::<String>();
        let ratios = against.iter().map(|against| match against {
            Against::Native => "  /native    ",
            Against::Squashfuse => "  /squash    ",
            Against::Build => "  /before",
            _ => "  /tensors   ",
        });
        println!("\n{title:26}{heads}{}", ratios.collect::<String>());
        for row in rows.iter().filter(|row| systems.iter().any(|system| !self.samples(row, *system).is_empty())) {
            let unit = match row.unit {
                Unit::Us => ", us",
                Unit::Ms => ", ms",
                _ => "",
            };
            let mut line = format!("{:26}", format!("{}{unit}", row.name));
            systems.iter().for_each(|system| line += &format!("{:>1$}", self.shown(row, *system), width(*system)));
            let limited = row.targets.iter().any(|target| target.against == Against::Limit);
            for against in &against {
                let shown = if limited && *against == Against::Native {
                    self.ratio_shown(row, Against::Limit)
                } else {
                    self.ratio_shown(row, *against)
                };
                line += &format!(" {shown:11}");
            }
            println!("{}", line.trim_end());
        }
    }

    /// Targets that are missed by more than the margin, one line each. Targets relative to native files are left out.
    pub fn misses(&self) -> Vec<String> {
        let miss = |(row, target): (&Row, &Target)| {
            let against = match target.against {
                Against::Native => "of native",
                Against::Squashfuse => "of squashfuse_ll",
                Against::Tensors => "of tensors/",
                Against::Limit => "ms",
                Against::Build => "of before",
            };
            let bound = match target.bound {
                Bound::AtLeast(bound) => format!("at least {:.3}", bound * MARGIN),
                Bound::AtMost(bound) => format!("at most {:.3}", bound / MARGIN),
            };
            match self.ratio(row, System::Weightfs, target.against) {
                Some(ratio) if target.bound.holds(ratio, MARGIN) => None,
                Some(ratio) => Some(format!("{}: {ratio:.3} {against}; must be {bound}", row.name)),
                None if self.absent.iter().any(|(absent, _)| *absent == row.name) => None,
                // If weightfs fails or takes too long, that is a miss. If only the peer does, it is not.
                None => self
                    .values(row, System::Weightfs)
                    .is_empty()
                    .then(|| format!("{}: not measured; must be {bound} {against}", row.name)),
            }
        };
        let wanted = Self::rows().flat_map(|row| row.targets.iter().map(move |target| (row, target)));
        // The ratio to native files depends on the processor: if it copies twice as fast, the ratio is halved.
        let wanted = wanted.filter(|(_, target)| target.against != Against::Native);
        wanted.filter(|(row, _)| self.was_run(row)).filter_map(miss).collect()
    }

    /// Whether the row has any samples.
    fn was_run(&self, row: &Row) -> bool {
        System::ALL.iter().any(|system| !self.samples(row, *system).is_empty())
    }

    /// All samples, medians, ratios and targets.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = Self::rows()
            .filter(|row| self.was_run(row))
            .map(|row| {
                let systems = System::ALL.into_iter().filter(|system| !self.samples(row, *system).is_empty());
                let systems = systems.map(|system| {
                    let rounds = self.samples(row, system).iter().map(|sample| match sample {
                        Sample::Value(value) => json!(value),
                        Sample::Over(seconds) => json!(format!("over {seconds} s")),
                        Sample::Failed => Value::Null,
                    });
                    let median = median(self.values(row, system));
                    (format!("{system:?}"), json!({"median": median, "rounds": rounds.collect::<Vec<_>>()}))
                });
                let ratios = [
                    ("native", Against::Native),
                    ("squashfuse_ll", Against::Squashfuse),
                    ("tensors", Against::Tensors),
                    ("before", Against::Build),
                ]
                .map(|(name, against)| (name.to_owned(), json!(self.ratio(row, System::Weightfs, against))));
                let targets = row.targets.iter().map(|target| {
                    let ratio = self.ratio(row, System::Weightfs, target.against);
                    let (bound, value) = match target.bound {
                        Bound::AtLeast(bound) => ("at least", bound),
                        Bound::AtMost(bound) => ("at most", bound),
                    };
                    let against = match target.against {
                        Against::Native => "native",
                        Against::Squashfuse => "squashfuse_ll",
                        Against::Tensors => "tensors",
                        Against::Limit => "limit",
                        Against::Build => "before",
                    };
                    let met = ratio.map(|ratio| target.bound.holds(ratio, 1.0));
                    json!({"against": against, bound: value, "met": met})
                });
                json!({
                    "name": row.name,
                    "unit": match row.unit { Unit::GBs => "GB/s", Unit::Us => "us", Unit::Ms => "ms", Unit::MB => "MB" },
                    "systems": systems.collect::<serde_json::Map<_, _>>(),
                    "ratios": ratios.into_iter().collect::<serde_json::Map<_, _>>(),
                    "targets": targets.collect::<Vec<_>>(),
                })
            })
            .collect();
        let headers = OPENERS
            .iter()
            .zip(&self.headers)
            .map(|(opener, times)| (opener.to_string(), json!({"median": median(times.clone()), "rounds": times})));
        json!({
            "machine": self.machine,
            "rounds": self.rounds,
            "quick": self.size.quick,
            "rows": rows,
            "open_header_ms": headers.collect::<serde_json::Map<_, _>>(),
        })
    }
}

/// The width of the column of a system.
fn width(system: System) -> usize {
    (system.name().chars().count() + 1).max(8)
}

/// Whether the row belongs to a pattern that reads a view.
fn is_view(row: &Row) -> bool {
    PATTERNS
        .iter()
        .any(|pattern| pattern.view != "tensors" && pattern.rows.iter().any(|other| std::ptr::eq(other, row)))
}

/// The row of tensors/ that was measured together with this row of a view.
fn tensors_row(row: &Row) -> Option<&'static Row> {
    let of_view =
        |pattern: &&crate::patterns::Pattern| pattern.view != "tensors" && std::ptr::eq(&pattern.rows[0], row);
    PATTERNS.iter().find(of_view).map(|pattern| &pattern.rows[1])
}
