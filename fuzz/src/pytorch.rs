//! Target `pytorch`: whatever the bytes of a file are, the parser of PyTorch checkpoints returns a header or an error.
//! The tensors of a sound file lie in the file, and the lenient parser finds the same ones. An input that begins with
//! byte 1 is the description of a distributed checkpoint, and one with byte 2 the pickle of a file of torch before 1.6.
//! Every file is also read as one that a process of FSDP or of DeepSpeed has written: what it holds lies in the file
//! too.

use std::collections::HashSet;
use weightfs::format::pytorch::{self, CheckpointIndex, RankFile, RankLimits, RankPart};
use weightfs::format::{Error, Header, HeaderInput, MissingRange, ParseMode, lint_header, parse_header};

pub fn run(bytes: &[u8]) -> bool {
    // A sound archive is rarely made by chance, so half of the inputs are the pickle of one.
    let made;
    let bytes = match bytes.split_first() {
        Some((0, pickle)) => {
            made = archive(pickle);
            &made
        }
        Some((1, metadata)) => return run_metadata(metadata),
        Some((2, pickle)) => {
            made = legacy(pickle);
            &made
        }
        _ => bytes,
    };
    run_ranks(bytes);
    let Ok(strict) = read(bytes, ParseMode::Strict) else {
        if let Ok(lenient) = read(bytes, ParseMode::Lenient) {
            check(&lenient, bytes.len() as u64);
        }
        return false;
    };
    check(&strict, bytes.len() as u64);
    let (lenient, header) = (read(bytes, ParseMode::Lenient).unwrap(), read(bytes, ParseMode::Header).unwrap());
    assert!(strict.tensors().eq(lenient.tensors()) && strict.tensors().eq(header.tensors()));
    let mut input = HeaderInput::new(bytes.len() as u64);
    while let Err(MissingRange(range)) = lint_header(&strict, &input, &mut |lint| assert!(!lint.message.is_empty())) {
        input.add(range.start, bytes[range.start as usize..range.end as usize].to_vec());
    }
    strict.format == pytorch::NAME
}

/// Reads the file `.metadata` of a distributed checkpoint, and checks that all parts can be looked up.
fn run_metadata(bytes: &[u8]) -> bool {
    let Ok(index) = CheckpointIndex::parse(bytes) else { return false };
    for tensor in &index.tensors {
        for number in index.part_numbers(tensor) {
            let part = index.part(number);
            let bounds = index.bounds(tensor, part);
            assert!(bounds.offsets.len() == index.shape(tensor).len() && !bounds.shape.contains(&0));
            assert!(part.place.is_none_or(|place| !index.files[place.file as usize].contains('/')));
        }
    }
    true
}

/// An archive with this pickle and a storage of 64 bytes.
fn archive(pickle: &[u8]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in [("a/data.pkl", pickle), ("a/data/0", &[7; 64])] {
        let start = out.len() as u32;
        let mut fields = [0; 26];
        fields[14..18].copy_from_slice(&(data.len() as u32).to_le_bytes());
        fields[18..22].copy_from_slice(&(data.len() as u32).to_le_bytes());
        fields[22] = name.len() as u8;
        out.extend([b"PK\x03\x04", &fields[..], name.as_bytes(), data].concat());
        directory.extend([b"PK\x01\x02\0\0", &fields[..], &[0; 10], &start.to_le_bytes(), name.as_bytes()].concat());
    }
    let (len, at) = ((directory.len() as u32).to_le_bytes(), (out.len() as u32).to_le_bytes());
    out.extend(directory);
    out.extend([b"PK\x05\x06\0\0\0\0\x02\0\x02\0", &len[..], &at, &[0, 0]].concat());
    out
}

/// A file of torch before 1.6 with this pickle and storages of 16 bytes.
fn legacy(pickle: &[u8]) -> Vec<u8> {
    let mut out = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}.".to_vec();
    out.extend(pickle);
    out.extend(b"\x80\x02](X\x01\0\0\x000X\x01\0\0\x001e.");
    (0..2).for_each(|_| out.extend([&4u64.to_le_bytes()[..], &[7; 16]].concat()));
    out
}

/// Checks what holds in both modes.
fn check(header: &Header, len: u64) {
    let mut names = HashSet::new();
    for tensor in header.tensors() {
        assert!(tensor.range.start <= tensor.range.end && tensor.range.end <= len, "{tensor:?}");
        assert!(names.insert(tensor.name), "{tensor:?}");
        if let Some(block) = tensor.dtype.block() {
            assert_eq!(tensor.nbytes, tensor.elements() / block.elements * block.bytes, "{tensor:?}");
        }
        if let Some(layout) = tensor.layout {
            assert_eq!(layout.strides.len(), tensor.shape.len());
            let last: u64 = tensor.shape.iter().zip(layout.strides).map(|(dim, stride)| (dim - 1) * stride).sum();
            assert_eq!((last + 1) * u64::from(layout.size), tensor.range.end - tensor.range.start, "{tensor:?}");
        }
    }
}

fn read(file: &[u8], mode: ParseMode) -> Result<Header, Error> {
    read_with(file, |input| parse_header(input, mode))
}

/// Reads a file as each of those that a process writes for itself.
fn run_ranks(file: &[u8]) {
    let limits = RankLimits::default();
    let mut parts: Vec<RankPart> = Vec::new();
    let weights = read_with(file, |input| pytorch::parse_rank_file(input, &limits));
    let states = read_with(file, |input| pytorch::parse_rank_states(input, &limits));
    for RankFile { tensors, .. } in [weights, states].into_iter().flatten() {
        for held in tensors.into_iter().filter_map(|tensor| tensor.held.ok()) {
            assert!(held.boxes.iter().all(|one| {
                let ends = one.offsets.iter().zip(&one.part.shape).map(|(start, len)| start + len);
                // Only the parts of DTensors are known to lie inside.
                one.offsets.len() == held.shape.len() && (held.is_sharded || ends.eq(held.shape.iter().copied()))
            }));
            parts.extend(held.boxes.into_iter().map(|one| one.part));
        }
    }
    if let Ok(model) = read_with(file, |input| pytorch::parse_zero_model(input, &limits, true)) {
        parts.extend(model.buffers.into_iter().map(|(_, part)| part));
        parts.extend(model.frozen.into_iter().filter_map(|(_, part)| part));
    }
    let weights = read_with(file, |input| pytorch::parse_zero_partition(input, &limits));
    let states = read_with(file, |input| pytorch::parse_zero_states(input, &limits)).unwrap_or_default();
    for partition in weights.into_iter().chain(states.into_iter().map(|(_, partition)| partition)) {
        assert!(partition.vectors.iter().all(|vector| vector.shape.len() == 1));
        parts.extend(partition.vectors);
    }
    for part in parts {
        let tensor = part.stored("");
        assert!(tensor.range.start <= tensor.range.end && tensor.range.end <= file.len() as u64, "{tensor:?}");
        if let Some(block) = tensor.dtype.block() {
            assert_eq!(tensor.nbytes, part.elements() / block.elements * block.bytes, "{tensor:?}");
        }
        assert!(tensor.layout.is_some() || tensor.range.end - tensor.range.start == tensor.nbytes, "{tensor:?}");
    }
}

fn read_with<T>(file: &[u8], parse: impl Fn(&HeaderInput) -> Result<T, Error>) -> Result<T, Error> {
    let mut input = HeaderInput::new(file.len() as u64);
    loop {
        match parse(&input) {
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
