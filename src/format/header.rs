//! The common form of all headers: a table of tensors, and the other data that later layers print or check.

use super::dtype::Dtype;
use super::metadata::MetadataValue;
use super::names::NameTable;
use super::tensors::{PackedLayout, TensorRecord, TensorTable, numbered_dtype, span};
use std::collections::{HashMap, HashSet};
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

/// An entry that was left out, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedEntry {
    /// Name of the tensor.
    pub name: String,
    /// The reason, one line.
    pub reason: String,
    /// Whether it was left out because another entry has the same name.
    pub is_duplicate: bool,
}

impl SkippedEntry {
    /// An entry that was left out, but not because another entry has the same name.
    pub fn new(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { name: name.into(), reason: reason.into(), is_duplicate: false }
    }
}

/// The entries that were left out. A damaged file may have millions, so only the first ones are kept; the others are
/// counted.
#[derive(Debug, Default)]
pub struct SkipList {
    kept: Vec<SkippedEntry>,
    more: usize,
}

/// Maximum number of left-out entries of a file or model that are kept.
pub const KEPT_MAX: usize = 100_000;

impl SkipList {
    /// Adds an entry. `skipped` is called only if the entry is kept.
    pub fn push(&mut self, skipped: impl FnOnce() -> SkippedEntry) {
        if self.kept.len() < KEPT_MAX { self.kept.push(skipped()) } else { self.more += 1 }
    }

    /// Adds to the number of entries that are not kept.
    pub fn add(&mut self, more: usize) {
        self.more += more;
    }

    /// Completes the list. If some entries were not kept, an element with their number is added.
    pub fn finish(mut self) -> Self {
        if self.more > 0 {
            self.kept.push(SkippedEntry::new("", format!("{} more were left out", self.more)));
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

    /// Number of all entries, kept or not.
    pub fn total(&self) -> usize {
        self.kept.len().min(KEPT_MAX) + self.more
    }
}

/// The tensors and the metadata of a file.
///
#[derive(Debug)]
pub struct Header {
    format: &'static str,
    text: Option<Range<u64>>,
    data_start: u64,
    version: Option<u32>,
    metadata: Vec<(String, MetadataValue)>,
    pairs: Vec<(String, Range<u64>)>,
    tensors: TensorTable,
    skipped: SkipList,
}

/// A header has the methods of its table of tensors.
impl Deref for Header {
    type Target = TensorTable;

    fn deref(&self) -> &TensorTable {
        &self.tensors
    }
}

impl Header {
    /// Name of the format: `safetensors`.
    pub fn format(&self) -> &'static str {
        self.format
    }

    /// The range of the header as human-readable text, including its padding, in bytes from the start of the file.
    /// `None` if the header of the format is not text.
    pub fn text(&self) -> Option<Range<u64>> {
        self.text.clone()
    }

    /// Offset of the data, in bytes from the start of the file.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Keeps only the tensors whose names `keep` accepts.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.tensors.retain(keep);
    }

    /// The version of the format in the file, if the format has versions.
    pub fn version(&self) -> Option<u32> {
        self.version
    }

    /// The metadata, sorted by key; empty if the file has none.
    pub fn metadata(&self) -> &[(String, MetadataValue)] {
        &self.metadata
    }

    /// Each metadata key, and the range of the key and its value, in bytes from the start of the file; in the order of
    /// the file. Empty if the header of the format is text.
    pub fn pairs(&self) -> &[(String, Range<u64>)] {
        &self.pairs
    }

    /// The value of a metadata key.
    pub fn value(&self, key: &str) -> Option<&MetadataValue> {
        let at = self.metadata.binary_search_by(|(other, _)| other[..].cmp(key)).ok()?;
        Some(&self.metadata[at].1)
    }

    /// The entries that were left out; empty unless the file was read leniently.
    pub fn skipped(&self) -> &SkipList {
        &self.skipped
    }
}

/// Collects the entries of a header. Every parser builds its [`Header`] with it.
///
/// An entry is added in parts: its name, its dimensions and its dtype, then the entry with [`HeaderBuilder::push`].
#[derive(Debug)]
pub struct HeaderBuilder {
    mode: ParseMode,
    version: Option<u32>,
    metadata: Vec<(String, MetadataValue)>,
    pairs: Vec<(String, Range<u64>)>,
    names: String,
    dims: Vec<u64>,
    unknown_dtypes: Vec<String>,
    unknown_index: NameTable,
    /// The dtype that was used last. Most tensors of a file have the same one.
    last_dtype: DtypeNumber,
    records: Vec<TensorRecord>,
    skipped: SkipList,
    is_too_large: bool,
}

