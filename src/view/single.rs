//! `safetensors/`: a tensor as a complete safetensors file.

use super::export::{can_hold, write_entry};
use crate::content::{Content, Segment};
use crate::model::{Model, Tensor, TensorNumbers};

/// Largest rank of a tensor that is shown. The header is generated for each read, so it must stay small.
const RANK_MAX: usize = 8192;

/// Longest name of a tensor that is shown, in bytes, for the same reason.
const NAME_MAX: usize = 1 << 20;

pub fn single_shows(numbers: &TensorNumbers) -> bool {
    let tensor = &numbers.tensor.info;
    can_hold(tensor.dtype) && tensor.shape.len() <= RANK_MAX && tensor.name.len() <= NAME_MAX
}

/// A file that holds only this tensor, under its own name and without metadata. The data begins at a multiple of 8
/// bytes, as in files of the official writer.
pub fn single_content(model: &Model, tensor: &Tensor) -> Content {
    let mut header = vec![0; 8];
    header.push(b'{');
    // Writing to a vector cannot fail.
    let _ = write_entry(&tensor.info, 0, &mut header);
    header.push(b'}');
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = header.len() as u64 - 8;
    header[..8].copy_from_slice(&length.to_le_bytes());
    Content::new([Segment::Literal(header.into()), model.data(tensor)])
}
