//! Reads metadata and the descriptions of tensors.

use super::cursor::{GgufCursor, check_length};
use super::{ALIGNMENT, ALIGNMENT_KEY, ARRAY, MAGIC, NAME, RANK_MAX, SHAPE_PREFIX};
use crate::format::dtype::Dtype;
use crate::format::error::{Error, key_reason};
use crate::format::header::{Header, HeaderBuilder, NewTensor, ParseMode, SkippedEntry};
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::metadata::{MetadataValue, ScalarType, float_text, push_line};
use crate::format::tensors::{count_elements, fits, too_large};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// The fault of a name or a key that another entry has too.
const DUPLICATE: &str = "occurs more than once";

pub fn is_gguf(input: &HeaderInput) -> Result<bool, MissingRange> {
    Ok(input.get(0..MAGIC.len() as u64)? == MAGIC)
}

/// The offset of each tensor is a multiple of this number of bytes.
pub fn alignment(header: &Header) -> u64 {
    let found = header.value(ALIGNMENT_KEY).and_then(|value| value.text().parse::<u32>().ok());
    found.filter(|found| found.is_power_of_two()).unwrap_or(ALIGNMENT).into()
}

/// Reads the header of a file.
///
/// Fails with [`Error::Missing`] until the header is in `input`. Allocation is bounded by the bytes in `input`, and
/// never by a count or a length in the file.
pub fn parse_gguf(input: &HeaderInput, mode: ParseMode) -> Result<Header, Error> {
    let mut header = parse_file(input, 0, mode)?;
    if mode == ParseMode::Header {
        return Ok(header);
    }
    if let Some(following) = FollowingFiles::find(input, &header)? {
        if mode != ParseMode::Lenient {
            return Err(Error::Broken(following.to_string()));
        }
        header.skipped.remark(|| SkippedEntry::bytes(following.to_string()));
    } else if mode == ParseMode::Lenient {
        header.report_places(alignment(&header), input.len());
    }
    Ok(header)
}

/// Reads the header of the file that begins at `base`. All offsets in it are those from there.
fn parse_file(input: &HeaderInput, base: u64, mode: ParseMode) -> Result<Header, Error> {
    let mut cursor = GgufCursor::of_file(input, base);
    cursor.take(MAGIC.len() as u64)?;
    let version = cursor.u32()?;
    match version {
        2 | 3 => {}
        _ if version & 0xffff == 0 && version != 0 => {
            return Err(Error::Broken(format!(
                "GGUF version {} in big-endian order; only little-endian files are supported (gguf_convert_endian.py of \
                 the gguf package converts it)",
                version.swap_bytes()
            )));
        }
        _ => {
            let hint = if version == 1 { " (convert it with llama.cpp's tools)" } else { "" };
            return Err(Error::Broken(format!("GGUF version {version}; versions 2 and 3 are supported{hint}")));
        }
    }
    let mut reader = GgufReader {
        builder: HeaderBuilder::new(mode),
        alignment: ALIGNMENT.into(),
        expected: 0,
        shapes: HashMap::new(),
        misfits: Vec::new(),
    };
    reader.builder.version(version);
    let (tensors, keys) = (cursor.u64()?, cursor.u64()?);
    let mut seen = HashSet::new();
    for number in 0..keys {
        let mut key = None;
        reader.pair(&mut cursor, &mut seen, &mut key).map_err(|error| {
            error.map_part(|fault| match key {
                Some(key) => Error::Key { key, fault },
                None => Error::Broken(format!("metadata key number {number}: {fault}")),
            })
        })?;
    }
    let mut found = Vec::new();
    for number in 0..tensors {
        found.extend(reader.tensor(&mut cursor, number)?);
    }
    reader.finish(cursor.offset(), tensors > 0, found, input.len().saturating_sub(base))
}

/// GGUF files after the data of a file, as when the splits of a model were joined with `cat`. No reader of GGUF finds
/// their tensors.
struct FollowingFiles {
    start: u64,
    end: u64,
    count: usize,
    /// Whether there are more than `count`.
    is_cut: bool,
}

impl FollowingFiles {
    /// Maximum number of files that are counted: the header of each is read.
    const COUNTED_MAX: usize = 100;

    /// Maximum size of all headers that are read, in bytes: each missing part makes the parser start again.
    const READ_MAX: u64 = 16 << 20;

