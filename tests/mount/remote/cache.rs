//! The cache: what was fetched is not fetched again, by any process, and is right after every end of a process.

use super::{Client, data_requests, hub, length, requests, s3, servers, web};
use crate::support::{Mount, Tensor, detach, python, require_fuse, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Whence, lseek64};
use safetensors::Dtype;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use weightfs::remote::protocol::HEAD;
use weightfs::source::pins::BLOCK;

/// Size of the data of a tensor in most of these tests, in bytes.
const LEN: usize = 3 << 20;

/// A client, and a directory `models` with the file `m.safetensors`. Returns its tensors `a` and `b`.
fn two(client: &Client) -> [Vec<u8>; 2] {
    let bytes = [servers::content(LEN, 1), servers::content(LEN, 2)];
    client.scene.mkdir("models");
    let tensors: [Tensor; 2] = [("a", Dtype::U8, &[LEN], bytes[0].clone()), ("b", Dtype::U8, &[LEN], bytes[1].clone())];
    client.scene.model("models/m.safetensors", &tensors, &[]);
    bytes
}

#[test]
fn second_mount_reads_from_the_cache() {
    require_fuse!();
    let mut client = Client::new();
    let [a, b] = two(&client);
    let nginx = web(&client, "models");
    let mut hub = hub(&mut client, "models");
    let url = nginx.url("m.safetensors");
    for _ in 0..2 {
        for source in [&url, "hf://org/model", "hf://org/model/m.safetensors"] {
            let mount = client.mount(source, &[]);
            assert!(mount.read("tensors/a") == a && mount.read("tensors/b") == b, "{source}");
            assert_eq!(mount.log(), "");
        }
    }
    // The first mount fetched everything once, and the second one asked for the version.
    let sent = requests(&nginx, "m.safetensors");
    let (first, second) = sent.split_at(sent.len() - 1);
    let total: u64 = first.iter().map(|(_, bytes)| bytes).sum();
    let len = fs::metadata(client.scene.path("models/m.safetensors")).unwrap().len();
    assert_eq!(total, len, "{sent:?}");
    assert_eq!(second, [("bytes=0-0".to_owned(), 1)]);
    // All four mounts of the repository together fetched each byte once.
    let fetched: u64 = data_requests(&mut hub).iter().map(|request| length(request["range"].as_str().unwrap())).sum();
    assert_eq!(fetched, len);
}

#[test]
fn two_mounts_share_the_cache() {
    require_fuse!();
    let client = Client::new();
    let [a, b] = two(&client);
    let nginx = web(&client, "models");
    let url = nginx.url("m.safetensors");
    let (one, two) = (client.mount(&url, &[]), client.mount(&url, &[]));
    assert!(one.read("tensors/a") == a && two.read("tensors/b") == b);
    let before = requests(&nginx, "m.safetensors");
    assert!(one.read("tensors/b") == b && two.read("tensors/a") == a);
    assert_eq!(requests(&nginx, "m.safetensors"), before);
    let sent: u64 = before.iter().map(|(_, bytes)| bytes).sum();
    let len = fs::metadata(client.scene.path("models/m.safetensors")).unwrap().len();
    assert!((len..=len + 1).contains(&sent), "{before:?}");
}

#[test]
fn offline_mount_reads_what_was_fetched() {
    require_fuse!();
    let mut client = Client::new();
    let [a, _] = two(&client);
    let (nginx, hub) = (web(&client, "models"), hub(&mut client, "models"));
    let s3 = s3(&mut client, "models");
    let url = nginx.url("m.safetensors");
    let sources =
        [&url, "hf://org/model", "hf://org/model@v1/m.safetensors", "s3://models", "s3://models/m.safetensors"];
    for source in sources {
        let mount = client.mount(source, &[]);
        assert!(mount.read("tensors/a") == a, "{source}");
    }
    nginx.end();
    drop((hub, s3));
    for source in sources {
        let mount = client.mount(source, &["--offline"]);
        assert!(mount.read("tensors/a") == a, "{source}");
        for _ in 0..2 {
            let error = fs::read(mount.path("tensors/b")).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(nix::libc::EIO), "{source}");
        }
        let log = mount.log();
        assert_eq!(log.lines().count(), 1, "{source}: {log}");
        assert!(log.contains("m.safetensors: not in the cache, and --offline allows nothing else"), "{log}");
        // What needs no data works.
        assert_eq!(mount.list("tensors"), ["a", "b"]);
        client.ok(&format!("weightfs inspect --offline {source}"));
    }
    for source in [&nginx.url("other.safetensors"), "hf://org/other", "s3://models/other/", "s3://other/m.gguf"] {
        let said = client.sh(&format!("weightfs inspect --offline {source}"));
        assert_eq!((said.code, said.out.as_str()), (1, ""), "{source}: {said:?}");
        assert!(said.err.contains("offline") && said.err.lines().count() == 1, "{source}: {said:?}");
    }
}

