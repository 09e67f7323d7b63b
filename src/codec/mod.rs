//! Conversions of numbers: pure functions over slices, which neither allocate nor do I/O.

pub mod elements;
pub mod ggml;
