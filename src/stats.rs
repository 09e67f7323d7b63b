//! Statistics: knows how to sum up the values of a tensor in one pass over its bytes, not where the bytes come from.
//!
//! All is computed in float64. Elements of at most 16 bits are counted by their codes, and everything follows from the
//! counts. Wider ones fall into a fine grid whose cells grow as the range does; the grid becomes the histogram.

use crate::content::Decoder;
use crate::format::Dtype;
use crate::widen;
use serde_json::json;
use std::array;
use std::ops::{Add, Mul, Range, Sub};

/// Number of bins of a histogram.
pub const BINS: usize = 64;

/// Length in bytes of the statistics as JSON: always the same, so that a file's size is known before its values are.
pub const JSON_LEN: usize = 2048;

/// What there is to say about the values of a tensor. Minimum to standard deviation are over the finite values, and
/// `None` where there are none.
#[derive(Debug, Clone, PartialEq)]
pub struct Stats {
    /// Number of elements.
    pub count: u64,
    /// How many are zero, of either sign.
    pub zeros: u64,
    /// How many are not a number.
    pub nan: u64,
    /// How many are positive infinity.
    pub pos_inf: u64,
    /// How many are negative infinity.
    pub neg_inf: u64,
    /// The smallest value.
    pub min: Option<f64>,
    /// The largest value.
    pub max: Option<f64>,
    /// The mean value.
    pub mean: Option<f64>,
    /// The standard deviation of the whole population, as `np.std`.
    pub std: Option<f64>,
    /// The largest magnitude.
    pub abs_max: Option<f64>,
    /// Where the finite values lie.
    pub histogram: Histogram,
}

/// How many values lie in each of [`BINS`] equal bins. A bin has its lower edge and not its upper one; the last has both.
///
/// For elements of at most 16 bits, and where all values are equal, `low` and `high` and the counts are those of
/// `np.histogram` over the float64 values. For wider elements `low` is the last edge of the fine grid up to the minimum,
/// `high` lies beyond the maximum by at most a thirtieth of the range or so (more where the values differ by a few units
/// in the last place), every edge is a multiple of a power of two, and the counts are exact for these edges; an
/// edge beyond the largest float64 is given as that. Without finite values all is zero.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// The lower edge of the first bin.
    pub low: f64,
    /// The upper edge of the last bin.
    pub high: f64,
    /// Number of values in each bin.
    pub counts: [u64; BINS],
}

/// Whether there are statistics for elements of `dtype`: not for C64, which is no single number, and unknown dtypes.
pub fn has(dtype: Dtype) -> bool {
    widen::to_f32(dtype).is_some()
}

/// The values of a tensor, or of a part of it, as far as they are seen.
#[derive(Debug)]
pub struct Accumulator(Kind);

#[derive(Debug)]
enum Kind {
    Codes(Codes),
    Single(Wide<f32>),
    Double(Wide<f64>),
}

impl Accumulator {
    /// No values yet; `None` where [`has`] says no.
    pub fn new(dtype: Dtype) -> Option<Self> {
        let kind = match dtype {
            Dtype::F32 => Kind::Single(Wide::new(4, |i, o| map(i, o, f32::from_le_bytes))),
            Dtype::F64 => Kind::Double(Wide::new(8, |i, o| map(i, o, f64::from_le_bytes))),
            Dtype::I32 => Kind::Double(Wide::new(4, |i, o| map(i, o, |bytes| i32::from_le_bytes(bytes).into()))),
            Dtype::U32 => Kind::Double(Wide::new(4, |i, o| map(i, o, |bytes| u32::from_le_bytes(bytes).into()))),
            Dtype::I64 => Kind::Double(Wide::new(8, |i, o| map(i, o, |bytes| i64::from_le_bytes(bytes) as f64))),
            Dtype::U64 => Kind::Double(Wide::new(8, |i, o| map(i, o, |bytes| u64::from_le_bytes(bytes) as f64))),
            _ => Kind::Codes(Codes::new(widen::to_f32(dtype)?, dtype.bits()? as usize)),
        };
        Some(Self(kind))
    }

    /// Adds values as they lie in the file: whole groups of elements.
    pub fn add(&mut self, encoded: &[u8]) {
        match &mut self.0 {
            Kind::Codes(codes) => codes.add(encoded),
            Kind::Single(wide) => wide.add(encoded),
            Kind::Double(wide) => wide.add(encoded),
        }
    }

    /// Adds the values of another part, which has the same dtype. The order of the parts does not matter.
    pub fn merge(&mut self, other: &Self) {
        match (&mut self.0, &other.0) {
            (Kind::Codes(codes), Kind::Codes(other)) => codes.merge(other),
            (Kind::Single(wide), Kind::Single(other)) => wide.merge(other),
            (Kind::Double(wide), Kind::Double(other)) => wide.merge(other),
            _ => debug_assert!(false, "parts of one tensor have one dtype"),
        }
    }

