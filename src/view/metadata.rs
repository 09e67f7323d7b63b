//! `metadata/` and `metadata.json`: the metadata of a model and of each of its shards, and decoded `data:` URLs.

use super::lines::Out;
use crate::content::{self, Content, GeneratedBytes, ReadRequest};
use crate::format::MetadataValue;
use crate::model::{Model, ModelFileId, find_value};
use crate::name;
use crate::text::{quote, write_json_string};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, OnceLock};

/// Longest decoded value, in bytes. Decoded values are kept in memory.
const DECODED_MAX: usize = 32 << 20;

/// Number of undecodable values that are logged individually. After that, one message covers all others.
const REPORTED: usize = 10;
/// Number of the undecodable value at which the message about all others is logged.
const MORE: usize = REPORTED + 1;

/// File name extensions of the media types that are likely in a model. Other types get `.bin`.
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

/// The metadata of the whole model, or of one shard, sorted by key.
fn pairs(model: &Model, shard: Option<ModelFileId>) -> &[(String, MetadataValue)] {
    shard.map_or(model.metadata(), |shard| &model.file(shard).header.metadata)
}

/// `metadata.json`: an object with one key per line; `{}` if there is no metadata.
pub fn json(model: &Model, shard: Option<ModelFileId>) -> Content {
    let mut json = Vec::new();
    // Writing to a vector cannot fail.
    let _ = write_metadata_json(pairs(model, shard), &mut json);
    Content::literal(json)
}

fn write_metadata_json(metadata: &[(String, MetadataValue)], out: Out) -> io::Result<()> {
    for (at, (key, value)) in metadata.iter().enumerate() {
        out.write_all(if at == 0 { b"{\n  " } else { b",\n  " })?;
        write_json_string(key, out)?;
        out.write_all(b": ")?;
        value.write_json(out)?;
    }
    out.write_all(if metadata.is_empty() { b"{}\n" } else { b"\n}\n" })
}

/// The files in the `metadata/` directories of a model. They are numbered: the values of the whole model, then those of
/// each shard, then the decoded values of the whole model.
#[derive(Debug)]
pub struct MetadataFiles {
    model: Arc<Model>,
    /// The number of the first value of each shard, and then the number of all values.
    first: Vec<usize>,
    decoded: OnceLock<Vec<DecodedUrl>>,
    /// The index of each key whose file name is cut, by shard and file name.
    cut: OnceLock<HashMap<(Option<ModelFileId>, String), usize>>,
}

#[derive(Debug)]
struct DecodedUrl {
    /// The file name of the key, with the extension of the media type.
    file_name: String,
    bytes: Arc<[u8]>,
}

impl MetadataFiles {
    /// The files of a model. Decodes nothing yet.
    pub fn new(model: Arc<Model>) -> Self {
        let mut first = vec![model.metadata().len()];
        first.extend(model.files.iter().scan(model.metadata().len(), |next, shard| {
            *next += shard.header.metadata.len();
            Some(*next)
        }));
        let (decoded, cut) = Default::default();
        Self { model, first, decoded, cut }
    }

    pub fn is_ready(&self) -> bool {
        self.decoded.get().is_some()
    }

    pub fn len(&self, shard: Option<ModelFileId>) -> usize {
        let decoded = if shard.is_none() { self.decoded().len() } else { 0 };
        pairs(&self.model, shard).len() + decoded
    }

    /// The number of the file at a position in a directory.
    pub fn at(&self, shard: Option<ModelFileId>, position: usize) -> usize {
        match position.checked_sub(pairs(&self.model, shard).len()) {
            Some(decoded) => self.values() + decoded,
            None => self.first_of(shard) + position,
        }
    }

