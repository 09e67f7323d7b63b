//! Parts of the work on a model, which several processes do at the same time. Which part has what follows from the
//! sizes of tensors alone, so that the processes need not talk to each other.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// One of several parts: `2/8` is the second of eight, also where it is serialized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct WorkPart {
    /// Counts from 1.
    pub number: u32,
    pub count: u32,
}

/// A tensor, from which a part takes a range.
#[derive(Debug, Clone, Copy)]
pub struct WorkItem {
    /// The number of bytes that are read for it.
    pub cost: u64,
    /// The end of its range, which begins at 0.
    pub len: u64,
    /// Ranges are cut at multiples of this.
    pub step: u64,
}

/// An item by its index, and a place in its range. An item whose start is a boundary belongs to the part after it.
type Boundary = (usize, u64);

impl WorkPart {
    /// All of the work.
    pub const WHOLE: Self = Self { number: 1, count: 1 };

    /// The items of which the part has a range, by their indices. Each place of each item is in one part, and the costs
    /// of two parts differ by at most those of two steps.
    pub fn shares(self, items: &[WorkItem]) -> Vec<(usize, Range<u64>)> {
        let mut total = 0u128;
        let ends = items.iter().map(|item| {
            total += u128::from(item.cost);
            total
        });
        let ends: Vec<u128> = ends.collect();
        let (start, end) = (self.boundary(self.number - 1, items, &ends), self.boundary(self.number, items, &ends));
        let shares = (start.0..items.len().min(end.0 + 1)).filter_map(|index| {
            let first = if index == start.0 { start.1 } else { 0 };
            let last = if index == end.0 { end.1 } else { items[index].len };
            // An item without values is in the part in which it begins.
            let is_here = first < last || items[index].len == 0 && (index, 0) < end;
            is_here.then_some((index, first..last))
        });
        shares.collect()
    }

    /// The items of these sizes that the part has, by their indices. None is divided.
    pub fn shares_whole(self, sizes: impl Iterator<Item = u64>) -> Vec<usize> {
        let items: Vec<WorkItem> = sizes.map(|size| WorkItem { cost: size, len: size, step: size }).collect();
        self.shares(&items).into_iter().map(|(index, _)| index).collect()
    }

    /// Where the part with this number ends. `ends` has the sum of the costs up to each item.
    fn boundary(self, number: u32, items: &[WorkItem], ends: &[u128]) -> Boundary {
        let place = ends.last().map_or(0, |total| total * u128::from(number) / u128::from(self.count));
        if number == self.count || place == 0 {
            return (if number == self.count { items.len() } else { 0 }, 0);
        }
        let index = ends.partition_point(|end| *end <= place);
        let WorkItem { cost, len, step } = items[index];
        let (cost, len, step) = (u128::from(cost), u128::from(len), u128::from(step.max(1)));
        let within = (place + cost - ends[index]) * len / cost;
        let cut = (within + step / 2) / step * step;
        if cut >= len { (index + 1, 0) } else { (index, cut as u64) }
    }
}

impl fmt::Display for WorkPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.count)
    }
}

impl From<WorkPart> for String {
    fn from(part: WorkPart) -> Self {
        part.to_string()
    }
}

impl TryFrom<String> for WorkPart {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for WorkPart {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(number, count)| Some((number.parse().ok()?, count.parse().ok()?)));
        match parsed {
            Some((number @ 1.., count)) if number <= count => Ok(Self { number, count }),
            Some((number, count)) => Err(format!("there is no part {number} of {count}: parts are numbered from 1")),
            None => Err("a part is given as its number and the number of parts, such as 2/8".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn item(cost: u64, len: u64, step: u64) -> WorkItem {
        WorkItem { cost, len, step }
    }

    fn all_shares(items: &[WorkItem], count: u32) -> Vec<Vec<(usize, Range<u64>)>> {
        (1..=count).map(|number| WorkPart { number, count }.shares(items)).collect()
    }

    proptest! {
        #[test]
        fn every_place_is_in_one_part_and_parts_are_balanced(
            items in prop::collection::vec((0u64..4, 0u64..2000, 1u64..100), 0..20),
            count in 1u32..12,
        ) {
            let items: Vec<WorkItem> = items.into_iter().map(|(cost, len, step)| item(cost * len, len, step)).collect();
            let shares = all_shares(&items, count);
            for (index, WorkItem { len, step, .. }) in items.iter().enumerate() {
                let ranges = shares.iter().flatten().filter(|(at, _)| *at == index).map(|(_, range)| range.clone());
                let ranges: Vec<Range<u64>> = ranges.collect();
                prop_assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, *len));
                prop_assert!(ranges.windows(2).all(|two| two[0].end == two[1].start && two[1].start % step == 0));
                prop_assert!(*len == 0 || ranges.iter().all(|range| !range.is_empty()));
            }
            let total: u64 = items.iter().map(|item| item.cost).sum();
            let largest_step = items.iter().map(|item| item.cost * item.step / item.len.max(1)).max().unwrap_or(0);
            for share in shares {
                let cost: u64 = share.iter().map(|(at, range)| items[*at].cost * (range.end - range.start) / items[*at].len.max(1)).sum();
                prop_assert!(cost.abs_diff(total / u64::from(count)) <= largest_step + 2, "{cost} of {total} / {count}");
            }
        }
    }

    #[test]
    fn there_may_be_more_parts_than_work() {
        let one = [item(10, 10, 100)];
        let shares = all_shares(&one, 4);
        assert_eq!(shares.iter().flatten().count(), 1);
        assert_eq!(all_shares(&[], 3), vec![vec![]; 3]);
        // Neither the number of parts nor the sizes overflow.
        let huge = [item(u64::MAX, u64::MAX, 1 << 20), item(u64::MAX, u64::MAX, 1)];
        let last = WorkPart { number: u32::MAX, count: u32::MAX }.shares(&huge);
        assert_eq!(last[0].1.end, u64::MAX);
        assert_eq!(all_shares(&[item(0, 0, 1), item(0, 0, 1)], 2).iter().flatten().count(), 2);
    }

    #[test]
    fn parts_are_parsed() {
        assert_eq!("2/8".parse(), Ok(WorkPart { number: 2, count: 8 }));
        assert_eq!(WorkPart { number: 2, count: 8 }.to_string(), "2/8");
        for (text, error) in [
            ("9/8", "there is no part 9 of 8: parts are numbered from 1"),
            ("0/8", "there is no part 0 of 8: parts are numbered from 1"),
            ("0/0", "there is no part 0 of 0: parts are numbered from 1"),
            ("2", "a part is given as its number and the number of parts, such as 2/8"),
            ("-1/4", "a part is given as its number and the number of parts, such as 2/8"),
            ("1/99999999999", "a part is given as its number and the number of parts, such as 2/8"),
        ] {
            assert_eq!(text.parse::<WorkPart>(), Err(error.to_owned()));
        }
    }
}
