//! `weightfs umount`: unmounts a model.

use crate::cli::UmountArgs;
use crate::process::mounts::{self, Unmounting};
use anyhow::bail;
use std::process::ExitCode;

/// Unmounts a model, even if its daemon is gone. Refuses mounts of other file systems.
pub fn run(args: &UmountArgs) -> anyhow::Result<ExitCode> {
    let mountpoint = mounts::resolve(&args.mountpoint)?;
    match mounts::mounted_at(&mountpoint)? {
        Some(mount) if mount.fstype == mounts::TYPE => {}
        Some(mount) => bail!("{}: a {} mount, not a weightfs mount", args.mountpoint.display(), mount.fstype),
        None => bail!("{}: not mounted", args.mountpoint.display()),
    }
    match mounts::unmount(&mountpoint, args.lazy)? {
        Unmounting::Done => Ok(ExitCode::SUCCESS),
        Unmounting::Busy => {
            bail!("{}: in use (`fuser -vm` lists the processes; --lazy detaches it anyway)", args.mountpoint.display())
        }
    }
}
