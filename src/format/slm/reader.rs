//! Reads the header, the tokenizer and the directory.

use super::{ALIGNMENT, CHECKSUM_KEY, ENTRY, HEADER, MAGIC, MAX_HEADER, NAME, SCALES, UNVERIFIED, names, tokenizer};
use crate::format::dtype::Dtype;
use crate::format::error::Error;
use crate::format::header::{Header, HeaderBuilder, ParseMode};
use crate::format::input::{HeaderInput, MissingRange, number_at};
use crate::format::metadata::{MetadataValue, ScalarType};
use crate::format::tensors::{fits, too_large};
use crate::text::brackets;
use std::fmt::Display;
use std::ops::Range;

/// Whether a file begins with the magic number. No safetensors header is as long as a length that begins like that.
pub fn is_slm(input: &HeaderInput) -> Result<bool, MissingRange> {
    Ok(input.get(0..MAGIC.len() as u64)? == MAGIC)
}

/// The fields of 32 bits after the length of the header, in the order of the file, and whether they must not be 0.
const FIELDS: [(&str, ScalarType, bool); 13] = [
    ("model_type", ScalarType::U32, false),
    ("flags", ScalarType::U32, false),
    ("vocab_size", ScalarType::U32, true),
    ("special_token_count", ScalarType::U32, false),
    ("hidden_size", ScalarType::U32, true),
    ("layer_count", ScalarType::U32, true),
    ("head_count", ScalarType::U32, true),
    ("kv_head_count", ScalarType::U32, true),
    ("head_dim", ScalarType::U32, true),
    ("ffn_size", ScalarType::U32, true),
    ("max_context", ScalarType::U32, true),
    ("rope_theta", ScalarType::F32, false),
    ("rms_norm_epsilon", ScalarType::F32, false),
];

/// Prefix of the keys of the fields in the metadata.
pub const PREFIX: &str = "slm.";

struct FixedHeader {
    numbers: [u32; FIELDS.len()],
    tokenizer: Range<u64>,
    directory: Range<u64>,
    data_start: u64,
    checksum: u64,
}

/// Reads the header of a file. Fails with [`Error::Missing`] until the header is in `input`.
pub fn parse_slm(input: &HeaderInput, mode: ParseMode) -> Result<Header, Error> {
    let FixedHeader { numbers, tokenizer, directory, data_start, checksum } = read_fixed(input)?;
    let mut builder = HeaderBuilder::new(mode);
    builder.version(1);
    for ((name, scalar, _), number) in FIELDS.iter().zip(numbers) {
        builder.metadata(format!("{PREFIX}{name}"), read_slm_value(*scalar, number));
    }
    builder.metadata(CHECKSUM_KEY.to_owned(), format!("{checksum:#018x} ({UNVERIFIED})")[..].into());
    let [_, _, vocabulary, _, _, layers, ..] = numbers;
    if let Err(fault) = tokenizer::read_tokenizer(input.get(tokenizer)?, vocabulary, &mut builder) {
        if mode != ParseMode::Lenient {
            return Err(slm_error(format_args!("tokenizer: {fault}")));
        }
        builder.skip("tokenizer", || fault);
    }
    let directory = input.get(directory)?;
    let entries = directory.chunks_exact(ENTRY as usize);
    let hashes: Vec<u64> = entries.clone().map(|entry| number_at(entry, 0, 8)).collect();
    let names = names::recover(&hashes, layers);
    let mut reader = SlmReader { builder, data_start, len: input.len(), last: data_start, taken: Vec::new() };
    for (entry, name) in entries.zip(names) {
        if let Err(fault) = reader.add(entry, &name) {
            if mode != ParseMode::Lenient {
                return Err(Error::Tensor { name, fault });
            }
            reader.builder.skip(&name, || fault);
        }
    }
    reader.finish()
}

