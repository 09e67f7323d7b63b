//! Finds the files of a model's directory that are not parts of the model.

use super::assemble::index::index_stem;
use super::catalog::{Catalog, FolderItem};
use super::file_tree::TreeEntry;
use super::ids::FolderId;
use super::linked::repository_of;
use super::others::{OtherBytes, OtherFile, OtherFiles};
use super::recognise;
use super::table::Model;
use crate::content::DeferredFile;
use crate::format::{self, onnx};
use crate::name::harmless;
use crate::source::{self, Error, FileId, ListedEntry, ListedKind, Location};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Maximum number of files. Those of this machine stay open.
const FILES_MAX: usize = 1000;

/// The files that were found in a directory whose only model lies directly in it, or in a pipeline, and whether some
/// were left out because they are too many. Messages say that they are shown in the folder `shown_in`.
pub(super) fn files_in(catalog: &Catalog, shown_in: &str) -> (OtherFiles, bool) {
    let mut search = FileSearch::new((&catalog.top, catalog.dirs.listed(&catalog.top)), None);
    search.add_folder(catalog, FolderId::new(0), 0);
    let has_more = search.has_more;
    (search.finish(shown_in), has_more)
}

/// The files directly beside a model that the user named.
///
/// On this machine only if they include a configuration, as in a directory of one model. In a directory for everyone,
/// such as /tmp, somebody else could have put the configuration there, so the model, its configuration and all files
/// that are shown have the same owner.
///
/// On a server only those that are known without another request: the listing of a repository of the Hub has them.
pub(super) fn files_beside(model: &Model) -> OtherFiles {
    let dir = model.main_file().parent();
    let (mut listing, owner) = match &dir {
        _ if !model.form.holds_weights => return OtherFiles::default(),
        Location::Remote(remote) => (remote.tree().known(remote.path()), None),
        Location::Local(_) => {
            let owner_of = |file: &Location| source::stat_at(file).map(|(_, stat)| stat.uid).ok();
            let owner = owner_of(model.main_file());
            let is_own = |name: &str| {
                let file = dir.join(name);
                source::exists(&file) && owner_of(&file) == owner
            };
            if !recognise::configs().any(is_own) {
                return OtherFiles::default();
            }
            let Ok(listing) = source::list_dir(&dir) else { return OtherFiles::default() };
            (listing, owner)
        }
    };
    let parts: HashSet<&OsStr> = model.files.iter().map(|file| file.location.file_name()).collect();
    let is_part = |entry: &ListedEntry| entry.name == model.main_file().file_name() || parts.contains(&entry.name[..]);
    let is_onnx = |name: &OsStr| format::strip_suffix(name, onnx::SUFFIX).is_some();
    // It was made of the model, unless that is one too.
    let is_supplement = |name: &OsStr| is_onnx(name) && !is_onnx(model.main_file().file_name());
    listing.entries.retain(|entry| may_be_other(entry, is_supplement(&entry.name)) && !is_part(entry));
    listing.entries.sort_by(|a, b| a.name.cmp(&b.name));
    let mut search = FileSearch::new((&dir, Some(listing.id)), owner);
    let folder = search.found.add_folder(0, Some(listing.stat));
    for entry in listing.entries {
        let name = harmless(&entry.name).to_string_lossy().into_owned();
        search.add_file(folder, name, &dir.join(&entry.name));
    }
    search.found.drop_empty_folder();
    search.finish(FILES)
}

/// Whether the name of an entry beside a model is not hidden, and not that of a model, unless it is a supplement.
fn may_be_other(entry: &ListedEntry, is_supplement: bool) -> bool {
    entry.kind == ListedKind::File
        && !entry.name.as_bytes().starts_with(b".")
        && (is_supplement || format::format_stem(&entry.name).is_none())
        && index_stem(&entry.name).is_none()
}

/// The path of the blob that a link of the Hugging Face cache leads to, below the directory of `blobs`.
fn blob_of(link: &Path, blobs: &Path) -> Option<PathBuf> {
    let target = std::fs::read_link(link).ok()?;
    let name = target.file_name()?;
    let is_blob =
        target.parent()?.ends_with("blobs") && link.parent()?.join(&target).canonicalize().ok()? == blobs.join(name);
    is_blob.then(|| Path::new(blobs.file_name().unwrap_or_default()).join(name))
}

/// The folder that shows the other files of one model.
pub(super) const FILES: &str = "files/";

