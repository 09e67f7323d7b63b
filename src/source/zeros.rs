//! A source of zeros, for padding of any size.

use super::{Bytes, Error, Source, SourceStat, indices};
use std::ops::Range;
use std::time::SystemTime;

/// Zeros that occupy no memory.
#[derive(Debug)]
pub struct ZeroSource(u64);

impl ZeroSource {
    /// A source of `len` bytes.
    pub fn new(len: u64) -> Self {
        Self(len)
    }
}

impl Source for ZeroSource {
    fn len(&self) -> u64 {
        self.0
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes, Error> {
        Ok(Bytes::Owned(vec![0; indices(&range, self.0)?.len()]))
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Error> {
        indices(&(offset..offset.saturating_add(buf.len() as u64)), self.0)?;
        buf.fill(0);
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
