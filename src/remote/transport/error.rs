//! What can go wrong with a remote file. The texts hold no secrets: no query of a URL, no header, no credential.

use std::fmt;
use std::time::Duration;

/// The reaction of a caller to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The file is no longer the version that was opened.
    Changed,
    /// There is no such file, or the server says so.
    Missing,
    /// The server wants credentials, or refuses those that were sent.
    Forbidden,
    /// The server sends whole files only.
    NoRanges,
    /// A later attempt may succeed.
    Transient {
        /// The time that the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// The server broke the protocol, or gave an answer that further attempts do not change.
    Protocol,
    /// The certificate of the server is not trusted.
    Certificate,
    /// Credentials are missing or their files are wrong.
    Credentials,
    /// It needs the network, and the client is offline.
    Offline,
    /// The request is invalid, such as a URL without a file name.
    Invalid,
}

/// An error of resolving or fetching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportError {
    kind: ErrorKind,
    text: String,
    place: Option<String>,
    delivered: u64,
    /// The region of a bucket, from a server that was asked in another region.
    pub(super) region: Option<String>,
    /// The HTTP status, if the error comes from one.
    pub(super) status: Option<u16>,
}

impl TransportError {
    pub(super) fn new(kind: ErrorKind, text: impl Into<String>) -> TransportError {
        TransportError { kind, text: text.into(), place: None, delivered: 0, region: None, status: None }
    }

    pub(super) fn transient(text: impl Into<String>) -> TransportError {
        TransportError::new(ErrorKind::Transient { retry_after: None }, text)
    }

    pub(super) fn protocol(text: impl Into<String>) -> TransportError {
        TransportError::new(ErrorKind::Protocol, text)
    }

    /// Names the file in the text of the error. The first name stays.
    pub(super) fn at(mut self, place: &dyn fmt::Display) -> TransportError {
        self.place.get_or_insert_with(|| place.to_string());
        self
    }

    pub(super) fn after(mut self, delivered: u64) -> TransportError {
        self.delivered = delivered;
        self
    }

    pub(super) fn with_text(mut self, change: impl FnOnce(String) -> String) -> TransportError {
        self.text = change(self.text);
        self
    }

    pub(super) fn of_kind(mut self, kind: ErrorKind) -> TransportError {
        self.kind = kind;
        self
    }

    /// The reason, without the name of the file.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same error with a remedy.
    pub fn and(self, remedy: &str) -> TransportError {
        self.with_text(|text| format!("{text}; {remedy}"))
    }

    /// The reaction of the caller.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Number of bytes of the range that the sink received before the error. They are verified and can be kept.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.text)
    }
}

impl std::error::Error for TransportError {}

impl From<crate::remote::location::ParseError> for TransportError {
    fn from(error: crate::remote::location::ParseError) -> TransportError {
        TransportError::new(ErrorKind::Invalid, error.to_string())
    }
}

/// Makes text from a server or a library fit for a message: one line, bounded, and of URLs only scheme and host, as
/// signed URLs carry their signature behind.
pub(super) fn plain(text: &str) -> String {
    let mut out = String::new();
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(4096).collect();
    let mut rest = line.as_str();
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || "\"'<>(){}".contains(c)).unwrap_or(after.len());
        let (address, tail) = after.split_at(end);
        let host = address.split(['/', '?', '#']).next().unwrap_or("");
        out.push_str(host.rsplit('@').next().unwrap_or(""));
        if host.len() < address.len() {
            out.push_str("/...");
        }
        rest = tail;
    }
    out.push_str(rest);
    let out = out.trim();
    match out.char_indices().nth(300) {
        Some((at, _)) => format!("{}...", &out[..at]),
        None => out.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn urls_in_foreign_texts_lose_path_query_and_user() {
        for (text, expected) in [
            ("GET https://u:SECRET@h:1/p?X=SECRET failed", "GET https://h:1/... failed"),
            ("<a href=\"http://h?SECRET\">", "<a href=\"http://h/...\">"),
            ("a\nb\u{1b}[0m", "a b [0m"),
            ("s3://b and https://h/SECRET", "s3://b and https://h/..."),
        ] {
            assert_eq!(plain(text), expected);
        }
        assert!(plain(&"x".repeat(10_000)).len() < 310);
    }
}
