//! The statistics of the values of a model, as `weightfs stats` and `weightfs combine` print them.

use crate::cli::StatsArgs;
use crate::cli::pattern::WantedPatterns;
use crate::terminal::array::format_statistic;
use crate::terminal::output::{StandardOutput, compact, draw_table, fit_columns, push_shape};
use crate::terminal::progress::ProgressLine;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::Write;
use std::ops::Range;
use weightfs::content::{self, ReadRequest};
use weightfs::model::{Model, TensorId, TensorNumbers};
use weightfs::parts::{WorkItem, WorkPart};
use weightfs::source::Location;
use weightfs::stats::{StatsState, TensorStats};
use weightfs::text::{printable, quote};
use weightfs::units::plural;
use weightfs::{threads, view};

/// Tensors with fewer bytes than this together are counted side by side; a larger one is counted on all cores.
const TOGETHER: u64 = 16 << 20;

const HEADINGS: [&str; 8] = ["NAME", "MIN", "MAX", "MEAN", "STD", "ZEROS", "NAN", "INF"];

const COLUMNS: &str = "source,name,dtype,shape,count,zeros,nan,pos_inf,neg_inf,min,max,mean,std,abs_max";

/// How statistics are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StatsFormat {
    Table,
    Json,
    Csv,
}

/// A tensor and its statistics.
pub(super) struct CountedTensor {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<u64>,
    pub stats: TensorStats,
}

/// A tensor without values that can be counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UncountedTensor {
    pub name: String,
    pub dtype: String,
}

/// A model besides the tensors that are counted.
pub(super) struct CountedHead {
    pub source: String,
    pub others: Vec<UncountedTensor>,
}

/// Takes a tensor and its statistics.
pub(super) type TakeStats<'t> = dyn FnMut(&CountedTensor) -> anyhow::Result<()> + 't;

/// Passes all tensors of a model in its order.
pub(super) type EachTensor<'t> = dyn FnMut(&mut TakeStats) -> anyhow::Result<()> + 't;

/// The tensors of a model whose values are counted.
pub(super) struct CountedModel<'m> {
    pub model: &'m Model,
    location: &'m Location,
    is_dequantized: bool,
    pub tensors: Vec<TensorId>,
    /// Those without values that can be counted.
    others: Vec<TensorId>,
}

impl<'m> CountedModel<'m> {
    pub fn new(model: &'m Model, location: &'m Location, wanted: &WantedPatterns, args: &StatsArgs) -> Self {
        let is_dequantized = !args.stored;
        let is_wanted = |id: &TensorId| wanted.matches(model.numbers(*id, is_dequantized).name());
        let all = model.logical().iter().filter(is_wanted);
        let (tensors, others) = all.partition(|id| view::has_statistics(&model.numbers(*id, is_dequantized)));
        Self { model, location, is_dequantized, tensors, others }
    }

    pub fn numbers(&self, id: TensorId) -> TensorNumbers<'m> {
        self.model.numbers(id, self.is_dequantized)
    }

    pub fn head(&self) -> CountedHead {
        let others = self.others.iter().map(|id| self.numbers(*id)).map(|numbers| UncountedTensor {
            name: numbers.name().to_owned(),
            dtype: numbers.dtype().name().to_owned(),
        });
        CountedHead { source: self.location.to_string(), others: others.collect() }
    }

    /// Counts the values of all tensors, and passes them to `take` in the order of the model.
    pub fn each(&self, take: &mut TakeStats) -> anyhow::Result<()> {
        self.each_piece(WorkPart::WHOLE, &mut |piece, counted| {
            let CountedPiece::Whole(stats) = counted else { return Ok(()) };
            let numbers = self.numbers(self.tensors[piece.tensor]);
            let (name, dtype) = (numbers.name().to_owned(), numbers.dtype().name().to_owned());
            take(&CountedTensor { name, dtype, shape: numbers.shape().to_vec(), stats: *stats })
        })
    }

    /// Counts what a part of the work has, and passes it to `take` in the order of the model.
    pub fn each_piece(
        &self,
        part: WorkPart,
        take: &mut dyn FnMut(&StatsPiece, CountedPiece) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let pieces = self.pieces(part);
        let progress =
            ProgressLine::new("counting", pieces.iter().map(|piece| piece.cost).fold(0, u64::saturating_add));
        // Other parts have what precedes and follows these.
        let cut = pieces.iter().filter(|piece| !piece.is_whole());
        let _kept: Vec<_> = cut
            .flat_map(|piece| {
                view::read_whole_part(self.model, &self.numbers(self.tensors[piece.tensor]), &piece.range)
            })
            .collect();
        let mut rest = &pieces[..];
        while !rest.is_empty() {
            let mut bytes = 0u64;
            let together = rest.iter().take_while(|piece| {
                bytes = bytes.saturating_add(piece.cost);
                bytes <= TOGETHER
            });
            let (some, after) = rest.split_at(together.count().max(1));
            let counted = threads::map_parallel(some.len(), |at| {
                let counted = self.count(&some[at]);
                progress.add(some[at].cost);
                counted
            });
            progress.suspend(|| {
                some.iter().zip(counted).try_for_each(|(piece, counted)| {
                    let tensor = self.numbers(self.tensors[piece.tensor]);
                    take(piece, counted.with_context(|| format!("{}: {}", self.location, quote(tensor.name())))?)
                })
            })?;
            rest = after;
        }
        Ok(())
    }

    fn pieces(&self, part: WorkPart) -> Vec<StatsPiece> {
        let items = self.tensors.iter().map(|id| {
            let (len, step) = view::stats_blocks(self.model, &self.numbers(*id));
            WorkItem { cost: self.model.tensor(*id).info.nbytes, len, step }
        });
        let items: Vec<WorkItem> = items.collect();
        let pieces = part.shares(&items).into_iter().map(|(tensor, range)| {
            let WorkItem { cost, len, .. } = items[tensor];
            let share = u128::from(cost) * u128::from(range.end - range.start) / u128::from(len.max(1));
            StatsPiece { tensor, range, len, cost: share as u64 }
        });
        pieces.collect()
    }

    fn count(&self, piece: &StatsPiece) -> Result<CountedPiece, content::Error> {
        let numbers = self.numbers(self.tensors[piece.tensor]);
        let counted = view::part_stats(self.model, &numbers, piece.range.clone(), &ReadRequest::WAIT)?;
        Ok(match piece.is_whole() {
            true => CountedPiece::Whole(counted.finish().into()),
            false => CountedPiece::Part(counted.state()),
        })
    }
}

