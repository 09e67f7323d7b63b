//! Target `content`: a read of a spliced file returns what plain concatenation gives, at any offset and size.

use super::headers::once_in;
use arbitrary::{Result, Unstructured};
use std::ops::Range;
use std::sync::Arc;
use weightfs::content::{
    BlockDecoder, Content, DecodedData, Error, Extents, GeneratedBytes, ReadRequest, SecondStep, Segment,
    SegmentSeries, SourceRun, Sources, TakeSegment,
};
use weightfs::source::{MemorySource, Source};

pub fn run(bytes: &[u8]) -> bool {
    read(&mut Unstructured::new(bytes)).is_ok()
}

/// A description of a [`Segment`].
enum Part {
    Literal(Vec<u8>),
    Generated(Vec<u8>),
    Data(Place),
    Decoded(Place, BlockDecoder),
}

/// A description of the data of a tensor.
enum Place {
    /// A source by index, and a range of it.
    Extent(usize, Range<u64>),
    /// Runs, and their total length.
    Extents(Vec<SourceRun>, u64),
}

/// Decoders whose output is longer than, shorter than and as long as the input.
const DECODERS: [BlockDecoder; 5] =
    [decoder::<1, 4>(), decoder::<3, 16>(), decoder::<2, 4>(), decoder::<8, 4>(), decoder::<5, 5>()];

const fn decoder<const IN: usize, const OUT: usize>() -> BlockDecoder {
    BlockDecoder { block_in: IN, block_out: OUT, decode: decode::<IN, OUT>, then: None }
}

/// The same decoder with a second step.
fn twice(decoder: BlockDecoder) -> BlockDecoder {
    let convert: fn(&[u8], &mut [u8]) = |input, output| {
        assert_eq!(input.len(), output.len());
        input.iter().zip(output).for_each(|(input, output)| *output = !input);
    };
    BlockDecoder { then: Some(SecondStep { block: decoder.block_out, convert }), ..decoder }
}

fn decode<const IN: usize, const OUT: usize>(input: &[u8], output: &mut [u8]) {
    assert_eq!((input.len() % IN, input.len() / IN * OUT), (0, output.len()));
    for (input, output) in input.chunks_exact(IN).zip(output.chunks_exact_mut(OUT)) {
        for (at, byte) in output.iter_mut().enumerate() {
            *byte = input[at % IN].wrapping_add(at as u8);
        }
    }
}

impl Place {
    /// A place in `sources` whose length is a multiple of `block` bytes.
    fn new(sources: &[Vec<u8>], block: usize, bytes: &mut Unstructured) -> Result<Self> {
        let extent = |bytes: &mut Unstructured| {
            let source = bytes.choose_index(sources.len())?;
            let start = bytes.int_in_range(0..=sources[source].len())?;
            Ok((source, start, bytes.int_in_range(start..=sources[source].len())? - start))
        };
        if !once_in(2, bytes)? {
            let (source, start, len) = extent(bytes)?;
            return Ok(Self::Extent(source, start as u64..(start + len / block * block) as u64));
        }
        let (mut runs, mut whole) = (Vec::new(), 0);
        for _ in 0..bytes.int_in_range(0..=5)? {
            let (source, start, len) = extent(bytes)?;
            if len > 0 {
                runs.push(SourceRun { start: whole, source, offset: start as u64 });
                whole += len as u64;
            }
        }
        // A block may span several runs.
        whole -= whole % block as u64;
        runs.retain(|run| run.start < whole);
        Ok(Self::Extents(runs, whole))
    }

    fn data(&self, sources: &Sources) -> Segment {
        match self {
            Self::Extent(source, range) => Segment::extent(&sources[*source], range.clone()),
            Self::Extents(runs, len) => Segment::Extents(Extents::new(sources.clone(), runs.as_slice().into(), *len)),
        }
    }

    /// The bytes that a read should return.
    fn bytes(&self, sources: &[Vec<u8>]) -> Vec<u8> {
        match self {
            Self::Extent(source, range) => sources[*source][range.start as usize..range.end as usize].to_vec(),
            Self::Extents(runs, len) => {
                let ends = runs.iter().skip(1).map(|next| next.start).chain([*len]);
                let run_bytes = |(run, end): (&SourceRun, u64)| {
                    let offset = run.offset as usize;
                    sources[run.source][offset..offset + (end - run.start) as usize].to_vec()
                };
                runs.iter().zip(ends).flat_map(run_bytes).collect()
            }
        }
    }
}

