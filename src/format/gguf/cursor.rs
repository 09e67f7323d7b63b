//! Reads the fields of a header one after the other.

use super::error::GgufError;
use super::{LENGTH_MAX, MAX_HEADER};
use crate::format::input::{HeaderInput, MissingRange};

/// A position in a header.
pub struct GgufCursor<'i> {
    bytes: &'i [u8],
    at: usize,
    /// Size of the file in bytes.
    len: u64,
}

impl<'i> GgufCursor<'i> {
    /// The beginning of a file.
    pub fn new(input: &'i HeaderInput) -> Self {
        Self { bytes: input.prefix(), at: 0, len: input.len() }
    }

    /// The byte at `offset` of a file. The bytes before it must be in `input`.
    pub fn starting_at(input: &'i HeaderInput, offset: u64) -> Self {
        Self { at: offset as usize, ..Self::new(input) }
    }

    /// Offset in the file.
    pub fn offset(&self) -> u64 {
        self.at as u64
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: u64) -> Result<&'i [u8], GgufError> {
        let end = self.offset().saturating_add(len);
        if end > self.len {
            return Err(GgufError::HeaderCut { end, len: self.len });
        }
        if end > MAX_HEADER {
            return Err(GgufError::HeaderTooLarge { end });
        }
        let taken = self.bytes.get(self.at..end as usize);
        // The request doubles each time, so that all requests together are at most four times as long as the header.
        let taken = taken.ok_or_else(|| MissingRange(0..end.next_power_of_two().max(1 << 20).min(self.len)))?;
        self.at = end as usize;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    /// The next 32-bit number.
    pub fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// The next 64-bit number.
    pub fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// The bytes of the next string, or its length if that exceeds the limit.
    pub fn string(&mut self) -> Result<Result<&'i [u8], u64>, GgufError> {
        match self.u64()? {
            len if len > LENGTH_MAX => Ok(Err(len)),
            len => self.take(len).map(Ok),
        }
    }
}
