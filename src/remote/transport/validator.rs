//! The identity of a version of a remote file, and how sure it is.

use std::fmt;

use reqwest::header::{ETAG, HeaderMap, IF_MATCH, IF_UNMODIFIED_SINCE, LAST_MODIFIED};

use super::error::{ErrorKind, TransportResult};

/// The version of a file, as its server states it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VersionValidator {
    /// A hash of the content: `sha256:...` or the object id of git, `git:...`.
    pub content: Option<String>,
    /// The entity tag with its quotes, and with `W/` if it is weak.
    pub etag: Option<String>,
    /// The date as the server wrote it.
    pub modified: Option<String>,
    /// The version id of an object store.
    pub version: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeCertainty {
    /// Only a change of the length is noticed.
    Length,
    /// A change within the same second, or one that keeps the date, may go unnoticed.
    Date,
    /// Every change is noticed, as far as the server keeps its promises.
    Exact,
}

impl VersionValidator {
    pub fn of(headers: &HeaderMap) -> VersionValidator {
        let [etag, modified] = [ETAG, LAST_MODIFIED].map(|name| {
            let value = headers.get(name)?.to_str().ok()?.trim();
            (!value.is_empty() && value.len() <= 1024).then(|| value.to_string())
        });
        VersionValidator { etag, modified, ..VersionValidator::default() }
    }

    /// The entity tag if it is a strong one, which changes with every byte of the file.
    pub fn strong(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| etag.starts_with('"') && etag.ends_with('"') && etag.len() > 2)
    }

    /// The date in seconds since 1970; 0 if there is none.
    pub fn modified(&self) -> i64 {
        let Some(date) = &self.modified else { return 0 };
        let parsed = jiff::fmt::rfc2822::parse(date).map(|date| date.timestamp()).or_else(|_| date.parse());
        parsed.map_or(0, jiff::Timestamp::as_second)
    }

    pub fn certainty(&self) -> ChangeCertainty {
        if self.content.is_some() || self.version.is_some() || self.strong().is_some() {
            ChangeCertainty::Exact
        } else if self.etag.is_some() || self.modified.is_some() {
            ChangeCertainty::Date
        } else {
            ChangeCertainty::Length
        }
    }

    /// Adds the condition that the file still has this version.
    pub fn set_conditions(&self, headers: &mut HeaderMap) {
        if let Some(etag) = self.strong().and_then(|etag| etag.parse().ok()) {
            headers.insert(IF_MATCH, etag);
        } else if let Some(date) = self.modified.as_deref().and_then(|date| date.parse().ok()) {
            headers.insert(IF_UNMODIFIED_SINCE, date);
        }
    }

    /// Compares with the validator of a later answer. A strong entity tag alone proves that the bytes are equal (RFC
    /// 9110, section 8.8.1). Without one, everything that the server says of the version must be the same: a weak tag
    /// or a date proves nothing, but one that differs shows that the file was replaced. The error is `Changed` if they
    /// differ, `Protocol` if the answer no longer says which version it is.
    pub fn check(&self, later: &VersionValidator) -> TransportResult<()> {
        let both = [("ETag", &self.etag, &later.etag), ("Last-Modified", &self.modified, &later.modified)];
        let compared = if self.strong().is_some() { &both[..1] } else { &both[..] };
        // A version that is pinned by a hash or a version id was not described by an answer.
        let is_pinned = self.content.is_some() || self.version.is_some();
        for (name, ours, theirs) in compared {
            match (ours, theirs) {
                (None, Some(_)) if is_pinned => {}
                (Some(_), None) => {
                    return Err(ErrorKind::Protocol
                        .error(format!("the server no longer says which version it sends: no {name}")));
                }
                _ if ours == theirs => {}
                _ => {
                    let text = format!("it changed on the server ({name} differs)");
                    return Err(ErrorKind::Changed.error(text));
                }
            }
        }
        Ok(())
    }
}

/// The text form, for the key of a cache. Different versions have different texts.
impl fmt::Display for VersionValidator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(content) = &self.content {
            return f.write_str(content);
        }
        if let Some(etag) = self.strong() {
            return write!(f, "etag:{etag}");
        }
        match (&self.etag, &self.modified) {
            (None, None) => f.write_str("none"),
            (etag, modified) => {
                write!(f, "weak:{} {}", etag.as_deref().unwrap_or("-"), modified.as_deref().unwrap_or("-"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::ErrorKind;
    use super::*;

    fn validator(etag: Option<&str>, modified: Option<&str>) -> VersionValidator {
        let text = |text: &str| text.to_owned();
        VersionValidator { etag: etag.map(text), modified: modified.map(text), ..VersionValidator::default() }
    }

    #[test]
    fn every_validator_of_a_later_answer_is_compared() {
        let (monday, friday) = (Some("Mon, 02 Nov 2026 10:00:00 GMT"), Some("Fri, 06 Nov 2026 10:00:00 GMT"));
        let (weak, strong) = (Some("W/\"v1\""), Some("\"v1\""));
        let changed = Some(ErrorKind::Changed);
        for (opened, later, expected) in [
            ((weak, monday), (weak, monday), None),
            ((weak, monday), (Some("W/\"v2\""), monday), changed),
            ((weak, monday), (weak, friday), changed),
            ((weak, monday), (strong, monday), changed),
            ((weak, monday), (None, monday), Some(ErrorKind::Protocol)),
            ((weak, monday), (weak, None), Some(ErrorKind::Protocol)),
            ((None, monday), (weak, monday), changed),
            ((None, None), (None, monday), changed),
            ((None, None), (None, None), None),
            // The bytes are equal, whatever the date says.
            ((strong, monday), (strong, friday), None),
            ((strong, monday), (weak, monday), changed),
        ] {
            let found = validator(opened.0, opened.1).check(&validator(later.0, later.1));
            assert_eq!(found.map_err(|error| error.kind).err(), expected, "{opened:?} {later:?}");
        }
        let pinned = VersionValidator { version: Some("7".into()), ..VersionValidator::default() };
        assert!(pinned.check(&validator(strong, monday)).is_ok());
    }
}
