//! `weightfs stats`: the statistics of the values of all tensors.

use crate::cli::StatsArgs;
use crate::cli::pattern::WantedPatterns;
use crate::opening::{NamedModels, report_unmatched};
use crate::terminal::array::format_statistic;
use crate::terminal::output::{StandardOutput, compact, draw_table, fit_columns, push_shape, to_stdout};
use crate::terminal::progress::ProgressLine;
use anyhow::Context;
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;
use weightfs::content::ReadRequest;
use weightfs::model::{Model, TensorId, TensorNumbers};
use weightfs::source::Location;
use weightfs::stats::TensorStats;
use weightfs::text::{printable, quote};
use weightfs::units::plural;
use weightfs::{threads, view};

/// Tensors with fewer bytes than this together are counted side by side; a larger one is counted on all cores.
const TOGETHER: u64 = 16 << 20;

const HEADINGS: [&str; 8] = ["NAME", "MIN", "MAX", "MEAN", "STD", "ZEROS", "NAN", "INF"];

const COLUMNS: &str = "source,name,dtype,shape,count,zeros,nan,pos_inf,neg_inf,min,max,mean,std,abs_max";

pub fn run_stats(args: &StatsArgs) -> anyhow::Result<ExitCode> {
    to_stdout(|out| {
        let sources = [args.input.source.clone()];
        let models = NamedModels::find(&sources, &args.input.open.remote, out)?;
        let several = models.files.len() > 1;
        let wanted = WantedPatterns::new(&args.only);
        if args.csv {
            writeln!(out, "{COLUMNS}")?;
        }
        let mut opened = false;
        let code = models.each(args.input.open.mode(), out, |model, location, out| {
            opened = true;
            let counted = CountedModel::new(model, location, &wanted, args);
            counted.warn_of_others();
            match () {
                () if args.json => counted.print_json(out),
                () if args.csv => counted.each(&mut |numbers, stats| write_csv(location, numbers, stats, out)),
                () => {
                    if several {
                        out.title(location, ":")?;
                    }
                    counted.print_table(out)
                }
            }
        })?;
        // If no model could be opened, the patterns were not tried.
        if opened { report_unmatched(&wanted, &sources, code, out) } else { Ok(code) }
    })
}

/// The tensors of a model whose values are counted.
struct CountedModel<'m> {
    model: &'m Model,
    location: &'m Location,
    is_dequantized: bool,
    tensors: Vec<TensorId>,
    /// Those without values that can be counted.
    others: Vec<TensorId>,
}

/// Takes a tensor and its statistics.
type TakeStats<'t> = dyn FnMut(&TensorNumbers, &TensorStats) -> anyhow::Result<()> + 't;

impl<'m> CountedModel<'m> {
    fn new(model: &'m Model, location: &'m Location, wanted: &WantedPatterns, args: &StatsArgs) -> Self {
        let is_dequantized = !args.stored;
        let is_wanted = |id: &TensorId| wanted.matches(model.numbers(*id, is_dequantized).name());
        let all = model.logical().iter().filter(is_wanted);
        let (tensors, others) = all.partition(|id| view::has_statistics(&model.numbers(*id, is_dequantized)));
        Self { model, location, is_dequantized, tensors, others }
    }

