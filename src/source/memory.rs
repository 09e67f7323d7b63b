//! Sources in memory: bytes for tests of other modules, and zeros for padding.

use super::info::{indices, span_of_runs};
use super::{Bytes, Error, Source, SourceInfo, each_run};
use std::ops::Range;
use std::sync::Arc;

/// Bytes in memory, which never change or fail.
#[derive(Debug)]
pub struct MemorySource {
    bytes: Arc<[u8]>,
    info: SourceInfo,
}

impl MemorySource {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { info: SourceInfo::anonymous(bytes.len() as u64), bytes: bytes.into() }
    }
}

impl Source for MemorySource {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes, Error> {
        Ok(Bytes::Shared(self.bytes.clone(), indices(&range, self.info.len)?))
    }

    fn read_runs_at(&self, buf: &mut [u8], len: usize, offset: u64, step: u64) -> Result<(), Error> {
        span_of_runs(buf, len, offset, step, self.info.len)?;
        for (buf, start) in each_run(buf, len, offset, step) {
            buf.copy_from_slice(&self.bytes[start as usize..][..buf.len()]);
        }
        Ok(())
    }
}

/// Zeros that occupy no memory.
#[derive(Debug)]
pub struct ZeroSource(SourceInfo);

impl ZeroSource {
    pub fn new(len: u64) -> Self {
        Self(SourceInfo::anonymous(len))
    }
}

impl Source for ZeroSource {
    fn info(&self) -> &SourceInfo {
        &self.0
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes, Error> {
        Ok(Bytes::Owned(vec![0; indices(&range, self.0.len)?.len()]))
    }

    fn read_runs_at(&self, buf: &mut [u8], len: usize, offset: u64, step: u64) -> Result<(), Error> {
        span_of_runs(buf, len, offset, step, self.0.len)?;
        buf.fill(0);
        Ok(())
    }
}
