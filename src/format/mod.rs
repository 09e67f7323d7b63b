//! Model files: what their bytes mean. Parsers do no I/O; they ask for the ranges that they need.
//!
//! Every format is lowered to one [`Header`]. Later layers do not depend on the format: what they print or check, such
//! as the format's name or the text of the header, the header offers as data.

mod detect;
mod dtype;
mod error;
mod header;
mod input;
mod lint;
mod names;
pub mod safetensors;
mod table;

pub use detect::Foreign;
pub use dtype::{Block, Dtype};
pub use error::Error;
pub use header::{BuildError, Header, HeaderBuilder, KEPT_MAX, Mode, SkipList, Skipped, TensorInfo};
pub use input::{Input, Missing};
pub use lint::{Lint, LintKind};
pub use names::NameTable;
pub use table::{damage, lint, parse, stem, suffixes, with_metadata};

use serde::Deserialize;
use std::borrow::Cow;

/// A JSON string, borrowed from the text where nothing in it is escaped.
#[derive(Deserialize)]
pub(crate) struct Text<'t>(#[serde(borrow)] pub Cow<'t, str>);
