//! Parsers of model files. They do no I/O: a parser returns the next byte range that it needs.
//!
//! Every format is lowered to one [`Header`]. Later layers do not depend on the format: what they print or check, such
//! as the name of the format or the text of the header, is part of the [`Header`].

mod detect;
mod dtype;
mod edit;
mod error;
pub mod gguf;
mod header;
mod input;
mod lint;
mod metadata;
mod names;
pub mod numpy;
pub mod onnx;
mod pickle;
pub mod pytorch;
pub mod safetensors;
pub mod slm;
mod suffix;
mod table;
mod tensors;
mod zip;

pub use detect::{TAR_PREFIX as SNIFFED_PREFIX, may_be_model};
pub use dtype::{Dtype, DtypeBlock};
pub use edit::{Assignment, MetadataEdit, NewHead};
pub use error::Error;
pub use header::{Header, HeaderBuilder, KEPT_MAX, NewTensor, ParseMode, SkipList, SkippedEntry, SkippedKind};
pub use input::{HeaderInput, MissingRange};
pub use lint::HeaderLint;
pub use metadata::{MetadataValue, ScalarType, ValueType};
pub use names::NameTable;
pub use suffix::strip_suffix;
pub use table::{
    edit_metadata, format_stem, has_types, header_damage, is_secondary, is_shared_suffix, lint_header, parse_header,
    preferred_names, suffixes,
};
pub use tensors::{HeaderTensor, TensorInfo, TensorLayout, TensorTable};

use serde::Deserialize;
use std::borrow::Cow;

/// A JSON string, borrowed from the text unless it contains escapes.
#[derive(Deserialize)]
pub(crate) struct JsonText<'t>(#[serde(borrow)] pub Cow<'t, str>);
