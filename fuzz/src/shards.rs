//! Directories of shards with an index or a manifest, for the targets that open models of several files.

use super::headers::{self, odd_value};
use arbitrary::{Result as Arbitrary, Unstructured};
use std::collections::BTreeMap;
use tempfile::TempDir;
use weightfs::content::ReadRequest;
use weightfs::format::ParseMode;
use weightfs::fs::{FileKind, Ino, Ownership, ROOT, Superblock};
use weightfs::model::{self, OpenedModel};
use weightfs::source::Bytes;
use weightfs::view::ShownViews;

/// A directory of shards. Another shard is outside of it, where no index or manifest may lead.
pub struct Shards(TempDir);

/// Shard names that lead to no shard, outside of the directory, or to `a.safetensors`.
pub const ODD_NAMES: [&str; 12] = [
    "missing.safetensors",
    "./a.safetensors",
    "../outside.safetensors",
    "/outside.safetensors",
    "sub/../a.safetensors",
    "a.safetensors/",
    "a.bin",
    "",
    ".safetensors",
    "sub",
    "sub.safetensors",
    "a\0.safetensors",
];

/// Whether weightfs must refuse a shard name.
pub fn is_refused(name: &str) -> bool {
    name.starts_with('/') || name.split('/').any(|part| part == "..") || !name.ends_with(".safetensors")
}

/// The normalised path of a shard name.
pub fn path(name: &str) -> String {
    name.split('/').filter(|part| !matches!(*part, "" | ".")).collect::<Vec<_>>().join("/")
}

/// A tensor as a mount shows it.
#[derive(Debug, PartialEq)]
pub struct Seen {
    /// Its shard; `None` for an array that is joined from several.
    pub shard: Option<String>,
    pub shape: String,
    pub data: Vec<u8>,
}

/// Tensors by name.
pub type Tensors = BTreeMap<String, Seen>;

/// A model as a mount shows it.
#[derive(Debug)]
pub struct Opening {
    pub whole: Tensors,
    /// The tensors of each shard of a dataset.
    pub shards: BTreeMap<String, Tensors>,
    pub skipped: usize,
}

impl Shards {
    /// Makes a directory of these files: name, content.
    pub fn new<'f>(files: impl IntoIterator<Item = (&'f str, Vec<u8>)>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for made in ["model", "model/sub", "model/sub.safetensors"] {
            std::fs::create_dir(dir.path().join(made)).unwrap();
        }
        for (name, bytes) in files {
            std::fs::write(dir.path().join("model").join(name), bytes).unwrap();
        }
        std::fs::write(dir.path().join("outside.safetensors"), file(&[("outside", "U8", &[1], &[1])])).unwrap();
        Self(dir)
    }

    /// Opens the model by an index or manifest of this name and text; `None` if it is refused.
    pub fn open(&self, list: &str, text: &[u8], mode: ParseMode) -> Option<Opening> {
        let path = self.0.path().join("model").join(list);
        std::fs::write(&path, text).unwrap();
        let model = match model::open_model(&path.as_path().into(), mode) {
            Ok(model) => model,
            Err(error) => {
                assert!(error.to_string().starts_with(path.parent().unwrap().to_str().unwrap()), "{error}");
                return None;
            }
        };
        let skipped = model.skipped().count();
        let opened = OpenedModel::Model(model.into(), None);
        let (mut whole, mut shards) = <(Tensors, BTreeMap<_, _>)>::default();
        if let Some(superblock) = Superblock::new(opened, ShownViews::default(), Ownership::default()) {
            whole = tensors(&superblock, ROOT);
            for (ino, kind, name) in
                list_dir(&superblock, superblock.lookup(ROOT, b"shards", &ReadRequest::WAIT).unwrap().ino)
            {
                assert_eq!(kind, FileKind::Dir);
                if superblock.lookup(ino, b"tensors", &ReadRequest::WAIT).is_ok() {
                    shards.insert(name, tensors(&superblock, ino));
                }
            }
        }
        Some(Opening { whole, shards, skipped })
    }
}

