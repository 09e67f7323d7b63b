//! Facts about a model: counts, known metadata keys, the structural hash, and checks. Does not print.

pub mod check;
mod conventions;
mod gguf;
mod identity;
mod totals;
mod training;

pub use conventions::{KOHYA, Label, MODELSPEC, MODELSPEC_PREFIX, is_kohya};
pub use gguf::{Fact, FileType, Gguf, SpecialToken};
pub use identity::Identity;
pub use totals::{Breakdown, Quantization, Totals};
pub use training::{ImageFolder, Training};
