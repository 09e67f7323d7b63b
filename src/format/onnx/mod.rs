//! ONNX models (`.onnx`): a message of Protocol Buffers that has the graph and its weights.
//!
//! The fields of the message are walked without the bytes of tensors. The bytes of a tensor are a part of the file, or
//! of another file that it names, or numbers in a compressed form, which are decoded into memory when the model is
//! opened. Source: `onnx/onnx.proto` of onnx 1.23.

mod header;
mod tensor;
#[cfg(test)]
mod tests;
mod walk;

use super::detect;
use super::input::{HeaderInput, MissingRange};

pub use header::{elsewhere, lint_onnx, onnx_damage, onnx_header, parse_onnx, read_onnx};
pub use tensor::{ExternalData, OnnxData, OnnxTensor};
pub use walk::OnnxModel;

pub const NAME: &str = "onnx";

/// The suffix of a file name.
pub const SUFFIX: &str = ".onnx";

/// The name of a folder beside a model that has it as ONNX, mostly in several variants.
pub const FOLDER: &str = "onnx";

/// The format of a file that has data of tensors and no header.
pub const DATA: &str = "onnx-data";

/// Whether a file begins with fields of an ONNX model.
pub fn is_onnx(input: &HeaderInput) -> Result<bool, MissingRange> {
    Ok(detect::is_onnx(input.get(0..detect::PREFIX)?))
}
