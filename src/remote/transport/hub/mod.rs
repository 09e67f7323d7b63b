//! The Hugging Face Hub: repositories pinned to a commit, files behind signed links of its CDN, and the cache that its
//! own client fills.

mod api;
mod cache;
mod entry;
mod pinned;
mod settings;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use reqwest::StatusCode;
use reqwest::header::ETAG;

use super::body::{BodyEnd, ExpectedBody, Sink, pour};
use super::error::{ErrorKind, TransportError};
use super::options::TransportOptions;
use super::range::{WantedRange, check_range};
use super::tree::{ByteOrigin, ServerObject, ServerTree, TreeFile, TreeOrigin};
use super::url_file::{UrlFile, range_headers};
use super::wire::{HttpWire, WireResponse, pieces};
use crate::remote::location::{HubLocation, RemoteLocation};
use cache::HubCache;
use entry::{HubEntry, content_from_hash, is_commit};
use pinned::RepoAbout;
pub(super) use pinned::{HubFile, RepoSnapshot};
use settings::HubSettings;
pub(super) use settings::{hub_reads, hub_settings_found};

/// The largest file of git, in bytes, that is taken whole where the Hub ignores the range.
const SMALL: u64 = 16 << 20;

/// Resolves and fetches files of the Hub.
#[derive(Debug)]
pub(super) struct HubTransport {
    wire: HttpWire,
    settings: HubSettings,
    cache: Option<HubCache>,
}

impl HubTransport {
    pub(super) fn new(wire: HttpWire, options: &TransportOptions) -> Result<HubTransport, TransportError> {
        let settings = HubSettings::new(options)?;
        let cache = settings.cache.clone().map(HubCache::new);
        Ok(HubTransport { wire, settings, cache })
    }

    /// Pins the revision to a commit and lists the directory, or the directory of the file. A commit whose listing is
    /// in the Hugging Face cache needs no request.
    pub(super) async fn resolve(&self, place: &HubLocation) -> Result<ServerTree, TransportError> {
        let asked = place.revision.as_deref().unwrap_or("main");
        let (commit, about) = if is_commit(asked) {
            (asked.to_string(), RepoAbout::default())
        } else if self.settings.offline {
            let cached = self.cache.as_ref().and_then(|cache| cache.commit(place, asked));
            let cached = cached.ok_or_else(|| {
                TransportError::new(
                    ErrorKind::Offline,
                    format!("weightfs is offline, and revision {asked} is not in the Hugging Face cache"),
                )
            })?;
            (cached, RepoAbout::default())
        } else {
            self.commit(place, asked).await?
        };
        let root = HubLocation { path: String::new(), ..place.at(&commit) };
        let listed = self.cache.as_ref().and_then(|cache| cache.listing(&root, &commit));
        let (entries, complete) = match listed {
            Some(entries) => (entries, true),
            None if self.settings.offline => match self.cache.as_ref().map(|cache| cache.walk(&root, &commit)) {
                Some(entries) if !entries.is_empty() => (entries, false),
                _ => {
                    let text = "weightfs is offline, and this revision is not in the Hugging Face cache";
                    return Err(TransportError::new(ErrorKind::Offline, text));
                }
            },
            None => self.list_for(&root, &place.path).await?,
        };
        self.tree(root, commit, about, place, entries, complete)
    }

