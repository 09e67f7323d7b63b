//! `weightfs ls --files`: lists the files of a mount, without mounting.

use super::sort::sort_by_keys;
use crate::cli::{LsArgs, TensorOrder};
use crate::opening::SourceFiles;
use crate::terminal::output::{HEADING, StandardOutput, compact, to_stdout};
use anyhow::bail;
use serde_json::json;
use std::cmp::Ordering;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weightfs::content::ReadRequest;
use weightfs::fs::{Attr, FileKind};
use weightfs::natural;
use weightfs::text::printable;
use weightfs::units::format_size;
use weightfs::view::ShownViews;

/// A file or directory, by its path in the mount.
type File = (PathBuf, Attr);

pub fn run_files(args: &LsArgs) -> anyhow::Result<ExitCode> {
    let path = match &args.more[..] {
        [] => Path::new(""),
        [path] => path.path(),
        [_, path, ..] => bail!("{}: --files lists one directory of one source", path.path().display()),
    };
    if args.sort.iter().any(|key| matches!(key.order, TensorOrder::Dtype | TensorOrder::Shape)) {
        bail!("--sort dtype and shape are for tensors; --files sorts by name, size or offset");
    }
    to_stdout(|out| {
        let shown = ShownViews::default();
        let shown = args.kv_separator.iter().fold(shown, |shown, separator| shown.separated(separator));
        let files = SourceFiles::open(&args.input, shown)?;
        let mut found = list_files(&files, path, args.recursive)?;
        sort_by_keys(&mut found, args, compare);
        if args.json {
            print_files_json(&files, &found, out)?
        } else {
            print_files(&found, args, out)?
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn compare(order: TensorOrder, a: &File, b: &File) -> Ordering {
    match order {
        TensorOrder::Name => natural::compare_paths(&a.0.to_string_lossy(), &b.0.to_string_lossy()),
        TensorOrder::Size => b.1.size.cmp(&a.1.size),
        TensorOrder::Dtype | TensorOrder::Shape | TensorOrder::Offset => Ordering::Equal,
    }
}

/// The file at a path of the mount, or the files in the directory there; if `recursive`, also those in its directories.
/// Paths are relative to the root of the mount.
pub fn list_files(files: &SourceFiles, path: &Path, recursive: bool) -> anyhow::Result<Vec<File>> {
    let attr = files.find(path)?;
    let path: PathBuf = path.strip_prefix("/").unwrap_or(path).components().collect();
    if attr.kind != FileKind::Dir {
        return Ok(vec![(path, attr)]);
    }
    let (mut found, mut rest) = (Vec::new(), vec![(path, attr)]);
    while let Some((dir, attr)) = rest.pop() {
        let entries = files.superblock.entries(&attr, &ReadRequest::WAIT);
        for (name, attr) in entries.map_err(|error| anyhow::Error::new(error).context(files.name(&dir)))? {
            let path = dir.join(name);
            if recursive && attr.kind == FileKind::Dir {
                rest.push((path, attr));
            } else {
                found.push((path, attr));
            }
        }
    }
    Ok(found)
}

fn print_files(found: &[File], args: &LsArgs, out: &mut StandardOutput) -> io::Result<()> {
    let sizes: Vec<String> = found
        .iter()
        .map(|(_, attr)| match (attr.kind, args.bytes) {
            (FileKind::Dir, _) => "-".into(),
            (_, true) => attr.size.to_string(),
            (_, false) => format_size(attr.size),
        })
        .collect();
    let width = sizes.iter().map(String::len).max().unwrap_or(0).max("SIZE".len());
    if !args.no_headings {
        let heading = format!("{:>width$}  NAME", "SIZE");
        let heading = out.styled(HEADING, heading).to_string();
        writeln!(out, "{heading}")?;
    }
    for ((path, attr), size) in found.iter().zip(sizes) {
        let slash = if attr.kind == FileKind::Dir { "/" } else { "" };
        writeln!(out, "{size:>width$}  {}{slash}", printable(&path.to_string_lossy()))?;
    }
    Ok(())
}

/// Prints one file per line, so that grep can be used on it.
fn print_files_json(files: &SourceFiles, found: &[File], out: &mut StandardOutput) -> io::Result<()> {
    write!(out, "{{\"source\": {}, \"files\": [", compact(&files.source.to_string())?)?;
    for (at, (path, attr)) in found.iter().enumerate() {
        // Names in a mount are UTF-8, except those of other files in a directory of models.
        let path = String::from_utf8_lossy(path.as_os_str().as_bytes());
        let file = match attr.kind {
            FileKind::Dir => json!({"path": path, "type": "directory"}),
            FileKind::File | FileKind::Link => json!({"path": path, "type": "file", "size": attr.size}),
        };
        write!(out, "{}\n{}", if at == 0 { "" } else { "," }, compact(&file)?)?;
    }
    writeln!(out, "\n]}}")
}
