//! The output of commands: text, JSON and progress bars.

pub mod array;
pub mod bars;
pub mod comparison;
pub mod deviation;
pub mod output;
pub mod progress;
pub mod report;
pub mod totals;
