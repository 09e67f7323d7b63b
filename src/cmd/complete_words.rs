//! `weightfs complete-words`: what may complete a command line, for the scripts in docs/completions.
//!
//! The first line is the kind of other candidates that the shell itself can list, a tab, and the beginning of the word
//! that stays. Each other line is a candidate for the rest of the word, a tab, and its description.

use crate::cli::complete::{CompletionKind, OtherCandidates, complete_word};
use crate::process::mounts;
use crate::terminal::output::to_stdout;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Completes the last of `words`.
pub fn run_complete_words(words: &[OsString]) -> anyhow::Result<ExitCode> {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let CompletionKind { kept, words: candidates, others } = complete_word(&words);
    let mut lines: Vec<String> = candidates.iter().map(|(word, help)| format!("{word}\t{help}")).collect();
    let kind = match others {
        OtherCandidates::Nothing => "nothing",
        OtherCandidates::Files => "files",
        OtherCandidates::Directories => "directories",
        OtherCandidates::Users => "users",
        OtherCandidates::Groups => "groups",
        OtherCandidates::Mountpoints => {
            lines.extend(mountpoints(words.last().map_or("", String::as_str))?);
            "mountpoints"
        }
    };
    to_stdout(|out| {
        writeln!(out, "{kind}\t{kept}")?;
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The mount points of all models, in the form of `word`: absolute, or relative to the current directory if they are
/// below it.
fn mountpoints(word: &str) -> anyhow::Result<Vec<String>> {
    let current = std::env::current_dir().unwrap_or_default();
    let here = if word.starts_with("./") { "./" } else { "" };
    let mut mounts = mounts::all()?;
    mounts.retain(|mount| mount.fstype == mounts::TYPE);
    let shown = |path: &Path| match path.strip_prefix(&current) {
        Ok(relative) if !word.starts_with('/') => format!("{here}{}", relative.display()),
        _ => path.display().to_string(),
    };
    let line = |mount: &mounts::MountInfo| format!("{}\t{}", shown(&mount.path), mount.source.display());
    // The shells cannot show names with line feeds.
    Ok(mounts.iter().map(line).filter(|line| !line.contains('\n')).collect())
}
