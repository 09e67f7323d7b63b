//! What a file in the mount consists of: knows how to splice segments, not what they mean.

use crate::source::{self, Bytes, Source};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ops::Range;

pub use crate::source::Run;

/// A file as a splice of segments, made on demand and never stored.
#[derive(Debug)]
pub struct Content<'a> {
    segments: SmallVec<[Segment<'a>; 2]>,
}

/// A part of a file.
#[derive(Debug)]
pub enum Segment<'a> {
    /// The bytes themselves.
    Literal(Cow<'a, [u8]>),
    /// Bytes that lie in sources.
    Data(Data<'a>),
    /// Bytes that lie in sources in another form.
    Decoded(Decoded<'a>),
    /// Text of a known length that is written when it is read.
    Generated(Generated<'a>),
}

/// Bytes that lie in sources.
#[derive(Debug, Clone)]
pub enum Data<'a> {
    /// In one run.
    Extent(Extent<'a>),
    /// In many.
    Extents(Extents<'a>),
}

/// A run of bytes in a source.
#[derive(Debug, Clone)]
pub struct Extent<'a> {
    /// Where the bytes are.
    pub source: &'a dyn Source,
    /// Which of them, in bytes from the start of the source.
    pub range: Range<u64>,
}

/// Runs of bytes in several sources, one after the other.
#[derive(Debug, Clone)]
pub struct Extents<'a> {
    /// By the numbers that the runs give them.
    pub sources: &'a [Box<dyn Source>],
    /// Sorted by `start`, the first of which is 0; none is empty.
    pub runs: &'a [Run],
    /// Length of all of them in bytes.
    pub len: u64,
}

/// Data whose elements are shown in another form, which may take more room.
#[derive(Debug)]
pub struct Decoded<'a> {
    /// The bytes as they lie in the source: whole groups.
    pub data: Data<'a>,
    /// What becomes of them.
    pub decoder: Decoder,
}

/// A change of form, group by group: elements that share a byte are one group.
#[derive(Debug, Clone, Copy)]
pub struct Decoder {
    /// Bytes of a group in the source.
    pub group_in: usize,
    /// Bytes of a group in the file.
    pub group_out: usize,
    /// Decodes whole groups; the output has just the room for them.
    pub decode: fn(&[u8], &mut [u8]),
}

/// Bytes of a source that are decoded at once: they and what becomes of them stay in the core's cache.
const DECODED_AT_ONCE: usize = 32 << 10;

/// A text that need not be in memory: it can write any part of itself.
pub struct Generated<'a> {
    /// Length in bytes.
    pub len: u64,
    /// Appends the bytes of the range, which lies within the length, to the vector.
    pub write: Write<'a>,
}

/// Writes a part of a text.
type Write<'a> = Box<dyn Fn(Range<u64>, &mut Vec<u8>) -> Result<(), Error> + 'a>;

/// Says whether nobody waits for the bytes any more, so that a long computation may end without them.
pub type Interrupted<'a> = &'a (dyn Fn() -> bool + Sync);

impl std::fmt::Debug for Generated<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Generated {{ len: {} }}", self.len)
    }
}

/// Why the content of a file cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source does not give it.
    #[error(transparent)]
    Source(#[from] source::Error),
    /// Nobody waits for it any more.
    #[error("interrupted")]
    Interrupted,
    /// The picture or the figures of a tensor cannot be made.
    #[error("{0}")]
    Picture(String),
}

impl Segment<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Literal(bytes) => bytes.len() as u64,
            Self::Data(data) => data.len(),
            Self::Decoded(Decoded { data, decoder }) => data.len() / decoder.group_in as u64 * decoder.group_out as u64,
            Self::Generated(generated) => generated.len,
        }
    }
}

impl<'a> Content<'a> {
    /// A file of these segments, one after the other.
    pub fn new(segments: impl IntoIterator<Item = Segment<'a>>) -> Self {
        Self { segments: segments.into_iter().collect() }
    }

    /// A file of these bytes.
    pub fn literal(bytes: impl Into<Cow<'a, [u8]>>) -> Self {
        Self::new([Segment::Literal(bytes.into())])
    }

    /// A file that shows a part of `source`.
    pub fn extent(source: &'a dyn Source, range: Range<u64>) -> Self {
        Self::new([Segment::Data(Data::Extent(Extent { source, range }))])
    }

    /// Length in bytes. Tells it without reading anything.
    pub fn len(&self) -> u64 {
        self.segments.iter().map(Segment::len).sum()
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `size` bytes from `offset` on, fewer only where the file ends: the kernel takes a short answer for its end.
    ///
    /// Inside one segment the bytes are borrowed, and must be treated as [`Source::bytes`] says. Across a seam they are
    /// copied.
    pub fn read_at(self, offset: u64, size: u32) -> Result<Bytes<'a>, Error> {
        let end = offset.saturating_add(size.into()).min(self.len());
        let offset = offset.min(end);
        let mut seam = Vec::new();
        let mut start = 0;
        for segment in self.segments {
            let len = segment.len();
            // The part of the segment that is asked for, counted from the segment's own start.
            let part = offset.saturating_sub(start).min(len)..end.saturating_sub(start).min(len);
            if part.start < part.end {
                if part.end - part.start == end - offset {
                    return segment.borrow(part);
                }
                seam.reserve_exact((end - offset) as usize - seam.len());
                segment.append(part, &mut seam)?;
            }
            start += len;
        }
        Ok(Bytes::Owned(seam))
    }
}

