//! `cache`: what it prints about a cache, and what it removes.

use crate::pipes::on_terminal;
use crate::room::Room;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::lchown;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use weightfs::remote::cache::{BlockCache, CacheEntry, CacheKey, CacheOptions, CachedObject};
use weightfs::source::pins::BLOCK;

/// Two versions of a file, whose hashes begin with the same 9 digits.
const VERSIONS: [&str; 2] = ["sha256:0123456789abcdef", "sha256:012345678fffffff"];

const HOSTILE: &str = "https://host/\u{1b}[31mred\n\u{202e}.safetensors";

fn directory(room: &Room) -> PathBuf {
    room.path("cache/weightfs")
}

fn open(room: &Room) -> BlockCache {
    BlockCache::open(&directory(room), CacheOptions::default()).unwrap()
}

/// Adds an object with `blocks` blocks, which was last used `age` seconds ago.
fn add(room: &Room, name: &str, validator: &str, len: u64, blocks: u64, age: u64) {
    release(room, object(room, name, validator, len, blocks));
    let dir = directory(room);
    let listed = BlockCache::list(&dir).unwrap().entries;
    let is_it =
        |entry: &&CacheEntry| entry.name.as_deref() == Some(name) && entry.validator.as_deref() == Some(validator);
    let entry = listed.iter().find(is_it).unwrap();
    let lock = dir.join("objects").join(&entry.id).join("lock");
    let lock = fs::File::options().write(true).open(lock).unwrap();
    lock.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
}

fn object(room: &Room, name: &str, validator: &str, len: u64, blocks: u64) -> Arc<CachedObject> {
    let key = CacheKey { identity: format!("hub {name:?}"), validator: validator.into(), len, name: name.into() };
    let object = open(room).object(&key).unwrap();
    _ = object.write(0, &vec![1; (blocks * BLOCK).min(len) as usize]).unwrap();
    object
}

