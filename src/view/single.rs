//! `safetensors/`: knows the header that makes one tensor a complete safetensors file.

use super::export::write_entry;
use crate::content::{Content, Data, Segment};
use crate::format::TensorInfo;
use std::borrow::Cow;

/// A file of that tensor alone, by its own name and without metadata. The data begins at a multiple of 8, as in the files of
/// the official writer.
pub fn content<'a>(tensor: &TensorInfo, data: Data<'a>) -> Content<'a> {
    let mut header = vec![0; 8];
    header.push(b'{');
    // A vector cannot refuse text.
    let _ = write_entry(tensor, 0, &mut header);
    header.push(b'}');
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = header.len() as u64 - 8;
    header[..8].copy_from_slice(&length.to_le_bytes());
    Content::new([Segment::Literal(Cow::Owned(header)), Segment::Data(data)])
}
