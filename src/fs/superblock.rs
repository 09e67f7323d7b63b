//! The whole mounted file system: one model with the folders of those beside it, or folders with a tree for each model
//! in them.

use super::attr::{Attr, DOTS, Dentry, Error, Ino, Ownership, ROOT, Statfs};
use super::counter::ShardedCounter;
use super::folders::CatalogFolders;
use super::ino;
use super::volume::{ModelVolume, TensorFile};
use crate::content::{Content, ReadRequest};
use crate::model::{Model, ModelId, OpenedModel, TensorId};
use crate::source::Location;
use crate::view::ShownViews;
use std::fmt;
use std::sync::Arc;

/// A mounted file system. It is immutable: there are no lookup counts, and no state is stored per file, because the
/// inode number alone identifies a file.
///
/// An operation that has to wait fails with an error for which [`Error::would_block`] is true, unless its
/// [`ReadRequest`] allows waiting.
#[derive(Debug)]
pub struct Superblock {
    root: FsRoot,
    traffic: Option<TrafficWriter>,
    served: Arc<ShardedCounter>,
}

/// The extended attribute of the root of a mount with a remote source: what was read and fetched so far, as JSON.
pub const TRAFFIC: &str = "user.weightfs.traffic";

/// The extended attribute of the root with the number of bytes that were sent in reply to reads, in decimal. Reads that
/// the page cache serves are not counted. The attribute is not listed, so that programs do not copy it.
pub const SERVED: &str = "user.weightfs.served";

/// Writes the value of [`TRAFFIC`]. Does not wait.
struct TrafficWriter(Box<dyn Fn() -> String + Send + Sync>);

impl fmt::Debug for TrafficWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Traffic")
    }
}

#[derive(Debug)]
enum FsRoot {
    /// A model, and those beside it that are shown in its root.
    Volume(Box<ModelVolume>, Option<Box<CatalogFolders>>),
    Folders(Box<CatalogFolders>),
}

