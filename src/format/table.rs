//! The formats that weightfs reads, and the operations that depend on the format.

use super::detect::{self, Foreign};
use super::edit::{Edit, EditError, Edited, NewHead};
use super::error::Error;
use super::header::{Header, Mode, TensorInfo};
use super::input::{Input, Missing};
use super::lint::{self, Lint};
use super::{gguf, numpy, pytorch, safetensors, slm, zip};
use std::ffi::OsStr;
use std::mem;
use std::os::unix::ffi::OsStrExt;

/// A format.
struct Row {
    /// Name in headers, `index.json` and messages.
    name: &'static str,
    /// Suffixes of its file names.
    suffixes: &'static [&'static str],
    /// Whether a file is of this format.
    recognises: fn(&Input) -> Result<bool, Missing>,
    /// Parses a header.
    parse: fn(&Input, Mode) -> Result<Header, Error>,
    /// Reports what is unusual in a parsed header.
    lint: Linter,
    /// Reports everything that is wrong with a file that the strict parser rejects.
    damage: Damage,
    /// Whether metadata values have types. Otherwise they are strings.
    has_types: bool,
    /// Returns the bytes before the data, with changed metadata.
    edit: Editor,
}

type Linter = fn(&Header, &Input, &mut dyn FnMut(Lint)) -> Result<(), Missing>;
type Damage = fn(&Header, &Error, u64, &mut dyn FnMut(Lint));
type Editor = fn(&Header, &Input, &Edit) -> Result<NewHead, EditError>;

/// All formats. safetensors has no magic number, so it comes last and parses what no other format recognises.
static FORMATS: [Row; 6] = [
    Row {
        name: slm::NAME,
        suffixes: &[".slm"],
        recognises: slm::is_slm,
        parse: |input, mode| Ok(slm::parse(input, mode)?),
        lint: slm::lint,
        damage: lint::left_out,
        has_types: true,
        edit: fixed,
    },
    Row {
        name: numpy::NPZ,
        suffixes: &[".npz"],
        recognises: numpy::is_npz,
        parse: |input, mode| Ok(numpy::parse_npz(input, mode)?),
        lint: numpy::lint_npz,
        damage: lint::left_out,
        has_types: false,
        edit: fixed,
    },
    Row {
        name: numpy::NPY,
        suffixes: &[".npy"],
        recognises: numpy::is_npy,
        parse: |input, mode| Ok(numpy::parse(input, mode)?),
        lint: numpy::lint,
        damage: lint::left_out,
        has_types: false,
        edit: fixed,
    },
    Row {
        name: gguf::NAME,
        suffixes: &[".gguf"],
        recognises: gguf::is_gguf,
        parse: |input, mode| Ok(gguf::parse(input, mode)?),
        lint: gguf::lint,
        damage: lint::left_out,
        has_types: true,
        edit: gguf::edit,
    },
    Row {
        name: pytorch::NAME,
        suffixes: &[".pt", ".pth", ".ckpt", ".bin"],
        recognises: pytorch::is_pytorch,
        parse: |input, mode| Ok(pytorch::parse(input, mode)?),
        lint: pytorch::lint,
        damage: pytorch::damage,
        has_types: true,
        edit: fixed,
    },
    Row {
        name: safetensors::NAME,
        suffixes: &[".safetensors"],
        recognises: |_| Ok(true),
        parse: |input, mode| Ok(safetensors::parse(input, mode)?),
        lint: safetensors::lint,
        damage: safetensors::damage,
        has_types: false,
        edit: |header, input, edit| Ok(safetensors::edit(header, input, edit)?),
    },
];

/// The editor of formats whose metadata cannot be changed.
fn fixed(header: &Header, _: &Input, _: &Edit) -> Result<NewHead, EditError> {
    Err(EditError::Fixed { format: header.format() })
}

/// The file name suffixes of all formats.
pub fn suffixes() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().rev().flat_map(|format| format.suffixes).copied()
}

/// A file name without the suffix of its format; `None` if no format has that suffix, or the name says that the file is
/// no model.
pub fn stem(name: &OsStr) -> Option<&OsStr> {
    let stem = suffixes().find_map(|suffix| name.as_bytes().strip_suffix(suffix.as_bytes()))?;
    Some(OsStr::from_bytes(stem)).filter(|_| !pytorch::is_other(name))
}

/// Parses the header of a file. Fails with [`Error::Missing`] until `input` holds everything that the parser needs.
pub fn parse(input: &Input, mode: Mode) -> Result<Header, Error> {
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
fn foreign(input: &Input) -> Result<Option<Foreign>, Missing> {
    let prefix = input.get(0..detect::PREFIX)?;
    if detect::may_precede_archive(prefix)
        && let Some(before) = zip::bytes_before(input)?
    {
        return Ok(Some(Foreign::archive_after(before)));
    }
    Ok(Foreign::detect(prefix))
}

/// Reports everything in a header that readers accept although the format does not define it. `header` was parsed from
/// `input`.
/// It reports nothing until `input` has everything that it needs.
pub fn lint(header: &Header, input: &Input, found: &mut dyn FnMut(Lint)) -> Result<(), Missing> {
    (row(header).lint)(header, input, found)
}

/// Reports everything that is wrong with a file of `len` bytes. `broken` is the error of the strict parser, and
/// `header` the result of the lenient parser.
pub fn damage(header: &Header, broken: &Error, len: u64, found: &mut dyn FnMut(Lint)) {
    (row(header).damage)(header, broken, len, found);
}

/// Whether the metadata values of the format with that name have types. Otherwise they are strings.
pub fn has_types(format: &str) -> bool {
    FORMATS.iter().any(|row| row.name == format && row.has_types)
}

/// Changes metadata. `header` was parsed from `input` in strict mode.
///
/// The result is a valid header of the same tensors with the same data. The strict parser has read it.
pub fn edit(header: &Header, input: &Input, edit: &Edit) -> Result<Edited, EditError> {
    let row = row(header);
    let mut head = (row.edit)(header, input, edit)?;
    let (new_start, old_start) = (head.bytes.len() as u64, head.data_start);
    let len = new_start + input.len().saturating_sub(old_start);
    // The parser takes the bytes and does not change them.
    let changed = Input::with_prefix(len, mem::take(&mut head.bytes));
    let new = (row.parse)(&changed, Mode::Strict)?;
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
    Ok(Edited { head, header: new })
}

fn row(header: &Header) -> &'static Row {
    let [others @ .., last] = &FORMATS;
    others.iter().find(|format| format.name == header.format()).unwrap_or(last)
}
