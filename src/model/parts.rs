//! The files of a model, as far as they are known before the model is opened.

use super::{dataset, index, set, split};
use crate::source::Location;

/// The other files of the model at `location`: the shards that an index or a manifest names, or the other splits. They
/// need not exist. A shard whose name is refused is left out: it may lead into the mount itself.
pub(super) fn others(location: &Location) -> Vec<Location> {
    let shards = match location.file_name() {
        name if name == dataset::MANIFEST => dataset::shards(location),
        name if index::stem(name).is_some() => index::shards(location),
        _ => return split::others(location).collect(),
    };
    set::locations(location, shards.into_iter().flatten()).collect()
}