/// A name in the arena of a [`HeaderBuilder`].
#[derive(Debug, Clone)]
pub struct ArenaName(Range<u32>);

/// A shape in the arena of a [`HeaderBuilder`].
#[derive(Debug, Clone)]
pub struct ArenaShape(Range<u32>);

/// The number of a dtype in a [`HeaderBuilder`].
#[derive(Debug, Clone, Copy)]
pub struct DtypeNumber(u32);

/// A tensor to be added.
#[derive(Debug)]
pub struct NewTensor {
    /// Its name.
    pub name: ArenaName,
    /// Its dtype.
    pub dtype: DtypeNumber,
    /// Its dimensions.
    pub shape: ArenaShape,
    /// The range of the data, in bytes from the start of the file.
    pub range: Range<u64>,
    /// Whether its entry has a form that only some readers accept.
    pub is_unusual: bool,
}

/// Why a header cannot be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildError {
    /// Two entries have the same name.
    Duplicate {
        /// The name.
        name: String,
    },
    /// There are 2^32 bytes of names or more, or 2^32 dimensions or more.
    TooLarge,
}

impl HeaderBuilder {
    /// An empty header.
    pub fn new(mode: ParseMode) -> Self {
        Self {
            mode,
            version: None,
            metadata: Vec::new(),
            pairs: Vec::new(),
            names: String::new(),
            dims: Vec::new(),
            unknown_dtypes: Vec::new(),
            unknown_index: NameTable::with_capacity(0),
            last_dtype: DtypeNumber(0),
            records: Vec::new(),
            skipped: SkipList::default(),
            is_too_large: false,
        }
    }

    /// The mode in which the file is read.
    pub fn mode(&self) -> ParseMode {
        self.mode
    }

    /// Adds a name.
    pub fn name(&mut self, name: &str) -> ArenaName {
        let start = self.names.len();
        match u32::try_from(start + name.len()) {
            Ok(end) => {
                self.names.push_str(name);
                ArenaName(start as u32..end)
            }
            Err(_) => {
                self.is_too_large = true;
                ArenaName(0..0)
            }
        }
    }

    /// The text of a name.
    pub fn text(&self, name: &ArenaName) -> &str {
        &self.names[span(&name.0)]
    }

    /// Adds a dimension to the shape that is being built.
    pub fn dim(&mut self, dim: u64) {
        if self.dims.len() < u32::MAX as usize {
            self.dims.push(dim);
        } else {
            self.is_too_large = true;
        }
    }

    /// Index of the next dimension, which is the start of the next shape.
    pub fn next_dim(&self) -> u32 {
        self.dims.len() as u32
    }

    /// The shape of all dimensions added since `start`. Strides are added in the same way.
    pub fn shape_from(&self, start: u32) -> ArenaShape {
        ArenaShape(start..self.dims.len() as u32)
    }

    /// The dimensions of a shape.
    pub fn dims(&self, shape: &ArenaShape) -> &[u64] {
        &self.dims[span(&shape.0)]
    }

    /// The number of the dtype called `name`, known or not.
    pub fn dtype_number(&mut self, name: &str) -> DtypeNumber {
        if self.dtype(self.last_dtype).name() == name {
            return self.last_dtype;
        }
        let number = Dtype::number_of(name).unwrap_or_else(|| {
            let unknown = &mut self.unknown_dtypes;
            let found = self.unknown_index.find(name, |at| &unknown[at]);
            let at = found.unwrap_or_else(|| {
                unknown.push(name.to_owned());
                self.unknown_index.insert(unknown.len() - 1, |at| &unknown[at]);
                unknown.len() - 1
            });
            Dtype::ALL.len() + at
        });
        self.last_dtype = DtypeNumber(number as u32);
        self.last_dtype
    }

    /// The number of a known dtype.
    pub fn known_dtype(&self, dtype: Dtype<'static>) -> DtypeNumber {
        let at = Dtype::ALL.iter().position(|known| *known == dtype);
        DtypeNumber(at.unwrap_or_default() as u32)
    }

