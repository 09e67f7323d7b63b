//! Answers requests: finds the file of a URL, and sends it or a page.

use super::access::{self, AdmittedAs, FailureAnswer, ServerAccess};
use super::body::{ResponseBody, file_body, text_body};
use super::page::{self, PageQuery, PageRequest};
use super::range::{FileValidators, SelectedAnswer};
use super::url;
use super::work::{SiteOperation, SiteWork};
use crate::content::{self, Content, ReadRequest};
use crate::fs::{self, Attr, FileKind, Ino, ROOT, Superblock};
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
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

enum SitePath {
    /// The path of a directory without the slash at its end.
    Moved,
    Page(String),
    /// The entries of a directory or the place of a file as JSON, and what identifies the version of the source.
    Json(String, Option<String>),
    File(Box<Content>, Attr, Option<String>),
    /// A link to a file that is not a model. It may lie anywhere, and the server may have more rights than the client.
    Link,
}

/// Pages and files load nothing from elsewhere, and are not shown inside pages of others.
const POLICY: &str = "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";

/// The query parameter that asks for the entries of a directory instead of its page. Its value is `json`.
const ENTRIES: &str = "entries";

/// The query parameter that asks for the place of a file instead of its bytes. Its value is `json`.
const PLACE: &str = "place";

/// A file system with its pages.
#[derive(Debug)]
pub(super) struct FileSite {
    pub work: Arc<SiteWork>,
    /// The source, for people.
    pub name: Arc<str>,
    /// The options that differ between servers of the same source.
    pub version: String,
    pub access: ServerAccess,
    pub port: u16,
    /// Whether clients may ask where files lie on this machine.
    pub tells_places: bool,
    /// Held while the user of a connection is looked up, so that many connections at once need only one thread.
    pub looking_up: tokio::sync::Mutex<()>,
}

impl FileSite {
    /// The response to a request. `is_own` is whether its connection needs no token.
    pub async fn respond(&self, request: Request<Incoming>, is_own: bool) -> Response<ResponseBody> {
        let is_head = request.method() == Method::HEAD;
        let answer = self.answer(&request, is_own).await;
        let mut response = answer.unwrap_or_else(|FailureAnswer(status, title, text)| {
            let mut builder = Response::builder().status(status);
            if status == StatusCode::UNAUTHORIZED {
                builder = builder.header(WWW_AUTHENTICATE, "Bearer");
            } else if status == StatusCode::METHOD_NOT_ALLOWED {
                builder = builder.header(ALLOW, "GET, HEAD");
            }
            finish(builder, HTML, page::failure_page(title, text))
        });
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
            *response.body_mut() = text_body("");
        }
        response
    }

    async fn answer(&self, request: &Request<Incoming>, is_own: bool) -> Result<Response<ResponseBody>, FailureAnswer> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let text = "This server answers GET and HEAD requests.";
            return Err(FailureAnswer(StatusCode::METHOD_NOT_ALLOWED, "Only reading is possible", text));
        }
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default().to_owned());
        match self.access.check(request.uri(), request.headers(), is_own, self.port)? {
            AdmittedAs::AsItIs => {}
            AdmittedAs::ByUrl => return Ok(self.admit(path, &query)),
        }
        if let Some(name) = url::parameter(&query, page::ASSET) {
            let asset = page::asset(&name).map(|(kind, text)| finish(Response::builder(), kind, text));
            return asset.ok_or(not_found("The server has no such part of its pages."));
        }
        let (path, is_dir) = url::components(path).ok_or(not_found("No file can have this path."))?;
        let asked = PathQuery {
            site: self.name.clone(),
            path: path.clone(),
            is_dir,
            query: query.clone(),
            tells_places: self.tells_places,
        };
        let found = self.work.start(asked).await;
        let shown = path.iter().map(|name| String::from_utf8_lossy(name)).collect::<Vec<_>>().join("/");
        match found {
            Ok(SitePath::Page(page)) => Ok(finish(Response::builder(), HTML, page)),
            Ok(SitePath::Json(text, version)) => {
                let tagged = version.map(|version| Response::builder().header(ETAG, self.etag(&version)));
                Ok(finish(tagged.unwrap_or_default(), JSON, text))
            }
            Ok(SitePath::Moved) => {
                let query = if query.is_empty() { String::new() } else { format!("?{query}") };
                let path: String = path.iter().map(|name| format!("/{}", url::encode_url(name))).collect();
                Ok(moved(&format!("{path}/{query}"), None))
            }
            Ok(SitePath::Link) => Err(FailureAnswer(
                StatusCode::FORBIDDEN,
                "Not served",
                "This is a link to a file that is not a model. A mount shows where it leads; the server does not follow it.",
            )),
            Ok(SitePath::File(content, attr, version)) => {
                let etag = version.map(|version| self.etag(&version));
                self.file(request, *content, &attr, etag, shown).await
            }
            Err(error) => Err(failure_answer(&shown, &error)),
        }
    }

    async fn file(
        &self,
        request: &Request<Incoming>,
        content: Content,
        attr: &Attr,
        etag: Option<String>,
        name: String,
    ) -> Result<Response<ResponseBody>, FailureAnswer> {
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
        let (status, range) = match selected {
            SelectedAnswer::Whole => (StatusCode::OK, Some(0..len)),
            SelectedAnswer::Part(range) => {
                builder = builder.header(CONTENT_RANGE, format!("bytes {}-{}/{len}", range.start, range.end - 1));
                (StatusCode::PARTIAL_CONTENT, Some(range))
            }
            SelectedAnswer::NotModified => (StatusCode::NOT_MODIFIED, None),
            SelectedAnswer::Failed => (StatusCode::PRECONDITION_FAILED, None),
            SelectedAnswer::OutOfRange => {
                builder = builder.header(CONTENT_RANGE, format!("bytes */{len}"));
                (StatusCode::RANGE_NOT_SATISFIABLE, None)
            }
        };
        let Some(range) = range else { return Ok(complete_site(builder.status(status), text_body(""))) };
        let sent = range.end - range.start;
        let builder = builder.status(status).header(CONTENT_TYPE, content_type(&name)).header(CONTENT_LENGTH, sent);
        if request.method() == Method::HEAD {
            return Ok(complete_site(builder, text_body("")));
        }
        let body = file_body(self.work.clone(), content, range, name.clone()).await;
        Ok(complete_site(builder, body.map_err(|error| failure_answer(&name, &error))?))
    }

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
}

