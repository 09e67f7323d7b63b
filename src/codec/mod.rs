//! Conversions of numbers: pure functions over slices, which neither allocate nor do I/O.

pub mod bf16;
pub mod elements;
pub mod ggml;
