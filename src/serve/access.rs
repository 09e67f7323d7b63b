//! Access to the server: for the user who has started it, and for everybody who has the token.

use super::peer::PeerTables;
use hyper::header::{AUTHORIZATION, COOKIE, HOST, HeaderMap, HeaderName};
use hyper::{StatusCode, Uri};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

#[derive(Debug)]
pub struct ServerAccess {
    /// The users whose connections from this machine need no token.
    pub peers: Option<PeerTables>,
    /// The token of everybody else. `None` if nobody else is admitted.
    pub token: Option<String>,
    /// Names of this machine by which it may be addressed, besides IP addresses and `localhost`.
    pub hosts: Vec<String>,
}

/// A request that fails: the status of the response, and the title and the text of its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FailureAnswer(pub StatusCode, pub &'static str, pub &'static str);

const fn refused(status: StatusCode, text: &'static str) -> FailureAnswer {
    FailureAnswer(status, "Refused", text)
}

const NO_HOST: FailureAnswer = FailureAnswer(
    StatusCode::BAD_REQUEST,
    "Not a valid request",
    "A request must have one Host header with a name or an address, and a port if any. A URL in it must name the same host.",
);
/// The Host header names another host.
const WRONG_HOST: FailureAnswer = refused(
    StatusCode::MISDIRECTED_REQUEST,
    "The address of this page names another machine. Use the IP address, or start the server with --host NAME.",
);
const OTHER_SITE: FailureAnswer = refused(StatusCode::FORBIDDEN, "A page of another site asked for this.");
/// The connection belongs to another user, and there is no token that would admit it.
const STRANGER: FailureAnswer = refused(
    StatusCode::FORBIDDEN,
    "Only the user who has started this server may use it. With --client-token FILE, it admits others by a token.",
);
const NO_TOKEN: FailureAnswer =
    refused(StatusCode::UNAUTHORIZED, "Use the URL with the token that `weightfs serve` has printed.");
const WRONG_TOKEN: FailureAnswer =
    refused(StatusCode::UNAUTHORIZED, "The token is not that of this server. It may have been started again.");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AdmittedAs {
    /// By its connection or by a header.
    AsItIs,
    /// By the token in its URL, which becomes a cookie.
    ByUrl,
}

/// The name of the query parameter with the token.
pub(super) const TOKEN: &str = "token";

impl ServerAccess {
    pub(super) fn is_own(&self, peer: SocketAddr, local: SocketAddr) -> bool {
        self.peers.as_ref().is_some_and(|peers| peers.is_own(peer, local))
    }

    /// Checks a request. `is_own` is the result of [`Self::is_own`] for its connection, and `port` that of the server.
    pub(super) fn check(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        is_own: bool,
        port: u16,
    ) -> Result<AdmittedAs, FailureAnswer> {
        if !self.is_host(host_name(uri, headers)?) {
            return Err(WRONG_HOST);
        }
        if is_of_another_site(headers) {
            return Err(OTHER_SITE);
        }
        let given = super::url::parameter(uri.query().unwrap_or_default(), TOKEN);
        match (&self.token, given) {
            // Also if the connection needs no token, so that the token stays in no address and no history.
            (Some(token), Some(given)) if is_equal(&given, token) => return Ok(AdmittedAs::ByUrl),
            _ if is_own => return Ok(AdmittedAs::AsItIs),
            (Some(_), Some(_)) => return Err(WRONG_TOKEN),
            _ => {}
        }
        let Some(token) = &self.token else { return Err(STRANGER) };
        let authorization = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.split_once(' '));
        let bearer = authorization.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, given)| given);
        let name = cookie(port);
        let cookies =
            headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|all| all.split(';'));
        let cookie = cookies.filter_map(|pair| pair.trim().split_once('=')).find(|(key, _)| *key == name);
        match bearer.or(cookie.map(|(_, value)| value)) {
            Some(given) if is_equal(given.trim(), token) => Ok(AdmittedAs::AsItIs),
            Some(_) => Err(WRONG_TOKEN),
            None => Err(NO_TOKEN),
        }
    }

    /// Whether a name is one of this machine. A page of another site can make a browser send requests here under a name
    /// of its own (DNS rebinding), but not under an IP address.
    fn is_host(&self, name: &str) -> bool {
        name.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|known| name.eq_ignore_ascii_case(known))
    }
}

/// The host that a request names, without its port. There must be one Host header, and a URI with a host must agree
/// with it (RFC 9112, section 3.2).
fn host_name<'h>(uri: &Uri, headers: &'h HeaderMap) -> Result<&'h str, FailureAnswer> {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return Err(NO_HOST) };
    let host = host.to_str().map_err(|_| NO_HOST)?;
    if uri.authority().is_some_and(|authority| !authority.as_str().eq_ignore_ascii_case(host)) {
        return Err(NO_HOST);
    }
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').filter(|(name, _)| name.parse::<Ipv6Addr>().is_ok()).ok_or(NO_HOST)?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let digits = port.strip_prefix(':').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let is_port = port.is_empty() || digits.is_some_and(|digits| digits.parse::<u16>().is_ok());
    if is_port { Ok(name) } else { Err(NO_HOST) }
}

