//! Answers requests: finds the file of a URL, and sends it or a page.

use super::access::{self, AdmittedAs, RefusedRequest, ServerAccess};
use super::body::{FileBody, ResponseBody};
use super::connections::BusyGuard;
use super::page::{self, PagePlace};
use super::range::{FileValidators, SelectedAnswer};
use super::url;
use super::work::{SiteOperation, SiteWork};
use crate::content::{self, Content, ReadRequest};
use crate::fs::{self, Attr, FileKind, ROOT, Superblock};
use crate::source;
use httpdate::fmt_http_date;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_RANGES, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    HeaderName, HeaderValue, LAST_MODIFIED, LOCATION, REFERRER_POLICY, SET_COOKIE, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::response::Builder;
use hyper::{Method, Request, Response, StatusCode, Version};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// The target of a URL.
enum SitePath {
    /// The path of a directory without the slash at its end.
    Moved,
    Page(String),
    File(Box<Content>, Attr, Option<String>),
    /// A link of a folder to a file that is not a model. The file may lie anywhere, and the server may have more rights
    /// than the client.
    Link,
}

/// Pages and files load nothing from elsewhere, and are not shown inside pages of others.
const POLICY: &str = "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";

/// A file system with its pages.
#[derive(Debug)]
pub(super) struct FileSite {
    work: Arc<SiteWork>,
    /// The source, for people.
    name: Arc<str>,
    /// The options that differ between servers of the same source.
    version: String,
    access: ServerAccess,
    port: u16,
}

impl FileSite {
    pub fn new(
        superblock: Superblock,
        name: String,
        version: &str,
        access: ServerAccess,
        port: u16,
        memory: Option<u64>,
    ) -> Self {
        let work = Arc::new(SiteWork::new(superblock, memory));
        Self { work, name: name.into(), version: version.to_owned(), access, port }
    }

    pub fn access(&self) -> &ServerAccess {
        &self.access
    }

