//! Few descriptors, files of any size, and URLs that differ little.

use super::{Client, requests, web};
use crate::servers::canned::{Then, serve};
use crate::servers::{self, nginx::Nginx};
use crate::support::{Mount, detach, require_fuse, require_root};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::PathBuf;

/// Puts a model of `count` shards on a server, each with a tensor of `len` bytes. Returns the name of its index.
fn shards(nginx: &Nginx, count: usize, len: usize) -> &'static str {
    let mut map = Map::new();
    for at in 0..count {
        let header = format!(r#"{{"t{at}":{{"dtype":"U8","shape":[{len}],"data_offsets":[0,{len}]}}}}"#);
        let name = format!("{at}.safetensors");
        let bytes = servers::content(len, at as u64);
        nginx.put(&name, &[&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat());
        map.insert(format!("t{at}"), name.into());
    }
    let index = json!({"metadata": {}, "weight_map": Value::Object(map)});
    nginx.put("model.safetensors.index.json", index.to_string().as_bytes());
    "model.safetensors.index.json"
}

#[test]
fn more_shards_than_descriptors_are_read() {
    require_fuse!();
    let client = Client::new();
    let nginx = Nginx::start();
    let (count, len) = (300, 70_000);
    let url = nginx.url(shards(&nginx, count, len));
    let mut command = client.command("prlimit");
    command.args(["--nofile=256:256", "weightfs", "-f", &url]);
    let mount = Mount::start(&mut command, &client.scene.mount_point());
    let limits = fs::read_to_string(format!("/proc/{}/limits", mount.child.id())).unwrap();
    assert!(
        limits.lines().any(|line| line.split_whitespace().collect::<Vec<_>>()[..4] == ["Max", "open", "files", "256"])
    );
    let read = |at: usize| {
        let found = fs::read(mount.path(format!("tensors/t{at}"))).unwrap();
        assert!(found == servers::content(len, at as u64), "t{at}");
    };
    (0..count).for_each(read);
    (0..count).rev().step_by(7).for_each(read);
    // A file that is opened again is not asked for again.
    for at in 0..count {
        assert_eq!(requests(&nginx, &format!("{at}.safetensors")).len(), 1, "{at}");
    }
}

#[test]
fn first_requests_for_shards_are_as_long_as_the_index_suggests() {
    require_fuse!();
    let client = Client::new();
    let nginx = Nginx::start();
    // The number of tensors in each shard.
    let counts = [1500, 1500, 1400, 10, 1600, 9000];
    let (mut map, mut headers) = (Map::new(), Vec::new());
    let len = 4 << 20;
    for (shard, count) in counts.into_iter().enumerate() {
        let file = format!("{shard}.safetensors");
        let mut header = Map::new();
        for at in 0..count {
            let name = format!("model.layers.{shard}.experts.{at}.weight");
            // The last one has the rest.
            let end = if at + 1 == count { len } else { at + 1 };
            header.insert(name.clone(), json!({"dtype": "U8", "shape": [end - at], "data_offsets": [at, end]}));
            map.insert(name, file.clone().into());
        }
        let header = Value::Object(header).to_string();
        headers.push(8 + header.len() as u64);
        let bytes = servers::content(len, shard as u64);
        nginx.put(&file, &[&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat());
    }
    let index = json!({"metadata": {}, "weight_map": Value::Object(map)});
    nginx.put("model.safetensors.index.json", index.to_string().as_bytes());

    let mount = client.mount(&nginx.url("model.safetensors.index.json"), &[]);
    assert_eq!(fs::read_dir(mount.path("tensors")).unwrap().count(), counts.iter().sum::<usize>());
    let sent: Vec<Vec<u64>> = (0..counts.len())
        .map(|shard| requests(&nginx, &format!("{shard}.safetensors")).into_iter().map(|(_, bytes)| bytes).collect())
        .collect();
    assert_eq!(sent[0], [512 << 10], "nothing is known yet");
    for shard in 1..5 {
        assert_eq!(sent[shard].len(), 1, "{sent:?}");
        assert!((headers[shard].max(128 << 10)..320 << 10).contains(&sent[shard][0]), "{sent:?} for {headers:?}");
    }
    // A header that is longer than the guess costs another request.
    assert!((2..4).contains(&sent[5].len()) && sent[5].iter().sum::<u64>() >= headers[5], "{sent:?} for {headers:?}");
    for (shard, count) in counts.into_iter().enumerate() {
        let found = mount.read(format!("tensors/model.layers.{shard}.experts.{}.weight", count - 1));
        assert!(found == servers::content(len, shard as u64)[count - 1..], "{shard}");
    }
}

/// Unmounts a file system on drop.
struct Disk(PathBuf);

impl Drop for Disk {
    fn drop(&mut self) {
        detach(&self.0);
    }
}

#[test]
fn half_of_the_disk_is_used_by_default() {
    require_root!();
    let client = Client::new();
    let bytes = client.one("models/m.safetensors", 40 << 20, 1);
    let nginx = web(&client, "models");
    let disk = Disk(client.scene.mkdir("bin/cache"));
    client.ok("mount -t tmpfs -o size=48m,mode=755 tmpfs bin/cache");
    let mount = client.mount(&nginx.url("m.safetensors"), &[]);
    assert!(mount.read("tensors/w") == bytes);
    let list: Value = serde_json::from_str(&client.ok("weightfs cache list --json")).unwrap();
    // Besides the limit, what was in flight.
    let cached = list["cached"].as_u64().unwrap();
    assert!((16 << 20..32 << 20).contains(&cached), "{cached}");
    drop(mount);
    client.scene.wait_for_end();
    drop(disk);
}

/// The directory of blocks in memory, which is removed at the end.
struct InMemory;

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all("/dev/shm/weightfs-0");
    }
}

