//! Object stores: S3, Google Cloud Storage and Azure. Signatures and listings are those of `object_store`; its requests
//! go through our own connector, which checks each answer, so its retries and timeouts are off.

mod aws;
mod azure;
mod bucket;
mod connector;
mod failure;
mod google;
mod profile;

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore};

use super::body::{BodyEnd, ExpectedBody, Sink, pour};
use super::environment::EnvironmentCopy;
use super::error::{ErrorKind, TransportError};
use super::options::TransportOptions;
use super::tree::{ByteOrigin, ServerObject, ServerTree, TreeFile, TreeOrigin};
use super::validator::VersionValidator;
use super::wire::HttpWire;
use crate::remote::location::{RemoteLocation, StoreKind, StoreLocation};
pub(super) use bucket::{BucketFile, StoreBucket};
use bucket::{BucketSetup, OpenedBucket};
use connector::{PinnedRange, SeenVersion, StoreConnector, quoted_etag};
use failure::translate;

/// The most keys of a listing.
const KEYS: usize = 1_000_000;

/// The buckets that were opened.
#[derive(Debug)]
pub(super) struct OpenStores {
    setup: BucketSetup,
    open: Mutex<HashMap<(StoreKind, String), Arc<StoreBucket>>>,
}

impl OpenStores {
    pub(super) fn new(wire: HttpWire, options: &TransportOptions) -> OpenStores {
        let setup = BucketSetup { wire, environment: options.environment.clone(), anonymous: options.anonymous };
        OpenStores { setup, open: Mutex::default() }
    }

    fn bucket(&self, place: &StoreLocation) -> Result<Arc<StoreBucket>, TransportError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (place.kind, place.bucket.clone());
        if let Some(bucket) = open.get(&key) {
            return Ok(bucket.clone());
        }
        let store = Mutex::new(self.setup.open(place.kind, &place.bucket, None)?);
        let (kind, name, setup) = (place.kind, place.bucket.clone(), self.setup.clone());
        let bucket = Arc::new(StoreBucket { kind, name, setup, store });
        open.insert(key, bucket.clone());
        Ok(bucket)
    }

    /// The identity of a key in all versions.
    pub(super) fn identity(&self, place: &StoreLocation) -> Result<String, TransportError> {
        Ok(self.bucket(place)?.opened().identity(&RemoteLocation::Store(place.clone())))
    }

    /// Looks a key up, or lists it as a prefix if there is no such key.
    pub(super) async fn resolve(&self, place: &StoreLocation) -> Result<ServerTree, TransportError> {
        let bucket = self.bucket(place)?;
        if !place.key.is_empty() && !place.key.ends_with('/') {
            match bucket.head(place).await {
                Ok(object) => return bucket.tree_of_file(place, object),
                Err(error) if error.kind() == ErrorKind::Missing && error.status == Some(404) => {}
                Err(error) => return Err(error),
            }
        }
        let files = bucket.list(place).await?;
        if files.is_empty() {
            return Err(TransportError::new(ErrorKind::Missing, "there is no such key, and no key with this prefix"));
        }
        let folder = RemoteLocation::Store(place.clone());
        Ok(ServerTree::new(folder, None, files, TreeOrigin::Store(bucket)).complete(true))
    }
}

/// The files and directories that are read for credentials.
pub(super) fn store_reads(environment: &EnvironmentCopy) -> Vec<PathBuf> {
    [aws::aws_reads(environment), google::google_reads(environment), azure::azure_reads(environment)].concat()
}

/// The origin of the credentials for a store.
pub(super) fn store_credentials_found(
    kind: StoreKind,
    environment: &EnvironmentCopy,
) -> Result<Option<String>, TransportError> {
    match kind {
        StoreKind::S3 => aws::aws_credentials_found(environment),
        StoreKind::Gcs => Ok(google::google_credentials_found(environment)),
        StoreKind::Azure => Ok(azure::azure_credentials_found(environment)),
    }
}

/// Why a program must be run to get credentials for a location, if so.
pub(super) fn store_program(kind: StoreKind, environment: &EnvironmentCopy, anonymous: bool) -> Option<String> {
    match kind {
        StoreKind::S3 => aws::aws_program(environment, anonymous),
        StoreKind::Gcs => None,
        StoreKind::Azure => azure::azure_program(environment),
    }
}

