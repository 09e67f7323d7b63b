//! Keys and columns of a dataset in key-value mode: what separates them in the names of tensors.

use std::collections::HashSet;

/// What is looked for, in this order. The first is what the writer uses unless told otherwise. The manifest does not
/// contain it.
const SEPARATORS: [&str; 12] = ["__", "::", "--", "//", "/", ":", "|", "#", "@", ".", "-", "_"];

/// What separates key and column in all names. Each key must have the same columns, and nothing may be empty; otherwise
/// the separator is unknown.
pub(super) fn separator(names: &[&str]) -> Option<&'static str> {
    names.first()?;
    SEPARATORS.into_iter().find(|separator| {
        let (mut keys, mut columns) = (HashSet::new(), HashSet::new());
        let all_split = names.iter().all(|name| match name.rsplit_once(*separator) {
            None | Some(("", _) | (_, "")) => false,
            Some((key, column)) => {
                keys.insert(key);
                columns.insert(column);
                true
            }
        });
        // Names occur once.
        all_split && keys.len().checked_mul(columns.len()) == Some(names.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_are_found_if_every_key_has_the_same_columns() {
        for (names, expected) in [
            (&["a__x", "a__y", "b__x", "b__y"][..], Some("__")),
            (&["a::x", "b::x"], Some("::")),
            (&["a_1__x_1", "a_1__y_1"], Some("__")),
            (&["user-1.x", "user-1.y", "user-2.x", "user-2.y"], Some(".")),
            (&["a__b__x", "c__x"], Some("__")),
            (&["one"], None),
            (&[], None),
            (&["__x", "b:x"], None),
            (&["a__x", "a__y", "b__x"], None),
            (&["a__x", "b::x"], None),
        ] {
            assert_eq!(separator(names), expected, "{names:?}");
        }
    }
}
