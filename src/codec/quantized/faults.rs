//! Faults of companions: scales that are zero or not finite, and groups that do not exist.

use super::layout::ScaleType;
use super::numbers::widen;

/// Counts of suspicious numbers in a companion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompanionFaults {
    /// Scales that are 0. All values of their groups are 0.
    pub zero: u64,
    /// Scales that are infinite or NaN.
    pub not_finite: u64,
    /// Columns whose group does not exist. Their values are NaN.
    pub no_group: u64,
    /// Whether the group index contains -1. Such an index is not used.
    pub is_unused: bool,
    /// The first scale that is not finite, or the first column whose group does not exist.
    pub first: Option<u64>,
}

impl CompanionFaults {
    /// Counts the faults of stored scales. For quantized scales, all counts are 0.
    pub fn of_scales(scale: ScaleType, bytes: &[u8]) -> Self {
        let width = scale.bytes() as usize;
        let mut faults = Self::default();
        let take = |at: usize, value: f32| {
            faults.zero += u64::from(value == 0.0);
            if !value.is_finite() {
                faults.not_finite += 1;
                faults.first.get_or_insert(at as u64);
            }
        };
        widen(scale, bytes, width, take, bytes.len() / width);
        faults
    }

    /// Counts the faults of a group index or a part of it.
    pub fn of_index(groups: u64, bytes: &[u8]) -> Self {
        let mut faults = Self::default();
        for (at, group) in (0..).zip(bytes.as_chunks::<4>().0) {
            let group = i32::from_le_bytes(*group);
            faults.is_unused |= group == -1;
            if u64::try_from(group).is_ok_and(|group| group >= groups) || group < -1 {
                faults.no_group += 1;
                faults.first.get_or_insert(at);
            }
        }
        faults
    }

    /// Adds the faults of the numbers that follow the first `before` ones.
    pub fn merge(&mut self, next: &Self, before: u64) {
        self.zero += next.zero;
        self.not_finite += next.not_finite;
        self.no_group += next.no_group;
        self.is_unused |= next.is_unused;
        self.first = self.first.or(next.first.map(|first| before + first));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_counted() {
        let scales =
            |zero, not_finite, first| CompanionFaults { zero, not_finite, first, ..CompanionFaults::default() };
        let floats = [0.0f32, -0.0, 1.0, f32::NAN, f32::INFINITY, 1e-45].map(f32::to_le_bytes);
        assert_eq!(CompanionFaults::of_scales(ScaleType::F32, floats.as_flattened()), scales(2, 2, Some(3)));
        assert_eq!(CompanionFaults::of_scales(ScaleType::E8M0, &[0, 1, 254, 255]), scales(0, 1, Some(3)));
        assert_eq!(CompanionFaults::of_scales(ScaleType::E4M3, &[0, 0x80, 1, 0x7f, 0xff]), scales(2, 2, Some(3)));
        assert_eq!(CompanionFaults::of_scales(ScaleType::F16, &[0, 0x7c, 0, 0, 0xff]), scales(1, 1, Some(0)));
        let mut whole = CompanionFaults::of_scales(ScaleType::E8M0, &[1, 2]);
        whole.merge(&CompanionFaults::of_scales(ScaleType::E8M0, &[3, 255, 255]), 2);
        whole.merge(&CompanionFaults::of_scales(ScaleType::E8M0, &[255]), 5);
        assert_eq!(whole, scales(0, 3, Some(3)));
        let index = |groups: [i32; 4]| {
            let CompanionFaults { no_group, is_unused, first, .. } =
                CompanionFaults::of_index(3, groups.map(i32::to_le_bytes).as_flattened());
            (no_group, is_unused, first)
        };
        assert_eq!(index([0, 1, 2, 2]), (0, false, None));
        assert_eq!(index([0, 3, -2, 1]), (2, false, Some(1)));
        assert_eq!(index([3, 3, -1, 0]), (2, true, Some(0)));
    }
}
