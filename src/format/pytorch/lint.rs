//! Findings about a checkpoint beyond the verdict of the parser: what its pickle would do in Python, and local headers
//! that differ from the directory.

use super::archive::TorchArchive;
use super::error::PytorchError;
use super::globals::{self, GlobalKind};
use crate::format::error::Error as FormatError;
use crate::format::header::{Header, ParseMode};
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::lint::{HeaderLint, LintKind};
use crate::format::zip::ZipDirectory;
use crate::text::quote;
use std::collections::{BTreeSet, HashSet};

/// Reports everything in a sound file that readers accept, but that users should know.
pub fn lint_pytorch(_: &Header, input: &HeaderInput, found: &mut dyn FnMut(HeaderLint)) -> Result<(), MissingRange> {
    let missing = |error: PytorchError| match error {
        PytorchError::Missing(missing) => Err(missing),
        // The file was parsed before.
        _ => Ok(()),
    };
    let directory = match ZipDirectory::read(input) {
        Ok(directory) => directory,
        Err(error) => return missing(error.into()),
    };
    let archive = match TorchArchive::read(&directory, input, ParseMode::Lenient) {
        Ok(archive) => archive,
        Err(error) => return missing(error),
    };
    // Before the pickle is parsed, because the lint starts again for each that is missing.
    let mut wanted: Vec<usize> = archive.used.iter().map(|(at, _)| *at).collect();
    let count = directory.require(input, &mut wanted)?;
    let left: HashSet<usize> = wanted[count..].iter().copied().collect();
    let used = archive.used.iter().filter(|(at, _)| !left.contains(at));
    let tree = match archive.tree(input) {
        Ok(tree) => tree,
        Err(error) => return missing(error),
    };
    let mut faults = Vec::new();
    for (at, range) in used {
        faults.extend(directory.check_local(input, *at, range)?.map(|fault| (*at, fault)));
    }
    if !left.is_empty() {
        let message = format!("{} local headers are far apart and were not compared with the directory", left.len());
        found(HeaderLint { kind: LintKind::Unverified, subject: None, message });
    }
    for (at, fault) in faults {
        let subject = Some(directory.name(at).to_owned());
        found(HeaderLint { kind: LintKind::Archive, subject, message: fault.to_string() });
    }
    let all: BTreeSet<_> = tree.globals().collect();
    let called: HashSet<_> = tree.called().filter_map(|value| tree.global(value)).collect();
    if tree.called().any(|value| tree.global(value).is_none()) {
        let message = "the pickle calls a value that is not a class or function with a name, which can run code when Python loads the \
                       file; weightfs does not run it";
        found(HeaderLint { kind: LintKind::Code, subject: None, message: message.to_owned() });
    }
    for (module, name) in all {
        let subject = format!("{module}.{name}");
        let (kind, message) = match globals::global_kind(module, name, called.contains(&(module, name))) {
            GlobalKind::Known => continue,
            GlobalKind::Unknown => (
                LintKind::Global,
                format!(
                    "the pickle names {subject}, which torch.load(..., weights_only=True) refuses; weightfs does not import it"
                ),
            ),
            GlobalKind::UnknownCall => (
                LintKind::Code,
                format!(
                    "the pickle calls {subject}, which is not known to be harmless and may run code when Python loads the file; weightfs does not run it"
                ),
            ),
            GlobalKind::Dangerous => (
                LintKind::Code,
                format!(
                    "the pickle names {subject}, which can run code when Python loads the file; weightfs does not run it"
                ),
            ),
        };
        found(HeaderLint { kind, subject: Some(subject), message });
    }
    let rest = archive.pickle_len().saturating_sub(tree.len as u64);
    if rest > 0 {
        let message = format!("{rest} bytes after the end of the pickle in data.pkl");
        found(HeaderLint { kind: LintKind::Trailing, subject: None, message });
    }
    Ok(())
}

/// Reports the tensors that the lenient parser left out.
pub fn pytorch_damage(header: &Header, _: &FormatError, _: u64, found: &mut dyn FnMut(HeaderLint)) {
    for skipped in header.skipped().kept().0 {
        let message = format!("tensor {}: {}", quote(&skipped.name), skipped.reason);
        found(HeaderLint { kind: LintKind::Entry, subject: Some(skipped.name.clone()), message });
    }
}
