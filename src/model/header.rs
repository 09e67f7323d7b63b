//! Reads headers: gives a parser the parts of a file that it asks for.

use super::error::Error;
use crate::format::{self, Header, Input, Mode};
use crate::source::{self, Location, Source};
use std::ops::Range;

/// How much of a file is read at first, in bytes. Most headers are shorter.
const FIRST_READ: u64 = 64 << 10;

/// Reads the header of `source`, which errors call `location`.
pub(super) fn read(location: &Location, source: &dyn Source, mode: Mode) -> Result<Header, Error> {
    let (_, header) = load(source, mode)?;
    header.map_err(|error| Error::Format { location: location.clone(), error })
}

/// Reads the header of `source`, and returns it with the parts of the file that the parser asked for.
pub fn load(source: &dyn Source, mode: Mode) -> Result<(Input, Result<Header, format::Error>), source::Error> {
    let mut input = Input::new(source.len());
    add(&mut input, source, 0..FIRST_READ.min(source.len()))?;
    let header = load_more(&mut input, source, mode)?;
    Ok((input, header))
}

/// Reads the header of `source` again from what is there, and adds what else the parser asks for.
pub fn load_more(
    input: &mut Input,
    source: &dyn Source,
    mode: Mode,
) -> Result<Result<Header, format::Error>, source::Error> {
    loop {
        match format::parse(input, mode) {
            Err(format::Error::Missing(format::Missing(range))) => add(input, source, range)?,
            parsed => return Ok(parsed),
        }
    }
}

/// Adds a range of `source`, which the parser never asks for beyond its end.
fn add(input: &mut Input, source: &dyn Source, range: Range<u64>) -> Result<(), source::Error> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    source.read_exact_at(&mut bytes, range.start)?;
    input.add(range.start, bytes);
    Ok(())
}
