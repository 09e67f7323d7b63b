//! The command line: output, exit codes, when a command returns, and what it cleans up.

use crate::support::{Namespace, Said, Scene, require_fuse, require_root, wait_until};
use nix::mount::MsFlags;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::process::Stdio;

/// A tensor of the sample that is too large for read-ahead to fetch all of it.
const BIG: &str = "mnt/tensors/model.embed.weight";

/// What the sample model is, as the line after mounting says.
const SUMMARY: &str = "8 tensors, 3.15 MB of F32, BF16 and 5 more dtypes";

/// A scene with the sample model and an empty mount point.
fn scene() -> Scene {
    let scene = Scene::new();
    scene.sample();
    scene.mkdir("mnt");
    scene
}

fn expected(code: i32, out: &str, err: &str) -> Said {
    Said { code, out: out.into(), err: err.into() }
}

/// Whether a line equals `expected`. A `*` at the end of `expected` matches the rest of the line.
fn fits(line: &str, expected: &str) -> bool {
    match expected.strip_suffix('*') {
        Some(beginning) => line.starts_with(beginning) && !line.contains('\n'),
        None => line == expected,
    }
}

#[test]
fn command_prints_one_line_once_mount_is_ready() {
    require_fuse!();
    let scene = scene();
    scene.mkdir("a b");
    let lines = [
        ("weightfs sample.safetensors mnt", "on mnt (unmount: weightfs umount mnt)"),
        ("weightfs mount sample.safetensors mnt", "on mnt (unmount: weightfs umount mnt)"),
        ("weightfs --lenient sample.safetensors --threads 1 mnt", "on mnt (unmount: weightfs umount mnt)"),
        ("cd mnt/.. && weightfs ./sample.safetensors ./mnt/", "on ./mnt/ (unmount: weightfs umount ./mnt/)"),
        (
            "ln -s mnt link && ln -s sample.safetensors to && weightfs to link",
            "on link (unmount: weightfs umount link)",
        ),
        ("weightfs -- sample.safetensors 'a b'", "on a b (unmount: weightfs umount 'a b')"),
        ("weightfs --quiet sample.safetensors mnt", ""),
    ];
    for (line, said) in lines {
        let point = if line.ends_with("'a b'") { "'a b'" } else { "mnt" };
        let said = if said.is_empty() { String::new() } else { format!("{SUMMARY} {said}\n") };
        assert_eq!(scene.ok(line), said, "{line}");
        assert_eq!(scene.ok(&format!("cat {point}/tensors/slash%2Fand%25percent | wc -c")), "4\n", "{line}");
        assert_eq!(scene.ok(&format!("weightfs umount {point}; ls -A {point}")), "", "{line}");
        scene.wait_for_end();
    }
}

#[test]
fn created_mount_point_is_removed_after_unmount() {
    require_root!();
    let scene = scene();
    let unmounts = [
        "weightfs umount sample",
        "umount sample",
        "umount -l sample",
        "kill -INT $DAEMON",
        "kill -TERM $DAEMON",
        "kill -HUP $DAEMON",
    ];
    for unmount in unmounts {
        let made = scene.ok("weightfs sample.safetensors");
        assert_eq!(made, format!("{SUMMARY} on sample (unmount: weightfs umount sample)\n"));
        assert_eq!(scene.ok("ls -d sample/tensors"), "sample/tensors\n");
        scene.ok(unmount);
        scene.wait_for_end();
        assert!(!scene.path("sample").exists(), "{unmount}");
    }
    // A directory that existed before the mount is kept.
    scene.mkdir("sample");
    scene.ok("weightfs sample.safetensors && ls sample/tensors && weightfs umount sample");
    scene.wait_for_end();
    assert!(scene.path("sample").exists());
}

#[test]
fn failed_command_prints_one_error_and_leaves_nothing_behind() {
    require_fuse!();
    let scene = scene();
    scene.ok("mkdir -p dir full/x && echo text >text.safetensors && head -c 999 sample.safetensors >cut.safetensors");
    scene.ok("echo >file && mkfifo pipe && ln -s nowhere broken && ln -s sample.safetensors file.safetensors");
    let table = [
        ("weightfs absent.safetensors mnt", "absent.safetensors: No such file or directory"),
        ("weightfs absent.safetensors", "absent.safetensors: No such file or directory"),
        ("weightfs file/x mnt", "file/x: Not a directory"),
        ("weightfs broken mnt", "broken: a link to nowhere, which does not exist"),
        ("weightfs dir mnt", "dir: a directory without models, whose names end in .safetensors, *"),
        ("weightfs pipe mnt", "pipe: a named pipe, not a regular file"),
        ("weightfs /dev/null mnt", "/dev/null: a character device, not a regular file"),
        ("weightfs text.safetensors", "text.safetensors: too short: 5 bytes, *"),
        ("weightfs cut.safetensors", "cut.safetensors: *"),
        ("weightfs sample.safetensors absent", "absent: no such directory to mount on; make it first"),
        ("weightfs sample.safetensors file", "file: not a directory to mount on"),
        ("weightfs sample.safetensors file/x", "file/x: Not a directory"),
        (
            "weightfs file.safetensors",
            "file: not a directory to mount on; give an empty directory as MOUNTPOINT (`weightfs file.safetensors MOUNTPOINT`)",
        ),
        ("weightfs sample.safetensors full", "full: not empty; use --nonempty to mount over its contents"),
        ("weightfs sample.safetensors .", "sample.safetensors: lies inside the mount point ., which would hide it"),
        (
            "weightfs sample.safetensors . -o nonempty",
            "sample.safetensors: lies inside the mount point ., which would hide it",
        ),
        ("weightfs sample.safetensors --log-file absent/log", "absent/log: No such file or directory"),
        ("weightfs sample.safetensors mnt --log-file dir", "dir: Is a directory"),
        ("weightfs sample.safetensors mnt --log-file pipe", "pipe: neither a regular file nor a terminal"),
        ("weightfs umount mnt", "mnt: not mounted"),
        ("weightfs umount absent", "absent: not mounted"),
        ("weightfs umount /proc", "/proc: a proc mount, not a weightfs mount"),
    ];
    // The program is a hard link, which other tests have too.
    let before = scene.ok("ls -lR --ignore=bin");
    for (line, message) in table {
        let mut lines = vec![line.to_owned()];
        if !line.contains("umount") {
            lines.push(format!("{line} -f"));
            lines.push(line.replace("weightfs", "weightfs mount"));
        }
        for line in lines {
            let output = scene.sh(&line);
            assert_eq!((output.code, &output.out[..]), (1, ""), "{line}: {output:?}");
            let text =
                output.err.strip_prefix("weightfs: ").and_then(|text| text.strip_suffix('\n')).unwrap_or_default();
            assert!(fits(text, message), "{line}: {output:?}");
            assert_eq!(scene.mounts(), [""; 0], "{line}");
        }
    }
    scene.wait_for_end();
    assert_eq!(scene.ok("ls -lR --ignore=bin"), before);
}

