//! Mounting, unmounting and listing mounts. Root uses system calls, other users fusermount3.

use super::descriptors;
use anyhow::{Context, anyhow, bail};
use nix::errno::Errno;
use nix::libc::{O_NOFOLLOW, O_PATH};
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sys::statvfs::statvfs;
use nix::unistd::Uid;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use weightfs::fuse::DEVICE;

/// The file system type in /proc/mounts.
pub const TYPE: &str = "fuse.weightfs";

/// The setuid program of libfuse, by which users other than root mount.
pub const FUSERMOUNT: &str = "fusermount3";

/// Parts of messages of fusermount3, and what can be done.
const FUSERMOUNT_HINTS: &[(&str, &str)] = &[
    ("user_allow_other", " (an administrator can add that line)"),
    (DEVICE, " (an administrator can let users open it: chmod 666 /dev/fuse)"),
    (
        "Operation not permitted",
        " (its setuid bit is missing, no_new_privs is set, or the container lacks CAP_SYS_ADMIN)",
    ),
];

const NO_FUSE: &str = "this kernel has no FUSE: load the module with `modprobe fuse`";

pub struct MountRequest<'a> {
    /// The source in /proc/mounts.
    pub fsname: &'a str,
    /// An absolute path without symlinks.
    pub mountpoint: &'a Path,
    /// Whether the kernel admits users other than the one who mounts.
    pub allow_other: bool,
    /// Size limit of a read request in bytes.
    pub max_read: Option<u32>,
}

/// Mounts, and returns the descriptor of /dev/fuse through which the kernel sends requests.
pub fn mount(request: &MountRequest) -> anyhow::Result<OwnedFd> {
    // fusermount3 needs the device too.
    std::fs::metadata(DEVICE).map_err(no_device)?;
    let directly = if nix::unistd::geteuid().is_root() { mount_directly(request)? } else { None };
    match directly {
        Some(device) => Ok(device),
        None => mount_by_helper(request),
    }
}

fn kernel_options(request: &MountRequest) -> String {
    let allow_other = if request.allow_other { ",allow_other" } else { "" };
    let max_read = request.max_read.map(|bytes| format!(",max_read={bytes}")).unwrap_or_default();
    format!("default_permissions{allow_other}{max_read}")
}

/// Mounts by mount(2). `None` if that is not permitted, as for root in some containers; fusermount3 may still succeed.
fn mount_directly(request: &MountRequest) -> anyhow::Result<Option<OwnedFd>> {
    let device = OpenOptions::new().read(true).write(true).open(DEVICE).map_err(no_device)?;
    let (fd, uid, gid) = (device.as_raw_fd(), nix::unistd::getuid(), nix::unistd::getgid());
    let options = format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid},{}", kernel_options(request));
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_NOATIME;
    match nix::mount::mount(Some(request.fsname), request.mountpoint, Some(TYPE), flags, Some(&options[..])) {
        Ok(()) => Ok(Some(device.into())),
        Err(Errno::EPERM) => Ok(None),
        Err(Errno::ENODEV) => bail!(NO_FUSE),
        Err(errno) => bail!("cannot mount on {}: {}", request.mountpoint.display(), errno.desc()),
    }
}

/// Mounts by fusermount3, the setuid program of libfuse. It sends the descriptor of the device over the socket whose
/// number is in `_FUSE_COMMFD`. Source: libfuse 3, util/fusermount.c.
fn mount_by_helper(request: &MountRequest) -> anyhow::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair().context("cannot create a socket pair")?;
    let fsname = request.fsname.replace('\\', r"\\").replace(',', r"\,");
    let options =
        format!("ro,nosuid,nodev,noexec,noatime,subtype=weightfs,fsname={fsname},{}", kernel_options(request));
    let child = Command::new(FUSERMOUNT)
        .args(["-o", &options, "--"])
        .arg(request.mountpoint)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stderr(Stdio::piped())
        .spawn()
        .map_err(no_helper)?;
    let device = descriptors::receive_descriptor(&ours);
    let output = child.wait_with_output().context(FUSERMOUNT)?;
    device.ok().flatten().ok_or_else(|| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let reason = stderr.trim().trim_start_matches(FUSERMOUNT).trim_start_matches(": ");
        let hint = FUSERMOUNT_HINTS.iter().find(|(part, _)| reason.contains(part)).map_or("", |(_, hint)| hint);
        anyhow!("cannot mount on {}: {FUSERMOUNT}: {reason}{hint}", request.mountpoint.display())
    })
}

