//! The files of a model of several files: checks their names, and opens them while the index or manifest is still read.

use crate::format::{ParseMode, SkipList};
use crate::model::error::{Error, SHARDS_MAX, SetError, SetMismatch};
use crate::model::header;
use crate::model::table::Shard;
use crate::source::{self, FileId, Location, Source, SourceStat};
use crate::threads;
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum length of the name of a shard, in bytes: messages about each of its tensors repeat it.
const NAME_MAX: usize = 1024;

/// The least size of the first request for a remote file of a set after the first one, in bytes. Most headers of shards
/// are shorter; for those that are not, another request follows.
pub(in crate::model) const HEAD_MIN: u64 = 128 << 10;

/// The usual size of a tensor in the header of a shard without its name, in bytes.
const ENTRY: u64 = 80;

/// The files of a set.
pub(in crate::model) struct ShardSet {
    /// In the order of their first use.
    pub names: Vec<String>,
    /// The index in `files` of each name's file, if it could be opened.
    pub homes: Vec<Option<usize>>,
    /// Sorted by name.
    pub files: Vec<File>,
    /// Why the other files could not be opened; empty in strict mode.
    pub broken: Vec<SetMismatch>,
    /// The locations of the files in `broken`.
    pub unopened: Vec<Location>,
}

/// Numbers the names of shards in the order of their first use, and starts to open each file at once.
pub(in crate::model) struct ShardNames<'a> {
    open: &'a mut dyn FnMut((Location, String)),
    /// The directory of the index or manifest.
    dir: Location,
    is_bin: bool,
    numbers: HashMap<String, u32>,
    list: Vec<String>,
    locations: Vec<Location>,
    /// The sizes of the headers of the shards as far as the index was read, about, and the largest.
    headers: Vec<u64>,
    longest: u64,
}

/// A shard and its bytes.
pub(in crate::model) type File = (Shard, Arc<dyn Source>);

impl ShardNames<'_> {
    /// The number of the shard `name`, which has a tensor.
    pub fn number_with(&mut self, tensor: &str, name: &str) -> Result<u32, SetError> {
        let number = self.number(name)?;
        let header = &mut self.headers[number as usize];
        *header += ENTRY + tensor.len() as u64;
        self.longest = self.longest.max(*header);
        Ok(number)
    }

    /// The number of a shard. A name that is not allowed is refused before its file is opened.
    pub fn number(&mut self, name: &str) -> Result<u32, SetError> {
        // Adjacent entries mostly belong to the same shard.
        if self.list.last().is_some_and(|last| last == name) {
            return Ok(self.list.len() as u32 - 1);
        }
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        check_shards(name, self.is_bin)?;
        let number = self.add(self.dir.join(name), name.to_owned())?;
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    /// Adds the file at `location`, and returns its number. No other file has its name.
    pub fn add(&mut self, location: Location, name: String) -> Result<u32, SetError> {
        let number = self.list.len();
        if number == SHARDS_MAX {
            return Err(SetError::TooManyShards);
        }
        // The next shards have about as many tensors as those before.
        let head = (number > 0).then(|| HEAD_MIN.max(self.longest * 5 / 4));
        source::announce(&location, head);
        self.headers.push(0);
        self.list.push(name.clone());
        self.locations.push(location.clone());
        (self.open)((location, name));
        Ok(number as u32)
    }
}

