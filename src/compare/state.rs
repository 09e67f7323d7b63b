//! Deviations that another process has computed.
//!
//! Floating-point numbers are kept as their bits, because JSON has neither NaN nor infinity, and reading decimals may
//! round.

use super::deviation::Deviation;
use serde::{Deserialize, Serialize};

/// The deviation of some pairs of numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviationState {
    /// The numbers of pairs, of those that differ, of those that are not finite, and of those that are both.
    counts: [u64; 4],
    nan: [u64; 2],
    infinite: [u64; 2],
    /// The bits of the largest distance, of the sums of the squares of distances and of each side, and of the sum of
    /// products.
    sums: [u64; 5],
}

impl DeviationState {
    pub fn of(deviation: &Deviation) -> Self {
        let Deviation { elements, different, not_finite, not_finite_different, .. } = *deviation;
        let Deviation { nan, infinite, max_abs, squares, norms: [norm_a, norm_b], products, .. } = *deviation;
        Self {
            counts: [elements, different, not_finite, not_finite_different],
            nan,
            infinite,
            sums: [max_abs, squares, norm_a, norm_b, products].map(f64::to_bits),
        }
    }

    /// `None` unless `count` pairs can have this deviation.
    pub fn deviation(&self, count: u64) -> Option<Deviation> {
        let [elements, different, not_finite, not_finite_different] = self.counts;
        let [max_abs, squares, norm_a, norm_b, products] = self.sums.map(f64::from_bits);
        let are_special = self.nan.iter().zip(self.infinite).map(|(nan, infinite)| nan.checked_add(infinite));
        let is_possible = elements == count
            && different.max(not_finite) <= elements
            && not_finite_different <= different.min(not_finite)
            && are_special.into_iter().all(|special| special.is_some_and(|special| special <= not_finite));
        is_possible.then_some(Deviation {
            elements,
            different,
            not_finite,
            not_finite_different,
            nan: self.nan,
            infinite: self.infinite,
            max_abs,
            squares,
            norms: [norm_a, norm_b],
            products,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_keep_their_bits_and_impossible_counts_are_refused() {
        let mut found = Deviation::default();
        found.add_exact(&[[0.1, 0.0], [f64::NAN, 0.0], [1e308, 0.0]], &[[0.3, 0.0], [1.0, 0.0], [-1e308, 0.0]]);
        let state = DeviationState::of(&found);
        let text = serde_json::to_string(&state).unwrap();
        let read: DeviationState = serde_json::from_str(&text).unwrap();
        assert_eq!(DeviationState::of(&read.deviation(3).unwrap()), state);
        assert_eq!(read.deviation(2), None);
        let (mut four, mut endless) = (state.clone(), state);
        four.counts[1] = 4;
        endless.nan[0] = u64::MAX;
        assert_eq!([four, endless].map(|other| other.deviation(3)), [None, None]);
    }
}
