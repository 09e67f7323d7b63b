//! The directory tree of one model: maps inode numbers to files and directories.

use super::attr::{Attr, DOTS, Dentry, Error, FileKind, FileOwner, Ino, Ownership, ROOT, SECTOR, Statfs};
use super::ino::{self, Inode, InodeDir, NodeId};
use super::tree::{NameSplit, TensorTree};
use crate::content::{Content, ReadRequest};
use crate::model::quantization::QuantizedWeight;
use crate::model::{
    self, Model, ModelFileId, Tensor, TensorId, TensorNumbers, TensorPopulation, TreeEntry, TreeFolder,
};
use crate::name;
use crate::view::{CachedResults, ModelViews, ShownViews, View, ViewFile, ViewFiles};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::mem;
use std::sync::{Arc, OnceLock};

/// A model as a directory tree. Arguments are inode numbers within this tree; results are complete inode numbers.
#[derive(Debug)]
pub(super) struct ModelVolume {
    views: ModelViews,
    ownership: Ownership,
    owner: FileOwner,
    /// The tree number in complete inode numbers.
    number: u32,
    /// The parent directory of the root.
    up: Ino,
    /// The other sets of tensors in the file of the model, which are directories in the root.
    sets: Vec<ModelVolume>,
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
    ("user.weightfs.nbytes", |_, tensor| Some(tensor.info.nbytes.to_string())),
    ("user.weightfs.offset", |_, tensor| {
        let place = tensor.file().and_then(|_| tensor.places().into_iter().next())?;
        Some(place.range.start.to_string())
    }),
    ("user.weightfs.shard", |model, tensor| Some(model.file(tensor.file()?).name.clone())),
    ("user.weightfs.quantization", quantization_text),
];

type XattrValue = fn(&Model, &Tensor) -> Option<String>;

/// Longest value in bytes, the limit of the kernel. Programs that read all attributes would fail at a longer one.
const XATTR_MAX: usize = 65_536;

/// The quantization of the weight whose codes a tensor has, or the role of the tensor in a quantized weight.
fn quantization_text(model: &Model, tensor: &Tensor) -> Option<String> {
    let quantized = &model.quantized;
    let text = match quantized.weight(tensor.id) {
        Some(weight) => weight.class.summary(),
        None => {
            let owner = quantized.owner(tensor.id)?;
            let role = Some(owner.role(tensor.id.index())).filter(|role| *role != QuantizedWeight::OTHER);
            format!("{} of {}", role.unwrap_or("companion"), model.weight_name(owner))
        }
    };
    Some(text).filter(|text| text.len() <= XATTR_MAX)
}

fn short_name(value: &str) -> Option<String> {
    (value.len() <= XATTR_MAX).then(|| value.to_owned())
}

/// A file that shows one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorFile {
    /// The directory of the view, such as `npy`.
    pub dir: &'static str,
    pub name: String,
    pub attr: Attr,
}