/// Reads the fixed part of the header, and requests everything before the data.
fn read_fixed(input: &HeaderInput) -> Result<FixedHeader, Error> {
    let len = input.len();
    if len < HEADER {
        return Err(slm_cut("header", &(0..HEADER), len));
    }
    let head = input.get(0..HEADER)?;
    let version = number_at(head, 4, 4);
    if version != 1 {
        return Err(Error::Broken(format!("SLM1 version {version}; version 1 is supported")));
    }
    let header = number_at(head, 8, 4);
    if header < HEADER {
        return Err(slm_error(format_args!(
            "the length of the header is {header} bytes; a header has at least {HEADER}"
        )));
    }
    let numbers = std::array::from_fn(|at| number_at(head, 12 + 4 * at, 4) as u32);
    let checksum = number_at(head, 100, 8);
    let needed = FIELDS
        .iter()
        .zip(numbers)
        .filter(|((.., needed), _)| *needed)
        .map(|((name, ..), number)| (*name, number.into()));
    if let Some((field, _)) = needed.chain([("checksum", checksum)]).find(|(_, number)| *number == 0) {
        return Err(slm_error(format_args!("the field {field} of the header is 0")));
    }
    let (tokenizer, directory) = (number_at(head, 64, 8), number_at(head, 80, 8));
    let tokenizer = tokenizer..tokenizer.saturating_add(number_at(head, 72, 8));
    let directory = directory..directory.saturating_add(number_at(head, 88, 4) * ENTRY);
    let data_start = number_at(head, 92, 8);
    if !data_start.is_multiple_of(ALIGNMENT) {
        return Err(slm_error(format_args!(
            "the data begins at byte {data_start}, which is not a multiple of {ALIGNMENT}"
        )));
    }
    for (part, range) in [("header", &(0..header)), ("tokenizer", &tokenizer), ("directory", &directory)] {
        let end = range.end;
        if end > len {
            return Err(slm_cut(part, range, len));
        }
        if end > MAX_HEADER {
            return Err(Error::Limit(format!(
                "SLM1 file: the {part} ends at byte {end}; weightfs reads at most {MAX_HEADER} bytes before the data"
            )));
        }
        if end > data_start {
            return Err(slm_error(format_args!(
                "the {part} ends at byte {end}, but the data begins at byte {data_start}"
            )));
        }
    }
    // One request for all parts.
    input.get(0..header.max(tokenizer.end).max(directory.end))?;
    Ok(FixedHeader { numbers, tokenizer, directory, data_start, checksum })
}

/// The error of a part of the header that ends beyond a file of `len` bytes.
fn slm_cut(part: &str, range: &Range<u64>, len: u64) -> Error {
    let Range { start, end } = range;
    Error::Cut(format!(
        "truncated: the {part} takes bytes {start} to {end}, but the file ends at byte {len} (did a download stop?)"
    ))
}

fn slm_error(fault: impl Display) -> Error {
    Error::Broken(format!("SLM1 file: {fault}"))
}

fn read_slm_value(scalar: ScalarType, bits: u32) -> MetadataValue {
    let text = match scalar {
        ScalarType::F32 => match f32::from_bits(bits) {
            number if number.is_nan() => "nan".to_owned(),
            number => number.to_string(),
        },
        _ => bits.to_string(),
    };
    MetadataValue::scalar(scalar, text)
}

/// A stored tensor: the dtype, the dimensions, the beginning and the size in bytes.
struct SlmTensor {
    part: &'static str,
    dtype: Dtype<'static>,
    shape: Vec<u64>,
    begin: u64,
    nbytes: u64,
}

struct SlmReader {
    builder: HeaderBuilder,
    data_start: u64,
    len: u64,
    last: u64,
    taken: Vec<(Range<u64>, String)>,
}

impl SlmReader {
    /// Adds the codes, and the scales if there are any.
    fn add(&mut self, entry: &[u8], name: &str) -> Result<(), String> {
        let (codes, scales) = measure(entry)?;
        let (mode, start, len) = (self.builder.mode(), self.data_start, self.len);
        for SlmTensor { part, begin, nbytes, .. } in [Some(&codes), scales.as_ref()].into_iter().flatten() {
            let (begin, end) = (*begin, begin.saturating_add(*nbytes));
            if begin < start {
                return Err(format!(
                    "its {part} at byte {begin} lie before the data of the file, which begins at byte {start}"
                ));
            }
            if fits(end).is_none() || mode == ParseMode::Lenient && end > len {
                return Err(format!("its {part} end at byte {end}, but the file ends at byte {len}"));
            }
        }
        self.push(codes, name);
        if let Some(scales) = scales {
            self.push(scales, &[name, SCALES].concat());
        }
        Ok(())
    }

