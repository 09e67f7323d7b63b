//! An open bucket, a key in it whose version is pinned, and what goes wrong with them.

use std::error::Error as StdError;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use object_store::list::PaginatedListStore;
use object_store::path::Path;
use object_store::{ObjectStore, RetryConfig};

use super::super::error::{ErrorKind, TransportError, TransportResult, plain};
use super::super::wire::HttpWire;
use crate::remote::location::{RemoteLocation, StoreKind};

#[derive(Debug)]
pub(in super::super) struct StoreBucket {
    pub kind: StoreKind,
    pub name: String,
    pub wire: HttpWire,
    pub store: Mutex<OpenedBucket>,
}

#[derive(Clone)]
pub(in super::super) struct OpenedBucket {
    pub store: Arc<dyn ObjectStore>,
    /// The same store.
    pub lister: Arc<dyn PaginatedListStore>,
    pub anonymous: bool,
    /// The server, if it is not the service's own.
    pub endpoint: Option<String>,
}

/// Without the store, which shows secrets of identities.
impl fmt::Debug for OpenedBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store: _, lister: _, anonymous, endpoint } = self;
        f.debug_struct("Opened").field("anonymous", anonymous).field("endpoint", endpoint).finish_non_exhaustive()
    }
}

impl OpenedBucket {
    pub fn new<S: ObjectStore + PaginatedListStore>(
        built: object_store::Result<S>,
        kind: StoreKind,
        anonymous: bool,
        endpoint: Option<String>,
    ) -> TransportResult<OpenedBucket> {
        let store = Arc::new(built.map_err(|error| translate(error, kind))?);
        Ok(OpenedBucket { lister: store.clone(), store, anonymous, endpoint })
    }

    /// Servers may have buckets of the same name.
    pub fn identity(&self, place: &RemoteLocation) -> String {
        match &self.endpoint {
            Some(endpoint) => format!("{place} at {endpoint}"),
            None => place.to_string(),
        }
    }
}

/// Retries are the caller's.
pub(super) fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// A key whose version is pinned.
#[derive(Debug)]
pub(in super::super) struct BucketFile {
    pub bucket: Arc<StoreBucket>,
    pub path: Path,
    /// Whether the current version is another one, so that the pinned one is asked for by its id.
    pub superseded: AtomicBool,
}

/// The error that the connector or the credentials made; for others, the innermost cause without URLs. The texts of
/// `object_store` contain URLs with signatures.
pub(super) fn translate(error: object_store::Error, kind: StoreKind) -> TransportError {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(&error);
    let mut innermost: &dyn StdError = &error;
    while let Some(error) = cause {
        if let Some(ours) = error.downcast_ref::<TransportError>() {
            return advise(ours.clone(), kind);
        }
        innermost = error;
        cause = error.source();
    }
    let what = match &error {
        object_store::Error::NotFound { .. } => ErrorKind::Missing,
        object_store::Error::Precondition { .. } => ErrorKind::Changed,
        _ => ErrorKind::Protocol,
    };
    what.error(plain(&innermost.to_string()))
}

pub(super) fn advise(error: TransportError, kind: StoreKind) -> TransportError {
    let advice = match (error.kind, kind) {
        (ErrorKind::Credentials, StoreKind::S3) => {
            "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or AWS_SKIP_SIGNATURE=true for public data"
        }
        (ErrorKind::Credentials, StoreKind::Gcs) => {
            "; set GOOGLE_APPLICATION_CREDENTIALS, log in with gcloud, or set GOOGLE_SKIP_SIGNATURE=true for public data"
        }
        (ErrorKind::Credentials, StoreKind::Azure) => {
            "; set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or AZURE_SKIP_SIGNATURE=true for public data"
        }
        (ErrorKind::Forbidden, StoreKind::S3) if error.status == Some(403) => {
            "; without the permission to list the bucket, S3 says so for missing keys too"
        }
        _ => return error,
    };
    error.with_text(|text| format!("{text}{advice}"))
}
