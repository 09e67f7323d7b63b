//! Target `location`: a location prints no secret, and what it prints is the same location. Paths that are joined to it
//! stay below it.

use super::headers::once_in;
use arbitrary::{Result, Unstructured};
use weightfs::remote::location::RemoteLocation;

pub fn run(bytes: &[u8]) -> bool {
    check(&mut Unstructured::new(bytes)).unwrap_or(false)
}

/// What must not be printed.
const SECRET: &str = "s3CrEt";

/// Parts of locations. Secrets are only where a URL may hold them.
const BEGINNINGS: [&str; 16] = [
    "hf://",
    "HF://datasets/",
    "hf://models/a/b@",
    "hf://a/b@refs/pr/1",
    "https://",
    "https://s3CrEt@example.org/",
    "https://u:s3CrEt@example.org:8443/a/",
    "http://s3CrEt:s3CrEt@[::1]/",
    "https://huggingface.co/a/b/",
    "https://huggingface.co/datasets/a/b/resolve/",
    "http://localhost:80/",
    "s3://bucket/",
    "gs://bucket",
    "az://",
    "file:///",
    "x+y://",
];

const ENDINGS: [&str; 5] = ["", "?X-Amz-Signature=s3CrEt", "?a=%73&s3CrEt#s3CrEt", "#s3CrEt", "?s3CrEt?"];

const UNITS: [&str; 28] = [
    "a",
    "b",
    "/",
    "//",
    "..",
    ".",
    "%2e",
    "%2F",
    "%",
    "%25",
    "%00",
    "%ff",
    "@",
    ":",
    "[",
    "\\",
    " ",
    "\n",
    "é",
    "\u{202e}",
    "refs/",
    "pr/1",
    "resolve/",
    "tree/main/",
    "main",
    "$",
    "~",
    "example.org",
];

fn units(bytes: &mut Unstructured) -> Result<String> {
    let mut text = String::new();
    for _ in 0..bytes.int_in_range(0..=6)? {
        if once_in(6, bytes)? {
            text.push(bytes.arbitrary()?);
        } else {
            text.push_str(bytes.choose(&UNITS)?);
        }
    }
    Ok(text)
}

fn check(bytes: &mut Unstructured) -> Result<bool> {
    let ending = *bytes.choose(&ENDINGS)?;
    let beginning = *bytes.choose(&BEGINNINGS)?;
    // Behind hf:// and in object stores, `?` and `#` are part of the name, and nothing is a secret.
    let ending = if beginning.to_ascii_lowercase().starts_with("http") { ending } else { "" };
    let text = format!("{beginning}{}{ending}", units(bytes)?);
    let location = match RemoteLocation::parse(&text) {
        Ok(Some(location)) => location,
        Ok(None) => return Ok(false),
        Err(error) => {
            assert!(!format!("{error}{error:?}").contains(SECRET), "{text:?}: {error}");
            return Ok(false);
        }
    };
    check_shown(&location);
    let name = units(bytes)?;
    let is_path = name.is_empty() || name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    let is_path = is_path && !name.contains(char::is_control);
    match location.join(&name) {
        Ok(joined) => {
            assert!(is_path, "{location} joined {name:?}");
            check_shown(&joined);
            check_joined(&location, &joined, &name);
        }
        Err(_) => assert!(!is_path, "{location} did not join {name:?}"),
    }
    // The folders above it end.
    let mut above = location;
    for _ in 0..text.len() {
        match above.parent() {
            Some(parent) => above = parent,
            None => return Ok(true),
        }
        check_shown(&above);
    }
    panic!("{text:?} has too many parents");
}

/// Checks the text of a location, which is the same location. Of a URL, secrets are left out.
fn check_shown(location: &RemoteLocation) {
    let shown = location.to_string();
    assert!(!format!("{shown}{location:?}{location:#?}").contains(SECRET), "{shown:?}");
    assert!(!shown.contains(char::is_control), "{shown:?}");
    let again = RemoteLocation::parse(&shown).unwrap_or_else(|error| panic!("{shown:?}: {error}")).unwrap();
    assert_eq!(again.to_string(), shown);
    assert!(matches!(location, RemoteLocation::Web(_)) || again == *location, "{shown:?}");
}

/// Checks that the parents of `joined` lead to `folder`, one for each component of `name`.
fn check_joined(folder: &RemoteLocation, joined: &RemoteLocation, name: &str) {
    if name.is_empty() {
        return assert_eq!(joined, folder);
    }
    assert_eq!(joined.file_name().as_deref(), name.rsplit('/').next());
    let mut above = joined.clone();
    for _ in name.split('/') {
        above = above.parent().unwrap();
    }
    // The text of a folder may end with a slash.
    let text = |location: &RemoteLocation| location.to_string().trim_end_matches('/').to_owned();
    assert_eq!(text(&above), text(folder), "{joined}");
}
