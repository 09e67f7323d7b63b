//! Which files an error may quote: none that a link leads to from elsewhere, because somebody could have made the link
//! to find out what is in a file of others.

use super::error::Error;
use crate::source::{self, Directories, Location};
use nix::errno::Errno;
use std::path::Path;

impl Error {
    /// An error that quotes nothing. The log has this one as information.
    pub(super) fn hidden(self, location: &Location) -> Self {
        log::info!("{self}");
        Self::Linked { location: location.clone() }
    }
}

/// The directory whose files may be quoted: `top`, or if that is in a snapshot of the Hugging Face cache, a directory
/// of links to files of its repository, the repository.
pub(super) fn quotable_dir(top: &Location) -> Location {
    let absolute = top.path().and_then(|top| std::path::absolute(Path::new(".").join(top)).ok());
    let mut dirs = std::iter::successors(absolute.as_deref(), |dir| dir.parent());
    let repository = dirs.find(|dir| dir.ends_with("snapshots")).and_then(|snapshots| snapshots.parent());
    let repository = repository.map(Location::from).filter(|repository| source::is_dir(&repository.join("blobs")));
    repository.unwrap_or_else(|| top.clone())
}

/// Whether `file` leads nowhere, or lies below the directory `top`, or its repository, after following links.
pub(super) fn is_below(file: &Location, top: &Location) -> bool {
    let dirs = Directories::default();
    match dirs.base(&quotable_dir(top)).and_then(|mut base| base.traverse(file)) {
        Ok(traversal) => traversal.is_inside,
        Err(error) => matches!(Errno::try_from(error), Ok(Errno::ENOENT | Errno::ELOOP)),
    }
}
