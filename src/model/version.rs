//! What identifies the version of a model or a file, on every machine that reads it.

use super::table::Model;
use crate::source::{Source, SourceStat};
use crate::text::HexDigits;
use sha2::{Digest, Sha256};

impl Model {
    /// A hash of the versions of its files. `None` if a change of one of them may not be noticed.
    pub fn version(&self) -> Option<String> {
        let mut parts = Sha256::new();
        for source in self.sources().iter() {
            add_version(&mut parts, &**source)?;
        }
        let described_by: Vec<SourceStat> = self.facts.described_by.iter().map(|file| file.stat).collect();
        parts.update(format!("{described_by:?}"));
        Some(HexDigits(&parts.finalize()).to_string())
    }
}

/// A hash of the version of a file, as [`Model::version`].
pub fn version_of(source: &dyn Source) -> Option<String> {
    let mut parts = Sha256::new();
    add_version(&mut parts, source)?;
    Some(HexDigits(&parts.finalize()).to_string())
}

/// Adds what identifies the version of a file to a hash. The number of its device is left out, because a file system
/// that several machines share has another one on each of them.
fn add_version(parts: &mut Sha256, source: &dyn Source) -> Option<()> {
    match (source.path(), source.info().version) {
        (Some(_), _) => {
            let inode = source.id().map(|(_, inode)| inode);
            parts.update(format!("{} {:?} {inode:?}\n", source.len(), source.stat().mtime));
        }
        (None, version) => parts.update(version?),
    }
    Some(())
}
