//! Converts text to metadata values: the inverse of the reader.

use super::types::{self, ARRAY};
use crate::format::edit::ValueFault;
use crate::format::metadata::{ScalarType, ValueType};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashMap;

/// An element of an array in a file.
pub struct ArrayElement<'i> {
    /// Its text as the reader shows it; for a string, the string itself.
    pub text: Cow<'i, str>,
    /// Its bytes in the file.
    pub bytes: &'i [u8],
}

/// Why a text cannot be converted: the element of an array at fault, and the fault.
type Failure = (Option<u64>, ValueFault);

/// Adds a value and the number of its type to `out`.
///
/// Elements that stay in an array keep their bytes, which are those in the old array `old`. Their text does not show
/// all bytes: strings may be invalid UTF-8, and NaN and infinity are `null`.
pub fn encode_gguf_value(
    value_type: ValueType,
    text: &str,
    old: &[ArrayElement],
    out: &mut Vec<u8>,
) -> Result<(), Failure> {
    let number = types::type_number(value_type.scalar);
    if !value_type.is_array {
        out.extend(number.to_le_bytes());
        return match value_type.scalar {
            ScalarType::String => encode_string(text, out),
            scalar => single(scalar, text.trim_ascii(), out),
        }
        .map_err(|fault| (None, fault));
    }
    // No element begins with a bracket, because GGUF has no arrays of arrays.
    let elements: Vec<&str> = if text.trim_ascii_start().starts_with('[') {
        let failed = |error: serde_json::Error| (None, ValueFault::Array { reason: error.to_string() });
        let elements: Vec<&RawValue> = serde_json::from_str(text).map_err(failed)?;
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
        is_in_place &= kept.map_err(|fault| (Some(at as u64), fault))?;
    }
    Ok(())
}

/// The texts of those strings that are not valid UTF-8, and their bytes; `None` for a text that several different
/// strings have.
fn inexact<'o>(old: &'o [ArrayElement]) -> HashMap<&'o str, Option<&'o [u8]>> {
    let is_exact = |old: &&ArrayElement| matches!(old.text, Cow::Borrowed(_));
    let mut found = HashMap::new();
    for ArrayElement { text, bytes } in old.iter().filter(|old| !is_exact(old)) {
        let same = found.entry(&**text).or_insert(Some(*bytes));
        *same = same.filter(|other| other == bytes);
    }
    for ArrayElement { text, .. } in old.iter().filter(is_exact) {
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
) -> Result<bool, ValueFault> {
    let json = json.trim_ascii();
    let text: Cow<str> = match scalar {
        ScalarType::String => {
            let failed = |_| ValueFault::String { text: json.to_owned() };
            Cow::Owned(serde_json::from_str(json).map_err(failed)?)
        }
        _ => Cow::Borrowed(json),
    };
    if let Some(old) = there.filter(|old| old.text == text) {
        out.extend(old.bytes);
        return Ok(true);
    }
    match inexact.get(&*text) {
        Some(Some(bytes)) => out.extend(*bytes),
        Some(None) => return Err(ValueFault::Alike { text: text.into_owned() }),
        None if scalar == ScalarType::String => encode_string(&text, out)?,
        None => single(scalar, &text, out)?,
    }
    Ok(false)
}

fn encode_string(text: &str, out: &mut Vec<u8>) -> Result<(), ValueFault> {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
    Ok(())
}

/// Adds a number or a boolean.
fn single(scalar: ScalarType, text: &str, out: &mut Vec<u8>) -> Result<(), ValueFault> {
    match scalar {
        ScalarType::Bool => match text {
            "true" => out.push(1),
            "false" => out.push(0),
            _ => return Err(ValueFault::Bool { text: text.to_owned() }),
        },
        ScalarType::F32 => {
            let number: f32 = float(text, |number: &f32| number.is_infinite())?;
            out.extend(number.to_le_bytes());
        }
        ScalarType::F64 => {
            let number: f64 = float(text, |number: &f64| number.is_infinite())?;
            out.extend(number.to_le_bytes());
        }
        ScalarType::U8 => out.extend((encode_integer(text, 0, u8::MAX.into())? as u8).to_le_bytes()),
        ScalarType::I8 => out.extend((encode_integer(text, i8::MIN.into(), i8::MAX.into())? as i8).to_le_bytes()),
        ScalarType::U16 => out.extend((encode_integer(text, 0, u16::MAX.into())? as u16).to_le_bytes()),
        ScalarType::I16 => out.extend((encode_integer(text, i16::MIN.into(), i16::MAX.into())? as i16).to_le_bytes()),
        ScalarType::U32 => out.extend((encode_integer(text, 0, u32::MAX.into())? as u32).to_le_bytes()),
        ScalarType::I32 => out.extend((encode_integer(text, i32::MIN.into(), i32::MAX.into())? as i32).to_le_bytes()),
        ScalarType::U64 => out.extend((encode_integer(text, 0, u64::MAX.into())? as u64).to_le_bytes()),
        ScalarType::I64 => out.extend((encode_integer(text, i64::MIN.into(), i64::MAX.into())? as i64).to_le_bytes()),
        ScalarType::String => encode_string(text, out)?,
    }
    Ok(())
}

fn encode_integer(text: &str, min: i128, max: i128) -> Result<i128, ValueFault> {
    let number = text.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| ValueFault::Integer { text: text.to_owned(), min, max })
}

/// Parses a number, `nan`, `inf` or `-inf`.
fn float<F: std::str::FromStr>(text: &str, is_infinite: impl Fn(&F) -> bool) -> Result<F, ValueFault> {
    let number = text.parse().map_err(|_| ValueFault::Float { text: text.to_owned() })?;
    let says_infinite = text.trim_start_matches(['-', '+']).starts_with(['i', 'I']);
    if is_infinite(&number) && !says_infinite {
        return Err(ValueFault::Large { text: text.to_owned() });
    }
    Ok(number)
}
