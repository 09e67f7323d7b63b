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

use super::body::{End, Expected, Sink, pour};
use super::environment::Environment;
use super::error::{Error, Kind};
use super::options::Options;
use super::tree::{File, Object, Origin, Source, Tree};
use super::validator::Validator;
use super::wire::Wire;
use crate::remote::location::{Location, StoreKind, StoreLocation};
pub(super) use bucket::{Bucket, RemoteFile};
use bucket::{Opened, Setup};
use connector::{Connector, Pinned, Seen, quoted_etag};
use failure::translate;

/// The most keys of a listing.
const KEYS: usize = 1_000_000;

/// The buckets that were opened.
#[derive(Debug)]
pub(super) struct Stores {
    setup: Setup,
    open: Mutex<HashMap<(StoreKind, String), Arc<Bucket>>>,
}

impl Stores {
    pub(super) fn new(wire: Wire, options: &Options) -> Stores {
        let setup = Setup { wire, environment: options.environment.clone(), anonymous: options.anonymous };
        Stores { setup, open: Mutex::default() }
    }

    fn bucket(&self, place: &StoreLocation) -> Result<Arc<Bucket>, Error> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (place.kind, place.bucket.clone());
        if let Some(bucket) = open.get(&key) {
            return Ok(bucket.clone());
        }
        let store = Mutex::new(self.setup.open(place.kind, &place.bucket, None)?);
        let (kind, name, setup) = (place.kind, place.bucket.clone(), self.setup.clone());
        let bucket = Arc::new(Bucket { kind, name, setup, store });
        open.insert(key, bucket.clone());
        Ok(bucket)
    }

    /// What identifies a key in all versions.
    pub(super) fn identity(&self, place: &StoreLocation) -> Result<String, Error> {
        Ok(self.bucket(place)?.opened().identity(&Location::Store(place.clone())))
    }

    /// Looks a key up, or lists it as a prefix if there is no such key.
    pub(super) async fn resolve(&self, place: &StoreLocation) -> Result<Tree, Error> {
        let bucket = self.bucket(place)?;
        if !place.key.is_empty() && !place.key.ends_with('/') {
            match bucket.head(place).await {
                Ok(object) => return bucket.tree_of_file(place, object),
                Err(error) if error.kind() == Kind::Missing && error.status == Some(404) => {}
                Err(error) => return Err(error),
            }
        }
        let files = bucket.list(place).await?;
        if files.is_empty() {
            return Err(Error::new(Kind::Missing, "there is no such key, and no key with this prefix"));
        }
        let folder = Location::Store(place.clone());
        Ok(Tree::new(folder, None, files, Origin::Store(bucket)).complete(true))
    }
}

/// The files and directories that are read for credentials.
pub(super) fn reads(environment: &Environment) -> Vec<PathBuf> {
    [aws::reads(environment), google::reads(environment), azure::reads(environment)].concat()
}

/// Where the credentials for a store come from.
pub(super) fn found(kind: StoreKind, environment: &Environment) -> Result<Option<String>, Error> {
    match kind {
        StoreKind::S3 => aws::found(environment),
        StoreKind::Gcs => Ok(google::found(environment)),
        StoreKind::Azure => Ok(azure::found(environment)),
    }
}

/// Why a program must be run to get credentials for a location, if so.
pub(super) fn program(kind: StoreKind, environment: &Environment, anonymous: bool) -> Option<String> {
    match kind {
        StoreKind::S3 => aws::program(environment, anonymous),
        StoreKind::Gcs => None,
        StoreKind::Azure => azure::program(environment),
    }
}

impl Setup {
    fn open(&self, kind: StoreKind, bucket: &str, region: Option<&str>) -> Result<Opened, Error> {
        let connector = Connector::new(self.wire.clone());
        match kind {
            StoreKind::S3 => aws::open(&self.environment, self.anonymous, bucket, region, connector),
            StoreKind::Gcs => google::open(&self.environment, self.anonymous, bucket, connector),
            StoreKind::Azure => azure::open(&self.environment, self.anonymous, bucket, connector),
        }
    }
}

