//! Locations in object stores: `s3://BUCKET/KEY`, `gs://BUCKET/KEY` and `az://CONTAINER/KEY`. Keys are taken literally,
//! as the stores' own tools do: nothing is percent-decoded.

use std::fmt;

use super::path::{ParseError, check_path};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// Amazon S3 and compatible servers.
    S3,
    /// Google Cloud Storage.
    Gcs,
    Azure,
}

impl StoreKind {
    pub fn scheme(self) -> &'static str {
        match self {
            StoreKind::S3 => "s3",
            StoreKind::Gcs => "gs",
            StoreKind::Azure => "az",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoreLocation {
    pub kind: StoreKind,
    pub bucket: String,
    /// The key. It is empty for the whole bucket, and ends with `/` for what is a prefix for sure.
    pub key: String,
}

impl StoreLocation {
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
}

impl fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.kind.scheme(), self.bucket, self.key)
    }
}
