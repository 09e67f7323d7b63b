//! Bars beside lines of text, in proportion to sizes. Only for terminals.

use super::output::{BAR, StandardOutput};
use std::env;
use unicode_width::UnicodeWidthStr;

/// Columns of the longest bar, if there is room.
const LONGEST: usize = 24;

/// Bars with fewer columns would not show proportions.
const SHORTEST: usize = 6;

/// Columns between a line and its bar.
const GAP: usize = 2;

/// Appends a bar to each line. Lines without styles that end at different columns get bars that begin at the same one.
/// Appends nothing if output is not a terminal or the lines leave too little room on it.
pub fn append_bars(out: &StandardOutput, lines: &mut [String], sizes: impl Iterator<Item = u64> + Clone) {
    let widest = lines.iter().map(|line| line.width()).max().unwrap_or(0);
    let columns = out.width.saturating_sub(widest + GAP).min(LONGEST);
    let largest = sizes.clone().max().unwrap_or(0);
    if !out.is_terminal || columns < SHORTEST || largest == 0 {
        return;
    }
    let draw = if is_utf8() { draw_blocks } else { draw_hashes };
    for (line, size) in lines.iter_mut().zip(sizes) {
        let bar = draw(columns as f64 * size as f64 / largest as f64);
        if !bar.is_empty() {
            let padding = " ".repeat(widest - line.width() + GAP);
            line.extend([padding, out.styled(BAR, bar).to_string()]);
        }
    }
}

/// Whether the locale has the characters of [`draw_blocks`].
fn is_utf8() -> bool {
    let values = ["LC_ALL", "LC_CTYPE", "LANG"].map(|name| env::var(name).unwrap_or_default());
    let locale = values.into_iter().find(|value| !value.is_empty()).unwrap_or_default().to_ascii_lowercase();
    ["utf-8", "utf8"].iter().any(|name| locale.contains(name))
}

/// A bar of this many columns, rounded to eighths. A bar that is not empty is at least one eighth long.
fn draw_blocks(columns: f64) -> String {
    /// A column of which one eighth to seven eighths are filled from the left.
    const PARTS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = if columns > 0.0 { ((columns * 8.0).round() as usize).max(1) } else { 0 };
    let part = (eighths % 8).checked_sub(1).map(|at| PARTS[at]);
    "█".repeat(eighths / 8).chars().chain(part).collect()
}

fn draw_hashes(columns: f64) -> String {
    "#".repeat(columns.round() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_rounded() {
        let cases = [
            (0.0, "", ""),
            (0.001, "▏", ""),
            (0.25, "▎", ""),
            (0.5, "▌", "#"),
            (1.0, "█", "#"),
            (2.9, "██▉", "###"),
            (2.99, "███", "###"),
        ];
        for (columns, blocks, hashes) in cases {
            assert_eq!((&draw_blocks(columns)[..], &draw_hashes(columns)[..]), (blocks, hashes), "{columns}");
        }
    }
}
