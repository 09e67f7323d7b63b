//! The SOURCE arguments, and the groups of options that several commands share.

use super::value::{parse_number, parse_size, parse_views, views_help};
use bytesize::ByteSize;
use clap::builder::{NonEmptyStringValueParser, OsStringValueParser, TypedValueParser};
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use weightfs::format::ParseMode;
use weightfs::view::ShownViews;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceArg {
    Path(PathBuf),
    /// May contain secrets.
    Url(String),
}

impl SourceArg {
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => Some(path),
            Self::Url(_) => None,
        }
    }

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

/// A URL with `mask` in place of what may be secret: what follows the question mark, and what stands before the host.
/// `None` if the argument is not a URL.
pub fn masked_url(argument: &str, mask: &str) -> Option<String> {
    let mut masked = is_url(argument).then(|| argument.to_owned())?;
    url_secrets(argument).filter(|range| !range.is_empty()).for_each(|range| masked.replace_range(range, mask));
    Some(masked)
}

/// The last range comes first.
fn url_secrets(url: &str) -> impl Iterator<Item = Range<usize>> {
    let query = url.find('?').map(|at| at + 1..url.len());
    let user = url.find("://").map(|at| at + 3).and_then(|start| {
        let host = url[start..].split(['/', '?', '#']).next()?;
        Some(start..start + host.rfind('@')?)
    });
    query.into_iter().chain(user)
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
pub fn is_url(text: &str) -> bool {
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

pub fn source() -> impl TypedValueParser<Value = SourceArg> {
    OsStringValueParser::new().try_map(SourceArg::parse)
}

/// The only source of a command, or the first.
#[derive(Args, Debug, PartialEq)]
pub struct SourceArgs {
    /// A model file, the index of a sharded model (such as model.safetensors.index.json), a dataset manifest
    /// (dataset_manifest.json), a directory with one or more models, such as an Ollama store, or a URL: hf://,
    /// https://, s3://, gs:// or az://
    #[arg(value_parser = source(), value_hint = ValueHint::AnyPath)]
    pub source: SourceArg,

    #[command(flatten)]
    pub open: OpenArgs,
}

/// The sources of a command that reads headers of any number of models.
#[derive(Args, Debug, PartialEq)]
pub struct SourcesArgs {
    /// Model files, indexes of sharded models, dataset manifests, directories with one or more models, or URLs
    #[arg(required = true, value_name = "SOURCE", value_parser = source(), value_hint = ValueHint::AnyPath)]
    pub sources: Vec<SourceArg>,

    #[command(flatten)]
    pub remote: RemoteArgs,
}

/// Options for opening sources.
#[derive(Args, Debug, PartialEq)]
pub struct OpenArgs {
    /// Use the valid tensors of a damaged file and report the rest, instead of failing
    #[arg(long, display_order = LAST)]
    pub lenient: bool,

    #[command(flatten)]
    pub remote: RemoteArgs,
}

/// The position in the help text of an option that is declared before those of the command.
const LAST: usize = 900;

/// The heading of the options in the help text.
const REMOTE: &str = "Remote sources";

/// Options of all commands that read sources, and those of remote ones.
#[derive(Args, Debug, PartialEq)]
pub struct RemoteArgs {
    /// Log informational messages; the environment variable RUST_LOG overrides the log level
    #[arg(short, long, display_order = LAST)]
    pub verbose: bool,

    /// Use only what was fetched before; send no requests
    #[arg(long, help_heading = REMOTE)]
    pub offline: bool,

    /// Limit of the cache, such as 50GB [default: half of the space that is free or in the cache]
    #[arg(long, help_heading = REMOTE, value_name = "SIZE", value_parser = parse_size)]
    pub cache_size: Option<ByteSize>,

    /// Seconds without data after which a read fails [default: 60]
    #[arg(long, help_heading = REMOTE, value_name = "SECONDS", value_parser = parse_number::<u32>(1..=86_400))]
    pub timeout: Option<u32>,

    /// File with a token for the server or the Hub; it is read for each request
    #[arg(long, help_heading = REMOTE, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub token_file: Option<PathBuf>,

    /// Let public servers redirect to HOST although it is this machine or in a private network
    #[arg(long, help_heading = REMOTE, value_name = "HOST", value_parser = NonEmptyStringValueParser::new())]
    pub allow_redirects_to: Vec<String>,
}

/// Options for the files of quantized weights and datasets.
#[derive(Args, Debug, PartialEq)]
pub struct NumbersArgs {
    /// Show the stored numbers of quantized weights in npy/, f32/, stats/, plots/ and converted exports, instead of
    /// dequantizing them
    #[arg(long)]
    pub stored: bool,

    /// The text between key and column in the names of a dataset in key-value mode, for samples/ [default: inferred]
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub kv_separator: Option<String>,
}

/// The files that a mount shows.
#[derive(Args, Debug, PartialEq)]
pub struct ViewsArgs {
    // The help text lists the names of all views.
    #[arg(long, value_name = "VIEW[,VIEW...]", value_parser = parse_views, help = views_help())]
    pub views: Option<ShownViews>,

    #[command(flatten)]
    pub numbers: NumbersArgs,
}

/// Options of a process that serves files until it is stopped.
#[derive(Args, Debug, PartialEq)]
pub struct ServingArgs {
    /// Run without a sandbox [default: the process can open SOURCE and no other file]
    #[arg(long)]
    pub no_sandbox: bool,

    /// Append messages to FILE [default: standard error; syslog in the background]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub log_file: Option<PathBuf>,
}

impl OpenArgs {
    pub fn mode(&self) -> ParseMode {
        if self.lenient { ParseMode::Lenient } else { ParseMode::Strict }
    }
}

impl NumbersArgs {
    /// The files of a mount with `views`.
    pub fn shown(&self, views: ShownViews) -> ShownViews {
        let shown = if self.stored { views.stored() } else { views };
        self.kv_separator.iter().fold(shown, |shown, separator| shown.separated(separator))
    }
}

impl ViewsArgs {
    pub fn shown(&self) -> ShownViews {
        self.numbers.shown(self.views.clone().unwrap_or_default())
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
        let masked = |url: &str| masked_url(url, "***");
        assert_eq!(masked("http://m@127.0.0.1/x?1").unwrap(), "http://***@127.0.0.1/x?***");
        assert_eq!(masked("hf://org/name@rev/a").unwrap(), "hf://org/name@rev/a");
        assert_eq!(masked("https://u:p@h").unwrap(), "https://***@h");
        assert_eq!(masked("note=https://u:p@h?x"), None);
    }
}
