//! Python literals: the dict in the header of an array, and the dtypes in it. Nothing is evaluated.

use std::fmt::Write;

/// Maximum depth of containers. A dtype of nested records has one or two levels for each.
const DEPTH_MAX: usize = 32;

/// Maximum number of keys of a dict. Headers have three.
const KEYS_MAX: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PythonLiteral {
    Text(String),
    /// An integer that is not negative.
    Integer(u64),
    Bool(bool),
    None,
    Tuple(Vec<Self>),
    List(Vec<Self>),
    /// A dict with strings as keys, in the order of the text.
    Dict(Vec<(String, Self)>),
}

impl PythonLiteral {
    /// Reads a text that is one literal. Memory follows the length of the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parser = LiteralParser { text, at: 0 };
        let literal = parser.literal(DEPTH_MAX)?;
        parser.skip_space();
        if parser.at < text.len() {
            return Err(parser.fault("text after the end"));
        }
        Ok(literal)
    }

    /// The numbers of a tuple of numbers.
    pub fn numbers(&self) -> Option<Vec<u64>> {
        let Self::Tuple(items) = self else { return None };
        items.iter().map(|item| if let Self::Integer(number) = item { Some(*number) } else { None }).collect()
    }

    /// Appends the literal as Python would print it, except that strings only escape quotes and backslashes.
    pub fn print(&self, out: &mut String) {
        // Writing to a string cannot fail.
        let _ = match self {
            Self::Text(text) => write!(out, "'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")),
            Self::Integer(number) => write!(out, "{number}"),
            Self::Bool(true) => write!(out, "True"),
            Self::Bool(false) => write!(out, "False"),
            Self::None => write!(out, "None"),
            Self::Tuple(items) => {
                print_items("(", items, out);
                write!(out, "{}", if items.len() == 1 { ",)" } else { ")" })
            }
            Self::List(items) => {
                print_items("[", items, out);
                write!(out, "]")
            }
            Self::Dict(pairs) => {
                for (at, (key, value)) in pairs.iter().enumerate() {
                    out.push_str(if at == 0 { "{" } else { ", " });
                    Self::Text(key.clone()).print(out);
                    out.push_str(": ");
                    value.print(out);
                }
                write!(out, "{}", if pairs.is_empty() { "{}" } else { "}" })
            }
        };
    }
}

fn print_items(bracket: &str, items: &[PythonLiteral], out: &mut String) {
    out.push_str(bracket);
    for (at, item) in items.iter().enumerate() {
        out.push_str(if at == 0 { "" } else { ", " });
        item.print(out);
    }
}

struct LiteralParser<'t> {
    text: &'t str,
    at: usize,
}

