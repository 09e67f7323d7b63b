//! Tensors that are made of boxes: parts with a range of indices along every dimension, each of which is a tensor of a
//! file. Checkpoints of several processes consist of them.

use super::assembled::{SourcePart, TensorAssembly};
use super::ids::ModelFileId;
use crate::content::{ArrayBox, ArrayPlace, StridedData};
use crate::format::{DtypeBlock, HeaderTensor};
use smallvec::SmallVec;
use std::collections::HashSet;

/// A part of a tensor.
#[derive(Debug, Clone)]
pub(super) struct TensorBox<'t> {
    pub file: ModelFileId,
    pub stored: HeaderTensor<'t>,
    /// The index of its first element in the whole tensor.
    pub offsets: &'t [u64],
}

impl TensorAssembly {
    /// The data of a tensor of this shape that is made of boxes of its dtype, as [`TensorAssembly::push`] takes it. Of
    /// boxes in the same place, which several processes have saved, the first counts. All others together must cover
    /// the tensor exactly. The error is the reason why they do not make the tensor.
    pub fn join_boxes(&mut self, shape: &[u64], boxes: &[TensorBox]) -> Result<Vec<SourcePart>, String> {
        let mut boxes: Vec<&TensorBox> = boxes.iter().filter(|one| !one.stored.shape.contains(&0)).collect();
        let mut places = HashSet::new();
        boxes.retain(|one| places.insert((one.offsets, one.stored.shape)));
        if let [one] = boxes[..]
            && one.stored.shape == shape
            && one.offsets.iter().all(|at| *at == 0)
        {
            return Ok(vec![self.stored(one.file, &one.stored)]);
        }
        let Some(first) = boxes.first() else {
            // An array without elements needs no parts.
            return StridedData::of_boxes(shape, 1, Vec::new()).map(|_| Vec::new()).map_err(|fault| fault.to_string());
        };
        let dtype = first.stored.dtype;
        let block = dtype.block().ok_or_else(|| format!("its dtype is {}, of unknown size", dtype.quoted()))?;
        let shape = in_blocks(shape, block)?;
        let len = shape.iter().try_fold(block.bytes, |len, dim| len.checked_mul(*dim));
        if len.is_none_or(|len| len > i64::MAX as u64) {
            return Err("it would be too long".into());
        }
        let parts = boxes.iter().map(|one| Ok((self.array_box(one, block)?, one)));
        let mut parts = parts.collect::<Result<Vec<_>, String>>()?;
        parts.sort_by(|a, b| a.0.0.offsets.cmp(&b.0.0.offsets));
        let are_runs = parts.iter().all(|((part, _), _)| is_run(part, &shape));
        let places = parts.iter().map(|((part, (source, start)), _)| {
            (part.clone(), ArrayPlace { source: self.source(*source).clone(), start: *start })
        });
        let array = StridedData::of_boxes(&shape, block.bytes as usize, places.collect());
        let array = array.map_err(|fault| fault.to_string())?;
        Ok(match are_runs {
            true => {
                parts.iter().map(|((_, (source, start)), one)| (*source, *start..start + one.stored.nbytes)).collect()
            }
            false => vec![self.gather(parts[0].1.file, array)],
        })
    }

    /// A box in units of blocks of its dtype, and where it lies: the number of a source, and a position in bytes.
    fn array_box(&mut self, one: &TensorBox, block: DtypeBlock) -> Result<(ArrayBox, (usize, u64)), String> {
        let (offsets, shape) = (in_blocks(one.offsets, block)?, in_blocks(one.stored.shape, block)?);
        let kept = one.stored.layout.filter(|layout| layout.word == 1 && block.elements == 1);
        let (strides, place) = match kept {
            Some(layout) => (layout.strides.into(), (one.file.index(), one.stored.range.start)),
            None => {
                let (source, range) = self.stored(one.file, &one.stored);
                (c_strides(&shape), (source, range.start))
            }
        };
        Ok((ArrayBox { offsets, shape, strides }, place))
    }
}

/// Indices or a shape, with the last dimension in blocks of a dtype.
fn in_blocks(dims: &[u64], block: DtypeBlock) -> Result<SmallVec<[u64; 2]>, String> {
    let mut dims: SmallVec<[u64; 2]> = dims.into();
    if let Some(last) = dims.last_mut() {
        if *last % block.elements != 0 {
            return Err(format!("the rows of a part are not whole blocks of {} elements", block.elements));
        }
        *last /= block.elements;
    }
    Ok(dims)
}

/// The strides of an array in C order.
fn c_strides(shape: &[u64]) -> SmallVec<[u64; 2]> {
    let mut stride = 1u64;
    let inner_first = shape.iter().rev().map(|len| {
        let here = stride;
        stride = stride.saturating_mul(*len);
        here
    });
    let mut strides: SmallVec<[u64; 2]> = inner_first.collect();
    strides.reverse();
    strides
}

