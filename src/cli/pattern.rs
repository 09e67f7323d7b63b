//! Glob patterns for tensor names. A name is not a path, so `*` matches dots and slashes too.

use glob::Pattern;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use weightfs::format;
use weightfs::text::quote;

pub fn parse_pattern(glob: &str) -> Result<Pattern, String> {
    // The glob crate accepts `**` only as a whole path component, where it stands for any directories.
    let mut plain = glob.to_owned();
    while plain.contains("**") {
        plain = plain.replace("**", "*");
    }
    Pattern::new(&plain).map_err(|error| error.to_string())
}

/// Glob patterns, each with whether it has matched a name so far.
pub struct WantedPatterns<'a>(Vec<(&'a Pattern, AtomicBool)>);

impl<'a> WantedPatterns<'a> {
    /// Selects the names that match one of `patterns`, or every name if there are no patterns.
    pub fn new(patterns: &'a [Pattern]) -> Self {
        Self(patterns.iter().map(|pattern| (pattern, AtomicBool::new(false))).collect())
    }

    /// Whether there are no patterns, so that every name is selected.
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `name` is selected.
    pub fn matches(&self, name: &str) -> bool {
        let mut any = self.is_all();
        for (pattern, matched) in &self.0 {
            // A pattern that has matched before need not be tried if another one matches.
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

    /// The patterns that have matched nothing.
    pub fn unmatched(&self) -> Vec<&str> {
        let unmatched = self.0.iter().filter(|(_, matched)| !matched.load(Ordering::Relaxed));
        unmatched.map(|(pattern, _)| pattern.as_str()).collect()
    }
}

/// The error for a pattern that has matched nothing in `sources`.
pub fn unmatched<S: fmt::Display>(sources: &[S], pattern: &str) -> String {
    let first = sources.first().map(S::to_string).unwrap_or_default();
    let more = if sources.len() > 1 { format!(" and {} more", sources.len() - 1) } else { String::new() };
    let is_file = format::suffixes().any(|suffix| pattern.ends_with(suffix));
    let is_part = !pattern.is_empty() && !pattern.contains(['*', '?', '[', '/']) && !is_file;
    let hint =
        if is_part { format!("; for a part of a name, use {}", quote(&format!("*{pattern}*"))) } else { String::new() };
    format!("{first}{more}: no tensor matches {}{hint}", quote(pattern))
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
            let pattern = parse_pattern(glob).unwrap();
            yes.iter().for_each(|name| assert!(pattern.matches(name), "{glob} {name:?}"));
            no.iter().for_each(|name| assert!(!pattern.matches(name), "{glob} {name:?}"));
        }
        assert!(parse_pattern("[a").is_err());
    }
}
