//! The whole mounted file system: one model, or folders with a tree for each model in them.

use super::attr::{Attr, Dentry, Error, Ino, Ownership, ROOT, Statfs};
use super::counter::Counter;
use super::folders::Folders;
use super::ino;
use super::volume::{TensorFile, Volume};
use crate::content::{Content, Request};
use crate::model::{Model, ModelId, Opened, TensorId};
use crate::source::Location;
use crate::view::Shown;
use std::fmt;
use std::sync::Arc;

/// A mounted file system. It is immutable: there are no lookup counts, and no state is stored per file, because the
/// inode number alone identifies a file.
///
/// An operation that has to wait fails with an error for which [`Error::would_block`] is true, unless its [`Request`]
/// allows waiting.
#[derive(Debug)]
pub struct Superblock {
    root: Root,
    traffic: Option<Traffic>,
    served: Counter,
}

/// The extended attribute of the root of a mount with a remote source: what was read and fetched so far, as JSON.
pub const TRAFFIC: &str = "user.weightfs.traffic";

/// The extended attribute of the root with the number of bytes that were sent in reply to reads, in decimal. Reads that
/// the page cache serves are not counted. The attribute is not listed, so that programs do not copy it.
pub const SERVED: &str = "user.weightfs.served";

/// Writes the value of [`TRAFFIC`]. Does not wait.
struct Traffic(Box<dyn Fn() -> String + Send + Sync>);

impl fmt::Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Traffic")
    }
}

#[derive(Debug)]
enum Root {
    Volume(Box<Volume>),
    Folders(Box<Folders>),
}

