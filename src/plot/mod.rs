//! The picture of a tensor: a histogram, statistics and a heat map. Does not depend on where the values come from.

mod canvas;
mod heat;
mod words;

use crate::stats::{BINS, TensorStats, ValueHistogram};
use crate::units::{grouped, plural};
use canvas::{ALARM, BAND, BAR, Canvas, INF, INK, NAN, PlotFrame, WIDTH, grey};
pub use canvas::{CanvasError, PNG_LEN};
pub use heat::HeatMap;
use words::{cut_words, format_number, percent, short_number, ticks};

/// The picture of a tensor as a PNG file of exactly [`PNG_LEN`] bytes. The same input gives the same bytes.
pub fn render_plot(
    name: &str,
    dtype: &str,
    shape: &[u64],
    stats: &TensorStats,
    heat: Option<&HeatMap>,
) -> Result<Vec<u8>, CanvasError> {
    let mut canvas = Canvas::new()?;
    draw_title(&mut canvas, name, dtype, shape, stats.count);
    let heat = heat.filter(|heat| !heat.cells().is_empty() && stats.count > 1);
    let width = if heat.is_some() { LEFT_HALF } else { WIDTH - 2 * MARGIN };
    draw_histogram(&mut canvas, stats, width);
    draw_figures(&mut canvas, stats, width);
    match heat {
        Some(heat) if shape.len() < 2 => draw_vector(&mut canvas, heat, stats),
        Some(heat) => draw_matrix(&mut canvas, heat, shape),
        None => {}
    }
    canvas::encode_png(&canvas.pixels)
}

/// Margin on all sides, in pixels like all lengths below.
const MARGIN: i32 = 28;
/// Top of the charts, below the title.
const TOP: i32 = 124;
const HISTOGRAM: i32 = 380;
/// Width of the statistics, and of the histogram with its labels, if there is a heat map beside them.
const LEFT_HALF: i32 = 560;
const MATRIX: i32 = 692;
/// Space for the labels of an axis at the left and at the bottom.
const LABELS: (i32, i32) = (72, 52);
const MARK: i32 = 5;

const SMALL: i32 = 18;
const NORMAL: i32 = 20;
const LARGE: i32 = 30;

const TOP_LEFT: (f32, f32) = (0.0, 0.0);
const BOTTOM_LEFT: (f32, f32) = (0.0, 1.0);
const CENTER_LEFT: (f32, f32) = (0.0, 0.5);
const CENTER: (f32, f32) = (0.5, 0.5);

/// An axis: its ticks, as fractions of its length with their labels, and its title.
struct PlotAxis {
    ticks: Vec<(f64, String)>,
    title: String,
}

fn draw_title(canvas: &mut Canvas, name: &str, dtype: &str, shape: &[u64], count: u64) {
    let width = WIDTH - 2 * MARGIN;
    let name = cut_to_width(canvas, name, LARGE, width);
    canvas.text(&name, (MARGIN, 22), LARGE, INK, TOP_LEFT);
    let tail = plural(count, "element");
    let used = canvas.text_width(dtype, NORMAL) + canvas.text_width(&tail, NORMAL);
    let shape = cut_to_width(canvas, &words::shape(shape), NORMAL, width - 40 - used);
    let line = cut_to_width(canvas, &format!("{dtype}  ·  {shape}  ·  {tail}"), NORMAL, width);
    canvas.text(&line, (MARGIN, 62), NORMAL, grey(0.3), TOP_LEFT);
}

