//! Zarr arrays: the data type and the order of the elements of a tensor, and the places of its chunks.

use super::grid::{ChunkGrid, StoredShape, common_divisor};
use crate::format::{Dtype, HeaderTensor, TensorInfo, TensorLayout};
use crate::model::{BytePlace, Model, TensorId};
use std::cmp::Reverse;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZarrFormat {
    V2,
    V3,
}

/// The data type of an array.
#[derive(Debug, Clone, Copy)]
pub(super) struct ZarrType {
    /// The name in format 3.
    pub name: &'static str,
    /// The NumPy letter, for format 2.
    pub kind: char,
    /// Size of an element in bytes.
    pub size: u64,
    /// Whether these are not the numbers of the tensor, but its bits as integers.
    pub is_bits: bool,
}

impl ZarrType {
    /// `None` for dtypes whose elements are not whole bytes of their own.
    fn of(dtype: Dtype) -> Option<Self> {
        let (name, kind, size) = match dtype {
            Dtype::Bool => ("bool", 'b', 1),
            Dtype::I8 => ("int8", 'i', 1),
            Dtype::I16 => ("int16", 'i', 2),
            Dtype::I32 => ("int32", 'i', 4),
            Dtype::I64 => ("int64", 'i', 8),
            Dtype::U8 => ("uint8", 'u', 1),
            Dtype::U16 => ("uint16", 'u', 2),
            Dtype::U32 => ("uint32", 'u', 4),
            Dtype::U64 => ("uint64", 'u', 8),
            Dtype::F16 => ("float16", 'f', 2),
            Dtype::F32 => ("float32", 'f', 4),
            Dtype::F64 => ("float64", 'f', 8),
            Dtype::C64 => ("complex64", 'c', 8),
            // zarr-python has no types for these.
            _ => {
                let (name, size) = match dtype.bits()? {
                    8 => ("uint8", 1),
                    16 => ("uint16", 2),
                    _ => return None,
                };
                return Some(Self { name, kind: 'u', size, is_bits: true });
            }
        };
        Some(Self { name, kind, size, is_bits: false })
    }
}

/// A tensor as a Zarr array.
#[derive(Debug)]
pub(super) struct ZarrArray<'m> {
    pub info: TensorInfo<'m>,
    pub dtype: ZarrType,
    pub is_big_endian: bool,
    /// The dimensions in the order of the bytes: neighbours along the last one lie one after the other.
    pub order: Vec<usize>,
    /// The grid has the dimensions in that order.
    pub grid: ChunkGrid,
    /// The bytes, in their order.
    pub places: Vec<BytePlace>,
}

impl<'m> ZarrArray<'m> {
    /// An error is the reason why chunks of at most `limit` bytes cannot be ranges of the files.
    pub fn of(model: &'m Model, id: TensorId, format: ZarrFormat, limit: u64) -> Result<Self, String> {
        let tensor = model.tensor(id);
        let dtype = tensor.info.dtype;
        let Some(element) = ZarrType::of(dtype) else {
            return Err(match dtype {
                Dtype::Unknown(_) => format!("unknown dtype {}", dtype.quoted()),
                _ if dtype.has_scales() => format!("the elements of {} share scales", dtype.quoted()),
                _ => format!("an element of {} is not a whole byte", dtype.quoted()),
            });
        };
        let (mut order, mut is_big_endian): (Vec<usize>, bool) = ((0..tensor.info.shape.len()).collect(), false);
        let mut places = tensor.places().into_vec();
        if let Some((file, HeaderTensor { range, layout: Some(layout), .. })) = tensor.stored() {
            let TensorLayout { strides, size, word } = *layout;
            let dense = dense_order(tensor.info.shape, strides).filter(|_| u64::from(size) == element.size);
            order = dense.ok_or("its elements do not lie one after the other")?;
            is_big_endian = word > 1;
            let start = range.start;
            places = vec![BytePlace { file, range: start..start.saturating_add(tensor.info.nbytes) }];
        } else if tensor.is_gathered() {
            return Err("its parts are not whole rows, or are in different orders".into());
        }
        if format == ZarrFormat::V2 && !is_in_order(&order) && !is_reversed(&order) {
            return Err("format 2 of Zarr does not have its order of dimensions".into());
        }
        let dims: Vec<u64> = order.iter().map(|axis| tensor.info.shape[*axis]).collect();
        let mut start = 0;
        let runs = places.iter().fold(0, |runs, BytePlace { range, .. }| {
            let before = start;
            start += range.end - range.start;
            common_divisor(runs, before)
        });
        let grid = ChunkGrid::cut(StoredShape { dims: &dims, size: element.size, runs }, limit)?;
        Ok(Self { info: tensor.info, dtype: element, is_big_endian, order, grid, places })
    }