#[test]
fn default_mount_point_in_the_way_asks_for_a_mountpoint() {
    require_fuse!();
    let scene = scene();
    scene.ok("mkdir -- dir full '-a b' && cp sample.safetensors dir/x.safetensors && cp sample.safetensors './-a b'");
    scene.ok("touch full/mine && cp sample.safetensors full.safetensors");
    let give = |source: &str| format!("give an empty directory as MOUNTPOINT (`weightfs {source} MOUNTPOINT`)");
    let table = [
        ("weightfs dir", format!("dir: {}: the default, ./dir, would hide the source", give("dir"))),
        ("weightfs dir/", format!("dir/: {}: the default, ./dir, would hide the source", give("dir/"))),
        ("weightfs -- '-a b'", format!("-a b: {}: the default, ./-a b, would hide the source", give("'./-a b'"))),
        (
            "weightfs full.safetensors",
            format!("full: not empty; {}, or use --nonempty to mount over its contents", give("full.safetensors")),
        ),
    ];
    for (line, message) in &table {
        assert_eq!(scene.sh(line), expected(1, "", &format!("weightfs: {message}\n")), "{line}");
    }
    scene.ok("weightfs dir mnt && weightfs umount mnt");
    // What mount(8) would do is checked in the same way, and leaves nothing behind.
    let before = scene.ok("ls -lR --ignore=bin");
    assert_eq!(scene.sh("weightfs --fake dir"), expected(1, "", &format!("weightfs: {}\n", table[0].1)));
    scene.ok("weightfs --fake sample.safetensors && weightfs --fake sample.safetensors mnt");
    assert_eq!(scene.ok("ls -lR --ignore=bin"), before);
}

#[test]
fn mistyped_command_is_named_and_a_similar_one_suggested() {
    require_fuse!();
    let scene = scene();
    let table = [
        ("weightfs list sample.safetensors", "list", "ls"),
        ("weightfs list --json sample.safetensors", "list", "ls"),
        ("weightfs info", "info", "inspect"),
        ("weightfs unmount mnt", "unmount", "umount"),
        ("weightfs exprot a b", "exprot", "export"),
    ];
    for (line, word, command) in table {
        let message =
            format!("{word}: No such file or directory, and no such command; did you mean `weightfs {command}`?");
        assert_eq!(scene.sh(line), expected(2, "", &format!("weightfs: {message}\n")), "{line}");
    }
    // A file of that name is a model, whatever the name resembles.
    scene.ok("cp sample.safetensors list && weightfs list mnt && weightfs umount mnt");
    scene.ok("cp sample.safetensors help && weightfs ./help mnt && weightfs umount mnt");
}

#[test]
fn mounted_directory_is_refused_with_the_source_that_is_mounted_there() {
    require_fuse!();
    let scene = scene();
    scene.mkdir("a b");
    scene.ok(
        "cp sample.safetensors other.safetensors && weightfs sample.safetensors && weightfs sample.safetensors 'a b'",
    );
    let dir = scene.dir.path().display();
    let table = [
        ("weightfs sample.safetensors", "sample", "sample"),
        ("weightfs other.safetensors sample", "sample", "sample"),
        ("weightfs other.safetensors './a b'", "./a b", "'./a b'"),
    ];
    for (line, point, word) in table {
        let message = format!(
            "weightfs: {point}: already mounted here: {dir}/sample.safetensors (unmount: weightfs umount {word})\n"
        );
        assert_eq!(scene.sh(line), expected(1, "", &message), "{line}");
    }
    scene.ok("weightfs umount sample 'a b'");
}

#[test]
fn unmount_hint_is_a_command_that_works() {
    require_fuse!();
    let scene = scene();
    for name in ["a b", "-x", "it's", "--", "$HOME", "重み", "line\nbreak \x1b[31m"] {
        let file = scene.path(format!("{name}.safetensors"));
        std::fs::copy(scene.path("sample.safetensors"), &file).unwrap();
        let said = Said::of(scene.command("weightfs").arg("--").arg(format!("{name}.safetensors")));
        let out = said.ok(name);
        let hint = out.split_once(" (unmount: ").unwrap().1.strip_suffix(")\n").unwrap();
        assert_eq!(scene.mounts().len(), 1, "{name}");
        Said::of(scene.command("bash").args(["-c", hint])).ok(hint);
        assert_eq!(scene.mounts(), [""; 0], "{hint}");
        scene.wait_for_end();
        assert!(!scene.path(name).exists(), "{name}");
    }
}

