//! The common form of all headers: a table of tensors, and the other data that later layers print or check.

use super::dtype::Dtype;
use super::error::{Error, key_reason};
use super::metadata::MetadataValue;
use super::names::NameTable;
use super::tensors::{
    HeaderTensor, PackedLayout, RecordDetails, TensorInfo, TensorLayout, TensorRecord, TensorTable, numbered_dtype,
    span,
};
use crate::text::quote;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::ops::{Deref, Range};

/// The treatment of a file that breaks the rules of its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ParseMode {
    /// The first broken rule is an error.
    #[default]
    Strict,
    /// As strict, but only the header has to be there: the data may be missing, or lie anywhere. For commands that read
    /// no data.
    Header,
    /// Entries that break a rule are left out. Tensors that lie inside the file are kept, even if they overlap or leave
    /// holes.
    Lenient,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedEntry {
    pub name: String,
    /// The reason, one line.
    pub reason: String,
    pub kind: SkippedKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkippedKind {
    /// It is left out.
    LeftOut,
    /// It is left out because another entry has the same name.
    Duplicate,
    /// It is shown, but not as the format or an index says: its data is shared, or lies elsewhere.
    Shown,
    /// Bytes of the file that belong to no tensor. They have no name.
    Bytes,
}

impl SkippedEntry {
    /// An entry that was left out, but not because another entry has the same name.
    pub fn new(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { name: name.into(), reason: reason.into(), kind: SkippedKind::LeftOut }
    }

    pub fn shown(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { kind: SkippedKind::Shown, ..Self::new(name, reason) }
    }

    pub fn bytes(reason: impl Into<String>) -> Self {
        Self { kind: SkippedKind::Bytes, ..Self::new("", reason) }
    }

    /// Whether the strict parser rejects the file for the same reason.
    pub fn is_same_fault(&self, error: &Error) -> bool {
        match error {
            Error::Tensor { name, fault } => self.name == *name && self.reason == *fault,
            Error::Key { key, fault } => self.name == *key && self.reason == key_reason(fault),
            _ => false,
        }
    }

    pub fn is_left_out(&self) -> bool {
        matches!(self.kind, SkippedKind::LeftOut | SkippedKind::Duplicate)
    }
}

/// `skipped "NAME": REASON` for what is left out, otherwise `"NAME": REASON`, or the reason alone.
impl fmt::Display for SkippedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, reason, .. } = self;
        match self.kind {
            SkippedKind::LeftOut | SkippedKind::Duplicate => write!(f, "skipped {}: {reason}", quote(name)),
            SkippedKind::Shown => write!(f, "{}: {reason}", quote(name)),
            SkippedKind::Bytes => f.write_str(reason),
        }
    }
}

/// The entries that were skipped. A damaged file may have millions, so only the first ones are kept; the others are
/// counted.
#[derive(Debug, Clone, Default)]
pub struct SkipList {
    kept: Vec<SkippedEntry>,
    more: usize,
    left_out: usize,
}

pub const KEPT_MAX: usize = 100_000;

impl SkipList {
    /// Adds an entry that is left out. `skipped` is called only if the entry is kept.
    pub fn push(&mut self, skipped: impl FnOnce() -> SkippedEntry) {
        self.left_out += 1;
        self.remark(skipped);
    }

    /// Adds what is shown, or bytes that belong to no tensor.
    pub fn remark(&mut self, remark: impl FnOnce() -> SkippedEntry) {
        if self.kept.len() < KEPT_MAX { self.kept.push(remark()) } else { self.more += 1 }
    }

