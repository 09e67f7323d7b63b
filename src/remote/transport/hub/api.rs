//! The Hub's interface for programs: which commit a revision is, and which files a commit has.

use std::time::SystemTime;

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, LINK};
use serde::Deserialize;
use url::Url;

use super::super::error::{ErrorKind, TransportError};
use super::super::range::refusal;
use super::super::secret::AuthorizationValue;
use super::super::wire::{WireResponse, explain};
use super::HubTransport;
use super::entry::{HubEntry, content_from_hash, is_commit};
use super::pinned::RepoAbout;
use super::settings::push;
use crate::remote::location::{HubLocation, check_path};

/// The longest answer, in bytes. A page of a listing has 1,000 entries of some hundred bytes.
const ANSWER: usize = 64 << 20;

/// The most pages of a listing, so at most a million files.
const PAGES: usize = 1000;

#[derive(Deserialize)]
struct ApiRevision {
    sha: String,
    private: Option<bool>,
    #[serde(rename = "lastModified")]
    modified: Option<String>,
    /// `false`, or how access is granted.
    gated: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct ApiItem {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    oid: Option<String>,
    lfs: Option<ApiLfs>,
}

#[derive(Deserialize)]
struct ApiLfs {
    oid: String,
    size: u64,
}

impl HubTransport {
    /// The commit of a revision, and what is known of the repository.
    pub(super) async fn commit(
        &self,
        place: &HubLocation,
        revision: &str,
    ) -> Result<(String, RepoAbout), TransportError> {
        let url = self.settings.api_url(place, "revision", revision)?;
        let (bytes, _) = self.ask(&url, place).await?;
        let answer: ApiRevision = serde_json::from_slice(&bytes).map_err(|_| nonsense())?;
        if !is_commit(&answer.sha) {
            return Err(nonsense());
        }
        let gated = answer.gated.is_some_and(|gated| gated != serde_json::Value::Bool(false));
        let public = answer.private == Some(false) && !gated;
        Ok((answer.sha, RepoAbout { public, modified: answer.modified }))
    }

    /// Lists what a location needs: all files below a directory, or the directory that holds a file. The flag says
    /// whether the list is complete.
    pub(super) async fn list_for(
        &self,
        root: &HubLocation,
        path: &str,
    ) -> Result<(Vec<HubEntry>, bool), TransportError> {
        if path.is_empty() {
            return Ok((self.list(root, "", true).await?.0, true));
        }
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let (files, folders) = self.list(root, parent, false).await?;
        if files.iter().any(|file| file.path == path) {
            // Files in deeper directories are not listed.
            return Ok((files, folders.is_empty()));
        }
        if folders.iter().any(|folder| folder == path) {
            return Ok((self.list(root, path, true).await?.0, true));
        }
        Err(TransportError::new(ErrorKind::Missing, "there is no such file or directory at this revision"))
    }

    /// Lists a directory, following the pages. Returns files and directories.
    async fn list(
        &self,
        root: &HubLocation,
        path: &str,
        deep: bool,
    ) -> Result<(Vec<HubEntry>, Vec<String>), TransportError> {
        let commit = root.revision.as_deref().unwrap_or("main");
        let mut url = self.settings.api_url(root, "tree", commit)?;
        push(&mut url, path)?;
        url.query_pairs_mut().append_pair("recursive", if deep { "true" } else { "false" });
        let (mut files, mut folders) = (Vec::new(), Vec::new());
        for _ in 0..PAGES {
            let (bytes, headers) = self.ask(&url, root).await?;
            let items: Vec<ApiItem> = serde_json::from_slice(&bytes).map_err(|_| nonsense())?;
            for item in items {
                // The paths become names of files.
                if item.path.is_empty() || check_path(&item.path).is_err() {
                    log::warn!("{root}: a listed file has an invalid name and is left out");
                    continue;
                }
                match item.kind.as_str() {
                    "file" => files.push(item.into()),
                    "directory" => folders.push(item.path),
                    _ => {}
                }
            }
            match next_page(&headers, &url)? {
                Some(next) => url = next,
                None => return Ok((files, folders)),
            }
        }
        Err(TransportError::protocol("the repository has more than a million files"))
    }

    async fn ask(&self, url: &Url, place: &HubLocation) -> Result<(Vec<u8>, HeaderMap), TransportError> {
        let token = self.settings.authorization()?;
        let reply = self.wire.get(url, &HeaderMap::new(), token.as_ref()).await?;
        if reply.status != StatusCode::OK {
            let refused = refusal(reply.status, &reply.headers, SystemTime::now());
            return Err(self.explain(refused, &reply, place, token.as_ref()));
        }
        Ok((self.wire.read_all(reply.body, ANSWER).await?, reply.headers))
    }