#[test]
fn umount_takes_several_mount_points_and_goes_on_after_a_failure() {
    require_fuse!();
    let scene = scene();
    scene.ok("mkdir a b && weightfs sample.safetensors a && weightfs sample.safetensors b");
    let err = "weightfs: absent: not mounted\nweightfs: mnt: not mounted\n";
    assert_eq!(scene.sh("weightfs umount a absent b mnt"), expected(1, "", err));
    assert_eq!(scene.mounts(), [""; 0]);
    scene.wait_for_end();
}

#[test]
fn umount_all_removes_every_model_and_nothing_else() {
    require_root!();
    let scene = scene();
    scene.ok("mkdir a b t && weightfs sample.safetensors mnt");
    // The namespace has copies of the mounts of other tests.
    let namespace = Namespace::new(&scene, "");
    namespace.ok("weightfs sample.safetensors a && weightfs sample.safetensors b && mount --bind a/tensors b");
    namespace.ok("mount -t tmpfs t t && weightfs umount --lazy --all");
    let left: Vec<_> = namespace.mounts().iter().map(|line| line.split(' ').nth(2).unwrap().to_owned()).collect();
    assert_eq!(left, ["tmpfs"]);
    assert_eq!(namespace.ok("weightfs umount -a; grep -c fuse.weightfs /proc/mounts || true"), "0\n");
    assert_eq!(scene.mounts().len(), 1);
}

#[test]
fn auto_unmount_removes_mount_of_killed_daemon() {
    require_fuse!();
    let scene = scene();
    for options in ["-o auto_unmount", "--auto-unmount", "-o ro,auto_unmount,kernel_cache"] {
        scene.ok(&format!("weightfs {options} sample.safetensors >out && ls sample/tensors"));
        // The helper process stays.
        scene.ok(&format!("kill -KILL {}", scene.daemons()[0]));
        scene.wait_for_end();
        assert_eq!(scene.mounts(), [""; 0], "{options}");
        assert!(!scene.path("sample").exists());
    }
    // A mount that is there when the daemon has unmounted its own is left alone.
    scene
        .ok("weightfs --auto-unmount sample.safetensors mnt && weightfs umount mnt && weightfs sample.safetensors mnt");
    scene.ok("ls mnt/tensors && weightfs umount mnt");
    scene.wait_for_end();
}

#[test]
fn remount_keeps_the_mount_and_refuses_changes() {
    require_root!();
    let scene = scene();
    scene.ok("mkdir helpers empty && cp -P bin/* helpers");
    scene.ok("echo $PWD/sample.safetensors $PWD/mnt weightfs ro,uid=3,allow_other 0 0 >fstab");
    let sbin = "sbin=$(readlink -f /sbin)\nmount -t overlay o -o lowerdir=$PWD/helpers:$sbin $sbin";
    let namespace = Namespace::new(&scene, sbin);
    namespace.ok("weightfs sample.safetensors mnt -o uid=3,allow_other");
    let before = namespace.mounts();
    let again = "unmount it (weightfs umount mnt) and mount it with";
    let direct = [
        ("remount,ro", 0, String::new()),
        ("remount", 0, String::new()),
        ("ro,remount,allow_other,nosuid,nodev,noexec", 0, String::new()),
        (
            "remount,max_read=65536",
            1,
            format!("weightfs: mnt: remount cannot change a mount; {again} max_read=65536\n"),
        ),
        (
            "remount,uid=3",
            0,
            format!("weightfs: mnt: remount changes nothing; if the model was mounted without uid=3, {again} uid=3\n"),
        ),
        ("remount,rw", 2, "weightfs: option rw: mounts are read-only; remove it or use ro\n".into()),
    ];
    for (options, code, err) in direct {
        assert_eq!(namespace.sh(&format!("weightfs sample.safetensors mnt -o {options}")), expected(code, "", &err));
    }
    let nothing = "weightfs: empty: nothing to remount: no model is mounted here\n";
    assert_eq!(namespace.sh("weightfs sample.safetensors empty -o remount"), expected(1, "", nothing));
    namespace.ok("mount -o remount,ro $PWD/mnt && mount -o remount,noatime mnt");
    assert_eq!(namespace.sh("mount -T fstab -o remount,ro $PWD/mnt").code, 0);
    let said = namespace.sh("mount -o remount,rw $PWD/mnt");
    assert!(said.code != 0 && said.err.contains("option rw: mounts are read-only"), "{said:?}");
    assert_eq!(namespace.mounts(), before);
    namespace.ok("umount mnt");
}

#[test]
fn nonempty_option_mounts_over_nonempty_directory() {
    require_fuse!();
    let scene = scene();
    scene.ok("touch mnt/mine && weightfs sample.safetensors mnt -o nonempty");
    assert_eq!(scene.ok("ls -d mnt/tensors; weightfs umount mnt; ls mnt"), "mnt/tensors\nmine\n");
}