impl Part {
    fn new(sources: &[Vec<u8>], bytes: &mut Unstructured) -> Result<Self> {
        let kind = bytes.int_in_range(0..=5)?;
        if kind > 1 {
            let decoder = *bytes.choose(&DECODERS)?;
            return Ok(match kind {
                2..=3 => Self::Data(Place::new(sources, 1, bytes)?),
                4 => Self::Decoded(Place::new(sources, decoder.block_in, bytes)?, decoder),
                _ => Self::Decoded(Place::new(sources, decoder.block_in, bytes)?, twice(decoder)),
            });
        }
        let len = bytes.int_in_range(0..=12)?;
        let literal = bytes.bytes(len.min(bytes.len()))?.to_vec();
        Ok([Self::Literal, Self::Generated][kind](literal))
    }

    fn segment(&self, sources: &Sources) -> Segment {
        match self {
            Self::Literal(bytes) => Segment::Literal(bytes.as_slice().into()),
            Self::Data(place) => place.data(sources),
            Self::Decoded(place, decoder) => {
                Segment::Decoded(DecodedData { data: place.data(sources), decoder: *decoder }.into())
            }
            Self::Generated(bytes) => Segment::Generated(Arc::new(GeneratedVec(bytes.clone()))),
        }
    }

    /// The bytes that a read should return.
    fn bytes(&self, sources: &[Vec<u8>]) -> Vec<u8> {
        match self {
            Self::Literal(bytes) | Self::Generated(bytes) => bytes.clone(),
            Self::Data(place) => place.bytes(sources),
            Self::Decoded(place, BlockDecoder { block_in, block_out, decode, then }) => {
                let encoded = place.bytes(sources);
                let mut decoded = vec![0; encoded.len() / block_in * block_out];
                decode(&encoded, &mut decoded);
                if then.is_some() {
                    decoded.iter_mut().for_each(|byte| *byte = !*byte);
                }
                decoded
            }
        }
    }
}

/// Bytes that are generated from a vector.
struct GeneratedVec(Vec<u8>);

impl GeneratedBytes for GeneratedVec {
    fn nbytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn fill(&self, buf: &mut [u8], offset: u64, _: &ReadRequest) -> std::result::Result<(), Error> {
        buf.copy_from_slice(&self.0[offset as usize..][..buf.len()]);
        Ok(())
    }
}

/// Segments as a series.
struct SegmentVec(Vec<Segment>);

impl SegmentSeries for SegmentVec {
    fn nbytes(&self) -> u64 {
        self.0.iter().map(Segment::len).sum()
    }

    fn visit_segments(&self, part: &Range<u64>, take: &mut TakeSegment) -> std::result::Result<(), Error> {
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

fn read(bytes: &mut Unstructured) -> Result<()> {
    let mut plain = Vec::new();
    for number in 0..bytes.int_in_range(1..=3)? {
        // Some sources are longer than the unit of decoding.
        let len =
            if once_in(8, bytes)? { bytes.int_in_range(32_000..=70_000)? } else { bytes.int_in_range(0..=200)? };
        plain.push((0..len).map(|at: usize| (at * 7 + (at >> 8) * 13 + number * 101) as u8).collect());
    }
    let sources: Sources =
        plain.iter().map(|bytes: &Vec<u8>| Arc::new(MemorySource::new(bytes.clone())) as Arc<dyn Source>).collect();
    let mut parts = Vec::new();
    for _ in 0..bytes.int_in_range(0..=8)? {
        parts.push(Part::new(&plain, bytes)?);
    }
    let pieces: Vec<Vec<u8>> = parts.iter().map(|part| part.bytes(&plain)).collect();
    let whole = pieces.concat();
    let segments: Vec<Segment> = parts.iter().map(|part| part.segment(&sources)).collect();
    let series = Content::from(Segment::Series(Arc::new(SegmentVec(segments.clone()))));
    let contents = [Content::new(segments), series];
    for content in &contents {
        assert_eq!((content.len(), content.is_empty()), (whole.len() as u64, whole.is_empty()));
    }
    let check = |offset: u64, size: u32| {
        let from = whole.len().min(offset as usize);
        let to = whole.len().min(from + size as usize);
        for content in &contents {
            let read = content.read(offset..offset.saturating_add(size.into()), &ReadRequest::WAIT).unwrap();
            assert!(read[..] == whole[from..to], "{size} bytes at offset {offset}");
        }
    };
    check(0, u32::MAX);
    check(u64::MAX, u32::MAX);
    // Reads across every boundary of two segments, and of every whole segment.
    let mut boundary = 0u64;
    for piece in &pieces {
        boundary += piece.len() as u64;
        check(boundary.saturating_sub(1), 2);
        check(boundary.saturating_sub(piece.len() as u64), piece.len() as u32);
    }
    for _ in 0..8 {
        let offset = bytes.int_in_range(0..=whole.len() as u64 + 1)?;
        check(offset, bytes.int_in_range(0..=whole.len() as u32 + 1)?);
    }
    Ok(())
}
