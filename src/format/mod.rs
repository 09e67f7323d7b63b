//! What the bytes of a model file mean: knows headers, and does no input or output of its own.
//!
//! Every format lowers to one [`Header`]; nothing after this module knows which format it was.

mod detect;
mod dtype;
pub mod safetensors;

use hashbrown::{DefaultHashBuilder, HashTable};
use serde::Deserialize;
use std::borrow::Cow;
use std::hash::BuildHasher;
use std::ops::Range;

pub use detect::Format;
#[cfg(test)]
pub(crate) use dtype::ALL as DTYPES;
pub use dtype::Dtype;
pub use safetensors::Mode;

/// Why a file has no header that weightfs could use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another format, named for what it is.
    #[error("not a safetensors file but {0}")]
    Other(Format),
    /// safetensors, but against its rules.
    #[error(transparent)]
    Safetensors(#[from] safetensors::Error),
}

/// Reads the header of a file of `file_len` bytes from `prefix`, its beginning.
///
/// Asks for more with [`safetensors::Error::Incomplete`].
pub fn parse(prefix: &[u8], file_len: u64, mode: Mode) -> Result<Header, Error> {
    safetensors::parse(prefix, file_len, mode).map_err(|error| match (error, Format::detect(prefix)) {
        (error, Format::Safetensors) | (error @ safetensors::Error::Incomplete { .. }, _) => error.into(),
        (_, other) => Error::Other(other),
    })
}

/// One tensor, as its header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// Any Unicode string, `/`, NUL and the empty string included.
    pub name: &'a str,
    /// Type of the elements.
    pub dtype: Dtype<'a>,
    /// Dimensions in elements, outermost first; a scalar has none.
    pub shape: &'a [u64],
    /// Where the data lies, in bytes from the start of the file.
    pub range: Range<u64>,
}

impl TensorInfo<'_> {
    /// Size of the data in bytes.
    pub fn nbytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Number of elements, whatever is packed into one. Of a known dtype 64 bits can count them, as the parser has checked.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, dim| product.saturating_mul(*dim))
    }
}

/// An entry that was left out of a damaged file, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Name of the tensor.
    pub name: String,
    /// The reason, a sentence.
    pub reason: String,
}

/// What was left out: of very many things one by one, of the others how many they are. A damaged file may have millions.
#[derive(Debug, Default)]
pub struct SkipList {
    listed: Vec<Skipped>,
    /// How many there are besides.
    more: usize,
}

/// Most things of a file or model that are told one by one.
pub const TOLD_MAX: usize = 100_000;

impl SkipList {
    /// Adds what `skipped` makes, unless there are too many.
    pub fn push(&mut self, skipped: impl FnOnce() -> Skipped) {
        if self.listed.len() < TOLD_MAX { self.listed.push(skipped()) } else { self.more += 1 }
    }

    /// Adds so many of which no more is known.
    pub fn add(&mut self, more: usize) {
        self.more += more;
    }

    /// The whole list, which ends with the number of those that are not in it.
    pub fn finish(mut self) -> Self {
        if self.more > 0 {
            self.listed.push(Skipped { name: String::new(), reason: format!("{} more were left out", self.more) });
        }
        self
    }

    /// Those that are listed.
    pub fn listed(&self) -> &[Skipped] {
        &self.listed
    }

    /// Those that are told one by one, and how many there are besides.
    pub fn told(&self) -> (&[Skipped], usize) {
        (&self.listed[..self.listed.len().min(TOLD_MAX)], self.more)
    }

    /// How many there are in all.
    pub fn total(&self) -> usize {
        self.listed.len().min(TOLD_MAX) + self.more
    }
}

/// All that a file says about its tensors.
///
/// A million tensors are normal, so names and dimensions lie in one arena each and nothing is allocated for a tensor.
#[derive(Debug)]
pub struct Header {
    json: Range<u64>,
    metadata: Vec<(String, String)>,
    names: String,
    dims: Vec<u64>,
    unknown_dtypes: Vec<String>,
    records: Vec<Record>,
    by_name: NameTable,
    skipped: SkipList,
}

/// A tensor: places in the arenas of the header.
#[derive(Debug, Clone)]
struct Record {
    range: Range<u64>,
    name: Range<u32>,
    dims: Range<u32>,
    /// Index into [`dtype::KNOWN`], or behind its end into `unknown_dtypes`.
    dtype: u32,
    /// Whether its entry is a list instead of an object.
    is_list: bool,
}