#[test]
fn exit_code_separates_failure_from_wrong_usage() {
    require_root!();
    let scene = scene();
    let table = [
        ("weightfs --help", 0, "Usage: weightfs [OPTIONS] <SOURCE> [MOUNTPOINT]"),
        ("weightfs -h", 0, "weightfs umount model"),
        ("weightfs umount --help", 0, "--lazy"),
        ("weightfs mount --help", 0, "--allow-other"),
        ("weightfs --version", 0, concat!("weightfs ", env!("CARGO_PKG_VERSION"), "\n")),
        ("weightfs", 2, "SOURCE"),
        ("weightfs mount", 2, "SOURCE"),
        ("weightfs umount", 2, "MOUNTPOINT"),
        ("weightfs umount --all mnt", 2, "'--all' cannot be used with '[MOUNTPOINT]...'"),
        ("weightfs help", 0, "Usage: weightfs [OPTIONS] <SOURCE> [MOUNTPOINT]"),
        ("weightfs help umount", 0, "--lazy"),
        ("weightfs help metadata set", 0, "--dry-run"),
        ("weightfs help list", 2, "unrecognized subcommand 'list'"),
        ("weightfs --bogus", 2, "'--bogus'"),
        ("weightfs sample.safetensors mnt more", 2, "'more'"),
        ("weightfs sample.safetensors mnt -o rw", 2, "option rw: mounts are read-only; remove it or use ro"),
        ("weightfs sample.safetensors mnt -orw", 2, "option rw:"),
        ("weightfs sample.safetensors mnt -o ro,bogus=1", 2, "unknown mount option \"bogus=1\""),
        ("weightfs sample.safetensors mnt -obogus", 2, "unknown mount option \"bogus\""),
        ("weightfs sample.safetensors mnt -o suid", 2, "option suid: every mount is nosuid; remove it or use nosuid"),
        ("weightfs sample.safetensors mnt -o dev", 2, "option dev: every mount is nodev; remove it or use nodev"),
        ("weightfs sample.safetensors mnt -o exec", 2, "option exec: nothing in a mount can be executed; remove it"),
        ("weightfs sample.safetensors -o remount", 2, "<MOUNTPOINT>"),
        ("weightfs sample.safetensors mnt --threads x", 2, "'x' for '--threads <N>': not a whole number from 1 to 256"),
        ("weightfs sample.safetensors mnt --threads 0", 2, "'0' for '--threads <N>': not a whole number from 1 to 256"),
        ("weightfs sample.safetensors mnt -o threads=", 2, "'--threads <N>': not a whole number from 1 to 256"),
        (
            "weightfs sample.safetensors mnt -o max_read=1k",
            2,
            "'1k' for '--max-read <BYTES>': not a whole number from 0",
        ),
        ("weightfs sample.safetensors mnt -fo bogus", 2, "unknown mount option \"bogus\""),
        ("weightfs sample.safetensors mnt -o uid", 2, "option uid needs a value"),
        ("weightfs sample.safetensors mnt -o lenient=1", 2, "option lenient takes no value"),
        ("weightfs sample.safetensors mnt -o uid=nosuchuser", 2, "'nosuchuser' for '--uid <USER>': no such user"),
        ("weightfs sample.safetensors mnt -o gid=nosuchgroup", 2, "'nosuchgroup' for '--gid <GROUP>': no such group"),
        ("weightfs sample.safetensors mnt -o umask=8", 2, "'8' for '--umask <MASK>': not an octal number up to 777"),
        ("weightfs sample.safetensors mnt -o views=pictures", 2, "no view is called \"pictures\"; there are "),
        ("weightfs sample.safetensors mnt -o allow_other,allow_root", 2, "cannot be used with '--allow-root'"),
        ("weightfs sample.safetensors mnt -o", 2, "-o needs a value"),
        ("weightfs absent mnt", 1, "absent: No such file or directory"),
        ("weightfs absent mnt 2>/dev/full", 1, ""),
        ("mount.weightfs", 1, "usage: mount.weightfs SOURCE DIR"),
        ("mount.weightfs sample.safetensors", 1, "usage: mount.weightfs SOURCE DIR"),
        ("mount.weightfs sample.safetensors mnt -o bogus", 1, "unknown mount option \"bogus\""),
        ("mount.weightfs sample.safetensors mnt -o uid=nosuchuser", 1, "no such user"),
        ("mount.weightfs sample.safetensors mnt -z", 1, "unknown option -z"),
        ("mount.weightfs absent mnt -o rw", 32, "absent: No such file or directory"),
        ("mount.weightfs sample.safetensors absent -o rw", 32, "absent: no such directory to mount on"),
        ("mount.weightfs absent mnt -f", 32, "absent: No such file or directory"),
        ("mount.weightfs sample.safetensors mnt -f", 0, ""),
    ];
    for (line, code, text) in table {
        let output = scene.sh(line);
        let (printed, empty) = if code == 0 { (&output.out, &output.err) } else { (&output.err, &output.out) };
        assert!(output.code == code && printed.contains(text) && empty.is_empty(), "{line}: {output:?}");
        assert_eq!(scene.mounts(), [""; 0], "{line}");
    }
    scene.wait_for_end();
}

#[test]
fn mount_table_shows_source_type_and_options() {
    require_root!();
    let scene = scene();
    scene.ok("weightfs sample.safetensors mnt");
    let dir = scene.dir.path().display();
    let options = "ro,nosuid,nodev,noexec,noatime,user_id=0,group_id=0,default_permissions";
    assert_eq!(scene.mounts(), [format!("{dir}/sample.safetensors {dir}/mnt fuse.weightfs {options} 0 0")]);
    let shown = format!("{dir}/sample.safetensors fuse.weightfs\n");
    assert_eq!(scene.ok("findmnt -no SOURCE,FSTYPE mnt | tr -s ' '"), shown);
}

