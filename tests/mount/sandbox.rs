//! The sandbox of a running daemon, and the helper process outside of it that unmounts. `tests/sandbox.rs` tests what
//! the sandbox refuses.

use crate::support::{Namespace, Scene, pattern, require_fuse, require_root, wait_until};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use safetensors::Dtype;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// For each thread of a process: no_new_privs, the seccomp mode and the permitted capabilities.
fn restrictions(pid: Pid) -> Vec<[String; 3]> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |status: &str| {
        ["NoNewPrivs:", "Seccomp:", "CapPrm:"].map(|name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_start_matches('0').to_owned()
        })
    };
    // A thread may end before its status is read.
    tasks.filter_map(|task| Some(of(&std::fs::read_to_string(task.ok()?.path().join("status")).ok()?))).collect()
}

/// The sorted targets of the descriptors of a process.
fn descriptors(pid: Pid) -> Vec<String> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut names: Vec<String> =
        links.map(|link| std::fs::read_link(link.unwrap().path()).unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The only tensor of a model.
fn one(name: &str, len: usize) -> Vec<crate::support::Tensor<'_>> {
    vec![(name, Dtype::U8, Box::leak(Box::new([len])), pattern(len))]
}

#[test]
fn every_daemon_thread_is_sandboxed() {
    require_root!();
    let scene = Scene::new();
    scene.sample();
    scene.ok("mkdir mnt");
    // DAC_READ_SEARCH, or DAC_OVERRIDE if root does not have DAC_READ_SEARCH.
    let can_read_all = |capabilities: &str| ["4", "2"].contains(&capabilities);
    for (options, expected, owner) in
        [("", ["1", "2"], "0"), ("", ["1", "2"], "65534"), ("--no-sandbox", ["", ""], "0")]
    {
        scene.ok(&format!("chmod 600 sample.safetensors && chown {owner} sample.safetensors"));
        scene.ok(&format!("weightfs {options} --log-file log --threads 4 sample.safetensors mnt"));
        // Starts every kind of thread: those that serve, that sort, that wait for computations and that compute.
        scene.ok("cat mnt/stats/* mnt/plots/* mnt/SHA256SUMS mnt/index.json mnt/export/* >/dev/null; find mnt/tree");
        let [daemon] = scene.daemons()[..] else { panic!("{:?}", scene.processes()) };
        let threads = restrictions(daemon);
        assert!(threads.len() >= 4 + 2, "{threads:?}");
        for thread in threads {
            let fits = match (options, owner) {
                ("", "0") => thread[2].is_empty(),
                ("", _) => can_read_all(&thread[2]),
                _ => thread[2].len() > 1,
            };
            assert!(thread[..2] == expected && fits, "{options} {owner} {thread:?}");
        }
        // The helper process is not sandboxed. Besides what both processes inherit, it holds only its ends of three
        // sockets, the file that aborts the mount, and the file of the last messages, on a machine without syslog.
        let [outside] = scene.unmounters()[..] else { panic!("{:?}", scene.processes()) };
        assert!(restrictions(outside).iter().all(|thread| thread[..2] == ["", ""]));
        let (mut held, shared) = (descriptors(outside), descriptors(daemon));
        // One of the sockets has two descriptors.
        held.dedup();
        let is_log = |name: &str| name == format!("/run/weightfs/{daemon}.log");
        let is_abort = |name: &str| name.starts_with("/sys/fs/fuse/connections/") && name.ends_with("/abort");
        let is_other = |name: &&String| !shared.contains(name) && !is_log(name) && !is_abort(name);
        let own: Vec<_> = held.iter().filter(is_other).collect();
        assert!(own.len() == 3 && own.iter().all(|name| name.starts_with("socket:")), "{held:?} {shared:?}");
        let dir = scene.dir.path().to_str().unwrap();
        assert!(!held.iter().any(|name| name == "/dev/fuse" || name.starts_with(dir)), "{held:?}");
        assert!(shared.iter().any(|name| name == "/dev/fuse") && shared.iter().any(|name| name.starts_with(dir)));
        assert_eq!(std::fs::read_link(format!("/proc/{outside}/cwd")).unwrap(), Path::new("/"));
        scene.ok("weightfs umount mnt");
        scene.wait_for_end();
        // A system call that the sandbox refuses would be logged.
        assert_eq!(scene.ok("cat log; rm log"), "");
    }
}

