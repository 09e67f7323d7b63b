//! Names as file names: knows the one encoding that every view uses, and nothing of what is named.
//!
//! UTF-8 stays as it is, except that `/`, NUL, `%`, 0x01 to 0x1F and 0x7F are written `%XX`. The whole names `.` and `..`
//! have their dots escaped, the empty name is `%`. A name whose encoding is over [`MAX`] bytes is cut and ends in `%~`
//! and 16 digits of its SHA-256. No `%` stands in an encoding but as one of these, so that a `%` at the end is free to
//! tell a tensor from a directory of the same name (`a%` beside `a/`).

use sha2::{Digest, Sha256};
use std::borrow::Cow;

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
    let mut encoded = String::with_capacity(name.len().min(MAX) + 4);
    // Where the encoding is cut, should it prove too long.
    let mut cut = 0;
    for char in name.chars() {
        if encoded.len() <= MAX - TAIL {
            cut = encoded.len();
        }
        match u8::try_from(char) {
            Ok(byte) if is_escaped(byte) => push_escape(&mut encoded, byte),
            _ => encoded.push(char),
        }
        if encoded.len() > MAX {
            encoded.truncate(cut);
            push_tail(&mut encoded, name);
            break;
        }
    }
    Cow::Owned(encoded)
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
    let name = match encoded.find('%') {
        None => Cow::Borrowed(encoded),
        Some(first) => {
            let mut name = encoded[..first].to_owned();
            let mut rest = &encoded[first..];
            while let Some(at) = rest.find('%') {
                name.push_str(&rest[..at]);
                let byte = u8::from_str_radix(rest.get(at + 1..at + 3)?, 16).ok().filter(u8::is_ascii)?;
                name.push(byte.into());
                rest = &rest[at + 3..];
            }
            name.push_str(rest);
            Cow::Owned(name)
        }
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

/// `text` as a terminal may show it: on one line, and with no character in it that the terminal would obey.
pub fn printable(text: &str) -> Cow<'_, str> {
    // Besides control characters those that turn the direction of the text or have no width of their own.
    let obeyed = |char: char| {
        char.is_control()
            || matches!(char, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    if !text.contains(obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for char in text.chars() {
        if obeyed(char) { shown.extend(char.escape_default()) } else { shown.push(char) }
    }
    Cow::Owned(shown)
}

/// The file name of `name` where it had to be cut. No other file name looks as if it was: a `%` in one is followed by digits.
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

fn push_tail(encoded: &mut String, name: &str) {
    encoded.push_str("%~");
    for byte in &Sha256::digest(name.as_bytes())[..8] {
        encoded.push_str(&format!("{byte:02x}"));
    }
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
        ];
        for (name, encoded) in cases {
            assert_eq!(encode(name), encoded);
            assert_eq!(decode(encoded).as_deref(), Some(name));
        }
        for encoded in
            [".", "..", "a/b", "%2f", "%41", "%%", "a%", "%2", "%zz", "%é1", "%+1", "%~0123456789abcdef", "%80", "\n"]
        {
            assert_eq!(decode(encoded), None, "{encoded}");
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

    #[test]
    fn nothing_reaches_a_terminal_that_it_would_obey() {
        assert_eq!(printable("model.safetensors: 重み é"), "model.safetensors: 重み é");
        assert_eq!(
            printable("a\u{1b}[31m\nb\u{7f}\u{9b}\u{61c}\u{202e}"),
            r"a\u{1b}[31m\nb\u{7f}\u{9b}\u{61c}\u{202e}"
        );
    }

    fn name() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<String>(),
            "[./%~\u{0}-\u{20}\u{7f}a0A]{0,12}",
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
            prop_assert!(!encoded.bytes().any(|byte| matches!(byte, b'/' | 0..=0x1f | 0x7f)));
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
        fn a_file_name_is_decoded_only_to_what_encodes_to_it(encoded in "[./%~2FfEe0-9a\u{1}]{0,8}") {
            if let Some(name) = decode(&encoded) {
                prop_assert_eq!(encode(&name), &encoded[..]);
            }
        }
    }
}