    pub fn is_in_order(&self) -> bool {
        is_in_order(&self.order)
    }

    /// Shape of a chunk, with the dimensions in the order of the tensor.
    pub fn chunk_shape(&self) -> Vec<u64> {
        self.in_order(&self.grid.chunk)
    }

    /// Number of chunks along each dimension of the tensor.
    #[cfg(feature = "parquet")]
    pub fn chunk_counts(&self) -> Vec<u64> {
        self.in_order(&self.grid.counts)
    }

    /// Calls `take` with the index of each chunk, the number of its file, and its first byte there.
    pub fn each_chunk<E>(&self, mut take: impl FnMut(&[u64], usize, u64) -> Result<(), E>) -> Result<(), E> {
        let (mut run, mut within) = (0, 0);
        self.grid.each(|index| {
            while self.places.get(run).is_some_and(|place| place.range.start + within >= place.range.end) {
                (run, within) = (run + 1, 0);
            }
            // The grid has as many bytes as the places.
            let Some(BytePlace { file, range }) = self.places.get(run) else { return Ok(()) };
            let offset = range.start + within;
            within += self.grid.nbytes;
            match self.is_in_order() {
                true => take(index, file.index(), offset),
                false => take(&self.in_order(index), file.index(), offset),
            }
        })
    }

    /// Numbers of the dimensions in the order of the bytes, rearranged to that of the tensor.
    fn in_order(&self, numbers: &[u64]) -> Vec<u64> {
        let mut rearranged = vec![0; numbers.len()];
        self.order.iter().zip(numbers).for_each(|(axis, number)| rearranged[*axis] = *number);
        rearranged
    }
}

fn is_in_order(order: &[usize]) -> bool {
    order.is_sorted()
}

/// Whether the dimensions are in Fortran order.
fn is_reversed(order: &[usize]) -> bool {
    order.iter().rev().is_sorted()
}

/// The order of the dimensions in which all elements lie one after the other, the slowest dimension first. `strides`
/// are in elements. If several orders are right, C order is preferred, and then Fortran order.
fn dense_order(shape: &[u64], strides: &[u64]) -> Option<Vec<usize>> {
    let axes = 0..shape.len();
    let mut sorted: Vec<usize> = axes.clone().collect();
    sorted.sort_by_key(|axis| Reverse(strides[*axis]));
    let orders = [axes.clone().collect(), axes.rev().collect(), sorted];
    orders.into_iter().find(|order: &Vec<usize>| {
        let mut step = 1u64;
        shape.contains(&0)
            || order.iter().rev().all(|axis| {
                let fits = shape[*axis] == 1 || strides[*axis] == step;
                step = step.saturating_mul(shape[*axis]);
                fits
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shape, strides, and the expected order.
    type OrderCase = (&'static [u64], &'static [u64], Option<&'static [usize]>);

    #[test]
    fn orders_of_dimensions_are_found_by_their_strides() {
        let cases: [OrderCase; 9] = [
            (&[], &[], Some(&[])),
            (&[2, 3], &[3, 1], Some(&[0, 1])),
            (&[2, 3], &[1, 2], Some(&[1, 0])),
            (&[2, 1, 3], &[3, 7, 1], Some(&[0, 1, 2])),
            (&[2, 3, 4], &[4, 8, 1], Some(&[1, 0, 2])),
            (&[2, 3], &[0, 1], None),
            (&[2, 3], &[6, 2], None),
            (&[2, 3], &[4, 1], None),
            (&[0, 3], &[9, 9], Some(&[0, 1])),
        ];
        for (shape, strides, order) in cases {
            assert_eq!(dense_order(shape, strides).as_deref(), order, "{shape:?} {strides:?}");
        }
    }

    #[test]
    fn types_have_the_sizes_of_their_dtypes() {
        for dtype in Dtype::ALL {
            let bits = dtype.bits().filter(|bits| bits % 8 == 0);
            assert_eq!(ZarrType::of(*dtype).map(|element| element.size * 8), bits, "{}", dtype.name());
        }
    }
}
