//! Checkpoints of torch before version 1.6, and of later versions with `_use_new_zipfile_serialization=False`: pickles
//! one after the other, then the storages, each after its number of elements.
//!
//! The pickles are a magic number, a version, facts about the machine, the object, and the keys of the storages in the
//! order of the file. The sizes of the storages follow from the ids in the object. Source: `torch/serialization.py`,
//! `_legacy_save` and `_legacy_load`.

use super::dtype::TorchDtype;
use super::lower::lower_tree;
use super::rebuild::{storage_of, view_of};
use super::storages::TorchStorages;
use super::{PICKLE_MAX, checkpoint_error};
use crate::format::detect::{self, TAR_BLOCK, is_legacy_torch, is_tar_header};
use crate::format::error::Error;
use crate::format::header::{Header, ParseMode, SkippedEntry};
use crate::format::input::{HeaderInput, MissingRange, join_ranges, number_at};
use crate::format::pickle::{PickleFault, PickleTree, PickleValue, load_first, load_pickle};
use crate::format::tensors::fits;
use crate::text::quote;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// The version of the format, which has not changed.
const VERSION: i64 = 1001;

/// Size of the number of elements before the data of a storage, in bytes.
const COUNT: u64 = 8;

/// Counts that have so many bytes or fewer between them are read together.
const TOGETHER: u64 = 16 << 10;

/// Maximum number of bytes that are read together for counts, that are read for all counts, and of such reads.
const TOGETHER_MAX: u64 = 1 << 20;
const COUNTS_MAX: u64 = 16 << 20;
const READS_MAX: usize = 1000;

/// Number of bytes of a pickle that are read at first, and the factor by which this grows.
const FIRST: u64 = 64 << 10;
const GROWTH: usize = 4;

/// Maximum size of a pickle that describes the file, in bytes.
pub const SHORT_MAX: u64 = 64 << 10;

/// Maximum size of the list of storages, in bytes.
const KEYS_MAX: u64 = 16 << 20;

/// Where the parts of a file are, as its pickles say.
pub struct LegacyLayout {
    /// The pickle of the object, in bytes from the start of the file.
    object: Range<u64>,
    /// In the order of the file.
    storages: Vec<LegacyStorage>,
    /// The end of the last one. It may lie beyond that of the file.
    end: u64,
    /// The ranges that are read for counts, and the number of the storages, the first ones, whose counts they have.
    counts: Vec<Range<u64>>,
    counted: usize,
}

struct LegacyStorage {
    key: String,
    /// Number of elements.
    count: u64,
    /// Its data, which the count precedes, in bytes from the start of the file.
    range: Range<u64>,
}

pub fn is_legacy(input: &HeaderInput) -> Result<bool, MissingRange> {
    Ok(is_legacy_torch(input.get(0..detect::PREFIX)?))
}

/// Reads the header of a file.
pub fn parse_legacy(input: &HeaderInput, mode: ParseMode) -> Result<Header, Error> {
    let layout = LegacyLayout::read(input)?;
    let is_lenient = mode == ParseMode::Lenient;
    if layout.end > input.len() && !is_lenient {
        return Err(Error::data_cut(layout.end, input.len()));
    }
    let rest = input.len().saturating_sub(layout.end);
    if rest > 0 && !is_lenient {
        let end = layout.end;
        return Err(checkpoint_error(format!("{rest} bytes after the last storage, which ends at byte {end}")));
    }
    layout.require_counts(input)?;
    let mut ranges = HashMap::with_capacity(layout.storages.len());
    for (at, storage) in layout.storages.iter().enumerate() {
        let range = storage.checked(input, at < layout.counted)?;
        if let (Err(fault), false) = (&range, is_lenient) {
            return Err(checkpoint_error(fault));
        }
        ranges.insert(&storage.key[..], range);
    }
    let tree = layout.tree(input)?;
    let start = layout.storages.first().map_or(layout.object.end, |storage| storage.range.start);
    let mut header = lower_tree(&tree, &TorchStorages::in_file(ranges), start, mode)?;
    header.is_copied = true;
    if rest > 0 {
        header.skipped.remark(|| SkippedEntry::bytes(format!("{rest} bytes after the last storage")));
    }
    Ok(header)
}

