//! The formats that weightfs reads, and the operations that depend on the format.

use super::detect;
use super::edit::{MetadataEdit, NewHead};
use super::error::Error;
use super::header::{Header, ParseMode};
use super::input::{HeaderInput, MissingRange};
use super::lint::{self, HeaderLint};
use super::suffix::strip_suffix;
use super::tensors::HeaderTensor;
use super::{gguf, numpy, onnx, pytorch, safetensors, slm, zip};
use std::ffi::{OsStr, OsString};
use std::mem;

struct FormatRow {
    /// Name in headers, `index.json` and messages.
    name: &'static str,
    suffixes: &'static [&'static str],
    recognises: fn(&HeaderInput) -> Result<bool, MissingRange>,
    parse: fn(&HeaderInput, ParseMode) -> Result<Header, Error>,
    lint: Linter,
    /// Reports everything that is wrong with a file that the strict parser rejects.
    damage: Damage,
    has_types: bool,
    /// Returns the bytes before the data, with changed metadata.
    edit: Editor,
    /// Whether other programs use the suffix of a file name too, so that only the content tells what the file is.
    is_shared: fn(&OsStr) -> bool,
    /// Whether a file is no model although its name has a suffix of the format.
    is_other: fn(&OsStr) -> bool,
    is_secondary: bool,
    preferred: fn(&OsStr) -> Option<[OsString; 2]>,
}

type Linter = fn(&Header, &HeaderInput, &mut dyn FnMut(HeaderLint)) -> Result<(), MissingRange>;
type Damage = fn(&Header, &Error, u64, &mut dyn FnMut(HeaderLint));
type Editor = fn(&Header, &HeaderInput, &MetadataEdit) -> Result<NewHead, Error>;

/// The values of most formats. Each row has at least a name and the functions of its parser.
const PLAIN: FormatRow = FormatRow {
    name: "",
    suffixes: &[],
    recognises: |_| Ok(true),
    parse: safetensors::parse_safetensors,
    lint: safetensors::lint_safetensors,
    damage: lint::left_out,
    has_types: false,
    edit: refuse_edit,
    is_shared: |_| false,
    is_other: |_| false,
    is_secondary: false,
    preferred: |_| None,
};

/// All formats. safetensors has no magic number, so it comes last and parses what no other format recognises.
static FORMATS: [FormatRow; 7] = [
    FormatRow {
        name: slm::NAME,
        suffixes: &[".slm"],
        recognises: slm::is_slm,
        parse: slm::parse_slm,
        lint: slm::lint_slm,
        has_types: true,
        ..PLAIN
    },
    FormatRow {
        name: numpy::NPZ,
        suffixes: &[".npz"],
        recognises: numpy::is_npz,
        parse: numpy::parse_npz,
        lint: numpy::lint_npz,
        is_secondary: true,
        ..PLAIN
    },
    FormatRow {
        name: numpy::NPY,
        suffixes: &[".npy"],
        recognises: numpy::is_npy,
        parse: numpy::parse_npy,
        lint: numpy::lint_npy,
        is_secondary: true,
        ..PLAIN
    },
    FormatRow {
        name: gguf::NAME,
        suffixes: &[".gguf"],
        recognises: gguf::is_gguf,
        parse: gguf::parse_gguf,
        lint: gguf::lint_gguf,
        has_types: true,
        edit: gguf::edit_gguf,
        ..PLAIN
    },
    FormatRow {
        name: pytorch::NAME,
        suffixes: &[".pt", ".pth", ".pth.tar", ".jit", ".torchscript", ".ckpt", ".bin"],
        is_shared: pytorch::is_shared,
        recognises: pytorch::is_pytorch,
        parse: pytorch::parse_pytorch,
        lint: pytorch::lint_pytorch,
        damage: pytorch::pytorch_damage,
        has_types: true,
        is_other: pytorch::is_other,
        preferred: pytorch::preferred,
        ..PLAIN
    },
    FormatRow {
        name: onnx::NAME,
        suffixes: &[onnx::SUFFIX],
        recognises: onnx::is_onnx,
        parse: onnx::parse_onnx,
        lint: onnx::lint_onnx,
        damage: onnx::onnx_damage,
        is_secondary: true,
        ..PLAIN
    },
    FormatRow {
        name: safetensors::NAME,
        suffixes: &[".safetensors", ".sft"],
        damage: safetensors::safetensors_damage,
        edit: safetensors::edit_safetensors,
        ..PLAIN
    },
];

