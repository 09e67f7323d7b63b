//! Scales and group numbers that are no use.

use super::decode::widen;
use super::layout::Real;

/// How many of some numbers are suspicious.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// Scales that are 0. All weights of their groups are 0, as in a group of zeros.
    pub zero: u64,
    /// Scales that are infinite or not numbers.
    pub not_finite: u64,
    /// Numbers of groups that do not exist. The weights of their columns are not numbers.
    pub no_group: u64,
}

impl Faults {
    /// Counts the faults of stored scales. Those of quantized scales are unknown.
    pub fn of_scales(scale: Real, bytes: &[u8]) -> Self {
        let width = scale.bytes() as usize;
        let mut faults = Self::default();
        let take = |_: usize, value: f32| {
            faults.zero += u64::from(value == 0.0);
            faults.not_finite += u64::from(!value.is_finite());
        };
        widen(scale, bytes, width, take, bytes.len() / width);
        faults
    }

    /// Counts the faults of a group index. An index with -1 is not used.
    pub fn of_index(groups: u64, bytes: &[u8]) -> Self {
        let index = || bytes.as_chunks::<4>().0.iter().map(|group| i32::from_le_bytes(*group));
        if index().any(|group| group == -1) {
            return Self::default();
        }
        let is_missing = |group: &i32| u64::try_from(*group).is_ok_and(|group| group >= groups) || *group < 0;
        Self { no_group: index().filter(is_missing).count() as u64, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_counted() {
        let floats = [0.0f32, -0.0, 1.0, f32::NAN, f32::INFINITY, 1e-45].map(f32::to_le_bytes);
        let found = Faults::of_scales(Real::F32, floats.as_flattened());
        assert_eq!(found, Faults { zero: 2, not_finite: 2, no_group: 0 });
        assert_eq!(Faults::of_scales(Real::E8M0, &[0, 1, 254, 255]), Faults { not_finite: 1, ..Faults::default() });
        let found = Faults::of_scales(Real::E4M3, &[0, 0x80, 1, 0x7f, 0xff]);
        assert_eq!(found, Faults { zero: 2, not_finite: 2, no_group: 0 });
        assert_eq!(
            Faults::of_scales(Real::F16, &[0, 0x7c, 0, 0, 0xff]),
            Faults { zero: 1, not_finite: 1, no_group: 0 }
        );
        let index = |groups: [i32; 4]| Faults::of_index(3, groups.map(i32::to_le_bytes).as_flattened()).no_group;
        assert_eq!((index([0, 1, 2, 2]), index([0, 3, -2, 1]), index([3, 3, -1, 0])), (0, 2, 0));
    }
}
