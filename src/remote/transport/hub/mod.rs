//! The Hugging Face Hub: repositories pinned to a commit, files behind signed links of its CDN, and its client's cache.

mod api;
mod cache;
mod pinned;
mod settings;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use reqwest::StatusCode;
use reqwest::header::ETAG;

use super::body::{Sink, collect_body, pour, pour_part};
use super::error::{ErrorKind, TransportError, TransportResult};
use super::range::{ResponsePart, WantedRange, check_range};
use super::tree::{ByteOrigin, ProbedObject, ServerObject, ServerTree, TreeOrigin};
use super::url_file::UrlFile;
use super::wire::{HttpWire, WireResponse, pieces};
use crate::remote::location::{HubLocation, RemoteLocation};
use cache::HubCache;
use pinned::{HubEntry, content_from_hash, is_commit};
pub(super) use pinned::{HubFile, RepoSnapshot};
use settings::HubSettings;
pub(super) use settings::{hub_reads, hub_settings_found};

/// The largest file of git, in bytes, that is taken whole where the Hub ignores the range.
const SMALL: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct HubTransport {
    wire: HttpWire,
    settings: HubSettings,
}

impl HubTransport {
    pub fn new(wire: HttpWire) -> TransportResult<HubTransport> {
        let settings = HubSettings::new(wire.options())?;
        Ok(HubTransport { wire, settings })
    }

    pub fn is_offline(&self) -> bool {
        self.settings.offline
    }

    /// Whether the Hugging Face cache has files of a location.
    pub fn is_downloaded(&self, place: &HubLocation) -> bool {
        let Some(cache) = &self.settings.cache else { return false };
        let commit = cached_commit(cache, place);
        let root = commit.map(|commit| HubLocation { revision: Some(commit), path: String::new(), ..place.clone() });
        let files = root.map(|root| cache.walk(&root)).unwrap_or_default();
        files.iter().any(|file| Path::new(&file.path).starts_with(&place.path))
    }

    /// Pins the revision to a commit and lists the directory, or the directory of the file. A commit whose listing is
    /// in the Hugging Face cache needs no request.
    pub async fn resolve(&self, place: &HubLocation) -> TransportResult<ServerTree> {
        let asked = place.revision.as_deref().unwrap_or("main");
        let snapshot = if is_commit(asked) {
            RepoSnapshot::new(place, asked, false, None)
        } else if self.settings.offline {
            let cache = self.settings.cache.as_ref();
            let commit = cache.and_then(|cache| cached_commit(cache, place)).ok_or_else(|| {
                let others = cache.map(|cache| cache.commits(place)).unwrap_or_default();
                let others: Vec<String> = others.into_iter().map(|commit| with_commit(place, commit)).collect();
                let others = match &others[..] {
                    [] => String::new(),
                    [one] => format!("; the cache has {one}"),
                    [some @ .., last] => format!("; the cache has {} and {last}", some.join(", ")),
                };
                not_cached(&format!("revision {asked}")).with_text(|text| text + &others)
            })?;
            RepoSnapshot::new(place, &commit, false, None)
        } else {
            self.snapshot(place, asked).await?
        };
        let (entries, is_complete) = self.entries(&snapshot.root, &place.path).await?;
        // Of the entries, those in the directory that is shown.
        let is_file = !place.path.is_empty() && entries.iter().any(|entry| entry.path == place.path);
        let folder = match (is_file, place.path.rsplit_once('/')) {
            (true, Some((parent, _))) => parent,
            (true, None) => "",
            (false, _) => place.path.as_str(),
        };
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let snapshot = Arc::new(snapshot);
        let mut files = BTreeMap::new();
        for entry in entries {
            let Some(path) = entry.path.strip_prefix(&prefix).map(str::to_string) else { continue };
            files.insert(path, Some(self.listed_object(&snapshot, entry)?));
        }
        if files.is_empty() && self.settings.offline && !is_complete {
            return Err(not_cached(&place.path));
        }
        if files.is_empty() {
            return Err(ErrorKind::Missing.error("there is no such file or directory at this revision"));
        }
        let path = if is_file { place.path[prefix.len()..].to_string() } else { String::new() };
        let (folder, origin) = (RemoteLocation::Hub(snapshot.place(folder)), TreeOrigin::Hub(snapshot));
        Ok(ServerTree { folder, path, named: None, files, is_complete, origin })
    }

    /// The files that a location needs, and whether they are all.
    async fn entries(&self, root: &HubLocation, path: &str) -> TransportResult<(Vec<HubEntry>, bool)> {
        if let Some(entries) = self.settings.cache.as_ref().and_then(|cache| cache.listing(root)) {
            return Ok((entries, true));
        }
        if !self.settings.offline {
            return self.list_for(root, path).await;
        }
        let entries = self.settings.cache.as_ref().map(|cache| cache.walk(root)).unwrap_or_default();
        if entries.is_empty() { Err(not_cached("this revision")) } else { Ok((entries, false)) }
    }

    fn listed_object(&self, snapshot: &Arc<RepoSnapshot>, entry: HubEntry) -> TransportResult<Arc<ServerObject>> {
        let HubEntry { path, len, content } = entry;
        let place = snapshot.place(&path);
        let cache = self.settings.cache.as_ref();
        let cached = cache.and_then(|cache| cache.file(&place, Some(len), content.as_deref()));
        let (local, found) = cached.map(|cached| (cached.path, cached.content)).unzip();
        let file = HubFile { local, content: content.or(found.flatten()), ..self.file(snapshot, &place)? };
        Ok(self.object(place, len, file))
    }

