//! Quantized weights: recognition, decoding, and comparison with the libraries that define the schemes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod cases;
mod hostile;
mod layouts;
mod oracles;
mod recognition;
mod support;
