//! Checks the head of an answer to a range request, before any byte of its body is used. For a refusal, says how long
//! the server asks to wait. Pure.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use jiff::{Timestamp, fmt::rfc2822};
use reqwest::StatusCode;
use reqwest::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE, HeaderMap, HeaderValue, RANGE, RETRY_AFTER,
};

use super::body::ExpectedBody;
use super::error::{ErrorKind, TransportError, TransportResult};
use super::validator::VersionValidator;

#[derive(Clone, Debug)]
pub(super) struct WantedRange {
    /// The bytes, at least one.
    pub range: Range<u64>,
    /// The length of the file, if known. Without it the range may pass the end of the file.
    pub len: Option<u64>,
    /// The version, if an answer has to state it.
    pub validator: Option<VersionValidator>,
}

impl WantedRange {
    /// The first bytes of a file that is not pinned yet.
    pub fn first(len: u64) -> WantedRange {
        WantedRange { range: 0..len, len: None, validator: None }
    }

    /// The headers that ask for it.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Ok(range) = HeaderValue::from_str(&format!("bytes={}", shown_range(&self.range))) {
            headers.insert(RANGE, range);
        }
        if let Some(validator) = &self.validator {
            validator.set_conditions(&mut headers);
        }
        headers
    }

    /// The `Content-Range` of an answer with all of it, from a file of `len` bytes.
    pub fn content_range(&self, len: u64) -> Option<HeaderValue> {
        let range = self.range.start..self.range.end.min(len);
        format!("bytes {}/{len}", shown_range(&range)).parse().ok()
    }
}

/// The first and the last byte, as headers have them.
fn shown_range(range: &Range<u64>) -> String {
    format!("{}-{}", range.start, range.end.saturating_sub(1))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResponsePart {
    /// Its bytes, at least one of a file that is not empty. Without a known length, the end is where the body ends.
    pub range: Range<u64>,
    /// The length of the file; `None` for a whole file without a length, which ends where the body ends.
    pub len: Option<u64>,
}

impl ResponsePart {
    pub fn expected_body(&self) -> ExpectedBody {
        let len = self.range.end - self.range.start;
        if self.len.is_some() { ExpectedBody::Exactly(len) } else { ExpectedBody::AtMost(len) }
    }
}

/// Checks status, `Content-Range`, lengths, encoding and version of an answer. Whatever is not the wanted bytes of the
/// wanted version, or a first part of them, is an error; a server that sends a whole file gives `NoRanges`, unless all
/// of it was wanted.
pub(super) fn check_range(
    status: StatusCode,
    headers: &HeaderMap,
    wanted: &WantedRange,
) -> TransportResult<ResponsePart> {
    match status {
        StatusCode::PARTIAL_CONTENT => partial(headers, wanted),
        StatusCode::OK => whole_response(headers, wanted),
        StatusCode::RANGE_NOT_SATISFIABLE => {
            let total = text(headers, CONTENT_RANGE.as_str()).and_then(|range| range.strip_prefix("bytes */"));
            match (total.and_then(header_number), wanted.len) {
                // An empty file has no satisfiable range.
                (Some(0), None) if wanted.range.start == 0 => Ok(ResponsePart { range: 0..0, len: Some(0) }),
                (Some(total), Some(len)) if total != len => Err(changed_length(len, total)),
                _ => Err(ErrorKind::Protocol.error("the server refuses a range that is inside the file (416)")),
            }
        }
        status => Err(refusal(status, headers)),
    }
}

fn partial(headers: &HeaderMap, wanted: &WantedRange) -> TransportResult<ResponsePart> {
    plain_body(headers)?;
    let content_range = text(headers, CONTENT_RANGE.as_str())
        .ok_or_else(|| ErrorKind::Protocol.error("the server sends a part of the file without a Content-Range"))?;
    let (range, total) = parse_content_range(content_range)
        .ok_or_else(|| ErrorKind::Protocol.error("the server sends an invalid Content-Range"))?;
    let len = match (total, wanted.len) {
        (Some(total), Some(len)) if total != len => return Err(changed_length(len, total)),
        (Some(total), _) => total,
        (None, Some(len)) => len,
        (None, None) => return Err(ErrorKind::Protocol.error("the server does not say how long the file is")),
    };
    let expected = wanted.range.start..wanted.range.end.min(len);
    // A server may send less than the range (RFC 9110, section 15.3.7), but not another one.
    if range.start != expected.start || range.end > expected.end {
        let [sent, asked] = [range, expected].map(|range| shown_range(&range));
        return Err(ErrorKind::Protocol.error(format!("the server sends bytes {sent} where {asked} were asked for")));
    }
    if content_length(headers)?.is_some_and(|length| length != range.end - range.start) {
        return Err(ErrorKind::Protocol.error("Content-Length and Content-Range of the server contradict each other"));
    }
    check_version(headers, wanted)?;
    Ok(ResponsePart { range, len: Some(len) })
}

fn whole_response(headers: &HeaderMap, wanted: &WantedRange) -> TransportResult<ResponsePart> {
    if wanted.range.start != 0 {
        return Err(TransportError::no_ranges());
    }
    plain_body(headers)?;
    let length = content_length(headers)?;
    match (length, wanted.len) {
        (Some(length), Some(len)) if length != len => return Err(changed_length(len, length)),
        (Some(length), _) if length > wanted.range.end => return Err(TransportError::no_ranges()),
        (_, Some(len)) if len > wanted.range.end => return Err(TransportError::no_ranges()),
        _ => {}
    }
    check_version(headers, wanted)?;
    let len = length.or(wanted.len);
    Ok(ResponsePart { range: 0..len.unwrap_or(wanted.range.end), len })
}

fn check_version(headers: &HeaderMap, wanted: &WantedRange) -> TransportResult<()> {
    wanted.validator.as_ref().map_or(Ok(()), |validator| validator.check(&VersionValidator::of(headers)))
}

/// An encoded body has other offsets than the file.
fn plain_body(headers: &HeaderMap) -> TransportResult<()> {
    if text(headers, CONTENT_ENCODING.as_str()).is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        return Err(ErrorKind::NoRanges.error("the server sends it compressed only: download it first"));
    }
    let kind = text(headers, CONTENT_TYPE.as_str()).unwrap_or("");
    if kind.get(..10).is_some_and(|kind| kind.eq_ignore_ascii_case("multipart/")) && headers.contains_key(CONTENT_RANGE)
        || kind.to_ascii_lowercase().starts_with("multipart/byteranges")
    {
        return Err(ErrorKind::Protocol.error("the server sends several parts where one range was asked for"));
    }
    Ok(())
}

