//! The files of a model, as far as they are known before the model is opened.

use super::ollama::{self, OllamaManifest};
use super::{dataset, index, set, split};
use crate::source::Location;

/// The other files of the model at `location`: the shards that an index or a manifest names, or the other splits. They
/// need not exist. A shard whose name is refused is left out: it may lead into the mount itself.
pub(super) fn other_files(location: &Location) -> Vec<Location> {
    let shards = match location.file_name() {
        name if name == dataset::MANIFEST => dataset::dataset_shards(location),
        name if index::index_stem(name).is_some() => index::index_shards(location),
        _ => return split::other_splits(location).collect(),
    };
    set::locations(location, shards.into_iter().flatten()).collect()
}

/// The files of a model, and the directory that holds all of them, unless links lead out of it.
pub(super) struct KnownFiles {
    /// The file that is read first.
    pub main: Location,
    /// The others, which need not exist.
    pub others: Vec<Location>,
    /// `None` if that is the directory of the main file, or one above it.
    pub base: Option<Location>,
}

impl KnownFiles {
    /// The files of the model at a location.
    pub fn of(location: &Location) -> Self {
        match OllamaManifest::of_layer(location) {
            Some((manifest, layer)) => {
                let others = ollama::blob_of(&manifest, layer).into_iter().collect();
                Self { main: manifest.location, others, base: Some(manifest.store) }
            }
            None => Self { main: location.clone(), others: other_files(location), base: None },
        }
    }
}
