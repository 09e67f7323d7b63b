//! Commands that write in a directory of another user, who exchanges names there at the same time. Files elsewhere
//! never change.

use crate::support::{Said, Scene, WEIGHTFS, pattern, run_ok};
use safetensors::{Dtype, SafeTensors};
use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The user who owns the directory.
const OWNER: u32 = 65534;

/// A directory `theirs` of another user with a model `m.safetensors` and a link `x` to `victim` in the scene, which is
/// a file of root.
struct Races {
    scene: Scene,
    model: Vec<u8>,
}

impl Races {
    fn new() -> Self {
        let scene = Scene::new();
        let tensors = [("a", Dtype::U8, &[5000][..], pattern(5000)), ("b", Dtype::U8, &[300][..], pattern(300))];
        let model = std::fs::read(scene.model("m.safetensors", &tensors, &[("title", "first")])).unwrap();
        std::fs::write(scene.path("victim"), "secret").unwrap();
        scene.ok("chmod 755 . && chmod 644 m.safetensors && chmod 600 victim && mkdir theirs victims && echo secret >victims/file");
        // A file with the name of one that is written, and a directory with the mark of a temporary one.
        scene.ok(
            "echo secret >victims/model-00001-of-00002.safetensors && mkdir -p victims/sub && echo x >victims/sub/y",
        );
        lchown(scene.path("theirs"), Some(OWNER), Some(OWNER)).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/race.c");
        for (to, flags) in [("race", &[][..]), ("race.so", &["-shared", "-fPIC"][..])] {
            let to = scene.path(to);
            run_ok(
                "cc",
                [
                    &[source.as_os_str(), "-o".as_ref(), to.as_os_str()][..],
                    &flags.iter().map(AsRef::as_ref).collect::<Vec<_>>()[..],
                ]
                .concat(),
            );
        }
        Self { scene, model }
    }

    fn theirs(&self, name: &str) -> PathBuf {
        self.scene.path("theirs").join(name)
    }

    /// Puts everything in the directory back.
    fn restore(&self, link: &str) {
        self.scene.ok("find theirs -mindepth 1 -delete");
        std::fs::write(self.theirs("m.safetensors"), &self.model).unwrap();
        symlink(link, self.theirs("x")).unwrap();
        for name in ["m.safetensors", "x"] {
            lchown(self.theirs(name), Some(OWNER), Some(OWNER)).unwrap();
        }
    }

    /// Runs a command of root in the directory. `a` and `x` are exchanged before two of its system calls.
    fn run(&self, args: &[&str], a: &str, first: usize, second: usize) -> Said {
        let mut command = Command::new(WEIGHTFS);
        command.args(args).current_dir(self.scene.path("theirs")).stdin(Stdio::null());
        command.env("LD_PRELOAD", self.scene.path("race.so")).env("RACE", format!("{a} x {first} {second}"));
        Said::of(command.env("RACE_LOG", self.scene.path("calls")))
    }

    /// Runs a command once for each pair of moments at which `a` and `x` are exchanged, and at least `least` times. The
    /// second moment is at most `span` system calls after the first, or there is only one.
    fn at_every_moment(
        &self,
        args: &[&str],
        a: &str,
        link: &str,
        (least, span): (usize, usize),
        mut check: impl FnMut(&Said, &str),
    ) {
        let victims = "find victim victims -printf '%p %i %m %u %T@ %n\\n' | sort; cat victim victims/*s victims/sub/y";
        let before = self.scene.ok(victims);
        self.restore(link);
        let undisturbed = self.run(args, a, 0, 0);
        assert_eq!(undisturbed.code, 0, "{args:?}: {undisturbed:?}");
        let calls: usize = self.scene.ok("tail -n1 calls").trim().parse().unwrap();
        let pairs = (1..=calls).flat_map(|first| {
            (first + 1..=calls + 1)
                .filter(move |second| second - first <= span || *second > calls)
                .map(move |second| (first, second))
        });
        let pairs: Vec<_> = pairs.collect();
        assert!(pairs.len() >= least, "{args:?}: {calls} calls");
        for (first, second) in pairs {
            self.restore(link);
            let said = self.run(args, a, first, second);
            let moment = format!("{args:?} {first} {second}: {said:?}");
            assert_eq!(self.scene.ok(victims), before, "{moment}");
            assert!(said.code == 0 || said.code == 1, "{moment}");
            check(&said, &moment);
        }
    }

    /// The titles of the models in the directory, under any name.
    fn titles(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.scene.path("theirs")).unwrap().map(|entry| entry.unwrap().path());
        let title = |path: PathBuf| {
            let bytes = std::fs::read(&path).unwrap();
            let (_, header) = SafeTensors::read_metadata(&bytes).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            SafeTensors::deserialize(&bytes).unwrap();
            header.metadata().clone().unwrap_or_default()["title"].clone()
        };
        files.filter(|path| !path.is_symlink()).map(title).collect()
    }
}

