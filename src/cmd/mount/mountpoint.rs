//! The directory on which a model is mounted.

use crate::cli::MountArgs;
use crate::opening::is_missing;
use crate::process::daemon_helper::remove_directory;
use crate::process::mounts;
use anyhow::{Context, bail};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use weightfs::model;
use weightfs::source::{self, Location};
use weightfs::text::shell_word;

/// The directory on which this program mounts.
pub struct Mountpoint {
    /// Absolute and without symlinks.
    pub path: PathBuf,
    /// Whether it is removed with the mount, because it was created for it, or because of --rmdir.
    pub made: bool,
}

impl Mountpoint {
    /// Finds the directory to mount on, and changes nothing. Fails if a mount there would hide files.
    pub fn find(args: &MountArgs, source: &Location) -> anyhow::Result<PathBuf> {
        let wanted = match &args.mountpoint {
            Some(path) => path.clone(),
            None => default_mountpoint(source)?,
        };
        if mounts::is_dead(&wanted) {
            dead_mount(&wanted)?;
        } else if args.mountpoint.is_some() || !is_missing(&wanted) {
            check_directory(&resolve(&wanted)?, args, source, &wanted)?;
        }
        Ok(wanted)
    }

    /// Detaches dead mounts, creates the default directory, and checks again that a mount there hides nothing.
    pub fn prepare(args: &MountArgs, source: &Location, wanted: &Path) -> anyhow::Result<Self> {
        while mounts::is_dead(wanted) {
            mounts::unmount_mount(&dead_mount(wanted)?, true)?;
            log::warn!("{}: detached a dead mount, left by a daemon that was killed", wanted.display());
        }
        let mut made = args.rmdir;
        if args.mountpoint.is_none() && !wanted.exists() {
            std::fs::create_dir(wanted).with_context(|| format!("cannot make the mount point {}", wanted.display()))?;
            made = true;
        }
        let mountpoint = Self { path: resolve(wanted)?, made };
        check_directory(&mountpoint.path, args, source, wanted)?;
        Ok(mountpoint)
    }
}

impl Drop for Mountpoint {
    fn drop(&mut self) {
        if self.made {
            remove_directory(&self.path);
        }
    }
}

/// The path of the mount at `wanted` whose daemon is gone. Fails if it is another file system's.
fn dead_mount(wanted: &Path) -> anyhow::Result<PathBuf> {
    let path = mounts::resolve_mountpoint(wanted)?;
    match mounts::mounted_at(&path)? {
        Some(mount) if mount.fstype == mounts::TYPE => Ok(path),
        Some(mount) => bail!("{}: a dead {} mount; unmount it first", wanted.display(), mount.fstype),
        None => bail!("{}: lies in a mount whose daemon is gone", wanted.display()),
    }
}

/// The absolute path of a directory, without symlinks.
fn resolve(wanted: &Path) -> anyhow::Result<PathBuf> {
    match wanted.canonicalize() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{}: no such directory to mount on; make it first", wanted.display())
        }
        path => path.with_context(|| wanted.display().to_string()),
    }
}

/// Fails if a mount on the directory at `path`, which the user calls `wanted`, would hide files.
fn check_directory(path: &Path, args: &MountArgs, source: &Location, wanted: &Path) -> anyhow::Result<()> {
    let shown = wanted.display();
    if !args.nonempty
        && let Some(mount) = mounts::mounted_at(path)?.filter(|mount| mount.fstype == mounts::TYPE)
    {
        let source = mount.source.to_string_lossy();
        bail!("{shown}: already mounted here: {source} (unmount: weightfs umount {})", shell_word(wanted));
    }
    // A layer of an Ollama manifest has a location below that of the manifest, which is a file.
    let real = source.canonical().or_else(|_| source.parent().canonical());
    let real = real.with_context(|| source.to_string())?;
    let hides_source = real.path().is_some_and(|real| real.starts_with(path));
    // Without a MOUNTPOINT, the user did not choose the directory that is in the way.
    let hint = args.mountpoint.is_none().then(|| {
        let source = source.path().map_or_else(|| source.to_string(), shell_word);
        format!("give an empty directory as MOUNTPOINT (`weightfs {source} MOUNTPOINT`)")
    });
    match (&hint, hides_source) {
        (Some(hint), true) => bail!("{source}: {hint}: the default, ./{shown}, would hide the source"),
        (None, true) => bail!("{source}: lies inside the mount point {shown}, which would hide it"),
        (_, false) => {}
    }
    let entries = std::fs::read_dir(path);
    match entries.map(|mut entries| entries.next().is_some()) {
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
            bail!("{shown}: not a directory to mount on{hint}")
        }
        Ok(true) if !args.nonempty => {
            let hint = hint.map(|hint| format!("{hint}, or ")).unwrap_or_default();
            bail!("{shown}: not empty; {hint}use --nonempty to mount over its contents")
        }
        // A user who cannot list the directory may still be permitted to mount on it.
        _ => {}
    }
    Ok(())
}

/// The default mount point of a source: a directory in the current directory, named after the source.
fn default_mountpoint(source: &Location) -> anyhow::Result<PathBuf> {
    let name = if source::is_dir(source) {
        // The path of a directory may be `.` or `..`, so it is resolved.
        Some(source.canonical()?.file_name().to_owned()).filter(|name| !name.is_empty())
    } else {
        // The path of a file is not resolved: a link keeps its own name.
        let source = source.absolute()?;
        model::manifest_stem(&source).or_else(|| model::model_stem(&source))
    };
    Ok(name.context("the source has no name to mount it under")?.into())
}
