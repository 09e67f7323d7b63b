//! Access of other users to a mount: users can read through it only what they can read in the source.

use crate::support::{Mount, Scene, pattern, require_root};
use safetensors::Dtype;

/// Users and their groups: the owner of most sources, a member of their group, and two others.
const USERS: [(u32, u32); 4] = [(65534, 65534), (65533, 7000), (65532, 65532), (65531, 65531)];

/// Prints `yes` or `no` for each path: whether it can be read or listed.
const LOOK: &str = r#"
    for my $path (@ARGV) {
        my $is_open = -d $path ? opendir(my $dir, $path) : open(my $file, '<', $path);
        # A read that fails gives the same as the end, but sets the error.
        $! = 0;
        if ($is_open) { $dir ? () = readdir $dir : 1 while $file && sysread $file, my $bytes, 1 << 20; }
        print $is_open && !$! ? "yes\n" : "no\n";
    }"#;

/// Sources and mounts of them.
struct Access {
    scene: Scene,
}

/// An access control list as a value for setfattr: tag, permissions and id of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> String {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend([&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("setfattr -n system.posix_acl_access -v 0x{hex}")
}

// Tags of the entries of an access control list.
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

impl Access {
    fn new() -> Self {
        let scene = Scene::new();
        std::fs::write(scene.path("look"), LOOK).unwrap();
        let tensors = [("a", Dtype::U8, &[3][..], pattern(3)), ("b.c", Dtype::F32, &[2][..], pattern(8))];
        scene.model("a", &tensors[..1], &[("key", "value")]);
        scene.model("b", &tensors[1..], &[]);
        scene.model("whole", &tensors, &[("key", "value")]);
        let quantized =
            [("q.weight", Dtype::F8_E4M3, &[2, 2][..], pattern(4)), ("q.weight_scale", Dtype::F32, &[1], pattern(4))];
        scene.model("quantized", &quantized, &[]);
        let index = r#"{"weight_map": {"a": "a.safetensors", "b.c": "b.safetensors"}}"#;
        std::fs::write(scene.path("index"), index).unwrap();
        let sub = r#"{"weight_map": {"a": "sub/a.safetensors", "b.c": "b.safetensors"}}"#;
        std::fs::write(scene.path("index.sub"), sub).unwrap();
        let size = |name| scene.path(name).metadata().unwrap().len();
        let listed = |name| serde_json::json!({"shard_path": format!("{name}.safetensors"), "samples_count": 3, "bytes": size(name)});
        let manifest = serde_json::json!({"format_version": "1.0", "shards": [listed("a"), listed("b")]});
        std::fs::write(scene.path("manifest"), manifest.to_string()).unwrap();
        for name in ["index", "manifest"] {
            let text = std::fs::read_to_string(scene.path(name)).unwrap();
            std::fs::write(scene.path(format!("{name}.hidden")), text.replace("a.safe", ".sub/a.safe")).unwrap();
        }
        scene.ok("chmod 755 . && chmod 644 look a b whole quantized index* manifest*");
        Self { scene }
    }

