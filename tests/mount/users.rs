//! Users: read access to mounts, and mounts by users other than root.

use crate::support::{Namespace, Said, Scene, require_root};

/// Runs a command as a user other than root, without supplementary groups.
const USER: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups --";
/// Runs a command as another user, who is neither root nor `USER`.
const THIRD: &str = "setpriv --reuid=65533 --regid=65533 --clear-groups --";

/// A scene that every user can enter, with a sample that all can read, the mount point `mnt` of root, and the directory
/// `home` of `USER`.
fn scene() -> Scene {
    let scene = Scene::new();
    scene.sample();
    scene.ok("chmod 755 . && chmod 644 sample.safetensors && mkdir mnt home home/mnt && chown -R 65534:65534 home");
    scene
}

/// A namespace where users may open /dev/fuse, whatever its mode on this machine, and /etc/fuse.conf contains `conf`.
fn namespace<'s>(scene: &'s Scene, conf: &str) -> Namespace<'s> {
    scene.ok("mkdir -p dev && chmod 700 dev");
    Namespace::new(
        scene,
        &format!(
            "mount -t tmpfs dev dev && mknod -m 666 dev/fuse c 10 229 && mount --bind dev/fuse /dev/fuse
            echo {conf} >dev/conf && chmod 644 dev/conf && touch /etc/fuse.conf && mount --bind dev/conf /etc/fuse.conf"
        ),
    )
}

/// The lines of weightfs mounts, without the part up to the file system type.
fn shown(mounts: &[String]) -> Vec<String> {
    let ours = mounts.iter().filter_map(|line| Some(line.split_once(" fuse.weightfs ")?.1.to_owned()));
    ours.collect()
}

/// Whether a command had access. If not, its error must be "Permission denied".
fn has_access(line: &str, said: &Said) -> bool {
    let denied = said.err.ends_with("Permission denied\n");
    assert!((said.code == 0) != denied, "{line}: {said:?}");
    !denied
}

#[test]
fn files_have_owner_time_and_read_bits_of_the_source() {
    require_root!();
    let scene = scene();
    let table = [
        ("644", "444", "555"),
        ("600", "400", "500"),
        ("640", "440", "550"),
        ("4755", "444", "555"),
        ("404", "404", "505"),
        ("200", "0", "0"),
    ];
    scene.ok("chown 5:7 sample.safetensors");
    for (source, file, dir) in table {
        scene.ok(&format!("chmod {source} sample.safetensors && touch -d @1234567890.123456789 sample.safetensors"));
        scene.ok("weightfs sample.safetensors mnt");
        let found = scene.ok("find mnt -printf '%y %U:%G %m %TY-%Tm-%Td %TS\\n' | sort -u; weightfs umount mnt");
        let line = |kind, mode| format!("{kind} 5:7 {mode} 2009-02-13 30.1234567890\n");
        assert_eq!(found, line("d", dir) + &line("f", file), "{source}");
    }
}

#[test]
fn allow_other_gives_users_the_permissions_of_the_source() {
    require_root!();
    let scene = scene();
    let table = [
        ("644 0:0", "-o allow_other", true),
        ("600 0:0", "-o allow_other", false),
        ("640 0:65534", "-o allow_other", true),
        ("640 0:0", "-o allow_other", false),
        ("400 65534:0", "-o allow_other", true),
        ("044 65534:65534", "-o allow_other", false),
        ("604 0:65534", "-o allow_other", false),
        ("644 0:0", "-o allow_other,umask=007", false),
        ("600 0:0", "-o allow_other,uid=65534", true),
        ("644 0:0", "", false),
        ("666 65534:65534", "", false),
        ("644 0:0", "-o allow_root", false),
    ];
    for (permissions, options, expected) in table {
        let (mode, owner) = permissions.split_once(' ').unwrap();
        scene.ok(&format!("chown {owner} sample.safetensors && chmod {mode} sample.safetensors"));
        if options == "-o allow_other" {
            let line = format!("{USER} cat sample.safetensors >/dev/null");
            assert_eq!(has_access(&line, &scene.sh(&line)), expected, "{permissions}");
        }
        scene.ok(&format!("weightfs {options} sample.safetensors mnt"));
        // The second round runs after root has read everything, so that the kernel has it cached.
        for _ in 0..2 {
            for file in ["header.json", "tensors/model.layers.2.w", "tree/model/embed/weight", "metadata/format"] {
                let line = format!("{USER} cat mnt/{file} >/dev/null");
                assert_eq!(has_access(&line, &scene.sh(&line)), expected, "{permissions} {options} {file}");
            }
            let line = format!("{USER} ls mnt/tensors >/dev/null");
            assert_eq!(has_access(&line, &scene.sh(&line)), expected, "{permissions} {options}");
            scene.ok("cat mnt/tensors/* mnt/tree/model/embed/weight mnt/metadata/* mnt/*.json >/dev/null; ls -lR mnt");
        }
        scene.ok("weightfs umount mnt");
    }
}

