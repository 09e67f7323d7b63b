//! Locations in object stores: `s3://BUCKET/KEY`, `gs://BUCKET/KEY` and `az://CONTAINER/KEY`. Keys are taken literally,
//! as the stores' own tools do: nothing is percent-decoded.

use std::fmt;

use super::path::{ParseError, check_path};

/// Which service and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// Amazon S3 and compatible servers.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
}

impl StoreKind {
    /// The scheme of its locations.
    pub fn scheme(self) -> &'static str {
        match self {
            StoreKind::S3 => "s3",
            StoreKind::Gcs => "gs",
            StoreKind::Azure => "az",
        }
    }
}

/// A key or a prefix in a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoreLocation {
    /// The service.
    pub kind: StoreKind,
    /// The bucket, or the container of Azure.
    pub bucket: String,
    /// The key. It is empty for the whole bucket, and ends with `/` for what is a prefix for sure.
    pub key: String,
}

impl StoreLocation {
    /// Parses what follows the scheme.
    pub(super) fn parse(kind: StoreKind, rest: &str) -> Result<StoreLocation, ParseError> {
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let fits = (1..=255).contains(&bucket.len())
            && bucket.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '$')
            && bucket.chars().all(|c| c.is_ascii_alphanumeric() || "-_.$".contains(c))
            && !bucket.contains("..");
        if !fits {
            let scheme = kind.scheme();
            return Err(ParseError::new(format!("{scheme}:// needs a bucket, as in {scheme}://bucket/key")));
        }
        check_path(key.strip_suffix('/').unwrap_or(key))?;
        if key == "/" {
            return Err(ParseError::new("a path cannot contain an empty component"));
        }
        Ok(StoreLocation { kind, bucket: bucket.to_string(), key: key.to_string() })
    }

    pub(super) fn join(&self, name: &str) -> StoreLocation {
        let slash = if self.key.is_empty() || self.key.ends_with('/') { "" } else { "/" };
        StoreLocation { key: format!("{}{slash}{name}", self.key), ..self.clone() }
    }

    pub(super) fn parent(&self) -> Option<StoreLocation> {
        let key = self.key.strip_suffix('/').unwrap_or(&self.key);
        if key.is_empty() {
            return None;
        }
        let parent = key.rsplit_once('/').map_or(String::new(), |(parent, _)| format!("{parent}/"));
        Some(StoreLocation { key: parent, ..self.clone() })
    }
}

impl fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.kind.scheme(), self.bucket, self.key)
    }
}
