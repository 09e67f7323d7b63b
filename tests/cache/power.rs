//! Losses of power: the image of a mounted file system is copied without unmounting it, and the copy is mounted.

use crate::support::*;
use nix::mount::{MntFlags, umount2};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use weightfs::source::pins::BLOCK;

const LEN: u64 = 40 << 20;

/// A mounted image.
struct Mounted(PathBuf);

impl Mounted {
    fn new(image: &Path, at: &Path) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount").args(["-o", "loop"]).args([image, at]).output().ok()?;
        mounted.status.success().then(|| Self(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Some blocks of the object that are written, and others that are evicted. Returns what is there in the end.
fn work(dir: &Path, boot: &str, random: &mut Random) -> BTreeSet<u64> {
    let cache = open_in_boot(dir, boot);
    let object = cache.object(&key(1, LEN)).unwrap();
    for step in 0..60 {
        let first = random.below(object.blocks - 8);
        fill(&object, 1, first..first + 1 + random.below(8));
        match step {
            // The table comes to the disk before the data that is written later, and before some that was written.
            10 | 40 => File::open(file(dir, "table")).unwrap().sync_all().unwrap(),
            20 | 45 => File::open(file(dir, "data")).unwrap().sync_all().unwrap(),
            // Blocks that are on the disk are evicted, and some of them are written again.
            30 => assert!(cache.evict(4 << 20).unwrap().freed > 0),
            55 => File::open(file(dir, "table")).unwrap().sync_all().unwrap(),
            _ => {}
        }
    }
    all(&object).into_iter().flatten().collect()
}

/// Returns the number of blocks that were kept and lost. `None` without the tools or the permission to mount.
fn lose_power(make: &[&str], size: u64, rounds: u64) -> Option<(usize, usize)> {
    let dir = tempdir_alone();
    let image = dir.path().join("image");
    File::create(&image).unwrap().set_len(size).unwrap();
    let made = Command::new(make[0]).args(&make[1..]).arg(&image).output();
    if !made.is_ok_and(|made| made.status.success()) {
        return None;
    }
    let (mut kept, mut lost, mut random) = (0, 0, Random(size));
    // The kernel, or another test, may write everything to the disk in time. Then a later round loses something.
    for round in 0..10 * rounds {
        if round >= rounds && kept > 0 && lost > 0 {
            break;
        }
        let (at, copy) = (dir.path().join(format!("mount{round}")), dir.path().join(format!("image{round}")));
        let mounted = Mounted::new(&image, &at);
        assert!(round == 0 || mounted.is_some(), "the image was unmounted");
        let mounted = mounted?;
        let before = work(&at.join("cache"), &format!("boot {round}"), &mut random);
        // What the device has at this moment.
        let copied = Command::new("cp").args(["--sparse=always"]).args([&image, &copy]).status().unwrap();
        assert!(copied.success());
        drop(mounted);

        // The kernel may have written in the middle of the copy, as no disk does. Then the copy may be unusable.
        let Some(mounted) = Mounted::new(&copy, &at) else { continue };
        let object = open_in_boot(&at.join("cache"), "after").object(&key(1, LEN)).unwrap();
        let found = verify(&object, 1) as usize;
        let after: BTreeSet<u64> = all(&object).into_iter().flatten().collect();
        kept += found;
        lost += before.difference(&after).count();
        fill(&object, 1, 0..object.blocks);
        assert_eq!(verify(&object, 1), LEN.div_ceil(BLOCK));
        drop(object);
        // The next round begins with an empty cache, or with a full one.
        if round % 2 == 0 {
            fs::remove_dir_all(at.join("cache")).unwrap();
        }
        drop(mounted);
        fs::rename(&copy, &image).unwrap();
    }
    Some((kept, lost))
}

#[test]
fn loss_of_power_never_gives_wrong_bytes() {
    let ext4 = lose_power(&["mkfs.ext4", "-q", "-F"], 128 << 20, 4);
    let xfs = lose_power(&["mkfs.xfs", "-q", "-f"], 320 << 20, 2);
    if ext4.is_none() {
        eprintln!("skipped: this test needs mkfs.ext4 and the permission to mount");
    }
    for (kind, result) in [("ext4", ext4), ("XFS", xfs)] {
        let Some((kept, lost)) = result else { continue };
        println!("{kind}: {kept} blocks kept, {lost} lost");
        assert!(kept > 0 && lost > 0, "{kind}: {kept} blocks kept, {lost} lost");
    }
}
