//! An open bucket, and a key in it whose version is pinned.

use super::super::environment::EnvironmentCopy;
use super::super::validator::VersionValidator;
use super::super::wire::HttpWire;
use crate::remote::location::{RemoteLocation, StoreKind};
use object_store::ObjectStore;
use object_store::path::Path;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// The settings for opening a bucket.
#[derive(Clone, Debug)]
pub(super) struct BucketSetup {
    pub wire: HttpWire,
    pub environment: EnvironmentCopy,
    pub anonymous: bool,
}

/// An open bucket or container.
#[derive(Debug)]
pub(in super::super) struct StoreBucket {
    pub kind: StoreKind,
    pub name: String,
    pub(in super::super::store) setup: BucketSetup,
    pub(in super::super::store) store: Mutex<OpenedBucket>,
}

#[derive(Clone)]
pub(super) struct OpenedBucket {
    pub store: Arc<dyn ObjectStore>,
    /// Whether requests carry no credentials.
    pub anonymous: bool,
    /// The server, if it is not the service's own.
    pub endpoint: Option<String>,
}

/// Without the store, which shows secrets of identities.
impl fmt::Debug for OpenedBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store: _, anonymous, endpoint } = self;
        f.debug_struct("Opened").field("anonymous", anonymous).field("endpoint", endpoint).finish_non_exhaustive()
    }
}

impl OpenedBucket {
    /// Servers may have buckets of the same name.
    pub fn identity(&self, place: &RemoteLocation) -> String {
        match &self.endpoint {
            Some(endpoint) => format!("{place} at {endpoint}"),
            None => place.to_string(),
        }
    }
}

/// A key whose version is pinned.
#[derive(Debug)]
pub(in super::super) struct BucketFile {
    pub bucket: Arc<StoreBucket>,
    pub path: Path,
    pub validator: VersionValidator,
    pub len: u64,
    /// Whether the current version is another one, so that the pinned one is asked for by its id.
    pub superseded: AtomicBool,
}
