//! Standard output: colours, closed pipes, and the formats of sizes, names, JSON and tables.

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use anyhow::Context;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::io::{self, BufWriter, ErrorKind, IsTerminal, StdoutLock, Write};
use std::process::ExitCode;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};
use weightfs::text::{escape_json, is_terminal_control, message, printable};
use weightfs::units::format_size;
use weightfs::write;

/// Columns of a line if standard output is not a terminal, or the width of the terminal is unknown.
const WIDTH: usize = 100;

/// Maximum width of a table column, in terminal columns.
const WIDEST: usize = 80;

pub const HEADING: Style = Style::new().bold();
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();
pub const NOTE: Style = AnsiColor::Cyan.on_default().bold();
pub const BAR: Style = AnsiColor::Cyan.on_default();
pub const GOOD: Style = AnsiColor::Green.on_default();

pub struct StandardOutput {
    out: BufWriter<StdoutLock<'static>>,
    coloured: bool,
    titled: bool,
    pub is_terminal: bool,
    /// Columns of a line.
    pub width: usize,
}

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl StandardOutput {
    /// `text` in a style, if colours are used.
    pub fn styled<T: Display>(&self, style: Style, text: T) -> impl Display + use<T> {
        let style = if self.coloured { style } else { Style::new() };
        StyledText { style, text }
    }

    /// Prints a title, after an empty line unless it is the first.
    pub fn title(&mut self, name: &impl Display, end: &str) -> io::Result<()> {
        let gap = if std::mem::replace(&mut self.titled, true) { "\n" } else { "" };
        let name = name.to_string();
        let title = self.styled(HEADING, printable(&name));
        writeln!(self.out, "{gap}{title}{end}")
    }

    /// Prints a value as JSON on several lines.
    pub fn print_json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        Ok(writeln!(self.out, "{}", pretty(value)?)?)
    }

    /// Prints an error to standard error, after flushing standard output.
    pub fn complain(&mut self, text: &str) -> io::Result<()> {
        self.flush()?;
        // If standard error is closed, the exit code still reports the failure.
        let _ = writeln!(io::stderr(), "weightfs: {}", message(text));
        Ok(())
    }
}

struct StyledText<T> {
    style: Style,
    text: T,
}

impl<T: Display> Display for StyledText<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}{:#}", self.style, self.text, self.style)
    }
}

/// Prints a line of a process that keeps serving: a closed standard output does not affect it.
pub fn print_line(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Runs `work`, which prints. A closed pipe is not an error: the exit code is then 0.
pub fn to_stdout(work: impl FnOnce(&mut StandardOutput) -> anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    let stdout = io::stdout();
    let coloured = AutoStream::choice(&stdout) != ColorChoice::Never;
    let is_terminal = stdout.is_terminal();
    let width = terminal_size::terminal_size_of(&stdout).map_or(WIDTH, |(width, _)| usize::from(width.0));
    let writer = BufWriter::with_capacity(64 << 10, stdout.lock());
    let mut out = StandardOutput { out: writer, coloured, titled: false, is_terminal, width };
    let done = work(&mut out).and_then(|code| Ok(out.flush().map(|()| code)?));
    // File errors have their own types, so a plain I/O error is an error of standard output.
    match done.as_ref().err().and_then(|error| error.downcast_ref::<io::Error>()).map(io::Error::kind) {
        Some(ErrorKind::BrokenPipe) => Ok(ExitCode::SUCCESS),
        Some(_) => done.context("standard output"),
        None => done,
    }
}

/// The exit code of a command that writes data. A closed pipe is not reported.
pub fn written(done: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    match done {
        Err(error) if error.downcast_ref().is_some_and(is_closed_pipe) => Ok(ExitCode::FAILURE),
        done => done.map(|()| ExitCode::SUCCESS),
    }
}

fn is_closed_pipe(error: &write::Error) -> bool {
    matches!(error, write::Error::Io { error, .. } if error.kind() == ErrorKind::BrokenPipe)
}

/// A value as JSON on one line. Characters that a terminal would act on are escaped.
pub fn compact(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(escape_json(&serde_json::to_string(value)?, is_terminal_control))
}

/// A value as JSON on several lines. Characters that a terminal would act on are escaped.
pub fn pretty(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(escape_json(&serde_json::to_string_pretty(value)?, is_terminal_control))
}

/// Appends a shape without spaces, so that it is one word: `[4096,1024]`.
pub fn push_shape(text: &mut String, shape: &[u64]) {
    text.push('[');
    for (at, dim) in shape.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{}{dim}", if at == 0 { "" } else { "," });
    }
    text.push(']');
}

/// A printable form of `text` in at most `columns` columns, but at least 24. The middle of a longer text is replaced by
/// an ellipsis, because tensor names differ at both ends.
pub fn squeeze(text: &str, columns: usize) -> Cow<'_, str> {
    const LEAST: usize = 24;
    let columns = columns.max(LEAST);
    // A character has at most four bytes.
    if text.len() / 4 <= columns {
        let shown = printable(text);
        if shown.len() <= columns || shown.width() <= columns {
            return shown;
        }
    }
    // At most this much of each end is needed.
    let head_end = text.char_indices().nth(columns).map_or(text.len(), |(at, _)| at);
    let tail_start = text.char_indices().rev().nth(columns).map_or(0, |(at, _)| at);
    let (head, tail) = (printable(&text[..head_end]), printable(&text[tail_start..]));
    // One column is for the ellipsis.
    let (back, used) = fitting(tail.chars().rev(), columns / 2);
    let (front, _) = fitting(head.chars(), columns - 1 - used);
    format!("{front}…{}", back.chars().rev().collect::<String>()).into()
}

