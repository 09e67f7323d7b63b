//! Servers that refuse, change, break off and hang, and processes that end during a read.

use super::{Client, data_requests, hub, requests, s3, servers, upload, web};
use crate::support::{Mount, Scene, Tensor, require_fuse, require_root, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use safetensors::Dtype;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime};
use weightfs::source::pins::BLOCK;

/// Size of each tensor in most of these tests, in bytes. Headers are fetched with the first 512 KiB.
const LEN: usize = 2 << 20;

/// Writes `models/m.safetensors` with the tensors `a` to `d`, whose bytes depend on `seed`.
fn four(client: &Client, seed: u64) -> Vec<Vec<u8>> {
    let tensors: Vec<Vec<u8>> = (0..4).map(|at| servers::content(LEN, seed * 4 + at)).collect();
    let names = ["a", "b", "c", "d"];
    let views: Vec<Tensor> =
        names.into_iter().zip(&tensors).map(|(name, bytes)| (name, Dtype::U8, &[LEN][..], bytes.clone())).collect();
    fs::create_dir_all(client.scene.path("models")).unwrap();
    let path = client.scene.model("models/m.safetensors", &views, &[("note", "text")]);
    // As that of a file that everyone may fetch.
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    tensors
}

/// The first byte of a range.
fn first(range: &str) -> u64 {
    range.strip_prefix("bytes=").unwrap().split('-').next().unwrap().parse().unwrap()
}

/// The error of reading a file that cannot be read.
#[track_caller]
fn errno(mount: &Mount, name: &str) -> i32 {
    fs::read(mount.path(name)).unwrap_err().raw_os_error().unwrap()
}

#[test]
fn replaced_file_gives_estale_and_never_mixed_bytes() {
    require_fuse!();
    let client = Client::new();
    let old = four(&client, 1);
    let nginx = web(&client, "models");
    for place in ["", "weak/", "elsewhere/"] {
        let mount = client.mount(&nginx.url(&format!("{place}m.safetensors")), &[]);
        let before = mount.log().lines().count();
        assert!(mount.read("tensors/a") == old[0], "{place}");
        let new = four(&client, 2);
        nginx.put("m.safetensors", &fs::read(client.scene.path("models/m.safetensors")).unwrap());
        // The ETag of nginx is made of the size and the time in seconds.
        let later = SystemTime::now() + Duration::from_secs(7);
        fs::File::options().append(true).open(nginx.file("m.safetensors")).unwrap().set_modified(later).unwrap();
        for name in ["tensors/d", "npy/d.npy", "tensors/c"] {
            assert_eq!(errno(&mount, name), nix::libc::ESTALE, "{place} {name}");
        }
        // Another view, so that the bytes are not those that the kernel keeps.
        assert!(mount.read("npy/a.npy").ends_with(&old[0]), "{place}");
        let log = mount.log();
        let lines: Vec<&str> = log.lines().skip(before).collect();
        assert_eq!(lines.len(), 1, "{place}: {log}");
        assert!(lines[0].contains("m.safetensors: ") && lines[0].contains("changed"), "{place}: {log}");
        // A new mount has the new version.
        let mount = client.mount(&nginx.url(&format!("{place}m.safetensors")), &[]);
        for (name, bytes) in ["a", "d"].into_iter().zip([&new[0], &new[3]]) {
            assert!(mount.read(format!("tensors/{name}")) == *bytes, "{place} {name}");
        }
        drop(mount);
        four(&client, 1);
        nginx.put("m.safetensors", &fs::read(client.scene.path("models/m.safetensors")).unwrap());
    }
}

#[test]
fn servers_without_reliable_versions_are_named_once() {
    require_fuse!();
    let client = Client::new();
    let tensors = four(&client, 1);
    let nginx = web(&client, "models");
    for (place, noticed) in [("weak/", "the date or the length"), ("undated/", "the length")] {
        let url = nginx.url(&format!("{place}m.safetensors"));
        let mount = client.mount(&url, &[]);
        assert!(mount.read("tensors/a") == tensors[0] && mount.read("tensors/d") == tensors[3], "{place}");
        let log = mount.log();
        assert_eq!(log.lines().count(), 1, "{log}");
        let expected = format!("{url}: the server gives no strong ETag: only a change of {noticed} is noticed");
        assert!(log.contains(&expected), "{log}");
    }
}

