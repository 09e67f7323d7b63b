//! The operations that may have to wait: each is run with what the kernel has sent, possibly several times, and sends
//! one reply.

use super::state::{AdapterState, NO_ATTR, PageRecall, file_attr, file_type};
use crate::content::{OperationPlan, ReadRequest};
use crate::fs::{self, Attr, Ino, ReplySlot, RequestOperation};
use crate::source::Bytes;
use fuser::{
    Errno, Generation, INodeNo, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEntry, ReplyXattr,
};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

type Result<T> = std::result::Result<T, fs::Error>;

/// Reads a range of a file. What it needs is found once, at the first run.
pub(super) struct ReadOperation {
    pub ino: INodeNo,
    /// In bytes. It may exceed the file.
    pub range: Range<u64>,
    pub plan: OperationPlan,
}

impl RequestOperation<AdapterState> for ReadOperation {
    type Reply = ReplyData;
    type Output = Bytes;

    fn run(&self, state: &AdapterState, request: &ReadRequest, _: &ReplySlot<ReplyData>) -> Result<Bytes> {
        let plan = self.plan.get(|| {
            let generations = state.tree.generations();
            let (tree, ino) = generations.find(self.ino.0)?;
            Result::Ok(tree.open(ino, request)?.plan(self.range.clone()))
        })?;
        Ok(plan.read(request)?)
    }

    fn answer(&self, state: &Arc<AdapterState>, read: Result<Bytes>, reply: ReplyData) {
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) => return reply.error(state.errno(&error)),
        };
        // This comes first, so that a reader who has received bytes finds them counted.
        state.tree.generations().current().count_served(bytes.len());
        // fuser does not return the result of writing the reply. But that is the last system call here, so errno holds
        // its error. EFAULT means that the kernel could not read the bytes and returned EIO to the reader.
        nix::errno::Errno::clear();
        reply.data(&bytes);
        let unreadable = nix::errno::Errno::last() == nix::errno::Errno::EFAULT;
        if let Err(error) = bytes.verify(unreadable) {
            // The source has changed, so the kernel may have copied bytes of another version.
            state.faults.log_source(&error);
            PageRecall::park(state, self.ino, self.range.clone());
        }
    }
}

pub(super) struct LookupOperation {
    pub parent: Ino,
    pub name: Vec<u8>,
}

impl RequestOperation<AdapterState> for LookupOperation {
    type Reply = ReplyEntry;
    type Output = (Attr, Generation);

    fn run(&self, state: &AdapterState, request: &ReadRequest, _: &ReplySlot<ReplyEntry>) -> Result<Self::Output> {
        let generations = state.tree.generations();
        let (tree, parent) = generations.find_current(self.parent)?;
        let attr = tree.lookup(parent, &self.name, request)?;
        Ok((Attr { ino: tree.mounted_ino(attr.ino), ..attr }, Generation(tree.number())))
    }

    fn answer(&self, state: &Arc<AdapterState>, found: Result<Self::Output>, reply: ReplyEntry) {
        match found {
            Ok((attr, generation)) => reply.entry(&state.ttl, &file_attr(&attr), generation),
            // Inode number 0: there is no such name. The kernel caches this reply, but not an ENOENT error.
            Err(fs::Error::NoEntry) => reply.entry(&state.ttl, &file_attr(&NO_ATTR), Generation(0)),
            Err(error) => reply.error(state.errno(&error)),
        }
    }
}

pub(super) struct GetattrOperation {
    pub ino: Ino,
}

impl RequestOperation<AdapterState> for GetattrOperation {
    type Reply = ReplyAttr;
    type Output = Attr;

    fn run(&self, state: &AdapterState, request: &ReadRequest, _: &ReplySlot<ReplyAttr>) -> Result<Attr> {
        let generations = state.tree.generations();
        let (tree, ino) = generations.find(self.ino)?;
        Ok(Attr { ino: self.ino, ..tree.getattr(ino, request)? })
    }

