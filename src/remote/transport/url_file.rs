//! A file behind a URL, which may redirect to a signed link of another server. The link is kept, renewed before it
//! expires, and renewed once when it is refused.

use std::ops::Range;
use std::time::SystemTime;

use reqwest::header::{HeaderMap, HeaderValue, RANGE};
use tokio::sync::Mutex;
use url::Url;

use super::error::{ErrorKind, TransportError};
use super::link::RedirectLink;
use super::secret::AuthorizationValue;
use super::validator::VersionValidator;
use super::wire::{HttpWire, WireResponse};

/// The URL, and where it led last.
pub(super) struct UrlFile {
    url: Url,
    /// Whether a link is kept that does not say when it expires.
    keep_unsigned: bool,
    led: Mutex<ResolvedUrl>,
}

/// The target of the redirects of a URL.
#[derive(Debug, Clone, Default)]
enum ResolvedUrl {
    #[default]
    Unknown,
    /// To a link, which is kept.
    Link(RedirectLink),
    /// To the file itself, or to a link that is not kept: each request starts at the URL.
    Nowhere,
}

/// A file whose version is pinned.
#[derive(Debug)]
pub(super) struct PinnedFile {
    pub file: UrlFile,
    pub userinfo: Option<AuthorizationValue>,
    pub validator: VersionValidator,
    pub len: u64,
}

impl UrlFile {
    pub(super) fn new(url: Url, keep_unsigned: bool) -> UrlFile {
        UrlFile { url, keep_unsigned, led: Mutex::default() }
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// Sends a request for the file, with `headers`. Several at once ask for a new link only once, and wait for each
    /// other only for that.
    ///
    /// # Errors
    /// No answer came. Statuses are for the caller.
    pub(super) async fn get(
        &self,
        wire: &HttpWire,
        headers: &HeaderMap,
        authorization: Option<&AuthorizationValue>,
    ) -> Result<WireResponse, TransportError> {
        let now = SystemTime::now();
        let before = self.led.lock().await.clone();
        if let ResolvedUrl::Link(link) = &before
            && link.is_fresh(now)
        {
            let reply = wire.get(&link.url, headers, None).await?;
            if !is_expired(&reply) {
                return Ok(reply);
            }
        }
        if let ResolvedUrl::Nowhere = &before {
            let reply = wire.get(&self.url, headers, authorization).await?;
            let led = self.led_by(&reply);
            if !matches!(led, ResolvedUrl::Nowhere) {
                *self.led.lock().await = led;
            }
            return Ok(reply);
        }
        let mut led = self.led.lock().await;
        match led.clone() {
            // Somebody renewed it meanwhile.
            ResolvedUrl::Link(link) if link.is_fresh(now) && !before.is(&link) => {
                drop(led);
                return wire.get(&link.url, headers, None).await;
            }
            ResolvedUrl::Nowhere => {
                drop(led);
                return wire.get(&self.url, headers, authorization).await;
            }
            ResolvedUrl::Link(_) | ResolvedUrl::Unknown => {}
        }
        *led = ResolvedUrl::Unknown;
        let reply = wire.get(&self.url, headers, authorization).await?;
        *led = self.led_by(&reply);
        Ok(reply)
    }

    /// The target of the redirects of the request that was answered with `reply`.
    fn led_by(&self, reply: &WireResponse) -> ResolvedUrl {
        if is_expired(reply) {
            return ResolvedUrl::Unknown;
        }
        let link = reply.hops.iter().find(|hop| hop.leaves).map(|hop| RedirectLink::new(hop.to.clone()));
        link.filter(|link| self.keep_unsigned || link.is_signed()).map_or(ResolvedUrl::Nowhere, ResolvedUrl::Link)
    }
}

impl ResolvedUrl {
    fn is(&self, link: &RedirectLink) -> bool {
        matches!(self, Self::Link(own) if own.url == link.url)
    }
}

/// How servers answer to a signed URL that is no longer valid. S3 and CloudFront say 403, Azure 403, Xet 400 or 403.
fn is_expired(reply: &WireResponse) -> bool {
    matches!(reply.status.as_u16(), 400 | 401 | 403 | 404 | 410)
}

impl std::fmt::Debug for UrlFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UrlFile").field("host", &self.url.host_str()).field("led", &self.led).finish()
    }
}

/// The headers that ask for a range, which is not empty.
///
/// # Errors
/// Does not fail for ranges of files. The conversion to a header value has an error type.
pub(super) fn range_headers(range: &Range<u64>) -> Result<HeaderMap, TransportError> {
    let mut headers = HeaderMap::new();
    let value = HeaderValue::from_str(&format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
    headers.insert(
        RANGE,
        value.map_err(|_| TransportError::new(ErrorKind::Invalid, "the range cannot be written as a header"))?,
    );
    Ok(headers)
}
