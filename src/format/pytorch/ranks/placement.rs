//! Which part of a DTensor a process holds: its placements along the dimensions of a mesh of processes.
//!
//! Source: `torch/distributed/tensor/placement_types.py` and `torch/distributed/device_mesh.py` of torch 2.4 to 2.15.

use super::{
    BoxDims, F4_PAIR, HeldTensor, RankBox, RankReader, TENSOR_BOXES_MAX, brackets, check_local, double_last, quote,
};
use crate::format::dtype::Dtype;
use crate::format::pickle::PickleValue;
use crate::format::pytorch::rebuild::PickledTensor;
use crate::format::pytorch::value::{ValueKind, value_kind};
use crate::format::tensors::c_strides;
use std::ops::Range;

/// Maximum number of pieces that a placement cuts a dimension into.
const PIECES_MAX: u64 = 10_000;

/// Ranges of indices along one dimension, in the order of the elements of the part.
type IndexList = Vec<Range<u64>>;

/// The dimensions of a mesh of processes, and where a process is.
struct MeshPlace {
    sizes: Vec<u64>,
    /// `None` if the process is not in the mesh.
    coordinate: Option<Vec<u64>>,
}

impl RankReader<'_> {
    /// What this process holds of a DTensor.
    pub fn dtensor(&self, args: &[PickleValue], state: PickleValue) -> Result<HeldTensor, String> {
        let (dtype, mut shape) = self.described(args)?;
        let local = self.plain(self.field_of(state, "_local_tensor", "\"DTensor\"")?, "its local tensor")?;
        let spec = self.object(self.field_of(state, "_spec", "\"DTensor\"")?, "DTensorSpec")?;
        let mesh = self.mesh(self.field(spec, "mesh")?)?;
        let placements = self.dims(self.field(spec, "placements")?, "the placements")?;
        if placements.len() != mesh.sizes.len() {
            let (found, dims) = (placements.len(), mesh.sizes.len());
            return Err(format!("{found} placements on a mesh of {dims} dimensions"));
        }
        let mut boxes = Vec::new();
        if let Some(coordinate) = &mesh.coordinate {
            let mut lists: Vec<IndexList> =
                shape.iter().map(|len| std::iter::once(0..*len).filter(|all| !all.is_empty()).collect()).collect();
            for (placement, (size, at)) in placements.iter().zip(mesh.sizes.iter().zip(coordinate)) {
                self.place(*placement, (*size, *at), &mut lists)?;
            }
            let sizes: BoxDims = lists.iter().map(|list| length(list)).collect();
            check_local(&local, dtype, &sizes)?;
            boxes = self.boxes(&local, &lists)?;
        }
        if dtype.name == F4_PAIR {
            double_last(&mut shape);
        }
        Ok(HeldTensor { is_sharded: true, dtype: Dtype::from_name(dtype.name), shape, boxes })
    }

    fn mesh(&self, value: PickleValue) -> Result<MeshPlace, String> {
        let mesh = self.object(value, "DeviceMesh")?;
        let sizes = match self.find(mesh.state, "_layout")? {
            Some(layout) if layout != PickleValue::None => self.layout_sizes(layout)?,
            _ => self.plain(self.field(mesh, "mesh")?, "the mesh")?.shape,
        };
        let coordinate = match self.field(mesh, "_coordinate_on_dim")? {
            PickleValue::None => None,
            value => Some(self.numbers(value, "the coordinate in the mesh")?.to_vec()),
        };
        let is_inside = |coordinate: &Vec<u64>| {
            coordinate.len() == sizes.len() && coordinate.iter().zip(&sizes).all(|(at, size)| at < size)
        };
        if let Some(coordinate) = coordinate.as_ref().filter(|coordinate| !is_inside(coordinate)) {
            let (at, sizes) = (brackets(coordinate), brackets(&sizes));
            return Err(format!("the process is at {at} in a mesh of {sizes} processes"));
        }
        Ok(MeshPlace { sizes, coordinate })
    }

    /// The sizes of a mesh. Torch 2.15 has an object for each dimension, and versions before it a tuple of sizes.
    fn layout_sizes(&self, layout: PickleValue) -> Result<Vec<u64>, String> {
        let layout = self.object(layout, "_MeshLayout")?;
        let what = "the layout of the mesh";
        let dims = match self.find(layout.state, "axes")? {
            Some(axes) => {
                let axes = self.dims(axes, what)?.iter();
                let shapes = axes.map(|axis| self.field(self.object(*axis, "_FlatLayout")?, "shape"));
                shapes.collect::<Result<Vec<_>, String>>()?
            }
            None => match self.field(layout, "shape")? {
                size @ PickleValue::Int(_) => vec![size],
                shape => self.dims(shape, what)?.to_vec(),
            },
        };
        dims.iter().map(|dim| self.product(*dim, what)).collect()
    }

    /// A number, or the product of a tuple of numbers.
    fn product(&self, value: PickleValue, what: &str) -> Result<u64, String> {
        match value_kind(self.tree, value) {
            ValueKind::List(_) => {
                let numbers = self.numbers(value, what)?;
                let product = numbers.iter().try_fold(1u64, |product, number| product.checked_mul(*number));
                product.ok_or_else(|| format!("{what} has more than 2^64 processes"))
            }
            _ => self.number(value, what),
        }
    }

    /// Keeps what process `at` of `size` holds by a placement.
    fn place(&self, placement: PickleValue, (size, at): (u64, u64), lists: &mut [IndexList]) -> Result<(), String> {
        let object = self.tree.object(placement).filter(|object| !object.is_call);
        let class = object.and_then(|object| self.tree.global(object.class));
        let (Some(object), Some((module, name))) = (object, class) else {
            return Err("a placement is no object of a class".to_owned());
        };
        let is_known = module.starts_with(super::DISTRIBUTED);
        match name {
            "Replicate" if is_known => Ok(()),
            "Shard" | "_StridedShard" if is_known => {
                let dim = self.number(self.field(object, "dim")?, "the dimension of a placement")?;
                let rank = lists.len();
                let list = usize::try_from(dim).ok().and_then(|dim| lists.get_mut(dim));
                let list = list.ok_or_else(|| format!("a placement cuts dimension {dim} of {rank}"))?;
                let pieces = match name {
                    "Shard" => 1,
                    _ => self.number(self.field(object, "split_factor")?, "the split factor of a placement")?,
                };
                *list = self.cut_list(list, pieces, (size, at))?;
                Ok(())
            }
            "Partial" | "_Partial" if is_known => {
                Err("its placement is Partial: its values are sums over processes that were not computed".to_owned())
            }
            _ => Err(format!("its placement {} is not known", quote(&format!("{module}.{name}")))),
        }
    }

    /// As [`cut`], within the limits.
    fn cut_list(&self, list: &[Range<u64>], pieces: u64, (size, at): (u64, u64)) -> Result<IndexList, String> {
        if pieces == 0 || pieces > PIECES_MAX {
            return Err(format!("a placement has the split factor {pieces}; at most {PIECES_MAX} is read"));
        }
        self.spend((list.len() + 1).saturating_mul(pieces as usize))?;
        let cut = cut(list, pieces, (size, at));
        if cut.len() as u64 > PIECES_MAX {
            return Err(format!("it has {} ranges of indices; at most {PIECES_MAX} are read", cut.len()));
        }
        Ok(cut)
    }

    /// The boxes that a local tensor consists of. The lists have its sizes.
    fn boxes(&self, local: &PickledTensor, lists: &[IndexList]) -> Result<Vec<RankBox>, String> {
        let count = lists.iter().try_fold(1usize, |count, list| count.checked_mul(list.len())).unwrap_or(usize::MAX);
        if count > TENSOR_BOXES_MAX {
            return Err(format!("it has {count} parts in the file; at most {TENSOR_BOXES_MAX} are joined"));
        }
        self.take_boxes(count, lists.len())?;
        let strides = local.strides.clone().unwrap_or_else(|| c_strides(&local.shape));
        let size = u64::from(local.dtype.size);
        // The index of the current range of each dimension, and the index of its first element in the local tensor.
        let mut current: Vec<(usize, u64)> = vec![(0, 0); lists.len()];
        let mut boxes = Vec::with_capacity(count);
        for _ in 0..count {
            let ranges = || lists.iter().zip(&current).map(|(list, (at, _))| &list[*at]);
            let mut offsets: BoxDims = ranges().map(|range| range.start).collect();
            let shape: BoxDims = ranges().map(|range| range.end - range.start).collect();
            let before: u64 = current.iter().zip(&strides).map(|((_, start), stride)| start * stride).sum();
            let part = self.part_of(local.dtype, &shape, &strides, local.range.start + before * size)?;
            if local.dtype.name == F4_PAIR {
                double_last(&mut offsets);
            }
            boxes.push(RankBox { offsets, part });
            for (list, (at, start)) in lists.iter().zip(&mut current).rev() {
                *start += list[*at].end - list[*at].start;
                *at += 1;
                if *at < list.len() {
                    break;
                }
                (*at, *start) = (0, 0);
            }
        }
        Ok(boxes)
    }
}