/// The tensors that have files in a directory, and their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum DirectoryNames {
    /// All tensors of the model, under their stored names.
    Stored,
    /// All tensors of the model; quantized weights under their logical names.
    Logical,
    /// The tensors of one file, under their stored names.
    InShard(ModelFileId),
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
    /// The tree of a model, with the tree number `number`, and those of the other sets in its file, with the next ones.
    /// `up` is the parent directory of its root.
    pub fn new(
        mut model: Model,
        shown: ShownViews,
        ownership: Ownership,
        owner: FileOwner,
        results: Arc<CachedResults>,
        number: u32,
        up: Ino,
    ) -> Self {
        // They have the same files, and so the same owner.
        let sets = mem::take(&mut model.facts.sets).into_iter().zip(number + 1..);
        let set_volume = |(set, at)| Self::new(set, shown.clone(), ownership, owner, results.clone(), at, root(number));
        let sets = sets.map(set_volume).collect();
        let views = ModelViews::new(model, shown, results, number);
        let (tree, samples, cut, version) = Default::default();
        Self { views, ownership, owner, number, up, sets, tree, samples, cut, version }
    }

    /// The tree with a number in the group of this one.
    pub fn in_group(&self, number: u32) -> Option<&Self> {
        match number.checked_sub(self.number)?.checked_sub(1) {
            None => Some(self),
            Some(set) => self.sets.get(set as usize),
        }
    }

    /// The number of positions in the root.
    pub fn root_len(&self) -> usize {
        View::all().len() + self.sets.len()
    }

    /// The name of a set in the file of a model, which is that of its directory.
    fn set_name(&self) -> &OsStr {
        self.model().location.file_name()
    }

    pub fn lookup(&self, parent: Ino, name: &[u8], request: &ReadRequest) -> Result<Attr, Error> {
        let dir = self.dir(parent, request)?;
        let name = str::from_utf8(name).map_err(|_| Error::NoEntry)?;
        if let Some((view, folder)) = self.folder(dir, request)? {
            let entry = folder.find(name).ok_or(Error::NoEntry)?;
            return self.attr(&self.node(entry_inode(view, entry), request)?, request);
        }
        if dir == InodeDir::Root
            && let Some(set) = self.sets.iter().find(|set| set.set_name() == name)
        {
            return set.getattr(ROOT, request);
        }
        let inode = match dir {
            InodeDir::Root | InodeDir::Shard(_) => {
                let view = View::all().find(|view| view.row().file == name);
                view.filter(|view| self.has_view(dir, *view)).map(|view| view_inode(view, dir.shard()))
            }
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
                ViewFiles::One { .. } | ViewFiles::Folders { .. } => None,
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
        // Everything that may fail or wait is done before the first entry is passed to `add`.
        let folder = self.folder(dir, request)?;
        let tree = match dir {
            InodeDir::Node(view, _) if folder.is_none() => Some(self.tree(view, request)?),
            InodeDir::View(view, _) if matches!(view.row().files, ViewFiles::Tree) => Some(self.tree(view, request)?),
            _ => None,
        };
        if let InodeDir::View(view, _) = dir
            && let ViewFiles::Named { is_ready, .. } = view.row().files
        {
            self.views.check_wait(is_ready(&self.views), request)?;
        }
        let parent = self.parent(dir, tree, folder);
        if Dentry::dots(ino::join(self.number, Inode::Dir(dir).ino()), parent, offset, &mut add) {
            return Ok(());
        }
        let from = offset.saturating_sub(DOTS) as usize;
        if let Some(tree) = tree {
            let node = if let InodeDir::Node(_, node) = dir { Some(node) } else { None };
            tree.list(self.model(), node, from, |inode, name, next| add(self.dentry(inode, name, next)));
            return Ok(());
        }
        if let Some((view, folder)) = folder {
            for (at, (name, entry)) in folder.entries().iter().enumerate().skip(from) {
                if add(self.dentry(entry_inode(view, *entry), name[..].into(), at + 1)) {
                    break;
                }
            }
            return Ok(());
        }
        let views = self.entries_len(dir);
        for at in from..views {
            if let Some((inode, name)) = self.entry(dir, at)
                && add(self.dentry(inode, name, at + 1))
            {
                return Ok(());
            }
        }
        if dir == InodeDir::Root {
            for (at, set) in self.sets.iter().enumerate().skip(from.saturating_sub(views)) {
                let (ino, name, next) = (root(set.number), set.set_name().into(), (views + at + 1) as u64 + DOTS);
                if add(Dentry { ino, kind: FileKind::Dir, name, next }) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Number of positions in a directory that is neither part of a [`TensorTree`] nor a folder.
    fn entries_len(&self, dir: InodeDir) -> usize {
        match dir {
            InodeDir::Root | InodeDir::Shard(_) => View::all().len(),
            InodeDir::Node(..) => 0,
            InodeDir::View(view, shard) => match &view.row().files {
                ViewFiles::Tensors { .. } => self.tensors_in(shard).len(),
                ViewFiles::Named { len, .. } => len(&self.views, shard),
                ViewFiles::Shards => self.model().files.len(),
                ViewFiles::Tree | ViewFiles::One { .. } | ViewFiles::Folders { .. } => 0,
            },
        }
    }

    /// The entry at a position, if there is one.
    fn entry(&self, dir: InodeDir, at: usize) -> Option<(Inode, Cow<'_, str>)> {
        match dir {
            InodeDir::Root | InodeDir::Shard(_) => {
                let view = Some(View::new(at)).filter(|view| self.has_view(dir, *view))?;
                Some((view_inode(view, dir.shard()), view.row().file.into()))
            }
            InodeDir::Node(..) => None,
            InodeDir::View(view, shard) => match &view.row().files {
                ViewFiles::Tensors { suffix, .. } => {
                    let tensor = self.tensors_in(shard).at(at);
                    let node = self.tensor_file(view, tensor)?;
                    let mut name = name::encode_name(view.numbers(&self.views, tensor).name());
                    if !suffix.is_empty() {
                        name.to_mut().push_str(suffix);
                    }
                    Some((node.inode(), name))
                }
                ViewFiles::Named { at: number, name, .. } => {
                    let number = number(&self.views, shard, at);
                    Some((Inode::File(view, number as u32), name(&self.views, number)?))
                }
                ViewFiles::Shards => {
                    let shard = ModelFileId::new(at);
                    Some((Inode::Dir(InodeDir::Shard(shard)), name::encode_name(&self.model().file(shard).name)))
                }
                ViewFiles::Tree | ViewFiles::One { .. } | ViewFiles::Folders { .. } => None,
            },
        }
    }

    fn dentry<'v>(&self, inode: Inode, name: Cow<'v, str>, next: usize) -> Dentry<'v> {
        let name = match name {
            Cow::Borrowed(name) => Cow::Borrowed(OsStr::new(name)),
            Cow::Owned(name) => Cow::Owned(OsString::from(name)),
        };
        let kind = if matches!(inode, Inode::Dir(_)) { FileKind::Dir } else { FileKind::File };
        Dentry { ino: ino::join(self.number, inode.ino()), kind, name, next: next as u64 + DOTS }
    }

    /// The tensors in the directories of the model, or of one shard.
    fn tensors_in(&self, shard: Option<ModelFileId>) -> TensorPopulation<'_> {
        shard.map_or(self.model().logical(), |shard| self.model().stored_in(shard))
    }

    /// Whether the root or the directory of a shard has a view.
    fn has_view(&self, dir: InodeDir, view: View) -> bool {
        if dir.shard().is_some() { view.is_in_shards(&self.views) } else { view.is_in_root(&self.views) }
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
        let present = XATTRS.iter().filter(|(_, value)| value(self.model(), &tensor).is_some());
        Ok(present.flat_map(|(name, _)| [name.as_bytes(), b"\0"].concat()).collect())
    }

    /// See [`super::Superblock::version`].
    pub fn version(&self, ino: Ino) -> Option<String> {
        let other = match Inode::from_ino(ino)? {
            Inode::File(view, number) => view.other(&self.views, number),
            Inode::Dir(_) => None,
        };
        match other {
            Some(other) => model::version_of(&**other.local()?),
            None => self.version.get_or_init(|| self.model().version()).clone(),
        }
    }

    /// The folder that a directory shows and its view, if that is a view of folders.
    fn folder(&self, dir: InodeDir, request: &ReadRequest) -> Result<Option<(View, &TreeFolder)>, Error> {
        let (view, number) = match dir {
            InodeDir::View(view, None) => (view, 0),
            InodeDir::Node(view, node) => (view, node.number() as usize),
            _ => return Ok(None),
        };
        let ViewFiles::Folders { prepare, folder, .. } = &view.row().files else { return Ok(None) };
        prepare(&self.views, request)?;
        Ok(folder(&self.views, number).map(|folder| (view, folder)))
    }

    pub fn statfs(&self) -> Statfs {
        let model = self.model();
        let blocks = model.sources().iter().map(|source| source.len().div_ceil(SECTOR)).sum();
        let files = (model.listed().len() + model.metadata().len()) as u64;
        Statfs { blocks, files: files + self.sets.iter().map(|set| set.statfs().files).sum::<u64>() }
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

    pub fn model(&self) -> &Arc<Model> {
        &self.views.model
    }

    /// The directories below that of a view.
    fn tree(&self, view: View, request: &ReadRequest) -> Result<&TensorTree, Error> {
        let tree = if view == View::SAMPLES { &self.samples } else { &self.tree };
        self.views.check_wait(tree.get().is_some(), request)?;
        Ok(tree.get_or_init(|| TensorTree::new(self.model(), view)))
    }

    /// The names of the files in the directory of a view, of the whole model or of one file.
    fn names(&self, view: View, shard: Option<ModelFileId>) -> DirectoryNames {
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
        Ok(self.cut.get_or_init(|| self.cut_names()).get(&(names, encoded.to_owned())).copied())
    }

    fn cut_names(&self) -> HashMap<(DirectoryNames, String), TensorId> {
        let model = self.model();
        let mut populations =
            vec![(DirectoryNames::Stored, model.logical()), (DirectoryNames::Logical, model.logical())];
        if View::STORED.is_in_shards(&self.views) {
            let shards = model.file_ids().map(|shard| (DirectoryNames::InShard(shard), model.stored_in(shard)));
            populations.extend(shards);
        }
        let mut cut = HashMap::new();
        for (names, tensors) in populations {
            for id in tensors.iter() {
                if let Some(name) = name::cut_name(model.numbers(id, names == DirectoryNames::Logical).name()) {
                    cut.insert((names, name), id);
                }
            }
        }
        cut
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

    fn find_shard(&self, encoded: &str) -> Option<ModelFileId> {
        let shards = &self.model().files;
        let at = match name::decode_name(encoded) {
            Some(name) => shards.binary_search_by(|shard| shard.name[..].cmp(&name)).ok(),
            None => shards.iter().position(|shard| name::encode_name(&shard.name) == encoded),
        };
        at.map(ModelFileId::new)
    }

    /// The node of an inode. Fails if it does not exist.
    fn node(&self, inode: Inode, request: &ReadRequest) -> Result<VolumeNode<'_>, Error> {
        let dir = match inode {
            Inode::File(view, number) => {
                if let ViewFiles::Named { is_ready, name, .. } = &view.row().files {
                    self.views.check_wait(is_ready(&self.views), request)?;
                    name(&self.views, number as usize).ok_or(Error::NoEntry)?;
                }
                if let ViewFiles::Folders { prepare, .. } = &view.row().files {
                    prepare(&self.views, request)?;
                }
                return view.file(&self.views, number).map(|file| VolumeNode::File(view, file)).ok_or(Error::NoEntry);
            }
            Inode::Dir(dir) => dir,
        };
        let has_shard = dir.shard().is_none_or(|shard| shard.index() < self.model().files.len());
        let exists = match dir {
            InodeDir::Root | InodeDir::Shard(_) => true,
            InodeDir::Node(view, _) if matches!(view.row().files, ViewFiles::Folders { .. }) => {
                view.is_in_root(&self.views) && self.folder(dir, request)?.is_some()
            }
            InodeDir::Node(view, node) => view.is_in_root(&self.views) && self.tree(view, request)?.contains(node),
            InodeDir::View(view, _) => is_dir(view) && self.has_view(dir, view),
        };
        let exists = exists && has_shard;
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
    fn parent(&self, dir: InodeDir, tree: Option<&TensorTree>, folder: Option<(View, &TreeFolder)>) -> Ino {
        let parent = match dir {
            InodeDir::Root => return self.up,
            InodeDir::View(_, None) => InodeDir::Root,
            InodeDir::View(_, Some(shard)) => InodeDir::Shard(shard),
            InodeDir::Shard(_) => InodeDir::View(View::SHARDS, None),
            InodeDir::Node(view, node) => {
                if let Some((_, folder)) = folder {
                    return ino::join(self.number, Inode::Dir(folder_dir(view, folder.parent)).ino());
                }
                let parent = tree.and_then(|tree| tree.parent(self.model(), node));
                parent.map_or(InodeDir::View(view, None), |node| InodeDir::Node(view, node))
            }
        };
        ino::join(self.number, Inode::Dir(parent).ino())
    }

    fn attr(&self, node: &VolumeNode, request: &ReadRequest) -> Result<Attr, Error> {
        let ino = ino::join(self.number, node.inode().ino());
        let (view, file) = match node {
            VolumeNode::Dir(dir) => {
                let stat = match dir {
                    // The directory itself has the attributes of the model, so its files need not be made for this.
                    InodeDir::View(View::EXPORT, _) => None,
                    dir => self.folder(*dir, request)?.and_then(|(_, folder)| folder.stat),
                };
                return Ok(stat.map_or_else(
                    || self.owner.dir(ino),
                    |stat| self.ownership.of_unnamed(stat, Ownership::of_folder).folder(ino),
                ));
            }
            VolumeNode::File(view, file) => (*view, file),
        };
        let size = view.content(&self.views, file, request)?.ok_or(Error::NoEntry)?.len();
        // Derived files have one sector, so that `du` hardly counts them. With none, `tar --sparse` would treat the
        // file as a hole and store zeros.
        let sectors = u64::from(size > 0);
        let ViewFile::Tensor(TensorNumbers { tensor, .. }) = file else {
            let other = view.other(&self.views, file.number());
            return Ok(other
                .map_or(self.owner, |other| self.ownership.of_unnamed(other.stat, Ownership::of))
                .file(ino, size, sectors));
        };
        // A part of a joined array takes no additional space.
        let is_data = view == View::STORED && self.model().listed().contains(tensor.id);
        let blocks = if is_data { size.div_ceil(SECTOR) } else { sectors };
        Ok(Attr { nlink: self.links(view, tensor), ..self.owner.file(ino, size, blocks) })
    }

    /// The link count of a tensor's file in a view. A stored tensor may have more links in other views.
    fn links(&self, view: View, tensor: &Tensor) -> u32 {
        let model = self.model();
        let (mut in_root, mut in_shard) = (0, 0);
        for other in View::all().filter(|other| self.is_link(view, *other, tensor.id)) {
            in_root += u32::from(other.is_in_root(&self.views));
            in_shard += u32::from(other.is_in_shards(&self.views));
        }
        let paths = [View::TREE, View::SAMPLES].into_iter().filter(|paths| {
            view == View::STORED && paths.is_in_root(&self.views) && NameSplit::of(*paths, model).has(tensor.info.name)
        });
        let is_in_shard = tensor.file().is_some() && View::SHARDS.is_in_root(&self.views);
        let logical = if model.logical().contains(tensor.id) { in_root + paths.count() as u32 } else { 0 };
        logical + if is_in_shard { in_shard } else { 0 }
    }

    /// Whether the file of a tensor in the view `other` is the one in `view`.
    fn is_link(&self, view: View, other: View, tensor: TensorId) -> bool {
        match &other.row().files {
            ViewFiles::Tensors { is_stored, .. } => {
                other == view || view == View::STORED && is_stored(&other.numbers(&self.views, tensor))
            }
            _ => false,
        }
    }
}

/// The directory of a view that shows a folder.
fn folder_dir(view: View, folder: usize) -> InodeDir {
    match folder {
        0 => InodeDir::View(view, None),
        folder => InodeDir::Node(view, NodeId::new(folder as u32)),
    }
}

fn entry_inode(view: View, entry: TreeEntry) -> Inode {
    match entry {
        TreeEntry::Folder(folder) => Inode::Dir(folder_dir(view, folder)),
        TreeEntry::File(number) => Inode::File(view, number as u32),
    }
}

/// The inode of a view in the root or in the directory of a shard.
fn view_inode(view: View, shard: Option<ModelFileId>) -> Inode {
    if is_dir(view) { Inode::Dir(InodeDir::View(view, shard)) } else { Inode::File(view, View::only_file(shard)) }
}

fn is_dir(view: View) -> bool {
    !matches!(view.row().files, ViewFiles::One { .. })
}

/// The complete inode number of the root of a tree.
pub(super) fn root(number: u32) -> Ino {
    ino::join(number, ROOT)
}