#[test]
fn new_links_to_other_files_are_not_opened() {
    require_fuse!();
    let scene = Scene::new();
    scene.ok("mkdir mnt m m/folder elsewhere blobs");
    for model in ["m/a", "m/b", "m/folder/c", "elsewhere/d", "outside"] {
        scene.model(&format!("{model}.safetensors"), &one("w", 5), &[]);
    }
    // As in the Hugging Face cache, the models are links to files without the extension .safetensors.
    for blob in ["blobs/1", "blobs/2"] {
        scene.model(blob, &one(blob, 5), &[]);
    }
    symlink("../blobs/1", scene.path("m/linked.safetensors")).unwrap();
    symlink("../blobs/2", scene.path("m/set-00001-of-00001.safetensors")).unwrap();
    scene.model("m/own-00001-of-00001.safetensors", &one("w", 5), &[]);
    for (set, tensor) in [("set", "blobs/2"), ("own", "w")] {
        let index = serde_json::json!({"weight_map": {tensor: format!("{set}-00001-of-00001.safetensors")}});
        std::fs::write(scene.path(format!("m/{set}.safetensors.index.json")), index.to_string()).unwrap();
    }
    symlink("../elsewhere", scene.path("m/far")).unwrap();
    let there = ["a/tensors/w", "folder/c/tensors/w", "far/d/tensors/w", "linked/tensors/blobs%2F1", "set/tensors/*"];
    // A thread that serves opens the first, and a thread that reads many headers opens the second.
    let replaced = [("b", "b.safetensors"), ("own", "own-00001-of-00001.safetensors")];
    for (options, is_opened) in [("", false), ("--no-sandbox", true)] {
        scene.ok(&format!("weightfs {options} -v --log-file log m mnt 2>/dev/null"));
        // No file is open yet. Links to a file outside of the folder replace files in it.
        for (_, file) in replaced {
            scene.ok(&format!("mv m/{file} kept-{file} && ln -s ../outside.safetensors m/{file}"));
        }
        let found = scene.ok("ls mnt");
        for (name, file) in replaced {
            assert_eq!(found.lines().any(|found| found == name), is_opened, "{options} {found}");
            if !is_opened {
                let reason = format!(
                    "m/{file}: not one of the files that were mounted, and the sandbox allows no others; mount it again"
                );
                let said = scene.ok(&format!("cat mnt/{name}.error.txt"));
                // The error of the index quotes that of its shard, so only the log of `-v` has it.
                let shown = if name == "own" { "a link leads to it" } else { &reason };
                assert!(said.contains(shown), "{said}");
                assert_eq!(scene.ok(&format!("grep -c '{reason}' log")), "1\n");
            }
        }
        for file in there {
            assert_eq!(scene.ok(&format!("cat mnt/{file} | wc -c")), "5\n", "{options} {file}");
        }
        scene.ok("weightfs umount mnt; rm log");
        for (_, file) in replaced {
            scene.ok(&format!("mv kept-{file} m/{file}"));
        }
        scene.wait_for_end();
    }
}

#[test]
fn sandboxed_daemon_logs_to_syslog() {
    require_root!();
    let scene = Scene::new();
    scene.sample();
    scene.ok("mkdir mnt dev");
    let log = UnixDatagram::bind(scene.path("log")).unwrap();
    log.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // Most test machines have no /dev/log.
    let namespace = Namespace::new(
        &scene,
        "mount -t tmpfs dev dev && mknod dev/null c 1 3 && mknod dev/fuse c 10 229
        touch dev/log && mount --bind log dev/log && mount --rbind dev /dev",
    );
    namespace.ok("weightfs sample.safetensors mnt && touch sample.safetensors");
    assert_eq!(namespace.sh("cat mnt/tensors/model.embed.weight").code, 1);
    let mut message = [0; 1000];
    let len = log.recv(&mut message).unwrap();
    let (message, daemon) = (String::from_utf8_lossy(&message[..len]), scene.daemons()[0]);
    let said = format!("<28>weightfs[{daemon}]: sample.safetensors: written to since it was opened; mount it again");
    assert_eq!(message, said);
    namespace.ok("weightfs umount mnt");
    scene.wait_for_end();
}