    pub fn name(&self, file: usize) -> Option<Cow<'_, str>> {
        match self.value(file) {
            Some((key, _)) => Some(name::encode_name(key)),
            None => Some(self.decoded().get(file - self.values())?.file_name[..].into()),
        }
    }

    /// The number of the file with that name in a directory.
    pub fn find(&self, shard: Option<ModelFileId>, file_name: &str) -> Option<usize> {
        let metadata = pairs(&self.model, shard);
        let key = match name::decode_name(file_name) {
            Some(key) => metadata.binary_search_by(|entry| entry.0[..].cmp(&key)).ok(),
            None => self.cut().get(&(shard, file_name.to_owned())).copied(),
        };
        if let Some(at) = key {
            return Some(self.first_of(shard) + at);
        }
        let decoded = shard.is_none().then(|| self.decoded())?;
        let at = decoded.binary_search_by(|decoded| decoded.file_name[..].cmp(file_name)).ok()?;
        Some(self.values() + at)
    }

    pub fn content(&self, file: usize) -> Option<Content> {
        let Some((_, value)) = self.value(file) else {
            return Some(Content::literal(self.decoded().get(file - self.values())?.bytes.clone()));
        };
        let (model, shard) = (self.model.clone(), self.shard_of(file));
        let (index, len) = (file - self.first_of(shard), value.bytes().len() as u64);
        Some(Content::generated(MetadataText { model, shard, index, len }))
    }

    /// Number of stored values: the files that are not decoded.
    fn values(&self) -> usize {
        self.first.last().copied().unwrap_or(0)
    }

    fn first_of(&self, shard: Option<ModelFileId>) -> usize {
        shard.map_or(0, |shard| self.first[shard.index()])
    }

    fn shard_of(&self, file: usize) -> Option<ModelFileId> {
        self.first.partition_point(|first| *first <= file).checked_sub(1).map(ModelFileId::new)
    }

    /// Key and value of a file, unless it is a decoded one.
    fn value(&self, file: usize) -> Option<&(String, MetadataValue)> {
        let shard = (file < self.values()).then(|| self.shard_of(file))?;
        pairs(&self.model, shard).get(file - self.first_of(shard))
    }

    fn decoded(&self) -> &[DecodedUrl] {
        self.decoded.get_or_init(|| decode_urls(self.model.metadata()))
    }

    fn cut(&self) -> &HashMap<(Option<ModelFileId>, String), usize> {
        self.cut.get_or_init(|| {
            let owners = std::iter::once(None).chain(self.model.file_ids().map(Some));
            let keys =
                owners.flat_map(|shard| pairs(&self.model, shard).iter().enumerate().map(move |key| (shard, key)));
            keys.filter_map(|(shard, (at, (key, _)))| Some(((shard, name::cut_name(key)?), at))).collect()
        })
    }
}

/// The bytes of a metadata value, which the model holds.
struct MetadataText {
    model: Arc<Model>,
    shard: Option<ModelFileId>,
    /// The index of the key in the metadata of the model or the shard.
    index: usize,
    /// In bytes.
    len: u64,
}

impl GeneratedBytes for MetadataText {
    fn nbytes(&self) -> u64 {
        self.len
    }

    fn fill(&self, buf: &mut [u8], offset: u64, _: &ReadRequest) -> Result<(), content::Error> {
        let value = pairs(&self.model, self.shard)[self.index].1.bytes();
        buf.copy_from_slice(&value[offset as usize..][..buf.len()]);
        Ok(())
    }
}

/// Decodes all values of the form `data:TYPE;base64,...`; sorted by file name. Values that cannot be decoded are left
/// out, and the first few are logged.
fn decode_urls(metadata: &[(String, MetadataValue)]) -> Vec<DecodedUrl> {
    let (mut decoded, mut left_out) = (Vec::new(), 0);
    for (key, value) in metadata {
        let Some((media_type, text)) = data_url(value.text()) else { continue };
        let ending = ENDINGS.iter().find(|ending| ending.0 == media_type).map_or("bin", |ending| ending.1);
        let file_name = format!("{}.{ending}", name::encode_name(key));
        match decode_url(metadata, &file_name, text) {
            Ok(bytes) => decoded.push(DecodedUrl { file_name, bytes: bytes.into() }),
            Err(reason) => {
                left_out += 1;
                match left_out {
                    ..=REPORTED => log::warn!("metadata {}: not decoded: {reason}", quote(key)),
                    MORE => log::warn!("metadata: there are more values that cannot be decoded"),
                    _ => {}
                }
            }
        }
    }
    decoded.sort_by(|a, b| a.file_name.cmp(&b.file_name));
    decoded
}

/// Decodes the base64 text of a value that will be shown as `file_name`.
fn decode_url(metadata: &[(String, MetadataValue)], file_name: &str, text: &str) -> Result<Vec<u8>, String> {
    if text.len() / 4 * 3 > DECODED_MAX {
        return Err(format!("{} characters of base64 decode to more than {DECODED_MAX} bytes", text.len()));
    }
    // The file name of a cut key ends in digits, so it never equals a name with an extension.
    if name::decode_name(file_name).is_some_and(|key| find_value(metadata, &key).is_some()) {
        return Err(format!("another key has the file name {}", quote(file_name)));
    }
    STANDARD.decode(text).map_err(|error| format!("not valid base64: {error}"))
}

/// Media type and base64 text of a `data:` URL. Source: RFC 2397.
fn data_url(value: &str) -> Option<(&str, &str)> {
    let (head, text) = value.strip_prefix("data:")?.split_once(',')?;
    let parameters = head.strip_suffix(";base64")?;
    let media_type = parameters.split(';').next().unwrap_or_default();
    Some((media_type, text))
}