#[test]
fn refusals_are_errors_with_a_remedy() {
    require_fuse!();
    let client = Client::new();
    four(&client, 1);
    let nginx = web(&client, "models");
    client.scene.mkdir("mnt");
    client.write("right", servers::nginx::TOKEN.as_bytes());
    client.write("wrong", b"WRONG");
    let table = [
        ("missing/", "", "404"),
        ("gone/", "", "410"),
        ("echo/", "", "403"),
        ("basic/", "", "put them into ~/.netrc"),
        ("bearer/", "", "put them into ~/.netrc, or use --token-file"),
        ("bearer/", "--token-file wrong", "it does not accept those that were sent"),
        ("bearer/", "--token-file absent", "the token file"),
        ("noranges/", "", "the server sends whole files only: download it first"),
        ("loop/", "", "redirect"),
        ("down/", "--timeout 1", "503"),
        ("drop/", "--timeout 1", "m.safetensors: "),
        ("busy/", "--timeout 1", "429"),
        // 100 bytes a second.
        ("drip/", "--timeout 2", "the server sent no more than"),
    ];
    for (place, args, expected) in table {
        let url = nginx.url(&format!("{place}m.safetensors"));
        for command in ["inspect", "mount"] {
            let point = if command == "mount" { "mnt" } else { "" };
            let said = client.sh(&format!("timeout 60 weightfs {command} {args} {url} {point}"));
            assert_eq!(
                (said.code, said.out.as_str(), said.err.lines().count()),
                (1, "", 1),
                "{command} {place}: {said:?}"
            );
            assert!(
                said.err.contains(&format!("{url}: ")) && said.err.contains(expected),
                "{command} {place}: {said:?}"
            );
            assert_eq!(said.err.matches("127.0.0.1").count(), 1, "{command} {place}: {said:?}");
        }
        assert_eq!(client.scene.mounts(), [""; 0]);
        client.scene.wait_for_end();
    }
    // Places that lead to the file.
    for (place, args) in
        [("bearer/", "--token-file right"), ("elsewhere/", ""), ("here/", ""), ("nohead/", ""), ("gzip/", "")]
    {
        let local = client.ok("weightfs id models/m.safetensors");
        let found = client.ok(&format!("weightfs id {args} {}", nginx.url(&format!("{place}m.safetensors"))));
        assert_eq!(found.split_whitespace().next(), local.split_whitespace().next(), "{place}");
    }
}

#[test]
fn refusals_of_the_hub_and_of_stores_name_the_remedy() {
    require_fuse!();
    let mut client = Client::new();
    four(&client, 1);
    let hub = hub(&mut client, "models");
    let s3 = s3(&mut client, "models");
    let table = [
        ("hf://org/private", "", "HF_TOKEN"),
        ("hf://org/gated", "", "accept the conditions"),
        ("hf://org/model@v9", "", "404"),
        ("hf://org/model/other.gguf", "", "other.gguf"),
        ("hf://org/busy", "--timeout 1", "429"),
        ("s3://models/other.gguf", "", "other.gguf"),
        ("s3://absent/m.gguf", "", "absent"),
    ];
    let refused = |client: &Client, source: &str, args: &str, expected: &str| {
        let said = client.sh(&format!("timeout 60 weightfs inspect {args} {source}"));
        assert_eq!((said.code, said.out.as_str(), said.err.lines().count()), (1, "", 1), "{source}: {said:?}");
        assert!(said.err.contains(source) && said.err.contains(expected), "{source}: {said:?}");
    };
    for (source, args, expected) in table {
        refused(&client, source, args, expected);
    }
    let stranger = &s3.hello["users"]["stranger"];
    client.set("AWS_ACCESS_KEY_ID", stranger["id"].as_str().unwrap());
    client.set("AWS_SECRET_ACCESS_KEY", stranger["secret"].as_str().unwrap());
    refused(&client, "s3://models/m.safetensors", "", "AccessDenied");
    client.set("HF_TOKEN", &hub.text("token"));
    client.ok("weightfs inspect hf://org/private");
}

#[test]
fn overwritten_object_gives_estale() {
    require_fuse!();
    let mut client = Client::new();
    let old = four(&client, 1);
    let mut s3 = s3(&mut client, "models");
    let mount = client.mount("s3://models/m.safetensors", &[]);
    assert!(mount.read("tensors/a") == old[0]);
    four(&client, 2);
    upload(&client, "models", &mut s3);
    assert_eq!(errno(&mount, "tensors/d"), nix::libc::ESTALE);
    assert!(mount.read("npy/a.npy").ends_with(&old[0]));
    let log = mount.log();
    assert!(log.lines().count() == 1 && log.contains("changed"), "{log}");
}

