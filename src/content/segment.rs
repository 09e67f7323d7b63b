//! A part of a file: bytes in memory, bytes of sources as they are, or bytes that are made of them.

use super::decoder::BlockDecoder;
use super::extents::{Extent, Extents, TakeRun};
use super::request::{Error, ReadRequest, zeroed};
use super::strided::StridedData;
use crate::source::{Bytes, Source};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A part of a file, or the data of a tensor.
#[derive(Debug, Clone)]
pub enum Segment {
    /// Bytes in memory.
    Literal(Arc<[u8]>),
    /// A run of bytes of a source.
    Extent(Extent),
    /// Several runs, one after the other.
    Extents(Extents),
    /// Elements of a source that do not lie in C order.
    Strided(StridedData),
    /// Another segment, decoded.
    Decoded(Arc<DecodedData>),
    /// Bytes that are made when they are read.
    Generated(Arc<dyn GeneratedBytes>),
    /// Many segments, each of which is created when it is read.
    Series(Arc<dyn SegmentSeries>),
}

/// A segment of encoded blocks, which are decoded when they are read.
#[derive(Debug, Clone)]
pub struct DecodedData {
    /// The encoded bytes: whole blocks.
    pub data: Segment,
    pub decoder: BlockDecoder,
}

/// Bytes of known number that are not kept in memory.
pub trait GeneratedBytes: Send + Sync {
    fn nbytes(&self) -> u64;

    /// Fills `buf` with the bytes from `offset` on, which lie inside the number of bytes.
    fn fill(&self, buf: &mut [u8], offset: u64, request: &ReadRequest) -> Result<(), Error>;

    /// Passes the stored runs that `part` is made of to `take`, as far as they are known. Returns whether they stay the
    /// same: they do not if they depend on what is in memory or open.
    fn visit_runs(&self, _part: &Range<u64>, _take: &mut TakeRun) -> bool {
        true
    }
}

/// Consecutive segments that are not kept in memory.
pub trait SegmentSeries: Send + Sync {
    /// Total number of bytes.
    fn nbytes(&self) -> u64;

    /// Passes each segment that overlaps `part` and the offset at which the segment begins to `take`, until it fails.
    /// `part` is not empty. No segment is a [`Segment::Series`].
    fn visit_segments(&self, part: &Range<u64>, take: &mut TakeSegment) -> Result<(), Error>;
}

/// Takes a segment and the offset at which it begins, in bytes from the start of its series.
pub type TakeSegment<'t> = dyn FnMut(&Segment, u64) -> Result<(), Error> + 't;

impl fmt::Debug for dyn GeneratedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GeneratedBytes {{ nbytes: {} }}", self.nbytes())
    }
}

impl fmt::Debug for dyn SegmentSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SegmentSeries {{ nbytes: {} }}", self.nbytes())
    }
}

