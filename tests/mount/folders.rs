//! Directories of several models: each model has a folder of its own and is opened on its first lookup.

use crate::support::{Mount, Scene, Tensor, pattern, require_fuse, require_root};
use nix::mount::{MntFlags, umount2};
use safetensors::Dtype;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

fn one(name: &str, len: usize) -> Vec<Tensor<'_>> {
    vec![(name, Dtype::U8, Box::leak(Box::new([len])), pattern(len))]
}

/// Sorted names in a directory.
fn names(mount: &Mount, dir: &str) -> Vec<String> {
    let mut names = mount.list(dir);
    names.sort();
    names
}

/// Number of files below `dir` that the daemon holds open.
fn held(mount: &Mount, dir: &Path) -> usize {
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", mount.child.id())).unwrap();
    descriptors
        .filter(|fd| std::fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|path| path.starts_with(dir)))
        .count()
}

#[test]
fn pipeline_has_folder_for_each_model() {
    require_fuse!();
    let scene = Scene::new();
    for dir in ["pipe", "pipe/unet", "pipe/vae", "pipe/text_encoder", "pipe/tokenizer", "pipe/.cache"] {
        scene.mkdir(dir);
    }
    scene.model("pipe/unet/diffusion_pytorch_model.safetensors", &one("u", 10), &[]);
    scene.model("pipe/unet/diffusion_pytorch_model.fp16.safetensors", &one("u", 5), &[]);
    scene.model("pipe/vae/diffusion_pytorch_model.safetensors", &one("v", 20), &[]);
    scene.model("pipe/.cache/hidden.safetensors", &one("h", 20), &[]);
    for (at, tensor) in ["a", "b"].into_iter().enumerate() {
        let variant = format!("pipe/text_encoder/model.fp16-0000{}-of-00002.safetensors", at + 1);
        scene.model(&variant, &one(tensor, 3), &[]);
    }
    std::fs::write(
        scene.path("pipe/text_encoder/model.safetensors.index.fp16.json"),
        r#"{"metadata":{},"weight_map":{"a":"model.fp16-00001-of-00002.safetensors","b":"model.fp16-00002-of-00002.safetensors"}}"#,
    )
    .unwrap();
    let parts = r#"{"unet": ["diffusers", "UNet2DConditionModel"]}"#;
    std::fs::write(scene.path("pipe/model_index.json"), parts).unwrap();
    std::fs::write(scene.path("pipe/unet/config.json"), "{\"a\": 1}").unwrap();
    std::fs::write(scene.path("pipe/tokenizer/vocab.json"), "vocabulary").unwrap();
    let mount = scene.mount(&scene.path("pipe"), &[]);
    assert_eq!(names(&mount, ""), ["export", "model_index.json", "text_encoder", "tokenizer", "unet", "vae"]);
    assert_eq!(names(&mount, "unet"), ["config.json", "diffusion_pytorch_model", "diffusion_pytorch_model.fp16"]);
    assert_eq!(names(&mount, "text_encoder"), ["model.fp16"]);
    assert_eq!(mount.read("unet/diffusion_pytorch_model/tensors/u"), pattern(10));
    assert_eq!(mount.read("unet/diffusion_pytorch_model.fp16/tensors/u"), pattern(5));
    assert_eq!(mount.read("vae/diffusion_pytorch_model/tensors/v"), pattern(20));
    assert_eq!(names(&mount, "text_encoder/model.fp16/tensors"), ["a", "b"]);
    assert_eq!(mount.list("text_encoder/model.fp16/shards").len(), 2);
    assert!(mount.path("text_encoder/model.fp16/export/model.fp16-whole.safetensors").exists());
    // The sums of all models name their files here.
    let (source, sums) = (scene.path("pipe"), scene.path("sums"));
    scene.ok(&format!(
        "weightfs sums {} > {sums} && cd {} && sha256sum --strict --quiet -c {sums} && test $(wc -l < {sums}) = 5",
        source.display(),
        mount.point.display(),
        sums = sums.display(),
    ));
    // Every other file is a symlink to the original.
    for link in ["unet/config.json", "tokenizer/vocab.json", "model_index.json"] {
        let original = scene.path("pipe").join(link);
        assert_eq!(std::fs::read_link(mount.path(link)).unwrap(), original);
        assert_eq!(mount.read(link), std::fs::read(&original).unwrap());
        assert_eq!(std::fs::symlink_metadata(mount.path(link)).unwrap().len(), original.as_os_str().len() as u64);
    }
    // Inode numbers are unique, `..` is the parent, and another mount has the same numbers.
    let find =
        |mount: &Mount| scene.ok(&format!("cd {} && find . -printf '%i %p\\n' | sort -k2", mount.point.display()));
    let inodes = find(&mount);
    let mut numbers: Vec<&str> =
        inodes.lines().filter(|line| !line.contains("/tree/")).map(|line| line.split(' ').next().unwrap()).collect();
    let all = numbers.len();
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), all);
    let ino = |path: &str| std::fs::metadata(mount.path(path)).unwrap().ino();
    for (dir, up) in [
        ("unet/diffusion_pytorch_model", "unet"),
        ("unet", "."),
        ("vae/diffusion_pytorch_model/tensors", "vae/diffusion_pytorch_model"),
    ] {
        assert_eq!(ino(&format!("{dir}/..")), ino(up));
        let listed =
            scene.ok(&format!("ls -ai {} | sed -n 's/ *\\([0-9]*\\) \\.\\.$/\\1/p'", mount.path(dir).display()));
        assert_eq!(listed.trim().parse::<u64>().unwrap(), ino(up), "{dir}");
    }
    assert_eq!(mount.log(), "");
    drop(mount);
    assert_eq!(find(&scene.mount(&scene.path("pipe"), &[])), inodes);
}

