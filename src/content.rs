//! What a file in the mount consists of: knows how to splice segments, not what they mean.

use crate::source::{self, Source};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ops::Range;

/// A file as a splice of segments, made on demand and never stored.
#[derive(Debug)]
pub struct Content<'a> {
    segments: SmallVec<[Segment<'a>; 1]>,
}

/// A part of a file.
#[derive(Debug)]
pub enum Segment<'a> {
    /// The bytes themselves.
    Literal(Cow<'a, [u8]>),
    /// Bytes that lie in a source.
    Extent(Extent<'a>),
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

/// A text that need not be in memory: it can write any part of itself.
pub struct Generated<'a> {
    /// Length in bytes.
    pub len: u64,
    /// Appends the bytes of the range, which lies within the length, to the vector.
    pub write: Write<'a>,
}

/// Writes a part of a text.
type Write<'a> = Box<dyn Fn(Range<u64>, &mut Vec<u8>) + 'a>;

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
            other => {
                let mut bytes = Vec::with_capacity((part.end - part.start) as usize);
                other.append(part, &mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }

    fn append(&self, part: Range<u64>, out: &mut Vec<u8>) -> Result<(), Error> {
        match self {
            Self::Literal(bytes) => out.extend_from_slice(&bytes[indices(&part)]),
            Self::Extent(Extent { source, range }) => {
                let from = out.len();
                out.resize(from + (part.end - part.start) as usize, 0);
                source.read_exact_at(&mut out[from..], range.start + part.start)?;
            }
            Self::Generated(generated) => (generated.write)(part, out),
        }
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
    }

    fn kind() -> impl Strategy<Value = Kind> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..12);
        prop_oneof![
            bytes().prop_map(Kind::Borrowed),
            bytes().prop_map(Kind::Owned),
            bytes().prop_map(Kind::Generated),
            (0usize..60, 0usize..12).prop_map(|(start, len)| Kind::Extent(start, (start + len).min(64))),
        ]
    }

    fn content<'a>(kinds: &'a [Kind], source: &'a Memory) -> Content<'a> {
        Content::new(kinds.iter().map(|kind| match kind {
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
            }).collect();
            prop_assert_eq!(content(&kinds, &source).len(), whole.len() as u64);
            for offset in 0..whole.len() + 2 {
                for size in 0..whole.len() + 2 - offset.min(whole.len()) {
                    let expected = &whole[offset.min(whole.len())..(offset + size).min(whole.len())];
                    let read = content(&kinds, &source).read_at(offset as u64, size as u32).unwrap();
                    prop_assert_eq!(&read[..], expected);
                }
            }
            let far = content(&kinds, &source).read_at(u64::MAX, u32::MAX).unwrap();
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
