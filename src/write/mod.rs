//! Output files and directories that are written completely or not at all. Does not depend on their format.

mod bytes;
mod copies;
mod dir;
mod error;
mod output;
mod place;
mod temporary;

pub use bytes::Progress;
pub use copies::{CopyDirectory, FileCopy, PartialCopy, STATE};
pub use dir::OutputDir;
pub use error::Error;
pub use output::{OriginalFile, OutputFile, append, is_stdout};
pub use temporary::MARK;
