//! What a file in the mount consists of: knows how to splice segments, not what they mean.

use crate::source::{self, Source};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ops::Range;

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
    /// Bytes that lie in a source.
    Extent(Extent<'a>),
    /// Runs of bytes in a source, one after the other.
    Extents(Extents<'a>),
    /// Bytes that lie in a source in another form.
    Decoded(Decoded<'a>),
    /// Text of a known length that is written when it is read.
    Generated(Generated<'a>),
}

/// A run of bytes in a source.
#[derive(Debug)]
pub struct Extent<'a> {
    /// Where the bytes are.
    pub source: &'a dyn Source,
    /// Which of them, in bytes from the start of the source.
    pub range: Range<u64>,
}

/// Many extents as one segment.
pub struct Extents<'a> {
    /// The sources by the numbers that the runs give them.
    pub source: Find<'a>,
    /// Sorted by `start`, the first of which is 0; none is empty.
    pub runs: &'a [Run],
    /// Length of all of them in bytes.
    pub len: u64,
}

/// Finds a source by its number.
type Find<'a> = Box<dyn Fn(u32) -> &'a (dyn Source + 'static) + 'a>;

/// One of [`Extents`]: it goes on until the next one starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// In bytes from the start of the segment.
    pub start: u64,
    /// Number of the source.
    pub source: u32,
    /// In bytes from the start of the source.
    pub offset: u64,
}

/// An extent whose elements are shown in another form, which may take more room.
#[derive(Debug)]
pub struct Decoded<'a> {
    /// The bytes as they lie in the source: whole groups.
    pub extent: Extent<'a>,
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
type Write<'a> = Box<dyn Fn(Range<u64>, &mut Vec<u8>) + 'a>;

impl std::fmt::Debug for Extents<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Extents {{ runs: {}, len: {} }}", self.runs.len(), self.len)
    }
}

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
}

impl Segment<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Literal(bytes) => bytes.len() as u64,
            Self::Extent(extent) => extent.range.end - extent.range.start,
            Self::Extents(extents) => extents.len,
            Self::Decoded(Decoded { extent: Extent { range, .. }, decoder }) => {
                (range.end - range.start) / decoder.group_in as u64 * decoder.group_out as u64
            }
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
        Self::new([Segment::Extent(Extent { source, range })])
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
    pub fn read_at(self, offset: u64, size: u32) -> Result<Cow<'a, [u8]>, Error> {
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
        Ok(Cow::Owned(seam))
    }
}

impl<'a> Segment<'a> {
    fn borrow(self, part: Range<u64>) -> Result<Cow<'a, [u8]>, Error> {
        match self {
            Self::Literal(Cow::Borrowed(bytes)) => Ok(Cow::Borrowed(&bytes[indices(&part)])),
            Self::Extent(Extent { source, range }) => {
                Ok(Cow::Borrowed(source.bytes(range.start + part.start..range.start + part.end)?))
            }
            Self::Extents(extents) => match extents.one(&part) {
                Some((source, range)) => Ok(Cow::Borrowed(source.bytes(range)?)),
                None => Self::Extents(extents).copy(part),
            },
            other => other.copy(part),
        }
    }

    fn copy(&self, part: Range<u64>) -> Result<Cow<'a, [u8]>, Error> {
        let mut bytes = Vec::with_capacity((part.end - part.start) as usize);
        self.append(part, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }

    fn append(&self, part: Range<u64>, out: &mut Vec<u8>) -> Result<(), Error> {
        match self {
            Self::Literal(bytes) => out.extend_from_slice(&bytes[indices(&part)]),
            Self::Extent(Extent { source, range }) => {
                append_bytes(*source, range.start + part.start..range.start + part.end, out)?;
            }
            Self::Extents(extents) => extents.append(part, out)?,
            Self::Decoded(decoded) => decoded.append(part, out)?,
            Self::Generated(generated) => (generated.write)(part, out),
        }
        Ok(())
    }
}

impl<'a> Extents<'a> {
    /// Where a part lies that is in one run.
    fn one(&self, part: &Range<u64>) -> Option<(&'a dyn Source, Range<u64>)> {
        let at = self.run_at(part.start);
        let run = self.runs.get(at)?;
        let from = run.offset + part.start - run.start;
        (part.end <= self.end(at)).then(|| ((self.source)(run.source), from..from + part.end - part.start))
    }

    fn append(&self, part: Range<u64>, out: &mut Vec<u8>) -> Result<(), Error> {
        for at in self.run_at(part.start)..self.runs.len() {
            let run = self.runs[at];
            let (from, to) = (run.start.max(part.start), self.end(at).min(part.end));
            if from >= to {
                break;
            }
            append_bytes((self.source)(run.source), run.offset + from - run.start..run.offset + to - run.start, out)?;
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
        let Extent { source, range } = &self.extent;
        let mut group = part.start / group_out as u64;
        let end = part.end.div_ceil(group_out as u64);
        let skipped = (part.start - group * group_out as u64) as usize;
        let from = out.len();
        let mut encoded = [0; DECODED_AT_ONCE];
        while group < end {
            let groups = (end - group).min((DECODED_AT_ONCE / group_in) as u64) as usize;
            let encoded = &mut encoded[..groups * group_in];
            source.read_exact_at(encoded, range.start + group * group_in as u64)?;
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

fn append_bytes(source: &dyn Source, range: Range<u64>, out: &mut Vec<u8>) -> Result<(), Error> {
    let from = out.len();
    out.resize(from + (range.end - range.start) as usize, 0);
    Ok(source.read_exact_at(&mut out[from..], range.start)?)
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

    fn content<'a>(kinds: &'a [Kind], source: &'a Memory, tables: &'a [Vec<Run>]) -> Content<'a> {
        Content::new(kinds.iter().zip(tables).map(|(kind, runs)| match kind {
            Kind::Extents(extents) => Segment::Extents(Extents {
                source: Box::new(|_| source),
                runs,
                len: extents.iter().map(|(from, to)| (to - from) as u64).sum(),
            }),
            Kind::Decoded(start, end) => Segment::Decoded(Decoded {
                extent: Extent { source, range: *start as u64..*end as u64 },
                decoder: DECODER,
            }),
            Kind::Borrowed(bytes) => Segment::Literal(Cow::Borrowed(bytes)),
            Kind::Owned(bytes) => Segment::Literal(Cow::Owned(bytes.clone())),
            Kind::Extent(start, end) => Segment::Extent(Extent { source, range: *start as u64..*end as u64 }),
            Kind::Generated(bytes) => Segment::Generated(Generated {
                len: bytes.len() as u64,
                write: Box::new(|range, out| out.extend_from_slice(&bytes[indices(&range)])),
            }),
        }))
    }

    proptest! {
        #[test]
        fn reads_like_plain_concatenation(kinds in prop::collection::vec(kind(), 0..6)) {
            let bytes: Vec<u8> = (0..64).collect();
            let source = Memory::new(bytes.clone());
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
            let content = || content(&kinds, &source, &tables);
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
                Segment::Extent(Extent { source: &source, range: 8..64 }),
            ])
        };
        assert!(matches!(npy().read_at(0, 6), Ok(Cow::Borrowed(_))));
        assert!(matches!(npy().read_at(6, 56), Ok(Cow::Borrowed(bytes)) if bytes.len() == 56));
        assert!(matches!(npy().read_at(6, 100), Ok(Cow::Borrowed(bytes)) if bytes.len() == 56));
        assert!(matches!(npy().read_at(5, 2), Ok(Cow::Owned(bytes)) if bytes == b"r\x01"));
    }
}
