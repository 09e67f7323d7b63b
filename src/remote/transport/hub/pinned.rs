//! What is pinned on the Hub: a repository at a commit, and the content of a file.

use super::super::url_file::UrlFile;
use crate::remote::location::HubLocation;

/// A repository at a commit.
#[derive(Debug)]
pub struct Snapshot {
    /// The root of the repository at the commit.
    pub root: HubLocation,
    pub commit: String,
    pub public: bool,
}

/// A file whose content is pinned.
#[derive(Debug)]
pub struct RemoteFile {
    pub file: UrlFile,
    pub place: HubLocation,
    pub commit: String,
    pub content: Option<String>,
    pub len: u64,
}
