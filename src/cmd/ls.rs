//! `weightfs ls`: knows how tensors are picked, sorted and written one a line, and when their totals follow.

use crate::cli::pattern::{Wanted, unmatched};
use crate::cli::{LsArgs, Sort};
use crate::models::Models;
use crate::terminal::output::{HEADING, Output, compact, plural, push_shape, size, squeeze, to_stdout};
use crate::terminal::totals;
use anyhow::Result;
use serde_json::json;
use std::cmp::Reverse;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use unicode_width::UnicodeWidthStr;
use weightfs::format::TensorInfo;
use weightfs::inspect::Breakdown;
use weightfs::model::{Kind, Model, Place};
use weightfs::text::printable;
use weightfs::{natural, threads, view};

/// Lists tensors.
pub fn run(args: &LsArgs) -> Result<ExitCode> {
    to_stdout(|out| {
        let models = Models::find(std::slice::from_ref(&args.source), out)?;
        let several = models.files.len() > 1;
        let wanted = Wanted::new(&args.patterns);
        let mut opened = false;
        let code = models.each(args.lenient, out, |model, path, out| {
            opened = true;
            let tensors = pick(model, &wanted, args);
            if args.json {
                return Ok(print_json(model, &tensors, path, args, out)?);
            }
            if tensors.is_empty() && !args.patterns.is_empty() {
                return Ok(());
            }
            if several {
                out.title(path, ":")?;
            }
            Ok(print(model, &tensors, args, out)?)
        })?;
        // Of what cannot be opened nobody knows what it has.
        let missed = if opened { wanted.unmatched() } else { Vec::new() };
        for pattern in &missed {
            out.complain(&unmatched(&args.source, pattern))?;
        }
        Ok(if missed.is_empty() { code } else { ExitCode::FAILURE })
    })
}

/// The numbers of the tensors that are wanted, in the order that is.
fn pick(model: &Model, wanted: &Wanted, args: &LsArgs) -> Vec<u32> {
    let mut tensors: Vec<u32> = model.listed().collect();
    if !args.patterns.is_empty() {
        let matching = |part: &[u32]| -> Vec<u32> {
            part.iter().copied().filter(|at| wanted.matches(model.name(*at as usize))).collect()
        };
        tensors = blocks(&tensors, matching).concat();
    }
    let name = |at: &u32| model.name(*at as usize);
    match args.sort {
        Sort::Name => threads::sort_by(&mut tensors, |a, b| natural::compare_paths(name(a), name(b))),
        Sort::Size => {
            let size = |at: &u32| Reverse(model.tensor(*at as usize).0.nbytes());
            threads::sort_by(&mut tensors, |a, b| size(a).cmp(&size(b)));
        }
        Sort::Offset => {}
    }
    if args.reverse {
        tensors.reverse();
    }
    tensors
}

fn print(model: &Model, tensors: &[u32], args: &LsArgs, out: &mut Output) -> io::Result<()> {
    let totals = || Breakdown::of(model, tensors.iter().copied(), args.depth);
    if args.totals {
        return totals::print_tables(&totals(), args.bytes, out);
    }
    print_tensors(model, tensors, args, out)?;
    // A program that reads lines wants lines of tensors, and no others.
    if out.is_terminal && !args.no_headings { totals::print_lines(&totals(), out) } else { Ok(()) }
}

/// Columns in front of the name.
const COLUMNS: [&str; 5] = ["DTYPE", "SHAPE", "SIZE", "OFFSET", "SHARD"];

/// No column is wider for the sake of a cell that is longer than this; such a cell juts out.
const WIDEST: usize = 40;

/// One line for each tensor. Written by hand and not by a table printer: those hold all cells in memory and measure each as
/// text, which for a million rows takes longer than all the rest.
fn print_tensors(model: &Model, tensors: &[u32], args: &LsArgs, out: &mut Output) -> io::Result<()> {
    let mut row = Row { model, bytes: args.bytes, shards: model.kind() != Kind::File, name_max: usize::MAX };
    let titles = COLUMNS.map(str::len);
    let wider = |a: [usize; 5], b: [usize; 5]| std::array::from_fn(|at| a[at].max(b[at]));
    let widest = |part: &[u32]| part.iter().map(|at| row.widths(*at)).fold([0; 5], wider);
    let widths = blocks(tensors, widest).into_iter().fold([0; 5], wider);
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
    lines(tensors, out, |at, line| row.write_tensor(at, &widths, line))
}