/// The first of `chars` that fit into `columns` columns, and the sum of their widths, which may exceed the width of the
/// text: combined characters can be narrower.
fn fitting(chars: impl Iterator<Item = char>, columns: usize) -> (String, usize) {
    let (mut text, mut used) = (String::new(), 0);
    for char in chars {
        let width = char.width().unwrap_or(0);
        if used + width > columns {
            break;
        }
        used += width;
        text.push(char);
    }
    (text, used)
}

/// A printable form of `text` in at most `columns` columns, but at least 20. A longer text is cut and followed by its
/// size.
pub fn cut_text(text: &str, columns: usize) -> String {
    const LEAST: usize = 20;
    let columns = columns.max(LEAST);
    // One more character than fits is enough to detect that the text is too long.
    let end = text.char_indices().nth(columns.saturating_add(1)).map_or(text.len(), |(end, _)| end);
    let shown = printable(&text[..end]);
    if end == text.len() && shown.width() <= columns {
        return shown.into_owned();
    }
    let tail = format!("... ({})", format_size(text.len() as u64));
    fitting(shown.chars(), columns.saturating_sub(tail.len())).0 + &tail
}

/// The lines of a text of at most `columns` columns, unless a word is longer.
pub fn wrap_words(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.width() + 1 + word.width() <= columns => line.extend([" ", word]),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Prints a table. The first column is aligned to the left, the others to the right. A cell that is longer than
/// [`WIDEST`] overflows.
pub fn draw_table(out: &mut StandardOutput, headings: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    lines(out, headings, rows).iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// The lines of such a table.
pub fn lines(out: &StandardOutput, headings: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let widths: Vec<usize> = (0..headings.len()).map(|at| column_width(headings, rows, at).min(WIDEST)).collect();
    let titles = out.styled(HEADING, table_line(headings, &widths)).to_string();
    [titles].into_iter().chain(rows.iter().map(|row| table_line(row, &widths))).collect()
}

fn column_width(headings: &[&str], rows: &[Vec<String>], at: usize) -> usize {
    let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.width());
    cells.chain([headings[at].width()]).max().unwrap_or(0)
}

fn table_line(cells: &[impl AsRef<str>], widths: &[usize]) -> String {
    let mut line = String::new();
    for (at, cell) in cells.iter().map(AsRef::as_ref).enumerate() {
        let padding = " ".repeat(widths[at].saturating_sub(cell.width()));
        match at {
            0 => line.extend([cell, &padding]),
            _ => line.extend(["  ", &padding, cell]),
        }
    }
    line
}

/// Shortens the cells of `columns`, one column after the other, so that the rows fit on the terminal if possible. Files
/// and programs get whole cells.
pub fn fit_columns(out: &StandardOutput, headings: &[&str], rows: &mut [Vec<String>], columns: &[usize]) {
    for at in columns.iter().copied().filter(|_| out.is_terminal) {
        let others = (0..headings.len()).filter(|other| *other != at);
        let others: usize = others.map(|other| column_width(headings, rows, other) + 2).sum();
        for row in rows.iter_mut() {
            row[at] = squeeze(&row[at], out.width.saturating_sub(others)).into_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_json_is_equivalent_and_has_no_control_characters() {
        let value = serde_json::json!({"a\u{202e}": ["\u{1b}[31m\n\u{7f}\u{9b}\u{2028}重", 1.5], "b": u64::MAX});
        let (compact, pretty) = (compact(&value).unwrap(), pretty(&value).unwrap());
        assert_eq!(compact.lines().count(), 1);
        for text in [compact, pretty] {
            assert!(!text.contains(|char| char != '\n' && is_terminal_control(char)), "{text:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        }
    }

    #[test]
    fn squeezed_text_fits_and_keeps_both_ends() {
        let name = "model.layers.10.block_sparse_moe.experts.7.w2.weight";
        assert_eq!(squeeze(name, 52), name);
        assert_eq!(squeeze(name, 51), "model.layers.10.block_spa…e_moe.experts.7.w2.weight");
        for columns in [0, 24, 25, 40, 79] {
            let wide = ["重".repeat(100), "☁\u{fe0f}".repeat(100), "🇩🇪".repeat(100)];
            for text in [name.repeat(9), "\u{1b}[31m".repeat(50), "e\u{301}".repeat(90)].into_iter().chain(wide) {
                let squeezed = squeeze(&text, columns);
                assert!(squeezed.width() <= columns.max(24), "{columns} {squeezed}");
                assert!(squeezed.contains('…') && !squeezed.contains('\u{1b}'), "{squeezed}");
            }
        }
    }

    #[test]
    fn cut_text_fits() {
        assert_eq!(cut_text("short", 80), "short");
        assert_eq!(cut_text("tab\there", 80), r"tab\there");
        for columns in [0, 20, 21, 40, 79] {
            let wide = ["重".repeat(100), "☁\u{fe0f}".repeat(100), "🇩🇪".repeat(100)];
            for text in ["x".repeat(500), "\u{1b}[31m".repeat(50), "e\u{301}".repeat(90)].into_iter().chain(wide) {
                let cut = cut_text(&text, columns);
                assert!(cut.width() <= columns.max(20), "{columns} {cut}");
                assert!(!cut.contains('\u{1b}') && (cut.ends_with(" B)") || cut.ends_with("kB)")), "{cut}");
            }
        }
        let exact = "x".repeat(30);
        assert_eq!(cut_text(&exact, 30), exact);
        assert_eq!(cut_text(&exact, 29), format!("{}... (30 B)", "x".repeat(19)));
    }
}
