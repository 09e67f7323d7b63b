//! Target `header`: weightfs accepts the headers that the official reader accepts, and no offset leads out of the file.

use super::headers::{self, official, once_in};
use arbitrary::{Result, Unstructured};
use weightfs::format::{self, Error, Header, HeaderInput, MissingRange, ParseMode};

pub fn run(bytes: &[u8]) -> bool {
    check(&mut Unstructured::new(bytes)).unwrap_or(false)
}

fn check(bytes: &mut Unstructured) -> Result<bool> {
    let (cut, other_len) = (bytes.arbitrary::<u16>()?, bytes.arbitrary()?);
    let (header, data) = if once_in(4, bytes)? {
        let data = bytes.int_in_range(0..=16)?;
        (bytes.bytes(bytes.len())?.to_vec(), data)
    } else {
        let (mut header, data) = headers::header(bytes)?;
        for _ in 0..bytes.int_in_range(0..=2)? {
            headers::mutate(bytes, &mut header)?;
        }
        (header, data)
    };
    let file = official::file(&header, data);
    let prefix = &file[..file.len().min(cut.into())];
    for mode in [ParseMode::Strict, ParseMode::Lenient] {
        let len = file.len() as u64;
        let whole = parse(&file, len, mode);
        match (parse(prefix, len, mode), whole) {
            // The parser needs more bytes, but none beyond the end of the file.
            (Err(Error::Missing(MissingRange(range))), _) => {
                assert!(range.start < range.end && range.end > prefix.len() as u64 && range.end <= len);
            }
            (Ok(part), Ok(whole)) => assert!(part.tensors().eq(whole.tensors())),
            // Detecting another format may need more of the file.
            (Err(Error::Foreign(_)), Err(_)) | (Err(_), Err(Error::Foreign(_))) => {}
            (Err(part), Err(whole)) => assert_eq!(part, whole),
            (part, whole) => panic!("{part:?} for a part of the file, {whole:?} for the whole"),
        }
        // A file of a wrong size, and one that does not begin with a length, may be refused but must not panic.
        let _ = parse(prefix, u64::max(other_len, prefix.len() as u64), mode);
        let _ = parse(&header, header.len() as u64, mode);
    }
    Ok(official::compare(&header, data))
}

/// Parses the beginning of a file of `len` bytes, and checks the invariants of a header.
fn parse(prefix: &[u8], len: u64, mode: ParseMode) -> std::result::Result<Header, Error> {
    let parsed = format::parse_header(&HeaderInput::with_prefix(len, prefix.to_vec()), mode);
    match &parsed {
        Ok(header) => {
            let data_start = header.data_start;
            let mut end = data_start;
            for (index, tensor) in header.tensors().enumerate() {
                assert!(data_start <= tensor.range.start && tensor.range.start <= tensor.range.end);
                assert!(tensor.range.end <= len);
                assert_eq!(header.find(tensor.name), Some(index), "a repeated name");
                assert!(mode == ParseMode::Lenient || tensor.range.start == end);
                end = tensor.range.end;
            }
            assert!(mode == ParseMode::Lenient || end == len && header.skipped.total() == 0);
        }
        Err(error) => assert!(!error.to_string().contains(char::is_control), "{error:?}"),
    }
    parsed
}
