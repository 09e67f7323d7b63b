//! The tasks of the processes that have a sandbox.

/// What a process does in the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxTask {
    /// Serves a mount.
    Serving,
    /// Serves HTTP clients.
    #[cfg_attr(not(feature = "serve"), allow(dead_code, reason = "nothing is served over HTTP"))]
    Listening,
    /// Fetches remote files.
    Fetching,
}
