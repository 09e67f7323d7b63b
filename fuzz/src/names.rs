//! Target `names`: file names are those of a simple encoder and decode to the same name unless they were cut; printed
//! text has no terminal control characters.

use super::headers::once_in;
use arbitrary::{Result, Unstructured};
use sha2::{Digest, Sha256};
use weightfs::name::{MAX, cut_name, decode_name, encode_name, is_cut};
use weightfs::text::printable;
use weightfs::text::quote;

pub fn run(bytes: &[u8]) -> bool {
    check(&mut Unstructured::new(bytes)).is_ok()
}

const UNITS: [&str; 22] = [
    "a",
    ".",
    "..",
    "/",
    "%",
    "%2F",
    "%~",
    "~",
    "0123456789abcdef",
    "\0",
    "\n",
    "\x1b[31m",
    "\x7f",
    "\u{80}",
    "\u{9b}",
    "é",
    "重",
    "🦀",
    "\u{61c}",
    "\u{202e}",
    "\u{2066}",
    "\u{feff}",
];

/// A name of a few units, some of which are repeated.
fn name(bytes: &mut Unstructured) -> Result<String> {
    let mut name = String::new();
    for _ in 0..bytes.int_in_range(0..=5)? {
        let unit =
            if once_in(4, bytes)? { bytes.arbitrary::<char>()?.into() } else { bytes.choose(&UNITS)?.to_string() };
        let times = if once_in(4, bytes)? { bytes.int_in_range(0..=300)? } else { 1 };
        name.push_str(&unit.repeat(times));
    }
    Ok(name)
}

/// The file name of `name`, by a simple encoder.
fn expected(name: &str) -> String {
    let dots = matches!(name, "." | "..");
    let unit = |char: char| match char {
        '/' | '%' | '\0'..='\x1f' | '\x7f' => format!("%{:02X}", char as u32),
        '.' if dots => "%2E".into(),
        _ => char.into(),
    };
    let units: Vec<String> = name.chars().map(unit).collect();
    let whole = units.concat();
    match whole.len() {
        0 => return "%".into(),
        1..=240 => return whole,
        _ => {}
    }
    let mut kept = String::new();
    for unit in units {
        if kept.len() + unit.len() > 240 - 18 {
            break;
        }
        kept += &unit;
    }
    let hash: String = Sha256::digest(name).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{kept}%~{}", &hash[..16])
}

fn check(bytes: &mut Unstructured) -> Result<()> {
    let (name, other) = (name(bytes)?, self::name(bytes)?);
    let other = if once_in(4, bytes)? { encode_name(&name).into_owned() } else { other };
    let encoded = encode_name(&name);
    assert_eq!(encoded, expected(&name));
    assert!(encoded.len() <= MAX && !encoded.contains(['/', '\0']) && !matches!(&encoded[..], "" | "." | ".."));
    assert_eq!(encoded == encode_name(&other), name == other, "{name:?} and {other:?}");
    assert_eq!(cut_name(&name), is_cut(&encoded).then(|| encoded.clone().into_owned()));
    assert!(is_cut(&encoded) || decode_name(&encoded).as_deref() == Some(&name[..]));
    // `other` may be any file name. If it decodes, it is the encoding of the result.
    if let Some(name) = decode_name(&other) {
        assert_eq!(encode_name(&name), other);
    }
    let shown = printable(&name);
    assert!(!shown.contains(is_terminal_control), "{shown:?}");
    let quoted = quote(&name);
    assert_eq!(printable(&quoted), quoted);
    assert!(quoted.len() < 2000);
    Ok(())
}

/// Whether a terminal acts on it: control characters, line and paragraph separators, and Unicode's `Bidi_Control`.
fn is_terminal_control(char: char) -> bool {
    let directs =
        matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    char.is_control() || matches!(char, '\u{2028}' | '\u{2029}') || directs
}
