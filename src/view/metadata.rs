//! `metadata.json` and the decoded values in `metadata/`: knows `__metadata__` as JSON and what a `data:` URL holds.

use super::lines::Out;
use crate::name;
use crate::text::quote;
use crate::text::write_json_string;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use std::io;

/// Longest decoded value, in bytes: it is kept in memory.
const DECODED_MAX: usize = 32 << 20;

/// How many values that cannot be decoded are reported one by one.
const REPORTED: usize = 10;
const MORE: usize = REPORTED + 1;

/// File name endings of the media types that are likely in a model; others end in `.bin`.
const ENDINGS: [(&str, &str); 14] = [
    ("image/jpeg", "jpg"),
    ("image/jpg", "jpg"),
    ("image/png", "png"),
    ("image/webp", "webp"),
    ("image/gif", "gif"),
    ("image/avif", "avif"),
    ("image/bmp", "bmp"),
    ("image/svg+xml", "svg"),
    ("text/plain", "txt"),
    ("text/html", "html"),
    ("text/markdown", "md"),
    ("application/json", "json"),
    ("application/pdf", "pdf"),
    ("audio/wav", "wav"),
];

/// Keys and values as a JSON object, in their order.
pub struct Object<'a>(pub &'a [(String, String)]);

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

/// An object, one key a line; `{}` where there is none.
pub fn json(metadata: &[(String, String)]) -> Vec<u8> {
    let mut json = Vec::new();
    // A vector cannot refuse text.
    let _ = write(metadata, &mut json);
    json
}

fn write(metadata: &[(String, String)], out: Out) -> io::Result<()> {
    for (at, (key, value)) in metadata.iter().enumerate() {
        out.write_all(if at == 0 { b"{\n  " } else { b",\n  " })?;
        write_json_string(key, out)?;
        out.write_all(b": ")?;
        write_json_string(value, out)?;
    }
    out.write_all(if metadata.is_empty() { b"{}\n" } else { b"\n}\n" })
}

/// A value that was a `data:` URL.
#[derive(Debug, PartialEq, Eq)]
pub struct Decoded {
    /// File name: that of the key and an ending for the media type.
    pub file_name: String,
    /// What the URL holds.
    pub bytes: Vec<u8>,
}

/// All values that are `data:TYPE;base64,...`, decoded, sorted by file name. One that cannot be is left alone, and the log
/// says why of the first few.
pub fn decoded(metadata: &[(String, String)]) -> Vec<Decoded> {
    // None has it as its cut name: those end in digits.
    let is_taken = |file_name: &str| {
        name::decode(file_name).is_some_and(|key| metadata.binary_search_by(|entry| entry.0[..].cmp(&key)).is_ok())
    };
    let mut left_alone = 0;
    let decode = |(key, value): &(String, String)| {
        let (media_type, text) = data_url(value)?;
        let ending = ENDINGS.iter().find(|ending| ending.0 == media_type).map_or("bin", |ending| ending.1);
        let file_name = format!("{}.{ending}", name::encode(key));
        let decoded = if text.len() / 4 * 3 > DECODED_MAX {
            Err(format!("{} characters of base64 are more than {DECODED_MAX} bytes", text.len()))
        } else if is_taken(&file_name) {
            Err(format!("another key has the file name {}", quote(&file_name)))
        } else {
            STANDARD.decode(text).map_err(|error| format!("no valid base64: {error}"))
        };
        match decoded {
            Ok(bytes) => Some(Decoded { file_name, bytes }),
            Err(why) => {
                left_alone += 1;
                match left_alone {
                    ..=REPORTED => log::warn!("metadata {}: not decoded: {why}", quote(key)),
                    MORE => log::warn!("metadata: there are more values that cannot be decoded"),
                    _ => {}
                }
                None
            }
        }
    };
    let mut decoded: Vec<Decoded> = metadata.iter().filter_map(decode).collect();
    decoded.sort_by(|a, b| a.file_name.cmp(&b.file_name));
    decoded
}

/// Media type and text of a URL in base64. Source: RFC 2397.
fn data_url(value: &str) -> Option<(&str, &str)> {
    let (head, text) = value.strip_prefix("data:")?.split_once(',')?;
    let parameters = head.strip_suffix(";base64")?;
    let media_type = parameters.split(';').next().unwrap_or_default();
    Some((media_type, text))
}
