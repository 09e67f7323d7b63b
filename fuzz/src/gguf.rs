//! Target `gguf`: whatever the bytes of a file are, the parser of GGUF returns a header or an error. The tensors of a
//! sound file lie in the file, aligned and one after the other, and the lenient parser finds the same ones.

use std::collections::HashSet;
use weightfs::format::{Assignment, Error, Header, HeaderInput, MetadataEdit, ParseMode, edit_metadata, gguf};

/// A key that is added.
const NEW: &str = "new.key";

pub fn run(bytes: &[u8]) -> bool {
    let Ok(strict) = read(bytes, ParseMode::Strict) else {
        if let Ok(lenient) = read(bytes, ParseMode::Lenient) {
            check(&lenient, bytes.len() as u64);
        }
        return false;
    };
    check(&strict, bytes.len() as u64);
    let (lenient, header) = (read(bytes, ParseMode::Lenient).unwrap(), read(bytes, ParseMode::Header).unwrap());
    assert!(strict.tensors().eq(lenient.tensors()) && lenient.skipped.left_out() == 0);
    assert!(strict.tensors().eq(header.tensors()) && strict.metadata == header.metadata);
    let mut end = strict.data_start;
    for tensor in strict.tensors() {
        assert_eq!(tensor.range.start, end, "{tensor:?}");
        assert!((end - strict.data_start).is_multiple_of(gguf::alignment(&strict)));
        end = tensor.range.end.next_multiple_of(gguf::alignment(&strict));
    }
    // The pairs of key and value follow each other.
    let mut end = gguf::METADATA_START;
    for (key, range) in &strict.pairs {
        assert_eq!(range.start, end, "{key}");
        assert!(strict.value(key).is_some());
        end = range.end;
    }
    assert_eq!(strict.pairs.len(), strict.metadata.len());
    check_edits(bytes, &strict);
    true
}

/// Changes the metadata. Tensors, and all keys that do not change, keep their bytes.
fn check_edits(bytes: &[u8], header: &Header) {
    let input = HeaderInput::with_prefix(bytes.len() as u64, bytes.to_vec());
    let assignment = |key: &str, text: &str| Assignment { key: key.into(), value_type: None, text: text.into() };
    let pairs = |header: &Header, bytes: &[u8]| -> Vec<(String, Vec<u8>)> {
        let bytes_of = |range: &std::ops::Range<u64>| bytes[range.start as usize..range.end as usize].to_vec();
        header.pairs.iter().map(|(key, range)| (key.clone(), bytes_of(range))).collect()
    };
    let old = pairs(header, bytes);
    let mut edits = vec![MetadataEdit::Clear];
    if header.value(NEW).is_none() {
        edits.push(MetadataEdit::Set(vec![assignment(NEW, "value")]));
    }
    for (key, value) in &header.metadata {
        edits.push(MetadataEdit::Remove(vec![key.clone()]));
        // Replacement characters in the text of a string are not its bytes.
        if value.bytes() == value.text().as_bytes() {
            edits.push(MetadataEdit::Set(vec![assignment(key, value.text())]));
        }
    }
    for change in edits {
        let (edited, changed) = match edit_metadata(header, &input, &change) {
            Ok(edited) => edited,
            // The alignment cannot be removed.
            Err(Error::Refused(_)) if change == MetadataEdit::Remove(vec![gguf::ALIGNMENT_KEY.to_owned()]) => continue,
            Err(error) => panic!("{change:?}: {error}"),
        };
        let (mut expected, mut found) = (old.clone(), pairs(&changed, &edited.bytes));
        match &change {
            MetadataEdit::Clear => expected
                .retain(|(key, _)| key == gguf::ALIGNMENT_KEY && !header.is_empty() && gguf::alignment(header) != 32),
            MetadataEdit::Remove(keys) => expected.retain(|(key, _)| !keys.contains(key)),
            MetadataEdit::Set(set) if set[0].key == NEW && header.value(NEW).is_none() => {
                assert_eq!(found.pop().unwrap().0, NEW)
            }
            MetadataEdit::Set(_) => {}
        }
        assert!(found == expected, "{change:?}");
        let head = edited.bytes.len() as u64;
        for (old, new) in header.tensors().zip(changed.tensors()) {
            assert_eq!(old.range.start - edited.data_start, new.range.start - head, "{change:?}");
        }
    }
}

/// Checks what holds in both modes.
fn check(header: &Header, len: u64) {
    let mut names = HashSet::new();
    for tensor in header.tensors() {
        assert!(tensor.range.end <= len && names.insert(tensor.name), "{tensor:?}");
        let block = tensor.dtype.block().unwrap();
        assert_eq!(tensor.nbytes, tensor.elements() / block.elements * block.bytes, "{tensor:?}");
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
        match gguf::parse_gguf(&input, mode) {
            Err(Error::Missing(missing)) => {
                let range = missing.0.start as usize..missing.0.end as usize;
                assert!(!range.is_empty());
                input.add(missing.0.start, file[range].to_vec());
            }
            parsed => return parsed,
        }
    }
}
