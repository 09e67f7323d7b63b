//! Numbers in other forms: pure functions over slices, which allocate nothing and do no I/O.

pub mod elements;
