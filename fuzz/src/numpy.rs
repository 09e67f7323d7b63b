//! Target `numpy`: whatever the bytes of a file are, the parser of NumPy's formats returns a header or an error. The
//! arrays of a sound file lie in the file, and the lenient parser finds the same ones.

use std::collections::HashSet;
use weightfs::format::{Error, Header, HeaderInput, ParseMode, numpy, parse_header};

pub fn run(bytes: &[u8]) -> bool {
    // A sound file is rarely made by chance, so half of the inputs get their beginning.
    let made;
    let bytes = match bytes.split_first() {
        Some((0, rest)) => {
            let (length, text) = (rest.len().min(u16::MAX.into()) as u16, &rest[..rest.len().min(u16::MAX.into())]);
            made = [b"\x93NUMPY\x01\0", &length.to_le_bytes()[..], text, &[1; 300]].concat();
            &made
        }
        _ => bytes,
    };
    let Ok(strict) = read(bytes, ParseMode::Strict) else {
        if let Ok(lenient) = read(bytes, ParseMode::Lenient) {
            check(&lenient, bytes.len() as u64);
        }
        return false;
    };
    check(&strict, bytes.len() as u64);
    let (lenient, header) = (read(bytes, ParseMode::Lenient).unwrap(), read(bytes, ParseMode::Header).unwrap());
    assert!(strict.tensors().eq(lenient.tensors()) && strict.tensors().eq(header.tensors()));
    [numpy::NPY, numpy::NPZ].contains(&strict.format)
}

/// Checks what holds in both modes.
fn check(header: &Header, len: u64) {
    let mut names = HashSet::new();
    for tensor in header.tensors() {
        assert!(header.data_start <= tensor.range.start && tensor.range.start <= tensor.range.end);
        assert!(tensor.range.end <= len && names.insert(tensor.name), "{tensor:?}");
        match tensor.dtype.block() {
            Some(block) => assert_eq!(tensor.nbytes, tensor.elements() / block.elements * block.bytes, "{tensor:?}"),
            // A dtype that is too long for a name has no size.
            None if tensor.dtype.name().contains("bytes ...]") => {}
            None => {
                if let Some(size) = numpy::element_size(tensor.dtype.name()) {
                    assert_eq!(tensor.nbytes, tensor.elements() * size, "{tensor:?}");
                }
            }
        }
    }
}

fn read(file: &[u8], mode: ParseMode) -> Result<Header, Error> {
    let mut input = HeaderInput::new(file.len() as u64);
    loop {
        match parse_header(&input, mode) {
            Err(Error::Missing(missing)) => {
                let range = missing.0.start as usize..missing.0.end as usize;
                assert!(!range.is_empty());
                input.add(missing.0.start, file[range].to_vec());
            }
            Err(error) => {
                assert!(!error.to_string().contains(char::is_control), "{error:?}");
                return Err(error);
            }
            parsed => return parsed,
        }
    }
}
