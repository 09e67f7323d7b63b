//! `weightfs umount`: knows to take off models only, dead ones too.

use crate::cli::UmountArgs;
use crate::process::mounts::{self, Unmounting};
use anyhow::bail;
use std::process::ExitCode;

/// Unmounts a model.
pub fn run(args: &UmountArgs) -> anyhow::Result<ExitCode> {
    let mountpoint = mounts::resolve(&args.mountpoint)?;
    match mounts::mounted_at(&mountpoint)? {
        Some(mount) if mount.fstype == mounts::TYPE => {}
        Some(mount) => bail!("{}: a {} mount, not one of weightfs", args.mountpoint.display(), mount.fstype),
        None => bail!("{}: not mounted", args.mountpoint.display()),
    }
    match mounts::unmount(&mountpoint, args.lazy)? {
        Unmounting::Done => Ok(ExitCode::SUCCESS),
        Unmounting::Busy => bail!(
            "{}: in use (`fuser -vm` tells by whom; --lazy detaches it now and ends it with its last user)",
            args.mountpoint.display()
        ),
    }
}