    /// Finds the files that follow the one with this header.
    fn find(input: &HeaderInput, header: &Header) -> Result<Option<Self>, Error> {
        let Some(start) = next_file(input, 0, header)? else { return Ok(None) };
        let mut found = Self { start, end: input.len(), count: 1, is_cut: false };
        let (mut base, mut read) = (start, 0);
        // A header that cannot be read ends the count.
        while let Some(header) = found_header(parse_file(input, base, ParseMode::Header))? {
            let Some(next) = next_file(input, base, &header)? else { break };
            read += header.data_start;
            if found.count == Self::COUNTED_MAX || read > Self::READ_MAX {
                found.is_cut = true;
                break;
            }
            found.count += 1;
            base = next;
        }
        Ok(Some(found))
    }
}

impl fmt::Display for FollowingFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, end, count, is_cut } = self;
        let at_least = if *is_cut { "at least " } else { "" };
        let (files, follow) = if *count == 1 { ("file", "follows") } else { ("files", "follow") };
        write!(
            f,
            "{at_least}{count} more GGUF {files} {follow}, at bytes {start} to {end}, as when splits are joined with `cat` \
             (join the splits themselves with `llama-gguf-split --merge FIRST_SPLIT OUT.gguf`)"
        )
    }
}

/// The header, or `None` if the file has none. Fails only if more of the input is needed.
fn found_header(parsed: Result<Header, Error>) -> Result<Option<Header>, MissingRange> {
    match parsed {
        Err(Error::Missing(missing)) => Err(missing),
        parsed => Ok(parsed.ok()),
    }
}

/// Where another file begins after the data of the one at `base`, with or without the padding of its last tensor.
fn next_file(input: &HeaderInput, base: u64, header: &Header) -> Result<Option<u64>, MissingRange> {
    let end = base.saturating_add(header.data_end());
    let padded = header.data_end().checked_next_multiple_of(alignment(header));
    let padded = padded.map_or(u64::MAX, |padded| base.saturating_add(padded));
    // Without tensors there may be padding too.
    for start in [end, padded] {
        if start < input.len() && input.get(start..start.saturating_add(MAGIC.len() as u64))? == MAGIC {
            return Ok(Some(start));
        }
    }
    Ok(None)
}

struct GgufReader {
    builder: HeaderBuilder,
    /// In bytes.
    alignment: u64,
    /// End of the data of the tensors so far with padding, in bytes from the beginning of the data.
    expected: u64,
    /// The shapes that metadata gives, by the names of tensors.
    shapes: HashMap<String, Vec<u64>>,
    /// The tensors whose shape in the metadata cannot be used, and why.
    misfits: Vec<(String, String)>,
}

/// A tensor whose data has no place in the file yet: the start of the data is known only at the end of the header.
struct UnplacedTensor {
    tensor: NewTensor,
    /// In bytes from the beginning of the data.
    offset: u64,
    nbytes: u64,
}

impl GgufReader {
    fn is_strict(&self) -> bool {
        self.builder.mode() != ParseMode::Lenient
    }

    /// Reads a metadata key, which is also put into `found`, and its value. `seen` has the keys before it.
    fn pair(
        &mut self,
        cursor: &mut GgufCursor,
        seen: &mut HashSet<String>,
        found: &mut Option<String>,
    ) -> Result<(), Error> {
        let start = cursor.offset();
        let bytes = cursor.string()?;
        if str::from_utf8(bytes).is_err() && self.is_strict() {
            return Err(Error::Broken("the key is not UTF-8".to_owned()));
        }
        let key = &*found.insert(String::from_utf8_lossy(bytes).into_owned());
        let kind = cursor.u32()?;
        let value = read_value(cursor, kind)?;
        if key == ALIGNMENT_KEY {
            self.alignment = read_alignment(kind, &value)?;
        }
        if let Some(name) = key.strip_prefix(SHAPE_PREFIX).filter(|_| value.is_array()) {
            self.shapes.extend(given_shape(&value).map(|shape| (name.to_owned(), shape)));
        }
        let fault = match () {
            () if key.is_empty() => "the key is empty",
            () if !seen.insert(key.clone()) => DUPLICATE,
            () => {
                self.builder.pair(key.clone(), start..cursor.offset());
                self.builder.metadata(key.clone(), value);
                return Ok(());
            }
        };
        if self.is_strict() {
            return Err(Error::Broken(fault.to_owned()));
        }
        self.builder.skip(key, || key_reason(fault));
        Ok(())
    }

