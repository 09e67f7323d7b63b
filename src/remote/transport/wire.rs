//! One HTTP request: connects, sends credentials only where they belong, follows redirects, and bounds every wait.

use std::error::Error as StdError;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Client, Response, StatusCode, redirect};
use url::Url;

use super::body::{BodyPieces, ExpectedBody, collect_body};
use super::environment::TransportOptions;
use super::error::{ErrorKind, TransportError, TransportResult, plain};
use super::redirects::{self, is_metadata};
use super::secret::AuthorizationValue;
use crate::remote::location::is_loopback;

/// The most redirects that are followed. The Hub needs two, for a renamed repository with a CDN.
const REDIRECTS: usize = 5;

/// Sends requests over a pool of HTTP/1.1 connections.
#[derive(Clone, Debug)]
pub(super) struct HttpWire {
    pools: Arc<ConnectionPools>,
    /// The time limit for a head, or for the next bytes of a body.
    pub idle: Duration,
}

/// The connections. Each client is made when it is first needed, because reading certificates takes some milliseconds.
#[derive(Debug)]
struct ConnectionPools {
    options: TransportOptions,
    client: OnceLock<Client>,
    /// For this machine and the services of a cloud inside it: credentials for them must not pass a proxy.
    direct: OnceLock<Client>,
    /// For targets of redirects that must be outside of this network.
    outside: OnceLock<Client>,
    /// Number of requests that were sent.
    requests: AtomicU64,
    /// Whether any request was answered.
    has_answer: AtomicBool,
}

impl ConnectionPools {
    /// The client for a URL, which `must_be_outside` of this network or not. Fails if the certificates of the system
    /// cannot be read.
    fn client(&self, url: &Url, must_be_outside: bool) -> TransportResult<&Client> {
        let is_allowed = |host: &String| url.host_str().is_some_and(|name| name.eq_ignore_ascii_case(host));
        let must_be_outside = must_be_outside && !self.options.redirects_to.iter().any(is_allowed);
        if must_be_outside && redirects::names_inside(url) {
            return Err(ErrorKind::Protocol.error(redirects::INSIDE));
        }
        let is_direct = is_loopback(url) || is_metadata(url);
        // A proxy resolves names itself.
        let resolves_outside = must_be_outside && !redirects::has_proxy(&self.options.environment);
        let made = match (is_direct, resolves_outside) {
            (true, _) => &self.direct,
            (false, true) => &self.outside,
            (false, false) => &self.client,
        };
        if let Some(client) = made.get() {
            return Ok(client);
        }
        // An error means that the program installed a provider before, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = Client::builder()
            .user_agent(concat!("weightfs/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.options.connect_timeout)
            .redirect(redirect::Policy::none())
            .referer(false)
            .http1_only()
            .pool_max_idle_per_host(32)
            .pool_idle_timeout(Duration::from_secs(60));
        let builder = if is_direct { builder.no_proxy() } else { builder };
        let builder = if resolves_outside { builder.dns_resolver(redirects::OutsideResolver) } else { builder };
        let client = builder.build().map_err(|error| describe_request(&error).of_kind(ErrorKind::Certificate))?;
        Ok(made.get_or_init(|| client))
    }
}

/// The head of the final answer; its body is not read yet.
#[derive(Debug)]
pub(super) struct WireResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub hops: Vec<RedirectHop>,
    pub body: Response,
}

#[derive(Debug)]
pub(super) struct RedirectHop {
    pub headers: HeaderMap,
    pub to: Url,
    /// Whether it left the origin of the first request.
    pub leaves: bool,
    /// Whether it came from a server outside, so that it must lead outside.
    pub must_be_outside: bool,
}

impl HttpWire {
    pub fn new(options: TransportOptions) -> HttpWire {
        let idle = options.idle_timeout;
        let (client, direct, outside, requests, has_answer) = Default::default();
        let pools = ConnectionPools { options, client, direct, outside, requests, has_answer };
        HttpWire { pools: Arc::new(pools), idle }
    }

