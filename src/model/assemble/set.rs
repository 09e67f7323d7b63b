//! The files of a model of several files: checks their names, and opens them while the index or manifest is still read.

use crate::format::{ParseMode, SkipList, SkippedEntry, strip_suffix};
use crate::model::error::{Error, LENIENT};
use crate::model::header;
use crate::model::linked::is_below;
use crate::model::table::{DescribingFile, ModelFile};
use crate::source::{self, FileId, Location, Source};
use crate::text::quote;
use crate::threads;
use std::borrow::Cow;
use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Maximum size of an index or manifest, in bytes: five times the size of the index of half a million tensors.
pub(in crate::model) const LIST_MAX: u64 = 300 << 20;

pub(in crate::model) const SHARDS_MAX: usize = 10_000;

/// The name of the folder that shows the states of an optimizer beside the weights.
pub(in crate::model) const OPTIMIZER: &str = "optimizer";

/// Why commands do not change a model of several files.
pub(super) const SEVERAL_FILES: &str = "a model of several files; name one of them";

/// Maximum length of the name of a shard, in bytes: messages about each of its tensors repeat it.
const NAME_MAX: usize = 1024;

/// The least size of the first request for a remote file of a set after the first one, in bytes. Most headers of shards
/// are shorter; for those that are not, another request follows.
pub(in crate::model) const HEAD_MIN: u64 = 128 << 10;

/// The usual size of a tensor in the header of a shard without its name, in bytes.
const ENTRY: u64 = 80;

/// The files of a model, as far as they are known before it is opened.
pub(in crate::model) struct KnownFiles {
    pub main: Location,
    /// The others: shards that an index or a manifest names, or other splits. They need not exist. A shard whose name
    /// is refused is left out: it may lead into the mount itself.
    pub others: Vec<Location>,
    /// The directory that holds all of them, unless links lead out of it. `None` if that is the directory of the main
    /// file, or one above it.
    pub base: Option<Location>,
    /// The name of the folder that shows the model beside the weights, if its description tells that it belongs to
    /// these.
    pub set: Option<&'static str>,
}

impl KnownFiles {
    pub fn with(main: &Location, others: Vec<Location>) -> Self {
        Self { main: main.clone(), others, base: None, set: None }
    }

    /// The files of an index or manifest that names these shards.
    pub fn with_shards(main: &Location, names: Option<impl IntoIterator<Item = String>>) -> Self {
        let (dir, suffix) = (main.parent(), ShardSuffix::of(main));
        let allowed = names.into_iter().flatten().filter(|name| check_shards(name, suffix).is_ok());
        Self::with(main, allowed.map(|name| dir.join(name)).collect())
    }
}

pub(in crate::model) struct ShardSet {
    /// In the order of their first use.
    pub names: Vec<String>,
    /// The index in `shards` of each name's file, if it could be opened.
    pub homes: Vec<Option<usize>>,
    /// Sorted by name.
    pub shards: Vec<ModelFile>,
    /// The files that could not be opened; empty in strict mode.
    pub unopened: Vec<Location>,
    pub mismatches: SetMismatches,
}

/// Numbers the names of shards in the order of their first use, and starts to open each file at once.
pub(in crate::model) struct ShardNames<'a> {
    open: &'a mut dyn FnMut((Location, String)),
    dir: Location,
    suffix: ShardSuffix,
    numbers: HashMap<String, u32>,
    list: Vec<(Location, String)>,
    /// The sizes of the headers of the shards as far as the index was read, about, and the largest.
    headers: Vec<u64>,
    longest: u64,
}

impl ShardNames<'_> {
    /// The number of the shard `name`, which has a tensor.
    pub fn number_with(&mut self, tensor: &str, name: &str) -> Result<u32, String> {
        let number = self.number(name)?;
        let header = &mut self.headers[number as usize];
        *header += ENTRY + tensor.len() as u64;
        self.longest = self.longest.max(*header);
        Ok(number)
    }

    /// The number of a shard. A name that is not allowed is refused before its file is opened.
    pub fn number(&mut self, name: &str) -> Result<u32, String> {
        // Adjacent entries mostly belong to the same shard.
        if self.list.last().is_some_and(|(_, last)| last == name) {
            return Ok(self.list.len() as u32 - 1);
        }
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        check_shards(name, self.suffix)?;
        let number = self.add(self.dir.join(name), name.to_owned())?;
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    /// Adds the file at `location`, and returns its number. No other file has its name.
    pub fn add(&mut self, location: Location, name: String) -> Result<u32, String> {
        let number = self.list.len();
        if number == SHARDS_MAX {
            return Err(too_many_shards());
        }
        // The next shards have about as many tensors as those before.
        let head = (number > 0).then(|| HEAD_MIN.max(self.longest * 5 / 4));
        source::announce(&location, head);
        self.headers.push(0);
        self.list.push((location.clone(), name.clone()));
        (self.open)((location, name));
        Ok(number as u32)
    }
}

pub(in crate::model) fn too_many_shards() -> String {
    format!("names more than {SHARDS_MAX} shards, which is the maximum")
}

