//! Files that a client of the Hugging Face Hub has not downloaded: what its cache says about them, and the command that
//! gets them.
//!
//! A repository is a directory such as `models--org--name`, with links in `snapshots/COMMIT/` to files in `blobs/`. A
//! file in `blobs/` whose name ends in `.incomplete` is being downloaded, or was when the download broke off.

use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Suffix of the names of files that are being downloaded.
const INCOMPLETE: &str = ".incomplete";

/// The directory of a repository in a Hugging Face cache, and the path of a file below it.
struct CachedRepository<'p> {
    dir: PathBuf,
    kind: &'static str,
    /// Such as `org/name`.
    name: String,
    below: Vec<&'p OsStr>,
}

/// The kinds of repositories: in the names of directories, and as the option of `hf download`.
const KINDS: [(&str, &str); 3] =
    [("models--", ""), ("datasets--", " --repo-type dataset"), ("spaces--", " --repo-type space")];

impl<'p> CachedRepository<'p> {
    fn of(path: &'p Path) -> Option<Self> {
        let parts: Vec<Component> = path.components().collect();
        let found = parts.iter().enumerate().rev().find_map(|(at, part)| {
            let name = part.as_os_str().to_str()?;
            KINDS.iter().find_map(|(prefix, kind)| Some((at, *kind, name.strip_prefix(prefix)?.replace("--", "/"))))
        });
        let (at, kind, name) = found?;
        let dir: PathBuf = parts[..=at].iter().collect();
        let below = parts[at + 1..].iter().map(|part| part.as_os_str()).collect();
        Some(Self { dir, kind, name, below })
    }

    /// The command that downloads what is below the directory of the repository. `None` if its words would mean
    /// something else to a shell or to the command: names in an archive can be chosen to mislead who copies it.
    fn command(&self) -> Option<String> {
        let Self { kind, name, .. } = self;
        let (revision, file) = match &self.below[..] {
            [snapshots, commit, file @ ..] if *snapshots == "snapshots" => (Some(*commit), file.iter().collect()),
            _ => (None, PathBuf::new()),
        };
        let words = [Some(OsStr::new(name)), revision, Some(file.as_os_str()).filter(|file| !file.is_empty())];
        let words = words.map(|word| word.map_or(Some(""), OsStr::to_str));
        let is_plain = |word: &str| {
            !word.starts_with('-') && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/+@".contains(&byte))
        };
        let [Some(name), Some(revision), Some(file)] = words else { return None };
        if ![name, revision, file].into_iter().all(is_plain) {
            return None;
        }
        let revision = if revision.is_empty() { String::new() } else { format!(" --revision {revision}") };
        let file = match file {
            "" => String::new(),
            dir if self.dir.join("snapshots").join(revision.trim_start_matches(" --revision ")).join(dir).is_dir() => {
                format!(" --include '{dir}/*'")
            }
            file => format!(" {file}"),
        };
        Some(format!("`hf download {name}{file}{kind}{revision}`"))
    }

    /// Whether the directory has the form that a client of the Hub gives it.
    fn is_cache(&self) -> bool {
        self.dir.join("snapshots").is_dir() && ["blobs", "refs"].iter().any(|dir| self.dir.join(dir).is_dir())
    }
}

/// What is wrong with a link that leads nowhere, if there is one at `path`.
pub(super) fn dangling(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    let link = format!("a link to {}, which does not exist", target.display());
    let absolute = std::path::absolute(path).ok();
    let repository = absolute.as_deref().and_then(CachedRepository::of).filter(CachedRepository::is_cache);
    let Some(repository) = repository else { return Some(link) };
    let blob = target.file_name().unwrap_or_default();
    let begun = fs::read_dir(repository.dir.join("blobs")).into_iter().flatten().flatten().find(|entry| {
        let name = entry.file_name();
        let is_of_blob = name.as_encoded_bytes().starts_with(blob.as_encoded_bytes());
        is_of_blob && name.to_str().is_some_and(|name| name.ends_with(INCOMPLETE))
    });
    let state = match begun {
        Some(begun) => {
            let len = begun.metadata().map_or(0, |found| found.len());
            format!("not downloaded completely: blobs/{} has {len} bytes", begun.file_name().display())
        }
        None => format!("not downloaded: {link}"),
    };
    Some(state + &hint("to download it", &repository))
}

/// The command that does something, in parentheses.
fn hint(purpose: &str, repository: &CachedRepository) -> String {
    repository.command().map_or(String::new(), |command| format!(" ({purpose}: {command})"))
}

/// Why a file of a Hugging Face cache is no model, if its download has not ended.
pub fn unfinished_download(file: &Path) -> Option<String> {
    let absolute = std::path::absolute(file).ok()?;
    let repository = CachedRepository::of(&absolute).filter(CachedRepository::is_cache)?;
    let [blobs, name] = repository.below[..] else { return None };
    let is_unfinished = blobs == "blobs" && name.to_str()?.ends_with(INCOMPLETE);
    is_unfinished.then(|| format!("not downloaded completely{}", hint("to continue", &repository)))
}

/// What may have been forgotten if a directory of a Hugging Face cache has no model: a repository, or a snapshot
/// without weights.
pub fn missing_download(dir: &Path) -> Option<String> {
    let absolute = std::path::absolute(dir).ok()?;
    let repository = CachedRepository::of(&absolute).filter(CachedRepository::is_cache)?;
    let is_snapshot = repository.below.first().is_none_or(|first| *first == "snapshots");
    let command = repository.command().filter(|_| is_snapshot)?;
    Some(format!("; if the weights were not downloaded: {command}"))
}
