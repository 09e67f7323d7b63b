//! Where a model is mounted: on a directory, or through a /dev/fuse that the caller has mounted.

use super::active::{ActiveMount, MountConnection, MountOwner, read_ahead};
use super::mountpoint::Mountpoint;
use crate::cli::MountArgs;
use crate::process::daemon_helper::DaemonHelper;
use crate::process::mounts::{self, MountInfo, MountRequest};
use anyhow::{Context, bail};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use weightfs::fs::Superblock;
use weightfs::fuse::DEVICE;
use weightfs::source::{Location, put_off_limits};
use weightfs::text::printable;

/// Where a model will be mounted. The variants differ in who owns the mount: whoever mounts it unmounts it.
pub enum MountTarget {
    /// This program mounts on a directory: the MOUNTPOINT argument, or the default.
    Directory(PathBuf),
    /// The caller has mounted already.
    Caller(MountOfCaller),
}

/// A mount whose requests can be answered.
pub struct TakenMount {
    pub device: OwnedFd,
    pub mounted: ActiveMount,
    /// The file that sets its read-ahead.
    pub read_ahead: Option<File>,
}

impl MountTarget {
    /// Mounts, or takes over the mount of the caller.
    pub fn take(
        self,
        args: &MountArgs,
        source: &Location,
        superblock: &Superblock,
        helper: DaemonHelper,
    ) -> anyhow::Result<TakenMount> {
        let wanted = match self {
            Self::Directory(wanted) => wanted,
            Self::Caller(caller) => return caller.take_over(helper),
        };
        let mountpoint = Mountpoint::prepare(args, source, &wanted)?;
        let source = source.absolute()?;
        put_off_limits(&mountpoint.path, source.path(), mounts::TYPE);
        if mountpoint.made {
            superblock.ignore_changes_of(&Location::from(&*mountpoint.path).parent());
        }
        let fsname = args.fsname.clone().unwrap_or_else(|| source.to_string());
        let device = mounts::mount(&MountRequest {
            // The kernel does not escape control characters in /proc/mounts, except white space.
            fsname: &printable(&fsname),
            mountpoint: &mountpoint.path,
            // The kernel admits root only together with all others; the daemon refuses these.
            allow_other: args.allow_other || admits_root(args),
            max_read: args.max_read,
        })?;
        let (mounted, read_ahead) = ActiveMount::new(mountpoint, &device, helper, args.auto_unmount)?;
        Ok(TakenMount { device, mounted, read_ahead })
    }
}

/// Whether root is admitted beside the owner. A mount by root always admits root.
pub fn admits_root(args: &MountArgs) -> bool {
    args.allow_root && !nix::unistd::geteuid().is_root()
}

/// A mount that the caller of this program has made, and unmounts itself.
pub struct MountOfCaller {
    /// The MOUNTPOINT argument, `/dev/fd/N`.
    path: PathBuf,
    device: OwnedFd,
    /// The mount, if this process can see it.
    mount: Option<MountInfo>,
}

impl MountOfCaller {
    /// Takes the device that the caller has passed. This process must not access the mount before the session has
    /// started: the access would wait for this process itself.
    pub fn new(device: OwnedFd, args: &MountArgs, source: &Location) -> anyhow::Result<Self> {
        let path = args.mountpoint.clone().unwrap_or_default();
        let mount = mounts::mounted_through(&device);
        let dir = mount.as_ref().map_or(&path, |mount| &mount.path);
        let source = source.absolute()?;
        if source.path().is_some_and(|source| source.starts_with(dir)) {
            bail!("{source}: lies inside the mount point {}, which hides it", dir.display());
        }
        put_off_limits(dir, source.path(), mounts::TYPE);
        Ok(Self { path, device, mount })
    }

    fn take_over(self, helper: DaemonHelper) -> anyhow::Result<TakenMount> {
        let Self { path, device, mount } = self;
        let read_ahead = mount.and_then(|mount| read_ahead(&mount.device));
        let copy = device.try_clone().context(DEVICE)?;
        let connection = MountConnection { path, device: copy, helper, owner: MountOwner::Caller };
        Ok(TakenMount { device, mounted: ActiveMount(connection.into()), read_ahead })
    }
}