#[test]
fn throttled_requests_are_repeated() {
    require_fuse!();
    let client = Client::new();
    let tensors = four(&client, 1);
    let nginx = web(&client, "models");
    let url = nginx.url("throttled/m.safetensors");
    let throttled = || nginx.log().iter().filter(|request| request[3] == "429").count();
    nginx.throttle(true);
    let (refused, mount) = std::thread::scope(|scope| {
        let mounting = scope.spawn(|| client.mount(&url, &[]));
        wait_until("the server has refused a request", || throttled() > 0);
        let refused = throttled();
        nginx.throttle(false);
        (refused, mounting.join().unwrap())
    });
    nginx.throttle(true);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| mount.read("tensors/d"));
        wait_until("the server has refused another request", || throttled() > refused + 1);
        nginx.throttle(false);
        assert!(reading.join().unwrap() == tensors[3]);
    });
    // The server asks for a second between two requests, so there are not many.
    assert!(throttled() < 100, "{}", throttled());
}

#[test]
fn transfers_that_break_off_are_resumed() {
    require_fuse!();
    let mut client = Client::new();
    let tensors = four(&client, 1);
    let mut hub = hub(&mut client, "models");
    let mount = client.mount("hf://org/model", &[]);
    data_requests(&mut hub);
    hub.ask(json!({"do": "set", "state": {"broken": 2}}));
    assert!(mount.read("tensors/d") == tensors[3]);
    let broken = data_requests(&mut hub);
    assert!(broken.len() >= 3);
    // The server sends 1,000 bytes before it breaks off. They are not asked for again.
    let starts = broken.iter().map(|request| first(request["range"].as_str().unwrap()) % BLOCK);
    assert!(starts.filter(|start| [1000, 2000].contains(start)).count() > 0, "{broken:?}");
    hub.ask(json!({"do": "set", "state": {"busy": 1}}));
    assert!(mount.read("tensors/c") == tensors[2]);
    assert!(data_requests(&mut hub).len() >= 2);
    assert_eq!(mount.log(), "");
}

#[test]
fn expired_links_are_renewed() {
    require_fuse!();
    let mut client = Client::new();
    let tensors = four(&client, 1);
    let mut hub = hub(&mut client, "models");
    let mount = client.mount("hf://org/model", &[]);
    hub.ask(json!({"do": "revoke"}));
    assert!(mount.read("tensors/d") == tensors[3]);
    hub.ask(json!({"do": "set", "state": {"lifetime": 1}}));
    hub.ask(json!({"do": "revoke"}));
    assert!(mount.read("tensors/c") == tensors[2]);
    // A refusal that lasts is an error.
    hub.ask(json!({"do": "set", "state": {"lifetime": -10}}));
    hub.ask(json!({"do": "revoke"}));
    assert_eq!(errno(&mount, "tensors/b"), nix::libc::EIO);
    let log = mount.log();
    assert!(log.lines().count() == 1 && log.contains("403") && !log.contains("Signature"), "{log}");
}

#[test]
fn names_sizes_and_metadata_need_no_server_after_mounting() {
    require_fuse!();
    let client = Client::new();
    four(&client, 1);
    let nginx = web(&client, "models");
    let look = |mount: &Mount| {
        // The first line of index.json has the source, so its size differs.
        let script = "cd POINT && ls -lR --time-style=+ . | sed '/ index.json$/d; /^total /d'
            find . ! -name index.json -printf '%P %s %m %y\\n' | sort
            [ $(stat -c %s index.json) = $(wc -c <index.json) ] && echo exact
            cat metadata.json metadata/note header.json && getfattr -d tensors/d && stat -c %s tensors/d
            sed 1d index.json | head -c 100000";
        client.ok(&script.replace("POINT", mount.point.to_str().unwrap()))
    };
    let local = client.mount(client.scene.path("models/m.safetensors").to_str().unwrap(), &[]);
    let expected = look(&local);
    for part in ["user.weightfs.dtype", "tensors/d 2097152 ", "\nexact\n"] {
        assert!(expected.contains(part), "{part}: {expected}");
    }
    // With this timeout, what waits for the server is killed together with the shell.
    let mount = client.mount(&nginx.url("m.safetensors"), &["--timeout", "3600"]);
    nginx.suspend(true);
    assert_eq!(look(&mount), expected);
}

