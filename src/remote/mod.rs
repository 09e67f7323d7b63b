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