/// The tree that contains an inode.
enum InodeTree<'s> {
    Volume(&'s ModelVolume),
    Folders(&'s CatalogFolders),
}

impl Superblock {
    /// A file system with the views `shown`. `None` if the model has no files.
    pub fn new(opened: OpenedModel, shown: ShownViews, ownership: Ownership) -> Option<Self> {
        let root = match opened {
            OpenedModel::Model(model, sets) => {
                let owner = ownership.of(model.stat()?);
                let sets = sets.map(|sets| CatalogFolders::beside_main(*sets, shown.clone(), ownership).into());
                let volume = ModelVolume::new(*model, shown, ownership, owner, Arc::default(), 0, ROOT);
                FsRoot::Volume(volume.into(), sets)
            }
            OpenedModel::Catalog(catalog) => FsRoot::Folders(CatalogFolders::new(*catalog, shown, ownership).into()),
        };
        Some(Self { root, traffic: None, served: Arc::default() })
    }

    /// Adds the attribute [`TRAFFIC`], with the values that `traffic` returns.
    pub fn with_traffic(self, traffic: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self { traffic: Some(TrafficWriter(Box::new(traffic))), ..self }
    }

    /// Continues the count of [`SERVED`] of the tree that this one replaces.
    pub(super) fn continue_counts_of(&mut self, replaced: &Self) {
        self.served = replaced.served.clone();
    }

    /// How many tree numbers the file system takes. Some of them are unused.
    pub(super) fn trees(&self) -> u32 {
        match &self.root {
            FsRoot::Volume(_, None) => ino::GROUP_TREES,
            FsRoot::Volume(_, Some(sets)) => sets.trees(),
            FsRoot::Folders(folders) => folders.trees(),
        }
    }

    /// Adds to the number of bytes in [`SERVED`].
    pub fn count_served(&self, bytes: usize) {
        self.served.add(bytes as u64);
    }

    /// Reads the headers of all models in a directory, or beside the one that is mounted. Later requests then wait for
    /// no header.
    pub fn open_all(&self) {
        match &self.root {
            FsRoot::Folders(folders) | FsRoot::Volume(_, Some(folders)) => folders.open_all(),
            FsRoot::Volume(_, None) => {}
        }
    }

    /// Does not log changes of a directory of models. Call this if the mount point was created in `dir`, whose path has
    /// no symlinks.
    pub fn ignore_changes_of(&self, dir: &Location) {
        if let FsRoot::Folders(folders) = &self.root {
            folders.ignore_changes_of(dir);
        }
    }

    /// The file or directory called `name` in the directory `parent`.
    pub fn lookup(&self, parent: Ino, name: &[u8], request: &ReadRequest) -> Result<Attr, Error> {
        if let Some((_, sets)) = self.sets_in(parent) {
            match sets.lookup(ROOT, name, request) {
                Err(Error::NoEntry) => {}
                found => return found,
            }
        }
        match self.tree(parent, request)? {
            (InodeTree::Volume(volume), parent) => volume.lookup(parent, name, request),
            (InodeTree::Folders(folders), parent) => folders.lookup(parent, name, request),
        }
    }

    /// Attributes of an inode. The size is exact. Does not read tensor data.
    pub fn getattr(&self, ino: Ino, request: &ReadRequest) -> Result<Attr, Error> {
        if let Some((folders, model)) = self.model_root(ino) {
            return folders.model_attr(model, request);
        }
        match self.tree(ino, request)? {
            (InodeTree::Volume(volume), ino) => volume.getattr(ino, request),
            (InodeTree::Folders(folders), ino) => folders.getattr(ino),
        }
    }

    /// Passes the entries of a directory to `add`, from `offset` on, until `add` returns true because it has no room
    /// for the entry. Errors are returned before the first entry is passed.
    ///
    /// Offsets are positions in the directory, and are valid for the life of the mount.
    pub fn readdir<'s>(
        &'s self,
        ino: Ino,
        offset: u64,
        request: &ReadRequest,
        mut add: impl FnMut(Dentry<'s>) -> bool,
    ) -> Result<(), Error> {
        let Some((volume, sets)) = self.sets_in(ino) else { return self.list(ino, offset, request, add) };
        let own = volume.root_len() as u64;
        let in_sets = offset.saturating_sub(own).max(DOTS);
        // Waits for what the second list needs before the first entry is passed.
        sets.readdir(ROOT, in_sets, request, |_| true)?;
        let mut is_full = false;
        self.list(ino, offset, request, |entry| {
            is_full = add(entry);
            is_full
        })?;
        if is_full {
            return Ok(());
        }
        sets.readdir(ROOT, in_sets, request, |entry| add(Dentry { next: entry.next + own, ..entry }))
    }

    /// As [`Superblock::readdir`], without the models beside the one that is mounted.
    fn list<'s>(
        &'s self,
        ino: Ino,
        offset: u64,
        request: &ReadRequest,
        add: impl FnMut(Dentry<'s>) -> bool,
    ) -> Result<(), Error> {
        match self.tree(ino, request)? {
            (InodeTree::Volume(volume), ino) => volume.readdir(ino, offset, request, add),
            (InodeTree::Folders(folders), ino) => folders.readdir(ino, offset, request, add),
        }
    }

    /// The content of a file. It does not borrow from the file system.
    pub fn open(&self, ino: Ino, request: &ReadRequest) -> Result<Content, Error> {
        match self.tree(ino, request)? {
            (InodeTree::Volume(volume), ino) => volume.open(ino, request),
            (InodeTree::Folders(folders), ino) => folders.open(ino),
        }
    }

    pub fn readlink(&self, ino: Ino) -> Result<&[u8], Error> {
        match self.tree(ino, &ReadRequest::NOWAIT)? {
            (InodeTree::Volume(_), _) => Err(Error::NotALink),
            (InodeTree::Folders(folders), ino) => folders.readlink(ino),
        }
    }

    pub fn getxattr(&self, ino: Ino, name: &[u8], request: &ReadRequest) -> Result<Vec<u8>, Error> {
        if ino == ROOT && name == TRAFFIC.as_bytes() {
            return self.traffic.as_ref().map(|traffic| (traffic.0)().into_bytes()).ok_or(Error::NoAttribute);
        }
        if ino == ROOT && name == SERVED.as_bytes() {
            return Ok(self.served.sum().to_string().into_bytes());
        }
        if self.model_root(ino).is_some() {
            return Err(Error::NoAttribute);
        }
        match self.tree(ino, request)? {
            (InodeTree::Volume(volume), ino) => volume.getxattr(ino, name, request),
            (InodeTree::Folders(_), _) => Err(Error::NoAttribute),
        }
    }

    /// The names of the extended attributes of an inode, each followed by NUL.
    pub fn listxattr(&self, ino: Ino, request: &ReadRequest) -> Result<Vec<u8>, Error> {
        if ino == ROOT && self.traffic.is_some() {
            return Ok([TRAFFIC.as_bytes(), b"\0"].concat());
        }
        if self.model_root(ino).is_some() {
            return Ok(Vec::new());
        }
        match self.tree(ino, request)? {
            (InodeTree::Volume(volume), ino) => volume.listxattr(ino, request),
            (InodeTree::Folders(_), _) => Ok(Vec::new()),
        }
    }

    /// Identifies the version of the source that a file shows: two files of the same name, version and options have the
    /// same bytes. It is made of sizes, modification times and inode numbers, or of what a server says about the
    /// version, so that it needs no data. The root of a model has that of its files. `None` for remote sources whose
    /// changes may not be noticed, and for links in a directory of models, whose bytes are not identified.
    pub fn version(&self, ino: Ino, request: &ReadRequest) -> Result<Option<String>, Error> {
        match self.tree(ino, request)? {
            (InodeTree::Volume(volume), ino) => Ok(volume.version(ino)),
            (InodeTree::Folders(folders), ino) => folders.version(ino),
        }
    }

    /// The model whose root has this inode number, if it is the root of one.
    pub fn model(&self, ino: Ino, request: &ReadRequest) -> Result<Option<&Model>, Error> {
        match self.tree(ino, request)? {
            (InodeTree::Volume(volume), ROOT) => Ok(Some(&**volume.model())),
            _ => Ok(None),
        }
    }

    /// The files that show one tensor, in the directories of views of the model whose root is `root`.
    pub fn files_of(&self, root: Ino, tensor: TensorId, request: &ReadRequest) -> Result<Vec<TensorFile>, Error> {
        match self.tree(root, request)? {
            (InodeTree::Volume(volume), ROOT) => volume.files_of(tensor, request),
            _ => Err(Error::NoEntry),
        }
    }

    /// Size of the file system.
    pub fn statfs(&self) -> Statfs {
        match &self.root {
            FsRoot::Volume(volume, None) => volume.statfs(),
            FsRoot::Volume(volume, Some(sets)) => Statfs { blocks: sets.statfs().blocks, ..volume.statfs() },
            FsRoot::Folders(folders) => folders.statfs(),
        }
    }

    /// The model whose root has this inode number. Attributes of the root do not require opening the model.
    fn model_root(&self, ino: Ino) -> Option<(&CatalogFolders, ModelId)> {
        match &self.root {
            FsRoot::Folders(folders) | FsRoot::Volume(_, Some(folders)) => {
                Some((folders, CatalogFolders::root_of(ino)?))
            }
            FsRoot::Volume(_, None) => None,
        }
    }

    /// The model that is mounted, and those whose folders are shown beside its own entries, if `dir` is the root and
    /// there are any.
    fn sets_in(&self, dir: Ino) -> Option<(&ModelVolume, &CatalogFolders)> {
        match &self.root {
            FsRoot::Volume(volume, Some(sets)) if dir == ROOT => Some((volume, sets)),
            _ => None,
        }
    }

    /// The tree of an inode number, and the inode number within that tree.
    fn tree(&self, ino: Ino, request: &ReadRequest) -> Result<(InodeTree<'_>, Ino), Error> {
        let (tree, local) = ino::split_ino(ino);
        match &self.root {
            FsRoot::Volume(volume, _) if tree < ino::GROUP_TREES => {
                Ok((InodeTree::Volume(volume.in_group(tree).ok_or(Error::NoEntry)?), local))
            }
            FsRoot::Volume(_, None) => Err(Error::NoEntry),
            FsRoot::Folders(folders) | FsRoot::Volume(_, Some(folders)) => match tree == folders.number() {
                true => Ok((InodeTree::Folders(folders), local)),
                false => Ok((InodeTree::Volume(folders.tree(tree, request)?), local)),
            },
        }
    }
}
