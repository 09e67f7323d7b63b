//! A file behind a URL, which may redirect to a signed link of another server. The link is kept and renewed.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use reqwest::header::HeaderMap;
use tokio::sync::Mutex;
use url::Url;

use super::error::TransportResult;
use super::secret::AuthorizationValue;
use super::wire::{HttpWire, WireResponse};

pub(super) struct UrlFile {
    pub url: Url,
    /// The credentials that its location has.
    pub userinfo: Option<AuthorizationValue>,
    /// Whether a link is kept that does not say when it expires.
    keep_unsigned: bool,
    led: Mutex<ResolvedUrl>,
}

/// The target of the redirects of a URL.
#[derive(Default)]
enum ResolvedUrl {
    #[default]
    Unknown,
    /// To a link, which is kept.
    Link(RedirectLink),
    /// To the file itself, or to a link that is not kept: each request starts at the URL.
    Nowhere,
}

impl UrlFile {
    pub fn new(url: Url, userinfo: Option<AuthorizationValue>, keep_unsigned: bool) -> UrlFile {
        UrlFile { url, userinfo, keep_unsigned, led: Mutex::default() }
    }

    /// Sends a request for the file, with `headers`. Several at once ask for a new link only once, and wait for each
    /// other only for that. The caller checks the status.
    pub async fn get(
        &self,
        wire: &HttpWire,
        headers: &HeaderMap,
        authorization: Option<&AuthorizationValue>,
    ) -> TransportResult<WireResponse> {
        let now = SystemTime::now();
        let mut refused = None;
        loop {
            let mut led = self.led.lock().await;
            match &*led {
                ResolvedUrl::Link(link) if link.is_fresh(now) && refused.as_ref() != Some(&link.url) => {
                    let link = link.clone();
                    drop(led);
                    let reply = wire.get(&link.url, link.must_be_outside, headers, None).await?;
                    // A link that was renewed meanwhile is not refused for its age.
                    if refused.is_some() || !is_expired(&reply) {
                        return Ok(reply);
                    }
                    refused = Some(link.url);
                }
                ResolvedUrl::Nowhere => {
                    drop(led);
                    let reply = wire.get(&self.url, false, headers, authorization).await?;
                    let now_led = self.led_by(&reply);
                    if !matches!(now_led, ResolvedUrl::Nowhere) {
                        *self.led.lock().await = now_led;
                    }
                    return Ok(reply);
                }
                ResolvedUrl::Link(_) | ResolvedUrl::Unknown => {
                    *led = ResolvedUrl::Unknown;
                    let reply = wire.get(&self.url, false, headers, authorization).await?;
                    *led = self.led_by(&reply);
                    return Ok(reply);
                }
            }
        }
    }

    /// The target of the redirects of the request that was answered with `reply`.
    fn led_by(&self, reply: &WireResponse) -> ResolvedUrl {
        if is_expired(reply) {
            return ResolvedUrl::Unknown;
        }
        let link =
            reply.hops.iter().find(|hop| hop.leaves).map(|hop| RedirectLink::new(hop.to.clone(), hop.must_be_outside));
        link.filter(|link| self.keep_unsigned || link.is_signed()).map_or(ResolvedUrl::Nowhere, ResolvedUrl::Link)
    }
}

/// Whether a server answers as to a signed URL that is no longer valid. S3 and CloudFront say 403, Azure 403, Xet 400
/// or 403.
fn is_expired(reply: &WireResponse) -> bool {
    matches!(reply.status.as_u16(), 400 | 401 | 403 | 404 | 410)
}

/// Without the URLs, which may hold secrets.
impl std::fmt::Debug for UrlFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UrlFile").field("host", &self.url.host_str()).finish_non_exhaustive()
    }
}

/// A link is renewed this long before it expires, so that a request that waits in a queue still finds it valid.
const MARGIN: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(super) struct RedirectLink {
    pub url: Url,
    expires: Option<SystemTime>,
    /// Whether its host must be outside of this network.
    pub must_be_outside: bool,
}

impl RedirectLink {
    fn new(url: Url, must_be_outside: bool) -> RedirectLink {
        let expires = expiry(&url);
        RedirectLink { url, expires, must_be_outside }
    }

