//! Unique names for the files of a folder: `name`, `name(1)`, `name(2)`.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

pub(super) struct UsedNames<N> {
    taken: HashSet<N>,
    /// The last number that was tried for each first name.
    numbers: HashMap<N, u32>,
}

impl<N: Clone + Eq + Hash> UsedNames<N> {
    pub fn new(taken: impl IntoIterator<Item = N>) -> Self {
        Self { taken: taken.into_iter().collect(), numbers: HashMap::new() }
    }

    pub fn is_taken(&self, name: &N) -> bool {
        self.taken.contains(name)
    }

    pub fn insert(&mut self, name: N) {
        self.taken.insert(name);
    }

    /// Takes the first unused name of `name(1)`, `name(2)` and so on.
    pub fn take(&mut self, mut name: impl FnMut(u32) -> N) -> N {
        let mut unused = name(1);
        if self.taken.contains(&unused) {
            // The search continues after the last number: a million names may have the same prefix.
            let number = self.numbers.entry(unused.clone()).or_insert(1);
            while self.taken.contains(&unused) {
                *number += 1;
                unused = name(*number);
            }
        }
        self.taken.insert(unused.clone());
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbered_in_linear_time() {
        let (mut names, mut tried) = (UsedNames::new(["a3".to_owned()]), 0u32);
        for expected in [1, 2].into_iter().chain(4..10_000) {
            let taken = names.take(|number| {
                tried += 1;
                format!("a{number}")
            });
            assert_eq!(taken, format!("a{expected}"));
        }
        assert!(tried <= 2 * 10_000, "{tried}");
    }
}
