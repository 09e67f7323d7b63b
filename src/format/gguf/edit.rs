//! Rewrites a header with other metadata. All other metadata and the descriptions of the tensors are copied byte for
//! byte, in the same order.

use super::cursor::{GgufCursor, header_too_large};
use super::encode::{ArrayElement, encode_gguf_value};
use super::keys;
use super::reader::read_number;
use super::{
    ALIGNMENT, ALIGNMENT_KEY, ARCHITECTURE_KEY, ARRAY, KEY_MAX, MAX_HEADER, METADATA_START, SPLIT_PREFIX, alignment,
};
use crate::format::edit::{Assignment, MetadataEdit, NewHead};
use crate::format::error::Error;
use crate::format::header::Header;
use crate::format::input::HeaderInput;
use crate::format::metadata::{MetadataValue, ScalarType, json_text};
use crate::text::quote;
use std::borrow::Cow;
use std::ops::Range;

const TENSOR_COUNT_AT: u64 = 8;

const KEY_COUNT_AT: usize = 16;

/// Size of the length of a string, in bytes.
const LENGTH: usize = 8;

/// A key, and the bytes of the key and its value.
struct GgufPair<'i> {
    key: Cow<'i, str>,
    bytes: Cow<'i, [u8]>,
}

/// The bytes of a file up to its data, with changed metadata. `header` was parsed from `input` in strict mode.
///
/// New keys come last. As GGUF requires, the data begins at the first multiple of the alignment after the header. So
/// the data moves, unless the padding before it can take up the change.
pub fn edit_gguf(header: &Header, input: &HeaderInput, edit: &MetadataEdit) -> Result<NewHead, Error> {
    let mut pairs = Vec::with_capacity(header.pairs.len());
    for (key, range) in &header.pairs {
        let bytes = input.get(range.clone())?;
        pairs.push(GgufPair { key: key.into(), bytes: bytes.into() });
    }
    let mut remarks = Vec::new();
    let tensors_at = header.pairs.last().map_or(METADATA_START, |(_, range)| range.end);
    match edit {
        MetadataEdit::Set(assignments) => {
            for assignment in assignments {
                set(&mut pairs, header, input, assignment)?;
            }
        }
        MetadataEdit::Remove(keys) => pairs.retain(|pair| !keys.iter().any(|key| *key == pair.key)),
        MetadataEdit::Clear => {
            let is_needed = !header.is_empty() && alignment(header) != u64::from(ALIGNMENT);
            pairs.retain(|pair| is_needed && pair.key == ALIGNMENT_KEY);
            if is_needed {
                remarks.push(format!("{ALIGNMENT_KEY} is kept, because it says where the tensors are stored"));
            }
        }
    }
    let new_alignment = new_alignment(&pairs).unwrap_or(alignment(header));
    if !header.is_empty() && new_alignment != alignment(header) {
        let old = alignment(header);
        return Err(Error::Refused(format!(
            "{} cannot change from {old} to {new_alignment}: the tensors are stored at multiples of {old} bytes",
            quote(ALIGNMENT_KEY)
        )));
    }
    remark(header, &pairs, &mut remarks);

    let infos_end = infos_end(input, tensors_at)?;
    let mut bytes = input.get(0..METADATA_START)?.to_vec();
    bytes[KEY_COUNT_AT..].copy_from_slice(&(pairs.len() as u64).to_le_bytes());
    pairs.iter().for_each(|pair| bytes.extend(&*pair.bytes));
    bytes.extend(input.get(tensors_at..infos_end)?);
    // Files without tensors may have padding too, which is then not part of the header.
    let padded = infos_end.next_multiple_of(alignment(header));
    let is_padded = !header.is_empty() || (padded > infos_end && input.len() == padded);
    if is_padded {
        // The alignment can be up to 2^31 bytes.
        let end = (bytes.len() as u64).next_multiple_of(new_alignment);
        if end > MAX_HEADER {
            return Err(header_too_large(end));
        }
        bytes.resize(end as usize, 0);
    }
    let data_start = if is_padded { padded } else { infos_end };
    Ok(NewHead { bytes, data_start, remarks })
}

