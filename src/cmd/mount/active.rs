//! A mount that the daemon serves, and how it ends.

use super::mountpoint::Mountpoint;
use crate::process::daemon_helper::{DaemonHelper, UnmountOrder, UnmountTarget};
use crate::process::logging::reason;
use crate::process::{descriptors, mounts};
use anyhow::Context;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use weightfs::fuse::DEVICE;

/// The mount of this daemon. It is unmounted when this is dropped.
pub struct ActiveMount(pub Arc<MountConnection>);

/// Who has mounted, and unmounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountOwner {
    Daemon,
    /// Whoever has started the daemon, with an open /dev/fuse. The kernel aborts the connection when the daemon has
    /// ended and the caller has closed its copies of the descriptor.
    Caller,
}

/// The connection of the daemon to its mount.
pub struct MountConnection {
    pub path: PathBuf,
    /// /dev/fuse.
    pub device: OwnedFd,
    pub helper: DaemonHelper,
    pub owner: MountOwner,
}

impl ActiveMount {
    /// Takes over a new mount. Also returns the file that sets its read-ahead.
    pub fn new(
        mut mountpoint: Mountpoint,
        device: &OwnedFd,
        helper: DaemonHelper,
        auto_unmount: bool,
    ) -> anyhow::Result<(Self, Option<File>)> {
        let path = mountpoint.path.clone();
        let all = mounts::all().unwrap_or_default().into_iter();
        let mount = all.rev().find(|mount| mount.path == path && mount.fstype == mounts::TYPE);
        let read_ahead = mount.as_ref().and_then(|mount| read_ahead(&mount.device));
        let connected = device.try_clone().context(DEVICE).and_then(|device| {
            let made = mountpoint.made;
            let target = UnmountTarget { path: path.clone().into(), mount, made, auto_unmount };
            helper.order(&UnmountOrder::SetTarget(target))?;
            Ok(Self(Arc::new(MountConnection { path: path.clone(), device, helper, owner: MountOwner::Daemon })))
        });
        match connected {
            Ok(mounted) => {
                // From here on, the directory is removed with the mount.
                mountpoint.made = false;
                Ok((mounted, read_ahead))
            }
            Err(error) => {
                // This process can unmount, because it is not in the sandbox yet.
                mounts::unmount_mount(&path, true)?;
                Err(error)
            }
        }
    }
}

impl Drop for ActiveMount {
    fn drop(&mut self) {
        if let Err(error) = self.0.unmount() {
            log::error!("{}", reason(&error));
        }
    }
}

impl MountConnection {
    /// Unmounts, and removes the directory if it was created for the mount. Returns whether the mount was in use and
    /// had to be detached.
    fn unmount(&self) -> anyhow::Result<bool> {
        match self.owner {
            MountOwner::Caller => Ok(false),
            MountOwner::Daemon if self.is_connected() => self.helper.order(&UnmountOrder::Unmount),
            // It was unmounted by another program. A new mount may have its device number now.
            MountOwner::Daemon => self.helper.order(&UnmountOrder::Forget),
        }
    }

    /// Whether the file system still exists, mounted anywhere or detached but in use. As long as it does, its device
    /// number is not reused.
    fn is_connected(&self) -> bool {
        !is_closed(&self.device, PollTimeout::ZERO)
    }
}

/// Waits for one of `signals`, unmounts and ends the program. The session does not always end by itself: the mount may
/// be detached but in use, or may also exist in another mount namespace. `at_end` is called before the program ends.
pub fn unmount_on_signal(signals: &SigSet, mount: &MountConnection, at_end: impl Fn()) {
    let (path, is_ours) = (mount.path.display(), mount.owner == MountOwner::Daemon);
    while let Ok(signal) = signals.wait() {
        log::info!("{path}: {} on {signal}", if is_ours { "unmounting" } else { "ending" });
        match mount.unmount() {
            Ok(in_use) => {
                if in_use {
                    log::warn!("{path}: was in use and is detached; its users get errors from now on");
                }
                at_end();
                if in_use || !is_ours {
                    descriptors::disconnect_and_exit();
                }
                // The threads of the session close their descriptors themselves, perhaps at this moment.
                std::process::exit(0);
            }
            // The daemon keeps serving, because the mount would be dead otherwise. The next signal tries again.
            Err(error) => log::error!("{}", reason(&error)),
        }
    }
}

/// Unmounts when the other end of `watched`, a pipe or a socket, is closed. A mount that is in use is detached, and the
/// program ends after its last user. If the caller has mounted it, the program ends at once, after `at_end`.
pub fn unmount_when_closed(watched: &OwnedFd, mount: &MountConnection, at_end: impl Fn()) {
    let path = mount.path.display();
    // poll(2) always reports POLLHUP and POLLERR, so no event is requested.
    while !is_closed(watched, PollTimeout::NONE) {}
    log::info!("{path}: ending, because the other end of --while-open is closed");
    match mount.unmount() {
        Ok(_) if mount.owner == MountOwner::Daemon => {}
        Ok(_) => {
            at_end();
            descriptors::disconnect_and_exit();
        }
        Err(error) => log::error!("{}", reason(&error)),
    }
}

/// Waits until the other end of a descriptor is closed, or an error or the timeout ends the wait. Returns whether it is
/// closed. The other end of /dev/fuse is the mounted file system.
fn is_closed(descriptor: &OwnedFd, timeout: PollTimeout) -> bool {
    let mut polled = [PollFd::new(descriptor.as_fd(), PollFlags::empty())];
    let _ = poll(&mut polled, timeout);
    polled[0].any() == Some(true)
}

/// The file in sysfs that sets the read-ahead of the mount. Only root may write to it. It must be opened before the
/// sandbox is entered, and written after the FUSE handshake.
pub fn read_ahead(device: &str) -> Option<File> {
    let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
    OpenOptions::new().write(true).open(&path).inspect_err(|error| log::debug!("{path}: {error}")).ok()
}

/// Sets the read-ahead to 1 MiB, the size of the largest read request. The default of the kernel is 128 KiB.
pub fn set_read_ahead(mut file: File) {
    const KIB: &[u8] = b"1024";
    if let Err(error) = file.write_all(KIB) {
        log::debug!("read-ahead: {error}");
    }
}
