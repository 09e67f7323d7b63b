//! One HTTP request: connects, sends credentials only where they belong, follows redirects, and bounds every wait.

use std::error::Error as StdError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Client, Response, StatusCode, redirect};
use url::Url;

use super::error::{ErrorKind, TransportError, plain};
use super::secret::AuthorizationValue;
use crate::remote::location::is_loopback;

/// The most redirects that are followed. The Hub needs two, for a renamed repository with a CDN.
const REDIRECTS: usize = 5;

/// Sends requests over a pool of HTTP/1.1 connections.
#[derive(Clone, Debug)]
pub(super) struct HttpWire {
    pools: Arc<ConnectionPools>,
    /// The time limit for a head, or for the next bytes of a body.
    idle: Duration,
    /// Number of requests that were sent.
    requests: Arc<AtomicU64>,
}

/// The connections. Each client is made when it is first needed, because it reads the certificates of the system, which
/// takes some milliseconds.
#[derive(Debug)]
struct ConnectionPools {
    user_agent: String,
    connect: Duration,
    /// The most idle connections to one host.
    idle: usize,
    client: OnceLock<Client>,
    /// For this machine and the services of a cloud inside it: credentials for them must not pass a proxy.
    direct: OnceLock<Client>,
}

impl ConnectionPools {
    /// # Errors
    /// The certificates of the system cannot be read.
    fn client(&self, url: &Url) -> Result<&Client, TransportError> {
        let is_direct = is_loopback(url) || is_metadata(url);
        let made = if is_direct { &self.direct } else { &self.client };
        if let Some(client) = made.get() {
            return Ok(client);
        }
        // An error means that the program installed a provider before, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = Client::builder()
            .user_agent(&self.user_agent)
            .connect_timeout(self.connect)
            .redirect(redirect::Policy::none())
            .referer(false)
            .http1_only()
            .pool_max_idle_per_host(self.idle)
            .pool_idle_timeout(Duration::from_secs(60));
        let builder = if is_direct { builder.no_proxy() } else { builder };
        let client = builder.build().map_err(|error| describe_request(&error).of_kind(ErrorKind::Certificate))?;
        Ok(made.get_or_init(|| client))
    }
}

/// The head of the final answer; its body is not read yet.
#[derive(Debug)]
pub(super) struct WireResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The redirects on the way.
    pub(super) hops: Vec<RedirectHop>,
    pub(super) body: Response,
}

/// A redirect that was followed.
#[derive(Debug)]
pub(super) struct RedirectHop {
    pub(super) headers: HeaderMap,
    /// The target of its redirects.
    pub(super) to: Url,
    /// Whether it left the origin of the first request.
    pub(super) leaves: bool,
}

impl HttpWire {
    pub(super) fn new(user_agent: &str, connect: Duration, idle: Duration, pool: usize) -> HttpWire {
        let (client, direct) = Default::default();
        let pools = ConnectionPools { user_agent: user_agent.to_owned(), connect, idle: pool, client, direct };
        HttpWire { pools: Arc::new(pools), idle, requests: Arc::default() }
    }

    /// The number of requests that were sent.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(super) fn idle(&self) -> Duration {
        self.idle
    }

    /// The same connections with a shorter time limit.
    pub(super) fn hasty(&self, idle: Duration) -> HttpWire {
        HttpWire { idle: self.idle.min(idle), ..self.clone() }
    }

    /// Sends a GET request and follows redirects. `authorization` goes to its own origin, and no further once a
    /// redirect has left it.
    ///
    /// # Errors
    /// No answer came, or a redirect cannot be followed. Statuses are for the caller.
    pub(super) async fn get(
        &self,
        url: &Url,
        headers: &HeaderMap,
        authorization: Option<&AuthorizationValue>,
    ) -> Result<WireResponse, TransportError> {
        let mut url = url.clone();
        let mut hops: Vec<RedirectHop> = Vec::new();
        let origin = url.origin();
        loop {
            let left = hops.iter().any(|hop| hop.leaves);
            let mut request = self.pools.client(&url)?.get(url.clone()).headers(headers.clone());
            request = request.header(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            if let Some(authorization) = authorization.filter(|authorization| !left && authorization.is_for(&url)) {
                let header = authorization.header().ok_or_else(|| {
                    TransportError::new(
                        ErrorKind::Credentials,
                        "the token or password contains characters that no header can hold",
                    )
                })?;
                request = request.header(AUTHORIZATION, header);
            }
            let request = request.build().map_err(|error| describe_request(&error))?;
            let body = self.execute(request).await?;
            let status = body.status();
            if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(WireResponse { status, headers: body.headers().clone(), hops, body });
            }
            if hops.len() == REDIRECTS {
                return Err(TransportError::protocol(format!("the server redirects more than {REDIRECTS} times")));
            }
            let to = follow(&url, body.headers())?;
            hops.push(RedirectHop { headers: body.headers().clone(), leaves: to.origin() != origin, to: to.clone() });
            url = to;
        }
    }

    /// Sends a request and waits for the head of its answer. A request that was lost with a kept connection is sent
    /// again.
    pub(super) async fn execute(&self, request: reqwest::Request) -> Result<Response, TransportError> {
        let again = request.try_clone();
        let client = self.pools.client(request.url())?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        let answer = tokio::time::timeout(self.idle, async {
            match (client.execute(request).await, again) {
                (Err(error), Some(again)) if is_unanswered(&error) => client.execute(again).await,
                (answer, _) => answer,
            }
        });
        match answer.await {
            Err(_) => Err(silence(self.idle)),
            Ok(answer) => answer.map_err(|error| describe_request(&error)),
        }
    }

    /// Reads a whole body of at most `cap` bytes.
    ///
    /// # Errors
    /// It is longer, breaks off or stalls.
    pub(super) async fn read_all(&self, mut body: Response, cap: usize) -> Result<Vec<u8>, TransportError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk(&mut body).await? {
            if bytes.len() + chunk.len() > cap {
                return Err(TransportError::protocol(format!("the server's answer is longer than {cap} bytes")));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    async fn chunk(&self, body: &mut Response) -> Result<Option<Bytes>, TransportError> {
        match tokio::time::timeout(self.idle, body.chunk()).await {
            Err(_) => Err(silence(self.idle)),
            Ok(Err(error)) => Err(describe_request(&error)),
            Ok(Ok(chunk)) => Ok(chunk),
        }
    }
}

/// The body of an answer, piece by piece.
pub(super) fn pieces(body: Response) -> BoxStream<'static, Result<Bytes, TransportError>> {
    body.bytes_stream().map(|piece| piece.map_err(|error| describe_request(&error))).boxed()
}

