//! What is pinned on the Hub: a repository at a commit, and the content of a file.

use super::super::url_file::UrlFile;
use super::super::validator::Validator;
use crate::remote::location::HubLocation;

/// What the Hub says of a repository. Nothing if it was not asked, because the location names the commit.
#[derive(Debug, Default)]
pub struct About {
    /// Whether everybody may read it.
    pub public: bool,
    /// The date of the last commit, as the Hub writes it. Files have no dates of their own in listings.
    pub modified: Option<String>,
}

/// A repository at a commit.
#[derive(Debug)]
pub struct Snapshot {
    /// The root of the repository at the commit.
    pub root: HubLocation,
    pub commit: String,
    pub about: About,
}

impl Snapshot {
    /// The version of a file with this content. Without a hash of the content, the commit pins it.
    pub fn validator(&self, content: Option<String>) -> Validator {
        let content = content.unwrap_or_else(|| format!("commit:{}", self.commit));
        Validator { content: Some(content), modified: self.about.modified.clone(), ..Validator::default() }
    }
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
