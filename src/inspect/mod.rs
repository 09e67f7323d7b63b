//! What there is to say about a model without mounting it: knows counts, conventions of metadata, the structural hash and
//! what a sound model is; prints nothing.

pub mod check;
mod conventions;
mod identity;
mod totals;
mod training;

pub use conventions::{KOHYA, Label, MODELSPEC, MODELSPEC_PREFIX, is_kohya};
pub use identity::Identity;
pub use totals::{Breakdown, Totals};
pub use training::{Folder, Training};