/// Finds the file or page at a URL. Pages are written here, because that may read tables of the model.
struct PathQuery {
    site: Arc<str>,
    path: Vec<Vec<u8>>,
    is_dir: bool,
    query: String,
    tells_places: bool,
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
            FileKind::Dir if url::parameter(&self.query, ENTRIES).as_deref() == Some("json") => {
                // A directory of several models has no version.
                let version = superblock.version(attr.ino, request).unwrap_or_default();
                Ok(SitePath::Json(directory_entries(superblock, attr.ino, request)?, version))
            }
            FileKind::Dir => {
                let (site, path, ino, wants) = (&*self.site, &*self.path, attr.ino, request);
                let query = PageQuery::parse(&self.query);
                page::render_page(&PageRequest { superblock, site, path, ino, query, wants }).map(SitePath::Page)
            }
            FileKind::File if self.is_dir => Err(fs::Error::NotADirectory),
            FileKind::File => {
                let content = superblock.open(attr.ino, request)?;
                if self.tells_places && url::parameter(&self.query, PLACE).as_deref() == Some("json") {
                    return Ok(SitePath::Json(file_place(&content), None));
                }
                Ok(SitePath::File(content.into(), attr, superblock.version(attr.ino, request)?))
            }
        }
    }
}

/// The entries of a directory: a JSON array with an object for each, one per line. `size` is in bytes, and missing for
/// a file that cannot be opened now.
fn directory_entries(superblock: &Superblock, directory: Ino, request: &ReadRequest) -> Result<String, fs::Error> {
    let mut found = Vec::new();
    superblock.readdir(directory, 0, request, |entry| {
        found.push((entry.name.into_owned(), entry.ino, entry.kind));
        false
    })?;
    let mut lines = Vec::new();
    for (name, ino, kind) in found.into_iter().filter(|(name, ..)| name != "." && name != "..") {
        let mut entry = serde_json::json!({ "name": name.to_string_lossy() });
        entry["type"] = match kind {
            FileKind::Dir => "directory",
            FileKind::File => "file",
            FileKind::Link => "link",
        }
        .into();
        if kind == FileKind::File {
            match superblock.getattr(ino, request) {
                Ok(attr) => entry["size"] = attr.size.into(),
                Err(error) if error.would_block() => return Err(error),
                Err(_) => {}
            }
        }
        lines.push(entry.to_string());
    }
    Ok(format!("[\n{}\n]\n", lines.join(",\n")))
}

