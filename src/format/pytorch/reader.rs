//! Reads the header of an archive.

use super::NAME;
use super::archive::{TorchArchive, prefix};
use super::error::{PytorchError, PytorchFault};
use super::lower::lower;
use crate::format::header::{BuildError, Header, HeaderBuilder, ParseMode};
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::zip::{self, ZipDirectory};

/// Whether a file is an archive that torch has written, or the beginning of one.
pub fn is_pytorch(input: &HeaderInput) -> Result<bool, MissingRange> {
    if !zip::is_zip(input)? {
        return Ok(false);
    }
    match ZipDirectory::read(input) {
        Ok(directory) => Ok((0..directory.len()).any(|at| by_torch(directory.name(at)))),
        Err(zip::ZipError::Missing(missing)) => Err(missing),
        // The first entry tells what a damaged archive should be.
        Err(zip::ZipError::Fault(_)) => Ok(by_torch(&zip::first_name(input)?)),
    }
}

/// Whether an entry of that name is one that torch writes.
fn by_torch(name: &str) -> bool {
    let member = name.split_once('/').map_or(name, |(_, member)| member);
    prefix(name).is_some() || ["constants.pkl", "version", ".data/serialization_id"].contains(&member)
}

/// Reads the header of a file.
///
/// Fails with [`PytorchError::Missing`] until the directory, the pickle and some local headers are in `input`.
pub fn parse_pytorch(input: &HeaderInput, mode: ParseMode) -> Result<Header, PytorchError> {
    let directory = ZipDirectory::read(input)?;
    let archive = TorchArchive::read(&directory, input, mode)?;
    let tree = archive.tree(input)?;
    let mut builder = HeaderBuilder::new(mode);
    lower(&tree, &archive, &mut builder)?;
    let header = builder.finish(NAME, None, archive.data_start(), || PytorchFault::Duplicate.to_string());
    header.map_err(|error| match error {
        BuildError::Duplicate { name } => PytorchError::Tensor { name, fault: PytorchFault::Duplicate },
        BuildError::TooLarge => PytorchError::Limit { what: "more than 2^32 dimensions", path: String::new() },
    })
}
