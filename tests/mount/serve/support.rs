//! A server, and clients that say what they got.

use crate::support::{Scene, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

/// A running server. It ends when it is dropped.
pub struct Server {
    child: Child,
    /// The first line that it has printed.
    pub line: String,
    pub port: u16,
}

impl Server {
    /// Serves `source` on any port of 127.0.0.1, with messages in the file `log` of the scene.
    pub fn new(scene: &Scene, source: &str, args: &[&str]) -> Self {
        let args: Vec<&str> = args.iter().copied().chain(["--port", "0"]).collect();
        Self::with(scene, source, &args)
    }

    /// Serves `source` with all options of `args`.
    pub fn with(scene: &Scene, source: &str, args: &[&str]) -> Self {
        let mut command = scene.command("weightfs");
        command.args(["serve", "-v", "--log-file", "log", source]).args(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            panic!("{source} {args:?}: {:?}: {said}", child.wait());
        }
        // The source may be a URL too.
        let address = line.trim_end().rsplit("http://").next().unwrap().split('/').next().unwrap();
        let port = address.rsplit(':').next().unwrap().parse().unwrap();
        Self { child, line, port }
    }

    /// Serves the clients whose connections arrive on `socket`.
    pub fn of_passed(scene: &Scene, source: &str, socket: OwnedFd) -> Self {
        let mut command = scene.command("weightfs");
        command.args(["serve", "--clients", "0", source]).stdin(socket).stdout(Stdio::null()).stderr(Stdio::null());
        Self { child: command.spawn().unwrap(), line: String::new(), port: 0 }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    /// The response to a GET request.
    pub fn get(&self, path: &str) -> Response {
        self.request("GET", path, &[])
    }

    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
        let mut text = format!("{method} /{path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            text += "Host: 127.0.0.1\r\n";
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        let mut stream = self.connect();
        stream.write_all(format!("{text}Connection: close\r\n\r\n").as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Response::parse(&bytes)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits until it has ended.
    pub fn ended(&mut self) -> ExitStatus {
        wait_until("the server has ended", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both have an effect only if it still runs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a server has sent.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("{:?}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &str| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_owned())
        };
        Self { status, headers: lines.map(header).collect(), body: bytes[end + 4..].to_vec() }
    }

    /// The value of a header; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}
