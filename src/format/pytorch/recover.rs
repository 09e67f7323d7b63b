//! An archive whose end is missing, as when a download breaks off: its directory is made again from the local headers,
//! one after the other.
//!
//! Torch leaves the sizes in local headers empty and writes them into a descriptor after the data. The size of a
//! storage is in the pickle, which torch writes first. That of other entries is found by looking for the descriptor.

use super::archive::is_pickle;
use super::rebuild::storage_of;
use super::{PICKLE_MAX, checkpoint_error};
use crate::format::error::Error;
use crate::format::input::{HeaderInput, MissingRange, number_at};
use crate::format::pickle::load_pickle;
use crate::format::zip::{LOCAL, MAGIC, ZipDirectory, ZipPart};
use std::collections::HashMap;
use std::ops::Range;

/// Number of bytes that are read of a local header at once, with its name, its fields, and a descriptor before it.
const HEAD: u64 = 1 << 10;

/// Number of bytes that are read if these are not there yet: several small entries.
const READ: u64 = 4 << 10;

/// Maximum size of an entry that is neither a pickle nor a storage, in bytes.
const OTHER_MAX: u64 = 1 << 20;

/// Number of bytes of an entry of unknown size that are read first.
const FIRST: u64 = 64 << 10;

/// Maximum number of entries, which bounds the time: the parser starts again after each read.
const ENTRIES_MAX: usize = 20_000;

const DESCRIPTOR: &[u8] = b"PK\x07\x08";

/// Sizes of a descriptor in bytes, with sizes of 32 and of 64 bits.
const DESCRIPTOR_SIZES: [u64; 2] = [16, 24];

/// The entries of an archive whose end is missing.
pub struct RecoveredArchive {
    /// The directory of the entries that are complete.
    pub directory: ZipDirectory,
    /// Where they end, in bytes from the start of the file.
    pub end: u64,
}

/// Finds the entries of an archive whose end is missing. Fails if the pickle is not among those that are complete.
pub fn recover_archive(input: &HeaderInput) -> Result<RecoveredArchive, Error> {
    let mut parts: Vec<ZipPart> = Vec::new();
    let mut storages: Option<HashMap<String, u64>> = None;
    let mut at = 0;
    while parts.len() < ENTRIES_MAX {
        let Some(entry) = LocalEntry::read(input, at)? else { break };
        let key = entry.name.split_once('/').and_then(|(_, member)| member.strip_prefix("data/"));
        let known = match (entry.size, key) {
            (Some(size), _) => Some(size),
            (None, Some(key)) => storages.as_ref().and_then(|storages| storages.get(key)).copied(),
            (None, None) => entry.find_size(input)?,
        };
        let end = known.and_then(|size| entry.data.checked_add(size)).filter(|end| *end <= input.len());
        let (Some(size), Some(end)) = (known, end) else { break };
        let Some(next) = entry.next(input, size, end)? else { break };
        if is_pickle(&entry.name) {
            storages = Some(storage_sizes(input.get(entry.data..end)?));
        }
        parts.push(ZipPart { name: entry.name, header: at, size, next });
        at = next;
    }
    if storages.is_none() {
        let fault = format!(
            "the file ends before the directory of the archive, and data.pkl, which describes the tensors, is not among the \
             {} entries that are complete: it is written after them, or was cut (the download stopped: fetch the file again)",
            parts.len()
        );
        return Err(checkpoint_error(fault));
    }
    Ok(RecoveredArchive { directory: ZipDirectory::of_parts(parts), end: at })
}

/// A local header and where its data begins.
struct LocalEntry {
    name: String,
    /// In bytes from the start of the file.
    data: u64,
    /// In bytes; `None` if it follows the data.
    size: Option<u64>,
}

