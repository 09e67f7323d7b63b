//! Remote files: lists them, pins their versions, and fetches ranges of their bytes. One attempt per call: retries, the
//! order of requests and the cache are elsewhere.
//!
//! `TransportClient::resolve` pins the version of what a location names, and lists it. `TransportClient::probe` finds
//! out length and version of one file along with its first bytes. `TransportClient::fetch` delivers one range, whose
//! every answer is checked against the pinned version. Credentials go only to the server they are for, and no error or
//! `Debug` text contains one.

mod body;
mod credentials;
mod environment;
mod error;
mod hub;
mod link;
mod netrc;
mod options;
mod range;
mod retry;
mod secret;
mod store;
mod tree;
mod url_file;
mod validator;
mod web;
mod wire;

pub use body::Sink;
pub use credentials::credentials;
pub use environment::EnvironmentCopy;
pub use error::{ErrorKind, TransportError};
pub use options::TransportOptions;
pub use tree::{ServerObject, ServerTree, TreeFile};
pub use validator::ChangeCertainty;

use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::Arc;

use super::location::{self, RemoteLocation};
use tree::{ByteOrigin, TreeOrigin};

/// The files, and the directories with all that is below them, that are read for credentials and instead of fetching.
pub fn transport_reads(options: &TransportOptions) -> Vec<PathBuf> {
    let environment = &options.environment;
    let mut reads =
        [web::web_reads(environment), hub::hub_reads(environment), store::store_reads(environment)].concat();
    reads.extend(options.token_file.clone());
    reads
}

/// Why a program must be run to get credentials for a location, if so.
pub fn credential_program(options: &TransportOptions, location: &RemoteLocation) -> Option<String> {
    match location {
        RemoteLocation::Store(store) => store::store_program(store.kind, &options.environment, options.anonymous),
        _ => None,
    }
}

/// Resolves and fetches. Clones share connections and credentials.
#[derive(Clone, Debug)]
pub struct TransportClient {
    inner: Arc<TransportInner>,
}

#[derive(Debug)]
struct TransportInner {
    offline: bool,
    wire: wire::HttpWire,
    hub: hub::HubTransport,
    web: web::WebTransport,
    stores: store::OpenStores,
}

impl TransportClient {
    /// Makes a client. Reads no credentials yet and sends nothing.
    ///
    /// # Errors
    /// A variable such as `HF_ENDPOINT` is invalid.
    pub fn new(options: TransportOptions) -> Result<TransportClient, TransportError> {
        let wire = wire::HttpWire::new(
            &options.user_agent,
            options.connect_timeout,
            options.idle_timeout,
            options.connections.max(1),
        );
        let hub = hub::HubTransport::new(wire.clone(), &options)?;
        let web = web::WebTransport::new(wire.clone(), &options);
        let stores = store::OpenStores::new(wire.clone(), &options);
        Ok(TransportClient { inner: Arc::new(TransportInner { offline: options.offline, wire, hub, web, stores }) })
    }

    /// Number of requests that were sent so far, to servers of files and of credentials.
    pub fn requests(&self) -> u64 {
        self.inner.wire.requests()
    }

