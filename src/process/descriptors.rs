//! File descriptors that the caller of this program left open. In the background they would keep locks held and pipes
//! open after the command has returned.

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::{SFlag, fstat, makedev};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Closes all descriptors except the standard streams and `kept`.
pub fn close_others(kept: &[RawFd]) {
    // Without /proc, the descriptors stay open.
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2 && !kept.contains(descriptor)) {
        // This fails for the descriptor of the directory itself, which is closed already.
        let _ = nix::unistd::close(descriptor);
    }
}

/// The descriptor that a path such as `/dev/fd/3` or `/proc/self/fd/3/model` refers to.
pub fn named(path: &Path) -> Option<RawFd> {
    let dirs = ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"];
    let after = dirs.iter().find_map(|dir| path.strip_prefix(dir).ok())?;
    after.components().next()?.as_os_str().to_str()?.parse().ok()
}

/// The descriptor that a path such as `/dev/fd/3` names. `None` for a path below it, such as `/dev/fd/3/file`.
pub fn whole_descriptor(path: &Path) -> Option<RawFd> {
    named(path).filter(|_| path.file_name().is_some_and(|name| path.ends_with(Path::new("fd").join(name))))
}

/// Opens the file of `descriptor` again for reading, under the same number, so that a lock on the file is released with
/// the caller's descriptor. Programs that this process starts do not inherit it.
pub fn open_again(descriptor: RawFd) {
    if descriptor <= 2 {
        return;
    }
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(nix::libc::O_NONBLOCK);
    let path = format!("/proc/self/fd/{descriptor}");
    let is_source = std::fs::metadata(&path).is_ok_and(|metadata| metadata.is_file() || metadata.is_dir());
    // If the file cannot be opened, the caller's descriptor stays.
    if let Some(file) = options.open(path).ok().filter(|_| is_source) {
        let _ = nix::unistd::close(descriptor);
        // The lowest number that is not less than `descriptor` is `descriptor` itself.
        let _ = fcntl(file, FcntlArg::F_DUPFD_CLOEXEC(descriptor));
    }
}

/// Duplicates a descriptor of the caller. Programs that this process starts do not inherit the new one. Call this
/// before this process opens any file: the file could get the number of a descriptor that the caller has not opened.
pub fn duplicate(descriptor: RawFd) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: nothing in this process owns a descriptor of the caller, so nothing closes it during this call. If it is
    // not open, the call fails with EBADF.
    #[allow(unsafe_code)]
    unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned()
}

/// Takes over a descriptor of the caller: returns it under another number, and closes `descriptor` unless it is a
/// standard stream. Call this before this process opens any file, as for [`duplicate`].
pub fn take(descriptor: RawFd) -> io::Result<OwnedFd> {
    let taken = duplicate(descriptor)?;
    if descriptor > 2 {
        let _ = nix::unistd::close(descriptor);
    }
    Ok(taken)
}

/// The device number of /dev/fuse.
const FUSE: u64 = makedev(10, 229);

/// The target of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DescriptorKind {
    /// An open /dev/fuse.
    Fuse,
    /// A directory.
    Directory,
    /// Anything else.
    Other,
}

/// The target of a descriptor. Fails if it is not open.
pub fn descriptor_kind(descriptor: &impl AsFd) -> nix::Result<DescriptorKind> {
    let stat = fstat(descriptor)?;
    Ok(match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
        SFlag::S_IFCHR if stat.st_rdev == FUSE => DescriptorKind::Fuse,
        SFlag::S_IFDIR => DescriptorKind::Directory,
        _ => DescriptorKind::Other,
    })
}

/// Makes reads of a descriptor wait. The caller may have opened it with O_NONBLOCK.
pub fn make_blocking(descriptor: &OwnedFd) -> nix::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(descriptor, FcntlArg::F_GETFL)?);
    fcntl(descriptor, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK)).map(drop)
}