    /// Reads the description of a tensor. `None` if it breaks a rule and is left out.
    fn tensor(&mut self, cursor: &mut GgufCursor, number: u64) -> Result<Option<UnplacedTensor>, Error> {
        let bytes = cursor
            .string()
            .map_err(|error| error.map_part(|fault| Error::Tensor { name: number.to_string(), fault }))?;
        let name = String::from_utf8_lossy(bytes);
        let rank = cursor.u32()?;
        if rank > RANK_MAX {
            // The fields after so many dimensions cannot be found reliably.
            let fault = format!("{rank} dimensions, and at most {RANK_MAX} are read");
            return Err(Error::Tensor { name: name.into_owned(), fault });
        }
        let mut dims = [0; RANK_MAX as usize];
        let dims = &mut dims[..rank as usize];
        // The file has the innermost dimension first.
        for dim in dims.iter_mut().rev() {
            *dim = cursor.u64()?;
        }
        let (kind, offset) = (cursor.u32()?, cursor.u64()?);
        let (dtype, nbytes) = match self.check(bytes, dims, kind, offset) {
            Ok(checked) => checked,
            Err(fault) if self.is_strict() => return Err(Error::Tensor { name: name.into_owned(), fault }),
            Err(fault) => {
                self.builder.skip(&name, || fault);
                return Ok(None);
            }
        };
        let dtype = self.builder.known_dtype(dtype);
        let given = self.shapes.remove(&*name);
        let fault = given.as_ref().and_then(|given| shape_fault(given, dims));
        let shape = given.as_deref().filter(|_| fault.is_none()).unwrap_or(dims);
        self.misfits.extend(fault.map(|fault| (name.to_string(), fault)));
        let tensor = self.builder.tensor(&name, dtype, shape, 0..0);
        Ok(Some(UnplacedTensor { tensor, offset, nbytes }))
    }

    /// Checks the description of a tensor. Returns its dtype, and its size in bytes.
    fn check(&mut self, name: &[u8], dims: &[u64], kind: u32, offset: u64) -> Result<(Dtype<'static>, u64), String> {
        if str::from_utf8(name).is_err() {
            return Err("the name is not UTF-8".to_owned());
        }
        // ggml counts the innermost dimension first.
        let elements = count_elements(dims.iter().rev()).ok_or_else(|| too_large(dims))?;
        let Some((dtype, block)) = Dtype::from_ggml(kind).and_then(|dtype| Some((dtype, dtype.block()?))) else {
            return Err(unknown_type(kind));
        };
        let row = dims.last().copied().unwrap_or(1);
        if !row.is_multiple_of(block.elements) {
            return Err(format!("rows of {row} elements, but {dtype} has blocks of {}", block.elements));
        }
        let nbytes =
            (elements / block.elements).checked_mul(block.bytes).and_then(fits).ok_or_else(|| too_large(dims))?;
        if self.builder.mode() == ParseMode::Strict {
            if offset != self.expected {
                let expected = self.expected;
                return Err(format!("its data begins at offset {offset}, but the tensors before it end at {expected}"));
            }
            let padded = nbytes.checked_next_multiple_of(self.alignment);
            self.expected = padded.and_then(|padded| offset.checked_add(padded)).ok_or_else(|| too_large(dims))?;
        }
        Ok((dtype, nbytes))
    }

    fn finish(mut self, end: u64, has_data: bool, found: Vec<UnplacedTensor>, len: u64) -> Result<Header, Error> {
        // Without tensors there is no padding.
        let data_start = if has_data { end.next_multiple_of(self.alignment) } else { end };
        let mode = self.builder.mode();
        let mut last = data_start;
        for UnplacedTensor { tensor, offset, nbytes } in found {
            let begin = data_start.saturating_add(offset);
            let end = begin.saturating_add(nbytes);
            last = last.max(end);
            if mode != ParseMode::Lenient || end <= len {
                self.builder.push(NewTensor { range: begin..end, ..tensor });
            } else {
                self.builder.skip_cut(&tensor.name, begin, || {
                    format!("its data is at bytes {begin} to {end}, but the file ends at byte {len}")
                });
            }
        }
        if mode == ParseMode::Strict && last > len {
            return Err(Error::data_cut(last, len));
        }
        let mut header = self.builder.finish(NAME, None, data_start, DUPLICATE)?;
        for (name, fault) in self.misfits {
            header.skipped.remark(|| SkippedEntry::shown(name, fault));
        }
        Ok(header)
    }
}

/// The shape that a metadata value gives; `None` if it gives none, or one of too many dimensions.
pub(super) fn given_shape(value: &MetadataValue) -> Option<Vec<u64>> {
    let dims = value.text().lines().take(RANK_MAX as usize + 1).map(|dim| dim.parse().ok());
    dims.collect::<Option<Vec<u64>>>().filter(|dims| dims.len() <= RANK_MAX as usize && value.is_array())
}

