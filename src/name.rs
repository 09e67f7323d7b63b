//! Names as file names: the one encoding that all views use. Does not depend on what is named.
//!
//! UTF-8 is kept, except that `/`, NUL, `%` and ASCII control characters are written as `%XX`. The names `.` and `..`
//! have their dots escaped, and the empty name is `%`. If an encoding exceeds [`MAX`] bytes, it is cut and ends in `%~`
//! and the first 16 hex digits of the SHA-256 of the name. There is no other `%` in an encoding, so a trailing `%` can
//! distinguish a tensor from a directory of the same name (`a%` beside `a/`).

use crate::text::{HexDigits, is_terminal_control};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Maximum length of an encoded name in bytes. A file name has at most 255; the rest is for extensions such as
/// `.safetensors`.
pub const MAX: usize = 240;

/// Length of the end of a cut name: `%~` and 16 digits.
const TAIL: usize = 18;

pub fn encode_name(name: &str) -> Cow<'_, str> {
    match name {
        "" => return Cow::Borrowed("%"),
        "." => return Cow::Borrowed("%2E"),
        ".." => return Cow::Borrowed("%2E%2E"),
        _ => {}
    }
    if name.len() <= MAX && !name.bytes().any(is_escaped) {
        return Cow::Borrowed(name);
    }
    Cow::Owned(escape(name.as_bytes(), |_| false))
}

/// `name`, the name of an existing file, unchanged if it is UTF-8 without terminal control characters. Otherwise it is
/// escaped as by [`encode_name`], and terminal control characters and bytes that are not UTF-8 are escaped too.
pub fn harmless(name: &OsStr) -> Cow<'_, OsStr> {
    match name.to_str() {
        Some(text) if !text.contains(is_terminal_control) => Cow::Borrowed(name),
        _ => Cow::Owned(escape(name.as_bytes(), is_terminal_control).into()),
    }
}

fn escape(name: &[u8], is_escaped_too: fn(char) -> bool) -> String {
    let mut encoded = String::with_capacity(name.len().min(MAX) + 12);
    // The place to cut the encoding if it becomes too long.
    let mut cut = 0;
    let units = name
        .utf8_chunks()
        .flat_map(|chunk| chunk.valid().chars().map(Ok).chain(chunk.invalid().iter().copied().map(Err)));
    for unit in units {
        if encoded.len() <= MAX - TAIL {
            cut = encoded.len();
        }
        match unit {
            Ok(char) if is_escaped_too(char) || u8::try_from(char).is_ok_and(is_escaped) => {
                char.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| push_escape(&mut encoded, byte));
            }
            Ok(char) => encoded.push(char),
            Err(byte) => push_escape(&mut encoded, byte),
        }
        if encoded.len() > MAX {
            encoded.truncate(cut);
            encoded.push_str(&format!("%~{}", HexDigits(&Sha256::digest(name)[..8])));
            break;
        }
    }
    encoded
}

/// Decodes a file name. `None` if no name has this encoding, or if the name was cut (see [`is_cut`]).
pub fn decode_name(encoded: &str) -> Option<Cow<'_, str>> {
    if encoded == "%" {
        return Some(Cow::Borrowed(""));
    }
    if encoded.len() > MAX {
        return None;
    }
    let name = if encoded.contains('%') {
        let (mut name, mut rest) = (Vec::with_capacity(encoded.len()), encoded);
        while let Some(at) = rest.find('%') {
            name.extend_from_slice(&rest.as_bytes()[..at]);
            name.push(u8::from_str_radix(rest.get(at + 1..at + 3)?, 16).ok()?);
            rest = &rest[at + 3..];
        }
        name.extend_from_slice(rest.as_bytes());
        Cow::Owned(String::from_utf8(name).ok()?)
    } else {
        Cow::Borrowed(encoded)
    };
    // Only the canonical encoding is accepted: not `%2f`, `%41` or `.`.
    (encode_name(&name) == encoded).then_some(name)
}

/// Whether `encoded` looks like the encoding of a cut name. The whole name must then be looked up.
pub fn is_cut(encoded: &str) -> bool {
    encoded.len() > TAIL
        && encoded.is_char_boundary(encoded.len() - TAIL)
        && encoded[encoded.len() - TAIL..].starts_with("%~")
}

/// The file name of `name` if it had to be cut. [`is_cut`] is false for all others: each `%` in them is followed by
/// hexadecimal digits.
pub fn cut_name(name: &str) -> Option<String> {
    // An escape has three bytes, so the encoding of a shorter name always fits.
    let encoded = (name.len() > MAX / 3).then(|| encode_name(name)).filter(|encoded| is_cut(encoded))?;
    Some(encoded.into_owned())
}

fn is_escaped(byte: u8) -> bool {
    matches!(byte, b'/' | b'%' | 0x00..=0x1f | 0x7f)
}

