//! A server that sends given bytes to whoever connects, for answers that no real server gives.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// What happens after the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The connection ends in order.
    Close,
    /// The connection is reset.
    Reset,
    /// Nothing more comes.
    Stall,
}

/// Answers every connection, one request each. The thread ends with the test process.
pub fn serve(bytes: Vec<u8>, then: Then) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            answer(stream, &bytes, then);
        }
    });
    address
}

/// Answers one connection after the other, with one answer each. Sends on the heads of the requests.
pub fn in_turn(answers: &[&str], then: Then) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answers: Vec<String> = answers.iter().map(|answer| answer.to_string()).collect();
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        let last = answers.len() - 1;
        for (turn, bytes) in answers.into_iter().enumerate() {
            let Ok((stream, _)) = listener.accept() else { return };
            let then = if turn == last { then } else { Then::Close };
            answer_and(stream, bytes.as_bytes(), then, |request| drop(sender.send(request)));
        }
    });
    (address, requests)
}

/// Answers requests for ranges of `file` with its first bytes, `most` at most. Sends on the heads of the requests.
pub fn serve_pieces(file: &[u8], most: usize) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let file = file.to_vec();
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let request = read_request(&mut stream);
            let range = request
                .lines()
                .find_map(|line| line.to_ascii_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
            let range = range.unwrap_or_else(|| format!("0-{}", file.len() - 1));
            let (start, last) = range.split_once('-').unwrap();
            let (start, last) = (start.parse::<usize>().unwrap(), last.parse::<usize>().unwrap());
            let part = &file[start..(last + 1).min(start + most).min(file.len())];
            let (end, len) = (start + part.len() - 1, file.len());
            let head = format!(
                "HTTP/1.1 206 x\r\nContent-Range: bytes {start}-{end}/{len}\r\nContent-Length: {}\r\nETag: \"v1\"\r\n\
                Connection: close\r\n\r\n",
                part.len()
            );
            let _ = sender.send(request);
            let _ = stream.write_all(&[head.as_bytes(), part].concat());
        }
    });
    (address, requests)
}

/// Answers one connection with `first`. Then answers two with `second` each, once both have sent a request.
pub fn two_at_once(first: &str, second: &str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (first, second) = (first.to_string(), second.to_string());
    std::thread::spawn(move || {
        let Ok((stream, _)) = listener.accept() else { return };
        answer(stream, first.as_bytes(), Then::Close);
        let (both, second) = (&Barrier::new(2), second.as_bytes());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let Ok((stream, _)) = listener.accept() else { return };
                scope.spawn(move || answer_and(stream, second, Then::Close, |_| _ = both.wait()));
            }
        });
    });
    address
}

/// Answers the first request of the first connection, and ends that connection at the second, which it sends on.
/// Answers one request of each later connection.
pub fn lose_second_request(first: &str, then: Then, later: &str) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (first, later) = (first.to_string(), later.to_string());
    let (sender, lost) = channel();
    std::thread::spawn(move || {
        let Ok((stream, _)) = listener.accept() else { return };
        std::thread::spawn(move || {
            answer(stream.try_clone().unwrap(), first.as_bytes(), Then::Close);
            answer_and(stream, b"", then, |request| drop(sender.send(request)));
        });
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            answer(stream, later.as_bytes(), Then::Close);
        }
    });
    (address, lost)
}

fn answer(stream: TcpStream, bytes: &[u8], then: Then) {
    answer_and(stream, bytes, then, drop);
}

/// Reads a request, shows its head and answers it.
fn answer_and(mut stream: TcpStream, bytes: &[u8], then: Then, show: impl FnOnce(String)) {
    show(read_request(&mut stream));
    let _ = stream.write_all(bytes);
    match then {
        Then::Close => {}
        // The descriptor stays open until the process ends.
        Then::Stall => std::mem::forget(stream),
        Then::Reset => {
            // A reset discards what has not arrived yet.
            let deadline = Instant::now() + Duration::from_secs(120);
            while is_under_way(&stream) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            let socket = socket2::Socket::from(stream);
            let _ = socket.set_linger(Some(Duration::ZERO));
        }
    }
}

fn read_request(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    while !is_whole(&request) {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(n) => request.extend_from_slice(&piece[..n]),
        }
    }
    String::from_utf8_lossy(&request).into_owned()
}

/// Whether the other side has not acknowledged all bytes yet, as the kernel shows it.
fn is_under_way(stream: &TcpStream) -> bool {
    let (Ok(from), Ok(to)) = (stream.local_addr(), stream.peer_addr()) else { return false };
    let sockets = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    // `NUMBER: LOCAL-ADDRESS:PORT REMOTE-ADDRESS:PORT STATE UNACKNOWLEDGED:UNREAD ...`, in hexadecimal digits.
    let fields = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ends = [(1, from.port()), (2, to.port())];
    let is_this = |fields: &Vec<&str>| ends.iter().all(|(at, port)| fields[*at].ends_with(&format!(":{port:04X}")));
    fields.skip(1).find(is_this).is_some_and(|fields| !fields[4].starts_with("00000000:"))
}

/// Whether a request has come with its body. A connection that ends with bytes unread is reset.
fn is_whole(request: &[u8]) -> bool {
    let Some(end) = request.windows(4).position(|end| end == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    request.len() - end - 4 >= length.unwrap_or(0)
}