    /// What the values seen come to.
    pub fn finish(self) -> Stats {
        match self.0 {
            Kind::Codes(codes) => codes.finish(),
            Kind::Single(wide) => wide.finish(),
            Kind::Double(wide) => wide.finish(),
        }
    }
}

fn map<const N: usize, T>(input: &[u8], output: &mut [T], decode: impl Fn([u8; N]) -> T) {
    for (input, output) in input.as_chunks::<N>().0.iter().zip(output) {
        *output = decode(*input);
    }
}

/// How often each code of an element occurs.
#[derive(Debug)]
struct Codes {
    decoder: Decoder,
    /// Width of an element: 16, 8, 6 or 4.
    bits: usize,
    /// Two tables of how often each word was seen. A word is 16 bits, whatever number of elements that is, or two elements
    /// of 6 bits. Two, because a processor waits to count the same word twice running.
    words: Vec<u32>,
    /// How many words may be in the tables at most.
    counted: usize,
    /// Elements that are no longer in the tables, by code.
    codes: Vec<u64>,
}

const WORDS: usize = 1 << 16;
/// Bytes that are counted at once: whole groups, and whole words but at the end.
const COUNTED_AT_ONCE: usize = 3 << 20;

impl Codes {
    fn new(decoder: Decoder, bits: usize) -> Self {
        Self { decoder, bits, words: vec![0; 2 * WORDS], counted: 0, codes: vec![0; 1 << bits] }
    }

    fn add(&mut self, encoded: &[u8]) {
        for encoded in encoded.chunks(COUNTED_AT_ONCE) {
            if self.counted > u32::MAX as usize - COUNTED_AT_ONCE {
                self.codes = self.by_code();
                self.words.fill(0);
                self.counted = 0;
            }
            self.counted += encoded.len();
            let [even, odd] = self.words.as_chunks_mut::<WORDS>().0 else { return };
            if self.bits == 6 {
                for [a, b, c] in encoded.as_chunks::<3>().0 {
                    let bits = u32::from_le_bytes([*a, *b, *c, 0]) as usize;
                    even[bits & 0xfff] += 1;
                    odd[bits >> 12 & 0xfff] += 1;
                }
                continue;
            }
            let (groups, rest) = encoded.as_chunks::<8>();
            for group in groups {
                let bits = u64::from_le_bytes(*group) as usize;
                even[bits & 0xffff] += 1;
                odd[bits >> 16 & 0xffff] += 1;
                even[bits >> 32 & 0xffff] += 1;
                odd[bits >> 48] += 1;
            }
            let bits = rest.iter().rev().fold(0, |bits, byte| bits << 8 | usize::from(*byte));
            self.codes.count(bits, rest.len() * 8 / self.bits, self.bits, 1);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.codes.iter_mut().zip(other.by_code()).for_each(|(count, other)| *count += other);
    }

    /// How often each code was seen.
    fn by_code(&self) -> Vec<u64> {
        let mut codes = self.codes.clone();
        let elements = if self.bits == 6 { 2 } else { 16 / self.bits };
        for (at, &times) in self.words.iter().enumerate().filter(|(_, times)| **times > 0) {
            codes.count(at % WORDS, elements, self.bits, times.into());
        }
        codes
    }

    fn finish(self) -> Stats {
        let mut tally = Tally::new();
        let mut finite = Vec::new();
        for (code, times) in self.by_code().into_iter().enumerate().filter(|(_, times)| *times > 0) {
            let value = self.value(code);
            if value.is_finite() {
                finite.push((value, times));
                tally.include(value, value);
            }
            tally.zeros += if value == 0.0 { times } else { 0 };
            tally.set_aside(value, times);
        }
        let sum =
            |term: &dyn Fn(f64) -> f64| finite.iter().map(|(value, times)| term(*value) * *times as f64).sum::<f64>();
        let finite_count = finite.iter().map(|(_, times)| times).sum();
        let n = finite_count as f64;
        // Again from the first mean, so that what rounding took from it comes back.
        let center = sum(&|value| value) / n;
        let rest = sum(&|value| value - center);
        let squares = sum(&|value| (value - center) * (value - center)) - rest * rest / n;
        tally.moments = Moments { count: finite_count, mean: center + rest / n, squares, exponent: 0 };
        tally.finish(Histogram::of(&finite))
    }

    /// The number that a code stands for.
    fn value(&self, code: usize) -> f64 {
        let mut group = [0; 16];
        let Decoder { group_in, group_out, decode } = self.decoder;
        decode(&code.to_le_bytes()[..group_in], &mut group[..group_out]);
        f32::from_le_bytes([group[0], group[1], group[2], group[3]]).into()
    }
}

trait Count {
    /// Counts the codes of elements that lie in `word` one after the other from the low bits on.
    fn count(&mut self, word: usize, elements: usize, bits: usize, times: u64);
}

impl Count for Vec<u64> {
    fn count(&mut self, word: usize, elements: usize, bits: usize, times: u64) {
        for at in 0..elements {
            self[word >> (at * bits) & ((1 << bits) - 1)] += times;
        }
    }
}

/// Values of 32 and 64 bits: their number is too large for a table of codes.
#[derive(Debug)]
struct Wide<T> {
    /// Bytes of an element.
    bytes: usize,
    /// Decodes elements; there are as many as the output has room for.
    decode: fn(&[u8], &mut [T]),
    tally: Tally,
    grid: Grid<T>,
    /// Two rings, because a processor waits to count the same cell twice running. A cell's number modulo [`CELLS`] is its
    /// place: cells in use are fewer than that from first to last.
    cells: Vec<u64>,
    /// Room for what is computed of [`VALUES_AT_ONCE`]: their places in a ring,
    places: Vec<u32>,
    /// and how far they are from a middle.
    apart: Vec<f64>,
}

/// Cells of the fine grid.
const CELLS: usize = 4096;
/// Values that are looked at at once: they stay in the core's first cache.
const VALUES_AT_ONCE: usize = 1024;
/// Sums that run side by side, so that a processor does many at once.
const LANES: usize = 8;

impl<T: Real> Wide<T> {
    fn new(bytes: usize, decode: fn(&[u8], &mut [T])) -> Self {
        Self {
            bytes,
            decode,
            tally: Tally::new(),
            grid: Grid::new(T::LEAST),
            cells: vec![0; 2 * CELLS],
            places: vec![0; VALUES_AT_ONCE],
            apart: vec![0.0; VALUES_AT_ONCE],
        }
    }

