//! The entries of an archive that torch has written: the pickle and the storages.

use super::storages::TorchStorages;
use super::{PICKLE_MAX, checkpoint_error};
use crate::format::detect::{PACK_AGAIN, detect_exported};
use crate::format::error::Error;
use crate::format::header::ParseMode;
use crate::format::input::{HeaderInput, MissingRange, join_ranges};
use crate::format::pickle::{PickleTree, load_pickle};
use crate::format::zip::{self, ZipDirectory};
use crate::text::quote;
use std::collections::HashMap;
use std::ops::Range;

/// The entry that describes the tensors.
const PICKLE: &str = "data.pkl";

const NO_PICKLE: &str = "no entry data.pkl in the zip archive (was the program that saved it interrupted?)";

const NO_BYTE_ORDER: &str = "the entry byteorder is neither \"little\" nor \"big\"";

/// Maximum size of the entry `byteorder`: that of the longer word.
const BYTE_ORDER_MAX: u64 = "little".len() as u64;

const ALIGNMENT_LEN_MAX: u64 = 20;

/// The alignment of storages if no entry gives another one, in bytes.
const ALIGNMENT: u64 = 64;

/// If so many bytes or fewer lie between two entries, both are read at once.
const TOGETHER: u64 = 16 << 10;

pub struct TorchArchive<'d> {
    pub storages: TorchStorages<'d>,
    /// The entries whose bytes are used, and where they are.
    pub used: Vec<(usize, Range<u64>)>,
    /// The start of the data, in bytes from the start of the file.
    pub data_start: u64,
    pickle: Range<u64>,
}

impl<'d> TorchArchive<'d> {
    pub fn read(directory: &'d ZipDirectory, input: &HeaderInput, mode: ParseMode) -> Result<Self, Error> {
        Self::find(directory, input, mode).map_err(|error| error.map_part(checkpoint_error))
    }

    fn find(directory: &'d ZipDirectory, input: &HeaderInput, mode: ParseMode) -> Result<Self, Error> {
        let mut pickles = (0..directory.len()).filter(|at| is_pickle(directory.name(*at)));
        let names = || (0..directory.len()).map(|at| directory.name(at));
        let at = pickles.next().ok_or_else(|| detect_exported(names()).unwrap_or_else(|| NO_PICKLE.to_owned()))?;
        if let Some(other) = pickles.next() {
            let (a, b) = (quote(directory.name(at)), quote(directory.name(other)));
            return Err(Error::Broken(format!("both {a} and {b} could be the pickle")));
        }
        let prefix = prefix(directory.name(at)).ok_or_else(|| NO_PICKLE.to_owned())?;
        if mode != ParseMode::Lenient {
            directory.check_names()?;
        }
        check_stored(directory, at)?;
        let size = directory.entry(at).size;
        if size > PICKLE_MAX {
            return Err(Error::Broken(format!("data.pkl has {size} bytes; weightfs reads at most {PICKLE_MAX}")));
        }
        // The last of repeated names counts, as in torch.
        let names = (0..directory.len()).filter_map(|at| Some((directory.name(at).strip_prefix(prefix)?, at)));
        let entries: HashMap<&str, usize> = names.clone().collect();
        let byte_order = short_entry(directory, &entries, "byteorder", BYTE_ORDER_MAX);
        let alignment = short_entry(directory, &entries, ".storage_alignment", ALIGNMENT_LEN_MAX);
        if byte_order.is_none() && entries.contains_key("byteorder") {
            return Err(Error::Broken(NO_BYTE_ORDER.to_owned()));
        }
        // Requires these entries with their local headers, neighbours together.
        let mut small: Vec<usize> = [Some(at), byte_order, alignment].into_iter().flatten().collect();
        small.sort_unstable_by_key(|at| directory.entry(*at).header);
        let groups = join_ranges(small.iter().map(|at| directory.entry(*at).space()), TOGETHER, u64::MAX);
        input.require(groups.into_iter().map(|(_, group)| group))?;
        let pickle = directory.local_range(input, at)?;
        let mut used = vec![(at, pickle.clone())];
        let mut is_big_endian = false;
        if let Some(at) = byte_order {
            let range = directory.local_range(input, at)?;
            is_big_endian = match input.get(range.clone())? {
                b"little" => false,
                b"big" => true,
                _ => return Err(Error::Broken(NO_BYTE_ORDER.to_owned())),
            };
            used.push((at, range));
        }
        let alignment = match alignment {
            Some(at) => {
                let text = str::from_utf8(input.get(directory.local_range(input, at)?)?).unwrap_or_default();
                text.trim().parse().unwrap_or(0)
            }
            None => ALIGNMENT,
        };
        // The local header of the pickle shows whether torch has written the archive.
        let is_by_torch = alignment > 0 && directory.is_by_torch(input, at, alignment)?;
        let (keys, wanted): (Vec<&str>, Vec<usize>) =
            names.filter_map(|(name, at)| Some((name.strip_prefix("data/")?, at))).unzip();
        let mut ranges = directory.ranges(input, &wanted, is_by_torch.then_some(alignment))?;
        if mode != ParseMode::Lenient
            && let Some(at) = ranges.iter().position(Result::is_err)
        {
            ranges.swap_remove(at)?;
        }
        let known = wanted.iter().zip(&ranges).filter_map(|(at, range)| Some((*at, range.clone().ok()?)));
        used.extend(known);
        let data_start = ranges.iter().flatten().map(|range| range.start).min().unwrap_or(pickle.end);
        let ranges = keys.into_iter().zip(wanted.into_iter().zip(ranges)).map(|(key, (at, range))| {
            let stored = check_stored(directory, at).map_err(|error| error.to_string());
            (key, stored.and(range))
        });
        let storages = TorchStorages::in_archive(is_big_endian, ranges.collect());
        Ok(Self { storages, used, data_start, pickle })
    }

