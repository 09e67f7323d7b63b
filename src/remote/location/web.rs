//! Locations on HTTP servers. The query and the user information of a URL are kept for requests and never printed,
//! because signed URLs carry their signature there.

use std::fmt;
use std::net::IpAddr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use url::{Host, Url};

use super::path::{LONGEST_PATH, ParseError};

/// The characters that are encoded in a component of a path: all but the unreserved ones of RFC 3986. S3 takes `+` for
/// a space.
const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[derive(Clone, PartialEq, Eq, Hash)]
pub struct WebLocation {
    url: Url,
}

impl WebLocation {
    pub(super) fn parse(text: &str) -> Result<WebLocation, ParseError> {
        // The error of `url` does not repeat the text.
        let mut url = Url::parse(text).map_err(|error| ParseError::new(format!("not a URL: {error}")))?;
        url.set_fragment(None);
        let path = percent_decode_str(url.path()).decode_utf8();
        match path {
            Ok(path) if path.chars().any(char::is_control) => {
                Err(ParseError::new("a location cannot contain control characters"))
            }
            Ok(path) if path.len() > LONGEST_PATH => {
                Err(ParseError::new(format!("the path of a URL has at most {LONGEST_PATH} bytes")))
            }
            Ok(_) => Ok(WebLocation { url }),
            Err(_) => Err(ParseError::new("the path of the URL is not UTF-8")),
        }
    }

    /// The whole URL, with its secrets: for requests only.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Whether requests leave this machine unencrypted.
    pub(super) fn is_insecure(&self) -> bool {
        self.url.scheme() != "https" && !is_loopback(&self.url)
    }

    pub(super) fn join(&self, name: &str) -> WebLocation {
        let mut path = self.url.path().to_string();
        for part in name.split('/') {
            if !path.ends_with('/') {
                path.push('/');
            }
            path.extend(utf8_percent_encode(part, COMPONENT));
        }
        let mut url = self.url.clone();
        url.set_path(&path);
        WebLocation { url }
    }

    pub(super) fn parent(&self) -> Option<WebLocation> {
        let path = self.url.path();
        let path = path.strip_suffix('/').unwrap_or(path);
        let (parent, _) = path.rsplit_once('/')?;
        let mut url = self.url.clone();
        url.set_path(&format!("{parent}/"));
        Some(WebLocation { url })
    }

    pub(super) fn file_name(&self) -> Option<String> {
        let last = self.url.path().rsplit('/').next()?;
        let last = percent_decode_str(last).decode_utf8_lossy();
        // A component may hold an encoded slash.
        let name = last.rsplit('/').next()?;
        (!matches!(name, "" | "." | "..")).then(|| name.to_string())
    }
}

pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => IpAddr::V4(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::V6(address).is_loopback(),
        None => false,
    }
}

impl fmt::Display for WebLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.url.origin().ascii_serialization(), self.url.path())
    }
}

impl fmt::Debug for WebLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebLocation({self})")
    }
}