#[test]
fn user_mounts_and_unmounts_with_fusermount3() {
    require_root!();
    let scene = scene();
    let namespace = namespace(&scene, "");
    let plain = "ro,nosuid,nodev,noexec,noatime,user_id=65534,group_id=65534,default_permissions 0 0";
    let dir = scene.dir.path().display();
    let bytes =
        scene.ok("weightfs sample.safetensors mnt >mounted && cat mnt/tensors/* | sha256sum; weightfs umount mnt");
    scene.wait_for_end();
    let unmounts = [
        format!("{USER} weightfs umount home/mnt"),
        format!("{USER} weightfs umount --lazy home/mnt"),
        format!("{USER} fusermount3 -u home/mnt"),
        "weightfs umount home/mnt".into(),
        format!("{USER} kill -TERM $DAEMON"),
        format!("{USER} kill -INT $DAEMON"),
    ];
    for unmount in unmounts {
        namespace.ok(&format!("{USER} weightfs sample.safetensors home/mnt"));
        let line = format!("{dir}/sample.safetensors {dir}/home/mnt fuse.weightfs {plain}");
        assert!(namespace.mounts().contains(&line), "{:?}", namespace.mounts());
        assert_eq!(namespace.ok(&format!("{USER} sh -c 'cat home/mnt/tensors/*' | sha256sum")), bytes);
        let status = format!("/proc/{}/status", scene.daemons()[0]);
        let restricted = scene.ok(&format!("grep -cE '^(NoNewPrivs:.1|Seccomp:.2|Cap(Inh|Prm|Eff):.0*)$' {status}"));
        assert_eq!(restricted, "5\n", "{}", scene.ok(&format!("cat {status}")));
        // Not even root has access.
        assert!(!has_access("root", &namespace.sh("cat home/mnt/header.json")));
        assert_eq!(namespace.ok(&unmount), "");
        scene.wait_for_end();
        assert_eq!(shown(&namespace.mounts()), [""; 0], "{unmount}");
        assert_eq!(namespace.ok("ls home/mnt"), "");
    }
}

#[test]
fn users_can_use_the_mount_options_of_root() {
    require_root!();
    let scene = scene();
    let namespace = namespace(&scene, "user_allow_other");
    let options = "ro,nosuid,nodev,noexec,noatime,user_id=65534,group_id=65534,default_permissions";
    let table = [
        ("-o uid=3", "3 444", options.to_owned()),
        ("-o uid=65534,umask=077,nofail", "65534 400", options.to_owned()),
        ("-o max_read=65536", "0 444", format!("{options},max_read=65536")),
        ("-o allow_other", "0 444", format!("{options},allow_other")),
        ("-o allow_root", "0 444", format!("{options},allow_other")),
        (r"--fsname 'a,b\c d'", "0 444", options.to_owned()),
        ("-o nonempty", "0 444", options.to_owned()),
    ];
    for (flags, stat, options) in table {
        namespace.ok(&format!("{USER} weightfs {flags} sample.safetensors home/mnt"));
        // Root does not have access to all of these mounts.
        let found = namespace.ok(&format!("{USER} stat -c '%u %a' home/mnt/metadata.json"));
        assert_eq!((found.trim_end(), shown(&namespace.mounts())), (stat, vec![format!("{options} 0 0")]), "{flags}");
        let name = namespace.mounts().pop().unwrap();
        let expected =
            if flags.contains("fsname") { r"a,b\134c\040d".into() } else { scene.path("sample.safetensors") };
        assert_eq!(name.split(' ').next().unwrap(), expected.display().to_string(), "{flags}");
        namespace.ok(&format!("{USER} weightfs umount home/mnt"));
        scene.wait_for_end();
    }
}

