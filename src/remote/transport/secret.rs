//! Secrets, which print as `***`, and to which server they are sent.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use reqwest::header::HeaderValue;
use url::{Origin, Url};

use crate::remote::location::is_loopback;

#[derive(Clone, PartialEq, Eq)]
pub(super) struct SecretText(String);

impl SecretText {
    pub fn new(text: impl Into<String>) -> SecretText {
        SecretText(text.into())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A value of the `AuthorizationValue` header, and the origin it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AuthorizationValue {
    header: SecretText,
    /// The secret as it may appear in an answer that repeats the request.
    bare: SecretText,
    origin: Origin,
}

impl AuthorizationValue {
    /// A bearer token for the origin of `url`.
    pub fn bearer(token: &SecretText, url: &Url) -> AuthorizationValue {
        let header = SecretText(format!("Bearer {}", token.reveal()));
        AuthorizationValue { header, bare: token.clone(), origin: url.origin() }
    }

    /// User and password for the origin of `url`.
    pub fn basic(user: &str, password: &SecretText, url: &Url) -> AuthorizationValue {
        let pair = BASE64_STANDARD.encode(format!("{user}:{}", password.reveal()));
        AuthorizationValue { header: SecretText(format!("Basic {pair}")), bare: password.clone(), origin: url.origin() }
    }

    /// Whether it may be sent to `url`: the same scheme, host and port, and encrypted or on this machine.
    pub fn is_for(&self, url: &Url) -> bool {
        url.origin() == self.origin && (url.scheme() == "https" || is_loopback(url))
    }

    /// The header, marked as sensitive, or `None` if it cannot be one because of control characters.
    pub fn header(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_str(self.header.reveal()).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    pub fn redact(&self, text: &str) -> String {
        let encoded = self.header.reveal().rsplit(' ').next().unwrap_or("");
        let mut text = text.to_string();
        for secret in [encoded, self.bare.reveal()].into_iter().filter(|secret| !secret.is_empty()) {
            text = text.replace(secret, "***");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authorization_is_for_its_origin_and_never_for_open_http() {
        let url = |text: &str| Url::parse(text).unwrap();
        let token = SecretText::new("TOKEN");
        let https = AuthorizationValue::bearer(&token, &url("https://a.example/x"));
        assert!(https.is_for(&url("https://a.example:443/y")));
        for other in ["https://a.example:8443/x", "http://a.example/x", "https://b.a.example/x", "https://a.example.b/"]
        {
            assert!(!https.is_for(&url(other)), "{other}");
        }
        assert!(!AuthorizationValue::bearer(&token, &url("http://a.example/")).is_for(&url("http://a.example/")));
        assert!(AuthorizationValue::bearer(&token, &url("http://127.0.0.1:1/")).is_for(&url("http://127.0.0.1:1/z")));
    }

    #[test]
    fn secrets_do_not_print_and_are_removed_from_echoes() {
        let url = Url::parse("https://a.example").unwrap();
        let basic = AuthorizationValue::basic("me", &SecretText::new("PASSWORD"), &url);
        let header = basic.header().unwrap();
        let shown = format!("{basic:?} {basic:#?} {header:?}");
        let encoded = header.to_str().unwrap().strip_prefix("Basic ").unwrap();
        assert!(!shown.contains("PASSWORD") && !shown.contains(encoded), "{shown}");
        assert_eq!(basic.redact(&format!("you sent {encoded} or PASSWORD")), "you sent *** or ***");
    }
}