impl LegacyLayout {
    pub fn read(input: &HeaderInput) -> Result<Arc<Self>, Error> {
        input.keep(|| Self::find(input))
    }

    fn find(input: &HeaderInput) -> Result<Self, Error> {
        // Torch looks for a tar archive first.
        if is_tar_header(input.get(0..TAR_BLOCK as u64)?) {
            return Err(checkpoint_error(
                "its first bytes are also the header of a tar archive, which torch would read",
            ));
        }
        let mut at = 0;
        plain_pickle(input, &mut at, SHORT_MAX, "the magic number")?;
        match plain_pickle(input, &mut at, SHORT_MAX, "the version")?.root {
            PickleValue::Int(VERSION) => {}
            PickleValue::Int(other) => {
                return Err(checkpoint_error(format!("its version is {other}; {VERSION} is supported")));
            }
            _ => return Err(checkpoint_error(format!("its version is not a number; {VERSION} is supported"))),
        }
        check_machine(&plain_pickle(input, &mut at, SHORT_MAX, "the description of the machine")?)?;
        let object = load_at(input, at..at.saturating_add(PICKLE_MAX), FIRST, "the object")?;
        let start = at;
        at += object.len as u64;
        let object_range = start..at;
        let keys = plain_pickle(input, &mut at, KEYS_MAX, "the list of storages")?;
        let PickleValue::List(_) = keys.root else {
            return Err(checkpoint_error("the list of storages is not a list"));
        };
        let mut sizes: HashMap<&str, (TorchDtype, u64)> = HashMap::new();
        for value in object.all_persistent() {
            if let Ok((dtype, key, count)) = storage_of(&object, value) {
                sizes.entry(key).or_insert((dtype, count));
            }
        }
        check_views(&object, &sizes)?;
        let (mut storages, mut seen) = (Vec::new(), HashSet::new());
        for key in keys.elements(keys.root) {
            let key = keys.text(*key).ok_or_else(|| checkpoint_error("the key of a storage is not a text"))?;
            let fault = |what: &str| checkpoint_error(format!("storage {}: {what}", quote(key)));
            if !seen.insert(key) {
                return Err(fault("it is listed twice"));
            }
            let known = sizes.get(key).filter(|(dtype, _)| dtype.size > 0);
            let (dtype, count) =
                *known.ok_or_else(|| fault("the object has no id of it with a class of known size"))?;
            let len = count.checked_mul(dtype.size.into()).and_then(fits);
            let end = len.and_then(|len| fits(at.checked_add(COUNT)?.checked_add(len)?));
            let end = end.ok_or_else(|| fault("it is larger than 2^63-1 bytes"))?;
            storages.push(LegacyStorage { key: key.to_owned(), count, range: at + COUNT..end });
            at = end;
        }
        let (counts, counted) = counts_of(&storages);
        Ok(Self { object: object_range, storages, end: at, counts, counted })
    }

    pub fn tree<'i>(&self, input: &'i HeaderInput) -> Result<PickleTree<'i>, Error> {
        load_pickle(input.get(self.object.clone())?).map_err(checkpoint_error)
    }

    /// Requires the counts of the storages, or of the first ones if they are far apart. Returns the number of the
    /// others.
    pub fn require_counts(&self, input: &HeaderInput) -> Result<usize, MissingRange> {
        input.require(self.counts.iter().cloned())?;
        Ok(self.storages.len() - self.counted)
    }
}

/// The ranges to read for the counts of storages, and the number of the storages, the first ones, to which they belong.
fn counts_of(storages: &[LegacyStorage]) -> (Vec<Range<u64>>, usize) {
    let counts = storages.iter().map(|storage| storage.range.start - COUNT..storage.range.start);
    let (mut ranges, mut bytes) = (Vec::new(), 0);
    for (first, range) in join_ranges(counts, TOGETHER, TOGETHER_MAX) {
        bytes += range.end - range.start;
        if ranges.len() == READS_MAX || bytes > COUNTS_MAX {
            return (ranges, first);
        }
        ranges.push(range);
    }
    (ranges, storages.len())
}