    /// Sorts the first entries, and the others, by name.
    pub fn sort(&mut self, first: usize) {
        let (first, others) = self.kept.split_at_mut(first);
        first.sort_by(|a, b| a.name.cmp(&b.name));
        others.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// Completes the list. If some entries were not kept, an element with their number is added.
    pub fn finish(mut self) -> Self {
        if self.more > 0 {
            self.kept.push(SkippedEntry::new("", format!("{} more were skipped", self.more)));
        }
        self
    }

    /// The entries that were kept, and the element that [`SkipList::finish`] adds.
    pub fn listed(&self) -> &[SkippedEntry] {
        &self.kept
    }

    /// The entries that were kept, and the number of the others.
    pub fn kept(&self) -> (&[SkippedEntry], usize) {
        (&self.kept[..self.kept.len().min(KEPT_MAX)], self.more)
    }

    pub fn total(&self) -> usize {
        self.kept.len().min(KEPT_MAX) + self.more
    }

    /// Number of entries that are left out, listed or not.
    pub fn left_out(&self) -> usize {
        self.left_out
    }
}

/// Maximum number of keys in [`Header::entries`]. Files of training have about ten.
pub(super) const ENTRIES_MAX: usize = 100;

#[derive(Debug, Default)]
pub struct Header {
    pub format: &'static str,
    text: Option<Range<u64>>,
    /// Offset of the data, in bytes from the start of the file.
    pub data_start: u64,
    /// The version of the format in the file, if the format has versions.
    pub version: Option<u32>,
    /// The metadata, sorted by key; empty if the file has none.
    pub metadata: Vec<(String, MetadataValue)>,
    /// Each metadata key, and the range of the key and its value, in bytes from the start of the file; in the order of
    /// the file. Empty if the header of the format is text.
    pub pairs: Vec<(String, Range<u64>)>,
    /// The keys of the root whose values may have parts, in formats whose tensors are nested. The names of the parts
    /// begin with the key and a dot. Empty if there are more than `ENTRIES_MAX`, if another key is a text that begins
    /// like the names of parts, or if names begin in one of the entries.
    pub entries: Vec<String>,
    tensors: TensorTable,
    /// The entries that were skipped; empty unless the file was read leniently.
    pub skipped: SkipList,
    /// Whether all readers of the file copy the data, so that its alignment does not matter.
    pub is_copied: bool,
    /// The start of the first tensor that is left out because it ends beyond the file.
    cut_from: Option<u64>,
}

/// A header has the methods of its table of tensors.
impl Deref for Header {
    type Target = TensorTable;

    fn deref(&self) -> &TensorTable {
        &self.tensors
    }
}

impl Header {
    /// The header of a file of `len` bytes that has no tensors.
    pub fn empty(len: u64) -> Self {
        Self { data_start: len, ..Self::default() }
    }

    /// The range of the header as human-readable text, including its padding, in bytes from the start of the file.
    /// `None` if the header of the format is not text.
    pub fn text(&self) -> Option<Range<u64>> {
        self.text.clone()
    }

    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.tensors.retain(keep);
    }

    /// A part of the file: the tensors with these numbers, all of whose names begin with `prefix`, and the metadata of
    /// the part whose keys do. `prefix` is left out of both. What was skipped in the file is in each part.
    pub fn part(&self, prefix: &str, tensors: &[usize], has_key: impl Fn(&str) -> bool) -> Result<Self, Error> {
        let mut builder = HeaderBuilder::new(ParseMode::Strict);
        for (at, HeaderTensor { info, range, layout }) in tensors.iter().map(|at| (*at, self.tensor(*at))) {
            let dtype = match info.dtype {
                Dtype::Unknown(name) => builder.raw_dtype(name),
                known => builder.known_dtype(known),
            };
            let tensor = builder.tensor(info.name.strip_prefix(prefix).unwrap_or(info.name), dtype, info.shape, range);
            let tensor = NewTensor { is_unusual: self.is_unusual(at), ..tensor };
            match layout {
                Some(TensorLayout { strides, size, word }) => builder.push_strided(tensor, strides, size, word),
                None => builder.push(tensor),
            }
        }
        for (key, value) in self.metadata.iter().filter(|(key, _)| has_key(key)) {
            if let Some(key) = key.strip_prefix(prefix) {
                builder.metadata(key.to_owned(), value.clone());
            }
        }
        let part = builder.finish(self.format, None, self.data_start, "two tensors of a set have the same name")?;
        let (version, is_copied, skipped) = (self.version, self.is_copied, self.skipped.clone());
        Ok(Self { version, is_copied, skipped, ..part })
    }

    pub fn value(&self, key: &str) -> Option<&MetadataValue> {
        let at = self.metadata.binary_search_by(|(other, _)| other[..].cmp(key)).ok()?;
        Some(&self.metadata[at].1)
    }

