//! Checks the head of an answer to a range request, before any byte of its body is used. Pure.

use std::ops::Range;
use std::time::SystemTime;

use reqwest::StatusCode;
use reqwest::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap};

use super::error::{ErrorKind, TransportError};
use super::retry::wanted_wait;
use super::validator::VersionValidator;

/// The range that was asked for.
#[derive(Clone, Debug)]
pub(super) struct WantedRange<'a> {
    /// The bytes, at least one.
    pub(super) range: Range<u64>,
    /// The length of the file, if known. Without it the range may pass the end of the file.
    pub(super) len: Option<u64>,
    /// The version, if pinned.
    pub(super) validator: Option<&'a VersionValidator>,
}

/// The range that the body holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResponsePart {
    /// Its bytes. Without a known length, the end is where the body ends.
    pub(super) range: Range<u64>,
    /// The length of the file; `None` for a whole file without a length, which ends where the body ends.
    pub(super) len: Option<u64>,
}

/// Checks status, `Content-Range`, lengths, encoding and version of an answer.
///
/// # Errors
/// Whatever is not exactly the wanted bytes of the wanted version. A server that sends a whole file gives `NoRanges`,
/// unless all of it was wanted.
pub(super) fn check_range(
    status: StatusCode,
    headers: &HeaderMap,
    wanted: &WantedRange<'_>,
) -> Result<ResponsePart, TransportError> {
    match status {
        StatusCode::PARTIAL_CONTENT => partial(headers, wanted),
        StatusCode::OK => whole_response(headers, wanted),
        StatusCode::RANGE_NOT_SATISFIABLE => {
            let total = text(headers, CONTENT_RANGE.as_str()).and_then(|range| range.strip_prefix("bytes */"));
            match (total.and_then(header_number), wanted.len) {
                // An empty file has no satisfiable range.
                (Some(0), None) if wanted.range.start == 0 => Ok(ResponsePart { range: 0..0, len: Some(0) }),
                (Some(total), Some(len)) if total != len => Err(changed_length(len, total)),
                _ => Err(TransportError::protocol("the server refuses a range that is inside the file (416)")),
            }
        }
        status => Err(refusal(status, headers, SystemTime::now())),
    }
}

fn partial(headers: &HeaderMap, wanted: &WantedRange<'_>) -> Result<ResponsePart, TransportError> {
    plain_body(headers)?;
    let content_range = text(headers, CONTENT_RANGE.as_str())
        .ok_or_else(|| TransportError::protocol("the server sends a part of the file without a Content-Range"))?;
    let (range, total) = parse_content_range(content_range)
        .ok_or_else(|| TransportError::protocol("the server sends an invalid Content-Range"))?;
    let len = match (total, wanted.len) {
        (Some(total), Some(len)) if total != len => return Err(changed_length(len, total)),
        (Some(total), _) => total,
        (None, Some(len)) => len,
        (None, None) => return Err(TransportError::protocol("the server does not say how long the file is")),
    };
    let expected = wanted.range.start..wanted.range.end.min(len);
    if range != expected {
        return Err(TransportError::protocol(format!(
            "the server sends bytes {}-{} where {}-{} were asked for",
            range.start,
            range.end.saturating_sub(1),
            expected.start,
            expected.end.saturating_sub(1)
        )));
    }
    if content_length(headers)?.is_some_and(|length| length != range.end - range.start) {
        return Err(TransportError::protocol("Content-Length and Content-Range of the server contradict each other"));
    }
    check_version(headers, wanted)?;
    Ok(ResponsePart { range, len: Some(len) })
}

fn whole_response(headers: &HeaderMap, wanted: &WantedRange<'_>) -> Result<ResponsePart, TransportError> {
    let refused = || TransportError::new(ErrorKind::NoRanges, "the server sends whole files only: download it first");
    if wanted.range.start != 0 {
        return Err(refused());
    }
    plain_body(headers)?;
    let length = content_length(headers)?;
    match (length, wanted.len) {
        (Some(length), Some(len)) if length != len => return Err(changed_length(len, length)),
        (Some(length), _) if length > wanted.range.end => return Err(refused()),
        (_, Some(len)) if len > wanted.range.end => return Err(refused()),
        _ => {}
    }
    check_version(headers, wanted)?;
    let len = length.or(wanted.len);
    Ok(ResponsePart { range: 0..len.unwrap_or(wanted.range.end), len })
}

fn check_version(headers: &HeaderMap, wanted: &WantedRange<'_>) -> Result<(), TransportError> {
    match wanted.validator {
        Some(validator) => validator.check(&VersionValidator::of(headers)),
        None => Ok(()),
    }
}

/// An encoded body has other offsets than the file.
fn plain_body(headers: &HeaderMap) -> Result<(), TransportError> {
    if text(headers, CONTENT_ENCODING.as_str()).is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        return Err(TransportError::new(ErrorKind::NoRanges, "the server sends it compressed only: download it first"));
    }
    let kind = text(headers, CONTENT_TYPE.as_str()).unwrap_or("");
    if kind.get(..10).is_some_and(|kind| kind.eq_ignore_ascii_case("multipart/")) && headers.contains_key(CONTENT_RANGE)
        || kind.to_ascii_lowercase().starts_with("multipart/byteranges")
    {
        return Err(TransportError::protocol("the server sends several parts where one range was asked for"));
    }
    Ok(())
}

fn changed_length(old: u64, new: u64) -> TransportError {
    TransportError::new(ErrorKind::Changed, format!("it changed on the server (it had {old} bytes and has {new})"))
}

/// The error for a status that is not a success.
pub(super) fn refusal(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> TransportError {
    let (kind, text) = match status.as_u16() {
        404 => (ErrorKind::Missing, "the server has no such file (404)".to_string()),
        410 => (ErrorKind::Missing, "the file is gone, or the link has expired (410)".to_string()),
        401 => (ErrorKind::Forbidden, "the server wants credentials (401)".to_string()),
        402 | 403 | 407 | 451 => (ErrorKind::Forbidden, format!("the server refuses access ({})", status.as_u16())),
        412 => (ErrorKind::Changed, "it changed on the server (412)".to_string()),
        408 | 425 | 429 | 500 | 502..=504 | 506..=599 => {
            let retry_after = wanted_wait(status.as_u16(), headers, now);
            let what = if status == 429 { "too many requests" } else { "the server cannot answer now" };
            (ErrorKind::Transient { retry_after }, format!("{what} ({})", status.as_u16()))
        }
        other => (ErrorKind::Protocol, format!("the server answers with status {other}")),
    };
    let mut error = TransportError::new(kind, text);
    error.status = Some(status.as_u16());
    error
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// A number of digits only: no sign, no space.
fn header_number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) { None } else { text.parse().ok() }
}

fn content_length(headers: &HeaderMap) -> Result<Option<u64>, TransportError> {
    match text(headers, CONTENT_LENGTH.as_str()) {
        None => Ok(None),
        Some(length) => header_number(length)
            .map(Some)
            .ok_or_else(|| TransportError::protocol("the server sends a wrong Content-Length")),
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

#[cfg(test)]
mod tests;