fn draw_histogram(canvas: &mut Canvas, stats: &TensorStats, width: i32) {
    let histogram = &stats.histogram;
    let frame = PlotFrame { left: MARGIN + LABELS.0, top: TOP, width: width - LABELS.0, height: HISTOGRAM };
    if let Some(message) = message(stats) {
        let frame = PlotFrame { left: MARGIN, width, ..frame };
        canvas.border(frame, grey(0.85));
        let middle = (frame.left + frame.width / 2, frame.top + frame.height / 2);
        return canvas.text(&message, middle, LARGE, INK, CENTER);
    }
    let scale = CountScale::new(&histogram.counts);
    let title = format!("elements per bin{}", if scale.log { " (log scale)" } else { "" });
    let x_ticks = ticks(histogram.low, histogram.high, 9, frame.width as usize / 10);
    let x = PlotAxis { ticks: x_ticks, title: "value".to_owned() };
    draw_axes(canvas, frame, &x, &PlotAxis { ticks: scale.ticks(), title }, true);
    for (bin, count) in histogram.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let [left, right] = [bin, bin + 1].map(|bin| frame.left + (bin as i32 * frame.width) / BINS as i32);
        let height = (scale.share(*count as f64) * f64::from(frame.height)).round().max(2.0) as i32;
        let bar = PlotFrame { left, top: frame.bottom() - height, width: right - left, height };
        canvas.fill(bar, BAR);
    }
    let zero = share(0.0, histogram.low, histogram.high);
    if zero > 0.0 && zero < 1.0 {
        let left = frame.left + (zero * f64::from(frame.width)) as i32;
        canvas.fill(PlotFrame { left, width: 1, ..frame }, grey(0.35));
    }
}

/// The statistics of the tensor in two lines.
fn draw_figures(canvas: &mut Canvas, stats: &TensorStats, width: i32) {
    // Show more digits if the minimum and the maximum would look the same.
    let digits = match (stats.min, stats.max) {
        (Some(min), Some(max)) if min != max && format_number(min, 5) == format_number(max, 5) => 10,
        _ => 5,
    };
    let numbers =
        [("min", stats.min), ("max", stats.max), ("mean", stats.mean), ("std", stats.std), ("abs max", stats.abs_max)];
    let numbers = numbers
        .map(|(label, value)| (label, value.map_or_else(|| "–".to_owned(), |value| format_number(value, digits))));
    let inf = match (stats.pos_inf, stats.neg_inf) {
        (0, 0) => "0".to_owned(),
        (plus, minus) => format!("+{}  -{}", short_number(plus as f64), short_number(minus as f64)),
    };
    let counts = [("zeros", percent(stats.zeros, stats.count)), ("NaN", grouped(stats.nan)), ("Inf", inf)];
    for (at, (label, value)) in numbers.into_iter().chain(counts).enumerate() {
        let (column, row) = (at as i32 % 4, at as i32 / 4);
        let left = MARGIN + column * (width / 4);
        let top = TOP + HISTOGRAM + LABELS.1 + 20 + row * 62;
        canvas.text(label, (left, top), SMALL, grey(0.4), TOP_LEFT);
        let is_alarm = matches!(label, "NaN" | "Inf") && value != "0";
        canvas.text(&value, (left, top + 20), NORMAL + 2, if is_alarm { ALARM } else { INK }, TOP_LEFT);
    }
}

