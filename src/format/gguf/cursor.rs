//! Reads the fields of a header one after the other.

use super::{LENGTH_MAX, MAX_HEADER};
use crate::format::error::Error;
use crate::format::input::{HeaderInput, MissingRange};

pub struct GgufCursor<'i> {
    /// What is there of the file, from its beginning.
    bytes: &'i [u8],
    at: usize,
    len: u64,
    /// Where the file begins in the input: not at 0 if it follows another one.
    base: u64,
}

impl<'i> GgufCursor<'i> {
    pub fn new(input: &'i HeaderInput) -> Self {
        Self::of_file(input, 0)
    }

    /// For the file that begins at `base` of the input.
    pub fn of_file(input: &'i HeaderInput, base: u64) -> Self {
        Self { bytes: input.from(base), at: 0, len: input.len().saturating_sub(base), base }
    }

    /// The byte at `offset` of a file. The bytes before it must be in `input`.
    pub fn starting_at(input: &'i HeaderInput, offset: u64) -> Self {
        Self { at: offset as usize, ..Self::new(input) }
    }

    pub fn offset(&self) -> u64 {
        self.at as u64
    }

    pub fn take(&mut self, len: u64) -> Result<&'i [u8], Error> {
        let end = self.offset().saturating_add(len);
        if end > self.len {
            return Err(Error::Cut(format!(
                "truncated: the header goes on to byte {end} at least, but the file ends at byte {} (did a download stop?)",
                self.len
            )));
        }
        if end > MAX_HEADER {
            return Err(header_too_large(end));
        }
        let taken = self.bytes.get(self.at..end as usize);
        // The request doubles each time, so that all requests together are at most four times as long as the header.
        let taken = taken.ok_or_else(|| {
            let len = end.next_power_of_two().max(1 << 20).min(self.len);
            MissingRange(self.base..self.base + len)
        })?;
        self.at = end as usize;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    pub fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn string(&mut self) -> Result<&'i [u8], Error> {
        let len = self.u64()?;
        check_length(len)?;
        self.take(len)
    }
}

/// Fails if a string or an array is longer than ggml allows.
pub fn check_length(len: u64) -> Result<(), String> {
    match len {
        0..=LENGTH_MAX => Ok(()),
        _ => Err(format!("a length of {len}, and at most {LENGTH_MAX} is allowed")),
    }
}

/// A header with a field that ends at byte `end`.
pub fn header_too_large(end: u64) -> Error {
    Error::Limit(format!("the header goes on to byte {end} at least, and at most {MAX_HEADER} bytes are read"))
}
