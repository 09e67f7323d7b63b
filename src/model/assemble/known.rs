//! The files of a model before it is opened.

use super::set;
use crate::source::Location;

/// The files of a model, as far as they are known before it is opened.
pub(in crate::model) struct KnownFiles {
    /// The file that is read first.
    pub main: Location,
    /// The others: shards that an index or a manifest names, or other splits. They need not exist. A shard whose name
    /// is refused is left out: it may lead into the mount itself.
    pub others: Vec<Location>,
    /// The directory that holds all of them, unless links lead out of it. `None` if that is the directory of the main
    /// file, or one above it.
    pub base: Option<Location>,
}

impl KnownFiles {
    pub fn with(main: &Location, others: Vec<Location>) -> Self {
        Self { main: main.clone(), others, base: None }
    }

    pub fn with_shards(main: &Location, names: Option<impl IntoIterator<Item = String>>) -> Self {
        Self::with(main, set::locations(main, names.into_iter().flatten()).collect())
    }
}
