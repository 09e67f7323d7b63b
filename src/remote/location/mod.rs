//! Locations of remote models: `hf://`, `https://`, `s3://`, `gs://` and `az://`. Parses, joins and prints them; does
//! no I/O and reads no environment.
//!
//! A location never prints a secret: of a URL, neither the user information nor the query is shown. Apart from those,
//! `Display` is injective, and its text parses to the same location.

mod hub;
mod path;
mod store;
mod web;

pub use hub::{HubLocation, RepoKind};
pub use path::ParseError;
pub(crate) use path::check_path;
pub use store::{StoreKind, StoreLocation};
pub use web::WebLocation;
pub(crate) use web::is_loopback;

use std::fmt;

/// A remote file, or a directory of remote files.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RemoteLocation {
    Hub(HubLocation),
    Web(WebLocation),
    Store(StoreLocation),
}

/// The longest text that is taken for a location, in bytes. Signed URLs have a few thousand.
const LONGEST: usize = 16 << 10;

impl RemoteLocation {
    /// Parses a location. `None` means that the text has no scheme, so it is a local path.
    pub fn parse(text: &str) -> Result<Option<RemoteLocation>, ParseError> {
        let Some((scheme, rest)) = text.split_once("://") else { return Ok(None) };
        let mut letters = scheme.chars();
        if !letters.next().is_some_and(|c| c.is_ascii_alphabetic())
            || !letters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        {
            return Ok(None);
        }
        if text.len() > LONGEST {
            return Err(ParseError::new(format!("a location has at most {LONGEST} bytes")));
        }
        if text.chars().any(char::is_control) {
            return Err(ParseError::new("a location cannot contain control characters"));
        }
        let location = match scheme.to_ascii_lowercase().as_str() {
            "hf" => RemoteLocation::Hub(HubLocation::parse(rest)?),
            "https" | "http" => {
                let web = WebLocation::parse(text)?;
                match HubLocation::from_page(web.url())? {
                    Some(hub) => RemoteLocation::Hub(hub),
                    None => RemoteLocation::Web(web),
                }
            }
            "s3" => RemoteLocation::Store(StoreLocation::parse(StoreKind::S3, rest)?),
            "gs" => RemoteLocation::Store(StoreLocation::parse(StoreKind::Gcs, rest)?),
            "az" => RemoteLocation::Store(StoreLocation::parse(StoreKind::Azure, rest)?),
            "file" => return Err(ParseError::new("a local file is given by its path, without file://")),
            _ => {
                return Err(ParseError::new(format!(
                    "unknown scheme {scheme}://; weightfs reads hf://, https://, http://, s3://, gs:// and az://"
                )));
            }
        };
        Ok(Some(location))
    }

    /// The file or directory called `name` in this directory. `name` may have several components, separated by `/`.
    pub fn join(&self, name: &str) -> Result<RemoteLocation, ParseError> {
        check_path(name)?;
        let mut joined = self.clone();
        match &mut joined {
            _ if name.is_empty() => {}
            RemoteLocation::Hub(HubLocation { path, .. }) | RemoteLocation::Store(StoreLocation { key: path, .. }) => {
                if !path.is_empty() && !path.ends_with('/') {
                    path.push('/');
                }
                path.push_str(name);
            }
            RemoteLocation::Web(web) => *web = web.join(name),
        }
        Ok(joined)
    }

    /// The directory that holds this file or directory; `None` at the root of a repository, server or bucket.
    pub fn parent(&self) -> Option<RemoteLocation> {
        Some(match self {
            RemoteLocation::Hub(hub) => {
                let path = parent_path(&hub.path)?.trim_end_matches('/').to_string();
                RemoteLocation::Hub(HubLocation { path, ..hub.clone() })
            }
            RemoteLocation::Web(web) => RemoteLocation::Web(web.parent()?),
            RemoteLocation::Store(store) => {
                let key = parent_path(&store.key)?.to_string();
                RemoteLocation::Store(StoreLocation { key, ..store.clone() })
            }
        })
    }

    /// The last component, decoded; `None` at a root, and for a URL or a key that ends with `/`.
    pub fn file_name(&self) -> Option<String> {
        match self {
            RemoteLocation::Web(web) => web.file_name(),
            RemoteLocation::Hub(HubLocation { path, .. }) | RemoteLocation::Store(StoreLocation { key: path, .. }) => {
                path.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_string)
            }
        }
    }

    /// Whether reading this location sends requests over unencrypted HTTP to a host other than this one. Credentials
    /// are never sent there, and others on the network path can change what is read.
    pub fn is_insecure(&self) -> bool {
        matches!(self, RemoteLocation::Web(web) if web.is_insecure())
    }
}

/// The path of the directory that holds `path`, with the slash at its end; empty at the top.
fn parent_path(path: &str) -> Option<&str> {
    let path = path.strip_suffix('/').unwrap_or(path);
    (!path.is_empty()).then(|| &path[..path.rfind('/').map_or(0, |slash| slash + 1)])
}

impl fmt::Display for RemoteLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoteLocation::Hub(hub) => hub.fmt(f),
            RemoteLocation::Web(web) => web.fmt(f),
            RemoteLocation::Store(store) => store.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests;
