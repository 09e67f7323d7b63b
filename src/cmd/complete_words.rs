//! `weightfs complete-words`: what may complete a command line, for the scripts in docs/completions.
//!
//! The first line is the kind of other candidates that the shell itself can list, a tab, and the beginning of the word
//! that stays. Each other line is a candidate for the rest of the word, a tab, and its description.

use super::files::list_files;
use crate::cli::complete::{CompletionKind, ModelCandidateKind, ModelCandidates, OtherCandidates, complete_word};
use crate::cli::source::is_url;
use crate::opening::SourceFiles;
use crate::process::mounts;
use crate::terminal::output::to_stdout;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use weightfs::content::ReadRequest;
use weightfs::fs::{FileKind, ROOT};

/// Shells show no more words at once.
const MODEL_WORDS_MAX: usize = 1000;

pub fn run_complete_words(words: &[OsString]) -> anyhow::Result<ExitCode> {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let CompletionKind { kept, words: candidates, others, of_model } = complete_word(&words);
    let mut lines: Vec<String> = candidates.iter().map(|(word, help)| format!("{word}\t{help}")).collect();
    if let Some(of_model) = of_model {
        // Nothing completes what cannot be opened.
        lines.extend(model_words(&of_model, words.last().map_or("", String::as_str)).unwrap_or_default());
    }
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

/// What a local model has that begins with `word`: at most [`MODEL_WORDS_MAX`] words. A server is not asked.
fn model_words(wanted: &ModelCandidates, word: &str) -> anyhow::Result<Vec<String>> {
    if is_url(&wanted.source) {
        return Ok(Vec::new());
    }
    let files = SourceFiles::of_path(Path::new(&wanted.source))?;
    let found: Vec<String> = if wanted.kind == ModelCandidateKind::Paths {
        let dir = Path::new(&word[..word.rfind('/').map_or(0, |at| at)]);
        let listed = list_files(&files, dir, false)?.into_iter();
        let slash = |kind| if kind == FileKind::Dir { "/" } else { "" };
        listed.map(|(path, attr)| format!("{}{}", path.display(), slash(attr.kind))).collect()
    } else {
        let Some(model) = files.superblock.model(ROOT, &ReadRequest::WAIT)? else { return Ok(Vec::new()) };
        match wanted.kind {
            ModelCandidateKind::Keys => model.metadata().iter().map(|(key, _)| key.clone()).collect(),
            _ => model.logical().iter().map(|id| model.name(id).to_owned()).collect(),
        }
    };
    let mut found: Vec<String> = found.into_iter().filter(|name| name.starts_with(word)).collect();
    // The shells cannot show names with control characters.
    found.retain(|name| !name.contains(char::is_control));
    found.sort();
    found.truncate(MODEL_WORDS_MAX);
    Ok(found.into_iter().map(|name| name + "\t").collect())
}

/// The mount points of all models, in the form of `word`: absolute, or relative to the current directory if they are
/// below it.
fn mountpoints(word: &str) -> anyhow::Result<Vec<String>> {
    let current = std::env::current_dir().unwrap_or_default();
    let here = if word.starts_with("./") { "./" } else { "" };
    let mounts = mounts::all()?.into_iter().filter(|mount| mount.fstype == mounts::TYPE);
    let lines = mounts.map(|mount| match mount.path.strip_prefix(&current) {
        Ok(path) if !word.starts_with('/') => format!("{here}{}\t{}", path.display(), mount.source.display()),
        _ => format!("{}\t{}", mount.path.display(), mount.source.display()),
    });
    // The shells cannot show names with line feeds.
    Ok(lines.filter(|line| !line.contains('\n')).collect())
}
