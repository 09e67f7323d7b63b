//! Remote files: lists them, pins their versions, and fetches ranges of their bytes. One attempt per call: retries, the
//! order of requests and the cache are elsewhere.
//!
//! `TransportClient::resolve` pins the version of what a location names, and lists it. `TransportClient::probe` finds
//! out length and version of one file along with its first bytes. `TransportClient::fetch` delivers one range, whose
//! every answer is checked against the pinned version. Credentials go only to the server they are for, and no error or
//! `Debug` text contains one.

mod body;
mod environment;
mod error;
mod hub;
mod netrc;
mod range;
mod redirects;
mod secret;
mod skipped;
mod store;
#[cfg(test)]
mod tests;
mod tree;
mod url_file;
mod validator;
mod web;
mod wire;

pub use body::Sink;
pub use environment::{EnvironmentCopy, TransportOptions};
pub use error::{ErrorKind, TransportError, TransportResult};
pub use tree::{ObjectVersion, ProbedObject, ServerFiles, ServerObject, ServerTree};
pub use validator::ChangeCertainty;

use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::Arc;

use super::location::{self, RemoteLocation};
use tree::{ByteOrigin, TreeOrigin};

/// The files, and the directories with all that is below them, that are read for credentials and instead of fetching.
pub fn transport_reads(options: &TransportOptions) -> Vec<PathBuf> {
    let environment = &options.environment;
    let files = web::netrc_file(environment).into_iter().chain(options.token_file.clone());
    files.chain(hub::hub_reads(environment)).chain(store::store_reads(environment)).collect()
}

/// The origin of the credentials for a location, such as a variable or a file. `None` if requests carry none. Nothing
/// is sent, and no part of a credential is returned. Fails if credentials are configured but cannot be used, such as a
/// missing profile.
pub fn credentials(options: &TransportOptions, location: &RemoteLocation) -> TransportResult<Option<String>> {
    match location {
        RemoteLocation::Hub(_) => hub::hub_settings_found(options),
        RemoteLocation::Web(at) => web::web_credentials_found(options, at.url()),
        RemoteLocation::Store(at) => store::store_credentials_found(at.kind, &options.environment),
    }
}

/// Why a program must be run to get credentials for a location, if so.
pub fn credential_program(options: &TransportOptions, location: &RemoteLocation) -> Option<String> {
    match location {
        RemoteLocation::Store(store) => store::store_program(store.kind, &options.environment),
        _ => None,
    }
}

/// Resolves and fetches. Clones share connections and credentials.
#[derive(Clone, Debug)]
pub struct TransportClient {
    wire: wire::HttpWire,
    hub: Arc<hub::HubTransport>,
    stores: Arc<store::OpenStores>,
}

impl TransportClient {
    /// Makes a client. Reads no credentials yet and sends nothing. Fails if a variable such as `HF_ENDPOINT` is
    /// invalid.
    pub fn new(options: TransportOptions) -> TransportResult<TransportClient> {
        let wire = wire::HttpWire::new(options);
        let hub = hub::HubTransport::new(wire.clone())?.into();
        let stores = store::OpenStores { wire: wire.clone(), open: Default::default() }.into();
        Ok(TransportClient { wire, hub, stores })
    }

    fn is_offline(&self) -> bool {
        self.wire.options().offline
    }

    /// Whether no request may be sent for a location: none at all, or none to the Hub.
    pub fn is_offline_for(&self, location: &RemoteLocation) -> bool {
        self.is_offline() || matches!(location, RemoteLocation::Hub(_)) && self.hub.is_offline()
    }

    /// Whether the Hugging Face cache has files of a location, so that it can be read offline.
    pub fn is_downloaded(&self, location: &RemoteLocation) -> bool {
        matches!(location, RemoteLocation::Hub(hub) if self.hub.is_downloaded(hub))
    }

    /// Number of requests that were sent so far, to servers of files and of credentials.
    pub fn requests(&self) -> u64 {
        self.wire.requests()
    }

    /// Whether any server has answered a request.
    pub fn has_answer(&self) -> bool {
        self.wire.has_answer()
    }

