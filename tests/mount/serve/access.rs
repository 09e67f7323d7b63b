//! Who may read, tried as a real second user.

use super::support::{Response, Server};
use crate::support::{Scene, is_skipped, not_root};
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};
use std::io::{IoSlice, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const USER: &str = "setpriv --reuid=65533 --regid=65533 --clear-groups --";

/// A scene with a model that everybody may read.
fn scene() -> Scene {
    let scene = Scene::new();
    scene.sample();
    scene.ok("chmod 755 . && chmod 644 sample.safetensors");
    scene
}

/// The status that curl gets as some user.
fn status(scene: &Scene, user: &str, args: &str) -> u32 {
    let line = format!("{user} curl -s -o /dev/null -w '%{{http_code}}' {args}");
    scene.ok(&line).parse().unwrap()
}

#[test]
fn only_the_own_user_and_root_are_admitted() {
    if is_skipped(not_root()) {
        return;
    }
    let scene = scene();
    let root = Server::new(&scene, "sample.safetensors", &[]);
    assert_eq!(status(&scene, "", &root.url("header.json")), 200);
    assert_eq!(status(&scene, USER, &root.url("header.json")), 403);
    assert_eq!(status(&scene, USER, &format!("'{}?token='", root.url(""))), 403);
    // A server of that user admits it, root, and nobody else.
    let line = "weightfs serve sample.safetensors --port 0 >served 2>/dev/null & echo $! >pid";
    scene.ok(&format!("touch served && chmod 666 served && {USER} {line}"));
    crate::support::wait_until("the server listens", || scene.ok("cat served").contains("http://"));
    let served = scene.ok("cat served");
    let url = served.lines().next().unwrap().rsplit(' ').next().unwrap();
    let third = "setpriv --reuid=65532 --regid=65532 --clear-groups --";
    let found = [USER, "", third].map(|user| status(&scene, user, url));
    scene.ok("kill $(cat pid)");
    assert_eq!(found, [200, 200, 403]);
}

#[test]
fn others_need_the_token_which_shows_nowhere() {
    if is_skipped(not_root()) {
        return;
    }
    let scene = scene();
    let token = "a-token-of-some-length-0123456789";
    std::fs::write(scene.path("token"), format!("{token}\n")).unwrap();
    let server = Server::new(&scene, "sample.safetensors", &["--client-token", "token"]);
    let url = server.url("header.json");
    assert_eq!(status(&scene, USER, &url), 401);
    assert_eq!(status(&scene, USER, &format!("-H 'Authorization: Bearer {token}' {url}")), 200);
    assert_eq!(status(&scene, USER, &format!("-H 'Authorization: Bearer {token}x' {url}")), 401);
    assert_eq!(status(&scene, USER, &format!("'{url}?token=wrong'")), 401);
    // The token in a URL becomes a cookie, and the URL loses it.
    scene.ok("mkdir -m 777 own");
    let line = format!("-c own/jar -w '%{{redirect_url}}' '{url}?token={token}'");
    let moved = scene.ok(&format!("{USER} curl -s {line}"));
    assert_eq!(moved, url);
    assert_eq!(status(&scene, USER, &format!("-b own/jar {url}")), 200);
    assert!(
        scene.ok("cat own/jar").contains(&format!("#HttpOnly_127.0.0.1\tFALSE\t/\tFALSE\t0\tweightfs-{}", server.port))
    );
    let shown = [
        std::fs::read_to_string(scene.path("log")).unwrap(),
        std::fs::read_to_string(format!("/proc/{}/cmdline", server.pid())).unwrap(),
        server.line.clone(),
    ];
    assert!(shown.iter().all(|text| !text.contains(token)), "{shown:?}");
    for (text, reason) in [("short", "16 to 1024"), ("a token with blanks in it", "characters other than")] {
        std::fs::write(scene.path("token"), text).unwrap();
        let said = scene.sh("weightfs serve sample.safetensors --client-token token");
        assert!(said.code == 1 && said.err.contains(reason), "{said:?}");
    }
}

#[test]
fn other_addresses_need_a_token_that_is_printed() {
    if is_skipped(not_root()) {
        return;
    }
    let scene = scene();
    let server = Server::new(&scene, "sample.safetensors", &["--address", "0.0.0.0"]);
    let token = server.line.trim_end().split("?token=").nth(1).unwrap();
    assert_eq!(token.len(), 48, "{}", server.line);
    // The address by which other machines reach this one.
    let host = server.line.split("http://").nth(1).unwrap().split(':').next().unwrap();
    assert!(scene.ok("ip -o address").contains(&format!(" {host}/")), "{}", server.line);
    let url = server.url("header.json");
    assert_eq!(status(&scene, USER, &url), 401);
    assert_eq!(status(&scene, USER, &format!("-L -c jar2 -b jar2 '{url}?token={token}'")), 200);
    let second = Server::new(&scene, "sample.safetensors", &["--address", "0.0.0.0"]);
    assert!(!second.line.contains(token));
}

#[test]
fn requests_of_other_sites_and_for_other_hosts_are_refused() {
    let scene = scene();
    let server = Server::new(&scene, "sample.safetensors", &["--host", "gpu-7"]);
    let status = |headers: &[(&str, &str)]| server.request("GET", "header.json", headers).status;
    for host in ["127.0.0.1", "localhost:9000", "[::1]", "gpu-7:1"] {
        assert_eq!(status(&[("Host", host)]), 200, "{host}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example", ""] {
        assert_eq!(status(&[("Host", host)]), 421, "{host}");
    }
    let mut stream = server.connect();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 400 "), "{answer}");
    for host in ["127.0.0.1:evil.example", "[::1]evil"] {
        assert_eq!(status(&[("Host", host)]), 400, "{host}");
    }
    assert_eq!(status(&[("Host", "127.0.0.1"), ("Host", "evil.example")]), 400);
    let mut stream = server.connect();
    stream.write_all(b"GET http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 400 "), "{answer}");
    let from = |site: &str, mode: &str, dest: &str| {
        status(&[("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", mode), ("Sec-Fetch-Dest", dest)])
    };
    assert_eq!(from("cross-site", "no-cors", "image"), 403);
    assert_eq!(from("same-site", "cors", "empty"), 403);
    assert_eq!(from("cross-site", "navigate", "document"), 200);
    assert_eq!(from("same-origin", "cors", "empty"), 200);
}

#[test]
fn ports_that_are_in_use_are_named_or_passed_over() {
    if is_skipped(not_root()) {
        return;
    }
    let scene = scene();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let said = scene.sh(&format!("weightfs serve sample.safetensors --port {port}"));
    assert!(said.code == 1 && said.err.contains(&format!("port {port} of 127.0.0.1")), "{said:?}");
    // Where nothing else listens, and everything ends with the line.
    let serve = "weightfs serve sample.safetensors >$i & while ! grep -q http $i; do sleep .01; done";
    let line = format!("ip link set lo up; for i in 1 2; do : >$i; {serve}; done; cat 1 2; kill $(jobs -p)");
    let served = scene.ok(&format!("timeout 60 unshare --net bash -c '{line}' 2>/dev/null"));
    let ports: Vec<&str> =
        served.lines().filter_map(|line| line.split("http://127.0.0.1:").nth(1)?.split('/').next()).collect();
    assert_eq!(ports, ["8411", "8412"], "{served}");
}

#[test]
fn server_is_in_a_sandbox() {
    let scene = scene();
    let server = Server::new(&scene, "sample.safetensors", &[]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"] {
        assert!(status.lines().any(|found| found == line), "{line}: {status}");
    }
    // Every kind of page and file needs no more calls than the sandbox allows.
    for path in ["", "?tensor=1", "tensors/", "export/", "plots/model.layers.2.w.png", "SHA256SUMS"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let log = std::fs::read_to_string(scene.path("log")).unwrap();
    assert!(log.contains("seccomp") && !log.contains("refused"), "{log}");
}

/// The response to a GET request over a connection that is passed through `socket`.
fn get_passed(socket: &OwnedFd, path: &str, host: &str) -> Response {
    let (mut client, served) = UnixStream::pair().unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let rights = [served.as_raw_fd()];
    let message = [ControlMessage::ScmRights(&rights)];
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(b".")], &message, MsgFlags::empty(), None).unwrap();
    drop(served);
    client.write_all(format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).unwrap();
    Response::parse(&bytes)
}

#[test]
fn passed_connections_are_served_until_their_socket_is_closed() {
    let scene = scene();
    let pair = || socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
    let (ours, theirs) = pair();
    let mut server = Server::of_passed(&scene, "sample.safetensors", theirs);
    let whole = scene.ok("weightfs cat sample.safetensors header.json");
    for _ in 0..3 {
        let response = get_passed(&ours, "header.json", "localhost");
        assert_eq!((response.status, response.text()), (200, whole.clone()));
    }
    assert_eq!(get_passed(&ours, "header.json", "evil.example").status, 421);
    drop(ours);
    assert!(server.ended().success());
    let failures = [
        ("--clients 77", 1, "weightfs: --clients 77: Bad file descriptor"),
        ("--clients 0 --port 8411", 2, "cannot be used with"),
        ("--clients 0 --open", 2, "cannot be used with"),
    ];
    for (options, code, reason) in failures {
        let said = scene.sh(&format!("weightfs serve sample.safetensors {options} </dev/null"));
        assert!(said.code == code && said.err.contains(reason), "{said:?}");
    }
}