/// Opens all shards whose names occur while `read` reads the index or manifest at `location`.
pub(in crate::model) fn open_shards<R>(
    location: &Location,
    mode: ParseMode,
    read: impl FnOnce(&mut ShardNames) -> Result<R, String>,
) -> Result<(R, ShardSet), Error> {
    let read_all = |open: &mut dyn FnMut((Location, String))| {
        let (numbers, list, headers, longest) = Default::default();
        let (dir, suffix) = (location.parent(), ShardSuffix::of(location));
        let mut names = ShardNames { open, dir, suffix, numbers, list, headers, longest };
        (read(&mut names), names.list)
    };
    let ((read, listed), opened) = threads::stream(read_all, |(location, name)| ModelFile::open(location, name, mode));
    let read = read.map_err(|fault| Error::of_set(location, fault))?;
    let mut files: Vec<(usize, ModelFile)> = Vec::new();
    let (mut ids, mut unopened): (HashMap<FileId, usize>, Vec<Location>) = Default::default();
    let mut mismatches = SetMismatches::default();
    for (at, opened) in opened.into_iter().enumerate() {
        match opened {
            Ok(shard) => {
                if let Some(other) = shard.source.id().and_then(|id| ids.insert(id, at)) {
                    let (a, b) = (quote(&listed[other].1), quote(&shard.name));
                    return Err(Error::of_set(location, format!("shards {a} and {b} are the same file")));
                }
                files.push((at, shard));
            }
            // The file may be intact: a transient error is not a mismatch, so the whole operation fails.
            Err(transient) if transient.is_transient() => return Err(transient),
            Err(error) => {
                let (path, name) = &listed[at];
                let is_quoted = !error.quotes() || is_below(path, &location.parent());
                let error = if is_quoted { error.without_hint() } else { error.hidden(path) };
                mismatches.push_shard(name, || format!("a shard is missing or broken: {error}"));
                unopened.push(path.clone());
            }
        }
    }
    mismatches.check(location, mode)?;
    if files.is_empty() {
        mismatches.refuse_nothing(location, "shards")?;
    }
    files.sort_by(|a, b| a.1.name.cmp(&b.1.name));
    let mut homes = vec![None; listed.len()];
    for (home, (at, _)) in files.iter().enumerate() {
        homes[*at] = Some(home);
    }
    let names = listed.into_iter().map(|(_, name)| name).collect();
    let shards = files.into_iter().map(|(_, shard)| shard).collect();
    Ok((read, ShardSet { names, homes, shards, unopened, mismatches }))
}

/// Mismatches between an index or manifest and its shards, or between splits. What does not match is left out.
#[derive(Debug, Default)]
pub(in crate::model) struct SetMismatches {
    found: SkipList,
    /// The first ones are about whole shards, such as those that could not be opened.
    broken: usize,
}

impl SetMismatches {
    /// `name` is that of the tensor or the shard that is left out. `reason` is called only if it is listed.
    pub fn push(&mut self, name: &str, reason: impl FnOnce() -> String) {
        self.found.push(|| SkippedEntry::new(name, reason()));
    }

    /// As [`SetMismatches::push`], for a shard as a whole. Call this before the other methods.
    pub fn push_shard(&mut self, name: &str, reason: impl FnOnce() -> String) {
        self.push(name, reason);
        self.broken += 1;
    }

    /// As [`SetMismatches::push`], for what is shown all the same.
    pub fn remark(&mut self, name: &str, reason: impl FnOnce() -> String) {
        self.found.remark(|| SkippedEntry::shown(name, reason()));
    }

    /// Fails with the first mismatch, unless the mode is lenient.
    pub fn check(&self, location: &Location, mode: ParseMode) -> Result<(), Error> {
        let [first, ..] = self.found.listed() else { return Ok(()) };
        if mode == ParseMode::Lenient {
            return Ok(());
        }
        let more = match self.found.total() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        Err(Error::of_set(location, format!("{}{more}{LENIENT}", first.reason)))
    }

    /// Fails if there is a mismatch: it is the reason why none of the parts, such as shards, is left.
    pub fn refuse_nothing(&self, location: &Location, parts: &str) -> Result<(), Error> {
        self.found.listed().first().map_or(Ok(()), |first| {
            Err(Error::of_set(location, format!("none of its {parts} can be mounted: {}", first.reason)))
        })
    }

    /// All mismatches, sorted. Missing shards come first, because they explain most of the others. Fails with the
    /// first, unless the mode is lenient.
    pub fn settle(mut self, location: &Location, mode: ParseMode) -> Result<SkipList, Error> {
        self.found.sort(self.broken);
        self.check(location, mode)?;
        Ok(self.finish())
    }

    /// All mismatches, in the order in which they were found.
    pub fn finish(self) -> SkipList {
        self.found.finish()
    }
}

