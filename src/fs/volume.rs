//! The directory tree of one model: maps inode numbers to files and directories.

use super::attr::{Attr, DOTS, Dentry, Error, FileKind, FileOwner, Ino, ROOT, SECTOR, Statfs};
use super::ino::{self, Inode, InodeDir};
use super::tree::{NameSplit, TensorTree};
use crate::content::{Content, ReadRequest};
use crate::model::quantization::QuantizedWeight;
use crate::model::{Model, ShardId, Tensor, TensorId, TensorNumbers, TensorParts};
use crate::name;
use crate::view::{CachedResults, ModelViews, ShownViews, View, ViewFile, ViewFiles};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, OnceLock};

/// A model as a directory tree. Arguments are inode numbers within this tree; results are complete inode numbers.
#[derive(Debug)]
pub(super) struct ModelVolume {
    views: ModelViews,
    owner: FileOwner,
    /// The tree number in complete inode numbers.
    number: u32,
    /// The parent directory of the root.
    up: Ino,
    tree: OnceLock<TensorTree>,
    samples: OnceLock<TensorTree>,
    /// Tensors whose file names are cut, by directory and file name.
    cut: OnceLock<HashMap<(DirectoryNames, String), TensorId>>,
    /// See [`super::Superblock::version`].
    version: OnceLock<Option<String>>,
}

/// Extended attributes of a tensor, with text values. An attribute without a value is left out: offset and shard of an
/// array that is joined from several shards, the offset of a tensor whose elements are gathered, the quantization of a
/// tensor that belongs to no quantized weight, and values that are too long.
const XATTRS: [(&str, XattrValue); 7] = [
    ("user.weightfs.name", |_, tensor| short_name(tensor.info.name)),
    ("user.weightfs.dtype", |_, tensor| short_name(tensor.info.dtype.name())),
    ("user.weightfs.shape", |_, tensor| {
        let shape = tensor.info.shape;
        // Each dimension takes at least three bytes: a digit, a comma and a space.
        (shape.len() <= XATTR_MAX / 3).then(|| format!("{shape:?}")).filter(|text| text.len() <= XATTR_MAX)
    }),
    ("user.weightfs.nbytes", |_, tensor| Some(tensor.info.nbytes().to_string())),
    ("user.weightfs.offset", |_, tensor| match tensor.parts {
        TensorParts::One(_) if tensor.info.layout.is_none() => Some(tensor.info.range.start.to_string()),
        TensorParts::One(_) | TensorParts::Many(_) => None,
    }),
    ("user.weightfs.shard", |model, tensor| match tensor.parts {
        TensorParts::One(shard) => Some(model.shard(shard).name.clone()),
        TensorParts::Many(_) => None,
    }),
    ("user.weightfs.quantization", |model, tensor| {
        let of = |owner: &QuantizedWeight| {
            let role = Some(owner.role(tensor.id.index())).filter(|role| *role != QuantizedWeight::OTHER);
            format!("{} of {}", role.unwrap_or("companion"), model.weight_name(owner))
        };
        let quantized = model.quantized();
        let codes = quantized.weight(tensor.id).map(|weight| weight.class.summary());
        codes.or_else(|| quantized.owner(tensor.id).map(of)).filter(|text| text.len() <= XATTR_MAX)
    }),
];

type XattrValue = fn(&Model, &Tensor) -> Option<String>;

/// Longest value in bytes, the limit of the kernel. Programs that read all attributes would fail at a longer one.
const XATTR_MAX: usize = 65_536;

fn short_name(value: &str) -> Option<String> {
    (value.len() <= XATTR_MAX).then(|| value.to_owned())
}

/// A file that shows one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorFile {
    /// The directory of the view, such as `npy`.
    pub dir: &'static str,
    /// The file name.
    pub name: String,
    /// Its attributes.
    pub attr: Attr,
}

/// Which tensors a directory has files for, and under which names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum DirectoryNames {
    /// All tensors of the model, under their stored names.
    Stored,
    /// All tensors of the model; quantized weights under their logical names.
    Logical,
    /// The tensors of one file, under their stored names.
    InShard(ShardId),
}

/// An inode that exists.
enum VolumeNode<'v> {
    Dir(InodeDir),
    File(View, ViewFile<'v>),
}

impl VolumeNode<'_> {
    fn inode(&self) -> Inode {
        match self {
            Self::Dir(dir) => Inode::Dir(*dir),
            Self::File(view, file) => Inode::File(*view, file.number()),
        }
    }
}

