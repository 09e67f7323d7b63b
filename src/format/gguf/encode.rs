//! Converts text to metadata values: the inverse of the reader.

use super::ARRAY;
use crate::format::metadata::{ScalarType, ValueType};
use crate::text::quote;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashMap;
use std::str::FromStr;

pub struct ArrayElement<'i> {
    /// Its text as the reader shows it; for a string, the string itself.
    pub text: Cow<'i, str>,
    pub bytes: &'i [u8],
}

/// Adds a value and the number of its type to `out`.
///
/// Elements that stay in an array keep their bytes, which are those in the old array `old`. Their text does not show
/// all bytes: strings may be invalid UTF-8, and NaN and infinity are `null`.
pub fn encode_gguf_value(
    value_type: ValueType,
    text: &str,
    old: &[ArrayElement],
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let number = value_type.scalar.gguf_number();
    if !value_type.is_array {
        out.extend(number.to_le_bytes());
        return encode_scalar(value_type.scalar, text, out);
    }
    // No element begins with a bracket, because GGUF has no arrays of arrays.
    let elements: Vec<&str> = if text.trim_ascii_start().starts_with('[') {
        let elements: Vec<&RawValue> =
            serde_json::from_str(text).map_err(|error| format!("not a JSON array: {error}"))?;
        elements.into_iter().map(RawValue::get).collect()
    } else {
        text.lines().collect()
    };
    out.extend(ARRAY.to_le_bytes());
    out.extend(number.to_le_bytes());
    out.extend((elements.len() as u64).to_le_bytes());
    let inexact = if value_type.scalar == ScalarType::String { inexact(old) } else { HashMap::new() };
    // An element that follows one that was added or removed has another position than before.
    let mut is_in_place = true;
    for (at, json) in elements.iter().enumerate() {
        let there = old.get(at).filter(|_| is_in_place || elements.len() == old.len());
        let kept = element(value_type.scalar, json, there, &inexact, out);
        is_in_place &= kept.map_err(|fault| format!("element {at}: {fault}"))?;
    }
    Ok(())
}

/// The texts of those strings that are not valid UTF-8, and their bytes; `None` for a text that several different
/// strings have.
fn inexact<'o>(old: &'o [ArrayElement]) -> HashMap<&'o str, Option<&'o [u8]>> {
    let mut found = HashMap::new();
    for ArrayElement { text, bytes } in old.iter().filter(|old| matches!(old.text, Cow::Owned(_))) {
        let same = found.entry(&**text).or_insert(Some(*bytes));
        *same = same.filter(|other| other == bytes);
    }
    for ArrayElement { text, .. } in old.iter().filter(|old| matches!(old.text, Cow::Borrowed(_))) {
        found.entry(text).and_modify(|same| *same = None);
    }
    found
}

/// Adds an element of an array, which `json` gives as JSON. `there` is the old element at the same position. Returns
/// whether they are the same.
fn element(
    scalar: ScalarType,
    json: &str,
    there: Option<&ArrayElement>,
    inexact: &HashMap<&str, Option<&[u8]>>,
    out: &mut Vec<u8>,
) -> Result<bool, String> {
    let json = json.trim_ascii();
    let text: Cow<str> = match scalar {
        ScalarType::String => {
            Cow::Owned(serde_json::from_str(json).map_err(|_| format!("{} is not a JSON string", quote(json)))?)
        }
        _ => Cow::Borrowed(json),
    };
    if let Some(old) = there.filter(|old| old.text == text) {
        out.extend(old.bytes);
        return Ok(true);
    }
    match inexact.get(&*text) {
        Some(Some(bytes)) => out.extend(*bytes),
        Some(None) => {
            return Err(format!(
                "{} stands for several different strings that are not valid UTF-8; they are kept only if no element \
                 before them changes, or if the array keeps its length",
                quote(&text)
            ));
        }
        None => encode_scalar(scalar, &text, out)?,
    }
    Ok(false)
}

fn encode_scalar(scalar: ScalarType, text: &str, out: &mut Vec<u8>) -> Result<(), String> {
    let trimmed = text.trim_ascii();
    match scalar {
        ScalarType::String => {
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        }
        ScalarType::Bool => match trimmed {
            "true" => out.push(1),
            "false" => out.push(0),
            _ => return Err(format!("{} is neither true nor false", quote(trimmed))),
        },
        ScalarType::F32 => out.extend(parse_float::<f32>(trimmed)?.to_le_bytes()),
        ScalarType::F64 => out.extend(parse_float::<f64>(trimmed)?.to_le_bytes()),
        integer => {
            let (size, is_signed) = (integer.gguf_size() as usize, integer.name().starts_with('i'));
            let codes = 1_i128 << (8 * size);
            let (min, max) = if is_signed { (-codes / 2, codes / 2 - 1) } else { (0, codes - 1) };
            let number: Option<i128> = trimmed.parse().ok().filter(|number| (min..=max).contains(number));
            let number =
                number.ok_or_else(|| format!("{} is not a whole number from {min} to {max}", quote(trimmed)))?;
            out.extend(&number.to_le_bytes()[..size]);
        }
    }
    Ok(())
}

fn parse_float<F: FromStr + Copy + Into<f64>>(text: &str) -> Result<F, String> {
    let number: F = text.parse().map_err(|_| format!("{} is not a number", quote(text)))?;
    let says_infinite = text.trim_start_matches(['-', '+']).starts_with(['i', 'I']);
    if number.into().is_infinite() && !says_infinite {
        return Err(format!("{} is too large", quote(text)));
    }
    Ok(number)
}
