//! Every kind of source on every server: mounts and commands show what they show for the same files on this machine,
//! and what they cost in requests and bytes.

use super::{Client, bucket, data_requests, files, hub, length, requests, s3, serve, upload, web};
use crate::gguf;
use crate::pytorch;
use crate::servers::python::Python;
use crate::support::{Mount, pattern, require_fuse};
use safetensors::Dtype;
use serde_json::json;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Size of the blocks in which files are fetched.
const BLOCK: u64 = 64 << 10;

/// What is fetched of a file when it is opened.
const HEAD: u64 = 512 << 10;

/// Writes models of every kind to `models`, each in a directory of its own. Nobody else may read them if `is_private`.
fn models(client: &Client, is_private: bool) {
    let scene = &client.scene;
    for dir in ["models", "models/file", "models/sharded", "models/zoo", "models/zoo/sub", "models/data"] {
        scene.mkdir(dir);
    }
    fs::rename(scene.sample(), scene.path("models/file/sample.safetensors")).unwrap();

    let shards: [(&str, Vec<crate::support::Tensor>); 2] = [
        (
            "model-00001-of-00002.safetensors",
            vec![("a", Dtype::F32, &[3], pattern(12)), ("z", Dtype::U8, &[0], vec![])],
        ),
        ("model-00002-of-00002.safetensors", vec![("b", Dtype::BF16, &[70_000], pattern(140_000))]),
    ];
    for (file, tensors) in &shards {
        scene.model(&format!("models/sharded/{file}"), tensors, &[("format", "pt")]);
    }
    let map = serde_json::json!({"a": shards[0].0, "z": shards[0].0, "b": shards[1].0});
    let index = serde_json::json!({"metadata": {"total_size": 140_012}, "weight_map": map});
    client.write("models/sharded/model.safetensors.index.json", index.to_string().as_bytes());
    // It names no network: `inspect` would look for one beside the local model only.
    client.write("models/sharded/config.json", br#"{"hidden_size": 16}"#);

    let tensors: [gguf::Tensor; 2] =
        [("output_norm.weight", 0, &[4], pattern(16)), ("blk.0.ffn_up.weight", 2, &[32, 4], pattern(72))];
    let pairs = [("general.architecture", gguf::text(b"llama")), ("tokenizer.ggml.tokens", gguf::texts(&[b"a", b"b"]))];
    client.write("models/gguf/tiny.gguf", &gguf::file(&pairs, &tensors));
    for no in 0..2u16 {
        let split = [
            ("split.no", gguf::number(2, &no.to_le_bytes())),
            ("split.count", gguf::number(2, &2u16.to_le_bytes())),
            ("split.tensors.count", gguf::number(5, &2i32.to_le_bytes())),
        ];
        let pairs = if no == 0 { [&pairs[..], &split].concat() } else { split.to_vec() };
        let name = format!("models/splits/tiny-0000{}-of-00002.gguf", no + 1);
        client.write(&name, &gguf::file(&pairs, &tensors[usize::from(no)..][..1]));
    }

    scene.model("models/zoo/a.safetensors", &[("x", Dtype::U8, &[7], pattern(7))], &[("k", "v")]);
    fs::copy(scene.path("models/gguf/tiny.gguf"), scene.path("models/zoo/sub/b.gguf")).unwrap();

    let mut listed = Vec::new();
    for (name, rows) in [("part-0.safetensors", 2), ("part-1.safetensors", 3)] {
        let path = scene.model(&format!("models/data/{name}"), &[("x", Dtype::U8, &[rows, 5], pattern(rows * 5))], &[]);
        let len = fs::metadata(path).unwrap().len();
        listed.push(serde_json::json!({"shard_path": name, "samples_count": rows, "bytes": len}));
    }
    let total: u64 = listed.iter().map(|shard| shard["bytes"].as_u64().unwrap()).sum();
    let manifest = serde_json::json!({
        "format_version": "1.0", "safetensors_version": "1.0", "total_samples": 5, "total_bytes": total,
        "shards": listed,
    });
    client.write("models/data/dataset_manifest.json", manifest.to_string().as_bytes());
    client.ok("find models -exec touch -d '2021-02-03 04:05:06 UTC' {} +");
    permit(client, is_private);
}

/// Sets the permissions of [`models`] to those of remote files: everyone may read them, or their user only.
fn permit(client: &Client, is_private: bool) {
    let mode = if is_private { "u=rwX,go=" } else { "u=rwX,go=rX" };
    client.ok(&format!("chmod -R {mode} models"));
}

/// A source among [`models`]: its path, and whether it needs a server that lists files.
const SOURCES: [(&str, bool); 9] = [
    ("file/sample.safetensors", false),
    ("sharded/model.safetensors.index.json", false),
    ("sharded", true),
    ("gguf/tiny.gguf", false),
    ("splits/tiny-00001-of-00002.gguf", false),
    ("splits", true),
    ("zoo", true),
    ("data/dataset_manifest.json", false),
    ("data", true),
];

/// Type, mode, links, owner, size, blocks, path and target of everything in a mount, and the SHA-256 of every file but
/// `index.json`, which names the source. The other files of the directory are compared in folders only.
fn contents(client: &Client, mount: &Mount, is_folder: bool) -> String {
    // Directories of servers are not listed for one file.
    let left_out = if is_folder { "" } else { "'(' -path ./files -o -path './export/hf*' ')' -prune -o" };
    let point = mount.point.display();
    // The name of the source may be longer than that of another one.
    let without_size = r"/index.json $/s/^(\S+ \S+ \S+ \S+) \S+ \S+/\1/";
    client.ok(&format!(
        "cd {point} && find . {left_out} -printf '%y %m %n %U:%G %s %b %i %P %l\\n' | sed -E '{without_size}' | sort
        find . {left_out} -type f ! -name index.json -exec sha256sum {{}} + | sort -k 2"
    ))
}

/// The indexes of a mount without their sources.
fn indexes(client: &Client, mount: &Mount) -> Vec<serde_json::Value> {
    let paths = client.ok(&format!("find {} -name index.json | sort", mount.point.display()));
    let read = |path: &str| {
        let mut index: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let source = index.as_object_mut().unwrap().remove("source").unwrap();
        (source.as_str().unwrap().to_owned(), index)
    };
    let found: Vec<_> = paths.lines().map(read).collect();
    assert!(!found.is_empty());
    found.into_iter().map(|(_, index)| index).collect()
}

/// The commands that are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Commands {
    Every,
    /// Those that show the names and the data of all tensors.
    Few,
}

