//! The SOURCE arguments, and the options that say how they are fetched and shown.

use super::value::{parse_number, parse_size};
use bytesize::ByteSize;
use clap::builder::{NonEmptyStringValueParser, OsStringValueParser, TypedValueParser};
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use weightfs::view::ShownViews;

/// A file, a directory or a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceArg {
    /// A path on this machine.
    Path(PathBuf),
    /// A URL, which may contain secrets.
    Url(String),
}

impl SourceArg {
    /// The path, if it is on this machine.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => Some(path),
            Self::Url(_) => None,
        }
    }

    /// The parts of the argument that may contain secrets, as ranges of bytes: what follows the question mark of a URL,
    /// and what stands before the host.
    pub fn secrets(&self) -> impl Iterator<Item = (&str, Range<usize>)> {
        let url = match self {
            Self::Path(_) => "",
            Self::Url(url) => url,
        };
        let query = url.find('?').map(|at| at + 1..url.len());
        let user = url.find("://").map(|at| at + 3).and_then(|start| {
            let host = url[start..].split(['/', '?', '#']).next()?;
            Some(start..start + host.rfind('@')?)
        });
        query.into_iter().chain(user).map(move |range| (url, range))
    }

    /// Parses an argument.
    pub fn parse(text: OsString) -> Result<Self, String> {
        match text.to_str() {
            Some(url) if is_url(url) => check(url).map(|()| Self::Url(url.to_owned())),
            Some(text) if is_url_without_slashes(text) && !Path::new(text).exists() => {
                Err("no such file; a URL has :// after its scheme".into())
            }
            _ => Ok(Self::Path(text.into())),
        }
    }
}

impl fmt::Display for SourceArg {
    /// As the user wrote it, without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Url(url) => shown(url).fmt(f),
        }
    }
}

/// A message of the command line without the secrets of the URLs in it.
pub fn without_secrets(message: &str) -> String {
    let (mut shown, mut rest) = (String::new(), message);
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown.push_str(before);
        let host = after.find(['/', '?', '#']).unwrap_or(after.len());
        let user = after[..host].rfind('@');
        shown.push_str(if user.is_some() { "..." } else { "" });
        let after = &after[user.unwrap_or(0)..];
        let end = after.find(|char: char| char.is_whitespace() || char == '\'').unwrap_or(after.len());
        match after[..end].find('?') {
            Some(query) => shown.extend([&after[..=query], "..."]),
            None => shown.push_str(&after[..end]),
        }
        rest = &after[end..];
    }
    shown.push_str(rest);
    shown
}

/// Whether a text begins with a scheme, as in RFC 3986, and `://`.
pub(super) fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.chars().all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char))
    })
}

/// Whether a text begins with the scheme of a remote source and a colon, without `//`. A file may have such a name.
fn is_url_without_slashes(text: &str) -> bool {
    let scheme = text.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    scheme.is_some_and(|scheme| ["hf", "http", "https", "s3", "gs", "az"].contains(&&*scheme))
}

#[cfg(feature = "remote")]
fn check(url: &str) -> Result<(), String> {
    weightfs::remote::location::RemoteLocation::parse(url).map(drop).map_err(|error| error.to_string())
}

/// A URL without secrets.
#[cfg(feature = "remote")]
fn shown(url: &str) -> impl fmt::Display {
    weightfs::remote::location::RemoteLocation::parse(url)
        .ok()
        .flatten()
        .map(|location| location.to_string())
        .unwrap_or_default()
}

#[cfg(not(feature = "remote"))]
fn shown(_url: &str) -> impl fmt::Display {
    "a URL"
}

#[cfg(not(feature = "remote"))]
fn check(_url: &str) -> Result<(), String> {
    Err("this weightfs was built without remote sources; name a file or a directory".into())
}

/// The parser of a SOURCE.
pub fn source() -> impl TypedValueParser<Value = SourceArg> {
    OsStringValueParser::new().try_map(SourceArg::parse)
}

/// Options for sources that are URLs.
#[derive(Args, Debug, Clone, Default, PartialEq)]
#[command(next_help_heading = "Remote sources")]
pub struct RemoteArgs {
    /// Use only what was fetched before; send no requests
    #[arg(long)]
    pub offline: bool,

    /// Limit of the cache, such as 50GB [default: half of the space that is free or in the cache]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub cache_size: Option<ByteSize>,

    /// Seconds without data after which a read fails [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = parse_number::<u32>(1..=86_400))]
    pub timeout: Option<u32>,

    /// File with a token for the server or the Hub; it is read for each request
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub token_file: Option<PathBuf>,
}

/// How the files of a mount show quantized weights and datasets.
#[derive(Args, Debug, Clone, Default, PartialEq)]
pub struct NumbersArgs {
    /// Show the stored numbers of quantized weights in npy/, f32/, stats/, plots/ and converted exports, instead of
    /// dequantizing them
    #[arg(long)]
    pub stored: bool,

    /// The text between key and column in the names of a dataset in key-value mode, for samples/ [default: inferred]
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub kv_separator: Option<String>,
}

impl NumbersArgs {
    /// What a mount shows with these views, or with all of them.
    pub fn shown(&self, views: Option<ShownViews>) -> ShownViews {
        let shown = views.unwrap_or_default();
        let shown = if self.stored { shown.stored() } else { shown };
        self.kv_separator.iter().fold(shown, |shown, separator| shown.separated(separator))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_show_no_secrets_of_urls() {
        for (message, shown) in [
            (
                "invalid value 'http://u:p@h:99999/x' for '<SOURCE>': port",
                "invalid value 'http://...@h:99999/x' for '<SOURCE>': port",
            ),
            ("'https://h/x?sig=S' and s3://K:S@b", "'https://h/x?...' and s3://...@b"),
            ("'hf://u:t@a/b' for", "'hf://...@a/b' for"),
            ("no URL: a@b?c", "no URL: a@b?c"),
            ("x://", "x://"),
        ] {
            assert_eq!(without_secrets(message), shown);
        }
    }

    #[test]
    fn secrets_are_ranges_of_the_argument() {
        let secrets = |url: &str| -> Vec<String> {
            let source = SourceArg::Url(url.to_owned());
            source.secrets().map(|(whole, range)| whole[range].to_owned()).collect()
        };
        assert_eq!(secrets("http://m@127.0.0.1/x?1"), ["1", "m"]);
        assert_eq!(secrets("hf://org/name@rev/a"), [""; 0]);
        assert_eq!(secrets("https://u:p@h"), ["u:p"]);
    }
}