    /// The text of the value of a metadata key; empty without that key.
    pub fn value_text(&self, key: &str) -> &str {
        self.value(key).map_or("", MetadataValue::text)
    }

    /// Reports where the data of a damaged file is not that of its tensors one after the other: what is shared by
    /// several tensors, and what belongs to none. The data of each should begin at a multiple of `alignment` from the
    /// start of the data. The file has `len` bytes. Those of a tensor that ends beyond the file are reported with it.
    pub(super) fn report_places(&mut self, alignment: u64, len: u64) {
        let Self { tensors, skipped, data_start, cut_from, .. } = self;
        let len = cut_from.map_or(len, |cut_from| cut_from.min(len));
        let next = |end: u64| (end - *data_start).checked_next_multiple_of(alignment).map(|at| at + *data_start);
        let (mut reached, mut last) = (*data_start, "");
        for HeaderTensor { info: TensorInfo { name, .. }, range: Range { start, end }, .. } in tensors.tensors() {
            if start < reached && start < end {
                let shared = end.min(reached);
                skipped.remark(|| {
                    SkippedEntry::shown(name, format!("shares bytes {start} to {shared} with {}", quote(last)))
                });
            } else if next(reached).is_some_and(|expected| start > expected) {
                skipped.remark(|| SkippedEntry::bytes(unused_bytes(&(reached..start))));
            }
            if end > reached {
                (reached, last) = (end, name);
            }
        }
        if next(reached).is_some_and(|end| end < len) {
            skipped.remark(|| SkippedEntry::bytes(unused_bytes(&(reached..len))));
        }
    }

    /// The end of the data of the last tensor, in bytes from the start of the file.
    pub fn data_end(&self) -> u64 {
        self.tensors().map(|tensor| tensor.range.end).max().unwrap_or(self.data_start)
    }
}

/// The message about bytes that belong to no tensor.
fn unused_bytes(Range { start, end }: &Range<u64>) -> String {
    format!("bytes {start} to {end} of the file belong to no tensor that is shown: {} in all", end - start)
}

/// Collects the entries of a header. Every parser builds its [`Header`] with it.
///
/// An entry is added in parts: its name, its dimensions and its dtype, then the entry with [`HeaderBuilder::push`].
#[derive(Debug, Default)]
pub struct HeaderBuilder {
    mode: ParseMode,
    header: Header,
    unknown_index: NameTable,
    /// The shapes of the tensors, each once, as ranges of the arena of dimensions.
    shapes: HashTable<Range<u32>>,
    hasher: DefaultHashBuilder,
    /// The dtype that was used last. Most tensors of a file have the same one.
    last_dtype: DtypeNumber,
    is_too_large: bool,
}

#[derive(Debug, Clone)]
pub struct ArenaName(Range<u32>);

#[derive(Debug, Clone)]
pub struct ArenaShape(Range<u32>);

#[derive(Debug, Clone, Copy, Default)]
pub struct DtypeNumber(u32);

#[derive(Debug)]
pub struct NewTensor {
    pub(super) name: ArenaName,
    pub(super) dtype: DtypeNumber,
    pub(super) shape: ArenaShape,
    /// The range of the data, in bytes from the start of the file.
    pub(super) range: Range<u64>,
    /// Whether its entry has a form that only some readers accept.
    pub(super) is_unusual: bool,
}

impl HeaderBuilder {
    pub fn new(mode: ParseMode) -> Self {
        Self { mode, ..Self::default() }
    }

    pub fn mode(&self) -> ParseMode {
        self.mode
    }

    pub fn name(&mut self, name: &str) -> ArenaName {
        let names = &mut self.header.tensors.names;
        let start = names.len();
        let Ok(end) = u32::try_from(start + name.len()) else {
            self.is_too_large = true;
            return ArenaName(0..0);
        };
        names.push_str(name);
        ArenaName(start as u32..end)
    }

    pub fn text(&self, name: &ArenaName) -> &str {
        &self.header.tensors.names[span(&name.0)]
    }

    /// Adds a dimension to the shape that is being built.
    pub fn dim(&mut self, dim: u64) {
        let dims = &mut self.header.tensors.dims;
        match dims.len() < u32::MAX as usize {
            true => dims.push(dim),
            false => self.is_too_large = true,
        }
    }