#[test]
fn user_mounts_are_unmounted_like_root_mounts() {
    require_root!();
    let scene = scene();
    let namespace = namespace(&scene, "");
    let gone = "timeout 60 sh -c \"while grep -q home/sample /proc/mounts; do sleep .01; done\"";
    // A directory created for the mount is removed with it, even if the mount is in use.
    for unmount in [
        "weightfs umount home/sample".to_owned(),
        "exec 3<home/sample/header.json; weightfs umount -l home/sample && cat <&3 | grep -q dtype".into(),
        format!("exec 3<home/sample/header.json; kill -TERM $DAEMON && {gone}"),
    ] {
        let made = namespace.ok(&format!("cd home && {USER} weightfs ../sample.safetensors"));
        assert!(made.ends_with(" on sample (unmount: weightfs umount sample)\n"), "{made}");
        namespace.ok(&format!("{USER} sh -c '{unmount}'"));
        scene.wait_for_end();
        assert!(!scene.path("home/sample").exists(), "{unmount}");
    }
    let mount = format!("{USER} weightfs sample.safetensors home/mnt");
    namespace.ok(&mount);
    let busy = format!("{USER} sh -c 'exec 3<home/mnt/header.json; weightfs umount home/mnt'");
    assert!(
        namespace
            .sh(&busy)
            .err
            .starts_with("weightfs: home/mnt: in use (`fuser -vm home/mnt` lists the processes; --lazy ")
    );
    for again in [format!("{USER} weightfs umount home/mnt"), mount] {
        namespace.ok("kill -KILL $DAEMON");
        scene.wait_for_end();
        let said = namespace.sh(&again);
        let replaced = "weightfs: home/mnt: detached a dead mount, left by a daemon that was killed\n";
        assert_eq!((said.code, &said.err[..]), (0, if again.contains("umount") { "" } else { replaced }), "{again}");
        if again.contains("umount") {
            namespace.ok(&format!("{USER} weightfs sample.safetensors home/mnt"));
        }
    }
    namespace.ok(&format!("{USER} ls home/mnt/tensors && {USER} weightfs umount home/mnt"));
}

#[test]
fn refused_user_commands_give_a_reason_and_leave_nothing() {
    require_root!();
    let scene = scene();
    scene.ok("cp sample.safetensors secret.safetensors && chmod 600 secret.safetensors && mkdir roots");
    let namespace = namespace(&scene, "");
    namespace.ok("weightfs -o allow_other sample.safetensors roots");
    let helper = "cannot mount on";
    let missing = "fusermount3 is missing; users other than root need it to mount: install the package fuse3";
    let allow = "only allowed if 'user_allow_other' is set in /etc/fuse.conf (an administrator can add that line)";
    let device =
        "failed to open /dev/fuse: Permission denied (an administrator can let users open it: chmod 666 /dev/fuse)";
    let table = [
        ("", "env PATH=$PWD/bin weightfs sample.safetensors home/mnt", missing, ""),
        ("", "env PATH=$PWD/bin weightfs -f sample.safetensors home/mnt", missing, ""),
        ("cd home;", "env PATH=$PWD/../bin weightfs ../sample.safetensors", missing, ""),
        ("", "weightfs -o allow_other sample.safetensors home/mnt", helper, allow),
        ("", "weightfs -o allow_root sample.safetensors home/mnt", helper, allow),
        ("cd home;", "weightfs -o allow_other ../sample.safetensors", helper, allow),
        ("", "weightfs sample.safetensors mnt", helper, "mnt: user has no write access to mountpoint *"),
        ("", "weightfs sample.safetensors", "cannot make the mount point sample: Permission denied", ""),
        ("", "weightfs secret.safetensors home/mnt", "secret.safetensors: Permission denied", ""),
        ("", "weightfs --log-file log sample.safetensors home/mnt", "log: Permission denied", ""),
        ("", "weightfs umount roots", "roots: mounted by root, so only root can unmount it", "*"),
        ("", "weightfs umount --lazy roots", "roots: mounted by root, so only root can unmount it", "*"),
        ("chmod 600 /dev/fuse;", "weightfs sample.safetensors home/mnt", helper, device),
    ];
    let before = (namespace.ok("ls -lR home"), namespace.mounts());
    for (first, line, beginning, end) in table {
        let said = namespace.sh(&format!("{first} {USER} {line}"));
        let text = said.err.strip_prefix("weightfs: ").and_then(|text| text.strip_suffix('\n')).unwrap_or_default();
        let fits = text.starts_with(beginning) && (end.ends_with('*') || text.ends_with(end)) && !text.contains('\n');
        assert!(said.code == 1 && fits, "{line}: {said:?}");
        assert_eq!((namespace.ok("ls -lR home"), namespace.mounts()), before, "{line}");
    }
    scene.ok("kill $DAEMON");
    scene.wait_for_end();
}

