//! Mounting, unmounting and listing mounts. Root uses system calls, other users fusermount3.

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::libc::{O_NOFOLLOW, O_PATH};
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sys::socket::{AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, socketpair};
use nix::sys::statvfs::statvfs;
use nix::unistd::Uid;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{ErrorKind, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use weightfs::fuse::DEVICE;

/// The file system type in /proc/mounts.
pub const TYPE: &str = "fuse.weightfs";

/// The setuid program of libfuse, by which users other than root mount.
pub const FUSERMOUNT: &str = "fusermount3";

const NO_FUSE: &str = "this kernel has no FUSE: load the module with `modprobe fuse`";

/// The arguments of a mount: sources and mount points.
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

/// Mount options for the kernel.
fn kernel_options(request: &MountRequest) -> String {
    let mut options = String::from("default_permissions");
    if request.allow_other {
        options += ",allow_other";
    }
    if let Some(max_read) = request.max_read {
        options += &format!(",max_read={max_read}");
    }
    options
}

/// Mounts by mount(2). `None` if mount(2) is not permitted, as for root in some containers; fusermount3 may still
/// succeed.
fn mount_directly(request: &MountRequest) -> anyhow::Result<Option<OwnedFd>> {
    let device = std::fs::OpenOptions::new().read(true).write(true).open(DEVICE).map_err(no_device)?;
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},{}",
        device.as_raw_fd(),
        nix::unistd::getuid(),
        nix::unistd::getgid(),
        kernel_options(request)
    );
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
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)
        .context("cannot create a socket pair")?;
    // fusermount3 inherits this end only.
    nix::fcntl::fcntl(&theirs, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))?;
    let fsname = request.fsname.replace('\\', r"\\").replace(',', r"\,");
    let options =
        format!("ro,nosuid,nodev,noexec,noatime,subtype=weightfs,fsname={fsname},{}", kernel_options(request));
    let child = Command::new(FUSERMOUNT)
        .arg("-o")
        .arg(options)
        .arg("--")
        .arg(request.mountpoint)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .map_err(no_helper)?;
    drop(theirs);
    let device = receive_device(ours.as_fd());
    let output = child.wait_with_output().context(FUSERMOUNT)?;
    device.ok_or_else(|| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let reason = stderr.trim().trim_start_matches(FUSERMOUNT).trim_start_matches(": ");
        let hint = if reason.contains("user_allow_other") {
            " (an administrator can add that line)"
        } else if reason.contains(DEVICE) {
            " (an administrator can let users open it: chmod 666 /dev/fuse)"
        } else if reason.contains("Operation not permitted") {
            " (its setuid bit is missing, no_new_privs is set, or the container lacks CAP_SYS_ADMIN)"
        } else {
            ""
        };
        anyhow::anyhow!("cannot mount on {}: {FUSERMOUNT}: {reason}{hint}", request.mountpoint.display())
    })
}

fn no_device(error: std::io::Error) -> anyhow::Error {
    const HINT: &str = "give it to the container (--device /dev/fuse)";
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => anyhow::anyhow!("{DEVICE} is missing: load the module with `modprobe fuse`, or {HINT}"),
        Some(Errno::ENODEV | Errno::ENXIO) => anyhow::anyhow!(NO_FUSE),
        Some(Errno::EPERM | Errno::EACCES) => {
            anyhow::anyhow!("{DEVICE} cannot be opened here, not even by root: {HINT}")
        }
        _ => anyhow::Error::new(error).context(DEVICE),
    }
}

fn no_helper(error: std::io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::NotFound if nix::unistd::geteuid().is_root() => {
            anyhow::anyhow!(
                "root is not permitted to mount or unmount here: give the container CAP_SYS_ADMIN (--cap-add SYS_ADMIN)"
            )
        }
        ErrorKind::NotFound => {
            anyhow::anyhow!(
                "{FUSERMOUNT} is missing; users other than root need it to mount: install the package fuse3"
            )
        }
        _ => anyhow::Error::new(error).context(FUSERMOUNT),
    }
}

