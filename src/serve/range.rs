//! The bytes of a file that a request asks for: conditions and ranges of RFC 9110.

use httpdate::parse_http_date;
use hyper::header::{
    HeaderMap, HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use std::ops::Range;
use std::time::{Duration, SystemTime};

#[derive(Debug, Clone)]
pub(super) struct FileValidators {
    /// A strong entity tag in quotes, if there is one.
    pub etag: Option<String>,
    /// In whole seconds.
    pub modified: SystemTime,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SelectedAnswer {
    Whole,
    /// This part of it, which is not empty.
    Part(Range<u64>),
    /// The client has this version.
    NotModified,
    /// A condition does not hold.
    Failed,
    /// No byte of the file is in the range.
    OutOfRange,
}

impl FileValidators {
    /// `modified` is cut to whole seconds, which dates in headers have.
    pub fn new(etag: Option<String>, modified: SystemTime) -> Self {
        let since = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { etag, modified: SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs()) }
    }

    /// Chooses what to send of a file of `len` bytes. The order is that of RFC 9110, section 13.2.2.
    pub fn select(&self, headers: &HeaderMap, len: u64) -> SelectedAnswer {
        let date = |name: HeaderName| parse_http_date(headers.get(name)?.to_str().ok()?).ok();
        if headers.contains_key(IF_MATCH) {
            if !self.is_listed(headers, &IF_MATCH) {
                return SelectedAnswer::Failed;
            }
        } else if date(IF_UNMODIFIED_SINCE).is_some_and(|date| self.modified > date) {
            return SelectedAnswer::Failed;
        }
        if headers.contains_key(IF_NONE_MATCH) {
            if self.is_listed(headers, &IF_NONE_MATCH) {
                return SelectedAnswer::NotModified;
            }
        } else if date(IF_MODIFIED_SINCE).is_some_and(|date| self.modified <= date) {
            return SelectedAnswer::NotModified;
        }
        let mut ranges = headers.get_all(RANGE).iter();
        let (Some(range), None) = (ranges.next(), ranges.next()) else { return SelectedAnswer::Whole };
        if let Some(expected) = headers.get(IF_RANGE) {
            let is_etag = self.etag.as_deref().is_some_and(|etag| expected.as_bytes() == etag.as_bytes());
            if !is_etag && date(IF_RANGE) != Some(self.modified) {
                return SelectedAnswer::Whole;
            }
        }
        range.to_str().map_or(SelectedAnswer::Whole, |range| part(range, len))
    }

    /// Whether an If-Match or If-None-Match header lists the entity tag, or any.
    fn is_listed(&self, headers: &HeaderMap, name: &HeaderName) -> bool {
        let mut tags =
            headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).flat_map(|tags| tags.split(','));
        tags.any(|tag| {
            let tag = tag.trim();
            // If-None-Match compares weakly: caches on the way may have made a tag weak.
            let tag = if *name == IF_NONE_MATCH { tag.strip_prefix("W/").unwrap_or(tag) } else { tag };
            tag == "*" || self.etag.as_deref() == Some(tag)
        })
    }
}

/// The part of a file of `len` bytes that a Range header asks for. A server may ignore the header: this is done if it
/// is not valid, and if it asks for several ranges.
fn part(header: &str, len: u64) -> SelectedAnswer {
    let parsed = header.split_once('=').and_then(|(unit, spec)| Some((unit.trim(), spec.trim().split_once('-')?)));
    let Some((unit, (first, last))) = parsed else { return SelectedAnswer::Whole };
    let range = match (range_number(first), range_number(last)) {
        _ if !unit.eq_ignore_ascii_case("bytes") => return SelectedAnswer::Whole,
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(len),
        (Some(first), None) if last.is_empty() => first..len,
        (None, Some(count)) if first.is_empty() => len - count.min(len)..len,
        _ => return SelectedAnswer::Whole,
    };
    if range.is_empty() { SelectedAnswer::OutOfRange } else { SelectedAnswer::Part(range) }
}

/// A number that is too large is past the end of every file.
fn range_number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_at_the_end() {
        for (header, expected) in [
            ("bytes=0-0", SelectedAnswer::Part(0..1)),
            ("bytes=2-4", SelectedAnswer::Part(2..5)),
            ("bytes=2-", SelectedAnswer::Part(2..10)),
            ("bytes=2-99", SelectedAnswer::Part(2..10)),
            ("bytes=9-18446744073709551615", SelectedAnswer::Part(9..10)),
            ("bytes=9-99999999999999999999999", SelectedAnswer::Part(9..10)),
            ("bytes=-3", SelectedAnswer::Part(7..10)),
            ("bytes=-30", SelectedAnswer::Part(0..10)),
            ("Bytes = 1-1", SelectedAnswer::Part(1..2)),
            ("bytes=10-", SelectedAnswer::OutOfRange),
            ("bytes=99999999999999999999999-", SelectedAnswer::OutOfRange),
            ("bytes=-0", SelectedAnswer::OutOfRange),
            ("bytes=3-2", SelectedAnswer::Whole),
            ("bytes=0-1,4-5", SelectedAnswer::Whole),
            ("bytes=", SelectedAnswer::Whole),
            ("bytes=-", SelectedAnswer::Whole),
            ("bytes=+1-2", SelectedAnswer::Whole),
            ("lines=0-1", SelectedAnswer::Whole),
            ("", SelectedAnswer::Whole),
        ] {
            assert_eq!(part(header, 10), expected, "{header}");
        }
        assert_eq!(part("bytes=0-", 0), SelectedAnswer::OutOfRange);
    }

    #[test]
    fn conditions_have_their_order() {
        let modified = SystemTime::UNIX_EPOCH + Duration::new(784_111_777, 5);
        let validators = FileValidators::new(Some("\"v1\"".into()), modified);
        let (date, before, after) =
            ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:36 GMT", "Sun, 06 Nov 1994 08:49:38 GMT");
        let select = |headers: &[(&str, &str)]| {
            let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            validators.select(&headers.collect::<HeaderMap>(), 10)
        };
        let range = ("range", "bytes=0-1");
        let (part, whole, same, failed) =
            (SelectedAnswer::Part(0..2), SelectedAnswer::Whole, SelectedAnswer::NotModified, SelectedAnswer::Failed);
        for (headers, expected) in [
            (vec![range], &part),
            (vec![("if-range", "\"v1\""), range], &part),
            (vec![("if-range", "\"v2\""), range], &whole),
            (vec![("if-range", "W/\"v1\""), range], &whole),
            (vec![("if-range", date), range], &part),
            (vec![("if-range", after), range], &whole),
            (vec![("if-none-match", "\"v1\"")], &same),
            (vec![("if-none-match", "\"v0\", W/\"v1\""), range], &same),
            (vec![("if-none-match", "*")], &same),
            (vec![("if-none-match", "\"v2\""), ("if-modified-since", date)], &whole),
            (vec![("if-modified-since", date)], &same),
            (vec![("if-modified-since", before)], &whole),
            (vec![("if-modified-since", "yesterday")], &whole),
            (vec![("if-match", "\"v2\""), range], &failed),
            (vec![("if-match", "W/\"v1\"")], &failed),
            (vec![("if-match", "\"v1\""), range], &part),
            (vec![("if-unmodified-since", before)], &failed),
            (vec![("if-unmodified-since", date), range], &part),
            (vec![("if-match", "\"v2\""), ("if-none-match", "\"v1\"")], &failed),
            (vec![range, range], &whole),
        ] {
            assert_eq!(&select(&headers), expected, "{headers:?}");
        }
    }
}
