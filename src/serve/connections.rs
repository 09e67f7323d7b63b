//! The open connections, and which of them end if there are too many.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Maximum number of connections. When there are more, the one that has been idle for the longest time is closed.
const CONNECTIONS_MAX: usize = 256;

/// After this time without taking anything of its response, a client loses its connection if another one needs it.
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
    /// Notified when it is to be closed.
    close: Notify,
    /// Whether it is to be closed at once, even in the middle of a response.
    at_once: AtomicBool,
}

impl ServedConnection {
    pub fn new() -> Self {
        let (active, busy, close, at_once) = Default::default();
        Self { started: Instant::now(), active, busy, close, at_once }
    }

    fn touch(&self) {
        self.active.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn quiet(&self) -> Duration {
        self.started.elapsed().saturating_sub(Duration::from_millis(self.active.load(Ordering::Relaxed)))
    }

    pub async fn closed(&self) {
        self.close.notified().await;
    }

    /// Whether it is to be closed even in the middle of a response.
    pub fn ends_at_once(&self) -> bool {
        self.at_once.load(Ordering::Relaxed)
    }

    fn close(&self, at_once: bool) {
        self.at_once.store(at_once, Ordering::Relaxed);
        self.close.notify_one();
    }
}

/// Marks a connection as busy until it is dropped.
#[derive(Debug)]
pub(super) struct BusyGuard(Arc<ServedConnection>);

impl BusyGuard {
    pub fn new(connection: Arc<ServedConnection>) -> Self {
        connection.busy.fetch_add(1, Ordering::Relaxed);
        connection.touch();
        Self(connection)
    }

    /// The client has taken something of the response.
    pub fn touch(&self) {
        self.0.touch();
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.touch();
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
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
        let is_busy = |connection: &ServedConnection| connection.busy.load(Ordering::Relaxed) > 0;
        let can_end = |connection: &&Arc<ServedConnection>| !is_busy(connection) || connection.quiet() > STALLED;
        if let Some(connection) = open.iter().filter(can_end).max_by_key(|connection| connection.quiet()) {
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
