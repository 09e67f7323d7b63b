//! The folders above several models: knows names, links and what cannot be opened, and opens a model when it is entered.

use super::volume::Volume;
use super::{Attr, DOTS, Dentry, Error, FileKind, Ino, Owner, Ownership, ROOT, SECTOR, Shown, Statfs, inode};
use crate::model::{Catalog, Entry, Item};
use crate::source::Bytes;
use crate::text::message;
use crate::threads;
use crate::view::Results;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};

// Kinds of inodes in the tree of the folders. The numbers of folders begin with that of the root.
const FOLDERS: u64 = 0;
const LINKS: u64 = 1;
/// `NAME.error.txt` of a model.
const BROKEN: u64 = 2;
/// `NAME.error.txt` of a directory.
const UNREADABLE: u64 = 3;

/// The folders of a catalog, and its models as far as they were entered.
#[derive(Debug)]
pub(super) struct Folders {
    catalog: Catalog,
    shown: Shown,
    ownership: Ownership,
    models: Vec<Slot>,
    results: Arc<Results>,
}

/// A model that may not be open yet.
#[derive(Debug, Default)]
struct Slot {
    /// Whose it is, or why it cannot be opened: found out when the folder that holds it is listed, or the model is looked up.
    checked: OnceLock<Result<Owner, String>>,
    /// Opened when the first of its entries is asked for.
    volume: OnceLock<Result<Volume, String>>,
}

impl Folders {
    pub fn new(catalog: Catalog, shown: Shown, ownership: Ownership) -> Self {
        let models = catalog.models().map(|_| Slot::default()).collect();
        Self { catalog, shown, ownership, models, results: Arc::default() }
    }

    /// The model whose root has that number in the whole file system.
    pub fn root_of(ino: Ino) -> Option<u32> {
        let (tree, local) = inode::split(ino);
        tree.checked_sub(1).filter(|_| local == ROOT)
    }

    /// The tree of a model.
    pub fn volume(&self, model: u32) -> Result<&Volume, Error> {
        let slot = self.models.get(model as usize).ok_or(Error::NoEntry)?;
        let volume = slot.volume.get_or_init(|| self.open(model));
        volume.as_ref().map_err(|reason| Error::Model(reason.clone()))
    }

    fn open(&self, model: u32) -> Result<Volume, String> {
        let owner = self.check(model).clone()?;
        let opened = self.catalog.open(model).map_err(|error| {
            // It could be opened when its folder was listed.
            log::warn!("{error}");
            error.to_string()
        })?;
        let now = opened.stat().map(|stat| self.ownership.of(stat));
        if now != Some(owner) {
            // Those who were told that they may not read the one must not read the other.
            let reason = format!("{}: changed since its folder was listed; mount it again", opened.path().display());
            log::warn!("{reason}");
            return Err(reason);
        }
        opened.report(opened.path());
        let up = folder_ino(self.catalog.home(model));
        Ok(Volume::new(opened, self.shown.clone(), owner, self.results.clone(), model + 1, up))
    }

    /// Reads the header of a model and keeps nothing but whose it is, or what is wrong with it.
    fn check(&self, model: u32) -> &Result<Owner, String> {
        self.models[model as usize].checked.get_or_init(|| {
            let checked = match self.catalog.open(model) {
                Ok(opened) => opened.stat().ok_or_else(|| format!("{}: a model of no files", opened.path().display())),
                Err(error) => Err(error.to_string()),
            };
            let checked = checked.map_err(|reason| message(&reason));
            checked.map(|stat| self.ownership.of(stat)).inspect_err(|reason| log::warn!("{reason}"))
        })
    }

    /// Attributes of the root of a model, which need not be open.
    pub fn model_attr(&self, model: u32) -> Result<Attr, Error> {
        if model as usize >= self.models.len() {
            return Err(Error::NoEntry);
        }
        match self.check(model) {
            Ok(owner) => Ok(owner.dir(inode::base(model + 1) | ROOT)),
            Err(_) => Err(Error::NoEntry),
        }
    }

    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr, Error> {
        let folder = self.catalog.folder(self.folder(parent)?);
        match folder.find(OsStr::from_bytes(name)).ok_or(Error::NoEntry)? {
            (Item::Model(model), is_error) => match (self.check(model), is_error) {
                (Ok(_), false) => self.model_attr(model),
                (Err(_), true) => self.getattr(inode::number(BROKEN, model)),
                _ => Err(Error::NoEntry),
            },
            (Item::Unreadable(_), false) => Err(Error::NoEntry),
            (item, _) => self.getattr(self.item(item).0),
        }
    }

