//! The descriptors that whoever calls `weightfs mount` passes to the daemon.

use crate::cli::MountArgs;
use crate::process::descriptors;
use anyhow::{Context, bail};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use weightfs::fuse::DEVICE;

/// Descriptors that the caller passes to the daemon.
pub struct PassedDescriptors {
    /// The pipe or socket of `--while-open`.
    pub watched: Option<OwnedFd>,
    /// The /dev/fuse that is the MOUNTPOINT.
    pub device: Option<OwnedFd>,
}

impl PassedDescriptors {
    /// Call this before this process opens any file, as [`descriptors::duplicate`] requires.
    pub fn take(args: &MountArgs) -> anyhow::Result<Self> {
        let watched = args.while_open.map(|fd| descriptors::take(fd).with_context(|| format!("--while-open {fd}")));
        let watched = watched.transpose()?;
        let device = args.mountpoint.as_deref().map(|path| Self::device(path, args)).transpose()?.flatten();
        Ok(Self { watched, device })
    }

    /// The /dev/fuse that `mountpoint` names, unless it names a directory.
    fn device(mountpoint: &Path, args: &MountArgs) -> anyhow::Result<Option<OwnedFd>> {
        let Some(descriptor) = descriptors::whole_descriptor(mountpoint) else { return Ok(None) };
        let shown = mountpoint.display();
        let passed = descriptors::duplicate(descriptor).and_then(|passed| File::from(passed).metadata());
        let passed = passed.with_context(|| shown.to_string())?;
        if passed.is_dir() {
            return Ok(None);
        } else if !descriptors::is_fuse_device(&passed) {
            bail!("{shown}: neither a directory nor an open {DEVICE}");
        }
        if let Some((_, option)) =
            [(args.rmdir, "rmdir"), (args.auto_unmount, "auto_unmount")].iter().find(|(is, _)| *is)
        {
            bail!("option {option}: {shown} is mounted already, so whoever mounted it has to unmount it");
        }
        // The caller's descriptor is closed only after these checks, because it may be something else.
        let device = descriptors::take(descriptor).with_context(|| shown.to_string())?;
        descriptors::make_blocking(&device).with_context(|| shown.to_string())?;
        Ok(Some(device))
    }

    pub fn numbers(&self) -> impl Iterator<Item = RawFd> {
        self.watched.iter().chain(&self.device).map(AsRawFd::as_raw_fd)
    }
}
