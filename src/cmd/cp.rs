//! `weightfs cp`: copies files of a mount to a directory, without mounting.

use super::files;
use crate::cli::CpArgs;
use crate::opening::SourceFiles;
use crate::process::signals::InterruptFlag;
use crate::terminal::output::written;
use crate::terminal::progress::ProgressLine;
use anyhow::{Context, bail};
use nix::sys::resource::{Resource, getrlimit};
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use weightfs::content::ReadRequest;
use weightfs::fs::{Attr, FileKind};
use weightfs::threads;
use weightfs::write::{self, CopyDirectory, FileCopy, PartialCopy, STATE};

/// Label of the progress bar.
const COPYING: &str = "copying";

/// The journal is written after this many bytes of a file: at most as many are copied again after an interruption.
const SAVED_AT: u64 = 256 << 20;

/// Maximum number of files that get their final names together. All of them are open until then.
const GROUP_FILES: usize = 512;

/// Maximum number of bytes of such a group, unless a single file is larger.
const GROUP_BYTES: u64 = 64 << 20;

/// Permission of the owner to write, which copies have, because the files of a mount have none.
const WRITABLE: u32 = 0o200;

/// Copies files.
pub fn run_cp(args: &CpArgs) -> anyhow::Result<ExitCode> {
    written(copy(args))
}

/// A file to copy, and its path in the mount.
struct WantedFile {
    from: PathBuf,
    copy: FileCopy,
}

fn copy(args: &CpArgs) -> anyhow::Result<()> {
    let interrupted = InterruptFlag::watch()?;
    // The command line has at least two paths.
    let Some((dir, paths)) = args.paths.split_last() else { bail!("no DIR") };
    let files = SourceFiles::open(&args.source, &args.remote, args.lenient, args.numbers.shown(None))?;
    let wanted = wanted(&files, paths, args)?;
    let copies: Vec<FileCopy> = wanted.iter().map(|wanted| wanted.copy.clone()).collect();
    let target = CopyDirectory::open(dir, args.force)?;
    let done = match target.check(&copies) {
        Ok(done) => done,
        Err(error) => {
            // Nothing was begun, so nothing is left behind.
            if target.is_new() {
                target.end()?;
            }
            return Err(error.into());
        }
    };
    let progress = ProgressLine::new(COPYING, copies.iter().map(|copy| copy.len).sum());
    progress.add(done);
    let failed = AtomicBool::new(false);
    let ends = || interrupted.is_set() || failed.load(Ordering::Relaxed);
    let work = CopyWork { files: &files, target: &target, dir, progress: &progress, ends: &ends };
    let groups = group_files(&wanted);
    let results = threads::map_parallel(groups.len(), |at| {
        let done = work.copy_group(groups[at]);
        failed.fetch_or(done.is_err(), Ordering::Relaxed);
        done
    });
    // The first error that is not the interruption is the reason.
    let failed = results.into_iter().filter_map(Result::err).reduce(|first, error| match is_interruption(&first) {
        true => error,
        false => first,
    });
    match failed {
        None => Ok(target.end()?),
        Some(error) if is_interruption(&error) => {
            bail!("interrupted; the same command continues (unfinished files are in {})", dir.join(STATE).display())
        }
        Some(error) => Err(error),
    }
}

/// The files at these paths of the mount, and below them. A file is copied under its name, and a directory with its
/// name; the root has none.
fn wanted(files: &SourceFiles, paths: &[PathBuf], args: &CpArgs) -> anyhow::Result<Vec<WantedFile>> {
    let mut found: Vec<WantedFile> = Vec::new();
    let mut names: HashMap<PathBuf, PathBuf> = HashMap::new();
    for path in paths {
        let path = normal(path);
        let base = path.parent().unwrap_or(Path::new("")).to_owned();
        for (from, attr) in files::list_files(files, &path, true)? {
            if attr.kind == FileKind::Dir {
                continue;
            }
            let to = from.strip_prefix(&base).unwrap_or(&from).to_owned();
            if let Some(other) = names.insert(to.clone(), from.clone()) {
                if other == from {
                    continue;
                }
                bail!("{} and {} would both become {}", files.name(&other), from.display(), to.display());
            }
            found.push(WantedFile { copy: describe_copy(files, &attr, &from, to, args)?, from });
        }
    }
    Ok(found)
}