    pub fn options(&self) -> &TransportOptions {
        &self.pools.options
    }

    pub fn requests(&self) -> u64 {
        self.pools.requests.load(Ordering::Relaxed)
    }

    pub fn has_answer(&self) -> bool {
        self.pools.has_answer.load(Ordering::Relaxed)
    }

    /// The same connections with a shorter time limit.
    pub fn hasty(&self, idle: Duration) -> HttpWire {
        HttpWire { idle: self.idle.min(idle), ..self.clone() }
    }

    /// Sends a GET request and follows redirects. `authorization` goes to its own origin, and no further once a
    /// redirect has left it. If an earlier redirect led to `url`, that may have been one that `must_be_outside`. The
    /// caller checks the status.
    pub async fn get(
        &self,
        url: &Url,
        mut must_be_outside: bool,
        headers: &HeaderMap,
        authorization: Option<&AuthorizationValue>,
    ) -> TransportResult<WireResponse> {
        let mut url = url.clone();
        let mut hops: Vec<RedirectHop> = Vec::new();
        let origin = url.origin();
        loop {
            let left = hops.iter().any(|hop| hop.leaves);
            let client = self.pools.client(&url, must_be_outside)?;
            let mut request = client.get(url.clone()).headers(headers.clone());
            request = request.header(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            if let Some(authorization) = authorization.filter(|authorization| !left && authorization.is_for(&url)) {
                let header = authorization.header().ok_or_else(|| {
                    ErrorKind::Credentials.error("the token or password contains characters that no header can hold")
                })?;
                request = request.header(AUTHORIZATION, header);
            }
            let request = request.build().map_err(|error| describe_request(&error))?;
            let body = self.execute_by(client, request).await?;
            if hops.is_empty() && !must_be_outside {
                let has_proxy = redirects::has_proxy(&self.options().environment);
                must_be_outside = redirects::is_outside(&url, body.remote_addr(), has_proxy);
            }
            let status = body.status();
            if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(WireResponse { status, headers: body.headers().clone(), hops, body });
            }
            if hops.len() == REDIRECTS {
                return Err(ErrorKind::Protocol.error(format!("the server redirects more than {REDIRECTS} times")));
            }
            let to = follow(&url, body.headers())?;
            let (headers, leaves) = (body.headers().clone(), to.origin() != origin);
            hops.push(RedirectHop { headers, to: to.clone(), leaves, must_be_outside });
            url = to;
        }
    }

    /// Sends a request, again if its connection was lost before an answer, and waits for the head of its answer.
    pub async fn execute(&self, request: reqwest::Request) -> TransportResult<Response> {
        self.execute_by(self.pools.client(request.url(), false)?, request).await
    }

    async fn execute_by(&self, client: &Client, request: reqwest::Request) -> TransportResult<Response> {
        let again = request.try_clone();
        self.pools.requests.fetch_add(1, Ordering::Relaxed);
        let answer = tokio::time::timeout(self.idle, async {
            match (client.execute(request).await, again) {
                (Err(error), Some(again)) if is_unanswered(&error) => client.execute(again).await,
                (answer, _) => answer,
            }
        });
        let answer = answer.await.map_err(|_| TransportError::silence(self.idle))?;
        let response = answer.map_err(|error| describe_request(&error))?;
        self.pools.has_answer.store(true, Ordering::Relaxed);
        Ok(response)
    }

