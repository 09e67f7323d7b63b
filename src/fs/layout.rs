//! The root directory: knows which views stand there under which names, and which of them a mount shows.

use super::inode::{Dir, FileRef, Inode};
use crate::format::Dtype;
use crate::model::{Kind, MANIFEST};
use crate::view::View;

/// The root's entries: file name, the name by which `--views` calls it, and what it is.
const ENTRIES: [(&str, &str, Inode); 15] = [
    ("SHA256SUMS", "sums", file(View::Sums)),
    (MANIFEST, "manifest", file(View::Manifest)),
    ("export", "export", Inode::Dir(Dir::Export)),
    ("f32", "f32", Inode::Dir(Dir::Flat(View::F32))),
    ("header.json", "header", file(View::Header)),
    ("index.json", "index", file(View::Index)),
    ("metadata", "metadata", Inode::Dir(Dir::Metadata)),
    ("metadata.json", "metadata", file(View::MetadataJson)),
    ("npy", "npy", Inode::Dir(Dir::Flat(View::Npy))),
    ("plots", "plots", Inode::Dir(Dir::Flat(View::Plot))),
    ("safetensors", "safetensors", Inode::Dir(Dir::Flat(View::Single))),
    ("shards", "shards", Inode::Dir(Dir::Shards)),
    ("stats", "stats", Inode::Dir(Dir::Flat(View::Stats))),
    ("tensors", "tensors", Inode::Dir(Dir::Flat(View::Raw))),
    ("tree", "tree", Inode::Dir(Dir::Tree)),
];

const fn file(view: View) -> Inode {
    Inode::File(FileRef { view, item: 0 })
}

/// Which views a mount shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown(Vec<&'static str>);

/// A view that nobody knows.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no view is called {name:?}; there are {}", Shown::names().join(", "))]
pub struct UnknownView {
    name: String,
}

impl Default for Shown {
    /// All of them.
    fn default() -> Self {
        Self(Self::names())
    }
}

impl Shown {
    /// The names of all views, in the order of the root directory.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<_> = ENTRIES.iter().map(|entry| entry.1).collect();
        names.dedup();
        names
    }

    /// The views of these names and no others.
    pub fn only<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<Self, UnknownView> {
        let find = |name: &str| {
            let known = Self::names().into_iter().find(|known| *known == name);
            known.ok_or_else(|| UnknownView { name: name.to_owned() })
        };
        names.into_iter().map(find).collect::<Result<_, _>>().map(Self)
    }

    /// Whether the view of that name is shown.
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains(&name)
    }

    /// How many names the file of a tensor has, in the whole, in its shard, or in both. A raw one stands in `tensors/` and, if
    /// that has it, in `tree/`, and, being F32, in `f32/`.
    pub(super) fn links(&self, view: View, dtype: Dtype, in_whole: bool, in_tree: bool, in_shard: bool) -> u32 {
        let in_shard = in_shard && self.contains("shards");
        let is_raw = |name: &str| match name {
            "tensors" => true,
            "tree" => in_tree,
            "f32" => dtype == Dtype::F32,
            _ => false,
        };
        let names = ENTRIES.iter().filter(|(_, name, inode)| {
            let own = *inode == Inode::Dir(Dir::Flat(view));
            self.contains(name) && (own || view == View::Raw && is_raw(name))
        });
        names.map(|(_, name, _)| u32::from(in_whole) + u32::from(in_shard && *name != "tree")).sum()
    }
}

/// What the root of a model of that kind holds.
pub(super) fn entries(shown: &Shown, kind: Kind) -> impl Iterator<Item = (&'static str, Inode)> {
    let elsewhere: &[&str] = match kind {
        Kind::File => &["shards", "manifest"],
        // Each shard has its own.
        Kind::Sharded => &["header", "manifest"],
        Kind::Dataset => &["header"],
    };
    ENTRIES
        .into_iter()
        .filter(move |entry| shown.contains(entry.1) && !elsewhere.contains(&entry.1))
        .map(|entry| (entry.0, entry.2))
}

/// What `shards/FILE/` holds of a model of that kind. Only the shards of a dataset have tensors that are not in the whole as
/// they are.
pub(super) fn shard_entries(shown: &Shown, kind: Kind, shard: u32) -> impl Iterator<Item = (&'static str, Inode)> {
    let flat = |view| Inode::Dir(Dir::ShardFlat(view, shard));
    let item = |view, item| Inode::File(FileRef { view, item });
    let entries = [
        ("f32", flat(View::F32)),
        ("header.json", item(View::Header, shard)),
        ("metadata", Inode::Dir(Dir::ShardMetadata(shard))),
        // Number 0 is that of the whole model.
        ("metadata.json", item(View::MetadataJson, shard + 1)),
        ("npy", flat(View::Npy)),
        ("safetensors", flat(View::Single)),
        ("tensors", flat(View::Raw)),
    ];
    entries.into_iter().filter(move |(name, inode)| match inode {
        Inode::Dir(Dir::ShardFlat(..)) => kind == Kind::Dataset && shown.contains(name),
        _ => true,
    })
}
