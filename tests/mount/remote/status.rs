//! What `weightfs status` says of remote sources.

use super::{Client, requests, web};
use crate::support::{Mount, require_root, wait_until};
use serde_json::Value;

/// What `weightfs status --json` says of a mount.
fn status(client: &Client, mount: &Mount) -> Value {
    let list: Value = serde_json::from_str(&client.sh_alone("weightfs status --json").ok("status")).unwrap();
    let mounts = list["mounts"].as_array().unwrap();
    mounts.iter().find(|shown| shown["mountpoint"] == mount.point.to_str().unwrap()).unwrap().clone()
}

#[test]
fn fetched_bytes_include_those_that_were_fetched_while_mounting() {
    require_root!();
    let client = Client::new();
    let bytes = client.one("models/m.safetensors", 3 << 20, 1);
    let nginx = web(&client, "models");
    let mount = client.mount(&nginx.url("m.safetensors"), &[]);
    let sent = || requests(&nginx, "m.safetensors").iter().map(|(_, sent)| sent).sum::<u64>();
    let fetched = || {
        let remote = &status(&client, &mount)["remote"];
        assert!(remote["busy_ms"].is_u64(), "{remote}");
        remote["fetched_bytes"].as_u64().unwrap()
    };
    // The process that fetches reports the count shortly after the mount is ready.
    wait_until("the header is counted", || fetched() >= 512 << 10);
    assert_eq!(fetched(), sent());
    assert_eq!(mount.read("tensors/w"), bytes);
    wait_until("the tensor is counted", || fetched() >= 3 << 20);
    wait_until("all transfers are counted", || fetched() == sent());

    let list: Value = serde_json::from_str(&client.sh_alone("weightfs status --json").ok("status")).unwrap();
    let cache = &list["cache"];
    assert_eq!((&cache["directory"], &cache["files"]), (&client.cache().to_str().unwrap().into(), &1.into()));
    let cached = cache["cached"].as_u64().unwrap();
    assert!(cached >= 3 << 20 && cache["default_limit"].as_u64().unwrap() > cached / 2, "{cache}");
    let line = format!("cache: {}: 1 file, ", client.cache().display());
    assert!(client.sh_alone("weightfs status").ok("status").contains(&line));
    assert!(status(&client, &mount)["served_bytes"].as_u64().unwrap() >= 3 << 20);
}
