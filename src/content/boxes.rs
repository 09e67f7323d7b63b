//! The boxes that an array is made of: parts of it, with a range of indices along every dimension.

use smallvec::SmallVec;
use std::collections::HashSet;
use std::ops::Range;

/// Maximum number of boxes of an array. Whether two of them intersect may take the square of this.
pub const BOXES_MAX: usize = 10_000;

/// A part of an array. Its lists have an entry for each dimension of the array, outermost first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ArrayBox {
    /// The index of its first element in the array.
    pub offsets: SmallVec<[u64; 2]>,
    pub shape: SmallVec<[u64; 2]>,
    /// Distances of neighbours in the place where the box lies, in elements.
    pub strides: SmallVec<[u64; 2]>,
}

impl ArrayBox {
    /// The indices of the box along a dimension.
    pub(super) fn range(&self, dim: usize) -> Range<u64> {
        self.offsets[dim]..self.offsets[dim] + self.shape[dim]
    }
}

/// Why boxes do not make an array.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoxFault {
    #[error("a part of it has {found} dimensions instead of {expected}")]
    Rank { found: usize, expected: usize },
    #[error("a part of it has {shape:?} elements from {offsets:?} on, which is outside of its shape")]
    Outside { offsets: Vec<u64>, shape: Vec<u64> },
    #[error("it has {found} parts; at most {BOXES_MAX} are joined")]
    TooMany { found: usize },
    #[error("two parts have its element {at:?}")]
    Overlap { at: Vec<u64> },
    #[error("no part has its element {at:?}")]
    Gap { at: Vec<u64> },
}

/// Ranges of indices, one for each dimension.
type Area = SmallVec<[Range<u64>; 4]>;

/// Checks that boxes cover each element of an array with this shape once. No box may be empty.
pub fn check_cover(shape: &[u64], boxes: &[ArrayBox]) -> Result<(), BoxFault> {
    for one in boxes {
        let ranks = [one.offsets.len(), one.shape.len(), one.strides.len()];
        if let Some(found) = ranks.into_iter().find(|rank| *rank != shape.len()) {
            return Err(BoxFault::Rank { found, expected: shape.len() });
        }
        let ends = one.offsets.iter().zip(&one.shape).map(|(start, len)| start.checked_add(*len));
        if !ends.zip(shape).all(|(end, len)| end.is_some_and(|end| end <= *len)) {
            return Err(BoxFault::Outside { offsets: one.offsets.to_vec(), shape: one.shape.to_vec() });
        }
    }
    if boxes.len() > BOXES_MAX {
        return Err(BoxFault::TooMany { found: boxes.len() });
    }
    let kept = wide_dims(shape);
    let place = |found: Vec<u64>| {
        let mut at = vec![0; shape.len()];
        kept.iter().zip(found).for_each(|(dim, index)| at[*dim] = index);
        at
    };
    let areas: Vec<Area> = boxes.iter().map(|one| kept.iter().map(|dim| one.range(*dim)).collect()).collect();
    if let Some(at) = intersection(&areas) {
        return Err(BoxFault::Overlap { at: place(at) });
    }
    match gap(kept.iter().map(|dim| 0..shape[*dim]).collect(), areas) {
        Some(at) => Err(BoxFault::Gap { at: place(at) }),
        None => Ok(()),
    }
}

/// The dimensions of an array that do not have one element. An array of less than 2^63 bytes has at most 63 with more,
/// but may have thousands with one.
pub(super) fn wide_dims(shape: &[u64]) -> Vec<usize> {
    (0..shape.len()).filter(|dim| shape[*dim] != 1).collect()
}

/// An element that two boxes have. Sweeps along the dimension in which the boxes begin at the most different places.
fn intersection(boxes: &[Area]) -> Option<Vec<u64>> {
    let dims = boxes.first()?.len();
    let starts = |dim: usize| boxes.iter().map(|one| one[dim].start).collect::<HashSet<u64>>().len();
    let Some(along) = (0..dims).max_by_key(|dim| starts(*dim)) else {
        return (boxes.len() > 1).then(Vec::new);
    };
    let mut sorted: Vec<&Area> = boxes.iter().collect();
    sorted.sort_by_key(|one| one[along].start);
    let mut reached: Vec<&Area> = Vec::new();
    for one in sorted {
        reached.retain(|other| other[along].end > one[along].start);
        let meets = |other: &&&Area| one.iter().zip(&***other).all(|(a, b)| a.start < b.end && b.start < a.end);
        if let Some(other) = reached.iter().find(meets) {
            return Some(one.iter().zip(&***other).map(|(a, b)| a.start.max(b.start)).collect());
        }
        reached.push(one);
    }
    None
}

