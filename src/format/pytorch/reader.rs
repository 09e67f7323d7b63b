//! Reads the header of an archive.

use super::NAME;
use super::archive::{Archive, prefix};
use super::error::{Error, Fault};
use super::lower::lower;
use crate::format::header::{BuildError, Header, HeaderBuilder, Mode};
use crate::format::input::{Input, Missing};
use crate::format::zip::{self, Directory};

/// Whether a file is an archive that torch has written, or the beginning of one.
pub fn is_pytorch(input: &Input) -> Result<bool, Missing> {
    if !zip::is_zip(input)? {
        return Ok(false);
    }
    match Directory::read(input) {
        Ok(directory) => Ok((0..directory.len()).any(|at| by_torch(directory.name(at)))),
        Err(zip::Error::Missing(missing)) => Err(missing),
        // The first entry tells what a damaged archive should be.
        Err(zip::Error::Fault(_)) => Ok(by_torch(&zip::first_name(input)?)),
    }
}

/// Whether an entry of that name is one that torch writes.
fn by_torch(name: &str) -> bool {
    let member = name.split_once('/').map_or(name, |(_, member)| member);
    prefix(name).is_some() || ["constants.pkl", "version", ".data/serialization_id"].contains(&member)
}

/// Reads the header of a file.
///
/// Fails with [`Error::Missing`] until the directory, the pickle and some local headers are in `input`.
pub fn parse(input: &Input, mode: Mode) -> Result<Header, Error> {
    let directory = Directory::read(input)?;
    let archive = Archive::read(&directory, input, mode)?;
    let tree = archive.tree(input)?;
    let mut builder = HeaderBuilder::new(mode);
    lower(&tree, &archive, &mut builder)?;
    let header = builder.finish(NAME, None, archive.data_start(), || Fault::Duplicate.to_string());
    header.map_err(|error| match error {
        BuildError::Duplicate { name } => Error::Tensor { name, fault: Fault::Duplicate },
        BuildError::TooLarge => Error::Limit { what: "more than 2^32 dimensions", path: String::new() },
    })
}
