//! Access to a model through a mount: only users who can read all parts of the model directly can read it.

use super::table::Model;
use crate::source::{self, Directories, Location, SourceStat};
use std::path::Path;
use std::time::SystemTime;

/// No access for anyone but root.
pub(super) const NOBODY: SourceStat =
    SourceStat { uid: 0, gid: 0, mode: 0, mtime: SystemTime::UNIX_EPOCH, ctime: (0, 0) };

/// Owner and permissions of a file that cannot be opened as a part of a model. `None` if the file itself cannot be
/// opened; no message then quotes it.
pub(super) fn stat_of(location: &Location) -> Option<SourceStat> {
    match source::stat_at(location) {
        Ok(stat) => Some(stat),
        Err(error) => {
            let path = location.path().unwrap_or(Path::new("")).to_owned();
            // After a transient error, messages may quote the file: it may have been read before.
            source::Error::Io { path, error }.is_transient().then_some(NOBODY)
        }
    }
}

/// Restricts a model to users who can search the directories between the directory `from` and its files, and who can
/// read those of its files that could not be opened: the mount shows the reasons, which may quote these files.
///
/// `from` and the directories above it are not considered.
pub(super) fn restrict_access(model: &mut Model, from: &Location, dirs: &Directories) {
    let mut needed: Vec<SourceStat> = model.facts.unopened.iter().filter_map(stat_of).collect();
    let locations = model.locations();
    let opened = locations.len() - model.facts.unopened.len();
    let mut base = dirs.base(from);
    needed.extend(locations.iter().enumerate().filter_map(|(at, location)| {
        match base.as_mut().map(|base| base.traverse(location)) {
            Ok(Ok(traversal)) => traversal.stat,
            // The permissions of the directories are unknown.
            _ => (at < opened).then_some(NOBODY),
        }
    }));
    needed.dedup();
    model.facts.needed.extend(needed);
}
