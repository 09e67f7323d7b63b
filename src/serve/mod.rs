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
use connections::{BusyGuard, OpenConnections, ServedConnection};
use futures_util::future::{Either, select};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use site::FileSite;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
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

/// Serves `superblock` on `listener` until it is asked to stop. `name` is the source, for people. `version` tells
/// servers of the same source with other options apart. `memory` is the memory limit of the process in bytes, if there
/// is one. Starts threads, which inherit the sandbox of the caller.
pub fn run_server(
    listener: std::net::TcpListener,
    superblock: Superblock,
    name: String,
    version: &str,
    access: ServerAccess,
    memory: Option<u64>,
    stop: &ServerStop,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let local = listener.local_addr()?;
    let threads = crate::threads::cores().min(4);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("http")
        .enable_io()
        .enable_time()
        .build()?;
    let done = runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        let work = Arc::new(SiteWork::new(superblock, memory));
        let (name, version, port) = (name.into(), version.to_owned(), local.port());
        let site = Arc::new(FileSite { work, name, version, access, port, looking_up: Default::default() });
        let connections = Arc::new(OpenConnections::default());
        let accepting = tokio::spawn(accept(listener, site, connections.clone()));
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
        if !connections.has_room() {
            connections.wait(RETRY).await;
            continue;
        }
        match listener.accept().await {
            Ok((stream, peer)) => {
                let connection = Arc::new(ServedConnection::new());
                connections.add(connection.clone());
                let (site, connections) = (site.clone(), connections.clone());
                tokio::spawn(async move {
                    serve_http(stream, peer, site, &connection).await;
                    connections.remove(&connection);
                });
            }
            Err(error) => {
                // Too few descriptors or too little memory, for example.
                log::warn!("a connection cannot be accepted: {error}");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn serve_http(stream: TcpStream, peer: SocketAddr, site: Arc<FileSite>, connection: &Arc<ServedConnection>) {
    let Ok(local) = stream.local_addr() else { return };
    // Only responses would be slower without it.
    let _ = stream.set_nodelay(true);
    let is_own = {
        let (_one_at_a_time, asking) = (site.looking_up.lock().await, site.clone());
        tokio::task::spawn_blocking(move || asking.access.is_own(peer, local)).await.unwrap_or(false)
    };
    let service = service_fn(|request| {
        let busy = BusyGuard::new(connection.clone());
        let site = site.clone();
        async move { Ok::<_, Infallible>(site.respond(request, is_own, busy).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(IDLE).max_buf_size(HEADERS_MAX);
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // Errors are those of the client, or were logged where they occurred.
    if let Either::Right(_) = select(served.as_mut(), pin!(connection.closed())).await
        && !connection.ends_at_once()
    {
        served.as_mut().graceful_shutdown();
        let _ = served.await;
    }
}