#[test]
fn options_take_effect_in_both_spellings() {
    require_root!();
    let scene = scene();
    scene.ok("chown 5:7 sample.safetensors && chmod 640 sample.safetensors");
    let owner = "stat -c '%u:%g %a' mnt/header.json mnt/tensors | paste -sd' '";
    let root = "ls mnt | paste -sd' '";
    let mounts = "tail -n1 mounts";
    let table = [
        ("", owner, "5:7 440 5:7 550"),
        ("-o uid=3,gid=4", owner, "3:4 440 3:4 550"),
        ("-ouid=3,gid=4", owner, "3:4 440 3:4 550"),
        ("-o uid=3 -ogid=4", owner, "3:4 440 3:4 550"),
        ("-vo uid=3 2>/dev/null", owner, "3:7 440 3:7 550"),
        ("--uid 3 --gid=4", owner, "3:4 440 3:4 550"),
        ("-o uid=root,gid=root", owner, "0:0 440 0:0 550"),
        ("-o umask=077", owner, "5:7 400 5:7 500"),
        ("--umask=0227", owner, "5:7 440 5:7 550"),
        ("-o umask=444", owner, "5:7 0 5:7 0"),
        ("-o views=tensors:metadata", root, "metadata metadata.json tensors"),
        ("-oro,views=header:index", root, "header.json index.json"),
        ("--views header,tree", root, "header.json tree"),
        ("-o allow_other", mounts, ",default_permissions,allow_other 0 0"),
        ("-oallow-other", mounts, ",default_permissions,allow_other 0 0"),
        ("--allow-other", mounts, ",default_permissions,allow_other 0 0"),
        ("-o max_read=65536", mounts, ",default_permissions,max_read=65536 0 0"),
        ("-omax-read=65536", mounts, ",default_permissions,max_read=65536 0 0"),
        (r"-o 'fsname=a\,b c'", mounts, r"a,b\040c "),
        (r"-o 'ro,fsname=two\\ways,noatime'", mounts, r"two\134ways "),
        ("--fsname 'a,b c'", mounts, r"a,b\040c "),
        (
            "-o ro,defaults,user,users,nouser,owner,group,auto,noauto,nofail,_netdev,nosuid,nodev,noexec,noatime,kernel_cache",
            mounts,
            "ro,nosuid,nodev,noexec,noatime,user_id=0,group_id=0,default_permissions 0 0",
        ),
        ("-o x-systemd.automount,x-gvfs-show,comment=any,,", mounts, ",default_permissions 0 0"),
    ];
    for (options, command, expected) in table {
        scene.ok(&format!("weightfs {options} sample.safetensors mnt && grep $PWD/mnt /proc/mounts >mounts"));
        let found = scene.ok(command);
        assert!(
            if command == mounts { found.contains(expected) } else { found.trim_end() == expected },
            "{options}: {found}"
        );
        scene.ok("weightfs umount mnt");
        scene.wait_for_end();
    }
}

