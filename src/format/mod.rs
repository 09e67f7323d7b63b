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
pub mod pytorch;
pub mod safetensors;
pub mod slm;
mod table;
mod zip;

pub use detect::Foreign;
pub use dtype::{Block, Dtype};
pub use edit::{Assignment, Edit, EditError, Edited, NewHead, ValueFault};
pub use error::Error;
pub use header::{BuildError, Header, HeaderBuilder, KEPT_MAX, Layout, Mode, SkipList, Skipped, TensorInfo};
pub use input::{Input, Missing};
pub use lint::{Lint, LintKind};
pub use metadata::{Scalar, Value, ValueType};
pub use names::NameTable;
pub use table::{damage, edit, has_types, lint, parse, stem, suffixes};

use serde::Deserialize;
use std::borrow::Cow;

/// A JSON string, borrowed from the text unless it contains escapes.
#[derive(Deserialize)]
pub(crate) struct Text<'t>(#[serde(borrow)] pub Cow<'t, str>);
