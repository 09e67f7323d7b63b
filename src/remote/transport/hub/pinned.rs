//! Repositories that are pinned to a commit, their files, and how the Hub writes the hashes of contents and commits.

use std::path::PathBuf;
use std::sync::Arc;

use super::super::url_file::UrlFile;
use super::super::validator::VersionValidator;
use crate::remote::location::HubLocation;

#[derive(Debug)]
pub struct RepoSnapshot {
    /// The root of the repository at the commit.
    pub root: HubLocation,
    /// Whether the Hub says that everybody may read it. It is not asked if the location names the commit.
    pub public: bool,
    /// The date of the last commit, as the Hub writes it. Files have no dates of their own in listings.
    pub modified: Option<String>,
}

impl RepoSnapshot {
    pub fn new(place: &HubLocation, commit: &str, public: bool, modified: Option<String>) -> RepoSnapshot {
        let (revision, path) = (Some(commit.to_string()), String::new());
        RepoSnapshot { root: HubLocation { revision, path, ..place.clone() }, public, modified }
    }

    pub fn commit(&self) -> &str {
        self.root.revision.as_deref().unwrap_or_default()
    }

    pub fn place(&self, path: &str) -> HubLocation {
        HubLocation { path: path.to_string(), ..self.root.clone() }
    }

    /// The version of a file with this content. Without a hash of the content, the commit pins it.
    pub fn validator(&self, content: Option<String>) -> VersionValidator {
        let content = content.unwrap_or_else(|| format!("commit:{}", self.commit()));
        VersionValidator { content: Some(content), modified: self.modified.clone(), ..VersionValidator::default() }
    }
}

#[derive(Debug)]
pub struct HubFile {
    pub file: UrlFile,
    pub snapshot: Arc<RepoSnapshot>,
    pub content: Option<String>,
    /// The same file in the Hugging Face cache, complete.
    pub local: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubEntry {
    pub path: String,
    pub len: u64,
    /// `sha256:...` or `git:...`
    pub content: Option<String>,
}

/// The content from a hash of the Hub: 64 digits of SHA-256, or 40 of git's object id.
pub fn content_from_hash(hash: &str) -> Option<String> {
    match hash.len() {
        64 if is_lower_hex(hash) => Some(format!("sha256:{hash}")),
        40 if is_lower_hex(hash) => Some(format!("git:{hash}")),
        _ => None,
    }
}

/// Whether a revision is a full commit, so that it cannot move.
pub fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && is_lower_hex(revision)
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
