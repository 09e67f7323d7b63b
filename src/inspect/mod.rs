//! Facts about a model: counts, metadata by its conventions, the structural hash, and whether it is sound. Prints
//! nothing.

pub mod check;
mod conventions;
mod identity;
mod totals;
mod training;

pub use conventions::{KOHYA, Label, MODELSPEC, MODELSPEC_PREFIX, is_kohya};
pub use identity::Identity;
pub use totals::{Breakdown, Totals};
pub use training::{ImageFolder, Training};
