//! Signed URLs that a server redirects to: until when one is valid, and keeping one per file.

use std::time::{Duration, SystemTime};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use url::Url;

/// A link is renewed this long before it expires, so that a request that waits in a queue still finds it valid.
const MARGIN: Duration = Duration::from_secs(60);

/// A URL to which a file was redirected.
#[derive(Clone)]
pub(super) struct RedirectLink {
    pub(super) url: Url,
    expires: Option<SystemTime>,
}

impl RedirectLink {
    pub(super) fn new(url: Url) -> RedirectLink {
        let expires = expiry(&url);
        RedirectLink { url, expires }
    }

    /// Whether it says when it expires.
    pub(super) fn is_signed(&self) -> bool {
        self.expires.is_some()
    }

    /// Whether it is valid for some time after `now`. A link without a time of expiry is taken for valid.
    pub(super) fn is_fresh(&self, now: SystemTime) -> bool {
        self.expires.is_none_or(|expires| now + MARGIN < expires)
    }
}

impl std::fmt::Debug for RedirectLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("host", &self.url.host_str()).field("expires", &self.expires).finish()
    }
}

/// Until when a signed URL is valid: `X-Amz-Date` with `X-Amz-Expires` (also with the prefix of Google), `Expires` of
/// CloudFront and of older signatures in seconds since 1970, `se` of Azure.
fn expiry(url: &Url) -> Option<SystemTime> {
    let value = |name: &str| {
        url.query_pairs().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.into_owned())
    };
    for vendor in ["X-Amz", "X-Goog"] {
        if let (Some(date), Some(lasts)) = (value(&format!("{vendor}-Date")), value(&format!("{vendor}-Expires"))) {
            let date = DateTime::strptime("%Y%m%dT%H%M%SZ", &date).ok()?;
            let date: SystemTime = date.to_zoned(TimeZone::UTC).ok()?.timestamp().into();
            return date.checked_add(Duration::from_secs(lasts.parse().ok()?));
        }
    }
    if let Some(seconds) = value("Expires") {
        return SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.parse().ok()?));
    }
    let end: jiff::Timestamp = value("se")?.parse().ok()?;
    Some(end.into())
}

/// The parameters of a query without those of a signature, which change each time and do not name the file.
pub(super) fn unsigned_parameters(url: &Url) -> Vec<(String, String)> {
    let pairs: Vec<_> = url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    let names: Vec<_> = pairs.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
    let has = |name: &str| names.iter().any(|other| other == name);
    let is_signature = |name: &str| {
        has("x-amz-signature") && name.starts_with("x-amz-") && name != "x-amz-version-id"
            || has("x-goog-signature") && name.starts_with("x-goog-")
            || has("signature") && CLASSIC.contains(&name)
            || has("sig") && AZURE.contains(&name)
    };
    pairs.into_iter().zip(&names).filter(|(_, name)| !is_signature(name)).map(|(pair, _)| pair).collect()
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
            let link = RedirectLink::new(Url::parse(&format!("https://h/x?{query}")).unwrap());
            assert_eq!(link.expires, Some(expected), "{query}");
            assert!(link.is_fresh(expected - Duration::from_secs(61)));
            assert!(!link.is_fresh(expected - Duration::from_secs(59)));
            assert!(!format!("{link:?}").contains("x&"));
        }
        for query in ["", "Expires=soon", "se=1", "X-Amz-Date=1&X-Amz-Expires=2", "X-Amz-Expires=2"] {
            let link = RedirectLink::new(Url::parse(&format!("https://h/x?{query}")).unwrap());
            assert!(!link.is_signed() && link.is_fresh(SystemTime::now()), "{query}");
        }
        let huge = format!("https://h/x?Expires={}", u64::MAX);
        assert!(RedirectLink::new(Url::parse(&huge).unwrap()).is_fresh(SystemTime::now()));
    }
}
