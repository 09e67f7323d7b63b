//! The content of a file in the mount: a sequence of segments.
//!
//! A content owns its sources and borrows nothing from the tree, so it can be sent to another thread and outlive the
//! tree. It is created on demand and not stored.

mod boxes;
mod decoder;
mod deferred;
mod extents;
mod gathered;
mod panels;
mod plan;
mod request;
mod segment;
mod strided;

pub use boxes::{ArrayBox, BOXES_MAX, BoxFault, check_cover};
pub use decoder::{BlockDecoder, SecondStep};
pub use deferred::DeferredFile;
pub use extents::{Extent, Extents, SourceRun, Sources, TakeRun};
pub use gathered::GatheredSource;
pub use plan::{OperationPlan, ReadPlan};
pub use request::{Error, ReadRequest, ResultId, WaitFor, WaitResource, reserve, running_max, zeroed};
pub use segment::{DecodedData, GeneratedBytes, Segment, SegmentSeries, TakeSegment};
pub use strided::{ArrayPlace, StridedData, StridedLayout};

use crate::source::{Bytes, Source, WholeRange};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// A file as a sequence of segments.
#[derive(Debug, Clone)]
pub struct Content {
    segments: SmallVec<[Segment; 2]>,
}

impl Content {
    /// A file of these segments, in this order.
    pub fn new(segments: impl IntoIterator<Item = Segment>) -> Self {
        Self { segments: segments.into_iter().collect() }
    }

    /// A file of these bytes.
    pub fn literal(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self::new([Segment::Literal(bytes.into())])
    }

    /// A file of bytes that are generated when they are read.
    pub fn generated(bytes: impl GeneratedBytes + 'static) -> Self {
        Self::new([Segment::Generated(Arc::new(bytes))])
    }