    fn push(&mut self, stored: SlmTensor, name: &str) {
        let SlmTensor { dtype, shape, begin, nbytes, .. } = stored;
        let range = begin..begin + nbytes;
        self.last = self.last.max(range.end);
        if self.builder.mode() == ParseMode::Strict && nbytes > 0 {
            self.taken.push((range.clone(), name.to_owned()));
        }
        let dtype = self.builder.known_dtype(dtype);
        let tensor = self.builder.tensor(name, dtype, &shape, range);
        self.builder.push(tensor);
    }

    fn finish(self) -> Result<Header, Error> {
        let Self { builder, data_start, len, last, mut taken } = self;
        if builder.mode() == ParseMode::Strict {
            if last > len {
                return Err(Error::data_cut(last, len));
            }
            taken.sort_by_key(|(range, _)| range.start);
            let overlap = taken.iter().zip(taken.iter().skip(1)).find(|(before, after)| before.0.end > after.0.start);
            if let Some(((before, _), (range, name))) = overlap {
                let (begin, end) = (range.start, before.end.min(range.end));
                let fault = format!("its bytes {begin} to {end} belong to another tensor too");
                return Err(Error::Tensor { name: name.clone(), fault });
            }
        }
        builder.finish(NAME, None, data_start, "its hash occurs more than once")
    }
}

/// The tensors of an entry of the directory: the numbers or codes, and the scales of codes.
fn measure(entry: &[u8]) -> Result<(SlmTensor, Option<SlmTensor>), String> {
    let [dtype, rank, block] = [8, 12, 56].map(|at| number_at(entry, at, 4));
    let [offset, nbytes, scales] = [32, 40, 48].map(|at| number_at(entry, at, 8));
    if !(1..=4).contains(&rank) {
        return Err(format!("{rank} dimensions; SLM1 allows 1 to 4"));
    }
    let shape: Vec<u64> = (0..rank as usize).map(|dim| number_at(entry, 16 + 4 * dim, 4)).collect();
    let row = shape[shape.len() - 1];
    let elements = count_floats(&shape).ok_or_else(|| too_large(&shape))?;
    let rule = match dtype {
        2 if block != row => "q8_0 has one block for each row",
        3 if block == 0 => "a block is not empty",
        3 if block % 2 != 0 => "q4_0 has blocks of even size",
        3 if !row.is_multiple_of(block) => "a row is a whole number of blocks",
        _ => "",
    };
    if !rule.is_empty() {
        return Err(format!("a block of {block} elements, but rows of {row}: {rule}"));
    }
    // The dtype, the last dimension, the size, and the number of scales of a row.
    let (dtype, last, expected, groups) = match dtype {
        1 => (Dtype::F32, row, elements * 4, None),
        2 => (Dtype::I8, row, elements, Some(1)),
        // Two codes in a byte, the first one in the low bits.
        3 => (Dtype::U8, row / 2, elements / 2, Some(row / block)),
        _ => return Err(format!("dtype {dtype} is not known")),
    };
    if nbytes != expected {
        return Err(format!("shape {} takes {expected} bytes, but its entry gives {nbytes}", brackets(&shape)));
    }
    let part = if groups.is_some() { "codes" } else { "data" };
    let codes = SlmTensor { part, dtype, shape: with_last(&shape, last), begin: offset, nbytes };
    let Some(groups) = groups else { return Ok((codes, None)) };
    let scaled = with_last(&shape, groups);
    let count = count_floats(&scaled).ok_or_else(|| too_large(&shape))?;
    let scales = SlmTensor { part: "scales", dtype: Dtype::F32, shape: scaled, begin: scales, nbytes: count * 4 };
    Ok((codes, Some(scales)))
}

