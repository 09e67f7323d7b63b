//! Resolves paths without entering a mount of weightfs: in its own mount the daemon would wait for itself, and two
//! daemons whose models lead into each other's mounts would wait for each other.

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The places that this process must not enter while it serves a mount.
static OFF_LIMITS: OnceLock<OffLimits> = OnceLock::new();

#[derive(Debug)]
struct OffLimits {
    dir: PathBuf,
    /// The device of the source, which may itself be in another mount.
    source: Option<u64>,
    /// `/proc/self/mountinfo`, which a sandbox may refuse to open. `None` if there is no /proc. Unlike a query of the
    /// file system, reading the list of mounts never waits for the daemon of a mount.
    mounts: Option<Mutex<File>>,
    avoided_type: &'static str,
}

/// Forbids opening anything below `dir`, and in any mount of type `avoided_type` except those that were opened before
/// and the one that holds `source`. This also applies to symlinks that lead there. Only the first call has an effect.
pub fn put_off_limits(dir: &Path, source: Option<&Path>, avoided_type: &'static str) {
    let mounts = File::open("/proc/self/mountinfo").inspect_err(|error| log::debug!("/proc/self/mountinfo: {error}"));
    let source = source.and_then(|source| Some(std::fs::metadata(source).ok()?.dev()));
    let _ =
        OFF_LIMITS.set(OffLimits { dir: dir.to_owned(), source, mounts: mounts.ok().map(Mutex::new), avoided_type });
}

/// `path` without symlinks, resolved without entering what is off limits; as it is if nothing is off limits. The device
/// `admitted` is not off limits, because a file on it was opened before.
pub(super) fn resolve_path(path: &Path, admitted: Option<u64>) -> io::Result<Cow<'_, Path>> {
    OFF_LIMITS.get().map_or(Ok(path.into()), |limits| Ok(follow(path, limits, admitted)?.into()))
}

impl OffLimits {
    /// Whether a device is off limits. `admitted` is not.
    fn avoids(&self, device: u64, admitted: Option<u64>) -> bool {
        // A file system with another major number is on a block device, so it is not a mount of weightfs.
        if [self.source, admitted].contains(&Some(device)) || rustix::fs::major(device) != 0 {
            return false;
        }
        let Some(mounts) = &self.mounts else { return false };
        let mut file = mounts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list = String::new();
        if let Err(error) = file.rewind().and_then(|()| file.read_to_string(&mut list)) {
            log::debug!("/proc/self/mountinfo: {error}");
        }
        let number = format!("0:{}", rustix::fs::minor(device));
        // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELD...] - TYPE SOURCE OPTIONS
        list.lines().filter_map(|line| line.split_once(" - ")).any(|(mount, system)| {
            mount.split(' ').nth(2) == Some(&number) && system.split(' ').next() == Some(self.avoided_type)
        })
    }

    /// See [`check_limits`].
    fn check(
        &self,
        dir: impl AsFd,
        name: &OsStr,
        real: &Path,
        admitted: Option<u64>,
        allowed: &mut Option<u64>,
    ) -> io::Result<()> {
        if real.starts_with(&self.dir) {
            return Err(io::Error::other("lies inside the mount itself"));
        }
        let device = device_of(dir, name);
        if device == *allowed {
            return Ok(());
        }
        if device.is_some_and(|device| self.avoids(device, admitted)) {
            return Err(io::Error::other(format!(
                "leads into another mount of weightfs, {}, and the two could wait for each other; mount it by its own \
                 path",
                real.display()
            )));
        }
        *allowed = device;
        Ok(())
    }
}

/// Fails if what has a name in a directory is off limits. `real` is its path, without symlinks on the way to it, and
/// `allowed` the last device that was found not to be off limits.
pub(super) fn check_limits(dir: impl AsFd, name: &OsStr, real: &Path, allowed: &mut Option<u64>) -> io::Result<()> {
    OFF_LIMITS.get().map_or(Ok(()), |limits| limits.check(dir, name, real, None, allowed))
}

/// The number of the device of what has a name in a directory, which need not be accessible. No request is sent to the
/// daemon of a mount whose mount point it is.
fn device_of(dir: impl AsFd, name: &OsStr) -> Option<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = statx(dir, name, flags, StatxFlags::empty()).ok()?;
    Some(makedev(found.stx_dev_major, found.stx_dev_minor))
}

