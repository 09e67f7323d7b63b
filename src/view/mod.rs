//! Views of a model: knows what each kind of file in the mount consists of, not where in the tree it stands.
//!
//! A view is one file here and one arm in [`Views::content`].

mod export;
mod f32;
mod index;
mod lines;
mod metadata;
mod npy;
mod results;
mod shards;
mod single;
mod sums;
#[cfg(test)]
mod tests;
mod values;

use crate::content::{self, Content, Data, Extent, Extents, Generated, Interrupted, Segment};
use crate::format::TensorInfo;
use crate::model::{Model, Place};
use crate::{plot, stats};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

pub use export::{Export, Tensors};
pub use index::{Dirs, write_tensor};
pub use results::Results;
pub use shards::Shards;

/// A kind of file. The numbers are part of inode numbers, which stay the same from mount to mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum View {
    /// `header.json`: the JSON header of a file, byte for byte. One for each shard.
    Header = 0,
    /// `index.json`: every tensor and where it is.
    Index = 1,
    /// `metadata.json`: `__metadata__` as JSON; that of the whole model, then that of each shard.
    MetadataJson = 2,
    /// `metadata/KEY`: the bytes of one value; those of the whole model, then those of each shard.
    Metadata = 3,
    /// `tensors/NAME` and `tree/...`: the bytes of one tensor.
    Raw = 4,
    /// `npy/NAME.npy`: a NumPy array.
    Npy = 5,
    /// `f32/NAME.f32`: float32, whatever the dtype is. For F32 that is the raw file itself.
    F32 = 6,
    /// `safetensors/NAME.safetensors`: a file of one tensor.
    Single = 7,
    /// `export/MODEL.safetensors` (0) and `export/MODEL-clean.safetensors` (1): the whole model.
    Export = 8,
    /// `metadata/KEY.jpg` and the like: what a value holds that is a `data:` URL.
    MetadataDecoded = 9,
    /// `dataset_manifest.json`, byte for byte.
    Manifest = 10,
    /// `stats/NAME.json`: the values of a tensor in figures.
    Stats = 11,
    /// `plots/NAME.png`: a picture of them.
    Plot = 12,
    /// `SHA256SUMS`: of every file in `tensors/`.
    Sums = 13,
}

impl View {
    /// All views, each at its number.
    pub const ALL: [Self; 14] = [
        Self::Header,
        Self::Index,
        Self::MetadataJson,
        Self::Metadata,
        Self::Raw,
        Self::Npy,
        Self::F32,
        Self::Single,
        Self::Export,
        Self::MetadataDecoded,
        Self::Manifest,
        Self::Stats,
        Self::Plot,
        Self::Sums,
    ];

    /// What the names of the view's files end in, where it has one for each tensor.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Npy => ".npy",
            Self::F32 => ".f32",
            Self::Single => ".safetensors",
            Self::Stats => ".json",
            Self::Plot => ".png",
            _ => "",
        }
    }

    /// Whether its files are computed from the data of tensors when they are read, which may take long.
    pub fn is_slow(self) -> bool {
        matches!(self, Self::Stats | Self::Plot | Self::Sums)
    }
}

/// Most dimensions of a tensor in `npy/` and `safetensors/`, whose headers are written anew for each read. NumPy has 64.
const RANK_MAX: usize = 8192;

/// Longest name in `safetensors/`, in bytes, for the same reason.
const NAME_MAX: usize = 1 << 20;

/// A model with what its views keep: tables that are made when first needed, none of them of the size of the tensors.
#[derive(Debug)]
pub struct Views {
    model: Model,
    dirs: Dirs,
    index: OnceLock<index::Index>,
    metadata_json: Vec<OnceLock<Vec<u8>>>,
    /// The number of the first metadata value of each shard; one more entry for the number of all.
    first_value: Vec<usize>,
    decoded: OnceLock<Vec<metadata::Decoded>>,
    export: OnceLock<Export>,
    sums: OnceLock<sums::Sums>,
    /// What was computed for this model and others, by the number that this one has among them.
    results: Arc<Results>,
    number: u32,
}

impl Views {
    /// Views of `model`, of which the mount has those `dirs`. Results are kept together with those of other models, of which
    /// none has the same `number`.
    pub fn new(model: Model, dirs: Dirs, results: Arc<Results>, number: u32) -> Self {
        let (index, decoded, export, sums) = Default::default();
        let mut first_value = vec![model.metadata().len()];
        first_value.extend(model.shards().iter().scan(model.metadata().len(), |next, shard| {
            *next += shard.header.metadata().len();
            Some(*next)
        }));
        let metadata_json = (0..first_value.len()).map(|_| OnceLock::new()).collect();
        Self { model, dirs, index, metadata_json, first_value, decoded, export, sums, results, number }
    }

    /// The model behind the views.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Keys and values of a shard, or of the whole model.
    pub fn metadata(&self, shard: Option<usize>) -> &[(String, String)] {
        shard.map_or(self.model.metadata(), |shard| self.model.shards()[shard].header.metadata())
    }

    /// The number of the first metadata value of a shard, or of the whole model.
    pub fn first_value_of(&self, shard: Option<usize>) -> usize {
        shard.map_or(0, |shard| self.first_value[shard])
    }

