//! Files on plain HTTP servers: pinned by ETag or date, with credentials from the URL, a token file or netrc.

use std::ops::{ControlFlow, Range};
use std::path::PathBuf;

use sha2::{Digest, Sha256};
use url::Url;

use super::body::{BodyEnd, ExpectedBody, Sink, pour};
use super::environment::EnvironmentCopy;
use super::error::{ErrorKind, TransportError};
use super::link::unsigned_parameters;
use super::netrc;
use super::options::TransportOptions;
use super::range::{WantedRange, check_range};
use super::secret::{AuthorizationValue, SecretText};
use super::tree::{ByteOrigin, ServerObject, ServerTree, TreeFile, TreeOrigin};
use super::url_file::{PinnedFile, UrlFile, range_headers};
use super::validator::VersionValidator;
use super::wire::{HttpWire, WireResponse, explain, pieces};
use crate::remote::location::{RemoteLocation, is_loopback};

/// Resolves and fetches URLs.
#[derive(Debug)]
pub(super) struct WebTransport {
    wire: HttpWire,
    credentials: WebCredentials,
}

impl WebTransport {
    pub(super) fn new(wire: HttpWire, options: &TransportOptions) -> WebTransport {
        WebTransport { wire, credentials: WebCredentials::new(options) }
    }

    /// The tree with the named file alone. Files beside it are found by probing them.
    pub(super) fn resolve(&self, location: &RemoteLocation) -> Result<ServerTree, TransportError> {
        let (Some(name), Some(folder)) = (location.file_name(), location.parent()) else {
            return Err(TransportError::new(
                ErrorKind::Invalid,
                "the URL names no file; HTTP servers have no directories",
            ));
        };
        let file = TreeFile { path: name.clone(), len: None, object: None };
        Ok(ServerTree::new(folder, Some((name, location.clone())), vec![file], TreeOrigin::Web))
    }

    /// Pins the file at `place` and returns its first bytes.
    pub(super) async fn probe(
        &self,
        place: RemoteLocation,
        first: u64,
    ) -> Result<(ServerObject, Vec<u8>), TransportError> {
        let RemoteLocation::Web(web) = &place else { return Err(TransportError::new(ErrorKind::Invalid, "not a URL")) };
        let (url, userinfo) = take_userinfo(web.url());
        let authorization = self.credentials.find(&url, userinfo.as_ref())?;
        let file = UrlFile::new(url, false);
        let headers = range_headers(&(0..first))?;
        let reply = file.get(&self.wire, &headers, authorization.as_ref()).await?;
        let wanted = WantedRange { range: 0..first, len: None, validator: None };
        let part = check_range(reply.status, &reply.headers, &wanted)
            .map_err(|error| self.advise(error, &reply, file.url(), authorization.as_ref()))?;
        let validator = VersionValidator::of(&reply.headers);
        let expected = match part.len {
            Some(_) => ExpectedBody::Exactly(part.range.end - part.range.start),
            None => ExpectedBody::AtMost(first),
        };
        let mut head = Vec::new();
        let end = pour(pieces(reply.body), expected, self.wire.idle(), &mut |bytes| {
            head.extend_from_slice(bytes);
            ControlFlow::Continue(())
        })
        .await
        .map_err(|error| match (error.kind(), expected) {
            (ErrorKind::Protocol, ExpectedBody::AtMost(_)) => {
                TransportError::new(ErrorKind::NoRanges, "the server sends whole files only: download it first")
            }
            _ => error,
        })?;
        let (BodyEnd::Complete(got) | BodyEnd::Stopped(got)) = end;
        let len = part.len.unwrap_or(got);
        let public = authorization.is_none() && userinfo.is_none() && file.url().query().is_none();
        let identity = identity(file.url());
        let remote = PinnedFile { file, userinfo, validator: validator.clone(), len };
        Ok((ServerObject::new(identity, validator, len, &place, public, ByteOrigin::Web(remote)), head))
    }

    /// Delivers a range of the pinned version.
    pub(super) async fn fetch(
        &self,
        remote: &PinnedFile,
        range: Range<u64>,
        sink: &mut Sink<'_>,
    ) -> Result<u64, TransportError> {
        let authorization = self.credentials.find(remote.file.url(), remote.userinfo.as_ref())?;
        let mut headers = range_headers(&range)?;
        remote.validator.set_conditions(&mut headers);
        let reply = remote.file.get(&self.wire, &headers, authorization.as_ref()).await?;
        let wanted = WantedRange { range: range.clone(), len: Some(remote.len), validator: Some(&remote.validator) };
        check_range(reply.status, &reply.headers, &wanted)
            .map_err(|error| self.advise(error, &reply, remote.file.url(), authorization.as_ref()))?;
        let expected = ExpectedBody::Exactly(range.end - range.start);
        let end = pour(pieces(reply.body), expected, self.wire.idle(), sink).await?;
        let (BodyEnd::Complete(delivered) | BodyEnd::Stopped(delivered)) = end;
        Ok(delivered)
    }

    /// Adds what the user can do about a refusal.
    fn advise(
        &self,
        error: TransportError,
        reply: &WireResponse,
        url: &Url,
        sent: Option<&AuthorizationValue>,
    ) -> TransportError {
        let error = explain(error, &reply.headers, sent);
        if reply.status.as_u16() != 401 {
            return error;
        }
        let advice = if url.scheme() == "http" && !is_loopback(url) {
            "credentials are not sent over unencrypted http; use https"
        } else if sent.is_some() {
            "it does not accept those that were sent"
        } else if self.credentials.anonymous {
            "none were sent, because of the option for anonymous access"
        } else {
            "put them into ~/.netrc, or use --token-file with a bearer token"
        };
        error.with_text(|text| format!("{text}: {advice}"))
    }
}