fn refuse_edit(header: &Header, _: &HeaderInput, _: &MetadataEdit) -> Result<NewHead, Error> {
    Err(Error::Refused(format!(
        "metadata of {} files cannot be changed (`weightfs export FILE OUT.safetensors` writes a copy whose metadata can \
         be changed)",
        header.format
    )))
}

pub fn suffixes() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().rev().flat_map(|format| format.suffixes).copied()
}

/// The format with a suffix of a file name, and the name without the suffix.
fn format_of(name: &OsStr) -> Option<(&'static FormatRow, &OsStr)> {
    FORMATS.iter().rev().find_map(|row| {
        let stem = row.suffixes.iter().find_map(|suffix| strip_suffix(name, suffix))?;
        Some((row, stem))
    })
}

/// A file name without the suffix of its format; `None` if no format has that suffix, or the name says that the file is
/// no model.
pub fn format_stem(name: &OsStr) -> Option<&OsStr> {
    format_of(name).filter(|(row, _)| !(row.is_other)(name)).map(|(_, stem)| stem)
}

/// Whether the name of a file does not tell whether it is a model, because other programs use its suffix too.
pub fn is_shared_suffix(name: &OsStr) -> bool {
    format_of(name).is_some_and(|(row, _)| (row.is_shared)(name))
}

/// Whether a file with this name belongs to a model beside it that has another format.
pub fn is_secondary(name: &OsStr) -> bool {
    format_of(name).is_some_and(|(row, _)| row.is_secondary)
}

pub fn preferred_names(name: &OsStr) -> Option<[OsString; 2]> {
    FORMATS.iter().find_map(|row| (row.preferred)(name))
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

fn foreign(input: &HeaderInput) -> Result<Option<String>, MissingRange> {
    let prefix = input.get(0..detect::PREFIX)?;
    if detect::may_precede_archive(prefix)
        && let Some(before) = zip::bytes_before(input)?
    {
        return Ok(Some(detect::archive_after(before)));
    }
    Ok(detect::detect_foreign(prefix))
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
/// The result is a valid header of the same tensors with the same data. The parser has read it.
pub fn edit_metadata(header: &Header, input: &HeaderInput, edit: &MetadataEdit) -> Result<(NewHead, Header), Error> {
    let row = row(header);
    let mut head = (row.edit)(header, input, edit)?;
    let (new_start, old_start) = (head.bytes.len() as u64, head.data_start);
    let len = new_start + input.len().saturating_sub(old_start);
    // The parser takes the bytes and does not change them.
    let changed = HeaderInput::with_prefix(len, mem::take(&mut head.bytes));
    let new = (row.parse)(&changed, ParseMode::Header)?;
    let is_same = |(old, new): (HeaderTensor, HeaderTensor)| {
        let moved = |at: u64| at.checked_sub(old_start).map(|offset| offset + new_start);
        (old.name, old.dtype, old.shape) == (new.name, new.dtype, new.shape)
            && moved(old.range.start) == Some(new.range.start)
            && moved(old.range.end) == Some(new.range.end)
    };
    if header.len() != new.len() || !header.tensors().zip(new.tensors()).all(is_same) {
        // Only a bug in an editor causes this.
        return Err(Error::Refused("the changed header does not describe the same tensors".to_owned()));
    }
    head.bytes = changed.into_prefix();
    Ok((head, new))
}

fn row(header: &Header) -> &'static FormatRow {
    let [others @ .., last] = &FORMATS;
    others.iter().find(|format| format.name == header.format).unwrap_or(last)
}
