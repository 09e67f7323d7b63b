//! An open bucket, and a key in it whose version is pinned.

use super::super::environment::Environment;
use super::super::validator::Validator;
use super::super::wire::Wire;
use crate::remote::location::{Location, StoreKind};
use object_store::ObjectStore;
use object_store::path::Path;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// What opening a bucket needs.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub wire: Wire,
    pub environment: Environment,
    pub anonymous: bool,
}

/// An open bucket or container.
#[derive(Debug)]
pub(in super::super) struct Bucket {
    pub kind: StoreKind,
    pub name: String,
    pub(in super::super::store) setup: Setup,
    pub(in super::super::store) store: Mutex<Opened>,
}

#[derive(Clone)]
pub(super) struct Opened {
    pub store: Arc<dyn ObjectStore>,
    /// Whether requests carry no credentials.
    pub anonymous: bool,
    /// The server, if it is not the service's own.
    pub endpoint: Option<String>,
}

/// Without the store, which shows secrets of identities.
impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store: _, anonymous, endpoint } = self;
        f.debug_struct("Opened").field("anonymous", anonymous).field("endpoint", endpoint).finish_non_exhaustive()
    }
}

impl Opened {
    /// Servers may have buckets of the same name.
    pub fn identity(&self, place: &Location) -> String {
        match &self.endpoint {
            Some(endpoint) => format!("{place} at {endpoint}"),
            None => place.to_string(),
        }
    }
}

/// A key whose version is pinned.
#[derive(Debug)]
pub(in super::super) struct RemoteFile {
    pub bucket: Arc<Bucket>,
    pub path: Path,
    pub validator: Validator,
    pub len: u64,
    /// Whether the current version is another one, so that the pinned one is asked for by its id.
    pub superseded: AtomicBool,
}
