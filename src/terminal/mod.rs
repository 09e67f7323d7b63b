//! What commands print: text for people, JSON for programs, and progress bars.

pub mod comparison;
pub mod output;
pub mod progress;
pub mod totals;
