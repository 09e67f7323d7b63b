//! The entries of an archive that torch has written: the pickle and the storages.

use super::PICKLE_MAX;
use super::error::{PytorchError, PytorchFault};
use super::pickle::{self, PickleTree};
use crate::format::header::ParseMode;
use crate::format::input::HeaderInput;
use crate::format::zip::{self, ZipDirectory};
use std::collections::HashMap;
use std::ops::Range;

/// The entry that describes the tensors.
const PICKLE: &str = "data.pkl";

/// Maximum size of the entry `byteorder`: that of the longer word.
const BYTE_ORDER_MAX: u64 = "little".len() as u64;

/// Maximum size of the entry with the alignment.
const ALIGNMENT_LEN_MAX: u64 = 20;

/// The alignment of storages if no entry gives another one, in bytes.
const ALIGNMENT: u64 = 64;

/// If so many bytes or fewer lie between two entries, both are read at once.
const TOGETHER: u64 = 16 << 10;

/// An archive that torch has written.
pub struct TorchArchive<'d> {
    directory: &'d ZipDirectory,
    /// The storages by their keys: the entry, and the range of its bytes or why it is not known.
    storages: HashMap<&'d str, (usize, Result<Range<u64>, zip::ZipFault>)>,
    /// Whether numbers are in big-endian order.
    pub is_big_endian: bool,
    /// The entries whose bytes are used, and where they are.
    pub used: Vec<(usize, Range<u64>)>,
    pickle: Range<u64>,
}

impl<'d> TorchArchive<'d> {
    /// Finds the entries that torch reads.
    pub fn read(directory: &'d ZipDirectory, input: &HeaderInput, mode: ParseMode) -> Result<Self, PytorchError> {
        let mut pickles = (0..directory.len()).filter(|at| is_pickle(directory.name(*at)));
        let at = pickles.next().ok_or(PytorchError::NoPickle)?;
        if let Some(other) = pickles.next() {
            let (a, b) = (directory.name(at).to_owned(), directory.name(other).to_owned());
            return Err(PytorchError::Pickles { a, b });
        }
        let prefix = prefix(directory.name(at)).ok_or(PytorchError::NoPickle)?;
        let own = |at: usize| directory.name(at).strip_prefix(prefix);
        if mode != ParseMode::Lenient {
            directory.check_names()?;
        }
        directory.check_stored(at)?;
        let size = directory.entry(at).size;
        if size > PICKLE_MAX {
            return Err(PytorchError::LongPickle { size });
        }
        let short = |name, max: u64| {
            let found = (0..directory.len()).rfind(|at| own(*at) == Some(name));
            found.filter(|at| directory.check_stored(*at).is_ok() && directory.entry(*at).size <= max)
        };
        let byte_order = short("byteorder", BYTE_ORDER_MAX);
        let alignment = short(".storage_alignment", ALIGNMENT_LEN_MAX);
        if byte_order.is_none() && (0..directory.len()).any(|at| own(at) == Some("byteorder")) {
            return Err(PytorchError::ByteOrder);
        }
        let mut small: Vec<usize> = [Some(at), byte_order, alignment].into_iter().flatten().collect();
        small.sort_unstable_by_key(|at| directory.entry(*at).header);
        read_together(directory, input, &small)?;
        let bytes = |at: usize| -> Result<(Range<u64>, &[u8]), PytorchError> {
            let range = directory.local_range(input, at)??;
            Ok((range.clone(), input.get(range)?))
        };
        let (pickle, _) = bytes(at)?;
        let mut used = vec![(at, pickle.clone())];
        let is_big_endian = match byte_order.map(bytes).transpose()? {
            None => false,
            Some((_, b"little")) => false,
            Some((_, b"big")) => true,
            Some(_) => return Err(PytorchError::ByteOrder),
        };
        if let Some(at) = byte_order {
            used.push((at, bytes(at)?.0));
        }
        let alignment = alignment.map(bytes).transpose()?.map_or(Some(ALIGNMENT), |(_, text)| {
            let number = str::from_utf8(text).ok()?.trim().parse().ok();
            number.filter(|number: &u64| *number > 0)
        });
        // The local header of the pickle shows whether torch has written the archive.
        let alignment = match alignment {
            Some(alignment) if directory.is_by_torch(input, at, alignment)? => Some(alignment),
            _ => None,
        };
        let wanted = (0..directory.len()).filter(|at| own(*at).is_some_and(|name| name.starts_with("data/")));
        let wanted: Vec<usize> = wanted.collect();
        let mut ranges = directory.ranges(input, &wanted, alignment)?;
        if mode != ParseMode::Lenient
            && let Some(at) = ranges.iter().position(Result::is_err)
        {
            return Err(ranges.swap_remove(at).err().map_or(PytorchError::NoPickle, PytorchError::Zip));
        }
        let known = wanted.iter().zip(&ranges).filter_map(|(at, range)| Some((*at, range.clone().ok()?)));
        used.extend(known);
        let storages = wanted.iter().zip(ranges);
        let storages = storages.filter_map(|(at, range)| Some((own(*at)?.strip_prefix("data/")?, (*at, range))));
        // The last of repeated names counts, as in torch.
        let storages = storages.collect();
        Ok(Self { directory, storages, is_big_endian, used, pickle })
    }

