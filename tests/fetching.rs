//! The process that fetches: its sandbox, and that fetching works in it. `tests/sandbox.rs` tests from inside what the
//! sandbox refuses.
#![cfg(feature = "remote")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod servers;

use base64::Engine;
use serde_json::json;
use servers::nginx::{Nginx, PASSWORD, TOKEN};
use servers::python::Python;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use weightfs::remote::protocol::{FetchOptions, HEAD, VERSION, WireChannel, WireReply, WireRequest};
use weightfs::source::{FetchFailure, RemoteFailure};

/// The beginning of what the process logs when it is in the sandbox.
const IN_SANDBOX: &str = "sandbox of weightfs-fetch: Landlock";

/// A file with one tensor.
fn model(len: usize) -> Vec<u8> {
    let header = format!(r#"{{"t":{{"dtype":"U8","shape":[{len}],"data_offsets":[0,{len}]}}}}"#);
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &servers::content(len, 7)].concat()
}

/// A command with a home directory of its own, and nothing else of the environment.
fn weightfs(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weightfs"));
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", home).env("RUST_LOG", "info").current_dir(home);
    command
}

fn text(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy);
    format!("{:?}\n{}\n{}", output.status, text[0], text[1])
}

/// Checks that a command has read the model, and that nothing was refused on the way.
#[track_caller]
fn has_read(command: &mut Command, is_in_sandbox: bool) {
    let output = command.output().unwrap();
    let text = text(&output);
    assert!(output.status.success() && text.contains("U8"), "{text}");
    assert_eq!(text.contains(IN_SANDBOX), is_in_sandbox, "{text}");
    assert!(!text.contains("refused"), "{text}");
}

/// A process that is killed if the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The children of a process.
fn children(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A proxy for unencrypted HTTP: it passes all connections on to one server, which takes the requests for proxies, too.
/// Returns its port. Sends the first line of each connection to the receiver, before it passes the line on.
fn proxy(server: u16) -> (u16, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
            let (sender, back) = (sender.clone(), (server.try_clone().unwrap(), client.try_clone().unwrap()));
            std::thread::spawn(move || io::copy(&mut &back.0, &mut &back.1));
            std::thread::spawn(move || {
                let (mut from, mut line) = (BufReader::new(client), String::new());
                from.read_line(&mut line).unwrap();
                let _ = sender.send(line.clone());
                (&server).write_all(line.as_bytes()).unwrap();
                let _ = io::copy(&mut from, &mut &server);
                let _ = server.shutdown(Shutdown::Write);
            });
        }
    });
    (port, lines)
}

#[test]
fn proxies_of_the_environment_are_used() {
    let nginx = Nginx::start();
    nginx.put("m.safetensors", &model(100));
    let home = tempfile::tempdir().unwrap();
    let (port, lines) = proxy(nginx.port);
    let inspect = |url: &str, no_proxy: &str| {
        let mut command = weightfs(home.path());
        command.args(["inspect", url]).env("http_proxy", format!("http://127.0.0.1:{port}"));
        let output = command.env("no_proxy", no_proxy).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    };
    // Only the proxy can find this host.
    inspect("http://models.invalid/m.safetensors", "");
    let line = lines.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(line.starts_with("GET http://models.invalid/m.safetensors HTTP/1.1"), "{line}");
    inspect(&nginx.url("m.safetensors"), "127.0.0.1");
    // The first command may have opened connections that carry nothing.
    let others: Vec<String> = lines.try_iter().filter(|line| line.contains("127.0.0.1")).collect();
    assert_eq!(others, [""; 0]);
}

/// Whether all parts of the sandbox are there; otherwise the test is skipped, or fails with REQUIRE_FUSE=1.
fn has_sandbox(nginx: &Nginx) -> bool {
    nginx.put("probe.safetensors", &model(9));
    let home = tempfile::tempdir().unwrap();
    let output = weightfs(home.path()).args(["inspect", &nginx.url("probe.safetensors")]).output().unwrap();
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    let is_whole = text.contains(IN_SANDBOX) && !text.contains("incomplete sandbox");
    assert!(
        is_whole || std::env::var_os("REQUIRE_FUSE").is_none_or(|value| value != "1"),
        "REQUIRE_FUSE=1, but {text}"
    );
    is_whole
}