#[test]
fn users_with_access_have_exactly_the_permissions_of_the_source() {
    require_root!();
    let scene = scene();
    let namespace = namespace(&scene, "user_allow_other");
    // Checks in two ways for each file and each directory whether it can be read.
    let look = r#"for path; do
            test -r "$path" && echo yes || echo no
            case $path in */) ls "$path" ;; *) cat "$path" ;; esac >/dev/null && echo yes || echo no
        done | sort -u"#;
    std::fs::write(scene.path("look"), look).unwrap();
    scene.ok("chown 65534:7000 sample.safetensors");
    // Root, the owner of the source, a member of its group, and another user.
    let readers = ["env", USER, "setpriv --reuid=65532 --regid=65532 --groups=7000 --", THIRD];
    let reads = |paths: &str| {
        readers.map(|reader| {
            let line = format!("{reader} sh look {paths}");
            let said = namespace.sh(&line);
            let denied = |line: &str| line.ends_with("Permission denied");
            assert!(said.code == 0 && said.err.lines().all(denied), "{line}: {said:?}");
            match &said.out[..] {
                "yes\n" => true,
                "no\n" => false,
                other => panic!("{line}: {other}"),
            }
        })
    };
    let of_the_source = [
        ("600", "-r--------", [true, true, false, false]),
        ("640", "-r--r-----", [true, true, true, false]),
        ("644", "-r--r--r--", [true, true, true, true]),
    ];
    let has_access = [
        ("env", "", [true, false, false, false]),
        ("env", "-o allow_root", [true, false, false, false]),
        ("env", "-o allow_other", [true, true, true, true]),
        (USER, "", [false, true, false, false]),
        (USER, "-o allow_root", [true, true, false, false]),
        (USER, "-o allow_other", [true, true, true, true]),
    ];
    let files =
        ["header.json", "tensors/model.layers.2.w", "tree/model/embed/weight", "npy/empty.npy", "stats/empty.json"];
    let paths = files.into_iter().chain(["tensors/", "tree/model/"]).map(|path| format!("home/mnt/{path}"));
    let paths: Vec<String> = paths.collect();
    for (mode, shown, may_read) in of_the_source {
        scene.ok(&format!("chmod {mode} sample.safetensors"));
        assert_eq!(reads("sample.safetensors"), may_read, "{mode}");
        for (mounter, options, has_access) in has_access {
            namespace.ok(&format!("{mounter} weightfs {options} sample.safetensors home/mnt"));
            let expected = std::array::from_fn(|at| has_access[at] && may_read[at]);
            // In the second round, the kernel has everything cached.
            for round in 0..2 {
                assert_eq!(reads(&paths.join(" ")), expected, "{mode} {mounter} {options} {round}");
            }
            for (reader, has_access) in readers.iter().zip(expected) {
                let said = namespace.sh(&format!("{reader} stat -c '%A %u %g' home/mnt/header.json"));
                assert_eq!(
                    said.out == format!("{shown} 65534 7000\n"),
                    has_access,
                    "{mode} {reader} {options}: {said:?}"
                );
            }
            namespace.ok(&format!("{mounter} weightfs umount home/mnt"));
            scene.wait_for_end();
        }
    }
}