/// Asserts that a remote source and a local one show the same, in a mount and in commands, except that messages call
/// the remote one `shown`.
#[track_caller]
fn assert_same(client: &Client, url: &str, shown: &str, local: &Path, compared: Commands) {
    let local = local.to_str().unwrap();
    let (here, there) = (client.mount(local, &[]), client.mount(url, &[]));
    let is_folder = fs::metadata(local).unwrap().is_dir();
    let expected = contents(client, &here, is_folder);
    assert!(expected.lines().count() > 20, "{expected}");
    let found = contents(client, &there, is_folder);
    let only = |a: &str, b: &str| {
        a.lines().filter(|line| !b.lines().any(|other| other == *line)).collect::<Vec<_>>().join("\n")
    };
    let differ = [only(&found, &expected), only(&expected, &found)].join("\nand here:\n");
    assert!(found == expected, "{url}: {differ}\n{}", there.log());
    assert_eq!(indexes(client, &there), indexes(client, &here), "{url}");
    assert_eq!(there.log(), here.log(), "{url}");
    drop((here, there));

    let dir = |path: &str| path.rsplit_once('/').unwrap().0.to_owned();
    let mut commands = vec!["ls SOURCE", "id SOURCE"];
    if compared == Commands::Every {
        commands.extend([
            "ls --json SOURCE",
            "inspect SOURCE",
            "inspect --json SOURCE",
            "summary SOURCE",
            "check --values SOURCE",
            "check --json SOURCE",
        ]);
    }
    if compared == Commands::Every && !(is_folder && local.ends_with("zoo")) {
        commands.extend([
            "metadata get SOURCE",
            "metadata get --json SOURCE",
            "export SOURCE OUT.safetensors && sha256sum <OUT.safetensors",
            "export --clean --format safetensors --dtype f32 SOURCE - | sha256sum",
            "ls --files SOURCE tensors",
            "cat SOURCE metadata.json SHA256SUMS",
            "cp SOURCE tensors metadata OUT && cd OUT && find . -type f -exec sha256sum {} + | sort",
        ]);
    }
    for command in commands {
        let run = |source: &str, shown: &str| {
            client.sh("rm -rf OUT*");
            let mut said = client.sh(&format!("weightfs {}", command.replace("SOURCE", source)));
            for text in [&mut said.out, &mut said.err] {
                *text = text.replace(shown, "SOURCE").replace(&dir(shown), "DIR");
            }
            said
        };
        let (expected, found) = (run(local, local), run(url, shown));
        assert!(found == expected, "{command} of {url}: {found:#?} and here: {expected:#?}");
    }
    let differences: &[&str] = if compared == Commands::Every { &["--data", "--values"] } else { &[] };
    for what in differences {
        let same = client.sh(&format!("weightfs diff {what} {url} {local}"));
        assert_eq!((same.code, same.err.as_str()), (0, ""), "{same:?}");
    }
}