#[test]
fn process_that_fetches_is_sandboxed_and_holds_only_files_of_the_cache() {
    let nginx = Nginx::start();
    if !has_sandbox(&nginx) {
        return;
    }
    // The server needs more than an hour for the header and what is fetched with it.
    nginx.put("large.safetensors", &model(2_000_000));
    let home = tempfile::tempdir().unwrap();
    let mut command = weightfs(home.path());
    command.args(["inspect", &nginx.url("drip/large.safetensors")]).stdout(Stdio::null()).stderr(Stdio::null());
    let running = Running(command.spawn().unwrap());
    let mut fetching = 0;
    wait_until("the process fetches", || {
        let is_fetching = |pid: &u32| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"weightfs-fetch\0"))
        };
        fetching = children(running.0.id()).into_iter().find(is_fetching).unwrap_or_default();
        // Its threads are started after it has entered the sandbox.
        fs::read_dir(format!("/proc/{fetching}/task")).is_ok_and(|tasks| tasks.count() > 3)
    });
    let mut threads = 0;
    for task in fs::read_dir(format!("/proc/{fetching}/task")).unwrap() {
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        assert_eq!([value("NoNewPrivs:"), value("Seccomp:")], ["1", "2"], "{status}");
        assert!(value("CapPrm:").bytes().all(|digit| digit == b'0'), "{status}");
        threads += 1;
    }
    assert!(threads > 2, "{threads}");
    let cache = home.path().join(".cache/weightfs");
    let mut other = Vec::new();
    // It reads certificates at first.
    let ends = Instant::now() + Duration::from_secs(60);
    while Instant::now() < ends {
        let links = fs::read_dir(format!("/proc/{fetching}/fd")).unwrap();
        other = links.filter_map(|link| fs::read_link(link.unwrap().path()).ok()).collect();
        assert!(other.len() > 4, "{other:?}");
        other.retain(|target| {
            let anonymous = ["socket:", "pipe:", "anon_inode:", "/memfd:", "/dev/null"];
            let name = target.to_string_lossy();
            !target.starts_with(&cache) && !anonymous.iter().any(|kind| name.starts_with(kind))
        });
        if other.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(other.is_empty(), "{other:?}");
    drop(running);
    wait_until("the process ends with its reader", || !Path::new(&format!("/proc/{fetching}")).exists());
}

#[test]
fn servers_are_reached_and_credentials_are_read_in_the_sandbox() {
    let nginx = Nginx::start();
    if !has_sandbox(&nginx) {
        return;
    }
    nginx.put("model.safetensors", &model(5000));
    // By name, over TLS, with a token, with a password.
    let home = || -> TempDir { tempfile::tempdir().unwrap() };
    let inspect = |home: &Path, url: &str| {
        let mut command = weightfs(home);
        command.args(["inspect", url]);
        command
    };
    let (named, tls) = (home(), home());
    has_read(&mut inspect(named.path(), &format!("http://localhost:{}/model.safetensors", nginx.port)), true);
    let url = format!("https://localhost:{}/model.safetensors", nginx.tls);
    has_read(inspect(tls.path(), &url).env("SSL_CERT_FILE", nginx.authority()), true);
    let token = home();
    fs::write(token.path().join("token"), TOKEN).unwrap();
    has_read(inspect(token.path(), &nginx.url("bearer/model.safetensors")).args(["--token-file", "token"]), true);
    let netrc = home();
    fs::write(netrc.path().join(".netrc"), format!("machine 127.0.0.1 login me password {PASSWORD}\n")).unwrap();
    has_read(&mut inspect(netrc.path(), &nginx.url("basic/model.safetensors")), true);
}

#[test]
fn object_stores_and_the_hub_are_read_in_the_sandbox() {
    let nginx = Nginx::start();
    if !has_sandbox(&nginx) {
        return;
    }
    let mut s3 = Python::start("s3.py");
    let data = base64::prelude::BASE64_STANDARD.encode(model(5000));
    assert_eq!(s3.ask(json!({"do": "put", "bucket": "models", "key": "a/model.safetensors", "data": data})), json!({}));
    let user = s3.hello["users"]["reader"].clone();
    let (id, secret) = (user["id"].as_str().unwrap(), user["secret"].as_str().unwrap());
    let inspect = |home: &Path, url: &str| {
        let mut command = weightfs(home);
        command.args(["inspect", url]).env("AWS_ENDPOINT_URL_S3", s3.text("url")).env("AWS_REGION", "us-east-1");
        command.env("AWS_EC2_METADATA_DISABLED", "true");
        command
    };
    let url = "s3://models/a/model.safetensors";
    let home = tempfile::tempdir().unwrap();
    has_read(inspect(home.path(), url).env("AWS_ACCESS_KEY_ID", id).env("AWS_SECRET_ACCESS_KEY", secret), true);
    // The keys of a profile.
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join(".aws")).unwrap();
    let keys = format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n");
    fs::write(home.path().join(".aws/credentials"), keys).unwrap();
    has_read(&mut inspect(home.path(), url), true);
    // A program gives the keys, and the sandbox allows none.
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join(".aws")).unwrap();
    let printed = json!({"Version": 1, "AccessKeyId": id, "SecretAccessKey": secret}).to_string();
    fs::write(home.path().join("keys.json"), printed).unwrap();
    let profile = format!("[default]\ncredential_process = cat {}/keys.json\n", home.path().display());
    fs::write(home.path().join(".aws/config"), profile).unwrap();
    has_read(&mut inspect(home.path(), url), false);
    let output = text(&inspect(home.path(), url).output().unwrap());
    assert!(output.contains("weightfs-fetch has no sandbox: the AWS profile default runs a program"), "{output}");
    // For other locations, no program is run.
    nginx.put("model.safetensors", &model(5000));
    has_read(&mut inspect(home.path(), &nginx.url("model.safetensors")), true);

    let mut hub = Python::start("hub.py");
    let home = tempfile::tempdir().unwrap();
    let mut command = weightfs(home.path());
    let file = "hf://org/model/model-00001-of-00002.safetensors";
    let output = text(&command.args(["inspect", file]).env("HF_ENDPOINT", hub.text("url")).output().unwrap());
    // The file of the stub is no model, but it is fetched.
    assert!(output.contains(IN_SANDBOX) && output.contains("header") && !output.contains("refused"), "{output}");
    assert!(hub.take_log().len() > 1);
}

