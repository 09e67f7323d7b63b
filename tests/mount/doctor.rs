//! `weightfs doctor`: its findings are those of an attempt to mount, and its remedies work.

use crate::support::{Namespace, Said, Scene, require_root};
use serde_json::Value;

/// Runs a command as a user other than root, without supplementary groups.
const USER: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";

/// A device that users may open, and a copy of fusermount3 in place of the one of this machine.
const SETUP: &str = "
    mount -t tmpfs -o mode=755 dev dev
    mknod -m 666 dev/fuse c 10 229 && mount --bind dev/fuse /dev/fuse
    echo '#user_allow_other' >dev/conf && touch /etc/fuse.conf && mount --bind dev/conf /etc/fuse.conf
    cp -p $(command -v fusermount3) dev/fusermount3 && mount --bind dev/fusermount3 $(command -v fusermount3)
";

fn scene() -> Scene {
    let scene = Scene::new();
    scene.sample();
    scene.ok(
        "chmod 755 . && chmod 644 sample.safetensors && mkdir -p dev home/mnt home/cache && chown -R 65534:65534 home",
    );
    scene
}

/// The findings of a command `weightfs doctor --json` about one thing: state, text and remedy.
fn findings(said: &Said, check: &str) -> Vec<(String, String, String)> {
    let value: Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    assert_eq!(value["ok"], said.code == 0, "{said:?}");
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let list = value["findings"].as_array().unwrap().iter().filter(|finding| finding["check"] == check);
    list.map(|finding| (text(finding, "state"), text(finding, "finding"), text(finding, "remedy"))).collect()
}

/// The only finding about one thing.
fn finding(said: &Said, check: &str) -> (String, String, String) {
    let mut found = findings(said, check);
    assert_eq!(found.len(), 1, "{check}: {said:?}");
    found.remove(0)
}

#[test]
fn doctor_reports_that_root_may_mount() {
    require_root!();
    let scene = scene();
    let alone = Namespace::new(&scene, "");
    let said = alone.sh("weightfs doctor sample.safetensors");
    assert!(said.code == 0 && said.out.ends_with("\nnothing prevents mounting\n"), "{said:?}");
    for line in ["/dev/fuse can be opened", "root may mount", "root may use --allow-other", "safetensors, 8 tensors"] {
        assert!(said.out.contains(line), "{line}: {said:?}");
    }
    let said = alone.sh("echo >broken; weightfs doctor broken");
    assert!(said.code == 1 && said.out.ends_with("\n1 problem prevents mounting\n"), "{said:?}");
    assert!(said.out.contains("failure  source") && said.out.contains("broken: "), "{said:?}");
}

/// Each obstacle is made, and both `doctor` and an attempt to mount must fail because of it. It is removed, as
/// `doctor` advises, and both must succeed.
#[test]
fn obstacles_of_users_are_found_and_their_remedies_work() {
    require_root!();
    let scene = scene();
    let helper = scene.ok("command -v fusermount3").trim().to_owned();
    let obstacles = [
        ("chmod 600 /dev/fuse", "device", "/dev/fuse: Permission denied", "chmod 666 /dev/fuse", USER),
        ("chmod u-s HELPER", "permission", "HELPER is not setuid root", "chown root HELPER && chmod u+s HELPER", USER),
        ("chmod 4754 HELPER", "permission", "HELPER may be run by its group 0 only", "add you to that group", USER),
        (
            "mount -o remount,bind,nosuid HELPER",
            "permission",
            "HELPER is on a file system that is mounted nosuid",
            "without nosuid",
            USER,
        ),
        (
            ":",
            "permission",
            "HELPER cannot gain privileges, because no_new_privs is set",
            "without it",
            "setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs",
        ),
    ];
    let inside = Namespace::new(&scene, SETUP);
    let doctor = |user: &str| inside.sh(&format!("XDG_CACHE_HOME=$PWD/home/cache {user} weightfs doctor --json"));
    let mount = |user: &str| inside.sh(&format!("{user} weightfs sample.safetensors home/mnt")).code;
    let undo = |mounted: i32| {
        if mounted == 0 {
            inside.ok(&format!("{USER} weightfs umount home/mnt"));
        }
    };
    for (make, check, text, remedy, user) in obstacles {
        let with_helper = |text: &str| text.replace("HELPER", &helper);
        inside.ok(&with_helper(make));
        let said = doctor(user);
        let (state, found, advice) = finding(&said, check);
        let mounted = mount(user);
        undo(mounted);
        assert_eq!((state.as_str(), found, said.code, mounted), ("failure", with_helper(text), 1, 1), "{make}");
        assert!(advice.contains(&with_helper(remedy)), "{make}: {advice}");
        inside.ok(&with_helper("chmod 666 /dev/fuse && mount -o remount,bind,suid HELPER && chmod 4755 HELPER"));
        let said = doctor(USER);
        let mounted = mount(USER);
        undo(mounted);
        assert_eq!((said.code, mounted), (0, 0), "{make}: {said:?}");
    }
    // Without any fusermount3.
    let said =
        inside.sh(&format!("PATH=$PWD/bin {} weightfs doctor --json", USER.replacen("setpriv", "/usr/bin/setpriv", 1)));
    let (state, found, advice) = finding(&said, "permission");
    assert!(state == "failure" && found.contains("fusermount3 is missing") && advice.contains("fuse3"), "{said:?}");
}