    fn add(&mut self, encoded: &[u8]) {
        let mut values = [T::ZERO; VALUES_AT_ONCE];
        for encoded in encoded.chunks(VALUES_AT_ONCE * self.bytes) {
            let values = &mut values[..encoded.len() / self.bytes];
            (self.decode)(encoded, values);
            if !self.add_finite(values) {
                let mut finite = 0;
                for at in 0..values.len() {
                    let value = values[at];
                    self.tally.set_aside(value.into(), 1);
                    values[finite] = value;
                    finite += usize::from(value.into().is_finite());
                }
                self.add_finite(&values[..finite]);
            }
        }
    }

    /// Adds values that are all finite; where they are not, says so and adds nothing.
    fn add_finite(&mut self, values: &[T]) -> bool {
        if values.is_empty() {
            return true;
        }
        let min = lanes(values, T::MAX, |least, value| if value < least { value } else { least });
        let max = lanes(values, T::MIN, |most, value| if value > most { value } else { most });
        let min = min.into_iter().fold(f64::INFINITY, |least, value| least.min(value.into()));
        let max = max.into_iter().fold(f64::NEG_INFINITY, |most, value| most.max(value.into()));
        let Some(moments) = Moments::of(values, min, max, &mut self.apart) else { return false };
        self.tally.moments.merge(&moments);
        self.tally.zeros += u64::from(values.iter().map(|value| u32::from(*value == T::ZERO)).sum::<u32>());
        self.include(min, max);
        let [even, odd] = self.cells.as_chunks_mut::<CELLS>().0 else { return true };
        for (value, place) in values.iter().zip(&mut self.places) {
            *place = self.grid.place(*value);
        }
        let (pairs, rest) = self.places[..values.len()].as_chunks::<2>();
        for [a, b] in pairs {
            even[*a as usize % CELLS] += 1;
            odd[*b as usize % CELLS] += 1;
        }
        rest.iter().for_each(|place| even[*place as usize % CELLS] += 1);
        true
    }

    /// Makes the cells as wide as it takes to hold values from `min` to `max` too.
    fn include(&mut self, min: f64, max: f64) {
        if min >= self.tally.min && max <= self.tally.max {
            return;
        }
        let (used, old) = (self.used(), self.grid);
        self.tally.include(min, max);
        self.grid = self.grid.widened(self.tally.min, self.tally.max);
        if self.grid.exponent > old.exponent && !used.is_empty() {
            let cells = std::mem::replace(&mut self.cells, vec![0; 2 * CELLS]);
            self.pour(&cells, used, old);
        }
    }

    /// The cells from that of the minimum to that of the maximum.
    fn used(&self) -> Range<i64> {
        if self.tally.min > self.tally.max {
            return 0..0;
        }
        self.grid.cell(T::narrow(self.tally.min))..self.grid.cell(T::narrow(self.tally.max)) + 1
    }

    /// Adds the counts of cells of another grid, which are no wider.
    fn pour(&mut self, cells: &[u64], used: Range<i64>, grid: Grid<T>) {
        let doublings = (self.grid.exponent - grid.exponent).min(63);
        for cell in used {
            let from = cell as usize % CELLS;
            self.cells[(cell >> doublings) as usize % CELLS] += cells[from] + cells[from + CELLS];
        }
    }