fn no_device(error: std::io::Error) -> anyhow::Error {
    const HINT: &str = "give it to the container (--device /dev/fuse); \
                        `weightfs ls`, `cat`, `cp` and `serve` work without it";
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => anyhow!("{DEVICE} is missing: load the module with `modprobe fuse`, or {HINT}"),
        Some(Errno::ENODEV | Errno::ENXIO) => anyhow!(NO_FUSE),
        Some(Errno::EPERM | Errno::EACCES) => anyhow!("{DEVICE} cannot be opened here, not even by root: {HINT}"),
        _ => anyhow::Error::new(error).context(DEVICE),
    }
}

fn no_helper(error: std::io::Error) -> anyhow::Error {
    if error.kind() != ErrorKind::NotFound {
        return anyhow::Error::new(error).context(FUSERMOUNT);
    }
    anyhow!(match nix::unistd::geteuid().is_root() {
        true =>
            "root is not permitted to mount or unmount here: give the container CAP_SYS_ADMIN (--cap-add SYS_ADMIN)",
        false => "fusermount3 is missing; users other than root need it to mount: install the package fuse3",
    })
}

/// Unmounts the topmost mount at `mountpoint`. If `lazy`, it is detached even while it is in use: it then ends when its
/// last file is closed. Returns whether it is in use and was not unmounted.
pub fn unmount_mount(mountpoint: &Path, lazy: bool) -> anyhow::Result<bool> {
    let flags = MntFlags::UMOUNT_NOFOLLOW | if lazy { MntFlags::MNT_DETACH } else { MntFlags::empty() };
    match umount2(mountpoint, flags) {
        Ok(()) => return Ok(false),
        Err(Errno::EBUSY) => return Ok(true),
        Err(Errno::EPERM) => {}
        Err(errno) => bail!("cannot unmount {}: {}", mountpoint.display(), errno.desc()),
    }
    let mut command = Command::new(FUSERMOUNT);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(mountpoint);
    let output = command.output().map_err(no_helper)?;
    let reason = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(false),
        false if reason.contains("busy") => Ok(true),
        false => bail!("cannot unmount {}: {}", mountpoint.display(), reason.trim()),
    }
}

/// Aborts the connection of the topmost mount at `mountpoint` to its daemon, for root only. All requests fail then.
pub fn abort(mountpoint: &Path) {
    // The kernel first aborts the connection, and then fails to unmount, because this descriptor keeps the mount in
    // use. O_PATH sends no request to the daemon.
    let _in_use = OpenOptions::new().read(true).custom_flags(O_PATH | O_NOFOLLOW).open(mountpoint);
    let _ = umount2(mountpoint, MntFlags::MNT_FORCE | MntFlags::UMOUNT_NOFOLLOW);
}

/// A line of /proc/self/mountinfo: the fields that are used. Those that only describe it are not serialized.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountInfo {
    #[serde(skip)]
    pub path: PathBuf,
    /// Device number as `major:minor`. It is unique among mounted file systems, but is reused after an unmount.
    pub device: String,
    pub fstype: String,
    /// The mounted source, as the file system reports it.
    pub source: OsString,
    #[serde(skip)]
    pub options: String,
}

impl MountInfo {
    /// Whether both are mounts of the same file system: device, type and source are equal.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.device, &self.fstype, &self.source) == (&other.device, &other.fstype, &other.source)
    }

    /// The user who mounted a FUSE file system.
    pub fn owner(&self) -> Option<Uid> {
        let id = self.options.split(',').find_map(|option| option.strip_prefix("user_id="))?;
        id.parse().ok().map(Uid::from_raw)
    }
}

/// The topmost mount on `mountpoint`, an absolute path without symlinks. Does not touch the mount itself.
pub fn mounted_at(mountpoint: &Path) -> anyhow::Result<Option<MountInfo>> {
    Ok(all()?.into_iter().rfind(|mount| mount.path == mountpoint))
}

