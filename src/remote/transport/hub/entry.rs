//! A file of a listing, and how the Hub writes the hashes of contents and commits.

/// A file of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HubEntry {
    pub path: String,
    pub len: u64,
    /// `sha256:...` or `git:...`
    pub content: Option<String>,
}

/// The content from a hash of the Hub: 64 digits of SHA-256, or 40 of git's object id.
pub(super) fn content_from_hash(hash: &str) -> Option<String> {
    if !hash.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)) {
        return None;
    }
    match hash.len() {
        64 => Some(format!("sha256:{hash}")),
        40 => Some(format!("git:{hash}")),
        _ => None,
    }
}

/// Whether a revision is a full commit, so that it cannot move.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}
