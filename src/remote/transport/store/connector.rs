//! Sends the requests of `object_store`, and checks the answers before it receives them. Errors travel through it as
//! the source of its own, and `failure` takes them out again.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, ETAG, HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode};
use url::Url;

use super::super::error::{ErrorKind, TransportError, plain};
use super::super::range::{WantedRange, check_range, refusal};
use super::super::validator::VersionValidator;
use super::super::wire::{HttpWire, describe_request, is_metadata};
use super::failure::CarriedError;

/// The longest error text that is read, in bytes.
const REASON: usize = 64 << 10;

/// How long a metadata service of a cloud may take. Outside of a cloud, nothing answers at its address.
const METADATA: Duration = Duration::from_secs(3);

/// The range that a request asks for, in the extensions of the request.
#[derive(Clone, Debug)]
pub(super) struct PinnedRange {
    pub(super) range: Range<u64>,
    pub(super) len: Option<u64>,
    pub(super) validator: Option<VersionValidator>,
}

/// The version of an answer, in the extensions of the response.
#[derive(Clone, Debug)]
pub(super) struct SeenVersion(pub(super) VersionValidator);

/// Makes the clients of a store.
#[derive(Clone, Debug)]
pub(super) struct StoreConnector {
    wire: HttpWire,
}

impl StoreConnector {
    pub(super) fn new(wire: HttpWire) -> StoreConnector {
        StoreConnector { wire }
    }
}

impl HttpConnector for StoreConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(StoreService { wire: self.wire.clone() }))
    }
}

#[derive(Debug)]
struct StoreService {
    wire: HttpWire,
}

#[async_trait::async_trait]
impl HttpService for StoreService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.send(request).await.map_err(|error| HttpError::new(HttpErrorKind::Unknown, CarriedError(error)))
    }
}

impl StoreService {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, TransportError> {
        let (parts, body) = request.into_parts();
        let url = Url::parse(&parts.uri.to_string()).map_err(|_| TransportError::protocol("the request has no URL"))?;
        let is_metadata = is_metadata(&url);
        // Stores are only read, so what is written is a request for a token.
        let is_token_request = parts.method == Method::POST || parts.method == Method::PUT;
        let secrets = secrets(&parts.headers, &url, body.as_bytes().map(|bytes| &bytes[..]));
        let pinned = parts.extensions.get::<PinnedRange>().cloned();
        let mut outgoing = reqwest::Request::new(parts.method, url);
        *outgoing.headers_mut() = parts.headers;
        if pinned.is_some() {
            outgoing.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if !body.is_empty() {
            let bytes =
                body.as_bytes().cloned().ok_or_else(|| TransportError::protocol("the request has a body in pieces"))?;
            *outgoing.body_mut() = Some(bytes.into());
        }
        let answer = if is_metadata {
            self.wire.hasty(METADATA).execute(outgoing).await.map_err(|error| no_credentials(&error))?
        } else {
            self.wire.execute(outgoing).await?
        };
        let (status, headers) = (answer.status(), answer.headers().clone());
        if let Some(pinned) = &pinned
            && (status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE)
        {
            let (range, len, validator) = (pinned.range.clone(), pinned.len, pinned.validator.as_ref());
            check_range(status, &quoted(&headers), &WantedRange { range, len, validator })?;
        }
        if status == StatusCode::OK && pinned.is_some() {
            return Err(TransportError::new(
                ErrorKind::NoRanges,
                "the server sends whole files only: download it first",
            ));
        }
        if !status.is_success() {
            let reason = self.reason(answer, status, &headers).await;
            let reason =
                secrets.iter().fold(reason, |error, secret| error.with_text(|text| text.replace(secret, "***")));
            let refused = is_token_request
                && matches!(reason.kind(), ErrorKind::Forbidden | ErrorKind::Protocol | ErrorKind::Missing);
            return Err(if is_metadata || refused { no_credentials(&reason) } else { reason });
        }
        let response: http::Response<reqwest::Body> = answer.into();
        let (mut parts, body) = response.into_parts();
        parts.extensions.insert(SeenVersion(VersionValidator::of(&quoted(&headers))));
        let body = body.map_err(|error| HttpError::new(HttpErrorKind::Unknown, CarriedError(describe_request(&error))));
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }

