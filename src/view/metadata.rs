//! `metadata.json`: knows how `__metadata__` is shown as JSON, sorted by key.

use crate::format::Header;
use std::collections::BTreeMap;

/// An object, one key a line; `{}` where the file has no metadata.
pub fn json(header: &Header) -> Vec<u8> {
    let sorted: BTreeMap<&str, &str> = header.metadata().iter().map(|(key, value)| (&key[..], &value[..])).collect();
    // Strings as keys and values cannot fail to be JSON.
    let mut json = serde_json::to_vec_pretty(&sorted).unwrap_or_default();
    json.push(b'\n');
    json
}
