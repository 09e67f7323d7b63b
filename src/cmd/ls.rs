//! `weightfs ls`: lists tensors, one per line, or their totals.

use super::files;
use super::sort::sort_by_keys;
use crate::cli::pattern::WantedPatterns;
use crate::cli::{LsArgs, LsOperand, TensorOrder};
use crate::opening::{NamedModels, report_unmatched};
use crate::terminal::output::{HEADING, StandardOutput, compact, push_shape, squeeze, to_stdout};
use crate::terminal::totals;
use anyhow::Result;
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::io::{self, Write};
use std::process::ExitCode;
use unicode_width::UnicodeWidthStr;
use weightfs::format::{SkippedEntry, SkippedKind, TensorInfo};
use weightfs::inspect::TensorBreakdown;
use weightfs::model::{Model, Tensor, TensorId};
use weightfs::source::Location;
use weightfs::text::printable;
use weightfs::units::{format_size, plural};
use weightfs::{natural, threads, view};

pub fn run_ls(args: &LsArgs) -> Result<ExitCode> {
    if args.files {
        return files::run_files(args);
    }
    to_stdout(|out| {
        let (mut sources, mut patterns) = (vec![args.input.source.clone()], Vec::new());
        for operand in &args.more {
            match operand {
                LsOperand::Source(source) => sources.push(source.clone()),
                LsOperand::Pattern(pattern) => patterns.push(pattern.clone()),
            }
        }
        let models = NamedModels::find(&sources, &args.input.open.remote, out)?;
        let several = models.files.len() > 1 || sources.len() > 1;
        let wanted = WantedPatterns::new(&patterns);
        let mut opened = false;
        let code = models.each(args.input.open.mode(), out, |model, location, out| {
            opened = true;
            let tensors = pick(model, &wanted, args);
            if args.json {
                return Ok(print_tensors_json(model, &tensors, location, args, out)?);
            }
            if tensors.is_empty() && !patterns.is_empty() {
                return Ok(());
            }
            if several {
                out.title(location, ":")?;
            }
            Ok(print(model, &tensors, args, out)?)
        })?;
        // If no model could be opened, the patterns were not tried.
        if opened { report_unmatched(&wanted, &sources, code, out) } else { Ok(code) }
    })
}

/// The tensors that match the patterns, in the order to print.
fn pick(model: &Model, wanted: &WantedPatterns, args: &LsArgs) -> Vec<TensorId> {
    let mut tensors: Vec<TensorId> = model.listed().iter().collect();
    if !wanted.is_all() {
        let matching = blocks(&tensors, |part| {
            part.iter().copied().filter(|id| wanted.matches(model.name(*id))).collect::<Vec<_>>()
        });
        tensors = matching.concat();
    }
    sort_by_keys(&mut tensors, args, |order, a, b| compare(model, order, *a, *b));
    tensors
}

fn compare(model: &Model, order: TensorOrder, a: TensorId, b: TensorId) -> Ordering {
    let dtype = |id| model.tensor(id).info.dtype;
    match order {
        TensorOrder::Name => natural::compare_paths(model.name(a), model.name(b)),
        TensorOrder::Dtype => natural::compare_components(dtype(a).name(), dtype(b).name()),
        TensorOrder::Shape => model.tensor(a).info.shape.cmp(model.tensor(b).info.shape),
        TensorOrder::Size => stored_len(model, b).cmp(&stored_len(model, a)),
        TensorOrder::Offset => Ordering::Equal,
    }
}

fn stored_len(model: &Model, id: TensorId) -> u64 {
    model.tensor(id).info.nbytes
}

fn skipped_json(SkippedEntry { name, reason, kind }: &SkippedEntry) -> Value {
    match kind {
        SkippedKind::Shown => json!({"name": name, "reason": reason, "shown": true}),
        _ => json!({"name": name, "reason": reason}),
    }
}

