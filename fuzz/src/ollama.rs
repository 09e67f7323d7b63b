//! Target `ollama`: for every Ollama manifest, a mount shows each layer or an error file, and no link and no model
//! leads out of the directory of blobs.

use super::headers::once_in;
use super::shards::{self, Meaning};
use arbitrary::{Result, Unstructured};
use std::collections::BTreeSet;
use weightfs::content::ReadRequest;
use weightfs::format::ParseMode;
use weightfs::fs::{FileKind, Ino, Ownership, ROOT, Superblock};
use weightfs::model;
use weightfs::view::ShownViews;

pub fn run(bytes: &[u8]) -> bool {
    open(&mut Unstructured::new(bytes)).unwrap_or(false)
}

/// Media types, the file names of their layers without the ending, the endings, and whether they are models.
const KINDS: [(&str, &str, &str, bool); 10] = [
    ("application/vnd.ollama.image.model", "model", "", true),
    ("application/vnd.ollama.image.adapter", "adapter", "", true),
    ("application/vnd.ollama.image.projector", "projector", "", true),
    ("application/vnd.ollama.image.template", "template", "", false),
    ("application/vnd.ollama.image.prompt", "template", "", false),
    ("application/vnd.ollama.image.params", "params", ".json", false),
    ("application/vnd.ollama.image.messages", "messages", ".json", false),
    ("application/vnd.ollama.image.license", "license", "", false),
    ("application/vnd.ollama.image.../..", "..%2F..", "", false),
    ("a/b", "a%2Fb", "", false),
];

/// Digests that must be refused.
const REFUSED: [&str; 6] = ["", "sha256:", "sha256:../../outside", "sha256-/etc/passwd", "sha512:00", "../outside"];

fn open(bytes: &mut Unstructured) -> Result<bool> {
    let dir = tempfile::tempdir().unwrap();
    let (blobs, tag) = (dir.path().join("blobs"), dir.path().join("manifests/registry.ollama.ai/library/a/b"));
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::create_dir_all(tag.parent().unwrap()).unwrap();
    let data = shards::file(&[("t", "U8", &[1], &[1])]);
    let sound = "5".repeat(64);
    std::fs::write(blobs.join(format!("sha256-{sound}")), &data).unwrap();
    let (mut layers, mut expected, mut taken) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for _ in 0..=bytes.int_in_range(0..=5)? {
        let (media_type, stem, ending, is_model) = *bytes.choose(&KINDS)?;
        let mut size = data.len();
        let (digest, is_sound) = match bytes.int_in_range(0..=7)? {
            0..=3 => (format!("sha256:{sound}"), true),
            4 => (format!("sha256-{sound}"), true),
            5 => (format!("sha256:{}", "6".repeat(64)), false),
            6 => {
                size += 1;
                (format!("sha256:{sound}"), false)
            }
            _ => ((*bytes.choose(&REFUSED)?).to_owned(), false),
        };
        let mut name = format!("{stem}{ending}");
        for number in 2.. {
            if taken.insert(name.clone()) {
                break;
            }
            name = format!("{stem}-{number}{ending}");
        }
        let kind = match (is_sound, is_model) {
            (true, true) => FileKind::Dir,
            (true, false) => FileKind::Link,
            (false, _) => FileKind::File,
        };
        expected.insert((if is_sound { name } else { format!("{name}.error.txt") }, format!("{kind:?}")));
        let size = if once_in(8, bytes)? && is_sound { String::new() } else { format!(",\"size\":{size}") };
        let text = |text: &str| serde_json::to_string(text).unwrap();
        layers.push(format!("{{\"mediaType\":{},\"digest\":{}{size}}}", text(media_type), text(&digest)));
    }
    expected.insert(("manifest.json".to_owned(), format!("{:?}", FileKind::Link)));
    let text = format!("{{\"schemaVersion\":2,\"layers\":[{}]}}", layers.join(","));
    let (text, meaning) = shards::spoil(&text, bytes)?;
    std::fs::write(&tag, &text).unwrap();
    let source = if once_in(2, bytes)? { tag.as_path() } else { dir.path() };
    let Ok(opened) = model::open_location(&source.into(), ParseMode::Strict) else {
        // There is no layer with a model.
        assert!(meaning != Meaning::Same || KINDS.iter().all(|kind| !kind.3 || !taken.contains(kind.1)));
        return Ok(false);
    };
    let superblock = Superblock::new(opened, ShownViews::default(), Ownership::default()).unwrap();
    let find = |parent: Ino, name: &str| superblock.lookup(parent, name.as_bytes(), &ReadRequest::WAIT).unwrap().ino;
    let folder = find(find(ROOT, "a"), "b");
    let mut found = BTreeSet::new();
    let add = |entry: weightfs::fs::Dentry| {
        found.insert((entry.name.to_str().unwrap().to_owned(), format!("{:?}", entry.kind), entry.ino));
        false
    };
    superblock.readdir(folder, 0, &ReadRequest::WAIT, add).unwrap();
    for (_, _, ino) in found.iter().filter(|entry| entry.1 == format!("{:?}", FileKind::Link)) {
        let target = std::str::from_utf8(superblock.readlink(*ino).unwrap()).unwrap();
        let target = std::path::Path::new(target);
        assert!(target == tag || target.parent() == Some(&blobs), "{}", target.display());
    }
    let found: BTreeSet<_> = found
        .into_iter()
        .map(|(name, kind, _)| (name, kind))
        .filter(|entry| ![".", ".."].contains(&&*entry.0))
        .collect();
    match meaning {
        Meaning::Same => assert_eq!(found, expected),
        Meaning::Invalid => assert_eq!(found.len(), 1, "{found:?}"),
        Meaning::Unknown => {}
    }
    Ok(meaning == Meaning::Same)
}