impl BucketSetup {
    fn open(&self, kind: StoreKind, bucket: &str, region: Option<&str>) -> Result<OpenedBucket, TransportError> {
        let connector = StoreConnector::new(self.wire.clone());
        match kind {
            StoreKind::S3 => aws::open_s3(&self.environment, self.anonymous, bucket, region, connector),
            StoreKind::Gcs => google::open_google(&self.environment, self.anonymous, bucket, connector),
            StoreKind::Azure => azure::open_azure(&self.environment, self.anonymous, bucket, connector),
        }
    }
}

impl StoreBucket {
    fn opened(&self) -> OpenedBucket {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a request. A bucket in another region is asked again there.
    async fn get(&self, path: &Path, options: GetOptions) -> Result<GetResult, TransportError> {
        match self.opened().store.get_opts(path, options.clone()).await.map_err(|error| translate(error, self.kind)) {
            Err(error) if self.move_to(error.region.as_deref())? => {
                self.opened().store.get_opts(path, options).await.map_err(|error| translate(error, self.kind))
            }
            result => result,
        }
    }

    /// Opens the bucket in the region that its server named. The flag says whether there was one.
    fn move_to(&self, region: Option<&str>) -> Result<bool, TransportError> {
        let Some(region) = region else { return Ok(false) };
        let opened = self.setup.open(self.kind, &self.name, Some(region))?;
        log::info!("{}://{} is in region {region}", self.kind.scheme(), self.name);
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = opened;
        Ok(true)
    }

    async fn head(self: &Arc<Self>, place: &StoreLocation) -> Result<ServerObject, TransportError> {
        let path = key_path(&place.key)?;
        let found = match self.get(&path, GetOptions { head: true, ..GetOptions::default() }).await {
            // The answer to HEAD has no body, so the reason is asked for.
            Err(error)
                if matches!(error.kind(), ErrorKind::Forbidden | ErrorKind::Protocol) && error.status.is_some() =>
            {
                let options = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
                match self.get(&path, options).await {
                    Err(reason) if reason.status != Some(416) => return Err(reason),
                    _ => return Err(error),
                }
            }
            found => found?,
        };
        let validator = validator(&found);
        Ok(self.object(&RemoteLocation::Store(place.clone()), path, validator, found.meta.size))
    }

    fn object(
        self: &Arc<Self>,
        place: &RemoteLocation,
        path: Path,
        validator: VersionValidator,
        len: u64,
    ) -> ServerObject {
        let opened = self.opened();
        let identity = opened.identity(place);
        let superseded = AtomicBool::new(false);
        let remote = BucketFile { bucket: self.clone(), path, validator: validator.clone(), len, superseded };
        ServerObject::new(identity, validator, len, place, opened.anonymous, ByteOrigin::Store(remote))
    }

    fn tree_of_file(
        self: &Arc<Self>,
        place: &StoreLocation,
        object: ServerObject,
    ) -> Result<ServerTree, TransportError> {
        let location = RemoteLocation::Store(place.clone());
        let (Some(name), Some(folder)) = (location.file_name(), location.parent()) else {
            return Err(TransportError::new(ErrorKind::Invalid, "the key names no file"));
        };
        let file = TreeFile { path: name.clone(), len: Some(object.len()), object: Some(object) };
        Ok(ServerTree::new(folder, Some((name, location)), vec![file], TreeOrigin::Store(self.clone())))
    }

    async fn list(self: &Arc<Self>, place: &StoreLocation) -> Result<Vec<TreeFile>, TransportError> {
        match self.list_once(place).await {
            Err(error) if self.move_to(error.region.as_deref())? => self.list_once(place).await,
            result => result,
        }
    }

    async fn list_once(self: &Arc<Self>, place: &StoreLocation) -> Result<Vec<TreeFile>, TransportError> {
        let prefix = place.key.strip_suffix('/').unwrap_or(&place.key);
        let path = key_path(prefix)?;
        let store = self.opened().store;
        let mut keys = store.list(Some(&path));
        let mut files = Vec::new();
        let folder = RemoteLocation::Store(place.clone());
        while let Some(meta) = keys.try_next().await.map_err(|error| translate(error, self.kind))? {
            let key = meta.location.as_ref();
            let rest = if prefix.is_empty() { Some(key) } else { key.strip_prefix(prefix) };
            let Some(rest) = rest.map(|rest| rest.trim_start_matches('/')).filter(|rest| !rest.is_empty()) else {
                continue;
            };
            let Ok(location) = folder.join(rest) else { continue };
            if files.len() == KEYS {
                return Err(TransportError::protocol("the prefix has more than a million keys"));
            }
            let etag = meta.e_tag.as_deref().map(quoted_etag);
            let validator = VersionValidator { etag, version: meta.version, ..VersionValidator::default() };
            let object = self.object(&location, meta.location.clone(), validator, meta.size);
            files.push(TreeFile { path: rest.to_string(), len: Some(meta.size), object: Some(object) });
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(without_markers(files))
    }

    /// Pins a key that was not listed and returns its first bytes.
    pub(super) async fn probe(
        self: &Arc<Self>,
        place: RemoteLocation,
        first: u64,
    ) -> Result<(ServerObject, Vec<u8>), TransportError> {
        let RemoteLocation::Store(store) = &place else {
            return Err(TransportError::new(ErrorKind::Invalid, "not a key"));
        };
        let path = key_path(&store.key)?;
        let mut options = GetOptions { range: Some(GetRange::Bounded(0..first)), ..GetOptions::default() };
        options.extensions.insert(PinnedRange { range: 0..first, len: None, validator: None });
        let found = match self.get(&path, options).await {
            // An empty object has no satisfiable range.
            Err(error) if error.status == Some(416) => return Ok((self.head(store).await?, Vec::new())),
            found => found?,
        };
        let (validator, len) = (validator(&found), found.meta.size);
        let mut head = Vec::new();
        let expected = ExpectedBody::Exactly(found.range.end - found.range.start);
        let body = found.into_stream().map(|piece| piece.map_err(|error| translate(error, self.kind)));
        pour(body, expected, self.setup.wire.idle(), &mut |bytes| {
            head.extend_from_slice(bytes);
            ControlFlow::Continue(())
        })
        .await?;
        Ok((self.object(&place, path, validator, len), head))
    }
}

impl BucketFile {
    /// Delivers a range of the pinned version. If the key was overwritten and its bucket keeps versions, the pinned one
    /// is asked for by its id.
    pub(super) async fn fetch(&self, range: Range<u64>, sink: &mut Sink<'_>) -> Result<u64, TransportError> {
        let superseded = self.superseded.load(Ordering::Relaxed);
        let found = match self.open(&range, superseded).await {
            Err(changed) if changed.kind() == ErrorKind::Changed && !superseded && self.version().is_some() => {
                let found = self.open(&range, true).await.map_err(|error| match error.kind() {
                    ErrorKind::Transient { .. } => error,
                    _ => changed,
                })?;
                self.superseded.store(true, Ordering::Relaxed);
                found
            }
            found => found?,
        };
        let kind = self.bucket.kind;
        let body = found.into_stream().map(|piece| piece.map_err(|error| translate(error, kind)));
        let expected = ExpectedBody::Exactly(range.end - range.start);
        let (BodyEnd::Complete(delivered) | BodyEnd::Stopped(delivered)) =
            pour(body, expected, self.bucket.setup.wire.idle(), sink).await?;
        Ok(delivered)
    }

    /// The version id, if the bucket keeps versions.
    fn version(&self) -> Option<&str> {
        self.validator.version.as_deref().filter(|version| *version != "null")
    }

    async fn open(&self, range: &Range<u64>, by_version: bool) -> Result<GetResult, TransportError> {
        let mut options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        if by_version {
            options.version = self.version().map(str::to_string);
        } else {
            options.if_match = self.validator.strong().map(str::to_string);
        }
        let (len, validator) = (Some(self.len), Some(self.validator.clone()));
        options.extensions.insert(PinnedRange { range: range.clone(), len, validator });
        self.bucket.get(&self.path, options).await
    }
}

/// The version that an answer is of.
fn validator(found: &GetResult) -> VersionValidator {
    let seen = found.extensions.get::<SeenVersion>().map(|seen| seen.0.clone()).unwrap_or_default();
    VersionValidator { version: found.meta.version.clone(), etag: seen.etag.or(found.meta.e_tag.clone()), ..seen }
}

fn key_path(key: &str) -> Result<Path, TransportError> {
    Path::parse(key)
        .map_err(|_| TransportError::new(ErrorKind::Invalid, "keys with empty components, `.` or `..` cannot be read"))
}

/// Leaves out empty keys that stand for a directory, as consoles make them.
fn without_markers(files: Vec<TreeFile>) -> Vec<TreeFile> {
    let is_marker: Vec<bool> = files
        .iter()
        .map(|file| {
            let inside = format!("{}/", file.path);
            let next = files.partition_point(|other| other.path.as_str() < inside.as_str());
            file.len == Some(0) && files.get(next).is_some_and(|other| other.path.starts_with(&inside))
        })
        .collect();
    files.into_iter().zip(is_marker).filter(|(_, marker)| !marker).map(|(file, _)| file).collect()
}
