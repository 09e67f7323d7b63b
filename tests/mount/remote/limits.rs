//! Few descriptors.

use super::{Client, requests};
use crate::servers::{self, nginx::Nginx};
use crate::support::{Mount, require_fuse};
use serde_json::{Map, Value, json};
use std::fs;

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
