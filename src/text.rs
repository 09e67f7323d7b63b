//! Display of untrusted text: quoted, on one line, and without terminal control characters. Tensor names, metadata and
//! file names are untrusted, and reach terminals, logs and JSON.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether a terminal would act on `char` instead of showing it: control characters, line and paragraph separators, and
/// bidirectional formatting characters.
pub fn is_terminal_control(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether `char` is invisible, so that different names would look the same: Unicode's `Default_Ignorable_Code_Point`
/// and the interlinear annotation characters.
fn is_hidden(char: char) -> bool {
    matches!(char, '\u{ad}' | '\u{34f}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}

fn is_escaped(char: char) -> bool {
    is_terminal_control(char) || is_hidden(char)
}

/// `text` for a terminal: on one line, with control characters and invisible characters escaped.
pub fn printable(text: &str) -> Cow<'_, str> {
    // Most text is plain ASCII. A loop without an early exit is vectorised.
    let is_plain = text.bytes().fold(true, |plain, byte| plain & matches!(byte, b' '..=b'~'));
    if is_plain || !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for char in text.chars() {
        if is_escaped(char) { shown.extend(char.escape_default()) } else { shown.push(char) }
    }
    Cow::Owned(shown)
}

/// Escapes the characters in strings of `json` for which `is_escaped` returns true, as `\uXXXX`.
pub fn escape_json(json: &str, is_escaped: impl Fn(char) -> bool) -> String {
    let mut text = String::with_capacity(json.len());
    for char in json.chars() {
        // Line feeds occur only between strings.
        if char != '\n' && is_escaped(char) {
            text.extend(char.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            text.push(char);
        }
    }
    text
}

/// Approximate maximum length of a message in bytes: two paths of maximum length, and text about them.
const MESSAGE_MAX: usize = 10_000;

/// `text` as one line of a log: printable and of limited length.
pub fn message(text: &str) -> String {
    shorten(&printable(text), MESSAGE_MAX).into_owned()
}

/// Cuts the middle of `text` if it has more than `most` bytes. A message begins with its file and ends with its reason,
/// so both ends are kept.
pub fn shorten(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let [head, tail] = [most / 2, text.len() - most / 2]
        .map(|most| (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
    Cow::Owned(format!("{}[... {} bytes ...]{}", &text[..head], tail - head, &text[tail..]))
}

/// Maximum number of characters of a quoted name, counted after escaping.
const QUOTED_MAX: usize = 120;

/// A name for display: in quotes, [`printable`], and of limited length.
pub fn quote(name: &str) -> String {
    let (mut end, mut shown) = (0, 0);
    for char in name.chars() {
        shown += char.escape_debug().count();
        if shown > QUOTED_MAX {
            break;
        }
        end += char.len_utf8();
    }
    let quoted = match name.len() - end {
        0 => format!("{name:?}"),
        _ => format!("{:?}... ({} bytes)", &name[..end], name.len()),
    };
    // Rust does not escape every invisible character, such as U+FFA0.
    printable(&quoted).into_owned()
}

/// `path` as a word of a shell command: quoted if necessary, and with `./` before a leading dash, which would begin an
/// option. Control characters and bytes that are not UTF-8 are written in the `$'...'` quotes of bash and zsh.
pub fn shell_word(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    quoted_word(if bytes.starts_with(b"-") { "./" } else { "" }, bytes)
}

/// `text` as a word of a shell command, as [`shell_word`] without the `./`.
pub fn shell_text(text: &str) -> String {
    quoted_word("", text.as_bytes())
}

/// `here`, which needs no quotes, and `bytes` as a word of a shell command.
fn quoted_word(here: &str, bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text)
            if !text.is_empty() && text.chars().all(|char| char.is_alphanumeric() || "/._-+,:@%".contains(char)) =>
        {
            format!("{here}{text}")
        }
        Ok(text) if printable(text) == text => format!("'{here}{}'", text.replace('\'', r"'\''")),
        _ => {
            let mut word = format!("$'{here}");
            for chunk in bytes.utf8_chunks() {
                for char in chunk.valid().chars() {
                    match char {
                        '\'' | '\\' => word.extend(['\\', char]),
                        _ if is_escaped(char) => push_hex(&mut word, char.encode_utf8(&mut [0; 4]).as_bytes()),
                        _ => word.push(char),
                    }
                }
                push_hex(&mut word, chunk.invalid());
            }
            word + "'"
        }
    }
}

fn push_hex(word: &mut String, bytes: &[u8]) {
    bytes.iter().for_each(|byte| word.push_str(&format!("\\x{byte:02x}")));
}

/// The first of `count` things, and how many follow: `1, 2, 3 and 5 more`.
pub fn first_of(things: impl IntoIterator<Item = String>, count: usize) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = things.into_iter().take(SHOWN).collect();
    let shown = shown.join(", ");
    match count.saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// A shape in brackets, such as `[2, 3]`. Cut after 16 dimensions, which is more than real shapes have.
pub fn brackets(shape: &[u64]) -> String {
    const SHOWN: usize = 16;
    let dims: Vec<String> = shape.iter().take(SHOWN).map(u64::to_string).collect();
    let more = if shape.len() > SHOWN { format!(", ... {} dimensions", shape.len()) } else { String::new() };
    format!("[{}{more}]", dims.join(", "))
}

/// Writes `string` as a JSON string in which [`is_terminal_control`] characters are escaped.
pub fn write_json_string(string: &str, out: &mut dyn Write) -> io::Result<()> {
    // Most names need no escapes.
    if string.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\') {
        out.write_all(b"\"")?;
        out.write_all(string.as_bytes())?;
        return out.write_all(b"\"");
    }
    out.write_all(escape_json(&serde_json::to_string(string)?, is_terminal_control).as_bytes())
}

/// Bytes as lower-case hexadecimal digits.
pub struct HexDigits<'b>(pub &'b [u8]);

impl fmt::Display for HexDigits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::process::Command;

    #[test]
    fn escaped_json_parses_to_the_same_value() {
        let text: String =
            ('\0'..=char::MAX).step_by(7).chain(['"', '\\', '\n', '\u{9b}', '\u{202e}', '\u{7f}']).collect();
        let json = serde_json::to_string_pretty(&[&text, "x"]).unwrap();
        let (harmless, ascii) = (escape_json(&json, is_terminal_control), escape_json(&json, |char| !char.is_ascii()));
        assert!(
            !harmless.contains(|char| char != '\n' && is_terminal_control(char))
                && ascii.is_ascii()
                && ascii.len() > harmless.len()
        );
        for escaped in [harmless, ascii] {
            assert_eq!(serde_json::from_str::<[String; 2]>(&escaped).unwrap(), [&text, "x"]);
        }
    }

    #[test]
    fn messages_are_one_line_of_limited_length() {
        assert_eq!(message("a: b"), "a: b");
        assert_eq!(shorten("äöü", 6), "äöü");
        assert_eq!(shorten("äöüäöü", 6), "ä[... 6 bytes ...]öü");
        let long = message(&format!("begin {}\n{}end", "\u{202e}".repeat(10_000), "重".repeat(100_000)));
        assert!(
            long.len() < MESSAGE_MAX + 100 && long.starts_with("begin \\u{202e}") && long.ends_with("重end"),
            "{long}"
        );
    }

    #[test]
    fn printable_escapes_control_and_invisible_characters() {
        assert_eq!(printable("model.safetensors: 重み é"), "model.safetensors: 重み é");
        assert_eq!(printable("a\u{1b}[31m\nb\u{7f}\u{9b}\u{202e}"), r"a\u{1b}[31m\nb\u{7f}\u{9b}\u{202e}");
        let hidden = ["\u{61c}", "\u{ad}", "\u{200b}", "\u{2066}", "\u{feff}", "\u{fff9}", "\u{e0041}"];
        let hidden = hidden.into_iter().chain([
            "\u{34f}",
            "\u{1160}",
            "\u{180b}",
            "\u{3164}",
            "\u{fe0f}",
            "\u{ffa0}",
            "\u{e0100}",
        ]);
        assert!(hidden.into_iter().all(|hidden| printable(hidden).is_ascii()));
    }

    #[test]
    fn shell_reads_a_quoted_word_as_the_path() {
        let paths: [&[u8]; 12] = [
            b"model",
            b"a b",
            b"it's",
            b"-rf",
            b"--",
            b"$HOME `x` \"y\" \\ *?[",
            b"a\nb\x1b[31m'\\",
            b"\xff-\xfe",
            b"~",
            b"=ls",
            "重み\u{202e}é".as_bytes(),
            b"- '\t",
        ];
        for path in paths {
            let word = shell_word(Path::new(OsStr::from_bytes(path)));
            assert_eq!(printable(&word), word);
            let output = Command::new("bash").args(["-c", &format!("printf %s {word}")]).output().unwrap();
            let read = output.stdout.strip_prefix(b"./").unwrap_or(&output.stdout);
            assert_eq!(read, path, "{word}");
            assert_eq!(output.stdout.starts_with(b"./"), path.starts_with(b"-"), "{word}");
        }
        assert_eq!(
            ["model/a-1.b", "", "-x", "a b"].map(|path| shell_word(Path::new(path))),
            ["model/a-1.b", "''", "./-x", "'a b'"]
        );
    }

    #[test]
    fn quoted_names_have_limited_length() {
        for (unit, shown) in [("x", 120), ("\n", 60), ("\u{202e}", 15), ("重", 120), ("\u{7f}", 20)] {
            let cut = format!("{:?}... ({} bytes)", unit.repeat(shown), unit.len() * 1000);
            assert_eq!(quote(&unit.repeat(1000)), cut);
            assert_eq!(quote(&unit.repeat(shown)), format!("{:?}", unit.repeat(shown)));
        }
    }

    #[test]
    fn json_strings_escape_terminal_control_characters() {
        let written = |string: &str| {
            let mut json = Vec::new();
            write_json_string(string, &mut json).unwrap();
            String::from_utf8(json).unwrap()
        };
        for string in ["", "a/b", "重み é\u{200d}", "\"\\"] {
            assert_eq!(written(string), serde_json::to_string(string).unwrap());
        }
        assert_eq!(
            written("\u{1b}[31m\0\n\u{7f}é\u{9b}\u{202e}\u{2028}x"),
            r#""\u001b[31m\u0000\n\u007fé\u009b\u202e\u2028x""#
        );
        let controls: String = ('\0'..=char::MAX).filter(|char| is_terminal_control(*char)).collect();
        assert!(controls.len() > 64 && !written(&controls).contains(is_terminal_control));
        assert_eq!(serde_json::from_str::<String>(&written(&controls)).unwrap(), controls);
    }
}