fn draw_matrix(canvas: &mut Canvas, heat: &HeatMap, shape: &[u64]) {
    let ((rows, cols), [high, wide]) = (heat.count(), [&heat.rows, &heat.cols].map(|side| side.cell_pixels as usize));
    let frame = PlotFrame { left: MATRIX, top: TOP, width: (cols * wide) as i32, height: (rows * high) as i32 };
    let lead = shape.len().saturating_sub(2);
    let per = [heat.rows.len as f64 / rows as f64, heat.cols.len as f64 / cols as f64];
    let slice = match lead {
        0 => String::new(),
        1..=8 => format!("slice [{}:, :]    ", "0, ".repeat(lead)),
        _ => "slice [0, …, 0, :, :]    ".to_owned(),
    };
    let cells = match per.map(rounded) {
        _ if per == [1.0, 1.0] => "a cell is an element".to_owned(),
        [down, across] => format!("a cell is the mean of {down} × {across} elements"),
    };
    canvas.text(&(slice + &cells), (frame.left, frame.top - 8), SMALL, grey(0.3), BOTTOM_LEFT);
    let x = index_axis(heat.cols.len, format!("axis {}", lead + 1), frame.width);
    let mut y = index_axis(heat.rows.len, format!("axis {lead}"), frame.height);
    y.ticks.iter_mut().for_each(|tick| tick.0 = 1.0 - tick.0);
    draw_axes(canvas, frame, &x, &y, false);

    let limit = heat.limit();
    let mut is_beyond = false;
    for (at, cell) in heat.cells().iter().enumerate() {
        let share = cell.mean().map(|mean| limit.filter(|limit| *limit > 0.0).map_or(0.0, |limit| mean / limit));
        is_beyond |= share.is_some_and(|share| share.abs() > 1.0);
        let mark = if cell.nan { Some(NAN) } else { cell.inf.then_some(INF) };
        let color = share.map(canvas::ramp).or(mark).unwrap_or(grey(0.85));
        let (left, top) = (frame.left + (at % cols * wide) as i32, frame.top + (at / cols * high) as i32);
        let area = PlotFrame { left, top, width: wide as i32, height: high as i32 };
        canvas.fill(area, color);
        if let Some(mark) = mark {
            canvas.fill(area.center(), mark);
        }
    }
    canvas.border(frame, grey(0.35));
    if let Some(limit) = limit {
        draw_color_scale(canvas, PlotFrame { left: frame.right() + 20, width: 16, ..frame }, limit);
    }
    draw_legend(
        canvas,
        heat,
        frame,
        if is_beyond { "colours end at the 1st and 99th percentile of the cells" } else { "" },
    );
}

fn draw_color_scale(canvas: &mut Canvas, bar: PlotFrame, limit: f64) {
    for line in 0..bar.height {
        let share = 1.0 - f64::from(line) / f64::from(bar.height - 1);
        canvas.fill(PlotFrame { top: bar.top + line, height: 1, ..bar }, canvas::ramp(2.0 * share - 1.0));
    }
    canvas.border(bar, grey(0.35));
    for mark in if limit > 0.0 { &[1.0, 0.5, 0.0, -0.5, -1.0][..] } else { &[0.0] } {
        let top = bar.top + ((1.0 - mark) / 2.0 * f64::from(bar.height - 1)) as i32;
        canvas.fill(PlotFrame { left: bar.right(), top, width: 4, height: 1 }, grey(0.35));
        let label = format_number(limit * mark, 3);
        canvas.text(&label, (bar.right() + 8, top), SMALL, grey(0.3), CENTER_LEFT);
    }
}

