//! Totals of tensors by dtype and by module: as tables, as two lines below a list, and as JSON.

use super::bars::append_bars;
use super::output::{self, StandardOutput, cut_text, draw_table};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::io::{self, Write};
use unicode_width::UnicodeWidthStr;
use weightfs::inspect::{QuantizationTotal, TensorBreakdown, TensorTotals};
use weightfs::text::printable;
use weightfs::units::{format_count, format_size, plural};

/// Maximum width of a dtype or module in a line with others, in terminal columns.
const NAME_MAX: usize = 60;

/// The name of a dtype or module as printed in a line with others.
pub fn group_name(name: &str) -> String {
    if name.is_empty() { "(none)".to_owned() } else { cut_text(name, NAME_MAX) }
}

/// Prints a table by dtype and one by module. If `exact`, numbers are not rounded.
pub fn print_tables(breakdown: &TensorBreakdown, exact: bool, out: &mut StandardOutput) -> io::Result<()> {
    let TensorBreakdown { all, dtypes, modules, quantized } = breakdown;
    for (title, gap, groups) in [("DTYPE", "", dtypes), ("MODULE", "\n", modules)] {
        let rows = groups.iter().copied().chain([("total", *all)]).map(|(name, totals)| {
            let name = if name.is_empty() { "(none)".into() } else { printable(name) };
            row(&name, &totals, exact, format!("{:.1} %", totals.percent_of(all)))
        });
        out.write_all(gap.as_bytes())?;
        draw_groups(out, &[title, "TENSORS", "PARAMETERS", "SIZE", "SHARE"], &rows.collect::<Vec<_>>(), groups)?;
    }
    if quantized.is_empty() {
        return Ok(());
    }
    let rows = quantized.iter().map(|QuantizationTotal { summary, totals, .. }| {
        let bits = totals.bits_per_weight().map_or(String::new(), |bits| format!("{bits:.2}"));
        row(summary, totals, exact, bits)
    });
    out.write_all(b"\n")?;
    draw_table(out, &["QUANTIZATION", "WEIGHTS", "PARAMETERS", "SIZE", "BITS"], &rows.collect::<Vec<_>>())
}

/// Prints a table in which the first rows are those of `groups`, with bars for their sizes on a terminal.
pub fn draw_groups(
    out: &mut StandardOutput,
    headings: &[&str],
    rows: &[Vec<String>],
    groups: &[(&str, TensorTotals)],
) -> io::Result<()> {
    let mut lines = output::lines(out, headings, rows);
    append_bars(out, &mut lines[1..], groups.iter().map(|(_, totals)| totals.nbytes));
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))
}

fn row(name: &str, totals: &TensorTotals, exact: bool, last: String) -> Vec<String> {
    let TensorTotals { tensors, parameters, nbytes } = *totals;
    let [parameters, nbytes] = match exact {
        true => [parameters, nbytes].map(|number| number.to_string()),
        false => [format_count(parameters), format_size(nbytes)],
    };
    vec![name.to_owned(), tensors.to_string(), parameters, nbytes, last]
}

/// Prints a line with the sum and the dtypes, one with the modules, and one with the quantized weights. Each has as
/// many groups as fit, largest first.
pub fn print_lines(breakdown: &TensorBreakdown, out: &mut StandardOutput) -> io::Result<()> {
    let TensorBreakdown { all, dtypes, modules, quantized } = breakdown;
    let parameters =
        format!("{} parameter{}", format_count(all.parameters), if all.parameters == 1 { "" } else { "s" });
    let bits = all.bits_per_weight().unwrap_or(0.0);
    let all = format!("{}, {parameters}, {}", plural(all.tensors, "tensor"), format_size(all.nbytes));
    let width = out.width;
    writeln!(out, "\n{}", in_a_line(&format!("{all}: "), &largest_first(dtypes), width))?;
    // Tensors whose names have no dots are in no module.
    if modules.iter().any(|(name, _)| !name.is_empty()) {
        writeln!(out, "{}", in_a_line("modules: ", &largest_first(modules), width))?;
    }
    if !quantized.is_empty() {
        let groups = quantized.iter().map(|QuantizationTotal { summary, totals, .. }| {
            let weights = plural(totals.tensors, "weight");
            format!("{weights} ({summary})")
        });
        let groups: Vec<String> = groups.collect();
        writeln!(out, "{}", in_a_line(&format!("{bits:.2} bits per weight: "), &groups, width))?;
    }
    Ok(())
}

fn largest_first(groups: &[(&str, TensorTotals)]) -> Vec<String> {
    let mut groups: Vec<_> = groups.iter().collect();
    groups.sort_by_key(|(_, totals)| Reverse(totals.nbytes));
    let texts = groups.iter().map(|(name, totals)| format!("{} {}", group_name(name), format_size(totals.nbytes)));
    texts.collect()
}

/// `begin` and as many of `items` as fit into `columns` columns, but at least one.
fn in_a_line(begin: &str, items: &[String], columns: usize) -> String {
    /// Width of `, and 1,000,000 more`.
    const MORE: usize = 20;
    let mut line = begin.to_owned();
    for (at, item) in items.iter().enumerate() {
        let room = if at + 1 < items.len() { columns.saturating_sub(MORE) } else { columns };
        if at > 0 && line.width() + 2 + item.width() > room {
            line.push_str(&format!(", and {} more", items.len() - at));
            break;
        }
        line.extend([if at == 0 { "" } else { ", " }, item]);
    }
    line
}

pub fn to_json(breakdown: &TensorBreakdown) -> Value {
    let TensorBreakdown { all, dtypes, modules, quantized } = breakdown;
    json!({
        "tensors": all.tensors, "parameters": all.parameters, "nbytes": all.nbytes,
        "bits_per_weight": all.bits_per_weight(),
        "dtypes": groups_to_json("dtype", dtypes), "modules": groups_to_json("module", modules),
        "quantized": quantized.iter().map(quantization).collect::<Vec<_>>(),
    })
}

fn groups_to_json(key: &str, groups: &[(&str, TensorTotals)]) -> Value {
    let objects = groups.iter().map(|(name, TensorTotals { tensors, parameters, nbytes })| {
        json!({key: name, "tensors": tensors, "parameters": parameters, "nbytes": nbytes})
    });
    objects.collect()
}

/// Weights that are quantized in the same way, as JSON.
fn quantization(group: &QuantizationTotal) -> Value {
    let QuantizationTotal { scheme, dtype, summary, totals, companions, roles } = group;
    json!({
        "scheme": scheme, "dtype": dtype, "summary": summary, "weights": totals.tensors,
        "parameters": totals.parameters, "nbytes": totals.nbytes, "bits_per_weight": totals.bits_per_weight(),
        "companions": companions, "roles": roles,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_filled_and_the_rest_is_counted() {
        let items = ["F32 4 B", "BF16 2 B", "U8 1 B"].map(str::to_owned);
        assert_eq!(in_a_line("x: ", &items, 80), "x: F32 4 B, BF16 2 B, U8 1 B");
        assert_eq!(in_a_line("x: ", &items, 28), "x: F32 4 B, and 2 more");
        assert_eq!(in_a_line("x: ", &items, 0), "x: F32 4 B, and 2 more");
        assert_eq!(in_a_line("x: ", &[], 80), "x: ");
    }
}
