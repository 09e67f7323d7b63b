//! The folders above several models, with links and error files. A model is opened at the first lookup in it.

use super::attr::{Attr, Dentry, Error, FileKind, FileOwner, Ino, Ownership, ROOT, SECTOR, Statfs};
use super::ino;
use super::volume::{self, ModelVolume};
use crate::content::{Content, DeferredFile, ReadRequest, ResultId, WaitFor, WaitResource};
use crate::model::{self, Catalog, CatalogFolder, FolderId, FolderItem, ModelId};
use crate::source::{self, Location};
use crate::text::message;
use crate::threads;
use crate::view::{CachedResults, ExportFile, ExportTree, ShownViews, View};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

// Kinds of inodes in the tree of the folders. Folder numbers start at [`ROOT`].
const FOLDERS: u8 = 0;
const LINKS: u8 = 1;
/// `NAME.error.txt` of a model that cannot be opened.
const BROKEN: u8 = 2;
/// `NAME.error.txt` of a directory that cannot be read.
const UNREADABLE: u8 = 3;
/// `export/` of a pipeline, which has the number 0, and the folders below it.
const EXPORT_FOLDERS: u8 = 4;
/// The files below `export/`.
pub(super) const EXPORT_FILES: u8 = 5;

/// The folders of a catalog, and the models in them that have been opened.
#[derive(Debug)]
pub(super) struct CatalogFolders {
    pub(super) catalog: Catalog,
    pub(super) shown: ShownViews,
    pub(super) ownership: Ownership,
    models: Vec<ModelSlot>,
    results: Arc<CachedResults>,
    /// The files that are not models, by their number as links, once somebody has asked for them.
    others: Vec<OnceLock<DeferredFile>>,
    /// The folders whose changes were logged, or are not to be logged.
    changed: Mutex<HashSet<FolderId>>,
    /// Whether `export/` of a pipeline is shown.
    has_exports: bool,
    /// The files of `export/`, once somebody has asked for them.
    pub(super) exports: OnceLock<ExportTree>,
    /// The number of the tree of the folders in complete inode numbers.
    number: u32,
}

/// A model that may not be open yet. Both cells are set at most once. After a transient failure, a cell stays empty and
/// the next request tries again.
#[derive(Debug, Default)]
struct ModelSlot {
    /// Set when the folder of the model is listed or the model is looked up.
    verdict: OnceLock<HeaderVerdict>,
    /// Set at the first lookup in the model.
    volume: OnceLock<ModelVolume>,
    /// Held while one of the cells is being set.
    filling: Mutex<()>,
}