    fn merge(&mut self, other: &Self) {
        self.include(other.tally.min, other.tally.max);
        self.tally.merge(&other.tally);
        // The cells are as narrow as can be, in both, so here they are no narrower than there.
        self.pour(&other.cells, other.used(), other.grid);
    }

    fn finish(self) -> Stats {
        let used = self.used();
        if self.tally.min >= self.tally.max || used.is_empty() {
            let same = [(self.tally.min, self.tally.moments.count)];
            return self.tally.finish(Histogram::of(&same[..usize::from(!used.is_empty())]));
        }
        let together = (used.end - used.start + BINS as i64 - 1) / BINS as i64;
        let edge = |cell: i64| (cell as f64 * self.grid.width.into()).clamp(f64::MIN, f64::MAX);
        let (low, high) = (edge(used.start), edge(used.start + BINS as i64 * together));
        let mut counts = [0; BINS];
        for cell in used.clone() {
            let at = cell as usize % CELLS;
            counts[((cell - used.start) / together) as usize] += self.cells[at] + self.cells[at + CELLS];
        }
        self.tally.finish(Histogram { low, high, counts })
    }
}

/// The number types that wide values are computed in.
trait Real: Copy + PartialOrd + Into<f64> + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> {
    const ZERO: Self;
    const MIN: Self;
    const MAX: Self;
    /// Added to a number and taken from it, rounds it to an integer, if it is small enough; the sum's low bits are those
    /// of the integer.
    const ROUND: Self;
    /// Exponent of the largest numbers that [`Self::ROUND`] is used for.
    const LARGEST: i32;
    /// Exponent of the smallest normal number.
    const LEAST: i32;
    /// Takes a number that this type has.
    fn narrow(value: f64) -> Self;
    fn low_bits(self) -> u32;
}

macro_rules! real {
    ($($type:ident $round:literal $largest:literal;)*) => {$(
        impl Real for $type {
            const ZERO: Self = 0.0;
            const MIN: Self = Self::MIN;
            const MAX: Self = Self::MAX;
            const ROUND: Self = $round;
            const LARGEST: i32 = $largest;
            const LEAST: i32 = Self::MIN_EXP - 1;
            fn narrow(value: f64) -> Self {
                value as Self
            }
            fn low_bits(self) -> u32 {
                self.to_bits() as u32
            }
        }
    )*};
}

real! {
    f32 12_582_912.0 20;
    f64 6_755_399_441_055_744.0 49;
}

/// Cells of equal width, all number line long: cell 0 begins at zero. The width is a power of two, so that all is exact.
#[derive(Debug, Clone, Copy)]
struct Grid<T> {
    exponent: i32,
    width: T,
    scale: T,
}

impl<T: Real> Grid<T> {
    fn new(exponent: i32) -> Self {
        Self { exponent, width: T::narrow(power_of_two(exponent)), scale: T::narrow(power_of_two(-exponent)) }
    }

    /// The grid with the narrowest cells, no narrower than these, that holds `min` and `max` in [`CELLS`] cells.
    fn widened(self, min: f64, max: f64) -> Self {
        let exponent = (min.abs().max(max.abs()).to_bits() >> 52) as i32 - 1023;
        let mut grid = Self::new(self.exponent.max(exponent - T::LARGEST));
        while grid.cell(T::narrow(max)) - grid.cell(T::narrow(min)) >= CELLS as i64 {
            grid = Self::new(grid.exponent + 1);
        }
        grid
    }

    /// The nearest edge, with [`Real::ROUND`] added, and whether it is above the value.
    fn edge(self, value: T) -> (T, bool) {
        let edge = value * self.scale + T::ROUND;
        (edge, (edge - T::ROUND) * self.width > value)
    }

    fn cell(self, value: T) -> i64 {
        let (edge, above) = self.edge(value);
        (edge - T::ROUND).into() as i64 - i64::from(above)
    }

    /// The cell's number modulo [`CELLS`].
    fn place(self, value: T) -> u32 {
        let (edge, above) = self.edge(value);
        edge.low_bits().wrapping_sub(above.into()) % CELLS as u32
    }
}

/// What is known of values besides the histogram.
#[derive(Debug, Clone)]
struct Tally {
    zeros: u64,
    nan: u64,
    pos_inf: u64,
    neg_inf: u64,
    /// Over the finite values; above `max` if there are none.
    min: f64,
    max: f64,
    moments: Moments,
}

impl Tally {
    fn new() -> Self {
        let (min, max) = (f64::INFINITY, f64::NEG_INFINITY);
        Self { zeros: 0, nan: 0, pos_inf: 0, neg_inf: 0, min, max, moments: Moments::default() }
    }

    /// Counts a value if it is not finite.
    fn set_aside(&mut self, value: f64, times: u64) {
        self.nan += times * u64::from(value.is_nan());
        self.pos_inf += times * u64::from(value == f64::INFINITY);
        self.neg_inf += times * u64::from(value == f64::NEG_INFINITY);
    }