    /// The response to a request. `is_own` is whether its connection needs no token.
    pub async fn respond(&self, request: Request<Incoming>, is_own: bool, busy: BusyGuard) -> Response<ResponseBody> {
        let is_head = request.method() == Method::HEAD;
        let mut response = self.answer(&request, is_own, busy).await;
        let headers = response.headers_mut();
        for (name, value) in [
            (CONTENT_SECURITY_POLICY, POLICY),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
            (REFERRER_POLICY, "no-referrer"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            // Browsers ask each time whether a file has changed.
            (CACHE_CONTROL, "private, no-cache"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        if is_head {
            *response.body_mut() = ResponseBody::empty();
        }
        response
    }

    async fn answer(&self, request: &Request<Incoming>, is_own: bool, busy: BusyGuard) -> Response<ResponseBody> {
        if !access::is_method(request.method()) {
            let page = page::failure_page("Only reading is possible", "This server answers GET and HEAD requests.");
            return finish(status(StatusCode::METHOD_NOT_ALLOWED).header(ALLOW, "GET, HEAD"), HTML, page);
        }
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default().to_owned());
        match self.access.check(request.uri(), request.headers(), is_own, self.port) {
            Ok(AdmittedAs::AsItIs) => {}
            Ok(AdmittedAs::ByUrl) => return self.admit(path, &query),
            Err(refused) => return self.refuse(refused),
        }
        if let Some(name) = url::parameter(&query, page::ASSET) {
            return match page::asset(&name) {
                Some((kind, text)) => finish(status(StatusCode::OK), kind, text),
                None => failed(StatusCode::NOT_FOUND, "Not found", "The server has no such part of its pages."),
            };
        }
        let Some((path, is_dir)) = url::components(path) else {
            return failed(StatusCode::NOT_FOUND, "Not found", "No file can have this path.");
        };
        let asked = PathQuery { site: self.name.clone(), path: path.clone(), is_dir, query: query.clone() };
        let found = self.work.start(asked).await;
        let shown = || path.iter().map(|name| String::from_utf8_lossy(name)).collect::<Vec<_>>().join("/");
        match found {
            Ok(SitePath::Page(page)) => finish(status(StatusCode::OK), HTML, page),
            Ok(SitePath::Moved) => {
                let query = if query.is_empty() { String::new() } else { format!("?{query}") };
                moved(&format!("{}/{query}", href(&path)), None)
            }
            Ok(SitePath::Link) => failed(
                StatusCode::FORBIDDEN,
                "Not served",
                "This is a link to a file that is not a model. A mount shows where it leads; the server does not follow it.",
            ),
            Ok(SitePath::File(content, attr, version)) => {
                let etag = version.map(|version| self.etag(&version));
                self.file(request, *content, &attr, etag, shown(), busy).await
            }
            Err(error) => unreadable(&shown(), &error),
        }
    }

    /// The response with a file, or with a part of it.
    async fn file(
        &self,
        request: &Request<Incoming>,
        content: Content,
        attr: &Attr,
        etag: Option<String>,
        name: String,
        busy: BusyGuard,
    ) -> Response<ResponseBody> {
        let len = content.len();
        let validators = FileValidators::new(etag, attr.mtime);
        let mut builder = Response::builder()
            .header(ACCEPT_RANGES, "bytes")
            .header(LAST_MODIFIED, fmt_http_date(validators.modified));
        if let Some(etag) = &validators.etag {
            builder = builder.header(ETAG, etag);
        }
        // A range is defined for GET only.
        let selected = match validators.select(request.headers(), len) {
            SelectedAnswer::Part(_) | SelectedAnswer::OutOfRange if request.method() == Method::HEAD => {
                SelectedAnswer::Whole
            }
            selected => selected,
        };
        let range = match selected {
            SelectedAnswer::Whole => 0..len,
            SelectedAnswer::Part(range) => {
                let text = format!("bytes {}-{}/{len}", range.start, range.end - 1);
                builder = builder.status(StatusCode::PARTIAL_CONTENT).header(CONTENT_RANGE, text);
                range
            }
            SelectedAnswer::NotModified => {
                return complete_site(builder.status(StatusCode::NOT_MODIFIED), ResponseBody::empty());
            }
            SelectedAnswer::Failed => {
                return complete_site(builder.status(StatusCode::PRECONDITION_FAILED), ResponseBody::empty());
            }
            SelectedAnswer::OutOfRange => {
                let builder = builder.status(StatusCode::RANGE_NOT_SATISFIABLE);
                return complete_site(builder.header(CONTENT_RANGE, format!("bytes */{len}")), ResponseBody::empty());
            }
        };
        let sent = range.end - range.start;
        let builder = builder.header(CONTENT_TYPE, content_type(&name)).header(CONTENT_LENGTH, sent);
        let mut body = FileBody::new(self.work.clone(), content, name.clone(), range, move || busy.touch());
        if request.method() == Method::GET
            && let Err(error) = body.begin().await
        {
            return unreadable(&name, &error);
        }
        complete_site(builder, ResponseBody::File(body.into()))
    }

    /// The entity tag of a version of a file.
    fn etag(&self, version: &str) -> String {
        let digest = Sha256::digest(format!("{}\n{version}", self.version));
        format!("\"{}\"", digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    /// Sets the cookie with the token, and leads to the URL without the token.
    fn admit(&self, path: &str, query: &str) -> Response<ResponseBody> {
        let token = self.access.token.as_deref().unwrap_or_default();
        let cookie = format!("{}={token}; HttpOnly; SameSite=Strict; Path=/", access::cookie(self.port));
        moved(&format!("{path}{}", url::without(query, access::TOKEN)), Some(&cookie))
    }

    fn refuse(&self, refused: RefusedRequest) -> Response<ResponseBody> {
        let (code, text) = match refused {
            RefusedRequest::Host => (
                StatusCode::MISDIRECTED_REQUEST,
                "The address of this page names another machine. Use the IP address, or start the server with --host NAME.",
            ),
            RefusedRequest::Site => (StatusCode::FORBIDDEN, "A page of another site asked for this."),
            RefusedRequest::Stranger => (
                StatusCode::FORBIDDEN,
                "Only the user who has started this server may use it. With --client-token FILE, it admits others by a token.",
            ),
            RefusedRequest::NoToken => {
                (StatusCode::UNAUTHORIZED, "Use the URL with the token that `weightfs serve` has printed.")
            }
            RefusedRequest::WrongToken => {
                (StatusCode::UNAUTHORIZED, "The token is not that of this server. It may have been started again.")
            }
        };
        let mut builder = status(code);
        if code == StatusCode::UNAUTHORIZED {
            builder = builder.header(WWW_AUTHENTICATE, "Bearer");
        }
        finish(builder, HTML, page::failure_page("Not admitted", text))
    }
}

/// Finds the file or page at a URL. Pages are written here, because that may read tables of the model.
struct PathQuery {
    /// The source, for people.
    site: Arc<str>,
    /// The components of the path.
    path: Vec<Vec<u8>>,
    /// Whether the path ends with a slash.
    is_dir: bool,
    query: String,
}

impl SiteOperation for PathQuery {
    type Output = SitePath;

    fn run(&self, superblock: &Superblock, request: &ReadRequest) -> Result<SitePath, fs::Error> {
        let mut attr = superblock.getattr(ROOT, request)?;
        for name in &self.path {
            if attr.kind != FileKind::Dir {
                return Err(fs::Error::NotADirectory);
            }
            attr = superblock.lookup(attr.ino, name, request)?;
        }
        match attr.kind {
            FileKind::Link => Ok(SitePath::Link),
            FileKind::Dir if !self.is_dir => Ok(SitePath::Moved),
            FileKind::Dir => {
                let place = PagePlace { site: &self.site, path: &self.path, ino: attr.ino };
                page::render_page(superblock, &place, &self.query, request).map(SitePath::Page)
            }
            FileKind::File if self.is_dir => Err(fs::Error::NotADirectory),
            FileKind::File => {
                let content = superblock.open(attr.ino, request)?;
                Ok(SitePath::File(content.into(), attr, superblock.version(attr.ino, request)?))
            }
        }
    }
}

/// The response for a file or directory that cannot be read. Logs the reason, unless it does not exist.
fn unreadable(name: &str, error: &fs::Error) -> Response<ResponseBody> {
    let (code, title, text) = failure_answer(error);
    if code != StatusCode::NOT_FOUND {
        log::warn!("{name}: {error}");
    }
    failed(code, title, text)
}

/// The status and the text of a page about an error. The log has the details, which may name other files.
fn failure_answer(error: &fs::Error) -> (StatusCode, &'static str, &'static str) {
    match error {
        fs::Error::NoEntry | fs::Error::NotADirectory | fs::Error::IsADirectory => {
            (StatusCode::NOT_FOUND, "Not found", "There is no such file.")
        }
        fs::Error::Changed { .. }
        | fs::Error::Content(content::Error::Source(source::Error::Changed { .. } | source::Error::Replaced { .. })) => {
            (
                StatusCode::GONE,
                "The source has changed",
                "The model was replaced or overwritten since the server was started. Start it again.",
            )
        }
        fs::Error::Content(content::Error::TimedOut) => {
            (StatusCode::GATEWAY_TIMEOUT, "Too slow", "The source did not answer in time. Try again.")
        }
        fs::Error::Content(content::Error::NoMemory) => {
            (StatusCode::SERVICE_UNAVAILABLE, "No memory", "There is too little memory now. Try again.")
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "Cannot be read", "The log of the server has the reason."),
    }
}

/// The type of a file, by its name.
fn content_type(name: &str) -> &'static str {
    let last = name.rsplit('/').next().unwrap_or(name);
    match last.rsplit_once('.').map(|(_, suffix)| suffix) {
        Some("json") => "application/json",
        Some("png") => "image/png",
        Some("txt") => "text/plain; charset=utf-8",
        _ if last == "SHA256SUMS" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// The URL of a path.
fn href(path: &[Vec<u8>]) -> String {
    path.iter().map(|name| format!("/{}", url::encode_url(name))).collect()
}

fn status(code: StatusCode) -> Builder {
    Response::builder().status(code)
}

/// A response with a text.
fn finish(builder: Builder, kind: &'static str, text: impl Into<hyper::body::Bytes>) -> Response<ResponseBody> {
    let text = text.into();
    complete_site(builder.header(CONTENT_TYPE, kind).header(CONTENT_LENGTH, text.len()), ResponseBody::text(text))
}

fn failed(code: StatusCode, title: &str, text: &str) -> Response<ResponseBody> {
    finish(status(code), HTML, page::failure_page(title, text))
}

/// A redirection on this server.
fn moved(location: &str, cookie: Option<&str>) -> Response<ResponseBody> {
    // A location that begins with two slashes would be another host.
    let location = format!("/{}", location.trim_start_matches('/'));
    let mut builder = status(StatusCode::SEE_OTHER).header(LOCATION, location).header(CONTENT_LENGTH, 0);
    if let Some(cookie) = cookie {
        builder = builder.header(SET_COOKIE, cookie);
    }
    complete_site(builder, ResponseBody::empty())
}

/// The response of a builder. A header with characters that no header may have gives an empty response.
fn complete_site(builder: Builder, body: ResponseBody) -> Response<ResponseBody> {
    builder.version(Version::HTTP_11).body(body).unwrap_or_else(|error| {
        log::error!("a response cannot be written: {error}");
        let mut response = Response::new(ResponseBody::empty());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}