    /// The start of the data, in bytes from the start of the file.
    pub fn data_start(&self) -> u64 {
        let known = self.storages.values().filter_map(|(_, range)| range.as_ref().ok());
        known.map(|range| range.start).min().unwrap_or(self.pickle.end)
    }

    /// Size of the entry of the pickle in bytes.
    pub fn pickle_len(&self) -> u64 {
        self.pickle.end - self.pickle.start
    }

    /// The values of the pickle.
    pub fn tree<'i>(&self, input: &'i HeaderInput) -> Result<PickleTree<'i>, PytorchError> {
        Ok(pickle::load_pickle(input.get(self.pickle.clone())?)?)
    }

    /// The name of the entry of a storage, and its range.
    pub fn storage(&self, key: &str) -> Result<(String, Range<u64>), PytorchFault> {
        let entry = || format!("data/{key}");
        let (at, range) = self.storages.get(key).ok_or_else(|| PytorchFault::NoEntry { entry: entry() })?;
        self.directory.check_stored(*at)?;
        Ok((entry(), range.clone()?))
    }
}

/// Requires the entries `wanted`, which are in the order of the file, with their local headers. Neighbours are read
/// together.
fn read_together(directory: &ZipDirectory, input: &HeaderInput, wanted: &[usize]) -> Result<(), PytorchError> {
    let mut groups: Vec<Range<u64>> = Vec::new();
    for space in wanted.iter().map(|at| directory.space(*at)) {
        match groups.last_mut() {
            Some(group) if space.start <= group.end + TOGETHER => group.end = space.end.max(group.end),
            _ => groups.push(space),
        }
    }
    groups.into_iter().try_for_each(|group| Ok(input.get(group).map(drop)?))
}

/// Whether a reader could take the entry of that name for the pickle. Torch looks entries up in any case.
pub fn is_pickle(name: &str) -> bool {
    let before = name.len().checked_sub(PICKLE.len());
    let parts = before.and_then(|at| name.as_bytes().split_at_checked(at));
    parts
        .is_some_and(|(before, last)| last.eq_ignore_ascii_case(PICKLE.as_bytes()) && matches!(before, [] | [.., b'/']))
}

/// The prefix of `data.pkl` in its name; `None` for other entries.
pub fn prefix(name: &str) -> Option<&str> {
    name.strip_suffix(PICKLE).filter(|prefix| prefix.is_empty() || prefix.ends_with('/') && prefix.len() > 1)
}
