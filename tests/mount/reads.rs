//! Reads of tensor files: their bytes, the page cache, direct I/O, read-ahead and threads.

use crate::support::{Scene, python, require_fuse, require_root, run_ok, wait_until};
use safetensors::SafeTensors;

#[test]
fn tensor_files_have_the_bytes_of_the_tensors() {
    require_fuse!();
    let scene = Scene::new();
    let source = scene.sample();
    let mount = scene.mount(&source, &[]);
    let whole = std::fs::read(&source).unwrap();
    let tensors = SafeTensors::deserialize(&whole).unwrap();
    let mut names = mount.list("tensors");
    assert_eq!(names.len(), tensors.len());
    names.sort();
    for name in names {
        let decoded = weightfs::name::decode_name(&name).unwrap().into_owned();
        assert!(mount.read(format!("tensors/{name}")) == tensors.tensor(&decoded).unwrap().data(), "{name}");
    }
    let json = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    assert!(mount.read("header.json") == whole[8..8 + json]);
    assert_eq!(mount.log(), "");
}

#[test]
fn page_cache_is_kept_between_opens() {
    require_fuse!();
    let scene = Scene::new();
    let mount = scene.mount(&scene.sample(), &[]);
    let file = mount.path("tensors/model.embed.weight");
    let cached = || run_ok("fincore", ["-nbo", "RES", file.to_str().unwrap()]).trim().parse::<u64>().unwrap();
    assert_eq!(cached(), 0);
    let size = std::fs::read(&file).unwrap().len() as u64;
    assert_eq!(cached(), size);
    // Without FOPEN_KEEP_CACHE, the kernel would drop the cached pages at this open.
    drop(std::fs::File::open(&file).unwrap());
    assert_eq!(cached(), size);
    // The other path of the tensor shares the cached pages.
    assert_eq!(
        run_ok("fincore", ["-nbo", "RES", mount.path("tree/model/embed/weight").to_str().unwrap()]).trim(),
        size.to_string()
    );
}

#[test]
fn number_of_threads_is_configurable() {
    require_fuse!();
    let scene = Scene::new();
    for (args, expected) in [(&["--threads", "3"][..], 3), (&["-o", "threads=1"], 1), (&[], 2)] {
        let mount = scene.mount(&scene.sample(), args);
        let threads = || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", mount.child.id())).unwrap();
            let names =
                tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default());
            names.filter(|name| name.starts_with("fuser-")).count()
        };
        // The mount is reported before the last thread has started.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while threads() < expected && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(threads() == expected || args.is_empty() && threads() > expected, "{args:?}: {}", threads());
    }
}

#[test]
fn direct_io_reads_the_same_bytes() {
    require_fuse!();
    let scene = Scene::new();
    let source = scene.sample();
    let cached = scene.mount(&source, &[]);
    let direct = scene.mount(&source, &["-o", "direct_io"]);
    scene.ok(&format!("diff -r {} {}", cached.point.display(), direct.point.display()));
    // Maps work too, although they use the page cache.
    let script =
        "import mmap, sys; f = open(sys.argv[1], 'rb'); print(len(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[:]))";
    let path = direct.path("tensors/model.embed.weight");
    let said = run_ok(python().to_str().unwrap(), ["-c".as_ref(), script.as_ref(), path.as_os_str()]);
    assert_eq!(said.trim(), (3 << 20).to_string());
}

#[test]
fn root_mount_sets_the_read_ahead_of_the_kernel() {
    require_root!();
    let scene = Scene::new();
    let mount = scene.mount(&scene.sample(), &[]);
    let list = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = list.lines().find(|line| line.contains(mount.point.to_str().unwrap())).unwrap();
    let device = line.split(' ').nth(2).unwrap();
    let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
    // It is set after mounting, at about the time at which the mount is reported.
    wait_until("the read-ahead is set", || std::fs::read_to_string(&path).unwrap().trim() == "1024");
}