#[test]
fn model_is_read_without_a_cache_if_its_disk_is_too_small() {
    require_root!();
    let client = Client::new();
    let bytes = client.one("models/m.safetensors", 40 << 20, 1);
    let nginx = web(&client, "models");
    let (disk, _in_memory) = (Disk(client.scene.mkdir("bin/cache")), InMemory);
    client.ok("mount -t tmpfs -o size=3m,mode=755 tmpfs bin/cache");
    let mount = client.mount(&nginx.url("m.safetensors"), &["--threads", "8"]);
    std::thread::scope(|scope| {
        let readers = [(); 4].map(|()| scope.spawn(|| assert!(mount.read("tensors/w") == bytes)));
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    let log = mount.log();
    assert!(log.lines().count() == 1 && log.contains("the disk is too small for a cache"), "{log}");
    drop(mount);
    client.scene.wait_for_end();
    assert_eq!(client.ok("ls bin/cache; ls /dev/shm/weightfs-0/objects"), "");
    drop(disk);
}

#[test]
fn file_that_is_too_large_for_the_cache_is_named_once() {
    let client = Client::new();
    let (head, len) = (512 << 10, 1u64 << 45);
    let answer = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-{}/{len}\r\nContent-Length: {head}\r\n\
         ETag: \"v1\"\r\nConnection: close\r\n\r\n",
        head - 1
    );
    let address = serve([answer.as_bytes(), &vec![0; head]].concat(), Then::Close);
    let said = client.sh(&format!("weightfs inspect http://{address}/m.safetensors"));
    assert_eq!((said.code, said.err.lines().count()), (1, 1), "{}", said.err);
    assert_eq!(said.err.matches("m.safetensors").count(), 1, "{}", said.err);
    assert!(
        said.err.contains("it has 35184372088832 bytes; the cache takes files of up to 17592186044416"),
        "{}",
        said.err
    );
}

#[test]
fn cache_list_tells_urls_apart_that_differ_in_the_query() {
    let client = Client::new();
    client.one("models/m.safetensors", 1 << 20, 1);
    let nginx = web(&client, "models");
    for query in ["file=SECRET1", "file=SECRET2"] {
        client.ok(&format!("weightfs inspect '{}'", nginx.url(&format!("m.safetensors?{query}"))));
    }
    let list = client.ok("weightfs cache list");
    let mut names: Vec<_> = list.lines().filter(|line| line.contains("(query ")).map(|line| &line[..80]).collect();
    names.dedup();
    assert_eq!(names.len(), 2, "{list}");
    assert!(!list.contains("SECRET"), "{list}");
}
