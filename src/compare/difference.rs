//! The differences between two tensors.

/// The differences between two tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TensorDifference {
    /// Number of bits that differ; `None` if the dtypes differ.
    pub bits: Option<u64>,
    /// Differences between elements and their values; `None` if the dtype is unknown.
    pub values: Option<ValueDifference>,
    /// Number of bytes that were not read, because both files have them in the same place of a disk.
    pub shared: u64,
}

/// The differences between the values of two tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ValueDifference {
    /// Number of elements with different bits, or with different values if the dtypes differ.
    pub elements: u64,
    /// How many of these are infinite or NaN in either tensor. They have no distance.
    pub not_finite: u64,
    /// The largest distance between two values; for complex values the magnitude of their difference.
    pub max_abs: f64,
    /// The largest distance relative to the larger magnitude of the two values: from 0 to 2.
    pub max_rel: f64,
}

impl TensorDifference {
    /// Whether all bytes are equal, or all values if the dtypes differ.
    pub fn is_empty(&self) -> bool {
        self.bits.is_none_or(|bits| bits == 0) && self.values.is_none_or(|values| values.elements == 0)
    }

    pub(super) fn merge(self, other: Self) -> Self {
        let values = |(a, b): (ValueDifference, ValueDifference)| ValueDifference {
            elements: a.elements + b.elements,
            not_finite: a.not_finite + b.not_finite,
            max_abs: a.max_abs.max(b.max_abs),
            max_rel: a.max_rel.max(b.max_rel),
        };
        Self {
            bits: self.bits.zip(other.bits).map(|(a, b)| a + b),
            values: self.values.zip(other.values).map(values),
            shared: self.shared + other.shared,
        }
    }
}

impl ValueDifference {
    /// Counts a pair of elements with different bits. `distance` is absolute and relative; `None` if one is not finite.
    pub(super) fn add(&mut self, distance: Option<(f64, f64)>) {
        self.elements += 1;
        match distance {
            Some((abs, rel)) => {
                self.max_abs = self.max_abs.max(abs);
                self.max_rel = self.max_rel.max(rel);
            }
            None => self.not_finite += 1,
        }
    }

    /// Counts a pair of elements if they differ, without a branch. The distance of float32 numbers cannot overflow
    /// float64.
    #[inline(always)]
    pub(super) fn add_if(&mut self, differs: bool, a: f64, b: f64) {
        let is_finite = a.is_finite() & b.is_finite();
        let distance = if differs & is_finite { (a - b).abs() } else { 0.0 };
        let relative = if distance == 0.0 { 0.0 } else { distance / a.abs().max(b.abs()) };
        self.elements += u64::from(differs);
        self.not_finite += u64::from(differs & !is_finite);
        self.max_abs = if distance > self.max_abs { distance } else { self.max_abs };
        self.max_rel = if relative > self.max_rel { relative } else { self.max_rel };
    }
}
