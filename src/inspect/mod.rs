//! Facts about a model: counts, known metadata keys, the structural hash, and checks. Does not print.

pub mod check;
mod conventions;
mod gguf;
mod identity;
mod overview;
mod totals;
mod training;

pub use conventions::{KOHYA, Label, MODELSPEC, MODELSPEC_PREFIX, is_kohya};
pub use gguf::{GgufFact, GgufFacts, GgufFileType, SpecialToken};
pub use identity::ModelIdentity;
pub use overview::ModelOverview;
pub use totals::{QuantizationTotal, TensorBreakdown, TensorTotals, summary_of};
pub use training::{ImageFolder, TrainingFacts};
