//! The open connections, and which of them end if there are too many.

use super::body::ResponseBody;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// Maximum number of connections. When there are more, the one that has been idle for the longest time is closed.
const CONNECTIONS_MAX: usize = 256;

/// After this time without sending its first request, or without taking anything of its response, a client loses its
/// connection if another one needs it.
const STALLED: Duration = Duration::from_secs(30);

/// The time limit for running transfers after the server was asked to stop.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct OpenConnections {
    open: Mutex<Vec<Arc<ServedConnection>>>,
    /// Notified when one has ended.
    ended: Notify,
}

/// A connection, as the loop that accepts others sees it.
#[derive(Debug)]
pub(super) struct ServedConnection {
    started: Instant,
    /// When something was last received or sent, in milliseconds after `started`.
    active: AtomicU64,
    /// Number of requests and responses in progress.
    busy: AtomicUsize,
    /// Whether the next step is that of the client: to send its first request, or to take more of its response.
    waits_for_client: AtomicBool,
    /// Whether a part of the last response may not have been passed to the system yet.
    unsent: AtomicBool,
    /// Notified when it is to be closed.
    close: Notify,
    /// Whether it is to be closed to make room, at once.
    at_once: AtomicBool,
}

impl ServedConnection {
    pub fn new() -> Self {
        let (active, busy, unsent, close, at_once) = Default::default();
        let waits_for_client = AtomicBool::new(true);
        Self { started: Instant::now(), active, busy, waits_for_client, unsent, close, at_once }
    }

    fn touch(&self) {
        self.active.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn quiet(&self) -> Duration {
        self.started.elapsed().saturating_sub(Duration::from_millis(self.active.load(Ordering::Relaxed)))
    }

    /// Whether closing it would lose a response that a client waits for.
    pub fn is_needed(&self) -> bool {
        let in_use = self.busy.load(Ordering::SeqCst) > 0 || self.unsent.load(Ordering::SeqCst);
        let is_stalled = self.waits_for_client.load(Ordering::Relaxed) && self.quiet() > STALLED;
        in_use && !is_stalled
    }

    /// The client has done the next step, or is to do it.
    fn client_goes_on(&self, goes_on: bool) {
        if goes_on {
            self.touch();
        }
        self.waits_for_client.store(!goes_on, Ordering::Relaxed);
    }

    /// All that was written has been passed to the system.
    fn flushed(&self) {
        if self.busy.load(Ordering::SeqCst) == 0 {
            self.unsent.store(false, Ordering::SeqCst);
        }
    }

    pub async fn closed(&self) {
        self.close.notified().await;
    }

    /// Whether it is to be closed to make room, unless it is needed; otherwise, after its response.
    pub fn ends_at_once(&self) -> bool {
        self.at_once.load(Ordering::Relaxed)
    }

    fn close(&self, at_once: bool) {
        self.at_once.store(at_once, Ordering::Relaxed);
        self.close.notify_one();
    }
}

/// Marks a connection as busy until it is dropped, and then until what was written is flushed.
#[derive(Debug)]
pub(super) struct BusyGuard(Arc<ServedConnection>);

impl BusyGuard {
    pub fn new(connection: Arc<ServedConnection>) -> Self {
        connection.busy.fetch_add(1, Ordering::SeqCst);
        connection.touch();
        Self(connection)
    }

    /// The request has arrived.
    pub fn start(&self) {
        self.0.client_goes_on(true);
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.touch();
        self.0.unsent.store(true, Ordering::SeqCst);
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A body that keeps its connection busy.
pub(super) struct BusyBody {
    pub body: ResponseBody,
    pub _busy: BusyGuard,
}

impl Body for BusyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that tells its connection whether the client takes what is written, and when all is flushed.
pub(super) struct FlushedStream<S> {
    pub stream: S,
    pub connection: Arc<ServedConnection>,
}

impl<S: AsyncRead + Unpin> AsyncRead for FlushedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FlushedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.connection.client_goes_on(written.is_ready());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.connection.client_goes_on(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.connection.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl OpenConnections {
    fn open(&self) -> MutexGuard<'_, Vec<Arc<ServedConnection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, connection: Arc<ServedConnection>) {
        self.open().push(connection);
    }

    pub fn remove(&self, connection: &Arc<ServedConnection>) {
        self.open().retain(|open| !Arc::ptr_eq(open, connection));
        self.ended.notify_one();
    }

    pub async fn wait(&self, time: Duration) {
        let _ = tokio::time::timeout(time, self.ended.notified()).await;
    }

    /// Whether there is room for another connection. If not, makes one end that nobody needs, if there is one.
    pub fn has_room(&self) -> bool {
        let open = self.open();
        if open.len() < CONNECTIONS_MAX {
            return true;
        }
        let unneeded = open.iter().filter(|connection| !connection.is_needed());
        if let Some(connection) = unneeded.max_by_key(|connection| connection.quiet()) {
            connection.close(true);
        }
        false
    }

    /// Ends all connections: those that are idle at once, the others after their responses.
    pub async fn end(&self) {
        let deadline = tokio::time::Instant::now() + GRACE;
        self.open().iter().for_each(|connection| connection.close(false));
        while !self.open().is_empty() {
            if tokio::time::timeout_at(deadline, self.ended.notified()).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::task::Waker;

    #[test]
    fn only_a_connection_that_is_not_needed_is_closed_to_make_room() {
        let connections = OpenConnections::default();
        // Those that have had no request yet are as busy as the others.
        let mut busy = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            assert!(connections.has_room());
            let connection = Arc::new(ServedConnection::new());
            busy.push(BusyGuard::new(connection.clone()));
            connections.add(connection);
        }
        let all: Vec<_> = connections.open().clone();
        let closed = || all.iter().filter(|connection| connection.closed().now_or_never().is_some()).count();
        assert!(!connections.has_room());
        assert_eq!(closed(), 0);
        // The response has ended and is not flushed.
        drop(busy.remove(7));
        assert!(!connections.has_room());
        assert_eq!(closed(), 0);
        let mut stream = FlushedStream { stream: Vec::new(), connection: all[7].clone() };
        assert!(Pin::new(&mut stream).poll_flush(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(!connections.has_room());
        assert!(all[7].closed().now_or_never().is_some() && all[7].ends_at_once());
        assert_eq!(closed(), 0);
        // It gets another request before it ends.
        let _busy = BusyGuard::new(all[7].clone());
        assert!(all[7].is_needed());
        connections.remove(&all[7]);
        assert!(connections.has_room());
    }
}
