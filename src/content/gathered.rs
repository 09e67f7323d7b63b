//! An array whose elements are gathered, as a source in which they lie in C order.

use super::extents::Extent;
use super::plan::StoredRuns;
use super::strided::StridedData;
use crate::source::{self, Bytes, Source, SourceInfo, each_run, indices, span_of_runs};
use nix::errno::Errno;
use std::ops::Range;
use std::path::Path;

/// An array in C order and little-endian order, so that parts of it can be joined with those of files. Each read
/// gathers the elements that it needs.
#[derive(Debug)]
pub struct GatheredSource {
    array: StridedData,
    /// As that of the first file, with the size of the array, and without a path, because no path leads to these bytes.
    info: SourceInfo,
}

impl GatheredSource {
    /// The array must have a place.
    pub fn new(array: StridedData) -> Self {
        let (len, file) = (array.layout.nbytes(), array.places[0].source.info());
        Self { info: SourceInfo { len, path: None, ends: None, ..file.clone() }, array }
    }

    /// The runs of the files that a range needs.
    fn runs(&self, range: &Range<u64>) -> StoredRuns {
        let mut runs = StoredRuns::default();
        if indices(range, self.info.len).is_ok_and(|range| !range.is_empty()) {
            self.array.visit_runs(range, &mut |source, run| runs.push(source, run));
        }
        runs
    }
}

impl Source for GatheredSource {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes, source::Error> {
        let len = indices(&range, self.info.len)?.len();
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| {
            let path = self.array.places[0].source.path().unwrap_or(Path::new("")).to_owned();
            source::Error::Io { path, error: Errno::ENOMEM.into() }
        })?;
        bytes.resize(len, 0);
        self.array.fill(&mut bytes, range.start)?;
        Ok(Bytes::Owned(bytes))
    }

    fn read_runs_at(&self, buf: &mut [u8], len: usize, offset: u64, step: u64) -> Result<(), source::Error> {
        span_of_runs(buf, len, offset, step, self.info.len)?;
        each_run(buf, len, offset, step).try_for_each(|(buf, start)| self.array.fill(buf, start))
    }

    fn verify(&self) -> Result<(), source::Error> {
        self.array.places.iter().try_for_each(|place| place.source.verify())
    }

    fn is_gathered(&self) -> bool {
        true
    }

    fn may_block(&self, range: &Range<u64>) -> bool {
        self.runs(range).iter().any(|Extent { source, range }| source.may_block(range))
    }

    fn prepare(&self, range: Range<u64>, is_cancelled: &dyn Fn() -> bool) -> Result<(), source::Error> {
        self.runs(&range).iter().try_for_each(|Extent { source, range }| source.prepare(range.clone(), is_cancelled))
    }
}
