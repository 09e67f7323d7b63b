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
        /// The fault.
        error: format::Error,
    },
    /// The index of a sharded model or the manifest of a dataset cannot be used.
    #[error("{location}: {error}")]
    Set {
        /// The index or manifest.
        location: Location,
        /// The fault.
        error: SetError,
    },
    /// The index or manifest and the shards do not match, or the splits of a model do not.
    #[error("{location}: {mismatch}{} (--lenient mounts the rest)", and_more(*more))]
    Mismatch {
        /// The index or manifest, or a split.
        location: Location,
        /// The first mismatch.
        mismatch: SetMismatch,
        /// The number of others.
        more: usize,
    },
    /// A directory that cannot be opened as a model or as several.
    #[error("{location}: a directory {found}")]
    Directory {
        /// The directory.
        location: Location,
        /// The fault, as the end of the message.
        found: String,
    },
}

impl Error {
    /// Whether the same operation may succeed later although the files do not change.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Source(error) if error.is_transient())
    }
}

fn and_more(more: usize) -> String {
    if more == 0 { String::new() } else { format!(", and {more} more") }
}

/// The first names of a list, quoted.
fn list_names(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = names.iter().take(SHOWN).map(|name| quote(name)).collect();
    let more = names.len().saturating_sub(SHOWN);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{more}", shown.join(", "))
}

/// Maximum size of an index or manifest, in bytes: five times the size of the index of half a million tensors.
pub(super) const LIST_MAX: u64 = 300 << 20;

/// Maximum number of shards of a model.
pub(super) const SHARDS_MAX: usize = 10_000;

/// Why an index or manifest cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum SetError {
    #[error("{len} bytes long; at most {max} are read")]
    TooLong { len: u64, max: u64 },
    #[error("not a valid {what}: {reason}")]
    Json { what: &'static str, reason: String },
    #[error("format version {}; weightfs supports 1", quote(found))]
    Version { found: String },
    #[error("names more than {SHARDS_MAX} shards, which is the maximum")]
    TooManyShards,
    #[error("refused: shard {} {why}", quote(shard))]
    Refused { shard: String, why: &'static str },
    #[error("names shard {} twice", quote(shard))]
    Repeated { shard: String },
    #[error("shards {} and {} are the same file", quote(a), quote(b))]
    SameFile { a: String, b: String },
    #[error("its name says split {number} of {count}, but splits are numbered from 1 to {count}")]
    SplitNumber { number: usize, count: usize },
    #[error("names more than {max} layers, which is the maximum")]
    TooManyLayers { max: usize },
    #[error(
        "refused: the digest {} of the layer {} is not sha256: and 64 hexadecimal digits",
        quote(digest),
        quote(layer)
    )]
    Digest { layer: String, digest: String },
    #[error("the layer {} is missing: there is no blobs/{blob}", quote(layer))]
    NoBlob { layer: String, blob: String },
    #[error(
        "the layer {} has the wrong size: blobs/{blob} has {found} bytes, but the manifest says {stated}",
        quote(layer)
    )]
    BlobSize { layer: String, blob: String, found: u64, stated: u64 },
    #[error("the names of its tensors have more than 4 GiB")]
    TooManyNames,
    #[error("names no layer with a model")]
    NoModel,
    #[error("has no layer {} with a model", quote(layer))]
    NoLayer { layer: String },
    #[error("none of its shards can be mounted: {reason}")]
    Nothing { reason: String },
}

impl SetError {
    /// An error of the JSON parser, shortened because it may quote text of any length from the file.
    pub(super) fn json(what: &'static str, error: &serde_json::Error) -> Self {
        const REASON_MAX: usize = 300;
        Self::Json { what, reason: shorten(&error.to_string(), REASON_MAX).into_owned() }
    }
}

/// A mismatch between an index or manifest and its shards, or between splits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum SetMismatch {
    #[error("a shard is missing or broken: {reason}")]
    Shard { shard: Arc<str>, reason: String },
    #[error("{} of the {count} splits of the model {} missing: {}", names.len(), if names.len() == 1 { "is" } else { "are" }, list_names(names))]
    Splits { names: Vec<String>, count: usize },
    #[error("split {}: {reason}", quote(shard))]
    Split { shard: Arc<str>, reason: String },
    #[error("tensor {} should be in {}, but no shard has it", quote(tensor), quote(shard))]
    Absent { tensor: String, shard: Arc<str> },
    #[error("tensor {} should be in {}, but is in {}", quote(tensor), quote(shard), quote(found))]
    Elsewhere { tensor: String, shard: Arc<str>, found: Arc<str> },
    #[error("tensor {} is in {}, but the index does not name it", quote(tensor), quote(shard))]
    Unnamed { tensor: String, shard: Arc<str> },
    #[error("tensor {} is in {}{}, and also in {}", quote(tensor), quote(shard), if *stated { " as the index says" } else { "" }, quote(other))]
    Twice { tensor: String, shard: Arc<str>, other: Arc<str>, stated: bool },
}

impl SetMismatch {
    /// The entry that is left out because of the mismatch.
    pub(super) fn skipped(&self) -> format::SkippedEntry {
        format::SkippedEntry::new(self.subject(), self.to_string())
    }

    /// The tensor, or the shard or split, that is affected.
    pub(super) fn subject(&self) -> &str {
        match self {
            Self::Shard { shard, .. } | Self::Split { shard, .. } => shard,
            Self::Splits { names, .. } => names.first().map_or("", |name| name),
            Self::Absent { tensor, .. }
            | Self::Elsewhere { tensor, .. }
            | Self::Unnamed { tensor, .. }
            | Self::Twice { tensor, .. } => tensor,
        }
    }
}
