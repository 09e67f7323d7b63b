//! The deviation of numbers from others: the sums from which the largest error, the root mean square error and the
//! cosine are computed.

use super::elements::complex_parts;
use std::ops::Add;

/// Number of pairs that are summed at a time. Their float64 numbers fit into the first-level cache.
const BLOCK: usize = 1024;

/// Number of sums that are kept side by side, so that the additions do not wait for each other.
const LANES: usize = 2;

/// The differences between pairs of numbers: how many differ, and by how much.
///
/// Sums are computed in float64, in an order that depends only on the pairs. Squares of float64 numbers may overflow to
/// infinity, or underflow; squares of shorter numbers cannot.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Deviation {
    pub elements: u64,
    /// Number of pairs with different values. 0.0 and -0.0 are equal, and so are all NaN.
    pub different: u64,
    /// Number of pairs with a number that is infinite or NaN. They are left out of all errors.
    pub not_finite: u64,
    /// Number of pairs that are counted in both `different` and `not_finite`.
    pub not_finite_different: u64,
    pub nan: [u64; 2],
    pub infinite: [u64; 2],
    pub max_abs: f64,
    pub(super) squares: f64,
    /// The sum of the squares of the numbers of each side.
    pub(super) norms: [f64; 2],
    /// The sum of the products of the pairs.
    pub(super) products: f64,
}

impl Deviation {
    /// The root of the mean square of all distances: 0 if there are no pairs.
    pub fn rms(&self) -> f64 {
        let finite = self.elements - self.not_finite;
        if finite == 0 { 0.0 } else { (self.squares / finite as f64).sqrt() }
    }

    /// The root mean square of the distances, divided by the root mean square of the first side. Infinite if the first
    /// side is zero and the second is not.
    pub fn relative_rms(&self) -> f64 {
        if self.squares == 0.0 { 0.0 } else { (self.squares / self.norms[0]).sqrt() }
    }

    /// The cosine of the angle between both sides as vectors. `None` if all numbers of a side are zero.
    pub fn cosine(&self) -> Option<f64> {
        let [a, b] = self.norms.map(f64::sqrt);
        (a > 0.0 && b > 0.0).then(|| (self.products / a / b).clamp(-1.0, 1.0))
    }

    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self {
            elements: self.elements + other.elements,
            different: self.different + other.different,
            not_finite: self.not_finite + other.not_finite,
            not_finite_different: self.not_finite_different + other.not_finite_different,
            nan: add_sides(self.nan, other.nan),
            infinite: add_sides(self.infinite, other.infinite),
            max_abs: self.max_abs.max(other.max_abs),
            squares: self.squares + other.squares,
            norms: add_sides(self.norms, other.norms),
            products: self.products + other.products,
        }
    }

    /// Adds pairs of little-endian float32 numbers.
    pub(super) fn add_floats(&mut self, a: &[u8], b: &[u8]) {
        let (a, b) = (a.as_chunks::<4>().0, b.as_chunks::<4>().0);
        self.add_numbers(a, b, |bytes| [f32::from_le_bytes(*bytes).into(), 0.0]);
    }

    /// Adds pairs of sums of two float64 numbers, of which the first is the nearest to the sum.
    pub(super) fn add_exact(&mut self, a: &[[f64; 2]], b: &[[f64; 2]]) {
        self.add_numbers(a, b, |number| *number);
    }

    fn add_numbers<T>(&mut self, a: &[T], b: &[T], number: impl Fn(&T) -> [f64; 2]) {
        let mut block = DeviationBlock { a: [0.0; BLOCK], b: [0.0; BLOCK], apart: [0.0; BLOCK], len: 0 };
        for (a, b) in a.chunks(BLOCK).zip(b.chunks(BLOCK)) {
            let mut is_finite = true;
            for (at, (a, b)) in a.iter().zip(b).enumerate() {
                let ([a, rest_a], [b, rest_b]) = (number(a), number(b));
                (block.a[at], block.b[at], block.apart[at]) = (a, b, a - b + (rest_a - rest_b));
                is_finite &= a.is_finite() & b.is_finite();
            }
            block.len = a.len();
            self.add(&mut block, is_finite);
        }
    }

    /// Adds pairs of complex numbers: little-endian float32, the real part first. A number is infinite or NaN if a part
    /// of it is. Its square is that of its magnitude.
    pub(super) fn add_complex(&mut self, a: &[u8], b: &[u8]) {
        for (a, b) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
            let [a, b] = [a, b].map(complex_parts);
            let is_nan = [a, b].map(|number| number.iter().any(|part| part.is_nan()));
            let is_finite = [a, b].map(|number| number.iter().all(|part| part.is_finite()));
            let differs = a != b && is_nan != [true; 2];
            self.elements += 1;
            self.different += u64::from(differs);
            if is_finite != [true; 2] {
                self.count_not_finite(is_nan, is_finite, differs);
                continue;
            }
            let apart = [a[0] - b[0], a[1] - b[1]];
            self.max_abs = self.max_abs.max(apart[0].hypot(apart[1]));
            self.squares += dot(apart, apart);
            self.norms = add_sides(self.norms, [dot(a, a), dot(b, b)]);
            self.products += dot(a, b);
        }
    }

    fn count_not_finite(&mut self, is_nan: [bool; 2], is_finite: [bool; 2], differs: bool) {
        self.not_finite += 1;
        self.not_finite_different += u64::from(differs);
        for side in 0..2 {
            self.nan[side] += u64::from(is_nan[side]);
            self.infinite[side] += u64::from(!is_nan[side] && !is_finite[side]);
        }
    }

    /// Adds a block of pairs. The pairs that are not finite are set to zero, unless `is_finite`.
    fn add(&mut self, block: &mut DeviationBlock, is_finite: bool) {
        let len = block.len;
        self.elements += len as u64;
        if !is_finite {
            for at in 0..len {
                let pair = [block.a[at], block.b[at]];
                if pair.iter().all(|number| number.is_finite()) {
                    continue;
                }
                let is_nan = pair.map(f64::is_nan);
                let differs = pair[0] != pair[1] && is_nan != [true; 2];
                self.different += u64::from(differs);
                self.count_not_finite(is_nan, pair.map(f64::is_finite), differs);
                (block.a[at], block.b[at], block.apart[at]) = (0.0, 0.0, 0.0);
            }
        }
        // Zeros change no sum.
        let end = len.next_multiple_of(LANES);
        for side in [&mut block.a, &mut block.b, &mut block.apart] {
            side[len..end].fill(0.0);
        }
        block.sum(end, self);
    }
}

