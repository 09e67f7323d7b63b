//! The identity of an object. Does not contain secrets.

use super::error::{CacheError, CacheResult};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheKey {
    /// Identifies the file, for example by its URL without query. Only its hash is stored.
    #[serde(skip)]
    pub identity: String,
    /// Identifies the version: a commit, an ETag, a version id.
    pub validator: String,
    pub len: u64,
    /// The name of the file, for people.
    pub name: String,
}

/// Maximum size of an object: 16 TiB. Memory is taken in proportion to the size, which a server may state wrongly.
const LEN_MAX: u64 = 16 << 40;

const TEXT_MAX: usize = 4096;

impl CacheKey {
    /// The caller keeps secrets out of keys. This rejects what is likely to have one: a URL with a query, a fragment,
    /// or a user name.
    pub(super) fn check(&self) -> CacheResult<()> {
        let fields = [("identity", &self.identity), ("validator", &self.validator), ("name", &self.name)];
        for (field, text) in fields {
            if text.len() > TEXT_MAX {
                return Err(CacheError::TooLong { field, len: text.len(), max: TEXT_MAX });
            }
            if may_have_secret(text) {
                return Err(CacheError::Secret { field });
            }
        }
        if self.len > LEN_MAX {
            return Err(CacheError::TooLarge { name: self.name.clone(), len: self.len, max: LEN_MAX });
        }
        Ok(())
    }
}

/// Object stores allow `?` and `#` in the names of files, so only the URLs of web servers must not have them.
fn may_have_secret(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    lower.match_indices("://").any(|(at, separator)| {
        let rest = &lower[at + separator.len()..];
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let is_web = lower[..at].ends_with("http") || lower[..at].ends_with("https");
        authority.contains('@') || is_web && rest.contains(['?', '#'])
    })
}

/// The name of an object's directory: hashes of the identity, and of the validator and size.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ObjectDirId {
    pub file: u128,
    version: u128,
}

impl ObjectDirId {
    pub fn of(key: &CacheKey) -> Self {
        let version = Sha256::new_with_prefix(key.len.to_le_bytes()).chain_update(&key.validator).finalize();
        Self { file: file_hash(&key.identity), version: first_half(&version) }
    }

    /// Parses the name of a directory. `None` for other names.
    pub fn parse(name: &str) -> Option<Self> {
        let (file, version) = name.split_once('-')?;
        let [file, version] = [file, version].map(|text| u128::from_str_radix(text, 16).ok());
        let id = Self { file: file?, version: version? };
        // Digits can be written in other ways.
        (id.to_string() == name).then_some(id)
    }

    pub fn bytes(&self) -> [u8; 32] {
        let bytes = [self.file, self.version].map(u128::to_be_bytes);
        std::array::from_fn(|at| bytes[at / 16][at % 16])
    }
}

pub(super) fn file_hash(identity: &str) -> u128 {
    first_half(&Sha256::digest(identity))
}

fn first_half(hash: &[u8]) -> u128 {
    hash.iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte))
}

impl fmt::Display for ObjectDirId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{:032x}", self.file, self.version)
    }
}

impl fmt::Debug for ObjectDirId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(identity: &str, validator: &str, len: u64) -> CacheKey {
        CacheKey { identity: identity.into(), validator: validator.into(), len, name: "a".into() }
    }

    #[test]
    fn id_depends_on_identity_validator_and_size() {
        let all = [key("a", "b", 1), key("ab", "", 1), key("a", "b", 2), key("a", "c", 1), key("c", "b", 1)];
        let ids: std::collections::BTreeSet<ObjectDirId> = all.iter().map(ObjectDirId::of).collect();
        assert_eq!(ids.len(), all.len());
        assert!(ids.iter().all(|id| ObjectDirId::parse(&id.to_string()) == Some(*id)));
        for other in ["", "-", "..", "0-0", &"0".repeat(65), &format!("{}-{}", "G".repeat(32), "0".repeat(32))] {
            assert_eq!(ObjectDirId::parse(other), None);
        }
    }

    #[test]
    fn secrets_and_absurd_sizes_are_rejected() {
        let secret = [
            "https://host/a?X-Amz-Signature=s3cret",
            "http://s3cret@host/a",
            "https://user:s3cret@host/a",
            "HTTPS://host/a#s3cret",
            "from https://host?s3cret",
        ];
        for text in secret {
            for at in 0..3 {
                let mut key = key("a", "b", 1);
                *[&mut key.identity, &mut key.validator, &mut key.name][at] = text.into();
                let error = key.check().unwrap_err();
                assert!(matches!(error, CacheError::Secret { .. }));
                assert!(!format!("{error} {error:?}").contains("s3cret"));
            }
        }
        for text in ["https://host/a", "hf://org/name@main/a?", "s3://bucket/a?b#c@d", "\"W/?#@\"", "a?b"] {
            assert!(key(text, text, 1).check().is_ok(), "{text}");
        }
        assert!(matches!(key(&"a".repeat(5000), "b", 1).check(), Err(CacheError::TooLong { .. })));
        assert!(matches!(key("a", "b", u64::MAX).check(), Err(CacheError::TooLarge { len: u64::MAX, .. })));
    }
}