impl ModelSlot {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The final result of reading the header of a model.
#[derive(Debug)]
pub(super) enum HeaderVerdict {
    /// The model can be opened and has this owner.
    Sound(FileOwner),
    /// The model cannot be opened, for this reason. The owner is that of its error file.
    Broken(String, FileOwner),
}

/// An inode in the tree of the folders.
enum FolderNode<'f> {
    Folder(FolderId, &'f CatalogFolder),
    /// A link to a file that is not a model.
    Link(usize),
    /// A file that is not a model, and not on this machine: its number as a link, and its size in bytes.
    Remote(usize, u64),
    /// An error file: its text and its owner.
    Error(Cow<'f, str>, FileOwner),
    /// `export/` of a pipeline, or a folder below it, by its number.
    ExportFolder(usize),
    ExportFile(&'f ExportFile),
}

impl CatalogFolders {
    pub fn new(catalog: Catalog, shown: ShownViews, ownership: Ownership) -> Self {
        let models = catalog.models().map(|_| ModelSlot::default()).collect();
        let others = catalog.links().iter().map(|_| OnceLock::new()).collect();
        let has_exports = shown.contains(View::EXPORT) && catalog.is_pipeline();
        let (results, changed, exports) = Default::default();
        Self { catalog, shown, ownership, models, results, others, changed, has_exports, exports, number: 0 }
    }

    /// The folder of models beside the one that is mounted, whose tree has the number 0. Its entries are shown in the
    /// root of that tree. The folder has the last tree number.
    pub fn beside_main(sets: Catalog, shown: ShownViews, ownership: Ownership) -> Self {
        let folders = Self::new(sets, shown, ownership);
        Self { number: tree(ModelId::new(folders.models.len())), ..folders }
    }

    /// The number of the tree of the folders in complete inode numbers.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Reads the headers of all models, so that no reader has to wait for them later. If one cannot be read, it is
    /// tried again when it is needed.
    pub fn open_all(&self) {
        let top = self.catalog.folder(FolderId::new(0)).filter(|_| self.number != 0);
        let models: Vec<ModelId> = match top {
            Some(top) => top.models().collect(),
            None => self.catalog.models().collect(),
        };
        models.iter().for_each(|model| source::announce(self.catalog.model(*model), None));
        threads::map_parallel(models.len(), |at| self.check(models[at], &ReadRequest::WAIT).is_ok());
    }

    /// The model whose root has this complete inode number, if it is the root of a model.
    pub fn root_of(ino: Ino) -> Option<ModelId> {
        let (tree, local) = ino::split_ino(ino);
        model_in(tree).filter(|_| local == ROOT && tree.is_multiple_of(ino::GROUP_TREES))
    }

    /// The tree with a number, which is that of a model or of another set in its file. Opens the model at the first
    /// call.
    pub fn tree(&self, number: u32, request: &ReadRequest) -> Result<&ModelVolume, Error> {
        let model = model_in(number).ok_or(Error::NoEntry)?;
        self.volume(model, request)?.in_group(number).ok_or(Error::NoEntry)
    }

    /// The tree of a model. Opens the model at the first call.
    pub fn volume(&self, model: ModelId, request: &ReadRequest) -> Result<&ModelVolume, Error> {
        let slot = self.models.get(model.index()).ok_or(Error::NoEntry)?;
        if let Some(volume) = slot.volume.get() {
            return Ok(volume);
        }
        request.wait(self.opening(model))?;
        let filling = slot.lock();
        let HeaderVerdict::Sound(owner) = self.judge(model, &filling)? else { return Err(Error::NoEntry) };
        if let Some(volume) = slot.volume.get() {
            return Ok(volume);
        }
        let opened = model::open_in(&self.catalog, model)?;
        if opened.stat().map(|stat| self.ownership.of(stat)) != Some(*owner) {
            // The tree would keep the permissions of the old model, which may admit users who may not read the new one.
            return Err(Error::Changed { model: opened.location.to_string() });
        }
        opened.report_mount(&opened.location);
        let (number, up) = (tree(model), folder_ino(self.catalog.home(model)));
        let volume =
            ModelVolume::new(opened, self.shown.clone(), self.ownership, *owner, self.results.clone(), number, up);
        Ok(slot.volume.get_or_init(|| volume))
    }

    /// Whether the tree of a model exists.
    pub(super) fn is_open(&self, model: ModelId) -> bool {
        self.models.get(model.index()).is_some_and(|slot| slot.volume.get().is_some())
    }

    /// The verdict on a model. Fails if it is not available at present.
    pub(super) fn check(&self, model: ModelId, request: &ReadRequest) -> Result<&HeaderVerdict, Error> {
        let slot = self.models.get(model.index()).ok_or(Error::NoEntry)?;
        match slot.verdict.get() {
            Some(verdict) => Ok(verdict),
            None => {
                request.wait(self.opening(model))?;
                self.judge(model, &slot.lock())
            }
        }
    }

    /// The wait of a request that reads the header of a model. The scheduler lets one request at a time
    /// read it.
    fn opening(&self, model: ModelId) -> WaitFor {
        let key = ResultId { model: model.into(), kind: ResultId::MODEL, item: 0 };
        WaitFor { need: WaitResource::Device(self.catalog.device(model)), key: Some(key) }
    }

    /// Reads the header of a model and stores only the verdict. The caller holds the lock of the slot.
    fn judge(&self, model: ModelId, _: &MutexGuard<()>) -> Result<&HeaderVerdict, Error> {
        let slot = &self.models[model.index()];
        if let Some(verdict) = slot.verdict.get() {
            return Ok(verdict);
        }
        let verdict = match model::open_in(&self.catalog, model) {
            Ok(opened) => match opened.stat() {
                Some(stat) => HeaderVerdict::Sound(self.ownership.of(stat)),
                None => {
                    let reason = message(&format!("{}: the model has no files", self.catalog.model(model)));
                    log::warn!("{reason}");
                    HeaderVerdict::Broken(reason, self.owner(self.catalog.home(model))?)
                }
            },
            Err(error) if error.is_transient() => return Err(error.into()),
            Err(error) => {
                let reason = message(&error.to_string());
                log::warn!("{reason}");
                let owner = model::refused_stat(&self.catalog, model).map(|stat| self.ownership.of(stat));
                HeaderVerdict::Broken(reason, owner.map_or_else(|| self.owner(self.catalog.home(model)), Ok)?)
            }
        };
        Ok(slot.verdict.get_or_init(|| verdict))
    }

    pub fn model_attr(&self, model: ModelId, request: &ReadRequest) -> Result<Attr, Error> {
        match self.check(model, request)? {
            HeaderVerdict::Sound(owner) => Ok(owner.dir(volume::root(tree(model)))),
            HeaderVerdict::Broken(..) => Err(Error::NoEntry),
        }
    }

    pub fn lookup(&self, parent: Ino, name: &[u8], request: &ReadRequest) -> Result<Attr, Error> {
        let folder = match self.node(parent)? {
            FolderNode::Folder(_, folder) => folder,
            FolderNode::ExportFolder(number) => return self.find_export(number, name, request),
            _ => return Err(Error::NotADirectory),
        };
        match folder.find(OsStr::from_bytes(name)).ok_or(Error::NoEntry)? {
            (FolderItem::Model(model), is_error) => match (self.check(model, request)?, is_error) {
                (HeaderVerdict::Sound(_), false) => self.model_attr(model, request),
                (HeaderVerdict::Broken(..), true) => self.getattr(ino::pack(BROKEN, model.into())),
                _ => Err(Error::NoEntry),
            },
            (FolderItem::Unreadable(_), false) => Err(Error::NoEntry),
            (item, _) => self.getattr(ino::split_ino(self.item(item).0).1),
        }
    }

    pub fn getattr(&self, local: Ino) -> Result<Attr, Error> {
        let ino = ino::join(self.number, local);
        match self.node(local)? {
            FolderNode::Folder(_, folder) => Ok(self.ownership.of_folder(folder.stat).folder(ino)),
            FolderNode::Link(_) => {
                let size = self.readlink(local)?.len() as u64;
                let root = self.owner(FolderId::new(0))?;
                Ok(Attr { kind: FileKind::Link, perm: 0o777, ..root.file(ino, size, 0) })
            }
            FolderNode::Remote(_, size) => Ok(self.owner(FolderId::new(0))?.file(ino, size, size.div_ceil(SECTOR))),
            FolderNode::Error(text, owner) => Ok(owner.file(ino, text.len() as u64 + 1, 1)),
            FolderNode::ExportFolder(number) => self.export_folder_attr(number),
            FolderNode::ExportFile(file) => self.export_attr(ino, file),
        }
    }

    /// The owner of files that have the permissions of a folder.
    pub(super) fn owner(&self, folder: FolderId) -> Result<FileOwner, Error> {
        Ok(self.ownership.of(self.catalog.folder(folder).ok_or(Error::NoEntry)?.stat))
    }

    pub fn readdir<'s>(
        &'s self,
        ino: Ino,
        offset: u64,
        request: &ReadRequest,
        mut add: impl FnMut(Dentry<'s>) -> bool,
    ) -> Result<(), Error> {
        let (number, folder) = match self.node(ino)? {
            FolderNode::Folder(number, folder) => (number, folder),
            FolderNode::ExportFolder(number) => return self.list_exports(number, offset, request, add),
            _ => return Err(Error::NotADirectory),
        };
        // Without a verdict, it is unknown whether the entry is a directory or an error file. So missing verdicts
        // are determined before the first entry is passed to `add`.
        let has_none = |model: &ModelId| self.models[model.index()].verdict.get().is_none();
        let models: Vec<ModelId> = folder.models().filter(has_none).collect();
        let key = ResultId { model: number.into(), kind: ResultId::FOLDER, item: 0 };
        let mut missing = self.each_on_its_device(&models, key, request, |model| {
            // A model that cannot be opened at present is listed as a directory.
            drop(self.check(model, &ReadRequest::WAIT));
            Ok(())
        });
        if offset == 0 {
            missing = missing.and(self.compare(number, folder, request));
        }
        missing?;
        Dentry::list((ino, folder_ino(folder.parent)), &folder.entries, offset, &mut add, |entry| {
            if entry.item == FolderItem::Export && !self.has_exports {
                return None;
            }
            let (ino, kind) = self.item(entry.item);
            let (tree, local) = ino::split_ino(ino);
            let is_error = tree == self.number && matches!(ino::unpack(local).0, BROKEN | UNREADABLE);
            Some((ino, kind, if is_error { &entry.error } else { &entry.name }))
        });
        Ok(())
    }

    /// Calls `open` for models, in parallel for those on one device. `key` identifies the result if it is that of
    /// device 0.
    ///
    /// One device at a time, so that a device that hangs holds only its own threads. What the request may wait for
    /// comes first: a request that is parked for one device never needs another one before it.
    pub(super) fn each_on_its_device(
        &self,
        models: &[ModelId],
        key: ResultId,
        request: &ReadRequest,
        open: impl Fn(ModelId) -> Result<(), Error> + Sync,
    ) -> Result<(), Error> {
        let devices: BTreeSet<u64> = models.iter().map(|model| self.catalog.device(*model)).collect();
        let mut opened = Ok(());
        for device in devices {
            let key = ResultId { item: device as u32, ..key };
            if let Err(error) = request.wait(WaitFor { need: WaitResource::Device(device), key: Some(key) }) {
                opened = opened.and(Err(error.into()));
                continue;
            }
            let here: Vec<ModelId> =
                models.iter().filter(|model| self.catalog.device(**model) == device).copied().collect();
            let results = threads::map_parallel(here.len(), |at| open(here[at]));
            opened = opened.and(results.into_iter().collect());
        }
        opened
    }

    /// Does not log changes of the directory `dir`, whose path has no symlinks.
    pub fn ignore_changes_of(&self, dir: &Location) {
        let folders = (0..).map_while(|at| Some((FolderId::new(at), self.catalog.folder(FolderId::new(at))?)));
        for (number, CatalogFolder { location, .. }) in folders {
            if location.file_name() == dir.file_name() && location.canonical().is_ok_and(|found| found == *dir) {
                self.changed().insert(number);
            }
        }
    }

    fn changed(&self) -> MutexGuard<'_, HashSet<FolderId>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs once that a directory has changed since it was scanned, because its folder does not show the changes.
    fn compare(&self, number: FolderId, folder: &CatalogFolder, request: &ReadRequest) -> Result<(), Error> {
        if self.changed().contains(&number) {
            return Ok(());
        }
        let CatalogFolder { location, stat, device, .. } = folder;
        request.wait(WaitFor { need: WaitResource::Device(*device), key: None })?;
        let modified = source::modified_at(location).ok().flatten();
        if modified.is_some_and(|time| time != stat.mtime) && self.changed().insert(number) {
            log::warn!(
                "{location}: files were added, removed or renamed since it was mounted; the mount shows what was there \
                 before (mount it again to see the changes)"
            );
        }
        Ok(())
    }

    pub fn open(&self, ino: Ino) -> Result<Content, Error> {
        match self.node(ino)? {
            FolderNode::Folder(..) | FolderNode::ExportFolder(_) => Err(Error::IsADirectory),
            FolderNode::ExportFile(file) => self.export_content(file),
            // A link leads to a file of this machine.
            FolderNode::Link(number) => {
                let len = source::len_at(&self.catalog.links()[number]).ok_or(Error::NoEntry)?;
                Ok(self.other(number, len))
            }
            FolderNode::Remote(number, len) => Ok(self.other(number, len)),
            FolderNode::Error(text, _) => Ok(Content::literal(format!("{text}\n").into_bytes())),
        }
    }

    /// The content of a file that is not a model, of `len` bytes.
    fn other(&self, number: usize, len: u64) -> Content {
        let location = &self.catalog.links()[number];
        Content::generated(self.others[number].get_or_init(|| DeferredFile::new(location.clone(), len)).clone())
    }

    pub fn readlink(&self, ino: Ino) -> Result<&[u8], Error> {
        let FolderNode::Link(link) = self.node(ino)? else { return Err(Error::NotALink) };
        let path = self.catalog.links()[link].path().ok_or(Error::NotALink)?;
        Ok(path.as_os_str().as_bytes())
    }

    /// How many tree numbers the file system takes that has these folders. Some of them are unused.
    pub fn trees(&self) -> u32 {
        tree(ModelId::new(self.models.len())) + 1
    }

    /// See [`super::Superblock::version`].
    pub fn version(&self, ino: Ino) -> Result<Option<String>, Error> {
        match self.node(ino)? {
            FolderNode::Folder(..) | FolderNode::ExportFolder(_) => Err(Error::IsADirectory),
            FolderNode::ExportFile(file) => Ok(self.export_version(file)),
            FolderNode::Link(_) | FolderNode::Remote(..) => Ok(None),
            FolderNode::Error(text, _) => Ok(Some(text.into_owned())),
        }
    }

    pub fn statfs(&self) -> Statfs {
        Statfs { blocks: self.catalog.bytes().div_ceil(SECTOR), files: self.models.len() as u64 }
    }

    /// The complete inode of an item. A model without a verdict, after a transient failure, is shown as a directory: a
    /// lookup in it tries again and returns the error.
    fn item(&self, item: FolderItem) -> (Ino, FileKind) {
        let (local, kind) = match item {
            FolderItem::Folder(folder) => (folder_ino(folder), FileKind::Dir),
            FolderItem::Link(link) => {
                let kind = match self.catalog.links().get(link) {
                    Some(Location::Remote(_)) => FileKind::File,
                    _ => FileKind::Link,
                };
                (ino::pack(LINKS, link as u32), kind)
            }
            FolderItem::Export => (export_folder_ino(0), FileKind::Dir),
            FolderItem::Unreadable(number) => (ino::pack(UNREADABLE, number as u32), FileKind::File),
            FolderItem::Model(model) => match self.models[model.index()].verdict.get() {
                Some(HeaderVerdict::Broken(..)) => (ino::pack(BROKEN, model.into()), FileKind::File),
                Some(HeaderVerdict::Sound(_)) | None => return (volume::root(tree(model)), FileKind::Dir),
            },
        };
        (ino::join(self.number, local), kind)
    }

    /// The node of an inode number.
    fn node(&self, ino: Ino) -> Result<FolderNode<'_>, Error> {
        let (kind, number) = ino::unpack(ino);
        let found = match kind {
            FOLDERS => number.checked_sub(ROOT as u32).map(FolderId::from).and_then(|folder| {
                let found = self.catalog.folder(folder)?;
                Some(FolderNode::Folder(folder, found))
            }),
            LINKS => self.catalog.links().get(number as usize).map(|location| match location {
                Location::Local(_) => FolderNode::Link(number as usize),
                Location::Remote(_) => {
                    FolderNode::Remote(number as usize, source::len_at(location).unwrap_or_default())
                }
            }),
            BROKEN => match self.models.get(number as usize).and_then(|slot| slot.verdict.get()) {
                Some(HeaderVerdict::Broken(reason, owner)) => Some(FolderNode::Error(reason[..].into(), *owner)),
                _ => None,
            },
            UNREADABLE => match self.catalog.unreadable_at(number as usize) {
                Some((reason, folder)) => Some(FolderNode::Error(message(reason).into(), self.owner(folder)?)),
                None => None,
            },
            EXPORT_FOLDERS => {
                let is_made = self.exports.get().is_some_and(|tree| tree.folder(number as usize).is_some());
                (is_made || number == 0 && self.has_exports).then_some(FolderNode::ExportFolder(number as usize))
            }
            EXPORT_FILES => self.exports.get().and_then(|tree| tree.file(number as usize)).map(FolderNode::ExportFile),
            _ => None,
        };
        found.ok_or(Error::NoEntry)
    }
}

/// The tree number of a model. The first group is that of the folders, or of the model that is mounted.
fn tree(model: ModelId) -> u32 {
    (u32::from(model) + 1) * ino::GROUP_TREES
}

/// The model to whose group a tree number belongs.
fn model_in(tree: u32) -> Option<ModelId> {
    (tree / ino::GROUP_TREES).checked_sub(1).map(ModelId::from)
}

pub(super) fn folder_ino(folder: FolderId) -> Ino {
    ino::pack(FOLDERS, u32::from(folder) + ROOT as u32)
}

/// The inode of `export/` of a pipeline, or of a folder below it, by its number.
pub(super) fn export_folder_ino(number: usize) -> Ino {
    ino::pack(EXPORT_FOLDERS, number as u32)
}
