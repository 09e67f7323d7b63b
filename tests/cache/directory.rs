//! The directory of the cache: owner, permissions, layout, and links.

use crate::support::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;
use weightfs::remote::cache::{BlockCache, CacheError, CacheOptions};
use weightfs::source::pins::BLOCK;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Whether the tests can give files to other users.
fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: this test needs root");
    }
    is_root
}

#[test]
fn only_the_user_has_access() {
    let parent = tempdir();
    let dir = parent.path().join("a/weightfs");
    let cache = open(&dir);
    let object = cache.object(&key(1, BLOCK)).unwrap();
    fill(&object, 1, 0..1);
    cache.keep_listing("hf://org/model", b"listing").unwrap();
    let mut seen = 0;
    let mut stack = vec![parent.path().join("a")];
    while let Some(path) = stack.pop() {
        let is_dir = fs::symlink_metadata(&path).unwrap().is_dir();
        assert_eq!(mode(&path), if is_dir { 0o700 } else { 0o600 }, "{}", path.display());
        if is_dir {
            stack.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        seen += 1;
    }
    assert_eq!(seen, 14, "five directories, and nine files");
    // A directory that was made by hand.
    fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
    open(&dir);
    assert_eq!(mode(&dir), 0o700);
    assert!(
        fs::read_to_string(dir.join("CACHEDIR.TAG"))
            .unwrap()
            .starts_with("Signature: 8a477f597d28d172789f06886806bc55")
    );
}

#[test]
fn later_layout_is_refused_and_a_damaged_number_is_repaired() {
    let dir = tempdir();
    fill(&open(dir.path()).object(&key(1, BLOCK)).unwrap(), 1, 0..1);
    let layout = dir.path().join("layout");
    assert_eq!(fs::read_to_string(&layout).unwrap(), "1\n");
    for damaged in [&b""[..], b"\0\0", b"one", &[255; 100]] {
        fs::write(&layout, damaged).unwrap();
        assert_eq!(verify(&open(dir.path()).object(&key(1, BLOCK)).unwrap(), 1), 1);
        assert_eq!(fs::read_to_string(&layout).unwrap(), "1\n");
    }
    fs::write(&layout, "2\n").unwrap();
    let refused = [
        BlockCache::open(dir.path(), CacheOptions::default()).unwrap_err(),
        BlockCache::list(dir.path()).unwrap_err(),
        prune(dir.path(), 0).unwrap_err(),
        clear(dir.path()).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, CacheError::Layout { found: 2, known: 1, .. }), "{error}");
        assert!(error.to_string().contains("use a newer weightfs or another directory"), "{error}");
    }
    assert_eq!(fs::read_to_string(&layout).unwrap(), "2\n");
}

#[test]
fn directory_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    let dir = tempdir();
    lchown(dir.path(), Some(1234), None).unwrap();
    let error = BlockCache::open(dir.path(), CacheOptions::default()).unwrap_err();
    assert!(matches!(error, CacheError::NotOwned { owner: 1234, user: 0, .. }), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    lchown(dir.path(), Some(0), None).unwrap();
    open(dir.path());
    lchown(dir.path().join("objects"), Some(1234), None).unwrap();
    assert!(matches!(BlockCache::list(dir.path()), Err(CacheError::NotOwned { .. })));
}

#[test]
fn own_links_are_followed_and_those_of_others_are_not() {
    if !is_root() {
        return;
    }
    let parent = tempdir();
    let real = parent.path().join("real");
    fs::create_dir(&real).unwrap();
    let link = parent.path().join("link");
    symlink("real", &link).unwrap();
    open(&link.join("x/../cache"));
    assert!(real.join("cache/objects").is_dir());
    lchown(&link, Some(1234), None).unwrap();
    for path in [link.clone(), link.join("cache")] {
        let error = BlockCache::open(&path, CacheOptions::default()).unwrap_err();
        assert!(matches!(error, CacheError::Link { owner: 1234, .. }), "{error}");
        assert!(error.to_string().starts_with(&link.display().to_string()), "{error}");
    }
    // A loop of own links ends.
    let (a, b) = (parent.path().join("a"), parent.path().join("b"));
    symlink(&a, &b).unwrap();
    symlink(&b, &a).unwrap();
    assert!(BlockCache::open(&a, CacheOptions::default()).is_err());
    // Another kind of file.
    fs::write(parent.path().join("file"), "").unwrap();
    let error = BlockCache::open(&parent.path().join("file/cache"), CacheOptions::default()).unwrap_err();
    assert!(matches!(error, CacheError::NotADirectory { .. }), "{error}");
}

#[test]
fn links_inside_the_cache_are_replaced_and_not_followed() {
    let dir = tempdir();
    let victim = dir.path().join("victim");
    for name in ["data", "table", "lock", "about.json", "about.new"] {
        fs::write(&victim, "precious").unwrap();
        let cache = dir.path().join(name);
        fill(&open(&cache).object(&key(1, BLOCK)).unwrap(), 1, 0..1);
        let path = file(&cache, name);
        _ = fs::remove_file(&path);
        symlink(&victim, &path).unwrap();
        let object = match open(&cache).object(&key(1, BLOCK)) {
            Ok(object) => object,
            Err(error) => panic!("{name}: {error}"),
        };
        let expected = if matches!(name, "data" | "table") { 0 } else { 1 };
        assert_eq!(verify(&object, 1), expected, "{name}");
        fill(&object, 1, 0..1);
        assert_eq!(verify(&object, 1), 1);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{name}");
    }
    // The directory of an object.
    let cache = dir.path().join("object");
    drop(open(&cache).object(&key(1, BLOCK)).unwrap());
    let path = file(&cache, "data").parent().unwrap().to_owned();
    fs::rename(&path, dir.path().join("elsewhere")).unwrap();
    symlink(dir.path().join("elsewhere"), &path).unwrap();
    fill(&open(&cache).object(&key(1, BLOCK)).unwrap(), 1, 0..1);
    assert_eq!(fs::metadata(dir.path().join("elsewhere/data")).unwrap().blocks(), 0);
}

#[test]
fn default_directory_is_in_the_users_cache() {
    // Variables of this process cannot be changed while other tests run, so this checks what is set.
    let expected = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
        (Some(cache), _) if Path::new(&cache).is_absolute() => Some(Path::new(&cache).join("weightfs")),
        (_, Some(home)) if Path::new(&home).is_absolute() => Some(Path::new(&home).join(".cache/weightfs")),
        _ => None,
    };
    assert_eq!(weightfs::remote::cache::default_dir(), expected);
}
