//! The forms of checkpoints: zip archives, and files of older versions of torch.

use super::archive;
use super::legacy::{LegacyLayout, is_legacy, parse_legacy};
use super::lower::parse_zip;
use super::tar::{TarLayout, is_tar, parse_tar};
use crate::format::error::Error;
use crate::format::header::{Header, ParseMode};
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::pickle::PickleTree;
use crate::format::zip;

/// Whether a file is a checkpoint in one of the forms of torch.
pub fn is_pytorch(input: &HeaderInput) -> Result<bool, MissingRange> {
    Ok(match zip::is_zip(input)? {
        true => archive::is_archive(input)?,
        false => is_legacy(input)? || is_tar(input)?,
    })
}

/// Reads the header of a checkpoint in any of its forms.
pub fn parse_pytorch(input: &HeaderInput, mode: ParseMode) -> Result<Header, Error> {
    match () {
        () if zip::is_zip(input)? => parse_zip(input, mode),
        () if is_tar(input)? => parse_tar(input, mode),
        () => parse_legacy(input, mode),
    }
}

/// The pickle of the object in a file of an older version of torch, and the number of storages whose sizes were not
/// compared with it. `None` for zip archives.
pub fn old_pickle(input: &HeaderInput) -> Result<Option<(PickleTree<'_>, usize)>, Error> {
    Ok(match () {
        () if zip::is_zip(input)? => None,
        () if is_tar(input)? => Some((TarLayout::read(input)?.tree(input)?, 0)),
        () => {
            let layout = LegacyLayout::read(input)?;
            let left = layout.require_counts(input)?;
            Some((layout.tree(input)?, left))
        }
    })
}
