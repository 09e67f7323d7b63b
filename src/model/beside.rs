//! Finds the files of a model's directory that are no parts of the model.

use super::access::NOBODY;
use super::assemble::index::index_stem;
use super::catalog::{Catalog, FolderItem};
use super::ids::FolderId;
use super::linked::quotable_dir;
use super::others::{OtherBytes, OtherEntry, OtherFile, OtherFiles};
use super::recognise;
use super::table::Model;
use crate::content::DeferredFile;
use crate::format;
use crate::name::harmless;
use crate::source::{self, Directories, Error, ListedEntry, ListedKind, Location, Source};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum number of files. Those of this machine stay open.
const FILES_MAX: usize = 1000;

/// The files that were found in a directory whose only model lies directly in it.
pub(super) fn files_in(catalog: &Catalog) -> OtherFiles {
    let mut search = FileSearch::new(&catalog.top, &catalog.dirs);
    search.add_folder(catalog, FolderId::new(0), 0);
    search.finish()
}

/// The files directly beside a model that the user named, if they include a configuration, as in a directory of one
/// model. Directories of servers are not listed for this.
pub(super) fn files_beside(model: &Model) -> OtherFiles {
    let dir = model.main_file().parent();
    let is_model_dir = || recognise::configs().any(|config| source::exists(&dir.join(config)));
    if !model.form.holds_weights || dir.path().is_none() || !is_model_dir() {
        return OtherFiles::default();
    }
    let Ok(mut listing) = source::list_dir(&dir) else { return OtherFiles::default() };
    listing.entries.retain(may_be_other);
    listing.entries.sort_by(|a, b| a.name.cmp(&b.name));
    let dirs = Directories::default();
    let mut search = FileSearch::new(&dir, &dirs);
    let folder = search.found.add_folder(0, listing.stat);
    for entry in listing.entries {
        let name = harmless(&entry.name).to_string_lossy().into_owned();
        search.add_file(folder, name, &dir.join(&entry.name));
    }
    search.found.drop_empty_folder();
    search.finish()
}

/// Whether the name of an entry beside a model is not hidden, and not that of a model.
fn may_be_other(entry: &ListedEntry) -> bool {
    entry.kind == ListedKind::File
        && !entry.name.as_bytes().starts_with(b".")
        && format::format_stem(&entry.name).is_none()
        && index_stem(&entry.name).is_none()
}

struct FileSearch<'s> {
    /// The directory of the model.
    top: &'s Location,
    dirs: &'s Directories,
    /// The directory that holds all files, without symlinks, if it is on this machine.
    inside: Option<PathBuf>,
    found: OtherFiles,
    /// Whether files were left out because there are too many.
    has_more: bool,
}

impl<'s> FileSearch<'s> {
    fn new(top: &'s Location, dirs: &'s Directories) -> Self {
        let inside = quotable_dir(top).canonical().ok().and_then(|dir| dir.path().map(PathBuf::from));
        Self { top, dirs, inside, found: OtherFiles::default(), has_more: false }
    }

    /// Adds what is in a folder of a catalog, and returns the number of the folder if there is anything.
    fn add_folder(&mut self, catalog: &Catalog, id: FolderId, parent: usize) -> Option<usize> {
        let folder = catalog.folder(id)?;
        let number = self.found.add_folder(parent, folder.stat);
        for entry in &folder.entries {
            let name = entry.name.to_string_lossy().into_owned();
            match entry.item {
                FolderItem::Folder(inner) => {
                    if let Some(inner) = self.add_folder(catalog, inner, number) {
                        self.found.insert(number, name, OtherEntry::Folder(inner));
                    }
                }
                FolderItem::Link(link) => self.add_file(number, name, &catalog.links()[link]),
                FolderItem::Model(_) | FolderItem::Unreadable(_) => {}
            }
        }
        self.found.drop_empty_folder().then_some(number)
    }

    /// Adds the file at a location. What is no file, or lies outside of the directory, is left out.
    fn add_file(&mut self, folder: usize, name: String, location: &Location) {
        let Some(len) = source::len_at(location) else { return };
        if self.found.len() == FILES_MAX {
            self.has_more = true;
            return;
        }
        match self.open(location, len) {
            Ok(Some(file)) => self.found.add_file(folder, name, file),
            Ok(None) => {}
            Err(error) => log::warn!("{error}; it is not shown in files/"),
        }
    }

    /// Opens a file, if it is on this machine. `None` if it lies elsewhere.
    fn open(&self, location: &Location, len: u64) -> Result<Option<OtherFile>, Error> {
        let (bytes, stat) = match location {
            Location::Local(path) => {
                let Some(source) = self.open_inside(path)? else { return Ok(None) };
                let stat = source.stat();
                (OtherBytes::Local(source), stat)
            }
            Location::Remote(remote) => {
                (OtherBytes::Remote(DeferredFile::new(location.clone(), len)), remote.tree().stat())
            }
        };
        let on_the_way = self.dirs.base(self.top).and_then(|mut base| base.traverse(location));
        let needed = on_the_way.map_or(Some(NOBODY), |traversal| traversal.stat);
        Ok(Some(OtherFile { stat: needed.map_or(stat, |needed| stat.and(needed)), bytes }))
    }

    /// The file at a path, if it lies inside the directory. Somebody could have made a link to find out what is in a
    /// file of others, and could exchange it at any time, so the file that was opened decides.
    fn open_inside(&self, path: &Path) -> Result<Option<Arc<dyn Source>>, Error> {
        let (real, id) = source::resolve_opened(path).map_err(|error| Error::Io { path: path.to_owned(), error })?;
        if self.inside.as_ref().is_none_or(|inside| !real.starts_with(inside)) {
            return Ok(None);
        }
        let source = source::open_local(&Location::Local(real))?;
        Ok(Some(source).filter(|source| source.id() == Some(id)))
    }

    fn finish(self) -> OtherFiles {
        if self.has_more {
            log::warn!("{}: only the first {FILES_MAX} files that are no models are shown in files/", self.top);
        }
        self.found
    }
}
