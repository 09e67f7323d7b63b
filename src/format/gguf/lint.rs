//! Findings about a GGUF file beyond the verdict of the parser.

use crate::format::error::Error;
use crate::format::header::Header;
use crate::format::input::{Input, Missing};
use crate::format::lint::{Lint, LintKind};
use crate::text::quote;

/// The keys that every model should have. Source: `docs/gguf.md` of ggml, "Required".
const REQUIRED: [&str; 1] = ["general.architecture"];

/// Reports what is unusual in a sound header.
pub fn lint(header: &Header, input: &Input, found: &mut dyn FnMut(Lint)) -> Result<(), Missing> {
    for key in REQUIRED {
        if header.value(key).is_none() {
            let message = format!("metadata key {} is missing", quote(key));
            found(Lint { kind: LintKind::Unusual, subject: Some(key.to_owned()), message });
        }
    }
    let end = header.tensors().map(|tensor| tensor.range.end).max().unwrap_or(header.data_start());
    let padded = end.next_multiple_of(super::alignment(header));
    if !header.is_empty() && input.len() < padded {
        let message = format!(
            "the padding after the last tensor is missing: {} of {} bytes; ggml maps such a file but does not load it",
            padded - input.len(),
            padded - end
        );
        found(Lint { kind: LintKind::Unusual, subject: None, message });
    } else if input.len() > padded {
        let message = format!("{} bytes after the last tensor belong to no tensor", input.len() - padded);
        found(Lint { kind: LintKind::Unusual, subject: None, message });
    }
    Ok(())
}

/// Reports everything that is wrong with a file that the strict parser rejects.
pub fn damage(header: &Header, broken: &Error, _: u64, found: &mut dyn FnMut(Lint)) {
    let skipped = header.skipped().listed();
    for skipped in skipped {
        let message = format!("{}: {}", quote(&skipped.name), skipped.reason);
        found(Lint { kind: LintKind::Entry, subject: Some(skipped.name.clone()), message });
    }
    if skipped.is_empty() {
        found(Lint { kind: LintKind::Entry, subject: None, message: broken.to_string() });
    }
}