fn changed_length(old: u64, new: u64) -> TransportError {
    ErrorKind::Changed.error(format!("it changed on the server (it had {old} bytes and has {new})"))
}

pub(super) fn refusal(status: StatusCode, headers: &HeaderMap) -> TransportError {
    let code = status.as_u16();
    let (kind, text) = match code {
        404 => (ErrorKind::Missing, "the server has no such file (404)".to_string()),
        410 => (ErrorKind::Missing, "the file is gone, or the link has expired (410)".to_string()),
        401 => (ErrorKind::Forbidden, "the server wants credentials (401)".to_string()),
        402 | 403 | 407 | 451 => (ErrorKind::Forbidden, format!("the server refuses access ({code})")),
        412 => (ErrorKind::Changed, "it changed on the server (412)".to_string()),
        408 | 425 | 429 | 500 | 502..=504 | 506..=599 => {
            let retry_after = wanted_wait(code, headers, SystemTime::now());
            let what = if status == 429 { "too many requests" } else { "the server cannot answer now" };
            (ErrorKind::Transient { retry_after }, format!("{what} ({code})"))
        }
        _ => (ErrorKind::Protocol, format!("the server answers with status {code}")),
    };
    let mut error = kind.error(text);
    error.status = Some(code);
    error
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// A number of digits only: no sign, no space.
fn header_number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) { None } else { text.parse().ok() }
}

fn content_length(headers: &HeaderMap) -> TransportResult<Option<u64>> {
    match text(headers, CONTENT_LENGTH.as_str()).map(header_number) {
        Some(None) => Err(ErrorKind::Protocol.error("the server sends a wrong Content-Length")),
        length => Ok(length.flatten()),
    }
}

/// Parses `bytes FIRST-LAST/TOTAL`; the total may be `*`. The range is not empty and lies inside the total.
fn parse_content_range(text: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (unit, rest) = text.split_at_checked(6)?;
    if !unit.eq_ignore_ascii_case("bytes ") {
        return None;
    }
    let (range, total) = rest.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (header_number(first)?, header_number(last)?);
    let end = last.checked_add(1)?;
    let total = if total == "*" { None } else { Some(header_number(total)?) };
    (first < end && total.is_none_or(|total| end <= total)).then_some((first..end, total))
}

/// Maximum wait. If the server asks for a longer one, it is shortened to this.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The wait that the server asks for. On status 429, `RateLimit: "resolvers";r=0;t=55` of the Hub means that the next
/// window starts after 55 seconds; it counts only when nothing remains of the current one.
pub(super) fn wanted_wait(status: u16, headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    if status == 429
        && let Some(limit) = text(headers, "ratelimit")
        && let (Some(0), Some(seconds)) = (field(limit, "r"), field(limit, "t"))
    {
        return Some(Duration::from_secs(seconds.saturating_add(1)).min(LONGEST));
    }
    let value = text(headers, RETRY_AFTER.as_str())?;
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(value.parse().map_or(LONGEST, Duration::from_secs).min(LONGEST));
    }
    let date = http_date(value)?;
    // The server's own clock is the one that the date is on.
    let now = text(headers, DATE.as_str()).and_then(http_date).unwrap_or(now);
    Some(date.duration_since(now).unwrap_or(Duration::ZERO).min(LONGEST))
}

/// A number in `"name";r=0;t=55`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.split(';').find_map(|part| part.trim().strip_prefix(name)?.trim().strip_prefix('=')?.trim().parse().ok())
}

/// A date of HTTP, `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(text: &str) -> Option<SystemTime> {
    let timestamp: Timestamp = rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    Some(timestamp.into())
}

#[cfg(test)]
mod tests;