#[test]
fn missing_system_support_is_reported_with_a_remedy() {
    require_root!();
    let scene = scene();
    // The character device 0:0 is how overlayfs marks a deleted file.
    scene.ok("mkdir dev conf && mknod conf/fuse.conf c 0 0");
    let no_device = "mount -t tmpfs dev dev && mknod -m 666 dev/null c 1 3 && mount --bind dev /dev";
    let no_driver = &format!("{no_device} && mknod -m 666 dev/fuse c 10 250")[..];
    let device = &format!("{no_device} && mknod -m 666 dev/fuse c 10 229")[..];
    // Only /dev/fuse cannot be opened.
    let not_opened = &format!(
        "mkdir whole && mount --bind /dev whole && {device} && mount -o remount,bind,nodev /dev && mount --bind whole/null /dev/null"
    )[..];
    let no_conf = &format!("{device} && mount -t overlay o -o lowerdir=$PWD/conf:/etc /etc")[..];
    let no_admin = "setpriv --bounding-set=-sys_admin";
    let missing = "/dev/fuse is missing: load the module with `modprobe fuse`, or give it to the container (--device /dev/fuse); \
         `weightfs ls`, `cat`, `cp` and `serve` work without it";
    let helper = &format!("cannot mount on {}: fusermount3: ", scene.path("home/mnt").display());
    let no_right = &format!(
        "{helper}mount failed: Operation not permitted (its setuid bit is missing, no_new_privs is set, or the \
         container lacks CAP_SYS_ADMIN)"
    )[..];
    let allow = |option: &str| {
        format!(
            "{helper}option {option} only allowed if 'user_allow_other' is set in /etc/fuse.conf \
             (an administrator can add that line)"
        )
    };
    let table = [
        (no_device, "weightfs", 1, missing),
        (no_device, "mount.weightfs", 32, missing),
        (no_device, &format!("{USER} weightfs"), 1, missing),
        (no_driver, "weightfs", 1, "this kernel has no FUSE: load the module with `modprobe fuse`"),
        (
            no_driver,
            &format!("{USER} weightfs"),
            1,
            &format!("{helper}fuse device not found, try 'modprobe fuse' first"),
        ),
        (
            not_opened,
            "weightfs",
            1,
            "/dev/fuse cannot be opened here, not even by root: give it to the container (--device /dev/fuse); \
             `weightfs ls`, `cat`, `cp` and `serve` work without it",
        ),
        (device, &format!("{USER} setpriv --no-new-privs weightfs"), 1, no_right),
        (device, &format!("{no_admin} weightfs"), 1, no_right),
        (
            device,
            &format!("{no_admin} env PATH=$PWD/bin weightfs"),
            1,
            "root is not permitted to mount or unmount here: give the container CAP_SYS_ADMIN (--cap-add SYS_ADMIN)",
        ),
        (no_conf, &format!("{USER} weightfs -o allow_other"), 1, &allow("allow_other")),
        (no_conf, &format!("{USER} weightfs -o allow_root"), 1, &allow("allow_other")),
    ];
    for (setup, line, code, text) in table {
        let namespace = Namespace::new(&scene, setup);
        let said = namespace.sh(&format!("{line} sample.safetensors home/mnt"));
        assert_eq!(said, Said { code, out: String::new(), err: format!("weightfs: {text}\n") }, "{setup}: {line}");
        scene.wait_for_end();
        assert_eq!(shown(&namespace.mounts()), [""; 0], "{line}");
    }
}

#[test]
fn user_who_unmounts_the_mount_of_another_is_told_whose_it_is() {
    require_root!();
    let scene = scene();
    let namespace = namespace(&scene, "user_allow_other");
    namespace.ok("weightfs -o allow_other sample.safetensors mnt");
    namespace.ok(&format!("{USER} weightfs -o allow_other sample.safetensors home/mnt"));
    let dir = scene.dir.path().display();
    let name = namespace.ok("id -nu 65534");
    let name = name.trim_end();
    let table = [
        ("mnt", USER, format!("mounted by root, so only root can unmount it: sudo weightfs umount {dir}/mnt")),
        ("home/mnt", THIRD, format!("mounted by {name}, so only {name} and root can unmount it")),
    ];
    for (point, user, reason) in table {
        let said = namespace.sh(&format!("{user} weightfs umount {point}"));
        let err = format!("weightfs: {point}: {reason}\n");
        assert_eq!(said, Said { code: 1, out: String::new(), err });
    }
    // Only their own mounts are those of `--all`.
    namespace.ok(&format!("{THIRD} weightfs umount --all"));
    assert_eq!(namespace.mounts().len(), 3);
    namespace.ok(&format!("{USER} weightfs umount --all"));
    assert!(namespace.mounts().iter().all(|line| !line.contains("home/mnt")));
    namespace.ok("weightfs umount mnt");
}

#[test]
fn shards_of_an_index_that_cannot_be_read_yet_are_no_models() {
    require_root!();
    let scene = scene();
    let namespace = namespace(&scene, "");
    scene.ok("mkdir home/set && cp sample.safetensors home/set/other.safetensors");
    for number in 1..=2 {
        let name = format!("home/set/model-0000{number}-of-00002.safetensors");
        scene.model(&name, &[(&format!("w{number}"), safetensors::Dtype::U8, &[1], vec![number])], &[]);
    }
    let map = serde_json::json!({"w1": "model-00001-of-00002.safetensors", "w2": "model-00002-of-00002.safetensors"});
    let index = scene.path("home/set/model.safetensors.index.json");
    std::fs::write(index, serde_json::json!({ "weight_map": map }).to_string()).unwrap();
    scene.ok("chown -R 65534:65534 home && chmod 644 home/set/* && chmod 0 home/set/model.safetensors.index.json");
    namespace.ok(&format!("{USER} weightfs home/set home/mnt"));
    namespace.ok("chmod 644 home/set/model.safetensors.index.json");
    assert_eq!(namespace.ok(&format!("{USER} ls home/mnt")), "model\nother\n");
    assert_eq!(namespace.ok(&format!("{USER} ls home/mnt/model/tensors")), "w1\nw2\n");
    namespace.ok(&format!("{USER} weightfs umount home/mnt"));
    scene.wait_for_end();
}
