//! Names in a listing that cannot be the paths of files.

use std::fmt;

/// The most names that are shown, and the most characters of each.
const SHOWN: (usize, usize) = (20, 120);

/// The number of names, and the first of them as text for a message.
#[derive(Clone, Debug, Default)]
pub(super) struct SkippedNames {
    first: Vec<String>,
    count: usize,
}

impl SkippedNames {
    pub fn add(&mut self, name: &str) {
        self.count += 1;
        if self.first.len() < SHOWN.0 {
            let is_long = name.chars().nth(SHOWN.1).is_some();
            let start: String = name.chars().take(SHOWN.1).collect();
            self.first.push(format!("{start:?}{}", if is_long { "..." } else { "" }));
        }
    }

    pub fn append(&mut self, other: &SkippedNames) {
        self.count += other.count;
        let free = SHOWN.0 - self.first.len();
        self.first.extend(other.first.iter().take(free).cloned());
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Warns once of all of them, if there are any. `what` says in the plural what they are.
    pub fn warn(&self, place: &dyn fmt::Display, what: &str) {
        if !self.is_empty() {
            log::warn!("{place}: {what} are not shown {self}");
        }
    }
}

/// `(2 in all): "a//b", "c\td"`
impl fmt::Display for SkippedNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} in all): {}", self.count, self.first.join(", "))?;
        if self.count > self.first.len() { f.write_str(", ...") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_bounded_and_escaped() {
        let mut skipped = SkippedNames::default();
        (0..15).for_each(|_| skipped.add("a//\n"));
        assert!(skipped.to_string().starts_with(r#"(15 in all): "a//\n", "#), "{skipped}");
        let page = skipped.clone();
        skipped.append(&page);
        skipped.add(&"x".repeat(5000));
        let text = skipped.to_string();
        assert!(text.starts_with("(31 in all): ") && text.ends_with("\", ...") && text.len() < 4096, "{text}");
    }
}
