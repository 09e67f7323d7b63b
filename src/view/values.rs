//! Block-wise reading of tensor data, for views that process its values.

use crate::content::{Data, Decoder, Error, Request, reserve};
use crate::format::Dtype;
use std::ops::Range;

/// Approximate number of bytes that are read at a time.
const AT_ONCE: u64 = 768 << 10;

/// The decoder from a dtype to float32, if there is one.
pub fn decoder(dtype: Dtype) -> Option<Decoder> {
    let (block, decode) = (dtype.block()?, dtype.to_f32()?);
    let block_out = block.elements as usize * size_of::<f32>();
    Some(Decoder { block_in: block.bytes as usize, block_out, decode })
}

/// The size in bytes of as many whole blocks as fit into [`AT_ONCE`], at least one.
pub fn step(dtype: Dtype) -> u64 {
    let block = dtype.block().map_or(1, |block| block.bytes);
    (AT_ONCE / block).max(1) * block
}

/// Passes the bytes of `part` to `take`, at most `step` at a time. Fails if the request is cancelled or times out.
pub fn each(
    data: &Data,
    mut part: Range<u64>,
    step: u64,
    request: &Request,
    mut take: impl FnMut(&[u8]),
) -> Result<(), Error> {
    let len = step.min(part.end - part.start) as usize;
    let mut buf = Vec::new();
    reserve(&mut buf, len)?;
    buf.resize(len, 0);
    while part.start < part.end {
        request.check()?;
        let piece = &mut buf[..step.min(part.end - part.start) as usize];
        data.read_exact_at(piece, part.start)?;
        take(piece);
        part.start += piece.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Extent;
    use crate::source::Memory;
    use std::sync::Arc;

    #[test]
    fn step_has_whole_blocks() {
        for dtype in Dtype::ALL {
            let block = dtype.block().unwrap().bytes;
            assert!(step(*dtype).is_multiple_of(block) && step(*dtype) > AT_ONCE - block, "{dtype}");
        }
        assert_eq!(step(Dtype::Unknown("x")), AT_ONCE);
    }

    #[test]
    fn each_byte_is_passed_once_and_cancellation_stops() {
        let bytes: Vec<u8> = (0..=255).collect();
        let data = Data::Extent(Extent { source: Arc::new(Memory::new(bytes.clone())), range: 10..250 });
        let mut taken = Vec::new();
        let mut sizes = Vec::new();
        let take = |piece: &[u8]| {
            sizes.push(piece.len());
            taken.extend_from_slice(piece);
        };
        each(&data, 5..240, 100, &Request::WAIT, take).unwrap();
        assert_eq!((sizes, &taken[..]), (vec![100, 100, 35], &bytes[15..250]));
        let cancelled = Request::WAIT.cancelled_by(&|| true);
        assert!(matches!(each(&data, 0..240, 100, &cancelled, |_| panic!()), Err(Error::Interrupted)));
    }
}