#[test]
fn models_are_opened_on_lookup() {
    require_fuse!();
    const MODELS: usize = 1000;
    let scene = Scene::new();
    let loras = scene.mkdir("loras");
    for at in 0..MODELS {
        scene.model(&format!("loras/lora{at:04}.safetensors"), &one("w", at % 7 + 1), &[("ss_network_dim", "8")]);
    }
    std::fs::write(
        loras.join("lora0500.safetensors"),
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    )
    .unwrap();
    let mount = scene.mount(&loras, &[]);
    assert_eq!(held(&mount, &loras), 0);
    // A lookup opens the model.
    assert_eq!(mount.read("lora0003/tensors/w"), pattern(4));
    assert_eq!(held(&mount, &loras), 1);
    assert!(!mount.path("lora0500").exists());
    assert!(String::from_utf8(mount.read("lora0500.error.txt")).unwrap().contains("Git LFS pointer"));
    let listed = names(&mount, "");
    assert_eq!(listed.len(), MODELS);
    assert!(listed.contains(&"lora0500.error.txt".to_owned()) && !listed.contains(&"lora0500".to_owned()));
    // A listing reads every header but keeps no file open.
    assert_eq!(held(&mount, &loras), 1);
    for at in (0..MODELS).filter(|at| *at != 500) {
        assert_eq!(mount.read(format!("lora{at:04}/metadata/ss_network_dim")), b"8");
        assert_eq!(mount.read(format!("lora{at:04}/tensors/w")), pattern(at % 7 + 1));
    }
    assert_eq!(mount.log().lines().count(), 1, "{}", mount.log());
}