    /// Adds what the Hub says about a refusal, and what the user can do about it.
    pub(super) fn explain(
        &self,
        error: TransportError,
        reply: &WireResponse,
        place: &HubLocation,
        token: Option<&AuthorizationValue>,
    ) -> TransportError {
        let code = reply.headers.get("x-error-code").and_then(|code| code.to_str().ok()).unwrap_or("");
        let page = || {
            let kind = if place.kind.plural() == "models" { "" } else { place.kind.plural() };
            let slash = if kind.is_empty() { "" } else { "/" };
            format!("{}{kind}{slash}{}", self.settings.endpoint, place.repo)
        };
        let login = "set HF_TOKEN or log in with `hf auth login`";
        let advice = match (code, token.is_some()) {
            ("GatedRepo", false) => format!("accept the conditions on {}, then {login}", page()),
            ("GatedRepo", true) => format!("accept the conditions on {} with the account of the token", page()),
            ("RepoNotFound", false) => {
                format!("the repository does not exist, or is private; for a private one {login}")
            }
            ("RepoNotFound", true) => "the repository does not exist, or the token gives no access to it".to_string(),
            ("RevisionNotFound", _) => "the repository has no such revision".to_string(),
            ("EntryNotFound", _) => "there is no such file at this revision".to_string(),
            (_, false) if reply.status == 401 => login.to_string(),
            (_, true) if reply.status == 401 => "the Hub does not accept the token".to_string(),
            _ => return explain(error, &reply.headers, token),
        };
        let missing =
            matches!(code, "RevisionNotFound" | "EntryNotFound") || code == "RepoNotFound" && reply.status == 404;
        let kind = match error.kind() {
            ErrorKind::Missing | ErrorKind::Forbidden if missing => ErrorKind::Missing,
            ErrorKind::Missing | ErrorKind::Forbidden => ErrorKind::Forbidden,
            kind => kind,
        };
        explain(error, &reply.headers, token).of_kind(kind).with_text(|text| format!("{text}: {advice}"))
    }
}

impl From<ApiItem> for HubEntry {
    fn from(item: ApiItem) -> HubEntry {
        let (hash, len) = match item.lfs {
            Some(lfs) => (Some(lfs.oid), lfs.size),
            None => (item.oid, item.size),
        };
        HubEntry { path: item.path, len, content: hash.as_deref().and_then(content_from_hash) }
    }
}

fn nonsense() -> TransportError {
    TransportError::protocol("the answer of the Hub cannot be parsed")
}

/// The next page of `Link: <URL>; rel="next"`. It must be on the Hub, as the token goes with it.
fn next_page(headers: &HeaderMap, from: &Url) -> Result<Option<Url>, TransportError> {
    for value in headers.get_all(LINK).iter().filter_map(|value| value.to_str().ok()) {
        let mut rest = value;
        while let Some((url, after)) = rest.split_once('<').and_then(|(_, after)| after.split_once('>')) {
            let end = after.find('<').unwrap_or(after.len());
            let is_next = after[..end].split(';').any(|part| {
                let part = part.trim().trim_end_matches(',').trim_end();
                matches!(part.split_once('='), Some((name, value))
                    if name.trim().eq_ignore_ascii_case("rel")
                        && value.trim().trim_matches('"').eq_ignore_ascii_case("next"))
            });
            if is_next {
                let next = from.join(url).map_err(|_| nonsense())?;
                if next.origin() != from.origin() {
                    return Err(TransportError::protocol("the Hub continues its listing on another server"));
                }
                return Ok(Some(next));
            }
            rest = &after[end..];
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found_and_stays_on_the_hub() {
        let from = Url::parse("https://hub.example/api/models/a/b/tree/c").unwrap();
        let next = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(LINK, value.parse().unwrap());
            next_page(&headers, &from).map(|next| next.map(|url| url.to_string())).map_err(|error| error.kind())
        };
        let page = Ok(Some("https://hub.example/x?cursor=1,2;3".to_string()));
        assert_eq!(next("<https://hub.example/x?cursor=1,2;3>; rel=\"next\""), page);
        assert_eq!(next("</p>; rel=prev, </x?cursor=1,2;3> ; title=\"x\" ; REL=next"), page);
        assert_eq!(next("</p>; rel=\"prev\""), Ok(None));
        assert_eq!(next("nonsense >< <"), Ok(None));
        assert_eq!(next("<https://evil.example/x>; rel=\"next\""), Err(ErrorKind::Protocol));
    }
}
