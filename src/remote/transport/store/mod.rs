//! Object stores: S3, Google Cloud Storage and Azure. Signatures and listings are those of `object_store`; its requests
//! go through our own connector, which checks each answer, so its retries and timeouts are off.

mod aws;
mod azure;
mod bucket;
mod connector;
mod google;
mod listing;
mod profile;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt;
use object_store::list::{PaginatedListOptions, PaginatedListResult};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore};

use super::body::{BodyPieces, ExpectedBody, Sink, collect_body, pour};
use super::range::{ResponsePart, WantedRange};
use super::skipped::SkippedNames;
use super::tree::{ByteOrigin, ProbedObject, ServerFiles, ServerObject, ServerTree, TreeOrigin};
use super::validator::VersionValidator;
use super::wire::HttpWire;
use super::{EnvironmentCopy, ErrorKind, TransportResult};
use crate::remote::location::{RemoteLocation, StoreKind, StoreLocation};
pub(super) use bucket::{BucketFile, StoreBucket};
use bucket::{OpenedBucket, translate};
use connector::quoted_etag;
use listing::ListingRequest;

const KEYS: usize = 1_000_000;

#[derive(Debug)]
pub(super) struct OpenStores {
    pub wire: HttpWire,
    pub open: Mutex<HashMap<(StoreKind, String), Arc<StoreBucket>>>,
}

impl OpenStores {
    fn bucket(&self, place: &StoreLocation) -> TransportResult<Arc<StoreBucket>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (place.kind, place.bucket.clone());
        if let Some(bucket) = open.get(&key) {
            return Ok(bucket.clone());
        }
        let (kind, name, wire) = (place.kind, place.bucket.clone(), self.wire.clone());
        let store = Mutex::new(open_bucket(&wire, kind, &name, None)?);
        let bucket = Arc::new(StoreBucket { kind, name, wire, store });
        open.insert(key, bucket.clone());
        Ok(bucket)
    }

    pub fn identity(&self, place: &StoreLocation) -> TransportResult<String> {
        Ok(self.bucket(place)?.opened().identity(&RemoteLocation::Store(place.clone())))
    }

    /// Looks a key up, or lists it as a prefix if there is no such key.
    pub async fn resolve(&self, place: &StoreLocation) -> TransportResult<ServerTree> {
        let bucket = self.bucket(place)?;
        if !place.key.is_empty() && !place.key.ends_with('/') {
            match bucket.head(place).await {
                Ok(object) => {
                    let location = RemoteLocation::Store(place.clone());
                    let tree = ServerTree::of_file(location, Some(object), TreeOrigin::Store(bucket));
                    return tree.ok_or_else(|| ErrorKind::Invalid.error("the key names no file"));
                }
                Err(error) if error.kind == ErrorKind::Missing && error.status == Some(404) => {}
                Err(error) => return Err(error),
            }
        }
        let files = bucket.list(place).await?;
        if files.is_empty() {
            return Err(ErrorKind::Missing.error("there is no such key, and no key with this prefix"));
        }
        let folder = RemoteLocation::Store(place.clone());
        let (path, origin) = (String::new(), TreeOrigin::Store(bucket));
        Ok(ServerTree { folder, path, named: None, files, is_complete: true, origin })
    }
}

pub(super) fn store_reads(environment: &EnvironmentCopy) -> Vec<PathBuf> {
    [aws::aws_reads(environment), google::google_reads(environment), azure::azure_reads(environment)].concat()
}

pub(super) fn store_credentials_found(
    kind: StoreKind,
    environment: &EnvironmentCopy,
) -> TransportResult<Option<String>> {
    match kind {
        StoreKind::S3 => aws::aws_credentials_found(environment),
        StoreKind::Gcs => Ok(google::google_credentials_found(environment)),
        StoreKind::Azure => Ok(azure::azure_credentials_found(environment)),
    }
}

pub(super) fn store_program(kind: StoreKind, environment: &EnvironmentCopy) -> Option<String> {
    match kind {
        StoreKind::S3 => aws::aws_program(environment),
        StoreKind::Gcs => None,
        StoreKind::Azure => azure::azure_program(environment),
    }
}

fn open_bucket(wire: &HttpWire, kind: StoreKind, bucket: &str, region: Option<&str>) -> TransportResult<OpenedBucket> {
    match kind {
        StoreKind::S3 => aws::open_s3(wire, bucket, region),
        StoreKind::Gcs => google::open_google(wire, bucket),
        StoreKind::Azure => azure::open_azure(wire, bucket),
    }
}

