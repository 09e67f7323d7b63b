//! Errors of remote files. The texts hold no secrets: no query of a URL, no header, no credential.

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
    NoRanges,
    /// A later attempt may succeed.
    Transient {
        retry_after: Option<Duration>,
    },
    /// The server broke the protocol, or gave an answer that further attempts do not change.
    Protocol,
    Certificate,
    /// Credentials are missing or their files are wrong.
    Credentials,
    Offline,
    /// The request is invalid, such as a URL without a file name.
    Invalid,
}

impl ErrorKind {
    pub(super) fn error(self, text: impl Into<String>) -> TransportError {
        TransportError { kind: self, text: text.into(), place: None, region: None, status: None }
    }
}

pub type TransportResult<T> = Result<T, TransportError>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportError {
    pub kind: ErrorKind,
    /// The reason, without the name of the file.
    pub text: String,
    place: Option<String>,
    /// The region of a bucket, from a server that was asked in another region.
    pub(super) region: Option<String>,
    pub(super) status: Option<u16>,
}

impl TransportError {
    pub(super) fn transient(text: impl Into<String>) -> TransportError {
        ErrorKind::Transient { retry_after: None }.error(text)
    }

    /// Nothing arrived for the time `idle`.
    pub(super) fn silence(idle: Duration) -> TransportError {
        TransportError::transient(format!("the server sent nothing for {} seconds", idle.as_secs_f32()))
    }

    /// No more than `bytes` arrived for the time `idle`.
    pub(super) fn slowness(bytes: u64, idle: Duration) -> TransportError {
        let seconds = idle.as_secs_f32();
        TransportError::transient(format!("the server sent no more than {bytes} bytes for {seconds} seconds"))
    }

    pub(super) fn no_ranges() -> TransportError {
        ErrorKind::NoRanges.error("the server sends whole files only: download it first")
    }

    /// Names the file in the text of the error. The first name stays.
    pub(super) fn at(mut self, place: &dyn fmt::Display) -> TransportError {
        self.place.get_or_insert_with(|| place.to_string());
        self
    }

    pub(super) fn with_text(mut self, change: impl FnOnce(String) -> String) -> TransportError {
        self.text = change(self.text);
        self
    }

    /// Adds what the server says: its code and its message.
    pub(super) fn saying(self, said: [Option<String>; 2]) -> TransportError {
        let said = said.into_iter().flatten().collect::<Vec<_>>().join(": ");
        if said.is_empty() { self } else { self.with_text(|text| format!("{text}, {said}")) }
    }

    pub(super) fn of_kind(mut self, kind: ErrorKind) -> TransportError {
        self.kind = kind;
        self
    }

    pub fn and(self, remedy: &str) -> TransportError {
        self.with_text(|text| format!("{text}; {remedy}"))
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
        ErrorKind::Invalid.error(error.to_string())
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
