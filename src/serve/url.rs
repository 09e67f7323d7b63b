//! Paths and queries of URLs.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use std::borrow::Cow;

/// The characters that are encoded in a component of a path or in a value of a query: all but the unreserved ones of
/// RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub(super) fn encode_url(text: &[u8]) -> String {
    percent_encode(text, RESERVED).to_string()
}

/// The components of the path of a URL, and whether it ends in a slash. `None` if no file can have that path: a
/// component is empty, `.` or `..`, or has a slash or NUL.
pub(super) fn components(path: &str) -> Option<(Vec<Vec<u8>>, bool)> {
    let path = path.strip_prefix('/')?;
    if path.is_empty() {
        return Some((Vec::new(), true));
    }
    let (path, is_dir) = path.strip_suffix('/').map_or((path, false), |path| (path, true));
    let names: Vec<Vec<u8>> = path.split('/').map(|part| percent_decode_str(part).collect()).collect();
    names.iter().all(|name| is_file_name(name)).then_some((names, is_dir))
}

fn is_file_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// A part of a query, decoded as forms encode it.
fn decode_url(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

pub(super) fn parameters(query: &str) -> impl Iterator<Item = (String, String)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode_url(key), decode_url(value))
    })
}

pub(super) fn parameter(query: &str, name: &str) -> Option<String> {
    parameters(query).find(|(key, _)| key == name).map(|(_, value)| value)
}

/// A query without the parameter `name`, with a question mark before it; empty if nothing is left.
pub(super) fn without<'q>(query: &'q str, name: &str) -> Cow<'q, str> {
    let is_kept = |pair: &&str| !pair.is_empty() && decode_url(pair.split('=').next().unwrap_or_default()) != name;
    let kept: Vec<&str> = query.split('&').filter(is_kept).collect();
    if kept.is_empty() { Cow::Borrowed("") } else { format!("?{}", kept.join("&")).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_components_that_are_names() {
        let parse = |path: &str| components(path).map(|(names, is_dir)| (names.join(&b'|'), is_dir));
        assert_eq!(parse("/"), Some((Vec::new(), true)));
        assert_eq!(parse("/a/b%20c/"), Some((b"a|b c".to_vec(), true)));
        assert_eq!(parse("/%ff%25"), Some((b"\xff%".to_vec(), false)));
        // Characters that are not encoded are taken as they are.
        assert_eq!(parse("/%zz%2"), Some((b"%zz%2".to_vec(), false)));
        for path in ["", "a", "//", "/a//b", "/.", "/../a", "/%2e%2e/a", "/a%2fb", "/a%00", "/a/./b"] {
            assert_eq!(parse(path), None, "{path}");
        }
    }

    #[test]
    fn queries_are_decoded() {
        assert_eq!(parameter("a=1&b=x+y%26&a=2", "a").as_deref(), Some("1"));
        assert_eq!(parameter("a=1&b=x+y%26&a=2", "b").as_deref(), Some("x y&"));
        assert_eq!(parameter("a&&=&", "a").as_deref(), Some(""));
        assert_eq!(parameter("", "a"), None);
        assert_eq!(without("token=1&q=a+b&token=2", "token"), "?q=a+b");
        assert_eq!(without("token=1", "token"), "");
        assert_eq!(without("%74oken=1&tokens=%20&q", "token"), "?tokens=%20&q");
    }
}
