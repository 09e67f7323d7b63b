//! Reports on two models, or on two directories of models, as text and as Markdown.

use super::output::{self, StandardOutput};
use anstyle::AnsiColor;
use serde::{Deserialize, Serialize};
use unicode_width::UnicodeWidthStr;
use weightfs::text::{printable, quote};
use weightfs::units::grouped;

/// The same thing of both models.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct BothSides<T> {
    pub a: T,
    pub b: T,
}

pub struct ReportPage<'r> {
    /// The source and the size of each model.
    pub sides: [(&'r str, String); 2],
    pub parts: Vec<ReportPart<'r>>,
}

pub struct ReportPart<'r> {
    pub title: &'static str,
    pub summary: String,
    pub table: Option<ReportTable>,
    /// The headings of the Markdown table of `lines`. If the first one is empty, there is a column for the sign.
    pub columns: &'static [&'static str],
    /// Whether names are quoted in text.
    pub is_quoted: bool,
    pub lines: Vec<ReportLine<'r>>,
}

/// A sign, the name of a tensor, key or model, and a description.
pub type ReportLine<'r> = (char, &'r str, String);

/// Rows that begin with the name of a tensor. The last one is the total.
pub struct ReportTable {
    /// The headings in text and in Markdown.
    pub headings: (&'static [&'static str], &'static [&'static str]),
    pub rows: Vec<Vec<String>>,
}

impl ReportPage<'_> {
    pub fn text(&self, out: &StandardOutput) -> String {
        let sources = self.sides.each_ref().map(|(source, _)| printable(source));
        let width = sources.iter().map(|source| source.width()).max().unwrap_or(0);
        let mut lines = Vec::new();
        for (source, (_, size)) in sources.iter().zip(&self.sides) {
            lines.push(format!("{source}{:pad$}  {size}", "", pad = width - source.width()));
        }
        for part in &self.parts {
            lines.push(String::new());
            part.add_text(out, &mut lines);
        }
        joined(&lines)
    }

    pub fn markdown(&self) -> String {
        let [(source_a, size_a), (source_b, size_b)] = &self.sides;
        let (source_a, source_b) = (code(source_a), code(source_b));
        let mut lines = vec![format!("# {source_a} and {source_b}")];
        let sources = vec!["source".into(), source_a, source_b];
        let sizes = vec!["size".into(), size_a.clone(), size_b.clone()];
        add_table(&["", "a", "b"], [sources, sizes], &mut lines);
        for part in &self.parts {
            lines.push(String::new());
            part.add_markdown("##", &mut lines);
        }
        joined(&lines)
    }
}

impl ReportPart<'_> {
    fn add_text(&self, out: &StandardOutput, lines: &mut Vec<String>) {
        lines.push(format!("{}: {}", self.title, self.summary));
        if let Some(ReportTable { headings, rows }) = &self.table {
            if !rows.is_empty() {
                lines.push(String::new());
                let mut rows = rows.clone();
                output::fit_columns(out, headings.0, &mut rows, &[0]);
                lines.extend(output::lines(out, headings.0, &rows));
            }
            if !self.lines.is_empty() {
                lines.push(String::new());
            }
        }
        for (sign, name, what) in &self.lines {
            let color = match sign {
                '+' => AnsiColor::Green,
                '-' => AnsiColor::Red,
                _ => AnsiColor::Yellow,
            };
            let name = if self.is_quoted { quote(name) } else { printable(name).into_owned() };
            let name = out.styled(color.on_default(), format!("{sign} {name}"));
            lines.push(format!("{name}  {what}").trim_end().to_owned());
        }
    }

    fn add_markdown(&self, level: &str, lines: &mut Vec<String>) {
        let (first, rest) = self.title.split_at(1);
        lines.extend([format!("{level} {}{rest}", first.to_uppercase()), String::new(), self.summary.clone()]);
        if let Some(ReportTable { headings, rows }) = &self.table {
            let rows = rows.iter().enumerate().map(|(at, row)| {
                let name = if at + 1 < rows.len() { code(&row[0]) } else { row[0].clone() };
                [&[name], &row[1..]].concat()
            });
            add_table(headings.1, rows, lines);
        }
        add_table(self.columns, self.lines.iter().map(|line| self.cells(line)), lines);
    }

    /// The cells of a line in Markdown.
    fn cells(&self, (sign, name, what): &ReportLine) -> Vec<String> {
        let has_sign = self.columns.first().is_some_and(|column| column.is_empty());
        let (word, is_code) = match sign {
            '+' => ("added", true),
            '-' => ("removed", true),
            '~' => ("changed", true),
            '!' => ("not finite", false),
            _ => ("not compared", false),
        };
        let what = if is_code && has_sign { code(what) } else { what.clone() };
        let cells = [has_sign.then(|| word.to_owned()), Some(code(name)), Some(what)];
        cells.into_iter().flatten().take(self.columns.len()).collect()
    }
}