    fn include(&mut self, min: f64, max: f64) {
        // Zero has no sign here.
        self.min = self.min.min(min) + 0.0;
        self.max = self.max.max(max) + 0.0;
    }

    fn merge(&mut self, other: &Self) {
        self.zeros += other.zeros;
        self.nan += other.nan;
        self.pos_inf += other.pos_inf;
        self.neg_inf += other.neg_inf;
        self.include(other.min, other.max);
        self.moments.merge(&other.moments);
    }

    fn finish(self, histogram: Histogram) -> Stats {
        let Self { zeros, nan, pos_inf, neg_inf, min, max, moments } = self;
        let unit = power_of_two(moments.exponent);
        let finite = |value: f64| (moments.count > 0).then_some(value);
        Stats {
            count: moments.count + nan + pos_inf + neg_inf,
            zeros,
            nan,
            pos_inf,
            neg_inf,
            min: finite(min),
            max: finite(max),
            mean: finite((moments.mean * unit).max(min).min(max)),
            std: finite(((moments.squares / moments.count as f64).sqrt() * unit).min(f64::MAX)),
            abs_max: finite(min.abs().max(max.abs())),
            histogram,
        }
    }
}

/// Number, mean and squared deviations from the mean, in units of a power of two that keeps squares from overflow and
/// underflow.
#[derive(Debug, Clone, Copy, Default)]
struct Moments {
    count: u64,
    mean: f64,
    squares: f64,
    exponent: i32,
}

/// Exponents up to which squares, and sums of as many as there can be, are numbers.
const SAFE: i32 = 450;
/// Exponent of the units for values beyond that.
const UNIT: i32 = 600;

impl Moments {
    /// Of values from `min` to `max`; `None` if not all are finite. `apart` has room for as many.
    fn of<T: Real>(values: &[T], min: f64, max: f64, apart: &mut [f64]) -> Option<Self> {
        let largest = min.abs().max(max.abs());
        let exponent = match largest {
            _ if largest > power_of_two(SAFE) => UNIT,
            _ if largest < power_of_two(-SAFE) && largest > 0.0 => -UNIT,
            _ => 0,
        };
        // The middle is near enough to the mean for the squares to lose almost nothing.
        let scale = power_of_two(-exponent);
        let center = min * scale / 2.0 + max * scale / 2.0;
        let apart = &mut apart[..values.len()];
        apart.iter_mut().zip(values).for_each(|(apart, value)| *apart = (*value).into() * scale - center);
        let rest = lanes(apart, 0.0, |sum, apart| sum + apart).iter().sum::<f64>();
        let squares = lanes(apart, 0.0, |sum, apart| sum + apart * apart).iter().sum::<f64>();
        let n = values.len() as f64;
        let (mean, squares) = (center + rest / n, squares - rest * rest / n);
        squares.is_finite().then_some(Self { count: values.len() as u64, mean, squares: squares.max(0.0), exponent })
    }

    /// By the method of Chan, Golub and LeVeque.
    fn merge(&mut self, other: &Self) {
        if self.count == 0 || other.count == 0 {
            *self = if self.count == 0 { *other } else { *self };
            return;
        }
        let exponent = self.exponent.max(other.exponent);
        let (a, b) = (self.in_units(exponent), other.in_units(exponent));
        let count = a.count + b.count;
        let (ours, theirs) = (a.count as f64, b.count as f64 / count as f64);
        let apart = b.mean - a.mean;
        let squares = a.squares + b.squares + apart * apart * ours * theirs;
        *self = Self { count, mean: a.mean + apart * theirs, squares, exponent };
    }

    /// The same in units no smaller than now.
    fn in_units(self, exponent: i32) -> Self {
        let factor = if exponent > self.exponent { power_of_two((self.exponent - exponent).max(-1022)) } else { 1.0 };
        Self { mean: self.mean * factor, squares: self.squares * factor * factor, exponent, ..self }
    }
}

/// Folds values in [`LANES`] lanes.
fn lanes<T: Copy, A: Copy>(values: &[T], start: A, fold: impl Fn(A, T) -> A) -> [A; LANES] {
    let mut lanes = [start; LANES];
    let (groups, rest) = values.as_chunks::<LANES>();
    for group in groups {
        lanes = array::from_fn(|at| fold(lanes[at], group[at]));
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, value)| *lane = fold(*lane, *value));
    lanes
}

/// 2 to the `exponent`, which is that of a normal number.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

