//! The tasks of the processes that have a sandbox.

/// What a process does in the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Serves a mount.
    Serving,
    /// Fetches remote files.
    Fetching,
}
