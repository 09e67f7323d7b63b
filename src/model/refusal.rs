//! The text of the error file of a model that cannot be opened, and who may read it.

use super::access::{NOBODY, stat_of};
use super::assemble::{self, KnownFiles};
use super::catalog::Catalog;
use super::error::Error;
use super::ids::ModelId;
use crate::source::{self, SourceStat};
use std::io::ErrorKind;

/// Why a model cannot be opened, as the mount shows it to all users who may read the model.
#[derive(Debug)]
pub struct ModelRefusal {
    /// The reason. It quotes nothing of a file that is reached through a link out of the source.
    pub message: String,
    /// Owner and permissions that all files of the model have in common. `None` if no file of the model can be read.
    pub stat: Option<SourceStat>,
}

impl ModelRefusal {
    /// `error` is the reason why a model of the catalog cannot be opened.
    ///
    /// # Panics
    /// If no model has that number.
    pub fn new(catalog: &Catalog, model: ModelId, error: &Error) -> Self {
        let (location, dirs) = (catalog.model(model), catalog.directories());
        let KnownFiles { main, others, base } = assemble::known_files(location);
        let (mut found, mut is_inside): (Option<SourceStat>, bool) = (None, true);
        let mut add = |stat: SourceStat| found = Some(found.map_or(stat, |found| found.and(stat)));
        let (mut source, mut home) =
            (dirs.base(catalog.location()), dirs.base(base.as_ref().unwrap_or(catalog.home_location(model))));
        for part in std::iter::once(&main).chain(&others) {
            is_inside &= match source.as_mut().map(|source| source.traverse(part)) {
                Ok(Ok(traversal)) => traversal.is_inside,
                // Nothing of a shard that does not exist can be quoted.
                Ok(Err(error)) => error.kind() == ErrorKind::NotFound && *part != main,
                Err(_) => false,
            };
            // If a file cannot be opened, the reason says nothing about its content.
            if let Some(stat) = stat_of(part) {
                add(stat);
                match home.as_mut().map(|home| home.traverse(part)) {
                    Ok(Ok(traversal)) => traversal.stat.into_iter().for_each(&mut add),
                    _ => add(NOBODY),
                }
            }
        }
        let message = if is_inside || !quotes(error) {
            error.to_string()
        } else {
            format!(
                "{location}: not a sound model; a link leads to it out of the source, so only the log has the reason"
            )
        };
        Self { message, stat: found }
    }
}

/// Whether the message of an error may quote names or numbers from a file.
fn quotes(error: &Error) -> bool {
    use source::Error::{Changed, Io, NotAFile, Outside, Replaced};
    !matches!(error, Error::Source(Io { .. } | NotAFile { .. } | Changed { .. } | Replaced { .. } | Outside { .. }))
}