impl Histogram {
    /// Of finite values and how often they occur, with the edges and the rounding of NumPy.
    fn of(values: &[(f64, u64)]) -> Self {
        let mut counts = [0; BINS];
        let mut low = values.iter().fold(f64::INFINITY, |low, (value, _)| low.min(*value)) + 0.0;
        let mut high = values.iter().fold(f64::NEG_INFINITY, |high, (value, _)| high.max(*value)) + 0.0;
        if values.is_empty() {
            return Self { low: 0.0, high: 0.0, counts };
        }
        if low == high {
            // NumPy's half, and where that is too little to part the bins, as little as does.
            let half = (low.abs() * power_of_two(-47)).max(0.5);
            (low, high) = ((low - half).max(f64::MIN), (high + half).min(f64::MAX));
        }
        let step = (high - low) / BINS as f64;
        let edge = |at: usize| if at == BINS { high } else { at as f64 * step + low };
        for (value, times) in values {
            let mut bin = (((value - low) / (high - low) * BINS as f64) as usize).min(BINS - 1);
            if *value < edge(bin) {
                bin -= 1;
            } else if bin < BINS - 1 && *value >= edge(bin + 1) {
                bin += 1;
            }
            counts[bin] += times;
        }
        Self { low, high, counts }
    }
}

