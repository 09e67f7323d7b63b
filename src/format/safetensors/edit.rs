//! Rewrites a header with other metadata. The values of the other entries are copied unchanged.

use super::error::SafetensorsError;
use super::{LENGTH, MAX_HEADER, METADATA};
use crate::format::JsonText;
use crate::format::edit::{Assignment, MetadataEdit, NewHead};
use crate::format::header::Header;
use crate::format::input::HeaderInput;
use serde::de::{Deserializer, MapAccess, Visitor};
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
pub fn edit_safetensors(
    header: &Header,
    input: &HeaderInput,
    edit: &MetadataEdit,
) -> Result<NewHead, SafetensorsError> {
    let mut metadata: BTreeMap<&str, &str> =
        header.metadata().iter().map(|(key, value)| (&key[..], value.text())).collect();
    match edit {
        MetadataEdit::Set(assignments) => {
            metadata.extend(assignments.iter().map(|Assignment { key, text, .. }| (&key[..], &text[..])));
        }
        MetadataEdit::Remove(keys) => metadata.retain(|key, _| !keys.iter().any(|other| other == key)),
        MetadataEdit::Clear => metadata.clear(),
    }
    let text = input.get(header.text().unwrap_or_default())?;
    // The parser rejects text that is not UTF-8.
    let bytes = rewrite(str::from_utf8(text).unwrap_or_default(), header.data_start(), &metadata)?;
    Ok(NewHead { bytes, data_start: header.data_start(), remarks: Vec::new() })
}

/// [`edit_safetensors`] for the text of a header, the offset of the data, and all of the new metadata.
fn rewrite(json: &str, data_start: u64, metadata: &BTreeMap<&str, &str>) -> Result<Vec<u8>, SafetensorsError> {
    let unreadable = |error: serde_json::Error| SafetensorsError::Json { entry: None, reason: error.to_string() };
    let mut reader = serde_json::Deserializer::from_str(json);
    let entries = reader.deserialize_map(HeaderEntries).map_err(unreadable)?;
    let mut file = vec![0; LENGTH as usize];
    file.push(b'{');
    let separate = |file: &mut Vec<u8>| {
        if file.len() as u64 > LENGTH + 1 {
            file.push(b',');
        }
    };
    if !metadata.is_empty() {
        file.extend(b"\"__metadata__\":{");
        for (at, (key, value)) in metadata.iter().enumerate() {
            if at > 0 {
                file.push(b',');
            }
            write_member(&mut file, key, &serde_json::to_string(value).map_err(unreadable)?)?;
        }
        file.push(b'}');
    }
    for (name, entry) in entries {
        separate(&mut file);
        write_member(&mut file, &name, entry.get())?;
    }
    file.push(b'}');
    let used = file.len() as u64;
    let unit = BLOCK.max(1 << data_start.trailing_zeros());
    let aligned = |unit: u64| used + (unit + data_start % unit - used % unit) % unit;
    // Near the limit there is no room for all of the padding.
    let fits = |start: &u64| start - LENGTH <= MAX_HEADER;
    let start = [aligned(unit), aligned(BLOCK), used.next_multiple_of(8)].into_iter().find(fits);
    let start = start.ok_or(SafetensorsError::NoRoom { len: used - LENGTH })?;
    file.resize(start as usize, b' ');
    file[..LENGTH as usize].copy_from_slice(&(start - LENGTH).to_le_bytes());
    Ok(file)
}

fn write_member(file: &mut Vec<u8>, key: &str, value: &str) -> Result<(), SafetensorsError> {
    let reason = |error: serde_json::Error| SafetensorsError::Json { entry: None, reason: error.to_string() };
    serde_json::to_writer(&mut *file, key).map_err(reason)?;
    file.push(b':');
    file.extend(value.as_bytes());
    Ok(())
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
        header.metadata().iter().map(|(key, value)| (&key[..], value.text())).collect()
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
        assert_eq!(read(&clean, 3).metadata(), []);
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
        assert_eq!(head(most + 1), Err(SafetensorsError::NoRoom { len: MAX_HEADER + 1 }));
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