impl ModelVolume {
    /// The tree of a model, with the tree number `number`. `up` is the parent directory of its root.
    pub fn new(
        model: Model,
        shown: ShownViews,
        owner: FileOwner,
        results: Arc<CachedResults>,
        number: u32,
        up: Ino,
    ) -> Self {
        let views = ModelViews::new(model, shown, results, number);
        let (tree, samples, cut, version) = Default::default();
        Self { views, owner, number, up, tree, samples, cut, version }
    }

    pub fn lookup(&self, parent: Ino, name: &[u8], request: &ReadRequest) -> Result<Attr, Error> {
        let dir = self.dir(parent, request)?;
        let name = str::from_utf8(name).map_err(|_| Error::NoEntry)?;
        let find_view = |is_there: fn(View, &ModelViews) -> bool| {
            View::all().find(|view| view.row().file == name && is_there(*view, &self.views))
        };
        let inode = match dir {
            InodeDir::Root => find_view(View::is_in_root).map(|view| view_inode(view, None)),
            InodeDir::Shard(shard) => find_view(View::is_in_shards).map(|view| view_inode(view, Some(shard))),
            InodeDir::Node(view, node) => self.tree(view, request)?.lookup(self.model(), Some(node), name),
            InodeDir::View(view, shard) => match &view.row().files {
                ViewFiles::Tensors { suffix, .. } => match name.strip_suffix(suffix) {
                    Some(name) => {
                        let names = self.names(view, shard);
                        let tensor = self.find_tensor(names, name, request)?.ok_or(Error::NoEntry)?;
                        let node = self.tensor_file(view, tensor).ok_or(Error::NoEntry)?;
                        return self.attr(&node, request);
                    }
                    None => None,
                },
                ViewFiles::Named { is_ready, find, .. } => {
                    self.views.check_wait(is_ready(&self.views), request)?;
                    find(&self.views, shard, name).map(|number| Inode::File(view, number as u32))
                }
                ViewFiles::Tree => self.tree(view, request)?.lookup(self.model(), None, name),
                ViewFiles::Shards => self.find_shard(name).map(|shard| Inode::Dir(InodeDir::Shard(shard))),
                ViewFiles::One { .. } => None,
            },
        };
        self.attr(&self.node(inode.ok_or(Error::NoEntry)?, request)?, request)
    }

    pub fn getattr(&self, ino: Ino, request: &ReadRequest) -> Result<Attr, Error> {
        let inode = Inode::from_ino(ino).ok_or(Error::NoEntry)?;
        self.attr(&self.node(inode, request)?, request)
    }