/// The origin of the credentials for a URL.
#[derive(Debug)]
struct WebCredentials {
    anonymous: bool,
    token_file: Option<PathBuf>,
    netrc: Option<PathBuf>,
}

impl WebCredentials {
    fn new(options: &TransportOptions) -> WebCredentials {
        let netrc = netrc_file(&options.environment);
        WebCredentials { anonymous: options.anonymous, token_file: options.token_file.clone(), netrc }
    }

    /// The first of: user information in the URL, the token file, netrc.
    fn find(
        &self,
        url: &Url,
        userinfo: Option<&AuthorizationValue>,
    ) -> Result<Option<AuthorizationValue>, TransportError> {
        if self.anonymous {
            return Ok(None);
        }
        if let Some(userinfo) = userinfo {
            return Ok(Some(userinfo.clone()));
        }
        if let Some(path) = &self.token_file {
            return read_token(path).map(|token| Some(AuthorizationValue::bearer(&token, url)));
        }
        let (Some(path), Some(host)) = (&self.netrc, url.host_str()) else { return Ok(None) };
        let Ok(text) = std::fs::read_to_string(path) else { return Ok(None) };
        let login = netrc::find_login(&text, host.trim_start_matches('[').trim_end_matches(']'));
        Ok(login.map(|login| AuthorizationValue::basic(&login.user, &login.password, url)))
    }
}

fn netrc_file(environment: &EnvironmentCopy) -> Option<PathBuf> {
    environment.path("NETRC").or_else(|| Some(environment.home()?.join(".netrc")))
}

/// The origin of the credentials for a URL.
pub(super) fn web_credentials_found(options: &TransportOptions, url: &Url) -> Result<Option<String>, TransportError> {
    let credentials = WebCredentials::new(options);
    let (bare, userinfo) = take_userinfo(url);
    let place = match (&userinfo, &credentials.token_file, &credentials.netrc) {
        (Some(_), _, _) => "the URL".to_owned(),
        (None, Some(path), _) => format!("the token file {}", path.display()),
        (None, None, Some(path)) => path.display().to_string(),
        (None, None, None) => return Ok(None),
    };
    Ok(credentials.find(&bare, userinfo.as_ref())?.map(|_| place))
}

/// The files that are read for credentials.
pub(super) fn web_reads(environment: &EnvironmentCopy) -> Vec<PathBuf> {
    netrc_file(environment).into_iter().collect()
}

/// Reads a file with a bearer token.
///
/// # Errors
/// It cannot be read or is empty. The text names the file, and nothing in it.
pub(super) fn read_token(path: &std::path::Path) -> Result<SecretText, TransportError> {
    let failed = |what: String| {
        TransportError::new(ErrorKind::Credentials, format!("the token file {}: {what}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let token = text.trim();
    if token.is_empty() || token.contains(char::is_whitespace) || token.len() > 64 << 10 {
        return Err(failed("it must hold one token".to_string()));
    }
    Ok(SecretText::new(token))
}

/// Takes user and password out of a URL.
fn take_userinfo(url: &Url) -> (Url, Option<AuthorizationValue>) {
    let mut bare = url.clone();
    let decoded = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    let user = decoded(url.username());
    let password = url.password().map(decoded);
    if user.is_empty() && password.is_none() {
        return (bare, None);
    }
    let _ = bare.set_username("");
    let _ = bare.set_password(None);
    let authorization = AuthorizationValue::basic(&user, &SecretText::new(password.unwrap_or_default()), &bare);
    (bare, Some(authorization))
}

/// The URL without what a signature adds. Of other parameters a hash is kept, as any of them may be a secret.
pub(super) fn identity(url: &Url) -> String {
    let mut identity = format!("{}{}", url.origin().ascii_serialization(), url.path());
    let mut kept = Sha256::new();
    let parameters = unsigned_parameters(url);
    for part in parameters.iter().flat_map(|(name, value)| [name, value]) {
        kept.update((part.len() as u64).to_le_bytes());
        kept.update(part.as_bytes());
    }
    if !parameters.is_empty() {
        let hash = kept.finalize();
        // A space is not in any URL. The cache refuses what looks like a query.
        identity.push_str(" sha256=");
        identity.extend(hash.iter().map(|byte| format!("{byte:02x}")));
    }
    identity
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signed_url_has_the_identity_of_the_next_one() {
        let id = |text: &str| identity(&Url::parse(text).unwrap());
        let one = id("https://b.s3.amazonaws.com/m.gguf?X-Amz-Date=1&X-Amz-Signature=a");
        assert_eq!(one, id("https://b.s3.amazonaws.com/m.gguf?X-Amz-Date=2&X-Amz-Signature=b"));
        assert_eq!(one, "https://b.s3.amazonaws.com/m.gguf");
        let file = |name: &str| id(&format!("https://h/get?file={name}&sig=x"));
        assert_ne!(file("a"), file("b"));
        assert!(!file("SECRET").contains("SECRET") && !file("SECRET").contains('?'));
        assert_ne!(id("https://h/get?a=b&c=d"), id("https://h/get?a=b%26c%3Dd"));
    }
}