    /// The error for a status that is not a success, with what the body says.
    async fn reason(&self, answer: reqwest::Response, status: StatusCode, headers: &HeaderMap) -> TransportError {
        let body = self.wire.read_all(answer, REASON).await.unwrap_or_default();
        let body = String::from_utf8_lossy(&body);
        let code = element(&body, "Code").or_else(|| field(&body, "code"));
        let message = element(&body, "Message").or_else(|| field(&body, "message"));
        let mut error = refusal(status, headers, SystemTime::now());
        let region = headers.get("x-amz-bucket-region").and_then(|region| region.to_str().ok());
        let region = region.map(str::to_string).or_else(|| element(&body, "Region"));
        let is_redirect = matches!(status.as_u16(), 301 | 307 | 400);
        error.region = region.filter(|region| is_redirect && is_region(region));
        if status == StatusCode::BAD_REQUEST
            && matches!(code.as_deref(), Some("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired"))
        {
            error = error.of_kind(ErrorKind::Forbidden);
        }
        match (code, message) {
            (Some(code), Some(message)) => error.with_text(|text| format!("{text}, {code}: {message}")),
            (Some(said), None) | (None, Some(said)) => error.with_text(|text| format!("{text}, {said}")),
            (None, None) => error,
        }
    }
}

/// The headers with quotes around an ETag that has none, as listings and emulators write it.
fn quoted(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    let etag = headers.get(ETAG).and_then(|etag| etag.to_str().ok()).map(quoted_etag);
    if let Some(etag) = etag.and_then(|etag| etag.parse().ok()) {
        headers.insert(ETAG, etag);
    }
    headers
}

/// An ETag with quotes.
pub(super) fn quoted_etag(etag: &str) -> String {
    if etag.is_empty() || etag.contains('"') { etag.to_string() } else { format!("\"{etag}\"") }
}

/// The text of an XML element, as a line of a message.
fn element(body: &str, name: &str) -> Option<String> {
    let (_, rest) = body.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    Some(plain(text)).filter(|text| !text.is_empty())
}

/// A field of the object `error` in JSON, as Google's API answers.
fn field(body: &str, name: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(body).ok()?;
    match value.get("error").unwrap_or(&value).get(name)? {
        serde_json::Value::String(text) => Some(plain(text)).filter(|text| !text.is_empty()),
        _ => None,
    }
}

/// A name of a region goes into the name of a host.
fn is_region(text: &str) -> bool {
    (1..=40).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn no_credentials(error: &TransportError) -> TransportError {
    TransportError::new(ErrorKind::Credentials, format!("cannot get credentials ({error})"))
}

/// What a server could repeat from the request.
fn secrets(headers: &HeaderMap, url: &Url, form: Option<&[u8]>) -> Vec<String> {
    let mut secrets = Vec::new();
    for name in [AUTHORIZATION.as_str(), "x-amz-security-token", "x-aws-ec2-metadata-token", "x-identity-header"] {
        let value = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
        secrets.extend(value.rsplit([' ', '=']).next().map(str::to_string));
    }
    let is_secret = |name: &str| FORM.contains(&name) || name == "sig" || name.ends_with("-Signature");
    let form = url::form_urlencoded::parse(form.unwrap_or_default());
    let pairs = url.query_pairs().chain(form).filter(|(name, _)| is_secret(name));
    secrets.extend(pairs.map(|(_, value)| value.into_owned()));
    secrets.retain(|secret| secret.len() >= 8);
    secrets
}

/// Secret fields of the requests for tokens.
const FORM: [&str; 5] = ["WebIdentityToken", "assertion", "client_assertion", "client_secret", "refresh_token"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_read_from_xml_and_json() {
        let xml = "<Error><Code>AccessDenied</Code><Message>not\nyours https://h/?SECRET</Message></Error>";
        assert_eq!(element(xml, "Code").as_deref(), Some("AccessDenied"));
        assert_eq!(element(xml, "Message").as_deref(), Some("not yours https://h/..."));
        assert_eq!(element("<Code>", "Code"), None);
        assert_eq!(field(r#"{"error": {"code": 403, "message": "no"}}"#, "message").as_deref(), Some("no"));
        assert_eq!(field(r#"{"error": "x"}"#, "message"), None);
        assert_eq!(field("[", "message"), None);
    }

    #[test]
    fn regions_that_are_not_names_are_ignored() {
        assert!(is_region("eu-central-1"));
        assert!(!is_region("evil.example/") && !is_region(""));
    }

    #[test]
    fn addresses_of_metadata_services_are_recognised() {
        for url in ["http://169.254.169.254/latest", "http://[fd00:ec2::254]/", "http://metadata.google.internal/x"] {
            assert!(is_metadata(&Url::parse(url).unwrap()), "{url}");
        }
        assert!(!is_metadata(&Url::parse("https://169.254.169.254.example/").unwrap()));
    }
}