/// Reads a part of a file.
pub fn read(superblock: &Superblock, ino: Ino, offset: u64, size: u64) -> Result<Bytes, weightfs::fs::Error> {
    let content = superblock.open(ino, &ReadRequest::WAIT)?;
    Ok(content.read(offset..offset.saturating_add(size), &ReadRequest::WAIT)?)
}

/// The tensors in `tensors/` of a directory.
fn tensors(superblock: &Superblock, parent: Ino) -> Tensors {
    let dir = superblock.lookup(parent, b"tensors", &ReadRequest::WAIT).unwrap().ino;
    let mut tensors = BTreeMap::new();
    for (ino, _, name) in list_dir(superblock, dir) {
        let attr = superblock.lookup(dir, name.as_bytes(), &ReadRequest::WAIT).unwrap();
        assert_eq!(attr.ino, ino);
        let xattr = |name: &str| {
            let value = superblock.getxattr(ino, name.as_bytes(), &ReadRequest::WAIT).ok()?;
            Some(String::from_utf8(value).unwrap())
        };
        let data = read(superblock, ino, 0, u64::MAX).unwrap().to_vec();
        assert_eq!(data.len() as u64, attr.size);
        let seen = Seen { shard: xattr("user.weightfs.shard"), shape: xattr("user.weightfs.shape").unwrap(), data };
        assert!(tensors.insert(xattr("user.weightfs.name").unwrap(), seen).is_none(), "a repeated name");
    }
    tensors
}

/// The entries of a directory, without `.` and `..`.
fn list_dir(superblock: &Superblock, dir: Ino) -> Vec<(Ino, FileKind, String)> {
    let mut entries = Vec::new();
    let add = |entry: weightfs::fs::Dentry| {
        entries.push((entry.ino, entry.kind, entry.name.to_str().unwrap().to_owned()));
        false
    };
    superblock.readdir(dir, 0, &ReadRequest::WAIT, add).unwrap();
    entries.split_off(2)
}

/// A safetensors file of these tensors in this order: name, dtype, shape, bytes.
pub fn file(tensors: &[(&str, &str, &[u64], &[u8])]) -> Vec<u8> {
    let (mut members, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let begin = data.len();
        data.extend_from_slice(bytes);
        let name = serde_json::to_string(name).unwrap();
        let offsets = [begin, data.len()];
        members.push(format!(r#"{name}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":{offsets:?}}}"#));
    }
    let header = format!("{{{}}}", members.join(","));
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

/// The meaning of the text of an index or manifest.
#[derive(Debug, PartialEq, Eq)]
pub enum Meaning {
    /// What it was made from.
    Same,
    /// None: it must be refused.
    Invalid,
    /// Any: it may be valid or not.
    Unknown,
}

/// The text of an index or manifest, a JSON object: unchanged, in another form, or damaged.
pub fn spoil(text: &str, bytes: &mut Unstructured) -> Arbitrary<(Vec<u8>, Meaning)> {
    Ok(match bytes.int_in_range(0..=15)? {
        0..=9 => (text.into(), Meaning::Same),
        10 => (format!(" \t{text}\r\n").into(), Meaning::Same),
        11 => {
            let value = odd_value(bytes)?;
            let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&value).is_ok();
            let meaning = if is_json { Meaning::Same } else { Meaning::Invalid };
            (text.replacen('{', &format!("{{\"more\":{value},"), 1).into(), meaning)
        }
        12 => (format!("{text}{{}}").into(), Meaning::Invalid),
        13 => (text.as_bytes()[..bytes.choose_index(text.len())?].into(), Meaning::Invalid),
        _ => {
            let mut text = text.into();
            for _ in 0..bytes.int_in_range(1..=3)? {
                headers::mutate(bytes, &mut text)?;
            }
            (text, Meaning::Unknown)
        }
    })
}
