//! Which tensors a command is about: knows the globs that ask for them, and which of these have asked in vain.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use weightfs::format::quote;

/// Globs, and whether each has matched something by now.
pub struct Wanted<'a>(Vec<(&'a glob::Pattern, AtomicBool)>);

impl<'a> Wanted<'a> {
    /// Those globs; where there are none, every name will do.
    pub fn new(patterns: &'a [glob::Pattern]) -> Self {
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
