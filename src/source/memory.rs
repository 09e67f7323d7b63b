//! Bytes in memory: knows a vector, and is what the tests of the layers above read from.

use super::{Bytes, Error, Source, Stat, check};
use std::ops::Range;
use std::time::SystemTime;

/// A source that can neither change nor fail.
#[derive(Debug)]
pub struct Memory(Vec<u8>);

impl Memory {
    /// Takes the bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Source for Memory {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes<'_>, Error> {
        Ok(Bytes::Borrowed(&self.0[check(&range, self.len())?]))
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Error> {
        buf.copy_from_slice(&self.bytes(offset..offset.saturating_add(buf.len() as u64))?);
        Ok(())
    }

    fn stat(&self) -> Stat {
        Stat { uid: 0, gid: 0, mode: 0o644, mtime: SystemTime::UNIX_EPOCH }
    }
}