/// The place of most bytes of a file, for clients that read them there: a JSON object, or `null` if they are not in a
/// file of this machine. The bytes from `begin` on, `length` in number, are those from `offset` of the file at `path`,
/// as long as that has the same numbers, size, and times in nanoseconds since 1970.
fn file_place(content: &Content) -> String {
    let Some((begin, source, range)) = content.longest_run() else { return "null".into() };
    let (stat, path) = (source.stat(), source.path().and_then(Path::to_str));
    let mtime =
        stat.mtime.duration_since(SystemTime::UNIX_EPOCH).ok().and_then(|time| i64::try_from(time.as_nanos()).ok());
    let ctime = stat.ctime.0.checked_mul(1_000_000_000).and_then(|time| time.checked_add(stat.ctime.1));
    let (Some(path), Some((device, inode)), Some(mtime), Some(ctime)) = (path, source.id(), mtime, ctime) else {
        return "null".into();
    };
    let place = serde_json::json!({
        "begin": begin, "length": range.end - range.start, "path": path, "offset": range.start,
        "device": device, "inode": inode, "size": source.len(), "mtime": mtime, "ctime": ctime,
    });
    place.to_string()
}

fn not_found(text: &'static str) -> FailureAnswer {
    FailureAnswer(StatusCode::NOT_FOUND, "Not found", text)
}

/// The answer for a file that cannot be read. The reason may name other files, so it goes to the log.
fn failure_answer(name: &str, error: &fs::Error) -> FailureAnswer {
    let answer = match error {
        fs::Error::NoEntry | fs::Error::NotADirectory | fs::Error::IsADirectory => {
            return not_found("There is no such file.");
        }
        fs::Error::Changed { .. }
        | fs::Error::Content(content::Error::Source(source::Error::Changed { .. } | source::Error::Replaced { .. })) => {
            let text = "The model was replaced or overwritten since the server was started. Start it again.";
            FailureAnswer(StatusCode::GONE, "The source has changed", text)
        }
        fs::Error::Content(content::Error::NoMemory) => {
            FailureAnswer(StatusCode::SERVICE_UNAVAILABLE, "No memory", "There is too little memory now. Try again.")
        }
        _ => {
            let text = "The log of the server has the reason.";
            FailureAnswer(StatusCode::INTERNAL_SERVER_ERROR, "Cannot be read", text)
        }
    };
    log::warn!("{name}: {error}");
    answer
}

fn content_type(name: &str) -> &'static str {
    let last = name.rsplit('/').next().unwrap_or(name);
    match last.rsplit_once('.').map(|(_, suffix)| suffix) {
        Some("json") => JSON,
        Some("png") => "image/png",
        Some("txt") => "text/plain; charset=utf-8",
        _ if last == "SHA256SUMS" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

fn finish(builder: Builder, kind: &'static str, text: impl Into<hyper::body::Bytes>) -> Response<ResponseBody> {
    let text = text.into();
    complete_site(builder.header(CONTENT_TYPE, kind).header(CONTENT_LENGTH, text.len()), text_body(text))
}

/// A redirection on this server.
fn moved(location: &str, cookie: Option<&str>) -> Response<ResponseBody> {
    // A location that begins with two slashes would be another host.
    let location = format!("/{}", location.trim_start_matches('/'));
    let builder = Response::builder().status(StatusCode::SEE_OTHER);
    let mut builder = builder.header(LOCATION, location).header(CONTENT_LENGTH, 0);
    if let Some(cookie) = cookie {
        builder = builder.header(SET_COOKIE, cookie);
    }
    complete_site(builder, text_body(""))
}

/// The response of a builder. A header with characters that no header may have gives an empty response.
fn complete_site(builder: Builder, body: ResponseBody) -> Response<ResponseBody> {
    builder.version(Version::HTTP_11).body(body).unwrap_or_else(|error| {
        log::error!("a response cannot be written: {error}");
        let mut response = Response::new(text_body(""));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}