    /// Which of the paths each user can read.
    fn reads(&self, paths: &[String]) -> Vec<Vec<bool>> {
        let reads = |(user, group): (u32, u32)| {
            let mut command = self.scene.command("setpriv");
            command.args([format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".into()]);
            let said = crate::support::Said::of(command.args(["perl", "look"]).args(paths)).ok("look");
            let found: Vec<bool> = said.lines().map(|line| line == "yes").collect();
            assert_eq!(found.len(), paths.len());
            found
        };
        std::thread::scope(|scope| {
            let reads = &reads;
            let users = USERS.map(|user| scope.spawn(move || reads(user)));
            users.map(|user| user.join().unwrap()).to_vec()
        })
    }

    /// Creates a source with `setup` in the new directory `src`, mounts `source`, and compares who can read what. Each
    /// pair is a path in the mount and the paths of everything that one needs to read what is there.
    fn check(&self, setup: &str, source: &str, args: &[&str], pairs: &[(&str, &[&str])], is_exact: bool) {
        self.scene.ok(&format!("mkdir src && {setup}"));
        let mount = self.scene.mount(&self.scene.path(source), &[&["-o", "allow_other"], args].concat());
        for (path, needed) in pairs {
            let needed: Vec<String> = needed.iter().map(|path| path.to_string()).collect();
            let may: Vec<bool> = self.reads(&needed).iter().map(|reads| reads.iter().all(|read| *read)).collect();
            let point = mount.point.join(path.trim_start_matches('/')).display().to_string();
            let found = match path.ends_with('/') {
                true => point,
                false => self
                    .scene
                    .ok(&format!("find '{}' -name plots -prune -o -type f -print", point.trim_end_matches("/."))),
            };
            let files: Vec<String> = found.lines().map(str::to_owned).collect();
            assert!(!files.is_empty(), "{setup}: {path}");
            for ((user, may), reads) in USERS.iter().zip(&may).zip(self.reads(&files)) {
                for (file, read) in files.iter().zip(reads) {
                    assert!(*may || !read, "{setup}: {user:?} reads {file}, but not {needed:?}");
                    assert!(!is_exact || *may == read, "{setup}: {user:?} cannot read {file}, but {needed:?}");
                }
            }
        }
        drop(mount);
        self.scene.ok("rm -rf src else mnt*");
    }
}

#[test]
fn nobody_reads_through_a_mount_what_is_not_readable_in_the_source() {
    require_root!();
    let access = Access::new();
    let file = "src/m.safetensors";
    let one = |rest: &str| format!("cp whole {file} && chown 65534:7000 {file} && {rest}");
    let mode = |mode: &str| one(&format!("chmod {mode} {file}"));
    for mode in ["644", "640", "600", "604", "044", "444", "000"].map(mode) {
        access.check(&mode, file, &[], &[(".", &[file])], true);
        access.check(&mode, "src", &[], &[(".", &[file])], true);
    }
    // Access control lists: those that widen, that narrow, and that have the base entries only.
    let named = |group, named, id, tag, mask, other| {
        [(USER_OBJ, 6, !0), (tag, named, id), (GROUP_OBJ, group, !0), (MASK, mask, !0), (OTHER, other, !0)]
    };
    for entries in [
        named(0, 4, 65532, USER, 4, 0),
        named(4, 0, 65532, USER, 4, 4),
        named(4, 0, 65531, GROUP, 4, 4),
        named(4, 4, 65531, GROUP, 0, 4),
        named(0, 6, 65533, USER, 7, 4),
    ] {
        // The kernel wants the entries sorted by tag.
        let mut entries = entries.to_vec();
        entries.sort();
        let list = one(&format!("{} {file}", acl(&entries)));
        access.check(&list, file, &[], &[(".", &[file])], false);
        // The directory of the only model, and a folder.
        let list = format!(
            "{} && chown 65534:7000 src && {} src",
            mode("644"),
            acl(&entries.iter().map(|(tag, perm, id)| (*tag, perm | perm >> 2, *id)).collect::<Vec<_>>())
        );
        access.check(&list, "src", &[], &[(".", &[file])], false);
        access.check(
            &format!("{list} && cp {file} src/n.safetensors"),
            "src",
            &[],
            &[("m", &[file]), ("n", &["src/n.safetensors"])],
            false,
        );
    }
    let base = [(USER_OBJ, 6, !0), (GROUP_OBJ, 4, !0), (OTHER, 0, !0)];
    access.check(&one(&format!("{} {file}", acl(&base))), file, &[], &[(".", &[file])], true);
    // Directories.
    let two = "cp a src/a.safetensors && mkdir src/sub && cp b src/sub/b.safetensors && chown -R 65534:7000 src";
    for mode in ["755", "744", "711", "750", "000"] {
        access.check(
            &format!("{} && chown 65534:7000 src && chmod {mode} src", one("chmod 644 src/*")),
            "src",
            &[],
            &[(".", &[file])],
            true,
        );
        let setup = format!("{two} && chmod {mode} src/sub");
        let pairs: [(&str, &[&str]); 4] = [
            ("a", &["src/a.safetensors"]),
            ("sub/b", &["src/sub/b.safetensors"]),
            ("sub/", &["src/sub"]),
            ("/", &["src"]),
        ];
        access.check(&setup, "src", &[], &pairs, true);
        access.check(&format!("{two} && chmod {mode} src"), "src", &[], &pairs, true);
    }
    // The parts of one model.
    let index = "src/model.safetensors.index.json";
    let sharded =
        format!("cp index {index} && cp a src/a.safetensors && cp b src/b.safetensors && chown -R 65534:7000 src");
    let parts: &[&str] = &[index, "src/a.safetensors", "src/b.safetensors"];
    let manifest = "src/data/dataset_manifest.json";
    let dataset = format!(
        "mkdir src/data && cp manifest {manifest} && cp a src/data/a.safetensors && cp b src/data/b.safetensors && cp a src/x.safetensors && chown -R 65534:7000 src"
    );
    let members: &[&str] = &[manifest, "src/data/a.safetensors", "src/data/b.safetensors"];
    for mode in ["600", "604"] {
        for part in parts {
            let setup = format!("{sharded} && chmod {mode} {part}");
            access.check(&setup, "src", &[], &[(".", parts)], true);
            access.check(&setup, index, &[], &[(".", parts)], true);
            access.check(
                &format!("{setup} && cp a src/x.safetensors"),
                "src",
                &[],
                &[("model", parts), ("x", &["src/x.safetensors"])],
                true,
            );
        }
        for part in members {
            let setup = format!("{dataset} && chmod {mode} {part}");
            access.check(&setup, "src/data", &[], &[(".", members)], true);
            access.check(&setup, "src", &[], &[("data", members), ("x", &["src/x.safetensors"])], true);
        }
    }
    access.check(&format!("{dataset} && chmod 750 src/data"), "src", &[], &[("data", members)], true);
    access.check(&format!("{dataset} && chmod 700 src/data"), "src/data", &[], &[(".", members)], true);
    let sub = format!(
        "cp index.sub {index} && mkdir src/sub && cp a src/sub/a.safetensors && cp b src/b.safetensors && chown -R 65534:7000 src && chmod 750 src/sub"
    );
    let parts: &[&str] = &[index, "src/sub/a.safetensors", "src/b.safetensors"];
    access.check(&sub, "src", &[], &[(".", parts)], true);
    access.check(&sub, index, &[], &[(".", parts)], true);
    // The configuration of a quantized model is a part of it, and that of another model is not.
    let config = "src/config.json";
    for mode in ["600", "604", "640", "644"] {
        let setup = format!("echo '{{}}' >{config} && chown 65534:7000 src/* && chmod {mode} {config}");
        let quantized = format!("cp quantized {file} && {setup}");
        access.check(&quantized, file, &[], &[(".", &[file, config])], true);
        access.check(&quantized, "src", &[], &[(".", &[file, config])], true);
        let two = format!("{quantized} && cp a src/x.safetensors");
        access.check(&two, "src", &[], &[("m", &[file, config]), ("x", &["src/x.safetensors"])], true);
        let parts: [(&str, &[&str]); 2] = [("tensors", &[file]), ("files", &[file, config])];
        access.check(&format!("cp whole {file} && {setup}"), file, &[], &parts, true);
    }
    // Messages also quote a part that `--lenient` leaves out.
    let broken = format!("{sharded} && echo 'a secret' >src/b.safetensors && chmod 600 src/b.safetensors");
    access.check(&broken, "src", &["--lenient"], &[(".", &[index, "src/a.safetensors", "src/b.safetensors"])], true);
}

#[test]
fn links_out_of_the_source_need_every_directory_on_the_way() {
    require_root!();
    let access = Access::new();
    let target = "mkdir -p else/far/deep && cp a else/far/deep/a.safetensors && chown -R 65534:7000 else src";
    let model = "else/far/deep/a.safetensors";
    for (dir, mode) in
        [("else", "750"), ("else/far", "700"), ("else/far", "744"), ("else/far/deep", "711"), (model, "640")]
    {
        let setup = format!("{target} && chmod {mode} {dir}");
        access.check(&format!("{setup} && ln -s ../{model} src/a.safetensors"), "src", &[], &[(".", &[model])], true);
        let two = format!("{setup} && ln -s ../{model} src/a.safetensors && cp b src/b.safetensors");
        access.check(&two, "src", &[], &[("a", &[model]), ("b", &["src/b.safetensors"])], true);
        let linked = format!("{setup} && ln -s ../else/far/deep src/x && cp b src/b.safetensors");
        access.check(
            &linked,
            "src",
            &[],
            &[("x/a", &[model]), ("x/", &["else/far/deep"]), ("b", &["src/b.safetensors"])],
            true,
        );
        // A cache of the Hub: the shards are links to files beside the directory.
        let index = "src/snap/model.safetensors.index.json";
        let hub = format!(
            "{setup} && mkdir src/snap && cp index {index} && ln -s ../../{model} src/snap/a.safetensors && cp b src/snap/b.safetensors"
        );
        let parts: &[&str] = &[index, "src/snap/a.safetensors", "src/snap/b.safetensors"];
        for (source, path) in [("src", "snap/model"), ("src/snap", "."), (index, ".")] {
            access.check(&hub, source, &[], &[(path, parts)], true);
        }
    }
    // Shards in a directory that is not scanned, and behind a link to one.
    for (list, name) in [("index", "model.safetensors.index.json"), ("manifest", "dataset_manifest.json")] {
        let list = format!(
            "mkdir src/data && cp {list}.hidden src/data/{name} && cp b src/data/b.safetensors && cp a src/x.safetensors"
        );
        let parts: &[&str] = &[&format!("src/data/{name}"), "src/data/.sub/a.safetensors", "src/data/b.safetensors"];
        let path = if name.starts_with("model") { "data/model" } else { "data" };
        for rest in [
            "mkdir src/data/.sub && cp a src/data/.sub/a.safetensors && chown -R 65534:7000 src && chmod 750 src/data/.sub",
            "mkdir else && cp a else/a.safetensors && ln -s ../../else src/data/.sub && chown -R 65534:7000 src else && chmod 750 else",
        ] {
            access.check(&format!("{list} && {rest}"), "src", &[], &[(path, parts)], true);
        }
    }
    // A directory beside the folder of the link, inside of the source.
    let inside = "mkdir src/blobs src/snap && cp a src/blobs/a && ln -s ../blobs/a src/snap/a.safetensors && cp b src/b.safetensors && chown -R 65534:7000 src && chmod 750 src/blobs";
    access.check(inside, "src", &[], &[("snap/a", &["src/blobs/a"])], true);
}

#[test]
fn other_files_have_the_permissions_of_their_own() {
    require_root!();
    let access = Access::new();
    let setup = "cp whole src/m.safetensors && echo '{}' >src/config.json && echo s >src/notes && mkdir src/sub && \
        echo t >src/sub/more && chown -R 65534:7000 src";
    for (path, mode) in [
        ("src/notes", "640"),
        ("src/notes", "600"),
        ("src/sub", "750"),
        ("src/sub", "711"),
        ("src/m.safetensors", "600"),
    ] {
        let setup = format!("{setup} && chmod {mode} {path}");
        let (model, notes) = ("src/m.safetensors", ("files/notes", "src/notes"));
        let whole = [notes, ("files/sub/more", "src/sub/more"), ("files/sub/", "src/sub"), ("tensors", model)];
        for (source, shown) in [("src", &whole[..]), (model, &[notes, ("tensors", model)])] {
            let needed: Vec<[&str; 2]> = shown.iter().map(|(_, file)| [*file, model]).collect();
            // The root of a mount is searched only by those who may read the model.
            let pairs: Vec<(&str, &[&str])> =
                shown.iter().zip(&needed).map(|((path, _), needed)| (*path, &needed[..])).collect();
            access.check(&setup, source, &[], &pairs, true);
        }
    }
    // A directory whose names are private.
    let private = format!("{setup} && chmod 711 src");
    access.check(
        &private,
        "src/m.safetensors",
        &[],
        &[("files/", &["src"]), ("tensors", &["src/m.safetensors"])],
        true,
    );
}

#[test]
fn owners_that_differ_give_no_access_to_anyone_else() {
    require_root!();
    let access = Access::new();
    let (file, index) = ("src/m.safetensors", "src/model.safetensors.index.json");
    let sharded =
        format!("cp index {index} && cp a src/a.safetensors && cp b src/b.safetensors && chown 65534:7000 src src/*");
    let parts: &[&str] = &[index, "src/a.safetensors", "src/b.safetensors"];
    for owner in ["65532:65532", "65532:7000", "65534:65532", "0:0"] {
        for (mode, dir) in [("640", "750"), ("604", "705"), ("464", "575"), ("644", "755")] {
            for part in &parts[..2] {
                let setup = format!("{sharded} && chown {owner} {part} && chmod {mode} {part}");
                access.check(&setup, "src", &[], &[(".", parts)], false);
            }
            let setup = format!("cp whole {file} && chown 65534:7000 {file} && chown {owner} src && chmod {dir} src");
            access.check(&setup, "src", &[], &[(".", &[file])], false);
        }
    }
}

#[test]
fn error_files_have_the_permissions_of_the_files_they_describe() {
    require_root!();
    let access = Access::new();
    let scene = &access.scene;
    scene.ok("mkdir -p src/sub src/data else && cp a src/sound.safetensors && cp b src/other.safetensors");
    for name in ["src/public.safetensors", "src/private.safetensors", "else/secret", "else/private.safetensors"] {
        std::fs::write(scene.path(name), "\x39\x30\0\0\0\0\0\0 a secret").unwrap();
    }
    let index =
        |path: &str, value: &str| std::fs::write(scene.path(path), format!(r#"{{"weight_map": {value}}}"#)).unwrap();
    index("src/sub/model.safetensors.index.json", "4711");
    index("src/sub/shards.safetensors.index.json", r#"{"a": "s.safetensors"}"#);
    scene.ok("cp src/private.safetensors src/sub/s.safetensors && chmod 644 src/sub/*.json");
    std::fs::write(scene.path("src/data/dataset_manifest.json"), r#"{"format_version": "9.4711", "shards": []}"#)
        .unwrap();
    scene.ok(
        "ln -s ../else/secret src/link.safetensors && ln -s ../else src/dir && ln -s absent src/dangling.safetensors",
    );
    scene.ok("ln -s sub/s.safetensors src/within.safetensors && chown -R 65534:7000 src else && chmod 644 src/p*");
    scene
        .ok("chmod 600 src/private.safetensors src/sub/*.json src/sub/s* src/data/*.json && chmod 644 src/sub/shards*");
    let mount: Mount = scene.mount(&scene.path("src"), &["-o", "allow_other"]);
    let table: [(&str, &[&str], &str); 9] = [
        ("public", &["src/public.safetensors"], "12353"),
        ("private", &["src/private.safetensors"], "12353"),
        ("within", &["src/sub/s.safetensors"], "12353"),
        ("sub/model", &["src/sub/model.safetensors.index.json"], "4711"),
        ("sub/shards", &["src/sub/shards.safetensors.index.json", "src/sub/s.safetensors"], "12353"),
        ("data", &["src/data/dataset_manifest.json"], "4711"),
        ("link", &["else/secret"], "a link leads to it"),
        ("dir/private", &["else/private.safetensors"], "a link leads to it"),
        ("dangling", &[], "a link to absent, which does not exist"),
    ];
    for (name, needed, text) in table {
        let path = mount.path(format!("{name}.error.txt"));
        let said = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(said.contains(text), "{name}: {said}");
        if text == "a link leads to it" {
            assert!(
                !said.contains("123") && !said.contains("3039") && !said.contains("secret\"") && !said.contains("17"),
                "{said}"
            );
        }
        let needed: Vec<String> = needed.iter().map(|path| path.to_string()).collect();
        let may = access.reads(&needed);
        for ((user, may), read) in USERS.iter().zip(may).zip(access.reads(&[path.display().to_string()])) {
            assert_eq!(read[0], may.iter().all(|may| *may), "{name}: {user:?}");
        }
    }
    let about_link = |log: &str| log.lines().filter(|line| line.contains("/link.safetensors: ")).collect::<String>();
    let log = about_link(&mount.log());
    assert!(log.contains("a link leads to it") && !log.contains("12353"), "{log}");
    drop(mount);
    // Informational messages have the reason.
    let mount: Mount = scene.mount(&scene.path("src"), &["-v"]);
    mount.read("link.error.txt");
    assert!(about_link(&mount.log()).contains("12353"), "{}", mount.log());
}
