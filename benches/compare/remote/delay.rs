//! Added latency: a proxy that passes on bytes after half of a round trip, in each direction.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The most bytes of one direction of a connection that are under way. They limit one connection to as many bytes in
/// half of a round trip: 1.1 GB/s at 30 ms.
const UNDER_WAY: usize = 16 << 20;

const CHUNK: usize = 128 << 10;

/// Starts a proxy for `server`, and returns its address. It runs until the program ends.
///
/// A new connection costs one round trip, as the handshake of TCP does: the client can write at once, but its first
/// bytes leave one round trip after it has connected. There is no slow start, and no limit but [`UNDER_WAY`].
pub fn proxy(server: SocketAddr, round_trip: Duration) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // If it fails, the client sees the connection end.
            let _ = join(client, server, round_trip);
        }
    });
    Ok(address)
}

/// Connects to the server, and passes on bytes in both directions.
fn join(client: TcpStream, server: SocketAddr, round_trip: Duration) -> std::io::Result<()> {
    let established = Instant::now() + round_trip;
    let server = TcpStream::connect(server)?;
    [&client, &server].into_iter().try_for_each(|stream| stream.set_nodelay(true))?;
    let ends = [(client.try_clone()?, server.try_clone()?), (server, client)];
    for (from, to) in ends {
        thread::spawn(move || {
            let way = Way::default();
            thread::scope(|scope| {
                scope.spawn(|| way.take_in(&from, established, round_trip / 2));
                way.pass_on(&to);
                // Ends the reader if the receiver has gone.
                let _ = from.shutdown(Shutdown::Both);
            });
        });
    }
    Ok(())
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// What is under way, and when it arrives. No bytes: the end.
    chunks: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    is_closed: bool,
}

impl Way {
    /// Reads until the end or an error.
    fn take_in(&self, mut from: &TcpStream, established: Instant, delay: Duration) {
        let mut buffer = vec![0; CHUNK];
        loop {
            let read = match from.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.unwrap_or(0),
            };
            let arrives = Instant::now().max(established) + delay;
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            while queue.bytes > UNDER_WAY && !queue.is_closed {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            queue.bytes += read;
            queue.chunks.push_back((arrives, buffer[..read].to_vec()));
            self.changed.notify_all();
            if read == 0 || queue.is_closed {
                return;
            }
        }
    }

    /// Writes what has arrived until the end or an error.
    fn pass_on(&self, mut to: &TcpStream) {
        loop {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let (arrives, chunk) = loop {
                if let Some(first) = queue.chunks.pop_front() {
                    break first;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            thread::sleep(arrives.saturating_duration_since(Instant::now()));
            let is_over = chunk.is_empty() || to.write_all(&chunk).is_err();
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.bytes -= chunk.len();
            queue.is_closed |= is_over;
            self.changed.notify_all();
            if is_over {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
        }
    }
}
