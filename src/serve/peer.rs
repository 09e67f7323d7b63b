//! The users at the other end of connections from this machine.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

/// The user number that the kernel shows for users of another user namespace (`/proc/sys/kernel/overflowuid`).
const UNKNOWN: u32 = 65_534;

/// The kernel's tables of TCP sockets, and the users whose connections are admitted.
#[derive(Debug)]
pub struct PeerTables {
    /// `/proc/net/tcp` and, if the kernel has IPv6, `/proc/net/tcp6`. Opened before the sandbox is entered.
    tables: Vec<Mutex<File>>,
    users: Vec<u32>,
}

impl PeerTables {
    /// Admits connections of `user` and of root. Opens the tables.
    pub fn new(user: u32) -> io::Result<Self> {
        let mut tables = vec![Mutex::new(File::open("/proc/net/tcp")?)];
        tables.extend(File::open("/proc/net/tcp6").ok().map(Mutex::new));
        Ok(Self { tables, users: vec![user, 0] })
    }

    /// Whether the socket at the other end of a connection belongs to an admitted user. `peer` is its address, and
    /// `local` that of this end. False if it is not found, as for connections from other machines.
    pub(super) fn is_own(&self, peer: SocketAddr, local: SocketAddr) -> bool {
        self.user(peer, local).is_some_and(|user| user != UNKNOWN && self.users.contains(&user))
    }

    fn user(&self, peer: SocketAddr, local: SocketAddr) -> Option<u32> {
        // A socket for IPv6 shows an IPv4 address as a mapped one, and the other end may be a socket of either kind.
        let [peer, local] = [peer, local].map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()));
        let ends = [
            format!("{} {} ", hex(peer, false), hex(local, false)),
            format!("{} {} ", hex(peer, true), hex(local, true)),
        ];
        self.tables.iter().find_map(|table| {
            let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
            let mut lines = String::new();
            table.rewind().and_then(|()| table.read_to_string(&mut lines)).ok()?;
            lines.lines().find_map(|line| owner(line, &ends))
        })
    }
}

/// The user of an open socket in a line of a table, if it has these ends. Source: `get_tcp4_sock`, net/ipv4/tcp_ipv4.c.
fn owner(line: &str, ends: &[String; 2]) -> Option<u32> {
    let (_, socket) = line.split_once(": ")?;
    if !ends.iter().any(|ends| socket.starts_with(ends)) {
        return None;
    }
    // LOCAL REMOTE STATE QUEUES TIMER RETRANSMITS UID TIMEOUT INODE ...
    let mut fields = socket.split_ascii_whitespace().skip(6);
    let (user, inode) = (fields.next()?.parse().ok()?, fields.nth(1)?);
    // The kernel shows user 0 for a socket that no process has any more, and no inode.
    (inode != "0").then_some(user)
}

/// An address as the tables show it: words of 32 bits as the processor reads them, in hexadecimal, and the port. With
/// `wide`, an IPv4 address is mapped to IPv6.
fn hex(address: SocketAddr, wide: bool) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) if wide => ip.to_ipv6_mapped().octets().to_vec(),
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = octets.as_chunks::<4>().0.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word)));
    format!("{}:{:04X}", words.collect::<String>(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn own_connections_are_found_in_both_tables() {
        let user = nix::unistd::getuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                assert_ne!(address, "127.0.0.1:0");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let ip: IpAddr = if address == "[::1]:0" { "::1" } else { "127.0.0.1" }.parse().unwrap();
            let client = TcpStream::connect((ip, port)).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let local = server.local_addr().unwrap();
            let peers = PeerTables::new(user).unwrap();
            assert_eq!(peers.user(peer, local), Some(user), "{address}");
            assert!(peers.is_own(peer, local));
            assert!(!PeerTables { users: vec![user + 1], ..PeerTables::new(user).unwrap() }.is_own(peer, local));
            let other = SocketAddr::new(peer.ip(), peer.port() ^ 1);
            assert_eq!(peers.user(other, local), None);
            // A socket that its process has closed is nobody's.
            drop(client);
            assert_eq!(peers.user(peer, local), None);
        }
    }
}
