//! Why a model cannot be opened.

use crate::format;
use crate::source::{self, Location};
use crate::text::{quote, shorten};
use std::sync::Arc;

/// Why a model cannot be opened. The message names the file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error(transparent)]
    Source(#[from] source::Error),
    /// The header of a file cannot be used.
    #[error("{location}: {error}")]
    Format {
        /// The file.
        location: Location,
        /// What is wrong with it.
        error: format::Error,
    },
    /// The index of a sharded model or the manifest of a dataset cannot be used.
    #[error("{location}: {error}")]
    Set {
        /// The index or manifest.
        location: Location,
        /// What is wrong with it.
        error: SetError,
    },
    /// The index and the shards do not agree.
    #[error("{location}: {mismatch}{} (--lenient mounts the rest)", and_more(*more))]
    Mismatch {
        /// The index or manifest.
        location: Location,
        /// The first mismatch.
        mismatch: Mismatch,
        /// How many more there are.
        more: usize,
    },
    /// A directory that is no model.
    #[error("{location}: a directory with {found}")]
    Directory {
        /// The directory.
        location: Location,
        /// What it holds.
        found: String,
    },
}

impl Error {
    /// Whether the same attempt may succeed later although nobody changes the files.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Source(error) if error.is_transient())
    }
}

fn and_more(more: usize) -> String {
    if more == 0 { String::new() } else { format!(", and {more} more") }
}

/// Longest list of files, in bytes: five times that of a model of half a million tensors.
pub(super) const LIST_MAX: u64 = 300 << 20;

/// Most shards of a model.
pub(super) const SHARDS_MAX: usize = 10_000;

/// Why a list of files cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SetError {
    #[error("{len} bytes long; at most {LIST_MAX} are read")]
    TooLong { len: u64 },
    #[error("no {what}: {reason}")]
    Json { what: &'static str, reason: String },
    #[error("format version {}; weightfs knows 1", quote(found))]
    Version { found: String },
    #[error("names more than {SHARDS_MAX} shards; so many can be mounted")]
    TooManyShards,
    #[error("refused: shard {} {why}", quote(shard))]
    Refused { shard: String, why: &'static str },
    #[error("names shard {} twice", quote(shard))]
    Repeated { shard: String },
    #[error("shards {} and {} are the same file", quote(a), quote(b))]
    SameFile { a: String, b: String },
    #[error("none of its shards can be mounted: {reason}")]
    Nothing { reason: String },
}

impl SetError {
    /// The error of a JSON parser, which may quote what it found.
    pub(super) fn json(what: &'static str, error: &serde_json::Error) -> Self {
        const REASON_MAX: usize = 300;
        Self::Json { what, reason: shorten(&error.to_string(), REASON_MAX).into_owned() }
    }
}

/// A point on which the index and the shards do not agree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Mismatch {
    #[error("a shard is missing or broken: {reason}")]
    Shard { shard: Arc<str>, reason: String },
    #[error("tensor {} should be in {}, but no shard has it", quote(tensor), quote(shard))]
    Absent { tensor: String, shard: Arc<str> },
    #[error("tensor {} should be in {}, but is in {}", quote(tensor), quote(shard), quote(found))]
    Elsewhere { tensor: String, shard: Arc<str>, found: Arc<str> },
    #[error("tensor {} is in {}, but the index does not name it", quote(tensor), quote(shard))]
    Unnamed { tensor: String, shard: Arc<str> },
    #[error("tensor {} is in {}{}, and in {} too", quote(tensor), quote(shard), if *stated { " as the index says" } else { "" }, quote(other))]
    Twice { tensor: String, shard: Arc<str>, other: Arc<str>, stated: bool },
}

impl Mismatch {
    /// As the entry that is left out because of it.
    pub(super) fn skipped(&self) -> format::Skipped {
        format::Skipped::new(self.subject(), self.to_string())
    }

    /// The tensor or shard that is to blame.
    pub(super) fn subject(&self) -> &str {
        match self {
            Self::Shard { shard, .. } => shard,
            Self::Absent { tensor, .. }
            | Self::Elsewhere { tensor, .. }
            | Self::Unnamed { tensor, .. }
            | Self::Twice { tensor, .. } => tensor,
        }
    }
}
