//! Target `slm`: whatever the bytes of a file are, the parser of SLM1 returns a header or an error. The tensors of a
//! sound file lie in its data and do not overlap, and the lenient parser finds the same ones.

use std::collections::HashSet;
use weightfs::format::{Error, Header, HeaderInput, ParseMode, lint_header, parse_header, slm};

pub fn run(bytes: &[u8]) -> bool {
    let Ok(strict) = read(bytes, ParseMode::Strict) else {
        if let Ok(lenient) = read(bytes, ParseMode::Lenient) {
            check(&lenient, bytes.len() as u64);
        }
        return false;
    };
    if strict.format != slm::NAME {
        return false;
    }
    check(&strict, bytes.len() as u64);
    let (lenient, header) = (read(bytes, ParseMode::Lenient).unwrap(), read(bytes, ParseMode::Header).unwrap());
    assert!(strict.tensors().eq(lenient.tensors()) && lenient.skipped.total() == 0);
    assert!(strict.tensors().eq(header.tensors()) && strict.metadata == header.metadata);
    let mut end = strict.data_start;
    for tensor in strict.tensors().filter(|tensor| tensor.nbytes > 0) {
        assert!(tensor.range.start >= end, "{tensor:?}");
        end = tensor.range.end;
    }
    let mut findings = 0;
    lint_header(&strict, &HeaderInput::with_prefix(bytes.len() as u64, bytes.to_vec()), &mut |_| findings += 1)
        .unwrap();
    assert!((1..40).contains(&findings));
    true
}

/// Checks what holds in both modes.
fn check(header: &Header, len: u64) {
    let mut names = HashSet::new();
    for tensor in header.tensors() {
        assert!(header.data_start <= tensor.range.start || header.format != slm::NAME, "{tensor:?}");
        assert!(tensor.range.start <= tensor.range.end && tensor.range.end <= len, "{tensor:?}");
        assert!(names.insert(tensor.name), "{tensor:?}");
    }
    for (key, value) in &header.metadata {
        let mut json = Vec::new();
        value.write_json(&mut json).unwrap();
        assert!(serde_json::from_slice::<serde_json::Value>(&json).is_ok(), "{key}: {value:?}");
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