    /// Length in bytes. Does no I/O.
    pub fn len(&self) -> u64 {
        self.segments.iter().map(Segment::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What a read of `range` needs, cut at the end of the file. Does no I/O.
    pub fn plan(&self, range: Range<u64>) -> ReadPlan {
        ReadPlan::new(self.parts(&range).map(|(segment, part)| (segment.clone(), part)))
    }

    /// Says that a range is read as a whole, and nothing beside it, so that nothing beside its stored bytes is read
    /// ahead until the result is dropped. These lie between those of its first and those of its last byte.
    pub fn read_whole(&self, range: &Range<u64>) -> Vec<WholeRange> {
        if range.is_empty() {
            return Vec::new();
        }
        let (first, last) = (self.plan(range.start..range.start + 1), self.plan(range.end - 1..range.end));
        let bounds = first.runs().iter().zip(last.runs());
        let ranges = bounds.flat_map(|(first, last)| {
            let (start, end) = (first.range.start, last.range.end);
            match Arc::ptr_eq(&first.source, &last.source) {
                true => [Some((first, start..end)), None],
                false => [Some((first, start..first.source.len())), Some((last, 0..end))],
            }
        });
        ranges.flatten().filter_map(|(run, range)| run.source.read_whole(range)).collect()
    }

    /// The bytes of `range`, cut at the end of the file: see [`ReadPlan::read`].
    pub fn read(&self, range: Range<u64>, request: &ReadRequest) -> Result<Bytes, Error> {
        self.plan(range).read(request)
    }

    /// Replaces `out` by the bytes of `range`, cut at the end of the file: see [`ReadPlan::copy`].
    pub fn copy(&self, range: Range<u64>, request: &ReadRequest, out: &mut Vec<u8>) -> Result<(), Error> {
        self.plan(range).copy(request, out)
    }

    /// The longest run of bytes of a source that the file has as they are: where it begins in the file, the source, and
    /// the range there.
    pub fn longest_run(&self) -> Option<(u64, &dyn Source, Range<u64>)> {
        let mut end = 0;
        let runs = self.segments.iter().filter_map(|segment| {
            let begin = end;
            end += segment.len();
            let (source, range) = segment.run()?;
            Some((begin, source, range))
        });
        runs.max_by_key(|(_, _, range)| range.end - range.start)
    }

    /// The segments that overlap `range`, each with the overlapping part in bytes from the start of the segment.
    fn parts(&self, range: &Range<u64>) -> impl Iterator<Item = (&Segment, Range<u64>)> {
        let (start, end) = (range.start, range.end);
        let mut from = 0;
        self.segments.iter().filter_map(move |segment| {
            let len = segment.len();
            let part = start.saturating_sub(from).min(len)..end.saturating_sub(from).min(len);
            from += len;
            (part.start < part.end).then_some((segment, part))
        })
    }
}

impl From<Segment> for Content {
    fn from(segment: Segment) -> Self {
        Self::new([segment])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{self, MemorySource, SourceInfo};
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Debug, Clone)]
    enum Kind {
        Literal(Vec<u8>),
        Extent(usize, usize),
        Generated(Vec<u8>),
        Extents(Vec<(usize, usize)>),
        Decoded(usize, usize),
        /// Decoded in two steps.
        Twice(usize, usize),
        /// Decoded data that is decoded.
        Nested(usize, usize),
        Series(Vec<Kind>),
    }

    /// Decodes three bytes to five: their sum, the three bytes, and a zero.
    const DECODER: BlockDecoder = BlockDecoder {
        block_in: 3,
        block_out: 5,
        decode: |input, output| {
            for (input, output) in input.chunks_exact(3).zip(output.chunks_exact_mut(5)) {
                output.copy_from_slice(&[input.iter().sum(), input[0], input[1], input[2], 0]);
            }
        },
        then: None,
    };

    /// Decodes three bytes to five and these to two.
    const TWICE: BlockDecoder = BlockDecoder {
        block_out: 2,
        then: Some(SecondStep {
            block: 5,
            convert: |input, output| {
                for (input, output) in input.chunks_exact(5).zip(output.chunks_exact_mut(2)) {
                    output.copy_from_slice(&input[..2]);
                }
            },
        }),
        ..DECODER
    };

    /// The first two of three bytes.
    const FIRST_TWO: BlockDecoder = BlockDecoder {
        block_in: 3,
        block_out: 2,
        decode: |input, output| {
            for (input, output) in input.chunks_exact(3).zip(output.chunks_exact_mut(2)) {
                output.copy_from_slice(&input[..2]);
            }
        },
        then: None,
    };

    /// Two bytes in reverse order.
    const REVERSED: BlockDecoder = BlockDecoder {
        block_in: 2,
        block_out: 2,
        decode: |input, output| {
            for (input, output) in input.chunks_exact(2).zip(output.chunks_exact_mut(2)) {
                output.copy_from_slice(&[input[1], input[0]]);
            }
        },
        then: None,
    };

    fn kind() -> impl Strategy<Value = Kind> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..12);
        let plain = prop_oneof![
            bytes().prop_map(Kind::Literal),
            bytes().prop_map(Kind::Generated),
            (0usize..60, 0usize..12).prop_map(|(start, len)| Kind::Extent(start, (start + len).min(64))),
            prop::collection::vec((0usize..60, 1usize..5), 0..5)
                .prop_map(|runs| Kind::Extents(runs.into_iter().map(|(start, len)| (start, start + len)).collect())),
            (0usize..50, 0usize..5).prop_map(|(start, blocks)| Kind::Decoded(start, start + blocks * 3)),
            (0usize..50, 0usize..5).prop_map(|(start, blocks)| Kind::Twice(start, start + blocks * 3)),
            (0usize..50, 0usize..5).prop_map(|(start, blocks)| Kind::Nested(start, start + blocks * 3)),
        ];
        let series = prop::collection::vec(plain.clone(), 0..5).prop_map(Kind::Series);
        prop_oneof![4 => plain, 1 => series]
    }

    fn runs(extents: &[(usize, usize)]) -> Arc<[SourceRun]> {
        let mut start = 0;
        let run = |(from, to): &(usize, usize)| {
            let run = SourceRun { start, source: 0, offset: *from as u64 };
            start += (to - from) as u64;
            run
        };
        extents.iter().map(run).collect()
    }

    fn content(kinds: &[Kind], source: &Arc<dyn Source>) -> Content {
        Content::new(kinds.iter().map(|kind| segment(kind, source)))
    }

    /// Bytes that are generated from a vector.
    struct GeneratedVec(Vec<u8>);

    impl GeneratedBytes for GeneratedVec {
        fn nbytes(&self) -> u64 {
            self.0.len() as u64
        }

        fn fill(&self, buf: &mut [u8], offset: u64, _: &ReadRequest) -> Result<(), Error> {
            buf.copy_from_slice(&self.0[offset as usize..][..buf.len()]);
            Ok(())
        }
    }

    /// Segments that are kept, one after the other.
    struct SegmentVec(Vec<Segment>);

    impl SegmentSeries for SegmentVec {
        fn nbytes(&self) -> u64 {
            self.0.iter().map(Segment::len).sum()
        }

        fn visit_segments(&self, part: &Range<u64>, take: &mut TakeSegment) -> Result<(), Error> {
            let mut begins = 0;
            for segment in &self.0 {
                let ends = begins + segment.len();
                if begins < part.end && ends > part.start {
                    take(segment, begins)?;
                }
                begins = ends;
            }
            Ok(())
        }
    }

    fn segment(kind: &Kind, source: &Arc<dyn Source>) -> Segment {
        let extent = |start: usize, end: usize| Segment::extent(source, start as u64..end as u64);
        let decoded = |start, end, decoder| Segment::Decoded(DecodedData { data: extent(start, end), decoder }.into());
        match kind {
            Kind::Extents(extents) => {
                let len = extents.iter().map(|(from, to)| (to - from) as u64).sum();
                Segment::Extents(Extents::new([source.clone()].into(), runs(extents), len))
            }
            Kind::Decoded(start, end) => decoded(*start, *end, DECODER),
            Kind::Twice(start, end) => decoded(*start, *end, TWICE),
            Kind::Nested(start, end) => {
                let data = decoded(*start, *end, FIRST_TWO);
                Segment::Decoded(DecodedData { data, decoder: REVERSED }.into())
            }
            Kind::Literal(bytes) => Segment::Literal(bytes.clone().into()),
            Kind::Extent(start, end) => extent(*start, *end),
            Kind::Generated(bytes) => Segment::Generated(Arc::new(GeneratedVec(bytes.clone()))),
            Kind::Series(kinds) => {
                Segment::Series(Arc::new(SegmentVec(kinds.iter().map(|kind| segment(kind, source)).collect())))
            }
        }
    }

    /// The bytes of a segment, if those of the source are `bytes`.
    fn whole(kind: &Kind, bytes: &[u8]) -> Vec<u8> {
        match kind {
            Kind::Literal(bytes) | Kind::Generated(bytes) => bytes.clone(),
            Kind::Extent(start, end) => bytes[*start..*end].to_vec(),
            Kind::Extents(runs) => runs.iter().flat_map(|(from, to)| bytes[*from..*to].to_vec()).collect(),
            Kind::Decoded(start, end) => {
                let mut decoded = vec![0; (end - start) / 3 * 5];
                (DECODER.decode)(&bytes[*start..*end], &mut decoded);
                decoded
            }
            Kind::Twice(start, end) => {
                bytes[*start..*end].chunks_exact(3).flat_map(|block| [block.iter().sum(), block[0]]).collect()
            }
            Kind::Nested(start, end) => {
                bytes[*start..*end].chunks_exact(3).flat_map(|block| [block[1], block[0]]).collect()
            }
            Kind::Series(kinds) => kinds.iter().flat_map(|kind| whole(kind, bytes)).collect(),
        }
    }

    /// Whether each byte of a segment comes from the byte at `slow`, or from a block that contains it.
    fn waits(kind: &Kind, slow: usize) -> Vec<bool> {
        let blocks = |start: usize, end: usize, block_out: usize| {
            let blocks = (start..end).step_by(3).map(move |block| (block..block + 3).contains(&slow));
            blocks.flat_map(|waits| vec![waits; block_out]).collect()
        };
        match kind {
            Kind::Literal(bytes) | Kind::Generated(bytes) => vec![false; bytes.len()],
            Kind::Extent(start, end) => (*start..*end).map(|at| at == slow).collect(),
            Kind::Extents(runs) => runs.iter().flat_map(|(from, to)| (*from..*to).map(|at| at == slow)).collect(),
            Kind::Decoded(start, end) => blocks(*start, *end, 5),
            Kind::Twice(start, end) | Kind::Nested(start, end) => blocks(*start, *end, 2),
            Kind::Series(kinds) => kinds.iter().flat_map(|kind| waits(kind, slow)).collect(),
        }
    }

    fn memory(bytes: Vec<u8>) -> Arc<dyn Source> {
        Arc::new(MemorySource::new(bytes))
    }

    /// 64 zeros. A read may block only when it needs a certain byte.
    #[derive(Debug)]
    struct Slow(MemorySource, u64);

    impl Source for Slow {
        fn info(&self) -> &SourceInfo {
            self.0.info()
        }
        fn bytes(&self, range: Range<u64>) -> Result<Bytes, source::Error> {
            self.0.bytes(range)
        }
        fn read_runs_at(&self, buf: &mut [u8], len: usize, at: u64, step: u64) -> Result<(), source::Error> {
            self.0.read_runs_at(buf, len, at, step)
        }
        fn may_block(&self, range: &Range<u64>) -> bool {
            range.contains(&self.1)
        }
    }

    fn slow(byte: u64) -> Arc<dyn Source> {
        Arc::new(Slow(MemorySource::new(vec![0; 64]), byte))
    }

    proptest! {
        #[test]
        fn reads_match_plain_concatenation(kinds in prop::collection::vec(kind(), 0..6)) {
            let bytes: Vec<u8> = (0..64).collect();
            let whole: Vec<u8> = kinds.iter().flat_map(|kind| whole(kind, &bytes)).collect();
            let content = content(&kinds, &memory(bytes));
            prop_assert_eq!(content.len(), whole.len() as u64);
            for from in 0..whole.len() + 2 {
                for to in from..whole.len() + 2 {
                    let read = content.read(from as u64..to as u64, &ReadRequest::NOWAIT).unwrap();
                    prop_assert_eq!(&read[..], &whole[from.min(whole.len())..to.min(whole.len())]);
                }
            }
            let far = content.read(u64::MAX - 1..u64::MAX, &ReadRequest::NOWAIT).unwrap();
            prop_assert!(far.is_empty());
        }

        #[test]
        fn may_block_if_a_source_of_the_range_may(kinds in prop::collection::vec(kind(), 0..6), slow in 0u64..64) {
            let content = content(&kinds, &self::slow(slow));
            let waits: Vec<bool> = kinds.iter().flat_map(|kind| waits(kind, slow as usize)).collect();
            for from in 0..=waits.len() {
                for to in from..=waits.len() {
                    let range = from as u64..to as u64;
                    let expected = waits[from..to].contains(&true);
                    let wait = WaitFor { need: WaitResource::Device(0), key: None };
                    let read = content.read(range.clone(), &ReadRequest::NOWAIT);
                    prop_assert_eq!(matches!(read, Err(Error::WouldBlock(found)) if found == wait), expected);
                    prop_assert!(content.read(range.clone(), &ReadRequest::only(wait)).is_ok());
                    prop_assert!(content.read(range, &ReadRequest::WAIT).is_ok());
                }
            }
        }
    }

    #[test]
    fn read_inside_one_segment_does_not_copy() {
        let data = Segment::extent(&memory(vec![1; 64]), 8..64);
        let npy = Content::new([Segment::Literal(b"header"[..].into()), data]);
        let read = |range| npy.read(range, &ReadRequest::NOWAIT);
        assert!(matches!(read(0..6), Ok(Bytes::Shared(..))));
        assert!(matches!(read(6..62), Ok(Bytes::Shared(_, range)) if range == (8..64)));
        assert!(matches!(read(6..106), Ok(Bytes::Shared(_, range)) if range == (8..64)));
        assert!(matches!(read(5..7), Ok(Bytes::Owned(bytes)) if bytes == b"r\x01"));
    }

    #[test]
    fn longest_run_is_that_of_the_data() {
        let source = memory(vec![1; 64]);
        let runs: Arc<[SourceRun]> =
            [(0, 4), (20, 9)].map(|(start, offset)| SourceRun { start, source: 0, offset }).into();
        let extents = |part| Segment::Extents(Extents { sources: [source.clone()].into(), runs: runs.clone(), part });
        let header = || Segment::Literal(b"header"[..].into());
        for (data, expected) in [
            (Segment::extent(&source, 8..64), Some((6, 8..64))),
            (extents(2..19), Some((6, 6..23))),
            (extents(20..30), Some((6, 9..19))),
            (extents(2..21), None),
        ] {
            let npy = Content::new([header(), data, Segment::extent(&source, 0..1), header()]);
            let found = npy.longest_run().map(|(begin, _, range)| (begin, range));
            assert_eq!(found, expected.or(Some((6 + 19, 0..1))));
        }
        assert!(Content::new([header()]).longest_run().is_none());
    }

    #[test]
    fn read_that_waits_finds_its_runs_once() {
        /// A run of a source, which counts how often it is asked for, and whether it stays the same.
        struct CountedRun(Arc<dyn Source>, AtomicUsize, bool);

        impl GeneratedBytes for CountedRun {
            fn nbytes(&self) -> u64 {
                self.0.len()
            }

            fn fill(&self, buf: &mut [u8], offset: u64, _: &ReadRequest) -> Result<(), Error> {
                Ok(self.0.read_exact_at(buf, offset)?)
            }

            fn visit_runs(&self, part: &Range<u64>, take: &mut TakeRun) -> bool {
                self.1.fetch_add(1, Ordering::Relaxed);
                take(&self.0, part.clone());
                self.2
            }
        }

        for (is_final, visits) in [(true, 1), (false, 2)] {
            let counted = Arc::new(CountedRun(slow(0), AtomicUsize::new(0), is_final));
            let content = Content::new([Segment::Literal(b"header"[..].into()), Segment::Generated(counted.clone())]);
            let operation = OperationPlan::default();
            let plan = operation.get(|| Ok::<_, Error>(content.plan(2..20))).unwrap();
            assert_eq!(plan.nbytes(), 18);
            let Err(Error::WouldBlock(wait)) = plan.read(&ReadRequest::NOWAIT) else { panic!() };
            assert!(matches!(plan.read_owned(&ReadRequest::NOWAIT), Err(Error::WouldBlock(found)) if found == wait));
            // Another thread continues.
            let read = std::thread::spawn(move || {
                let plan = operation.get(|| Err(Error::Interrupted)).unwrap();
                plan.read(&ReadRequest::only(wait)).unwrap().to_vec()
            });
            assert_eq!(read.join().unwrap(), [&b"ader"[..], &[0; 14]].concat());
            assert_eq!(counted.1.load(Ordering::Relaxed), visits);
        }
    }

    #[test]
    fn request_waits_only_for_what_it_may() {
        let device = |device, key| WaitFor { need: WaitResource::Device(device), key };
        let key = |item| Some(ResultId { model: 1, kind: ResultId::MODEL, item });
        let all = [device(1, None), device(2, None), device(1, key(1)), device(1, key(2))];
        let allowed = |request: ReadRequest| all.map(|wait| request.wait(wait).is_ok());
        assert_eq!((allowed(ReadRequest::NOWAIT), allowed(ReadRequest::WAIT)), ([false; 4], [true; 4]));
        assert_eq!(allowed(ReadRequest::only(device(1, None))), [true, false, false, false]);
        assert_eq!(allowed(ReadRequest::only(device(1, key(1)))), [true, false, true, false]);
    }

    #[test]
    fn cancelled_request_fails() {
        assert!(ReadRequest::WAIT.check().is_ok() && ReadRequest::NOWAIT.check().is_ok());
        assert!(matches!(ReadRequest::WAIT.cancelled_by(&|| true).check(), Err(Error::Interrupted)));
        assert!(ReadRequest::WAIT.cancelled_by(&|| false).check().is_ok());
    }
}
