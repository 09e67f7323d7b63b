//! Servers that tests start on loopback, and stop again whatever happens to the test.

#![allow(dead_code, reason = "not every test uses every server")]

pub mod canned;
pub mod nginx;
pub mod python;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Runs a program until its own standard input ends, then ends this one program. So it ends with the test process, even
/// if that is killed.
const GUARD: &str = r#""$@" </dev/null & pid=$!; cat >/dev/null; kill -TERM $pid 2>/dev/null; wait $pid"#;

/// A program that serves.
pub struct Server {
    child: Child,
}

impl Server {
    /// Starts a program below a guard.
    pub fn guarded(command: &[&str], variables: &[(&str, &str)]) -> Server {
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "guard"]).args(command).envs(variables.iter().copied());
        let child = guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn();
        Server { child: child.unwrap_or_else(|error| panic!("{command:?}: {error}")) }
    }

    /// Waits until a port accepts connections. `false` if the program ended.
    pub fn answers(&mut self, port: u16) -> bool {
        let patience = Instant::now() + Duration::from_secs(60);
        while Instant::now() < patience {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return true;
            }
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The end of its input is the sign to stop.
        drop(self.child.stdin.take());
        let patience = Instant::now() + Duration::from_secs(20);
        while Instant::now() < patience {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that prints one line of JSON when it serves, and answers lines with lines.
pub struct Talking {
    server: Server,
    output: BufReader<std::process::ChildStdout>,
}

impl Talking {
    /// Starts a program. It must end when its standard input ends.
    pub fn start(command: &mut Command) -> (Talking, serde_json::Value) {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}; run scripts/servers first"));
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut talking = Talking { server: Server { child }, output };
        let hello = talking.line();
        (talking, hello)
    }

    fn line(&mut self) -> serde_json::Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("the server said {line:?}"))
    }

    /// Sends a command and returns its answer.
    pub fn ask(&mut self, command: serde_json::Value) -> serde_json::Value {
        let input = self.server.child.stdin.as_mut().unwrap();
        writeln!(input, "{command}").unwrap();
        self.line()
    }
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The directory of this package.
pub fn package() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Bytes that differ at every offset.
pub fn content(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
