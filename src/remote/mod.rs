//! Remote sources: files on the Hugging Face Hub, on HTTP servers and in object stores.
//!
//! A remote source is a local sparse file that is filled when it is read. A second process, `weightfs-fetch`, fetches
//! the bytes; a socket connects it to the reading process. `client` is the reader's end, `fetch` the other one.

pub mod cache;
mod client;
pub mod fetch;
pub mod location;
pub mod planner;
pub mod protocol;
pub mod transport;
mod tree;

pub use client::{ClientTraffic, FetchClient};

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Locks a mutex. A panic ends the program, so no value is left half changed.
fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The rate below which a server counts as one that sends nothing, in bytes per second.
const RATE_MIN: u64 = 1000;

/// Whether bytes that arrived within a time are progress: as many as arrive at that rate in the time, or in a second if
/// it is shorter. A server that sends a byte now and then, or once for each connection, must not be waited for without
/// end.
fn is_progress(bytes: u64, time: Duration) -> bool {
    u128::from(bytes) * 1_000_000_000 >= u128::from(RATE_MIN) * time.as_nanos().max(1_000_000_000)
}