    /// A file of which the content is not known yet.
    fn file(&self, snapshot: &Arc<RepoSnapshot>, place: &HubLocation) -> TransportResult<HubFile> {
        let file = UrlFile::new(self.settings.file_url(place, snapshot.commit())?, None, true);
        Ok(HubFile { file, snapshot: snapshot.clone(), content: None, local: None })
    }

    fn object(&self, place: HubLocation, len: u64, file: HubFile) -> Arc<ServerObject> {
        let (identity, validator) = (self.identity(&place), file.snapshot.validator(file.content.clone()));
        let (place, is_public) = (RemoteLocation::Hub(place), file.snapshot.public);
        ServerObject::new(identity, validator, len, &place, is_public, ByteOrigin::Hub(file))
    }

    /// The file without its revision, as most commits leave most files as they are.
    pub fn identity(&self, place: &HubLocation) -> String {
        let endpoint = self.settings.endpoint.as_str().trim_end_matches('/');
        // The cache refuses what looks like the query or the fragment of a URL.
        let path = place.path.replace('%', "%25").replace('?', "%3F").replace('#', "%23");
        format!("{endpoint}/{}/{}/{path}", place.kind.plural(), place.repo)
    }

    /// Pins a file that the tree does not list: its directory was not asked for.
    pub async fn probe(
        &self,
        snapshot: &Arc<RepoSnapshot>,
        place: RemoteLocation,
        path: &str,
        first: u64,
    ) -> TransportResult<ProbedObject> {
        let RemoteLocation::Hub(place) = place else { return Err(ErrorKind::Invalid.error("not on the Hub")) };
        if self.settings.offline {
            return Err(not_cached(path));
        }
        let mut remote = self.file(snapshot, &place)?;
        let (reply, part) = self.ask_for_range(&remote, &mut WantedRange::first(first)).await?;
        let len = part.len.ok_or_else(|| ErrorKind::Protocol.error("the Hub does not say how long the file is"))?;
        remote.content = content_of(&reply);
        let head = collect_body(pieces(reply.body), part.expected_body(), self.wire.idle).await?;
        Ok((self.object(place, len, remote), head))
    }

    /// Delivers a range, or a first part of it, of a file of `len` bytes.
    pub async fn fetch(
        &self,
        remote: &HubFile,
        len: u64,
        range: Range<u64>,
        sink: &mut Sink<'_>,
    ) -> TransportResult<()> {
        if self.settings.offline {
            return Err(not_cached("it"));
        }
        let mut wanted = WantedRange { range: range.clone(), len: Some(len), validator: None };
        let (reply, part) = self.ask_for_range(remote, &mut wanted).await?;
        let (expected, idle) = (part.expected_body(), self.wire.idle);
        match wanted.range == range {
            true => pour(pieces(reply.body), expected, idle, sink).await,
            false => pour_part(pieces(reply.body), expected, idle, range, sink).await,
        }
    }

    /// Returns the checked answer. Takes a small file whole if the Hub ignores the range.
    async fn ask_for_range(
        &self,
        remote: &HubFile,
        wanted: &mut WantedRange,
    ) -> TransportResult<(WireResponse, ResponsePart)> {
        let token = self.settings.authorization()?;
        let reply = remote.file.get(&self.wire, &wanted.headers(), token.as_ref()).await?;
        remote.check_hops(&reply)?;
        if let Some(len) = wanted.len.filter(|len| reply.status == StatusCode::OK && *len <= SMALL) {
            wanted.range = 0..len;
        }
        let part = check_range(reply.status, &reply.headers, wanted)
            .map_err(|error| self.explain(error, &reply, &remote.snapshot.root, token.as_ref()))?;
        Ok((reply, part))
    }
}

/// The commit of a location in a Hugging Face cache.
fn cached_commit(cache: &HubCache, place: &HubLocation) -> Option<String> {
    let asked = place.revision.as_deref().unwrap_or("main");
    if is_commit(asked) { Some(asked.to_owned()) } else { cache.commit(place, asked) }
}

/// The same location at a commit.
fn with_commit(place: &HubLocation, commit: String) -> String {
    RemoteLocation::Hub(HubLocation { revision: Some(commit), ..place.clone() }).to_string()
}

fn not_cached(what: &str) -> TransportError {
    ErrorKind::Offline.error(format!("weightfs is offline, and {what} is not in the Hugging Face cache"))
}

impl HubFile {
    /// Checks what the Hub says about the file before it redirects, or on its own answer.
    fn check_hops(&self, reply: &WireResponse) -> TransportResult<()> {
        let heads = reply.hops.iter().map(|hop| &hop.headers).chain([&reply.headers]);
        let commit = heads.filter_map(|headers| headers.get("x-repo-commit")).find_map(|commit| commit.to_str().ok());
        if commit.is_some_and(|commit| commit != self.snapshot.commit()) {
            return Err(ErrorKind::Changed.error("the Hub answers with another commit"));
        }
        match (&self.content, content_of(reply)) {
            (Some(ours), Some(theirs)) if *ours != theirs => {
                Err(ErrorKind::Changed.error("the Hub has another content for the file at this commit"))
            }
            _ => Ok(()),
        }
    }
}

/// The hash that the Hub sends for a file: `X-Linked-ETag` of its redirect to the CDN, or else the ETag of its own
/// answer. The ETag of the CDN is not this hash.
fn content_of(reply: &WireResponse) -> Option<String> {
    let linked = reply.hops.iter().find_map(|hop| hop.headers.get("x-linked-etag"));
    // A kept link has no redirect, and its server is not the Hub.
    let is_own = !reply.hops.iter().any(|hop| hop.leaves) && reply.headers.contains_key("x-repo-commit");
    let etag = linked.or_else(|| reply.headers.get(ETAG).filter(|_| is_own))?.to_str().ok()?;
    content_from_hash(etag.trim().trim_start_matches("W/").trim_matches('"'))
}
