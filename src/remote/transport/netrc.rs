//! `.netrc`: user and password of a host, in the format of ftp(1) and curl.

use super::secret::SecretText;

/// User and password for `host`: of the first `machine` of this name that has one of them, or else of `default`.
pub(super) fn find_login(text: &str, host: &str) -> Option<(String, SecretText)> {
    let mut tokens = NetrcTokens { rest: text };
    // Whether the entry that is being read is for the host, and what it has so far.
    let mut wanted = false;
    let (mut user, mut password) = (None, None);
    while let Some(token) = tokens.next() {
        match token.as_str() {
            "machine" | "default" => {
                if wanted && (user.is_some() || password.is_some()) {
                    break;
                }
                wanted = token == "default" || tokens.next()?.eq_ignore_ascii_case(host);
                (user, password) = (None, None);
            }
            "login" => user = Some(tokens.next()?),
            "password" => password = Some(tokens.next()?),
            "account" => drop(tokens.next()),
            "macdef" => tokens.skip_macro(),
            _ => {}
        }
    }
    if !wanted || (user.is_none() && password.is_none()) {
        return None;
    }
    Some((user.unwrap_or_default(), SecretText::new(password.unwrap_or_default())))
}

/// The words of a netrc file: separated by white space, quoted with `"` and `\`, comments from `#` to the line's end.
struct NetrcTokens<'a> {
    rest: &'a str,
}

impl NetrcTokens<'_> {
    fn next(&mut self) -> Option<String> {
        self.rest = self.rest.trim_start();
        while self.rest.starts_with('#') {
            self.rest = self.rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
        }
        let Some(quoted) = self.rest.strip_prefix('"') else {
            let end = self.rest.find(char::is_whitespace).unwrap_or(self.rest.len());
            let (word, rest) = self.rest.split_at(end);
            self.rest = rest;
            return (!word.is_empty()).then(|| word.to_string());
        };
        let (mut word, mut chars) = (String::new(), quoted.chars());
        while let Some(c) = chars.next() {
            match c {
                '"' => break,
                '\\' => word.extend(chars.next()),
                c => word.push(c),
            }
        }
        self.rest = chars.as_str();
        Some(word)
    }

    /// A macro ends at an empty line.
    fn skip_macro(&mut self) {
        let end = ["\n\n", "\n\r\n"].iter().filter_map(|end| Some(self.rest.find(end)? + end.len())).min();
        self.rest = end.map_or("", |end| &self.rest[end..]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_login_of_the_host_is_used() {
        let text = "# comment machine b.example login no\n\
            machine a.example\n  login me\n  password \"p w\\\"#\"\n\
            macdef init\n  machine b.example login macro password macro\n\n\
            machine b.example login b password b#b account x\n\
            machine c.example login only\n\
            machine b.example login second password second\n\
            default login anonymous password guest\n";
        let login = |host| find_login(text, host).map(|(user, password)| (user, password.reveal().to_string()));
        let pair = |user: &str, password: &str| Some((user.to_string(), password.to_string()));
        assert_eq!(login("a.example"), pair("me", "p w\"#"));
        assert_eq!(login("B.EXAMPLE"), pair("b", "b#b"));
        assert_eq!(login("c.example"), pair("only", ""));
        assert_eq!(login("d.example"), pair("anonymous", "guest"));
        assert_eq!(find_login("machine a.example login x password y", "b.example"), None);
        assert_eq!(find_login("machine", "b.example"), None);
        assert_eq!(find_login("machine b.example", "b.example"), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "((machine|default|login|password|macdef|\"|\\\\|#|é|h)[ \\n]?){0,20}") {
            let _ = find_login(&text, "h");
        }
    }
}
