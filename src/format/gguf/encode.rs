//! Converts text to metadata values: the inverse of the reader.

use super::types::{self, ARRAY};
use crate::format::edit::ValueFault;
use crate::format::metadata::{Scalar, ValueType};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// An element of an array in a file.
pub struct Element<'i> {
    /// Its text as the reader shows it; for a string, the string itself.
    pub text: Cow<'i, str>,
    /// Its bytes in the file.
    pub bytes: &'i [u8],
}

/// Why a text cannot be converted: the element of an array at fault, and the fault.
type Failure = (Option<u64>, ValueFault);

/// Adds a value and the number of its type to `out`.
///
/// An element of an array keeps its bytes if the old array `old` has the same text at the same position. The text does
/// not show all bytes: strings may be invalid UTF-8, and NaN and infinity are `null`.
pub fn encode(value_type: ValueType, text: &str, old: &[Element], out: &mut Vec<u8>) -> Result<(), Failure> {
    let number = types::number(value_type.scalar);
    if !value_type.is_array {
        out.extend(number.to_le_bytes());
        return match value_type.scalar {
            Scalar::String => string(text, out),
            scalar => single(scalar, text.trim_ascii(), out),
        }
        .map_err(|fault| (None, fault));
    }
    out.extend(ARRAY.to_le_bytes());
    out.extend(number.to_le_bytes());
    let count_at = out.len();
    out.extend([0; 8]);
    let mut count: u64 = 0;
    let mut add = |json: &str| {
        let old = old.get(count as usize);
        element(value_type.scalar, json, old, out).map_err(|fault| (Some(count), fault))?;
        count += 1;
        Ok(())
    };
    // No element begins with a bracket, because GGUF has no arrays of arrays.
    if text.trim_ascii_start().starts_with('[') {
        let failed = |error: serde_json::Error| (None, ValueFault::Array { reason: error.to_string() });
        let elements: Vec<&RawValue> = serde_json::from_str(text).map_err(failed)?;
        elements.iter().try_for_each(|json| add(json.get()))?;
    } else {
        text.lines().try_for_each(add)?;
    }
    out[count_at..count_at + 8].copy_from_slice(&count.to_le_bytes());
    Ok(())
}

/// Adds an element of an array, which `json` gives as JSON.
fn element(scalar: Scalar, json: &str, old: Option<&Element>, out: &mut Vec<u8>) -> Result<(), ValueFault> {
    let json = json.trim_ascii();
    let text: Cow<str> = match scalar {
        Scalar::String => {
            let failed = |_| ValueFault::String { text: json.to_owned() };
            Cow::Owned(serde_json::from_str(json).map_err(failed)?)
        }
        _ => Cow::Borrowed(json),
    };
    match old.filter(|old| old.text == text) {
        Some(old) => out.extend(old.bytes),
        None if scalar == Scalar::String => string(&text, out)?,
        None => single(scalar, &text, out)?,
    }
    Ok(())
}

fn string(text: &str, out: &mut Vec<u8>) -> Result<(), ValueFault> {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
    Ok(())
}

/// Adds a number or a boolean.
fn single(scalar: Scalar, text: &str, out: &mut Vec<u8>) -> Result<(), ValueFault> {
    match scalar {
        Scalar::Bool => match text {
            "true" => out.push(1),
            "false" => out.push(0),
            _ => return Err(ValueFault::Bool { text: text.to_owned() }),
        },
        Scalar::F32 => {
            let number: f32 = float(text, |number: &f32| number.is_infinite())?;
            out.extend(number.to_le_bytes());
        }
        Scalar::F64 => {
            let number: f64 = float(text, |number: &f64| number.is_infinite())?;
            out.extend(number.to_le_bytes());
        }
        Scalar::U8 => out.extend((integer(text, 0, u8::MAX.into())? as u8).to_le_bytes()),
        Scalar::I8 => out.extend((integer(text, i8::MIN.into(), i8::MAX.into())? as i8).to_le_bytes()),
        Scalar::U16 => out.extend((integer(text, 0, u16::MAX.into())? as u16).to_le_bytes()),
        Scalar::I16 => out.extend((integer(text, i16::MIN.into(), i16::MAX.into())? as i16).to_le_bytes()),
        Scalar::U32 => out.extend((integer(text, 0, u32::MAX.into())? as u32).to_le_bytes()),
        Scalar::I32 => out.extend((integer(text, i32::MIN.into(), i32::MAX.into())? as i32).to_le_bytes()),
        Scalar::U64 => out.extend((integer(text, 0, u64::MAX.into())? as u64).to_le_bytes()),
        Scalar::I64 => out.extend((integer(text, i64::MIN.into(), i64::MAX.into())? as i64).to_le_bytes()),
        Scalar::String => string(text, out)?,
    }
    Ok(())
}

fn integer(text: &str, min: i128, max: i128) -> Result<i128, ValueFault> {
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