#[test]
fn web_servers_have_what_local_files_have() {
    require_fuse!();
    let client = Client::new();
    models(&client, false);
    // Formats that are read in the same way on every server.
    let written = client.scene.mkdir("models/formats");
    crate::formats::write(&written);
    permit(&client, false);
    let nginx = web(&client, "models");
    for source in [
        "models/strided.pt",
        "models/sharded/pytorch_model.bin.index.json",
        "models/script.pt",
        "models/tiny.slm",
        "models/dataset/dataset_manifest.json",
        "arrays/arrays.npz",
        "arrays/one.npy",
    ] {
        let (url, local) = (nginx.url(&format!("formats/{source}")), written.join(source));
        assert_same(&client, &url, &url, &local, Commands::Every);
    }
    for (source, _) in SOURCES.into_iter().filter(|(_, is_listed)| !is_listed) {
        // The time of nginx is that of the file.
        let local = client.scene.path("models").join(source);
        assert_same(&client, &nginx.url(source), &nginx.url(source), &local, Commands::Every);
    }
    let refused = client.sh(&format!("weightfs ls {}", nginx.url("sharded")));
    assert_eq!(refused.code, 1, "{refused:?}");
}

#[test]
fn object_stores_have_what_local_files_have() {
    require_fuse!();
    for script in ["s3.py", "seaweed.py"] {
        let mut client = Client::new();
        models(&client, true);
        crate::formats::write(&client.scene.mkdir("models/formats"));
        crate::distributed::copy(&client.scene.mkdir("models/distributed"));
        permit(&client, true);
        let _s3 = bucket(&mut client, "models", script);
        let others = ["formats/models/sharded", "formats/models/dataset", "distributed"];
        for source in SOURCES.into_iter().map(|(source, _)| source).chain(others) {
            let url = format!("s3://models/{source}");
            assert_same(&client, &url, &url, &client.scene.path("models").join(source), Commands::Few);
        }
    }
}

#[test]
fn emulated_clouds_have_what_local_files_have() {
    require_fuse!();
    let mut client = Client::new();
    models(&client, true);
    let (mut gcs, mut azure) = (Python::start("gcs.py"), Python::start("azurite.py"));
    client.set("STORAGE_EMULATOR_HOST", &gcs.text("url"));
    for (name, value) in [("ACCOUNT", "account"), ("KEY", "key"), ("ENDPOINT", "url")] {
        client.set(&format!("AZURE_STORAGE_{name}"), &azure.text(value));
    }
    upload(&client, "models", &mut gcs);
    upload(&client, "models", &mut azure);
    // Without credentials, the emulator of Google's store gives everyone everything.
    for (scheme, is_private) in [("gs", false), ("az", true)] {
        permit(&client, is_private);
        for source in ["file/sample.safetensors", "sharded/model.safetensors.index.json", "zoo"] {
            let url = format!("{scheme}://models/{source}");
            assert_same(&client, &url, &url, &client.scene.path("models").join(source), Commands::Few);
        }
    }
}

