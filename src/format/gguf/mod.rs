//! The GGUF header, versions 2 and 3 in little-endian order.
//!
//! A file is a magic number, a version, the counts of tensors and of metadata keys, the metadata, a description of each
//! tensor, and the data. The file does not give the length of the header: its end is known only when it was read. A
//! file is valid if both ggml (`gguf.cpp`) and the `gguf` Python package accept it, with these differences: the padding
//! after the last tensor may be missing, block types that are newer than the package are accepted, and so are names and
//! shapes that ggml does not load, because models of other programs have them. `lint` reports these.

mod cursor;
mod edit;
mod encode;
mod keys;
mod lint;
mod reader;

use crate::format::header::Header;
use crate::format::tensors::TensorInfo;
use std::borrow::Cow;

pub use edit::edit_gguf;
pub use lint::lint_gguf;
pub use reader::{alignment, is_gguf, parse_gguf};

pub const NAME: &str = "gguf";

pub const MAGIC: [u8; 4] = *b"GGUF";

/// Maximum size of everything before the data, in bytes, inclusive. ggml has no such limit. A header of a model with a
/// vocabulary of 260,000 tokens has about 20 MB.
pub const MAX_HEADER: u64 = 128 << 20;

/// Size of the fields before the metadata, in bytes.
pub const METADATA_START: u64 = 24;

/// The offset of each tensor is a multiple of this number of bytes, unless the file gives another one.
const ALIGNMENT: u32 = 32;

/// The number of the array type.
const ARRAY: u32 = 9;

pub const ALIGNMENT_KEY: &str = "general.alignment";

pub const ARCHITECTURE_KEY: &str = "general.architecture";

/// Prefix of the keys that describe a split of a model. Source: llama.cpp, `src/llama-arch.cpp`.
pub const SPLIT_PREFIX: &str = "split.";

/// The key of the number of a split, counted from 0.
pub const SPLIT_NUMBER_KEY: &str = "split.no";

/// Prefix of the keys with the shapes, outermost dimension first, of tensors that are stored with another one: rows
/// that blocks divide. Source: ComfyUI-GGUF, `tools/convert.py`.
pub const SHAPE_PREFIX: &str = "comfy.gguf.orig_shape.";

/// Longest key in bytes. Source: `docs/gguf.md` of ggml, `gguf_metadata_kv_t`.
const KEY_MAX: usize = 65_535;

/// Longest name of a tensor that ggml loads, in bytes. Source: `GGML_MAX_NAME`, which counts a terminator.
const GGML_NAME_MAX: usize = 63;

/// Largest rank that ggml loads. Source: `GGML_MAX_DIMS`.
const GGML_RANK_MAX: usize = 4;

/// Largest rank. It is that of NumPy, whose arrays the `gguf` package reads and writes.
const RANK_MAX: u32 = 64;

/// Longest string in bytes, and longest array in elements. Source: `GGUF_MAX_STRING_LENGTH`, `GGUF_MAX_ARRAY_ELEMENTS`.
const LENGTH_MAX: u64 = 1 << 30;

/// The shape with which a file stores a tensor: its own, or that of a matrix if the metadata has its own. The rows of
/// the matrix are the last dimension if blocks divide it, or else 256 elements or one block.
pub fn stored_shape<'t>(header: &Header, tensor: &TensorInfo<'t>) -> Cow<'t, [u64]> {
    const ROW: u64 = 256;
    if tensor.shape.is_empty() || header.value(&[SHAPE_PREFIX, tensor.name].concat()).is_none() {
        return tensor.shape.into();
    }
    let (block, elements) = (tensor.dtype.block().map_or(1, |block| block.elements), tensor.elements());
    let row = match tensor.shape.last() {
        Some(last) if last.is_multiple_of(block) => *last,
        _ if elements.is_multiple_of(ROW) => ROW,
        _ => block,
    };
    vec![elements / row.max(1), row].into()
}
