//! Who may read: the user who has started the server, and whoever has the token.

use super::peer::PeerTables;
use hyper::header::{AUTHORIZATION, COOKIE, HOST, HeaderMap, HeaderName};
use hyper::{Method, Uri};
use std::net::{IpAddr, SocketAddr};

/// Whom a server admits.
#[derive(Debug)]
pub struct ServerAccess {
    /// The users whose connections from this machine need no token.
    pub peers: Option<PeerTables>,
    /// The token of everybody else. `None` if nobody else is admitted.
    pub token: Option<String>,
    /// Names of this machine by which it may be addressed, besides IP addresses and `localhost`.
    pub hosts: Vec<String>,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RefusedRequest {
    /// The Host header names another host, or there is none.
    Host,
    /// A page of another site has sent the request.
    Site,
    /// There is no token, and it is needed.
    NoToken,
    /// The token is wrong.
    WrongToken,
    /// The connection belongs to another user, and there is no token that would admit it.
    Stranger,
}

/// The reason for which a request was admitted.
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
    /// Whether a connection needs no token.
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
    ) -> Result<AdmittedAs, RefusedRequest> {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).ok_or(RefusedRequest::Host)?;
        if !self.is_host(host) {
            return Err(RefusedRequest::Host);
        }
        if is_of_another_site(headers) {
            return Err(RefusedRequest::Site);
        }
        if is_own {
            return Ok(AdmittedAs::AsItIs);
        }
        let Some(token) = &self.token else { return Err(RefusedRequest::Stranger) };
        if let Some(given) = super::url::parameter(uri.query().unwrap_or_default(), TOKEN) {
            return if is_equal(&given, token) { Ok(AdmittedAs::ByUrl) } else { Err(RefusedRequest::WrongToken) };
        }
        let authorization = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.split_once(' '));
        let bearer = authorization.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, given)| given);
        let name = cookie(port);
        let cookies =
            headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|all| all.split(';'));
        let cookie = cookies.filter_map(|pair| pair.trim().split_once('=')).find(|(key, _)| *key == name);
        match bearer.or(cookie.map(|(_, value)| value)) {
            Some(given) if is_equal(given.trim(), token) => Ok(AdmittedAs::AsItIs),
            Some(_) => Err(RefusedRequest::WrongToken),
            None => Err(RefusedRequest::NoToken),
        }
    }

    /// Whether a Host header names this machine. A page of another site can make a browser send requests here under a
    /// name of its own (DNS rebinding), but not under an IP address.
    fn is_host(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        name.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|known| name.eq_ignore_ascii_case(known))
    }
}

/// The name of the cookie with the token. Cookies do not depend on the port, and another server of this machine may
/// have one.
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

/// Whether the server answers requests with this method.
pub(super) fn is_method(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        access: &ServerAccess,
        uri: &str,
        headers: &[(&'static str, &str)],
        is_own: bool,
    ) -> Result<AdmittedAs, RefusedRequest> {
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
        for host in ["evil.example", "evil.example:8411", "127.0.0.1.evil.example", "localhost.evil.example", "", "[x]"]
        {
            assert_eq!(check(&access, "/", &[("host", host)], true), Err(RefusedRequest::Host), "{host}");
        }
        assert_eq!(check(&access, "/", &[], true), Err(RefusedRequest::Host));
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
            assert_eq!(sent(site, "no-cors", "image"), Err(RefusedRequest::Site));
            assert_eq!(sent(site, "cors", "empty"), Err(RefusedRequest::Site));
            assert_eq!(sent(site, "navigate", "iframe"), Err(RefusedRequest::Site));
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
        assert_eq!(
            check(&closed, "/?token=", &[host, ("authorization", "Bearer ")], false),
            Err(RefusedRequest::Stranger)
        );
        let access = ServerAccess { token: Some("secret".into()), ..closed };
        let with = |name, value| check(&access, "/", &[host, (name, value)], false);
        assert_eq!(check(&access, "/", &[host], false), Err(RefusedRequest::NoToken));
        assert_eq!(with("authorization", "Bearer secret"), Ok(AdmittedAs::AsItIs));
        assert_eq!(with("authorization", "bearer secret"), Ok(AdmittedAs::AsItIs));
        assert_eq!(with("cookie", "a=b; weightfs-80=secret"), Ok(AdmittedAs::AsItIs));
        assert_eq!(check(&access, "/x?q=1&token=secret", &[host], false), Ok(AdmittedAs::ByUrl));
        for (name, value) in
            [("authorization", "Bearer secreu"), ("cookie", "weightfs-80=secre"), ("cookie", "weightfs-80=")]
        {
            assert_eq!(with(name, value), Err(RefusedRequest::WrongToken), "{value}");
        }
        assert_eq!(with("cookie", "weightfs-81=secret"), Err(RefusedRequest::NoToken));
        assert_eq!(with("authorization", "Basic secret"), Err(RefusedRequest::NoToken));
        assert_eq!(check(&access, "/?token=x", &[host], false), Err(RefusedRequest::WrongToken));
    }
}