/// The name of the cookie with the token. Browsers send cookies to all ports, and another server may have one too.
pub(super) fn cookie(port: u16) -> String {
    format!("weightfs-{port}")
}

/// Whether a browser sends the request for a page of another site, or of another port of this machine. Following a link
/// is allowed.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    let value = |name| headers.get(HeaderName::from_static(name)).map(|value| value.as_bytes());
    let is_foreign = !matches!(value("sec-fetch-site"), None | Some(b"same-origin" | b"none"));
    is_foreign && !(value("sec-fetch-mode") == Some(b"navigate") && value("sec-fetch-dest") == Some(b"document"))
}

/// Whether two strings are equal, in a time that depends on their lengths only.
fn is_equal(given: &str, token: &str) -> bool {
    given.len() == token.len() && given.bytes().zip(token.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        access: &ServerAccess,
        uri: &str,
        headers: &[(&'static str, &str)],
        is_own: bool,
    ) -> Result<AdmittedAs, FailureAnswer> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        access.check(&uri.parse().unwrap(), &map, is_own, 80)
    }

    #[test]
    fn hosts_are_addresses_localhost_and_those_that_are_named() {
        let access = ServerAccess { peers: None, token: None, hosts: vec!["gpu-7".into()] };
        for host in ["127.0.0.1", "127.0.0.1:8411", "localhost:9", "LOCALHOST", "[::1]:80", "10.0.0.7", "GPU-7:80"] {
            assert_eq!(check(&access, "/", &[("host", host)], true), Ok(AdmittedAs::AsItIs), "{host}");
        }
        for host in ["evil.example", "evil.example:8411", "127.0.0.1.evil.example", "localhost.evil.example", ""] {
            assert_eq!(check(&access, "/", &[("host", host)], true), Err(WRONG_HOST), "{host}");
        }
        for host in
            ["[x]", "[::1]evil", "[::1", "127.0.0.1:evil.example", "127.0.0.1:", "127.0.0.1:99999", "::1", "[::1]:+1"]
        {
            assert_eq!(check(&access, "/", &[("host", host)], true), Err(NO_HOST), "{host}");
        }
        assert_eq!(check(&access, "/", &[], true), Err(NO_HOST));
        assert_eq!(check(&access, "/", &[("host", "127.0.0.1"), ("host", "127.0.0.1")], true), Err(NO_HOST));
        let own = [("host", "127.0.0.1:80")];
        assert_eq!(check(&access, "http://127.0.0.1:80/", &own, true), Ok(AdmittedAs::AsItIs));
        assert_eq!(check(&access, "http://evil.example/", &own, true), Err(NO_HOST));
    }

    #[test]
    fn requests_of_other_sites_are_refused_except_links() {
        let access = ServerAccess { peers: None, token: None, hosts: Vec::new() };
        let sent = |site: &str, mode: &str, dest: &str| {
            let headers =
                [("host", "127.0.0.1"), ("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)];
            check(&access, "/", &headers, true)
        };
        for site in ["cross-site", "same-site"] {
            assert_eq!(sent(site, "no-cors", "image"), Err(OTHER_SITE));
            assert_eq!(sent(site, "cors", "empty"), Err(OTHER_SITE));
            assert_eq!(sent(site, "navigate", "iframe"), Err(OTHER_SITE));
            assert_eq!(sent(site, "navigate", "document"), Ok(AdmittedAs::AsItIs));
        }
        for site in ["same-origin", "none"] {
            assert_eq!(sent(site, "no-cors", "image"), Ok(AdmittedAs::AsItIs));
        }
    }

    #[test]
    fn tokens_admit_in_a_header_a_cookie_and_a_url() {
        let host = ("host", "127.0.0.1");
        let closed = ServerAccess { peers: None, token: None, hosts: Vec::new() };
        assert_eq!(check(&closed, "/?token=", &[host, ("authorization", "Bearer ")], false), Err(STRANGER));
        let access = ServerAccess { token: Some("secret".into()), ..closed };
        let with = |name, value| check(&access, "/", &[host, (name, value)], false);
        assert_eq!(check(&access, "/", &[host], false), Err(NO_TOKEN));
        assert_eq!(with("authorization", "Bearer secret"), Ok(AdmittedAs::AsItIs));
        assert_eq!(with("authorization", "bearer secret"), Ok(AdmittedAs::AsItIs));
        assert_eq!(with("cookie", "a=b; weightfs-80=secret"), Ok(AdmittedAs::AsItIs));
        for is_own in [false, true] {
            assert_eq!(check(&access, "/x?q=1&token=secret", &[host], is_own), Ok(AdmittedAs::ByUrl));
        }
        for (name, value) in
            [("authorization", "Bearer secreu"), ("cookie", "weightfs-80=secre"), ("cookie", "weightfs-80=")]
        {
            assert_eq!(with(name, value), Err(WRONG_TOKEN), "{value}");
        }
        assert_eq!(with("cookie", "weightfs-81=secret"), Err(NO_TOKEN));
        assert_eq!(with("authorization", "Basic secret"), Err(NO_TOKEN));
        assert_eq!(check(&access, "/?token=x", &[host], false), Err(WRONG_TOKEN));
    }
}