#[test]
fn file_of_another_directory_is_never_replaced() {
    if crate::support::is_skipped(crate::support::not_root()) {
        return;
    }
    let races = Races::new();
    let mut codes = [0, 0];
    let set = ["metadata", "set", "m.safetensors", "title=second"];
    races.at_every_moment(&set, "m.safetensors", "../victim", (100, 100), |said, moment| {
        codes[said.code as usize] += 1;
        // Each file is the complete old one or the complete new one.
        let titles = races.titles();
        assert!(titles.iter().all(|title| ["first", "second"].contains(&&title[..])), "{moment}");
        assert!(!titles.is_empty() && (said.code == 1 || titles.contains(&"second".to_owned())), "{moment}");
    });
    assert!(codes[0] > 0 && codes[1] > 0, "{codes:?}");
    let source = races.scene.path("m.safetensors");
    let export = ["export", "--force", source.to_str().unwrap(), "m.safetensors"];
    races.at_every_moment(&export, "m.safetensors", "../victim", (50, 100), |_, moment| {
        assert!(!races.titles().is_empty(), "{moment}");
    });
}

#[test]
fn files_of_another_directory_are_never_replaced_or_removed() {
    if crate::support::is_skipped(crate::support::not_root()) {
        return;
    }
    let races = Races::new();
    let source = races.scene.path("m.safetensors");
    let source = source.to_str().unwrap();
    let export = ["export", "--shard-size", "5kB", source, "parts"];
    let mut codes = [0, 0];
    races.at_every_moment(&export, "*", "../victims", (50, 2), |said, moment| {
        codes[said.code as usize] += 1;
        let parts = races.theirs("parts");
        if said.code == 0 {
            assert_eq!(std::fs::read_dir(parts).unwrap().count(), 3, "{moment}");
        }
    });
    assert!(codes[0] > 0 && codes[1] > 0, "{codes:?}");
}

/// A process of the other user that exchanges `m.safetensors` and `x` again and again.
struct Exchanging(Child);

impl Drop for Exchanging {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn process_that_exchanges_names_does_not_redirect_root() {
    if crate::support::is_skipped(crate::support::not_root()) {
        return;
    }
    let races = Races::new();
    races.scene.ok("chmod 755 race");
    let victim =
        || (std::fs::read(races.scene.path("victim")).unwrap(), races.scene.path("victim").metadata().unwrap());
    let before = victim();
    let mut codes = [0, 0];
    // Whatever the speed of the machine, the process exchanges the names between any two system calls of a command.
    while codes[0] + codes[1] < 60 {
        races.restore("../victim");
        let mut exchange = Command::new(races.scene.path("race"));
        exchange.args(["m.safetensors", "x"]).current_dir(races.scene.path("theirs")).uid(OWNER).gid(OWNER);
        let mut exchanging = Exchanging(exchange.spawn().unwrap());
        let ino = || races.theirs("x").symlink_metadata().unwrap().ino();
        let link = ino();
        crate::support::wait_until("the names are exchanged", || ino() != link);
        let said = races.run(&["metadata", "set", "m.safetensors", "title=second"], "-", 0, 0);
        assert!(exchanging.0.try_wait().unwrap().is_none());
        drop(exchanging);
        assert!(said.code == 0 || said.code == 1, "{said:?}");
        codes[said.code as usize] += 1;
        let after = victim();
        let same = |a: &std::fs::Metadata, b: &std::fs::Metadata| {
            (a.ino(), a.mode(), a.ctime()) == (b.ino(), b.mode(), b.ctime())
        };
        assert!(after.0 == before.0 && same(&after.1, &before.1), "{said:?}");
        assert!(!races.titles().is_empty(), "{said:?}");
    }
}

#[test]
fn links_of_other_users_are_followed_only_to_their_own_files() {
    if crate::support::is_skipped(crate::support::not_root()) {
        return;
    }
    let races = Races::new();
    let scene = &races.scene;
    races.restore("../mine.safetensors");
    scene.ok("cp m.safetensors mine.safetensors && cp m.safetensors theirs/own.safetensors && ln -s theirs link");
    scene.ok(
        "cd theirs && ln -s own.safetensors y && ln -s ../victims dir && ln -s /proc/self/fd/1 pipe && chown -h 65534:65534 y dir pipe own.safetensors",
    );
    let before = scene.ok("cat mine.safetensors victim victims/*s | sha256sum");
    let end = "a symbolic link of user 65534 leads to a file or directory of user 0; give the path without the link\n";
    for (line, file) in [
        ("metadata set theirs/x title=second", "theirs/x"),
        ("metadata set m.safetensors title=second -o theirs/x", "theirs/x"),
        ("export m.safetensors theirs/x", "theirs/x"),
        ("export m.safetensors theirs/dir/new", "theirs/dir/new"),
        ("export --shard-size 5kB m.safetensors theirs/dir/new", "theirs/dir/new"),
        ("export m.safetensors theirs/pipe", "theirs/pipe"),
        ("--log-file theirs/x m.safetensors theirs", "theirs/x"),
    ] {
        let said = scene.sh(&format!("weightfs {line}"));
        assert_eq!(said, Said { code: 1, out: String::new(), err: format!("weightfs: {file}: {end}") }, "{line}");
    }
    assert_eq!(scene.ok("cat mine.safetensors victim victims/*s | sha256sum"), before);
    // A link of root, and a link to a file of the same user.
    scene.ok("weightfs metadata set link/y title=second && weightfs export --force m.safetensors link/new");
    assert_eq!(
        scene.ok("weightfs metadata get theirs/own.safetensors title; stat -c %u theirs/own.safetensors"),
        "second\n65534\n"
    );
    scene.ok("weightfs metadata set mine.safetensors title=second && weightfs metadata get theirs/x");
}