    /// Pins the version of what `location` names, and lists the files there.
    ///
    /// On the Hub this is the commit and one listing: of the directory that holds a named file, or of a whole
    /// directory. Object stores list a prefix and look up a key. A URL costs no request: its file is pinned when it is
    /// probed.
    pub async fn resolve(&self, location: &RemoteLocation) -> TransportResult<ServerTree> {
        if location.is_insecure() {
            log::warn!(
                "{location}: unencrypted http: others on the network path can read and change what is sent; use https"
            );
        }
        let tree = match location {
            RemoteLocation::Hub(hub) => self.hub.resolve(hub).await,
            RemoteLocation::Web(_) | RemoteLocation::Store(_) if self.is_offline() => Err(offline()),
            // Files beside the named one are found by probing them.
            RemoteLocation::Web(_) => ServerTree::of_file(location.clone(), None, TreeOrigin::Web)
                .ok_or_else(|| ErrorKind::Invalid.error("the URL names no file; HTTP servers have no directories")),
            RemoteLocation::Store(store) => self.stores.resolve(store).await,
        };
        tree.map_err(|error| error.at(location))
    }

    /// The identity that the object at `location` has in every version. Sends nothing, so that a cache can be searched
    /// for what it has while there is no network. Fails if the store of the location is not configured.
    pub fn identity(&self, location: &RemoteLocation) -> TransportResult<String> {
        match location {
            RemoteLocation::Hub(hub) => Ok(self.hub.identity(hub)),
            RemoteLocation::Web(web) => Ok(web::identity(web.url())),
            RemoteLocation::Store(store) => self.stores.identity(store),
        }
    }

    /// Pins a file of the tree that is not pinned yet, and returns its first bytes, `first` at most: one request, which
    /// gives length, version and head. If the server sends a part of the head, the rest is fetched. `path` is relative
    /// to the tree.
    pub async fn probe(&self, tree: &ServerTree, path: &str, first: u64) -> TransportResult<ProbedObject> {
        location::check_path(path)?;
        let (place, first) = (tree.place(path), first.max(1));
        let probed = match &tree.origin {
            _ if tree.is_complete => Err(ErrorKind::Missing.error("there is no such file")),
            TreeOrigin::Kept => Err(absent()),
            _ if self.is_offline() => Err(offline()),
            TreeOrigin::Hub(snapshot) => self.hub.probe(snapshot, place.clone(), path, first).await,
            TreeOrigin::Web => web::probe_url(&self.wire, place.clone(), first).await,
            TreeOrigin::Store(bucket) => bucket.probe(place.clone(), first).await,
        };
        let (object, mut head) = probed.map_err(|error| error.at(&place))?;
        let rest = head.len() as u64..first.min(object.len);
        if !rest.is_empty() {
            let add = &mut |bytes: &[u8]| {
                head.extend_from_slice(bytes);
                ControlFlow::Continue(())
            };
            self.fetch(&object, rest, add).await?;
        }
        Ok((object, head))
    }

    /// Delivers one range of a file to `sink`, in order, while it arrives: all of it, unless the sink ends it. One
    /// attempt, with a request for each part that the server sends. Dropping the future ends the request.
    pub async fn fetch(&self, object: &ServerObject, range: Range<u64>, sink: &mut Sink<'_>) -> TransportResult<()> {
        let fetched = if range.start > range.end || range.end > object.len {
            Err(ErrorKind::Invalid.error(format!("the range {range:?} is outside the file of {} bytes", object.len)))
        } else {
            self.fetch_parts(object, range, sink).await
        };
        fetched.map_err(|error| error.at(&object.version.name))
    }

    /// Asks for the rest of the range until all of it has arrived: an answer may be a first part of what was asked for,
    /// which is never empty.
    async fn fetch_parts(&self, object: &ServerObject, range: Range<u64>, sink: &mut Sink<'_>) -> TransportResult<()> {
        let (mut at, mut is_ended) = (range.start, false);
        while at < range.end && !is_ended {
            let rest = at..range.end;
            let deliver = &mut |bytes: &[u8]| {
                at += bytes.len() as u64;
                let flow = sink(bytes);
                is_ended = flow.is_break();
                flow
            };
            match &object.origin {
                ByteOrigin::Kept => return Err(absent()),
                _ if self.is_offline() => return Err(offline()),
                ByteOrigin::Hub(file) => self.hub.fetch(file, object.len, rest, deliver).await?,
                ByteOrigin::Web(file) => web::fetch_url(&self.wire, object, file, rest, deliver).await?,
                ByteOrigin::Store(file) => file.fetch(object, rest, deliver).await?,
            }
        }
        Ok(())
    }
}

fn offline() -> TransportError {
    ErrorKind::Offline.error("this needs the network, and weightfs is offline")
}

/// The error for a file that is not in the cache, if only the cache may be used.
fn absent() -> TransportError {
    ErrorKind::Offline.error("not in the cache, and --offline allows nothing else")
}