    pub fn pickle_len(&self) -> u64 {
        self.pickle.end - self.pickle.start
    }

    pub fn tree<'i>(&self, input: &'i HeaderInput) -> Result<PickleTree<'i>, Error> {
        load_pickle(input.get(self.pickle.clone())?).map_err(checkpoint_error)
    }
}

/// Fails unless an entry is stored as it is, and says how to store it.
fn check_stored(directory: &ZipDirectory, at: usize) -> Result<(), Error> {
    directory.check_stored(at).map_err(|error| match error {
        Error::Unsupported(fault) => Error::Broken(format!("{fault} ({PACK_AGAIN})")),
        error => error,
    })
}

/// Whether a file is an archive that torch has written, or the beginning of one.
pub fn is_archive(input: &HeaderInput) -> Result<bool, MissingRange> {
    if !zip::is_zip(input)? {
        return Ok(false);
    }
    match ZipDirectory::read(input) {
        Ok(directory) => Ok((0..directory.len()).any(|at| by_torch(directory.name(at)))),
        Err(Error::Missing(missing)) => Err(missing),
        // The first entry tells what a damaged archive should be.
        Err(_) => Ok(by_torch(&zip::first_name(input)?)),
    }
}

fn by_torch(name: &str) -> bool {
    let member = name.split_once('/').map_or(name, |(_, member)| member);
    prefix(name).is_some() || ["constants.pkl", "version", ".data/serialization_id"].contains(&member)
}

/// The entry with that name, if it is stored and has at most `max` bytes.
fn short_entry(directory: &ZipDirectory, entries: &HashMap<&str, usize>, name: &str, max: u64) -> Option<usize> {
    let found = entries.get(name).copied();
    found.filter(|at| directory.check_stored(*at).is_ok() && directory.entry(*at).size <= max)
}

/// Whether a reader could take the entry of that name for the pickle. Torch looks entries up in any case.
pub fn is_pickle(name: &str) -> bool {
    let before = name.len().checked_sub(PICKLE.len());
    let parts = before.and_then(|at| name.as_bytes().split_at_checked(at));
    parts
        .is_some_and(|(before, last)| last.eq_ignore_ascii_case(PICKLE.as_bytes()) && matches!(before, [] | [.., b'/']))
}

/// The prefix of `data.pkl` in its name; `None` for other entries.
fn prefix(name: &str) -> Option<&str> {
    name.strip_suffix(PICKLE).filter(|prefix| prefix.is_empty() || prefix.ends_with('/') && prefix.len() > 1)
}