impl<'a> Segment<'a> {
    fn borrow(self, part: Range<u64>) -> Result<Bytes<'a>, Error> {
        match self {
            Self::Literal(Cow::Borrowed(bytes)) => Ok(Bytes::Borrowed(&bytes[indices(&part)])),
            Self::Data(data) => match data.run(&part) {
                Some((source, range)) => Ok(source.bytes(range)?),
                None => Self::Data(data).copy(part),
            },
            other => other.copy(part),
        }
    }

    fn copy(&self, part: Range<u64>) -> Result<Bytes<'a>, Error> {
        let mut bytes = Vec::with_capacity((part.end - part.start) as usize);
        self.append(part, &mut bytes)?;
        Ok(Bytes::Owned(bytes))
    }

    fn append(&self, part: Range<u64>, out: &mut Vec<u8>) -> Result<(), Error> {
        match self {
            Self::Literal(bytes) => out.extend_from_slice(&bytes[indices(&part)]),
            Self::Data(data) => {
                let from = out.len();
                out.resize(from + (part.end - part.start) as usize, 0);
                data.read_exact_at(&mut out[from..], part.start)?;
            }
            Self::Decoded(decoded) => decoded.append(part, out)?,
            Self::Generated(generated) => (generated.write)(part, out)?,
        }
        Ok(())
    }
}

impl<'a> Data<'a> {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Extent(extent) => extent.range.end - extent.range.start,
            Self::Extents(extents) => extents.len,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `buf.len()` bytes from `offset` on, which must be there.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Error> {
        match self {
            Self::Extent(extent) => Ok(extent.source.read_exact_at(buf, extent.range.start + offset)?),
            Self::Extents(extents) => extents.read_exact_at(buf, offset),
        }
    }

    /// Where a part lies, if it is in one run.
    fn run(&self, part: &Range<u64>) -> Option<(&'a dyn Source, Range<u64>)> {
        match self {
            Self::Extent(Extent { source, range }) => Some((*source, range.start + part.start..range.start + part.end)),
            Self::Extents(extents) => extents.run(part),
        }
    }
}

impl<'a> Extents<'a> {
    fn run(&self, part: &Range<u64>) -> Option<(&'a dyn Source, Range<u64>)> {
        let at = self.run_at(part.start);
        let run = self.runs.get(at)?;
        let from = run.offset + part.start - run.start;
        (part.end <= self.end(at)).then(|| (&*self.sources[run.source as usize], from..from + part.end - part.start))
    }

    fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> Result<(), Error> {
        for at in self.run_at(offset)..self.runs.len() {
            if buf.is_empty() {
                break;
            }
            let run = self.runs[at];
            let here = (self.end(at) - offset).min(buf.len() as u64);
            let (part, rest) = buf.split_at_mut(here as usize);
            self.sources[run.source as usize].read_exact_at(part, run.offset + offset - run.start)?;
            (buf, offset) = (rest, offset + here);
        }
        Ok(())
    }

    fn run_at(&self, offset: u64) -> usize {
        self.runs.partition_point(|run| run.start <= offset).saturating_sub(1)
    }

    fn end(&self, at: usize) -> u64 {
        self.runs.get(at + 1).map_or(self.len, |next| next.start)
    }
}

impl Decoded<'_> {
    /// Decodes the groups that `part` touches and no others.
    fn append(&self, part: Range<u64>, out: &mut Vec<u8>) -> Result<(), Error> {
        let Decoder { group_in, group_out, decode } = self.decoder;
        let mut group = part.start / group_out as u64;
        let end = part.end.div_ceil(group_out as u64);
        let skipped = (part.start - group * group_out as u64) as usize;
        let from = out.len();
        let mut encoded = [0; DECODED_AT_ONCE];
        while group < end {
            let groups = (end - group).min((DECODED_AT_ONCE / group_in) as u64) as usize;
            let encoded = &mut encoded[..groups * group_in];
            self.data.read_exact_at(encoded, group * group_in as u64)?;
            let at = out.len();
            out.resize(at + groups * group_out, 0);
            decode(encoded, &mut out[at..]);
            group += groups as u64;
        }
        out.drain(from..from + skipped);
        out.truncate(from + (part.end - part.start) as usize);
        Ok(())
    }
}