/// Whether the elements of a box follow each other, in its place as in an array of this shape.
fn is_run(part: &ArrayBox, shape: &[u64]) -> bool {
    let outer = part.shape.iter().take_while(|len| **len == 1).count();
    let is_whole = part.shape.iter().zip(shape).skip(outer + 1).all(|(part, whole)| part == whole);
    is_whole && part.strides == c_strides(&part.shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::{Content, ReadRequest, Segment};
    use crate::format::{Dtype, TensorInfo, TensorLayout};
    use crate::source::{MemorySource, Source};
    use std::sync::Arc;

    /// Two files with the numbers from 0 and from 100 on, as one byte each.
    fn assembly() -> TensorAssembly {
        let file = |first: u8| Arc::new(MemorySource::new((first..first + 100).collect())) as Arc<dyn Source>;
        TensorAssembly::new(&[file(0), file(100)].into())
    }

    /// A tensor of bytes that begins at `start` of a file.
    fn part<'t>(file: usize, start: u64, shape: &'t [u64], offsets: &'t [u64]) -> TensorBox<'t> {
        let nbytes = shape.iter().product();
        let info = TensorInfo { name: "t", dtype: Dtype::U8, shape, nbytes };
        let stored = HeaderTensor { info, range: start..start + nbytes, layout: None };
        TensorBox { file: ModelFileId::new(file), stored, offsets }
    }

    fn read(assembly: &TensorAssembly, parts: &[SourcePart]) -> Vec<u8> {
        let read = |(source, range): &SourcePart| {
            let extent = Segment::extent(assembly.source(*source), range.clone());
            Content::from(extent).read(0..range.end - range.start, &ReadRequest::WAIT).unwrap().to_vec()
        };
        parts.iter().flat_map(read).collect()
    }

    #[test]
    fn boxes_of_whole_rows_stay_runs_of_their_files() {
        let mut assembly = assembly();
        let boxes = [part(1, 5, &[2, 3], &[1, 0]), part(0, 7, &[1, 3], &[0, 0]), part(1, 0, &[0, 3], &[3, 0])];
        let parts = assembly.join_boxes(&[3, 3], &boxes).unwrap();
        assert_eq!(parts, [(0, 7..10), (1, 5..11)]);
        // A box of each matrix of a stack, and of half of the rows of a matrix.
        let boxes =
            [part(0, 0, &[1, 2, 2], &[1, 0, 0]), part(0, 8, &[1, 1, 2], &[0, 1, 0]), part(1, 0, &[1, 1, 2], &[0; 3])];
        let parts = assembly.join_boxes(&[2, 2, 2], &boxes).unwrap();
        assert_eq!(parts, [(1, 0..2), (0, 8..10), (0, 0..4)]);
    }

    #[test]
    fn boxes_of_columns_are_gathered_and_replicas_dropped() {
        let mut assembly = assembly();
        let boxes = [
            part(0, 10, &[2, 2], &[0, 1]),
            part(1, 0, &[2, 1], &[0, 0]),
            part(1, 50, &[2, 2], &[0, 1]),
            part(1, 20, &[2, 0], &[0, 3]),
        ];
        let parts = assembly.join_boxes(&[2, 3], &boxes).unwrap();
        assert_eq!(parts, [(2, 0..6)]);
        assert_eq!(read(&assembly, &parts), [100, 10, 11, 101, 12, 13]);
        assert_eq!(assembly.join_boxes(&[2, 4], &boxes).unwrap_err(), "no part has its element [0, 3]");
        let replicas = [part(0, 3, &[], &[]), part(1, 3, &[], &[])];
        assert_eq!(assembly.join_boxes(&[], &replicas).unwrap(), [(0, 3..4)]);
        assert_eq!(assembly.join_boxes(&[0, 4], &[part(0, 3, &[0, 4], &[0, 0])]).unwrap(), []);
        let outside = assembly.join_boxes(&[4], &[part(0, 0, &[4], &[1])]).unwrap_err();
        assert!(outside.contains("outside of its shape"), "{outside}");
    }

    #[test]
    fn boxes_in_other_orders_and_of_packed_elements_are_joined() {
        let mut assembly = assembly();
        let (turned, swapped) = ([1, 2], [2, 1]);
        let mut boxes = [part(0, 0, &[2, 2], &[0, 0]), part(1, 0, &[2, 2], &[0, 2])];
        boxes[0].stored.layout = Some(TensorLayout { strides: &turned, size: 1, word: 1 });
        let parts = assembly.join_boxes(&[2, 4], &boxes).unwrap();
        assert_eq!(read(&assembly, &parts), [0, 2, 100, 101, 1, 3, 102, 103]);
        // Big-endian numbers beside little-endian ones.
        for one in &mut boxes {
            (one.stored.info.dtype, one.stored.info.nbytes, one.stored.range.end) = (Dtype::U16, 8, 8);
        }
        boxes[0].stored.layout = Some(TensorLayout { strides: &swapped, size: 2, word: 2 });
        let parts = assembly.join_boxes(&[2, 4], &boxes).unwrap();
        assert_eq!(read(&assembly, &parts), [1, 0, 3, 2, 100, 101, 102, 103, 5, 4, 7, 6, 104, 105, 106, 107]);
        // Two elements share a byte.
        for one in &mut boxes {
            let HeaderTensor { info, range, layout } = &mut one.stored;
            (info.dtype, info.nbytes, range.end, *layout) = (Dtype::from_name("F4"), 2, 2, None);
        }
        let parts = assembly.join_boxes(&[2, 4], &boxes).unwrap();
        assert_eq!(read(&assembly, &parts), [0, 100, 1, 101]);
        boxes[1].offsets = &[0, 1];
        let refused = assembly.join_boxes(&[2, 3], &boxes).unwrap_err();
        assert_eq!(refused, "the rows of a part are not whole blocks of 2 elements");
        boxes[0].stored.info.dtype = Dtype::Unknown("X8");
        let refused = assembly.join_boxes(&[2, 3], &boxes).unwrap_err();
        assert_eq!(refused, "its dtype is \"X8\", of unknown size");
    }
}