    /// Index of the next dimension, which is the start of the next shape.
    pub fn next_dim(&self) -> u32 {
        self.header.tensors.dims.len() as u32
    }

    /// The shape of all dimensions added since `start`, after which nothing was added to the arena. They are removed
    /// again if an earlier tensor has the same shape.
    pub fn shape_from(&mut self, start: u32) -> ArenaShape {
        let dims = &mut self.header.tensors.dims;
        let added = start..dims.len() as u32;
        let hash = self.hasher.hash_one(&dims[span(&added)]);
        if let Some(same) = self.shapes.find(hash, |other| dims[span(other)] == dims[span(&added)]) {
            dims.truncate(start as usize);
            return ArenaShape(same.clone());
        }
        self.shapes.insert_unique(hash, added.clone(), |other| self.hasher.hash_one(&dims[span(other)]));
        ArenaShape(added)
    }

    pub fn dims(&self, shape: &ArenaShape) -> &[u64] {
        &self.header.tensors.dims[span(&shape.0)]
    }

    pub fn dtype_number(&mut self, name: &str) -> DtypeNumber {
        if self.dtype(self.last_dtype).name() == name {
            return self.last_dtype;
        }
        self.last_dtype = match Dtype::number_of(name) {
            Some(number) => DtypeNumber(number as u32),
            None => self.raw_dtype(name),
        };
        self.last_dtype
    }

    /// A dtype whose elements are raw bytes, even if it has the name of a known one.
    pub fn raw_dtype(&mut self, name: &str) -> DtypeNumber {
        let unknown = &mut self.header.tensors.unknown_dtypes;
        let found = self.unknown_index.find(name, |at| &unknown[at]);
        let at = found.unwrap_or_else(|| {
            unknown.push(name.to_owned());
            self.unknown_index.insert(unknown.len() - 1, |at| &unknown[at]);
            unknown.len() - 1
        });
        DtypeNumber((Dtype::ALL.len() + at) as u32)
    }

    pub fn known_dtype(&self, dtype: Dtype) -> DtypeNumber {
        let at = Dtype::ALL.iter().position(|known| *known == dtype);
        DtypeNumber(at.unwrap_or_default() as u32)
    }