impl LiteralParser<'_> {
    fn fault(&self, reason: &str) -> String {
        format!("{reason} at character {}", self.at)
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_ascii_start().len();
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn literal(&mut self, depth: usize) -> Result<PythonLiteral, String> {
        self.skip_space();
        let Some(inner) = depth.checked_sub(1) else { return Err(self.fault("nested too deeply")) };
        for (word, literal) in
            [("True", PythonLiteral::Bool(true)), ("False", PythonLiteral::Bool(false)), ("None", PythonLiteral::None)]
        {
            if self.take(word) {
                return Ok(literal);
            }
        }
        match self.rest().bytes().next() {
            Some(b'\'' | b'"') => self.string().map(PythonLiteral::Text),
            // Python 2 wrote such strings.
            Some(b'u') if self.rest().starts_with("u'") || self.rest().starts_with("u\"") => {
                self.at += 1;
                self.string().map(PythonLiteral::Text)
            }
            Some(b'0'..=b'9') => self.integer(),
            Some(b'(') => {
                self.at += 1;
                let (mut items, has_comma) = self.items(")", inner)?;
                // A single value in parentheses is that value.
                match items.pop() {
                    Some(only) if items.is_empty() && !has_comma => Ok(only),
                    last => Ok(PythonLiteral::Tuple(items.into_iter().chain(last).collect())),
                }
            }
            Some(b'[') => {
                self.at += 1;
                Ok(PythonLiteral::List(self.items("]", inner)?.0))
            }
            Some(b'{') => {
                self.at += 1;
                self.pairs(inner)
            }
            Some(_) => Err(self.fault("neither a string, a number, a tuple, a list nor a dict")),
            None => Err(self.fault("the text ends")),
        }
    }

    /// The literals up to `end`, and whether a comma follows the last one.
    fn items(&mut self, end: &str, depth: usize) -> Result<(Vec<PythonLiteral>, bool), String> {
        let (mut items, mut has_comma) = (Vec::new(), false);
        loop {
            self.skip_space();
            if self.take(end) {
                return Ok((items, has_comma));
            }
            if !items.is_empty() && !has_comma {
                return Err(self.fault("a comma is missing"));
            }
            items.push(self.literal(depth)?);
            self.skip_space();
            has_comma = self.take(",");
        }
    }

    fn pairs(&mut self, depth: usize) -> Result<PythonLiteral, String> {
        let (mut pairs, mut has_comma): (Vec<(String, PythonLiteral)>, bool) = (Vec::new(), true);
        loop {
            self.skip_space();
            if self.take("}") {
                return Ok(PythonLiteral::Dict(pairs));
            }
            if !has_comma {
                return Err(self.fault("a comma is missing"));
            }
            if pairs.len() == KEYS_MAX {
                return Err(self.fault("a dict of too many keys"));
            }
            let PythonLiteral::Text(key) = self.literal(depth)? else {
                return Err(self.fault("a key that is not a string"));
            };
            self.skip_space();
            if !self.take(":") {
                return Err(self.fault("a colon is missing"));
            }
            let value = self.literal(depth)?;
            // The last value of a repeated key counts, as in Python.
            pairs.retain(|(other, _)| *other != key);
            pairs.push((key, value));
            self.skip_space();
            has_comma = self.take(",");
        }
    }

    fn integer(&mut self) -> Result<PythonLiteral, String> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        let number = self.rest()[..digits].parse().map_err(|_| self.fault("a number of more than 64 bits"))?;
        self.at += digits;
        // Python 2 wrote `3L`.
        self.take("L");
        Ok(PythonLiteral::Integer(number))
    }

    fn string(&mut self) -> Result<String, String> {
        let mut text = String::new();
        let mut chars = self.rest().char_indices();
        let quote = chars.next().map_or('\'', |(_, quote)| quote);
        while let Some((_, char)) = chars.next() {
            if char == quote {
                let left = chars.as_str().len();
                self.at = self.text.len() - left;
                return Ok(text);
            }
            if char != '\\' {
                text.push(char);
                continue;
            }
            match chars.next().map(|(_, char)| char) {
                Some(char @ ('\\' | '\'' | '"')) => text.push(char),
                Some('n') => text.push('\n'),
                Some('r') => text.push('\r'),
                Some('t') => text.push('\t'),
                Some(kind @ ('x' | 'u' | 'U')) => {
                    let count = match kind {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    let digits: String = chars.by_ref().take(count).map(|(_, digit)| digit).collect();
                    let code = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == count);
                    let Some(char) = code.and_then(char::from_u32) else {
                        return Err(self.fault("a string with a wrong escape"));
                    };
                    text.push(char);
                }
                _ => return Err(self.fault("a string with a wrong escape")),
            }
        }
        Err(self.fault("a string that does not end"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The literal, or the reason why it is none.
    fn printed(text: &str) -> Result<String, String> {
        let mut out = String::new();
        let parsed = PythonLiteral::parse(text);
        parsed.map_err(|fault| fault.rsplit_once(" at character ").unwrap().0.to_owned())?.print(&mut out);
        Ok(out)
    }

    #[test]
    fn literals_are_read_and_printed_as_in_python() {
        for text in [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}",
            "[('a', '<f4'), (('title', 'b'), '|u1', (2,)), ('', '|V4')]",
            "((1,), (), [], {}, None, True)",
            "'it\\'s \\\\ é'",
        ] {
            assert_eq!(printed(text).as_deref(), Ok(text));
        }
        assert_eq!(printed(" (3L, 4L) ").as_deref(), Ok("(3, 4)"));
        assert_eq!(printed("{u'a': (5), \"b\": '\\x41\\u00e9\\t', 'a': 6,}\n").as_deref(), Ok("{'b': 'Aé\t', 'a': 6}"));
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, reason) in [
            ("", "the text ends"),
            ("(1, 2", "a comma is missing"),
            ("(1,", "the text ends"),
            ("(1 2)", "a comma is missing"),
            ("{'a' 1}", "a colon is missing"),
            ("{1: 1}", "a key that is not a string"),
            ("{'a': 1 'b': 2}", "a comma is missing"),
            ("'a", "a string that does not end"),
            ("'\\x4'", "a string with a wrong escape"),
            ("'\\ud800'", "a string with a wrong escape"),
            ("-1", "neither a string, a number, a tuple, a list nor a dict"),
            ("__import__('os')", "neither a string, a number, a tuple, a list nor a dict"),
            ("18446744073709551616", "a number of more than 64 bits"),
            ("1 2", "text after the end"),
            ("(,)", "neither a string, a number, a tuple, a list nor a dict"),
        ] {
            assert_eq!(printed(text).as_deref(), Err(&reason.to_owned()), "{text}");
        }
        let keys: String = (0..=KEYS_MAX).map(|key| format!("'{key}': 0, ")).collect();
        assert_eq!(printed(&format!("{{{keys}}}")), Err("a dict of too many keys".into()));
        assert_eq!(printed(&"(".repeat(1 << 20)), Err("nested too deeply".into()));
        let deep = [&"[".repeat(DEPTH_MAX)[..], &"]".repeat(DEPTH_MAX)].concat();
        assert_eq!(printed(&deep).as_deref(), Ok(&deep[..]));
    }
}
