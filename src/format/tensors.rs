//! A table of tensors: of those in a file, or of those that are made of parts of files.

use super::dtype::Dtype;
use super::names::NameTable;
use crate::text::brackets;
use std::num::NonZeroU32;
use std::ops::{Deref, Range};

/// What a tensor is, wherever its data lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// Any Unicode string, including `/`, NUL and the empty string.
    pub name: &'a str,
    pub dtype: Dtype<'a>,
    /// Dimensions in elements, outermost first; empty for a scalar.
    pub shape: &'a [u64],
    /// Size of the data in bytes.
    pub nbytes: u64,
}

/// A tensor that a header describes, with the place of its data in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderTensor<'a> {
    pub info: TensorInfo<'a>,
    /// In bytes from the start of the file. With a layout, it is shorter or longer than the data.
    pub range: Range<u64>,
    /// The places of the elements in that range, unless they lie there one after the other in C order and in
    /// little-endian byte order.
    pub layout: Option<TensorLayout<'a>>,
}

/// The places of the elements of a tensor in its range. The first element is at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorLayout<'a> {
    /// The distance of neighbours along each dimension, in elements.
    pub strides: &'a [u64],
    pub size: u32,
    /// Width in bytes of the numbers that are in big-endian order; 1 if none are. A complex element has two numbers.
    pub word: u8,
}

impl TensorInfo<'_> {
    /// Number of elements. For known dtypes the parser has checked that it fits into 64 bits.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, dim| product.saturating_mul(*dim))
    }
}

impl<'a> Deref for HeaderTensor<'a> {
    type Target = TensorInfo<'a>;

    fn deref(&self) -> &TensorInfo<'a> {
        &self.info
    }
}

/// Names, dtypes, shapes and ranges of tensors. No two have the same name. Methods with an index panic if it is not
/// below the number of tensors.
///
/// There may be a million tensors. Names and dimensions are in one arena each, so no tensor has an allocation of its
/// own.
#[derive(Debug, Default)]
pub struct TensorTable {
    pub(super) names: String,
    pub(super) dims: Vec<u64>,
    /// The names of unknown dtypes, each once.
    pub unknown_dtypes: Vec<String>,
    pub(super) records: Vec<TensorRecord>,
    /// What few tensors have.
    pub(super) details: Vec<RecordDetails>,
    pub(super) by_name: NameTable,
}

/// A tensor, as ranges of the arenas.
#[derive(Debug, Clone)]
pub(super) struct TensorRecord {
    pub range: Range<u64>,
    pub name: Range<u32>,
    /// Tensors of the same shape have the same range.
    pub dims: Range<u32>,
    /// Index into [`Dtype::ALL`], or past its end into the unknown dtypes.
    pub dtype: u32,
    /// Number of its details, counted from 1.
    pub details: Option<NonZeroU32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct RecordDetails {
    pub is_unusual: bool,
    pub layout: Option<PackedLayout>,
}

/// A [`TensorLayout`]. It has as many strides as the tensor has dimensions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PackedLayout {
    /// Index of the first stride in the arena of the dimensions.
    pub strides: u32,
    pub size: u32,
    pub word: u8,
}

/// Converts a range of an arena. [`super::HeaderBuilder`] limits the arenas to 32-bit indices.
pub(super) fn span(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

impl TensorTable {
    pub(super) fn shrink_to_fit(&mut self) {
        self.names.shrink_to_fit();
        self.dims.shrink_to_fit();
        self.records.shrink_to_fit();
        self.details.shrink_to_fit();
    }

    /// Makes the names searchable. Fails with the first name that is repeated.
    pub(super) fn index_names(&mut self) -> Result<(), String> {
        let mut by_name = NameTable::with_capacity(self.len());
        for index in 0..self.len() {
            if !by_name.insert(index, |index| self.name(index)) {
                return Err(self.name(index).to_owned());
            }
        }
        self.by_name = by_name;
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The tensor at `index`, in the order of the data.
    pub fn tensor(&self, index: usize) -> HeaderTensor<'_> {
        let record = &self.records[index];
        let dtype = numbered_dtype(&self.unknown_dtypes, record.dtype);
        let layout = self.details(record).layout.map(|PackedLayout { strides, size, word }| {
            let strides = strides..strides + (record.dims.end - record.dims.start);
            TensorLayout { strides: &self.dims[span(&strides)], size, word }
        });
        let (range, shape) = (record.range.clone(), &self.dims[span(&record.dims)]);
        let mut info = TensorInfo { name: self.name(index), dtype, shape, nbytes: range.end - range.start };
        if let Some(layout) = layout {
            info.nbytes = info.elements().saturating_mul(layout.size.into());
        }
        HeaderTensor { info, range, layout }
    }

    pub fn name(&self, index: usize) -> &str {
        &self.names[span(&self.records[index].name)]
    }

    /// Whether the entry of the tensor at `index` has a form that only some readers of the format accept.
    pub fn is_unusual(&self, index: usize) -> bool {
        self.details(&self.records[index]).is_unusual
    }

    fn details(&self, record: &TensorRecord) -> RecordDetails {
        record.details.map(|number| self.details[number.get() as usize - 1]).unwrap_or_default()
    }

    /// All tensors, in the order of the data.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = HeaderTensor<'_>> {
        (0..self.len()).map(|index| self.tensor(index))
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.by_name.find(name, |index| self.name(index))
    }

    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        let names = &self.names;
        self.records.retain(|record| keep(&names[span(&record.name)]));
        // No name was repeated before, so this does not fail.
        let _ = self.index_names();
    }

    /// The dtypes of tensors of which only the size is known, each once.
    pub fn size_only_dtypes(&self) -> impl Iterator<Item = Dtype<'static>> {
        let has =
            |dtype: &Dtype| self.records.iter().any(|record| Dtype::ALL.get(record.dtype as usize) == Some(dtype));
        Dtype::SIZE_ONLY.iter().copied().filter(has)
    }
}

/// The number of elements of a shape. `None` if it or a dimension does not fit into 63 bits.
pub(super) fn count_elements<'d>(dims: impl IntoIterator<Item = &'d u64>) -> Option<u64> {
    dims.into_iter().try_fold(1, |product: u64, dim| fits(product.checked_mul(*dim)?).filter(|_| fits(*dim).is_some()))
}

/// A number, if it fits into 63 bits.
pub(super) fn fits(number: u64) -> Option<u64> {
    i64::try_from(number).is_ok().then_some(number)
}

/// The distance of neighbours along each dimension in C order, in elements.
pub(super) fn c_strides(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = shape[at].saturating_mul(strides[at]);
    }
    strides
}

/// The fault of a shape whose elements or bytes cannot be counted.
pub(super) fn too_large(shape: &[u64]) -> String {
    format!("shape {} has more than 2^63-1 elements or bytes", brackets(shape))
}

pub(super) fn numbered_dtype(unknown: &[String], number: u32) -> Dtype<'_> {
    let number = number as usize;
    match Dtype::ALL.get(number) {
        Some(known) => *known,
        None => Dtype::Unknown(&unknown[number - Dtype::ALL.len()]),
    }
}
