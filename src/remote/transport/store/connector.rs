//! Sends the requests of `object_store`, and checks the answers before it receives them. Errors travel through it as
//! the source of its own, and `translate` takes them out again.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_RANGE, ETAG, HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode};
use url::Url;

use super::super::error::{ErrorKind, TransportError, TransportResult, plain};
use super::super::range::{WantedRange, check_range, refusal};
use super::super::redirects::is_metadata;
use super::super::skipped::SkippedNames;
use super::super::validator::VersionValidator;
use super::super::wire::{HttpWire, describe_request};
use super::listing::{ListingRequest, PAGE, readable_entries};

/// The longest error text that is read, in bytes.
const REASON: u64 = 64 << 10;

/// The time limit for a metadata service of a cloud. Outside of a cloud, nothing answers at its address.
const METADATA: Duration = Duration::from_secs(3);

impl HttpConnector for HttpWire {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait::async_trait]
impl HttpService for HttpWire {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.send_for_store(request).await.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))
    }
}

impl HttpWire {
    async fn send_for_store(&self, request: HttpRequest) -> TransportResult<HttpResponse> {
        let (parts, body) = request.into_parts();
        let url =
            Url::parse(&parts.uri.to_string()).map_err(|_| ErrorKind::Protocol.error("the request has no URL"))?;
        let is_metadata = is_metadata(&url);
        // Stores are only read, so what is written is a request for a token.
        let is_token_request = parts.method == Method::POST || parts.method == Method::PUT;
        let secrets = secrets(&parts.headers, &url, body.as_bytes().map(|bytes| &bytes[..]));
        let wanted = parts.extensions.get::<WantedRange>().cloned();
        let is_listing = parts.extensions.get::<ListingRequest>().is_some();
        let mut outgoing = reqwest::Request::new(parts.method, url);
        *outgoing.headers_mut() = parts.headers;
        if wanted.is_some() {
            outgoing.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if !body.is_empty() {
            let bytes = body
                .as_bytes()
                .cloned()
                .ok_or_else(|| ErrorKind::Protocol.error("the request has a body in pieces"))?;
            *outgoing.body_mut() = Some(bytes.into());
        }
        let answer = if is_metadata {
            self.hasty(METADATA).execute(outgoing).await.map_err(|error| no_credentials(&error))?
        } else {
            self.execute(outgoing).await?
        };
        let (status, headers) = (answer.status(), quoted(answer.headers()));
        let mut part = None;
        if let Some(wanted) = &wanted {
            if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
                part = Some(check_range(status, &headers, wanted)?);
            }
            if status == StatusCode::OK {
                return Err(TransportError::no_ranges());
            }
        }
        if !status.is_success() {
            let mut reason = self.reason_of_store(answer, status, &headers).await;
            for secret in &secrets {
                reason = reason.with_text(|text| text.replace(secret, "***"));
            }
            let refused = is_token_request
                && matches!(reason.kind, ErrorKind::Forbidden | ErrorKind::Protocol | ErrorKind::Missing);
            return Err(if is_metadata || refused { no_credentials(&reason) } else { reason });
        }
        if is_listing {
            return self.readable_page(answer).await;
        }
        let response: http::Response<reqwest::Body> = answer.into();
        let (mut parts, body) = response.into_parts();
        // `validator` takes it out.
        parts.extensions.insert(VersionValidator::of(&headers));
        if let (Some(wanted), Some(part)) = (wanted, part) {
            // `object_store` refuses a part that is shorter than the range. `expected_body` takes out how long it is.
            if let Some(range) = part.len.and_then(|len| wanted.content_range(len)) {
                parts.headers.insert(CONTENT_RANGE, range);
            }
            parts.extensions.insert(part);
        }
        let body = body.map_err(|error| HttpError::new(HttpErrorKind::Unknown, describe_request(&error)));
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }

    /// A page of a listing without the entries that `object_store` cannot parse. `list_once` takes out their names. A
    /// page that is not XML is left as it is.
    async fn readable_page(&self, answer: reqwest::Response) -> TransportResult<HttpResponse> {
        let page = self.read_all(answer, PAGE).await?;
        let (page, skipped) = readable_entries(&page).unwrap_or((page, SkippedNames::default()));
        let mut response = HttpResponse::new(Bytes::from(page).into());
        response.extensions_mut().insert(skipped);
        Ok(response)
    }

    /// The error for a status that is not a success, with what the body says.
    async fn reason_of_store(
        &self,
        answer: reqwest::Response,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> TransportError {
        let body = self.read_all(answer, REASON).await.unwrap_or_default();
        let body = String::from_utf8_lossy(&body);
        let code = element(&body, "Code").or_else(|| field(&body, "code"));
        let message = element(&body, "Message").or_else(|| field(&body, "message"));
        let mut error = refusal(status, headers);
        if matches!(status.as_u16(), 301 | 307 | 400) {
            let region = headers.get("x-amz-bucket-region").and_then(|region| region.to_str().ok());
            let region = region.map(str::to_string).or_else(|| element(&body, "Region"));
            error.region = region.filter(|region| is_region(region));
        }
        if status == StatusCode::BAD_REQUEST
            && matches!(code.as_deref(), Some("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired"))
        {
            error = error.of_kind(ErrorKind::Forbidden);
        }
        error.saying([code, message])
    }
}

/// The headers with quotes around an ETag that has none, as listings and emulators write it.
fn quoted(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    if let Some(etag) = headers.get_mut(ETAG)
        && let Some(quoted) = etag.to_str().ok().and_then(|text| quoted_etag(text).parse().ok())
    {
        *etag = quoted;
    }
    headers
}

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
    let text = value.get("error").unwrap_or(&value).get(name)?.as_str()?;
    Some(plain(text)).filter(|text| !text.is_empty())
}

/// A name of a region goes into the name of a host.
fn is_region(text: &str) -> bool {
    (1..=40).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn no_credentials(error: &TransportError) -> TransportError {
    ErrorKind::Credentials.error(format!("cannot get credentials ({error})"))
}

/// The secrets that a server could repeat from the request.
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
