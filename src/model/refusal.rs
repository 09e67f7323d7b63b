//! Who may read the error file of a model that cannot be opened.

use super::access::needed_for_quoted;
use super::assemble::{self, KnownFiles};
use super::catalog::Catalog;
use super::ids::ModelId;
use crate::source::SourceStat;

/// Owner and permissions that all files of a model of the catalog have in common. `None` if no file of the model can be
/// read.
pub fn refused_stat(catalog: &Catalog, model: ModelId) -> Option<SourceStat> {
    let (location, dirs) = (catalog.model(model), &catalog.dirs);
    let KnownFiles { main, others, base, .. } = assemble::known_files(location);
    let mut found: Option<SourceStat> = None;
    let mut add = |stat: SourceStat| found = Some(found.map_or(stat, |found| found.and(stat)));
    let home = dirs.base(base.as_ref().unwrap_or(catalog.home_location(model)));
    for part in std::iter::once(&main).chain(&others) {
        needed_for_quoted(&home, part).into_iter().for_each(&mut add);
    }
    found
}