impl Stats {
    /// The statistics as JSON, [`JSON_LEN`] bytes: filled up with spaces, and a line feed at the end. What is no number is
    /// null.
    pub fn to_json(&self) -> Vec<u8> {
        let Self { count, zeros, nan, pos_inf, neg_inf, min, max, mean, std, abs_max, histogram } = self;
        let Histogram { low, high, counts } = histogram;
        let fraction = |of: &u64| json!(*of as f64 / *count as f64);
        let text = format!(
            r#"{{"count": {count}, "zeros": {zeros}, "nan": {nan}, "pos_inf": {pos_inf}, "neg_inf": {neg_inf},
"fractions": {{"zeros": {}, "nan": {}, "pos_inf": {}, "neg_inf": {}}},
"min": {}, "max": {}, "mean": {}, "std": {}, "abs_max": {},
"histogram": {{"low": {}, "high": {}, "counts": {}}}}}"#,
            fraction(zeros),
            fraction(nan),
            fraction(pos_inf),
            fraction(neg_inf),
            json!(min),
            json!(max),
            json!(mean),
            json!(std),
            json!(abs_max),
            json!(low),
            json!(high),
            json!(&counts[..]),
        );
        let mut bytes = text.into_bytes();
        bytes.resize(JSON_LEN - 1, b' ');
        bytes.push(b'\n');
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DTYPES: [Dtype<'static>; 21] = [
        Dtype::Bool,
        Dtype::F4,
        Dtype::F6E2M3,
        Dtype::F6E3M2,
        Dtype::U8,
        Dtype::I8,
        Dtype::F8E5M2,
        Dtype::F8E4M3,
        Dtype::F8E8M0,
        Dtype::F8E4M3Fnuz,
        Dtype::F8E5M2Fnuz,
        Dtype::I16,
        Dtype::U16,
        Dtype::F16,
        Dtype::BF16,
        Dtype::I32,
        Dtype::U32,
        Dtype::F32,
        Dtype::F64,
        Dtype::I64,
        Dtype::U64,
    ];

    /// Bytes of a group of elements.
    fn group(dtype: Dtype) -> usize {
        widen::to_f32(dtype).unwrap().group_in
    }

    fn values(dtype: Dtype, encoded: &[u8]) -> Vec<f64> {
        fn each<const N: usize>(encoded: &[u8], decode: impl Fn([u8; N]) -> f64) -> Vec<f64> {
            encoded.as_chunks().0.iter().map(|bytes| decode(*bytes)).collect()
        }
        match dtype {
            Dtype::F64 => each(encoded, f64::from_le_bytes),
            Dtype::I64 => each(encoded, |bytes| i64::from_le_bytes(bytes) as f64),
            Dtype::U64 => each(encoded, |bytes| u64::from_le_bytes(bytes) as f64),
            Dtype::I32 => each(encoded, |bytes| i32::from_le_bytes(bytes).into()),
            Dtype::U32 => each(encoded, |bytes| u32::from_le_bytes(bytes).into()),
            _ => {
                let decoder = widen::to_f32(dtype).unwrap();
                let mut output = vec![0; encoded.len() / decoder.group_in * decoder.group_out];
                (decoder.decode)(encoded, &mut output);
                each(&output, |bytes| f32::from_le_bytes(bytes).into())
            }
        }
    }

    fn stats(dtype: Dtype, encoded: &[u8]) -> Stats {
        let mut accumulator = Accumulator::new(dtype).unwrap();
        accumulator.add(encoded);
        accumulator.finish()
    }

    fn close(found: Option<f64>, expected: f64, size: f64) -> bool {
        found.is_some_and(|found| (found - expected).abs() <= size * 1e-12)
    }

    /// Compares with what is computed value by value.
    fn check(dtype: Dtype, encoded: &[u8]) {
        let found = stats(dtype, encoded);
        let all = values(dtype, encoded);
        let finite: Vec<f64> = all.iter().copied().filter(|value| value.is_finite()).collect();
        let count = |is: fn(&f64) -> bool| all.iter().filter(|value| is(value)).count() as u64;
        assert_eq!(found.count, all.len() as u64, "{dtype}");
        assert_eq!(found.zeros, count(|value| *value == 0.0), "{dtype}");
        assert_eq!(found.nan, count(|value| value.is_nan()), "{dtype}");
        assert_eq!(found.pos_inf, count(|value| *value == f64::INFINITY), "{dtype}");
        assert_eq!(found.neg_inf, count(|value| *value == f64::NEG_INFINITY), "{dtype}");
        let Histogram { low, high, counts } = &found.histogram;
        assert_eq!(counts.iter().sum::<u64>(), finite.len() as u64, "{dtype}");
        if finite.is_empty() {
            assert_eq!((found.min, found.max, found.mean, found.std, found.abs_max), (None, None, None, None, None));
            return;
        }
        let min = finite.iter().copied().fold(f64::INFINITY, f64::min);
        let max = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert_eq!((found.min, found.max), (Some(min), Some(max)), "{dtype}");
        assert_eq!(found.abs_max, Some(min.abs().max(max.abs())), "{dtype}");
        // In parts of the largest, lest sums and squares overflow.
        let unit = if found.abs_max == Some(0.0) { 1.0 } else { found.abs_max.unwrap() };
        let n = finite.len() as f64;
        let mean = finite.iter().map(|value| value / unit).sum::<f64>() / n;
        let mean = mean + finite.iter().map(|value| value / unit - mean).sum::<f64>() / n;
        let std = (finite.iter().map(|value| (value / unit - mean).powi(2)).sum::<f64>() / n).sqrt();
        // A subnormal is rounded more coarsely than that.
        let size = unit.max(1e-300);
        assert!(close(found.mean, mean * unit, size), "{dtype} {:?} {}", found.mean, mean * unit);
        assert!(close(found.std, std * unit, size), "{dtype} {:?} {}", found.std, std * unit);
        assert!(*low <= min && max <= *high, "{dtype}");
        // The edges as NumPy makes them, but so that they do not overflow.
        let step = high / 64.0 - low / 64.0;
        let edge = |at: usize| match at as f64 * step {
            far if far.is_finite() => far + low,
            _ => 32.0 * step + low + (at as f64 - 32.0) * step,
        };
        let mut expected = [0; BINS];
        for value in &finite {
            let bin = (1..BINS).take_while(|at| *value >= edge(*at)).count();
            expected[bin] += 1;
        }
        assert_eq!(*counts, expected, "{dtype} {low} {high}");
    }

    #[test]
    fn what_there_are_statistics_for() {
        assert!(DTYPES.iter().all(|dtype| has(*dtype) && Accumulator::new(*dtype).is_some()));
        for dtype in [Dtype::C64, Dtype::Unknown("I4")] {
            assert!(!has(dtype) && Accumulator::new(dtype).is_none());
        }
    }

    #[test]
    fn every_code_of_every_small_dtype() {
        let codes: Vec<u8> = (0..=u16::MAX).flat_map(|code| (code ^ 0x5aa5).to_le_bytes()).collect();
        for dtype in DTYPES {
            for len in [codes.len(), 3 * 5 * 8 * 100, 24, 0] {
                check(dtype, &codes[..len / (3 * 8) * 3 * 8]);
            }
        }
    }

    #[test]
    fn special_values() {
        let (inf, nan, tiny) = (f64::INFINITY, f64::NAN, f64::from_bits(1));
        let lists: [&[f64]; 14] = [
            &[nan],
            &[nan, inf, -inf],
            &[-inf, 1.0, nan, 2.0],
            &[0.0, -0.0],
            &[-0.0; 5],
            &[f64::MAX],
            &[f64::MAX, f64::MIN],
            &[f64::MAX, f64::MAX, f64::MAX, 1e308],
            &[1e308, -1e308, 1.0, tiny],
            &[tiny],
            &[tiny, -tiny, 3.0 * tiny],
            &[-tiny, 0.0, 1.0, 2.0, 1e300, -1e300],
            &[1.0, 1.0 + f64::EPSILON],
            &[1e6, 1e6 + 1e-3, 1e6 + 2e-3, inf],
        ];
        for list in lists {
            // Both within one round and over several, the sort of which changes on the way.
            for times in [1, 1500] {
                let doubles: Vec<u8> =
                    list.iter().flat_map(|value| [*value; 1500][..times].to_vec()).flat_map(f64::to_le_bytes).collect();
                check(Dtype::F64, &doubles);
                let singles: Vec<u8> = list
                    .iter()
                    .flat_map(|value| [*value as f32; 1500][..times].to_vec())
                    .flat_map(f32::to_le_bytes)
                    .collect();
                check(Dtype::F32, &singles);
            }
        }
        let singles = [f32::MAX, f32::MIN, f32::from_bits(1), -f32::from_bits(1), 0.0, 1.0];
        check(Dtype::F32, &singles.map(f32::to_le_bytes).concat());
        check(Dtype::I64, &[i64::MIN, i64::MAX, 0, -1].map(i64::to_le_bytes).concat());
        check(Dtype::U64, &[u64::MAX, u64::MAX - 1].map(u64::to_le_bytes).concat());
    }

    #[test]
    fn edges_of_constant_values_are_those_of_numpy() {
        for (dtype, bytes) in [(Dtype::F32, &7f32.to_le_bytes()[..]), (Dtype::I8, &[7][..])] {
            let Histogram { low, high, counts } = stats(dtype, bytes).histogram;
            assert_eq!((low, high, counts[32]), (6.5, 7.5, 1));
        }
    }

    #[test]
    fn the_histogram_of_wide_values_is_tight() {
        let encoded: Vec<u8> = (0..10_000).flat_map(|at| ((at as f32 - 3000.0) * 1e-5).to_le_bytes()).collect();
        let Histogram { low, high, .. } = stats(Dtype::F32, &encoded).histogram;
        let (min, max) = (-0.03, 0.06999);
        assert!(high - low < (max - min) * 31.0 / 30.0, "{low} {high}");
    }

    #[test]
    fn json_has_one_length() {
        let worst = f64::from_bits(0x8010_0000_0000_0001);
        let longest = Stats {
            count: u64::MAX,
            zeros: u64::MAX / 3,
            nan: u64::MAX / 3,
            pos_inf: u64::MAX / 3,
            neg_inf: u64::MAX / 3,
            min: Some(worst),
            max: Some(worst),
            mean: Some(worst),
            std: Some(worst),
            abs_max: Some(worst),
            histogram: Histogram { low: worst, high: worst, counts: [u64::MAX; BINS] },
        };
        for stats in [longest, stats(Dtype::F32, &[]), stats(Dtype::F4, &[0x72])] {
            let bytes = stats.to_json();
            assert_eq!((bytes.len(), bytes.last()), (JSON_LEN, Some(&b'\n')));
            let text = str::from_utf8(&bytes).unwrap();
            assert!(text.trim_end().len() < JSON_LEN);
            let json: serde_json::Value = serde_json::from_str(text).unwrap();
            assert_eq!(json["count"].as_u64(), Some(stats.count));
            assert_eq!(json["min"].as_f64(), stats.min);
            assert_eq!(json["std"].as_f64(), stats.std);
            assert_eq!(json["histogram"]["low"].as_f64(), Some(stats.histogram.low));
            assert_eq!(json["histogram"]["counts"].as_array().unwrap().len(), BINS);
            assert_eq!(json["fractions"]["zeros"].is_null(), stats.count == 0);
        }
    }

    proptest! {
        #[test]
        fn like_value_by_value(which in 0..DTYPES.len(), bytes in prop::collection::vec(any::<u8>(), 0..20_000)) {
            let group = group(DTYPES[which]);
            check(DTYPES[which], &bytes[..bytes.len() / group * group]);
        }

        #[test]
        fn doubles_of_like_size(base in any::<f64>(), apart in prop::collection::vec(-1e3..1e3, 0..2500), size in -40..40) {
            let encode = |apart: &f64| (base + apart * 10f64.powi(size)).to_le_bytes();
            check(Dtype::F64, &apart.iter().flat_map(encode).collect::<Vec<u8>>());
            let encode = |apart: &f64| ((base + apart * 10f64.powi(size)) as f32).to_le_bytes();
            check(Dtype::F32, &apart.iter().flat_map(encode).collect::<Vec<u8>>());
        }

        #[test]
        fn parts_in_any_order_are_the_whole(
            which in 0..DTYPES.len(),
            parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..500), 0..8), 0..6),
        ) {
            let dtype = DTYPES[which];
            let mut whole = Accumulator::new(dtype).unwrap();
            let mut accumulators = Vec::new();
            for (bytes, order) in &parts {
                let bytes = &bytes[..bytes.len() / group(dtype) * group(dtype)];
                whole.add(bytes);
                let mut part = Accumulator::new(dtype).unwrap();
                part.add(bytes);
                accumulators.push((order, part));
            }
            accumulators.sort_by_key(|part| *part.0);
            let mut merged = Accumulator::new(dtype).unwrap();
            accumulators.iter().for_each(|part| merged.merge(&part.1));
            let (mut merged, whole) = (merged.finish(), whole.finish());
            let size = whole.abs_max.unwrap_or(0.0);
            for (found, expected) in [(merged.mean, whole.mean), (merged.std, whole.std)] {
                prop_assert!(expected.is_none_or(|expected| close(found, expected, size)), "{found:?} {expected:?}");
            }
            (merged.mean, merged.std) = (whole.mean, whole.std);
            prop_assert_eq!(merged, whole);
        }
    }
}