#[test]
fn foreground_prints_mount_point_and_ends_on_signal() {
    require_fuse!();
    let scene = scene();
    let start = "exec weightfs -f sample.safetensors mnt --log-file log";
    for (signal, held) in ["INT", "TERM", "HUP"].into_iter().flat_map(|signal| [(signal, false), (signal, true)]) {
        let mut child =
            scene.command("sh").args(["-c", start]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let point = scene.path("mnt");
        assert_eq!(line, format!("sample.safetensors is mounted on {}; Ctrl-C unmounts it\n", point.display()));
        let file = held.then(|| File::open(scene.path(BIG)).unwrap());
        scene.ok(&format!("kill -{signal} $DAEMON"));
        assert_eq!(child.wait().unwrap().code(), Some(0), "{signal}");
        assert!(file.is_none_or(|mut file| file.read_to_end(&mut Vec::new()).is_err()), "{signal}");
        line.clear();
        out.read_to_string(&mut line).unwrap();
        assert_eq!((&line[..], scene.mounts(), scene.ok("ls mnt")), ("", vec![], String::new()), "{signal}");
        let log = std::fs::read_to_string(scene.path("log")).unwrap();
        assert_eq!(log.matches("mnt: was in use and is detached").count(), usize::from(held), "{signal}: {log}");
        std::fs::remove_file(scene.path("log")).unwrap();
    }
}

#[test]
fn background_ends_on_signal() {
    require_fuse!();
    let scene = scene();
    for (signal, held) in ["INT", "TERM", "HUP"].into_iter().flat_map(|signal| [(signal, false), (signal, true)]) {
        scene.ok("weightfs sample.safetensors mnt --log-file log");
        let file = held.then(|| File::open(scene.path(BIG)).unwrap());
        scene.ok(&format!("kill -{signal} $DAEMON"));
        scene.wait_for_end();
        assert_eq!((scene.mounts(), scene.ok("ls mnt")), (vec![], String::new()), "{signal}");
        let log = scene.ok("cat log; rm log");
        assert_eq!(log.matches("mnt: was in use and is detached").count(), usize::from(held), "{signal}: {log}");
        drop(file);
    }
}

#[test]
fn signal_ends_daemon_of_detached_or_copied_mount() {
    require_root!();
    let scene = scene();
    scene.ok("weightfs sample.safetensors mnt");
    let held = File::open(scene.path(BIG)).unwrap();
    scene.ok("umount -l mnt && kill -TERM $DAEMON");
    scene.wait_for_end();
    drop(held);

    scene.ok("weightfs sample.safetensors mnt");
    let copy = Namespace::new(&scene, "");
    assert_eq!(copy.mounts().len(), 1);
    scene.ok("kill -TERM $DAEMON");
    scene.wait_for_end();
    assert_eq!(scene.mounts(), [""; 0]);
}

#[test]
fn signal_unmounts_moved_mount_but_not_covered_mount() {
    require_root!();
    let scene = scene();
    scene
        .ok("mkdir -p parent/mnt && weightfs sample.safetensors parent/mnt && mv parent moved && ls moved/mnt/tensors");
    scene.ok("mkdir bound && mount --bind moved/mnt bound && kill -TERM $DAEMON");
    scene.wait_for_end();
    assert_eq!(scene.mounts(), [""; 0]);

    // The daemon does not remove a mount that covers its own. It keeps serving rather than leave a dead mount below.
    scene.ok("weightfs --log-file log sample.safetensors mnt && mount -t tmpfs none mnt");
    scene.ok("kill -TERM $DAEMON");
    wait_until("the log has the reason", || scene.ok("cat log").contains("mnt: something else is mounted over it"));
    scene.ok("umount mnt && ls mnt/tensors && kill -TERM $DAEMON");
    scene.wait_for_end();
    assert_eq!(scene.mounts(), [""; 0]);
}

#[test]
fn signal_ignored_by_caller_is_ignored() {
    require_fuse!();
    let scene = scene();
    scene.ok("nohup weightfs -v --log-file log sample.safetensors mnt 2>&1");
    scene.ok("kill -HUP $DAEMON && ls mnt/tensors && kill -TERM $DAEMON");
    scene.wait_for_end();
    let log = scene.ok("cat log");
    assert!(log.contains("unmounting on SIGTERM") && !log.contains("SIGHUP"), "{log}");
}

#[test]
fn closed_or_full_output_does_not_stop_mount() {
    require_fuse!();
    let scene = scene();
    for line in [
        "weightfs sample.safetensors mnt >/dev/full",
        "weightfs sample.safetensors mnt <&- >&- 2>&-",
        "weightfs -v sample.safetensors mnt 2>/dev/full",
        "weightfs -v sample.safetensors mnt 2>&1 | true",
        "cp sample.safetensors mnt.safetensors; weightfs mnt.safetensors >/dev/full",
        "weightfs -f sample.safetensors mnt >/dev/full 2>/dev/null &",
        "weightfs -f sample.safetensors mnt <&- >&- 2>&- &",
        "weightfs -v -f sample.safetensors mnt 2>/dev/full >/dev/null &",
    ] {
        let said = scene.sh(line);
        assert_eq!((said.code, &said.err[..]), (0, ""), "{line}");
        wait_until("it is mounted", || scene.path("mnt/tensors").exists());
        scene.ok("weightfs umount mnt");
        scene.wait_for_end();
    }
}

#[test]
fn mount_8_and_fstab_mount_and_unmount() {
    require_root!();
    let scene = scene();
    scene.ok("mkdir helpers && cp -P bin/* helpers");
    let fstab = [
        "$PWD/sample.safetensors $PWD/mnt weightfs defaults 0 0",
        "$PWD/sample.safetensors $PWD/mnt fuse.weightfs ro,noauto,nofail,user,x-systemd.automount,allow_other 0 0",
        "$PWD/sample.safetensors $PWD/mnt weightfs ro,noauto,nofail,_netdev,x-foo=1,uid=3,max_read=65536 0 0",
    ];
    for (number, line) in fstab.iter().enumerate() {
        scene.ok(&format!("echo {line} >fstab{number}"));
    }
    // mount(8) looks for helpers only in /sbin and runs them without PATH.
    let sbin = "sbin=$(readlink -f /sbin)\nmount -t overlay o -o lowerdir=$PWD/helpers:$sbin $sbin";
    let namespace = Namespace::new(&scene, sbin);
    let plain = "ro,nosuid,nodev,noexec,noatime,user_id=0,group_id=0,default_permissions";
    let open = &format!("{plain},allow_other")[..];
    let limited = &format!("{plain},max_read=65536")[..];
    let table = [
        ("mount -t weightfs $PWD/sample.safetensors mnt", plain, 0),
        ("mount -t weightfs sample.safetensors mnt -o ro,allow_other", open, 0),
        ("mount -v -t weightfs sample.safetensors mnt -o uid=3,nofail 2>/dev/null", plain, 3),
        ("mount -r -t weightfs sample.safetensors mnt", plain, 0),
        ("mount -t fuse.weightfs $PWD/sample.safetensors mnt", plain, 0),
        ("mount -t fuse.weightfs $PWD/sample.safetensors mnt -o allow_other,uid=3", open, 3),
        ("mount -t fuse.weightfs $PWD/sample.safetensors mnt -o ro,umask=077,max_read=65536", limited, 0),
        ("mount -t fuse weightfs#$PWD/sample.safetensors mnt", plain, 0),
        ("mount.weightfs sample.safetensors mnt", plain, 0),
        ("mount.weightfs sample.safetensors mnt -o rw,dev,suid,allow-other", open, 0),
        ("mount.weightfs sample.safetensors mnt -n -s -o rw -t weightfs", plain, 0),
        ("mount -T fstab0 $PWD/mnt", plain, 0),
        ("mount -T fstab0 -a", plain, 0),
        ("mount -T fstab1 $PWD/mnt", open, 0),
        ("mount -T fstab1 $PWD/sample.safetensors", open, 0),
        ("mount -T fstab2 $PWD/mnt", limited, 3),
    ];
    let dir = scene.dir.path().display();
    for (line, options, uid) in table {
        namespace.ok(&format!("{line} >/dev/null"));
        assert_eq!(
            namespace.mounts(),
            [format!("{dir}/sample.safetensors {dir}/mnt fuse.weightfs {options} 0 0")],
            "{line}"
        );
        assert_eq!(namespace.ok("stat -c %u mnt/header.json"), format!("{uid}\n"), "{line}");
        assert_eq!(namespace.ok("umount mnt; ls mnt"), "", "{line}");
        scene.wait_for_end();
    }
    let failures = [
        ("mount -t weightfs absent mnt", 32, "weightfs: absent: No such file or directory\n"),
        ("mount -t weightfs sample.safetensors mnt -o bogus", 1, "weightfs: unknown mount option \"bogus\"\n"),
        ("mount -t fuse.weightfs $PWD/absent mnt", 1, "/absent: No such file or directory\n"),
        (
            "mount -t fuse.weightfs $PWD/sample.safetensors mnt -o bogus",
            2,
            "weightfs: unknown mount option \"bogus\"\n",
        ),
        ("mount -f -t weightfs sample.safetensors mnt", 0, ""),
        ("mount -T fstab1 -a", 0, ""),
    ];
    for (line, code, text) in failures {
        let output = namespace.sh(line);
        assert!(
            output.code == code && output.err.ends_with(text) && output.err.lines().count() < 2,
            "{line}: {output:?}"
        );
        assert_eq!(namespace.mounts(), [""; 0], "{line}");
    }
}

#[test]
fn mount_in_use_is_unmounted_only_lazily() {
    require_root!();
    let scene = scene();
    scene.ok("weightfs sample.safetensors mnt");
    let mut held = File::open(scene.path(BIG)).unwrap();
    let busy = "weightfs: mnt: in use (`fuser -vm mnt` lists the processes; --lazy detaches it anyway)\n";
    assert_eq!(scene.sh("weightfs umount mnt"), expected(1, "", busy));
    assert_eq!(scene.ok("ls -d mnt/tree"), "mnt/tree\n");
    assert_eq!(scene.ok("weightfs umount --lazy mnt; ls mnt"), "");
    let mut bytes = Vec::new();
    held.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), 3 << 20);
    drop(held);
    scene.wait_for_end();
}

