//! The process: going to the background, signals, limits, the log, mounting, and the sandbox.

pub mod daemon;
pub mod limits;
pub mod logging;
pub mod mounts;
pub mod sandbox;
pub mod signals;
pub mod unmounter;
