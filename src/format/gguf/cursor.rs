//! Reads the fields of a header one after the other.

use super::error::Error;
use super::{LENGTH_MAX, MAX_HEADER};
use crate::format::input::{Input, Missing};

/// A position in a header.
pub struct Cursor<'i> {
    bytes: &'i [u8],
    at: usize,
    /// Size of the file in bytes.
    len: u64,
}

impl<'i> Cursor<'i> {
    /// The beginning of a file.
    pub fn new(input: &'i Input) -> Self {
        Self { bytes: input.prefix(), at: 0, len: input.len() }
    }

    /// The byte at `offset` of a file. The bytes before it must be in `input`.
    pub fn starting_at(input: &'i Input, offset: u64) -> Self {
        Self { at: offset as usize, ..Self::new(input) }
    }

    /// Offset in the file.
    pub fn offset(&self) -> u64 {
        self.at as u64
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: u64) -> Result<&'i [u8], Error> {
        let end = self.offset().saturating_add(len);
        if end > self.len {
            return Err(Error::HeaderCut { end, len: self.len });
        }
        if end > MAX_HEADER {
            return Err(Error::HeaderTooLarge { end });
        }
        let taken = self.bytes.get(self.at..end as usize);
        // The request doubles each time, so that all requests together are at most four times as long as the header.
        let taken = taken.ok_or_else(|| Missing(0..end.next_power_of_two().max(1 << 20).min(self.len)))?;
        self.at = end as usize;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    /// The next 32-bit number.
    pub fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// The next 64-bit number.
    pub fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// The bytes of the next string, or its length if that exceeds the limit.
    pub fn string(&mut self) -> Result<Result<&'i [u8], u64>, Error> {
        match self.u64()? {
            len if len > LENGTH_MAX => Ok(Err(len)),
            len => self.take(len).map(Ok),
        }
    }
}
