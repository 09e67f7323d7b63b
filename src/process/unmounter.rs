//! The process outside of the sandbox: knows how to do for the daemon the two things that this may not do itself any more,
//! to take off its mount and to look at its readers.
//!
//! It is split off first of all, so that it holds nothing of the model, and no /dev/fuse: a copy of that would have readers
//! wait for a daemon that was killed. It lets itself be told once which mount is meant, before the sandbox begins, and ends
//! when the daemon does.

use super::daemon;
use super::logging::reason;
use super::mounts::{self, Mount, Unmounting};
use anyhow::{Context, anyhow, bail};
use nix::sys::prctl::set_name;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::ForkResult;
use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use weightfs::reader::{self, Watch};

/// Which of the two processes this is.
pub enum Side {
    /// The one that serves, with its ways to the other.
    Daemon(Unmounter, Watch),
    /// The one that does what it is told.
    Outside(Outside),
}

/// Splits the process in two. Must be called while there is one thread only.
pub fn split() -> anyhow::Result<Side> {
    let what = "cannot start the process that unmounts";
    // Each message is one; an empty one is the end.
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).context(what)?;
    let (asking, asked) = UnixStream::pair().context(what)?;
    // Signals are for the daemon, whoever else they are sent to.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).context(what)?;
    let forked = daemon::fork();
    if !matches!(forked, Ok(ForkResult::Child)) {
        before.thread_set_mask().context(what)?;
    }
    match forked.context(what)? {
        ForkResult::Parent { .. } => {
            Ok(Side::Daemon(Unmounter { orders: Mutex::new(ours.into()) }, Watch::new(asking)))
        }
        ForkResult::Child => Ok(Side::Outside(Outside { orders: theirs.into(), questions: asked })),
    }
}

// What the daemon says, by the first byte. After `STANDS` follows what [`Place::to_bytes`] makes.
const STANDS: u8 = b's';
const UNMOUNT: u8 = b'u';
const FORGET: u8 = b'f';

// What it hears, by the first byte. After `FAILED` follows why.
const DONE: u8 = b'd';
const DETACHED: u8 = b'l';
const FAILED: u8 = b'e';

/// Longest message: two paths and a little.
const MESSAGE_MAX: usize = 16 << 10;

/// The daemon's end.
pub struct Unmounter {
    orders: Mutex<UnixStream>,
}

impl Unmounter {
    /// Tells which mount is meant. Said a second time it is not heard.
    pub fn stands(&self, place: &Place) -> anyhow::Result<()> {
        self.order(&[&[STANDS], &place.to_bytes()[..]].concat()).map(drop)
    }

    /// Takes the mount off wherever it stands by now, bound copies and all, and removes the directory that was made for it;
    /// says whether it was in use, so that it had to be detached.
    pub fn unmount(&self) -> anyhow::Result<bool> {
        self.order(&[UNMOUNT])
    }

    /// Removes the directory that was made for the mount, which is gone.
    pub fn forget(&self) -> anyhow::Result<()> {
        self.order(&[FORGET]).map(drop)
    }

    fn order(&self, order: &[u8]) -> anyhow::Result<bool> {
        let mut socket = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let mut answer = [0; MESSAGE_MAX];
        let len = socket.write_all(order).and_then(|()| receive(&mut socket, &mut answer));
        match answer.get(..len.unwrap_or(0)) {
            Some([DONE]) => Ok(false),
            Some([DETACHED]) => Ok(true),
            Some([FAILED, why @ ..]) => Err(anyhow!("{}", String::from_utf8_lossy(why))),
            _ => bail!("cannot unmount: the process that does it is gone (`weightfs umount` does without it)"),
        }
    }
}

fn receive(socket: &mut UnixStream, message: &mut [u8]) -> io::Result<usize> {
    loop {
        match socket.read(message) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => return received,
        }
    }
}

/// The other end.
pub struct Outside {
    orders: UnixStream,
    questions: UnixStream,
}