/// The values of a vector by index.
fn draw_vector(canvas: &mut Canvas, heat: &HeatMap, stats: &TensorStats) {
    let cells = heat.cells();
    let frame = PlotFrame { left: MATRIX, top: TOP, width: WIDTH - MARGIN - MATRIX, height: HISTOGRAM };
    let len = heat.rows.len.max(heat.cols.len);
    let per = len as f64 / cells.len() as f64;
    let title = match per {
        1.0 => "the values in order".to_owned(),
        _ => format!("the values in order: range and mean of every {} elements", rounded(per)),
    };
    canvas.text(&title, (frame.left, frame.top - 8), SMALL, grey(0.3), BOTTOM_LEFT);
    let (low, high) = match (stats.min, stats.max) {
        (Some(low), Some(high)) if low < high => (low, high),
        (Some(value), _) => (value - value.abs().max(1.0) / 2.0, value + value.abs().max(1.0) / 2.0),
        _ => (-1.0, 1.0),
    };
    let mut marks = ticks(low, high, 8, usize::MAX);
    marks.iter_mut().for_each(|mark| mark.0 = with_margin(mark.0));
    let y = PlotAxis { ticks: marks, title: String::new() };
    draw_axes(canvas, frame, &index_axis(len, "axis 0".to_owned(), frame.width), &y, true);

    // Few values are drawn as bars from zero, if zero is in the range.
    let bars = per == 1.0 && low <= 0.0 && high >= 0.0;
    let mut path = Vec::new();
    for (at, cell) in cells.iter().enumerate() {
        let [left, right] = [at, at + 1].map(|at| frame.left + (at * frame.width as usize / cells.len()) as i32);
        let width = right - left;
        if let Some(mean) = cell.mean() {
            let zero = if bars { 0.0 } else { mean };
            let [top, bottom, middle] = [zero.max(cell.high), zero.min(cell.low), mean].map(|value| {
                frame.bottom() - pixels(with_margin(share(value, low, high).clamp(0.0, 1.0)), frame.height)
            });
            let (gap, color) = if bars { (i32::from(width > 2), BAR) } else { (0, BAND) };
            if bars || per > 1.0 {
                let bar = PlotFrame { left, top, width: width - gap, height: (bottom - top).max(1) };
                canvas.fill(bar, color);
            }
            path.push((left + width / 2, middle));
        }
        if cell.nan || cell.inf {
            let color = if cell.nan { NAN } else { INF };
            canvas.fill(PlotFrame { left, top: frame.top, width: width.max(2), height: 12 }, color);
        }
    }
    if low < 0.0 && high > 0.0 {
        let top = frame.bottom() - pixels(with_margin(share(0.0, low, high)), frame.height);
        canvas.fill(PlotFrame { top, height: 1, ..frame }, grey(0.35));
    }
    if !bars {
        path.windows(2).for_each(|ends| canvas.line(ends[0], ends[1], canvas::ramp(-1.0)));
    }
    draw_legend(canvas, heat, frame, "");
}

fn draw_legend(canvas: &mut Canvas, heat: &HeatMap, frame: PlotFrame, words: &str) {
    let top = frame.bottom() + LABELS.1 + 6;
    let mut left = frame.left;
    for (color, label, is_shown) in
        [(NAN, "NaN", heat.cells().iter().any(|cell| cell.nan)), (INF, "Inf", heat.cells().iter().any(|cell| cell.inf))]
    {
        if is_shown {
            canvas.fill(PlotFrame { left, top: top + 4, width: 12, height: 12 }, color);
            canvas.text(label, (left + 18, top), SMALL, INK, TOP_LEFT);
            left += 64;
        }
    }
    canvas.text(words, (left, top), SMALL, grey(0.4), TOP_LEFT);
}

/// Both axes of a chart that fills `frame`. Their labels are at the left of it and below it.
fn draw_axes(canvas: &mut Canvas, frame: PlotFrame, x: &PlotAxis, y: &PlotAxis, grid: bool) {
    let (left, bottom) = (frame.left, frame.bottom());
    for (share, label) in &y.ticks {
        let top = bottom - pixels(*share, frame.height);
        if grid {
            canvas.fill(PlotFrame { top, height: 1, ..frame }, grey(0.88));
        }
        canvas.fill(PlotFrame { left: left - 1 - MARK, top, width: MARK, height: 1 }, grey(0.35));
        canvas.text(label, (left - 2 * MARK, top), SMALL, grey(0.3), (1.0, 0.5));
    }
    for (share, label) in &x.ticks {
        let left = left + pixels(*share, frame.width);
        canvas.fill(PlotFrame { left, top: bottom, width: 1, height: MARK + 1 }, grey(0.35));
        canvas.text(label, (left, bottom + 2 * MARK), SMALL, grey(0.3), (0.5, 0.0));
    }
    canvas.fill(PlotFrame { left: left - 1, width: 1, ..frame }, grey(0.35));
    canvas.fill(PlotFrame { top: bottom, height: 1, ..frame }, grey(0.35));
    canvas.text(&x.title, (left + frame.width / 2, bottom + LABELS.1), SMALL, INK, (0.5, 1.0));
    let middle = (left - LABELS.0, frame.top + frame.height / 2);
    canvas.text_upwards(&y.title, middle, SMALL, INK, (0.5, 0.0));
}

fn cut_to_width(canvas: &Canvas, text: &str, size: i32, width: i32) -> String {
    cut_words(text, |char| canvas.has(char), |text| canvas.text_width(text, size) <= width)
}