impl StoreBucket {
    fn opened(&self) -> OpenedBucket {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a request. A bucket in another region is asked again there.
    async fn get(&self, path: &Path, options: GetOptions) -> TransportResult<GetResult> {
        match self.get_once(path, options.clone()).await {
            Err(error) if self.move_to(error.region.as_deref())? => self.get_once(path, options).await,
            result => result,
        }
    }

    async fn get_once(&self, path: &Path, options: GetOptions) -> TransportResult<GetResult> {
        self.opened().store.get_opts(path, options).await.map_err(|error| translate(error, self.kind))
    }

    /// Opens the bucket in the region that its server named. The flag says whether there was one.
    fn move_to(&self, region: Option<&str>) -> TransportResult<bool> {
        let Some(region) = region else { return Ok(false) };
        let opened = open_bucket(&self.wire, self.kind, &self.name, Some(region))?;
        log::info!("{}://{} is in region {region}", self.kind.scheme(), self.name);
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = opened;
        Ok(true)
    }

    async fn head(self: &Arc<Self>, place: &StoreLocation) -> TransportResult<Arc<ServerObject>> {
        let path = key_path(&place.key)?;
        let found = match self.get(&path, GetOptions { head: true, ..GetOptions::default() }).await {
            // The answer to HEAD has no body, so the reason is asked for.
            Err(error)
                if matches!(error.kind, ErrorKind::Forbidden | ErrorKind::Protocol) && error.status.is_some() =>
            {
                let options = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
                let reason = self.get(&path, options).await.err().filter(|reason| reason.status != Some(416));
                return Err(reason.unwrap_or(error));
            }
            found => found?,
        };
        Ok(self.object(&RemoteLocation::Store(place.clone()), path, validator(&found), found.meta.size))
    }

    fn object(
        self: &Arc<Self>,
        place: &RemoteLocation,
        path: Path,
        validator: VersionValidator,
        len: u64,
    ) -> Arc<ServerObject> {
        let opened = self.opened();
        let origin = ByteOrigin::Store(BucketFile { bucket: self.clone(), path, superseded: AtomicBool::new(false) });
        ServerObject::new(opened.identity(place), validator, len, place, opened.anonymous, origin)
    }

    async fn list(self: &Arc<Self>, place: &StoreLocation) -> TransportResult<ServerFiles> {
        match self.list_once(place).await {
            Err(error) if self.move_to(error.region.as_deref())? => self.list_once(place).await,
            result => result,
        }
    }

    async fn list_once(self: &Arc<Self>, place: &StoreLocation) -> TransportResult<ServerFiles> {
        let prefix = place.key.strip_suffix('/').unwrap_or(&place.key);
        key_path(prefix)?;
        let (lister, folder) = (self.opened().lister, RemoteLocation::Store(place.clone()));
        let below = (!prefix.is_empty()).then(|| format!("{prefix}/"));
        let (mut files, mut skipped, mut options) =
            (BTreeMap::new(), SkippedNames::default(), PaginatedListOptions::default());
        options.extensions.insert(ListingRequest);
        loop {
            let page = lister.list_paginated(below.as_deref(), options.clone()).await;
            let PaginatedListResult { result, page_token } = page.map_err(|error| translate(error, self.kind))?;
            result.extensions.get().into_iter().for_each(|names| skipped.append(names));
            for meta in result.objects {
                let rest = meta.location.as_ref().strip_prefix(prefix).map(|rest| rest.trim_start_matches('/'));
                let Some(rest) = rest.filter(|rest| !rest.is_empty()) else { continue };
                let Ok(location) = folder.join(rest) else {
                    skipped.add(meta.location.as_ref());
                    continue;
                };
                if files.len() == KEYS {
                    return Err(ErrorKind::Protocol.error("the prefix has more than a million keys"));
                }
                let etag = meta.e_tag.as_deref().map(quoted_etag);
                let validator = VersionValidator { etag, version: meta.version, ..VersionValidator::default() };
                let object = self.object(&location, meta.location.clone(), validator, meta.size);
                files.insert(rest.to_string(), Some(object));
            }
            if page_token.is_none() {
                break;
            }
            if page_token == options.page_token {
                return Err(ErrorKind::Protocol.error("the server repeats a page of its listing"));
            }
            options.page_token = page_token;
        }
        let hidden = remove_directories(&mut files);
        skipped.warn(&folder, "keys with empty components, `.`, `..`, control characters or a slash at the end");
        hidden.warn(&folder, "objects with other keys below theirs");
        if files.is_empty() && !skipped.is_empty() {
            return Err(ErrorKind::Missing.error("no key with this prefix can be shown"));
        }
        Ok(files)
    }

    /// Pins a key that was not listed and returns its first bytes.
    pub async fn probe(self: &Arc<Self>, place: RemoteLocation, first: u64) -> TransportResult<ProbedObject> {
        let RemoteLocation::Store(store) = &place else { return Err(ErrorKind::Invalid.error("not a key")) };
        let path = key_path(&store.key)?;
        let found = match self.get(&path, range_options(WantedRange::first(first))).await {
            // An empty object has no satisfiable range.
            Err(error) if error.status == Some(416) => return Ok((self.head(store).await?, Vec::new())),
            found => found?,
        };
        let object = self.object(&place, path, validator(&found), found.meta.size);
        let expected = expected_body(&found);
        let head = collect_body(self.body(found), expected, self.wire.idle).await?;
        Ok((object, head))
    }

    fn body(&self, found: GetResult) -> BodyPieces {
        let kind = self.kind;
        found.into_stream().map(move |piece| piece.map_err(|error| translate(error, kind))).boxed()
    }
}

impl BucketFile {
    /// Delivers a range, or a first part of it, of the pinned version. If the key was overwritten and its bucket keeps
    /// versions, the pinned one is asked for by its id.
    pub async fn fetch(&self, object: &ServerObject, range: Range<u64>, sink: &mut Sink<'_>) -> TransportResult<()> {
        let validator = &object.validator;
        // The version id, if the bucket keeps versions.
        let version = validator.version.clone().filter(|version| version != "null");
        let wanted = WantedRange { range, len: Some(object.len), validator: Some(validator.clone()) };
        let current = GetOptions { if_match: validator.strong().map(str::to_string), ..range_options(wanted.clone()) };
        let pinned = GetOptions { version: version.clone(), ..range_options(wanted) };
        let is_superseded = self.superseded.load(Ordering::Relaxed);
        let options = if is_superseded { pinned.clone() } else { current };
        let found = match self.bucket.get(&self.path, options).await {
            Err(changed) if changed.kind == ErrorKind::Changed && !is_superseded && version.is_some() => {
                let found = self.bucket.get(&self.path, pinned).await.map_err(|error| match error.kind {
                    ErrorKind::Transient { .. } => error,
                    _ => changed,
                })?;
                self.superseded.store(true, Ordering::Relaxed);
                found
            }
            found => found?,
        };
        let expected = expected_body(&found);
        pour(self.bucket.body(found), expected, self.bucket.wire.idle, sink).await
    }
}

/// The options of a request for a range. The connector checks the answer against `wanted`.
fn range_options(wanted: WantedRange) -> GetOptions {
    let mut options = GetOptions { range: Some(GetRange::Bounded(wanted.range.clone())), ..GetOptions::default() };
    options.extensions.insert(wanted);
    options
}

fn validator(found: &GetResult) -> VersionValidator {
    let seen = found.extensions.get::<VersionValidator>().cloned().unwrap_or_default();
    VersionValidator { version: found.meta.version.clone(), etag: seen.etag.or(found.meta.e_tag.clone()), ..seen }
}

/// The length of the part that the server sends.
fn expected_body(found: &GetResult) -> ExpectedBody {
    let whole = ExpectedBody::Exactly(found.range.end - found.range.start);
    found.extensions.get::<ResponsePart>().map_or(whole, ResponsePart::expected_body)
}

fn key_path(key: &str) -> TransportResult<Path> {
    Path::parse(key).map_err(|_| ErrorKind::Invalid.error("keys with empty components, `.` or `..` cannot be read"))
}

/// Removes the objects that are directories too, because other keys are below them. Returns those with bytes; empty
/// ones are markers of directories, as consoles make them.
fn remove_directories(files: &mut ServerFiles) -> SkippedNames {
    let mut hidden = SkippedNames::default();
    let has_keys_below = |path: &String| {
        let inside = format!("{path}/");
        files.range(inside.clone()..).next().is_some_and(|(next, _)| next.starts_with(&inside))
    };
    let directories: Vec<String> = files.keys().filter(|path| has_keys_below(path)).cloned().collect();
    for path in directories {
        if files.remove(&path).flatten().is_some_and(|object| object.len > 0) {
            hidden.add(&path);
        }
    }
    hidden
}