fn add_sides<T: Copy + Add<Output = T>>(a: [T; 2], b: [T; 2]) -> [T; 2] {
    [a[0] + b[0], a[1] + b[1]]
}

fn dot(a: [f64; 2], b: [f64; 2]) -> f64 {
    a[0] * b[0] + a[1] * b[1]
}

struct DeviationBlock {
    a: [f64; BLOCK],
    b: [f64; BLOCK],
    apart: [f64; BLOCK],
    len: usize,
}

impl DeviationBlock {
    /// Adds the first `end` pairs, a multiple of [`LANES`]. There is no branch, because it would be unpredictable.
    fn sum(&self, end: usize, to: &mut Deviation) {
        type Lanes = [f64; LANES];
        let [mut max, mut squares, mut norm_a, mut norm_b, mut products]: [Lanes; 5] = Default::default();
        let mut different = [0u64; LANES];
        let (a, b) = (self.a[..end].as_chunks::<LANES>().0, self.b[..end].as_chunks::<LANES>().0);
        for ((a, b), apart) in a.iter().zip(b).zip(self.apart[..end].as_chunks::<LANES>().0) {
            for at in 0..LANES {
                let (a, b, apart) = (a[at], b[at], apart[at].abs());
                max[at] = if apart > max[at] { apart } else { max[at] };
                different[at] += u64::from(apart != 0.0);
                squares[at] += apart * apart;
                norm_a[at] += a * a;
                norm_b[at] += b * b;
                products[at] += a * b;
            }
        }
        to.max_abs = max.into_iter().fold(to.max_abs, f64::max);
        to.different += different.iter().sum::<u64>();
        to.squares += squares.iter().sum::<f64>();
        to.norms = add_sides(to.norms, [norm_a.iter().sum(), norm_b.iter().sum()]);
        to.products += products.iter().sum::<f64>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn close(found: f64, expected: f64) -> bool {
        found == expected || (found - expected).abs() <= 1e-12 * expected.abs() || found.is_nan() && expected.is_nan()
    }

    fn number() -> impl Strategy<Value = f32> {
        let special = prop::sample::select(vec![0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        prop_oneof![20 => -2f32..2.0, 1 => special, 1 => any::<f32>()]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn sums_match_plain_ones(
            pairs in prop::collection::vec((number(), prop::option::weighted(0.7, number())), 0..2500),
            cut in any::<prop::sample::Index>(),
        ) {
            // Some pairs are equal.
            let (a, b): (Vec<f32>, Vec<f32>) = pairs.iter().map(|(a, b)| (*a, b.unwrap_or(*a))).unzip();
            let mut found = Deviation::default();
            found.add_floats(&bytes(&a), &bytes(&b));
            let (mut expected, mut largest) = (Deviation::default(), 0f64);
            for (a, b) in a.iter().zip(&b).map(|(a, b)| (f64::from(*a), f64::from(*b))) {
                let differs = !(a == b || a.is_nan() && b.is_nan());
                expected.elements += 1;
                expected.different += u64::from(differs);
                if !(a.is_finite() && b.is_finite()) {
                    expected.not_finite += 1;
                    expected.not_finite_different += u64::from(differs);
                    expected.nan = [expected.nan[0] + u64::from(a.is_nan()), expected.nan[1] + u64::from(b.is_nan())];
                    let infinite = [a, b].map(|number| u64::from(number.is_infinite()));
                    expected.infinite = [expected.infinite[0] + infinite[0], expected.infinite[1] + infinite[1]];
                    continue;
                }
                largest = largest.max((a - b).abs());
                expected.squares += (a - b) * (a - b);
                expected.norms = [expected.norms[0] + a * a, expected.norms[1] + b * b];
                expected.products += a * b;
            }
            expected.max_abs = largest;
            prop_assert!(close(found.squares, expected.squares) && close(found.norms[0], expected.norms[0]));
            prop_assert!(close(found.norms[1], expected.norms[1]));
            prop_assert!((found.products - expected.products).abs() <= 1e-12 * (found.norms[0] + found.norms[1]));
            let Deviation { squares, norms, products, .. } = found;
            prop_assert_eq!(found, Deviation { squares, norms, products, ..expected });
            let exact = |side: &[f32]| side.iter().map(|number| [f64::from(*number), 0.0]).collect::<Vec<_>>();
            let mut other = Deviation::default();
            other.add_exact(&exact(&a), &exact(&b));
            prop_assert_eq!(other, found);
            // Merging adds everything up, too.
            let cut = cut.index(a.len() + 1);
            let [mut begin, mut end] = [Deviation::default(); 2];
            begin.add_floats(&bytes(&a[..cut]), &bytes(&b[..cut]));
            end.add_floats(&bytes(&a[cut..]), &bytes(&b[cut..]));
            let merged = begin.merge(end);
            prop_assert!(close(merged.rms(), found.rms()) && close(merged.relative_rms(), found.relative_rms()));
            let Deviation { squares, norms, products, .. } = merged;
            prop_assert_eq!(merged, Deviation { squares, norms, products, ..found });
        }
    }

    #[test]
    fn zeros_have_no_cosine_and_no_relative_error() {
        let of = |a: &[f32], b: &[f32]| {
            let mut found = Deviation::default();
            found.add_floats(&bytes(a), &bytes(b));
            (found.rms(), found.relative_rms(), found.cosine())
        };
        assert_eq!(of(&[], &[]), (0.0, 0.0, None));
        assert_eq!(of(&[0.0, 0.0], &[0.0, -0.0]), (0.0, 0.0, None));
        assert_eq!(of(&[0.0, 0.0], &[2.0, 2.0]), (2.0, f64::INFINITY, None));
        assert_eq!(of(&[3.0, 4.0], &[0.0, 0.0]), (12.5f64.sqrt(), 1.0, None));
        assert_eq!(of(&[3.0, 4.0], &[-3.0, -4.0]), (50f64.sqrt(), 2.0, Some(-1.0)));
        assert_eq!(of(&[f32::NAN], &[1.0]), (0.0, 0.0, None));
        // The squares of float32 numbers do not overflow.
        assert_eq!(of(&[f32::MAX; 2], &[f32::MIN; 2]), (2.0 * f64::from(f32::MAX), 2.0, Some(-1.0)));
    }
}