#[test]
fn last_messages_are_kept_in_the_runtime_directory_without_syslog() {
    require_root!();
    let scene = Scene::new();
    scene.sample();
    scene.ok("mkdir mnt dev run run/weightfs && chmod 755 . run && chmod 700 run/weightfs");
    let bare = "mount -t tmpfs dev dev && mknod -m 666 dev/null c 1 3 && mknod -m 666 dev/fuse c 10 229
        mount --rbind dev /dev && mount --bind run /run";
    let namespace = Namespace::new(&scene, bare);
    let dir = scene.dir.path().display();
    let mount = || {
        namespace.ok("weightfs sample.safetensors mnt");
        let file = format!("/run/weightfs/{}.log", scene.daemons()[0]);
        assert!(namespace.ok("weightfs status").contains(&format!("\n{dir}/mnt: log in {file}\n")));
        let text = namespace.ok(&format!("stat -c '%a %n' /run/weightfs {file} && cat {file}"));
        let first = format!("{dir}/sample.safetensors: mounted on {dir}/mnt\n");
        assert_eq!(text, format!("700 /run/weightfs\n600 {file}\n{first}"));
        (file, first)
    };
    // Without messages, the file is removed with the mount, however the daemon ends.
    for end in ["weightfs umount mnt", "kill -KILL "] {
        mount();
        let daemon = if end.ends_with(' ') { scene.daemons()[0].to_string() } else { String::new() };
        namespace.ok(&format!("{end}{daemon}"));
        scene.wait_for_end();
        assert_eq!(namespace.ok("ls /run/weightfs; umount -l mnt 2>/dev/null || true"), "", "{end}");
    }
    // Otherwise it stays.
    let (file, first) = mount();
    namespace.ok("touch sample.safetensors");
    assert_eq!(namespace.sh("cat mnt/tensors/model.embed.weight").code, 1);
    let daemon = scene.daemons()[0];
    namespace.ok("weightfs umount mnt");
    scene.wait_for_end();
    let text = namespace.ok(&format!("cat {file}"));
    let (time, rest) = text.strip_prefix(&first).unwrap().split_at("2026-01-31T12:34:56Z".len());
    assert!(time.ends_with('Z'), "{text}");
    let said = "sample.safetensors: written to since it was opened; mount it again";
    assert_eq!(rest, format!(" WARN  [{daemon}] {said}\n"));
    // A mount that fails, one in the foreground and one with a log file have no such file.
    namespace.ok("rm /run/weightfs/*");
    assert_eq!(namespace.sh("weightfs sample.safetensors absent").code, 1);
    assert_eq!(
        namespace.ok("RUST_LOG=off weightfs -q sample.safetensors mnt && ls /run/weightfs; weightfs umount mnt"),
        ""
    );
    scene.wait_for_end();
    assert_eq!(namespace.ok("weightfs -q --log-file log sample.safetensors mnt && ls /run/weightfs"), "");
    namespace.ok("weightfs umount mnt");
    scene.wait_for_end();
    // Where there is no place for the file, the mount says so.
    namespace.ok("chmod 777 /run/weightfs");
    let said = namespace.sh("weightfs -v sample.safetensors mnt && weightfs umount mnt").err;
    let lost = "later messages are lost (--log-file FILE keeps them)\n";
    let loose = "/run/weightfs: not a directory that only its owner can write to";
    assert!(said.contains(&format!("weightfs: no syslog here, and {loose}; {lost}")), "{said}");
    scene.wait_for_end();
    // Users have a directory of their own.
    namespace.ok("mkdir home home/mnt && chown -R 65534 home && chmod 644 sample.safetensors");
    let user = "setpriv --reuid=65534 --regid=65534 --clear-groups --";
    for (variable, said) in
        [("XDG_RUNTIME_DIR=$PWD/home", "no syslog here; later messages go to "), ("", "no syslog here, and ")]
    {
        let line = format!("env -u XDG_RUNTIME_DIR {variable} {user} weightfs -v sample.safetensors home/mnt");
        let said_here = namespace.sh(&line).err;
        assert!(
            said_here.contains(said) && said_here.contains("XDG_RUNTIME_DIR is not set") == variable.is_empty(),
            "{said_here}"
        );
        let kept = namespace.ok("stat -c '%a %u' home/weightfs/* 2>/dev/null || true");
        assert_eq!(kept, if variable.is_empty() { "" } else { "600 65534\n" });
        namespace.ok(&format!("{user} weightfs umount home/mnt"));
        scene.wait_for_end();
        namespace.ok("rm -f home/weightfs/*");
    }
}

