//! The Hub, against a stub that the official client accepts as well.

use std::path::Path;
use std::time::Duration;

use base64::Engine;
use serde_json::{Value, json};
use weightfs::remote::transport::{ErrorKind, TransportClient, TransportOptions};

use crate::servers::package;
use crate::servers::python::Python;
use crate::support::*;

struct Hub {
    python: Python,
    url: String,
    commit: String,
    home: tempfile::TempDir,
}

impl Hub {
    fn start() -> Hub {
        let python = Python::start("hub.py");
        let (url, commit) = (python.text("url"), python.text("commit"));
        Hub { python, url, commit, home: tempfile::tempdir().unwrap() }
    }

    fn client(&self, more: &[(&str, &str)]) -> TransportClient {
        TransportClient::new(self.options(more)).unwrap()
    }

    fn options(&self, more: &[(&str, &str)]) -> TransportOptions {
        let home = self.home.path().to_str().unwrap();
        let mut variables = vec![("HF_ENDPOINT", self.url.as_str()), ("HOME", home)];
        variables.extend(more);
        options(&variables)
    }

    fn bytes(&self, path: &str) -> Vec<u8> {
        let text = self.python.hello["files"][path]["data"].as_str().unwrap();
        base64::prelude::BASE64_STANDARD.decode(text).unwrap()
    }

    fn set(&mut self, state: Value) {
        self.python.ask(json!({"do": "set", "state": state}));
    }

    fn count(log: &[Value], server: &str) -> usize {
        log.iter().filter(|request| request["server"] == server).count()
    }