impl Segment {
    /// A run of bytes of a source.
    pub fn extent(source: &Arc<dyn Source>, range: Range<u64>) -> Self {
        Self::Extent(Extent { source: source.clone(), range })
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Literal(bytes) => bytes.len() as u64,
            Self::Extent(Extent { range, .. }) => range.end - range.start,
            Self::Extents(extents) => extents.len(),
            Self::Strided(strided) => strided.layout.nbytes(),
            Self::Decoded(decoded) => {
                let BlockDecoder { block_in, block_out, .. } = decoded.decoder;
                decoded.data.len() / block_in as u64 * block_out as u64
            }
            Self::Generated(generated) => generated.nbytes(),
            Self::Series(series) => series.nbytes(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Passes the stored runs that are needed for `part`, as far as they are known, to `take`. Returns whether they
    /// stay the same: they do not if they depend on what is in memory or open.
    pub fn visit_runs(&self, part: &Range<u64>, take: &mut TakeRun) -> bool {
        match self {
            Self::Literal(_) => true,
            Self::Extent(extent) => {
                take(&extent.source, extent.place(part));
                true
            }
            Self::Extents(extents) => {
                extents.visit_runs(part, take);
                true
            }
            Self::Strided(strided) => strided.visit_runs(part, take),
            Self::Decoded(decoded) => decoded.data.visit_runs(&decoded.decoder.encoded(part), take),
            Self::Generated(generated) => generated.visit_runs(part, take),
            Self::Series(series) => {
                let mut are_final = true;
                // If a segment cannot be made, the read fails with the error.
                let _ = series.visit_segments(part, &mut |segment, begins| {
                    are_final &= segment.visit_runs(&overlap(segment, begins, part), take);
                    Ok(())
                });
                are_final
            }
        }
    }

    /// The source and the range there, if all bytes are one run.
    pub(super) fn run(&self) -> Option<(&dyn Source, Range<u64>)> {
        match self {
            Self::Extent(extent) => Some((&*extent.source, extent.range.clone())),
            Self::Extents(extents) => extents.run(&(0..extents.len())),
            _ => None,
        }
    }

    /// The bytes of `part` without a copy. `None` if they have to be gathered or made.
    pub(super) fn shared(&self, part: &Range<u64>) -> Option<Result<Bytes, Error>> {
        let (source, range) = match self {
            Self::Literal(bytes) => {
                return Some(Ok(Bytes::Shared(bytes.clone(), part.start as usize..part.end as usize)));
            }
            Self::Extent(extent) => (&*extent.source, extent.place(part)),
            Self::Extents(extents) => extents.run(part)?,
            Self::Series(series) => {
                let mut shared = None;
                let first = part.start..part.start + 1;
                let _ = series.visit_segments(&first, &mut |segment, begins| {
                    let here = overlap(segment, begins, part);
                    let is_all = here.end - here.start == part.end - part.start;
                    shared = if is_all { segment.shared(&here) } else { None };
                    Ok(())
                });
                return shared;
            }
            Self::Strided(_) | Self::Decoded(_) | Self::Generated(_) => return None,
        };
        Some(source.bytes(range).map_err(Error::from))
    }

    /// Fills `buf` with the bytes from `offset` on, which lie inside the length.
    pub fn fill(&self, buf: &mut [u8], offset: u64, request: &ReadRequest) -> Result<(), Error> {
        match self {
            Self::Literal(bytes) => buf.copy_from_slice(&bytes[offset as usize..offset as usize + buf.len()]),
            Self::Extent(Extent { source, range }) => source.read_exact_at(buf, range.start + offset)?,
            Self::Extents(extents) => extents.fill(buf, offset)?,
            Self::Strided(strided) => strided.fill(buf, offset)?,
            Self::Decoded(decoded) => decoded.fill(buf, offset, request)?,
            Self::Generated(generated) => generated.fill(buf, offset, request)?,
            Self::Series(series) => {
                let part = offset..offset + buf.len() as u64;
                series.visit_segments(&part, &mut |segment, begins| {
                    let here = overlap(segment, begins, &part);
                    let at = (begins + here.start - offset) as usize;
                    segment.fill(&mut buf[at..at + (here.end - here.start) as usize], here.start, request)
                })?;
            }
        }
        Ok(())
    }
}

impl DecodedData {
    /// As [`Segment::fill`]. Decodes only the blocks that overlap the range.
    fn fill(&self, buf: &mut [u8], offset: u64, request: &ReadRequest) -> Result<(), Error> {
        let needed = self.decoder.encoded(&(offset..offset + buf.len() as u64));
        let is_direct = match &self.data {
            Segment::Literal(_) | Segment::Extent(_) => true,
            Segment::Extents(extents) => !extents.is_gathered(&needed),
            _ => false,
        };
        if is_direct {
            return self.decoder.fill(buf, offset, |encoded, from| self.data.fill(encoded, from, request));
        }
        // Gathering or making little at a time would read the same parts of a source many times.
        let mut gathered = zeroed((needed.end - needed.start) as usize)?;
        self.data.fill(&mut gathered, needed.start, request)?;
        self.decoder.fill(buf, offset, |encoded, from| {
            encoded.copy_from_slice(&gathered[(from - needed.start) as usize..][..encoded.len()]);
            Ok(())
        })
    }
}

/// The bytes of a segment that lie in `part` of its series. The segment begins at `begins`.
fn overlap(segment: &Segment, begins: u64, part: &Range<u64>) -> Range<u64> {
    part.start.saturating_sub(begins)..(part.end - begins).min(segment.len())
}