    pub fn getattr(&self, ino: Ino) -> Result<Attr, Error> {
        let (kind, number) = inode::parts(ino);
        if kind == FOLDERS {
            let stat = self.catalog.folder(self.folder(ino)?).stat;
            return Ok(self.ownership.of(stat).dir(ino));
        }
        let root = self.ownership.of(self.catalog.folder(0).stat);
        if kind == LINKS {
            let size = self.readlink(ino)?.len() as u64;
            return Ok(Attr { kind: FileKind::Link, perm: 0o777, ..root.file(ino, size, 0) });
        }
        let home = if kind == BROKEN { self.catalog.home(number) } else { 0 };
        let owner = self.ownership.of(self.catalog.folder(home).stat);
        Ok(owner.file(ino, self.text(ino)?.len() as u64 + 1, 1))
    }

    pub fn readdir<'s>(&'s self, ino: Ino, offset: u64, mut add: impl FnMut(Dentry<'s>) -> bool) -> Result<(), Error> {
        let folder = self.catalog.folder(self.folder(ino)?);
        if Dentry::dots(ino, folder_ino(folder.parent), offset, &mut add) {
            return Ok(());
        }
        // Which of the names are directories shows only when the headers are read.
        let unchecked = |entry: &Entry| match entry.item {
            Item::Model(model) => Some(model).filter(|model| self.models[*model as usize].checked.get().is_none()),
            _ => None,
        };
        let models: Vec<u32> = folder.entries.iter().filter_map(unchecked).collect();
        threads::map(models.len(), |at| self.check(models[at]).is_ok());
        for (at, entry) in folder.entries.iter().enumerate().skip(offset.saturating_sub(DOTS) as usize) {
            let (ino, kind) = self.item(entry.item);
            let name = match (inode::split(ino).0, inode::parts(ino).0) {
                (0, BROKEN | UNREADABLE) => &entry.error,
                _ => &entry.name,
            };
            if add(Dentry { ino, kind, name: Cow::Borrowed(&**name), next: at as u64 + DOTS + 1 }) {
                break;
            }
        }
        Ok(())
    }

    pub fn read(&self, ino: Ino, offset: u64, size: u32) -> Result<Bytes<'_>, Error> {
        let text = format!("{}\n", self.text(ino)?).into_bytes();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        let to = from.saturating_add(size as usize).min(text.len());
        Ok(Bytes::Owned(text[from..to].to_vec()))
    }

    pub fn readlink(&self, ino: Ino) -> Result<&[u8], Error> {
        match inode::parts(ino) {
            (LINKS, link) => {
                let link = self.catalog.links().get(link as usize).ok_or(Error::NoEntry)?;
                Ok(link.as_os_str().as_bytes())
            }
            _ => Err(Error::NotALink),
        }
    }

    pub fn statfs(&self) -> Statfs {
        Statfs { blocks: self.catalog.bytes().div_ceil(SECTOR), files: self.models.len() as u64 }
    }

    /// The inode that an item of a folder is, once it is checked.
    fn item(&self, item: Item) -> (Ino, FileKind) {
        match item {
            Item::Folder(folder) => (folder_ino(folder), FileKind::Dir),
            Item::Link(link) => (inode::number(LINKS, link), FileKind::Link),
            Item::Unreadable(number) => (inode::number(UNREADABLE, number), FileKind::File),
            Item::Model(model) if self.check(model).is_err() => (inode::number(BROKEN, model), FileKind::File),
            Item::Model(model) => (inode::base(model + 1) | ROOT, FileKind::Dir),
        }
    }

    /// The number of the folder that an inode is.
    fn folder(&self, ino: Ino) -> Result<u32, Error> {
        match inode::parts(ino) {
            (FOLDERS, number) => {
                let folder = number.checked_sub(ROOT as u32).ok_or(Error::NoEntry)?;
                if (folder as usize) < self.catalog.folders() { Ok(folder) } else { Err(Error::NoEntry) }
            }
            _ => Err(Error::NotADirectory),
        }
    }

    /// What an error file says.
    fn text(&self, ino: Ino) -> Result<Cow<'_, str>, Error> {
        match inode::parts(ino) {
            (FOLDERS, _) => Err(Error::IsADirectory),
            (BROKEN, model) if (model as usize) < self.models.len() => {
                self.check(model).as_ref().err().map(|reason| Cow::Borrowed(&reason[..])).ok_or(Error::NoEntry)
            }
            (UNREADABLE, number) => {
                let reason = self.catalog.unreadable().get(number as usize).ok_or(Error::NoEntry)?;
                Ok(Cow::Owned(message(reason)))
            }
            _ => Err(Error::NoEntry),
        }
    }
}

fn folder_ino(folder: u32) -> Ino {
    inode::number(FOLDERS, folder + ROOT as u32)
}