#[test]
fn dead_mount_is_unmounted_or_replaced() {
    require_root!();
    let scene = scene();
    let mount_and_kill = || {
        scene.ok("weightfs sample.safetensors mnt && ls mnt");
        scene.ok("kill -KILL $DAEMON");
        scene.wait_for_end();
        assert!(scene.sh("ls mnt").err.ends_with("Transport endpoint is not connected\n"));
    };
    for unmount in ["weightfs umount mnt", "weightfs umount -l mnt/"] {
        mount_and_kill();
        assert_eq!(scene.ok(&format!("{unmount}; ls mnt")), "");
    }
    let replaced = "weightfs: mnt: detached a dead mount, left by a daemon that was killed\n";
    for replace in
        ["weightfs sample.safetensors mnt", "cp sample.safetensors mnt.safetensors; weightfs mnt.safetensors"]
    {
        mount_and_kill();
        let output = scene.sh(replace);
        assert_eq!((output.code, &output.err[..], scene.mounts().len()), (0, replaced, 1), "{output:?}");
        scene.ok("ls mnt/tensors && weightfs umount mnt");
    }
    mount_and_kill();
    assert_eq!(scene.ok("mount.weightfs sample.safetensors mnt -f"), "");
    assert_eq!(scene.mounts().len(), 1);
}

#[test]
fn foreign_mounts_are_left_alone() {
    require_root!();
    let scene = scene();
    scene.mkdir("other");
    scene.mkdir("tmpfs");
    scene.ok("weightfs sample.safetensors mnt && mount -t tmpfs t tmpfs");
    // A FUSE mount of another type, dead because its device is closed.
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let other = scene.path("other");
    nix::mount::mount(Some("x"), &other, Some("fuse.other"), MsFlags::empty(), Some(&options[..])).unwrap();
    drop(device);
    let before = scene.mounts();
    let table = [
        ("weightfs sample.safetensors other", "other: a dead fuse.other mount; unmount it first"),
        ("weightfs sample.safetensors other/x", "other/x: lies in a mount whose daemon is gone"),
        ("weightfs umount other", "other: a fuse.other mount, not a weightfs mount"),
        ("weightfs umount tmpfs", "tmpfs: a tmpfs mount, not a weightfs mount"),
        ("weightfs umount mnt/tensors", "mnt/tensors: not mounted"),
        ("weightfs umount mnt/header.json", "mnt/header.json: not mounted"),
    ];
    for (line, message) in table {
        assert_eq!(scene.sh(line), expected(1, "", &format!("weightfs: {message}\n")), "{line}");
    }
    assert_eq!(scene.mounts(), before);
    // Only the topmost mount is removed, and the daemon of the mount below keeps serving.
    scene.ok("weightfs sample.safetensors mnt -o nonempty,uid=3");
    assert_eq!(scene.ok("stat -c %u mnt; weightfs umount mnt; stat -c %u mnt/header.json"), "3\n0\n");
}

