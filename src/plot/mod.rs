//! The picture of a tensor: a histogram, statistics and a heat map. Does not depend on where the values come from.

mod canvas;
mod heat;
mod words;

use std::convert::Infallible;

use plotters::chart::ChartBuilder;
use plotters::coord::Shift;
use plotters::coord::combinators::BindKeyPoints;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{PathElement, Rectangle};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, RGBColor, TextStyle};

use crate::stats::{BINS, TensorStats, ValueHistogram};
use canvas::{BAND, BAR, Canvas, FontFace, INF, INK, NAN, WIDTH, grey};
pub use canvas::{CanvasError, PNG_LEN};
use heat::HeatCell;
pub use heat::HeatMap;
use words::{cut_words, format_number, grouped, percent, short_number, ticks};

type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<Infallible>>;

/// The picture of a tensor as a PNG file of exactly [`PNG_LEN`] bytes. The same input gives the same bytes.
pub fn render_plot(
    name: &str,
    dtype: &str,
    shape: &[u64],
    stats: &TensorStats,
    heat: Option<&HeatMap>,
) -> Result<Vec<u8>, CanvasError> {
    let face = FontFace::new()?;
    let mut pixels = canvas::blank();
    let picture = PlotPicture { root: Canvas::new(&face, &mut pixels).into_drawing_area(), face: &face };
    picture.draw(name, dtype, shape, stats, heat).map_err(|error| CanvasError::Draw(error.to_string()))?;
    drop(picture);
    canvas::encode_png(&pixels)
}

/// Margin on all sides, in pixels like all lengths below.
const MARGIN: i32 = 28;
/// Top of the charts, below the title.
const TOP: i32 = 124;
/// Height of the histogram.
const HISTOGRAM: i32 = 380;
/// Width of the statistics, and of the histogram with its labels, if there is a heat map beside them.
const LEFT_HALF: i32 = 560;
/// Left edge of the heat map.
const MATRIX: i32 = 692;
/// Space for the labels of an axis at the left and at the bottom.
const LABELS: (i32, i32) = (72, 52);

const SMALL: i32 = 18;
const NORMAL: i32 = 20;
const LARGE: i32 = 30;

/// An axis: its ticks, as fractions of its length with their labels, and its title.
struct PlotAxis {
    ticks: Vec<(f64, String)>,
    title: String,
}

/// A rectangle in pixels.
#[derive(Clone, Copy)]
struct PlotFrame {
    left: i32,
    top: i32,
    width: i32,
    height: i32,
}

/// A picture that is being drawn.
struct PlotPicture<'a> {
    root: DrawingArea<Canvas<'a>, Shift>,
    face: &'a FontFace,
}

