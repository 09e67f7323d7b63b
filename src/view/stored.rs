//! `tensors/` and `tree/`: the bytes of a tensor as they are stored.

use crate::content::{Content, Segment};
use crate::model::{Model, Tensor};

/// The file of a tensor.
pub fn content(model: &Model, tensor: &Tensor) -> Content {
    Content::new([Segment::Data(model.data(tensor))])
}