fn push_escape(encoded: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    encoded.extend(['%', DIGITS[usize::from(byte >> 4)].into(), DIGITS[usize::from(byte & 15)].into()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_names_encode_and_decode() {
        let cases = [
            ("model.layers.0.weight", "model.layers.0.weight"),
            ("", "%"),
            (".", "%2E"),
            ("..", "%2E%2E"),
            ("...", "..."),
            (".hidden", ".hidden"),
            ("a/b", "a%2Fb"),
            ("/", "%2F"),
            ("100%", "100%25"),
            ("%", "%25"),
            ("nul\0tab\tdel\x7f", "nul%00tab%09del%7F"),
            ("重み ~ A a", "重み ~ A a"),
            // Only ASCII is escaped.
            ("\u{9b}2J\u{202e}\u{2028}\u{feff}", "\u{9b}2J\u{202e}\u{2028}\u{feff}"),
        ];
        for (name, encoded) in cases {
            assert_eq!(encode_name(name), encoded);
            assert_eq!(decode_name(encoded).as_deref(), Some(name));
        }
        let invalid = [
            ".",
            "..",
            "a/b",
            "%2f",
            "%41",
            "%%",
            "a%",
            "%2",
            "%zz",
            "%é1",
            "%+1",
            "%~0123456789abcdef",
            "%80",
            "%C3%A9",
            "%C2",
            "%E2%80",
            "%e2%80%ae",
            "\n",
        ];
        for encoded in invalid {
            assert_eq!(decode_name(encoded), None, "{encoded}");
        }
    }

    #[test]
    fn harmless_keeps_printable_names_and_escapes_others() {
        let cases: [(&[u8], &str); 8] = [
            ("100 %2F 重み\u{200d}é".as_bytes(), "100 %2F 重み\u{200d}é"),
            (b"a\nb%", "a%0Ab%25"),
            (b"\x1b[31m", "%1B[31m"),
            ("\u{202e}gpj.exe".as_bytes(), "%E2%80%AEgpj.exe"),
            (b"\xff", "%FF"),
            (b"a\xe2\x80", "a%E2%80"),
            (b"\xc2\xc2\x9b", "%C2%C2%9B"),
            (&[0xff; 100], &format!("{}%~{}", "%FF".repeat(74), "da6f14970ce356ce")),
        ];
        for (name, shown) in cases {
            assert_eq!(&*harmless(OsStr::from_bytes(name)), shown);
        }
    }

    #[test]
    fn long_names_are_cut_at_a_character_boundary() {
        let exact = "x".repeat(MAX);
        assert_eq!(encode_name(&exact), exact);
        assert_eq!(decode_name(&exact).unwrap(), exact);
        let long = "x".repeat(MAX + 1);
        let encoded = encode_name(&long);
        assert_eq!(encoded.len(), MAX);
        // The SHA-256 of 241 times x.
        assert_eq!(encoded, format!("{}%~{}", "x".repeat(MAX - TAIL), "7dbf05774ebc8b02"));
        assert!(is_cut(&encoded));
        assert_eq!(decode_name(&encoded), None);
        // Neither a character nor an escape is split.
        for unit in ["重", "/", "🦀", "\u{7f}"] {
            for before in 0..13 {
                let encoded = encode_name(&format!("{}{}", "x".repeat(before), unit.repeat(300))).into_owned();
                let unit = encode_name(unit).into_owned();
                assert!(encoded.len() <= MAX && encoded.len() > MAX - unit.len());
                let kept = &encoded[before..encoded.len() - TAIL];
                assert_eq!(kept, unit.repeat(kept.len() / unit.len()));
            }
        }
        assert!(encode_name(&"/".repeat(65_536)).len() <= MAX);
    }

    fn name() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<String>(),
            "[./%~\u{0}-\u{20}\u{7f}-\u{a0}\u{200b}-\u{2070}a0A]{0,12}",
            "[a/重]{230,250}",
            (any::<char>(), 0usize..65_536).prop_map(|(char, times)| char.to_string().repeat(times)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn encoding_is_injective(a in name(), b in name()) {
            let encoded = encode_name(&a);
            prop_assert!(!encoded.is_empty() && encoded.len() <= MAX && encoded != "." && encoded != "..");
            prop_assert!(!encoded.contains(|char: char| char == '/' || char.is_ascii_control()));
            prop_assert_eq!(cut_name(&a), is_cut(&encoded).then(|| encoded.clone().into_owned()));
            if is_cut(&encoded) {
                prop_assert!(a.len() > MAX / 3);
            } else {
                let decoded = decode_name(&encoded);
                prop_assert_eq!(decoded.as_deref(), Some(&a[..]));
                // A trailing `%` is reserved for the tree, except in the encoding of the empty name.
                prop_assert!(!encoded.ends_with('%') || a.is_empty());
            }
            prop_assert_eq!(encoded == encode_name(&b), a == b);
        }

        #[test]
        fn decoded_names_encode_to_the_same_file_name(
            encoded in prop_oneof!["[./%~2FfEe0-9a\u{1}]{0,8}", "(%E2|%80|%A[0-9A-F]|%C2|%9B|é|\u{202e}|a){0,6}"],
        ) {
            if let Some(name) = decode_name(&encoded) {
                prop_assert_eq!(encode_name(&name), &encoded[..]);
            }
        }
    }
}
