//! A source in memory, for tests of other modules.

use super::{Bytes, Error, Source, SourceStat, indices};
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

/// Bytes in memory, which never change or fail.
#[derive(Debug)]
pub struct MemorySource(Arc<[u8]>);

impl MemorySource {
    /// A source of these bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl Source for MemorySource {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes, Error> {
        Ok(Bytes::Shared(self.0.clone(), indices(&range, self.len())?))
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Error> {
        let range = indices(&(offset..offset.saturating_add(buf.len() as u64)), self.len())?;
        buf.copy_from_slice(&self.0[range]);
        Ok(())
    }

    fn verify(&self) -> Result<(), Error> {
        Ok(())
    }

    fn may_block(&self, _: &Range<u64>) -> bool {
        false
    }

    fn stat(&self) -> SourceStat {
        SourceStat { uid: 0, gid: 0, mode: 0o644, mtime: SystemTime::UNIX_EPOCH, ctime: (0, 0) }
    }
}