#[test]
fn only_models_found_at_the_mount_are_opened() {
    require_fuse!();
    let scene = Scene::new();
    scene.ok("mkdir mnt m m/set m/set/deep elsewhere");
    for name in ["m/a", "m/b", "elsewhere/1", "elsewhere/2", "outside"] {
        scene.model(&format!("{name}.safetensors"), &one("w", 5), &[]);
    }
    // The shards of a dataset are links in a sub-directory.
    let shard = |at: u32| format!("deep/{at}.safetensors");
    let listed = [1, 2].map(|at| serde_json::json!({"shard_path": shard(at), "samples_count": 5, "bytes": 69}));
    let manifest = serde_json::json!({"format_version": "1.0", "shards": listed});
    std::fs::write(scene.path("m/set/dataset_manifest.json"), manifest.to_string()).unwrap();
    for at in [1, 2] {
        symlink(format!("../../../elsewhere/{at}.safetensors"), scene.path("m/set").join(shard(at))).unwrap();
    }
    // The other models are served although this index names files outside of its directory.
    let names = ["../outside.safetensors", "/etc/passwd"].map(|name| (name, name.into()));
    let map = serde_json::json!({"weight_map": serde_json::Map::from_iter(names.map(|(a, b): (_, serde_json::Value)| (a.to_owned(), b)))});
    std::fs::write(scene.path("m/bad.safetensors.index.json"), map.to_string()).unwrap();
    for (options, is_opened) in [("", false), ("--no-sandbox", true)] {
        scene.ok("cp m/a.safetensors kept.safetensors");
        scene.ok(&format!("weightfs {options} --log-file log m mnt"));
        // A copy replaces a model that was not opened yet.
        scene.ok("cp m/a.safetensors new && mv new m/a.safetensors");
        assert_eq!(scene.sh("cat mnt/a/tensors/w >read").code == 0, is_opened, "{options}");
        if !is_opened {
            let reason = "m/a.safetensors: not one of the files that were mounted";
            assert!(scene.ok("cat mnt/a.error.txt").contains(reason));
        }
        assert_eq!(scene.ok("cat mnt/b/tensors/w | wc -c; cat mnt/set/tensors/w | wc -c"), "5\n10\n", "{options}");
        scene.ok("weightfs umount mnt; rm log; mv kept.safetensors m/a.safetensors");
        scene.wait_for_end();
    }
}