impl Bucket {
    fn opened(&self) -> Opened {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a request. A bucket in another region is asked again there.
    async fn get(&self, path: &Path, options: GetOptions) -> Result<GetResult, Error> {
        match self.opened().store.get_opts(path, options.clone()).await.map_err(|error| translate(error, self.kind)) {
            Err(error) if self.move_to(error.region.as_deref())? => {
                self.opened().store.get_opts(path, options).await.map_err(|error| translate(error, self.kind))
            }
            result => result,
        }
    }

    /// Opens the bucket in the region that its server named. The flag says whether there was one.
    fn move_to(&self, region: Option<&str>) -> Result<bool, Error> {
        let Some(region) = region else { return Ok(false) };
        let opened = self.setup.open(self.kind, &self.name, Some(region))?;
        log::info!("{}://{} is in region {region}", self.kind.scheme(), self.name);
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = opened;
        Ok(true)
    }

    async fn head(self: &Arc<Self>, place: &StoreLocation) -> Result<Object, Error> {
        let path = key_path(&place.key)?;
        let found = match self.get(&path, GetOptions { head: true, ..GetOptions::default() }).await {
            // The answer to HEAD has no body, so the reason is asked for.
            Err(error) if matches!(error.kind(), Kind::Forbidden | Kind::Protocol) && error.status.is_some() => {
                let options = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
                match self.get(&path, options).await {
                    Err(reason) if reason.status != Some(416) => return Err(reason),
                    _ => return Err(error),
                }
            }
            found => found?,
        };
        let validator = validator(&found);
        Ok(self.object(&Location::Store(place.clone()), path, validator, found.meta.size))
    }

    fn object(self: &Arc<Self>, place: &Location, path: Path, validator: Validator, len: u64) -> Object {
        let opened = self.opened();
        let identity = opened.identity(place);
        let superseded = AtomicBool::new(false);
        let remote = RemoteFile { bucket: self.clone(), path, validator: validator.clone(), len, superseded };
        Object::new(identity, validator, len, place, opened.anonymous, Source::Store(remote))
    }

    fn tree_of_file(self: &Arc<Self>, place: &StoreLocation, object: Object) -> Result<Tree, Error> {
        let location = Location::Store(place.clone());
        let (Some(name), Some(folder)) = (location.file_name(), location.parent()) else {
            return Err(Error::new(Kind::Invalid, "the key names no file"));
        };
        let file = File { path: name.clone(), len: Some(object.len()), object: Some(object) };
        Ok(Tree::new(folder, Some((name, location)), vec![file], Origin::Store(self.clone())))
    }

    async fn list(self: &Arc<Self>, place: &StoreLocation) -> Result<Vec<File>, Error> {
        match self.list_once(place).await {
            Err(error) if self.move_to(error.region.as_deref())? => self.list_once(place).await,
            result => result,
        }
    }

    async fn list_once(self: &Arc<Self>, place: &StoreLocation) -> Result<Vec<File>, Error> {
        let prefix = place.key.strip_suffix('/').unwrap_or(&place.key);
        let path = key_path(prefix)?;
        let store = self.opened().store;
        let mut keys = store.list(Some(&path));
        let mut files = Vec::new();
        let folder = Location::Store(place.clone());
        while let Some(meta) = keys.try_next().await.map_err(|error| translate(error, self.kind))? {
            let key = meta.location.as_ref();
            let rest = if prefix.is_empty() { Some(key) } else { key.strip_prefix(prefix) };
            let Some(rest) = rest.map(|rest| rest.trim_start_matches('/')).filter(|rest| !rest.is_empty()) else {
                continue;
            };
            let Ok(location) = folder.join(rest) else { continue };
            if files.len() == KEYS {
                return Err(Error::protocol("the prefix has more than a million keys"));
            }
            let etag = meta.e_tag.as_deref().map(quoted_etag);
            let validator = Validator { etag, version: meta.version, ..Validator::default() };
            let object = self.object(&location, meta.location.clone(), validator, meta.size);
            files.push(File { path: rest.to_string(), len: Some(meta.size), object: Some(object) });
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(without_markers(files))
    }

    /// Pins a key that was not listed and returns its first bytes.
    pub(super) async fn probe(self: &Arc<Self>, place: Location, first: u64) -> Result<(Object, Vec<u8>), Error> {
        let Location::Store(store) = &place else { return Err(Error::new(Kind::Invalid, "not a key")) };
        let path = key_path(&store.key)?;
        let mut options = GetOptions { range: Some(GetRange::Bounded(0..first)), ..GetOptions::default() };
        options.extensions.insert(Pinned { range: 0..first, len: None, validator: None });
        let found = match self.get(&path, options).await {
            // An empty object has no satisfiable range.
            Err(error) if error.status == Some(416) => return Ok((self.head(store).await?, Vec::new())),
            found => found?,
        };
        let (validator, len) = (validator(&found), found.meta.size);
        let mut head = Vec::new();
        let expected = Expected::Exactly(found.range.end - found.range.start);
        let body = found.into_stream().map(|piece| piece.map_err(|error| translate(error, self.kind)));
        pour(body, expected, self.setup.wire.idle(), &mut |bytes| {
            head.extend_from_slice(bytes);
            ControlFlow::Continue(())
        })
        .await?;
        Ok((self.object(&place, path, validator, len), head))
    }
}

impl RemoteFile {
    /// Delivers a range of the pinned version. If the key was overwritten and its bucket keeps versions, the pinned one
    /// is asked for by its id.
    pub(super) async fn fetch(&self, range: Range<u64>, sink: &mut Sink<'_>) -> Result<u64, Error> {
        let superseded = self.superseded.load(Ordering::Relaxed);
        let found = match self.open(&range, superseded).await {
            Err(changed) if changed.kind() == Kind::Changed && !superseded && self.version().is_some() => {
                let found = self.open(&range, true).await.map_err(|error| match error.kind() {
                    Kind::Transient { .. } => error,
                    _ => changed,
                })?;
                self.superseded.store(true, Ordering::Relaxed);
                found
            }
            found => found?,
        };
        let kind = self.bucket.kind;
        let body = found.into_stream().map(|piece| piece.map_err(|error| translate(error, kind)));
        let expected = Expected::Exactly(range.end - range.start);
        let (End::Complete(delivered) | End::Stopped(delivered)) =
            pour(body, expected, self.bucket.setup.wire.idle(), sink).await?;
        Ok(delivered)
    }

    /// The version id, if the bucket keeps versions.
    fn version(&self) -> Option<&str> {
        self.validator.version.as_deref().filter(|version| *version != "null")
    }

    async fn open(&self, range: &Range<u64>, by_version: bool) -> Result<GetResult, Error> {
        let mut options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        if by_version {
            options.version = self.version().map(str::to_string);
        } else {
            options.if_match = self.validator.strong().map(str::to_string);
        }
        let (len, validator) = (Some(self.len), Some(self.validator.clone()));
        options.extensions.insert(Pinned { range: range.clone(), len, validator });
        self.bucket.get(&self.path, options).await
    }
}

/// The version that an answer is of.
fn validator(found: &GetResult) -> Validator {
    let seen = found.extensions.get::<Seen>().map(|seen| seen.0.clone()).unwrap_or_default();
    Validator { version: found.meta.version.clone(), etag: seen.etag.or(found.meta.e_tag.clone()), ..seen }
}

fn key_path(key: &str) -> Result<Path, Error> {
    Path::parse(key).map_err(|_| Error::new(Kind::Invalid, "keys with empty components, `.` or `..` cannot be read"))
}

/// Leaves out empty keys that stand for a directory, as consoles make them.
fn without_markers(files: Vec<File>) -> Vec<File> {
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