#[test]
fn absent_data_gives_eio_when_the_server_is_gone() {
    require_fuse!();
    let client = Client::new();
    let tensors = four(&client, 1);
    for hangs in [false, true] {
        let nginx = web(&client, "models");
        let mount = client.mount(&nginx.url("m.safetensors"), &["--timeout", "2"]);
        assert!(mount.read("tensors/a") == tensors[0]);
        if hangs {
            nginx.suspend(true)
        } else {
            nginx.end()
        }
        assert_eq!(errno(&mount, "tensors/d"), nix::libc::EIO);
        let log = mount.log();
        assert!(log.contains("nothing arrived for 2 s"), "{log}");
        // What was fetched is there, also in views that nobody has read yet.
        assert!(mount.read("npy/a.npy").ends_with(&tensors[0]));
        if hangs {
            nginx.suspend(false);
            assert!(mount.read("tensors/d") == tensors[3], "an error that may pass is not kept");
        }
    }
}

/// A process that reads a file of a mount, after it has begun to wait for data.
fn waiting_reader(client: &Client, path: &Path) -> Child {
    let child = client.command("cat").arg(path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("a process waits for data", || waits_for(child.id(), path));
    child
}

/// Whether a process has opened a file and sleeps.
fn waits_for(pid: u32, path: &Path) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    let has = open.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok()).any(|opened| opened == path);
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    has && matches!(state, Some('S' | 'D'))
}

#[test]
fn waiting_reader_can_be_killed() {
    require_fuse!();
    let client = Client::new();
    let tensors = four(&client, 1);
    let nginx = web(&client, "models");
    let mount = client.mount(&nginx.url("m.safetensors"), &["--timeout", "3600"]);
    nginx.suspend(true);
    for name in ["tensors/d", "npy/c.npy"] {
        let mut reader = waiting_reader(&client, &mount.path(name));
        reader.kill().unwrap();
        wait_until("the killed reader is gone", || reader.try_wait().unwrap().is_some());
    }
    // The mount is well afterwards.
    nginx.suspend(false);
    assert!(mount.read("tensors/d") == tensors[3]);
    assert_eq!(mount.log(), "");
}

#[test]
fn mount_can_be_removed_while_readers_wait() {
    require_root!();
    let client = Client::new();
    four(&client, 1);
    let nginx = web(&client, "models");
    let url = nginx.url("m.safetensors");
    client.scene.mkdir("mnt");
    for (background, unmount) in [(true, "weightfs umount --lazy mnt"), (true, "umount -l mnt"), (false, "")] {
        nginx.suspend(false);
        let mount = match background {
            true => {
                client.sh(&format!("weightfs --timeout 3600 {url} mnt"));
                None
            }
            false => Some(client.mount(&url, &["--timeout", "3600"])),
        };
        nginx.suspend(true);
        let point = mount.as_ref().map_or(client.scene.path("mnt"), |mount| mount.point.clone());
        let mut reader = waiting_reader(&client, &point.join("tensors/d"));
        match &mount {
            // As Ctrl-C does.
            Some(mount) => kill(Pid::from_raw(mount.child.id() as i32), Signal::SIGINT).unwrap(),
            None => assert_eq!(client.sh(unmount).code, 0, "{unmount}"),
        }
        wait_until("the mount is gone", || client.scene.mounts().is_empty());
        if background {
            reader.kill().unwrap();
        }
        wait_until("the reader is gone", || reader.try_wait().unwrap().is_some());
        wait_until("all processes are gone", || no_processes(&client.scene));
    }
}

/// Whether no process of a mount is left.
fn no_processes(scene: &Scene) -> bool {
    scene.daemons().is_empty() && scene.fetchers().is_empty() && scene.unmounters().is_empty()
}

#[test]
fn end_of_the_fetching_process_is_reported_and_leaves_what_was_fetched() {
    require_fuse!();
    let client = Client::new();
    let tensors = four(&client, 1);
    let nginx = web(&client, "models");
    let mount = client.mount(&nginx.url("m.safetensors"), &["--timeout", "3600"]);
    assert!(mount.read("tensors/a") == tensors[0]);
    nginx.suspend(true);
    let mut reader = waiting_reader(&client, &mount.path("tensors/c"));
    let fetchers = client.scene.fetchers();
    assert_eq!(fetchers.len(), 1);
    kill(fetchers[0], Signal::SIGKILL).unwrap();
    wait_until("the waiting reader has its error", || reader.try_wait().unwrap().is_some());
    assert!(!reader.wait().unwrap().success());
    for name in ["tensors/d", "npy/d.npy", "tensors/b"] {
        assert_eq!(errno(&mount, name), nix::libc::EIO, "{name}");
    }
    assert!(mount.read("npy/a.npy").ends_with(&tensors[0]));
    // One line when the process ends, and one line for the file when it is read.
    let log = mount.log();
    let count = |end: &str| log.lines().filter(|line| line.ends_with(end)).count();
    assert_eq!(log.lines().count(), 2, "{log}");
    assert_eq!(count("weightfs-fetch has ended; what was not fetched yet cannot be read any more"), 1, "{log}");
    assert_eq!(count("m.safetensors: weightfs-fetch has ended; mount it again"), 1, "{log}");
}

