//! The bytes that a range of elements needs, read from the parts and kept in memory, so that several reads can use
//! them.

use super::decode::{DecodedOutput, LayoutDecoder, SizeMismatch};
use super::layout::{Parts, QuantizedPart};
use super::needs::ByteRuns;
use std::ops::Range;

/// The bytes of all parts that a range of elements needs.
#[derive(Debug, Clone, Default)]
pub struct GatheredParts {
    held: Range<u64>,
    needs: Parts<ByteRuns>,
    parts: Parts<Vec<u8>>,
}

/// Runs are read together with the bytes between them if their distance is at most this multiple of their length.
const READ_FACTOR: u64 = 4;

const READ_MAX: u64 = 1 << 20;

impl GatheredParts {
    /// Reads what `held` needs, as [`LayoutDecoder::needs`] returns it. `read` fills a slice with the bytes at an
    /// offset of a part.
    pub fn new<E>(
        held: Range<u64>,
        needs: Parts<ByteRuns>,
        mut read: impl FnMut(QuantizedPart, u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut parts: Parts<Vec<u8>> = Parts::default();
        for ((part, runs), bytes) in QuantizedPart::ALL.into_iter().zip(needs).zip(&mut parts) {
            gather(runs, bytes, |offset, bytes| read(part, offset, bytes))?;
        }
        Ok(Self { held, needs, parts })
    }

    pub fn bytes(&self) -> usize {
        self.parts.iter().map(Vec::len).sum()
    }

    pub fn decode(&self, decoder: &LayoutDecoder, range: &Range<u64>, out: DecodedOutput) -> Result<(), SizeMismatch> {
        self.decode_with(&Self::default(), decoder, range, out)
    }

    /// Decodes with the parts that are kept in `shared` instead, for all ranges.
    pub fn decode_with(
        &self,
        shared: &Self,
        decoder: &LayoutDecoder,
        range: &Range<u64>,
        out: DecodedOutput,
    ) -> Result<(), SizeMismatch> {
        let (mut needs, mut parts) = (self.needs, self.parts.each_ref().map(Vec::as_slice));
        for part in QuantizedPart::ALL.map(|part| part as usize) {
            if shared.needs[part].count > 0 {
                (needs[part], parts[part]) = (shared.needs[part], &shared.parts[part]);
            }
        }
        decoder.decode_needed(&self.held, needs, &parts, range, out)
    }
}

/// Reads runs one after the other into `bytes`.
fn gather<E>(
    runs: ByteRuns,
    bytes: &mut Vec<u8>,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    bytes.resize(runs.bytes() as usize, 0);
    let is_sparse = runs.stride > runs.len.saturating_mul(READ_FACTOR);
    if runs.len == runs.stride || is_sparse {
        let len = if is_sparse { runs.len } else { runs.bytes() };
        let chunks = bytes.chunks_exact_mut(len.max(1) as usize);
        return (0..).zip(chunks).try_for_each(|(at, bytes)| read(runs.start + at * runs.stride, bytes));
    }
    let at_once = (READ_MAX / runs.stride).max(1);
    let mut span = Vec::new();
    for (at, bytes) in (0..).zip(bytes.chunks_mut((at_once * runs.len) as usize)) {
        let count = bytes.len() as u64 / runs.len;
        span.resize(((count - 1) * runs.stride + runs.len) as usize, 0);
        read(runs.start + at * at_once * runs.stride, &mut span)?;
        for (run, bytes) in span.chunks(runs.stride as usize).zip(bytes.chunks_exact_mut(runs.len as usize)) {
            bytes.copy_from_slice(&run[..bytes.len()]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_read_together_if_little_lies_between() {
        let data: Vec<u8> = (0..4_000_000u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
        let cases = [
            // Length, distance and number of the runs, and how many reads they take.
            (200_000, 300_000, 9, 3),
            (4, 8, 300_000, 3),
            (4, 16, 1000, 1),
            (4, 17, 1000, 1000),
            (4, 4, 1000, 1),
            (2_000_000, 2_000_000, 1, 1),
            (0, 0, 0, 0),
        ];
        for (len, stride, count, expected) in cases {
            let runs = ByteRuns { start: 5, len, stride, count };
            let (mut found, mut reads) = (Vec::new(), 0);
            let read = |offset: u64, bytes: &mut [u8]| {
                reads += 1;
                bytes.copy_from_slice(&data[offset as usize..offset as usize + bytes.len()]);
                Ok::<_, ()>(())
            };
            gather(runs, &mut found, read).unwrap();
            let wanted: Vec<u8> =
                runs.ranges().flat_map(|run| data[run.start as usize..run.end as usize].to_vec()).collect();
            assert!(found == wanted && reads == expected, "{len} {stride} {count}: {reads}");
        }
    }
}