#[test]
fn complete_file_of_the_hugging_face_cache_is_read_there() {
    require_fuse!();
    let mut client = Client::new();
    let [a, b] = two(&client);
    let mut hub = hub(&mut client, "models");
    client.set("HF_HUB_DISABLE_XET", "1");
    client.set("HF_HUB_DISABLE_TELEMETRY", "1");
    client.set("PYTHON", python().to_str().unwrap());
    let download = "import huggingface_hub as h; h.hf_hub_download('org/model', 'm.safetensors')";
    let said = client.sh(&format!("$PYTHON -c \"{download}\""));
    assert_eq!(said.code, 0, "{said:?}");
    assert!(!data_requests(&mut hub).is_empty(), "the client fetches it");
    let read = |args: &[&str]| {
        for source in ["hf://org/model", "hf://org/model/m.safetensors"] {
            let mount = client.mount(source, args);
            assert!(mount.read("tensors/a") == a && mount.read("tensors/b") == b, "{source}");
            assert_eq!(mount.log(), "", "{source}");
        }
    };
    read(&[]);
    assert_eq!(data_requests(&mut hub).len(), 0);
    drop(hub);
    read(&["--offline"]);
    // The Hub does not answer, and nothing but its own cache has the model.
    fs::remove_dir_all(client.cache().join("listings")).unwrap();
    let said = client.sh("weightfs inspect hf://org/model");
    assert_eq!((said.code, said.err.lines().count()), (1, 1), "{said:?}");
    assert!(said.err.ends_with("; --offline reads what was fetched before\n"), "{said:?}");
    let said = client.sh("HF_HUB_OFFLINE=1 weightfs inspect hf://org/model");
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    assert_eq!(objects(&client), 0, "no copy is made");
}

/// The number of files in the cache.
fn objects(client: &Client) -> usize {
    fs::read_dir(client.cache().join("objects")).map_or(0, |dir| dir.count())
}

/// The data files in the cache.
fn data_files(client: &Client) -> impl Iterator<Item = fs::File> {
    let objects = fs::read_dir(client.cache().join("objects")).into_iter().flatten();
    objects.filter_map(|entry| fs::File::open(entry.unwrap().path().join("data")).ok())
}

/// Bytes that the files in the cache use on the disk.
fn used(client: &Client) -> u64 {
    data_files(client).map(|file| file.metadata().unwrap().blocks() * 512).sum()
}

/// Bytes that were written to the files in the cache.
fn written(client: &Client) -> u64 {
    let sizes = data_files(client).map(|file| {
        let (mut sum, mut at) = (0, 0);
        while let Ok(start) = lseek64(&file, at, Whence::SeekData) {
            at = lseek64(&file, start, Whence::SeekHole).unwrap();
            sum += (at - start) as u64;
        }
        sum
    });
    sizes.sum()
}

#[test]
fn killed_processes_leave_right_bytes_in_the_cache() {
    require_fuse!();
    const LEN: usize = 4 << 20;
    for victim in ["weightfs-fetch", "weightfs"] {
        let client = Client::new();
        let expected = client.one("models/m.safetensors", LEN, 3);
        let nginx = web(&client, "models");
        let url = nginx.url("held/m.safetensors");
        for _ in 0..3 {
            let mount = client.mount(&url, &[]);
            let before = written(&client);
            // Each of the three requests of the reader stops after a block and a part of the next one.
            nginx.hold(true);
            let mut reader = client
                .command("cat")
                .arg(mount.path("tensors/w"))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            wait_until("a block is in the cache", || written(&client) >= before + 2 * BLOCK);
            let pids = if victim == "weightfs" { client.scene.daemons() } else { client.scene.fetchers() };
            assert!(!pids.is_empty(), "{victim}");
            for pid in pids {
                kill(pid, Signal::SIGKILL).unwrap();
            }
            assert!(!reader.wait().unwrap().success(), "{victim} was killed before everything was read");
            detach(&mount.point);
            nginx.hold(false);
        }
        wait_until("every process has ended", || client.scene.fetchers().is_empty());
        let mount = client.mount(&url, &[]);
        assert!(mount.read("tensors/w") == expected, "{victim}");
        let sent = requests(&nginx, "held/m.safetensors");
        // The last mount begins with a request for the version.
        let last = sent.iter().rposition(|(range, _)| range == "bytes=0-0").unwrap();
        let again: u64 = sent[last..].iter().map(|(_, bytes)| bytes).sum();
        let all = fs::metadata(client.scene.path("models/m.safetensors")).unwrap().len();
        assert!(again <= all - HEAD - 3 * BLOCK + 1, "what was fetched before the kill is used: {sent:?}");
        assert_eq!(mount.log(), "");
    }
}