/// A part of a segment that is in memory.
fn indices(part: &Range<u64>) -> Range<usize> {
    part.start as usize..part.end as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Memory;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Kind {
        Borrowed(Vec<u8>),
        Owned(Vec<u8>),
        Extent(usize, usize),
        Generated(Vec<u8>),
        Extents(Vec<(usize, usize)>),
        Decoded(usize, usize),
    }

    /// Three bytes become five: their sum, then each of them and a zero.
    const DECODER: Decoder = Decoder {
        group_in: 3,
        group_out: 5,
        decode: |input, output| {
            for (input, output) in input.chunks_exact(3).zip(output.chunks_exact_mut(5)) {
                output.copy_from_slice(&[input.iter().sum(), input[0], input[1], input[2], 0]);
            }
        },
    };

    fn kind() -> impl Strategy<Value = Kind> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..12);
        prop_oneof![
            bytes().prop_map(Kind::Borrowed),
            bytes().prop_map(Kind::Owned),
            bytes().prop_map(Kind::Generated),
            (0usize..60, 0usize..12).prop_map(|(start, len)| Kind::Extent(start, (start + len).min(64))),
            prop::collection::vec((0usize..60, 1usize..5), 0..5)
                .prop_map(|runs| Kind::Extents(runs.into_iter().map(|(start, len)| (start, start + len)).collect())),
            (0usize..50, 0usize..5).prop_map(|(start, groups)| Kind::Decoded(start, start + groups * 3)),
        ]
    }

    fn runs(extents: &[(usize, usize)]) -> Vec<Run> {
        let mut start = 0;
        let run = |(from, to): &(usize, usize)| {
            let run = Run { start, source: 0, offset: *from as u64 };
            start += (to - from) as u64;
            run
        };
        extents.iter().map(run).collect()
    }

    fn content<'a>(kinds: &'a [Kind], sources: &'a [Box<dyn Source>], tables: &'a [Vec<Run>]) -> Content<'a> {
        let source = &*sources[0];
        let extent = |start: usize, end: usize| Data::Extent(Extent { source, range: start as u64..end as u64 });
        Content::new(kinds.iter().zip(tables).map(|(kind, runs)| match kind {
            Kind::Extents(extents) => {
                let len = extents.iter().map(|(from, to)| (to - from) as u64).sum();
                Segment::Data(Data::Extents(Extents { sources, runs, len }))
            }
            Kind::Decoded(start, end) => Segment::Decoded(Decoded { data: extent(*start, *end), decoder: DECODER }),
            Kind::Borrowed(bytes) => Segment::Literal(Cow::Borrowed(bytes)),
            Kind::Owned(bytes) => Segment::Literal(Cow::Owned(bytes.clone())),
            Kind::Extent(start, end) => Segment::Data(extent(*start, *end)),
            Kind::Generated(bytes) => Segment::Generated(Generated {
                len: bytes.len() as u64,
                write: Box::new(|range, out| {
                    out.extend_from_slice(&bytes[indices(&range)]);
                    Ok(())
                }),
            }),
        }))
    }

    proptest! {
        #[test]
        fn reads_like_plain_concatenation(kinds in prop::collection::vec(kind(), 0..6)) {
            let bytes: Vec<u8> = (0..64).collect();
            let sources: [Box<dyn Source>; 1] = [Box::new(Memory::new(bytes.clone()))];
            let whole: Vec<u8> = kinds.iter().flat_map(|kind| match kind {
                Kind::Borrowed(bytes) | Kind::Owned(bytes) | Kind::Generated(bytes) => bytes.clone(),
                Kind::Extent(start, end) => bytes[*start..*end].to_vec(),
                Kind::Extents(runs) => runs.iter().flat_map(|(from, to)| bytes[*from..*to].to_vec()).collect(),
                Kind::Decoded(start, end) => {
                    let mut decoded = vec![0; (end - start) / 3 * 5];
                    (DECODER.decode)(&bytes[*start..*end], &mut decoded);
                    decoded
                }
            }).collect();
            let tables: Vec<_> = kinds.iter().map(|kind| match kind {
                Kind::Extents(extents) => runs(extents),
                _ => Vec::new(),
            }).collect();
            let content = || content(&kinds, &sources, &tables);
            prop_assert_eq!(content().len(), whole.len() as u64);
            for offset in 0..whole.len() + 2 {
                for size in 0..whole.len() + 2 - offset.min(whole.len()) {
                    let expected = &whole[offset.min(whole.len())..(offset + size).min(whole.len())];
                    let read = content().read_at(offset as u64, size as u32).unwrap();
                    prop_assert_eq!(&read[..], expected);
                }
            }
            let far = content().read_at(u64::MAX, u32::MAX).unwrap();
            prop_assert!(far.is_empty());
        }
    }

    #[test]
    fn a_read_inside_one_segment_borrows() {
        let source = Memory::new(vec![1; 64]);
        let npy = || {
            Content::new([
                Segment::Literal(Cow::Borrowed(b"header")),
                Segment::Data(Data::Extent(Extent { source: &source, range: 8..64 })),
            ])
        };
        assert!(matches!(npy().read_at(0, 6), Ok(Bytes::Borrowed(_))));
        assert!(matches!(npy().read_at(6, 56), Ok(Bytes::Borrowed(bytes)) if bytes.len() == 56));
        assert!(matches!(npy().read_at(6, 100), Ok(Bytes::Borrowed(bytes)) if bytes.len() == 56));
        assert!(matches!(npy().read_at(5, 2), Ok(Bytes::Owned(bytes)) if bytes == b"r\x01"));
    }
}
