//! Process-level services: daemon, helper process, signals, limits, log, mount table and sandbox.

pub mod daemon;
pub mod limits;
pub mod logging;
pub mod mounts;
pub mod recent;
pub mod sandbox;
pub mod signals;
pub mod unmounter;
