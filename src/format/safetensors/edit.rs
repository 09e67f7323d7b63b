//! Rewrites a header with other metadata. The values of the other entries are copied unchanged.

use super::{LENGTH, MAX_HEADER, METADATA, not_json};
use crate::format::JsonText;
use crate::format::edit::{Assignment, MetadataEdit, NewHead};
use crate::format::error::Error;
use crate::format::header::Header;
use crate::format::input::HeaderInput;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// The offset of the data changes by a multiple of this many bytes, so that file systems can share the blocks of the
/// old file.
const BLOCK: u64 = 4096;

/// The bytes of a file up to its data, with changed metadata. `header` was parsed from `input`.
///
/// Entries keep their order and the text of their values. The header is padded with spaces, so that the offset of the
/// data changes by a multiple of 4096 bytes and keeps its alignment. Near the size limit of headers there is less
/// padding.
pub fn edit_safetensors(header: &Header, input: &HeaderInput, edit: &MetadataEdit) -> Result<NewHead, Error> {
    let mut metadata: BTreeMap<&str, &str> =
        header.metadata.iter().map(|(key, value)| (&key[..], value.text())).collect();
    match edit {
        MetadataEdit::Set(assignments) => {
            metadata.extend(assignments.iter().map(|Assignment { key, text, .. }| (&key[..], &text[..])));
        }
        MetadataEdit::Remove(keys) => metadata.retain(|key, _| !keys.iter().any(|other| other == key)),
        MetadataEdit::Clear => metadata.clear(),
    }
    let text = input.get(header.text().unwrap_or_default())?;
    // The parser rejects text that is not UTF-8.
    let bytes = rewrite(str::from_utf8(text).unwrap_or_default(), header.data_start, &metadata)?;
    Ok(NewHead { bytes, data_start: header.data_start, remarks: Vec::new() })
}

/// [`edit_safetensors`] for the text of a header, the offset of the data, and all of the new metadata.
fn rewrite(json: &str, data_start: u64, metadata: &BTreeMap<&str, &str>) -> Result<Vec<u8>, Error> {
    let entries = serde_json::Deserializer::from_str(json).deserialize_map(HeaderEntries);
    let entries = entries.map_err(|error| not_json(None, &error))?;
    let mut file = vec![0; LENGTH as usize];
    serde_json::to_writer(&mut file, &NewJson { metadata, entries }).map_err(|error| not_json(None, &error))?;
    let used = file.len() as u64;
    let unit = BLOCK.max(1 << data_start.trailing_zeros());
    // Near the limit there is no room for all of the padding.
    let starts = [align(used, data_start, unit), align(used, data_start, BLOCK), used.next_multiple_of(8)];
    let Some(start) = starts.into_iter().find(|start| start - LENGTH <= MAX_HEADER) else {
        return Err(Error::Limit(format!(
            "the header would have {} bytes, and at most {MAX_HEADER} are allowed",
            used - LENGTH
        )));
    };
    file.resize(start as usize, b' ');
    file[..LENGTH as usize].copy_from_slice(&(start - LENGTH).to_le_bytes());
    Ok(file)
}

/// The first number from `used` on that differs from `data_start` by a multiple of `unit`.
fn align(used: u64, data_start: u64, unit: u64) -> u64 {
    used + (unit + data_start % unit - used % unit) % unit
}

struct NewJson<'j> {
    metadata: &'j BTreeMap<&'j str, &'j str>,
    entries: Vec<(Cow<'j, str>, &'j RawValue)>,
}

impl Serialize for NewJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA, self.metadata)?;
        }
        for (name, entry) in &self.entries {
            map.serialize_entry(name, entry)?;
        }
        map.end()
    }
}

/// Reads the names and the values, as text, of all entries except the metadata.
struct HeaderEntries;

impl<'de> Visitor<'de> for HeaderEntries {
    type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((name, entry)) = map.next_entry::<JsonText, &RawValue>()? {
            if name.0 != METADATA {
                entries.push((name.0, entry));
            }
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{ParseMode, safetensors::parse_safetensors};
    use proptest::prelude::*;

    fn pairs<'p>(pairs: &[(&'p str, &'p str)]) -> BTreeMap<&'p str, &'p str> {
        pairs.iter().copied().collect()
    }

    fn metadata(header: &Header) -> BTreeMap<&str, &str> {
        header.metadata.iter().map(|(key, value)| (&key[..], value.text())).collect()
    }

