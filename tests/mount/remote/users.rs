//! Who may read a remote file: everyone if everyone may fetch it, and otherwise the user whose credentials fetch it.

use super::{Client, hub, s3, web};
use crate::servers::nginx::TOKEN;
use crate::support::{Said, require_root};

/// Runs a command as a user other than root, without supplementary groups.
const USER: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups --";

#[test]
fn files_fetched_with_credentials_are_private() {
    require_root!();
    let mut client = Client::new();
    client.one("models/m.safetensors", 1 << 20, 1);
    client.write("models/config.json", b"{}");
    client.write("models/sub/notes.txt", b"notes");
    let nginx = web(&client, "models");
    let (hub, _s3) = (hub(&mut client, "models"), s3(&mut client, "models"));
    client.set("HF_TOKEN", &hub.text("token"));
    client.write("bin/token", TOKEN.as_bytes());
    client.ok("chmod 755 . && mkdir mnt");
    let table = [
        (nginx.url("m.safetensors"), "", true),
        (nginx.url("bearer/m.safetensors"), "--token-file bin/token", false),
        (nginx.url("m.safetensors?key=secret"), "", false),
        ("hf://org/model".into(), "", true),
        ("hf://org/model/m.safetensors".into(), "", true),
        ("hf://org/private".into(), "", false),
        ("hf://org/private/m.safetensors".into(), "", false),
        ("s3://models".into(), "", false),
        ("s3://models/m.safetensors".into(), "", false),
    ];
    for (source, args, is_public) in table {
        let mounted = client.sh(&format!("weightfs -o allow_other {args} '{source}' mnt"));
        assert_eq!((mounted.code, mounted.err.as_str()), (0, ""), "{source}: {mounted:?}");
        let modes = client.ok("find mnt -printf '%y %U:%G %m\\n' | sort -u");
        let expected = if is_public { "d 0:0 555\nf 0:0 444\n" } else { "d 0:0 500\nf 0:0 400\n" };
        assert_eq!(modes, expected, "{source}");
        // A server lists the files beside a single one only on the Hub, where it needs no other request.
        let is_listed = source.starts_with("hf:") || source == "s3://models";
        assert_eq!(client.scene.path("mnt/files/config.json").exists(), is_listed, "{source}");
        let read: Said =
            client.sh(&format!("cd / && {USER} cat {}/mnt/tensors/w | wc -c", client.scene.dir.path().display()));
        assert_eq!(read.out, if is_public { "1048576\n" } else { "0\n" }, "{source}: {read:?}");
        assert_eq!(read.err.contains("Permission denied"), !is_public, "{source}: {read:?}");
        // The cache is its owner's alone in any case.
        let cache = client.cache();
        assert_eq!(client.ok(&format!("stat -c %a {}", cache.display())), "700\n");
        assert_eq!(client.sh("weightfs umount mnt").code, 0, "{source}");
        client.scene.wait_for_end();
    }
}

#[test]
fn status_says_that_the_figures_of_other_users_are_private() {
    require_root!();
    let client = Client::new();
    client.one("models/m.safetensors", 1 << 20, 1);
    let nginx = web(&client, "models");
    client.ok("chmod 755 .");
    let mount = client.mount(&nginx.url("m.safetensors"), &[]);
    mount.read("header.json");
    let status = |user: &str| {
        let point = mount.point.to_str().unwrap();
        let said = client.sh_alone(&format!("cd / && {user} weightfs status")).ok(user);
        let line = said.lines().find(|line| line.contains(point)).unwrap_or_else(|| panic!("{said}")).to_owned();
        (line, said.contains("only the user of the mount can see this"))
    };
    let (own, _) = status("");
    assert!(own.trim_end().ends_with("100 %"), "{own}");
    let (other, is_hidden) = status(USER);
    assert!(other.trim_end().ends_with('?') && is_hidden, "{other}");
}