impl LocalEntry {
    /// The entry at byte `at`; `None` if there is none, or if it is not stored as it is.
    fn read(input: &HeaderInput, at: u64) -> Result<Option<Self>, MissingRange> {
        let head = window(input, at..at.saturating_add(HEAD))?;
        let (name_len, extra_len) = (number_at(head, 26, 2), number_at(head, 28, 2));
        let (flags, method) = (number_at(head, 6, 2), number_at(head, 8, 2));
        let name_end = (LOCAL + name_len) as usize;
        if !head.starts_with(MAGIC) || flags & 1 != 0 || method != 0 || head.len() < name_end {
            return Ok(None);
        }
        let Ok(name) = str::from_utf8(&head[LOCAL as usize..name_end]) else { return Ok(None) };
        let (packed, size) = (number_at(head, 18, 4), number_at(head, 22, 4));
        let is_known = flags & 8 == 0 && packed == size && size != u64::from(u32::MAX);
        let data = at + LOCAL + name_len + extra_len;
        Ok(Some(Self { name: name.to_owned(), data, size: is_known.then_some(size) }))
    }

    /// The size of the data, which a descriptor of that size follows; `None` if there is none.
    fn find_size(&self, input: &HeaderInput) -> Result<Option<u64>, MissingRange> {
        let max = if is_pickle(&self.name) { PICKLE_MAX } else { OTHER_MAX };
        let mut len = FIRST;
        loop {
            let end = self.data.saturating_add(len).min(input.len());
            let bytes = input.get(self.data..end)?;
            let mut places = bytes.windows(DESCRIPTOR.len()).enumerate().filter(|(_, part)| *part == DESCRIPTOR);
            let found = places
                .find(|(size, _)| DESCRIPTOR_SIZES.iter().any(|len| describes(&bytes[*size..], *len, *size as u64)));
            match found {
                Some((size, _)) => return Ok(Some(size as u64)),
                None if end == input.len() || len >= max => return Ok(None),
                None => len = (len * 4).min(max),
            }
        }
    }

    /// Where the next entry begins, after data of this size, which ends at byte `end`. `None` if what follows is not
    /// what torch writes, so that the size may be wrong. The end of the file may follow at once.
    fn next(&self, input: &HeaderInput, size: u64, end: u64) -> Result<Option<u64>, MissingRange> {
        let after = window(input, end..end.saturating_add(HEAD))?;
        if self.size.is_some() || size == 0 && after.starts_with(MAGIC) {
            return Ok(Some(end));
        }
        // A part of a descriptor, or nothing.
        if after.len() < DESCRIPTOR_SIZES[1] as usize && end + after.len() as u64 == input.len() {
            return Ok(Some(input.len()));
        }
        let len = DESCRIPTOR_SIZES.into_iter().find(|len| describes(after, *len, size));
        Ok(len.map(|len| end + len))
    }
}

/// Whether bytes begin with a descriptor of `len` bytes for data of a size.
fn describes(bytes: &[u8], len: u64, size: u64) -> bool {
    let width = if len == DESCRIPTOR_SIZES[1] { 8 } else { 4 };
    bytes.len() as u64 >= len
        && bytes.starts_with(DESCRIPTOR)
        && [8, 8 + width].iter().all(|at| number_at(bytes, *at, width) == size)
}

/// The bytes of a range, or more of the file if they are missing.
fn window(input: &HeaderInput, range: Range<u64>) -> Result<&[u8], MissingRange> {
    input.get(range.clone()).map_err(|_| MissingRange(range.start..range.start.saturating_add(READ).min(input.len())))
}

/// The sizes of the storages that a pickle names, in bytes, by their keys; those of unknown classes are left out.
fn storage_sizes(pickle: &[u8]) -> HashMap<String, u64> {
    let Ok(tree) = load_pickle(pickle) else { return HashMap::new() };
    let storages = tree.all_persistent().filter_map(|value| storage_of(&tree, value).ok());
    let sizes =
        storages.filter_map(|(dtype, key, count)| Some((key.to_owned(), count.checked_mul(dtype.size.into())?)));
    sizes.collect()
}