    /// Whether it says when it expires.
    pub fn is_signed(&self) -> bool {
        self.expires.is_some()
    }

    /// Whether it is valid for some time after `now`. A link without a time of expiry is taken for valid.
    pub fn is_fresh(&self, now: SystemTime) -> bool {
        self.expires.is_none_or(|expires| now + MARGIN < expires)
    }
}

/// Until when a signed URL is valid: `X-Amz-Date` with `X-Amz-Expires` (also with the prefix of Google), `Expires` of
/// CloudFront and of older signatures in seconds since 1970, `se` of Azure.
fn expiry(url: &Url) -> Option<SystemTime> {
    for vendor in ["X-Amz", "X-Goog"] {
        let (date, lasts) = (format!("{vendor}-Date"), format!("{vendor}-Expires"));
        if let (Some(date), Some(lasts)) = (parameter(url, &date), parameter(url, &lasts)) {
            let date = DateTime::strptime("%Y%m%dT%H%M%SZ", &*date).ok()?;
            let date: SystemTime = date.to_zoned(TimeZone::UTC).ok()?.timestamp().into();
            return date.checked_add(Duration::from_secs(lasts.parse().ok()?));
        }
    }
    if let Some(seconds) = parameter(url, "Expires") {
        return SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.parse().ok()?));
    }
    let end: jiff::Timestamp = parameter(url, "se")?.parse().ok()?;
    Some(end.into())
}

fn parameter<'u>(url: &'u Url, name: &str) -> Option<Cow<'u, str>> {
    url.query_pairs().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// The parameters of a query without those of a signature, which change each time and do not name the file.
pub(super) fn unsigned_parameters(url: &Url) -> Vec<(String, String)> {
    let pairs: Vec<_> = url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    let names: Vec<_> = pairs.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
    let is_kept = names.iter().map(|name| !is_of_signature(name, &names));
    pairs.into_iter().zip(is_kept).filter(|(_, is_kept)| *is_kept).map(|(pair, _)| pair).collect()
}

/// Whether a parameter belongs to a signature, if `all` have one.
fn is_of_signature(name: &str, all: &[String]) -> bool {
    let signature = match name {
        "x-amz-version-id" => return false,
        _ if name.starts_with("x-amz-") => "x-amz-signature",
        _ if name.starts_with("x-goog-") => "x-goog-signature",
        _ if CLASSIC.contains(&name) => "signature",
        _ if AZURE.contains(&name) => "sig",
        _ => return false,
    };
    all.iter().any(|other| other == signature)
}

/// Signatures of CloudFront, and older ones of S3 and Google.
const CLASSIC: [&str; 6] = ["signature", "expires", "policy", "key-pair-id", "awsaccesskeyid", "googleaccessid"];

/// Shared access signatures of Azure.
const AZURE: [&str; 15] =
    ["sig", "se", "st", "sp", "sv", "sr", "ss", "srt", "spr", "sip", "skoid", "sktid", "skt", "ske", "sks"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_is_read_from_each_kind_of_signature() {
        let expected = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        for query in [
            "X-Amz-Date=20260921T131320Z&X-Amz-Expires=3600&X-Amz-Signature=x",
            "X-Goog-Date=20260921T131320Z&x-goog-expires=3600",
            "Expires=1790000000&Signature=x&Key-Pair-Id=y",
            "sv=1&se=2026-09-21T14%3A13%3A20Z&sig=x",
        ] {
            let link = RedirectLink::new(Url::parse(&format!("https://h/x?{query}")).unwrap(), false);
            assert_eq!(link.expires, Some(expected), "{query}");
            assert!(link.is_fresh(expected - Duration::from_secs(61)));
            assert!(!link.is_fresh(expected - Duration::from_secs(59)));
        }
        for query in ["", "Expires=soon", "se=1", "X-Amz-Date=1&X-Amz-Expires=2", "X-Amz-Expires=2"] {
            let link = RedirectLink::new(Url::parse(&format!("https://h/x?{query}")).unwrap(), false);
            assert!(!link.is_signed() && link.is_fresh(SystemTime::now()), "{query}");
        }
        let huge = format!("https://h/x?Expires={}", u64::MAX);
        assert!(RedirectLink::new(Url::parse(&huge).unwrap(), false).is_fresh(SystemTime::now()));
    }
}
