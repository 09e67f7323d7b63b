//! The targets that redirects may have. A public server must not make this machine send requests into its own network,
//! which others cannot reach: to itself, to private addresses, or to the metadata service of a cloud.

use std::net::{IpAddr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

use super::environment::EnvironmentCopy;
use crate::remote::location::is_loopback;

/// A name has only addresses inside of this network.
#[derive(Debug, thiserror::Error)]
#[error("{INSIDE}")]
pub(super) struct InsideAddress;

pub(super) const INSIDE: &str =
    "the server redirects to an address of this machine or of a private network; --allow-redirects-to HOST allows it";

/// Whether an address is that of this machine, or of a network that is not public.
fn is_inside(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            let is_shared = first == 100 && second & 0xc0 == 64;
            address.is_loopback()
                || address.is_private()
                || address.is_link_local()
                || address.is_unspecified()
                || is_shared
        }
        IpAddr::V6(address) => {
            address.is_loopback()
                || address.is_unique_local()
                || address.is_unicast_link_local()
                || address.is_unspecified()
        }
    }
}

/// Whether a URL is that of a cloud's own service inside its machines.
pub(super) fn is_metadata(url: &Url) -> bool {
    matches!(
        url.host_str(),
        Some("169.254.169.254" | "169.254.170.2" | "169.254.170.23" | "[fd00:ec2::254]")
            | Some("metadata.google.internal" | "metadata")
    )
}

/// The address that a URL has instead of a name.
fn literal(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Domain(_) => None,
        Host::Ipv4(address) => Some(address.into()),
        Host::Ipv6(address) => Some(address.into()),
    }
}

/// Whether a URL itself says that its host is inside.
pub(super) fn names_inside(url: &Url) -> bool {
    is_loopback(url) || is_metadata(url) || literal(url).is_some_and(is_inside)
}

/// Whether a server is outside: `peer` is the other end of the connection, which may be a proxy.
pub(super) fn is_outside(url: &Url, peer: Option<SocketAddr>, has_proxy: bool) -> bool {
    !names_inside(url) && (has_proxy || peer.is_none_or(|peer| !is_inside(peer.ip())))
}

/// Whether requests may pass a proxy, which then resolves names and connects.
pub(super) fn has_proxy(environment: &EnvironmentCopy) -> bool {
    ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"].iter().any(|name| {
        let lower = name.to_ascii_lowercase();
        environment.has(name) || environment.has(&lower)
    })
}

/// Resolves names to addresses outside.
pub(super) struct OutsideResolver;

impl Resolve for OutsideResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let outside: Vec<_> = found.iter().copied().filter(|address| !is_inside(address.ip())).collect();
            match outside.is_empty() && !found.is_empty() {
                true => Err(InsideAddress.into()),
                false => Ok(Box::new(outside.into_iter()) as Addrs),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_inside_or_outside() {
        let inside = "127.0.0.1 127.8.9.1 10.1.2.3 172.16.0.1 172.31.0.1 192.168.0.1 169.254.169.254 100.64.0.1 0.0.0.0 \
                      ::1 :: fd00:ec2::254 fe80::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1";
        let outside = "1.1.1.1 172.32.0.1 100.128.0.1 198.51.100.1 2606:4700::1111 ::ffff:1.1.1.1";
        for (texts, expected) in [(inside, true), (outside, false)] {
            for text in texts.split_whitespace() {
                let address: IpAddr = text.parse().unwrap();
                assert_eq!(is_inside(address), expected, "{text}");
                let url = if address.is_ipv6() { format!("http://[{text}]:1/x") } else { format!("http://{text}:1/x") };
                assert_eq!(names_inside(&url.parse().unwrap()), expected, "{url}");
            }
        }
        let url = |text: &str| text.parse::<Url>().unwrap();
        for text in
            ["http://localhost/x", "http://a.localhost/x", "http://metadata.google.internal/x", "http://2130706433/"]
        {
            assert!(names_inside(&url(text)), "{text}");
        }
        let (name, peer) =
            (url("https://example.org/x"), |text: &str| Some(SocketAddr::new(text.parse().unwrap(), 443)));
        assert!(is_outside(&name, peer("1.1.1.1"), false) && !is_outside(&name, peer("10.0.0.1"), false));
        assert!(
            is_outside(&name, peer("10.0.0.1"), true) && !is_outside(&url("http://10.0.0.1/"), peer("10.0.0.1"), true)
        );
    }

    #[tokio::test]
    async fn names_inside_have_no_address() {
        let Err(error) = OutsideResolver.resolve("localhost".parse().unwrap()).await else {
            panic!("localhost is inside")
        };
        assert!(error.is::<InsideAddress>(), "{error}");
    }
}