    pub fn readdir<'s>(
        &'s self,
        ino: Ino,
        offset: u64,
        request: &ReadRequest,
        mut add: impl FnMut(Dentry<'s>) -> bool,
    ) -> Result<(), Error> {
        let dir = self.dir(ino, request)?;
        let model = self.model();
        // Everything that may fail or wait is done before the first entry is passed to `add`.
        let tree = match dir {
            InodeDir::Node(view, _) => Some(self.tree(view, request)?),
            InodeDir::View(view, _) if matches!(view.row().files, ViewFiles::Tree) => Some(self.tree(view, request)?),
            _ => None,
        };
        if let InodeDir::View(view, _) = dir
            && let ViewFiles::Named { is_ready, .. } = view.row().files
        {
            self.views.check_wait(is_ready(&self.views), request)?;
        }
        let parent = self.parent(dir, tree);
        if Dentry::dots(ino::join(self.number, Inode::Dir(dir).ino()), parent, offset, &mut add) {
            return Ok(());
        }
        let from = offset.saturating_sub(DOTS) as usize;
        let mut add = |inode: Inode, name: Cow<'s, str>, next: usize| {
            let name = match name {
                Cow::Borrowed(name) => Cow::Borrowed(OsStr::new(name)),
                Cow::Owned(name) => Cow::Owned(OsString::from(name)),
            };
            let kind = if matches!(inode, Inode::Dir(_)) { FileKind::Dir } else { FileKind::File };
            add(Dentry { ino: ino::join(self.number, inode.ino()), kind, name, next: next as u64 + DOTS })
        };
        let mut list = |len: usize, entry: &dyn Fn(usize) -> Option<(Inode, Cow<'s, str>)>| {
            for at in from..len {
                if entry(at).is_some_and(|(inode, name)| add(inode, name, at + 1)) {
                    break;
                }
            }
        };
        let row = |view: View, shard| (view_inode(view, shard), Cow::Borrowed(view.row().file));
        match dir {
            InodeDir::Root => list(View::all().len(), &|at| {
                Some(View::new(at)).filter(|view| view.is_in_root(&self.views)).map(|view| row(view, None))
            }),
            InodeDir::Shard(shard) => list(View::all().len(), &|at| {
                Some(View::new(at)).filter(|view| view.is_in_shards(&self.views)).map(|view| row(view, Some(shard)))
            }),
            InodeDir::Node(_, node) => {
                if let Some(tree) = tree {
                    tree.list(model, Some(node), from, add);
                }
            }
            InodeDir::View(view, shard) => match &view.row().files {
                ViewFiles::Tensors { suffix, .. } => {
                    let tensors = shard.map_or(model.logical(), |shard| model.stored_in(shard));
                    list(tensors.len(), &|at| {
                        let tensor = tensors.at(at);
                        let mut name = name::encode_name(view.numbers(&self.views, tensor).name());
                        let node = self.tensor_file(view, tensor)?;
                        if !suffix.is_empty() {
                            name.to_mut().push_str(suffix);
                        }
                        Some((node.inode(), name))
                    });
                }
                ViewFiles::Named { len, at: number, name, .. } => list(len(&self.views, shard), &|at| {
                    let number = number(&self.views, shard, at);
                    Some((Inode::File(view, number as u32), name(&self.views, number)?))
                }),
                ViewFiles::Shards => list(model.shards().len(), &|at| {
                    let shard = ShardId::new(at);
                    Some((Inode::Dir(InodeDir::Shard(shard)), name::encode_name(&model.shard(shard).name)))
                }),
                ViewFiles::Tree => {
                    if let Some(tree) = tree {
                        tree.list(model, None, from, add);
                    }
                }
                ViewFiles::One { .. } => {}
            },
        }
        Ok(())
    }

    pub fn open(&self, ino: Ino, request: &ReadRequest) -> Result<Content, Error> {
        match self.node(Inode::from_ino(ino).ok_or(Error::NoEntry)?, request)? {
            VolumeNode::Dir(_) => Err(Error::IsADirectory),
            VolumeNode::File(view, file) => view.content(&self.views, &file, request)?.ok_or(Error::NoEntry),
        }
    }

    pub fn getxattr(&self, ino: Ino, name: &[u8], request: &ReadRequest) -> Result<Vec<u8>, Error> {
        let tensor = self.stored(ino, request)?.ok_or(Error::NoAttribute)?;
        let (_, value) = XATTRS.iter().find(|xattr| xattr.0.as_bytes() == name).ok_or(Error::NoAttribute)?;
        value(self.model(), &tensor).map(String::into_bytes).ok_or(Error::NoAttribute)
    }

    pub fn listxattr(&self, ino: Ino, request: &ReadRequest) -> Result<Vec<u8>, Error> {
        let Some(tensor) = self.stored(ino, request)? else { return Ok(Vec::new()) };
        let has = |xattr: &&(&str, XattrValue)| xattr.1(self.model(), &tensor).is_some();
        Ok(XATTRS.iter().filter(has).flat_map(|xattr| [xattr.0.as_bytes(), b"\0"].concat()).collect())
    }

    /// See [`super::Superblock::version`].
    pub fn version(&self) -> Option<String> {
        let compute = || {
            let mut parts = Sha256::new();
            for source in self.model().sources().iter() {
                // A source without a path is remote.
                source.path()?;
                parts.update(format!("{} {:?} {:?}\n", source.len(), source.stat().mtime, source.id()));
            }
            parts.update(format!("{:?}", self.model().described_by()));
            Some(parts.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
        };
        self.version.get_or_init(compute).clone()
    }

    pub fn statfs(&self) -> Statfs {
        let model = self.model();
        let blocks = model.sources().iter().map(|source| source.len().div_ceil(SECTOR)).sum();
        Statfs { blocks, files: (model.listed().len() + model.metadata().len()) as u64 }
    }

    /// See [`super::Superblock::files_of`].
    pub fn files_of(&self, tensor: TensorId, request: &ReadRequest) -> Result<Vec<TensorFile>, Error> {
        let mut files = Vec::new();
        for view in View::all().filter(|view| view.is_in_root(&self.views)) {
            let ViewFiles::Tensors { suffix, .. } = view.row().files else { continue };
            let Some(node) = self.tensor_file(view, tensor) else { continue };
            let name = name::encode_name(view.numbers(&self.views, tensor).name()).into_owned() + suffix;
            files.push(TensorFile { dir: view.row().file, name, attr: self.attr(&node, request)? });
        }
        Ok(files)
    }

    pub fn model(&self) -> &Model {
        self.views.model()
    }

    /// The directories below that of a view.
    fn tree(&self, view: View, request: &ReadRequest) -> Result<&TensorTree, Error> {
        let tree = if view == View::SAMPLES { &self.samples } else { &self.tree };
        self.views.check_wait(tree.get().is_some(), request)?;
        Ok(tree.get_or_init(|| TensorTree::new(self.model(), view)))
    }

    /// The names of the files in the directory of a view, of the whole model or of one file.
    fn names(&self, view: View, shard: Option<ShardId>) -> DirectoryNames {
        match shard {
            Some(shard) => DirectoryNames::InShard(shard),
            None if view.is_dequantized(&self.views) => DirectoryNames::Logical,
            None => DirectoryNames::Stored,
        }
    }

    /// The tensor with a file name, given without suffix.
    fn find_tensor(
        &self,
        names: DirectoryNames,
        encoded: &str,
        request: &ReadRequest,
    ) -> Result<Option<TensorId>, Error> {
        let model = self.model();
        if let Some(name) = name::decode_name(encoded) {
            if let DirectoryNames::InShard(shard) = names {
                return Ok(model.find_in(shard, &name));
            }
            self.views.check_wait(model.can_find(), request)?;
            return Ok(if names == DirectoryNames::Logical { model.find_numbers(&name) } else { model.find(&name) });
        }
        if !name::is_cut(encoded) {
            return Ok(None);
        }
        self.views.check_wait(self.cut.get().is_some(), request)?;
        let cut = self.cut.get_or_init(|| {
            let shards = if View::STORED.is_in_shards(&self.views) { model.shards().len() } else { 0 };
            let in_shards = (0..shards).map(ShardId::new);
            let in_shard = |shard| model.stored_in(shard).iter().map(move |id| (DirectoryNames::InShard(shard), id));
            let logical = |names| model.logical().iter().map(move |id| (names, id));
            let all = logical(DirectoryNames::Stored)
                .chain(logical(DirectoryNames::Logical))
                .chain(in_shards.flat_map(in_shard));
            let name = |names, id| model.numbers(id, names == DirectoryNames::Logical).name();
            all.filter_map(|(names, id)| Some(((names, name::cut_name(name(names, id))?), id))).collect()
        });
        Ok(cut.get(&(names, encoded.to_owned())).copied())
    }

    /// The file of a tensor in the directory of a view, if the view shows the tensor.
    fn tensor_file(&self, view: View, tensor: TensorId) -> Option<VolumeNode<'_>> {
        let ViewFiles::Tensors { shows, is_stored, .. } = &view.row().files else { return None };
        let numbers = view.numbers(&self.views, tensor);
        let view = match () {
            () if is_stored(&numbers) => View::STORED,
            () if shows(&numbers) => view,
            () => return None,
        };
        Some(VolumeNode::File(view, ViewFile::Tensor(numbers)))
    }

    fn find_shard(&self, encoded: &str) -> Option<ShardId> {
        let shards = self.model().shards();
        let at = match name::decode_name(encoded) {
            Some(name) => shards.binary_search_by(|shard| shard.name[..].cmp(&name)).ok(),
            None => shards.iter().position(|shard| name::encode_name(&shard.name) == encoded),
        };
        at.map(ShardId::new)
    }

    /// The node of an inode. Fails if it does not exist.
    fn node(&self, inode: Inode, request: &ReadRequest) -> Result<VolumeNode<'_>, Error> {
        let has_shard = |shard: ShardId| shard.index() < self.model().shards().len();
        let dir = match inode {
            Inode::File(view, number) => {
                if let ViewFiles::Named { is_ready, name, .. } = &view.row().files {
                    self.views.check_wait(is_ready(&self.views), request)?;
                    name(&self.views, number as usize).ok_or(Error::NoEntry)?;
                }
                return view.file(&self.views, number).map(|file| VolumeNode::File(view, file)).ok_or(Error::NoEntry);
            }
            Inode::Dir(dir) => dir,
        };
        let exists = match dir {
            InodeDir::Root => true,
            InodeDir::Shard(shard) => has_shard(shard),
            InodeDir::Node(view, node) => view.is_in_root(&self.views) && self.tree(view, request)?.contains(node),
            InodeDir::View(view, None) => is_dir(view) && view.is_in_root(&self.views),
            InodeDir::View(view, Some(shard)) => is_dir(view) && view.is_in_shards(&self.views) && has_shard(shard),
        };
        exists.then_some(VolumeNode::Dir(dir)).ok_or(Error::NoEntry)
    }

    fn dir(&self, ino: Ino, request: &ReadRequest) -> Result<InodeDir, Error> {
        match self.node(Inode::from_ino(ino).ok_or(Error::NoEntry)?, request)? {
            VolumeNode::Dir(dir) => Ok(dir),
            VolumeNode::File(..) => Err(Error::NotADirectory),
        }
    }

    /// The tensor of an inode, if the file has the stored bytes.
    fn stored(&self, ino: Ino, request: &ReadRequest) -> Result<Option<Tensor<'_>>, Error> {
        match self.node(Inode::from_ino(ino).ok_or(Error::NoEntry)?, request)? {
            VolumeNode::File(View::STORED, ViewFile::Tensor(TensorNumbers { tensor, .. })) => Ok(Some(tensor)),
            _ => Ok(None),
        }
    }

    /// The inode number of the parent of a directory.
    fn parent(&self, dir: InodeDir, tree: Option<&TensorTree>) -> Ino {
        let parent = match dir {
            InodeDir::Root => return self.up,
            InodeDir::View(_, None) => InodeDir::Root,
            InodeDir::View(_, Some(shard)) => InodeDir::Shard(shard),
            InodeDir::Shard(_) => InodeDir::View(View::SHARDS, None),
            InodeDir::Node(view, node) => {
                let parent = tree.and_then(|tree| tree.parent(self.model(), node));
                parent.map_or(InodeDir::View(view, None), |node| InodeDir::Node(view, node))
            }
        };
        ino::join(self.number, Inode::Dir(parent).ino())
    }

    fn attr(&self, node: &VolumeNode, request: &ReadRequest) -> Result<Attr, Error> {
        let ino = ino::join(self.number, node.inode().ino());
        let (view, file) = match node {
            VolumeNode::Dir(_) => return Ok(self.owner.dir(ino)),
            VolumeNode::File(view, file) => (*view, file),
        };
        let size = view.content(&self.views, file, request)?.ok_or(Error::NoEntry)?.len();
        // Derived files have one sector, so that `du` hardly counts them. With none, `tar --sparse` would treat the
        // file as a hole and store zeros.
        let sectors = u64::from(size > 0);
        let ViewFile::Tensor(TensorNumbers { tensor, .. }) = file else {
            return Ok(self.owner.file(ino, size, sectors));
        };
        // A part of a joined array takes no additional space.
        let is_data = view == View::STORED && self.model().listed().contains(tensor.id);
        let blocks = if is_data { size.div_ceil(SECTOR) } else { sectors };
        Ok(Attr { nlink: self.links(view, tensor), ..self.owner.file(ino, size, blocks) })
    }

    /// The link count of a tensor's file in a view. A stored tensor may have more links in other views.
    fn links(&self, view: View, tensor: &Tensor) -> u32 {
        let is_logical = self.model().logical().contains(tensor.id);
        let is_in_shard = matches!(tensor.parts, TensorParts::One(_)) && View::SHARDS.is_in_root(&self.views);
        let is_stored = view == View::STORED;
        let has_name = |other: View| match &other.row().files {
            ViewFiles::Tensors { is_stored: links, .. } => {
                other == view || is_stored && links(&other.numbers(&self.views, tensor.id))
            }
            _ => false,
        };
        let in_root = View::all().filter(|other| other.is_in_root(&self.views) && has_name(*other)).count();
        let in_shard = View::all().filter(|other| other.is_in_shards(&self.views) && has_name(*other)).count();
        let has_path = |view: &View| {
            is_stored && view.is_in_root(&self.views) && NameSplit::of(*view, self.model()).has(tensor.info.name)
        };
        let paths = [View::TREE, View::SAMPLES].iter().filter(|view| has_path(view)).count();
        let logical = if is_logical { in_root + paths } else { 0 };
        (logical + if is_in_shard { in_shard } else { 0 }) as u32
    }
}

/// The inode of a view in the root or in the directory of a shard.
fn view_inode(view: View, shard: Option<ShardId>) -> Inode {
    if is_dir(view) { Inode::Dir(InodeDir::View(view, shard)) } else { Inode::File(view, View::only_file(shard)) }
}

fn is_dir(view: View) -> bool {
    !matches!(view.row().files, ViewFiles::One { .. })
}

/// The complete inode number of the root of a tree.
pub(super) fn root(number: u32) -> Ino {
    ino::join(number, ROOT)
}