impl Outside {
    /// Does what the daemon says for as long as there is one.
    pub fn serve(self) -> anyhow::Result<ExitCode> {
        let Self { mut orders, questions } = self;
        daemon::leave_terminal(&daemon::null()?)?;
        // So that it is told apart where processes are listed. Fails for no name.
        let _ = set_name(c"weightfs-umount");
        // Questions have a thread of their own, as unmounting may take its time. Without it nobody sees readers leave, and
        // the rest works.
        let _ = std::thread::Builder::new().name("readers".into()).spawn(move || reader::answer(questions));
        let mut place = None;
        let mut message = [0; MESSAGE_MAX];
        while let Ok(len @ 1..) = receive(&mut orders, &mut message) {
            let done = match (&message[..len], &place) {
                ([STANDS, told @ ..], None) => {
                    place = Place::from_bytes(told);
                    place.as_ref().map(|_| false).ok_or_else(|| anyhow!("told of no place"))
                }
                ([UNMOUNT], Some(place)) => place.unmount().inspect(|_| place.remove_directory()),
                ([FORGET], Some(place)) => {
                    place.remove_directory();
                    Ok(false)
                }
                _ => Err(anyhow!("told something else than what to do")),
            };
            let answer = match done {
                Ok(false) => vec![DONE],
                Ok(true) => vec![DETACHED],
                Err(error) => [&[FAILED], reason(&error).as_bytes()].concat(),
            };
            if orders.write_all(&answer).is_err() {
                break;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Where a mount stands, and what becomes of the directory.
pub struct Place {
    /// Absolute and without symlinks.
    pub path: PathBuf,
    /// Our mount, where the kernel's list can be read: another may stand on the same directory.
    pub mount: Option<Mount>,
    /// Whether the directory was made for the mount.
    pub made: bool,
}

impl Place {
    /// Fields with NUL between them, which none can have in it.
    fn to_bytes(&self) -> Vec<u8> {
        let made: &[u8] = if self.made { b"made" } else { b"found" };
        let mut fields = vec![made, self.path.as_os_str().as_bytes()];
        if let Some(Mount { path: _, device, fstype, source }) = &self.mount {
            fields.extend([device.as_bytes(), fstype.as_bytes(), source.as_bytes()]);
        }
        fields.join(&0)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = bytes.split(|byte| *byte == 0).collect();
        let [made, path, ref mount @ ..] = fields[..] else { return None };
        let path = PathBuf::from(OsString::from_vec(path.to_vec()));
        let mount = match *mount {
            [device, fstype, source] => {
                let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
                let (device, fstype, source) = (text(device), text(fstype), source.to_vec());
                Some(Mount { path: path.clone(), device, fstype, source: OsString::from_vec(source) })
            }
            _ => None,
        };
        Some(Self { path, mount, made: made == b"made" })
    }

    fn unmount(&self) -> anyhow::Result<bool> {
        let Some(ours) = &self.mount else {
            // The kernel's list could not be read: nobody can tell what stands there.
            return take_off(&self.path);
        };
        let all = mounts::all()?;
        let mut in_use = false;
        for (at, mount) in all.iter().enumerate().rev().filter(|(_, mount)| mount.is_of(ours)) {
            if all[at + 1..].iter().any(|above| above.path == mount.path && !above.is_of(ours)) {
                bail!("{}: something else is mounted over it; unmount that first", mount.path.display());
            }
            in_use |= take_off(&mount.path)?;
        }
        Ok(in_use)
    }

    fn remove_directory(&self) {
        if self.made {
            remove_directory(&self.path);
        }
    }
}

/// Removes a directory that was made for a mount.
pub fn remove_directory(path: &Path) {
    // Not empty, or mounted on again: then it is somebody else's by now.
    let _ = std::fs::remove_dir(path);
}

/// Unmounts what is on top at `path`; says whether it was in use, so that it had to be detached.
fn take_off(path: &Path) -> anyhow::Result<bool> {
    match mounts::unmount(path, false)? {
        Unmounting::Done => Ok(false),
        Unmounting::Busy => mounts::unmount(path, true).map(|_| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_told_whole() {
        let strange = OsString::from_vec(b"/a \n\xff,b".to_vec());
        let mount = Mount {
            path: strange.clone().into(),
            device: "0:41".into(),
            fstype: mounts::TYPE.into(),
            source: strange.clone(),
        };
        for (made, mount) in [(true, Some(mount)), (false, None)] {
            let told = Place { path: strange.clone().into(), mount: mount.clone(), made };
            let heard = Place::from_bytes(&told.to_bytes()).unwrap();
            assert_eq!((heard.path, heard.mount, heard.made), (told.path, mount, made));
        }
        assert!(Place::from_bytes(b"made").is_none());
    }
}