    /// The dtype with that number.
    pub fn dtype(&self, number: DtypeNumber) -> Dtype<'_> {
        numbered_dtype(&self.unknown_dtypes, number.0)
    }

    /// Adds a tensor.
    pub fn push(&mut self, tensor: NewTensor) {
        self.add(tensor, None);
    }

    /// Adds a tensor whose elements do not lie in C order, or are in big-endian order. `strides` has as many numbers as
    /// its shape. The range begins at the first element and ends with the last one. The caller has checked that the
    /// size of the tensor is less than 2^63 bytes.
    pub fn push_strided(&mut self, tensor: NewTensor, strides: &ArenaShape, size: u32, word: u8) {
        self.add(tensor, Some(PackedLayout { strides: strides.0.start, size, word }));
    }

    fn add(&mut self, tensor: NewTensor, layout: Option<PackedLayout>) {
        let NewTensor { name, dtype, shape, range, is_unusual } = tensor;
        self.records.push(TensorRecord { range, name: name.0, dims: shape.0, dtype: dtype.0, is_unusual, layout });
    }

    /// Adds a metadata value. If a key is repeated, the last value is kept.
    pub fn metadata(&mut self, key: String, value: MetadataValue) {
        self.metadata.push((key, value));
    }

    /// Adds the range of a metadata key and its value, in bytes from the start of the file.
    pub fn pair(&mut self, key: String, range: Range<u64>) {
        self.pairs.push((key, range));
    }

    /// Sets the version of the format in the file.
    pub fn version(&mut self, version: u32) {
        self.version = Some(version);
    }

    /// Records that the entry called `name` is left out.
    pub fn skip(&mut self, name: &str, reason: impl FnOnce() -> String) {
        self.skipped.push(|| SkippedEntry::new(name, reason()));
    }

    /// Records that the entry called `name` is left out.
    pub fn skip_entry(&mut self, name: &ArenaName, reason: impl FnOnce() -> String) {
        let names = &self.names;
        self.skipped.push(|| SkippedEntry::new(&names[span(&name.0)], reason()));
    }

    /// Numbers tensors with the same name in the order in which they were added: NAME, NAME#2, NAME#3. Metadata with
    /// the same key is numbered in the same way. `tensors` and `metadata` have the origin of each. Those with the same
    /// name and the same origin have the same number.
    pub fn number_repeated(&mut self, tensors: &[u64], metadata: &[u64]) {
        let names = &self.names;
        for (at, numbered) in numbered(self.records.len(), |at| &names[span(&self.records[at].name)], tensors) {
            let ArenaName(range) = self.name(&numbered);
            self.records[at].name = range;
        }
        for (at, numbered) in numbered(self.metadata.len(), |at| &self.metadata[at].0, metadata) {
            self.metadata[at].0 = numbered;
        }
    }

    /// Leaves out every tensor that ends beyond a file of `len` bytes.
    pub fn skip_outside(&mut self, len: u64, reason: impl Fn(&Range<u64>) -> String) {
        let (inside, outside) =
            std::mem::take(&mut self.records).into_iter().partition(|record| record.range.end <= len);
        self.records = inside;
        for TensorRecord { range, name, .. } in outside {
            self.skip_entry(&ArenaName(name), || reason(&range));
        }
    }

    /// Builds the header: tensors in the order of their data, metadata sorted by key.
    ///
    /// Entries with the same name are an error in strict mode. In lenient mode, all but the last are left out with the
    /// reason `duplicate`.
    pub fn finish(
        mut self,
        format: &'static str,
        text: Option<Range<u64>>,
        data_start: u64,
        duplicate: impl Fn() -> String,
    ) -> Result<Header, BuildError> {
        if self.is_too_large {
            return Err(BuildError::TooLarge);
        }
        // Stable, so that tensors without data keep the order of the header.
        self.records.sort_by_key(|record| (record.range.start, record.range.end));
        let by_name = match (self.by_name(), self.mode) {
            (Ok(by_name), _) => by_name,
            (Err(name), ParseMode::Strict | ParseMode::Header) => return Err(BuildError::Duplicate { name }),
            (Err(_), ParseMode::Lenient) => {
                self.skip_repeated(duplicate);
                // No name is repeated any more, so this does not fail.
                self.by_name().unwrap_or_else(|_| NameTable::with_capacity(0))
            }
        };
        // Stable, so that the last of repeated keys can be kept.
        self.metadata.sort_by(|a, b| a.0.cmp(&b.0));
        self.metadata.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                std::mem::swap(later, kept);
            }
            same
        });
        self.metadata.shrink_to_fit();
        let Self { version, metadata, pairs, names, dims, unknown_dtypes, records, skipped, .. } = self;
        let tensors = TensorTable { names, dims, unknown_dtypes, records, by_name }.shrink();
        Ok(Header { format, text, data_start, version, metadata, pairs, tensors, skipped: skipped.finish() })
    }

    /// Only the tensors, in the order in which they were added. An error if two have the same name.
    pub fn finish_tensors(self) -> Result<TensorTable, BuildError> {
        if self.is_too_large {
            return Err(BuildError::TooLarge);
        }
        let by_name = self.by_name().map_err(|name| BuildError::Duplicate { name })?;
        let Self { names, dims, unknown_dtypes, records, .. } = self;
        Ok(TensorTable { names, dims, unknown_dtypes, records, by_name }.shrink())
    }

    /// The table of all names, or the first name that is repeated.
    fn by_name(&self) -> Result<NameTable, String> {
        let mut by_name = NameTable::with_capacity(self.records.len());
        for index in 0..self.records.len() {
            if !by_name.insert(index, |index| &self.names[span(&self.records[index].name)]) {
                return Err(self.names[span(&self.records[index].name)].to_owned());
            }
        }
        Ok(by_name)
    }

    fn skip_repeated(&mut self, duplicate: impl Fn() -> String) {
        let mut records = std::mem::take(&mut self.records);
        // Names are in the arena in the order of the header, so the last entry with a name comes first.
        records.sort_by(|a, b| {
            self.names[span(&a.name)].cmp(&self.names[span(&b.name)]).then(b.name.start.cmp(&a.name.start))
        });
        let mut repeated = Vec::new();
        records.dedup_by(|later, kept| {
            let same = self.names[span(&later.name)] == self.names[span(&kept.name)];
            if same {
                repeated.push(ArenaName(later.name.clone()));
            }
            same
        });
        records.sort_by_key(|record| (record.range.start, record.range.end, record.name.start));
        self.records = records;
        for name in repeated {
            let names = &self.names;
            let skipped = || SkippedEntry::new(&names[span(&name.0)], duplicate());
            self.skipped.push(|| SkippedEntry { is_duplicate: true, ..skipped() });
        }
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
        for at in 0..KEPT_MAX + 5 {
            skipped.push(|| SkippedEntry::new(at.to_string(), ""));
        }
        skipped.add(2);
        let skipped = skipped.finish();
        assert_eq!((skipped.total(), skipped.listed().len()), (KEPT_MAX + 7, KEPT_MAX + 1));
        assert_eq!(skipped.listed()[KEPT_MAX].reason, "7 more were left out");
        let mut few = SkipList::default();
        few.push(|| SkippedEntry::new("a", "b"));
        assert_eq!((few.total(), few.finish().listed().len()), (1, 1));
    }

    fn push(builder: &mut HeaderBuilder, name: &str, dtype: &str, range: Range<u64>) {
        let (name, dtype, start) = (builder.name(name), builder.dtype_number(dtype), builder.next_dim());
        builder.dim(range.end - range.start);
        let shape = builder.shape_from(start);
        builder.push(NewTensor { name, dtype, shape, range, is_unusual: false });
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
        let header = builder.finish("test", Some(0..4), 4, String::new).unwrap();
        let names: Vec<&str> = header.tensors().map(|tensor| tensor.name).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        assert_eq!(header.tensor(0).dtype, Dtype::Unknown("mine"));
        assert_eq!((header.tensor(1).shape, header.tensor(1).range), (&[2][..], 8..10));
        assert_eq!((header.find("c"), header.find("x")), (Some(2), None));
        assert_eq!(header.unknown_dtypes(), ["mine"]);
        assert_eq!(header.metadata(), [("a".to_owned(), "".into()), ("k".to_owned(), "new".into())]);
        assert_eq!((header.format(), header.text(), header.data_start()), ("test", Some(0..4), 4));
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
        let error = build(ParseMode::Strict).finish("test", None, 0, String::new).unwrap_err();
        assert_eq!(error, BuildError::Duplicate { name: "a".into() });
        let mut builder = build(ParseMode::Lenient);
        builder.skip_outside(50, |range| format!("ends at {}", range.end));
        let header = builder.finish("test", None, 0, || "twice".into()).unwrap();
        let ranges: Vec<_> = header.tensors().map(|tensor| (tensor.name, tensor.range)).collect();
        assert_eq!(ranges, [("a", 0..4), ("b", 8..9)]);
        let skipped: Vec<_> =
            header.skipped().listed().iter().map(|skipped| (&*skipped.name, &*skipped.reason)).collect();
        assert_eq!(skipped, [("far", "ends at 100"), ("a", "twice")]);
    }
}
