//! The storages of a checkpoint, and the tensors that lie outside of its pickle.

use super::dtype::TorchDtype;
use crate::format::pickle::{PickleTree, PickleValue};
use crate::text::quote;
use std::collections::HashMap;
use std::ops::Range;

/// The ranges of storages by their keys, or why they are not known.
type StorageRanges<'d> = HashMap<&'d str, Result<Range<u64>, String>>;

pub struct TorchStorages<'d> {
    pub is_big_endian: bool,
    /// What precedes a key in messages.
    folder: &'static str,
    /// What the storages are in, for messages.
    container: &'static str,
    ranges: StorageRanges<'d>,
    /// The tensors to which the pickle of a tar archive refers, by their keys.
    tensors: Option<&'d HashMap<String, TarTensor>>,
}

/// A tensor of a tar archive, before its numbers are checked.
#[derive(Debug)]
pub struct TarTensor {
    pub dtype: TorchDtype,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    /// Of the first element in the storage.
    pub offset: i64,
    /// That of the storage, in bytes from the start of the file.
    pub range: Range<u64>,
}

impl<'d> TorchStorages<'d> {
    /// Those that are entries of a zip archive.
    pub fn in_archive(is_big_endian: bool, ranges: StorageRanges<'d>) -> Self {
        Self { is_big_endian, folder: "data/", container: "archive", ranges, tensors: None }
    }

    /// Those that follow the pickles of a file of torch before version 1.6.
    pub fn in_file(ranges: StorageRanges<'d>) -> Self {
        Self { is_big_endian: false, folder: "", container: "file", ranges, tensors: None }
    }

    /// Those of a tar archive.
    pub fn of_tensors(tensors: &'d HashMap<String, TarTensor>) -> Self {
        Self { tensors: Some(tensors), ..Self::in_file(HashMap::new()) }
    }

    /// The quoted name of a storage, and its range.
    pub fn find(&self, key: &str) -> Result<(String, Range<u64>), String> {
        let entry = quote(&format!("{}{key}", self.folder));
        match self.ranges.get(key) {
            Some(range) => Ok((entry, range.clone()?)),
            None => Err(format!("its storage {entry} is not in the {}", self.container)),
        }
    }

    /// Whether values that the pickle does not hold are tensors, as in a tar archive.
    pub fn has_tensors(&self) -> bool {
        self.tensors.is_some()
    }

    /// The tensor of a tar archive with this key.
    pub fn tensor(&self, key: &str) -> Option<&TarTensor> {
        self.tensors?.get(key)
    }
}

/// The key of an object of a tar archive: a number, or its text.
pub fn object_key(tree: &PickleTree, value: PickleValue) -> Option<String> {
    match value {
        PickleValue::Int(number) => Some(number.to_string()),
        value => tree.text(value).map(str::to_owned),
    }
}