#[test]
fn cache_smaller_than_the_model_stays_small() {
    require_fuse!();
    const LIMIT: u64 = 8 << 20;
    /// What may be in flight: the reads of the kernel and their read-ahead.
    const FLIGHT: u64 = 4 << 20;
    let client = Client::new();
    let tensors: Vec<Vec<u8>> = (0..4).map(|seed| servers::content(8 << 20, seed + 10)).collect();
    client.scene.mkdir("models");
    let views: Vec<Tensor> = ["a", "b", "c", "d"]
        .into_iter()
        .zip(&tensors)
        .map(|(name, bytes)| (name, Dtype::U8, &[8 << 20][..], bytes.clone()))
        .collect();
    client.scene.model("models/m.safetensors", &views, &[]);
    let nginx = web(&client, "models");
    let mount = client.mount(&nginx.url("m.safetensors"), &["--cache-size", "8MiB"]);
    let ended = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = 0;
            while !ended.load(Ordering::Relaxed) {
                most = most.max(used(&client));
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            most
        });
        let right = read_all(&mount, &tensors);
        ended.store(true, Ordering::Relaxed);
        assert!(right);
        watcher.join().unwrap()
    });
    assert!(most > LIMIT / 2 && most <= LIMIT + FLIGHT, "{most}");
    assert!(used(&client) <= LIMIT + FLIGHT);
    assert_eq!(mount.log(), "");
}

/// Whether the tensors `a` to `d` have these bytes.
fn read_all(mount: &Mount, tensors: &[Vec<u8>]) -> bool {
    ["a", "b", "c", "d"].into_iter().zip(tensors).all(|(name, bytes)| mount.read(format!("tensors/{name}")) == *bytes)
}

#[test]
fn random_reads_through_a_small_cache_are_right() {
    require_fuse!();
    const LEN: usize = 16 << 20;
    const READS: u64 = 40;
    let client = Client::new();
    let expected = client.one("models/m.safetensors", LEN, 5);
    let nginx = web(&client, "models");
    let url = nginx.url("m.safetensors");
    // A single mount evicts blocks while others are read. If two mounts use a file, neither evicts from it.
    for count in [1, 2] {
        // Without the page cache of the kernel, each read is one of the daemon.
        let mount = |_| client.mount(&url, &["--cache-size", "2MiB", "--direct-io"]);
        let mounts: Vec<Mount> = (0..count).map(mount).collect();
        std::thread::scope(|scope| {
            for reader in 0..6u64 {
                let (mounts, expected) = (&mounts, &expected);
                scope.spawn(move || {
                    let mount = &mounts[reader as usize % count];
                    let file = fs::File::open(mount.path("tensors/w")).unwrap();
                    let places = servers::content(READS as usize * 8, reader);
                    for place in places.chunks(8) {
                        let place = u64::from_le_bytes(place.try_into().unwrap());
                        let at = (place % LEN as u64) as usize;
                        let mut bytes = vec![0; (place >> 40) as usize % 300_000 + 1];
                        let read = file.read_at(&mut bytes, at as u64);
                        let read = read.unwrap_or_else(|error| panic!("{error}: {}", mount.log()));
                        assert!(read > 0 && bytes[..read] == expected[at..at + read], "{read} bytes at {at}");
                    }
                });
            }
        });
        let sent: u64 = requests(&nginx, "m.safetensors").iter().map(|(_, bytes)| bytes).sum();
        assert!(sent > LEN as u64, "blocks were evicted and fetched again: {sent}");
        for log in mounts.iter().map(Mount::log) {
            let is_known = |line: &str| line.contains("the limit of the cache cannot be kept");
            assert!(log.lines().count() <= 1 && log.lines().all(is_known), "{log}");
        }
    }
}
