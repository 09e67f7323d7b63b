//! Finds what the official reader accepts in a header although the format does not define it, and everything that is
//! wrong with a damaged file, of which the strict parser reports only the first broken rule.
//!
//! Source: `safetensors/README.md`, "Format": the header "MUST begin with a `{`", "MAY be trailing padded with
//! whitespace (0x20)", and "duplicate keys are disallowed".

use super::parser::HeaderParser;
use super::reader::read_json;
use super::{DUPLICATE, METADATA, misplaced, too_long};
use crate::format::error::Error;
use crate::format::header::{Header, ParseMode, SkippedEntry, SkippedKind};
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::lint::HeaderLint;
use crate::rules::CheckRule;
use crate::text::quote;
use std::collections::HashSet;

pub fn lint_safetensors(
    header: &Header,
    input: &HeaderInput,
    found: &mut dyn FnMut(HeaderLint),
) -> Result<(), MissingRange> {
    let text = input.get(header.text().unwrap_or_default())?;
    // The parser rejects text that is not UTF-8.
    lint_text(str::from_utf8(text).unwrap_or_default(), found);
    Ok(())
}

/// Checks the text of a header, padding included.
fn lint_text(json: &str, found: &mut dyn FnMut(HeaderLint)) {
    let padding = json.rfind('}').map_or("", |end| &json[end + 1..]);
    let odd = [
        json.chars().next().filter(|first| *first != '{').map(|first| format!("begins with {first:?}, not with '{{'")),
        padding.chars().find(|char| *char != ' ').map(|char| format!("is padded with {char:?}, not with spaces")),
    ];
    for odd in odd.into_iter().flatten() {
        found(HeaderLint::new(CheckRule::Json, None, format!("the header {odd}")));
    }
    // The parser rejects invalid JSON.
    let _ = read_json(json, &mut HeaderParser::new(ParseMode::Strict, 0, Some(found)));
}

/// Reports everything that is wrong with a file of `len` bytes. `broken` is the error of the strict parser, and
/// `header` the result of the lenient parser.
pub fn safetensors_damage(header: &Header, broken: &Error, len: u64, found: &mut dyn FnMut(HeaderLint)) {
    let (skipped, more) = header.skipped.kept();
    for SkippedEntry { name, reason, .. } in skipped.iter().filter(|skipped| skipped.is_left_out()) {
        found(HeaderLint::new(CheckRule::Entry, Some(name), format!("{}: {reason}", label(name))));
    }
    // The parser gives only one reason for each entry that it leaves out. If the name of such an entry is repeated too,
    // that is reported here.
    let mut seen = HashSet::new();
    for SkippedEntry { name, kind, .. } in skipped {
        if name != METADATA && *kind == SkippedKind::LeftOut && (header.find(name).is_some() || !seen.insert(name)) {
            found(HeaderLint::new(CheckRule::Entry, Some(name), format!("{}: {DUPLICATE}", label(name))));
        }
    }
    // A hole may hold the data of an entry that was left out.
    let is_left_out = more > 0 || skipped.iter().any(|skipped| skipped.is_left_out() && skipped.name != METADATA);
    let note = if is_left_out { ", which may belong to a tensor that is skipped" } else { "" };
    let mut expected = header.data_start;
    for tensor in header.tensors() {
        if let Some((kind, fault)) = misplaced(tensor.range.start, expected) {
            let note = if kind == CheckRule::Hole { note } else { "" };
            found(HeaderLint::new(kind, Some(tensor.name), format!("{}: {fault}{note}", label(tensor.name))));
        }
        expected = expected.max(tensor.range.end);
    }
    // If the file is truncated, its last tensors are left out. The rest of their bytes is not a hole.
    if expected < len && !matches!(broken, Error::Cut(_)) {
        found(HeaderLint::new(CheckRule::Hole, None, too_long(expected, len) + note));
    }
}

/// The name of an entry in messages.
fn label(name: &str) -> String {
    if name == METADATA { name.to_owned() } else { format!("tensor {}", quote(name)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusual_headers_are_reported() {
        let entry = r#""t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
        let cases = [
            (format!("{{{entry}}}   "), vec![]),
            (
                format!(r#"{{"__metadata__":{{"k":"1","a":"","k":"2","k":"3"}},{entry}}}"#),
                vec![r#"metadata key "k" is repeated; readers take the last value"#; 2],
            ),
            (format!(r#"{{"__metadata__":null,{entry}}}"#), vec!["__metadata__ is null, not an object"]),
            (format!(" {{{entry}}}"), vec!["the header begins with ' ', not with '{'"]),
            (format!("{{{entry}}} \n "), vec![r"the header is padded with '\n', not with spaces"]),
            (r#"{"t":["U8",[1],[0,1]]}"#.into(), vec![r#"tensor "t": its entry is a list, not an object"#]),
            (
                r#"{"t":{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1],"x":[{"dtype":{}}]}}"#.into(),
                vec![
                    r#"tensor "t": its dtype is an object, not a name"#,
                    r#"tensor "t": its entry has the field "x", which the format does not have"#,
                ],
            ),
        ];
        for (json, expected) in cases {
            let file = [&(json.len() as u64).to_le_bytes(), json.as_bytes(), &[0]].concat();
            assert!(safetensors::SafeTensors::deserialize(&file).is_ok(), "{json}");
            let mut found = Vec::new();
            lint_text(&json, &mut |lint| found.push(lint.message));
            assert_eq!(found, expected, "{json}");
        }
    }
}
