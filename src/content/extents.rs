//! Runs of bytes of sources.

use crate::source::{self, Source};
use std::ops::Range;
use std::sync::Arc;

/// A run of bytes of one source.
#[derive(Debug, Clone)]
pub struct Extent {
    pub source: Arc<dyn Source>,
    /// In bytes from the start of the source.
    pub range: Range<u64>,
}

/// Runs of bytes of several sources, read as one.
#[derive(Debug, Clone)]
pub struct Extents {
    /// The sources that the runs refer to by index.
    pub sources: Sources,
    /// Sorted by `start`, beginning at 0; none is empty.
    pub runs: Arc<[SourceRun]>,
    /// The part of the runs that is read, in bytes from the start of the first run.
    pub part: Range<u64>,
}

/// Takes a stored run: a range of bytes of a source.
pub type TakeRun<'t> = dyn FnMut(&Arc<dyn Source>, Range<u64>) + 't;

/// The sources of a model.
pub type Sources = Arc<[Arc<dyn Source>]>;

/// One of several runs that are read as one. It ends where the next one starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceRun {
    /// In bytes from the start of the first run.
    pub start: u64,
    pub source: usize,
    /// In bytes from the start of the source.
    pub offset: u64,
}

impl Extent {
    /// A part of the run, in bytes from the start of the source.
    pub(super) fn place(&self, part: &Range<u64>) -> Range<u64> {
        self.range.start + part.start..self.range.start + part.end
    }
}

impl Extents {
    /// All of `runs`, `len` bytes in total.
    pub fn new(sources: Sources, runs: Arc<[SourceRun]>, len: u64) -> Self {
        Self { sources, runs, part: 0..len }
    }

    /// Whether some of the bytes of `part` have to be gathered.
    pub(super) fn is_gathered(&self, part: &Range<u64>) -> bool {
        let mut is_gathered = false;
        self.visit_runs(part, &mut |source, _| is_gathered |= source.is_gathered());
        is_gathered
    }

    pub(super) fn len(&self) -> u64 {
        self.part.end - self.part.start
    }

    /// The source of `part` and the range there, if `part` lies in one run.
    pub(super) fn run(&self, part: &Range<u64>) -> Option<(&dyn Source, Range<u64>)> {
        let (start, end) = (self.part.start + part.start, self.part.start + part.end);
        let at = self.run_at(start);
        let run = self.runs.get(at)?;
        let from = run.offset + start - run.start;
        (end <= self.end(at)).then(|| (&*self.sources[run.source], from..from + end - start))
    }

    pub(super) fn visit_runs(&self, part: &Range<u64>, take: &mut TakeRun) {
        let (first, last) = (self.part.start + part.start, self.part.start + part.end);
        for at in (self.run_at(first)..self.runs.len()).take_while(|at| self.runs[*at].start < last) {
            let SourceRun { start, source, offset } = self.runs[at];
            let (from, to) = (first.max(start), last.min(self.end(at)));
            take(&self.sources[source], offset + from - start..offset + to - start);
        }
    }

    pub(super) fn fill(&self, mut buf: &mut [u8], offset: u64) -> Result<(), source::Error> {
        let mut offset = self.part.start + offset;
        for at in self.run_at(offset)..self.runs.len() {
            if buf.is_empty() {
                break;
            }
            let run = self.runs[at];
            let here = (self.end(at) - offset).min(buf.len() as u64);
            let (part, rest) = buf.split_at_mut(here as usize);
            self.sources[run.source].read_exact_at(part, run.offset + offset - run.start)?;
            (buf, offset) = (rest, offset + here);
        }
        Ok(())
    }

    fn run_at(&self, offset: u64) -> usize {
        self.runs.partition_point(|run| run.start <= offset).saturating_sub(1)
    }

    /// The end of a run. The last one ends where the part does.
    fn end(&self, at: usize) -> u64 {
        self.runs.get(at + 1).map_or(self.part.end, |next| next.start)
    }
}
