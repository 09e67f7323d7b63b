//! Names as file names: knows the one encoding that every view uses, and nothing of what is named.
//!
//! UTF-8 stays as it is, except that the bytes of `/`, NUL, `%` and of ASCII control characters are written `%XX`. The
//! whole names `.` and `..` have their dots escaped, the empty name is `%`. A name whose encoding is over [`MAX`] bytes
//! is cut and ends in `%~` and 16 digits of its SHA-256. No `%` stands in an encoding but as one of these, so that a
//! `%` at the end is free to tell a tensor from a directory of the same name (`a%` beside `a/`).

use crate::text::{Hex, is_terminal_control};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The most bytes that an encoded name has; the rest of the 255 of a file name is for endings such as `.safetensors`.
pub const MAX: usize = 240;

/// What a cut name ends in: `%~` and 16 digits.
const TAIL: usize = 18;

/// The file name of `name`.
pub fn encode(name: &str) -> Cow<'_, str> {
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

/// `name`, that of a file elsewhere, if it can be shown as it is; else with escapes, those of [`encode`], of what a
/// terminal would obey and of what is no UTF-8.
pub fn harmless(name: &OsStr) -> Cow<'_, OsStr> {
    match name.to_str() {
        Some(text) if !text.contains(is_terminal_control) => Cow::Borrowed(name),
        _ => Cow::Owned(escape(name.as_bytes(), is_terminal_control).into()),
    }
}

fn escape(name: &[u8], obeyed: fn(char) -> bool) -> String {
    let mut encoded = String::with_capacity(name.len().min(MAX) + 12);
    // Where the encoding is cut, should it prove too long.
    let mut cut = 0;
    let units = name
        .utf8_chunks()
        .flat_map(|chunk| chunk.valid().chars().map(Ok).chain(chunk.invalid().iter().copied().map(Err)));
    for unit in units {
        if encoded.len() <= MAX - TAIL {
            cut = encoded.len();
        }
        match unit {
            Ok(char) if obeyed(char) || u8::try_from(char).is_ok_and(is_escaped) => {
                char.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| push_escape(&mut encoded, byte));
            }
            Ok(char) => encoded.push(char),
            Err(byte) => push_escape(&mut encoded, byte),
        }
        if encoded.len() > MAX {
            encoded.truncate(cut);
            push_tail(&mut encoded, name);
            break;
        }
    }
    encoded
}

/// The name that the file name `encoded` stands for; `None` where no name has it as its encoding, or where it was cut
/// (see [`is_cut`]).
pub fn decode(encoded: &str) -> Option<Cow<'_, str>> {
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
    // One spelling only: `%2f` and `%41` are no file names of ours, nor is `.`.
    (encode(&name) == encoded).then_some(name)
}

/// Whether `encoded` looks like the encoding of a name that was too long: who it was must be looked up.
pub fn is_cut(encoded: &str) -> bool {
    encoded.len() > TAIL
        && encoded.is_char_boundary(encoded.len() - TAIL)
        && encoded[encoded.len() - TAIL..].starts_with("%~")
}

/// The file name of `name` where it had to be cut. No other file name looks as if it was: a `%` in one is followed by
/// digits.
pub fn cut(name: &str) -> Option<String> {
    // No shorter name has an encoding that is too long.
    let encoded = (name.len() > MAX / 3).then(|| encode(name)).filter(|encoded| is_cut(encoded))?;
    Some(encoded.into_owned())
}

fn is_escaped(byte: u8) -> bool {
    matches!(byte, b'/' | b'%' | 0x00..=0x1f | 0x7f)
}

fn push_escape(encoded: &mut String, byte: u8) {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    encoded.extend(['%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

fn push_tail(encoded: &mut String, name: &[u8]) {
    encoded.push_str(&format!("%~{}", Hex(&Sha256::digest(name)[..8])));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn encodings_as_specified() {
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
            // Beyond ASCII nothing is escaped.
            ("\u{9b}2J\u{202e}\u{2028}\u{feff}", "\u{9b}2J\u{202e}\u{2028}\u{feff}"),
        ];
        for (name, encoded) in cases {
            assert_eq!(encode(name), encoded);
            assert_eq!(decode(encoded).as_deref(), Some(name));
        }
        let none = [
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
        for encoded in none {
            assert_eq!(decode(encoded), None, "{encoded}");
        }
    }

    #[test]
    fn names_of_other_files_stay_as_they_are_unless_they_do_harm() {
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
    fn long_names_are_cut_at_a_character() {
        let exact = "x".repeat(MAX);
        assert_eq!(encode(&exact), exact);
        assert_eq!(decode(&exact).unwrap(), exact);
        let long = "x".repeat(MAX + 1);
        let encoded = encode(&long);
        assert_eq!(encoded.len(), MAX);
        // sha256sum of 241 times x.
        assert_eq!(encoded, format!("{}%~{}", "x".repeat(MAX - TAIL), "7dbf05774ebc8b02"));
        assert!(is_cut(&encoded));
        assert_eq!(decode(&encoded), None);
        // Neither a character nor an escape is split.
        for unit in ["重", "/", "🦀", "\u{7f}"] {
            for before in 0..13 {
                let encoded = encode(&format!("{}{}", "x".repeat(before), unit.repeat(300))).into_owned();
                let unit = encode(unit).into_owned();
                assert!(encoded.len() <= MAX && encoded.len() > MAX - unit.len());
                let kept = &encoded[before..encoded.len() - TAIL];
                assert_eq!(kept, unit.repeat(kept.len() / unit.len()));
            }
        }
        assert!(encode(&"/".repeat(65_536)).len() <= MAX);
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
        fn every_name_has_a_file_name_of_its_own(a in name(), b in name()) {
            let encoded = encode(&a);
            prop_assert!(!encoded.is_empty() && encoded.len() <= MAX && encoded != "." && encoded != "..");
            prop_assert!(!encoded.contains(|char: char| char == '/' || char.is_ascii_control()));
            prop_assert_eq!(cut(&a), is_cut(&encoded).then(|| encoded.clone().into_owned()));
            if is_cut(&encoded) {
                prop_assert!(a.len() > MAX / 3);
            } else {
                let decoded = decode(&encoded);
                prop_assert_eq!(decoded.as_deref(), Some(&a[..]));
                // A `%` at the end is free for the tree, but for the empty name.
                prop_assert!(!encoded.ends_with('%') || a.is_empty());
            }
            prop_assert_eq!(encoded == encode(&b), a == b);
        }

        #[test]
        fn a_file_name_is_decoded_only_to_what_encodes_to_it(
            encoded in prop_oneof!["[./%~2FfEe0-9a\u{1}]{0,8}", "(%E2|%80|%A[0-9A-F]|%C2|%9B|é|\u{202e}|a){0,6}"],
        ) {
            if let Some(name) = decode(&encoded) {
                prop_assert_eq!(encode(&name), &encoded[..]);
            }
        }
    }
}
