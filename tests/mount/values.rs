//! Statistics, plots and checksums, which are computed from the data when they are read and never before.
//!
//! `views.rs` compares their values with NumPy.

use crate::support::{Mount, Scene, pattern, processor_time, require_fuse, run_ok, wait_until_idle};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use safetensors::Dtype;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A sparse model with a tensor `huge` of `len` bytes and a tensor `small`.
fn sparse(scene: &Scene, len: u64) -> PathBuf {
    let header = format!(
        r#"{{"huge":{{"dtype":"F32","shape":[{},1024],"data_offsets":[0,{len}]}},"small":{{"dtype":"F32","shape":[2],"data_offsets":[{len},{}]}}}}"#,
        len / 4096,
        len + 8
    );
    let path = scene.raw("sparse.safetensors", header.as_bytes(), b"");
    let file = File::options().append(true).open(&path).unwrap();
    file.set_len(8 + header.len() as u64 + len + 8).unwrap();
    path
}

/// CPU time of the daemon.
fn cpu(mount: &Mount) -> Duration {
    processor_time(mount.child.id())
}

#[test]
fn sha256sum_verifies_every_tensor() {
    require_fuse!();
    let scene = Scene::new();
    let source = scene.model(
        "m.safetensors",
        &[
            ("a", Dtype::U8, &[3_000_000], pattern(3_000_000)),
            ("back\\slash", Dtype::U8, &[3], pattern(3)),
            ("new\nline", Dtype::U8, &[5], pattern(5)),
            ("-dash *star", Dtype::U8, &[7], pattern(7)),
            ("-", Dtype::U8, &[9], pattern(9)),
            ("empty", Dtype::U8, &[0], vec![]),
        ],
        &[],
    );
    let mount = scene.mount(&source, &[]);
    let (root, sums) = (mount.point.display(), mount.path("SHA256SUMS"));
    let said = scene.ok(&format!("cd {root} && sha256sum -c SHA256SUMS"));
    assert_eq!(said.lines().filter(|line| line.ends_with(": OK")).count(), 6, "{said}");
    let mut expected: Vec<String> =
        scene.ok(&format!("cd {root} && sha256sum tensors/*")).lines().map(str::to_owned).collect();
    let mut found: Vec<String> = std::fs::read_to_string(&sums).unwrap().lines().map(str::to_owned).collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    let whole = std::fs::read(&sums).unwrap();
    assert_eq!(std::fs::metadata(&sums).unwrap().len(), whole.len() as u64);
    // Any part equals that of the whole file, on a mount that has computed nothing yet.
    drop(mount);
    let mount = scene.mount(&source, &["-o", "max_read=4096"]);
    let file = File::open(mount.path("SHA256SUMS")).unwrap();
    for from in (0..whole.len()).step_by(37).rev() {
        let mut part = vec![0; 50.min(whole.len() - from)];
        file.read_exact_at(&mut part, from as u64).unwrap();
        assert_eq!(part, whole[from..from + part.len()], "{from}");
    }
}

#[test]
fn only_lines_that_are_read_are_computed() {
    require_fuse!();
    let scene = Scene::new();
    let (count, len) = (5000u64, 400_000u64);
    let entries: Vec<String> = (0..count)
        .map(|at| {
            format!(
                r#""t{at:05}{}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{},{}]}}"#,
                "x".repeat(150),
                at * len,
                (at + 1) * len
            )
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let path = scene.raw("many.safetensors", header.as_bytes(), b"");
    File::options().append(true).open(&path).unwrap().set_len(8 + header.len() as u64 + count * len).unwrap();
    let mount = scene.mount(&path, &[]);
    // The last line needs only the last of 5,000 tensors. Read-ahead adds some hundreds of lines, but not all.
    let before = cpu(&mount);
    let last = scene.ok(&format!("tail -n 1 {}", mount.path("SHA256SUMS").display()));
    let spent = cpu(&mount) - before;
    let zeros = run_ok("sh", ["-c", "head -c 400000 /dev/zero | sha256sum"]);
    assert_eq!(last.split(' ').next(), zeros.split(' ').next());
    // An eighth of the lines, which are all equally long, show what all of them would cost.
    let sums = File::open(mount.path("SHA256SUMS")).unwrap();
    let before = cpu(&mount);
    let eighth = sums.metadata().unwrap().len() / 8;
    sums.read_exact_at(&mut vec![0; eighth as usize], 0).unwrap();
    let whole = 8 * (cpu(&mount) - before);
    assert!(spent < whole / 2, "{spent:?} of {whole:?}");
}

#[test]
fn listing_and_stat_compute_nothing() {
    require_fuse!();
    let scene = Scene::new();
    // A computation over it would take minutes.
    let mount = scene.mount(&sparse(&scene, 200 << 30), &[]);
    let before = cpu(&mount);
    let point = mount.point.display();
    scene.ok(&format!(
        "ls -lR {point} && find {point} -size +1 && du -a {point} && stat {point}/*/* && getfattr -R --absolute-names {point}"
    ));
    assert!(cpu(&mount) - before < Duration::from_secs(5));
    assert_eq!(std::fs::metadata(mount.path("plots/huge.png")).unwrap().len() % 4096, 0);
}

#[test]
fn interrupted_readers_cancel_the_computation_and_block_no_others() {
    require_fuse!();
    let scene = Scene::new();
    let mount = scene.mount(&sparse(&scene, 4 << 40), &[]);
    for (file, signal) in
        [("stats/huge.json", Signal::SIGINT), ("plots/huge.png", Signal::SIGKILL), ("SHA256SUMS", Signal::SIGTERM)]
    {
        // Many more readers than cores.
        let mut readers: Vec<_> = (0..40)
            .map(|_| {
                let mut command = Command::new("env");
                command.args(["--default-signal=HUP,INT,TERM", "cat"]).arg(mount.path(file));
                command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
            })
            .collect();
        // Meanwhile other requests are served.
        for at in 0..50 {
            assert_eq!(mount.read("tensors/small"), [0; 8]);
            assert_eq!(mount.list("tensors").len(), 2);
            assert_eq!(mount.read("npy/small.npy").len(), 136);
            let _ = std::fs::metadata(mount.path(format!("tensors/absent{at}")));
        }
        let stats: serde_json::Value = serde_json::from_slice(&mount.read("stats/small.json")).unwrap();
        assert_eq!((&stats["count"], &stats["zeros"]), (&2.into(), &2.into()));
        for reader in &mut readers {
            assert!(reader.try_wait().unwrap().is_none(), "{file} was read");
            kill(Pid::from_raw(reader.id() as i32), signal).unwrap();
        }
        for mut reader in readers {
            reader.wait().unwrap();
        }
        // Without readers, the daemon stops computing.
        wait_until_idle(mount.child.id());
    }
}

#[test]
fn changed_source_gives_an_error_instead_of_values() {
    require_fuse!();
    let scene = Scene::new();
    let source = scene.sample();
    let mount = scene.mount(&source, &[]);
    let kept = mount.read("stats/model.embed.weight.json");
    File::options().write(true).open(&source).unwrap().set_len(1000).unwrap();
    for file in ["stats/model.layers.2.w.json", "plots/model.embed.weight.png", "SHA256SUMS"] {
        let error = std::fs::read(mount.path(file)).unwrap_err().raw_os_error();
        assert!([Some(nix::libc::EIO), Some(nix::libc::ESTALE)].contains(&error), "{file}: {error:?}");
    }
    // A result that was computed before the change is kept.
    assert_eq!(mount.read("stats/model.embed.weight.json"), kept);
}