fn breakdown_of<'m>(model: &'m Model, tensors: &[TensorId], args: &LsArgs) -> TensorBreakdown<'m> {
    TensorBreakdown::of(model, tensors.iter().copied(), args.depth)
}

fn print(model: &Model, tensors: &[TensorId], args: &LsArgs, out: &mut StandardOutput) -> io::Result<()> {
    if args.totals {
        return totals::print_tables(&breakdown_of(model, tensors, args), args.bytes, out);
    }
    print_tensors(model, tensors, args, out)?;
    // Programs that read the list expect only tensors.
    if out.is_terminal && !args.no_headings {
        totals::print_lines(&breakdown_of(model, tensors, args), out)?;
    }
    Ok(())
}

/// The columns before the name.
const COLUMNS: [&str; 5] = ["DTYPE", "SHAPE", "SIZE", "OFFSET", "SHARD"];

/// Maximum width of a column, in terminal columns. Longer cells overflow.
const WIDEST: usize = 40;

/// Prints one line for each tensor. It does not use a table printer: holding and measuring all cells as text takes
/// longer than everything else for a million rows.
fn print_tensors(model: &Model, tensors: &[TensorId], args: &LsArgs, out: &mut StandardOutput) -> io::Result<()> {
    let mut row = TensorRow { model, bytes: args.bytes, shards: model.form.has_shards, name_max: usize::MAX };
    let titles = COLUMNS.map(str::len);
    let widest = blocks(tensors, |part| part.iter().map(|id| row.widths(*id)).fold([0; 5], wider));
    let widths = widest.into_iter().fold([0; 5], wider);
    let widths = wider(widths.map(|width| width.min(WIDEST)), if args.no_headings { [0; 5] } else { titles });
    if out.is_terminal {
        let before = widths[..row.cells()].iter().map(|width| width + 2).sum();
        row.name_max = out.width.saturating_sub(before);
    }
    if !args.no_headings {
        let [dtype, shape, size, offset, shard] = COLUMNS;
        let mut line = Vec::new();
        row.write([dtype, shape, size, offset, shard, "NAME"], &widths, &mut line);
        write!(out, "{}", out.styled(HEADING, String::from_utf8_lossy(line.trim_ascii_end())))?;
        writeln!(out)?;
    }
    lines(tensors, out, |id, line| row.write_tensor(id, &widths, line))
}

fn wider(a: [usize; 5], b: [usize; 5]) -> [usize; 5] {
    std::array::from_fn(|at| a[at].max(b[at]))
}

/// Writes a line for each tensor. Lines are formatted on all cores.
fn lines(
    tensors: &[TensorId],
    out: &mut StandardOutput,
    write: impl Fn(TensorId, &mut Vec<u8>) + Sync,
) -> io::Result<()> {
    const BLOCKS: usize = 64;
    for part in tensors.chunks(BLOCK * BLOCKS) {
        let texts = blocks(part, |block| {
            let mut text = Vec::with_capacity(block.len() * 80);
            block.iter().for_each(|id| write(*id, &mut text));
            text
        });
        texts.iter().try_for_each(|text| out.write_all(text))?;
    }
    Ok(())
}

/// Number of tensors that a thread processes at a time.
const BLOCK: usize = 2048;

/// Runs `work` on blocks of tensors, on all cores.
fn blocks<R: Send>(tensors: &[TensorId], work: impl Fn(&[TensorId]) -> R + Sync) -> Vec<R> {
    let blocks: Vec<&[TensorId]> = tensors.chunks(BLOCK).collect();
    threads::map_parallel(blocks.len(), |at| work(blocks[at]))
}

/// Formats a tensor as a line.
struct TensorRow<'m> {
    model: &'m Model,
    /// Whether sizes are printed in bytes.
    bytes: bool,
    /// Whether there is a column for the shard.
    shards: bool,
    /// Maximum width of a name, in terminal columns.
    name_max: usize,
}

