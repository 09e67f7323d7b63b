//! Many connections, slow clients, and the end of the server.

use super::support::Server;
use crate::support::{Scene, pattern, processor_time, status, wait_until, wait_until_idle};
use nix::sys::signal::Signal;
use safetensors::Dtype;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

const GET: &[u8] = b"GET /tensors/t HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";

/// A scene with the model `m.safetensors`, which has the tensor `t` of `len` bytes.
fn scene(len: usize) -> Scene {
    let scene = Scene::new();
    scene.model("m.safetensors", &[("t", Dtype::U8, &[len], pattern(len))], &[]);
    scene
}

#[test]
fn idle_connections_do_not_shut_out_others() {
    let scene = scene(1000);
    let server = Server::new(&scene, "m.safetensors", &[]);
    let connect = |at: usize| {
        let mut stream = server.connect();
        // Half of them begin a request that never ends.
        if at.is_multiple_of(2) {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: ").unwrap();
        }
        stream
    };
    let idle: Vec<_> = (0..400).map(connect).collect();
    assert!(server.get("tensors/t").body == pattern(1000));
    // A thread that is idle lives for ten seconds more.
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().count();
    assert!(threads < 40, "{threads} threads");
    drop(idle);
    assert_eq!(server.get("").status, 200);
}

#[test]
fn slow_readers_take_little_memory_and_get_all_bytes() {
    let len = 32 << 20;
    let scene = scene(len);
    let server = Server::new(&scene, "m.safetensors", &[]);
    let mut readers: Vec<_> = (0..64).map(|_| server.connect()).collect();
    for reader in &mut readers {
        reader.write_all(GET).unwrap();
        reader.read_exact(&mut [0; 1000]).unwrap();
    }
    let peak = status(server.pid(), "RssAnon");
    assert!(peak < 200 << 10, "{peak} kB");
    let mut rest = Vec::new();
    readers.pop().unwrap().read_to_end(&mut rest).unwrap();
    assert!(rest.ends_with(&pattern(len)[1000..]));
}

#[test]
fn computations_of_clients_that_are_gone_end() {
    // The sums of a sparse file of 4 TiB take half an hour at the least.
    const LEN: u64 = 4 << 40;
    let scene = Scene::new();
    let header = format!(r#"{{"t":{{"dtype":"U8","shape":[{LEN}],"data_offsets":[0,{LEN}]}}}}"#);
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    std::fs::write(scene.path("m.safetensors"), &bytes).unwrap();
    let file = std::fs::File::options().write(true).open(scene.path("m.safetensors")).unwrap();
    file.set_len(bytes.len() as u64 + LEN).unwrap();
    let server = Server::new(&scene, "m.safetensors", &[]);
    let clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for mut client in &clients {
        client.write_all(b"GET /SHA256SUMS HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    }
    let before = processor_time(server.pid());
    wait_until("the server computes", || processor_time(server.pid()) - before > Duration::from_millis(200));
    drop(clients);
    wait_until_idle(server.pid());
    assert_eq!(server.get("").status, 200);
}

#[test]
fn a_signal_lets_transfers_end_and_a_second_one_does_not() {
    let len = 64 << 20;
    let scene = scene(len);
    let mut idle = Server::new(&scene, "m.safetensors", &[]);
    let _connection = idle.connect();
    idle.signal(Signal::SIGTERM);
    assert!(idle.ended().success());

    let mut server = Server::new(&scene, "m.safetensors", &[]);
    let mut stream = server.connect();
    stream.write_all(GET).unwrap();
    let mut received = vec![0; 4096];
    stream.read_exact(&mut received).unwrap();
    server.signal(Signal::SIGINT);
    stream.read_to_end(&mut received).unwrap();
    assert!(received.len() > len && received.ends_with(&pattern(len)[len - 1000..]));
    assert!(server.ended().success());

    let mut server = Server::new(&scene, "m.safetensors", &[]);
    let mut stream = server.connect();
    stream.write_all(GET).unwrap();
    stream.read_exact(&mut received[..4096]).unwrap();
    server.signal(Signal::SIGTERM);
    // The first signal was taken when no connection is accepted any more.
    wait_until("the server accepts nothing", || std::net::TcpStream::connect(("127.0.0.1", server.port)).is_err());
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended().signal(), Some(Signal::SIGTERM as i32));
}
