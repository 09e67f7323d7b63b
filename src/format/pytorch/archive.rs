//! The entries of an archive that torch has written: the pickle and the storages.

use super::PICKLE_MAX;
use super::error::{Error, Fault};
use super::pickle::{self, Tree};
use crate::format::header::Mode;
use crate::format::input::Input;
use crate::format::zip::Directory;
use std::collections::HashMap;
use std::ops::Range;

/// The entry that describes the tensors.
const PICKLE: &str = "data.pkl";

/// Maximum size of the entry `byteorder`: that of the longer word.
const BYTE_ORDER_MAX: u64 = "little".len() as u64;

/// If so many bytes or fewer lie between two entries, both are read at once.
const TOGETHER: u64 = 16 << 10;

/// An archive that torch has written.
pub struct Archive<'d> {
    directory: &'d Directory,
    /// The storages by their keys: the entry, and the range of its bytes.
    storages: HashMap<&'d str, (usize, Range<u64>)>,
    /// Whether numbers are in big-endian order.
    pub is_big_endian: bool,
    /// The entries whose bytes are used, and where they are.
    pub used: Vec<(usize, Range<u64>)>,
    pickle: Range<u64>,
}

impl<'d> Archive<'d> {
    /// Finds the entries that torch reads.
    pub fn read(directory: &'d Directory, input: &Input, mode: Mode) -> Result<Self, Error> {
        let mut pickles = (0..directory.len()).filter(|at| is_pickle(directory.name(*at)));
        let at = pickles.next().ok_or(Error::NoPickle)?;
        if let Some(other) = pickles.next() {
            let (a, b) = (directory.name(at).to_owned(), directory.name(other).to_owned());
            return Err(Error::Pickles { a, b });
        }
        let prefix = prefix(directory.name(at)).ok_or(Error::NoPickle)?;
        let own = |at: usize| directory.name(at).strip_prefix(prefix);
        let by_name = directory.by_name();
        if mode != Mode::Lenient {
            by_name?;
        }
        let byte_order = (0..directory.len()).rfind(|at| own(*at) == Some("byteorder"));
        let mut wanted = vec![at];
        if let Some(at) = byte_order {
            directory.check_stored(at)?;
            if directory.entry(at).size > BYTE_ORDER_MAX {
                return Err(Error::ByteOrder);
            }
        }
        wanted.extend(byte_order);
        let others = wanted.len();
        wanted.extend((0..directory.len()).filter(|at| own(*at).is_some_and(|name| name.starts_with("data/"))));
        let ranges = directory.ranges(input, &wanted)?;
        let used: Vec<(usize, Range<u64>)> = wanted.into_iter().zip(ranges).collect();
        let storages = used[others..]
            .iter()
            .filter_map(|(at, range)| Some((own(*at)?.strip_prefix("data/")?, (*at, range.clone()))));
        // The last of repeated names counts, as in torch.
        let storages = storages.collect();
        let pickle = used[0].1.clone();
        directory.check_stored(at)?;
        let size = directory.entry(at).size;
        if size > PICKLE_MAX {
            return Err(Error::LongPickle { size });
        }
        // One read for both.
        let order = byte_order.map(|_| used[1].1.clone());
        let near = order.as_ref().filter(|order| order.start >= pickle.end && order.end - pickle.end <= TOGETHER);
        input.get(pickle.start..near.map_or(pickle.end, |order| order.end))?;
        let is_big_endian = match order.map(|order| input.get(order)).transpose()? {
            None | Some(b"little") => false,
            Some(b"big") => true,
            Some(_) => return Err(Error::ByteOrder),
        };
        Ok(Self { directory, storages, is_big_endian, used, pickle })
    }

    /// Where the data begins, in bytes from the start of the file.
    pub fn data_start(&self) -> u64 {
        self.storages.values().map(|(_, range)| range.start).min().unwrap_or(self.pickle.end)
    }

    /// Size of the entry of the pickle in bytes.
    pub fn pickle_len(&self) -> u64 {
        self.pickle.end - self.pickle.start
    }

    /// The values of the pickle.
    pub fn tree<'i>(&self, input: &'i Input) -> Result<Tree<'i>, Error> {
        Ok(pickle::load(input.get(self.pickle.clone())?)?)
    }

    /// The name of the entry of a storage, and its range.
    pub fn storage(&self, key: &str) -> Result<(String, Range<u64>), Fault> {
        let entry = || format!("data/{key}");
        let (at, range) = self.storages.get(key).ok_or_else(|| Fault::NoEntry { entry: entry() })?;
        self.directory.check_stored(*at)?;
        Ok((entry(), range.clone()))
    }
}

/// Whether a reader could take the entry of that name for the pickle. Torch looks entries up in any case.
pub fn is_pickle(name: &str) -> bool {
    let before = name.len().checked_sub(PICKLE.len());
    let parts = before.and_then(|at| name.as_bytes().split_at_checked(at));
    parts
        .is_some_and(|(before, last)| last.eq_ignore_ascii_case(PICKLE.as_bytes()) && matches!(before, [] | [.., b'/']))
}

/// What precedes `data.pkl` in its name; `None` for other entries.
pub fn prefix(name: &str) -> Option<&str> {
    name.strip_suffix(PICKLE).filter(|prefix| prefix.is_empty() || prefix.ends_with('/') && prefix.len() > 1)
}