    pub fn dtype(&self, number: DtypeNumber) -> Dtype<'_> {
        numbered_dtype(&self.header.tensors.unknown_dtypes, number.0)
    }

    /// A tensor to be added. `range` is the range of its data, in bytes from the start of the file.
    pub fn tensor(&mut self, name: &str, dtype: DtypeNumber, shape: &[u64], range: Range<u64>) -> NewTensor {
        let start = self.next_dim();
        shape.iter().for_each(|dim| self.dim(*dim));
        let (name, shape) = (self.name(name), self.shape_from(start));
        NewTensor { name, dtype, shape, range, is_unusual: false }
    }

    pub fn push(&mut self, tensor: NewTensor) {
        self.add(tensor, None);
    }

    /// Adds a tensor whose elements do not lie in C order, or are in big-endian order. `strides` has as many numbers as
    /// its shape. The range begins at the first element and ends with the last one. The caller has checked that the
    /// size of the tensor is less than 2^63 bytes.
    pub fn push_strided(&mut self, tensor: NewTensor, strides: &[u64], size: u32, word: u8) {
        let start = self.next_dim();
        strides.iter().for_each(|stride| self.dim(*stride));
        self.add(tensor, Some(PackedLayout { strides: start, size, word }));
    }

    fn add(&mut self, tensor: NewTensor, layout: Option<PackedLayout>) {
        let NewTensor { name, dtype, shape, range, is_unusual } = tensor;
        let TensorTable { records, details, .. } = &mut self.header.tensors;
        let own = RecordDetails { is_unusual, layout };
        // Neighbours often have the same details.
        if own != RecordDetails::default() && details.last() != Some(&own) {
            details.push(own);
        }
        let number = if own == RecordDetails::default() { 0 } else { details.len() as u32 };
        let details = NonZeroU32::new(number);
        records.push(TensorRecord { range, name: name.0, dims: shape.0, dtype: dtype.0, details });
    }

    /// Adds a metadata value. If a key is repeated, the last value is kept.
    pub fn metadata(&mut self, key: String, value: MetadataValue) {
        self.header.metadata.push((key, value));
    }

    /// Adds the range of a metadata key and its value, in bytes from the start of the file.
    pub fn pair(&mut self, key: String, range: Range<u64>) {
        self.header.pairs.push((key, range));
    }

    /// Sets the keys of the root whose values may have parts.
    pub fn entries(&mut self, entries: Vec<String>) {
        self.header.entries = entries;
    }

    pub fn version(&mut self, version: u32) {
        self.header.version = Some(version);
    }

    /// Records that the entry called `name` is left out.
    pub fn skip(&mut self, name: &str, reason: impl FnOnce() -> String) {
        self.header.skipped.push(|| SkippedEntry::new(name, reason()));
    }

    /// Records that the entry called `name` is left out.
    pub fn skip_entry(&mut self, name: &ArenaName, reason: impl FnOnce() -> String) {
        let Header { tensors, skipped, .. } = &mut self.header;
        skipped.push(|| SkippedEntry::new(&tensors.names[span(&name.0)], reason()));
    }

    /// Numbers tensors with the same name in the order in which they were added: NAME, NAME#2, NAME#3. Metadata with
    /// the same key is numbered in the same way. `tensors` and `metadata` have the origin of each. Those with the same
    /// name and the same origin have the same number.
    pub fn number_repeated(&mut self, tensors: &[u64], metadata: &[u64]) {
        let table = &self.header.tensors;
        for (at, numbered) in numbered(table.len(), |at| table.name(at), tensors) {
            let ArenaName(range) = self.name(&numbered);
            self.header.tensors.records[at].name = range;
        }
        let values = &mut self.header.metadata;
        for (at, numbered) in numbered(values.len(), |at| &values[at].0, metadata) {
            values[at].0 = numbered;
        }
    }

    /// Records that the entry called `name`, whose data begins at `start`, is left out because it ends beyond the file.
    pub fn skip_cut(&mut self, name: &ArenaName, start: u64, reason: impl FnOnce() -> String) {
        self.header.cut_from = Some(self.header.cut_from.map_or(start, |from| from.min(start)));
        self.skip_entry(name, reason);
    }

    /// Leaves out every tensor that ends beyond a file of `len` bytes.
    pub fn skip_outside(&mut self, len: u64, reason: impl Fn(&Range<u64>) -> String) {
        let Header { tensors: TensorTable { names, records, .. }, skipped, cut_from, .. } = &mut self.header;
        records.retain(|record| {
            let is_inside = record.range.end <= len;
            if !is_inside {
                *cut_from = Some(cut_from.map_or(record.range.start, |from| from.min(record.range.start)));
                skipped.push(|| SkippedEntry::new(&names[span(&record.name)], reason(&record.range)));
            }
            is_inside
        });
    }

    /// Builds the header: tensors in the order of their data, metadata sorted by key.
    ///
    /// Entries with the same name are an error in strict mode. In lenient mode, all but the last are left out. In both
    /// cases the reason is `duplicate`.
    pub fn finish(
        mut self,
        format: &'static str,
        text: Option<Range<u64>>,
        data_start: u64,
        duplicate: &str,
    ) -> Result<Header, Error> {
        self.check_sizes()?;
        let records = &mut self.header.tensors.records;
        // Stable, so that tensors without data keep the order of the header.
        records.sort_by_key(|record| (record.range.start, record.range.end));
        match self.header.tensors.index_names() {
            Ok(()) => {}
            Err(_) if self.mode == ParseMode::Lenient => self.skip_repeated(duplicate),
            Err(name) => return Err(Error::Tensor { name, fault: duplicate.to_owned() }),
        }
        let mut header = Header { format, text, data_start, ..self.header };
        // Stable, so that the last of repeated keys can be kept.
        header.metadata.sort_by(|a, b| a.0.cmp(&b.0));
        header.metadata.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                std::mem::swap(later, kept);
            }
            same
        });
        header.metadata.shrink_to_fit();
        header.tensors.shrink_to_fit();
        header.skipped = header.skipped.finish();
        Ok(header)
    }

    /// Only the tensors, in the order in which they were added. An error if two have the same name.
    pub fn finish_tensors(mut self) -> Result<TensorTable, Error> {
        self.check_sizes()?;
        let tensors = &mut self.header.tensors;
        tensors.index_names().map_err(|name| Error::Tensor { name, fault: "its name is repeated".to_owned() })?;
        tensors.shrink_to_fit();
        Ok(self.header.tensors)
    }

    fn check_sizes(&self) -> Result<(), Error> {
        match self.is_too_large {
            true => Err(Error::Limit("more than 4 GiB of names, or more than 2^32 dimensions".to_owned())),
            false => Ok(()),
        }
    }

    fn skip_repeated(&mut self, duplicate: &str) {
        let Header { tensors, skipped, .. } = &mut self.header;
        let TensorTable { names, records, .. } = tensors;
        // Names are in the arena in the order of the header, so the last entry with a name comes first.
        records.sort_by(|a, b| names[span(&a.name)].cmp(&names[span(&b.name)]).then(b.name.start.cmp(&a.name.start)));
        records.dedup_by(|later, kept| {
            let name = &names[span(&later.name)];
            let same = *name == names[span(&kept.name)];
            if same {
                skipped.push(|| SkippedEntry { kind: SkippedKind::Duplicate, ..SkippedEntry::new(name, duplicate) });
            }
            same
        });
        records.sort_by_key(|record| (record.range.start, record.range.end, record.name.start));
        // No name is repeated any more, so this does not fail.
        let _ = tensors.index_names();
    }
}

