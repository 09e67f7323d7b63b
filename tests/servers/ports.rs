//! Ports of this machine, for servers that do not choose one themselves, and for tests without a server.

use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixListener};
use std::sync::atomic::{AtomicU32, Ordering};

use socket2::{Domain, Socket, Type};

/// A port that no other test gets, outside of those that the kernel gives to connections.
pub struct ClaimedPort {
    pub port: u16,
    /// A name that exists once, which `ports.py` claims too.
    _claim: UnixListener,
}

impl ClaimedPort {
    pub fn new() -> ClaimedPort {
        const PORTS: std::ops::Range<u32> = 15_000..32_000;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Most processes find a port at once that no earlier test has used: connections to that one may still end.
        let own = std::process::id().wrapping_mul(137);
        let places = (0..PORTS.len() as u32).map(|_| own.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)));
        let ports = places.map(|place| (PORTS.start + place % PORTS.len() as u32) as u16);
        let claimed = |port: u16| {
            let name = net::SocketAddr::from_abstract_name(format!("weightfs-test-port-{port}")).unwrap();
            let claim = UnixListener::bind_addr(&name).ok()?;
            // A program that is not a test may use the port.
            TcpListener::bind(("127.0.0.1", port)).ok()?;
            Some(ClaimedPort { port, _claim: claim })
        };
        ports.into_iter().find_map(claimed).unwrap()
    }
}

/// A port that refuses connections as long as this value lives: it is in use, and nobody listens there.
pub struct ClosedPort(Socket);

impl ClosedPort {
    pub fn new() -> ClosedPort {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        ClosedPort(socket)
    }

    pub fn port(&self) -> u16 {
        self.0.local_addr().unwrap().as_socket().unwrap().port()
    }
}