#[test]
fn no_fetching_process_is_left() {
    require_fuse!();
    let client = Client::new();
    four(&client, 1);
    let nginx = web(&client, "models");
    let url = nginx.url("m.safetensors");
    client.scene.mkdir("mnt");
    // Unmounting.
    client.sh(&format!("weightfs {url} mnt"));
    assert_eq!(client.scene.fetchers().len(), 1);
    assert_eq!(client.sh("weightfs umount mnt").code, 0);
    wait_until("all processes are gone", || no_processes(&client.scene));
    // Signals to the mount.
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let mount = client.mount(&url, &[]);
        assert_eq!(client.scene.fetchers().len(), 1);
        kill(Pid::from_raw(mount.child.id() as i32), signal).unwrap();
        wait_until("all processes are gone", || client.scene.fetchers().is_empty());
    }
    // Signals to a command that waits for a server.
    nginx.suspend(true);
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let mut command = client.command("weightfs");
        let mut child = command.args(["inspect", &url]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("the process that fetches runs", || client.scene.fetchers().len() == 1);
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        wait_until("the command has ended", || child.try_wait().unwrap().is_some());
        wait_until("all processes are gone", || client.scene.fetchers().is_empty());
    }
    assert!(requests(&nginx, "m.safetensors").len() >= 4);
}

#[test]
fn names_of_shards_that_no_path_has_are_errors_and_end_nothing_else() {
    require_fuse!();
    let client = Client::new();
    four(&client, 1);
    for name in ["http://127.0.0.1/x.safetensors", "a//b.safetensors", "\u{1b}[31m.safetensors"] {
        let index = serde_json::json!({"weight_map": {"a": name}}).to_string();
        client.write("models/bad.safetensors.index.json", index.as_bytes());
        let nginx = web(&client, "models");
        let (bad, good) = (nginx.url("bad.safetensors.index.json"), nginx.url("m.safetensors"));
        let said = client.sh(&format!("timeout 60 weightfs id {bad} {good}"));
        assert_eq!((said.code, said.err.lines().count()), (1, 1), "{}", said.err);
        assert!(said.err.contains("a path cannot contain"), "{}", said.err);
        assert!(said.out.contains("structural_hash"), "{}", said.out);
    }
}

#[test]
fn urls_where_paths_are_needed_and_wrong_ones_are_usage_errors_without_secrets() {
    require_root!();
    let client = Client::new();
    four(&client, 1);
    for (arguments, expected) in [
        ("inspect http://me:SECRET@127.0.0.1:99999/x", "http://...@127.0.0.1:99999/x"),
        ("inspect 'https://h/%ff?sig=SECRET'", "https://h/%ff?..."),
        ("inspect s3://KEY:SECRET@bucket/x", "s3://...@bucket/x"),
        ("metadata set https://h/m.safetensors?SECRET a=b", "a path is needed here; only sources can be URLs"),
        ("export models/m.safetensors s3://bucket/SECRET", "a path is needed here; only sources can be URLs"),
        ("mount models/m.safetensors http://me:SECRET@h/x", "a path is needed here; only sources can be URLs"),
        ("umount http://me:SECRET@h/x", "a path is needed here; only sources can be URLs"),
        ("inspect http:h/x", "no such file; a URL has :// after its scheme"),
        ("inspect --cache-size 1ZB https://h/x", "not a size such as 500MB, 50GB or 1TiB"),
    ] {
        let said = client.sh(&format!("timeout 60 weightfs {arguments}"));
        assert_eq!((said.code, said.out.as_str(), said.err.lines().count()), (2, "", 1), "{arguments}: {}", said.err);
        assert!(said.err.contains(expected), "{arguments}: {}", said.err);
        let is_path = arguments.starts_with("export");
        assert!(is_path || !said.err.contains("SECRET"), "{arguments}: {}", said.err);
    }
}