impl TensorRow<'_> {
    /// Number of cells before the name.
    fn cells(&self) -> usize {
        if self.shards { 5 } else { 4 }
    }

    /// The widths of a tensor's cells, computed without formatting them.
    fn widths(&self, id: TensorId) -> [usize; 5] {
        /// Width of `1.30 GB`.
        const SIZE: usize = 7;
        let found = self.model.tensor(id);
        let tensor = &found.info;
        let dims = tensor.shape.iter().map(|dim| digits(*dim)).sum::<usize>();
        let shape = 2 + dims + tensor.shape.len().saturating_sub(1);
        let (offset, shard) = match found.stored() {
            Some((_, stored)) if !self.shards => (digits(stored.range.start), 0),
            Some((file, stored)) => (digits(stored.range.start), self.model.file(file).name.width()),
            None => (1, parts_of(&found).len()),
        };
        [tensor.dtype.name().width(), shape, if self.bytes { digits(tensor.nbytes) } else { SIZE }, offset, shard]
    }

    fn write_tensor(&self, id: TensorId, widths: &[usize; 5], line: &mut Vec<u8>) {
        let found = self.model.tensor(id);
        let tensor = &found.info;
        let TensorInfo { name, dtype, shape, .. } = tensor;
        let dtype = printable(dtype.name());
        let mut dims = String::with_capacity(16);
        push_shape(&mut dims, shape);
        let size = if self.bytes { tensor.nbytes.to_string() } else { format_size(tensor.nbytes) };
        let (offset, shard) = match found.stored() {
            Some((file, stored)) => (stored.range.start.to_string(), printable(&self.model.file(file).name)),
            None => ("-".to_owned(), parts_of(&found).into()),
        };
        let name = squeeze(name, self.name_max);
        self.write([&dtype, &dims, &size, &offset, &shard, &name], widths, line);
    }

    /// Writes a line. Sizes and offsets are aligned to the right, other cells to the left.
    fn write(&self, cells: [&str; 6], widths: &[usize; 5], line: &mut Vec<u8>) {
        for (at, cell) in cells[..self.cells()].iter().enumerate() {
            let padding = widths[at].saturating_sub(if cell.is_ascii() { cell.len() } else { cell.width() });
            let to_the_right = at == 2 || at == 3;
            if to_the_right {
                line.resize(line.len() + padding, b' ');
            }
            line.extend(cell.as_bytes());
            line.resize(line.len() + 2 + if to_the_right { 0 } else { padding }, b' ');
        }
        line.extend(cells[5].as_bytes());
        line.push(b'\n');
    }
}

/// The shard cell of a tensor that is made of parts of files.
fn parts_of(tensor: &Tensor) -> String {
    if tensor.is_gathered() { "gathered".into() } else { plural(tensor.places().len() as u64, "part") }
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |digits| digits as usize + 1)
}

/// Prints JSON with one tensor per line, so that grep can be used on it.
fn print_tensors_json(
    model: &Model,
    tensors: &[TensorId],
    location: &Location,
    args: &LsArgs,
    out: &mut StandardOutput,
) -> io::Result<()> {
    let (source, format) = (compact(&location.to_string())?, compact(&model.format())?);
    write!(out, "{{\"source\": {source}, \"format\": {format}, \"tensors\": [")?;
    let first = tensors.first().copied();
    lines(if args.totals { &[] } else { tensors }, out, |id, line| {
        line.extend(if Some(id) == first { &b"\n"[..] } else { b",\n" });
        // Writing to a vector cannot fail.
        let _ = view::write_tensor(model, id, line);
    })?;
    let skipped: Vec<_> = model.skipped().map(skipped_json).collect();
    let totals = compact(&totals::to_json(&breakdown_of(model, tensors, args)))?;
    writeln!(out, "\n], \"totals\": {totals}, \"skipped\": {}}}", compact(&skipped)?)
}
