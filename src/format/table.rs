//! The formats that weightfs reads, and the operations that depend on the format.

use super::detect::{self, ForeignFormat};
use super::edit::{EditError, EditedHead, MetadataEdit, NewHead};
use super::error::Error;
use super::header::{Header, ParseMode};
use super::input::{HeaderInput, MissingRange};
use super::lint::{self, HeaderLint};
use super::tensors::TensorInfo;
use super::{gguf, numpy, pytorch, safetensors, slm, zip};
use std::ffi::OsStr;
use std::mem;
use std::os::unix::ffi::OsStrExt;

/// A format.
struct FormatRow {
    /// Name in headers, `index.json` and messages.
    name: &'static str,
    /// Suffixes of its file names.
    suffixes: &'static [&'static str],
    /// Whether a file is of this format.
    recognises: fn(&HeaderInput) -> Result<bool, MissingRange>,
    /// Parses a header.
    parse: fn(&HeaderInput, ParseMode) -> Result<Header, Error>,
    /// Reports what is unusual in a parsed header.
    lint: Linter,
    /// Reports everything that is wrong with a file that the strict parser rejects.
    damage: Damage,
    /// Whether metadata values have types. Otherwise they are strings.
    has_types: bool,
    /// Returns the bytes before the data, with changed metadata.
    edit: Editor,
}

type Linter = fn(&Header, &HeaderInput, &mut dyn FnMut(HeaderLint)) -> Result<(), MissingRange>;
type Damage = fn(&Header, &Error, u64, &mut dyn FnMut(HeaderLint));
type Editor = fn(&Header, &HeaderInput, &MetadataEdit) -> Result<NewHead, EditError>;

/// All formats. safetensors has no magic number, so it comes last and parses what no other format recognises.
static FORMATS: [FormatRow; 6] = [
    FormatRow {
        name: slm::NAME,
        suffixes: &[".slm"],
        recognises: slm::is_slm,
        parse: |input, mode| Ok(slm::parse_slm(input, mode)?),
        lint: slm::lint_slm,
        damage: lint::left_out,
        has_types: true,
        edit: fixed,
    },
    FormatRow {
        name: numpy::NPZ,
        suffixes: &[".npz"],
        recognises: numpy::is_npz,
        parse: |input, mode| Ok(numpy::parse_npz(input, mode)?),
        lint: numpy::lint_npz,
        damage: lint::left_out,
        has_types: false,
        edit: fixed,
    },
    FormatRow {
        name: numpy::NPY,
        suffixes: &[".npy"],
        recognises: numpy::is_npy,
        parse: |input, mode| Ok(numpy::parse_npy(input, mode)?),
        lint: numpy::lint_npy,
        damage: lint::left_out,
        has_types: false,
        edit: fixed,
    },
    FormatRow {
        name: gguf::NAME,
        suffixes: &[".gguf"],
        recognises: gguf::is_gguf,
        parse: |input, mode| Ok(gguf::parse_gguf(input, mode)?),
        lint: gguf::lint_gguf,
        damage: lint::left_out,
        has_types: true,
        edit: gguf::edit_gguf,
    },
    FormatRow {
        name: pytorch::NAME,
        suffixes: &[".pt", ".pth", ".ckpt", ".bin"],
        recognises: pytorch::is_pytorch,
        parse: |input, mode| Ok(pytorch::parse_pytorch(input, mode)?),
        lint: pytorch::lint_pytorch,
        damage: pytorch::pytorch_damage,
        has_types: true,
        edit: fixed,
    },
    FormatRow {
        name: safetensors::NAME,
        suffixes: &[".safetensors"],
        recognises: |_| Ok(true),
        parse: |input, mode| Ok(safetensors::parse_safetensors(input, mode)?),
        lint: safetensors::lint_safetensors,
        damage: safetensors::safetensors_damage,
        has_types: false,
        edit: |header, input, edit| Ok(safetensors::edit_safetensors(header, input, edit)?),
    },
];

/// The editor of formats whose metadata cannot be changed.
fn fixed(header: &Header, _: &HeaderInput, _: &MetadataEdit) -> Result<NewHead, EditError> {
    Err(EditError::Fixed { format: header.format() })
}

