//! `weightfs umount`: unmounts models.

use crate::cli::UmountArgs;
use crate::process::logging::complain;
use crate::process::mounts;
use anyhow::bail;
use nix::unistd::{Uid, User, geteuid};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weightfs::text::shell_word;

/// Unmounts models, even if their daemons are gone. A failure does not affect the other mount points.
pub fn run_umount(args: &UmountArgs) -> anyhow::Result<ExitCode> {
    let mountpoints = if args.all { of_user(geteuid())? } else { args.mountpoints.clone() };
    let mut failed = false;
    for mountpoint in &mountpoints {
        if let Err(error) = unmount_path(mountpoint, args.lazy) {
            complain(&error);
            failed = true;
        }
    }
    Ok(ExitCode::from(u8::from(failed)))
}

/// The mount points of all models that a user may unmount, the newest first.
fn of_user(user: Uid) -> anyhow::Result<Vec<PathBuf>> {
    let mut mounts = mounts::all()?;
    mounts.retain(|mount| mount.fstype == mounts::TYPE && (user.is_root() || mount.owner() == Some(user)));
    Ok(mounts.into_iter().rev().map(|mount| mount.path).collect())
}

/// Unmounts a model. Refuses mounts of other file systems.
fn unmount_path(mountpoint: &Path, lazy: bool) -> anyhow::Result<()> {
    let shown = mountpoint.display();
    let path = mounts::resolve_mountpoint(mountpoint)?;
    let owner = match mounts::mounted_at(&path)? {
        Some(mount) if mount.fstype == mounts::TYPE => mount.owner(),
        Some(mount) => bail!("{shown}: a {} mount, not a weightfs mount", mount.fstype),
        None => bail!("{shown}: not mounted"),
    };
    match mounts::unmount_mount(&path, lazy) {
        Ok(false) => Ok(()),
        Ok(true) => bail!(
            "{shown}: in use (`fuser -vm {}` lists the processes; --lazy detaches it anyway)",
            shell_word(mountpoint)
        ),
        Err(error) => match owner.filter(|owner| *owner != geteuid() && !geteuid().is_root()) {
            Some(owner) if owner.is_root() => {
                bail!(
                    "{shown}: mounted by root, so only root can unmount it: sudo weightfs umount {}",
                    shell_word(&path)
                )
            }
            Some(owner) => {
                let name = User::from_uid(owner).ok().flatten().map_or(format!("user {owner}"), |user| user.name);
                bail!("{shown}: mounted by {name}, so only {name} and root can unmount it")
            }
            None => Err(error),
        },
    }
}