impl PlotPicture<'_> {
    fn draw(&self, name: &str, dtype: &str, shape: &[u64], stats: &TensorStats, heat: Option<&HeatMap>) -> Drawn {
        let width = WIDTH as i32 - 2 * MARGIN;
        self.text(&self.cut(name, LARGE, width), (MARGIN, 22), LARGE, INK, (HPos::Left, VPos::Top))?;
        let elements = if stats.count == 1 { "element" } else { "elements" };
        let tail = format!("{} {elements}", grouped(stats.count));
        let shape_room = width - 40 - self.width(dtype, NORMAL) - self.width(&tail, NORMAL);
        let line = format!("{dtype}  ·  {}  ·  {tail}", self.cut(&words::shape(shape), NORMAL, shape_room));
        self.text(&self.cut(&line, NORMAL, width), (MARGIN, 62), NORMAL, grey(0.3), (HPos::Left, VPos::Top))?;

        let heat = heat.filter(|heat| !heat.cells().is_empty() && stats.count > 1);
        let width = if heat.is_some() { LEFT_HALF } else { width };
        let frame = PlotFrame { left: MARGIN + LABELS.0, top: TOP, width: width - LABELS.0, height: HISTOGRAM };
        match message(stats) {
            Some(message) => {
                let frame = PlotFrame { left: MARGIN, width, ..frame };
                self.border(frame, grey(0.85))?;
                let middle = (frame.left + frame.width / 2, frame.top + frame.height / 2);
                self.text(&message, middle, LARGE, INK, (HPos::Center, VPos::Center))?;
            }
            None => self.histogram(frame, &stats.histogram)?,
        }
        self.figures(stats, width)?;
        match heat {
            Some(heat) if shape.len() < 2 => self.line(heat, stats),
            Some(heat) => self.matrix(heat, shape),
            None => Ok(()),
        }
    }

    fn histogram(&self, frame: PlotFrame, histogram: &ValueHistogram) -> Drawn {
        let most = histogram.counts.iter().copied().max().unwrap_or(0).max(1) as f64;
        let log = wants_log(&histogram.counts);
        // A logarithmic scale begins below 1, so that a bar of one element is visible.
        let bottom = 0.5f64.log10();
        let top = if log { most.log10() - bottom } else { most } * 1.04;
        let high = |count: f64| if log { (count.log10() - bottom) / top } else { count / top };
        let counts = if log {
            let decades = most.log10() as i32;
            let step = 1 + decades / 7;
            (0..=decades / step)
                .map(|at| 10f64.powi(at * step))
                .map(|count| (high(count), short_number(count)))
                .collect()
        } else {
            whole_ticks(top, 6, usize::MAX)
        };
        let y = PlotAxis { ticks: counts, title: format!("elements per bin{}", if log { " (log scale)" } else { "" }) };
        let x = PlotAxis {
            ticks: ticks(histogram.low, histogram.high, 9, frame.width as usize / 10),
            title: "value".to_owned(),
        };
        self.axes(frame, &x, &y, true)?;
        for (bin, count) in histogram.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let edge = |bin: usize| frame.left + (bin as i32 * frame.width) / BINS as i32;
            let height = (high(*count as f64) * f64::from(frame.height)).round().max(2.0) as i32;
            let bar =
                PlotFrame { left: edge(bin), top: frame.bottom() - height, width: edge(bin + 1) - edge(bin), height };
            self.fill(bar, BAR)?;
        }
        let zero = share(0.0, histogram.low, histogram.high);
        if zero > 0.0 && zero < 1.0 {
            let left = frame.left + (zero * f64::from(frame.width)) as i32;
            self.fill(PlotFrame { left, width: 1, ..frame }, grey(0.35))?;
        }
        self.fill(PlotFrame { top: frame.bottom(), height: 1, ..frame }, grey(0.35))
    }

    /// The statistics of the tensor in two lines.
    fn figures(&self, stats: &TensorStats, width: i32) -> Drawn {
        // Show more digits if the minimum and the maximum would look the same.
        let digits = match (stats.min, stats.max) {
            (Some(min), Some(max)) if min != max && format_number(min, 5) == format_number(max, 5) => 10,
            _ => 5,
        };
        let figure = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format_number(value, digits));
        let inf = match (stats.pos_inf, stats.neg_inf) {
            (0, 0) => "0".to_owned(),
            (plus, minus) => format!("+{}  -{}", short_number(plus as f64), short_number(minus as f64)),
        };
        let figures = [
            ("min", figure(stats.min)),
            ("max", figure(stats.max)),
            ("mean", figure(stats.mean)),
            ("std", figure(stats.std)),
            ("abs max", figure(stats.abs_max)),
            ("zeros", percent(stats.zeros, stats.count)),
            ("NaN", grouped(stats.nan)),
            ("Inf", inf),
        ];
        for (at, (label, value)) in figures.iter().enumerate() {
            let (column, row) = (at as i32 % 4, at as i32 / 4);
            let left = MARGIN + column * (width / 4);
            let top = TOP + HISTOGRAM + LABELS.1 + 20 + row * 62;
            self.text(label, (left, top), SMALL, grey(0.4), (HPos::Left, VPos::Top))?;
            let alarm = matches!(*label, "NaN" | "Inf") && value != "0";
            let color = if alarm { RGBColor(164, 16, 40) } else { INK };
            self.text(value, (left, top + 20), NORMAL + 2, color, (HPos::Left, VPos::Top))?;
        }
        Ok(())
    }

    /// The heat map of a matrix.
    fn matrix(&self, heat: &HeatMap, shape: &[u64]) -> Drawn {
        let ((rows, cols), (high, wide)) = (heat.count(), heat.pixels());
        let frame = PlotFrame { left: MATRIX, top: TOP, width: (cols * wide) as i32, height: (rows * high) as i32 };
        let lead = shape.len().saturating_sub(2);
        let (of, per) = (heat.len(), [heat.len().0 as f64 / rows as f64, heat.len().1 as f64 / cols as f64]);
        let slice = match lead {
            0 => String::new(),
            1..=8 => format!("slice [{}:, :]    ", "0, ".repeat(lead)),
            _ => "slice [0, …, 0, :, :]    ".to_owned(),
        };
        let cells = match per.map(|per| format_number((per * 10.0).round() / 10.0, 5)) {
            _ if per == [1.0, 1.0] => "a cell is an element".to_owned(),
            [down, across] => format!("a cell is the mean of {down} × {across} elements"),
        };
        self.text(&(slice + &cells), (frame.left, frame.top - 8), SMALL, grey(0.3), (HPos::Left, VPos::Bottom))?;
        let x = index_axis(of.1, format!("axis {}", lead + 1), frame.width);
        let mut y = index_axis(of.0, format!("axis {lead}"), frame.height);
        y.ticks.iter_mut().for_each(|tick| tick.0 = 1.0 - tick.0);
        self.axes(frame, &x, &y, false)?;

        let limit = heat.limit();
        let share = |mean| limit.filter(|limit| *limit > 0.0).map_or(0.0, |limit| mean / limit);
        for (at, cell) in heat.cells().iter().enumerate() {
            let color = match cell.mean() {
                _ if cell.nan => NAN,
                _ if cell.inf => INF,
                Some(mean) => canvas::ramp(share(mean)),
                None => grey(0.85),
            };
            let (left, top) = (frame.left + (at % cols * wide) as i32, frame.top + (at / cols * high) as i32);
            self.fill(PlotFrame { left, top, width: wide as i32, height: high as i32 }, color)?;
        }
        self.border(frame, grey(0.35))?;
        if let Some(limit) = limit {
            self.colors(PlotFrame { left: frame.right() + 20, width: 16, ..frame }, limit)?;
        }
        let beyond = heat.cells().iter().filter_map(HeatCell::mean).any(|mean| share(mean).abs() > 1.0);
        self.legend(heat, frame, if beyond { "colours end at the 1st and 99th percentile of the cells" } else { "" })
    }

    /// The colour scale of the heat map.
    fn colors(&self, bar: PlotFrame, limit: f64) -> Drawn {
        for line in 0..bar.height {
            let share = 1.0 - f64::from(line) / f64::from(bar.height - 1);
            self.fill(PlotFrame { top: bar.top + line, height: 1, ..bar }, canvas::ramp(2.0 * share - 1.0))?;
        }
        self.border(bar, grey(0.35))?;
        for mark in if limit > 0.0 { &[1.0, 0.5, 0.0, -0.5, -1.0][..] } else { &[0.0] } {
            let top = bar.top + ((1.0 - mark) / 2.0 * f64::from(bar.height - 1)) as i32;
            self.fill(PlotFrame { left: bar.right(), top, width: 4, height: 1 }, grey(0.35))?;
            let label = format_number(limit * mark, 3);
            self.text(&label, (bar.right() + 8, top), SMALL, grey(0.3), (HPos::Left, VPos::Center))?;
        }
        Ok(())
    }

    /// The values of a vector by index.
    fn line(&self, heat: &HeatMap, stats: &TensorStats) -> Drawn {
        let cells = heat.cells();
        let frame = PlotFrame { left: MATRIX, top: TOP, width: WIDTH as i32 - MARGIN - MATRIX, height: HISTOGRAM };
        let len = heat.len().0.max(heat.len().1);
        let per = len as f64 / cells.len() as f64;
        let title = match format_number((per * 10.0).round() / 10.0, 5) {
            _ if per == 1.0 => "the values in order".to_owned(),
            per => format!("the values in order: range and mean of every {per} elements"),
        };
        self.text(&title, (frame.left, frame.top - 8), SMALL, grey(0.3), (HPos::Left, VPos::Bottom))?;
        let (low, high) = match (stats.min, stats.max) {
            (Some(low), Some(high)) if low < high => (low, high),
            (Some(value), _) => (value - value.abs().max(1.0) / 2.0, value + value.abs().max(1.0) / 2.0),
            _ => (-1.0, 1.0),
        };
        // Some space above and below.
        let up = |value: f64| 0.03 + 0.94 * share(value, low, high).clamp(0.0, 1.0);
        let mut marks = ticks(low, high, 8, usize::MAX);
        marks.iter_mut().for_each(|mark| mark.0 = 0.03 + 0.94 * mark.0);
        let y = PlotAxis { ticks: marks, title: String::new() };
        self.axes(frame, &index_axis(len, "axis 0".to_owned(), frame.width), &y, true)?;

        let y = |value: f64| frame.bottom() - (up(value) * f64::from(frame.height)).round() as i32;
        let edge = |at: usize| frame.left + (at * frame.width as usize / cells.len()) as i32;
        // Few values are drawn as bars from zero, if zero is in the range.
        let bars = per == 1.0 && low <= 0.0 && high >= 0.0;
        let mut path = Vec::new();
        for (at, cell) in cells.iter().enumerate() {
            let (left, width) = (edge(at), edge(at + 1) - edge(at));
            if let Some(mean) = cell.mean() {
                let zero = if bars { 0.0 } else { mean };
                let (top, bottom) = (y(zero.max(cell.high)), y(zero.min(cell.low)));
                let (gap, color) = if bars { (i32::from(width > 2), BAR) } else { (0, BAND) };
                if bars || per > 1.0 {
                    self.fill(PlotFrame { left, top, width: width - gap, height: (bottom - top).max(1) }, color)?;
                }
                path.push((left + width / 2, y(mean)));
            }
            if cell.nan || cell.inf {
                let color = if cell.nan { NAN } else { INF };
                self.fill(PlotFrame { left, top: frame.top, width: width.max(2), height: 12 }, color)?;
            }
        }
        if low < 0.0 && high > 0.0 {
            self.fill(PlotFrame { top: y(0.0), height: 1, ..frame }, grey(0.35))?;
        }
        if !bars {
            self.root.draw(&PathElement::new(path, canvas::ramp(-1.0)))?;
        }
        self.legend(heat, frame, "")
    }

    /// The legend below the cells.
    fn legend(&self, heat: &HeatMap, frame: PlotFrame, words: &str) -> Drawn {
        let top = frame.bottom() + LABELS.1 + 6;
        let seen = [
            (NAN, "NaN", heat.cells().iter().any(|cell| cell.nan)),
            (INF, "Inf", heat.cells().iter().any(|cell| cell.inf)),
        ];
        let mut left = frame.left;
        for (color, label, _) in seen.into_iter().filter(|seen| seen.2) {
            self.fill(PlotFrame { left, top: top + 4, width: 12, height: 12 }, color)?;
            self.text(label, (left + 18, top), SMALL, INK, (HPos::Left, VPos::Top))?;
            left += 64;
        }
        self.text(words, (left, top), SMALL, grey(0.4), (HPos::Left, VPos::Top))
    }

    /// Both axes of a chart that fills `frame`. Their labels are at the left of it and below it.
    fn axes(&self, frame: PlotFrame, x: &PlotAxis, y: &PlotAxis, grid: bool) -> Drawn {
        let outer = (frame.width + LABELS.0, frame.height + LABELS.1);
        let area = self.root.clone().shrink((frame.left - LABELS.0, frame.top), outer);
        let pixel = |share: f64, length: i32| (share * f64::from(length)).round() as i32;
        let at = |axis: &PlotAxis, length| {
            (0..length).with_key_points(axis.ticks.iter().map(|tick| pixel(tick.0, length)).collect())
        };
        let mut chart = ChartBuilder::on(&area)
            .y_label_area_size(LABELS.0)
            .x_label_area_size(LABELS.1)
            .build_cartesian_2d(at(x, frame.width), at(y, frame.height))?;
        let label = |axis: &PlotAxis, length, at| {
            axis.ticks.iter().find(|tick| pixel(tick.0, length) == at).map_or_else(String::new, |tick| tick.1.clone())
        };
        let x_label = |at: &i32| label(x, frame.width, *at);
        let y_label = |at: &i32| label(y, frame.height, *at);
        let text = |size, color: RGBColor| ("sans-serif", size).into_font().color(&color);
        let mut mesh = chart.configure_mesh();
        mesh.disable_x_mesh().light_line_style(grey(0.88)).bold_line_style(grey(0.88)).axis_style(grey(0.35));
        if !grid {
            mesh.disable_y_mesh();
        }
        mesh.label_style(text(SMALL, grey(0.3)))
            .axis_desc_style(text(SMALL, INK))
            .x_label_formatter(&x_label)
            .y_label_formatter(&y_label)
            .x_desc(&x.title)
            .y_desc(&y.title)
            .draw()
    }

    fn fill(&self, frame: PlotFrame, color: RGBColor) -> Drawn {
        if frame.width < 1 || frame.height < 1 {
            return Ok(());
        }
        let corners = [(frame.left, frame.top), (frame.right() - 1, frame.bottom() - 1)];
        self.root.draw(&Rectangle::new(corners, color.filled()))
    }

    fn border(&self, frame: PlotFrame, color: RGBColor) -> Drawn {
        let corners = [(frame.left - 1, frame.top - 1), (frame.right(), frame.bottom())];
        self.root.draw(&Rectangle::new(corners, color))
    }

    fn text(&self, text: &str, at: (i32, i32), size: i32, color: RGBColor, (h_pos, v_pos): (HPos, VPos)) -> Drawn {
        let style = TextStyle::from(("sans-serif", size).into_font()).color(&color).pos(Pos { h_pos, v_pos });
        self.root.draw_text(text, &style, at)
    }

    fn width(&self, text: &str, size: i32) -> i32 {
        self.face.width(text, f64::from(size)).ceil() as i32
    }

    fn cut(&self, text: &str, size: i32, width: i32) -> String {
        cut_words(text, |char| self.face.has(char), |text| self.width(text, size) <= width)
    }
}

impl PlotFrame {
    fn right(self) -> i32 {
        self.left + self.width
    }

    fn bottom(self) -> i32 {
        self.top + self.height
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