/// The file name suffixes of all formats.
pub fn suffixes() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().rev().flat_map(|format| format.suffixes).copied()
}

/// A file name without the suffix of its format; `None` if no format has that suffix, or the name says that the file is
/// no model.
pub fn format_stem(name: &OsStr) -> Option<&OsStr> {
    let stem = suffixes().find_map(|suffix| name.as_bytes().strip_suffix(suffix.as_bytes()))?;
    Some(OsStr::from_bytes(stem)).filter(|_| !pytorch::is_other(name))
}

/// Parses the header of a file. Fails with [`Error::Missing`] until `input` holds everything that the parser needs.
pub fn parse_header(input: &HeaderInput, mode: ParseMode) -> Result<Header, Error> {
    let [others @ .., last] = &FORMATS;
    let mut format = last;
    for other in others {
        if (other.recognises)(input)? {
            format = other;
            break;
        }
    }
    (format.parse)(input, mode).or_else(|error| match error {
        Error::Missing(_) => Err(error),
        _ if format.name != last.name => Err(error),
        // A file that does not parse may be of a format that weightfs does not read.
        _ => Err(foreign(input)?.map_or(error, Error::Foreign)),
    })
}

/// Identifies a file of a format that weightfs does not read.
fn foreign(input: &HeaderInput) -> Result<Option<ForeignFormat>, MissingRange> {
    let prefix = input.get(0..detect::PREFIX)?;
    if detect::may_precede_archive(prefix)
        && let Some(before) = zip::bytes_before(input)?
    {
        return Ok(Some(ForeignFormat::archive_after(before)));
    }
    Ok(ForeignFormat::detect(prefix))
}

/// Reports everything in a header that readers accept although the format does not define it. `header` was parsed from
/// `input`.
/// It reports nothing until `input` has everything that it needs.
pub fn lint_header(
    header: &Header,
    input: &HeaderInput,
    found: &mut dyn FnMut(HeaderLint),
) -> Result<(), MissingRange> {
    (row(header).lint)(header, input, found)
}

/// Reports everything that is wrong with a file of `len` bytes. `broken` is the error of the strict parser, and
/// `header` the result of the lenient parser.
pub fn header_damage(header: &Header, broken: &Error, len: u64, found: &mut dyn FnMut(HeaderLint)) {
    (row(header).damage)(header, broken, len, found);
}

/// Whether the metadata values of the format with that name have types. Otherwise they are strings.
pub fn has_types(format: &str) -> bool {
    FORMATS.iter().any(|row| row.name == format && row.has_types)
}

/// Changes metadata. `header` was parsed from `input` in strict mode.
///
/// The result is a valid header of the same tensors with the same data. The strict parser has read it.
pub fn edit_metadata(header: &Header, input: &HeaderInput, edit: &MetadataEdit) -> Result<EditedHead, EditError> {
    let row = row(header);
    let mut head = (row.edit)(header, input, edit)?;
    let (new_start, old_start) = (head.bytes.len() as u64, head.data_start);
    let len = new_start + input.len().saturating_sub(old_start);
    // The parser takes the bytes and does not change them.
    let changed = HeaderInput::with_prefix(len, mem::take(&mut head.bytes));
    let new = (row.parse)(&changed, ParseMode::Strict)?;
    let is_same = |(old, new): (TensorInfo, TensorInfo)| {
        let moved = |at: u64| at.checked_sub(old_start).map(|offset| offset + new_start);
        (old.name, old.dtype, old.shape) == (new.name, new.dtype, new.shape)
            && moved(old.range.start) == Some(new.range.start)
            && moved(old.range.end) == Some(new.range.end)
    };
    if header.len() != new.len() || !header.tensors().zip(new.tensors()).all(is_same) {
        return Err(EditError::Tensors);
    }
    head.bytes = changed.into_prefix();
    Ok(EditedHead { head, header: new })
}

fn row(header: &Header) -> &'static FormatRow {
    let [others @ .., last] = &FORMATS;
    others.iter().find(|format| format.name == header.format()).unwrap_or(last)
}