#[test]
fn broken_model_does_not_affect_others() {
    require_fuse!();
    let scene = Scene::new();
    let dir = scene.mkdir("models");
    let whole = std::fs::read(scene.model("models/fine.safetensors", &one("w", 100), &[])).unwrap();
    std::fs::write(dir.join("half.safetensors"), &whole[..whole.len() - 40]).unwrap();
    symlink("nowhere", dir.join("dangling.safetensors")).unwrap();
    symlink(".", dir.join("loop")).unwrap();
    std::fs::write(dir.join("whole.safetensors.index.json"), r#"{"weight_map":{"w":"gone.safetensors"}}"#).unwrap();
    std::fs::write(dir.join("torn.safetensors.index.json"), "{").unwrap();
    let mount = scene.mount(&dir, &[]);
    let errors = [
        ("half", "40 bytes missing"),
        ("dangling", "dangling.safetensors: a link to nowhere, which does not exist"),
        ("whole", "a shard is missing or broken: "),
        ("torn", "not a valid index of a sharded model: EOF"),
    ];
    let mut expected: Vec<String> = errors.iter().map(|error| format!("{}.error.txt", error.0)).collect();
    expected.extend(["fine", "loop"].map(str::to_owned));
    expected.sort();
    assert_eq!(names(&mount, ""), expected);
    for (name, reason) in errors {
        let path = mount.path(format!("{name}.error.txt"));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(reason) && text.ends_with('\n') && text.lines().count() == 1, "{text}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), text.len() as u64);
        assert!(!mount.path(name).exists());
    }
    assert_eq!(mount.read("fine/tensors/w"), pattern(100));
    // A symlink to a directory that is shown already stays a symlink.
    assert_eq!(std::fs::read_link(mount.path("loop")).unwrap(), dir.join("loop"));
    drop(mount);
    // With --lenient, the intact part of a broken model is mounted.
    let mount = scene.mount(&dir, &["--lenient"]);
    assert!(mount.path("half").is_dir());
    // A model that was removed after its folder was listed gives EIO.
    assert!(mount.path("fine").is_dir());
    std::fs::remove_file(dir.join("fine.safetensors")).unwrap();
    let error = std::fs::read_dir(mount.path("fine")).and_then(|mut entries| entries.next().unwrap()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(nix::libc::EIO));
    assert!(mount.log().contains("fine.safetensors: No such file or directory"), "{}", mount.log());
}

#[test]
fn conflicting_names_are_made_unique() {
    require_fuse!();
    let scene = Scene::new();
    scene.mkdir("m");
    scene.mkdir("m/dir");
    for (at, file) in ["dir", "file", "twice", "twice.safetensors", "free"].iter().enumerate() {
        scene.model(&format!("m/{file}.safetensors"), &one("w", at + 1), &[]);
    }
    std::fs::write(scene.path("m/file"), "a file").unwrap();
    // Files with other extensions do not conflict with the name of a model.
    for ending in ["json", "preview.png", "txt"] {
        std::fs::write(scene.path(format!("m/free.{ending}")), "a file").unwrap();
    }
    scene.model("m/twice-00001-of-00001.safetensors", &one("s", 9), &[]);
    std::fs::write(
        scene.path("m/twice.safetensors.index.json"),
        r#"{"weight_map":{"s":"twice-00001-of-00001.safetensors"}}"#,
    )
    .unwrap();
    let mount = scene.mount(&scene.path("m"), &[]);
    let models = [
        ("dir.safetensors", "w", 1),
        ("file.safetensors", "w", 2),
        ("twice.safetensors", "w", 3),
        ("twice.safetensors.safetensors", "w", 4),
        ("free", "w", 5),
        ("twice.safetensors.index.json", "s", 9),
    ];
    for (name, tensor, len) in models {
        assert_eq!(mount.read(format!("{name}/tensors/{tensor}")), pattern(len), "{name}");
    }
    assert_eq!(mount.list("").len(), models.len() + 2 + 3);
    assert!(mount.list("dir").is_empty());
    assert_eq!(mount.read("file"), b"a file");
}

#[test]
fn only_model_is_the_root_if_it_lies_directly_in_the_directory() {
    require_fuse!();
    let scene = Scene::new();
    scene.mkdir("repo");
    scene.mkdir("repo/nested");
    scene.model("repo/nested/only.safetensors", &one("w", 3), &[]);
    std::fs::write(scene.path("repo/config.json"), "{}").unwrap();
    let mount = scene.mount(&scene.path("repo"), &[]);
    assert_eq!(names(&mount, ""), ["config.json", "nested"]);
    assert_eq!(names(&mount, "nested"), ["only"]);
    assert_eq!(mount.read("nested/only/tensors/w"), pattern(3));
    // Commands that take one model find it anyway.
    scene.ok("weightfs export --force repo one.safetensors && weightfs diff --data repo one.safetensors");
    drop(mount);
    for direct in ["repo/nested", "repo/nested/."] {
        assert_eq!(scene.mount(&scene.path(direct), &[]).read("tensors/w"), pattern(3));
    }
    symlink("nested", scene.path("repo/link")).unwrap();
    let mount = scene.mount(&scene.path("repo/link"), &[]);
    assert_eq!(mount.read("tensors/w"), pattern(3));
}

#[test]
fn changed_directory_is_logged_once() {
    require_fuse!();
    let scene = Scene::new();
    let dir = scene.mkdir("m");
    scene.mkdir("m/inner");
    for name in ["a", "b", "inner/c"] {
        scene.model(&format!("m/{name}.safetensors"), &one("w", 3), &[]);
    }
    let mount = scene.mount(&dir, &["-v"]);
    assert!(mount.log().contains("m: a snapshot of the directory, 3 models; files added later"), "{}", mount.log());
    let list = || (names(&mount, ""), names(&mount, "inner"));
    let before = list();
    assert_eq!(before.0, ["a", "b", "inner"]);
    let warning = format!("{}: files were added, removed or renamed since it was mounted", dir.display());
    assert!(!mount.log().contains("since it was mounted"), "{}", mount.log());
    scene.model("m/new.safetensors", &one("w", 3), &[]);
    for _ in 0..3 {
        assert_eq!(list(), before);
    }
    let log = mount.log();
    assert_eq!((log.matches(&warning).count(), log.matches("since it was mounted").count()), (1, 1), "{log}");
}

#[test]
fn mount_point_that_is_created_in_the_source_is_not_logged_as_a_change() {
    require_fuse!();
    let scene = Scene::new();
    scene.mkdir("m");
    for name in ["a", "b"] {
        scene.model(&format!("m/{name}.safetensors"), &one("w", 3), &[]);
    }
    scene.ok("cd m && weightfs --log-file ../log .");
    assert_eq!(scene.ok("ls m/m && cat log && weightfs umount m/m"), "a\nb\n");
    scene.wait_for_end();
}

#[test]
fn dataset_is_one_folder() {
    require_fuse!();
    let scene = Scene::new();
    for dir in ["repo", "repo/nested", "repo/train"] {
        scene.mkdir(dir);
    }
    scene.model("repo/nested/only.safetensors", &one("w", 3), &[]);
    for part in ["a", "b"] {
        scene.model(&format!("repo/train/{part}.safetensors"), &one("x", 4), &[]);
    }
    let listed = |part: &str| serde_json::json!({"shard_path": part, "samples_count": 4, "bytes": 72});
    let manifest =
        serde_json::json!({"format_version": "1.0", "shards": [listed("a.safetensors"), listed("b.safetensors")]});
    std::fs::write(scene.path("repo/train/dataset_manifest.json"), manifest.to_string()).unwrap();
    let mount = scene.mount(&scene.path("repo"), &[]);
    assert_eq!(names(&mount, ""), ["nested", "train"]);
    assert_eq!(mount.read("train/tensors/x"), [pattern(4), pattern(4)].concat());
    let exports = ["bf16", "clean", "f32", "whole"].map(|kind| format!("train-{kind}.safetensors"));
    assert_eq!(names(&mount, "train/export"), exports);
    assert_eq!(mount.read("nested/only/tensors/w"), pattern(3));
}

#[test]
fn model_permissions_follow_its_file() {
    require_root!();
    let scene = Scene::new();
    std::fs::set_permissions(scene.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let dir = scene.mkdir("models");
    for (name, mode) in [("open", 0o644), ("closed", 0o600)] {
        let path = scene.model(&format!("models/{name}.safetensors"), &one("w", 3), &[]);
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    let mount = scene.mount(&dir, &["-o", "allow_other"]);
    let modes = |path: &str| std::fs::metadata(mount.path(path)).unwrap().mode() & 0o777;
    assert_eq!((modes("open"), modes("open/tensors/w")), (0o555, 0o444));
    assert_eq!((modes("closed"), modes("closed/tensors/w")), (0o500, 0o400));
    let nobody = |path: &str| {
        scene.sh(&format!("setpriv --reuid 65534 --regid 65534 --clear-groups cksum {}", mount.path(path).display()))
    };
    assert_eq!(nobody("open/tensors/w").code, 0);
    assert!(nobody("closed/tensors/w").err.contains("Permission denied"));
}

/// The names of models and error files are unique, and short enough for a file name.
#[test]
fn error_files_have_unique_names() {
    require_fuse!();
    let scene = Scene::new();
    let dir = scene.mkdir("m");
    let long = "x".repeat(243);
    for name in ["a", "b", "bad\n\u{1b}[31m", &long] {
        std::fs::write(dir.join(format!("{name}.safetensors")), "broken").unwrap();
    }
    scene.model("m/a.error.txt.safetensors", &one("w", 3), &[]);
    for file in ["b.error.txt", "b.safetensors.error.txt", &long] {
        std::fs::write(dir.join(file), "a file").unwrap();
    }
    scene.mkdir("m/d");
    std::fs::write(dir.join("d/dataset_manifest.json"), "[]").unwrap();
    std::fs::write(dir.join("d.error.txt"), "a file").unwrap();
    let mount = scene.mount(&dir, &[]);
    let names = names(&mount, "");
    let mut expected = vec![
        "a.error.txt".to_owned(),
        "a.error2.txt".to_owned(),
        "b.error.txt".to_owned(),
        "b.error2.txt".to_owned(),
        "b.safetensors.error.txt".to_owned(),
        "bad%0A%1B[31m.error.txt".to_owned(),
        "d.error.txt".to_owned(),
        "d.error2.txt".to_owned(),
        long.clone(),
        format!("{}.error.txt", "x".repeat(230)),
    ];
    expected.sort();
    assert_eq!(names, expected);
    assert_eq!(mount.read("a.error.txt/tensors/w"), pattern(3));
    for name in &names {
        let path = mount.path(name);
        if std::fs::symlink_metadata(&path).unwrap().is_file() {
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.len() > 30 && !text.trim_end().contains(char::is_control), "{text:?}");
        }
    }
    let copy = outside_copy(&mount, &scene);
    assert_eq!(copy.len(), names.len());
}

#[test]
fn error_files_with_same_truncated_name_are_numbered() {
    require_fuse!();
    const FILES: usize = 500;
    let scene = Scene::new();
    let dir = scene.mkdir("m");
    let begin = "x".repeat(230);
    for at in 0..FILES {
        std::fs::write(dir.join(format!("{begin}{at}.safetensors")), "broken").unwrap();
    }
    for taken in ["", "3", "4"] {
        std::fs::write(dir.join(format!("{begin}.error{taken}.txt")), "a file").unwrap();
    }
    let mount = scene.mount(&dir, &[]);
    let name =
        |number: usize| format!("{begin}.error{}.txt", if number == 1 { String::new() } else { number.to_string() });
    let mut expected: Vec<String> = (1..=FILES + 3).map(name).collect();
    expected.sort();
    assert_eq!(names(&mount, ""), expected);
}

/// The names in a copy that `cp -a` makes of a mount.
fn outside_copy(mount: &Mount, scene: &Scene) -> Vec<String> {
    scene.ok(&format!("cp -a {} copy", mount.point.display()));
    let entries = std::fs::read_dir(scene.path("copy")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn concurrent_first_listings_of_folder_succeed() {
    require_fuse!();
    let scene = Scene::new();
    let dir = scene.mkdir("m");
    for model in 0..24 {
        let mut map = std::collections::BTreeMap::new();
        for shard in 0..6 {
            let (file, tensor) = (format!("m{model}-{shard}.safetensors"), format!("t{shard}"));
            scene.model(&format!("m/{file}"), &one(&tensor, 4), &[]);
            map.insert(tensor, file);
        }
        let index = serde_json::json!({ "weight_map": map });
        std::fs::write(dir.join(format!("m{model}.safetensors.index.json")), index.to_string()).unwrap();
    }
    for _ in 0..12 {
        let mount = scene.mount(&dir, &[]);
        std::thread::scope(|scope| {
            for reader in 0..8 {
                let mount = &mount;
                scope.spawn(move || match reader % 2 {
                    0 => assert_eq!(mount.list("").len(), 24),
                    _ => assert_eq!(mount.read(format!("m{reader}/tensors/t3")), pattern(4)),
                });
            }
        });
    }
}

#[test]
fn links_into_own_mount_are_rejected() {
    require_fuse!();
    let scene = Scene::new();
    let dir = scene.mkdir("m");
    let point = scene.mkdir("m/mnt");
    scene.mkdir("m/mnt/below");
    for name in ["a", "b", "mnt/below/c"] {
        scene.model(&format!("m/{name}.safetensors"), &one("w", 3), &[]);
    }
    symlink("mnt/self/safetensors/w.safetensors", dir.join("self.safetensors")).unwrap();
    symlink("mnt/a/safetensors/w.safetensors", dir.join("other.safetensors")).unwrap();
    let mount = Mount::new(&dir, &point, &["--threads", "1", "-o", "nonempty"]);
    assert_eq!(names(&mount, ""), ["a", "b", "mnt", "mnt.log", "other.error.txt", "self.error.txt"]);
    assert_eq!(names(&mount, "mnt/below"), ["c.error.txt"]);
    for error in ["other.error.txt", "self.error.txt", "mnt/below/c.error.txt"] {
        let text = String::from_utf8(mount.read(error)).unwrap();
        assert!(text.contains("lies inside the mount itself"), "{text}");
    }
    assert_eq!(mount.read("a/tensors/w"), pattern(3));
}

#[test]
fn shards_in_own_mount_or_in_other_folders_are_not_looked_up() {
    require_fuse!();
    let scene = Scene::new();
    let (dir, point) = (scene.mkdir("m"), scene.mkdir("mnt"));
    for name in ["a", "b"] {
        scene.model(&format!("m/{name}.safetensors"), &one("w", 3), &[]);
    }
    symlink("../mnt", dir.join("link")).unwrap();
    let other = dir.join("b.safetensors").display().to_string();
    let shards = [("other", &*other), ("through", "link/through/w.safetensors"), ("up", "../mnt/up/w.safetensors")];
    for (name, shard) in shards {
        let index = format!(r#"{{"weight_map": {{"w": "{shard}"}}}}"#);
        std::fs::write(dir.join(format!("{name}.safetensors.index.json")), index).unwrap();
    }
    let mount = Mount::new(&dir, &point, &["--threads", "1"]);
    assert_eq!(names(&mount, ""), ["a", "b", "link", "other.error.txt", "through.error.txt", "up.error.txt"]);
    let said = |name: &str| String::from_utf8(mount.read(format!("{name}.error.txt"))).unwrap();
    assert!(said("through").contains("a link leads to it"), "{}", said("through"));
    assert!(said("up").contains("leads out of the directory"), "{}", said("up"));
}

#[test]
fn replaced_model_with_other_permissions_gives_eio() {
    require_root!();
    let scene = Scene::new();
    let dir = scene.mkdir("m");
    for name in ["a", "b"] {
        scene.model(&format!("m/{name}.safetensors"), &one("w", 3), &[]);
    }
    // In the sandbox, the other file is not opened at all.
    let mount = scene.mount(&dir, &["-o", "allow_other", "--no-sandbox"]);
    assert_eq!(names(&mount, ""), ["a", "b"]);
    let secret = scene.model("secret", &one("w", 3), &[]);
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::rename(secret, dir.join("a.safetensors")).unwrap();
    assert_eq!(std::fs::read(mount.path("a/tensors/w")).unwrap_err().raw_os_error(), Some(nix::libc::EIO));
    assert!(
        mount.log().contains("a.safetensors: changed since its folder was listed; mount it again"),
        "{}",
        mount.log()
    );
}

#[test]
fn link_to_huge_directory_does_not_affect_models() {
    require_fuse!();
    let scene = Scene::new();
    let dir = scene.mkdir("m");
    for name in ["a", "b"] {
        scene.model(&format!("m/{name}.safetensors"), &one("w", 3), &[]);
    }
    // More files than are followed behind a symlink.
    let many = scene.mkdir("many");
    for at in 0..60 {
        let sub = many.join(at.to_string());
        std::fs::create_dir(&sub).unwrap();
        std::fs::write(sub.join("0.txt"), "").unwrap();
        for file in 1..2000 {
            std::fs::hard_link(sub.join("0.txt"), sub.join(format!("{file}.txt"))).unwrap();
        }
    }
    symlink("../many", dir.join("far")).unwrap();
    let mount = scene.mount(&dir, &[]);
    assert_eq!(names(&mount, ""), ["a", "b", "far.error.txt"]);
    assert!(String::from_utf8(mount.read("far.error.txt")).unwrap().contains("a link to more than 100000 files"));
    assert_eq!(mount.read("b/tensors/w"), pattern(3));
}

/// Runs a line of shell that must succeed within a minute. Otherwise the mounts are aborted, because readers in mounts
/// that wait for each other cannot be killed.
fn within_a_minute(scene: &Scene, mounts: &[Mount], line: &str) -> String {
    let file = scene.path("said");
    let mut child = scene.command("sh").args(["-c", &format!("({line}) >'{}' 2>&1", file.display())]).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            for mount in mounts {
                // Unmounting fails if the mount is in use, but the kernel aborts the connection before it checks that.
                let _ = umount2(&mount.point, MntFlags::MNT_FORCE);
            }
            child.wait().unwrap();
            panic!("no answer within a minute: {line}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::read_to_string(file).unwrap()
}

#[test]
fn links_into_other_mounts_are_refused() {
    require_fuse!();
    for options in [&[][..], &["--no-sandbox"]] {
        // The number of mounts in the ring.
        for count in [1, 2, 3] {
            let scene = Scene::new();
            let mounts: Vec<Mount> = (0..count)
                .map(|at| {
                    scene.ok(&format!("mkdir -p m{at}/sub"));
                    for name in ["x", "other", "sub/z"] {
                        scene.model(&format!("m{at}/{name}.safetensors"), &one("w", 10), &[]);
                    }
                    scene.mount(&scene.path(format!("m{at}")), options)
                })
                .collect();
            // No model has been opened. Each mount gets links into the next mount.
            for at in 0..count {
                scene.ok(&format!("rm -r m{at}/sub m{at}/x.safetensors"));
                // Unlike ln(1), this does not look at the target, which would open the model there.
                let target = mounts[(at + 1) % count].path("x/safetensors");
                symlink(target.join("w.safetensors"), scene.path(format!("m{at}/x.safetensors"))).unwrap();
                symlink(target, scene.path(format!("m{at}/sub"))).unwrap();
            }
            for (at, mount) in mounts.iter().enumerate() {
                let (point, next) = (mount.point.display(), mounts[(at + 1) % count].point.display());
                let listed = within_a_minute(&scene, &mounts, &format!("ls {point} {point}/sub"));
                assert!(listed.contains("\nx.error.txt\n") && listed.contains("\nz.error.txt\n"), "{listed}");
                let reason = match count {
                    1 => "lies inside the mount itself".to_owned(),
                    _ => format!(
                        "leads into another mount of weightfs, {next}, and the two could wait for each other; mount it \
                         by its own path"
                    ),
                };
                for name in ["x", "sub/z"] {
                    let said = within_a_minute(&scene, &mounts, &format!("cat {point}/{name}.error.txt"));
                    let file = scene.path(format!("m{at}/{name}.safetensors"));
                    assert_eq!(said, format!("{}: {reason}\n", file.display()));
                }
                assert_eq!(mount.read("other/tensors/w"), pattern(10));
            }
        }
    }
}

#[test]
fn files_in_a_mount_can_be_mounted_by_their_own_path() {
    require_fuse!();
    let scene = Scene::new();
    scene.model("model.safetensors", &[one("a", 10), one("b", 20)].concat(), &[]);
    let first = scene.mount(&scene.path("model.safetensors"), &[]);
    let file = scene.mount(&first.path("export/model-whole.safetensors"), &[]);
    let directory = scene.mount(&first.path("safetensors"), &[]);
    assert_eq!((file.read("tensors/a"), file.read("tensors/b")), (pattern(10), pattern(20)));
    assert_eq!(names(&directory, ""), ["a", "b"]);
    assert_eq!((directory.read("a/tensors/a"), directory.read("b/tensors/b")), (pattern(10), pattern(20)));
}