/// Writes a line for each tensor, many at once on every core.
fn lines(tensors: &[u32], out: &mut Output, write: impl Fn(u32, &mut Vec<u8>) + Sync) -> io::Result<()> {
    const BLOCKS: usize = 64;
    for part in tensors.chunks(BLOCK * BLOCKS) {
        let text = |block: &[u32]| {
            let mut text = Vec::with_capacity(block.len() * 80);
            block.iter().for_each(|at| write(*at, &mut text));
            text
        };
        blocks(part, text).iter().try_for_each(|block| out.write_all(block))?;
    }
    Ok(())
}

/// Tensors that one thread handles before it takes the next.
const BLOCK: usize = 2048;

/// Runs `work` on blocks of tensors, on all cores.
fn blocks<R: Send>(tensors: &[u32], work: impl Fn(&[u32]) -> R + Sync) -> Vec<R> {
    let blocks: Vec<&[u32]> = tensors.chunks(BLOCK).collect();
    threads::map(blocks.len(), |at| work(blocks[at]))
}

/// How a tensor becomes a line.
struct Row<'m> {
    model: &'m Model,
    /// Whether sizes are in bytes.
    bytes: bool,
    /// Whether there is a column for the file.
    shards: bool,
    /// Columns that are left for the name.
    name_max: usize,
}

impl Row<'_> {
    /// How many cells stand in front of the name.
    fn cells(&self) -> usize {
        if self.shards { 5 } else { 4 }
    }

    /// How wide the cells of a tensor are, told without writing them.
    fn widths(&self, at: u32) -> [usize; 5] {
        /// `1.30 GB`.
        const SIZE: usize = 7;
        let (tensor, place) = self.model.tensor(at as usize);
        let dims = tensor.shape.iter().map(|dim| digits(*dim)).sum::<usize>();
        let shape = 2 + dims + tensor.shape.len().saturating_sub(1);
        let (offset, shard) = match place {
            Place::Shard(_) if !self.shards => (digits(tensor.range.start), 0),
            Place::Shard(shard) => (digits(tensor.range.start), self.model.shards()[shard].name.width()),
            Place::Runs(runs) => (1, runs_of(runs.len()).len()),
        };
        [tensor.dtype.name().width(), shape, if self.bytes { digits(tensor.nbytes()) } else { SIZE }, offset, shard]
    }

    fn write_tensor(&self, at: u32, widths: &[usize; 5], line: &mut Vec<u8>) {
        let (tensor, place) = self.model.tensor(at as usize);
        let TensorInfo { name, dtype, shape, ref range } = tensor;
        let dtype = printable(dtype.name());
        let mut dims = String::with_capacity(16);
        push_shape(&mut dims, shape);
        let size = if self.bytes { tensor.nbytes().to_string() } else { size(tensor.nbytes()) };
        let (offset, shard) = match place {
            Place::Shard(shard) => (range.start.to_string(), printable(&self.model.shards()[shard].name)),
            Place::Runs(runs) => ("-".to_owned(), runs_of(runs.len()).into()),
        };
        let name = squeeze(name, self.name_max);
        self.write([&dtype, &dims, &size, &offset, &shard, &name], widths, line);
    }

    /// Cells one after the other: numbers to the right, words to the left.
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

/// What stands for the file of a tensor that is joined from several.
fn runs_of(runs: usize) -> String {
    plural(runs as u64, "part")
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |digits| digits as usize + 1)
}

/// The tensors one a line, so that grep works on it too.
fn print_json(model: &Model, tensors: &[u32], path: &Path, args: &LsArgs, out: &mut Output) -> io::Result<()> {
    write!(out, "{{\"source\": {}, \"format\": \"safetensors\", \"tensors\": [", compact(&path.to_string_lossy())?)?;
    let first = tensors.first().copied();
    lines(if args.totals { &[] } else { tensors }, out, |at, line| {
        line.extend(if Some(at) == first { &b"\n"[..] } else { b",\n" });
        // A vector cannot refuse text.
        let _ = view::write_tensor(model, at as usize, line);
    })?;
    let skipped: Vec<_> =
        model.skipped().map(|skipped| json!({"name": skipped.name, "reason": skipped.reason})).collect();
    let totals = compact(&totals::to_json(&Breakdown::of(model, tensors.iter().copied(), args.depth)))?;
    writeln!(out, "\n], \"totals\": {totals}, \"skipped\": {}}}", compact(&skipped)?)
}