/// Closes an object. Processes that other tests start at this moment have its descriptors until they execute their
/// programs, so this waits until nobody uses it.
fn release(room: &Room, object: Arc<CachedObject>) {
    drop(object);
    while BlockCache::list(&directory(room)).unwrap().entries.iter().any(|entry| entry.in_use) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

const DAY: u64 = 86_400;

/// A cache with four objects: two versions of one file, one with a hostile name, and an old one.
fn sample() -> Room {
    let room = Room::new();
    add(&room, "hf://org/model@main/model.safetensors", VERSIONS[0], 4 * BLOCK, 4, 2 * DAY + 60);
    add(&room, "hf://org/model@main/model.safetensors", VERSIONS[1], 100 * BLOCK, 1, 3 * 3600 + 60);
    add(&room, HOSTILE, "weak:W/\"x\u{1b}y\" Sun, 22 Nov 2026 10:00:00 GMT", 3 * BLOCK, 2, 61);
    add(&room, "s3://bucket/old.gguf", "etag:\"d41d8cd98f00b204e9800998ecf8427e\"", 2 * BLOCK, 1, 400 * DAY);
    room
}

/// A command line that uses the cache of `room`.
fn line(room: &Room, arguments: &str) -> String {
    format!("XDG_CACHE_HOME={} weightfs cache {arguments}", room.path("cache").display())
}

fn ok(room: &Room, arguments: &str) -> String {
    room.ok(&line(room, arguments))
}

fn json_of(room: &Room, arguments: &str) -> Value {
    serde_json::from_str(&ok(room, &format!("{arguments} --json"))).unwrap()
}

/// The date of the last use of the oldest file.
fn date_of_oldest(room: &Room) -> String {
    let found = json_of(room, "list");
    found["files"].as_array().unwrap().last().unwrap()["last_use"].as_str().unwrap()[..10].to_owned()
}

#[test]
fn list_shows_size_share_last_use_and_version() {
    let room = sample();
    open(&room).keep_listing("hf://org/model", b"listing").unwrap();
    let used = object(&room, "hf://org/model@main/config.json", "git:abcdef0123456789", 1000, 1);
    let dir = directory(&room).display().to_string();
    let old = date_of_oldest(&room);
    let expected = format!(
        r"FILE                                            VERSION     SIZE   CACHED    SHARE       LAST USE
hf://org/model@main/config.json                abcdef01   1.00 kB  1.00 kB    100 %         in use
https://host/\u{{1b}}[31mred\n\u{{202e}}.safetensors  x\u{{1b}}y     197 kB   131 kB   66.6 %   1 minute ago
hf://org/model@main/model.safetensors        012345678f   6.55 MB  65.5 kB    1.0 %    3 hours ago
hf://org/model@main/model.safetensors        0123456789    262 kB   262 kB    100 %     2 days ago
s3://bucket/old.gguf                           d41d8cd9    131 kB  65.5 kB   50.0 %     {old}

{dir}: 5 files, 525 kB of 7.14 MB, 1 in use, the listing of 1 location (39 B)
"
    );
    let words = |text: &str| -> Vec<Vec<String>> {
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let out = ok(&room, "list");
    assert_eq!(words(&out), words(&expected));
    let widths: Vec<usize> = out.lines().take(6).map(|line| line.chars().count()).collect();
    assert!(widths.iter().all(|width| *width == widths[0]), "{out}");
    release(&room, used);
    assert!(!ok(&room, "list").contains("in use"));
}

#[test]
fn list_fits_the_terminal_and_is_whole_in_a_pipe() {
    let room = sample();
    let long = format!("hf://org/model@main/{}/end.safetensors", "folder/".repeat(40));
    add(&room, &long, VERSIONS[0], BLOCK, 1, 10);
    assert!(ok(&room, "list").contains(&long));
    fs::write(room.path("run"), line(&room, "list")).unwrap();
    for columns in [90, 120] {
        let shown = on_terminal(&room, columns, "--version >/dev/null; . ./run");
        assert!(shown.contains('…') && shown.contains("end.safetensors"), "{shown}");
        let lines: Vec<_> = shown.lines().take(6).collect();
        assert!(lines.iter().all(|line| line.chars().count() <= columns.into()), "{shown}");
    }
}

#[test]
fn list_as_json_has_exact_numbers() {
    let room = sample();
    open(&room).keep_listing("hf://org/model", b"listing").unwrap();
    let used = object(&room, "hf://org/model@main/model.safetensors", VERSIONS[1], 100 * BLOCK, 1);
    let found = json_of(&room, "list");
    assert_eq!(found["directory"], directory(&room).to_str().unwrap());
    assert_eq!(found["cached"], 8 * BLOCK);
    assert_eq!(found["listings"], json!({"count": 1, "bytes": 32 + 7}));
    assert_eq!(found["unknown"], json!([]));
    let files = found["files"].as_array().unwrap();
    assert_eq!(files.len(), 4);
    let first = &files[0];
    assert_eq!(first["name"], "hf://org/model@main/model.safetensors");
    assert_eq!((&first["version"], &first["size"]), (&json!(VERSIONS[1]), &json!(100 * BLOCK)));
    assert_eq!((&first["cached"], &first["in_use"]), (&json!(BLOCK), &json!(true)));
    assert_eq!(files[1]["name"], HOSTILE, "escaped, and the same");
    let age = |file: &Value| {
        let time: jiff::Timestamp = file["last_use"].as_str().unwrap().parse().unwrap();
        jiff::Timestamp::now().duration_since(time).as_secs() as u64
    };
    assert!(age(first) < 3600 && (400 * DAY..401 * DAY).contains(&age(&files[3])), "{found}");
    let id = first["id"].as_str().unwrap();
    assert!(directory(&room).join("objects").join(id).is_dir());
    assert!(!ok(&room, "list --json").contains('\u{1b}'));
    release(&room, used);
}

#[test]
fn missing_cache_is_empty_and_not_created() {
    let room = Room::new();
    let dir = directory(&room).display().to_string();
    assert_eq!(ok(&room, "list"), format!("{dir}: no files\n"));
    assert_eq!(ok(&room, "clear"), format!("{dir}: nothing to remove; freed 0 B, left 0 B\n"));
    assert_eq!(ok(&room, "prune --size 5GB -n"), format!("{dir}: nothing to remove; would free 0 B, and leave 0 B\n"));
    let empty = json!({
        "directory": dir, "cached": 0, "files": [], "listings": {"count": 0, "bytes": 0}, "unknown": [],
    });
    assert_eq!(json_of(&room, "list"), empty);
    assert!(!room.path("cache").exists());
    // $HOME/.cache, and neither.
    let home = room.ok("env -u XDG_CACHE_HOME HOME=/nonexistent weightfs cache list");
    assert_eq!(home, "/nonexistent/.cache/weightfs: no files\n");
    let output = room.sh("XDG_CACHE_HOME=relative HOME= weightfs cache list");
    let err = "weightfs: no cache: neither XDG_CACHE_HOME nor HOME is an absolute path\n";
    assert_eq!((output.code, &output.err[..]), (1, err));
}

#[test]
fn prune_removes_what_was_not_used_and_says_so() {
    let room = sample();
    let dir = directory(&room).display().to_string();
    let names = |room: &Room| -> Vec<String> {
        let files = json_of(room, "list")["files"].as_array().unwrap().clone();
        files.iter().map(|file| file["name"].as_str().unwrap().to_owned()).collect()
    };
    let before = names(&room);
    let old = date_of_oldest(&room);
    let dry = ok(&room, "prune --older-than 30d --dry-run");
    let lines: Vec<&str> = dry.lines().collect();
    assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["FILE", "VERSION", "FREED", "HOW", "LAST", "USE"]);
    let row: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(row, ["s3://bucket/old.gguf", "d41d8cd9", "65.5", "kB", "remove", &old]);
    assert_eq!(lines[3], format!("{dir}: would remove 1 file; would free 65.5 kB, and leave 459 kB"));
    assert_eq!(names(&room), before);
    let wet = ok(&room, "prune --older-than 30d");
    assert_eq!(wet, format!("{dir}: removed 1 file; freed 65.5 kB, left 459 kB\n"));
    assert_eq!(names(&room), before[..3]);
    // The least recently used file is shortened or removed until the size fits.
    let found = json_of(&room, "prune --size 200kB");
    assert_eq!((&found["freed"], &found["left"]), (&json!(4 * BLOCK), &json!(3 * BLOCK)));
    assert_eq!((&found["files"][0]["version"], &found["files"][0]["removed"]), (&json!(VERSIONS[0]), &json!(true)));
    assert_eq!(names(&room), before[..2]);
    let found = json_of(&room, "prune --size 131072 --older-than 1y --dry-run");
    assert_eq!((&found["dry_run"], &found["freed"], &found["left"]), (&json!(true), &json!(BLOCK), &json!(2 * BLOCK)));
    assert_eq!(names(&room), before[..2]);
}

#[test]
fn clear_removes_everything_that_is_not_in_use() {
    let room = sample();
    let dir = directory(&room).display().to_string();
    open(&room).keep_listing("hf://org/model", b"listing").unwrap();
    let used = object(&room, HOSTILE, "etag:\"y\u{1b}\"", BLOCK, 1);
    let kept = r"in use, and kept: https://host/\u{1b}[31mred\n\u{202e}.safetensors y\u{1b} (65.5 kB)";
    let dry = ok(&room, "clear --dry-run");
    let end =
        "would remove 4 files, would remove the listing of 1 location (39 B); would free 524 kB, and leave 65.5 kB";
    assert!(dry.ends_with(&format!("\n\n{kept}\n{dir}: {end}\n")), "{dry}");
    assert_eq!(dry.lines().count(), 5 + 3);
    assert_eq!(json_of(&room, "list")["files"].as_array().unwrap().len(), 5);
    let wet = ok(&room, "clear");
    let end = "removed 4 files, removed the listing of 1 location (39 B); freed 524 kB, left 65.5 kB";
    assert_eq!(wet, format!("{kept}\n{dir}: {end}\n"));
    let found = json_of(&room, "clear");
    assert_eq!((&found["in_use"][0]["name"], &found["left"]), (&json!(HOSTILE), &json!(BLOCK)));
    release(&room, used);
    assert_eq!(ok(&room, "clear"), format!("{dir}: removed 1 file; freed 65.5 kB, left 0 B\n"));
    assert_eq!(fs::read_dir(directory(&room).join("objects")).unwrap().count(), 0);
}

#[test]
fn wrong_arguments_are_usage_errors() {
    let room = Room::new();
    let cases = [
        ("", "subcommand"),
        ("prune", "--size <SIZE>|--older-than <AGE>"),
        ("prune --size many", "--size <SIZE>"),
        ("prune --older-than 30", "not an age such as 12h, 30d or 6 months"),
        ("prune --older-than=-3d", "not an age"),
        ("clear everything", "everything"),
        ("lst", "lst"),
    ];
    for (arguments, part) in cases {
        let output = room.sh(&line(&room, arguments));
        assert_eq!((output.code, output.out.is_empty()), (2, true), "{arguments}: {output:?}");
        assert!(output.err.contains(part) && output.err.lines().count() == 1, "{arguments}: {output:?}");
    }
    let output = room.sh("weightfs purge");
    assert!(output.code == 2 && output.err.contains("did you mean `weightfs cache`?"), "{output:?}");
}

#[test]
fn directory_that_cannot_be_used_is_an_error() {
    let room = sample();
    let dir = directory(&room).display().to_string();
    let refused = |expected: &str| {
        for arguments in ["list", "list --json", "prune --size 1", "clear"] {
            let output = room.sh(&line(&room, arguments));
            assert_eq!((output.code, output.out, output.err), (1, String::new(), format!("weightfs: {expected}\n")));
        }
    };
    fs::write(directory(&room).join("layout"), "7\n").unwrap();
    refused(&format!(
        "{dir}/layout: has cache layout 7, and this weightfs can use up to 1: use a newer weightfs or another directory"
    ));
    fs::write(directory(&room).join("layout"), "1\n").unwrap();
    if nix::unistd::geteuid().is_root() {
        lchown(directory(&room), Some(1234), None).unwrap();
        refused(&format!("{dir}: belongs to user 1234, and weightfs runs as user 0: use another directory"));
        lchown(directory(&room), Some(0), None).unwrap();
    } else {
        eprintln!("skipped in part: giving files to another user needs root");
    }
    assert_eq!(json_of(&room, "list")["files"].as_array().unwrap().len(), 4);
    fs::rename(directory(&room), room.path("elsewhere")).unwrap();
    fs::write(directory(&room), "").unwrap();
    refused(&format!("{dir}: not a directory"));
}

#[test]
fn strange_files_are_named_and_left_alone() {
    let room = sample();
    let objects = directory(&room).join("objects");
    fs::write(objects.join("a\u{1b}b"), "mine").unwrap();
    let output = room.sh(&line(&room, "list"));
    let err = format!("weightfs: {}/a\\u{{1b}}b: not from weightfs; it is left alone\n", objects.display());
    assert_eq!((output.code, output.err), (0, err));
    assert!(output.out.ends_with(": 4 files, 524 kB of 7.14 MB\n"), "{}", output.out);
    // An object that cannot be read is a failure.
    let broken = objects.join(format!("{0}-{0}", "a".repeat(32)));
    fs::write(&broken, "mine").unwrap();
    for (arguments, files) in [("list", 4), ("clear", 0)] {
        let output = room.sh(&line(&room, &format!("{arguments} 2>&1 >/dev/null")));
        assert_eq!(output.code, 1);
        assert!(output.out.ends_with(&format!("weightfs: {}: not a directory\n", broken.display())), "{output:?}");
        assert_eq!(BlockCache::list(&directory(&room)).unwrap().entries.len(), files);
    }
    assert_eq!(fs::read_dir(objects).unwrap().count(), 2);
}
