//! Reads of spliced files: what plain concatenation gives, at any offset and of any size.

use super::headers::once_in;
use arbitrary::{Result, Unstructured};
use std::borrow::Cow;
use std::ops::Range;
use weightfs::content::{Content, Data, Decoded, Decoder, Extent, Extents, Generated, Run, Segment};
use weightfs::source::{Memory, Source};

pub fn run(bytes: &[u8]) -> bool {
    read(&mut Unstructured::new(bytes)).is_ok()
}

/// A segment, told so that it can be made again for each read.
enum Part {
    Borrowed(Vec<u8>),
    Owned(Vec<u8>),
    Generated(Vec<u8>),
    Data(Place),
    Decoded(Place, Decoder),
}

/// Where data lies.
enum Place {
    Extent(usize, Range<u64>),
    Extents(Vec<Run>, u64),
}

/// Groups that grow, shrink and stay, in the sizes of real dtypes.
const DECODERS: [Decoder; 5] =
    [decoder::<1, 4>(), decoder::<3, 16>(), decoder::<2, 4>(), decoder::<8, 4>(), decoder::<5, 5>()];

const fn decoder<const IN: usize, const OUT: usize>() -> Decoder {
    Decoder { group_in: IN, group_out: OUT, decode: decode::<IN, OUT> }
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
    /// A place in `sources` of whole groups of that size.
    fn new(sources: &[Vec<u8>], group: usize, bytes: &mut Unstructured) -> Result<Self> {
        let extent = |bytes: &mut Unstructured| {
            let source = bytes.choose_index(sources.len())?;
            let start = bytes.int_in_range(0..=sources[source].len())?;
            Ok((source, start, bytes.int_in_range(start..=sources[source].len())? - start))
        };
        if !once_in(2, bytes)? {
            let (source, start, len) = extent(bytes)?;
            return Ok(Self::Extent(source, start as u64..(start + len / group * group) as u64));
        }
        let (mut runs, mut whole) = (Vec::new(), 0);
        for _ in 0..bytes.int_in_range(0..=5)? {
            let (source, start, len) = extent(bytes)?;
            if len > 0 {
                runs.push(Run { start: whole, source: source as u32, offset: start as u64 });
                whole += len as u64;
            }
        }
        // A group may lie across runs.
        whole -= whole % group as u64;
        runs.retain(|run| run.start < whole);
        Ok(Self::Extents(runs, whole))
    }

    fn data<'a>(&'a self, sources: &'a [Box<dyn Source>]) -> Data<'a> {
        match self {
            Self::Extent(source, range) => Data::Extent(Extent { source: &*sources[*source], range: range.clone() }),
            Self::Extents(runs, len) => Data::Extents(Extents { sources, runs, len: *len }),
        }
    }

    fn bytes(&self, sources: &[Vec<u8>]) -> Vec<u8> {
        match self {
            Self::Extent(source, range) => sources[*source][range.start as usize..range.end as usize].to_vec(),
            Self::Extents(runs, len) => Run::with_lengths(runs, *len)
                .flat_map(|(run, len)| &sources[run.source as usize][run.offset as usize..][..len as usize])
                .copied()
                .collect(),
        }
    }
}

impl Part {
    fn new(sources: &[Vec<u8>], bytes: &mut Unstructured) -> Result<Self> {
        let kind = bytes.int_in_range(0..=6)?;
        if kind > 2 {
            let decoder = *bytes.choose(&DECODERS)?;
            return Ok(match kind {
                3..=4 => Self::Data(Place::new(sources, 1, bytes)?),
                _ => Self::Decoded(Place::new(sources, decoder.group_in, bytes)?, decoder),
            });
        }
        let len = bytes.int_in_range(0..=12)?;
        let literal = bytes.bytes(len.min(bytes.len()))?.to_vec();
        Ok([Self::Borrowed, Self::Owned, Self::Generated][kind](literal))
    }

    fn segment<'a>(&'a self, sources: &'a [Box<dyn Source>]) -> Segment<'a> {
        match self {
            Self::Borrowed(bytes) => Segment::Literal(Cow::Borrowed(bytes)),
            Self::Owned(bytes) => Segment::Literal(Cow::Owned(bytes.clone())),
            Self::Data(place) => Segment::Data(place.data(sources)),
            Self::Decoded(place, decoder) => Segment::Decoded(Decoded { data: place.data(sources), decoder: *decoder }),
            Self::Generated(bytes) => {
                let write = move |range: Range<u64>, out: &mut Vec<u8>| {
                    out.extend_from_slice(&bytes[range.start as usize..range.end as usize]);
                    Ok(())
                };
                Segment::Generated(Generated { len: bytes.len() as u64, write: Box::new(write) })
            }
        }
    }

    fn bytes(&self, sources: &[Vec<u8>]) -> Vec<u8> {
        match self {
            Self::Borrowed(bytes) | Self::Owned(bytes) | Self::Generated(bytes) => bytes.clone(),
            Self::Data(place) => place.bytes(sources),
            Self::Decoded(place, Decoder { group_in, group_out, decode }) => {
                let encoded = place.bytes(sources);
                let mut decoded = vec![0; encoded.len() / group_in * group_out];
                decode(&encoded, &mut decoded);
                decoded
            }
        }
    }
}

fn read(bytes: &mut Unstructured) -> Result<()> {
    let mut plain = Vec::new();
    for number in 0..bytes.int_in_range(1..=3)? {
        // Some are longer than what is decoded at once.
        let len =
            if once_in(8, bytes)? { bytes.int_in_range(32_000..=70_000)? } else { bytes.int_in_range(0..=200)? };
        plain.push((0..len).map(|at: usize| (at * 7 + (at >> 8) * 13 + number * 101) as u8).collect());
    }
    let sources: Vec<Box<dyn Source>> =
        plain.iter().map(|bytes: &Vec<u8>| Box::new(Memory::new(bytes.clone())) as Box<dyn Source>).collect();
    let mut parts = Vec::new();
    for _ in 0..bytes.int_in_range(0..=8)? {
        parts.push(Part::new(&plain, bytes)?);
    }
    let pieces: Vec<Vec<u8>> = parts.iter().map(|part| part.bytes(&plain)).collect();
    let whole = pieces.concat();
    let content = || Content::new(parts.iter().map(|part| part.segment(&sources)));
    assert_eq!((content().len(), content().is_empty()), (whole.len() as u64, whole.is_empty()));
    let check = |offset: u64, size: u32| {
        let from = whole.len().min(offset as usize);
        let to = whole.len().min(from + size as usize);
        assert!(content().read_at(offset, size).unwrap()[..] == whole[from..to], "{size} bytes from {offset} on");
    };
    check(0, u32::MAX);
    check(u64::MAX, u32::MAX);
    // Around every seam.
    let mut seam = 0u64;
    for piece in &pieces {
        seam += piece.len() as u64;
        check(seam.saturating_sub(1), 2);
        check(seam.saturating_sub(piece.len() as u64), piece.len() as u32);
    }
    for _ in 0..8 {
        let offset = bytes.int_in_range(0..=whole.len() as u64 + 1)?;
        check(offset, bytes.int_in_range(0..=whole.len() as u32 + 1)?);
    }
    Ok(())
}
