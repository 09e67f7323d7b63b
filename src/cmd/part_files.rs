//! Parts of what a command prints (`--part`), which `weightfs combine` joins.
//!
//! A part is text: a line of JSON for what was asked, one for each model, one for each item of the work on it (such as
//! a tensor or a piece of one), and one that ends the part.

use super::check_report::CheckPrinter;
use super::counted::{StatsFormat, UncountedTensor};
use super::diff_report::{DiffFormat, LoneModels};
use crate::terminal::output::{StandardOutput, compact};
use anyhow::{Context, bail};
use glob::Pattern;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use weightfs::inspect::ModelIdentity;
use weightfs::model::{Model, PrefixChange};
use weightfs::parts::WorkPart;
use weightfs::text::{first_of, printable};
use weightfs::units::plural;
use weightfs::view::ValueConversion;

/// A line of a part. `T` is what the command prints for an item.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PartLine<T> {
    Head(PartHead),
    Model(PartModel),
    Item(T),
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
pub(super) struct PartHead {
    pub command: PartCommand,
    /// The version of weightfs.
    pub weightfs: String,
    pub part: WorkPart,
    pub only: Vec<String>,
    pub lenient: bool,
}

impl PartHead {
    pub fn new(command: PartCommand, part: WorkPart, only: &[Pattern], lenient: bool) -> Self {
        let weightfs = VERSION.into();
        let only = only.iter().map(|pattern| pattern.as_str().to_owned()).collect();
        Self { command, weightfs, part, only, lenient }
    }
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A command, and the options that other commands do not have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PartCommand {
    Stats {
        format: StatsFormat,
        several: bool,
        stored: bool,
    },
    Sums,
    Check {
        printer: CheckPrinter,
        sha256: Option<String>,
    },
    Diff {
        format: DiffFormat,
        lone: Option<LoneModels>,
    },
    Export {
        conversion: Option<ValueConversion>,
        shard_size: u64,
        align: Option<u64>,
        clean: bool,
        names: PrefixChange,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PartModel {
    pub source: String,
    /// The version of the model, or of both models that are compared; `None` if the server gives no versions.
    versions: Vec<Option<String>>,
    /// Hash of the metadata, and of the names, dtypes and shapes of all tensors: models without versions differ by it.
    structures: Vec<String>,
    /// The number of items that all parts have together, each counted once: tensors, files, or units of a check.
    pub items: usize,
    /// The tensors that the command leaves out.
    pub others: Vec<UncountedTensor>,
}

/// Prints a part.
pub(super) struct PartWriter {
    head: PartHead,
    models: u32,
    lines: u64,
}

impl PartWriter {
    /// Prints the first line.
    pub fn begin(head: PartHead, out: &mut StandardOutput) -> anyhow::Result<Self> {
        let mut writer = Self { head: head.clone(), models: 0, lines: 0 };
        writer.write(&PartLine::<()>::Head(head), out)?;
        Ok(writer)
    }

    /// Prints the line of a model. Returns the part of the work on it: small models, which are in one part as a whole,
    /// are spread over the parts.
    pub fn begin_model(&mut self, model: PartModel, out: &mut StandardOutput) -> anyhow::Result<WorkPart> {
        self.write(&PartLine::<()>::Model(model), out)?;
        let WorkPart { number, count } = self.head.part;
        let moved = u64::from(number - 1) + u64::from(self.models);
        let number = (moved % u64::from(count)) as u32 + 1;
        self.models = self.models.wrapping_add(1);
        Ok(WorkPart { number, count })
    }

    pub fn write_item(&mut self, item: impl Serialize, out: &mut StandardOutput) -> anyhow::Result<()> {
        self.write(&PartLine::Item(item), out)
    }

    pub fn end(mut self, failed: bool, out: &mut StandardOutput) -> anyhow::Result<()> {
        self.write(&PartLine::<()>::End(PartEnd { lines: self.lines, failed }), out)
    }

    fn write<T: Serialize>(&mut self, line: &PartLine<T>, out: &mut StandardOutput) -> anyhow::Result<()> {
        self.lines += 1;
        Ok(writeln!(out, "{}", compact(line)?)?)
    }
}

/// A part of which the first line was read.
pub(super) struct PartReader {
    path: PathBuf,
    pub head: PartHead,
    reader: BufReader<File>,
}

/// A part that was read. `T` is what it has for a tensor.
struct ReadPart<T> {
    path: PathBuf,
    head: PartHead,
    models: Vec<(PartModel, Vec<T>)>,
    failed: bool,
}

/// All parts together.
pub(super) struct JoinedParts<T> {
    pub models: Vec<(PartModel, Vec<T>)>,
    /// The parts of processes that have reported something.
    pub failed: Vec<PathBuf>,
}

/// Maximum length of the first line of a part, in bytes. It has the patterns of the command line.
const HEAD_MAX: u64 = 16 << 20;

/// Maximum length of another line. That of a model may name a million tensors without statistics.
const LINE_MAX: u64 = 1 << 30;

impl PartReader {
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let mut reader = BufReader::new(File::open(path).with_context(|| name.to_string())?);
        let mut line = Vec::new();
        (&mut reader).take(HEAD_MAX).read_until(b'\n', &mut line).with_context(|| name.to_string())?;
        match serde_json::from_slice::<PartLine<IgnoredAny>>(&line) {
            Ok(PartLine::Head(head)) if head.weightfs != VERSION => {
                bail!("{name}: printed by weightfs {}, and this is {VERSION}", printable(&head.weightfs))
            }
            Ok(PartLine::Head(head)) => Ok(Self { path: path.to_owned(), head, reader }),
            _ => bail!("{name}: not a part that weightfs has printed"),
        }
    }

    fn read<T: DeserializeOwned>(self) -> anyhow::Result<ReadPart<T>> {
        let Self { path, head, mut reader } = self;
        let name = path.display();
        let mut models: Vec<(PartModel, Vec<T>)> = Vec::new();
        let (mut line, mut number) = (Vec::new(), 1);
        loop {
            number += 1;
            line.clear();
            (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line).with_context(|| name.to_string())?;
            match (serde_json::from_slice(&line), models.last_mut()) {
                (Err(_), _) if line.len() as u64 == LINE_MAX => bail!("{name}: line {number} is too long"),
                (Err(_), _) if line.last() != Some(&b'\n') => {
                    bail!("{name}: not a whole part: it ends in line {number}")
                }
                (Err(error), _) => bail!("{name}: line {number}: {error}"),
                (Ok(PartLine::Model(model)), _) => models.push((model, Vec::new())),
                (Ok(PartLine::Item(item)), Some((_, items))) => items.push(item),
                (Ok(PartLine::End(PartEnd { lines, failed })), _) if lines == number - 1 => {
                    return Ok(ReadPart { path, head, models, failed });
                }
                (Ok(_), _) => bail!("{name}: line {number} is not expected there"),
            }
        }
    }
}

impl<T> ReadPart<T> {
    /// Fails unless both are parts of the same whole.
    fn check_beside(&self, first: &Self) -> anyhow::Result<()> {
        let (a, b) = (first.path.display(), self.path.display());
        if self.models.len() != first.models.len() {
            let [first, own] = [first, self].map(|part| plural(part.models.len() as u64, "model"));
            bail!("{a} has {first}, but {b} has {own}");
        }
        for ((theirs, _), (ours, _)) in first.models.iter().zip(&self.models) {
            // Machines may have the same files in different places.
            if theirs.versions != ours.versions {
                bail!("{a} and {b} are of different versions of {}", theirs.source);
            }
            if (&theirs.structures, theirs.items, &theirs.others) != (&ours.structures, ours.items, &ours.others) {
                bail!("{a} and {b} have different tensors or metadata of {}", theirs.source);
            }
        }
        Ok(())
    }
}

/// Whether the ranges of pieces, which are sorted, follow each other from 0 to `len`.
pub(super) fn are_gapless(mut ranges: impl Iterator<Item = (u64, u64)>, len: u64) -> bool {
    let reached = ranges.try_fold(0, |reached, (start, end)| (start == reached).then_some(end));
    reached == Some(len)
}

/// Fails unless two files are parts of what the same command prints.
fn check_heads(a: (&Path, &PartHead), b: (&Path, &PartHead)) -> anyhow::Result<()> {
    let [of_a, of_b] = [a.1, b.1].map(|head| head.part.count);
    let (path_a, path_b) = (a.0.display(), b.0.display());
    if of_a != of_b {
        bail!("{path_a} is a part of {of_a}, but {path_b} is a part of {of_b}");
    }
    if (PartHead { part: a.1.part, ..b.1.clone() }) != *a.1 {
        bail!("{path_a} and {path_b} were made with different options");
    }
    Ok(())
}

/// Reads all parts of a whole. A part that is there twice counts once.
pub(super) fn join_parts<T: DeserializeOwned + PartialEq>(
    first: PartReader,
    others: &[PathBuf],
) -> anyhow::Result<JoinedParts<T>> {
    let first: ReadPart<T> = first.read()?;
    let (path, head) = (first.path.clone(), first.head.clone());
    let mut parts = BTreeMap::from([(head.part.number, first)]);
    for other in others {
        let other = PartReader::open(other)?;
        check_heads((&path, &head), (&other.path, &other.head))?;
        let other = other.read()?;
        if let Some(first) = parts.get(&head.part.number) {
            other.check_beside(first)?;
        }
        match parts.entry(other.head.part.number) {
            Entry::Occupied(same) if same.get().models != other.models => {
                let (a, b) = (same.get().path.display(), other.path.display());
                bail!("{a} and {b} are part {} with different contents", other.head.part);
            }
            entry => drop(entry.or_insert(other)),
        }
    }
    let (count, missing) = (head.part.count, head.part.count - parts.len() as u32);
    if missing > 0 {
        let absent = (1..=count).filter(|number| !parts.contains_key(number)).map(|number| number.to_string());
        let are = if missing == 1 { "is" } else { "are" };
        bail!("{} of {count} {are} missing: {}", plural(missing.into(), "part"), first_of(absent, missing as usize));
    }
    let failed = parts.values().filter(|part| part.failed).map(|part| part.path.clone()).collect();
    let mut models: Vec<(PartModel, Vec<T>)> = Vec::new();
    for part in parts.into_values() {
        for (at, (model, tensors)) in part.models.into_iter().enumerate() {
            match models.get_mut(at) {
                Some((_, all)) => all.extend(tensors),
                None => models.push((model, tensors)),
            }
        }
    }
    Ok(JoinedParts { models, failed })
}

impl PartModel {
    /// A model of which all parts together have `items` lines. `source` names it.
    pub fn new(source: String, model: &Model, items: usize, others: Vec<UncountedTensor>) -> Self {
        Self { others, ..Self::of_models(source, &[model], items) }
    }

    /// Models that are read together, of which all parts have `items` lines.
    pub fn of_models(source: String, models: &[&Model], items: usize) -> Self {
        let versions = models.iter().map(|model| model.version()).collect();
        let structures = models.iter().map(|model| ModelIdentity::of(model).hash).collect();
        Self { source, versions, structures, items, others: Vec::new() }
    }

    /// Files that may not be a model, of which all parts have `items` units.
    pub fn of_files(source: String, versions: Vec<Option<String>>, structure: String, items: usize) -> Self {
        Self { source, versions, structures: vec![structure], items, others: Vec::new() }
    }

    /// Fails unless the parts have each item of the model once. `indices` are sorted.
    pub fn check_whole(&self, indices: impl Iterator<Item = usize>) -> anyhow::Result<()> {
        if !indices.eq(0..self.items) {
            bail!("{}: the parts do not have each of {} once", self.source, plural(self.items as u64, "item"));
        }
        Ok(())
    }
}
