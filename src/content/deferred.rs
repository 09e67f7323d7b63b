//! A file of known size that is opened when it is read first.

use super::{Content, Error, GeneratedBytes, ReadRequest, Segment, TakeRun, WaitFor, WaitResource};
use crate::source::{self, Location, Source};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// A file that is opened when it is read. Clones share the open file.
#[derive(Debug, Clone)]
pub struct DeferredFile {
    location: Location,
    /// The size that the listing gave, in bytes.
    len: u64,
    opened: Arc<OnceLock<Arc<dyn Source>>>,
}

impl DeferredFile {
    pub fn new(location: Location, len: u64) -> Self {
        Self { location, len, opened: Arc::default() }
    }

    fn source(&self, request: &ReadRequest) -> Result<&Arc<dyn Source>, Error> {
        if let Some(source) = self.opened.get() {
            return Ok(source);
        }
        request.wait(WaitFor { need: WaitResource::Device(source::device_at(&self.location)), key: None })?;
        let source = source::open_local(&self.location)?;
        Ok(self.opened.get_or_init(|| source))
    }
}

impl GeneratedBytes for DeferredFile {
    fn nbytes(&self) -> u64 {
        self.len
    }

    fn fill(&self, buf: &mut [u8], offset: u64, request: &ReadRequest) -> Result<(), Error> {
        let source = self.source(request)?;
        let range = offset..offset + buf.len() as u64;
        // The file may have another size.
        if range.end > source.len() {
            return Err(source::Error::OutOfRange { range, len: source.len() }.into());
        }
        let file = Content::from(Segment::extent(source, 0..source.len()));
        buf.copy_from_slice(&file.plan(range).read_owned(request)?);
        Ok(())
    }

    fn visit_runs(&self, part: &Range<u64>, take: &mut TakeRun) -> bool {
        let opened = self.opened.get();
        if let Some(source) = opened.filter(|source| part.end <= source.len()) {
            take(source, part.clone());
        }
        opened.is_some()
    }
}
