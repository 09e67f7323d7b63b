//! What commands print: text for people and JSON for programs, totals, and progress bars.

pub mod output;
pub mod progress;
pub mod totals;
