//! The names of Zarr nodes, and the order of tensors in their hierarchy.

use crate::name;
use std::borrow::Cow;
use std::cmp::Ordering;

/// The name of the metadata of a node in format 3. In format 2, such names begin with `.z`, and fsspec takes each name
/// that does for one of them.
const KEY: &str = "zarr.json";

/// The name of the node for a tensor, or for a component of its name: that of its file in a mount, with escapes for
/// what Zarr does not allow. Different names have different nodes.
pub(super) fn node_name(text: &str) -> Cow<'_, str> {
    let encoded = name::encode_name(text);
    let is_key = encoded.starts_with(".z") || encoded == KEY;
    let is_refused = is_key || encoded.starts_with("__") || encoded.bytes().all(|byte| byte == b'.');
    if !is_refused && !encoded.contains('\\') {
        return encoded;
    }
    let mut escaped = encoded.replace('\\', "%5C");
    // Each name that is refused begins with an ASCII character.
    if let Some(first) = escaped.bytes().next().filter(|_| is_refused) {
        escaped.replace_range(..1, &format!("%{first:02X}"));
    }
    escaped.into()
}

/// Compares names by their components: a tensor comes before those below it, and the tensors of a module are not
/// interrupted by others.
pub(super) fn compare_names(a: &str, b: &str) -> Ordering {
    a.split('.').cmp(b.split('.'))
}

/// Whether the name of a tensor continues that of another one, as that of `a.b` continues `a`.
pub(super) fn is_below(name: &str, other: &str) -> bool {
    name.strip_prefix(other).is_some_and(|rest| rest.starts_with('.'))
}

/// Length of the common start of two names in bytes, up to and including a dot.
pub(super) fn shared_modules(a: &str, b: &str) -> usize {
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    a.as_bytes()[..same].iter().rposition(|byte| *byte == b'.').map_or(0, |dot| dot + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_zarr_does_not_allow_are_escaped() {
        for (name, node) in [
            ("weight", "weight"),
            ("", "%"),
            ("..", "%2E%2E"),
            ("...", "%2E.."),
            ("a/b", "a%2Fb"),
            (r"a\b", "a%5Cb"),
            ("__a", "%5F_a"),
            (r"__\", "%5F_%5C"),
            ("_a", "_a"),
            ("zarr.json", "%7Aarr.json"),
            (".zgroup", "%2Ezgroup"),
            (".zeta", "%2Ezeta"),
            ("100%", "100%25"),
            ("重み", "重み"),
        ] {
            assert_eq!(node_name(name), node);
        }
    }

    #[test]
    fn tensors_of_a_module_are_neighbours() {
        let mut names = ["a.b", "a-c", "a", "a.b.c", "b", "a!", "a.", ""];
        names.sort_by(|a, b| compare_names(a, b));
        assert_eq!(names, ["", "a", "a.", "a.b", "a.b.c", "a!", "a-c", "b"]);
        assert!(is_below("a.b", "a") && is_below(".a", "") && !is_below("ab", "a") && !is_below("a", "a"));
        assert_eq!(["a.b.c", "a.bd", "a", "b"].map(|name| shared_modules("a.b.d", name)), [4, 2, 0, 0]);
    }
}
