//! Resolves paths without entering the daemon's own mount, because the daemon would wait for itself there.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The mount point of this process.
static OFF_LIMITS: OnceLock<PathBuf> = OnceLock::new();

/// Forbids opening anything below `dir`, even through a symlink. Only the first call has an effect.
pub fn put_off_limits(dir: &Path) {
    let _ = OFF_LIMITS.set(dir.to_owned());
}

/// `path` without symlinks, resolved without entering the directory that is off limits; `None` if there is no such
/// directory.
pub(super) fn resolve(path: &Path) -> Option<io::Result<PathBuf>> {
    Some(follow(path, OFF_LIMITS.get()?))
}

/// Maximum number of symlinks in a path, as in Linux.
const LINKS_MAX: usize = 40;

fn follow(path: &Path, off_limits: &Path) -> io::Result<PathBuf> {
    let mut ahead: Vec<OsString> = Vec::new();
    let push = |ahead: &mut Vec<OsString>, path: &Path| {
        ahead.extend(path.components().rev().map(|component| component.as_os_str().to_owned()));
    };
    push(&mut ahead, &std::path::absolute(path)?);
    let (mut resolved, mut links) = (PathBuf::from("/"), 0);
    while let Some(component) = ahead.pop() {
        if component == ".." {
            resolved.pop();
            continue;
        }
        let next = resolved.join(component);
        if next.starts_with(off_limits) {
            return Err(io::Error::other("lies inside the mount itself"));
        }
        match std::fs::read_link(&next) {
            Ok(_) if links == LINKS_MAX => return Err(nix::errno::Errno::ELOOP.into()),
            Ok(target) => {
                links += 1;
                push(&mut ahead, &target);
            }
            Err(error) if error.kind() == ErrorKind::InvalidInput => resolved = next,
            Err(error) => return Err(error),
        }
    }
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

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
        let resolved = |name: &str| follow(&path(name), &path("mnt"));
        assert_eq!(resolved("absolute").unwrap(), path("a/b/file"));
        assert_eq!(resolved("a/link/file").unwrap(), path("a/b/file"));
        for name in ["into", "mnt", "mnt/file", "mnt/absent"] {
            assert_eq!(resolved(name).unwrap_err().to_string(), "lies inside the mount itself", "{name}");
        }
        assert_eq!(resolved("loop").unwrap_err().raw_os_error(), Some(nix::libc::ELOOP));
        assert_eq!(resolved("absent/file").unwrap_err().kind(), ErrorKind::NotFound);
    }
}