/// Opens all shards whose names occur while `read` reads the index or manifest at `location`.
pub(in crate::model) fn open_shards<R>(
    location: &Location,
    mode: ParseMode,
    read: impl FnOnce(&mut ShardNames) -> Result<R, SetError>,
) -> Result<(R, ShardSet), Error> {
    let error = |error| Error::Set { location: location.clone(), error };
    let read = |open: &mut dyn FnMut((Location, String))| {
        let (numbers, list, locations, headers, longest) = Default::default();
        let (dir, is_bin) = (location.parent(), is_bin(location));
        let mut names = ShardNames { open, dir, is_bin, numbers, list, locations, headers, longest };
        (read(&mut names), names.list, names.locations)
    };
    let ((read, names, locations), opened) =
        threads::stream(read, |(location, name): (Location, String)| open_shard(&location, name, mode));
    let read = read.map_err(error)?;
    let (mut files, mut broken): (Vec<(usize, File)>, Vec<SetMismatch>) = Default::default();
    let (mut ids, mut unopened): (HashMap<FileId, usize>, Vec<Location>) = Default::default();
    for (at, opened) in opened.into_iter().enumerate() {
        match opened {
            Ok(file) => {
                if let Some(other) = file.1.id().and_then(|id| ids.insert(id, at)) {
                    return Err(error(SetError::SameFile { a: names[other].clone(), b: file.0.name }));
                }
                files.push((at, file));
            }
            // The file may be intact: a transient error is not a mismatch, so the whole operation fails.
            Err(transient) if transient.is_transient() => return Err(transient),
            Err(error) => {
                broken.push(SetMismatch::Shard { shard: names[at][..].into(), reason: error.to_string() });
                unopened.push(locations[at].clone());
            }
        }
    }
    if mode != ParseMode::Lenient && !broken.is_empty() {
        let more = broken.len() - 1;
        return Err(Error::Mismatch { location: location.clone(), mismatch: broken.swap_remove(0), more });
    }
    if let (true, Some(first)) = (files.is_empty(), broken.first()) {
        return Err(error(SetError::Nothing { reason: first.to_string() }));
    }
    files.sort_by(|a, b| a.1.0.name.cmp(&b.1.0.name));
    let mut homes = vec![None; names.len()];
    for (home, (at, _)) in files.iter().enumerate() {
        homes[*at] = Some(home);
    }
    Ok((read, ShardSet { names, homes, files: files.into_iter().map(|file| file.1).collect(), broken, unopened }))
}

/// Fails with the first mismatch, unless the mode is lenient. `more` is the number of mismatches that are not listed.
pub(in crate::model) fn settle(
    location: &Location,
    mode: ParseMode,
    mut mismatches: Vec<SetMismatch>,
    more: usize,
) -> Result<SkipList, Error> {
    // Missing shards come first, because they explain most of the others.
    let order = |mismatch: &SetMismatch| !matches!(mismatch, SetMismatch::Shard { .. });
    mismatches.sort_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.subject().cmp(b.subject())));
    if mode != ParseMode::Lenient && !mismatches.is_empty() {
        let more = mismatches.len() - 1 + more;
        return Err(Error::Mismatch { location: location.clone(), mismatch: mismatches.swap_remove(0), more });
    }
    let mut skipped = SkipList::default();
    mismatches.into_iter().for_each(|mismatch| skipped.push(|| mismatch.skipped()));
    skipped.add(more);
    Ok(skipped.finish())
}

/// Reads the whole index or manifest at `location`, of at most `max` bytes. Also returns its owner and permissions.
pub(in crate::model) fn read_list(location: &Location, max: u64) -> Result<(Vec<u8>, SourceStat), Error> {
    let source = source::open_local(location)?;
    if source.len() > max {
        return Err(Error::Set { location: location.clone(), error: SetError::TooLong { len: source.len(), max } });
    }
    let mut text = vec![0; source.len() as usize];
    source.read_exact_at(&mut text, 0)?;
    Ok((text, source.stat()))
}

/// Whether the shards of the index or manifest at `location` are PyTorch checkpoints (`.bin`), not safetensors files.
fn is_bin(location: &Location) -> bool {
    location.file_name().to_string_lossy().contains(".bin.index")
}

/// The locations of the shards `names` of the index or manifest at `location`, without those that are refused.
pub(in crate::model) fn locations(
    location: &Location,
    names: impl IntoIterator<Item = String>,
) -> impl Iterator<Item = Location> {
    let (dir, is_bin) = (location.parent(), is_bin(location));
    names.into_iter().filter(move |name| check_shards(name, is_bin).is_ok()).map(move |name| dir.join(name))
}

/// Accepts only names of .safetensors files inside the directory, or of .bin files.
fn check_shards(name: &str, is_bin: bool) -> Result<(), SetError> {
    let why = if name.starts_with('/') {
        "is an absolute path"
    } else if name.split('/').any(|part| part == "..") {
        "leads out of the directory"
    } else if is_bin && !name.ends_with(".bin") {
        "is not a .bin file"
    } else if !is_bin && !name.ends_with(".safetensors") {
        "is not a .safetensors file"
    } else if name.len() > NAME_MAX {
        "has a name that is too long"
    } else {
        return Ok(());
    };
    Err(SetError::Refused { shard: name.to_owned(), why })
}

fn open_shard(location: &Location, name: String, mode: ParseMode) -> Result<File, Error> {
    let source = source::open_local(location)?;
    let header = header::read_header(location, &*source, mode)?;
    Ok((Shard { name, location: location.clone(), header }, source))
}
