//! File descriptors that the caller of this program left open, and those that lead to other processes of it. In the
//! background, the former would keep locks held and pipes open after the command has returned.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, socketpair};
use nix::sys::stat::makedev;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
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

/// Gives up all descriptors of /dev/fuse, and ends the process. A thread that hangs in a read of a source cannot be
/// ended and keeps the descriptors of the process open: readers of the mount would wait as long as the source hangs.
pub fn disconnect_and_exit() -> ! {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft.min(1 << 16));
    let pipe = io::pipe();
    for descriptor in 3..limit as RawFd {
        if duplicate(descriptor).is_ok_and(|copy| is_fuse(File::from(copy))) {
            match &pipe {
                Ok((reader, _)) => lead_to(descriptor, reader),
                Err(_) => _ = nix::unistd::close(descriptor),
            }
        }
    }
    std::process::exit(0)
}

/// Lets a descriptor, which another thread owns and may close at this moment, lead to another file.
fn lead_to(descriptor: RawFd, file: impl AsFd) {
    // SAFETY: the descriptor is not closed here, and stays that of its owner.
    #[allow(unsafe_code)]
    let mut owned = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(descriptor) });
    let _ = nix::unistd::dup2(file, &mut owned);
}

/// Whether a file is /dev/fuse. Its attributes are queried only if it can be written to, which a source cannot: those
/// of a source may hang.
fn is_fuse(file: File) -> bool {
    let flags = fcntl(&file, FcntlArg::F_GETFL);
    flags.is_ok_and(|flags| flags & nix::libc::O_ACCMODE == nix::libc::O_RDWR)
        && file.metadata().is_ok_and(|metadata| is_fuse_device(&metadata))
}

pub fn is_fuse_device(metadata: &Metadata) -> bool {
    metadata.file_type().is_char_device() && metadata.rdev() == FUSE
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
        return Err(ErrorKind::InvalidInput.into());
    }
    // SAFETY: nothing in this process owns a descriptor of the caller, so nothing closes it during this call. If it is
    // not open, the call fails with EBADF. At the end of the process, another thread may close one of its own: the copy
    // then fails as well, or is that of a later file, and only its kind is looked at.
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

pub fn packet_pair() -> io::Result<(UnixStream, UnixStream)> {
    let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    Ok((one.into(), other.into()))
}

/// Receives a packet, and returns its length: 0 at the end of the connection.
pub fn receive_packet(socket: &mut UnixStream, packet: &mut [u8]) -> io::Result<usize> {
    loop {
        match socket.read(packet) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => return received,
        }
    }
}

/// Receives a descriptor over `socket`; `None` if the other end was closed. A message without a descriptor, or whose
/// descriptor this process cannot have, is an error, after which there may be more messages.
pub fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut data = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!(RawFd);
    let message = loop {
        match recvmsg::<()>(socket.as_raw_fd(), &mut data, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC) {
            Err(Errno::EINTR) => {}
            received => break received?,
        }
    };
    // The message is truncated if there are too few descriptors in this process.
    let messages = message.cmsgs().map_err(|_| io::Error::other("its descriptor cannot be received"))?;
    let descriptors = messages.flat_map(|message| match message {
        ControlMessageOwned::ScmRights(descriptors) => descriptors,
        _ => Vec::new(),
    });
    // SAFETY: recvmsg(2) has just created these descriptors in this process, and nothing else owns them.
    #[allow(unsafe_code)]
    let descriptors = descriptors.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) });
    // All are taken over, so that those that nobody needs are closed.
    match descriptors.collect::<Vec<_>>().into_iter().next() {
        None if message.bytes > 0 => Err(io::Error::new(ErrorKind::InvalidData, "a message without a descriptor")),
        descriptor => Ok(descriptor),
    }
}

/// Sends each write as a packet. What cannot be sent is lost, as with syslog(3).
pub struct MessageWriter(pub OwnedFd);

impl Write for MessageWriter {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        // An empty packet would be the end of the connection.
        if !message.is_empty() {
            let _ = nix::unistd::write(&self.0, message);
        }
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The device number of /dev/fuse.
const FUSE: u64 = makedev(10, 229);

/// Makes reads of a descriptor wait. The caller may have opened it with O_NONBLOCK.
pub fn make_blocking(descriptor: &OwnedFd) -> nix::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(descriptor, FcntlArg::F_GETFL)?);
    fcntl(descriptor, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{ControlMessage, sendmsg};
    use std::io::IoSlice;

    fn send(socket: &UnixStream, descriptors: &[RawFd]) {
        let messages: &[_] = if descriptors.is_empty() { &[] } else { &[ControlMessage::ScmRights(descriptors)] };
        sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(b".")], messages, MsgFlags::empty(), None).unwrap();
    }

    #[test]
    fn only_the_end_of_a_socket_is_its_end() {
        let (ours, theirs) = packet_pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        send(&theirs, &[]);
        // More than fit, as if this process had too few descriptors.
        send(&theirs, &[file.as_raw_fd(); 9]);
        send(&theirs, &[file.as_raw_fd()]);
        drop(theirs);
        let error = receive_descriptor(&ours).unwrap_err();
        assert_eq!(error.to_string(), "a message without a descriptor");
        let error = receive_descriptor(&ours).unwrap_err();
        assert_eq!(error.to_string(), "its descriptor cannot be received");
        let received = File::from(receive_descriptor(&ours).unwrap().unwrap());
        assert_eq!(received.metadata().unwrap().rdev(), file.metadata().unwrap().rdev());
        assert!(receive_descriptor(&ours).unwrap().is_none());
        let (ours, _theirs) = packet_pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        assert_eq!(receive_descriptor(&ours).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}
