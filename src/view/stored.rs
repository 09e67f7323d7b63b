//! `tensors/` and `tree/`: the stored bytes of a tensor.

use crate::content::{Content, Segment};
use crate::model::{Model, Tensor};

/// The file of a tensor.
pub fn stored_content(model: &Model, tensor: &Tensor) -> Content {
    Content::new([Segment::Data(model.data(tensor))])
}
