//! The names that the files of models have had whose files a directory lists. Another process may rename files between
//! the moment at which they are opened and that at which their permissions are decided.

use super::set::KnownFiles;
use crate::source::{self, ListedKind, Location};
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::sync::{LazyLock, Mutex, PoisonError};

static LISTED: LazyLock<Mutex<HashMap<Location, BTreeSet<OsString>>>> = LazyLock::new(Mutex::default);

/// Notes the names that the files of the model at a location have now.
pub(super) fn note_names(location: &Location, names: impl IntoIterator<Item = OsString>) {
    let mut listed = LISTED.lock().unwrap_or_else(PoisonError::into_inner);
    listed.entry(location.clone()).or_default().extend(names);
}

/// All names that were noted for the model at a location.
fn noted_names(location: &Location) -> Vec<OsString> {
    let listed = LISTED.lock().unwrap_or_else(PoisonError::into_inner);
    listed.get(location).into_iter().flatten().cloned().collect()
}

/// The names of the files beside a location now, or those that were noted for it: a process in a sandbox may open the
/// files that were found before, and may not list their directory.
pub(super) fn names_beside(location: &Location) -> Result<Vec<OsString>, source::Error> {
    match source::list_dir(&location.parent()) {
        Ok(listed) => {
            let files = listed.entries.into_iter().filter(|entry| entry.kind == ListedKind::File);
            Ok(files.map(|entry| entry.name).collect())
        }
        Err(error) => match noted_names(location) {
            names if names.is_empty() => Err(error),
            names => Ok(names),
        },
    }
}

/// The files of the model at a location, by all names that were noted.
pub(super) fn noted_files(location: &Location) -> KnownFiles {
    let dir = location.parent();
    let mut files = noted_names(location).into_iter().map(|name| dir.join(name));
    KnownFiles::with(&files.next().unwrap_or_else(|| location.clone()), files.collect())
}
