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
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use weightfs::content::ReadRequest;
use weightfs::fs::{Attr, FileKind};
use weightfs::threads;
use weightfs::view::ShownViews;
use weightfs::write::{self, CopyDirectory, FileCopy, PartialCopy, STATE};

const COPYING: &str = "copying";

/// A file is synced after this many bytes: at most as many are copied again after an interruption.
const SAVED_AT: u64 = 256 << 20;

/// Maximum number of files that get their final names together. All of them are open until then.
const GROUP_FILES: usize = 512;

/// Maximum number of bytes of such a group, unless a single file is larger.
const GROUP_BYTES: u64 = 64 << 20;

/// Permission of the owner to write, which copies have, because the files of a mount have none.
const WRITABLE: u32 = 0o200;

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
    let files = SourceFiles::open(&args.input, args.numbers.shown(ShownViews::default()))?;
    let (dir, name) = split_target(&files, paths, dir)?;
    let wanted = wanted(&files, paths, name, args)?;
    let target = CopyDirectory::open(dir, args.force)?;
    let done = target.check(wanted.iter().map(|wanted| &wanted.copy))?;
    let progress = ProgressLine::new(COPYING, wanted.iter().map(|wanted| wanted.copy.len).sum());
    progress.add(done);
    let work = CopyWork { files: &files, target: &target, dir, progress, interrupted, failed: AtomicBool::new(false) };
    let groups = group_files(&wanted);
    let results = threads::map_parallel(groups.len(), |at| work.copy_group(groups[at]));
    // The first error that is not the interruption is the reason.
    match results.into_iter().filter_map(Result::err).min_by_key(is_interruption) {
        None => Ok(target.end()?),
        Some(error) if is_interruption(&error) => {
            bail!("interrupted; the same command continues (unfinished files are in {})", dir.join(STATE).display())
        }
        Some(error) => Err(error),
    }
}

/// The directory to copy to. As with cp(1), a single file is copied to `target` itself unless that is a directory or
/// ends in a slash; this also returns its name then.
fn split_target<'t>(
    files: &SourceFiles,
    paths: &[PathBuf],
    target: &'t Path,
) -> anyhow::Result<(&'t Path, Option<&'t OsStr>)> {
    let [path] = paths else { return Ok((target, None)) };
    let is_dir = target.is_dir() || target.as_os_str().as_bytes().ends_with(b"/");
    let Some(name) = target.file_name().filter(|_| !is_dir) else { return Ok((target, None)) };
    if files.find(&normal(path))?.kind == FileKind::Dir {
        return Ok((target, None));
    }
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((parent.unwrap_or(Path::new(".")), Some(name)))
}

/// The files at these paths of the mount, and below them. A file is copied under its name, or as `name` if it is the
/// only one, and a directory with its name; the root has none.
fn wanted(
    files: &SourceFiles,
    paths: &[PathBuf],
    name: Option<&OsStr>,
    args: &CpArgs,
) -> anyhow::Result<Vec<WantedFile>> {
    let mut found: Vec<WantedFile> = Vec::new();
    let mut names: HashMap<PathBuf, PathBuf> = HashMap::new();
    for path in paths {
        let path = normal(path);
        let base = path.parent().unwrap_or(Path::new("")).to_owned();
        for (from, attr) in files::list_files(files, &path, true)? {
            if attr.kind == FileKind::Dir {
                continue;
            }
            let to = name.map_or_else(|| from.strip_prefix(&base).unwrap_or(&from).to_owned(), PathBuf::from);
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
        let (program, numbers, lenient) = (env!("CARGO_PKG_VERSION"), &args.numbers, args.input.open.lenient);
        format!("{program} {numbers:?} {lenient} {mode:o} {version} {} {from:?}", files.source)
    });
    Ok(FileCopy::new(to, attr.size, version, mode, attr.mtime))
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
        let sums = rest.iter().take(files_max).map(|wanted| {
            bytes = bytes.saturating_add(wanted.copy.len);
            bytes
        });
        let count = sums.take_while(|bytes| *bytes <= GROUP_BYTES).count().max(1);
        let (group, others) = rest.split_at(count);
        groups.push(group);
        rest = others;
    }
    groups
}

/// The state that the threads share.
struct CopyWork<'w> {
    files: &'w SourceFiles,
    target: &'w CopyDirectory,
    dir: &'w Path,
    progress: ProgressLine,
    interrupted: InterruptFlag,
    failed: AtomicBool,
}

impl CopyWork<'_> {
    /// Whether the command was interrupted or has failed.
    fn is_over(&self) -> bool {
        self.interrupted.is_set() || self.failed.load(Ordering::Relaxed)
    }

    fn copy_group(&self, group: &[WantedFile]) -> anyhow::Result<()> {
        let parts = group.iter().filter_map(|wanted| self.copy_file(wanted).transpose());
        let done = parts.collect::<Result<Vec<_>, _>>().and_then(|parts| Ok(self.target.finish(parts)?));
        self.failed.fetch_or(done.is_err(), Ordering::Relaxed);
        done
    }

    /// Copies the rest of a file. `None` if nothing was left.
    fn copy_file<'c>(&self, wanted: &'c WantedFile) -> anyhow::Result<Option<PartialCopy<'c>>> {
        if self.is_over() {
            return Err(write::Error::Interrupted.into());
        }
        let Some(mut part) = self.target.start(&wanted.copy)? else { return Ok(None) };
        let content = self.files.content(&wanted.from)?;
        if content.len() != wanted.copy.len {
            let name = self.files.name(&wanted.from);
            bail!("{name}: has {} bytes now, and had {}", content.len(), wanted.copy.len);
        }
        let mut output = part.output(self.dir).with_context(|| self.files.name(&wanted.from))?;
        self.progress.add(part.done);
        let mut at = part.done;
        while at < content.len() {
            let end = content.len().min(at.saturating_add(SAVED_AT));
            output.write_range(&content, at..end, &mut |bytes| {
                self.progress.add(bytes);
                !self.is_over()
            })?;
            at = end;
            if at < content.len() {
                self.target.save(&mut part)?;
            }
        }
        Ok(Some(part))
    }
}

fn is_interruption(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(write::Error::Interrupted))
}