/// Maximum number of symlinks in a path, as in Linux.
pub(super) const LINKS_MAX: usize = 40;

/// The real path of `path`, without entering what is off limits.
fn follow(path: &Path, limits: &OffLimits, admitted: Option<u64>) -> io::Result<PathBuf> {
    let mut ahead: Vec<OsString> = Vec::new();
    push_components(&mut ahead, &std::path::absolute(path)?);
    let (mut resolved, mut links, mut allowed) = (PathBuf::from("/"), 0, None);
    while let Some(component) = ahead.pop() {
        if component == ".." {
            resolved.pop();
            continue;
        }
        let next = resolved.join(component);
        limits.check(CWD, next.as_os_str(), &next, admitted, &mut allowed)?;
        match std::fs::read_link(&next) {
            Ok(_) if links == LINKS_MAX => return Err(nix::errno::Errno::ELOOP.into()),
            Ok(target) => {
                links += 1;
                push_components(&mut ahead, &target);
            }
            Err(error) if error.kind() == ErrorKind::InvalidInput => resolved = next,
            Err(error) => return Err(error),
        }
    }
    Ok(resolved)
}

/// Pushes the components of a path onto a stack, the first one last.
pub(super) fn push_components(ahead: &mut Vec<OsString>, path: &Path) {
    ahead.extend(path.components().rev().map(|component| component.as_os_str().to_owned()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn off_limits(dir: &Path, mounts: Option<File>) -> OffLimits {
        let mounts = mounts.map(Mutex::new);
        OffLimits { dir: dir.to_owned(), source: Some(makedev(0, 47)), mounts, avoided_type: "fuse.weightfs" }
    }

    #[test]
    fn paths_into_the_off_limits_directory_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().canonicalize().unwrap().join(name);
        for name in ["a", "a/b", "mnt"] {
            fs::create_dir(path(name)).unwrap();
        }
        fs::write(path("a/b/file"), "").unwrap();
        fs::write(path("mnt/file"), "").unwrap();
        symlink("../a/b", path("a/link")).unwrap();
        symlink(path("a/link/file"), path("absolute")).unwrap();
        symlink("a/link/../../mnt/file", path("into")).unwrap();
        symlink("loop", path("loop")).unwrap();
        let limits = off_limits(&path("mnt"), None);
        let resolved = |name: &str| follow(&path(name), &limits, None);
        assert_eq!(resolved("absolute").unwrap(), path("a/b/file"));
        assert_eq!(resolved("a/link/file").unwrap(), path("a/b/file"));
        for name in ["into", "mnt", "mnt/file", "mnt/absent"] {
            assert_eq!(resolved(name).unwrap_err().to_string(), "lies inside the mount itself", "{name}");
        }
        assert_eq!(resolved("loop").unwrap_err().raw_os_error(), Some(nix::libc::ELOOP));
        assert_eq!(resolved("absent/file").unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn mounts_are_found_by_their_device_and_type() {
        let mut file = tempfile::tempfile().unwrap();
        let list = "\
            21 1 254:0 / / rw - ext4 /dev/vda rw\n\
            30 21 0:45 / /mnt/b ro,nosuid shared:5 master:1 - fuse.weightfs /m ro,user_id=0\n\
            32 21 0:47 / /mnt/d ro - fuse.weightfs /m ro\n\
            33 21 0:48 / /mnt/e ro - fuse.weightfs /m ro\n\
            31 21 0:46 /in /mnt/c rw - fuse.sshfs host: rw\n";
        std::io::Write::write_all(&mut file, list.as_bytes()).unwrap();
        let limits = off_limits(Path::new("/mnt"), Some(file));
        let found = [makedev(0, 45), makedev(0, 46), makedev(0, 4), makedev(254, 0), makedev(45, 45)];
        // Each query reads the list from its beginning.
        for _ in 0..2 {
            assert_eq!(found.map(|device| limits.avoids(device, None)), [true, false, false, false, false]);
        }
        // The mount of the source, and that of a file that was opened before.
        assert!(!limits.avoids(makedev(0, 47), None) && !limits.avoids(makedev(0, 48), Some(makedev(0, 48))));
        assert!(!off_limits(Path::new("/mnt"), None).avoids(makedev(0, 45), None));
    }
}
