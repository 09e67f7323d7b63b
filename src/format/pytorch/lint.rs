//! Findings about a checkpoint beyond the verdict of the parser: what its pickle would do in Python, and local headers
//! that differ from the directory.

use super::archive::TorchArchive;
use super::forms::old_pickle;
use super::globals;
use crate::format::error::Error;
use crate::format::header::{Header, ParseMode};
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::lint::HeaderLint;
use crate::format::pickle::{GlobalDanger, PickleTree, global_danger};
use crate::format::zip::ZipDirectory;
use crate::rules::CheckRule;
use crate::text::quote;
use std::collections::{BTreeSet, HashSet};

/// Reports everything in a sound file that readers accept, but that users should know.
pub fn lint_pytorch(
    header: &Header,
    input: &HeaderInput,
    found: &mut dyn FnMut(HeaderLint),
) -> Result<(), MissingRange> {
    if let Err(Error::Missing(missing)) = lint_contents(input, found) {
        return Err(missing);
    }
    // The file was parsed before, so that there is no other error.
    for skipped in header.skipped.listed() {
        found(HeaderLint::new(CheckRule::LeftOut, Some(&skipped.name), skipped.to_string()));
    }
    Ok(())
}

const UNKNOWN_CALL: &str = "is not known to be harmless and may run code when Python loads the file; weightfs does not run \
                            it";

fn lint_contents(input: &HeaderInput, found: &mut dyn FnMut(HeaderLint)) -> Result<(), Error> {
    let Some((tree, left)) = old_pickle(input)? else { return lint_archive(input, found) };
    lint_pickle(&tree, found);
    if left > 0 {
        let message = format!("the sizes of {left} storages are too far apart, and were not compared with the pickle");
        found(HeaderLint::new(CheckRule::Unverified, None, message));
    }
    Ok(())
}

fn lint_archive(input: &HeaderInput, found: &mut dyn FnMut(HeaderLint)) -> Result<(), Error> {
    let directory = ZipDirectory::read(input)?;
    let archive = TorchArchive::read(&directory, input, ParseMode::Lenient)?;
    // Before the pickle is parsed, because the lint starts again for each that is missing.
    let mut wanted: Vec<usize> = archive.used.iter().map(|(at, _)| *at).collect();
    let count = directory.require(input, &mut wanted)?;
    let left: HashSet<usize> = wanted[count..].iter().copied().collect();
    let used = archive.used.iter().filter(|(at, _)| !left.contains(at));
    let tree = archive.tree(input)?;
    let mut faults = Vec::new();
    for (at, range) in used {
        if let Err(error) = directory.check_local(input, *at, range) {
            faults.push((*at, error.fault()?));
        }
    }
    if !left.is_empty() {
        let message = format!("{} local headers are far apart and were not compared with the directory", left.len());
        found(HeaderLint::new(CheckRule::Unverified, None, message));
    }
    for (at, fault) in faults {
        found(HeaderLint::new(CheckRule::Archive, Some(directory.name(at)), fault));
    }
    lint_pickle(&tree, found);
    let rest = archive.pickle_len().saturating_sub(tree.len as u64);
    if rest > 0 {
        let message = format!("{rest} bytes after the end of the pickle in data.pkl");
        found(HeaderLint::new(CheckRule::Trailing, None, message));
    }
    Ok(())
}

/// Reports what a pickle would do in Python beyond what torch does to load it.
fn lint_pickle(tree: &PickleTree, found: &mut dyn FnMut(HeaderLint)) {
    let all: BTreeSet<_> = tree.globals().collect();
    let called: HashSet<_> = tree.called().filter_map(|value| tree.global(value)).collect();
    if tree.called().any(|value| tree.global(value).is_none()) {
        let message = "the pickle calls a value that is not a class or function with a name, which can run code when Python loads the \
                       file; weightfs does not run it";
        found(HeaderLint::new(CheckRule::PickleCode, None, message));
    }
    for (module, name) in all {
        if globals::is_known(module, name) {
            continue;
        }
        let subject = format!("{module}.{name}");
        let (kind, verb, what) = match global_danger(module, name, called.contains(&(module, name))) {
            GlobalDanger::Unknown => (
                CheckRule::PickleGlobal,
                "names",
                "torch.load(..., weights_only=True) refuses; weightfs does not import it",
            ),
            GlobalDanger::UnknownCall => (CheckRule::PickleCode, "calls", UNKNOWN_CALL),
            GlobalDanger::Dangerous => {
                (CheckRule::PickleCode, "names", "can run code when Python loads the file; weightfs does not run it")
            }
        };
        let message = format!("the pickle {verb} {subject}, which {what}");
        found(HeaderLint::new(kind, Some(&subject), message));
    }
}

/// Reports the tensors that the lenient parser left out.
pub fn pytorch_damage(header: &Header, _: &Error, _: u64, found: &mut dyn FnMut(HeaderLint)) {
    for skipped in header.skipped.kept().0 {
        let message = format!("tensor {}: {}", quote(&skipped.name), skipped.reason);
        found(HeaderLint::new(CheckRule::Entry, Some(&skipped.name), message));
    }
}