#[test]
fn repositories_have_what_local_files_have() {
    require_fuse!();
    let mut client = Client::new();
    models(&client, false);
    let all = client.scene.path("models");
    let mut hub = hub(&mut client, "models");
    let commit = hub.text("commit");
    for (source, _) in SOURCES {
        let shown = format!("hf://org/model@{commit}/{source}");
        let local = all.join(source);
        // The web server lists no directories, and shows every command of the other sources.
        let is_folder = local.is_dir();
        let compared = if is_folder { Commands::Every } else { Commands::Few };
        assert_same(&client, &format!("hf://org/model@v1/{source}"), &shown, &local, compared);
    }
    // The date of the last commit, because the Hub lists no dates of files.
    let mount = client.mount(&format!("hf://org/model@v1/{}", SOURCES[0].0), &[]);
    assert_eq!(fs::metadata(mount.path("tensors")).unwrap().mtime(), 1_715_595_630);
    drop(mount);
    // A repository is a folder with its name.
    for (source, repository) in
        [("sharded", "hf://org/model"), ("zoo", "hf://org/model"), ("data", "hf://datasets/org/data")]
    {
        let name = repository.rsplit_once('/').unwrap().1;
        serve(&mut hub, &all.join(source));
        fs::create_dir_all(client.scene.path("named").join(source)).unwrap();
        let local = client.scene.path("named").join(source).join(name);
        client.ok(&format!("cp -a models/{source} {}", local.display()));
        assert_same(&client, repository, &format!("{repository}@{commit}"), &local, Commands::Few);
        data_requests(&mut hub);
    }
}

#[test]
fn pipeline_in_a_repository_is_the_folder_that_it_is_on_a_disk() {
    require_fuse!();
    let mut client = Client::new();
    let weights = "diffusion_pytorch_model.fp16.safetensors";
    for (part, name) in [("unet", weights), ("text", "model.safetensors")] {
        client.write(&format!("pipe/{part}/config.json"), part.as_bytes());
        client.scene.model(&format!("pipe/{part}/{name}"), &[("w", Dtype::U8, &[70_000], pattern(70_000))], &[]);
    }
    let parts = json!({"unet": ["diffusers", "A"], "text": ["transformers", "B"], "scheduler": ["diffusers", "C"]});
    client.write("pipe/model_index.json", parts.to_string().as_bytes());
    client.write("pipe/scheduler/scheduler_config.json", b"{}");
    let mut hub = hub(&mut client, "pipe");
    let local = client.scene.mount(&client.scene.path("pipe"), &[]);
    let expected = files(&local.path("export/hf"));
    assert_eq!(expected.len(), 6);
    hub.take_log();
    let mount = client.mount("hf://org/model", &[]);
    // The file of parts is fetched when somebody enters the directory.
    assert!(!hub.take_log().iter().any(|request| request.to_string().contains("model_index.json")));
    assert_eq!(files(&mount.path("export/hf")), expected);
    assert!(hub.take_log().iter().any(|request| request.to_string().contains("model_index.json")));
    client.ok("weightfs cp hf://org/model export/hf copied");
    assert_eq!(files(&client.scene.path("copied/hf")), expected);
    assert_eq!(mount.log(), "");
    // A broken part.
    client.write(&format!("pipe/unet/{weights}"), b"short");
    serve(&mut hub, &client.scene.path("pipe"));
    let _ = fs::remove_dir_all(client.cache());
    let mount = client.mount("hf://org/model", &[]);
    assert_eq!(mount.list("export"), Vec::<String>::new());
    assert!(mount.log().contains("export/hf/: skipped: part \"unet\": "), "{}", mount.log());
}