    /// Parses a file that consists of `head` and `len` bytes of data.
    fn read(head: &[u8], len: u64) -> Header {
        parse_safetensors(&HeaderInput::with_prefix(head.len() as u64 + len, head.to_vec()), ParseMode::Strict).unwrap()
    }

    #[test]
    fn entries_keep_their_text_and_order() {
        let json = "{\n \"b\" : {\"dtype\":\"U8\", \"shape\":[2],\"data_offsets\":[1,3], \"mine\":[1.50, {\"\\u0041\":null}]},\
            \"__metadata__\":{\"old\":\"x\"},\"a\\/\\n\":[\"U8\",[1],[0,1]]}  ";
        let head = rewrite(json, 4096, &pairs(&[("new", "\"\n\u{1}é"), ("", "")])).unwrap();
        assert_eq!(head.len(), 4096);
        let text = str::from_utf8(&head[8..]).unwrap().trim_end();
        assert_eq!(
            text,
            "{\"__metadata__\":{\"\":\"\",\"new\":\"\\\"\\n\\u0001é\"},\
             \"b\":{\"dtype\":\"U8\", \"shape\":[2],\"data_offsets\":[1,3], \"mine\":[1.50, {\"\\u0041\":null}]},\
             \"a/\\n\":[\"U8\",[1],[0,1]]}"
        );
        assert_eq!(metadata(&read(&head, 3)), pairs(&[("", ""), ("new", "\"\n\u{1}é")]));
        let clean = rewrite(text, 4096, &pairs(&[])).unwrap();
        assert!(clean[8..].starts_with(b"{\"b\":"));
        assert_eq!(read(&clean, 3).metadata, []);
    }

    #[test]
    fn file_without_tensors_gets_a_header() {
        for (json, metadata, expected) in [
            ("{}", &[][..], "{}"),
            ("{\"__metadata__\":null}", &[], "{}"),
            ("{}", &[("a", "b")], "{\"__metadata__\":{\"a\":\"b\"}}"),
        ] {
            let head = rewrite(json, 16, &pairs(metadata)).unwrap();
            assert_eq!(str::from_utf8(&head[8..]).unwrap().trim_end(), expected);
            assert_eq!(read(&head, 0).len(), 0);
        }
    }

    #[test]
    fn data_moves_by_the_fewest_whole_blocks() {
        let json = |len: usize| format!("{{\"__metadata__\":{{\"k\":\"{}\"}}}}", "x".repeat(len));
        for old in [0, 100, 4000, 5000, 10_000] {
            for new in [0, 1, 99, 4000, 4080, 9000, 20_000] {
                for data_start in [8 + json(old).len() as u64, 4096, 4099, 12_345, 16_384] {
                    let head = rewrite(&json(old), data_start, &pairs(&[("k", &"x".repeat(new))])).unwrap();
                    let needed = 8 + json(new).len() as u64;
                    let start = head.len() as u64;
                    let unit = if data_start == 16_384 { 16_384 } else { 4096 };
                    assert_eq!(start % unit, data_start % unit);
                    assert!((needed..needed + unit).contains(&start), "{needed} {start}");
                    assert_eq!(head[..8], (start - 8).to_le_bytes());
                    read(&head, 0);
                }
            }
        }
    }

    #[test]
    fn header_above_the_limit_is_an_error() {
        // The JSON around the value takes 25 bytes.
        let head = |len: usize| rewrite("{}", 4096, &pairs(&[("k", &"x".repeat(len))]));
        let most = MAX_HEADER as usize - 25;
        assert_eq!(head(most).unwrap().len() as u64, 8 + MAX_HEADER);
        let error = head(most + 1).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("the header would have {} bytes, and at most {MAX_HEADER} are allowed", MAX_HEADER + 1)
        );
    }

    proptest! {
        #[test]
        fn written_metadata_is_read_back(metadata in prop::collection::btree_map(any::<String>(), any::<String>(), 0..5), start in 8u64..10_000) {
            let pairs: BTreeMap<&str, &str> = metadata.iter().map(|(key, value)| (&key[..], &value[..])).collect();
            let json = r#"{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"__metadata__":{"old":""}}"#;
            let head = rewrite(json, start, &pairs).unwrap();
            let header = read(&head, 1);
            prop_assert_eq!(super::tests::metadata(&header), pairs);
            prop_assert_eq!(header.name(0), "t");
        }
    }
}