#[test]
fn after_the_mount_only_files_that_are_known_are_fetched() {
    let nginx = Nginx::start();
    nginx.put("known.safetensors", &model(100));
    nginx.put("other.safetensors", &model(100));
    let home = tempfile::tempdir().unwrap();
    let (channel, theirs) = WireChannel::pair().unwrap();
    let mut command = weightfs(home.path());
    command.arg0("weightfs-fetch").stdin(theirs.as_fd().try_clone_to_owned().unwrap());
    let _running = Running(command.spawn().unwrap());
    drop((command, theirs));
    let ask = |request: WireRequest| {
        channel.send(&request, &[]).unwrap();
        loop {
            match channel.receive::<WireReply>().unwrap().unwrap().0 {
                WireReply::Log { .. } | WireReply::Counts(_) | WireReply::Entries { .. } => {}
                reply => return reply,
            }
        }
    };
    let open = |id, path: &str| WireRequest::Open { id, tree: 0, path: path.into(), head: HEAD };
    channel.send(&WireRequest::Start(FetchOptions { version: VERSION, ..FetchOptions::default() }), &[]).unwrap();
    let found = ask(WireRequest::Resolve { id: 1, url: nginx.url("known.safetensors") });
    assert!(matches!(found, WireReply::Tree { id: 1, tree: 0, .. }), "{found:?}");
    assert!(matches!(ask(open(2, "known.safetensors")), WireReply::File { id: 2, .. }));
    assert_eq!(ask(WireRequest::Seal), WireReply::Sealed);
    assert!(matches!(ask(open(3, "known.safetensors")), WireReply::File { id: 3, .. }));
    let refused = [open(4, "other.safetensors"), WireRequest::Resolve { id: 4, url: nginx.url("other.safetensors") }];
    for request in refused {
        let reply = ask(request);
        assert!(
            matches!(reply, WireReply::Failed { id: 4, failure: FetchFailure { failure: RemoteFailure::Lasting, .. } }),
            "{reply:?}"
        );
    }
    assert!(!nginx.log().iter().flatten().any(|field| field.contains("other")), "{:?}", nginx.log());
}

/// The first line of `inspect` is the location.
#[test]
fn printed_locations_can_be_given_again() {
    const NAME: &str = "a%20b/mo+del 100%ü#1?.safetensors";
    let (nginx, mut s3, mut hub) = (Nginx::start(), Python::start("s3.py"), Python::start("hub.py"));
    let repository = tempfile::tempdir().unwrap();
    nginx.put(NAME, &model(100));
    let data = base64::prelude::BASE64_STANDARD.encode(model(100));
    assert_eq!(s3.ask(json!({"do": "put", "bucket": "models", "key": NAME, "data": data})), json!({}));
    let path = repository.path().join(NAME);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, model(100)).unwrap();
    hub.ask(json!({"do": "serve", "folder": repository.path()}));
    let user = s3.hello["users"]["reader"].clone();
    let home = tempfile::tempdir().unwrap();
    let inspect = |location: &str| {
        let mut command = weightfs(home.path());
        command.args(["inspect", location]).env("AWS_ENDPOINT_URL_S3", s3.text("url")).env("AWS_REGION", "us-east-1");
        command.env("AWS_ACCESS_KEY_ID", user["id"].as_str().unwrap());
        command.env("AWS_SECRET_ACCESS_KEY", user["secret"].as_str().unwrap());
        command.env("HF_ENDPOINT", hub.text("url"));
        let output = command.output().unwrap();
        let said = text(&output);
        assert!(output.status.success(), "{location}: {said}");
        // The location, and what the model is.
        let line = String::from_utf8(output.stdout).unwrap().lines().next().unwrap().to_owned();
        line.split_once(": safetensors").unwrap().0.to_owned()
    };
    let encoded = "a%2520b/mo%2Bdel%20100%25%C3%BC%231%3F.safetensors";
    for location in [
        nginx.url(encoded),
        nginx.url("a%2520b/mo+del 100%25ü%231%3F.safetensors?query=SECRET"),
        nginx.url("a%2520b%2Fmo+del%20100%25ü%231%3F.safetensors"),
        format!("s3://models/{NAME}"),
        format!("hf://org/model/{NAME}"),
    ] {
        let printed = inspect(&location);
        assert!(!printed.contains("SECRET"), "{printed}");
        assert_eq!(inspect(&printed), printed, "{location}");
    }
}