#[test]
fn other_files_of_a_repository_are_fetched_when_they_are_read() {
    require_fuse!();
    let mut client = Client::new();
    models(&client, false);
    let mut hub = hub(&mut client, "models/sharded");
    client.write("models/sharded/sub/notes.txt", b"notes");
    serve(&mut hub, &client.scene.path("models/sharded"));
    let shard = "hf://org/model/model-00002-of-00002.safetensors";
    let index = "hf://org/model/model.safetensors.index.json";
    for (source, files) in [("hf://org/model", "config.json\nsub"), (shard, "config.json"), (index, "config.json")] {
        // Not what was fetched for another source.
        let _ = fs::remove_dir_all(client.cache());
        hub.take_log();
        let mount = client.mount(source, &["--views", "tensors"]);
        let requests = hub.take_log().len();
        drop(mount);
        let _ = fs::remove_dir_all(client.cache());
        let mount = client.mount(source, &[]);
        assert_eq!(hub.take_log().len(), requests, "{source}");
        let listed = client.ok(&format!("ls -l {}", mount.path("files").display()));
        assert!(listed.contains(" 19 ") && listed.contains("config.json"), "{source}: {listed}");
        assert_eq!(client.ok(&format!("ls {}", mount.path("files").display())).trim(), files, "{source}");
        assert_eq!(hub.take_log(), Vec::<serde_json::Value>::new(), "{source}");
        assert_eq!(mount.read("files/config.json"), br#"{"hidden_size": 16}"#, "{source}");
        assert_eq!(mount.read("files/config.json").len(), 19, "{source}");
        let requests = hub.take_log();
        let is_expected = |request: &serde_json::Value| request.to_string().contains("config.json");
        assert!(!requests.is_empty() && requests.iter().all(is_expected), "{source}: {requests:?}");
    }
}

#[cfg(feature = "serve")]
#[test]
fn versions_of_remote_files_are_served_if_all_changes_are_noticed() {
    use crate::serve::support::Server;

    require_fuse!();
    let client = Client::new();
    client.one("models/model.safetensors", 1000, 1);
    let nginx = web(&client, "models");
    let tags = |path: &str| {
        let server = Server::new(&client.scene, &nginx.url(path), &[]);
        let answer = server.request("HEAD", "index.json", &[]);
        assert_eq!(answer.status, 200, "{answer:?}");
        let of_file = answer.header("etag").to_owned();
        (of_file, server.get("?entries=json").header("etag").to_owned())
    };
    let first = tags("model.safetensors");
    assert!(first.0.starts_with('"') && first.1 == first.0, "{first:?}");
    assert_eq!(tags("model.safetensors"), first);
    // A date does not tell of a second change in a second.
    assert_eq!(tags("weak/model.safetensors"), (String::new(), String::new()));
    client.one("models/model.safetensors", 1001, 2);
    nginx.put("model.safetensors", &fs::read(client.scene.path("models/model.safetensors")).unwrap());
    let second = tags("model.safetensors");
    assert!(second.0.starts_with('"') && second != first, "{second:?}");
}

#[cfg(feature = "serve")]
#[test]
fn served_ranges_cost_their_own_bytes() {
    use crate::serve::support::Server;
    use crate::support::wait_until;
    use std::ops::Range;

    const MIB: u64 = 1 << 20;
    let client = Client::new();
    let bytes = client.one("models/m.safetensors", 64 << 20, 1);
    let nginx = web(&client, "models");
    let server = Server::new(&client.scene, &nginx.url("m.safetensors"), &[]);
    let sent = || requests(&nginx, "m.safetensors").iter().map(|(_, sent)| sent).sum::<u64>();
    let read = |path: &str, range: Range<u64>| {
        let header = format!("bytes={}-{}", range.start, range.end - 1);
        server.request("GET", path, &[("Range", &header)]).body
    };
    // Rows in the middle, as stored and as float32.
    let rows = 4 * MIB + 1234..12 * MIB + 1;
    let before = sent();
    let indices = rows.start as usize..rows.end as usize;
    assert!(read("tensors/w", rows.clone()) == bytes[indices.clone()]);
    assert!(sent() - before <= rows.end - rows.start + 2 * BLOCK, "{before} {}", sent());
    let before = sent();
    let rows = 20 * MIB + 99..22 * MIB;
    let values = read("f32/w.f32", rows.start * 4..rows.end * 4);
    assert!(values[..4] == f32::from(bytes[rows.start as usize]).to_le_bytes());
    assert!(sent() - before <= rows.end - rows.start + 2 * BLOCK, "{before} {}", sent());
    // What follows is fetched before a reader of one range after the other asks for it.
    let before = sent();
    (40..42).for_each(|at| assert_eq!(read("tensors/w", at * MIB..(at + 1) * MIB).len() as u64, MIB));
    wait_until("more is read ahead", || sent() - before > 3 * MIB);
}

#[test]
fn headers_cost_one_request_or_two() {
    require_fuse!();
    let client = Client::new();
    models(&client, false);
    // A header that is longer than what is fetched first.
    let entry = |at: usize| {
        format!(r#""tensor.{at:06}":{{"dtype":"U8","shape":[100],"data_offsets":[{},{}]}}"#, at * 100, at * 100 + 100)
    };
    let header = format!("{{{}}}", (0..10_000).map(entry).collect::<Vec<_>>().join(","));
    assert!(header.len() as u64 > HEAD);
    client.scene.raw("models/file/long.safetensors", header.as_bytes(), &pattern(1_000_000));
    let words: Vec<String> = (0..200_000).map(|word| format!("a rather long token {word}")).collect();
    let tokens = gguf::texts(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
    assert!(tokens.len() > 6_000_000);
    let tensors: [gguf::Tensor; 1] = [("w", 0, &[1 << 20], pattern(4 << 20))];
    client.write("models/gguf/vocabulary.gguf", &gguf::file(&[("tokenizer.ggml.tokens", tokens)], &tensors));
    let torch = client.scene.mkdir("models/torch");
    pytorch::script(["write".as_ref(), torch.as_os_str()]);
    let nginx = web(&client, "models");
    let cost = |sources: &[&str]| {
        let costs = sources.iter().map(|source| requests(&nginx, source).len());
        costs.collect::<Vec<_>>()
    };
    let shards = ["sharded/model-00001-of-00002.safetensors", "sharded/model-00002-of-00002.safetensors"];
    let index = "sharded/model.safetensors.index.json";
    for (source, parts, expected) in [
        ("file/sample.safetensors", vec!["file/sample.safetensors"], vec![1]),
        ("gguf/tiny.gguf", vec!["gguf/tiny.gguf"], vec![1]),
        ("file/long.safetensors", vec!["file/long.safetensors"], vec![2]),
        ("gguf/vocabulary.gguf", vec!["gguf/vocabulary.gguf"], vec![2]),
        (index, vec![index, shards[0], shards[1]], vec![1, 1, 1]),
        // The directory of a zip archive is at its end.
        ("torch/wide.pt", vec!["torch/wide.pt"], vec![2]),
    ] {
        client.ok(&format!("weightfs inspect {}", nginx.url(source)));
        assert_eq!(cost(&parts), expected, "{source}");
        // A mount asks for the versions of files. It fetches no data for names, sizes and metadata.
        let mount = client.mount(&nginx.url(source), &[]);
        client.ok(&format!("ls -lR {0} && cat {0}/index.json {0}/metadata.json", mount.point.display()));
        let again: Vec<usize> = expected.iter().map(|count| count + 1).collect();
        assert_eq!(cost(&parts), again, "{source}");
        for part in parts {
            assert_eq!(requests(&nginx, part).last().unwrap().1, 1, "{source}: {part}");
        }
    }
}

#[test]
fn repository_is_mounted_as_soon_as_headers_have_arrived() {
    require_fuse!();
    let mut client = Client::new();
    let bytes = client.one("models/m.safetensors", 2 << 20, 3);
    let mut hub = hub(&mut client, "models");
    // One and a half blocks of the head.
    hub.ask(json!({"do": "set", "state": {"pause": BLOCK * 3 / 2}}));
    let mount = client.mount("hf://org/model/m.safetensors", &[]);
    assert_eq!(fs::metadata(mount.path("tensors/w")).unwrap().len(), 2 << 20);
    hub.ask(json!({"do": "set", "state": {"pause": null}}));
    assert!(mount.read("tensors/w") == bytes);
    let ranges: Vec<u64> =
        data_requests(&mut hub).iter().map(|request| length(request["range"].as_str().unwrap())).collect();
    assert_eq!(ranges[0], HEAD, "one request for the head");
    let file = fs::metadata(client.scene.path("models/m.safetensors")).unwrap().len();
    assert_eq!(ranges.iter().sum::<u64>(), file, "nothing is fetched twice: {ranges:?}");
}

#[test]
fn tensor_costs_its_own_blocks() {
    require_fuse!();
    let mut client = Client::new();
    let scene = &client.scene;
    scene.mkdir("models");
    let names = ["a", "b", "c", "d"];
    let len = 1_234_567;
    let tensors: Vec<Vec<u8>> = (0..4).map(|seed| crate::servers::content(len, seed)).collect();
    let views: Vec<crate::support::Tensor> = names
        .into_iter()
        .zip(&tensors)
        .map(|(name, bytes)| (name, Dtype::U8, &[1_234_567][..], bytes.clone()))
        .collect();
    scene.model("models/m.safetensors", &views, &[]);
    let nginx = web(&client, "models");
    let mut hub = hub(&mut client, "models");
    let sources = [nginx.url("m.safetensors"), "hf://org/model".into()];
    for source in &sources {
        let mount = client.mount(source, &[]);
        // The first tensor begins in what was fetched of the header.
        let mut present = HEAD;
        for (name, bytes) in [(1, &tensors[1]), (3, &tensors[3])].map(|(at, bytes)| (names[at], bytes)) {
            let index: serde_json::Value = serde_json::from_slice(&mount.read("index.json")).unwrap();
            let listed = index["tensors"].as_array().unwrap().iter().find(|tensor| tensor["name"] == name);
            let offset = listed.unwrap()["offset"].as_u64().unwrap();
            let end = (offset + len as u64).next_multiple_of(BLOCK);
            let end = end.min(fs::metadata(client.scene.path("models/m.safetensors")).unwrap().len());
            present += end - offset / BLOCK * BLOCK;
            assert!(mount.read(format!("tensors/{name}")) == *bytes, "{source} {name}");
            // A later read of the same tensor, and of another view of it, costs nothing.
            assert!(mount.read(format!("npy/{name}.npy")).ends_with(bytes), "{source} {name}");
        }
        let sent: u64 = match source.starts_with("http") {
            true => requests(&nginx, "m.safetensors").iter().map(|(_, bytes)| bytes).sum(),
            false => data_requests(&mut hub).iter().map(|request| length(request["range"].as_str().unwrap())).sum(),
        };
        assert_eq!(sent, present, "{source}");
    }
}

#[test]
fn onnx_models_of_a_repository_are_other_files_of_its_model() {
    require_fuse!();
    let mut client = Client::new();
    let onnx = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/onnx");
    let dir = client.scene.mkdir("models");
    client.scene.ok(&format!("weightfs export {}/odd.onnx {}/model.safetensors", onnx.display(), dir.display()));
    client.scene.ok(&format!("cp -r {}/external {}/onnx", onnx.display(), dir.display()));
    let _hub = hub(&mut client, "models");
    let mount = client.mount("hf://org/model", &[]);
    assert_eq!(
        client.ok(&format!("ls {}", mount.path("files/onnx").display())),
        "model.onnx\nmodel.onnx_data\ntail.bin\n"
    );
    let model = "external/model.onnx";
    assert_eq!(mount.read("files/onnx/model.onnx"), fs::read(onnx.join(model)).unwrap());
    drop(mount);
    let mount = client.mount("hf://org/model/onnx/model.onnx", &[]);
    let local = client.scene.mount(&onnx.join(model), &[]);
    let tensors = ["tensors"];
    assert!(pytorch::files(&mount, &tensors) == pytorch::files(&local, &tensors));
}

#[test]
fn checkpoints_are_read_from_servers() {
    require_fuse!();
    let mut client = Client::new();
    let torch = client.scene.mkdir("models");
    pytorch::script(["write".as_ref(), torch.as_os_str()]);
    let nginx = web(&client, "models");
    let (_hub, _s3) = (hub(&mut client, "models"), s3(&mut client, "models"));
    for source in ["wide.pt", "views.pt", "aligned.pt", "pytorch_model.bin.index.json"] {
        let local = client.scene.mount(&client.scene.path("models").join(source), &[]);
        for url in [nginx.url(source), format!("s3://models/{source}"), format!("hf://org/model/{source}")] {
            let remote = client.mount(&url, &[]);
            let compared = client.sh(&format!(
                "cd {} && diff -r . {}/tensors",
                local.path("tensors").display(),
                remote.point.display()
            ));
            assert!(compared.out.is_empty() && compared.code == 0, "{url}: {compared:?}");
        }
    }
    let remote = client.mount(&nginx.url("wide.pt"), &[]);
    assert_eq!(remote.read("npy/turned.npy").len(), 2_000_128);
}

#[test]
fn states_of_an_optimizer_are_read_from_servers() {
    require_fuse!();
    let mut client = Client::new();
    let written = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoints");
    client.ok(&format!("cp -r {written}/trainer models && cp -r {written}/ranks/verl-adamw models"));
    client.ok(&format!("cp {written}/one-file/lightning.ckpt models"));
    let (_hub, _s3) = (hub(&mut client, "models"), s3(&mut client, "models"));
    for dir in ["plain", "fsdp", "verl-adamw"] {
        let local = client.scene.mount(&client.scene.path("models").join(dir), &[]);
        let shown = ["tensors", "optimizer/tensors"];
        for url in [format!("s3://models/{dir}"), format!("hf://org/model/{dir}")] {
            let remote = client.mount(&url, &[]);
            assert!(pytorch::files(&remote, &shown) == pytorch::files(&local, &shown), "{url}: {}", remote.log());
            assert_eq!(remote.log(), "", "{url}");
        }
    }
    let local = client.scene.mount(&client.scene.path("models/lightning.ckpt"), &[]);
    let nginx = web(&client, "models");
    let web_url = nginx.url("lightning.ckpt");
    for url in ["s3://models/lightning.ckpt", "hf://org/model/lightning.ckpt", &web_url] {
        let remote = client.mount(url, &[]);
        let shown = ["tensors", "optimizer/tensors", "extra/tensors"];
        assert!(pytorch::files(&remote, &shown) == pytorch::files(&local, &shown), "{url}: {}", remote.log());
        let listed = client.ok(&format!("weightfs ls {url}/optimizer"));
        assert_eq!(listed, client.ok("weightfs ls models/lightning.ckpt/optimizer"), "{url}");
        let none = client.sh(&format!("weightfs ls {url}/ema"));
        assert!(none.err.contains("lightning.ckpt/ema: the file has no set of tensors \"ema\""), "{none:?}");
    }
}

#[test]
fn mount_point_is_named_after_the_source() {
    require_fuse!();
    let mut client = Client::new();
    client.one("models/m.safetensors", 100, 1);
    client.ok("cp models/m.safetensors models/other.safetensors && mkdir work");
    let nginx = web(&client, "models");
    let (_hub, _s3) = (hub(&mut client, "models"), s3(&mut client, "models"));
    for (source, name) in [
        (nginx.url("m.safetensors"), "m"),
        (nginx.url("m.safetensors?key=value"), "m"),
        ("hf://org/model".into(), "model"),
        ("hf://datasets/org/data@v1".into(), "data"),
        ("hf://org/model@v1/m.safetensors".into(), "m"),
        ("s3://models".into(), "models"),
        ("s3://models/m.safetensors".into(), "m"),
    ] {
        let said = client.sh(&format!("cd work && weightfs '{source}' && ls"));
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{source}: {said:?}");
        let expected = format!(" on {name} (unmount: weightfs umount {name})\n{name}\n");
        assert!(said.out.ends_with(&expected), "{source}: {said:?}");
        client.ok(&format!("weightfs umount work/{name}"));
        client.scene.wait_for_end();
        assert_eq!(client.ok("ls work"), "", "{source}");
    }
}