/// Keeps each tensor in one shard only: in the one where `is_stated` says that it belongs, or else in the first that
/// has it. The arguments of `is_stated` are the indices of the shard and of the tensor in it. `stray` is called with
/// the name and the shard of each tensor that is kept in a shard where it does not belong.
pub(super) fn keep_one_each(
    shards: &mut [ModelFile],
    mismatches: &mut SetMismatches,
    is_stated: &dyn Fn(usize, usize) -> bool,
    stray: &mut dyn FnMut(&str, &str, &mut SetMismatches),
) {
    // The shards of the tensors that are where they belong. Built only if it is needed.
    let at_home: LazyCell<HashMap<&str, usize>, _> = LazyCell::new(|| {
        let names = shards.iter().enumerate().flat_map(|(at, shard)| {
            let stated = (0..shard.header.len()).filter(move |tensor| is_stated(at, *tensor));
            stated.map(move |tensor| (shard.header.name(tensor), at))
        });
        names.collect()
    });
    // The other tensors, and the first shard that has each.
    let mut strays: HashMap<&str, usize> = HashMap::new();
    let mut dropped: Vec<HashSet<String>> = vec![HashSet::new(); shards.len()];
    for (at, shard) in shards.iter().enumerate() {
        for tensor in (0..shard.header.len()).filter(|tensor| !is_stated(at, *tensor)) {
            let name = shard.header.name(tensor);
            let home = at_home.get(name);
            let Some(kept) = home.or_else(|| strays.get(name)) else {
                strays.insert(name, at);
                stray(name, &shard.name, mismatches);
                continue;
            };
            dropped[at].insert(name.to_owned());
            // The tensor is shown, as it is in the other shard.
            mismatches.remark(name, || {
                let stated = if home.is_some() { " as the index says" } else { "" };
                let (kept, other) = (quote(&shards[*kept].name), quote(&shard.name));
                format!("tensor {} is in {kept}{stated}, and also in {other}", quote(name))
            });
        }
    }
    for (shard, dropped) in shards.iter_mut().zip(dropped).filter(|(_, dropped)| !dropped.is_empty()) {
        shard.header.retain(|name| !dropped.contains(name));
    }
}

/// Reads the whole index or manifest at `location`, of at most `max` bytes. Also returns what it was.
pub(in crate::model) fn read_list(location: &Location, max: u64) -> Result<(Vec<u8>, DescribingFile), Error> {
    let (text, source) = read_source(location, max)?;
    Ok((text, DescribingFile { location: location.clone(), id: source.id(), stat: source.stat() }))
}

/// As [`read_list`], with the open file.
pub(super) fn read_source(location: &Location, max: u64) -> Result<(Vec<u8>, Arc<dyn Source>), Error> {
    let source = source::open_local(location)?;
    if source.len() > max {
        return Err(Error::of_set(location, format!("{} bytes long; at most {max} are read", source.len())));
    }
    let mut text = vec![0; source.len() as usize];
    source.read_exact_at(&mut text, 0)?;
    text.drain(..text.len() - without_mark(&text).len());
    Ok((text, source))
}

/// A text without the byte order mark that editors of Windows write before it.
pub(super) fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// The kinds of files that the index or manifest at a location may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShardSuffix {
    Safetensors,
    Bin,
    /// Files of any kind, because the name of the index does not say which.
    Any,
}

impl ShardSuffix {
    fn of(location: &Location) -> Self {
        let name = location.file_name().to_string_lossy().to_ascii_lowercase();
        match () {
            () if name.contains(".bin.") => Self::Bin,
            () if name.contains(".safetensors.") || name.contains("manifest") => Self::Safetensors,
            () => Self::Any,
        }
    }

    /// The suffix that a name should have, if it has another one.
    fn missing(self, name: &str) -> Option<&'static str> {
        let has = |suffix| strip_suffix(name.as_ref(), suffix).is_some();
        let is_safetensors = has(".safetensors") || has(".sft");
        match self {
            Self::Bin if !has(".bin") => Some(".bin"),
            Self::Safetensors if !is_safetensors => Some(".safetensors"),
            Self::Any if !is_safetensors && !has(".bin") => Some(".safetensors"),
            _ => None,
        }
    }
}

/// Accepts only names of .safetensors files inside the directory, or of .bin files.
fn check_shards(name: &str, suffix: ShardSuffix) -> Result<(), String> {
    let why = if name.starts_with('/') {
        "is an absolute path"
    } else if name.split('/').any(|part| part == "..") {
        "leads out of the directory"
    } else if let Some(suffix) = suffix.missing(name) {
        return Err(format!("refused: shard {} is not a {suffix} file", quote(name)));
    } else if name.len() > NAME_MAX {
        "has a name that is too long"
    } else {
        return Ok(());
    };
    Err(format!("refused: shard {} {why}", quote(name)))
}

/// A path without the components that lead nowhere: `one.safetensors` for `./one.safetensors`.
pub(super) fn plain_path(path: &str) -> Cow<'_, str> {
    if !path.split('/').any(|part| part == ".") {
        return path.into();
    }
    path.split('/').filter(|part| *part != ".").collect::<Vec<_>>().join("/").into()
}

impl ModelFile {
    fn open(location: Location, name: String, mode: ParseMode) -> Result<Self, Error> {
        let source = source::open_local(&location)?;
        let header = header::read_header(&location, &*source, mode)?;
        Ok(Self { name, location, header, source })
    }
}
