//! `f32/`: knows tensors as plain little-endian float32, for tools that know no other number.

use crate::content::{Content, Data, Decoded, Segment};
use crate::format::{Dtype, TensorInfo};
use crate::widen;

/// Whether a tensor of that dtype has a float32 file.
pub fn has(dtype: Dtype) -> bool {
    widen::to_f32(dtype).is_some()
}

/// Every element of a tensor as float32, in order.
pub fn content<'a>(tensor: &TensorInfo, data: Data<'a>) -> Content<'a> {
    Content::new(widen::to_f32(tensor.dtype).map(|decoder| Segment::Decoded(Decoded { data, decoder })))
}
