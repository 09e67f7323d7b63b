//! Locations on the Hugging Face Hub: `hf://[models/|datasets/|spaces/]ORG/NAME[@REVISION][/PATH]`, and the addresses
//! of its web pages.

use std::fmt;

use percent_encoding::percent_decode_str;
use url::Url;

use super::path::{ParseError, check_path};

/// The kind of a repository. Kinds have name spaces of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RepoKind {
    /// `hf://ORG/NAME`
    Model,
    /// `hf://datasets/ORG/NAME`
    Dataset,
    /// `hf://spaces/ORG/NAME`
    Space,
}

impl RepoKind {
    /// The kind as the Hub's API and its cache write it.
    pub fn plural(self) -> &'static str {
        match self {
            RepoKind::Model => "models",
            RepoKind::Dataset => "datasets",
            RepoKind::Space => "spaces",
        }
    }

    /// Splits off the kind from the start of a path.
    fn split(path: &str) -> (RepoKind, &str) {
        let (first, rest) = path.split_once('/').unwrap_or((path, ""));
        RepoKind::from_plural(first).map_or((RepoKind::Model, path), |kind| (kind, rest))
    }

    fn from_plural(text: &str) -> Option<RepoKind> {
        [RepoKind::Model, RepoKind::Dataset, RepoKind::Space].into_iter().find(|kind| kind.plural() == text)
    }
}

/// A file, a directory or all of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HubLocation {
    pub kind: RepoKind,
    /// `ORG/NAME`
    pub repo: String,
    /// A branch, a tag, a commit or a ref such as `refs/pr/1`; without one, the default branch.
    pub revision: Option<String>,
    /// The path inside the repository, empty for all of it.
    pub path: String,
}

/// First components of pages of the Hub that are not repositories.
const PAGES: &str =
    "api blog buckets chat collections docs join learn login models new organizations papers posts settings tasks";

impl HubLocation {
    pub(super) fn parse(rest: &str) -> Result<HubLocation, ParseError> {
        let (kind, rest) = RepoKind::split(rest);
        let Some((org, rest)) = rest.split_once('/') else {
            return Err(ParseError::new("hf:// needs ORG/NAME, as in hf://deepseek-ai/DeepSeek-V3"));
        };
        let (name, rest) = rest.split_once('/').map_or((rest, ""), |(name, rest)| (name, rest));
        let (name, revision, path) = match name.split_once('@') {
            None => (name, None, rest),
            Some((name, first)) => {
                let (revision, path) = split_revision(first, rest);
                (name, Some(decode_revision(revision.as_deref().unwrap_or(first))?), path)
            }
        };
        HubLocation::new(kind, org, name, revision, path)
    }

    /// The location that a page of huggingface.co shows; `None` for another server.
    pub(super) fn from_page(url: &Url) -> Result<Option<HubLocation>, ParseError> {
        if !matches!(url.host_str(), Some("huggingface.co" | "www.huggingface.co" | "hf.co")) {
            return Ok(None);
        }
        let foreign = ParseError::new(
            "this page of huggingface.co is not a repository; give hf://ORG/NAME or the page of a file",
        );
        let page = url.path().trim_matches('/');
        let (kind, path) = RepoKind::split(page);
        // A revision may contain %2F, so the parts are decoded on their own.
        let parts: Vec<&str> = if kind == RepoKind::Model { page } else { path }.split('/').collect();
        let [org, name, rest @ ..] = &parts[..] else { return Err(foreign) };
        if PAGES.split(' ').any(|page| page == *org) || decode_hub_path(page)?.chars().any(char::is_control) {
            return Err(foreign);
        }
        let (revision, path) = match rest {
            [] => (None, String::new()),
            ["blob" | "resolve" | "raw" | "tree" | "blame", revision, rest @ ..] => {
                let rest = rest.join("/");
                let (special, path) = split_revision(revision, &rest);
                (Some(decode_revision(special.as_deref().unwrap_or(revision))?), decode_hub_path(path)?)
            }
            _ => return Err(foreign),
        };
        HubLocation::new(kind, org, name, revision, &path).map(Some)
    }

    fn new(
        kind: RepoKind,
        org: &str,
        name: &str,
        revision: Option<String>,
        path: &str,
    ) -> Result<HubLocation, ParseError> {
        for part in [org, name] {
            let fits = !part.is_empty()
                && part.len() <= 96
                && !part.starts_with('.')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
            if !fits {
                return Err(ParseError::new(
                    "a repository of the Hub is ORG/NAME, of letters, digits, `-`, `_` and `.`; @REVISION may follow",
                ));
            }
        }
        let path = path.strip_suffix('/').unwrap_or(path);
        check_path(path)?;
        Ok(HubLocation { kind, repo: format!("{org}/{name}"), revision, path: path.to_string() })
    }
}

/// Splits off a ref that is written with slashes, `refs/pr/1` or `refs/convert/parquet`, from the path behind it.
/// `first` is the component behind the `@`, `rest` what follows. `None` means that `first` alone is the revision.
fn split_revision<'a>(first: &str, rest: &'a str) -> (Option<String>, &'a str) {
    if first == "refs"
        && let Some((group @ ("pr" | "convert"), rest)) = rest.split_once('/')
    {
        let (name, path) = rest.split_once('/').unwrap_or((rest, ""));
        let fits = match group {
            "pr" => name.chars().all(|c| c.is_ascii_digit()),
            _ => name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'),
        };
        if fits && !name.is_empty() {
            return (Some(format!("refs/{group}/{name}")), path);
        }
    }
    (None, rest)
}

fn decode_hub_path(text: &str) -> Result<String, ParseError> {
    let text = percent_decode_str(text).decode_utf8();
    text.map(|text| text.into_owned()).map_err(|_| ParseError::new("a percent-encoded part is not UTF-8"))
}

/// Git refuses names of refs with `..` or with a component that starts with a dot, and a URL could not hold them.
fn decode_revision(text: &str) -> Result<String, ParseError> {
    let revision = decode_hub_path(text)?;
    let fits = revision.len() <= 256
        && !revision.chars().any(char::is_control)
        && revision.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
    if fits { Ok(revision) } else { Err(ParseError::new("the text after `@` is not a valid revision")) }
}

impl fmt::Display for HubLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hf://")?;
        if self.kind != RepoKind::Model {
            write!(f, "{}/", self.kind.plural())?;
        } else if RepoKind::from_plural(self.repo.split('/').next().unwrap_or("")).is_some() {
            f.write_str("models/")?;
        }
        f.write_str(&self.repo)?;
        if let Some(revision) = &self.revision {
            let special = split_revision("refs", revision.strip_prefix("refs/").unwrap_or("")).0;
            if special.as_deref() == Some(revision) {
                write!(f, "@{revision}")?;
            } else if split_revision(revision, &self.path).0.is_some() {
                // The branch `refs` with the directory `pr/1`, which is not the ref `refs/pr/1`.
                f.write_str("@%72efs")?;
            } else {
                write!(f, "@{}", revision.replace('%', "%25").replace('/', "%2F"))?;
            }
        }
        if !self.path.is_empty() {
            write!(f, "/{}", self.path)?;
        }
        Ok(())
    }
}
