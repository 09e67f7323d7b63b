//! `weightfs combine`: joins the parts that `weightfs stats --part` prints.
//!
//! A part is text: a line of JSON for what was asked, one for each model, one for each tensor or piece of a tensor, and
//! one that ends the part.

use super::counted::{
    CountedHead, CountedModel, CountedPiece, CountedTensor, StatsFormat, StatsPrinter, UncountedTensor,
};
use crate::cli::{CombineArgs, StatsArgs};
use crate::opening::prepare_process;
use crate::terminal::output::{StandardOutput, compact, to_stdout};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weightfs::format::Dtype;
use weightfs::parts::WorkPart;
use weightfs::stats::{FinishedState, StatsAccumulator, StatsState, TensorStats};
use weightfs::text::{first_of, quote};
use weightfs::units::plural;

/// A line of a part.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PartLine {
    Head(PartHead),
    Model(PartModel),
    Tensor(PartTensor),
    End(PartEnd),
}

#[derive(Debug, Serialize, Deserialize)]
struct PartEnd {
    /// The number of lines before this one.
    lines: u64,
    /// Whether something was reported, such as a model that cannot be opened.
    failed: bool,
}

/// What was asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PartHead {
    command: String,
    /// The version of weightfs.
    weightfs: String,
    part: WorkPart,
    format: StatsFormat,
    several: bool,
    only: Vec<String>,
    stored: bool,
    lenient: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PartModel {
    source: String,
    /// `None` if the server gives no versions.
    version: Option<String>,
    /// The number of tensors, in all parts.
    tensors: usize,
    others: Vec<UncountedTensor>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PartTensor {
    index: usize,
    name: String,
    dtype: String,
    shape: Vec<u64>,
    /// The piece that was counted, in bytes of the values.
    range: (u64, u64),
    /// The size of all values in bytes.
    len: u64,
    counted: PartCounted,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PartCounted {
    Whole(FinishedState),
    Part(StatsState),
}

/// Prints a part.
pub(super) struct PartWriter {
    head: PartHead,
    models: u32,
    lines: u64,
}

impl PartWriter {
    pub fn new(part: WorkPart, printer: StatsPrinter, args: &StatsArgs) -> Self {
        let head = PartHead {
            command: "stats".into(),
            weightfs: env!("CARGO_PKG_VERSION").into(),
            part,
            format: printer.format,
            several: printer.several,
            only: args.only.iter().map(|pattern| pattern.as_str().to_owned()).collect(),
            stored: args.stored,
            lenient: args.input.open.lenient,
        };
        Self { head, models: 0, lines: 0 }
    }

    pub fn begin(&mut self, out: &mut StandardOutput) -> anyhow::Result<()> {
        self.write(&PartLine::Head(self.head.clone()), out)
    }

    pub fn write_model(&mut self, counted: &CountedModel, out: &mut StandardOutput) -> anyhow::Result<()> {
        let CountedHead { source, others } = counted.head();
        let (version, tensors) = (counted.model.version(), counted.tensors.len());
        self.write(&PartLine::Model(PartModel { source, version, tensors, others }), out)?;
        // Small models, which are in one part as a whole, are spread over the parts.
        let WorkPart { number, count } = self.head.part;
        let number = (number - 1 + self.models % count) % count + 1;
        self.models = self.models.wrapping_add(1);
        counted.each_piece(WorkPart { number, count }, &mut |piece, found| {
            let numbers = counted.numbers(counted.tensors[piece.tensor]);
            let tensor = PartTensor {
                index: piece.tensor,
                name: numbers.name().to_owned(),
                dtype: numbers.dtype().name().to_owned(),
                shape: numbers.shape().to_vec(),
                range: (piece.range.start, piece.range.end),
                len: piece.len,
                counted: match found {
                    CountedPiece::Whole(stats) => PartCounted::Whole(FinishedState::of(&stats)),
                    CountedPiece::Part(state) => PartCounted::Part(state),
                },
            };
            self.write(&PartLine::Tensor(tensor), out)
        })?;
        Ok(counted.model.verify()?)
    }

    pub fn end(mut self, failed: bool, out: &mut StandardOutput) -> anyhow::Result<()> {
        self.write(&PartLine::End(PartEnd { lines: self.lines, failed }), out)
    }

    fn write(&mut self, line: &PartLine, out: &mut StandardOutput) -> anyhow::Result<()> {
        self.lines += 1;
        Ok(writeln!(out, "{}", compact(line)?)?)
    }
}

/// A part that was read.
struct ReadPart {
    path: PathBuf,
    head: PartHead,
    models: Vec<(PartModel, Vec<PartTensor>)>,
    failed: bool,
}

/// Maximum length of the first line of a part, in bytes. It has the patterns of the command line.
const HEAD_MAX: u64 = 16 << 20;

/// Maximum length of another line. That of a model may name a million tensors without statistics.
const LINE_MAX: u64 = 1 << 30;

impl ReadPart {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let mut reader = BufReader::new(File::open(path).with_context(|| name.to_string())?);
        let (mut line, mut number) = (Vec::new(), 0);
        let (mut head, mut models): (Option<PartHead>, Vec<(PartModel, Vec<PartTensor>)>) = Default::default();
        loop {
            line.clear();
            let most = if head.is_some() { LINE_MAX } else { HEAD_MAX };
            (&mut reader).take(most).read_until(b'\n', &mut line).with_context(|| name.to_string())?;
            number += 1;
            let parsed = serde_json::from_slice::<PartLine>(&line);
            match (&head, parsed, models.last_mut()) {
                (None, Ok(PartLine::Head(first)), _) => head = Some(first),
                (None, ..) => bail!("{name}: not a part that weightfs stats --part has printed"),
                (Some(_), Err(_), _) if line.last() != Some(&b'\n') => {
                    bail!("{name}: not a whole part: it ends in line {number}")
                }
                (Some(_), Err(error), _) => bail!("{name}: line {number}: {error}"),
                (Some(_), Ok(PartLine::Model(model)), _) => models.push((model, Vec::new())),
                (Some(_), Ok(PartLine::Tensor(tensor)), Some((_, tensors))) => tensors.push(tensor),
                (Some(head), Ok(PartLine::End(PartEnd { lines, failed })), _) if lines == number - 1 => {
                    return Ok(Self { path: path.to_owned(), head: head.clone(), models, failed });
                }
                (Some(_), Ok(_), _) => bail!("{name}: line {number} is not expected there"),
            }
        }
    }

    /// Fails unless both are parts of the same whole.
    fn check_beside(&self, first: &Self) -> anyhow::Result<()> {
        let (a, b) = (first.path.display(), self.path.display());
        let [theirs, ours] = [first, self].map(|part| part.head.part.count);
        if theirs != ours {
            bail!("{a} is a part of {theirs}, but {b} is a part of {ours}");
        }
        if (PartHead { part: first.head.part, ..self.head.clone() }) != first.head {
            bail!("{a} and {b} were made with different options");
        }
        if self.models.len() != first.models.len() {
            let [first, own] = [first, self].map(|part| plural(part.models.len() as u64, "model"));
            bail!("{a} has {first}, but {b} has {own}");
        }
        for ((theirs, _), (ours, _)) in first.models.iter().zip(&self.models) {
            // Machines may have the same files in different places.
            if theirs.version != ours.version {
                bail!("{a} and {b} are of different versions of {}", theirs.source);
            }
            if (theirs.tensors, &theirs.others) != (ours.tensors, &ours.others) {
                bail!("{a} and {b} have different tensors of {}", theirs.source);
            }
        }
        Ok(())
    }
}

pub fn run_combine(args: &CombineArgs) -> anyhow::Result<ExitCode> {
    prepare_process(false)?;
    let mut parts: BTreeMap<u32, ReadPart> = BTreeMap::new();
    for path in &args.parts {
        let part = ReadPart::read(path)?;
        if let Some(first) = parts.values().next() {
            part.check_beside(first)?;
        }
        // A part may have been delivered twice.
        parts.entry(part.head.part.number).or_insert(part);
    }
    let Some(PartHead { part, format, several, .. }) = parts.values().next().map(|first| first.head.clone()) else {
        return Ok(ExitCode::SUCCESS);
    };
    check_complete(&parts, part.count)?;
    let failed = parts.values().any(|part| part.failed);
    to_stdout(|out| {
        let printer = StatsPrinter { format, several };
        let mut models: Vec<(PartModel, Vec<PartTensor>)> = Vec::new();
        for part in parts.into_values() {
            for (at, (model, tensors)) in part.models.into_iter().enumerate() {
                match models.get_mut(at) {
                    Some((_, all)) => all.extend(tensors),
                    None => models.push((model, tensors)),
                }
            }
        }
        let combined = models.into_iter().map(|(model, tensors)| {
            let counted = combine_tensors(&model, tensors)?;
            Ok((CountedHead { source: model.source, others: model.others }, counted))
        });
        // Nothing is printed before everything is known to fit.
        let combined = combined.collect::<anyhow::Result<Vec<(CountedHead, Vec<CountedTensor>)>>>()?;
        printer.begin(out)?;
        for (head, counted) in combined {
            printer.print(&head, &mut |take| counted.iter().try_for_each(&mut *take), out)?;
        }
        Ok(ExitCode::from(u8::from(failed)))
    })
}

/// Fails unless there is each of `count` parts, by their numbers.
fn check_complete(parts: &BTreeMap<u32, ReadPart>, count: u32) -> anyhow::Result<()> {
    let missing = count - parts.len() as u32;
    if missing == 0 {
        return Ok(());
    }
    let absent = (1..=count).filter(|number| !parts.contains_key(number)).map(|number| number.to_string());
    let are = if missing == 1 { "is" } else { "are" };
    bail!("{} of {count} {are} missing: {}", plural(missing.into(), "part"), first_of(absent, missing as usize));
}

/// The statistics of all tensors of a model, from the pieces in all parts.
fn combine_tensors(model: &PartModel, mut pieces: Vec<PartTensor>) -> anyhow::Result<Vec<CountedTensor>> {
    pieces.sort_by_key(|piece| (piece.index, piece.range));
    let mut counted = Vec::new();
    for same in pieces.chunk_by(|a, b| a.index == b.index) {
        let PartTensor { index, name, dtype, shape, .. } = &same[0];
        if *index != counted.len() {
            break;
        }
        let Some(stats) = combine_pieces(same) else {
            bail!("{}: the pieces of {} do not fit together", model.source, quote(name));
        };
        let (name, dtype, shape) = (name.clone(), dtype.clone(), shape.clone());
        counted.push(CountedTensor { name, dtype, shape, stats });
    }
    if counted.len() != model.tensors || pieces.last().is_some_and(|last| last.index >= model.tensors) {
        let found = plural(counted.len() as u64, "tensor");
        bail!("{}: the parts have {found} in a row, but there are {}", model.source, model.tensors);
    }
    Ok(counted)
}

/// The statistics of a tensor from its pieces, in their order. `None` if they are not those of one tensor.
fn combine_pieces(pieces: &[PartTensor]) -> Option<TensorStats> {
    let first = pieces.first()?;
    let is_one = |piece: &PartTensor| {
        (&piece.name, &piece.dtype, &piece.shape, piece.len) == (&first.name, &first.dtype, &first.shape, first.len)
    };
    let is_gapless = pieces.windows(2).all(|two| two[0].range.1 == two[1].range.0);
    let (start, end) = (first.range.0, pieces.last()?.range.1);
    if !pieces.iter().all(is_one) || !is_gapless || start != 0 || end != first.len {
        return None;
    }
    let dtype = Dtype::ALL.iter().find(|dtype| dtype.name() == first.dtype)?;
    let block = dtype.block()?;
    if let [PartTensor { counted: PartCounted::Whole(stats), shape, .. }] = pieces {
        return stats.stats(shape.iter().try_fold(1, |count: u64, dim| count.checked_mul(*dim))?);
    }
    let mut whole = StatsAccumulator::new(*dtype)?;
    for PartTensor { counted, range: (start, end), .. } in pieces {
        let PartCounted::Part(state) = counted else { return None };
        let blocks = end.checked_sub(*start).filter(|len| *len > 0)? / block.bytes;
        whole.merge(&StatsAccumulator::restore(*dtype, state, blocks.checked_mul(block.elements)?)?);
    }
    Some(whole.finish())
}