/// An element of `area` that none of `boxes` has, which lie inside and do not intersect. Halves the area, and goes on
/// in a half that has more elements than its boxes.
fn gap(mut area: Area, mut boxes: Vec<Area>) -> Option<Vec<u64>> {
    let is_covered =
        |area: &Area, boxes: &[Area]| boxes.iter().map(volume).fold(0, u128::saturating_add) == volume(area);
    if is_covered(&area, &boxes) {
        return None;
    }
    while !boxes.is_empty() {
        let cuts = (0..area.len()).map(|dim| {
            let bounds = boxes.iter().flat_map(|one| [one[dim].start, one[dim].end]);
            let mut bounds: Vec<u64> = bounds.filter(|at| area[dim].start < *at && *at < area[dim].end).collect();
            bounds.sort_unstable();
            bounds.dedup();
            (bounds.len(), dim, bounds.get(bounds.len() / 2).copied())
        });
        // A box that leaves a part of the area out has a bound inside.
        let Some((_, dim, Some(cut))) = cuts.max_by_key(|(count, ..)| *count) else { break };
        let (mut before, mut after) = (area.clone(), area);
        (before[dim].end, after[dim].start) = (cut, cut);
        let within = |half: &Area| -> Vec<Area> {
            let range = &half[dim];
            let cut = boxes.iter().cloned().map(|mut one| {
                one[dim] = one[dim].start.max(range.start)..one[dim].end.min(range.end);
                one
            });
            cut.filter(|one| !one[dim].is_empty()).collect()
        };
        let first = within(&before);
        (area, boxes) = if is_covered(&before, &first) { (after.clone(), within(&after)) } else { (before, first) };
    }
    Some(area.iter().map(|range| range.start).collect())
}

