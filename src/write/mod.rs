//! Output files and directories that are written completely or not at all. Does not depend on their format.

mod bytes;
mod copies;
mod dir;
mod error;
mod output;
mod place;
mod space;
mod temporary;

pub use bytes::Progress;
pub use copies::{Copies, Copy, Part, STATE};
pub use dir::OutputDir;
pub use error::Error;
pub use output::{Original, Output, append, is_stdout};
pub use temporary::MARK;
