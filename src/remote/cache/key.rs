//! The identity of an object. Does not contain secrets.

use super::error::CacheError;
use sha2::{Digest, Sha256};
use std::fmt;

/// One version of one remote file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheKey {
    /// Identifies the file, for example by its URL without query. Only its hash is stored.
    pub identity: String,
    /// Identifies the version: a commit, an ETag, a version id.
    pub validator: String,
    /// Size in bytes.
    pub len: u64,
    /// The name of the file, for people.
    pub name: String,
}

/// Maximum size of an object: 16 TiB. Memory is taken in proportion to the size, which a server may state wrongly.
const LEN_MAX: u64 = 16 << 40;

/// Maximum size of each text of a key in bytes.
const TEXT_MAX: usize = 4096;

impl CacheKey {
    /// The caller keeps secrets out of keys. This rejects what is likely to have one: a URL with a query, a fragment,
    /// or a user name.
    pub(super) fn check(&self) -> Result<(), CacheError> {
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
    pub file: [u8; 16],
    version: [u8; 16],
}

impl ObjectDirId {
    pub fn of(key: &CacheKey) -> Self {
        let version = Sha256::new_with_prefix(key.len.to_le_bytes()).chain_update(&key.validator).finalize();
        Self { file: file_hash(&key.identity), version: first_hash(&version) }
    }

    /// Parses the name of a directory. `None` for other names.
    pub fn parse(name: &str) -> Option<Self> {
        let (file, version) = name.split_once('-')?;
        Some(Self { file: unhex(file)?, version: unhex(version)? })
    }

    pub fn bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.file);
        bytes[16..].copy_from_slice(&self.version);
        bytes
    }
}

/// The hash of an identity.
pub(super) fn file_hash(identity: &str) -> [u8; 16] {
    first_hash(&Sha256::digest(identity))
}

fn first_hash(hash: &[u8]) -> [u8; 16] {
    std::array::from_fn(|at| hash.get(at).copied().unwrap_or_default())
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_hex.then(|| u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)).flatten()
}

impl fmt::Display for ObjectDirId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{:032x}", u128::from_be_bytes(self.file), u128::from_be_bytes(self.version))
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