struct FileSearch<'s> {
    /// The directory of the model.
    top: &'s Location,
    id: Option<FileId>,
    /// The directory `blobs` of the repository, without symlinks, if the directory is in the Hugging Face cache.
    blobs: Option<PathBuf>,
    /// The only user whose files are shown; `None` if those of all are.
    owner: Option<u32>,
    found: OtherFiles,
    /// The first file that could not be opened, and their number.
    failed: Option<(Error, usize)>,
    /// Whether files were left out because there are too many.
    has_more: bool,
}

impl<'s> FileSearch<'s> {
    fn new((top, id): (&'s Location, Option<FileId>), owner: Option<u32>) -> Self {
        let blobs = repository_of(top).and_then(|repository| repository.join("blobs").canonical().ok());
        let blobs = blobs.and_then(|blobs| blobs.path().map(PathBuf::from));
        Self { top, id, blobs, owner, found: OtherFiles::default(), failed: None, has_more: false }
    }

    /// Adds what is in a folder of a catalog, and returns the number of the folder if there is anything.
    fn add_folder(&mut self, catalog: &Catalog, id: FolderId, parent: usize) -> Option<usize> {
        let folder = catalog.folder(id)?;
        let number = self.found.add_folder(parent, Some(folder.stat));
        for entry in &folder.entries {
            let name = entry.name.to_string_lossy().into_owned();
            match entry.item {
                FolderItem::Folder(inner) => {
                    if let Some(inner) = self.add_folder(catalog, inner, number) {
                        self.found.insert(number, name, TreeEntry::Folder(inner));
                    }
                }
                FolderItem::Link(link) => self.add_file(number, name, &catalog.links()[link]),
                FolderItem::Model(_) | FolderItem::Export | FolderItem::Unreadable(_) => {}
            }
        }
        self.found.drop_empty_folder().then_some(number)
    }

    /// Adds the file at a location. Links are left out, except those of the Hugging Face cache to its blobs.
    fn add_file(&mut self, folder: usize, name: String, location: &Location) {
        let Some(len) = source::len_at(location) else { return };
        if self.found.files().len() == FILES_MAX {
            self.has_more = true;
            return;
        }
        match self.open(location, len) {
            Ok(Some(file)) => self.found.add_file(folder, name, file),
            Ok(None) => {}
            Err(error) => {
                let counted = self.failed.take().map_or((error, 1), |(first, count)| (first, count + 1));
                self.failed = Some(counted);
            }
        }
    }

    /// Opens a file, if it is on this machine. `None` if it is not one to show.
    fn open(&self, location: &Location, len: u64) -> Result<Option<OtherFile>, Error> {
        let path = match location {
            Location::Local(path) => path,
            Location::Remote(_) => {
                let bytes = OtherBytes::Remote(DeferredFile::new(location.clone(), len));
                let top = self.found.folder(0).and_then(|top| top.stat);
                return Ok(top.map(|stat| OtherFile { stat, bytes }));
            }
        };
        let (Some(top), Some(inner)) = (self.top.path(), self.top.path().and_then(|top| path.strip_prefix(top).ok()))
        else {
            return Ok(None);
        };
        let opened = match (source::open_beneath((top, self.id), inner)?, &self.blobs) {
            (None, Some(blobs)) => match blob_of(path, blobs) {
                // Users need to search the directory of the blobs too.
                Some(blob) => source::open_beneath((blobs.parent().unwrap_or(blobs), None), &blob)?,
                None => None,
            },
            (opened, _) => opened,
        };
        let Some((source, needed)) = opened else { return Ok(None) };
        let stat = source.stat();
        if self.owner.is_some_and(|owner| owner != stat.uid) {
            return Ok(None);
        }
        let stat = needed.map_or(stat, |needed| stat.and(needed));
        Ok(Some(OtherFile { stat, bytes: OtherBytes::Local(source) }))
    }

    fn finish(self, shown_in: &str) -> OtherFiles {
        match self.failed {
            None => {}
            Some((error, 1)) => log::warn!("{error}; it is not shown in {shown_in}"),
            Some((error, count)) => log::warn!("{error}; it and {} more are not shown in {shown_in}", count - 1),
        }
        if self.has_more {
            log::warn!("{}: only the first {FILES_MAX} files that are not models are shown in {shown_in}", self.top);
        }
        self.found
    }
}
