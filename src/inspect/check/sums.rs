//! The SHA-256 that a whole file must have: by the name of its blob in a cache, and by the list beside it.

use crate::source::{self, Location};
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// The list of sums of the files of a directory, as sha256sum writes it.
const LIST: &str = "SHA256SUMS";

/// Maximum size of the list in bytes: some hundred thousand files.
const LIST_MAX: u64 = 64 << 20;

/// A SHA-256 that a whole file must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatedSum {
    /// What states it, for messages.
    pub origin: &'static str,
    /// 64 hexadecimal digits in lower case.
    pub sum: String,
}

/// The lists of sums of directories, each of which is read once; or why a list cannot be read.
#[derive(Default)]
pub(super) struct SumLists(HashMap<Location, Result<Option<Vec<u8>>, String>>);

impl SumLists {
    /// The sums that are stated about the file at a location, and why a list beside it states none.
    pub fn sums_of(&mut self, file: &Location) -> (Vec<StatedSum>, Option<String>) {
        let blob = file.path().and_then(blob_sum).map(|sum| StatedSum { origin: "its name in blobs/", sum });
        let list = file.parent().join(LIST);
        let read = self.0.entry(list.clone()).or_insert_with(|| read_list(&list));
        let name = file.file_name();
        let (listed, fault) = match read {
            Ok(None) => (Vec::new(), None),
            Ok(Some(text)) => {
                let sums: Vec<String> = sums_in(text, name.as_encoded_bytes()).collect();
                let is_listed = !sums.is_empty();
                (sums, (!is_listed).then(|| format!("{LIST} has no line for the file, so it is not compared")))
            }
            Err(fault) => (Vec::new(), Some(fault.clone())),
        };
        let listed = listed.into_iter().map(|sum| StatedSum { origin: LIST, sum });
        (blob.into_iter().chain(listed).collect(), fault)
    }
}

/// The list at a location, if there is one.
fn read_list(list: &Location) -> Result<Option<Vec<u8>>, String> {
    if !source::exists(list) {
        return Ok(None);
    }
    let text = source::open_local(list).and_then(|source| {
        let mut text = vec![0; source.len().min(LIST_MAX + 1) as usize];
        source.read_exact_at(&mut text, 0).map(|()| text)
    });
    match text {
        Ok(text) if text.len() as u64 > LIST_MAX => {
            Err(format!("{LIST} has more than {LIST_MAX} bytes, and is not used"))
        }
        Ok(mut text) => {
            // A byte order mark, as programs of Windows write it.
            let mark = if text.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
            text.drain(..mark);
            Ok(Some(text))
        }
        Err(error) => Err(format!("{LIST} cannot be read: {error}")),
    }
}

/// The name of a file in the cache of the Hugging Face Hub or in the store of Ollama, `blobs/SHA256` or
/// `blobs/sha256-SHA256`, if it is one or a link to one.
fn blob_sum(path: &Path) -> Option<String> {
    let target = fs::read_link(path).unwrap_or_else(|_| path.to_owned());
    let absolute = std::path::absolute(path.parent()?.join(target)).ok()?;
    let name = absolute.file_name()?.to_str()?;
    let is_blob = absolute.parent()?.file_name()? == "blobs";
    let sum = name.strip_prefix("sha256-").unwrap_or(name);
    (is_blob && is_sum(sum)).then(|| sum.to_owned())
}

/// The sums of a file in a list: lines such as `SUM  NAME`, `SUM *NAME` or `SHA256 (NAME) = SUM`.
fn sums_in<'l>(list: &'l [u8], name: &'l [u8]) -> impl Iterator<Item = String> + use<'l> {
    list.split(|byte| *byte == b'\n').filter_map(move |line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let (sum, listed) = match line.strip_prefix(b"SHA256 (").or_else(|| line.strip_prefix(b"sha256 (")) {
            Some(rest) => {
                let (rest, sum) = rest.split_at_checked(rest.len().checked_sub(64)?)?;
                (sum, rest.strip_suffix(b") = ")?.to_vec())
            }
            None => {
                // A backslash at the start says that characters of the name are escaped.
                let (line, is_escaped) = line.strip_prefix(b"\\").map_or((line, false), |line| (line, true));
                let (sum, rest) = line.split_at_checked(64)?;
                let listed = rest.trim_ascii_start();
                // The mode in which the file was read: binary, text or universal.
                let listed = [b"*", b"?", b"^"].iter().find_map(|mode| listed.strip_prefix(*mode)).unwrap_or(listed);
                rest.first().filter(|byte| byte.is_ascii_whitespace())?;
                (sum, if is_escaped { unescaped(listed) } else { listed.to_vec() })
            }
        };
        let sum = str::from_utf8(sum).ok()?.to_ascii_lowercase();
        let listed = listed.strip_prefix(b"./").unwrap_or(&listed);
        (listed == name && is_sum(&sum)).then_some(sum)
    })
}

fn unescaped(name: &[u8]) -> Vec<u8> {
    let (mut found, mut rest) = (Vec::new(), name.iter());
    while let Some(byte) = rest.next() {
        found.push(match byte {
            b'\\' => match rest.next() {
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(other) => *other,
                None => b'\\',
            },
            byte => *byte,
        });
    }
    found
}

/// Whether a text is a SHA-256: 64 hexadecimal digits in lower case.
pub fn is_sum(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_every_form_are_read() {
        let (one, two) = ("1".repeat(64), "a".repeat(64));
        let found = |list: &str, name: &str| sums_in(list.as_bytes(), name.as_bytes()).collect::<Vec<_>>().join(" ");
        assert_eq!(found(&format!("{one}  x\n{two} *y\n"), "y"), two);
        assert_eq!(found(&format!("{}  ./x y\r\n", two.to_uppercase()), "x y"), two);
        assert_eq!(found(&format!("SHA256 (a (b) = c) = {one}"), "a (b) = c"), one);
        assert_eq!(found(&format!("\\{one}  a\\nb\\\\c\n"), "a\nb\\c"), one);
        assert_eq!(found(&format!("{one}  x\n{two}  x\n"), "x"), format!("{one} {two}"));
        for line in [format!("{one} x"), format!("{one}\tx"), format!("{one} ?x"), format!("sha256 (x) = {one}")] {
            assert_eq!(found(&line, "x"), one, "{line}");
        }
        // Other names, other hashes, and no hashes.
        for line in
            [format!("{one}  d/x"), format!("{}  x", &one[1..]), format!("{one}x"), format!("g{}  x", &one[1..])]
        {
            assert_eq!(found(&line, "x"), "", "{line}");
        }
        assert_eq!(found("SHA256 (x) = 1\n\n\\\nSHA256 (", "x"), "");
    }
}