    /// Reads a whole body of at most `cap` bytes.
    pub async fn read_all(&self, body: Response, cap: u64) -> TransportResult<Vec<u8>> {
        let read = collect_body(pieces(body), ExpectedBody::AtMost(cap), self.idle).await;
        read.map_err(|error| match error.kind {
            ErrorKind::Protocol => error.with_text(|_| format!("the server's answer is longer than {cap} bytes")),
            _ => error,
        })
    }
}

pub(super) fn pieces(body: Response) -> BodyPieces {
    body.bytes_stream().map(|piece| piece.map_err(|error| describe_request(&error))).boxed()
}

/// Adds what the server says in the headers of the Hub, `X-Error-Code` and `X-Error-Message`.
pub(super) fn explain(
    error: TransportError,
    headers: &HeaderMap,
    authorization: Option<&AuthorizationValue>,
) -> TransportError {
    error.saying(["x-error-code", "x-error-message"].map(|name| {
        let text = plain(headers.get(name)?.to_str().ok()?);
        Some(authorization.map_or(text.clone(), |authorization| authorization.redact(&text)))
    }))
}

fn follow(from: &Url, headers: &HeaderMap) -> TransportResult<Url> {
    let location = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let location = location.ok_or_else(|| ErrorKind::Protocol.error("the server redirects without saying where to"))?;
    let mut to =
        from.join(location).map_err(|_| ErrorKind::Protocol.error("the server redirects to what is not a URL"))?;
    if !matches!(to.scheme(), "https" | "http") {
        return Err(ErrorKind::Protocol.error("the server redirects to another protocol than HTTP"));
    }
    if from.scheme() == "https" && to.scheme() == "http" && !is_loopback(&to) {
        return Err(ErrorKind::Protocol.error("the server redirects from https to unencrypted http"));
    }
    // A server could otherwise make this client send credentials of its choice.
    let _ = to.set_username("");
    let _ = to.set_password(None);
    to.set_fragment(None);
    Ok(to)
}

/// The error for a failed request, without its URL.
pub(super) fn describe_request(error: &reqwest::Error) -> TransportError {
    let mut texts: Vec<String> = Vec::new();
    for text in causes(error).map(|cause| plain(&cause.to_string())) {
        // Most libraries repeat the text of the cause.
        if !texts.iter().any(|seen| seen.contains(&text)) {
            texts.push(text);
        }
    }
    let detail =
        texts.pop().unwrap_or_else(|| plain(&error.to_string()).split(" for url").next().unwrap_or("").to_string());
    if causes(error).any(is_certificate) {
        return ErrorKind::Certificate.error(format!("the certificate of the server is not trusted: {detail}"));
    }
    if causes(error).any(|cause| cause.is::<redirects::InsideAddress>()) {
        return ErrorKind::Protocol.error(redirects::INSIDE);
    }
    if error.is_builder() {
        return ErrorKind::Protocol.error(format!("the request cannot be made: {detail}"));
    }
    // The head of the answer cannot be parsed, which further attempts do not change.
    if is_caused_by(error, hyper::Error::is_parse) {
        return ErrorKind::Protocol.error(format!("the server's answer is not HTTP: {detail}"));
    }
    let what = if error.is_timeout() {
        "the connection timed out"
    } else if error.is_connect() {
        "cannot connect"
    } else {
        "the connection broke"
    };
    TransportError::transient(format!("{what}: {detail}"))
}

/// Whether the cause is a certificate, which waiting does not change. `io::Error` holds other errors, and its source is
/// theirs, so they are looked for inside.
fn is_certificate(error: &(dyn StdError + 'static)) -> bool {
    let mut error = error;
    while let Some(inner) = error.downcast_ref::<io::Error>().and_then(|error| error.get_ref()) {
        error = inner;
    }
    matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented))
}

/// Whether a connection ended, in order or by a reset, before the head of an answer arrived. A server may close a kept
/// connection just when the next request is sent; if bytes of that request arrive after the close, it sends a reset.
fn is_unanswered(error: &reqwest::Error) -> bool {
    let is_lost = |cause: &(dyn StdError + 'static)| {
        cause.downcast_ref().is_some_and(hyper::Error::is_incomplete_message)
            || cause.downcast_ref().is_some_and(|error: &io::Error| {
                matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
            })
    };
    !error.is_connect() && causes(error).any(is_lost)
}

fn is_caused_by(error: &reqwest::Error, is_it: fn(&hyper::Error) -> bool) -> bool {
    causes(error).any(|cause| cause.downcast_ref().is_some_and(is_it))
}

fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}