/// The number of elements of a shape, unless so many float32 numbers have 2^63 bytes or more.
fn count_floats(shape: &[u64]) -> Option<u64> {
    let count = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
    count.filter(|count| *count < 1 << 61)
}

fn with_last(shape: &[u64], last: u64) -> Vec<u64> {
    shape[..shape.len() - 1].iter().copied().chain([last]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::lint::HeaderLint;
    use crate::format::slm::{hash, lint_slm};

    const BTOK: [u32; 6] = [1, 260, 256, 257, 258, 259];

    /// A file to write: its fields, its tokenizer, the entries of its directory, and the size of its data.
    #[derive(Clone)]
    struct File {
        version: u32,
        header: u32,
        fields: [u32; FIELDS.len()],
        tokenizer: Vec<u8>,
        entries: Vec<Vec<u8>>,
        checksum: u64,
        data: usize,
        /// Changes of the offsets and lengths: of the tokenizer, of the directory, and of the data.
        moved: [u64; 5],
    }

    const START: u64 = 1024;

    /// An entry: name, dtype, dimensions, offset in the data, size, offset of the scales in the data, size of a block.
    fn entry(name: &str, dtype: u32, dims: &[u32], place: [u64; 3], block: u32) -> Vec<u8> {
        let mut bytes = hash(name).to_le_bytes().to_vec();
        let [offset, nbytes, scales] = place;
        let mut four = [1; 4];
        four[..dims.len().min(4)].copy_from_slice(&dims[..dims.len().min(4)]);
        [dtype, dims.len() as u32].iter().chain(&four).for_each(|number| bytes.extend(number.to_le_bytes()));
        [START.wrapping_add(offset), nbytes, START.wrapping_add(scales)]
            .iter()
            .for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.extend(block.to_le_bytes());
        bytes.extend([0; 4]);
        bytes
    }

    impl File {
        fn new(entries: Vec<Vec<u8>>) -> Self {
            let tokenizer = BTOK.iter().flat_map(|number| number.to_le_bytes());
            Self {
                version: 1,
                header: 108,
                fields: [1, 0, 260, 4, 8, 1, 2, 2, 4, 16, 32, 10_000f32.to_bits(), 1e-5f32.to_bits()],
                tokenizer: b"BTOK".iter().copied().chain(tokenizer).collect(),
                entries,
                checksum: 7,
                data: 256,
                moved: [0; 5],
            }
        }

        fn bytes(&self) -> Vec<u8> {
            let mut bytes = MAGIC.to_vec();
            let head = [self.version, self.header];
            head.iter().chain(&self.fields).for_each(|number| bytes.extend(number.to_le_bytes()));
            let [tokenizer, length, directory, count, data] = self.moved;
            let end = HEADER + self.tokenizer.len() as u64;
            let numbers = [HEADER.wrapping_add(tokenizer), (self.tokenizer.len() as u64).wrapping_add(length)];
            numbers.iter().chain(&[end.wrapping_add(directory)]).for_each(|number| bytes.extend(number.to_le_bytes()));
            bytes.extend((self.entries.len() as u64).wrapping_add(count).to_le_bytes()[..4].iter());
            [START.wrapping_add(data), self.checksum].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            bytes.extend(&self.tokenizer);
            self.entries.iter().for_each(|entry| bytes.extend(entry));
            bytes.resize(START as usize + self.data, 0);
            bytes
        }

        fn read(&self, mode: ParseMode) -> Result<Header, Error> {
            let bytes = self.bytes();
            parse_slm(&HeaderInput::with_prefix(bytes.len() as u64, bytes), mode)
        }

        fn error(&self) -> String {
            self.read(ParseMode::Strict).unwrap_err().to_string()
        }
    }

    fn three() -> File {
        File::new(vec![
            entry("norm.weight", 1, &[8], [0, 32, 0], 0),
            entry("layers.0.wq.weight", 2, &[4, 8], [64, 32, 128], 8),
            entry("unknown", 3, &[2, 2, 8], [192, 16, 224], 4),
        ])
    }

    #[test]
    fn numbers_codes_and_scales_are_tensors() {
        let header = three().read(ParseMode::Strict).unwrap();
        let unknown = format!("tensor-{:016x}", hash("unknown"));
        let expected = [
            ("norm.weight".to_owned(), "F32", vec![8], 0..32),
            ("layers.0.wq.weight".to_owned(), "I8", vec![4, 8], 64..96),
            ("layers.0.wq.weight.slm_scale".to_owned(), "F32", vec![4, 1], 128..144),
            (unknown.clone(), "U8", vec![2, 2, 4], 192..208),
            (unknown + ".slm_scale", "F32", vec![2, 2, 2], 224..256),
        ];
        let found: Vec<_> = header
            .tensors()
            .map(|tensor| {
                let range = tensor.range.start - START..tensor.range.end - START;
                (tensor.name.to_owned(), tensor.dtype.name(), tensor.shape.to_vec(), range)
            })
            .collect();
        assert_eq!(found, expected);
        assert_eq!((header.version, header.data_start), (Some(1), START));
        assert_eq!(header.value("slm.rms_norm_epsilon").unwrap().text(), "0.00001");
        assert_eq!(header.value("tokenizer.BTOK").unwrap().bytes(), three().tokenizer);
    }

    #[test]
    fn header_is_read_by_two_requests() {
        let bytes = three().bytes();
        let mut input = HeaderInput::new(bytes.len() as u64);
        let mut asked = Vec::new();
        while let Err(Error::Missing(MissingRange(range))) = parse_slm(&input, ParseMode::Strict) {
            input.add(range.start, bytes[range.start as usize..range.end as usize].to_vec());
            asked.push(range);
        }
        assert_eq!(asked, [0..HEADER, 0..HEADER + 28 + 3 * ENTRY]);
    }

    #[test]
    fn hostile_headers_are_refused() {
        let change = |change: &dyn Fn(&mut File)| {
            let mut file = three();
            change(&mut file);
            file.error()
        };
        let cases: Vec<(String, &str)> = vec![
            (change(&|file| file.version = 2), "SLM1 version 2; version 1 is supported"),
            (change(&|file| file.header = 107), "the length of the header is 107 bytes; a header has at least 108"),
            (
                change(&|file| file.header = u32::MAX),
                "the header takes bytes 0 to 4294967295, but the file ends at byte 1280",
            ),
            (change(&|file| file.fields[2] = 0), "the field vocab_size of the header is 0"),
            (change(&|file| file.checksum = 0), "the field checksum of the header is 0"),
            (change(&|file| file.moved[0] = 2000), "the tokenizer takes bytes 2108 to 2136, but the file ends"),
            (
                change(&|file| file.moved[1] = u64::MAX - 27),
                "tokenizer: it begins with \"\", which is neither BTOK nor BPE1",
            ),
            (change(&|file| file.moved[0] = u64::MAX - 200), "the tokenizer takes bytes"),
            (change(&|file| file.moved[2] = u64::MAX - 200), "the directory takes bytes"),
            (change(&|file| file.moved[3] = 1 << 31), "the directory takes bytes"),
            (change(&|file| file.moved[4] = 1), "the data begins at byte 1025, which is not a multiple of 64"),
            (
                change(&|file| file.moved[4] = 64u64.wrapping_sub(START)),
                "the header ends at byte 108, but the data begins at byte 64",
            ),
            (
                change(&|file| file.data = 200),
                "truncated: the data ends at byte 1280, but the file ends at byte 1224; 56",
            ),
            (change(&|file| file.tokenizer[4] = 2), "tokenizer: version 2; version 1 is supported"),
            (change(&|file| file.tokenizer[8] = 9), "tokenizer: a vocabulary of 265 tokens, but the header gives 260"),
            (
                change(&|file| file.tokenizer[15] = 1),
                "tokenizer: token 16777472 is not below the size of the vocabulary",
            ),
            (change(&|file| file.tokenizer.truncate(27)), "tokenizer: 27 bytes, but 28 are needed"),
            (change(&|file| file.tokenizer.push(0)), "tokenizer: 29 bytes, but 28 are needed"),
        ];
        for (error, expected) in cases {
            assert!(error.contains(expected), "{error}\n{expected}");
        }
        let short = parse_slm(&HeaderInput::with_prefix(4, MAGIC.to_vec()), ParseMode::Strict).unwrap_err().to_string();
        assert!(
            short.starts_with("truncated: the header takes bytes 0 to 108, but the file ends at byte 4"),
            "{short}"
        );
    }

    #[test]
    fn hostile_entries_are_refused() {
        let most = u32::MAX;
        for (bad, expected) in [
            (entry("norm.weight", 0, &[8], [0, 32, 0], 0), "tensor \"norm.weight\": dtype 0 is not known"),
            (entry("x", 4, &[8], [0, 32, 0], 0), "dtype 4 is not known"),
            (entry("x", 1, &[], [0, 4, 0], 0), "0 dimensions; SLM1 allows 1 to 4"),
            (entry("x", 1, &[1; 5], [0, 4, 0], 0), "5 dimensions; SLM1 allows 1 to 4"),
            (entry("x", 1, &[8], [0, 31, 0], 0), "shape [8] takes 32 bytes, but its entry gives 31"),
            (entry("x", 1, &[most; 4], [0, 0, 0], 0), "has more than 2^63-1 elements or bytes"),
            (entry("x", 1, &[8], [u64::MAX - START - 10, 32, 0], 0), "its data end at byte"),
            (
                entry("x", 1, &[8], [0u64.wrapping_sub(64), 32, 0], 0),
                "its data at byte 960 lie before the data of the file, which begins at byte 1024",
            ),
            (entry("x", 2, &[4, 8], [0, 32, u64::MAX - START - 10], 8), "its scales end at byte"),
            (entry("x", 2, &[4, 8], [0, 32, 0u64.wrapping_sub(START)], 8), "its scales at byte 0 lie before"),
            (entry("x", 2, &[4, 8], [0, 32, 64], 4), "a block of 4 elements, but rows of 8: q8_0 has one block"),
            (entry("x", 3, &[4, 8], [0, 16, 64], 0), "a block is not empty"),
            (entry("x", 3, &[4, 9], [0, 18, 64], 3), "q4_0 has blocks of even size"),
            (entry("x", 3, &[4, 8], [0, 16, 64], 6), "a row is a whole number of blocks"),
            (entry("x", 2, &[4, 8], [0, 32, 16], 8), "its bytes 1040 to 1056 belong to another tensor too"),
            (entry("x", 1, &[64], [256, 256, 0], 0), "truncated: the data ends at byte 1536"),
        ] {
            let error = File::new(vec![bad]).error();
            assert!(error.contains(expected), "{error}\n{expected}");
        }
        let twice = File::new(vec![entry("x", 1, &[8], [0, 32, 0], 0), entry("x", 1, &[8], [64, 32, 0], 0)]);
        assert!(twice.error().ends_with("its hash occurs more than once"), "{}", twice.error());
    }

    #[test]
    fn sound_entries_are_kept_in_lenient_mode() {
        let mut file = three();
        file.entries.push(entry("norm.weight", 7, &[8], [0, 32, 0], 0));
        file.tokenizer[4] = 2;
        file.data = 210;
        let header = file.read(ParseMode::Lenient).unwrap();
        let names: Vec<&str> = header.tensors().map(|tensor| tensor.name).collect();
        assert_eq!(names, ["norm.weight", "layers.0.wq.weight", "layers.0.wq.weight.slm_scale"]);
        let reasons: Vec<&str> = header.skipped.listed().iter().map(|skipped| &skipped.reason[..]).collect();
        assert_eq!(
            reasons,
            [
                "version 2; version 1 is supported",
                "its scales end at byte 1280, but the file ends at byte 1234",
                "dtype 7 is not known"
            ]
        );
    }

    #[test]
    fn tokens_and_merges_are_listed() {
        let bpe = |tokens: &[(u32, &[u8])], merges: &[[u32; 4]]| {
            let mut file = three();
            file.fields[2] = 300;
            let head = [1, 300, 256, 257, 258, 259, tokens.len() as u32, merges.len() as u32];
            file.tokenizer = b"BPE1".to_vec();
            head.iter().for_each(|number| file.tokenizer.extend(number.to_le_bytes()));
            for (token, bytes) in tokens {
                [*token, bytes.len() as u32].iter().for_each(|number| file.tokenizer.extend(number.to_le_bytes()));
                file.tokenizer.extend(*bytes);
            }
            merges.iter().flatten().for_each(|number| file.tokenizer.extend(number.to_le_bytes()));
            file
        };
        let header = bpe(&[(260, b"th"), (261, b"\xff")], &[[116, 104, 260, 0]]).read(ParseMode::Strict).unwrap();
        let text = |key: &str| header.value(key).unwrap().text().to_owned();
        assert_eq!(text("tokenizer.tokens"), "\"th\"\n\"\u{fffd}\"\n");
        assert_eq!(
            (text("tokenizer.token_ids"), text("tokenizer.merges")),
            ("260\n261\n".into(), "\"116 104 260 0\"\n".into())
        );
        for (file, expected) in [
            (bpe(&[(300, b"a")], &[]), "token 300 is not below the size of the vocabulary, 300"),
            (bpe(&[(260, b"")], &[]), "token 260 has no bytes"),
            (bpe(&[(260, b"a"), (260, b"b")], &[]), "token 260 occurs twice"),
            (bpe(&[(260, b"a")], &[[0, 1, 261, 0]]), "merge 0 makes token 261, which is not in the table"),
            (bpe(&[(260, b"a")], &[[0, 1, 300, 0]]), "token 300 is not below"),
        ] {
            assert!(file.error().contains(expected), "{}\n{expected}", file.error());
        }
        // Numbers of tokens that are not there.
        let mut file = bpe(&[(260, b"a")], &[]);
        file.tokenizer[28..32].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(file.error().contains("are needed"), "{}", file.error());
    }

    #[test]
    fn findings_name_what_is_not_as_in_a_complete_model() {
        let mut file = three();
        (file.fields[0], file.fields[3], file.fields[6], file.fields[11]) = (2, 3, 3, f32::NAN.to_bits());
        file.data = 320;
        let bytes = file.bytes();
        let input = HeaderInput::with_prefix(bytes.len() as u64, bytes);
        let header = parse_slm(&input, ParseMode::Strict).unwrap();
        let mut found = Vec::new();
        lint_slm(&header, &input, &mut |HeaderLint { message, .. }| found.push(message)).unwrap();
        for expected in [
            "checksum 0x0000000000000007 (unverified: its constants are not published)",
            "the field model_type of the header is 2: only 1 is defined",
            "the field special_token_count of the header is 3: it must be at least 4",
            "the field hidden_size of the header is 8: 3 heads of 4 have another width",
            "the field kv_head_count of the header is 2: it does not divide the number of heads, 3",
            "the field rope_theta of the header is nan: it must be positive and finite",
            "tensor \"tok_embeddings.weight\" is missing",
            "tensor \"layers.0.wq.weight\": shape [4, 8] does not have the 64 elements of the header",
            "tensors whose hash matches no documented name: 1; they are called tensor-HASH",
            "64 bytes after the last tensor belong to no tensor",
        ] {
            assert!(found.iter().any(|message| message == expected), "{expected}\n{found:#?}");
        }
        // The number of layers is not trusted.
        file.fields[5] = u32::MAX;
        let bytes = file.bytes();
        let input = HeaderInput::with_prefix(bytes.len() as u64, bytes);
        let mut count = 0;
        lint_slm(&parse_slm(&input, ParseMode::Strict).unwrap(), &input, &mut |_| count += 1).unwrap();
        assert!(count < 40, "{count}");
    }
}
