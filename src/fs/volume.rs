//! The tree of one model: knows which file each inode number is, and what stands in each directory.

use super::inode::{Dir, FileRef, Inode};
use super::tree::{self, Tree};
use super::{Attr, DOTS, Dentry, Error, FileKind, Ino, Owner, SECTOR, Shown, Statfs, inode, layout};
use crate::content::Interrupted;
use crate::format::Dtype;
use crate::model::{self, Kind, Model, Place};
use crate::name;
use crate::source::Bytes;
use crate::view::{self, Results, View, Views};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, OnceLock};

/// A model as files. Inode numbers that come in are its own; those that go out have `base` added.
#[derive(Debug)]
pub(super) struct Volume {
    views: Views,
    shown: Shown,
    pub(super) owner: Owner,
    base: Ino,
    /// The directory that holds its root.
    up: Ino,
    tree: OnceLock<Tree>,
    /// Whose names were too long for a file name, by what is left of them.
    cut_tensors: OnceLock<HashMap<(Option<usize>, String), u32>>,
    cut_keys: OnceLock<HashMap<(Option<usize>, String), usize>>,
}

/// Extended attributes of a tensor; the values are texts. One that is joined from several shards has no place of its own, and
/// what is too long has none.
const XATTRS: [(&str, XattrValue); 6] = [
    ("user.weightfs.name", |model, at| short(model.name(at))),
    ("user.weightfs.dtype", |model, at| short(model.tensor(at).0.dtype.name())),
    ("user.weightfs.shape", |model, at| {
        let shape = model.tensor(at).0.shape;
        // Each takes a digit, a comma and a space at least.
        (shape.len() <= XATTR_MAX / 3).then(|| format!("{shape:?}")).filter(|text| text.len() <= XATTR_MAX)
    }),
    ("user.weightfs.nbytes", |model, at| Some(model.tensor(at).0.nbytes().to_string())),
    ("user.weightfs.offset", |model, at| match model.tensor(at) {
        (tensor, Place::Shard(_)) => Some(tensor.range.start.to_string()),
        _ => None,
    }),
    ("user.weightfs.shard", |model, at| match model.tensor(at).1 {
        Place::Shard(shard) => Some(model.shards()[shard].name.clone()),
        Place::Runs(_) => None,
    }),
];

type XattrValue = fn(&Model, usize) -> Option<String>;

/// Most bytes of a value: the kernel takes no more, and would fail a reader of all attributes for the one.
const XATTR_MAX: usize = 65_536;

fn short(value: &str) -> Option<String> {
    (value.len() <= XATTR_MAX).then(|| value.to_owned())
}

impl Volume {
    /// The tree numbered `tree`, below the directory `up`.
    pub fn new(model: Model, shown: Shown, owner: Owner, results: Arc<Results>, tree: u32, up: Ino) -> Self {
        let base = inode::base(tree);
        let tensors = shown.contains("tensors");
        let dirs = view::Dirs { tensors, shards: tensors && shown.contains("shards") };
        let views = Views::new(model, dirs, results, tree);
        let (tree, cut_tensors, cut_keys) = Default::default();
        Self { views, shown, owner, base, up, tree, cut_tensors, cut_keys }
    }

    pub fn model(&self) -> &Model {
        self.views.model()
    }

    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr, Error> {
        let dir = self.dir(parent)?;
        let name = str::from_utf8(name).map_err(|_| Error::NoEntry)?;
        let inode = match dir {
            Dir::Root => self.root().find(|entry| entry.0 == name).map(|entry| entry.1),
            Dir::Flat(view) => {
                let tensor = name.strip_suffix(view.suffix()).and_then(|name| self.find_tensor(name));
                tensor.and_then(|item| self.flat(view, item))
            }
            Dir::ShardFlat(view, shard) => {
                let name = name.strip_suffix(view.suffix());
                name.and_then(|name| self.find_in_shard(shard as usize, name)).and_then(|item| self.flat(view, item))
            }
            Dir::Metadata => {
                let decoded = || self.views.find_decoded(name).map(|item| file(View::MetadataDecoded, item));
                self.find_key(None, name).or_else(decoded)
            }
            Dir::ShardMetadata(shard) => self.find_key(Some(shard as usize), name),
            Dir::Shards => self.find_shard(name).map(|shard| Inode::Dir(Dir::Shard(shard as u32))),
            Dir::Shard(shard) => self.shard(shard).find(|entry| entry.0 == name).map(|entry| entry.1),
            Dir::Export => {
                let shown = |item: &usize| self.views.export(*item).is_some() && self.export_name(*item) == name;
                (0..self.views.count(View::Export)).find(shown).map(|item| file(View::Export, item))
            }
            Dir::Tree => self.tree().lookup(self.model(), None, name),
            Dir::TreeNode(node) => self.tree().lookup(self.model(), Some(node), name),
        };
        Ok(self.attr(inode.ok_or(Error::NoEntry)?))
    }