/// The vertical scale of a histogram.
struct CountScale {
    log: bool,
    /// The largest count; at least 1.
    most: f64,
}

/// A logarithmic scale begins below 1, so that a bar of one element is visible.
const LOG_BOTTOM: f64 = 0.5;

impl CountScale {
    fn new(counts: &[u64]) -> Self {
        Self { log: wants_log(counts), most: counts.iter().copied().max().unwrap_or(0).max(1) as f64 }
    }

    /// The height of a count. There is some space above the largest.
    fn share(&self, count: f64) -> f64 {
        let share =
            if self.log { (count / LOG_BOTTOM).log10() / (self.most / LOG_BOTTOM).log10() } else { count / self.most };
        share / 1.04
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        if !self.log {
            return whole_ticks(self.most * 1.04, 6, usize::MAX);
        }
        let decades = self.most.log10() as i32;
        let step = 1 + decades / 7;
        let counts = (0..=decades / step).map(|at| 10f64.powi(at * step));
        counts.map(|count| (self.share(count), short_number(count))).collect()
    }
}

/// The text that replaces the histogram of a tensor without different finite values.
fn message(stats: &TensorStats) -> Option<String> {
    let finite = stats.count.saturating_sub(stats.nan).saturating_sub(stats.pos_inf).saturating_sub(stats.neg_inf);
    let ValueHistogram { low, high, .. } = stats.histogram;
    Some(match (stats.min, stats.max) {
        _ if stats.count == 0 => "no elements".to_owned(),
        (Some(value), _) if stats.count == 1 => format_number(value, 7),
        (Some(min), Some(max)) if min == max && finite == stats.count => {
            format!("every element is {}", format_number(min, 7))
        }
        (Some(min), Some(max)) if min == max => format!("every finite element is {}", format_number(min, 7)),
        (Some(_), Some(_)) if low < high => return None,
        _ if stats.nan == stats.count => if stats.count == 1 { "NaN" } else { "every element is NaN" }.to_owned(),
        _ => "no finite element".to_owned(),
    })
}

/// Whether the histogram needs a logarithmic scale: at least half of the bars that are not empty would be lower than a
/// hundredth of the highest.
fn wants_log(counts: &[u64]) -> bool {
    let most = counts.iter().copied().max().unwrap_or(0);
    let seen = counts.iter().filter(|count| **count > 0).count();
    let low = counts.iter().filter(|count| **count > 0 && **count < most / 100).count();
    2 * low >= seen && low > 0
}

/// The position of `value` between `low` (0) and `high` (1). Computed from halves, because `high - low` may overflow.
fn share(value: f64, low: f64, high: f64) -> f64 {
    (value / 2.0 - low / 2.0) / (high / 2.0 - low / 2.0)
}

/// A share of a length, in pixels.
fn pixels(share: f64, length: i32) -> i32 {
    (share * f64::from(length)).round() as i32
}

/// The position of a share in a chart with some space above and below.
fn with_margin(share: f64) -> f64 {
    0.03 + 0.94 * share
}

/// A number of elements with one decimal.
fn rounded(number: f64) -> String {
    format_number((number * 10.0).round() / 10.0, 5)
}

/// An axis of `len` indices.
fn index_axis(len: u64, name: String, pixels: i32) -> PlotAxis {
    PlotAxis { ticks: whole_ticks(len as f64, 6, pixels as usize / 10), title: format!("{name} ({})", grouped(len)) }
}

/// The ticks of an axis of counts from 0 to `high`.
fn whole_ticks(high: f64, most: u32, chars: usize) -> Vec<(f64, String)> {
    let mut marks = ticks(0.0, high, most, chars);
    marks.retain(|mark| (mark.0 * high - (mark.0 * high).round()).abs() < 0.01);
    marks.iter_mut().for_each(|mark| mark.1 = short_number((mark.0 * high).round()));
    marks
}

#[cfg(test)]
mod tests;