    /// Builds the tree: of the entries, those in the directory that is shown.
    fn tree(
        &self,
        root: HubLocation,
        commit: String,
        about: RepoAbout,
        place: &HubLocation,
        entries: Vec<HubEntry>,
        complete: bool,
    ) -> Result<ServerTree, TransportError> {
        let is_file = !place.path.is_empty() && entries.iter().any(|entry| entry.path == place.path);
        let folder = match (is_file, place.path.rsplit_once('/')) {
            (true, Some((parent, _))) => parent,
            (true, None) => "",
            (false, _) => place.path.as_str(),
        };
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let snapshot = Arc::new(RepoSnapshot { root: root.clone(), commit, about });
        let mut files = Vec::new();
        for entry in entries {
            let Some(path) = entry.path.strip_prefix(&prefix).map(str::to_string) else { continue };
            let object = self.object(&snapshot, &entry)?;
            files.push(TreeFile { path, len: Some(entry.len), object: Some(object) });
        }
        if files.is_empty() {
            return Err(TransportError::new(ErrorKind::Missing, "there is no such file or directory at this revision"));
        }
        let at = |path: &str| RemoteLocation::Hub(HubLocation { path: path.to_string(), ..root.clone() });
        let named = is_file.then(|| (place.path[prefix.len()..].to_string(), at(&place.path)));
        Ok(ServerTree::new(at(folder), named, files, TreeOrigin::Hub(snapshot)).complete(complete))
    }

    fn object(&self, snapshot: &RepoSnapshot, entry: &HubEntry) -> Result<ServerObject, TransportError> {
        let place = HubLocation { path: entry.path.clone(), ..snapshot.root.clone() };
        let local = self
            .cache
            .as_ref()
            .and_then(|cache| cache.file(&place, &snapshot.commit, Some(entry.len), entry.content.as_deref()));
        let mut content = entry.content.clone();
        let source = match local {
            Some(local) => {
                content = content.or(local.content);
                ByteOrigin::Local(local.path)
            }
            None => ByteOrigin::Hub(self.remote(place.clone(), &snapshot.commit, entry.len, content.clone())?),
        };
        let validator = snapshot.validator(content);
        let (identity, name) = (self.identity(&place), RemoteLocation::Hub(place));
        Ok(ServerObject::new(identity, validator, entry.len, &name, snapshot.about.public, source))
    }

    fn remote(
        &self,
        place: HubLocation,
        commit: &str,
        len: u64,
        content: Option<String>,
    ) -> Result<HubFile, TransportError> {
        let file = UrlFile::new(self.settings.file_url(&place, commit)?, true);
        Ok(HubFile { file, place, commit: commit.to_string(), content, len })
    }

    /// The file without its revision, as most commits leave most files as they are.
    pub(super) fn identity(&self, place: &HubLocation) -> String {
        let endpoint = self.settings.endpoint.as_str().trim_end_matches('/');
        format!("{endpoint}/{}/{}/{}", place.kind.plural(), place.repo, place.path)
    }

    /// Pins a file that the tree does not list: its directory was not asked for.
    pub(super) async fn probe(
        &self,
        snapshot: &RepoSnapshot,
        place: RemoteLocation,
        path: &str,
        first: u64,
    ) -> Result<(ServerObject, Vec<u8>), TransportError> {
        let RemoteLocation::Hub(place) = place else {
            return Err(TransportError::new(ErrorKind::Invalid, "not on the Hub"));
        };
        if self.settings.offline {
            return Err(TransportError::new(
                ErrorKind::Offline,
                format!("weightfs is offline, and {path} is not in the Hugging Face cache"),
            ));
        }
        let file = UrlFile::new(self.settings.file_url(&place, &snapshot.commit)?, true);
        let token = self.settings.authorization()?;
        let reply = file.get(&self.wire, &range_headers(&(0..first))?, token.as_ref()).await?;
        let wanted = WantedRange { range: 0..first, len: None, validator: None };
        let part = check_range(reply.status, &reply.headers, &wanted)
            .map_err(|error| self.explain(error, &reply, &place, token.as_ref()))?;
        let content = content_of(&reply);
        let len = part.len.ok_or_else(|| TransportError::protocol("the Hub does not say how long the file is"))?;
        let remote = HubFile { file, place: place.clone(), commit: snapshot.commit.clone(), content, len };
        remote.check_hops(&reply)?;
        let mut head = Vec::new();
        let expected = ExpectedBody::Exactly(part.range.end - part.range.start);
        pour(pieces(reply.body), expected, self.wire.idle(), &mut |bytes| {
            head.extend_from_slice(bytes);
            ControlFlow::Continue(())
        })
        .await?;
        let validator = snapshot.validator(remote.content.clone());
        let (identity, name) = (self.identity(&place), RemoteLocation::Hub(place));
        Ok((ServerObject::new(identity, validator, len, &name, snapshot.about.public, ByteOrigin::Hub(remote)), head))
    }

