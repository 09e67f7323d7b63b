//! Servers that tests start on loopback, and stop again whatever happens to the test.

#![allow(dead_code, reason = "not every test uses every server")]

pub mod canned;
pub mod lifetime;
pub mod nginx;
pub mod ports;
pub mod python;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long a server may take to start or to answer. The scripts give up earlier by themselves, and say why.
const PATIENCE: Duration = Duration::from_secs(240);

/// A program that prints one line of JSON when it serves, and answers lines with lines.
pub struct Talking {
    child: Child,
    lines: Receiver<String>,
}

impl Talking {
    /// Starts a program. It must end when its standard input ends.
    pub fn start(command: &mut Command) -> (Talking, serde_json::Value) {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}; run scripts/servers first"));
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        // A thread reads, because a read has no time limit. It ends with the program.
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut talking = Talking { child, lines };
        let hello = talking.line();
        (talking, hello)
    }

    fn line(&mut self) -> serde_json::Value {
        let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("no answer of a server: {error}"));
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("the server said {line:?}"))
    }

    /// Sends a command and returns its answer.
    pub fn ask(&mut self, command: serde_json::Value) -> serde_json::Value {
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{command}").unwrap();
        self.line()
    }
}

impl Drop for Talking {
    fn drop(&mut self) {
        // The server stops at the end of its input.
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
