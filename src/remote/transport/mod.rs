//! Remote files: lists them, pins their versions, and fetches ranges of their bytes. One attempt per call: retries, the
//! order of requests and the cache are elsewhere.
//!
//! `Client::resolve` pins the version of what a location names, and lists it. `Client::probe` finds out length and
//! version of one file along with its first bytes. `Client::fetch` delivers one range, whose every answer is checked
//! against the pinned version. Credentials go only to the server they are for, and no error or `Debug` text contains
//! one.

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
pub use environment::Environment;
pub use error::{Error, Kind};
pub use options::Options;
pub use tree::{File, Object, Tree};
pub use validator::Certainty;

use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::Arc;

use super::location::{self, Location};
use tree::{Origin, Source};

/// The files, and the directories with all that is below them, that are read for credentials and instead of fetching.
pub fn reads(options: &Options) -> Vec<PathBuf> {
    let environment = &options.environment;
    let mut reads = [web::reads(environment), hub::reads(environment), store::reads(environment)].concat();
    reads.extend(options.token_file.clone());
    reads
}

/// Why a program must be run to get credentials for a location, if so.
pub fn program(options: &Options, location: &Location) -> Option<String> {
    match location {
        Location::Store(store) => store::program(store.kind, &options.environment, options.anonymous),
        _ => None,
    }
}

/// Resolves and fetches. Clones share connections and credentials.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    offline: bool,
    wire: wire::Wire,
    hub: hub::Hub,
    web: web::Web,
    stores: store::Stores,
}

impl Client {
    /// Makes a client. Reads no credentials yet and sends nothing.
    ///
    /// # Errors
    /// A variable such as `HF_ENDPOINT` is invalid.
    pub fn new(options: Options) -> Result<Client, Error> {
        let wire = wire::Wire::new(
            &options.user_agent,
            options.connect_timeout,
            options.idle_timeout,
            options.connections.max(1),
        );
        let hub = hub::Hub::new(wire.clone(), &options)?;
        let web = web::Web::new(wire.clone(), &options);
        let stores = store::Stores::new(wire.clone(), &options);
        Ok(Client { inner: Arc::new(Inner { offline: options.offline, wire, hub, web, stores }) })
    }

    /// How many requests were sent so far, to servers of files and of credentials.
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
    /// See [`Kind`].
    pub async fn resolve(&self, location: &Location) -> Result<Tree, Error> {
        if location.is_insecure() {
            log::warn!(
                "{location}: unencrypted http: others on the network path can read and change what is sent; use https"
            );
        }
        let tree = match location {
            Location::Hub(hub) => self.inner.hub.resolve(hub).await,
            Location::Web(_) | Location::Store(_) if self.inner.offline => Err(offline()),
            Location::Web(_) => self.inner.web.resolve(location),
            Location::Store(store) => self.inner.stores.resolve(store).await,
        };
        tree.map_err(|error| error.at(location))
    }

    /// The identity that the object at `location` has in every version. Sends nothing, so that a cache can be searched
    /// for what it has while there is no network.
    ///
    /// # Errors
    /// The store of the location is not configured.
    pub fn identity(&self, location: &Location) -> Result<String, Error> {
        match location {
            Location::Hub(hub) => Ok(self.inner.hub.identity(hub)),
            Location::Web(web) => Ok(web::identity(web.url())),
            Location::Store(store) => self.inner.stores.identity(store),
        }
    }

    /// Pins a file of the tree and returns its first bytes, `first` at most: one request, which gives length, version
    /// and head. `path` is relative to the tree and need not be listed, if the tree is not complete.
    ///
    /// # Errors
    /// See [`Kind`]; `Missing` for what a complete tree does not list.
    pub async fn probe(&self, tree: &Tree, path: &str, first: u64) -> Result<(Object, Vec<u8>), Error> {
        let place = tree.place(path);
        self.probe_inner(tree, path, first.max(1)).await.map_err(|error| error.at(&place))
    }

    async fn probe_inner(&self, tree: &Tree, path: &str, first: u64) -> Result<(Object, Vec<u8>), Error> {
        location::check_path(path)?;
        match tree.file(path) {
            Some(File { object: Some(object), .. }) => {
                let mut head = Vec::new();
                let range = 0..first.min(object.len());
                self.fetch(object, range, &mut |bytes| {
                    head.extend_from_slice(bytes);
                    ControlFlow::Continue(())
                })
                .await?;
                return Ok((object.clone(), head));
            }
            None if tree.is_complete() => return Err(Error::new(Kind::Missing, "there is no such file")),
            _ if self.inner.offline => return Err(offline()),
            _ => {}
        }
        match &tree.origin {
            Origin::Hub(snapshot) => self.inner.hub.probe(snapshot, tree.place(path), path, first).await,
            Origin::Web => self.inner.web.probe(tree.place(path), first).await,
            Origin::Store(bucket) => bucket.probe(tree.place(path), first).await,
        }
    }

    /// Delivers one range of a file to `sink`, in order, while it arrives. One attempt. Returns how many bytes were
    /// delivered: all of the range, unless the sink ended it. Dropping the future ends the request.
    ///
    /// # Errors
    /// See [`Kind`]. [`Error::delivered`] is the number of bytes that the sink received before; they are valid.
    pub async fn fetch(&self, object: &Object, range: Range<u64>, sink: &mut Sink<'_>) -> Result<u64, Error> {
        let fetched = if range.start > range.end || range.end > object.len() {
            Err(Error::new(Kind::Invalid, format!("the range {range:?} is outside the file of {} bytes", object.len())))
        } else if range.is_empty() {
            Ok(0)
        } else {
            match object.source() {
                Source::Local(path) => tree::read_local(path, range, object.len(), sink),
                _ if self.inner.offline => Err(offline()),
                Source::Hub(file) => self.inner.hub.fetch(file, range, sink).await,
                Source::Web(file) => self.inner.web.fetch(file, range, sink).await,
                Source::Store(file) => file.fetch(range, sink).await,
            }
        };
        fetched.map_err(|error| error.at(&object.name()))
    }
}

fn offline() -> Error {
    Error::new(Kind::Offline, "this needs the network, and weightfs is offline")
}