/// The differences between two directories of models: as text if `screen` is given, otherwise as Markdown. `texts`
/// describe the models that differ.
pub fn catalogs(
    removed: &[String],
    added: &[String],
    alike: usize,
    texts: &[String],
    screen: Option<&StandardOutput>,
) -> String {
    let names = removed.iter().map(|name| ('-', name)).chain(added.iter().map(|name| ('+', name)));
    let part = ReportPart {
        title: "models",
        summary: change_summary(added.len(), removed.len(), texts.len(), alike),
        table: None,
        columns: &["", "model"],
        is_quoted: false,
        lines: names.map(|(sign, name)| (sign, &**name, String::new())).collect(),
    };
    let mut lines = Vec::new();
    match screen {
        Some(out) => part.add_text(out, &mut lines),
        None => part.add_markdown("#", &mut lines),
    }
    lines.extend(texts.iter().flat_map(|text| [String::new(), text.trim_end().to_owned()]));
    joined(&lines)
}

pub(super) fn change_summary(added: usize, removed: usize, changed: usize, alike: usize) -> String {
    let [added, removed, changed, alike] = [added, removed, changed, alike].map(count_text);
    format!("{added} added, {removed} removed, {changed} changed, {alike} unchanged")
}

/// A number with its digits in groups of three.
pub(super) fn count_text(count: usize) -> String {
    grouped(count as u64)
}

/// A number with at most `digits` significant digits, and with an exponent if it is below 1e-4 or at least 1e7.
pub(super) fn rounded(number: f64, digits: usize) -> String {
    let rounded = format!("{number:.*e}", digits - 1);
    match rounded.parse::<f64>() {
        Ok(value) if value == 0.0 || (1e-4..1e7).contains(&value.abs()) => value.to_string(),
        _ => rounded,
    }
}

fn joined(lines: &[String]) -> String {
    lines.join("\n") + "\n"
}

/// Appends a Markdown table, unless it has no rows.
fn add_table(columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>, lines: &mut Vec<String>) {
    let rows: Vec<String> = rows.into_iter().map(|cells| format!("| {} |", cells.join(" | "))).collect();
    if !rows.is_empty() {
        let heading: String = columns.iter().map(|column| format!(" {column} |").replace("  ", " ")).collect();
        lines.extend([String::new(), format!("|{heading}"), format!("|{}", "---|".repeat(columns.len()))]);
        lines.extend(rows);
    }
}

/// `text` as inline code in a cell of a Markdown table.
fn code(text: &str) -> String {
    let text = printable(text).replace('|', "\\|");
    let runs = text.split(|char| char != '`').map(str::len);
    let fence = "`".repeat(runs.max().unwrap_or(0) + 1);
    // Markdown removes one space from each end of inline code.
    let pad = if text.is_empty() || text.starts_with(['`', ' ']) || text.ends_with(['`', ' ']) { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        let table = [
            (0.0, "0"),
            (1.0, "1"),
            (0.123456, "0.1235"),
            (1234.56, "1235"),
            (0.00001234567, "1.235e-5"),
            (9.87654e30, "9.877e30"),
            (2.0, "2"),
            (f64::INFINITY, "inf"),
        ];
        for (number, expected) in table {
            assert_eq!(rounded(number, 4), expected);
        }
    }

    #[test]
    fn names_are_escaped_in_markdown_cells() {
        let table = [
            ("model.embed_tokens", "`model.embed_tokens`"),
            ("a|b", "`a\\|b`"),
            ("a`b``c", "```a`b``c```"),
            ("`", "`` ` ``"),
            ("", "`  `"),
            ("new\nline", "`new\\nline`"),
        ];
        for (name, expected) in table {
            assert_eq!(code(name), expected);
        }
    }
}
