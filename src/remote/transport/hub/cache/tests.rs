use std::os::unix::fs::symlink;

use super::*;
use crate::remote::location::RemoteLocation;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn place(path: &str) -> HubLocation {
    match RemoteLocation::parse(&format!("hf://a/b@{COMMIT}/{path}")).unwrap().unwrap() {
        RemoteLocation::Hub(hub) => hub,
        _ => panic!("{path}"),
    }
}

/// A cache with one repository, in `dir`.
fn repository(dir: &Path) -> PathBuf {
    let root = dir.join("models--a--b");
    for folder in ["refs", "blobs", "trees", &format!("snapshots/{COMMIT}/sub")] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    root
}

#[test]
fn files_are_found_behind_links_and_as_plain_files() {
    let dir = tempfile::tempdir().unwrap();
    let root = repository(dir.path());
    let snapshot = root.join("snapshots").join(COMMIT);
    fs::write(root.join("blobs").join(SHA256), "linked").unwrap();
    symlink(format!("../../../blobs/{SHA256}"), snapshot.join("sub/linked.gguf")).unwrap();
    fs::write(snapshot.join("plain.gguf"), "plain").unwrap();
    // A blob that links on to a store by another hash.
    let stored = dir.path().join("blobs/ab");
    fs::create_dir_all(&stored).unwrap();
    fs::write(stored.join("f".repeat(64)), "stored").unwrap();
    let oid = "1".repeat(40);
    symlink(stored.join("f".repeat(64)), root.join("blobs").join(&oid)).unwrap();
    symlink(format!("../../blobs/{oid}"), snapshot.join("stored.json")).unwrap();
    symlink("/etc/hostname", snapshot.join("outside")).unwrap();
    symlink("../../blobs/missing", snapshot.join("dangling")).unwrap();

    let cache = HubCache(dir.path().to_path_buf());
    let linked = format!("sha256:{SHA256}");
    let git = format!("git:{oid}");
    let file = |path: &str, len, content| cache.file(&place(path), len, content);
    assert_eq!(file("sub/linked.gguf", Some(6), Some(&linked)).unwrap().content, Some(linked.clone()));
    assert_eq!(file("sub/linked.gguf", Some(7), None), None);
    assert_eq!(file("sub/linked.gguf", None, Some(&git)), None);
    assert_eq!(file("plain.gguf", Some(5), Some(&linked)).unwrap().content, None);
    assert_eq!(file("stored.json", Some(6), None).unwrap().content, Some(git.clone()));
    for path in ["outside", "dangling", "sub", "missing"] {
        assert_eq!(file(path, None, None), None, "{path}");
    }
    let mut walked: Vec<_> = cache.walk(&place("")).into_iter().map(|entry| (entry.path, entry.len)).collect();
    walked.sort();
    let expected = [("plain.gguf", 5), ("stored.json", 6), ("sub/linked.gguf", 6)];
    assert_eq!(walked, expected.map(|(path, len)| (path.to_string(), len)));
}

#[test]
fn branches_and_listings_are_read_and_nonsense_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let root = repository(dir.path());
    fs::write(root.join("refs/main"), COMMIT).unwrap();
    fs::write(root.join("refs/broken"), "x").unwrap();
    let cache = HubCache(dir.path().to_path_buf());
    assert_eq!(cache.commit(&place(""), "main"), Some(COMMIT.to_string()));
    assert_eq!(cache.commit(&place(""), "broken"), None);
    assert_eq!(cache.listing(&place("")), None);
    let list = |text: &str| {
        fs::write(root.join("trees").join(format!("{COMMIT}.json")), text).unwrap();
        cache.listing(&place(""))
    };
    let text = format!(
        r#"{{"format_version": 1, "files": {{"a": {{"size": 3, "blob_id": "{COMMIT}"}},
        "b/c": {{"size": 130, "blob_id": "x", "lfs_sha256": "{SHA256}", "lfs_size": 7, "xet_hash": "x"}},
        "../d": {{"size": 3, "blob_id": "x"}}}}}}"#
    );
    let entry = |path: &str, len, content: String| HubEntry { path: path.into(), len, content: Some(content) };
    let expected = vec![entry("a", 3, format!("git:{COMMIT}")), entry("b/c", 7, format!("sha256:{SHA256}"))];
    assert_eq!(list(&text), Some(expected));
    assert_eq!(list(&text.replace("\"format_version\": 1", "\"format_version\": 2")), None);
    assert_eq!(list("{"), None);
}
