//! Remote sources: files on the Hugging Face Hub, on HTTP servers and in object stores.

pub mod cache;
pub mod location;
pub mod planner;
pub mod transport;