    /// How many files a view may have: for a view of tensors, one for each, of which [`Views::has`] may deny some.
    pub fn count(&self, view: View) -> usize {
        match view {
            View::Index | View::Sums => 1,
            View::Manifest => self.model.manifest().iter().count(),
            View::Header => self.model.shards().len(),
            View::MetadataJson => self.metadata_json.len(),
            View::Export => 2,
            View::Metadata => self.first_value.last().copied().unwrap_or(0),
            View::MetadataDecoded => self.decoded().len(),
            View::Raw | View::Npy | View::F32 | View::Single | View::Stats | View::Plot => self.model.numbered(),
        }
    }

    /// Whether a view shows a tensor.
    pub fn has(view: View, tensor: &TensorInfo) -> bool {
        match view {
            View::Npy => npy::has(tensor.dtype) && tensor.shape.len() <= RANK_MAX,
            View::F32 => f32::has(tensor.dtype),
            View::Stats | View::Plot => values::has(tensor.dtype),
            View::Single => tensor.shape.len() <= RANK_MAX && tensor.name.len() <= NAME_MAX,
            _ => true,
        }
    }

    /// The file name of a decoded metadata value.
    pub fn decoded_name(&self, item: usize) -> &str {
        &self.decoded()[item].file_name
    }

    /// The decoded metadata value of that file name.
    pub fn find_decoded(&self, file_name: &str) -> Option<usize> {
        self.decoded().binary_search_by(|decoded| decoded.file_name[..].cmp(file_name)).ok()
    }

    /// What file number `item` of a view consists of. One that takes long to read looks at times whether it was
    /// `interrupted`.
    ///
    /// # Panics
    /// Where `item` is not below [`Views::count`].
    pub fn content<'a>(&'a self, view: View, item: usize, interrupted: Interrupted<'a>) -> Content<'a> {
        let model = &self.model;
        let tensor = move || self.tensor(item);
        match view {
            View::Header => Content::extent(&*model.sources()[item], model.shards()[item].header.json()),
            View::Manifest => match model.manifest() {
                Some(manifest) => Content::extent(manifest, 0..manifest.len()),
                None => Content::new([]),
            },
            View::Index => self.index.get_or_init(|| index::Index::new(model, self.dirs)).content(model),
            View::MetadataJson => {
                let json = || metadata::json(self.metadata(item.checked_sub(1)));
                Content::literal(&self.metadata_json[item].get_or_init(json)[..])
            }
            View::Metadata => {
                let shard = self.first_value.partition_point(|first| *first <= item).checked_sub(1);
                Content::literal(self.metadata(shard)[item - self.first_value_of(shard)].1.as_bytes())
            }
            View::MetadataDecoded => Content::literal(&self.decoded()[item].bytes[..]),
            View::Export => self.export(item).unwrap_or(Content::new([])),
            View::Raw => Content::new([Segment::Data(tensor().1)]),
            View::Npy => {
                let (tensor, data) = tensor();
                npy::content(&tensor, data)
            }
            View::F32 => {
                let (tensor, data) = tensor();
                f32::content(&tensor, data)
            }
            View::Single => {
                let (tensor, data) = tensor();
                single::content(&tensor, data)
            }
            View::Stats => self.computed(stats::JSON_LEN, (self.number, view, item as u32), interrupted, move || {
                let (tensor, data) = tensor();
                values::json(&tensor, &data, interrupted)
            }),
            View::Plot => self.computed(plot::PNG_LEN, (self.number, view, item as u32), interrupted, move || {
                let (tensor, data) = tensor();
                values::png(&tensor, &data, interrupted)
            }),
            View::Sums => {
                let sums = self.sums.get_or_init(|| sums::Sums::new(model));
                sums.content(model, &self.results, self.number, move |item| self.tensor(item).1, interrupted)
            }
        }
    }

    /// A tensor and its data.
    fn tensor(&self, item: usize) -> (TensorInfo<'_>, Data<'_>) {
        let (tensor, place) = self.model.tensor(item);
        let (sources, range) = (self.model.sources(), tensor.range.clone());
        let data = match place {
            Place::Shard(shard) => Data::Extent(Extent { source: &*sources[shard], range }),
            Place::Runs(runs) => Data::Extents(Extents { sources, runs, len: range.end }),
        };
        (tensor, data)
    }

    /// A file of a known length that is computed as a whole.
    fn computed<'a>(
        &'a self,
        len: usize,
        key: results::Key,
        interrupted: Interrupted<'a>,
        compute: impl Fn() -> Result<Vec<u8>, content::Error> + 'a,
    ) -> Content<'a> {
        let write = move |range: Range<u64>, out: &mut Vec<u8>| {
            let whole = self.results.get(key, interrupted, &compute)?;
            out.extend_from_slice(&whole[range.start as usize..range.end as usize]);
            Ok(())
        };
        Content::new([Segment::Generated(Generated { len: len as u64, write: Box::new(write) })])
    }

    /// An export, if there can be one.
    pub fn export(&self, item: usize) -> Option<Content<'_>> {
        let export = self.export.get_or_init(|| {
            let export = Export::new(&self.model, Tensors::Whole, None);
            if export.content(&self.model, false).is_none() {
                log::warn!("export/: left out: {}", export.refusal());
            }
            export
        });
        export.content(&self.model, item == 1)
    }

    fn decoded(&self) -> &[metadata::Decoded] {
        self.decoded.get_or_init(|| metadata::decoded(self.model.metadata()))
    }
}
