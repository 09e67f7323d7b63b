//! What is pinned on the Hub: a repository at a commit, and the content of a file.

use super::super::url_file::UrlFile;
use super::super::validator::VersionValidator;
use crate::remote::location::HubLocation;

/// What the Hub says of a repository. Nothing if it was not asked, because the location names the commit.
#[derive(Debug, Default)]
pub struct RepoAbout {
    /// Whether everybody may read it.
    pub public: bool,
    /// The date of the last commit, as the Hub writes it. Files have no dates of their own in listings.
    pub modified: Option<String>,
}

/// A repository at a commit.
#[derive(Debug)]
pub struct RepoSnapshot {
    /// The root of the repository at the commit.
    pub root: HubLocation,
    pub commit: String,
    pub about: RepoAbout,
}

impl RepoSnapshot {
    /// The version of a file with this content. Without a hash of the content, the commit pins it.
    pub fn validator(&self, content: Option<String>) -> VersionValidator {
        let content = content.unwrap_or_else(|| format!("commit:{}", self.commit));
        VersionValidator {
            content: Some(content),
            modified: self.about.modified.clone(),
            ..VersionValidator::default()
        }
    }
}

/// A file whose content is pinned.
#[derive(Debug)]
pub struct HubFile {
    pub file: UrlFile,
    pub place: HubLocation,
    pub commit: String,
    pub content: Option<String>,
    pub len: u64,
}
