//! Pickles, read as trees of plain values. Nothing that a pickle names is imported, called or created: a global is its
//! two names, and an object is the names of its class, its arguments and its state.
//!
//! Each format that contains pickles has its own list of the globals that it knows.

mod globals;
mod machine;
mod ndarray;
mod tree;

pub use globals::{GlobalDanger, global_danger, is_listed};
pub use machine::{PickleFault, load_first, load_pickle, load_records};
pub use ndarray::{describe_ndarray, is_ndarray};
pub use tree::{PickleObject, PickleSpan, PickleTree, PickleValue};
