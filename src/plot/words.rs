//! The text of a picture: formats numbers, names, shapes and ticks. Does not draw.

/// A number with `digits` significant digits. Integers may have two more.
pub(super) fn format_number(value: f64, digits: i32) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else if !value.is_finite() || value.fract() == 0.0 && value.abs() < 10f64.powi(digits + 2) {
        format!("{value}")
    } else if (1e-4..1e6).contains(&value.abs()) {
        let before = 1 + value.abs().log10().floor() as i32;
        trimmed(format!("{value:.*}", (digits - before).max(0) as usize))
    } else {
        scientific(value, digits as usize - 1)
    }
}

fn scientific(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => format!("{}e{exponent}", trimmed(mantissa.to_owned())),
        None => text,
    }
}

/// Removes trailing zeros of a fraction.
fn trimmed(text: String) -> String {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// An abbreviated count: 1.5k, 20M.
pub(super) fn short_number(count: f64) -> String {
    let (unit, name) = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")]
        .into_iter()
        .find(|(unit, _)| count >= *unit)
        .unwrap_or((1.0, ""));
    format!("{}{name}", format_number(count / unit, 5))
}

/// `part` of `whole` in percent. "0 %" and "100 %" are exact, not rounded.
pub(super) fn percent(part: u64, whole: u64) -> String {
    let share = if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 };
    match share {
        _ if part == 0 => "0 %".to_owned(),
        _ if part >= whole => "100 %".to_owned(),
        ..0.01 => "< 0.01 %".to_owned(),
        99.99.. => "> 99.99 %".to_owned(),
        _ => format!("{} %", trimmed(format!("{share:.2}"))),
    }
}

/// A shape in Python's notation. Of more than 1000 dimensions, only the first and the last 500 are written, which is
/// still more than fits.
pub(super) fn shape(dims: &[u64]) -> String {
    if dims.len() <= 2 * MOST {
        return format!("[{}]", joined(dims));
    }
    format!("[{}, {}]", joined(&dims[..MOST]), joined(&dims[dims.len() - MOST..]))
}

fn joined(dims: &[u64]) -> String {
    dims.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// Number of characters or dimensions that are kept at each end of a long text or shape. No line of a picture has room
/// for so many.
const MOST: usize = 500;

/// Escapes control characters and those that are not `shown`, and cuts the middle of `text` until it `fits`.
pub(super) fn cut_words(text: &str, shown: impl Fn(char) -> bool, fits: impl Fn(&str) -> bool) -> String {
    let is_short = text.chars().nth(2 * MOST).is_none();
    let tail = text.char_indices().rev().nth(MOST - 1).filter(|_| !is_short).map_or("", |(at, _)| &text[at..]);
    let head = text.chars().take(if is_short { 2 * MOST } else { MOST });
    let ends: Vec<String> = head.chain(tail.chars()).map(|char| escape_char(char, &shown)).collect();
    let whole = ends.concat();
    if is_short && fits(&whole) {
        return whole;
    }
    let (mut fit, mut too_many) = (0, ends.len());
    while fit + 1 < too_many {
        let middle = fit.midpoint(too_many);
        if fits(&without_middle(&ends, middle)) { fit = middle } else { too_many = middle }
    }
    without_middle(&ends, fit)
}

fn escape_char(char: char, shown: &impl Fn(char) -> bool) -> String {
    match char {
        '\'' | '"' | '\\' => char.to_string(),
        _ if shown(char) => char.escape_debug().to_string(),
        _ => char.escape_unicode().to_string(),
    }
}

/// The first and the last of some characters, `keep` in all.
fn without_middle(chars: &[String], keep: usize) -> String {
    let (head, tail) = (keep.div_ceil(2), keep / 2);
    format!("{}…{}", chars[..head].concat(), chars[chars.len() - tail..].concat())
}

/// The ticks of an axis from `low` to `high`, as fractions of its length with their labels. There are as many as fit:
/// at most `most`, with at most `chars` characters in total, including two between labels.
pub(super) fn ticks(low: f64, high: f64, most: u32, chars: usize) -> Vec<(f64, String)> {
    (1..=most)
        .rev()
        .map(|count| ticks_about(low, high, count))
        .find(|ticks| {
            ticks.len() <= most as usize && ticks.iter().map(|tick| tick.1.chars().count() + 2).sum::<usize>() <= chars
        })
        .unwrap_or_default()
}

fn ticks_about(low: f64, high: f64, count: u32) -> Vec<(f64, String)> {
    // Computed from halves, because `high - low` may overflow.
    let half = high / 2.0 - low / 2.0;
    let about = half / f64::from(count) * 2.0;
    let unit = 10f64.powf(about.log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().map(|of| of * unit).find(|step| *step >= about).unwrap_or(10.0 * unit);
    let magnitude = low.abs().max(high.abs());
    if !(step.is_normal() && half.is_finite() && half > 0.0) {
        return Vec::new();
    }
    let digits = (magnitude.log10().floor() - (step * 1.0001).log10().floor()) as i32;
    if digits > 12 {
        return Vec::new();
    }
    let decimals = -(step * 1.0001).log10().floor() as i32;
    let is_plain = magnitude < 1e6 && decimals <= 4.max(digits + 1);
    let first = (low / step).floor();
    (0..=count + 1)
        .map(|at| (first + f64::from(at)) * step)
        .map(|value| ((value / 2.0 - low / 2.0) / half, value))
        .filter(|(share, _)| (-1e-9..=1.0 + 1e-9).contains(share))
        .map(|(share, value)| match value {
            0.0 => (share, "0".to_owned()),
            _ if is_plain => (share, format!("{value:.*}", decimals.max(0) as usize)),
            _ => (share, scientific(value, digits.max(0) as usize)),
        })
        .collect()
}
