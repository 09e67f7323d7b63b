//! Target `gguf`: whatever the bytes of a file are, the parser of GGUF returns a header or an error. The tensors of a
//! sound file lie in the file, aligned and one after the other, and the lenient parser finds the same ones.

use std::collections::HashSet;
use weightfs::format::{Header, Input, Mode, gguf};

pub fn run(bytes: &[u8]) -> bool {
    let Ok(strict) = read(bytes, Mode::Strict) else {
        if let Ok(lenient) = read(bytes, Mode::Lenient) {
            check(&lenient, bytes.len() as u64);
        }
        return false;
    };
    check(&strict, bytes.len() as u64);
    let (lenient, header) = (read(bytes, Mode::Lenient).unwrap(), read(bytes, Mode::Header).unwrap());
    assert!(strict.tensors().eq(lenient.tensors()) && lenient.skipped().total() == 0);
    assert!(strict.tensors().eq(header.tensors()) && strict.metadata() == header.metadata());
    let mut end = strict.data_start();
    for tensor in strict.tensors() {
        assert_eq!(tensor.range.start, end, "{tensor:?}");
        assert!((end - strict.data_start()).is_multiple_of(gguf::alignment(&strict)));
        end = tensor.range.end.next_multiple_of(gguf::alignment(&strict));
    }
    // The pairs of key and value follow each other.
    let mut end = gguf::METADATA_START;
    for (key, range) in strict.pairs() {
        assert_eq!(range.start, end, "{key}");
        assert!(strict.value(key).is_some());
        end = range.end;
    }
    assert_eq!(strict.pairs().len(), strict.metadata().len());
    true
}

/// Checks what holds in both modes.
fn check(header: &Header, len: u64) {
    let mut names = HashSet::new();
    for tensor in header.tensors() {
        assert!(tensor.range.end <= len && names.insert(tensor.name), "{tensor:?}");
        let block = tensor.dtype.block().unwrap();
        assert_eq!(tensor.nbytes(), tensor.elements() / block.elements * block.bytes, "{tensor:?}");
    }
    for (key, value) in header.metadata() {
        let mut json = Vec::new();
        value.write_json(&mut json).unwrap();
        assert!(serde_json::from_slice::<serde_json::Value>(&json).is_ok(), "{key}: {value:?}");
    }
}

fn read(file: &[u8], mode: Mode) -> Result<Header, gguf::Error> {
    let mut input = Input::new(file.len() as u64);
    loop {
        match gguf::parse(&input, mode) {
            Err(gguf::Error::Missing(missing)) => {
                let range = missing.0.start as usize..missing.0.end as usize;
                assert!(!range.is_empty());
                input.add(missing.0.start, file[range].to_vec());
            }
            parsed => return parsed,
        }
    }
}
