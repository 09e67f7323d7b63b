//! Who may read a model through a mount: those who may read all that it consists of directly.

use super::table::Model;
use crate::source::{self, Directories, Location, Stat};
use std::path::Path;
use std::time::SystemTime;

/// No access for anyone but root.
pub(super) const NOBODY: Stat = Stat { uid: 0, gid: 0, mode: 0, mtime: SystemTime::UNIX_EPOCH };

/// Owner and permissions of a file that cannot be opened as a part of a model. `None` if it cannot be opened at all:
/// then no message has anything of it.
pub(super) fn stat_of(location: &Location) -> Option<Stat> {
    match source::stat_at(location) {
        Ok(stat) => Some(stat),
        Err(error) => {
            let path = location.path().unwrap_or(Path::new("")).to_owned();
            // It may have been opened before.
            source::Error::Io { path, error }.is_transient().then_some(NOBODY)
        }
    }
}

/// Restricts a model to users who may search the directories on the way from the directory `from` to its files, and who
/// may read those of its files that could not be opened: the reasons are shown.
///
/// `from` and the directories above it are left out.
pub(super) fn restrict(model: &mut Model, from: &Location, dirs: &Directories) {
    let unopened = model.unopened().iter().filter_map(stat_of);
    let unopened: Vec<Stat> = unopened.collect();
    let locations = model.locations();
    let is_unopened = |at: usize| at >= locations.len() - model.unopened().len();
    let mut start = dirs.start(from);
    let ways = locations.iter().enumerate().filter_map(|(at, location)| {
        match start.as_mut().map(|start| start.way(location)) {
            Ok(Ok(way)) => way.stat,
            // Nothing is known about the directories.
            _ => (!is_unopened(at)).then_some(NOBODY),
        }
    });
    let mut needed: Vec<Stat> = unopened.into_iter().chain(ways).collect();
    needed.dedup();
    needed.into_iter().for_each(|needed| model.need(needed));
}