/// Receives a descriptor over `socket`; `None` if the other end was closed without sending one.
fn receive_device(socket: BorrowedFd) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut data = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!(RawFd);
    let message = loop {
        match recvmsg::<()>(socket.as_raw_fd(), &mut data, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC) {
            Err(Errno::EINTR) => {}
            received => break received.ok()?,
        }
    };
    let descriptor = message.cmsgs().ok()?.find_map(|message| match message {
        ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
        _ => None,
    });
    // SAFETY: recvmsg(2) has just created this descriptor in this process, and nothing else owns it.
    #[allow(unsafe_code)]
    descriptor.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The outcome of an attempt to unmount.
pub enum UnmountOutcome {
    /// The mount is gone, or it is detached and ends when its last file is closed.
    Done,
    /// The mount is in use.
    Busy,
}

/// Unmounts the topmost mount at `mountpoint`. If `lazy`, it is detached even while it is in use.
pub fn unmount_mount(mountpoint: &Path, lazy: bool) -> anyhow::Result<UnmountOutcome> {
    let flags = MntFlags::UMOUNT_NOFOLLOW | if lazy { MntFlags::MNT_DETACH } else { MntFlags::empty() };
    match umount2(mountpoint, flags) {
        Ok(()) => return Ok(UnmountOutcome::Done),
        Err(Errno::EBUSY) => return Ok(UnmountOutcome::Busy),
        Err(Errno::EPERM) => {}
        Err(errno) => bail!("cannot unmount {}: {}", mountpoint.display(), errno.desc()),
    }
    let mut command = Command::new(FUSERMOUNT);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(mountpoint);
    let output = command.output().map_err(no_helper)?;
    let reason = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(UnmountOutcome::Done),
        false if reason.contains("busy") => Ok(UnmountOutcome::Busy),
        false => bail!("cannot unmount {}: {}", mountpoint.display(), reason.trim()),
    }
}

/// Aborts the connection of the topmost FUSE mount at `mountpoint` to its daemon, which only root can do. The mount
/// stays, and requests fail from now on.
pub fn abort(mountpoint: &Path) {
    // The kernel first aborts the connection, and then fails to unmount, because this descriptor keeps the mount in
    // use. O_PATH sends no request to the daemon.
    let _in_use = OpenOptions::new().read(true).custom_flags(O_PATH | O_NOFOLLOW).open(mountpoint);
    let _ = umount2(mountpoint, MntFlags::MNT_FORCE | MntFlags::UMOUNT_NOFOLLOW);
}

/// A line of /proc/self/mountinfo: the fields that are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountInfo {
    /// The mount point.
    pub path: PathBuf,
    /// Device number as `major:minor`. It is unique among mounted file systems, but is reused after an unmount.
    pub device: String,
    /// File system type.
    pub fstype: String,
    /// The mounted source, as the file system reports it.
    pub source: OsString,
    /// The options of the file system, separated by commas.
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

/// The topmost mount on `mountpoint`, an absolute path without symlinks. Reads the kernel's list and does not touch the
/// mount.
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
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mount = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let device = text(fields.nth(2)?);
        let path = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
        fields.find(|field| *field == b"-")?;
        let (fstype, source) = (text(fields.next()?), OsString::from_vec(unescape(fields.next()?)));
        let options = text(fields.next()?);
        Some(MountInfo { path, device, fstype, source, options })
    };
    list.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// Undoes the kernel's escapes: space, tab, newline and backslash are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let digits = after.get(..3).filter(|_| *byte == b'\\');
        match digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok()) {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => bytes.push(*byte),
        }
    }
    bytes
}

/// `path` without symlinks. If the path cannot be accessed, such as a mount point whose daemon is gone, only its parent
/// directory is resolved.
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

/// The mount that is served through `device`, a descriptor of /dev/fuse. `None` if this process does not see the mount.
/// Also `None` on older kernels, which do not list the connection of a descriptor in /proc.
pub fn served_through(device: &OwnedFd) -> Option<MountInfo> {
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
