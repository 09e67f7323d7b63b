//! Files over HTTP: the same bytes as in a mount, any range, and the conditions of RFC 9110.

use super::support::Server;
use crate::recipes::write_cases;
use crate::support::{Scene, pattern};
use safetensors::Dtype;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

/// The files of a source, by their paths, as `weightfs ls --files` lists them.
fn files(scene: &Scene, source: &str) -> Vec<String> {
    let listed = scene.ok(&format!("weightfs ls --files --recursive --json {source}"));
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let files = listed["files"].as_array().unwrap().iter();
    files.filter(|file| file["size"].is_u64()).map(|file| file["path"].as_str().unwrap().to_owned()).collect()
}

/// A path as a URL.
fn encoded(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    path.bytes().map(|byte| if plain(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Asserts that every file of a source has the bytes that `weightfs cat` writes, in ranges too, and returns the paths.
fn assert_served(scene: &Scene, source: &str) -> Vec<String> {
    let server = Server::new(scene, source, &[]);
    let files = files(scene, source);
    for path in &files {
        let output = scene.command("weightfs").args(["cat", source, path]).output().unwrap();
        assert!(output.status.success(), "{path}: {output:?}");
        let (whole, url) = (output.stdout, encoded(path));
        let response = server.get(&url);
        assert_eq!(response.status, 200, "{path}");
        assert!(response.body == whole, "{path}");
        assert_eq!(response.header("content-length"), whole.len().to_string(), "{path}");
        let len = whole.len();
        if len == 0 {
            assert_eq!(server.request("GET", &url, &[("Range", "bytes=0-")]).status, 416, "{path}");
            continue;
        }
        for (first, last) in [(0, 0), (len / 3, len / 2), (len - 1, len - 1), (len / 2, len + 9)] {
            let response = server.request("GET", &url, &[("Range", &format!("bytes={first}-{last}"))]);
            let end = (last + 1).min(len);
            assert_eq!(response.status, 206, "{path} {first}-{last}");
            assert_eq!(response.header("content-range"), format!("bytes {first}-{}/{len}", end - 1), "{path}");
            assert!(response.body == whole[first..end], "{path} {first}-{last}");
        }
    }
    files
}

#[test]
fn every_file_of_a_recipe_is_served() {
    let scene = Scene::new();
    for case in write_cases(&scene) {
        assert!(assert_served(&scene, case.recipe.to_str().unwrap()).len() > 30);
    }
}

#[test]
fn every_file_has_the_bytes_of_cat_and_any_range_is_a_part_of_them() {
    let scene = Scene::new();
    scene.sample();
    let files = assert_served(&scene, "sample.safetensors");
    assert!(files.len() > 50, "{files:?}");
}

#[test]
fn sharded_models_and_datasets_of_a_folder_have_the_bytes_of_cat() {
    let scene = Scene::new();
    scene.ok("mkdir -p all/sharded all/data");
    let shard = |path: &str, name: &str| {
        scene.model(path, &[(name, Dtype::BF16, &[2, 5], pattern(20))], &[]);
        std::fs::metadata(scene.path(path)).unwrap().len()
    };
    shard("all/sharded/model-00001-of-00002.safetensors", "first.weight");
    shard("all/sharded/model-00002-of-00002.safetensors", "second.weight");
    let map =
        r#"{"first.weight": "model-00001-of-00002.safetensors", "second.weight": "model-00002-of-00002.safetensors"}"#;
    let index = format!(r#"{{"metadata": {{"total_size": 40}}, "weight_map": {map}}}"#);
    std::fs::write(scene.path("all/sharded/model.safetensors.index.json"), index).unwrap();
    let part = |at: u32| format!("part-{at:05}-0000-0e8b1f5c-1d6e-4f0a-9f5e-0123456789ab.safetensors");
    let rows = |at| {
        let bytes = shard(&format!("all/data/{}", part(at)), "column");
        serde_json::json!({"shard_path": part(at), "samples_count": 2, "bytes": bytes})
    };
    let shards = [rows(0), rows(1)];
    let manifest = serde_json::json!({
        "format_version": "1.0", "safetensors_version": "1.0", "total_samples": 4,
        "total_bytes": 2 * shards[0]["bytes"].as_u64().unwrap(), "shards": shards,
    });
    std::fs::write(scene.path("all/data/dataset_manifest.json"), manifest.to_string()).unwrap();
    let files = assert_served(&scene, "all");
    let of_part = format!("data/shards/{}/npy/column.npy", part(1));
    for path in ["sharded/model/npy/second.weight.npy", "data/tensors/column", &of_part] {
        assert!(files.iter().any(|file| file == path), "{path}: {files:?}");
    }
}

#[test]
fn every_format_is_served() {
    let scene = crate::formats::written();
    for source in crate::formats::sources() {
        let server = Server::new(&scene, source, &[]);
        let views = ["tensors", "npy", "stats", "safetensors", "export", "index.json", "metadata.json"];
        scene.ok(&format!("weightfs cp {source} {} copy", views.join(" ")));
        let copied = scene.ok("cd copy && find . -type f -printf '%P\\n'");
        assert!(copied.lines().count() > 8, "{source}: {copied}");
        for path in copied.lines() {
            let (response, expected) =
                (server.get(&encoded(path)), std::fs::read(scene.path("copy").join(path)).unwrap());
            assert!(response.status == 200 && response.body == expected, "{source}: {path}");
        }
        std::fs::remove_dir_all(scene.path("copy")).unwrap();
        for page in ["", "?tensor=0", "tensors/"] {
            let response = server.get(page);
            let text = String::from_utf8_lossy(&response.body);
            assert!(response.status == 200 && text.contains("<html"), "{source}: {page}: {text}");
        }
    }
}

#[test]
fn types_validators_and_security_headers_are_sent() {
    let scene = Scene::new();
    scene.sample();
    let server = Server::new(&scene, "sample.safetensors", &[]);
    for (path, kind) in [
        ("", "text/html; charset=utf-8"),
        ("?asset=style.css", "text/css; charset=utf-8"),
        ("?asset=script.js", "text/javascript; charset=utf-8"),
        ("header.json", "application/json"),
        ("SHA256SUMS", "text/plain; charset=utf-8"),
        ("tensors/model.layers.2.w", "application/octet-stream"),
        ("plots/model.layers.2.w.png", "image/png"),
    ] {
        let response = server.get(path);
        assert_eq!((response.status, response.header("content-type")), (200, kind), "{path}");
        assert_eq!(response.header("x-content-type-options"), "nosniff");
        assert_eq!(response.header("cross-origin-resource-policy"), "same-origin");
        assert!(response.header("content-security-policy").starts_with("default-src 'none'"), "{path}");
        let head = server.request("HEAD", path, &[]);
        assert_eq!((head.status, head.body.len()), (200, 0), "{path}");
        assert_eq!(head.header("content-length"), response.body.len().to_string(), "{path}");
        // A range is defined for GET only.
        assert_eq!(server.request("HEAD", path, &[("Range", "bytes=0-0")]).status, 200, "{path}");
    }
    let url = "tensors/model.layers.2.w";
    let first = server.get(url);
    let (etag, modified) = (first.header("etag"), first.header("last-modified"));
    assert!(etag.starts_with('"') && modified.ends_with(" GMT"), "{first:?}");
    for (name, value, status) in [
        ("If-None-Match", etag, 304),
        ("If-Modified-Since", modified, 304),
        ("If-None-Match", "\"other\"", 200),
        ("If-Match", "\"other\"", 412),
        ("If-Match", etag, 200),
    ] {
        let response = server.request("GET", url, &[(name, value)]);
        assert_eq!(response.status, status, "{name}: {value}");
        assert_eq!(response.body.is_empty(), status != 200, "{name}: {value}");
    }
    let resumed = |tag: &str| server.request("GET", url, &[("Range", "bytes=1-2"), ("If-Range", tag)]);
    assert_eq!((resumed(etag).status, resumed("\"other\"").status), (206, 200));
}

#[test]
fn entity_tags_change_with_everything_that_decides_the_bytes() {
    let scene = Scene::new();
    // Codes and scales of a model whose configuration names the scheme.
    let codes: Vec<u8> = (0..128 * 128).map(|at| (at % 120) as u8).collect();
    let scale = 2.0_f32.to_le_bytes().to_vec();
    let model = |scale: Vec<u8>| {
        std::fs::create_dir_all(scene.path("m")).unwrap();
        let tensors = [
            ("w.weight", Dtype::F8_E4M3, &[128, 128][..], codes.clone()),
            ("w.weight_scale_inv", Dtype::F32, &[1, 1][..], scale),
        ];
        scene.model("m/model.safetensors", &tensors, &[]);
    };
    let config = |block: u32| {
        let text = format!(
            r#"{{"quantization_config": {{"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [{block}, {block}]}}}}"#
        );
        std::fs::write(scene.path("m/config.json"), text).unwrap();
    };
    let tag = |path: &str, args: &[&str]| {
        let server = Server::new(&scene, "m", args);
        let response = server.request("HEAD", path, &[]);
        assert_eq!(response.status, 200, "{path}");
        response.header("etag").to_owned()
    };
    model(scale.clone());
    config(128);
    let first = tag("npy/w.weight.npy", &[]);
    assert_eq!(tag("npy/w.weight.npy", &[]), first);
    let stored = tag("npy/w.weight.npy", &["--stored"]);
    assert_ne!(stored, first);
    config(64);
    let configured = tag("npy/w.weight.npy", &[]);
    assert_ne!(configured, first);
    // Another configuration with the same length and time.
    scene.ok("cp -p m/config.json before");
    config(32);
    scene.ok("touch -r before m/config.json");
    let replaced = tag("npy/w.weight.npy", &[]);
    let lenient = tag("npy/w.weight.npy", &["--lenient"]);
    assert_ne!(lenient, replaced);
    std::fs::remove_file(scene.path("m/config.json")).unwrap();
    let without = tag("npy/w.weight.npy", &[]);
    model(3.0_f32.to_le_bytes().to_vec());
    let changed = tag("npy/w.weight.npy", &[]);
    let all = std::collections::BTreeSet::from([first, stored, configured, replaced, lenient, without, changed]);
    assert_eq!(all.len(), 7, "{all:?}");
}

#[test]
fn paths_that_no_file_has_and_wrong_requests_are_refused() {
    let scene = Scene::new();
    scene.sample();
    let server = Server::new(&scene, "sample.safetensors", &[]);
    for path in [
        "absent",
        "tensors/absent",
        "..",
        "../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "tensors%2fmodel.layers.2.w",
        "tensors/model.layers.2.w%00",
        "tensors//model.layers.2.w",
        "header.json/",
        "header.json/x",
        "%ff%fe",
        "?asset=../secret",
        "?tensor=99999",
        "?tensor=18446744073709551615",
    ] {
        let response = server.get(path);
        assert_eq!(response.status, 404, "{path}");
        assert!(response.text().contains("<!doctype html>"), "{path}");
    }
    for path in
        ["?page=0", "?page=-1", "?page=18446744073709551615", "?sort=x&q=%ff&prefix=...", "?tensor=x", "?%zz&&="]
    {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let moved = server.get("tensors?q=a%20b");
    assert_eq!((moved.status, moved.header("location")), (303, "/tensors/?q=a%20b"));
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        let response = server.request(method, "", &[]);
        assert_eq!((response.status, response.header("allow")), (405, "GET, HEAD"), "{method}");
    }
    let long = "x".repeat(80_000);
    assert!([400, 404, 414, 431].contains(&server.get(&long).status));
    for raw in ["\0\0\0\0\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET\r\n\r\n", "\u{16}\u{3}\u{1}\r\n\r\n"] {
        let mut stream = server.connect();
        stream.write_all(raw.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{raw:?}");
    }
    // Many requests in one go are answered in their order.
    let mut stream = server.connect();
    let one = "GET /absent HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    let last = "GET /absent HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    stream.write_all((one.repeat(99) + last).as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 404 ").count(), 100);
    assert_eq!(server.get("").status, 200);
}

#[test]
fn links_of_a_folder_to_other_files_are_not_followed_and_its_models_are_served() {
    let scene = Scene::new();
    scene.mkdir("models");
    for name in ["models/a.safetensors", "models/b.safetensors"] {
        scene.model(name, &[("t", Dtype::U8, &[9], pattern(9))], &[]);
    }
    scene.ok("ln -s /etc/passwd models/users && ln -s /etc models/etc && echo note >models/note.md");
    let server = Server::new(&scene, "models", &[]);
    assert!(server.get("a/tensors/t").body == pattern(9));
    assert!(server.get("").text().contains("href=\"a/\""));
    assert!(server.get("a/").text().contains("Where the bytes are"));
    for path in ["users", "etc/passwd", "note.md"] {
        let response = server.get(path);
        assert!([403, 404].contains(&response.status), "{path}: {response:?}");
        assert!(!response.text().contains("root:"), "{path}");
    }
}

#[test]
fn every_link_of_every_page_leads_somewhere() {
    let scene = Scene::new();
    scene.sample();
    for args in [&[][..], &["--views", "npy"], &["--views", "tensors,stats"]] {
        let server = Server::new(&scene, "sample.safetensors", args);
        let (mut seen, mut ahead) = (std::collections::BTreeSet::new(), vec![String::new()]);
        let mut tensors = 0;
        while let Some(path) = ahead.pop() {
            if !seen.insert(path.clone()) {
                continue;
            }
            let response = server.get(&path);
            assert_eq!(response.status, 200, "{args:?}: {path}");
            tensors += usize::from(path.starts_with("?tensor="));
            if !response.header("content-type").starts_with("text/html") {
                continue;
            }
            let text = response.text();
            for link in
                text.split("href=\"").chain(text.split("src=\"")).skip(1).filter_map(|rest| rest.split('"').next())
            {
                let link = link.replace("&amp;", "&");
                let (link, dir) = (link.split('#').next().unwrap(), path.split('?').next().unwrap());
                let dir = &dir[..dir.rfind('/').map_or(0, |at| at + 1)];
                match link {
                    // The icon, and parts that are not links.
                    _ if link.contains(['<', ' ']) || link.starts_with("data:") => {}
                    "" | "." => {}
                    _ if link.starts_with('/') => ahead.push(link[1..].to_owned()),
                    _ => ahead.push(format!("{dir}{link}")),
                }
            }
            assert!(seen.len() < 2000, "{args:?}");
        }
        assert!(tensors > 3 && seen.len() > 20, "{args:?}: {seen:?}");
    }
}

#[test]
fn source_that_changes_gives_errors_and_the_server_goes_on() {
    let scene = Scene::new();
    let data = pattern(64 << 20);
    scene.model("m.safetensors", &[("t", Dtype::U8, &[64 << 20], data)], &[]);
    let server = Server::new(&scene, "m.safetensors", &[]);
    let mut stream = server.connect();
    stream.write_all(b"GET /tensors/t HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 4096]).unwrap();
    let file = std::fs::File::options().write(true).open(scene.path("m.safetensors")).unwrap();
    file.set_len(8 << 20).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    let mut rest = Vec::new();
    // The connection ends before the body does.
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.len() < 64 << 20, "{}", rest.len());
    let log = std::fs::read_to_string(scene.path("log")).unwrap();
    assert!(log.contains("tensors/t: ") && log.contains("m.safetensors"), "{log}");
    let changed = server.get("tensors/t");
    assert!(changed.status >= 400 && changed.text().contains("<!doctype html>"), "{}", changed.status);
    assert_eq!(server.get("").status, 200);
}

#[test]
fn no_page_quotes_a_broken_model_that_a_link_leads_to() {
    let scene = Scene::new();
    scene.ok("mkdir m && echo 'root:secret and more words' >secret && ln -s ../secret m/a.safetensors");
    scene.ok("cp secret m/b.safetensors");
    let server = Server::new(&scene, "m", &[]);
    let said = |path: &str| server.get(path).text();
    assert!(said("b.error.txt").contains("root:secret"), "{}", said("b.error.txt"));
    for path in ["a.error.txt", "", "a"] {
        assert!(!said(path).contains("root:secret"), "{path}: {}", said(path));
    }
    assert!(said("a.error.txt").contains("a link leads to it"), "{}", said("a.error.txt"));
}

#[test]
fn entries_of_directories_are_json() {
    let scene = Scene::new();
    scene.sample();
    scene.ok("mkdir many && cp sample.safetensors many/a.safetensors && cp many/a.safetensors many/b.safetensors && echo text >many/notes");
    for (source, dir) in [("sample.safetensors", ""), ("sample.safetensors", "npy/"), ("many", ""), ("many", "a/")] {
        let server = Server::new(&scene, source, &[]);
        let response = server.get(&format!("{dir}?entries=json"));
        assert_eq!((response.status, response.header("content-type")), (200, "application/json"));
        let entries: Vec<serde_json::Value> = serde_json::from_slice(&response.body).unwrap();
        assert!(!entries.is_empty());
        for entry in &entries {
            let path = format!("{dir}{}", encoded(entry["name"].as_str().unwrap()));
            let (status, kind) = (server.get(&path).status, entry["type"].as_str().unwrap());
            assert_eq!(
                status,
                match kind {
                    "directory" => 303,
                    "link" => 403,
                    _ => 200,
                },
                "{path}"
            );
            let size = server.request("HEAD", &path, &[]).header("content-length").parse::<u64>().ok();
            assert_eq!(entry["size"].as_u64(), size.filter(|_| kind == "file"), "{path}");
        }
    }
    let server = Server::new(&scene, "sample.safetensors", &[]);
    assert_eq!(server.get("absent/?entries=json").status, 404);
    assert_eq!(server.get("npy/?entries=other").header("content-type"), "text/html; charset=utf-8");
}