#[test]
fn verbosity_and_log_file_options_select_log_output() {
    require_fuse!();
    let scene = scene();
    scene.raw("odd.safetensors", br#"{"a":{"dtype":"Z9","shape":[3],"data_offsets":[0,3]}}"#, b"abc");
    let odd = "odd.safetensors: unknown dtype \"Z9\": such tensors are shown as raw bytes";
    let dir = scene.dir.path().display().to_string();
    let up = format!("{dir}/odd.safetensors: mounted on {dir}/mnt");
    let down = format!("{dir}/mnt: unmounted");
    let sandbox = "sandbox: Landlock (ABI *";
    let table: [(&str, &[&str], &[&str]); 8] = [
        ("weightfs", &[odd], &[]),
        ("weightfs -v", &[odd, sandbox, &up], &[]),
        ("RUST_LOG=info weightfs", &[odd, sandbox, &up], &[]),
        ("RUST_LOG=off weightfs", &[], &[]),
        ("weightfs --log-file=log", &[odd], &[odd]),
        ("weightfs -o verbose,log_file=log", &[odd, sandbox, &up], &[odd, sandbox, &up, &down]),
        ("weightfs -o no_sandbox,verbose", &[odd, "no sandbox", &up], &[]),
        ("RUST_LOG=weightfs=error weightfs --log-file log", &[], &[]),
    ];
    for (line, terminal, log) in table {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        scene.ok(": >log");
        let output = scene.sh(&format!("{line} odd.safetensors mnt"));
        let mut printed = lines(&output.err);
        printed.retain(|line| !line.starts_with("weightfs: no syslog here"));
        assert!(output.code == 0 && printed.len() == terminal.len(), "{line}: {output:?}");
        for (printed, expected) in printed.iter().zip(terminal) {
            assert!(printed.strip_prefix("weightfs: ").is_some_and(|text| fits(text, expected)), "{line}: {printed}");
        }
        let daemon = scene.daemons()[0];
        scene.ok("weightfs umount mnt");
        scene.wait_for_end();
        let written = lines(&scene.ok("cat log"));
        assert_eq!(written.len(), log.len(), "{line}: {written:?}");
        for (written, expected) in written.iter().zip(log) {
            // 2026-01-31T12:34:56Z LEVEL [PID] TEXT
            let (time, rest) = written.split_at(20);
            let digits = |char: char| if char.is_ascii_digit() { '0' } else { char };
            assert_eq!(time.chars().map(digits).collect::<String>(), "0000-00-00T00:00:00Z", "{written}");
            assert!(fits(&rest[7..], &format!("[{daemon}] {expected}")), "{written}");
        }
    }
}

#[test]
fn hints_say_what_may_be_meant() {
    let scene = scene();
    for (line, hint) in [
        ("weightfs cat sample.safetensors model.embed.weight", "; did you mean tensors/model.embed.weight?"),
        ("weightfs ls sample.safetensors embed", "; for a part of a name, use \"*embed*\""),
        ("weightfs --view tensors sample.safetensors mnt", " (did you mean --views?)"),
        ("weightfs inspect org/model", "; did you mean hf://org/model?"),
        ("weightfs sample.safetensor mnt", "; did you mean sample.safetensors?"),
        ("weightfs check mnt/../sample.safetensor", "; did you mean mnt/../sample.safetensors?"),
    ] {
        let said = scene.sh(line);
        let error = said.err.lines().next().unwrap_or_default();
        assert!(said.code > 0 && error.ends_with(hint), "{line}: {said:?}");
    }
    // Nothing is suggested for what is like nothing.
    for line in ["weightfs ls absent", "weightfs ls /absent/x", "weightfs cat sample.safetensors absent"] {
        assert!(!scene.sh(line).err.contains("did you mean"), "{line}");
    }
}

#[test]
fn files_are_replaced_only_with_force_and_are_what_their_names_say() {
    let scene = scene();
    for command in [
        "weightfs export FORCE sample.safetensors OUT.safetensors",
        "weightfs metadata set FORCE sample.safetensors key=value -o OUT.safetensors",
        "weightfs demo FORCE OUT.safetensors",
        "weightfs cp FORCE sample.safetensors tensors/model.embed.weight OUT.safetensors",
    ] {
        let line = |force| command.replace("FORCE", force).replace("OUT", "out");
        std::fs::write(scene.path("out.safetensors"), b"kept").unwrap();
        let said = scene.sh(&line(""));
        assert!(said.code > 0 && said.err.ends_with("exists already; --force replaces it\n"), "{command}: {said:?}");
        assert_eq!(std::fs::read(scene.path("out.safetensors")).unwrap(), b"kept", "{command}");
        scene.ok(&line("--force"));
        assert_ne!(std::fs::read(scene.path("out.safetensors")).unwrap(), b"kept", "{command}");
        std::fs::remove_file(scene.path("out.safetensors")).unwrap();
        scene.ok(&line(""));
        assert!(scene.path("out.safetensors").is_file(), "{command}");
    }
    for (args, wanted) in [
        ("sample.safetensors o.pt", "the suffix .pt says; name a .safetensors or .gguf file"),
        ("--format safetensors sample.safetensors o.gguf", "the suffix .gguf says; name a .safetensors file"),
    ] {
        let said = scene.sh(&format!("weightfs export {args}"));
        assert!(said.code == 1 && said.err.contains(wanted), "{args}: {said:?}");
    }
    assert_eq!(scene.ok("ls -d o.* .weightfs-cp 2>/dev/null || true"), "");
    // As with cp(1), a single file gets the name that does not exist, and a name with a slash is a directory.
    scene.ok("weightfs cp sample.safetensors tensors/model.embed.weight one.bin");
    scene.ok("weightfs cp sample.safetensors tensors/model.embed.weight dir/");
    scene.ok("weightfs cp sample.safetensors metadata.json header.json two");
    scene.ok("cmp one.bin dir/model.embed.weight && test -f two/header.json");
}