    fn numbers(&self, id: TensorId) -> TensorNumbers<'m> {
        self.model.numbers(id, self.is_dequantized)
    }

    fn warn_of_others(&self) {
        let Some(first) = self.others.first().map(|id| self.numbers(*id)) else { return };
        let count = self.others.len() as u64;
        let has = if count == 1 { "has" } else { "have" };
        let (name, dtype) = (quote(first.name()), first.dtype());
        log::warn!("{}: {} {has} no statistics: {name} of {dtype}", self.location, plural(count, "tensor"));
    }

    /// Counts the values of each tensor, and passes them to `take` in the order of the model.
    fn each(&self, take: &mut TakeStats) -> anyhow::Result<()> {
        let size = |id: &TensorId| self.model.tensor(*id).info.nbytes();
        let progress = ProgressLine::new("counting", self.tensors.iter().map(size).fold(0, u64::saturating_add));
        let mut rest = &self.tensors[..];
        while !rest.is_empty() {
            let mut bytes = 0u64;
            let together = rest.iter().take_while(|id| {
                bytes = bytes.saturating_add(size(id));
                bytes <= TOGETHER
            });
            let (some, after) = rest.split_at(together.count().max(1));
            let counted = threads::map_parallel(some.len(), |at| {
                let counted = view::tensor_stats(self.model, &self.numbers(some[at]), &ReadRequest::WAIT);
                progress.add(size(&some[at]));
                counted
            });
            for (id, counted) in some.iter().zip(counted) {
                let numbers = self.numbers(*id);
                let counted = counted.with_context(|| format!("{}: {}", self.location, quote(numbers.name())))?;
                take(&numbers, &counted)?;
            }
            rest = after;
        }
        Ok(())
    }

    fn print_table(&self, out: &mut StandardOutput) -> anyhow::Result<()> {
        let mut rows: Vec<Vec<String>> = Vec::with_capacity(self.tensors.len());
        self.each(&mut |numbers, stats| {
            let float = |value: Option<f64>| value.map_or_else(|| "-".into(), format_statistic);
            let infinite = stats.pos_inf + stats.neg_inf;
            let counts = [stats.zeros, stats.nan, infinite].map(|count| count.to_string());
            let floats = [stats.min, stats.max, stats.mean, stats.std].map(float);
            rows.push([printable(numbers.name()).into_owned()].into_iter().chain(floats).chain(counts).collect());
            Ok(())
        })?;
        fit_columns(out, &HEADINGS, &mut rows, &[0]);
        Ok(draw_table(out, &HEADINGS, &rows)?)
    }

    /// Prints an object with one tensor per line.
    fn print_json(&self, out: &mut StandardOutput) -> anyhow::Result<()> {
        write!(out, "{{\"source\": {}, \"tensors\": [", compact(&self.location.to_string())?)?;
        let mut separator = "\n";
        self.each(&mut |numbers, stats| {
            let mut line: Value = serde_json::from_slice(&stats.to_json())?;
            line["name"] = numbers.name().into();
            line["dtype"] = numbers.dtype().name().into();
            line["shape"] = numbers.shape().into();
            write!(out, "{separator}{}", compact(&line)?)?;
            separator = ",\n";
            Ok(())
        })?;
        let other =
            |id: &TensorId| json!({"name": self.numbers(*id).name(), "dtype": self.numbers(*id).dtype().name()});
        let others: Vec<Value> = self.others.iter().map(other).collect();
        Ok(writeln!(out, "\n], \"without_statistics\": {}}}", compact(&others)?)?)
    }
}

/// Writes a row of [`COLUMNS`].
fn write_csv(
    location: &Location,
    numbers: &TensorNumbers,
    stats: &TensorStats,
    out: &mut StandardOutput,
) -> anyhow::Result<()> {
    let mut shape = String::new();
    push_shape(&mut shape, numbers.shape());
    let words = [&location.to_string(), numbers.name(), numbers.dtype().name(), &shape].map(csv_field);
    let counts = [stats.count, stats.zeros, stats.nan, stats.pos_inf, stats.neg_inf].map(|count| count.to_string());
    let floats = [stats.min, stats.max, stats.mean, stats.std, stats.abs_max]
        .map(|value| value.map_or_else(String::new, |value| json!(value).to_string()));
    let row: Vec<String> = words.into_iter().chain(counts).chain(floats).collect();
    Ok(writeln!(out, "{}", row.join(","))?)
}

/// A text as a field of a CSV file (RFC 4180). What a terminal would act on is escaped, as everywhere.
fn csv_field(text: &str) -> String {
    let shown = printable(text);
    match shown.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", shown.replace('"', "\"\"")),
        false => shown.into_owned(),
    }
}
