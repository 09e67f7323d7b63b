//! The other files of a model's directory, such as its configuration and its tokenizer.

use super::file_tree::FileTree;
use crate::content::{Content, DeferredFile, Segment};
use crate::source::{Source, SourceStat};
use std::path::Path;
use std::sync::Arc;

/// The files of a directory, and of the directories below it, that are not parts of its model. No folder is empty.
pub type OtherFiles = FileTree<OtherFile>;

/// A file that is not a part of the model, in the version that was found first.
#[derive(Debug)]
pub struct OtherFile {
    /// Owner, and permissions of those who may also search the directories between that of the model and the file.
    pub stat: SourceStat,
    pub(super) bytes: OtherBytes,
}

#[derive(Debug)]
pub(super) enum OtherBytes {
    Local(Arc<dyn Source>),
    /// Opened when it is read.
    Remote(DeferredFile),
}

/// The paths of the files of this machine, which stay open.
pub(super) fn local_paths(files: &OtherFiles) -> impl Iterator<Item = &Path> {
    files.files().iter().filter_map(|file| file.local()?.path())
}

impl OtherFile {
    pub fn content(&self) -> Content {
        match &self.bytes {
            OtherBytes::Local(source) => Segment::extent(source, 0..source.len()).into(),
            OtherBytes::Remote(file) => Content::generated(file.clone()),
        }
    }

    /// The bytes, if the file is on this machine.
    pub fn local(&self) -> Option<&Arc<dyn Source>> {
        match &self.bytes {
            OtherBytes::Local(source) => Some(source),
            OtherBytes::Remote(_) => None,
        }
    }
}
