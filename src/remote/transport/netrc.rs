//! `.netrc`: user and password of a host, in the format of ftp(1) and curl.

use super::secret::SecretText;

/// A login of a netrc file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NetrcLogin {
    pub(super) user: String,
    pub(super) password: SecretText,
}

/// The login for `host`: the first `machine` of this name that has a login or a password, or else `default`.
pub(super) fn find_login(text: &str, host: &str) -> Option<NetrcLogin> {
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
    Some(NetrcLogin { user: user.unwrap_or_default(), password: SecretText::new(password.unwrap_or_default()) })
}

/// The words of a netrc file: separated by white space, quoted with `"` and `\`, comments from `#` to the end of the
/// line.
struct NetrcTokens<'a> {
    rest: &'a str,
}

impl NetrcTokens<'_> {
    fn next(&mut self) -> Option<String> {
        loop {
            self.rest = self.rest.trim_start();
            if !self.rest.starts_with('#') {
                break;
            }
            self.rest = self.rest.split_once('\n').map_or("", |(_, rest)| rest);
        }
        let quoted = self.rest.starts_with('"');
        let mut chars = self.rest.char_indices();
        if quoted {
            chars.next();
        }
        let mut word = String::new();
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' if quoted => {
                    end = at + 1;
                    break;
                }
                '\\' if quoted => word.extend(chars.next().map(|(_, c)| c)),
                c if c.is_whitespace() && !quoted => {
                    end = at;
                    break;
                }
                c => word.push(c),
            }
        }
        let empty = end == 0 || self.rest.is_empty();
        self.rest = &self.rest[end..];
        (!empty).then_some(word)
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
        let login = |host| find_login(text, host).map(|login| (login.user, login.password.reveal().to_string()));
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
