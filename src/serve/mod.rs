//! Serves a file system over HTTP: the same files as in a mount, and pages about them. Does not depend on FUSE.
//!
//! One task for each connection. Operations on the file system run on other threads (`work`).

mod access;
mod body;
mod connections;
mod page;
mod peer;
mod range;
mod site;
mod url;
mod work;

pub use access::ServerAccess;
pub use peer::PeerTables;

use crate::fs::Superblock;
use connections::{BusyBody, BusyGuard, FlushedStream, OpenConnections, ServedConnection};
use futures_util::future::{Either, select};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use site::FileSite;
use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::Notify;
use work::SiteWork;

/// After this time without a request, or without the end of its headers, a connection is closed.
const IDLE: Duration = Duration::from_secs(60);

/// Time between two tries to accept a connection, after a failure or while there are too many.
const RETRY: Duration = Duration::from_millis(100);

/// Maximum size of the headers of a request, in bytes.
const HEADERS_MAX: usize = 64 << 10;

#[derive(Debug, Clone, Default)]
pub struct ServerStop(Arc<Notify>);

impl ServerStop {
    /// The server accepts no more connections, and ends after the transfers that are running.
    pub fn stop(&self) {
        self.0.notify_one();
    }
}

/// Where connections come from.
pub enum ServedClients {
    Listener(std::net::TcpListener),
    /// Waits for the next connection, which needs no token. Returns `None` after the last one; then the server stops.
    /// After an error, there may be more.
    Passed(PassedConnections),
}

pub type PassedConnections = Box<dyn FnMut() -> io::Result<Option<StdUnixStream>> + Send>;

/// Serves `superblock` to `clients` until it is asked to stop. `name` is the source, for people. `version` tells
/// servers of the same source with other options apart. `memory` is the memory limit of the process in bytes, if there
/// is one. Starts threads, which inherit the sandbox of the caller.
pub fn run_server(
    clients: ServedClients,
    superblock: Superblock,
    name: String,
    version: &str,
    access: ServerAccess,
    memory: Option<u64>,
    stop: &ServerStop,
) -> io::Result<()> {
    let port = match &clients {
        ServedClients::Listener(listener) => listener.local_addr()?.port(),
        ServedClients::Passed(_) => 0,
    };
    let tells_places = matches!(clients, ServedClients::Passed(_));
    let threads = crate::threads::cores().min(4);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("http")
        .enable_io()
        .enable_time()
        .build()?;
    let done = runtime.block_on(async {
        let work = Arc::new(SiteWork::new(superblock, memory));
        let (name, version) = (name.into(), version.to_owned());
        let site =
            Arc::new(FileSite { work, name, version, access, port, tells_places, looking_up: Default::default() });
        let connections = Arc::new(OpenConnections::default());
        let accepting = match clients {
            ServedClients::Listener(listener) => {
                listener.set_nonblocking(true)?;
                tokio::spawn(accept(TcpListener::from_std(listener)?, site, connections.clone()))
            }
            ServedClients::Passed(next) => tokio::spawn(accept_passed(next, site, connections.clone(), stop.clone())),
        };
        stop.0.notified().await;
        accepting.abort();
        connections.end().await;
        Ok(())
    });
    // Reads that hang are not waited for.
    runtime.shutdown_background();
    done
}

async fn accept(listener: TcpListener, site: Arc<FileSite>, connections: Arc<OpenConnections>) {
    loop {
        wait_for_room(&connections).await;
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Only responses would be slower without it.
                let _ = stream.set_nodelay(true);
                if let Ok(local) = stream.local_addr() {
                    start_connection(stream, Some([peer, local]), &site, &connections);
                }
            }
            Err(error) => refused(&error).await,
        }
    }
}

async fn accept_passed(
    mut next: PassedConnections,
    site: Arc<FileSite>,
    connections: Arc<OpenConnections>,
    stop: ServerStop,
) {
    loop {
        wait_for_room(&connections).await;
        let waiting = tokio::task::spawn_blocking(move || {
            let stream = next();
            (next, stream)
        });
        let Ok((again, received)) = waiting.await else { return stop.stop() };
        next = again;
        let passed = |stream: StdUnixStream| {
            stream.set_nonblocking(true)?;
            UnixStream::from_std(stream)
        };
        match received.and_then(|stream| stream.map(passed).transpose()) {
            Ok(Some(stream)) => start_connection(stream, None, &site, &connections),
            Ok(None) => return stop.stop(),
            Err(error) => refused(&error).await,
        }
    }
}

/// Waits until another connection is tried. There may be too few descriptors or too little memory, for example.
async fn refused(error: &io::Error) {
    log::warn!("a connection cannot be accepted: {error}");
    tokio::time::sleep(RETRY).await;
}

async fn wait_for_room(connections: &OpenConnections) {
    while !connections.has_room() {
        connections.wait(RETRY).await;
    }
}

/// Serves a connection. `ends` are the addresses of the client and of this end, unless the connection needs no token.
fn start_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ends: Option<[SocketAddr; 2]>,
    site: &Arc<FileSite>,
    connections: &Arc<OpenConnections>,
) {
    let connection = Arc::new(ServedConnection::new());
    connections.add(connection.clone());
    // Anybody can open a connection to a port and send nothing. The others are kept for their first request.
    let first = ends.is_none().then(|| BusyGuard::new(connection.clone()));
    let (site, connections) = (site.clone(), connections.clone());
    tokio::spawn(async move {
        let is_own = match ends {
            Some(ends) => is_own(ends, &site).await,
            None => true,
        };
        serve_http(stream, is_own, site, &connection, first).await;
        connections.remove(&connection);
    });
}

async fn is_own([peer, local]: [SocketAddr; 2], site: &Arc<FileSite>) -> bool {
    let (_one_at_a_time, asking) = (site.looking_up.lock().await, site.clone());
    tokio::task::spawn_blocking(move || asking.access.is_own(peer, local)).await.unwrap_or(false)
}

/// `first` keeps the connection until its first response.
async fn serve_http(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    is_own: bool,
    site: Arc<FileSite>,
    connection: &Arc<ServedConnection>,
    first: Option<BusyGuard>,
) {
    let first = Cell::new(first);
    let service = service_fn(move |request| {
        let busy = first.take().unwrap_or_else(|| BusyGuard::new(connection.clone()));
        busy.start();
        let site = site.clone();
        async move {
            let response = site.respond(request, is_own).await;
            Ok::<_, Infallible>(response.map(|body| BusyBody { body, _busy: busy }))
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(IDLE).max_buf_size(HEADERS_MAX);
    let stream = FlushedStream { stream, connection: connection.clone() };
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // Errors are those of the client, or were logged where they occurred.
    while let Either::Right(_) = select(served.as_mut(), pin!(connection.closed())).await {
        if !connection.ends_at_once() {
            served.as_mut().graceful_shutdown();
            let _ = served.await;
            return;
        }
        // A request may have arrived meanwhile.
        if !connection.is_needed() {
            return;
        }
    }
}