/// Fails if the key of a view has several meanings. Torch makes the view that it meets first, or takes the storage.
fn check_views(object: &PickleTree, storages: &HashMap<&str, (TorchDtype, u64)>) -> Result<(), Error> {
    let mut views: HashMap<&str, (&str, Range<u64>)> = HashMap::new();
    for value in object.all_persistent() {
        let (Ok((_, root, _)), Ok(Some((key, range)))) = (storage_of(object, value), view_of(object, value)) else {
            continue;
        };
        let fault = |what: &str| checkpoint_error(format!("the view {} of a storage {what}", quote(key)));
        if storages.contains_key(key) {
            return Err(fault("has the key of a storage"));
        }
        let new = (root, range);
        if views.insert(key, new.clone()).is_some_and(|other| other != new) {
            return Err(fault("occurs with other elements"));
        }
    }
    Ok(())
}

/// Fails if the description of a machine is that of a big-endian one.
pub fn check_machine(tree: &PickleTree) -> Result<(), Error> {
    let is_big = |(key, value): &(PickleValue, PickleValue)| {
        tree.is_text(*key, "little_endian") && *value != PickleValue::Bool(true)
    };
    match tree.items(tree.root).iter().any(is_big) {
        true => Err(checkpoint_error(
            "it was saved by a big-endian machine (little_endian is False), which is not supported (load it there, and \
             save it again)",
        )),
        false => Ok(()),
    }
}

impl LegacyStorage {
    /// Its range, or what is wrong with it. `is_read` is whether its count was read.
    fn checked(&self, input: &HeaderInput, is_read: bool) -> Result<Result<Range<u64>, String>, MissingRange> {
        let (name, Range { start, end }) = (quote(&self.key), self.range.clone());
        if end > input.len() {
            let len = input.len();
            return Ok(Err(format!("its storage {name} ends at byte {end}, but the file ends at byte {len}")));
        }
        if is_read {
            let found = number_at(input.get(start - COUNT..start)?, 0, COUNT as usize);
            if found != self.count {
                let (count, at) = (self.count, start - COUNT);
                return Ok(Err(format!(
                    "storage {name} has {found} elements according to byte {at}, and {count} in the object"
                )));
            }
        }
        Ok(Ok(self.range.clone()))
    }
}

/// The pickle at byte `at`, which has at most `max` bytes and names no globals. Goes behind it.
fn plain_pickle<'i>(input: &'i HeaderInput, at: &mut u64, max: u64, what: &str) -> Result<PickleTree<'i>, Error> {
    let tree = load_at(input, *at..at.saturating_add(max), FIRST, what)?;
    if let Some((module, name)) = tree.globals().next() {
        let global = quote(&format!("{module}.{name}"));
        return Err(checkpoint_error(format!("{what} names {global}, which torch does not write there")));
    }
    *at += tree.len as u64;
    Ok(tree)
}

/// The pickle that begins at the start of a range, and ends in it. Of its bytes, `first` are read at first.
pub fn load_at<'i>(input: &'i HeaderInput, range: Range<u64>, first: u64, what: &str) -> Result<PickleTree<'i>, Error> {
    let at = range.start;
    let most = input.len().min(range.end).saturating_sub(at);
    let held = input.from(at);
    let held = &held[..held.len().min(most as usize)];
    let PickleFault { message, needs } = match load_first(held) {
        Ok(tree) => return Ok(tree),
        Err(fault) => fault,
    };
    match needs.map(|needs| needs as u64) {
        Some(needs) if (held.len() as u64) < most && needs <= most => {
            let len = first.max(needs).max((held.len() * GROWTH) as u64);
            Err(MissingRange(at..at + len.min(most)).into())
        }
        Some(_) if range.end < input.len() => {
            Err(checkpoint_error(format!("{what} at byte {at} does not end within {most} bytes")))
        }
        _ => Err(checkpoint_error(format!("{what} at byte {at}: {message}"))),
    }
}
