//! Process-level services: daemon, helper process, signals, descriptors, limits, log, mount table, questions to daemons
//! of mounts, and sandbox.

pub mod arguments;
pub mod daemon;
pub mod descriptors;
#[cfg(feature = "remote")]
pub mod fetcher;
pub mod limits;
pub mod logging;
pub mod mounts;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod probe;
pub mod recent;
pub mod sandbox;
pub mod signals;
pub mod unmounter;