/// The names that change if repeated names are numbered, each with its index. `origins` has a number for each name. The
/// first origin of a name keeps the name.
fn numbered<'n>(count: usize, name: impl Fn(usize) -> &'n str + Copy, origins: &[u64]) -> Vec<(usize, String)> {
    let mut by_name = NameTable::with_capacity(count);
    let repeated: Vec<usize> = (0..count).filter(|at| !by_name.insert(*at, name)).collect();
    // For each name, the numbers of its origins, and the last number.
    let (mut numbers, mut last, mut taken) = (HashMap::new(), HashMap::new(), HashSet::new());
    let mut changed = Vec::new();
    for at in repeated {
        let Some(first) = by_name.find(name(at), name) else { continue };
        let origin = |at: usize| (first, origins.get(at).copied());
        numbers.entry(origin(first)).or_insert(1_u32);
        let number = *numbers.entry(origin(at)).or_insert_with(|| {
            let last = last.entry(first).or_insert(1_u32);
            loop {
                *last += 1;
                let numbered = format!("{}#{last}", name(at));
                if by_name.find(&numbered, name).is_none() && taken.insert(numbered) {
                    break *last;
                }
            }
        });
        if number > 1 {
            changed.push((at, format!("{}#{number}", name(at))));
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_names_of_different_origins_are_numbered() {
        let case = |names: &[&'static str], origins: &[u64]| -> Vec<String> {
            let mut found: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            for (at, name) in numbered(names.len(), |at| names[at], origins) {
                found[at] = name;
            }
            found
        };
        assert_eq!(case(&["a", "b", "a", "a"], &[1, 1, 2, 3]), ["a", "b", "a#2", "a#3"]);
        assert_eq!(case(&["a", "a", "a", "a"], &[1, 2, 2, 1]), ["a", "a#2", "a#2", "a"]);
        assert_eq!(case(&["a", "a", "a#2", "a"], &[1, 2, 3, 4]), ["a", "a#3", "a#2", "a#4"]);
        assert_eq!(case(&["a", "a", "a#2", "a#2"], &[1, 2, 3, 4]), ["a", "a#3", "a#2", "a#2#2"]);
    }

    #[test]
    fn entries_beyond_the_limit_are_only_counted() {
        let mut skipped = SkipList::default();
        for at in 0..KEPT_MAX + 7 {
            skipped.push(|| SkippedEntry::new(at.to_string(), ""));
        }
        let skipped = skipped.finish();
        assert_eq!((skipped.total(), skipped.listed().len()), (KEPT_MAX + 7, KEPT_MAX + 1));
        assert_eq!(skipped.listed()[KEPT_MAX].reason, "7 more were skipped");
        let mut few = SkipList::default();
        few.push(|| SkippedEntry::new("a", "b"));
        assert_eq!((few.total(), few.finish().listed().len()), (1, 1));
    }

    fn push(builder: &mut HeaderBuilder, name: &str, dtype: &str, range: Range<u64>) {
        let dtype = builder.dtype_number(dtype);
        let tensor = builder.tensor(name, dtype, &[range.end - range.start], range);
        builder.push(tensor);
    }

    #[test]
    fn tensors_are_in_data_order() {
        let mut builder = HeaderBuilder::new(ParseMode::Strict);
        for (name, dtype, range) in
            [("b", "U8", 8..10), ("a", "mine", 4..8), ("c", "mine", 10..10), ("d", "U8", 10..12)]
        {
            push(&mut builder, name, dtype, range);
        }
        builder.metadata("k".into(), "old".into());
        builder.metadata("a".into(), "".into());
        builder.metadata("k".into(), "new".into());
        let header = builder.finish("test", Some(0..4), 4, "").unwrap();
        let names: Vec<&str> = header.tensors().map(|tensor| tensor.name).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        assert_eq!(header.tensor(0).dtype, Dtype::Unknown("mine"));
        assert_eq!((header.tensor(1).shape, header.tensor(1).range), (&[2][..], 8..10));
        assert_eq!((header.find("c"), header.find("x")), (Some(2), None));
        assert_eq!(header.unknown_dtypes, ["mine"]);
        assert_eq!(header.metadata, [("a".to_owned(), "".into()), ("k".to_owned(), "new".into())]);
        assert_eq!((header.format, header.text(), header.data_start), ("test", Some(0..4), 4));
    }

    #[test]
    fn tensors_of_the_same_shape_share_it() {
        let mut builder = HeaderBuilder::new(ParseMode::Strict);
        let dtype = builder.dtype_number("U8");
        for (name, shape) in [("a", &[2, 3][..]), ("b", &[]), ("c", &[2, 3]), ("d", &[3, 2]), ("e", &[]), ("f", &[2])] {
            let size = shape.iter().product();
            let tensor = builder.tensor(name, dtype, shape, 0..size);
            // Strides lie between the shapes, and are not shared.
            if name == "c" { builder.push_strided(tensor, &[1, 2], 1, 1) } else { builder.push(tensor) }
        }
        let header = builder.finish("test", None, 0, "").unwrap();
        let shape = |name| header.tensor(header.find(name).unwrap()).info.shape;
        assert_eq!(["a", "b", "c", "d", "e", "f"].map(shape), [&[2, 3][..], &[], &[2, 3], &[3, 2], &[], &[2]]);
        let layout = |name| header.tensor(header.find(name).unwrap()).layout.map(|layout| layout.strides);
        assert_eq!(["a", "c", "d"].map(layout), [None, Some(&[1, 2][..]), None]);
        assert_eq!(header.dims, [2, 3, 1, 2, 3, 2, 2]);
    }

    #[test]
    fn repeated_name_is_an_error_or_keeps_the_last_entry() {
        let build = |mode| {
            let mut builder = HeaderBuilder::new(mode);
            for (name, range) in [("a", 4..8), ("b", 8..9), ("a", 0..4), ("far", 90..100)] {
                push(&mut builder, name, "U8", range);
            }
            builder
        };
        let error = build(ParseMode::Strict).finish("test", None, 0, "twice").unwrap_err();
        assert_eq!(error, Error::Tensor { name: "a".into(), fault: "twice".into() });
        let mut builder = build(ParseMode::Lenient);
        builder.skip_outside(50, |range| format!("ends at {}", range.end));
        let header = builder.finish("test", None, 0, "twice").unwrap();
        let ranges: Vec<_> = header.tensors().map(|tensor| (tensor.name, tensor.range)).collect();
        assert_eq!(ranges, [("a", 0..4), ("b", 8..9)]);
        let skipped: Vec<_> =
            header.skipped.listed().iter().map(|skipped| (&*skipped.name, &*skipped.reason)).collect();
        assert_eq!(skipped, [("far", "ends at 100"), ("a", "twice")]);
    }
}