impl Header {
    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The tensor at `index`, in the order of the data.
    ///
    /// # Panics
    /// Where `index` is not below [`Header::len`].
    pub fn tensor(&self, index: usize) -> TensorInfo<'_> {
        let record = &self.records[index];
        let dtype = match dtype::KNOWN.get(record.dtype as usize) {
            Some(known) => known.0,
            None => Dtype::Unknown(&self.unknown_dtypes[record.dtype as usize - dtype::KNOWN.len()]),
        };
        TensorInfo { name: self.name(index), dtype, shape: &self.dims[span(&record.dims)], range: record.range.clone() }
    }

    /// The name of the tensor at `index`: [`Header::tensor`] for those who need no more.
    ///
    /// # Panics
    /// Where `index` is not below [`Header::len`].
    pub fn name(&self, index: usize) -> &str {
        &self.names[span(&self.records[index].name)]
    }

    /// Whether the entry of the tensor at `index` is written as a list, `["U8", [2], [0, 2]]`, which no writer does and the
    /// official reader takes.
    ///
    /// # Panics
    /// Where `index` is not below [`Header::len`].
    pub fn is_list(&self, index: usize) -> bool {
        self.records[index].is_list
    }

    /// All tensors, in the order of the data.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorInfo<'_>> {
        (0..self.len()).map(|index| self.tensor(index))
    }

    /// The index of the tensor called `name`.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.by_name.find(name, |index| self.name(index as usize)).map(|index| index as usize)
    }

    /// Drops the tensors whose names `keep` does not want.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        let names = &self.names;
        self.records.retain(|record| keep(&names[span(&record.name)]));
        let mut by_name = NameTable::with_capacity(self.len());
        for index in 0..self.len() {
            by_name.insert(index as u32, |index| self.name(index as usize));
        }
        self.by_name = by_name;
    }

    /// `__metadata__`, sorted by key; empty where the file has none.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }

    /// Where the JSON header lies, in bytes from the start of the file, its padding included.
    pub fn json(&self) -> Range<u64> {
        self.json.clone()
    }

    /// What was left out; empty unless the file was read leniently.
    pub fn skipped(&self) -> &[Skipped] {
        self.skipped.listed()
    }

    /// How much was left out, listed or not.
    pub fn left_out(&self) -> usize {
        self.skipped.total()
    }

    /// All that was left out.
    pub fn skip_list(&self) -> &SkipList {
        &self.skipped
    }

    /// The names of dtypes that weightfs does not know, each once.
    pub fn unknown_dtypes(&self) -> &[String] {
        &self.unknown_dtypes
    }
}

/// Numbers of things by the hash of their names; the names themselves stay where they are, and are asked for by number.
#[derive(Debug)]
pub struct NameTable {
    table: HashTable<u32>,
    /// Seeded anew in each process, so that no file can be made to collide.
    hasher: DefaultHashBuilder,
}

impl NameTable {
    /// An empty table with room for so many names.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { table: HashTable::with_capacity(capacity), hasher: DefaultHashBuilder::default() }
    }

    /// The number of the thing called `name`.
    pub fn find<'n>(&self, name: &str, name_at: impl Fn(u32) -> &'n str) -> Option<u32> {
        self.table.find(self.hasher.hash_one(name), |number| name_at(*number) == name).copied()
    }

    /// Enters a thing, unless another one has its name; says whether it did.
    pub fn insert<'n>(&mut self, number: u32, name_at: impl Fn(u32) -> &'n str) -> bool {
        let name = name_at(number);
        let hash = self.hasher.hash_one(name);
        if self.table.find(hash, |other| name_at(*other) == name).is_some() {
            return false;
        }
        self.table.insert_unique(hash, number, |other| self.hasher.hash_one(name_at(*other)));
        true
    }
}

/// Places in an arena as indices. They are 32-bit because a header has at most 100 MB.
fn span(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

/// A string of JSON as it lies in the text, where nothing in it is escaped.
#[derive(Deserialize)]
pub(crate) struct Text<'t>(#[serde(borrow)] pub Cow<'t, str>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_very_many_things_the_number_is_told() {
        let mut skipped = SkipList::default();
        for at in 0..TOLD_MAX + 5 {
            skipped.push(|| Skipped { name: at.to_string(), reason: String::new() });
        }
        skipped.add(2);
        let skipped = skipped.finish();
        assert_eq!((skipped.total(), skipped.listed().len()), (TOLD_MAX + 7, TOLD_MAX + 1));
        assert_eq!(skipped.listed()[TOLD_MAX].reason, "7 more were left out");
        let mut few = SkipList::default();
        few.push(|| Skipped { name: "a".into(), reason: "b".into() });
        assert_eq!((few.total(), few.finish().listed().len()), (1, 1));
    }
}
