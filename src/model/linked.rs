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

/// The repository in the Hugging Face cache that has `top`, or a directory above it, as a snapshot: a directory of
/// links to files of the repository.
pub(super) fn repository_of(top: &Location) -> Option<Location> {
    let absolute = top.path().and_then(|top| std::path::absolute(Path::new(".").join(top)).ok());
    let mut dirs = std::iter::successors(absolute.as_deref(), |dir| dir.parent());
    let repository = dirs.find(|dir| dir.ends_with("snapshots")).and_then(|snapshots| snapshots.parent());
    repository.map(Location::from).filter(|repository| source::is_dir(&repository.join("blobs")))
}

/// Whether `file` leads nowhere, or lies below the directory `top`, or its repository, after following links, and no
/// other file was opened under its name.
pub(super) fn is_below(file: &Location, top: &Location) -> bool {
    let dirs = Directories::default();
    let base = dirs.base(repository_of(top).as_ref().unwrap_or(top));
    match base.and_then(|base| base.holds(file)) {
        Ok(is_below) => is_below,
        Err(error) => {
            let leads_nowhere = matches!(Errno::try_from(error), Ok(Errno::ENOENT | Errno::ELOOP));
            leads_nowhere && source::was_always(file, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn files_that_were_opened_and_moved_away_are_not_below() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("top")).unwrap();
        fs::write(at("secret"), "secret").unwrap();
        fs::write(at("top/own"), "own").unwrap();
        symlink(at("secret"), at("top/link")).unwrap();
        let is_below = |name: &str| super::is_below(&at(name).as_path().into(), &at("top").as_path().into());
        assert!(is_below("top/own") && is_below("top/absent") && !is_below("top/link"));
        for name in ["top/own", "top/link"] {
            source::open_local(&at(name).as_path().into()).unwrap();
            fs::remove_file(at(name)).unwrap();
            assert!(!is_below(name), "{name}");
        }
    }
}