    /// Runs the official client.
    fn official(&self, script: &str) {
        let output = std::process::Command::new(package().join(".venv/bin/python"))
            .args(["-c", script])
            .env_clear()
            .envs([("HF_ENDPOINT", self.url.as_str()), ("HF_HUB_DISABLE_XET", "1"), ("HF_HUB_DISABLE_TELEMETRY", "1")])
            .env("HOME", self.home.path())
            .env("COMMIT", &self.commit)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[tokio::test]
async fn a_repository_is_pinned_listed_and_read() {
    let mut hub = Hub::start();
    let client = hub.client(&[]);
    let tree = resolve(&client, "hf://org/model").await.unwrap();
    assert_eq!(tree.folder.to_string(), format!("hf://org/model@{}", hub.commit));
    assert!(tree.is_complete && tree.path.is_empty());
    let files = hub.python.hello["files"].as_object().unwrap().clone();
    assert_eq!(tree.files.len(), files.len(), "all pages");
    // The commit, and nine entries by three: eight files and two directories.
    let log = hub.python.take_log();
    assert_eq!(log.len(), 1 + 4, "{log:?}");
    for (path, object) in &tree.files {
        let expected = hub.bytes(path);
        let object = object.as_ref().unwrap();
        assert_eq!(object.len, expected.len() as u64);
        assert!(object.version.is_public);
        assert_eq!(object.version.mtime, 1_715_595_630, "the date of the last commit");
        let about = &files[path];
        let hash = if about["lfs"] == true {
            format!("sha256:{}", about["sha256"].as_str().unwrap())
        } else {
            format!("git:{}", about["oid"].as_str().unwrap())
        };
        assert_eq!(object.version.validator, hash);
        let encoded = path.replace('%', "%25").replace('?', "%3F").replace('#', "%23");
        assert_eq!(object.version.identity, format!("{}/models/org/model/{encoded}", hub.url));
        let place = tree.folder.join(path).unwrap();
        assert_eq!(client.identity(&place).unwrap(), object.version.identity);
        assert_eq!(fetch(&client, object, 0..expected.len() as u64).await.unwrap(), expected, "{path}");
    }
    let object = tree.object("model-00001-of-00002.safetensors").unwrap().clone();
    hub.python.take_log();
    let expected = hub.bytes("model-00001-of-00002.safetensors");
    for range in [0..1, 1000..200_000, 299_999..300_000] {
        let got = fetch(&client, &object, range.clone()).await.unwrap();
        assert!(got == expected[range.start as usize..range.end as usize]);
    }
    let log = hub.python.take_log();
    assert_eq!((Hub::count(&log, "hub"), Hub::count(&log, "cdn")), (0, 3), "the link is kept");
    assert!(log.iter().all(|request| request["encoding"] == "identity" && request["method"] == "GET"));
}

#[tokio::test]
async fn files_folders_revisions_and_kinds_are_found() {
    let mut hub = Hub::start();
    let client = hub.client(&[]);
    let tree = resolve(&client, "hf://org/model@v1/config.json").await.unwrap();
    assert_eq!(tree.path, "config.json");
    assert!(tree.files.contains_key("model-00001-of-00002.safetensors"), "siblings are listed");
    assert!(!tree.is_complete);
    let (object, head) = probe(&client, &tree, "gguf/Q4 K.gguf", 100).await.unwrap();
    assert_eq!((object.len, head), (70_000, hub.bytes("gguf/Q4 K.gguf")[..100].to_vec()));
    let listed = resolve(&client, "hf://org/model").await.unwrap();
    let listed = listed.object("gguf/Q4 K.gguf").unwrap().clone();
    assert_eq!(
        (&object.version.identity, &object.version.validator),
        (&listed.version.identity, &listed.version.validator)
    );
    failure(probe(&client, &tree, "gguf/missing", 100).await, ErrorKind::Missing, &[]);

    let tree = resolve(&client, "hf://org/model@refs/pr/1/gguf").await.unwrap();
    let paths: Vec<_> = tree.files.keys().map(String::as_str).collect();
    assert_eq!(paths, ["Q4 K.gguf", "deep/x?#%.gguf"]);
    let (_, head) = probe(&client, &tree, "deep/x?#%.gguf", 50).await.unwrap();
    assert_eq!(head, hub.bytes("gguf/deep/x?#%.gguf")[..50]);
    failure(probe(&client, &tree, "missing", 100).await, ErrorKind::Missing, &[]);

    let tree = resolve(&client, "hf://datasets/org/data").await.unwrap();
    assert!(tree.files.contains_key("README.md"));
    hub.python.take_log();
    let tree = resolve(&client, "hf://org/old-name/gguf/Q4 K.gguf").await.unwrap();
    let (_, head) = probe(&client, &tree, "Q4 K.gguf", 10).await.unwrap();
    assert_eq!(head, hub.bytes("gguf/Q4 K.gguf")[..10]);

    // A commit needs no look-up.
    hub.python.take_log();
    resolve(&client, &format!("hf://org/model@{}/gguf", hub.commit)).await.unwrap();
    assert!(hub.python.take_log().iter().all(|request| request["path"].as_str().unwrap().contains("/tree/")));

    for text in ["hf://org/model@missing", "hf://org/model/missing", "hf://org/model/gguf/missing"] {
        failure(resolve(&client, text).await, ErrorKind::Missing, &[]);
    }
}

#[tokio::test]
async fn tokens_open_what_is_theirs_and_never_reach_the_cdn() {
    let mut hub = Hub::start();
    let (token, accepted) = (hub.python.text("token"), hub.python.text("accepted"));
    let secrets = [token.as_str(), accepted.as_str(), "hf_WRONG"];
    let anonymous = hub.client(&[]);
    let member = hub.client(&[("HF_TOKEN", &token)]);
    let accepting = hub.client(&[("HF_TOKEN", &accepted)]);
    let wrong = hub.client(&[("HF_TOKEN", "hf_WRONG")]);
    shows_no(&format!("{member:?} {accepting:?} {:?}", hub.options(&[("HF_TOKEN", &token)])), &secrets);

    let error = failure(resolve(&anonymous, "hf://org/private").await, ErrorKind::Forbidden, &secrets);
    assert!(error.to_string().contains("HF_TOKEN"), "{error}");
    let error = failure(resolve(&anonymous, "hf://org/gated").await, ErrorKind::Forbidden, &secrets);
    assert!(error.to_string().contains("accept the conditions"), "{error}");
    let error = failure(resolve(&member, "hf://org/gated").await, ErrorKind::Forbidden, &secrets);
    assert!(error.to_string().contains("account of the token"), "{error}");
    failure(resolve(&member, "hf://org/missing").await, ErrorKind::Missing, &secrets);
    // The stub repeats the token in its message.
    let error = failure(resolve(&wrong, "hf://org/model").await, ErrorKind::Forbidden, &secrets);
    assert!(error.to_string().contains("***"), "{error}");

    hub.python.take_log();
    for (client, repo) in [(&member, "private"), (&accepting, "gated")] {
        let tree = resolve(client, &format!("hf://org/{repo}")).await.unwrap();
        let (object, _) = probe(client, &tree, "gguf/Q4 K.gguf", 100).await.unwrap();
        assert!(!object.version.is_public);
        fetch(client, &object, 500..600).await.unwrap();
        shows_no(&format!("{tree:?} {object:?} {} {}", object.version.identity, object.version.name), &secrets);
    }
    let log = hub.python.take_log();
    assert_eq!(Hub::count(&log, "cdn"), 4);
    for request in log {
        assert_eq!(request["authorization"].is_null(), request["server"] == "cdn", "{request}");
    }

    // A login that is renewed counts at once.
    std::fs::create_dir_all(hub.home.path().join(".cache/huggingface")).unwrap();
    std::fs::write(hub.home.path().join(".cache/huggingface/token"), "hf_WRONG").unwrap();
    let login = hub.client(&[]);
    failure(resolve(&login, "hf://org/private").await, ErrorKind::Forbidden, &secrets);
    std::fs::write(hub.home.path().join(".cache/huggingface/token"), &token).unwrap();
    resolve(&login, "hf://org/private").await.unwrap();
    log_shows_no(&secrets);
}

#[tokio::test]
async fn links_are_renewed_before_and_after_they_expire() {
    let mut hub = Hub::start();
    let client = hub.client(&[]);
    let tree = resolve(&client, "hf://org/model/gguf").await.unwrap();
    let object = tree.object("Q4 K.gguf").unwrap().clone();
    let expected = hub.bytes("gguf/Q4 K.gguf");
    let read = async |hub: &mut Hub| {
        hub.python.take_log();
        assert!(fetch(&client, &object, 10..5000).await.unwrap() == expected[10..5000]);
        let log = hub.python.take_log();
        (Hub::count(&log, "hub"), Hub::count(&log, "cdn"))
    };
    // So short that it is renewed each time.
    hub.set(json!({"lifetime": 30}));
    assert_eq!((read(&mut hub).await, read(&mut hub).await), ((1, 1), (1, 1)));
    hub.set(json!({"lifetime": 3600}));
    assert_eq!((read(&mut hub).await, read(&mut hub).await), ((1, 1), (0, 1)));
    hub.python.ask(json!({"do": "revoke"}));
    assert_eq!((read(&mut hub).await, read(&mut hub).await), ((1, 2), (0, 1)));
    // A refusal that lasts is not an expiry.
    hub.python.ask(json!({"do": "revoke"}));
    hub.set(json!({"lifetime": -10}));
    hub.python.take_log();
    failure(fetch(&client, &object, 0..10).await, ErrorKind::Forbidden, &["Signature="]);
    let log = hub.python.take_log();
    assert_eq!((Hub::count(&log, "hub"), Hub::count(&log, "cdn")), (1, 2));
    hub.set(json!({"lifetime": 3600}));

    // Readers at once ask for one link.
    hub.python.take_log();
    let reads = (0..8).map(|at| fetch(&client, &object, at * 100..at * 100 + 100));
    for (at, got) in futures_util::future::join_all(reads).await.into_iter().enumerate() {
        assert!(got.unwrap() == expected[at * 100..at * 100 + 100]);
    }
    let log = hub.python.take_log();
    assert_eq!((Hub::count(&log, "hub"), Hub::count(&log, "cdn")), (1, 8));
    let shown = format!("{object:?} {tree:?} {client:?}");
    shows_no(&shown, &["Signature", "Key-Pair-Id", "Expires="]);
    log_shows_no(&["Signature=", "Key-Pair-Id", "Expires="]);
}

#[tokio::test]
async fn faults_of_the_hub_are_reported() {
    let mut hub = Hub::start();
    let client = hub.client(&[]);
    let wait = ErrorKind::Transient { retry_after: Some(Duration::from_secs(42)) };
    failure(resolve(&client, "hf://org/busy").await, wait, &[]);

    let tree = resolve(&client, "hf://org/model/gguf").await.unwrap();
    let object = tree.object("Q4 K.gguf").unwrap().clone();
    hub.set(json!({"broken": 1}));
    let (broken, bytes) = fetch_some(&client, &object, 0..5000).await;
    failure(broken, TRANSIENT, &[]);
    assert_eq!(bytes.len(), 1000);
    let rest = fetch(&client, &object, 1000..5000).await.unwrap();
    assert!(rest == hub.bytes("gguf/Q4 K.gguf")[1000..5000]);

    // Other bytes than those that the listing told.
    hub.set(json!({"lie": "a".repeat(64)}));
    hub.python.ask(json!({"do": "revoke"}));
    failure(fetch(&client, &object, 0..10).await, ErrorKind::Changed, &[]);
    hub.set(json!({"lie": null}));

    // Small files of git come whole from servers without ranges; large files do not.
    hub.set(json!({"whole": true}));
    let tree = resolve(&client, "hf://org/model/config.json").await.unwrap();
    let config = tree.object("config.json").unwrap().clone();
    assert_eq!(fetch(&client, &config, 5..9).await.unwrap(), hub.bytes("config.json")[5..9]);
}

#[tokio::test]
async fn the_official_client_accepts_the_stub_and_its_cache_is_used() {
    let mut hub = Hub::start();
    hub.official(
        "import os, huggingface_hub as h\n\
         p = h.hf_hub_download('org/model', 'gguf/Q4 K.gguf')\n\
         assert os.path.getsize(p) == 70000, p\n\
         assert h.model_info('org/model').sha == os.environ['COMMIT']\n\
         names = sorted(f.path for f in h.list_repo_tree('org/model', recursive=True) if hasattr(f, 'blob_id'))\n\
         assert len(names) == 8, names\n\
         assert h.HfFileSystem().cat_file('org/model/gguf/Q4 K.gguf', 5, 9) == open(p, 'rb').read()[5:9]\n\
         try:\n    h.hf_hub_download('org/gated', 'config.json', token='hf_TOKEN-4d1f')\n\
         except h.errors.GatedRepoError: pass\n\
         else: raise SystemExit('gated')\n\
         try:\n    h.hf_hub_download('org/private', 'config.json')\n\
         except h.errors.RepositoryNotFoundError: pass\n\
         else: raise SystemExit('private')\n",
    );
    hub.python.take_log();
    let online = hub.client(&[]);
    let tree = resolve(&online, "hf://org/model/gguf").await.unwrap();
    let object = tree.object("Q4 K.gguf").unwrap().clone();
    assert!(object.local().is_some() && tree.object("deep/x?#%.gguf").unwrap().local().is_none());
    assert!(hub.python.take_log().len() >= 2, "a branch is looked up");
    assert_eq!(std::fs::read(object.local().unwrap()).unwrap(), hub.bytes("gguf/Q4 K.gguf"));
    // It may be removed later.
    assert_eq!(fetch(&online, &object, 7..700).await.unwrap(), hub.bytes("gguf/Q4 K.gguf")[7..700]);
    hub.python.take_log();
    let remote = hub.client(&[("HF_HUB_CACHE", "/nonexistent")]);
    let there = resolve(&remote, "hf://org/model/gguf").await.unwrap();
    let there = there.object("Q4 K.gguf").unwrap().clone();
    assert_eq!(
        (&there.version.identity, &there.version.validator),
        (&object.version.identity, &object.version.validator)
    );

    // Offline, with what one download left.
    let offline = TransportClient::new(TransportOptions { offline: true, ..hub.options(&[]) }).unwrap();
    let tree = resolve(&offline, "hf://org/model").await.unwrap();
    assert_eq!(tree.files.keys().map(String::as_str).collect::<Vec<_>>(), ["gguf/Q4 K.gguf"]);
    failure(probe(&offline, &tree, "config.json", 10).await, ErrorKind::Offline, &[]);
    failure(resolve(&offline, "hf://org/other").await, ErrorKind::Offline, &[]);
    failure(resolve(&offline, "hf://org/model@v9").await, ErrorKind::Offline, &[]);

    // All of it, with the listing.
    hub.official("import huggingface_hub as h\nh.snapshot_download('org/model')");
    hub.python.take_log();
    let variable = hub.client(&[("HF_HUB_OFFLINE", "1")]);
    let tree = resolve(&variable, "hf://org/model").await.unwrap();
    assert!(tree.is_complete);
    for (path, object) in &tree.files {
        let object = object.as_ref().unwrap();
        assert!(object.local().is_some_and(Path::is_absolute), "{path}");
        assert_eq!(std::fs::read(object.local().unwrap()).unwrap(), hub.bytes(path));
    }
    let tree = resolve(&online, &format!("hf://org/model@{}/config.json", hub.commit)).await.unwrap();
    assert_eq!(tree.path, "config.json");
    assert_eq!(hub.python.take_log().len(), 0, "a commit with a listing needs no network");
}