#[test]
fn replaced_file_gives_estale_after_it_was_closed() {
    require_fuse!();
    let scene = Scene::new();
    scene.ok("mkdir mnt m");
    const SHARDS: usize = 100;
    let name = |at: usize| format!("s-{at:05}.safetensors");
    for at in 0..SHARDS {
        scene.model(&format!("m/{}", name(at)), &one(&format!("t{at}"), 9), &[]);
    }
    let map: serde_json::Map<_, _> = (0..SHARDS).map(|at| (format!("t{at}"), name(at).into())).collect();
    let index = serde_json::json!({ "weight_map": map });
    std::fs::write(scene.path("m/s.safetensors.index.json"), index.to_string()).unwrap();
    // At most 16 files are held open.
    scene.ok("ulimit -n 64; weightfs --log-file log m/s.safetensors.index.json mnt");
    scene.ok("cat mnt/tensors/t99 mnt/tensors/t98 >/dev/null");
    // A copy replaces one shard. Another shard is moved, and a link leads to it, so it is still the mounted file.
    scene.ok(&format!("cp m/{0} new && mv new m/{0} && mv m/{1} kept && ln -s ../kept m/{1}", name(7), name(8)));
    scene.ok("for at in $(seq 20 90); do cat mnt/tensors/t$at; done >/dev/null");
    let said = scene.sh("cat mnt/tensors/t7");
    assert!(said.code == 1 && said.err.contains("Stale file handle"), "{said:?}");
    assert_eq!(scene.ok("wc -c <mnt/tensors/t8"), "9\n");
    let log = scene.ok("cat log");
    let reason = format!(
        "{}: removed or replaced after it was closed to stay below the limit of open files; mount it again\n",
        name(7)
    );
    assert!(log.lines().count() == 1 && log.ends_with(&reason), "{log}");
    scene.ok("weightfs umount mnt");
    scene.wait_for_end();
}

#[test]
fn killed_daemon_blocks_no_reader_and_leaves_no_process() {
    require_fuse!();
    let scene = Scene::new();
    // 4 TiB, so that the computation is still running when the daemon is killed.
    let len = 1u64 << 42;
    let header = format!(r#"{{"t":{{"dtype":"U8","shape":[{len}],"data_offsets":[0,{len}]}}}}"#);
    let path = scene.raw("model.safetensors", header.as_bytes(), b"");
    File::options().append(true).open(&path).unwrap().set_len(8 + header.len() as u64 + len).unwrap();
    scene.ok("mkdir mnt && weightfs model.safetensors mnt");
    let mut reader =
        scene.command("cat").arg("mnt/stats/t.json").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let [daemon] = scene.daemons()[..] else { panic!("{:?}", scene.processes()) };
    wait_until("a worker thread runs", || {
        let tasks = std::fs::read_dir(format!("/proc/{daemon}/task")).unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.into_iter().any(|name| name == "worker\n")
    });
    kill(daemon, Signal::SIGKILL).unwrap();
    let mut said = String::new();
    reader.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    reader.wait().unwrap();
    assert!(said.contains("Transport endpoint is not connected") || said.contains("connection abort"), "{said}");
    wait_until("the daemon and its helper have ended", || scene.daemons().is_empty() && scene.unmounters().is_empty());
    assert!(scene.sh("ls mnt").err.ends_with("Transport endpoint is not connected\n"));
    assert_eq!(scene.ok("weightfs umount mnt; ls mnt"), "");
}

#[test]
fn signal_to_the_process_group_unmounts() {
    require_fuse!();
    let scene = Scene::new();
    scene.sample();
    // Ctrl-C in a terminal and timeout(1) signal the whole process group.
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let mut command = scene.command("weightfs");
        command.args(["-f", "sample.safetensors"]).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut String::new()).unwrap();
        killpg(Pid::from_raw(child.id() as i32), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{signal}");
        // No process keeps the standard output open.
        out.read_to_string(&mut String::new()).unwrap();
        assert_eq!((scene.mounts(), scene.path("sample").exists()), (vec![], false), "{signal}");
        scene.wait_for_end();
    }
}

#[test]
fn mount_stays_without_the_helper_that_unmounts() {
    require_fuse!();
    let scene = Scene::new();
    scene.sample();
    scene.ok("weightfs --log-file log sample.safetensors");
    let [outside] = scene.unmounters()[..] else { panic!("{:?}", scene.processes()) };
    // The helper ignores all of these signals except SIGKILL.
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGPIPE, Signal::SIGKILL] {
        assert_eq!(scene.unmounters(), [outside]);
        kill(outside, signal).unwrap();
    }
    wait_until("the helper has ended", || scene.unmounters().is_empty());
    scene.ok("kill -TERM $DAEMON");
    let reason = "cannot unmount: the helper process is gone (`weightfs umount` works without it)\n";
    wait_until("the log has the reason", || scene.ok("cat log").ends_with(reason));
    scene.ok("cat sample/stats/* sample/tensors/* >/dev/null; weightfs umount sample");
    scene.wait_for_end();
}