    /// Delivers a range.
    pub(super) async fn fetch(
        &self,
        remote: &HubFile,
        range: Range<u64>,
        sink: &mut Sink<'_>,
    ) -> Result<u64, TransportError> {
        if self.settings.offline {
            return Err(TransportError::new(
                ErrorKind::Offline,
                "weightfs is offline, and it is not in the Hugging Face cache",
            ));
        }
        let token = self.settings.authorization()?;
        let reply = remote.file.get(&self.wire, &range_headers(&range)?, token.as_ref()).await?;
        remote.check_hops(&reply)?;
        if reply.status == StatusCode::OK && remote.len <= SMALL {
            return remote.cut(reply, range, &self.wire, sink).await;
        }
        let wanted = WantedRange { range: range.clone(), len: Some(remote.len), validator: None };
        check_range(reply.status, &reply.headers, &wanted)
            .map_err(|error| self.explain(error, &reply, &remote.place, token.as_ref()))?;
        let expected = ExpectedBody::Exactly(range.end - range.start);
        let (BodyEnd::Complete(delivered) | BodyEnd::Stopped(delivered)) =
            pour(pieces(reply.body), expected, self.wire.idle(), sink).await?;
        Ok(delivered)
    }
}

impl HubFile {
    /// Checks what the Hub says about the file before it redirects, or on its own answer.
    fn check_hops(&self, reply: &WireResponse) -> Result<(), TransportError> {
        let commit = reply
            .hops
            .iter()
            .map(|hop| &hop.headers)
            .chain([&reply.headers])
            .find_map(|headers| headers.get("x-repo-commit")?.to_str().ok());
        if commit.is_some_and(|commit| commit != self.commit) {
            return Err(TransportError::new(ErrorKind::Changed, "the Hub answers with another commit"));
        }
        match (&self.content, content_of(reply)) {
            (Some(ours), Some(theirs)) if *ours != theirs => {
                Err(TransportError::new(ErrorKind::Changed, "the Hub has another content for the file at this commit"))
            }
            _ => Ok(()),
        }
    }

    /// Takes a range out of a whole small file.
    async fn cut(
        &self,
        reply: WireResponse,
        range: Range<u64>,
        wire: &HttpWire,
        sink: &mut Sink<'_>,
    ) -> Result<u64, TransportError> {
        let wanted = WantedRange { range: 0..self.len, len: Some(self.len), validator: None };
        check_range(reply.status, &reply.headers, &wanted)?;
        let (mut at, mut delivered) = (0, 0);
        let end = pour(pieces(reply.body), ExpectedBody::Exactly(self.len), wire.idle(), &mut |bytes| {
            let from = range.start.saturating_sub(at).min(bytes.len() as u64) as usize;
            let to = range.end.saturating_sub(at).min(bytes.len() as u64) as usize;
            at += bytes.len() as u64;
            delivered += (to - from) as u64;
            let stopped = from < to && sink(&bytes[from..to]).is_break();
            if stopped || at >= range.end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .await;
        end.map(|_| delivered).map_err(|error| error.after(delivered))
    }
}

/// The hash that the Hub sends for a file: `X-Linked-ETag` of its redirect to the CDN, or else the ETag of its own
/// answer. The ETag of the CDN is not this hash.
fn content_of(reply: &WireResponse) -> Option<String> {
    let hop = reply.hops.iter().find_map(|hop| hop.headers.get("x-linked-etag"));
    let own = || if reply.hops.iter().any(|hop| hop.leaves) { None } else { reply.headers.get(ETAG) };
    // A kept link has no redirect, and its server is not the Hub.
    let own = || own().filter(|_| reply.headers.contains_key("x-repo-commit"));
    let etag = hop.or_else(own)?.to_str().ok()?;
    content_from_hash(etag.trim().trim_start_matches("W/").trim_matches('"'))
}
