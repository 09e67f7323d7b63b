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

use super::body::{End, Expected, Sink, pour};
use super::error::{Error, Kind};
use super::options::Options;
use super::range::{Wanted, check};
use super::tree::{File, Object, Origin, Source, Tree};
use super::url_file::{UrlFile, range_headers};
use super::wire::{Reply, Wire, pieces};
use crate::remote::location::{HubLocation, Location};
use cache::Cache;
use entry::{Entry, content_from_hash, is_commit};
use pinned::About;
pub(super) use pinned::{RemoteFile, Snapshot};
use settings::Settings;
pub(super) use settings::{found, reads};

/// The largest file of git, in bytes, that is taken whole where the Hub ignores the range.
const SMALL: u64 = 16 << 20;

/// Resolves and fetches files of the Hub.
#[derive(Debug)]
pub(super) struct Hub {
    wire: Wire,
    settings: Settings,
    cache: Option<Cache>,
}

impl Hub {
    pub(super) fn new(wire: Wire, options: &Options) -> Result<Hub, Error> {
        let settings = Settings::new(options)?;
        let cache = settings.cache.clone().map(Cache::new);
        Ok(Hub { wire, settings, cache })
    }

    /// Pins the revision to a commit and lists the directory, or the directory of the file. A commit whose listing is
    /// in the Hugging Face cache needs no request.
    pub(super) async fn resolve(&self, place: &HubLocation) -> Result<Tree, Error> {
        let asked = place.revision.as_deref().unwrap_or("main");
        let (commit, about) = if is_commit(asked) {
            (asked.to_string(), About::default())
        } else if self.settings.offline {
            let cached = self.cache.as_ref().and_then(|cache| cache.commit(place, asked));
            let cached = cached.ok_or_else(|| {
                Error::new(
                    Kind::Offline,
                    format!("weightfs is offline, and revision {asked} is not in the Hugging Face cache"),
                )
            })?;
            (cached, About::default())
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
                    return Err(Error::new(Kind::Offline, text));
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
        about: About,
        place: &HubLocation,
        entries: Vec<Entry>,
        complete: bool,
    ) -> Result<Tree, Error> {
        let is_file = !place.path.is_empty() && entries.iter().any(|entry| entry.path == place.path);
        let folder = match (is_file, place.path.rsplit_once('/')) {
            (true, Some((parent, _))) => parent,
            (true, None) => "",
            (false, _) => place.path.as_str(),
        };
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let snapshot = Arc::new(Snapshot { root: root.clone(), commit, about });
        let mut files = Vec::new();
        for entry in entries {
            let Some(path) = entry.path.strip_prefix(&prefix).map(str::to_string) else { continue };
            let object = self.object(&snapshot, &entry)?;
            files.push(File { path, len: Some(entry.len), object: Some(object) });
        }
        if files.is_empty() {
            return Err(Error::new(Kind::Missing, "there is no such file or directory at this revision"));
        }
        let at = |path: &str| Location::Hub(HubLocation { path: path.to_string(), ..root.clone() });
        let named = is_file.then(|| (place.path[prefix.len()..].to_string(), at(&place.path)));
        Ok(Tree::new(at(folder), named, files, Origin::Hub(snapshot)).complete(complete))
    }

    fn object(&self, snapshot: &Snapshot, entry: &Entry) -> Result<Object, Error> {
        let place = HubLocation { path: entry.path.clone(), ..snapshot.root.clone() };
        let local = self
            .cache
            .as_ref()
            .and_then(|cache| cache.file(&place, &snapshot.commit, Some(entry.len), entry.content.as_deref()));
        let mut content = entry.content.clone();
        let source = match local {
            Some(local) => {
                content = content.or(local.content);
                Source::Local(local.path)
            }
            None => Source::Hub(self.remote(place.clone(), &snapshot.commit, entry.len, content.clone())?),
        };
        let validator = snapshot.validator(content);
        let (identity, name) = (self.identity(&place), Location::Hub(place));
        Ok(Object::new(identity, validator, entry.len, &name, snapshot.about.public, source))
    }

    fn remote(&self, place: HubLocation, commit: &str, len: u64, content: Option<String>) -> Result<RemoteFile, Error> {
        let file = UrlFile::new(self.settings.file_url(&place, commit)?, true);
        Ok(RemoteFile { file, place, commit: commit.to_string(), content, len })
    }

    /// The file without its revision, as most commits leave most files as they are.
    pub(super) fn identity(&self, place: &HubLocation) -> String {
        let endpoint = self.settings.endpoint.as_str().trim_end_matches('/');
        format!("{endpoint}/{}/{}/{}", place.kind.plural(), place.repo, place.path)
    }

    /// Pins a file that the tree does not list: its directory was not asked for.
    pub(super) async fn probe(
        &self,
        snapshot: &Snapshot,
        place: Location,
        path: &str,
        first: u64,
    ) -> Result<(Object, Vec<u8>), Error> {
        let Location::Hub(place) = place else { return Err(Error::new(Kind::Invalid, "not on the Hub")) };
        if self.settings.offline {
            return Err(Error::new(
                Kind::Offline,
                format!("weightfs is offline, and {path} is not in the Hugging Face cache"),
            ));
        }
        let file = UrlFile::new(self.settings.file_url(&place, &snapshot.commit)?, true);
        let token = self.settings.authorization()?;
        let reply = file.get(&self.wire, &range_headers(&(0..first))?, token.as_ref()).await?;
        let wanted = Wanted { range: 0..first, len: None, validator: None };
        let part = check(reply.status, &reply.headers, &wanted)
            .map_err(|error| self.explain(error, &reply, &place, token.as_ref()))?;
        let content = content_of(&reply);
        let len = part.len.ok_or_else(|| Error::protocol("the Hub does not say how long the file is"))?;
        let remote = RemoteFile { file, place: place.clone(), commit: snapshot.commit.clone(), content, len };
        remote.check_hops(&reply)?;
        let mut head = Vec::new();
        let expected = Expected::Exactly(part.range.end - part.range.start);
        pour(pieces(reply.body), expected, self.wire.idle(), &mut |bytes| {
            head.extend_from_slice(bytes);
            ControlFlow::Continue(())
        })
        .await?;
        let validator = snapshot.validator(remote.content.clone());
        let (identity, name) = (self.identity(&place), Location::Hub(place));
        Ok((Object::new(identity, validator, len, &name, snapshot.about.public, Source::Hub(remote)), head))
    }

    /// Delivers a range.
    pub(super) async fn fetch(
        &self,
        remote: &RemoteFile,
        range: Range<u64>,
        sink: &mut Sink<'_>,
    ) -> Result<u64, Error> {
        if self.settings.offline {
            return Err(Error::new(Kind::Offline, "weightfs is offline, and it is not in the Hugging Face cache"));
        }
        let token = self.settings.authorization()?;
        let reply = remote.file.get(&self.wire, &range_headers(&range)?, token.as_ref()).await?;
        remote.check_hops(&reply)?;
        if reply.status == StatusCode::OK && remote.len <= SMALL {
            return remote.cut(reply, range, &self.wire, sink).await;
        }
        let wanted = Wanted { range: range.clone(), len: Some(remote.len), validator: None };
        check(reply.status, &reply.headers, &wanted)
            .map_err(|error| self.explain(error, &reply, &remote.place, token.as_ref()))?;
        let expected = Expected::Exactly(range.end - range.start);
        let (End::Complete(delivered) | End::Stopped(delivered)) =
            pour(pieces(reply.body), expected, self.wire.idle(), sink).await?;
        Ok(delivered)
    }
}

impl RemoteFile {
    /// Checks what the Hub says about the file before it redirects, or on its own answer.
    fn check_hops(&self, reply: &Reply) -> Result<(), Error> {
        let commit = reply
            .hops
            .iter()
            .map(|hop| &hop.headers)
            .chain([&reply.headers])
            .find_map(|headers| headers.get("x-repo-commit")?.to_str().ok());
        if commit.is_some_and(|commit| commit != self.commit) {
            return Err(Error::new(Kind::Changed, "the Hub answers with another commit"));
        }
        match (&self.content, content_of(reply)) {
            (Some(ours), Some(theirs)) if *ours != theirs => {
                Err(Error::new(Kind::Changed, "the Hub has another content for the file at this commit"))
            }
            _ => Ok(()),
        }
    }

    /// Takes a range out of a whole small file.
    async fn cut(&self, reply: Reply, range: Range<u64>, wire: &Wire, sink: &mut Sink<'_>) -> Result<u64, Error> {
        let wanted = Wanted { range: 0..self.len, len: Some(self.len), validator: None };
        check(reply.status, &reply.headers, &wanted)?;
        let (mut at, mut delivered) = (0, 0);
        let end = pour(pieces(reply.body), Expected::Exactly(self.len), wire.idle(), &mut |bytes| {
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
fn content_of(reply: &Reply) -> Option<String> {
    let hop = reply.hops.iter().find_map(|hop| hop.headers.get("x-linked-etag"));
    let own = || if reply.hops.iter().any(|hop| hop.leaves) { None } else { reply.headers.get(ETAG) };
    // A kept link has no redirect, and its server is not the Hub.
    let own = || own().filter(|_| reply.headers.contains_key("x-repo-commit"));
    let etag = hop.or_else(own)?.to_str().ok()?;
    content_from_hash(etag.trim().trim_start_matches("W/").trim_matches('"'))
}