#[test]
fn a_missing_device_is_found() {
    require_root!();
    let scene = scene();
    let inside = Namespace::new(&scene, "mount -t tmpfs none /dev");
    let said = inside.sh("weightfs doctor --json");
    let (state, found, advice) = finding(&said, "device");
    assert_eq!((state.as_str(), found.as_str()), ("failure", "/dev/fuse: No such file or directory"));
    assert!(advice.contains("modprobe fuse") && advice.contains("--device /dev/fuse"), "{advice}");
    assert_eq!((said.code, inside.sh("weightfs sample.safetensors home/mnt").code), (1, 1));
}

#[test]
fn sharing_by_users_depends_on_fuse_conf() {
    require_root!();
    let scene = scene();
    let inside = Namespace::new(&scene, SETUP);
    let doctor = || inside.sh(&format!("XDG_CACHE_HOME=$PWD/home/cache {USER} weightfs doctor --json"));
    let share = || inside.sh(&format!("{USER} weightfs --allow-other sample.safetensors home/mnt")).code;
    let said = doctor();
    let (state, found, advice) = finding(&said, "allow_other");
    assert!(state == "warning" && found.contains("user_allow_other") && advice.contains("line"), "{said:?}");
    assert_eq!((said.code, share()), (0, 1));
    inside.ok("echo user_allow_other >/etc/fuse.conf");
    assert_eq!(finding(&doctor(), "allow_other").0, "ok");
    assert_eq!(share(), 0);
    inside.ok(&format!("{USER} weightfs umount home/mnt"));
}

#[test]
fn the_read_ahead_of_a_mount_by_a_user_is_found_and_raised_by_the_remedy() {
    require_root!();
    let scene = scene();
    let inside = Namespace::new(&scene, SETUP);
    inside.ok(&format!("{USER} weightfs sample.safetensors home/mnt >home/out"));
    let point = scene.path("home/mnt");
    let found = || {
        let said = inside.sh(&format!("XDG_CACHE_HOME=$PWD/home/cache {USER} weightfs doctor --json"));
        findings(&said, "mounts").into_iter().find(|(_, text, _)| text.starts_with(point.to_str().unwrap()))
    };
    let (state, text, remedy) = found().unwrap();
    assert!(state == "warning" && text.contains("KiB ahead"), "{text}");
    inside.ok(remedy.strip_prefix("as root: ").unwrap());
    assert_eq!(found(), None);
    inside.ok(&format!("{USER} weightfs umount home/mnt"));
}

#[test]
fn a_dead_mount_is_found_and_removed_by_the_remedy() {
    require_root!();
    let scene = scene();
    let mut mount = scene.mount(&scene.path("sample.safetensors"), &[]);
    mount.child.kill().unwrap();
    mount.child.wait().unwrap();
    let alone = Namespace::new(&scene, "");
    let found = || {
        let said = alone.sh("weightfs doctor --json");
        findings(&said, "mounts").into_iter().find(|(_, text, _)| text.starts_with(mount.point.to_str().unwrap()))
    };
    let (state, text, remedy) = found().unwrap();
    assert!(state == "warning" && text.ends_with("dead: its daemon has ended"), "{text}");
    alone.ok(&remedy);
    assert_eq!(found(), None);
}

#[cfg(feature = "remote")]
#[test]
fn the_cache_and_the_place_of_credentials_are_found() {
    require_root!();
    let scene = scene();
    let alone = Namespace::new(&scene, "");
    let doctor =
        |variables: &str, args: &str| alone.sh(&format!("HOME=$PWD/home {variables} weightfs doctor --json {args}"));
    let said = doctor("", "");
    let (state, text, _) = finding(&said, "cache");
    assert!(state == "ok" && text.contains("bin/cache/weightfs: 0 B of at most"), "{text}");
    assert!(findings(&said, "credentials").is_empty(), "{said:?}");
    // Nothing is created.
    assert!(!scene.path("bin/cache").exists());

    // Nothing listens on port 1 of this machine.
    let url = "http://user:SECRET@127.0.0.1:1/m.safetensors?sig=SECRET";
    let said = doctor("", &format!("--timeout 1 '{url}'"));
    assert_eq!(finding(&said, "credentials").1, "from the URL");
    let (state, text, _) = finding(&said, "network");
    assert!(state == "failure" && text.contains("127.0.0.1:1/m.safetensors"), "{text}");
    assert!(said.code == 1 && !said.out.contains("SECRET") && !said.err.contains("SECRET"), "{said:?}");

    let said = doctor("", "--timeout 1 --token-file absent http://127.0.0.1:1/m.safetensors");
    let (state, text, _) = finding(&said, "credentials");
    assert!(state == "failure" && text.contains("absent"), "{text}");

    let said = doctor("XDG_CACHE_HOME=/proc", "");
    assert!(said.code == 0 && finding(&said, "cache").0 == "warning", "{said:?}");
    let said = doctor("XDG_CACHE_HOME=/proc", "--timeout 1 http://127.0.0.1:1/m.safetensors");
    let (state, _, remedy) = finding(&said, "cache");
    assert!(state == "failure" && remedy.contains("XDG_CACHE_HOME"), "{said:?}");
}