/// The number of elements, which is less than 2^63 for an array that is not too long.
fn volume(area: &Area) -> u128 {
    area.iter().fold(1, |volume: u128, range| volume.saturating_mul((range.end - range.start).into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::{ArrayPlace, Content, ReadRequest, Segment, StridedData};
    use crate::source::{MemorySource, Source};
    use proptest::prelude::*;
    use std::sync::Arc;

    fn plain(offsets: &[u64], shape: &[u64]) -> ArrayBox {
        let strides = SmallVec::from_elem(0, shape.len());
        ArrayBox { offsets: offsets.into(), shape: shape.into(), strides }
    }

    fn check(shape: &[u64], boxes: &[ArrayBox]) -> Result<(), BoxFault> {
        check_cover(shape, boxes)
    }

    /// Every index of an array with this shape, in C order.
    fn indices(shape: &[u64]) -> impl Iterator<Item = Vec<u64>> {
        let shape = shape.to_vec();
        (0..shape.iter().product::<u64>()).map(move |at| {
            let mut rest = at;
            let mut index: Vec<u64> = shape
                .iter()
                .rev()
                .map(|len| {
                    let here = rest % len;
                    rest /= len;
                    here
                })
                .collect();
            index.reverse();
            index
        })
    }

    fn holds(one: &ArrayBox, index: &[u64]) -> bool {
        index.iter().enumerate().all(|(dim, at)| one.range(dim).contains(at))
    }

    /// Boxes that cover an array: it is cut again and again, at random.
    fn cut(shape: &[u64], cuts: &[(usize, usize, u64)]) -> Vec<ArrayBox> {
        let mut boxes = vec![plain(&vec![0; shape.len()], shape)];
        for (at, dim, cut) in cuts.iter().filter(|_| !shape.is_empty()) {
            let (at, dim) = (at % boxes.len(), dim % shape.len());
            let cut = cut % boxes[at].shape[dim];
            let mut rest = boxes[at].clone();
            (rest.offsets[dim], rest.shape[dim]) = (rest.offsets[dim] + cut, rest.shape[dim] - cut);
            boxes[at].shape[dim] = cut;
            boxes.push(rest);
            boxes.retain(|one| !one.shape.contains(&0));
        }
        boxes
    }

    fn cuts() -> impl Strategy<Value = Vec<(usize, usize, u64)>> {
        prop::collection::vec((0..1000usize, 0..1000usize, 0..1000u64), 0..12)
    }

    proptest! {
        #[test]
        fn faults_are_found_as_by_counting(
            shape in prop::collection::vec(1u64..6, 0..4),
            cuts in cuts(),
            change in 0..4,
            seed in any::<u64>(),
        ) {
            let mut boxes = cut(&shape, &cuts);
            let at = seed as usize % boxes.len();
            match change {
                0 => {}
                1 => drop(boxes.swap_remove(at)),
                2 => boxes.push(boxes[at].clone()),
                // Another box in its place, with as many elements.
                _ => {
                    for (dim, len) in shape.iter().enumerate() {
                        boxes[at].offsets[dim] = seed % (len - boxes[at].shape[dim] + 1);
                    }
                }
            }
            let times = |index: &[u64]| boxes.iter().filter(|one| holds(one, index)).count();
            match check(&shape, &boxes) {
                Ok(()) => prop_assert!(indices(&shape).all(|index| times(&index) == 1)),
                Err(BoxFault::Gap { at }) => prop_assert_eq!(times(&at), 0),
                Err(BoxFault::Overlap { at }) => prop_assert!(times(&at) > 1),
                Err(fault) => prop_assert!(false, "{fault}"),
            }
        }

        /// Boxes in several sources, some of them transposed.
        #[test]
        fn any_range_of_an_array_of_boxes_is_gathered(
            shape in prop::collection::vec(1u64..9, 0..4),
            cuts in cuts(),
            size in prop_oneof![Just(1usize), Just(2), Just(3), Just(8)],
            transposed in any::<u32>(),
            (from, to) in (0u64..3000, 0u64..3000),
        ) {
            let len = shape.iter().product::<u64>() * size as u64;
            let whole: Vec<u8> = (0..len as u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
            let place = |index: &[u64]| {
                let at = index.iter().zip(&shape).fold(0, |at, (index, len)| at * len + index) as usize * size;
                &whole[at..at + size]
            };
            let boxes = cut(&shape, &cuts).into_iter().enumerate().map(|(number, mut one)| {
                let mut stride = 1;
                let mut order: Vec<usize> = (0..shape.len()).rev().collect();
                if transposed >> number & 1 == 1 {
                    order.reverse();
                }
                for dim in order {
                    (one.strides[dim], stride) = (stride, stride * one.shape[dim]);
                }
                let start = number % 3;
                let mut bytes = vec![0xee; start + stride as usize * size];
                for index in indices(&shape).filter(|index| holds(&one, index)) {
                    let at: u64 = (0..shape.len()).map(|dim| (index[dim] - one.offsets[dim]) * one.strides[dim]).sum();
                    bytes[start + at as usize * size..][..size].copy_from_slice(place(&index));
                }
                let source: Arc<dyn Source> = Arc::new(MemorySource::new(bytes));
                (one, ArrayPlace { source, start: start as u64 })
            });
            let array = StridedData::of_boxes(&shape, size, boxes.collect()).unwrap();
            prop_assert_eq!(array.layout.nbytes(), len);
            let (from, to) = (from.min(to).min(len), to.max(from).min(len));
            let mut read = Vec::new();
            Content::from(Segment::Strided(array.clone())).copy(from..to, &ReadRequest::WAIT, &mut read).unwrap();
            prop_assert_eq!(&read[..], &whole[from as usize..to as usize]);
            array.visit_runs(&(from..to), &mut |source, run| assert!(run.end <= source.len()));
        }
    }

    #[test]
    fn boxes_outside_of_an_array_are_refused() {
        let outside = |offsets: &[u64], shape: &[u64]| {
            Err(BoxFault::Outside { offsets: offsets.to_vec(), shape: shape.to_vec() })
        };
        let shape = [4, 6];
        assert_eq!(check(&shape, &[plain(&[0, 0], &[4, 7])]), outside(&[0, 0], &[4, 7]));
        assert_eq!(check(&shape, &[plain(&[u64::MAX, 0], &[1, 6])]), outside(&[u64::MAX, 0], &[1, 6]));
        assert_eq!(check(&shape, &[plain(&[0], &[4])]), Err(BoxFault::Rank { found: 1, expected: 2 }));
        assert_eq!(check(&[0, 6], &[]), Ok(()));
        assert_eq!(check(&[], &[plain(&[], &[])]), Ok(()));
        assert_eq!(check(&[], &[]), Err(BoxFault::Gap { at: vec![] }));
    }

    /// Neither thousands of parts, nor parts that overlap everywhere, nor many dimensions take long.
    #[test]
    fn many_boxes_are_checked() {
        const SIDE: u64 = 96;
        let grid = (0..SIDE * SIDE).map(|at| plain(&[at / SIDE * 3, at % SIDE * 5], &[3, 5]));
        let grid: Vec<ArrayBox> = grid.collect();
        let shape = [SIDE * 3, SIDE * 5];
        assert_eq!(check(&shape, &grid), Ok(()));
        let missing: Vec<ArrayBox> = grid.iter().filter(|one| one.offsets[..] != [30, 100]).cloned().collect();
        assert_eq!(check(&shape, &missing), Err(BoxFault::Gap { at: vec![30, 100] }));
        let crossing = (0..5000).flat_map(|at| [plain(&[at, 0], &[2, 20_000]), plain(&[0, at], &[20_000, 2])]);
        let crossing: Vec<ArrayBox> = crossing.collect();
        assert!(matches!(check(&[20_000, 20_000], &crossing), Err(BoxFault::Overlap { .. })));
        let nested: Vec<ArrayBox> = (0..10_000).map(|at| plain(&[at, at], &[20_000 - at, 20_000 - at])).collect();
        assert!(matches!(check(&[20_000, 20_000], &nested), Err(BoxFault::Overlap { .. })));
        let too_many = [&grid[..], &grid[..1000]].concat();
        assert_eq!(check(&shape, &too_many), Err(BoxFault::TooMany { found: 10_216 }));

        // The first dimensions select one of the others, which is cut in two there: cutting at the bounds of all boxes
        // gives 2^24 areas.
        let (selectors, data) = (5, 24);
        let shape = vec![2; selectors + data];
        let boxes = (0..1u64 << selectors).flat_map(|selected| {
            [0, 1].map(|half| {
                let mut one = plain(&vec![0; selectors + data], &vec![2; selectors + data]);
                for bit in 0..selectors {
                    (one.offsets[bit], one.shape[bit]) = (selected >> bit & 1, 1);
                }
                let dim = selectors + selected as usize % data;
                (one.offsets[dim], one.shape[dim]) = (half, 1);
                one
            })
        });
        let boxes: Vec<ArrayBox> = boxes.collect();
        assert_eq!(check(&shape, &boxes), Ok(()));
        assert!(matches!(check(&shape, &boxes[1..]), Err(BoxFault::Gap { .. })));

        // Dimensions of one element do not count.
        let mut shape = vec![1; 20_000];
        shape[0] = 2;
        let half = |at: u64| {
            let mut one = plain(&vec![0; 20_000], &vec![1; 20_000]);
            one.offsets[0] = at;
            one
        };
        assert_eq!(check(&shape, &[half(0), half(1)]), Ok(()));
        assert_eq!(check(&shape, &[half(1)]).unwrap_err(), BoxFault::Gap { at: vec![0; 20_000] });
        let place = |bytes: &[u8]| ArrayPlace { source: Arc::new(MemorySource::new(bytes.to_vec())), start: 0 };
        let array = StridedData::of_boxes(&shape, 2, vec![(half(1), place(b"cd")), (half(0), place(b"ab"))]).unwrap();
        let mut read = Vec::new();
        Content::from(Segment::Strided(array)).copy(1..3, &ReadRequest::WAIT, &mut read).unwrap();
        assert_eq!(read, b"bc");
    }
}