/// A path from the root, without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => _ = normal.pop(),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    normal
}

fn describe_copy(
    files: &SourceFiles,
    attr: &Attr,
    from: &Path,
    to: PathBuf,
    args: &CpArgs,
) -> anyhow::Result<FileCopy> {
    let mode = u32::from(attr.perm) | WRITABLE;
    let version = files.superblock.version(attr.ino, &ReadRequest::WAIT).with_context(|| files.name(from))?;
    // Everything that the bytes and the permissions depend on.
    let version = version.map(|version| {
        let (program, CpArgs { numbers, lenient, .. }) = (env!("CARGO_PKG_VERSION"), args);
        format!("{program} {numbers:?} {lenient} {mode:o} {version} {} {from:?}", files.source)
    });
    Ok(FileCopy { path: to, len: attr.size, version, mode, mtime: attr.mtime })
}

/// Splits the files into groups whose files get their names together.
fn group_files(wanted: &[WantedFile]) -> Vec<&[WantedFile]> {
    // The sources need descriptors, too.
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |limits| limits.0);
    let share = usize::try_from(descriptors).unwrap_or(usize::MAX) / (4 * threads::cores());
    let files_max = share.clamp(1, GROUP_FILES);
    let mut groups = Vec::new();
    let mut rest = wanted;
    while !rest.is_empty() {
        let mut bytes = 0u64;
        let fits = |wanted: &&WantedFile| {
            bytes = bytes.saturating_add(wanted.copy.len);
            bytes <= GROUP_BYTES
        };
        let count = rest.iter().take(files_max).take_while(fits).count().max(1);
        let (group, others) = rest.split_at(count);
        groups.push(group);
        rest = others;
    }
    groups
}

/// What the threads share.
struct CopyWork<'w> {
    files: &'w SourceFiles,
    target: &'w CopyDirectory,
    dir: &'w Path,
    progress: &'w ProgressLine,
    /// Whether the command was interrupted or has failed.
    ends: &'w (dyn Fn() -> bool + Sync),
}

impl CopyWork<'_> {
    fn copy_group(&self, group: &[WantedFile]) -> anyhow::Result<()> {
        let mut parts = Vec::new();
        for wanted in group {
            if (self.ends)() {
                return Err(write::Error::Interrupted.into());
            }
            parts.extend(self.copy_file(wanted)?);
        }
        if parts.is_empty() {
            return Ok(());
        }
        Ok(self.target.finish(&parts)?)
    }

    /// Copies the rest of a file. `None` if nothing was left.
    fn copy_file<'c>(&self, wanted: &'c WantedFile) -> anyhow::Result<Option<PartialCopy<'c>>> {
        let Some(part) = self.target.start(&wanted.copy)? else { return Ok(None) };
        let named = || self.files.name(&wanted.from);
        let content = self.files.content(&wanted.from)?;
        if content.len() != wanted.copy.len {
            bail!("{}: has {} bytes now, and had {}", named(), content.len(), wanted.copy.len);
        }
        let mut output = part.output(self.dir).with_context(named)?;
        self.progress.add(part.done);
        let mut at = part.done;
        while at < content.len() {
            let end = content.len().min(at.saturating_add(SAVED_AT));
            output.write_range(&content, at..end, &mut |bytes| {
                self.progress.add(bytes);
                !(self.ends)()
            })?;
            at = end;
            if at < content.len() {
                self.target.save(&part)?;
            }
        }
        Ok(Some(part))
    }
}

fn is_interruption(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(write::Error::Interrupted))
}
