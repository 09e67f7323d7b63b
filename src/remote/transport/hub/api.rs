//! The Hub's interface for programs: which commit a revision is, and which files a commit has.

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, LINK};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use url::Url;

use super::super::error::{ErrorKind, TransportError, TransportResult};
use super::super::range::refusal;
use super::super::secret::AuthorizationValue;
use super::super::skipped::SkippedNames;
use super::super::wire::{WireResponse, explain};
use super::HubTransport;
use super::pinned::{HubEntry, RepoSnapshot, content_from_hash, is_commit};
use super::settings::push;
use crate::remote::location::{HubLocation, RepoKind, check_path};

/// The longest answer, in bytes. A page of a listing has 1,000 entries of some hundred bytes.
const ANSWER: u64 = 64 << 20;

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
#[serde(tag = "type", rename_all = "lowercase")]
enum ApiItem {
    File {
        path: String,
        #[serde(default)]
        size: u64,
        oid: Option<String>,
        lfs: Option<ApiLfs>,
    },
    Directory {
        path: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct ApiLfs {
    oid: String,
    size: u64,
}

impl HubTransport {
    /// Finds out which commit a revision is.
    pub async fn snapshot(&self, place: &HubLocation, revision: &str) -> TransportResult<RepoSnapshot> {
        let url = self.settings.api_url(place, "revision", revision)?;
        let (answer, _): (ApiRevision, _) = self.ask(&url, place).await?;
        if !is_commit(&answer.sha) {
            return Err(nonsense());
        }
        let gated = answer.gated.is_some_and(|gated| gated != serde_json::Value::Bool(false));
        let public = answer.private == Some(false) && !gated;
        Ok(RepoSnapshot::new(place, &answer.sha, public, answer.modified))
    }

    /// Lists all files below a directory, or the directory that holds a file. The flag says whether the list is
    /// complete.
    pub async fn list_for(&self, root: &HubLocation, path: &str) -> TransportResult<(Vec<HubEntry>, bool)> {
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
        Err(ErrorKind::Missing.error("there is no such file or directory at this revision"))
    }

    /// Lists a directory, following the pages. Returns files and directories.
    async fn list(&self, root: &HubLocation, path: &str, deep: bool) -> TransportResult<(Vec<HubEntry>, Vec<String>)> {
        let commit = root.revision.as_deref().unwrap_or("main");
        let mut url = self.settings.api_url(root, "tree", commit)?;
        push(&mut url, path)?;
        url.query_pairs_mut().append_pair("recursive", if deep { "true" } else { "false" });
        let (mut files, mut folders, mut skipped) = (Vec::new(), Vec::new(), SkippedNames::default());
        for _ in 0..PAGES {
            let (items, headers): (Vec<ApiItem>, _) = self.ask(&url, root).await?;
            for item in items {
                let (path, file) = match item {
                    ApiItem::File { path, size, oid, lfs } => {
                        let (hash, len) = lfs.map_or((oid, size), |lfs| (Some(lfs.oid), lfs.size));
                        (path, Some((len, hash.as_deref().and_then(content_from_hash))))
                    }
                    ApiItem::Directory { path } => (path, None),
                    ApiItem::Other => continue,
                };
                // The paths become names of files.
                if path.is_empty() || check_path(&path).is_err() {
                    skipped.add(&path);
                    continue;
                }
                match file {
                    Some((len, content)) => files.push(HubEntry { path, len, content }),
                    None => folders.push(path),
                }
            }
            match next_page(&headers, &url)? {
                Some(next) => url = next,
                None => {
                    skipped.warn(root, "files with empty components, `.`, `..` or control characters");
                    return Ok((files, folders));
                }
            }
        }
        Err(ErrorKind::Protocol.error("the repository has more than a million files"))
    }

    /// Asks for JSON. Also returns the headers of the answer.
    async fn ask<T: DeserializeOwned>(&self, url: &Url, place: &HubLocation) -> TransportResult<(T, HeaderMap)> {
        let token = self.settings.authorization()?;
        let reply = self.wire.get(url, false, &HeaderMap::new(), token.as_ref()).await?;
        if reply.status != StatusCode::OK {
            return Err(self.explain(refusal(reply.status, &reply.headers), &reply, place, token.as_ref()));
        }
        let bytes = self.wire.read_all(reply.body, ANSWER).await?;
        Ok((serde_json::from_slice(&bytes).map_err(|_| nonsense())?, reply.headers))
    }

    /// Adds what the Hub says about a refusal, and what the user can do about it.
    pub fn explain(
        &self,
        error: TransportError,
        reply: &WireResponse,
        place: &HubLocation,
        token: Option<&AuthorizationValue>,
    ) -> TransportError {
        let code = reply.headers.get("x-error-code").and_then(|code| code.to_str().ok()).unwrap_or("");
        let kind = if place.kind == RepoKind::Model { String::new() } else { format!("{}/", place.kind.plural()) };
        let page = format!("{}{kind}{}", self.settings.endpoint, place.repo);
        let login = "set HF_TOKEN or log in with `hf auth login`";
        let advice = match (code, token.is_some()) {
            ("GatedRepo", false) => format!("accept the conditions on {page}, then {login}"),
            ("GatedRepo", true) => format!("accept the conditions on {page} with the account of the token"),
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
        let kind = match error.kind {
            ErrorKind::Missing | ErrorKind::Forbidden if missing => ErrorKind::Missing,
            ErrorKind::Missing | ErrorKind::Forbidden => ErrorKind::Forbidden,
            kind => kind,
        };
        explain(error, &reply.headers, token).of_kind(kind).with_text(|text| format!("{text}: {advice}"))
    }
}

fn nonsense() -> TransportError {
    ErrorKind::Protocol.error("the answer of the Hub cannot be parsed")
}

/// The next page of `Link: <URL>; rel="next"`. It must be on the Hub, as the token goes with it.
fn next_page(headers: &HeaderMap, from: &Url) -> TransportResult<Option<Url>> {
    let values = headers.get_all(LINK).iter().filter_map(|value| value.to_str().ok());
    let links = values.flat_map(|value| value.split('<').skip(1)).filter_map(|link| link.split_once('>'));
    for (url, parameters) in links {
        let mut parameters = parameters.split([';', ',']).filter_map(|parameter| parameter.split_once('='));
        let is_next = parameters.any(|(name, value)| {
            name.trim().eq_ignore_ascii_case("rel") && value.trim().trim_matches('"').eq_ignore_ascii_case("next")
        });
        if is_next {
            let next = from.join(url).map_err(|_| nonsense())?;
            if next.origin() != from.origin() {
                return Err(ErrorKind::Protocol.error("the Hub continues its listing on another server"));
            }
            return Ok(Some(next));
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
            next_page(&headers, &from).map(|next| next.map(|url| url.to_string())).map_err(|error| error.kind)
        };
        let page = Ok(Some("https://hub.example/x?cursor=1,2;3".to_string()));
        assert_eq!(next("<https://hub.example/x?cursor=1,2;3>; rel=\"next\""), page);
        assert_eq!(next("</p>; rel=prev, </x?cursor=1,2;3> ; title=\"x\" ; REL=next"), page);
        assert_eq!(next("</p>; rel=\"prev\""), Ok(None));
        assert_eq!(next("nonsense >< <"), Ok(None));
        assert_eq!(next("<https://evil.example/x>; rel=\"next\""), Err(ErrorKind::Protocol));
    }
}