/// Adds what the server says in the headers of the Hub, `X-Error-Code` and `X-Error-Message`.
pub(super) fn explain(
    error: TransportError,
    headers: &HeaderMap,
    authorization: Option<&AuthorizationValue>,
) -> TransportError {
    let said = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).map(plain);
    let text = match (said("x-error-code"), said("x-error-message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) => return error,
    };
    let text = authorization.map_or(text.clone(), |authorization| authorization.redact(&text));
    error.with_text(|before| format!("{before}, {text}"))
}

fn follow(from: &Url, headers: &HeaderMap) -> Result<Url, TransportError> {
    let location = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let location = location.ok_or_else(|| TransportError::protocol("the server redirects without saying where to"))?;
    let mut to =
        from.join(location).map_err(|_| TransportError::protocol("the server redirects to what is not a URL"))?;
    if !matches!(to.scheme(), "https" | "http") {
        return Err(TransportError::protocol("the server redirects to another protocol than HTTP"));
    }
    if from.scheme() == "https" && to.scheme() == "http" && !is_loopback(&to) {
        return Err(TransportError::protocol("the server redirects from https to unencrypted http"));
    }
    // A server could otherwise make this client send credentials of its choice.
    let _ = to.set_username("");
    let _ = to.set_password(None);
    to.set_fragment(None);
    Ok(to)
}

/// Whether a URL is that of a cloud's own service inside its machines.
pub(super) fn is_metadata(url: &Url) -> bool {
    matches!(
        url.host_str(),
        Some("169.254.169.254" | "169.254.170.2" | "169.254.170.23" | "[fd00:ec2::254]")
            | Some("metadata.google.internal" | "metadata")
    )
}

/// The error when nothing arrived for the time `idle`.
pub(super) fn silence(idle: Duration) -> TransportError {
    TransportError::transient(format!("the server sent nothing for {} seconds", idle.as_secs_f32()))
}

/// The error for a failed request, without its URL.
pub(super) fn describe_request(error: &reqwest::Error) -> TransportError {
    let mut texts: Vec<String> = Vec::new();
    let mut certificate = false;
    let mut cause = error.source();
    while let Some(error) = cause {
        certificate |= is_certificate(error);
        let text = plain(&error.to_string());
        // Most libraries repeat the text of the cause.
        if !texts.iter().any(|seen| seen.contains(&text)) {
            texts.push(text);
        }
        cause = error.source();
    }
    let detail = match texts.last() {
        Some(last) => last.clone(),
        None => plain(&error.to_string()).split(" for url").next().unwrap_or("").to_string(),
    };
    if certificate {
        return TransportError::new(
            ErrorKind::Certificate,
            format!("the certificate of the server is not trusted: {detail}"),
        );
    }
    if error.is_builder() {
        return TransportError::protocol(format!("the request cannot be made: {detail}"));
    }
    if is_foreign(error) {
        return TransportError::protocol(format!("the server's answer is not HTTP: {detail}"));
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
    while let Some(inner) = error.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref()) {
        error = inner;
    }
    matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented))
}

/// Whether the head of the answer cannot be parsed, which further attempts do not change.
fn is_foreign(error: &reqwest::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.downcast_ref().is_some_and(hyper::Error::is_parse) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Whether a server closed the connection before it answered anything. A kept connection may be closed just when the
/// next request is sent.
fn is_unanswered(error: &reqwest::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.downcast_ref().is_some_and(hyper::Error::is_incomplete_message) {
            return true;
        }
        cause = error.source();
    }
    false
}
