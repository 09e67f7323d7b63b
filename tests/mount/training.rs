//! Files of training with several sets of tensors: the weights are in the root, and the other sets are folders beside
//! them. Lightning 2.6 and torch 2.15 have written the files.

use crate::support::{Mount, Scene, require_fuse, require_root, run_ok};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub fn written() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/one-file")
}

/// The names of the tensors of each file and directory of a mount, with the sums of their bytes. Made with torch.
fn expected() -> BTreeMap<(String, String), BTreeMap<String, String>> {
    let mut expected: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for line in std::fs::read_to_string(written().join("sums.tsv")).unwrap().lines() {
        let [file, dir, name, .., sum] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let shown = expected.entry((file.to_owned(), dir.to_owned())).or_default();
        shown.insert(name.replace('/', "%2F"), sum.to_owned());
    }
    expected
}

/// The names of the files of a directory of a mount, with the sums of their bytes.
fn found(mount: &Mount, dir: &str) -> BTreeMap<String, String> {
    let sum =
        |name: &str| run_ok("sha256sum", [mount.path(format!("{dir}/{name}"))]).split(' ').next().map(str::to_owned);
    mount.list(dir).into_iter().map(|name| (name.clone(), sum(&name).unwrap())).collect()
}

#[test]
fn sets_of_a_file_are_folders_beside_the_weights() {
    require_fuse!();
    let scene = Scene::new();
    let expected = expected();
    let all = scene.mount(&written(), &[]);
    let mut of_sets = BTreeSet::new();
    for file in ["average.pt", "lightning.ckpt", "sgd.ckpt", "tutorial.pt", "two-optimizers.ckpt"] {
        let mount = scene.mount(&written().join(file), &[]);
        let stem = file.split('.').next().unwrap();
        let sets = expected.keys().filter(|(of, _)| of == file).map(|(_, dir)| dir);
        for dir in sets {
            let sums = &expected[&(file.to_owned(), dir.clone())];
            assert_eq!(found(&mount, dir), *sums, "{file} {dir}");
            assert_eq!(found(&all, &format!("{stem}/{dir}")), *sums, "{file} {dir}");
            let root = dir.strip_suffix("tensors").unwrap();
            assert_eq!(mount.list(format!("{root}npy")).len(), sums.len(), "{file} {dir}");
            // Every set has a tree of its own.
            for root in [mount.path(root), all.path(format!("{stem}/{root}"))] {
                let ino = run_ok("stat", ["-c".as_ref(), "%m %i".as_ref(), root.as_os_str()]);
                assert!(of_sets.insert(ino.clone()), "{file} {dir}: {ino}");
            }
        }
        // A set by itself, which has no other sets.
        let alone = scene.mount(&written().join(file).join("optimizer"), &[]);
        assert_eq!(found(&alone, "tensors"), found(&mount, "optimizer/tensors"), "{file}");
        let (names, views) = (mount.list(""), alone.list(""));
        let beside: Vec<&str> = names.iter().filter(|name| !views.contains(name)).map(String::as_str).collect();
        let other = if file == "average.pt" { "ema" } else { "extra" };
        assert_eq!(BTreeSet::from_iter(beside), BTreeSet::from([other, "optimizer"]), "{file}");
        assert_eq!(names.len(), views.len() + 2, "{file}: {names:?}");
        assert_eq!((mount.log(), alone.log()), (String::new(), String::new()), "{file}");
    }
    assert_eq!(all.log(), "");
    // Metadata is that of the whole file, and the one of a set is that of its entries.
    assert_eq!(
        all.read("average/metadata/opt.param_groups.0.lr"),
        all.read("average/optimizer/metadata/param_groups.0.lr")
    );
    assert_eq!(all.read("average/metadata/args.lr"), b"0.001");
    assert!(!all.path("average/optimizer/metadata/args.lr").exists());
}

#[test]
fn sets_of_a_file_and_of_files_beside_it_have_different_names() {
    require_fuse!();
    let scene = Scene::new();
    let trainer = written().join("../trainer/plain/optimizer.pt");
    scene.ok(&format!("mkdir model && cp {0}/lightning.ckpt {1} model", written().display(), trainer.display()));
    let mount = scene.mount(&scene.path("model"), &[]);
    let expected = expected();
    for dir in ["tensors", "optimizer/tensors", "extra/tensors"] {
        assert_eq!(found(&mount, dir), expected[&("lightning.ckpt".to_owned(), dir.to_owned())], "{dir}");
    }
    let beside = scene.mount(&scene.path("model/optimizer.pt"), &[]);
    assert_eq!(found(&mount, "optimizer~2/tensors"), found(&beside, "tensors"));
    let names = mount.list("");
    assert_eq!(BTreeSet::from_iter(&names).len(), names.len(), "{names:?}");
    let count = |name: &str| names.iter().filter(|found| found.starts_with(name)).count();
    assert_eq!((count("optimizer"), count("extra"), count("tensors")), (2, 1, 1), "{names:?}");
    assert_eq!(mount.log(), "");
}

#[test]
fn sets_have_the_permissions_of_their_file() {
    require_root!();
    let scene = Scene::new();
    scene.ok(&format!(
        "cp {} x.ckpt && cp x.ckpt y.ckpt && chmod 640 x.ckpt && chown 5:7 x.ckpt",
        written().join("lightning.ckpt").display()
    ));
    scene.ok(
        "mkdir mnt all models && mv y.ckpt models && cp -a x.ckpt models && weightfs x.ckpt mnt && weightfs models all",
    );
    for root in ["mnt", "all/x"] {
        let found = scene.ok(&format!(
            "cd {root} && stat -c '%u:%g %a' . optimizer optimizer/tensors optimizer/tensors/state.0.step"
        ));
        assert_eq!(found, "5:7 550\n5:7 550\n5:7 550\n5:7 440\n", "{root}");
        let user = "setpriv --reuid=65534 --regid=65534 --clear-groups --";
        assert!(scene.sh(&format!("{user} ls {root}/optimizer")).code != 0, "{root}");
    }
    scene.ok("weightfs umount mnt && weightfs umount all");
}