/// A tensor, or a part of it.
pub(super) struct StatsPiece {
    /// An index of [`CountedModel::tensors`].
    pub tensor: usize,
    /// In bytes of the values of the tensor.
    pub range: Range<u64>,
    /// The size of the values of the tensor in bytes.
    pub len: u64,
    /// About how many bytes are read.
    cost: u64,
}

impl StatsPiece {
    fn is_whole(&self) -> bool {
        self.range.end - self.range.start == self.len
    }
}

pub(super) enum CountedPiece {
    Whole(Box<TensorStats>),
    Part(StatsState),
}

/// Prints the statistics of one model after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct StatsPrinter {
    pub format: StatsFormat,
    /// Whether there are several models, so that each has a title.
    pub several: bool,
}

impl StatsPrinter {
    pub fn begin(self, out: &mut StandardOutput) -> anyhow::Result<()> {
        if self.format == StatsFormat::Csv {
            writeln!(out, "{COLUMNS}")?;
        }
        Ok(())
    }

    pub fn print(self, head: &CountedHead, each: &mut EachTensor, out: &mut StandardOutput) -> anyhow::Result<()> {
        warn_of_others(head);
        match self.format {
            StatsFormat::Json => print_json(head, each, out),
            StatsFormat::Csv => each(&mut |tensor| write_csv(&head.source, tensor, out)),
            StatsFormat::Table => {
                if self.several {
                    out.title(&head.source, ":")?;
                }
                print_table(each, out)
            }
        }
    }
}

fn warn_of_others(head: &CountedHead) {
    let Some(UncountedTensor { name, dtype }) = head.others.first() else { return };
    let count = head.others.len() as u64;
    let has = if count == 1 { "has" } else { "have" };
    log::warn!("{}: {} {has} no statistics: {} of {dtype}", head.source, plural(count, "tensor"), quote(name));
}

fn print_table(each: &mut EachTensor, out: &mut StandardOutput) -> anyhow::Result<()> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    each(&mut |CountedTensor { name, stats, .. }| {
        let float = |value: Option<f64>| value.map_or_else(|| "-".into(), format_statistic);
        let infinite = stats.pos_inf + stats.neg_inf;
        let counts = [stats.zeros, stats.nan, infinite].map(|count| count.to_string());
        let floats = [stats.min, stats.max, stats.mean, stats.std].map(float);
        rows.push([printable(name).into_owned()].into_iter().chain(floats).chain(counts).collect());
        Ok(())
    })?;
    fit_columns(out, &HEADINGS, &mut rows, &[0]);
    Ok(draw_table(out, &HEADINGS, &rows)?)
}

/// Prints an object with one tensor per line.
fn print_json(head: &CountedHead, each: &mut EachTensor, out: &mut StandardOutput) -> anyhow::Result<()> {
    write!(out, "{{\"source\": {}, \"tensors\": [", compact(&head.source)?)?;
    let mut separator = "\n";
    each(&mut |CountedTensor { name, dtype, shape, stats }| {
        let mut line: Value = serde_json::from_slice(&stats.to_json())?;
        line["name"] = name[..].into();
        line["dtype"] = dtype[..].into();
        line["shape"] = shape[..].into();
        write!(out, "{separator}{}", compact(&line)?)?;
        separator = ",\n";
        Ok(())
    })?;
    Ok(writeln!(out, "\n], \"without_statistics\": {}}}", compact(&head.others)?)?)
}

/// Writes a row of [`COLUMNS`].
fn write_csv(source: &str, tensor: &CountedTensor, out: &mut StandardOutput) -> anyhow::Result<()> {
    let CountedTensor { name, dtype, shape, stats } = tensor;
    let mut shape_text = String::new();
    push_shape(&mut shape_text, shape);
    let words = [source, name, dtype, &shape_text].map(csv_field);
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
