//! The directory tree of one model: maps inode numbers to files and directories.

use super::attr::{Attr, DOTS, Dentry, Error, FileKind, Ino, Owner, ROOT, SECTOR, Statfs};
use super::ino::{self, Dir, Inode};
use super::tree::{Split, Tree};
use crate::content::{Content, Request};
use crate::model::quantization::Weight;
use crate::model::{Model, Numbers, Parts, ShardId, Tensor, TensorId};
use crate::name;
use crate::view::{File, Files, Results, Shown, View, Views};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, OnceLock};

/// A model as a directory tree. Arguments are inode numbers within this tree; results are complete inode numbers.
#[derive(Debug)]
pub(super) struct Volume {
    views: Views,
    owner: Owner,
    /// The tree number in complete inode numbers.
    number: u32,
    /// The parent directory of the root.
    up: Ino,
    tree: OnceLock<Tree>,
    samples: OnceLock<Tree>,
    /// Tensors whose file names are cut, by directory and file name.
    cut: OnceLock<HashMap<(Names, String), TensorId>>,
    /// See [`super::Superblock::version`].
    version: OnceLock<Option<String>>,
}

/// Extended attributes of a tensor, with text values. An attribute without a value is left out: offset and shard of an
/// array that is joined from several shards, the offset of a tensor whose elements are gathered, the quantization of a
/// tensor that belongs to no quantized weight, and values that are too long.
const XATTRS: [(&str, XattrValue); 7] = [
    ("user.weightfs.name", |_, tensor| short(tensor.info.name)),
    ("user.weightfs.dtype", |_, tensor| short(tensor.info.dtype.name())),
    ("user.weightfs.shape", |_, tensor| {
        let shape = tensor.info.shape;
        // Each dimension takes at least three bytes: a digit, a comma and a space.
        (shape.len() <= XATTR_MAX / 3).then(|| format!("{shape:?}")).filter(|text| text.len() <= XATTR_MAX)
    }),
    ("user.weightfs.nbytes", |_, tensor| Some(tensor.info.nbytes().to_string())),
    ("user.weightfs.offset", |_, tensor| match tensor.parts {
        Parts::One(_) if tensor.info.layout.is_none() => Some(tensor.info.range.start.to_string()),
        Parts::One(_) | Parts::Many(_) => None,
    }),
    ("user.weightfs.shard", |model, tensor| match tensor.parts {
        Parts::One(shard) => Some(model.shard(shard).name.clone()),
        Parts::Many(_) => None,
    }),
    ("user.weightfs.quantization", |model, tensor| {
        let of = |owner: &Weight| {
            let role = Some(owner.role(tensor.id.index())).filter(|role| *role != Weight::OTHER);
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

fn short(value: &str) -> Option<String> {
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
enum Names {
    /// All tensors of the model, under their stored names.
    Stored,
    /// All tensors of the model; quantized weights under their logical names.
    Logical,
    /// The tensors of one file, under their stored names.
    InShard(ShardId),
}

/// An inode that exists.
enum Node<'v> {
    Dir(Dir),
    File(View, File<'v>),
}

impl Node<'_> {
    fn inode(&self) -> Inode {
        match self {
            Self::Dir(dir) => Inode::Dir(*dir),
            Self::File(view, file) => Inode::File(*view, file.number()),
        }
    }
}

impl Volume {
    /// The tree of a model, with the tree number `number`. `up` is the parent directory of its root.
    pub fn new(model: Model, shown: Shown, owner: Owner, results: Arc<Results>, number: u32, up: Ino) -> Self {
        let views = Views::new(model, shown, results, number);
        let (tree, samples, cut, version) = Default::default();
        Self { views, owner, number, up, tree, samples, cut, version }
    }

    pub fn lookup(&self, parent: Ino, name: &[u8], request: &Request) -> Result<Attr, Error> {
        let dir = self.dir(parent, request)?;
        let name = str::from_utf8(name).map_err(|_| Error::NoEntry)?;
        let find_view = |is_there: fn(View, &Views) -> bool| {
            View::all().find(|view| view.row().file == name && is_there(*view, &self.views))
        };
        let inode = match dir {
            Dir::Root => find_view(View::is_in_root).map(|view| view_inode(view, None)),
            Dir::Shard(shard) => find_view(View::is_in_shards).map(|view| view_inode(view, Some(shard))),
            Dir::Node(view, node) => self.tree(view, request)?.lookup(self.model(), Some(node), name),
            Dir::View(view, shard) => match &view.row().files {
                Files::Tensors { suffix, .. } => match name.strip_suffix(suffix) {
                    Some(name) => {
                        let names = self.names(view, shard);
                        let tensor = self.find_tensor(names, name, request)?.ok_or(Error::NoEntry)?;
                        let node = self.tensor_file(view, tensor).ok_or(Error::NoEntry)?;
                        return self.attr(&node, request);
                    }
                    None => None,
                },
                Files::Named { is_ready, find, .. } => {
                    self.views.check_wait(is_ready(&self.views), request)?;
                    find(&self.views, shard, name).map(|number| Inode::File(view, number as u32))
                }
                Files::Tree => self.tree(view, request)?.lookup(self.model(), None, name),
                Files::Shards => self.find_shard(name).map(|shard| Inode::Dir(Dir::Shard(shard))),
                Files::One { .. } => None,
            },
        };
        self.attr(&self.node(inode.ok_or(Error::NoEntry)?, request)?, request)
    }

    pub fn getattr(&self, ino: Ino, request: &Request) -> Result<Attr, Error> {
        let inode = Inode::from_ino(ino).ok_or(Error::NoEntry)?;
        self.attr(&self.node(inode, request)?, request)
    }

    pub fn readdir<'s>(
        &'s self,
        ino: Ino,
        offset: u64,
        request: &Request,
        mut add: impl FnMut(Dentry<'s>) -> bool,
    ) -> Result<(), Error> {
        let dir = self.dir(ino, request)?;
        let model = self.model();
        // Everything that may fail or wait is done before the first entry is passed to `add`.
        let tree = match dir {
            Dir::Node(view, _) => Some(self.tree(view, request)?),
            Dir::View(view, _) if matches!(view.row().files, Files::Tree) => Some(self.tree(view, request)?),
            _ => None,
        };
        if let Dir::View(view, _) = dir
            && let Files::Named { is_ready, .. } = view.row().files
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
            Dir::Root => list(View::all().len(), &|at| {
                Some(View::new(at)).filter(|view| view.is_in_root(&self.views)).map(|view| row(view, None))
            }),
            Dir::Shard(shard) => list(View::all().len(), &|at| {
                Some(View::new(at)).filter(|view| view.is_in_shards(&self.views)).map(|view| row(view, Some(shard)))
            }),
            Dir::Node(_, node) => {
                if let Some(tree) = tree {
                    tree.list(model, Some(node), from, add);
                }
            }
            Dir::View(view, shard) => match &view.row().files {
                Files::Tensors { suffix, .. } => {
                    let tensors = shard.map_or(model.logical(), |shard| model.stored_in(shard));
                    list(tensors.len(), &|at| {
                        let tensor = tensors.at(at);
                        let mut name = name::encode(view.numbers(&self.views, tensor).name());
                        let node = self.tensor_file(view, tensor)?;
                        if !suffix.is_empty() {
                            name.to_mut().push_str(suffix);
                        }
                        Some((node.inode(), name))
                    });
                }
                Files::Named { len, at: number, name, .. } => list(len(&self.views, shard), &|at| {
                    let number = number(&self.views, shard, at);
                    Some((Inode::File(view, number as u32), name(&self.views, number)?))
                }),
                Files::Shards => list(model.shards().len(), &|at| {
                    let shard = ShardId::new(at);
                    Some((Inode::Dir(Dir::Shard(shard)), name::encode(&model.shard(shard).name)))
                }),
                Files::Tree => {
                    if let Some(tree) = tree {
                        tree.list(model, None, from, add);
                    }
                }
                Files::One { .. } => {}
            },
        }
        Ok(())
    }

    pub fn open(&self, ino: Ino, request: &Request) -> Result<Content, Error> {
        match self.node(Inode::from_ino(ino).ok_or(Error::NoEntry)?, request)? {
            Node::Dir(_) => Err(Error::IsADirectory),
            Node::File(view, file) => view.content(&self.views, &file, request)?.ok_or(Error::NoEntry),
        }
    }

    pub fn getxattr(&self, ino: Ino, name: &[u8], request: &Request) -> Result<Vec<u8>, Error> {
        let tensor = self.stored(ino, request)?.ok_or(Error::NoAttribute)?;
        let (_, value) = XATTRS.iter().find(|xattr| xattr.0.as_bytes() == name).ok_or(Error::NoAttribute)?;
        value(self.model(), &tensor).map(String::into_bytes).ok_or(Error::NoAttribute)
    }

    pub fn listxattr(&self, ino: Ino, request: &Request) -> Result<Vec<u8>, Error> {
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
            parts.update(format!("{:?}", self.model().decided()));
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
    pub fn files_of(&self, tensor: TensorId, request: &Request) -> Result<Vec<TensorFile>, Error> {
        let mut files = Vec::new();
        for view in View::all().filter(|view| view.is_in_root(&self.views)) {
            let Files::Tensors { suffix, .. } = view.row().files else { continue };
            let Some(node) = self.tensor_file(view, tensor) else { continue };
            let name = name::encode(view.numbers(&self.views, tensor).name()).into_owned() + suffix;
            files.push(TensorFile { dir: view.row().file, name, attr: self.attr(&node, request)? });
        }
        Ok(files)
    }

    pub fn model(&self) -> &Model {
        self.views.model()
    }

    /// The directories below that of a view.
    fn tree(&self, view: View, request: &Request) -> Result<&Tree, Error> {
        let tree = if view == View::SAMPLES { &self.samples } else { &self.tree };
        self.views.check_wait(tree.get().is_some(), request)?;
        Ok(tree.get_or_init(|| Tree::new(self.model(), view)))
    }

    /// The names of the files in the directory of a view, of the whole model or of one file.
    fn names(&self, view: View, shard: Option<ShardId>) -> Names {
        match shard {
            Some(shard) => Names::InShard(shard),
            None if view.is_dequantized(&self.views) => Names::Logical,
            None => Names::Stored,
        }
    }

    /// The tensor with a file name, given without suffix.
    fn find_tensor(&self, names: Names, encoded: &str, request: &Request) -> Result<Option<TensorId>, Error> {
        let model = self.model();
        if let Some(name) = name::decode(encoded) {
            if let Names::InShard(shard) = names {
                return Ok(model.find_in(shard, &name));
            }
            self.views.check_wait(model.can_find(), request)?;
            return Ok(if names == Names::Logical { model.find_numbers(&name) } else { model.find(&name) });
        }
        if !name::is_cut(encoded) {
            return Ok(None);
        }
        self.views.check_wait(self.cut.get().is_some(), request)?;
        let cut = self.cut.get_or_init(|| {
            let shards = if View::STORED.is_in_shards(&self.views) { model.shards().len() } else { 0 };
            let in_shards = (0..shards).map(ShardId::new);
            let in_shard = |shard| model.stored_in(shard).iter().map(move |id| (Names::InShard(shard), id));
            let logical = |names| model.logical().iter().map(move |id| (names, id));
            let all = logical(Names::Stored).chain(logical(Names::Logical)).chain(in_shards.flat_map(in_shard));
            let name = |names, id| model.numbers(id, names == Names::Logical).name();
            all.filter_map(|(names, id)| Some(((names, name::cut(name(names, id))?), id))).collect()
        });
        Ok(cut.get(&(names, encoded.to_owned())).copied())
    }

    /// The file of a tensor in the directory of a view, if the view shows the tensor.
    fn tensor_file(&self, view: View, tensor: TensorId) -> Option<Node<'_>> {
        let Files::Tensors { shows, is_stored, .. } = &view.row().files else { return None };
        let numbers = view.numbers(&self.views, tensor);
        let view = match () {
            () if is_stored(&numbers) => View::STORED,
            () if shows(&numbers) => view,
            () => return None,
        };
        Some(Node::File(view, File::Tensor(numbers)))
    }

    fn find_shard(&self, encoded: &str) -> Option<ShardId> {
        let shards = self.model().shards();
        let at = match name::decode(encoded) {
            Some(name) => shards.binary_search_by(|shard| shard.name[..].cmp(&name)).ok(),
            None => shards.iter().position(|shard| name::encode(&shard.name) == encoded),
        };
        at.map(ShardId::new)
    }

    /// The node of an inode. Fails if it does not exist.
    fn node(&self, inode: Inode, request: &Request) -> Result<Node<'_>, Error> {
        let has_shard = |shard: ShardId| shard.index() < self.model().shards().len();
        let dir = match inode {
            Inode::File(view, number) => {
                if let Files::Named { is_ready, name, .. } = &view.row().files {
                    self.views.check_wait(is_ready(&self.views), request)?;
                    name(&self.views, number as usize).ok_or(Error::NoEntry)?;
                }
                return view.file(&self.views, number).map(|file| Node::File(view, file)).ok_or(Error::NoEntry);
            }
            Inode::Dir(dir) => dir,
        };
        let exists = match dir {
            Dir::Root => true,
            Dir::Shard(shard) => has_shard(shard),
            Dir::Node(view, node) => view.is_in_root(&self.views) && self.tree(view, request)?.contains(node),
            Dir::View(view, None) => is_dir(view) && view.is_in_root(&self.views),
            Dir::View(view, Some(shard)) => is_dir(view) && view.is_in_shards(&self.views) && has_shard(shard),
        };
        exists.then_some(Node::Dir(dir)).ok_or(Error::NoEntry)
    }

    fn dir(&self, ino: Ino, request: &Request) -> Result<Dir, Error> {
        match self.node(Inode::from_ino(ino).ok_or(Error::NoEntry)?, request)? {
            Node::Dir(dir) => Ok(dir),
            Node::File(..) => Err(Error::NotADirectory),
        }
    }

    /// The tensor of an inode, if the file has the stored bytes.
    fn stored(&self, ino: Ino, request: &Request) -> Result<Option<Tensor<'_>>, Error> {
        match self.node(Inode::from_ino(ino).ok_or(Error::NoEntry)?, request)? {
            Node::File(View::STORED, File::Tensor(Numbers { tensor, .. })) => Ok(Some(tensor)),
            _ => Ok(None),
        }
    }

    /// The inode number of the parent of a directory.
    fn parent(&self, dir: Dir, tree: Option<&Tree>) -> Ino {
        let parent = match dir {
            Dir::Root => return self.up,
            Dir::View(_, None) => Dir::Root,
            Dir::View(_, Some(shard)) => Dir::Shard(shard),
            Dir::Shard(_) => Dir::View(View::SHARDS, None),
            Dir::Node(view, node) => {
                let parent = tree.and_then(|tree| tree.parent(self.model(), node));
                parent.map_or(Dir::View(view, None), |node| Dir::Node(view, node))
            }
        };
        ino::join(self.number, Inode::Dir(parent).ino())
    }

    fn attr(&self, node: &Node, request: &Request) -> Result<Attr, Error> {
        let ino = ino::join(self.number, node.inode().ino());
        let (view, file) = match node {
            Node::Dir(_) => return Ok(self.owner.dir(ino)),
            Node::File(view, file) => (*view, file),
        };
        let size = view.content(&self.views, file, request)?.ok_or(Error::NoEntry)?.len();
        // Derived files have one sector, so that `du` hardly counts them. With none, `tar --sparse` would treat the
        // file as a hole and store zeros.
        let sectors = u64::from(size > 0);
        let File::Tensor(Numbers { tensor, .. }) = file else { return Ok(self.owner.file(ino, size, sectors)) };
        // A part of a joined array takes no additional space.
        let is_data = view == View::STORED && self.model().listed().contains(tensor.id);
        let blocks = if is_data { size.div_ceil(SECTOR) } else { sectors };
        Ok(Attr { nlink: self.links(view, tensor), ..self.owner.file(ino, size, blocks) })
    }

    /// The link count of a tensor's file in a view. A stored tensor may have more links in other views.
    fn links(&self, view: View, tensor: &Tensor) -> u32 {
        let is_logical = self.model().logical().contains(tensor.id);
        let is_in_shard = matches!(tensor.parts, Parts::One(_)) && View::SHARDS.is_in_root(&self.views);
        let is_stored = view == View::STORED;
        let has_name = |other: View| match &other.row().files {
            Files::Tensors { is_stored: links, .. } => {
                other == view || is_stored && links(&other.numbers(&self.views, tensor.id))
            }
            _ => false,
        };
        let in_root = View::all().filter(|other| other.is_in_root(&self.views) && has_name(*other)).count();
        let in_shard = View::all().filter(|other| other.is_in_shards(&self.views) && has_name(*other)).count();
        let has_path = |view: &View| {
            is_stored && view.is_in_root(&self.views) && Split::of(*view, self.model()).has(tensor.info.name)
        };
        let paths = [View::TREE, View::SAMPLES].iter().filter(|view| has_path(view)).count();
        let logical = if is_logical { in_root + paths } else { 0 };
        (logical + if is_in_shard { in_shard } else { 0 }) as u32
    }
}

/// The inode of a view in the root or in the directory of a shard.
fn view_inode(view: View, shard: Option<ShardId>) -> Inode {
    if is_dir(view) { Inode::Dir(Dir::View(view, shard)) } else { Inode::File(view, View::only_file(shard)) }
}

fn is_dir(view: View) -> bool {
    !matches!(view.row().files, Files::One { .. })
}

/// The complete inode number of the root of a tree.
pub(super) fn root(number: u32) -> Ino {
    ino::join(number, ROOT)
}
