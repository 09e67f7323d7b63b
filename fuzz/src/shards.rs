//! A directory of shards beside their list, for the targets that open models of many files.

use super::headers::{self, odd_value};
use arbitrary::{Result, Unstructured};
use std::collections::BTreeMap;
use tempfile::TempDir;
use weightfs::format::Mode;
use weightfs::fs::{FileKind, Ino, Ownership, ROOT, Shown, Superblock};
use weightfs::model::{Model, Opened};

/// The shards that are there, and one more beside their directory, where no list may lead.
pub struct Shards(TempDir);

/// Names that lead nowhere, elsewhere, or to the first shard by another name.
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

/// Whether SPEC has that name refused.
pub fn is_refused(name: &str) -> bool {
    name.starts_with('/') || name.split('/').any(|part| part == "..") || !name.ends_with(".safetensors")
}

/// The path to which a name leads, in one spelling.
pub fn path(name: &str) -> String {
    name.split('/').filter(|part| !matches!(*part, "" | ".")).collect::<Vec<_>>().join("/")
}

/// What a tensor looks like from outside.
#[derive(Debug, PartialEq)]
pub struct Seen {
    /// Unless it is joined from several.
    pub shard: Option<String>,
    pub shape: String,
    pub data: Vec<u8>,
}

/// Tensors by name.
pub type Tensors = BTreeMap<String, Seen>;

/// A model as it looks from outside.
#[derive(Debug)]
pub struct Opening {
    pub whole: Tensors,
    /// What is in each of the shards, of a dataset.
    pub shards: BTreeMap<String, Tensors>,
    pub skipped: usize,
}

impl Shards {
    /// These files.
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

    /// Opens the model of that list; `None` where it is refused.
    pub fn open(&self, list: &str, text: &[u8], mode: Mode) -> Option<Opening> {
        let path = self.0.path().join("model").join(list);
        std::fs::write(&path, text).unwrap();
        let model = match Model::open(&path, mode) {
            Ok(model) => model,
            Err(error) => {
                assert!(error.to_string().starts_with(path.parent().unwrap().to_str().unwrap()), "{error}");
                return None;
            }
        };
        let skipped = model.skipped().count();
        let opened = Opened::Model(model.into());
        let (mut whole, mut shards) = <(Tensors, BTreeMap<_, _>)>::default();
        if let Some(superblock) = Superblock::new(opened, Shown::default(), Ownership::default()) {
            whole = tensors(&superblock, ROOT);
            for (ino, kind, name) in list_dir(&superblock, superblock.lookup(ROOT, b"shards").unwrap().ino) {
                assert_eq!(kind, FileKind::Dir);
                if superblock.lookup(ino, b"tensors").is_ok() {
                    shards.insert(name, tensors(&superblock, ino));
                }
            }
        }
        Some(Opening { whole, shards, skipped })
    }
}

/// `tensors/` of a directory.
fn tensors(superblock: &Superblock, parent: Ino) -> Tensors {
    let dir = superblock.lookup(parent, b"tensors").unwrap().ino;
    let mut tensors = BTreeMap::new();
    for (ino, _, name) in list_dir(superblock, dir) {
        let attr = superblock.lookup(dir, name.as_bytes()).unwrap();
        assert_eq!(attr.ino, ino);
        let xattr = |name: &str| Some(String::from_utf8(superblock.getxattr(ino, name.as_bytes()).ok()?).unwrap());
        let data = superblock.read(ino, 0, u32::MAX, &|| false).unwrap().to_vec();
        assert_eq!(data.len() as u64, attr.size);
        let seen = Seen { shard: xattr("user.weightfs.shard"), shape: xattr("user.weightfs.shape").unwrap(), data };
        assert!(tensors.insert(xattr("user.weightfs.name").unwrap(), seen).is_none(), "a name that stands twice");
    }
    tensors
}

fn list_dir(superblock: &Superblock, dir: Ino) -> Vec<(Ino, FileKind, String)> {
    let mut entries = Vec::new();
    let add = |entry: weightfs::fs::Dentry| {
        entries.push((entry.ino, entry.kind, entry.name.to_str().unwrap().to_owned()));
        false
    };
    superblock.readdir(dir, 0, add).unwrap();
    entries.split_off(2)
}

/// A safetensors file of tensors in the order of their data: name, dtype, shape, bytes.
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

/// What a list says.
#[derive(Debug, PartialEq, Eq)]
pub enum Says {
    /// What it was made to say.
    This,
    /// Nothing that may be accepted.
    Nothing,
    /// Who knows.
    Something,
}

/// The text of a list, a JSON object, as it is, in another form, or spoilt.
pub fn spoil(text: &str, bytes: &mut Unstructured) -> Result<(Vec<u8>, Says)> {
    Ok(match bytes.int_in_range(0..=15)? {
        0..=9 => (text.into(), Says::This),
        10 => (format!(" \t{text}\r\n").into(), Says::This),
        11 => {
            let value = odd_value(bytes)?;
            let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&value).is_ok();
            let says = if is_json { Says::This } else { Says::Nothing };
            (text.replacen('{', &format!("{{\"more\":{value},"), 1).into(), says)
        }
        12 => (format!("{text}{{}}").into(), Says::Nothing),
        13 => (text.as_bytes()[..bytes.choose_index(text.len())?].into(), Says::Nothing),
        _ => {
            let mut text = text.into();
            for _ in 0..bytes.int_in_range(1..=3)? {
                headers::mutate(bytes, &mut text)?;
            }
            (text, Says::Something)
        }
    })
}
