//! Decodes blocks of bytes.

use super::request::Error;
use std::ops::Range;

/// Decodes blocks of a fixed size to blocks of another fixed size. Elements that share bytes are in one block.
#[derive(Debug, Clone, Copy)]
pub struct BlockDecoder {
    /// Size of an encoded block in bytes.
    pub block_in: usize,
    /// Size of a decoded block in bytes.
    pub block_out: usize,
    /// Decodes whole blocks. The output must have exactly the size of the decoded blocks.
    pub decode: fn(&[u8], &mut [u8]),
    /// A second step, which converts what `decode` has written.
    pub then: Option<SecondStep>,
}

/// The second step of a [`BlockDecoder`].
#[derive(Debug, Clone, Copy)]
pub struct SecondStep {
    /// Size in bytes of a block after the first step.
    pub block: usize,
    /// Converts whole blocks to blocks of [`BlockDecoder::block_out`] bytes.
    pub convert: fn(&[u8], &mut [u8]),
}

/// Maximum number of encoded bytes that are decoded at a time, and of bytes between the two steps of a decoder. They
/// and their decoded form fit into the cache of a core.
const DECODED_AT_ONCE: usize = 32 << 10;

impl BlockDecoder {
    /// The encoded bytes of the blocks that overlap a part of the decoded bytes.
    pub(super) fn encoded(&self, part: &Range<u64>) -> Range<u64> {
        let (block_in, block_out) = (self.block_in as u64, self.block_out as u64);
        part.start / block_out * block_in..part.end.div_ceil(block_out) * block_in
    }

    /// Fills `buf` with the decoded bytes from `offset` on. `read` fills a buffer with the encoded bytes from an offset
    /// on, and is called for the blocks that overlap the range, a few at a time.
    pub(super) fn fill(
        &self,
        mut buf: &mut [u8],
        mut offset: u64,
        mut read: impl FnMut(&mut [u8], u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Self { block_in, block_out, then, .. } = *self;
        let at_once = DECODED_AT_ONCE / then.map_or(block_in, |then| then.block.max(block_in));
        let (mut encoded, mut between) = ([0; DECODED_AT_ONCE], Vec::new());
        while !buf.is_empty() {
            let (block, skipped) = (offset / block_out as u64, (offset % block_out as u64) as usize);
            let whole = if skipped > 0 { 0 } else { (buf.len() / block_out).min(at_once) };
            let encoded = &mut encoded[..whole.max(1) * block_in];
            read(encoded, block * block_in as u64)?;
            // A block of which a part is needed is decoded alone.
            let len = if whole > 0 { whole * block_out } else { (block_out - skipped).min(buf.len()) };
            let (here, rest) = buf.split_at_mut(len);
            if whole > 0 {
                self.decode_blocks(encoded, here, &mut between);
            } else {
                let mut decoded = vec![0; block_out];
                self.decode_blocks(encoded, &mut decoded, &mut between);
                here.copy_from_slice(&decoded[skipped..skipped + len]);
            }
            (buf, offset) = (rest, offset + len as u64);
        }
        Ok(())
    }

    /// Decodes whole blocks, with `between` as memory for the output of the first step.
    fn decode_blocks(&self, encoded: &[u8], out: &mut [u8], between: &mut Vec<u8>) {
        let Some(SecondStep { block, convert }) = self.then else { return (self.decode)(encoded, out) };
        between.resize(encoded.len() / self.block_in * block, 0);
        (self.decode)(encoded, between);
        convert(between, out);
    }
}