/// Number of indices.
fn length(list: &[Range<u64>]) -> u64 {
    list.iter().map(|range| range.end - range.start).sum()
}

/// Cuts a list into pieces, and takes part `at` of `size` of each.
fn cut(list: &[Range<u64>], pieces: u64, (size, at): (u64, u64)) -> IndexList {
    let len = length(list);
    let mut cut = IndexList::new();
    for piece in 0..pieces {
        let Range { start, end } = part_of(len, pieces, piece);
        let Range { start: from, end: to } = part_of(end - start, size, at);
        take_range(list, start + from..start + to, &mut cut);
    }
    cut
}

/// Part `at` of `count` of so many elements, of which the last parts may be shorter or empty.
fn part_of(len: u64, count: u64, at: u64) -> Range<u64> {
    let part = len.div_ceil(count);
    let start = part.saturating_mul(at).min(len);
    start..start.saturating_add(part).min(len)
}

/// Adds the indices at these positions of a list.
fn take_range(list: &[Range<u64>], positions: Range<u64>, taken: &mut IndexList) {
    let mut before = 0;
    for range in list {
        let after = before + (range.end - range.start);
        let (from, to) = (positions.start.max(before), positions.end.min(after));
        if from < to {
            let (start, end) = (range.start + (from - before), range.start + (to - before));
            match taken.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => taken.push(start..end),
            }
        }
        before = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// All processes of a mesh together have each index once, whatever it is cut into.
        #[test]
        fn parts_of_all_processes_are_the_whole(
            len in 0u64..40,
            placements in prop::collection::vec((1u64..5, 1u64..5), 1..4),
        ) {
            let places: u64 = placements.iter().map(|(_, size)| size).product();
            let mut found = Vec::new();
            for mut place in 0..places {
                let mut list: IndexList = std::iter::once(0..len).filter(|all| !all.is_empty()).collect();
                for (pieces, size) in &placements {
                    list = cut(&list, *pieces, (*size, place % size));
                    place /= size;
                }
                prop_assert!(list.windows(2).all(|two| two[0].end != two[1].start));
                found.extend(list.into_iter().flatten());
            }
            found.sort_unstable();
            prop_assert_eq!(found, (0..len).collect::<Vec<_>>());
        }
    }

    fn list(range: Range<u64>) -> IndexList {
        std::iter::once(range).collect()
    }

    #[test]
    fn pieces_are_cut_before_parts() {
        // 29 rows, cut for two processes of a tensor parallel model and then for two of FSDP.
        assert_eq!(cut(&list(0..29), 2, (2, 0)), [0..8, 15..22]);
        assert_eq!(cut(&list(0..29), 2, (2, 1)), [8..15, 22..29]);
        assert_eq!(cut(&[0..8, 15..22], 1, (2, 0)), list(0..8));
        assert_eq!(cut(&list(0..5), 1, (4, 3)), []);
        assert_eq!(part_of(5, u64::MAX, u64::MAX - 1), 5..5);
    }
}