    fn answer(&self, state: &Arc<AdapterState>, attr: Result<Attr>, reply: ReplyAttr) {
        match attr {
            Ok(attr) => reply.attr(&state.ttl, &file_attr(&attr)),
            Err(error) => reply.error(state.errno(&error)),
        }
    }
}

pub(super) struct ReaddirOperation {
    pub ino: Ino,
    pub offset: u64,
}

impl RequestOperation<AdapterState> for ReaddirOperation {
    type Reply = ReplyDirectory;
    type Output = ();

    fn run(&self, state: &AdapterState, request: &ReadRequest, reply: &ReplySlot<ReplyDirectory>) -> Result<()> {
        let generations = state.tree.generations();
        let (tree, dir) = generations.find(self.ino)?;
        tree.readdir(dir, self.offset, request, |entry| {
            let ino = INodeNo(tree.mounted_ino(entry.ino));
            // A reply that was sent already takes no more entries.
            reply.lock().as_mut().is_none_or(|reply| reply.add(ino, entry.next, file_type(entry.kind), &*entry.name))
        })
    }

    fn answer(&self, state: &Arc<AdapterState>, listed: Result<()>, reply: ReplyDirectory) {
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(state.errno(&error)),
        }
    }
}

/// Lists a directory from an offset on, with the attributes of the entries.
pub(super) struct ReaddirplusOperation {
    pub ino: Ino,
    pub offset: u64,
}

impl RequestOperation<AdapterState> for ReaddirplusOperation {
    type Reply = ReplyDirectoryPlus;
    type Output = ();

    fn run(&self, state: &AdapterState, request: &ReadRequest, reply: &ReplySlot<ReplyDirectoryPlus>) -> Result<()> {
        let mut waits = None;
        let mut added = false;
        let generations = state.tree.generations();
        let (tree, dir) = generations.find(self.ino)?;
        let generation = Generation(tree.number());
        tree.readdir(dir, self.offset, request, |entry| {
            let (attr, ttl) = match tree.getattr(entry.ino, request) {
                Ok(attr) => (attr, state.ttl),
                Err(error) if error.would_block() => {
                    // The reply ends here. The next request starts with this entry.
                    waits = (!added).then_some(error);
                    return true;
                }
                // The attributes are not available now. The TTL of zero makes the kernel request them when needed.
                Err(_) => (Attr { kind: entry.kind, ..NO_ATTR }, Duration::ZERO),
            };
            let ino = tree.mounted_ino(entry.ino);
            let attr = file_attr(&Attr { ino, ..attr });
            let is_full = reply
                .lock()
                .as_mut()
                .is_none_or(|reply| reply.add(INodeNo(ino), entry.next, &*entry.name, &ttl, &attr, generation));
            added |= !is_full;
            is_full
        })?;
        waits.map_or(Ok(()), Err)
    }

    fn answer(&self, state: &Arc<AdapterState>, listed: Result<()>, reply: ReplyDirectoryPlus) {
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(state.errno(&error)),
        }
    }
}

pub(super) struct XattrOperation {
    pub ino: Ino,
    /// The attribute. `None` for the list of all names.
    pub name: Option<Vec<u8>>,
    /// Room for the value in bytes; 0 to get its size.
    pub size: u32,
}

impl RequestOperation<AdapterState> for XattrOperation {
    type Reply = ReplyXattr;
    type Output = Vec<u8>;

    fn run(&self, state: &AdapterState, request: &ReadRequest, _: &ReplySlot<ReplyXattr>) -> Result<Vec<u8>> {
        let generations = state.tree.generations();
        let (tree, ino) = generations.find(self.ino)?;
        match &self.name {
            Some(name) => tree.getxattr(ino, name, request),
            None => tree.listxattr(ino, request),
        }
    }

    fn answer(&self, state: &Arc<AdapterState>, value: Result<Vec<u8>>, reply: ReplyXattr) {
        match value {
            Err(error) => reply.error(state.errno(&error)),
            Ok(value) if self.size == 0 => reply.size(value.len() as u32),
            Ok(value) if value.len() > self.size as usize => reply.error(Errno::ERANGE),
            Ok(value) => reply.data(&value),
        }
    }
}
