//! Reads headers: supplies a parser with the parts of a file that it needs.

use super::error::Error;
use crate::format::{self, Header, HeaderInput, HeaderLint, ParseMode};
use crate::source::{self, Location, Source};
use std::ops::Range;

/// Size of the first read, in bytes. Most headers are shorter.
const FIRST_READ: u64 = 64 << 10;

/// Maximum size of a fetch that ends when the header is complete, in bytes. The longest header of a GGUF file of a
/// common model has 15.8 MB, nearly all of it vocabulary.
const STREAM_MAX: u64 = 16 << 20;

/// Maximum size of all parts of a file that are read for its header, in bytes. Archives of many arrays need the most.
const PARTS_MAX: u64 = 1 << 30;

/// Reads the header of `source`. Errors name it `location`.
pub(super) fn read_header(location: &Location, source: &dyn Source, mode: ParseMode) -> Result<Header, Error> {
    read_parts(location, source, mode).map(|(_, header)| header)
}

/// As [`read_header`], with the parts of the file that the parser needed.
pub(super) fn read_parts(
    location: &Location,
    source: &dyn Source,
    mode: ParseMode,
) -> Result<(HeaderInput, Header), Error> {
    let (mut input, header) = load_header(source, mode)?;
    let header = match header {
        Ok(header) => header,
        Err(error) => {
            // What cannot be read now does not replace the error that is certain.
            let is_lenient_better = mode != ParseMode::Lenient
                && load_more(&mut input, source, ParseMode::Lenient).is_ok_and(|header| header.is_ok());
            return Err(Error::Format { location: location.clone(), error, is_lenient_better });
        }
    };
    let ends = header.tensors().map(|tensor| tensor.range.end);
    source.set_ends(std::iter::once(header.data_start).chain(ends));
    Ok((input, header))
}

/// Reads the header of `source`, and returns it with the parts of the file that the parser needed.
pub fn load_header(
    source: &dyn Source,
    mode: ParseMode,
) -> Result<(HeaderInput, Result<Header, format::Error>), source::Error> {
    let mut input = HeaderInput::new(source.len());
    add(&mut input, source, 0..FIRST_READ.min(source.len()))?;
    let header = load_more(&mut input, source, mode)?;
    Ok((input, header))
}

/// Parses the header of `source` again from `input`, and adds the ranges that are still missing.
pub fn load_more(
    input: &mut HeaderInput,
    source: &dyn Source,
    mode: ParseMode,
) -> Result<Result<Header, format::Error>, source::Error> {
    load_parts(input, source, |input| format::parse_header(input, mode), PARTS_MAX)
}

/// Reads of `source` what a parser needs.
pub(super) fn load_parsed<T>(
    source: &dyn Source,
    parse: impl Fn(&HeaderInput) -> Result<T, format::Error>,
) -> Result<Result<T, format::Error>, source::Error> {
    let mut input = HeaderInput::new(source.len());
    add(&mut input, source, 0..FIRST_READ.min(source.len()))?;
    load_parts(&mut input, source, parse, PARTS_MAX)
}

/// As [`load_parsed`], with what was read before. At most `max` bytes are read.
fn load_parts<T>(
    input: &mut HeaderInput,
    source: &dyn Source,
    parse: impl Fn(&HeaderInput) -> Result<T, format::Error>,
    max: u64,
) -> Result<Result<T, format::Error>, source::Error> {
    let mut stream = None;
    loop {
        match parse(input) {
            Err(format::Error::Missing(format::MissingRange(range))) => {
                if input.held().saturating_add(range.end - range.start) > max {
                    let message = format!("its header needs more than {max} bytes in different places of the file");
                    return Ok(Err(format::Error::Limit(message)));
                }
                // The parser does not know yet where the header ends. One request is enough, which ends here.
                if range.start == 0 && range.end <= STREAM_MAX {
                    stream = stream.or_else(|| source.stream(0..STREAM_MAX));
                }
                add(input, source, range)?;
            }
            parsed => return Ok(parsed),
        }
    }
}

/// Reports what is unusual in a header that was parsed from `input`. Adds the ranges that are still missing.
pub fn lint_file(
    header: &Header,
    input: &mut HeaderInput,
    source: &dyn Source,
    found: &mut dyn FnMut(HeaderLint),
) -> Result<(), source::Error> {
    while let Err(format::MissingRange(range)) = format::lint_header(header, input, found) {
        add(input, source, range)?;
    }
    Ok(())
}

/// Adds a range of `source` to `input`. The range must be inside the source.
fn add(input: &mut HeaderInput, source: &dyn Source, range: Range<u64>) -> Result<(), source::Error> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    source.read_exact_at(&mut bytes, range.start)?;
    input.add(range.start, bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;

    #[test]
    fn parts_of_a_header_are_bounded() {
        let header = br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        let file = [&(header.len() as u64).to_le_bytes()[..], header, &[7]].concat();
        let load = |max| {
            let source = MemorySource::new(file.clone());
            let parse = |input: &HeaderInput| format::parse_header(input, ParseMode::Strict);
            load_parts(&mut HeaderInput::new(file.len() as u64), &source, parse, max).unwrap()
        };
        assert_eq!(load(1000).unwrap().len(), 1);
        let message = "its header needs more than 20 bytes in different places of the file";
        assert_eq!(load(20).unwrap_err(), format::Error::Limit(message.to_owned()));
    }
}
