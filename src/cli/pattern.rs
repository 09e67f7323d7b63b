//! Globs over names of tensors: knows that a name is no path, so that `*` goes across dots and slashes alike.

use glob::Pattern;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use weightfs::text::quote;

/// Reads a glob, for the parser of the command line.
pub fn parse(glob: &str) -> Result<Pattern, String> {
    // `**` goes across directories, of which there are none.
    let mut plain = glob.to_owned();
    while plain.contains("**") {
        plain = plain.replace("**", "*");
    }
    Pattern::new(&plain).map_err(|error| error.to_string())
}

/// Globs, and whether each has matched something by now.
pub struct Wanted<'a>(Vec<(&'a Pattern, AtomicBool)>);

impl<'a> Wanted<'a> {
    /// Those globs; where there are none, every name will do.
    pub fn new(patterns: &'a [Pattern]) -> Self {
        Self(patterns.iter().map(|pattern| (pattern, AtomicBool::new(false))).collect())
    }

    /// Whether a name matches one of them.
    pub fn matches(&self, name: &str) -> bool {
        let mut any = self.0.is_empty();
        for (pattern, matched) in &self.0 {
            // One that has matched something is not asked again where another one does.
            let has_matched = matched.load(Ordering::Relaxed);
            if !(any && has_matched) && pattern.matches(name) {
                any = true;
                if !has_matched {
                    matched.store(true, Ordering::Relaxed);
                }
            }
        }
        any
    }

    /// Those that have matched nothing.
    pub fn unmatched(&self) -> Vec<&str> {
        let unmatched = self.0.iter().filter(|(_, matched)| !matched.load(Ordering::Relaxed));
        unmatched.map(|(pattern, _)| pattern.as_str()).collect()
    }
}

/// What is said of a glob that asks in vain.
pub fn unmatched(source: &Path, pattern: &str) -> String {
    format!("{}: no tensor matches {}", source.display(), quote(pattern))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_names() {
        let cases: [(&str, &[&str], &[&str]); 12] = [
            ("*", &["", "a", "a.b", "a/b", ".", "..", ".a", "a\nb", "重み"], &[]),
            ("a", &["a"], &["", "ab", "ba", "A", "a.b", "x/a"]),
            ("*.weight", &["a.weight", ".weight", "a/b.c.weight", "a/.weight"], &["weight", "a.weight.x"]),
            ("*.", &["a.", ".", "..", "a/."], &["a"]),
            ("model.layers.?.w", &["model.layers.0.w", "model.layers.重.w"], &["model.layers.10.w"]),
            ("*[0-2].w", &["a.0.w", "a.12.w"], &["a.3.w"]),
            ("*[!0-2].w", &["a.3.w"], &["a.0.w"]),
            ("a[*]", &["a*"], &["ab"]),
            ("**/x", &["a/x", "/x", "a/b/x"], &["ax", "x"]),
            ("a**b", &["ab", "a.c/b"], &["a"]),
            ("a+(b)", &["a+(b)"], &["aab", "ab"]),
            (r"a\b", &[r"a\b"], &["ab"]),
        ];
        for (glob, yes, no) in cases {
            let pattern = parse(glob).unwrap();
            yes.iter().for_each(|name| assert!(pattern.matches(name), "{glob} {name:?}"));
            no.iter().for_each(|name| assert!(!pattern.matches(name), "{glob} {name:?}"));
        }
        assert!(parse("[a").is_err());
    }
}