    pub fn getattr(&self, ino: Ino) -> Result<Attr, Error> {
        Ok(self.attr(self.inode(ino)?))
    }

    pub fn readdir<'s>(&'s self, ino: Ino, offset: u64, mut add: impl FnMut(Dentry<'s>) -> bool) -> Result<(), Error> {
        let dir = self.dir(ino)?;
        let parent = if dir == Dir::Root { self.up } else { self.base | self.parent(dir) };
        if Dentry::dots(self.base | dir.ino(), parent, offset, &mut add) {
            return Ok(());
        }
        let from = offset.saturating_sub(DOTS) as usize;
        let mut add = |inode: Inode, name: Cow<'s, str>, next: usize| {
            let name = match name {
                Cow::Borrowed(name) => Cow::Borrowed(OsStr::new(name)),
                Cow::Owned(name) => Cow::Owned(OsString::from(name)),
            };
            let kind = if matches!(inode, Inode::Dir(_)) { FileKind::Dir } else { FileKind::File };
            add(Dentry { ino: self.base | inode.ino(), kind, name, next: next as u64 + DOTS })
        };
        match dir {
            Dir::Tree => self.tree().list(self.model(), None, from, add),
            Dir::TreeNode(node) => self.tree().list(self.model(), Some(node), from, add),
            _ => {
                for at in from..self.places(dir) {
                    if self.entry(dir, at).is_some_and(|(inode, name)| add(inode, name, at + 1)) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// How many places a directory has in which an entry may be; those of `tree/` are known there.
    fn places(&self, dir: Dir) -> usize {
        match dir {
            Dir::Root => self.root().count(),
            Dir::Flat(_) => self.model().len(),
            Dir::ShardFlat(_, shard) => self.model().tensors_of(shard as usize).len(),
            Dir::Metadata => self.views.metadata(None).len() + self.views.count(View::MetadataDecoded),
            Dir::ShardMetadata(shard) => self.views.metadata(Some(shard as usize)).len(),
            Dir::Shards => self.model().shards().len(),
            Dir::Shard(shard) => self.shard(shard).count(),
            Dir::Export => self.views.count(View::Export),
            Dir::Tree | Dir::TreeNode(_) => 0,
        }
    }

    /// What stands in a place of a directory, if anything does.
    fn entry(&self, dir: Dir, at: usize) -> Option<(Inode, Cow<'_, str>)> {
        let named = |(name, inode): (&'static str, Inode)| (inode, Cow::Borrowed(name));
        let key = |shard: Option<usize>| {
            let (key, _) = self.views.metadata(shard).get(at)?;
            Some((file(View::Metadata, self.views.first_value_of(shard) + at), name::encode(key)))
        };
        let tensor = |view: View, item: usize| {
            let inode = self.flat(view, item)?;
            let mut name = name::encode(self.model().name(item));
            if !view.suffix().is_empty() {
                name.to_mut().push_str(view.suffix());
            }
            Some((inode, name))
        };
        match dir {
            Dir::Root => self.root().nth(at).map(named),
            Dir::Flat(_) if self.model().is_aside(at) => None,
            Dir::Flat(view) => tensor(view, at),
            Dir::ShardFlat(view, shard) => tensor(view, self.model().tensors_of(shard as usize).start + at),
            Dir::Metadata => key(None).or_else(|| {
                let item = at - self.views.metadata(None).len();
                Some((file(View::MetadataDecoded, item), self.views.decoded_name(item).into()))
            }),
            Dir::ShardMetadata(shard) => key(Some(shard as usize)),
            Dir::Shards => Some((Inode::Dir(Dir::Shard(at as u32)), name::encode(&self.model().shards()[at].name))),
            Dir::Shard(shard) => self.shard(shard).nth(at).map(named),
            Dir::Export => self.views.export(at).map(|_| (file(View::Export, at), self.export_name(at).into())),
            Dir::Tree | Dir::TreeNode(_) => None,
        }
    }

    pub fn read<'s>(
        &'s self,
        ino: Ino,
        offset: u64,
        size: u32,
        interrupted: Interrupted<'s>,
    ) -> Result<Bytes<'s>, Error> {
        let file = self.file(ino)?;
        Ok(self.views.content(file.view, file.item as usize, interrupted).read_at(offset, size)?)
    }

    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Error> {
        let Ok(FileRef { view: View::Raw, item }) = self.file(ino) else { return Err(Error::NoAttribute) };
        let (_, value) = XATTRS.iter().find(|xattr| xattr.0.as_bytes() == name).ok_or(Error::NoAttribute)?;
        value(self.model(), item as usize).map(String::into_bytes).ok_or(Error::NoAttribute)
    }

    pub fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Error> {
        match self.inode(ino)? {
            Inode::File(FileRef { view: View::Raw, item }) => {
                let has = |xattr: &&(&str, XattrValue)| xattr.1(self.model(), item as usize).is_some();
                Ok(XATTRS.iter().filter(has).flat_map(|xattr| [xattr.0.as_bytes(), b"\0"].concat()).collect())
            }
            _ => Ok(Vec::new()),
        }
    }

    pub fn statfs(&self) -> Statfs {
        let sizes = self.model().sources().iter().map(|source| source.len().div_ceil(SECTOR));
        Statfs { blocks: sizes.sum(), files: (self.model().len() + self.model().metadata().len()) as u64 }
    }

    fn root(&self) -> impl Iterator<Item = (&'static str, Inode)> {
        layout::entries(&self.shown, self.model().kind())
    }

    fn shard(&self, shard: u32) -> impl Iterator<Item = (&'static str, Inode)> {
        layout::shard_entries(&self.shown, self.model().kind(), shard)
    }

    fn tree(&self) -> &Tree {
        self.tree.get_or_init(|| Tree::new(self.model()))
    }

    fn find_tensor(&self, encoded: &str) -> Option<usize> {
        match name::decode(encoded) {
            Some(name) => self.model().find(&name),
            None => self.find_cut(None, encoded),
        }
    }

    fn find_in_shard(&self, shard: usize, encoded: &str) -> Option<usize> {
        match name::decode(encoded) {
            Some(name) => self.model().find_in(shard, &name),
            None => self.find_cut(Some(shard), encoded),
        }
    }

    /// The tensor of a shard, or of the whole, whose cut name that is.
    fn find_cut(&self, shard: Option<usize>, encoded: &str) -> Option<usize> {
        let model = self.model();
        let cut = self.cut_tensors.get_or_init(|| {
            let whole = model.whole().map(|at| (None, at as usize));
            let in_shards = |shard| model.tensors_of(shard).map(move |at| (Some(shard), at));
            let shards = if model.kind() == Kind::Dataset { model.shards().len() } else { 0 };
            let cut = |(shard, at): (Option<usize>, usize)| Some(((shard, name::cut(model.name(at))?), at as u32));
            whole.chain((0..shards).flat_map(in_shards)).filter_map(cut).collect()
        });
        if !name::is_cut(encoded) {
            return None;
        }
        cut.get(&(shard, encoded.to_owned())).map(|at| *at as usize)
    }

    /// The file of a tensor in a flat directory, if it has one there.
    fn flat(&self, view: View, item: usize) -> Option<Inode> {
        if view == View::Raw {
            return Some(file(view, item));
        }
        let (tensor, _) = self.model().tensor(item);
        // What is float32 already needs no second file, and no second place in the page cache.
        let raw = view == View::F32 && tensor.dtype == Dtype::F32;
        Views::has(view, &tensor).then(|| file(if raw { View::Raw } else { view }, item))
    }

    fn find_key(&self, shard: Option<usize>, encoded: &str) -> Option<Inode> {
        let metadata = self.views.metadata(shard);
        let key = match name::decode(encoded) {
            Some(key) => metadata.binary_search_by(|entry| entry.0[..].cmp(&key)).ok(),
            None => self.cut_keys().get(&(shard, encoded.to_owned())).copied(),
        };
        key.map(|at| file(View::Metadata, self.views.first_value_of(shard) + at))
    }

    /// The cut keys of each shard and of the whole model.
    fn cut_keys(&self) -> &HashMap<(Option<usize>, String), usize> {
        self.cut_keys.get_or_init(|| {
            let owners = std::iter::once(None).chain((0..self.model().shards().len()).map(Some));
            let keys =
                owners.flat_map(|shard| self.views.metadata(shard).iter().enumerate().map(move |key| (shard, key)));
            keys.filter_map(|(shard, (at, (key, _)))| Some(((shard, name::cut(key)?), at))).collect()
        })
    }

    fn find_shard(&self, encoded: &str) -> Option<usize> {
        let shards = self.model().shards();
        match name::decode(encoded) {
            Some(name) => shards.binary_search_by(|shard| shard.name[..].cmp(&name)).ok(),
            None => shards.iter().position(|shard| name::encode(&shard.name) == encoded),
        }
    }

    /// `MODEL.safetensors` and `MODEL-clean.safetensors`, MODEL being the stem of the source's file name.
    fn export_name(&self, item: usize) -> String {
        let stem = model::stem(self.model().path()).unwrap_or_default();
        let stem = stem.to_string_lossy();
        format!("{}{}", name::encode(&format!("{stem}{}", ["", "-clean"][item])), View::Single.suffix())
    }

    /// What an inode number means, if it means anything.
    fn inode(&self, ino: Ino) -> Result<Inode, Error> {
        let inode = Inode::from_ino(ino).ok_or(Error::NoEntry)?;
        let exists = match inode {
            Inode::File(FileRef { view, item }) => {
                let item = item as usize;
                let of_tensor = matches!(view, View::Npy | View::F32 | View::Single | View::Stats | View::Plot);
                item < self.views.count(view)
                    && (!of_tensor || self.flat(view, item) == Some(inode))
                    && (view != View::Export || self.views.export(item).is_some())
            }
            Inode::Dir(Dir::TreeNode(node)) => node < self.tree().nodes(),
            Inode::Dir(Dir::Shard(shard) | Dir::ShardMetadata(shard)) => (shard as usize) < self.model().shards().len(),
            Inode::Dir(Dir::ShardFlat(_, shard)) => {
                self.model().kind() == Kind::Dataset && (shard as usize) < self.model().shards().len()
            }
            Inode::Dir(_) => true,
        };
        exists.then_some(inode).ok_or(Error::NoEntry)
    }

    fn dir(&self, ino: Ino) -> Result<Dir, Error> {
        match self.inode(ino)? {
            Inode::Dir(dir) => Ok(dir),
            Inode::File(_) => Err(Error::NotADirectory),
        }
    }

    fn file(&self, ino: Ino) -> Result<FileRef, Error> {
        match self.inode(ino)? {
            Inode::File(file) => Ok(file),
            Inode::Dir(_) => Err(Error::IsADirectory),
        }
    }

    fn parent(&self, dir: Dir) -> Ino {
        match dir {
            Dir::TreeNode(node) => self.tree().parent(self.model(), node).map_or(Dir::Tree, Dir::TreeNode).ino(),
            Dir::Shard(_) => Dir::Shards.ino(),
            Dir::ShardMetadata(shard) | Dir::ShardFlat(_, shard) => Dir::Shard(shard).ino(),
            _ => Dir::Root.ino(),
        }
    }

    fn attr(&self, inode: Inode) -> Attr {
        let ino = self.base | inode.ino();
        match inode {
            Inode::Dir(_) => self.owner.dir(ino),
            Inode::File(FileRef { view, item }) => {
                let size = self.views.content(view, item as usize, &|| false).len();
                let (model, at) = (self.model(), item as usize);
                match view {
                    View::Raw | View::Npy | View::F32 | View::Single => {
                        let (in_whole, is_aside) = (at < model.len(), model.is_aside(at));
                        let (tensor, place) = model.tensor(at);
                        let in_shard = model.kind() == Kind::Dataset && matches!(place, Place::Shard(_));
                        let (dtype, in_tree) = (tensor.dtype, tree::has(tensor.name));
                        let nlink = self.shown.links(view, dtype, in_whole && !is_aside, in_tree, in_shard);
                        // A part of a joined array takes no room besides it, nor does a view. One sector, so that `du` all but
                        // leaves it out; none would have `tar --sparse` take it for a hole and store zeros.
                        let is_data = view == View::Raw && (in_whole || is_aside);
                        let whole = if is_data { size.div_ceil(SECTOR) } else { u64::from(size > 0) };
                        Attr { nlink, ..self.owner.file(ino, size, whole) }
                    }
                    // One, so that `du` all but leaves it out. None would have `tar --sparse` take it for a hole
                    // and store zeros.
                    _ => self.owner.file(ino, size, u64::from(size > 0)),
                }
            }
        }
    }
}

fn file(view: View, item: usize) -> Inode {
    Inode::File(FileRef { view, item: item as u32 })
}