    /// Pins the version of what `location` names, and lists the files there.
    ///
    /// On the Hub this is the commit and one listing: of the directory that holds a named file, or of a whole
    /// directory. Object stores list a prefix and look up a key. A URL costs no request: its file is pinned when it is
    /// probed.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn resolve(&self, location: &RemoteLocation) -> Result<ServerTree, TransportError> {
        if location.is_insecure() {
            log::warn!(
                "{location}: unencrypted http: others on the network path can read and change what is sent; use https"
            );
        }
        let tree = match location {
            RemoteLocation::Hub(hub) => self.inner.hub.resolve(hub).await,
            RemoteLocation::Web(_) | RemoteLocation::Store(_) if self.inner.offline => Err(offline()),
            RemoteLocation::Web(_) => self.inner.web.resolve(location),
            RemoteLocation::Store(store) => self.inner.stores.resolve(store).await,
        };
        tree.map_err(|error| error.at(location))
    }

    /// The identity that the object at `location` has in every version. Sends nothing, so that a cache can be searched
    /// for what it has while there is no network.
    ///
    /// # Errors
    /// The store of the location is not configured.
    pub fn identity(&self, location: &RemoteLocation) -> Result<String, TransportError> {
        match location {
            RemoteLocation::Hub(hub) => Ok(self.inner.hub.identity(hub)),
            RemoteLocation::Web(web) => Ok(web::identity(web.url())),
            RemoteLocation::Store(store) => self.inner.stores.identity(store),
        }
    }

    /// Pins a file of the tree and returns its first bytes, `first` at most: one request, which gives length, version
    /// and head. `path` is relative to the tree and need not be listed, if the tree is not complete.
    ///
    /// # Errors
    /// See [`ErrorKind`]; `Missing` for what a complete tree does not list.
    pub async fn probe(
        &self,
        tree: &ServerTree,
        path: &str,
        first: u64,
    ) -> Result<(ServerObject, Vec<u8>), TransportError> {
        let place = tree.place(path);
        self.probe_inner(tree, path, first.max(1)).await.map_err(|error| error.at(&place))
    }

    async fn probe_inner(
        &self,
        tree: &ServerTree,
        path: &str,
        first: u64,
    ) -> Result<(ServerObject, Vec<u8>), TransportError> {
        location::check_path(path)?;
        match tree.file(path) {
            Some(TreeFile { object: Some(object), .. }) => {
                let mut head = Vec::new();
                let range = 0..first.min(object.len());
                self.fetch(object, range, &mut |bytes| {
                    head.extend_from_slice(bytes);
                    ControlFlow::Continue(())
                })
                .await?;
                return Ok((object.clone(), head));
            }
            None if tree.is_complete() => return Err(TransportError::new(ErrorKind::Missing, "there is no such file")),
            _ if self.inner.offline => return Err(offline()),
            _ => {}
        }
        match &tree.origin {
            TreeOrigin::Hub(snapshot) => self.inner.hub.probe(snapshot, tree.place(path), path, first).await,
            TreeOrigin::Web => self.inner.web.probe(tree.place(path), first).await,
            TreeOrigin::Store(bucket) => bucket.probe(tree.place(path), first).await,
        }
    }

    /// Delivers one range of a file to `sink`, in order, while it arrives. One attempt. Returns how many bytes were
    /// delivered: all of the range, unless the sink ended it. Dropping the future ends the request.
    ///
    /// # Errors
    /// See [`ErrorKind`]. [`TransportError::delivered`] is the number of bytes that the sink received before; they are
    /// valid.
    pub async fn fetch(
        &self,
        object: &ServerObject,
        range: Range<u64>,
        sink: &mut Sink<'_>,
    ) -> Result<u64, TransportError> {
        let fetched = if range.start > range.end || range.end > object.len() {
            Err(TransportError::new(
                ErrorKind::Invalid,
                format!("the range {range:?} is outside the file of {} bytes", object.len()),
            ))
        } else if range.is_empty() {
            Ok(0)
        } else {
            match object.source() {
                ByteOrigin::Local(path) => tree::read_local(path, range, object.len(), sink),
                _ if self.inner.offline => Err(offline()),
                ByteOrigin::Hub(file) => self.inner.hub.fetch(file, range, sink).await,
                ByteOrigin::Web(file) => self.inner.web.fetch(file, range, sink).await,
                ByteOrigin::Store(file) => file.fetch(range, sink).await,
            }
        };
        fetched.map_err(|error| error.at(&object.name()))
    }
}

fn offline() -> TransportError {
    TransportError::new(ErrorKind::Offline, "this needs the network, and weightfs is offline")
}