/// All mounts that this process can see. If several are on one directory, the last one is on top.
pub fn all() -> anyhow::Result<Vec<MountInfo>> {
    Ok(parse_mountinfo(&std::fs::read("/proc/self/mountinfo").context("/proc/self/mountinfo")?))
}

/// Parses mountinfo. The fields of a line, from proc(5): id, parent, device, root, mount point, options, tags up to
/// `-`, type, source, options.
fn parse_mountinfo(list: &[u8]) -> Vec<MountInfo> {
    list.split(|byte| *byte == b'\n').filter_map(parse_mount).collect()
}

fn parse_mount(line: &[u8]) -> Option<MountInfo> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = String::from_utf8_lossy(fields.nth(2)?).into_owned();
    let path = OsString::from_vec(unescape(fields.nth(1)?)).into();
    fields.find(|field| *field == b"-")?;
    let fstype = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = OsString::from_vec(unescape(fields.next()?));
    let options = String::from_utf8_lossy(fields.next()?).into_owned();
    Some(MountInfo { path, device, fstype, source, options })
}

/// Undoes the kernel's escapes: space, tab, newline and backslash are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut parts = field.split(|byte| *byte == b'\\');
    let mut bytes = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        let digits = part.get(..3).and_then(|digits| str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) => bytes.extend([&[code], &part[3..]].concat()),
            None => bytes.extend([b"\\", part].concat()),
        }
    }
    bytes
}

/// `path` without symlinks. If it cannot be accessed, like the mount point of a daemon that is gone, its parent is
/// resolved.
pub fn resolve_mountpoint(path: &Path) -> anyhow::Result<PathBuf> {
    if let Ok(resolved) = path.canonicalize() {
        return Ok(resolved);
    }
    let absolute = std::path::absolute(path).with_context(|| path.display().to_string())?;
    match (absolute.parent().map(Path::canonicalize), absolute.file_name()) {
        (Some(Ok(parent)), Some(name)) => Ok(parent.join(name)),
        _ => Ok(absolute),
    }
}

/// The mount that is connected to `device`, a descriptor of /dev/fuse. `None` if this process does not see the mount.
/// Also `None` on older kernels, which do not list the connection of a descriptor in /proc.
pub fn mounted_through(device: &OwnedFd) -> Option<MountInfo> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd())).ok()?;
    let connection = info.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?;
    let number = format!("0:{}", connection.trim());
    all().ok()?.into_iter().rfind(|mount| mount.device == number)
}

/// Whether `path` is a mount whose daemon is gone.
pub fn is_dead(path: &Path) -> bool {
    // stat(2) is not used, because the kernel may answer it from its cache.
    statvfs(path) == Err(Errno::ENOTCONN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_parsed() {
        let list = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
            30 22 0:41 / /mnt/a\\040b ro shared:1 master:2 - fuse.weightfs /m\\040c.safetensors ro,user_id=5,group_id=7\n\
            31 30 0:42 / /mnt/a\\040b ro - fuse.sshfs host: ro\n";
        let mount = |path: &str, device: &str, fstype: &str, source: &str, options: &str| MountInfo {
            path: path.into(),
            device: device.into(),
            fstype: fstype.into(),
            source: source.into(),
            options: options.into(),
        };
        let expected = [
            mount("/", "254:0", "ext4", "/dev/vda", "rw"),
            mount("/mnt/a b", "0:41", TYPE, "/m c.safetensors", "ro,user_id=5,group_id=7"),
            mount("/mnt/a b", "0:42", "fuse.sshfs", "host:", "ro"),
        ];
        assert_eq!(expected.each_ref().map(MountInfo::owner), [None, Some(Uid::from_raw(5)), None]);
        assert!(expected[1].is_same(&MountInfo { path: "/elsewhere".into(), ..expected[1].clone() }));
        assert!(!expected[1].is_same(&MountInfo { source: "/other".into(), ..expected[1].clone() }));
        assert_eq!(parse_mountinfo(list), expected);
        assert_eq!(parse_mountinfo(b""), []);
    }

    #[test]
    fn octal_escapes_are_undone() {
        assert_eq!(unescape(br"a\040b\011\134\\9"), b"a b\t\\\\\\9");
        assert_eq!(unescape(br"\04"), br"\04");
    }
}