/// Why a shape in the metadata cannot be that of a tensor which is stored with the dimensions `dims`, if so.
pub(super) fn shape_fault(shape: &[u64], dims: &[u64]) -> Option<String> {
    let fits = count_elements(shape.iter().rev()) == count_elements(dims.iter().rev());
    (!fits)
        .then(|| format!("{SHAPE_PREFIX}* gives it the shape {shape:?}, which does not fit the stored shape {dims:?}"))
}

/// Types that ggml has removed, their names, and what replaces them. Source: `ggml_type` in `include/ggml.h`.
const REMOVED_TYPES: [(u32, &str, &str); 8] = [
    (4, "Q4_2", "quantize the original model again, for example as Q4_0"),
    (5, "Q4_3", "quantize the original model again, for example as Q4_1"),
    (31, "Q4_0_4_4", REPACKED_Q4_0),
    (32, "Q4_0_4_8", REPACKED_Q4_0),
    (33, "Q4_0_8_8", REPACKED_Q4_0),
    (36, "IQ4_NL_4_4", REPACKED_IQ4_NL),
    (37, "IQ4_NL_4_8", REPACKED_IQ4_NL),
    (38, "IQ4_NL_8_8", REPACKED_IQ4_NL),
];

const REPACKED_Q4_0: &str = "use a file of the same model as Q4_0, which llama.cpp repacks when it loads it";
const REPACKED_IQ4_NL: &str = "use a file of the same model as IQ4_NL, which llama.cpp repacks when it loads it";

fn unknown_type(kind: u32) -> String {
    match REMOVED_TYPES.iter().find(|(number, ..)| *number == kind) {
        Some((_, name, remedy)) => format!("ggml type {kind}, {name}, was removed from ggml ({remedy})"),
        None => format!("ggml type {kind} is not known"),
    }
}

/// The alignment that a metadata value of the type `kind` gives, in bytes.
fn read_alignment(kind: u32, value: &MetadataValue) -> Result<u64, String> {
    match value.text().parse::<u32>() {
        Ok(found) if kind == ScalarType::U32.gguf_number() => match found.is_power_of_two() {
            true => Ok(found.into()),
            false => Err(format!("{found} is not a power of two")),
        },
        _ => Err(format!("value type {kind}; {ALIGNMENT_KEY} must be a uint32 (type 4)")),
    }
}

fn read_value(cursor: &mut GgufCursor, kind: u32) -> Result<MetadataValue, Error> {
    if kind == ARRAY {
        return read_array(cursor);
    }
    match scalar_type(kind)? {
        ScalarType::String => Ok(MetadataValue::bytes_of(cursor.string()?)),
        scalar => Ok(MetadataValue::scalar(scalar, read_number(scalar, cursor.take(scalar.gguf_size())?))),
    }
}

fn scalar_type(kind: u32) -> Result<ScalarType, String> {
    ScalarType::from_gguf(kind).ok_or_else(|| format!("value type {kind} does not exist"))
}

fn read_array(cursor: &mut GgufCursor) -> Result<MetadataValue, Error> {
    let (kind, len) = (cursor.u32()?, cursor.u64()?);
    check_length(len)?;
    if kind == ARRAY {
        return Err(Error::Broken("an array of arrays, which ggml does not allow".to_owned()));
    }
    let scalar = scalar_type(kind)?;
    let size = scalar.gguf_size();
    let mut lines = Vec::new();
    if scalar == ScalarType::String {
        for _ in 0..len {
            push_line(scalar, &String::from_utf8_lossy(cursor.string()?), &mut lines);
        }
    } else {
        for bytes in cursor.take(size * len)?.chunks_exact(size as usize) {
            push_line(scalar, &read_number(scalar, bytes), &mut lines);
        }
    }
    Ok(MetadataValue::array(scalar, lines))
}

pub fn read_number(scalar: ScalarType, bytes: &[u8]) -> String {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    match scalar {
        ScalarType::I8 => (bits as i8).to_string(),
        ScalarType::I16 => (bits as i16).to_string(),
        ScalarType::I32 => (bits as i32).to_string(),
        ScalarType::I64 => (bits as i64).to_string(),
        ScalarType::Bool => (bits != 0).to_string(),
        ScalarType::F32 => float_text(f32::from_bits(bits as u32)),
        ScalarType::F64 => float_text(f64::from_bits(bits)),
        ScalarType::U8 | ScalarType::U16 | ScalarType::U32 | ScalarType::U64 | ScalarType::String => bits.to_string(),
    }
}
