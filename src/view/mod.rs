//! Views of a model: knows what each kind of file in the mount consists of, not where in the tree it stands.
//!
//! A view is one file here and one arm in [`Views::content`].

mod index;
mod metadata;

use crate::content::Content;
use crate::model::Model;
use std::sync::OnceLock;

/// A kind of file. The numbers are part of inode numbers, which stay the same from mount to mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum View {
    /// `header.json`: the JSON header, byte for byte.
    Header = 0,
    /// `index.json`: every tensor and where it is.
    Index = 1,
    /// `metadata.json`: `__metadata__` as JSON.
    MetadataJson = 2,
    /// `metadata/KEY`: the bytes of one value.
    Metadata = 3,
    /// `tensors/NAME` and `tree/...`: the bytes of one tensor.
    Raw = 4,
}

impl View {
    /// All views, each at its number.
    pub const ALL: [Self; 5] = [Self::Header, Self::Index, Self::MetadataJson, Self::Metadata, Self::Raw];
}

/// A model with what its views keep: tables that are made when first needed, none of them of the size of the tensors.
#[derive(Debug)]
pub struct Views {
    model: Model,
    tensors_dir: Option<&'static str>,
    index: OnceLock<index::Index>,
    metadata_json: OnceLock<Vec<u8>>,
}

impl Views {
    /// Views of `model`; `tensors_dir` is where index.json says that the raw tensors are, if they are anywhere.
    pub fn new(model: Model, tensors_dir: Option<&'static str>) -> Self {
        Self { model, tensors_dir, index: OnceLock::new(), metadata_json: OnceLock::new() }
    }

    /// The model behind the views.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// How many files a view has.
    pub fn count(&self, view: View) -> usize {
        match view {
            View::Header | View::Index | View::MetadataJson => 1,
            View::Metadata => self.model.header().metadata().len(),
            View::Raw => self.model.len(),
        }
    }

    /// What file number `item` of a view consists of.
    ///
    /// # Panics
    /// Where `item` is not below [`Views::count`].
    pub fn content(&self, view: View, item: usize) -> Content<'_> {
        match view {
            View::Header => Content::extent(&*self.model.shard().source, self.model.header().json()),
            View::Index => {
                self.index.get_or_init(|| index::Index::new(&self.model, self.tensors_dir)).content(&self.model)
            }
            View::MetadataJson => {
                Content::literal(&self.metadata_json.get_or_init(|| metadata::json(self.model.header()))[..])
            }
            View::Metadata => Content::literal(self.model.header().metadata()[item].1.as_bytes()),
            View::Raw => {
                let (tensor, shard) = self.model.tensor(item);
                Content::extent(&*shard.source, tensor.range)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_view_is_at_its_number() {
        for (number, view) in View::ALL.into_iter().enumerate() {
            assert_eq!(view as usize, number);
        }
    }
}