/// The tree that contains an inode.
enum Tree<'s> {
    Volume(&'s Volume),
    Folders(&'s Folders),
}

impl Superblock {
    /// A file system with the views `shown`. `None` if the model has no files.
    pub fn new(opened: Opened, shown: Shown, ownership: Ownership) -> Option<Self> {
        let root = match opened {
            Opened::Model(model) => {
                let owner = ownership.of(model.stat()?);
                Root::Volume(Volume::new(*model, shown, owner, Arc::default(), 0, ROOT).into())
            }
            Opened::Catalog(catalog) => Root::Folders(Folders::new(*catalog, shown, ownership).into()),
        };
        Some(Self { root, traffic: None, served: Counter::default() })
    }

    /// Adds the attribute [`TRAFFIC`], with the values that `traffic` returns.
    pub fn with_traffic(self, traffic: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self { traffic: Some(Traffic(Box::new(traffic))), ..self }
    }

    /// Adds to the number of bytes in [`SERVED`].
    pub fn count_served(&self, bytes: usize) {
        self.served.add(bytes as u64);
    }

    /// Reads the headers of all models in a directory. Later requests then wait for no header.
    pub fn open_all(&self) {
        if let Root::Folders(folders) = &self.root {
            folders.open_all();
        }
    }

    /// Does not log changes of a directory of models. Call this if the mount point was created in `dir`, whose path has
    /// no symlinks.
    pub fn ignore_changes_of(&self, dir: &Location) {
        if let Root::Folders(folders) = &self.root {
            folders.ignore_changes_of(dir);
        }
    }

    /// The file or directory called `name` in the directory `parent`.
    pub fn lookup(&self, parent: Ino, name: &[u8], request: &Request) -> Result<Attr, Error> {
        match self.tree(parent, request)? {
            (Tree::Volume(volume), parent) => volume.lookup(parent, name, request),
            (Tree::Folders(folders), parent) => folders.lookup(parent, name, request),
        }
    }

    /// Attributes of an inode. The size is exact. Does not read tensor data.
    pub fn getattr(&self, ino: Ino, request: &Request) -> Result<Attr, Error> {
        if let Some((folders, model)) = self.model_root(ino) {
            return folders.model_attr(model, request);
        }
        match self.tree(ino, request)? {
            (Tree::Volume(volume), ino) => volume.getattr(ino, request),
            (Tree::Folders(folders), ino) => folders.getattr(ino),
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
        request: &Request,
        add: impl FnMut(Dentry<'s>) -> bool,
    ) -> Result<(), Error> {
        match self.tree(ino, request)? {
            (Tree::Volume(volume), ino) => volume.readdir(ino, offset, request, add),
            (Tree::Folders(folders), ino) => folders.readdir(ino, offset, request, add),
        }
    }

    /// The content of a file. It does not borrow from the file system.
    pub fn open(&self, ino: Ino, request: &Request) -> Result<Content, Error> {
        match self.tree(ino, request)? {
            (Tree::Volume(volume), ino) => volume.open(ino, request),
            (Tree::Folders(folders), ino) => folders.open(ino),
        }
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<&[u8], Error> {
        match self.tree(ino, &Request::NOWAIT)? {
            (Tree::Volume(_), _) => Err(Error::NotALink),
            (Tree::Folders(folders), ino) => folders.readlink(ino),
        }
    }

    /// The value of an extended attribute.
    pub fn getxattr(&self, ino: Ino, name: &[u8], request: &Request) -> Result<Vec<u8>, Error> {
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
            (Tree::Volume(volume), ino) => volume.getxattr(ino, name, request),
            (Tree::Folders(_), _) => Err(Error::NoAttribute),
        }
    }

    /// The names of the extended attributes of an inode, each followed by NUL.
    pub fn listxattr(&self, ino: Ino, request: &Request) -> Result<Vec<u8>, Error> {
        if ino == ROOT && self.traffic.is_some() {
            return Ok([TRAFFIC.as_bytes(), b"\0"].concat());
        }
        if self.model_root(ino).is_some() {
            return Ok(Vec::new());
        }
        match self.tree(ino, request)? {
            (Tree::Volume(volume), ino) => volume.listxattr(ino, request),
            (Tree::Folders(_), _) => Ok(Vec::new()),
        }
    }

    /// Identifies the version of the source that a file shows: two files of the same name, version and options have the
    /// same bytes. It is made of sizes, modification times and inode numbers, so that it needs no data. `None` for
    /// remote sources and for links in a directory of models, whose bytes are not identified.
    pub fn version(&self, ino: Ino, request: &Request) -> Result<Option<String>, Error> {
        match self.tree(ino, request)? {
            (Tree::Volume(volume), _) => Ok(volume.version()),
            (Tree::Folders(folders), ino) => folders.version(ino),
        }
    }

    /// The model whose root has this inode number, if it is the root of one.
    pub fn model(&self, ino: Ino, request: &Request) -> Result<Option<&Model>, Error> {
        match self.tree(ino, request)? {
            (Tree::Volume(volume), ROOT) => Ok(Some(volume.model())),
            _ => Ok(None),
        }
    }

    /// The files that show one tensor, in the directories of views of the model whose root is `root`.
    pub fn files_of(&self, root: Ino, tensor: TensorId, request: &Request) -> Result<Vec<TensorFile>, Error> {
        match self.tree(root, request)? {
            (Tree::Volume(volume), ROOT) => volume.files_of(tensor, request),
            _ => Err(Error::NoEntry),
        }
    }

    /// Size of the file system.
    pub fn statfs(&self) -> Statfs {
        match &self.root {
            Root::Volume(volume) => volume.statfs(),
            Root::Folders(folders) => folders.statfs(),
        }
    }

    /// The model whose root has this inode number. Attributes of the root do not require opening the model.
    fn model_root(&self, ino: Ino) -> Option<(&Folders, ModelId)> {
        match &self.root {
            Root::Folders(folders) => Some((folders, Folders::root_of(ino)?)),
            Root::Volume(_) => None,
        }
    }

    /// The tree of an inode number, and the inode number within that tree.
    fn tree(&self, ino: Ino, request: &Request) -> Result<(Tree<'_>, Ino), Error> {
        let (tree, local) = ino::split(ino);
        match &self.root {
            Root::Volume(volume) if tree == 0 => Ok((Tree::Volume(volume), local)),
            Root::Volume(_) => Err(Error::NoEntry),
            Root::Folders(folders) => match tree.checked_sub(1) {
                None => Ok((Tree::Folders(folders), local)),
                Some(model) => Ok((Tree::Volume(folders.volume(ModelId::from(model), request)?), local)),
            },
        }
    }
}
