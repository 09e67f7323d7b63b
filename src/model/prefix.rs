//! A change of the prefix of tensor names.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::HashSet;

/// A change of names. Those that begin with `strip` begin with `prepend` instead; others stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PrefixChange {
    pub strip: String,
    pub prepend: String,
}

impl PrefixChange {
    pub fn is_empty(&self) -> bool {
        self.strip.is_empty() && self.prepend.is_empty()
    }

    /// Whether a name begins with the prefix, and does not consist of it.
    pub fn applies_to(&self, name: &str) -> bool {
        name.len() > self.strip.len() && name.starts_with(&self.strip)
    }

    pub fn apply<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match self.applies_to(name) {
            true if self.prepend.is_empty() => Cow::Borrowed(&name[self.strip.len()..]),
            true => Cow::Owned([&self.prepend, &name[self.strip.len()..]].concat()),
            false => Cow::Borrowed(name),
        }
    }

    /// Two of these names, which are all different, that the change makes the same.
    pub fn clash<'n>(&self, names: impl Iterator<Item = &'n str> + Clone) -> Option<[&'n str; 2]> {
        // Two changed names stay different.
        let kept: HashSet<&str> = names.clone().filter(|name| !self.applies_to(name)).collect();
        let mut changed = names.filter(|name| self.applies_to(name));
        changed.find_map(|name| kept.get(&*self.apply(name)).map(|other| [name, *other]))
    }

    /// Whether components of the names are only removed or only added, and none exchanged for others.
    pub(super) fn is_of_components(&self) -> bool {
        is_subsequence(&self.strip, &self.prepend) || is_subsequence(&self.prepend, &self.strip)
    }
}

/// Whether all components of `part` are components of `whole`, in this order.
fn is_subsequence(part: &str, whole: &str) -> bool {
    let mut whole = whole.split_terminator('.');
    part.split_terminator('.').all(|component| whole.any(|other| other == component))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(strip: &str, prepend: &str) -> PrefixChange {
        PrefixChange { strip: strip.into(), prepend: prepend.into() }
    }

    #[test]
    fn names_that_begin_with_the_prefix_are_changed() {
        let cases = [
            (change("module.", ""), "module.a.w", "a.w"),
            (change("module.", ""), "a.module.w", "a.module.w"),
            (change("module.", ""), "module.", "module."),
            (change("", "model."), "a.w", "model.a.w"),
            (change("model._orig_mod.", "model."), "model._orig_mod.a.w", "model.a.w"),
            (change("model._orig_mod.", "model."), "lm_head.w", "lm_head.w"),
            (PrefixChange::default(), "a.w", "a.w"),
        ];
        for (change, name, expected) in cases {
            assert_eq!(change.apply(name), expected, "{change:?} {name}");
        }
    }

    #[test]
    fn names_that_become_the_same_are_found() {
        let names = ["m.a", "b", "m.b", "c"];
        assert_eq!(change("m.", "").clash(names.into_iter()), Some(["m.b", "b"]));
        assert_eq!(change("m.", "n.").clash(names.into_iter()), None);
        assert_eq!(change("", "m.").clash(names.into_iter()), None);
    }

    #[test]
    fn components_are_removed_or_added_and_not_exchanged() {
        for (strip, prepend, is) in [
            ("model._orig_mod.", "model.", true),
            ("model.", "model._orig_mod.", true),
            ("module.", "", true),
            ("layers.0.", "layers.11.", false),
        ] {
            assert_eq!(change(strip, prepend).is_of_components(), is, "{strip} {prepend}");
        }
    }
}