/// Sets a key. If the value does not change, its bytes do not either.
fn set<'i>(
    pairs: &mut Vec<GgufPair<'i>>,
    header: &Header,
    input: &'i HeaderInput,
    assignment: &Assignment,
) -> Result<(), Error> {
    let Assignment { key, value_type, text } = assignment;
    let at = pairs.iter().position(|pair| pair.key == *key);
    if key.len() > KEY_MAX && at.is_none() {
        let len = key.len();
        return Err(Error::Refused(format!(
            "the key {} has {len} bytes, and at most {KEY_MAX} are allowed",
            quote(key)
        )));
    }
    let old = header.value(key);
    let value_type = value_type.or_else(|| old.map(MetadataValue::value_type)).unwrap_or_else(|| keys::value_type(key));
    let range = header.pairs.iter().find(|(other, _)| other == key).map(|(_, range)| range);
    let same_type = old.zip(range).filter(|(old, _)| old.value_type() == value_type);
    let mut bytes = (key.len() as u64).to_le_bytes().to_vec();
    bytes.extend(key.as_bytes());
    match same_type {
        // The file may have a byte other than 1 for true, or a NaN with other bits.
        Some((old, range)) if !value_type.is_array && old.bytes() == text.as_bytes() => {
            bytes = input.get(range.clone())?.to_vec();
        }
        _ => {
            let elements = match same_type.filter(|_| value_type.is_array) {
                Some((_, range)) => elements(input, range)?,
                None => Vec::new(),
            };
            encode_gguf_value(value_type, text, &elements, &mut bytes)
                .map_err(|fault| Error::Refused(format!("{} has the type {value_type}: {fault}", quote(key))))?;
        }
    }
    match at {
        Some(at) => pairs[at].bytes = bytes.into(),
        None => pairs.push(GgufPair { key: key.clone().into(), bytes: bytes.into() }),
    }
    Ok(())
}

/// The elements of the array whose key and value are at `range`.
fn elements<'i>(input: &'i HeaderInput, range: &Range<u64>) -> Result<Vec<ArrayElement<'i>>, Error> {
    let mut cursor = GgufCursor::starting_at(input, range.start);
    cursor.string()?;
    let (array, kind, len) = (cursor.u32()?, cursor.u32()?, cursor.u64()?);
    let Some(scalar) = ScalarType::from_gguf(kind).filter(|_| array == ARRAY) else { return Ok(Vec::new()) };
    let mut elements = Vec::new();
    for _ in 0..len {
        let start = cursor.offset();
        let text = match scalar {
            ScalarType::String => String::from_utf8_lossy(cursor.string()?),
            _ => json_text(scalar, &read_number(scalar, cursor.take(scalar.gguf_size())?)).to_owned().into(),
        };
        let bytes = input.get(start..cursor.offset())?;
        elements.push(ArrayElement { text, bytes });
    }
    Ok(elements)
}

fn infos_end(input: &HeaderInput, tensors_at: u64) -> Result<u64, Error> {
    let count = GgufCursor::starting_at(input, TENSOR_COUNT_AT).u64()?;
    let mut cursor = GgufCursor::starting_at(input, tensors_at);
    for _ in 0..count {
        cursor.string()?;
        let rank = cursor.u32()?;
        // The dimensions, the type and the offset.
        cursor.take(8 * u64::from(rank) + 4 + 8)?;
    }
    Ok(cursor.offset())
}

/// The alignment that the metadata gives. `None` if the value is not valid, which the parser then reports.
fn new_alignment(pairs: &[GgufPair]) -> Option<u64> {
    let Some(pair) = pairs.iter().find(|pair| pair.key == ALIGNMENT_KEY) else { return Some(ALIGNMENT.into()) };
    let value = pair.bytes.get(LENGTH + pair.key.len()..)?;
    let (kind, value) = value.split_first_chunk::<4>()?;
    let value = u32::from_le_bytes(value.try_into().ok()?);
    let is_valid = u32::from_le_bytes(*kind) == ScalarType::U32.gguf_number() && value.is_power_of_two();
    is_valid.then_some(value.into())
}

fn remark(header: &Header, pairs: &[GgufPair], remarks: &mut Vec<String>) {
    let bytes_of = |key: &str| pairs.iter().find(|pair| pair.key == key).map(|pair| &pair.bytes);
    if header.value(ARCHITECTURE_KEY).is_some() && bytes_of(ARCHITECTURE_KEY).is_none() {
        remarks.push(format!("without {ARCHITECTURE_KEY}, llama.cpp and other programs cannot load the model"));
    }
    let old = header.pairs.iter().filter(|(key, _)| key.starts_with(SPLIT_PREFIX));
    for (key, _) in old.filter(|(key, _)| bytes_of(key).is_none()) {
        remarks.push(format!("without {}, programs cannot load the splits as one model", quote(key)));
    }
}
