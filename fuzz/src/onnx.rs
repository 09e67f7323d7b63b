//! Target `onnx`: whatever the bytes of a file are, the parser of ONNX models returns a header or an error. The tensors
//! of a sound file lie in the file, and the lenient parser finds the same ones.

use std::collections::HashSet;
use weightfs::format::onnx::{self, OnnxData};
use weightfs::format::{Error, Header, HeaderInput, MissingRange, ParseMode, lint_header, parse_header};

pub fn run(bytes: &[u8]) -> bool {
    let Ok((_, strict)) = read(bytes, ParseMode::Strict) else {
        if let Ok((_, lenient)) = read(bytes, ParseMode::Lenient) {
            check(&lenient, bytes.len() as u64);
        }
        return false;
    };
    check(&strict, bytes.len() as u64);
    let (mut input, lenient) = read(bytes, ParseMode::Lenient).unwrap();
    assert!(strict.tensors().eq(lenient.tensors()));
    while let Err(MissingRange(range)) = lint_header(&strict, &input, &mut |lint| assert!(!lint.message.is_empty())) {
        input.add(range.start, bytes[range.start as usize..range.end as usize].to_vec());
    }
    if strict.format != onnx::NAME {
        return false;
    }
    for (_, tensor) in &onnx::read_onnx(&input, ParseMode::Strict).unwrap().tensors {
        match &tensor.data {
            OnnxData::Decoded(decoded) => assert_eq!(decoded.len() as u64, tensor.nbytes),
            OnnxData::External(external) => {
                let mut parts = external.location.split('/');
                assert!(!external.location.starts_with('/') && parts.all(|part| part != ".."));
            }
            _ => {}
        }
    }
    true
}

fn check(header: &Header, len: u64) {
    let mut names = HashSet::new();
    for tensor in header.tensors() {
        assert!(tensor.range.start <= tensor.range.end && tensor.range.end <= len, "{tensor:?}");
        assert!(names.insert(tensor.name), "{tensor:?}");
        if let Some(block) = tensor.dtype.block() {
            assert_eq!(tensor.nbytes, tensor.elements() / block.elements * block.bytes, "{tensor:?}");
        }
    }
}

fn read(file: &[u8], mode: ParseMode) -> Result<(HeaderInput, Header), Error> {
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
            Ok(header) => return Ok((input, header)),
        }
    }
}
