//! Files on plain HTTP servers: pinned by ETag or date, with credentials from the URL, a token file or netrc.

use std::ops::Range;
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use url::Url;

use super::body::{ExpectedBody, Sink, collect_body, pour};
use super::netrc;
use super::range::{ResponsePart, WantedRange, check_range};
use super::secret::{AuthorizationValue, SecretText};
use super::tree::{ByteOrigin, ProbedObject, ServerObject};
use super::url_file::{UrlFile, unsigned_parameters};
use super::validator::VersionValidator;
use super::wire::{HttpWire, WireResponse, explain, pieces};
use super::{EnvironmentCopy, ErrorKind, TransportError, TransportOptions, TransportResult};
use crate::remote::location::{RemoteLocation, is_loopback};

/// Pins the file at `place` and returns its first bytes.
pub(super) async fn probe_url(wire: &HttpWire, place: RemoteLocation, first: u64) -> TransportResult<ProbedObject> {
    let RemoteLocation::Web(web) = &place else { return Err(ErrorKind::Invalid.error("not a URL")) };
    let (url, userinfo) = take_userinfo(web.url());
    let remote = UrlFile::new(url, userinfo, false);
    let (reply, part, is_anonymous) = ask_for_range(wire, &remote, &WantedRange::first(first)).await?;
    let validator = VersionValidator::of(&reply.headers);
    let expected = part.expected_body();
    let head = collect_body(pieces(reply.body), expected, wire.idle).await;
    let head = head.map_err(|error| match (error.kind, expected) {
        (ErrorKind::Protocol, ExpectedBody::AtMost(_)) => TransportError::no_ranges(),
        _ => error,
    })?;
    let len = part.len.unwrap_or(head.len() as u64);
    let url = &remote.url;
    let public = is_anonymous && remote.userinfo.is_none() && url.query().is_none();
    let identity = identity(url);
    Ok((ServerObject::new(identity, validator, len, &place, public, ByteOrigin::Web(remote)), head))
}

/// Delivers a range, or a first part of it, of the pinned version.
pub(super) async fn fetch_url(
    wire: &HttpWire,
    object: &ServerObject,
    remote: &UrlFile,
    range: Range<u64>,
    sink: &mut Sink<'_>,
) -> TransportResult<()> {
    let wanted = WantedRange { range, len: Some(object.len), validator: Some(object.validator.clone()) };
    let (reply, part, _) = ask_for_range(wire, remote, &wanted).await?;
    pour(pieces(reply.body), part.expected_body(), wire.idle, sink).await
}

/// Returns the checked answer, and whether no credentials were sent.
async fn ask_for_range(
    wire: &HttpWire,
    remote: &UrlFile,
    wanted: &WantedRange,
) -> TransportResult<(WireResponse, ResponsePart, bool)> {
    let (options, url) = (wire.options(), &remote.url);
    let authorization = find_credentials(options, url, remote.userinfo.as_ref())?;
    let reply = remote.get(wire, &wanted.headers(), authorization.as_ref()).await?;
    match check_range(reply.status, &reply.headers, wanted) {
        Ok(part) => Ok((reply, part, authorization.is_none())),
        Err(error) => {
            let error = explain(error, &reply.headers, authorization.as_ref());
            if reply.status != 401 {
                return Err(error);
            }
            // The remedy.
            let advice = if url.scheme() == "http" && !is_loopback(url) {
                "credentials are not sent over unencrypted http; use https"
            } else if authorization.is_some() {
                "it does not accept those that were sent"
            } else {
                "put them into ~/.netrc, or use --token-file with a bearer token"
            };
            Err(error.with_text(|text| format!("{text}: {advice}")))
        }
    }
}

/// The credentials for a URL: the first of user information in it, the token file, netrc.
fn find_credentials(
    options: &TransportOptions,
    url: &Url,
    userinfo: Option<&AuthorizationValue>,
) -> TransportResult<Option<AuthorizationValue>> {
    if let Some(userinfo) = userinfo {
        return Ok(Some(userinfo.clone()));
    }
    if let Some(path) = &options.token_file {
        return read_token(path).map(|token| Some(AuthorizationValue::bearer(&token, url)));
    }
    let (Some(path), Some(host)) = (netrc_file(&options.environment), url.host_str()) else { return Ok(None) };
    let Ok(text) = std::fs::read_to_string(path) else { return Ok(None) };
    let login = netrc::find_login(&text, host.trim_start_matches('[').trim_end_matches(']'));
    Ok(login.map(|(user, password)| AuthorizationValue::basic(&user, &password, url)))
}

pub(super) fn netrc_file(environment: &EnvironmentCopy) -> Option<PathBuf> {
    environment.path("NETRC").or_else(|| Some(environment.home()?.join(".netrc")))
}

pub(super) fn web_credentials_found(options: &TransportOptions, url: &Url) -> TransportResult<Option<String>> {
    let (bare, userinfo) = take_userinfo(url);
    let place = match (&userinfo, &options.token_file, netrc_file(&options.environment)) {
        (Some(_), _, _) => "the URL".to_owned(),
        (None, Some(path), _) => format!("the token file {}", path.display()),
        (None, None, Some(path)) => path.display().to_string(),
        (None, None, None) => return Ok(None),
    };
    Ok(find_credentials(options, &bare, userinfo.as_ref())?.map(|_| place))
}

/// Reads a file with a bearer token. An error names the file, and nothing in it.
pub(super) fn read_token(path: &Path) -> TransportResult<SecretText> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string()).and_then(|text| {
        let token = text.trim();
        let is_one = !token.is_empty() && !token.contains(char::is_whitespace) && token.len() <= 64 << 10;
        if is_one { Ok(SecretText::new(token)) } else { Err("it must hold one token".to_owned()) }
    });
    text.map_err(|what| ErrorKind::Credentials.error(format!("the token file {}: {what}", path.display())))
}

fn take_userinfo(url: &Url) -> (Url, Option<AuthorizationValue>) {
    let mut bare = url.clone();
    if url.username().is_empty() && url.password().is_none() {
        return (bare, None);
    }
    let _ = bare.set_username("");
    let _ = bare.set_password(None);
    let user = percent_decode_str(url.username()).decode_utf8_lossy();
    let password = percent_decode_str(url.password().unwrap_or_default()).decode_utf8_lossy();
    let authorization = AuthorizationValue::basic(&user, &SecretText::new(password), &bare);
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
