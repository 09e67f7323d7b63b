//! The operations that may have to wait: each is run with what the kernel has sent, possibly several times, and sends
//! one reply.

use super::reader::WaitingReader;
use super::state::{AdapterState, GENERATION, NO_ATTR, file_attr, file_type, reply_xattr};
use crate::content::{Content, ReadRequest};
use crate::fs::{self, Attr, Ino, ReplySlot, RequestOperation, WaitingClient};
use crate::source::Bytes;
use fuser::{INodeNo, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEntry, ReplyXattr};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

type Result<T> = std::result::Result<T, fs::Error>;

impl<R> WaitingClient<R> for WaitingReader {
    fn has_left(&self, _: Option<&R>) -> bool {
        self.is_leaving()
    }
}

/// Reads a range of a file. The file is opened once, at the first run.
pub(super) struct ReadOperation {
    pub ino: INodeNo,
    /// In bytes. It may exceed the file.
    pub range: Range<u64>,
    pub content: OnceLock<Content>,
}

impl RequestOperation<AdapterState> for ReadOperation {
    type Reply = ReplyData;
    type Output = Bytes;

    fn run(&self, state: &AdapterState, request: &ReadRequest, _: &ReplySlot<ReplyData>) -> Result<Bytes> {
        let content = match self.content.get() {
            Some(content) => content,
            None => {
                let content = state.superblock.open(self.ino.0, request)?;
                self.content.get_or_init(|| content)
            }
        };
        Ok(content.read(self.range.clone(), request)?)
    }

    fn answer(&self, state: &Arc<AdapterState>, read: Result<Bytes>, reply: ReplyData) {
        if !state.reply_read(read, reply) {
            state.recall(self.ino, &self.range);
        }
    }
}

/// Finds a name in a directory.
pub(super) struct LookupOperation {
    pub parent: Ino,
    pub name: Vec<u8>,
}

impl RequestOperation<AdapterState> for LookupOperation {
    type Reply = ReplyEntry;
    type Output = Attr;

    fn run(&self, state: &AdapterState, request: &ReadRequest, _: &ReplySlot<ReplyEntry>) -> Result<Attr> {
        state.superblock.lookup(self.parent, &self.name, request)
    }

    fn answer(&self, state: &Arc<AdapterState>, found: Result<Attr>, reply: ReplyEntry) {
        state.reply_entry(found, reply);
    }
}

/// Gets the attributes of a file or directory.
pub(super) struct GetattrOperation {
    pub ino: Ino,
}

impl RequestOperation<AdapterState> for GetattrOperation {
    type Reply = ReplyAttr;
    type Output = Attr;

    fn run(&self, state: &AdapterState, request: &ReadRequest, _: &ReplySlot<ReplyAttr>) -> Result<Attr> {
        state.superblock.getattr(self.ino, request)
    }

    fn answer(&self, state: &Arc<AdapterState>, attr: Result<Attr>, reply: ReplyAttr) {
        match attr {
            Ok(attr) => reply.attr(&state.ttl, &file_attr(&attr)),
            Err(error) => reply.error(state.errno(&error)),
        }
    }
}

/// Lists a directory from an offset on.
pub(super) struct ReaddirOperation {
    pub ino: Ino,
    pub offset: u64,
}

impl RequestOperation<AdapterState> for ReaddirOperation {
    type Reply = ReplyDirectory;
    type Output = ();

    fn run(&self, state: &AdapterState, request: &ReadRequest, reply: &ReplySlot<ReplyDirectory>) -> Result<()> {
        state.superblock.readdir(self.ino, self.offset, request, |entry| {
            // A reply that was sent already takes no more entries.
            reply
                .lock()
                .as_mut()
                .is_none_or(|reply| reply.add(INodeNo(entry.ino), entry.next, file_type(entry.kind), &*entry.name))
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
        state.superblock.readdir(self.ino, self.offset, request, |entry| {
            let (attr, ttl) = match state.superblock.getattr(entry.ino, request) {
                Ok(attr) => (attr, state.ttl),
                Err(error) if error.would_block() => {
                    // The reply ends here. The next request starts with this entry.
                    waits = (!added).then_some(error);
                    return true;
                }
                // The attributes are not available now. The TTL of zero makes the kernel request them when needed.
                Err(_) => (Attr { ino: entry.ino, kind: entry.kind, ..NO_ATTR }, Duration::ZERO),
            };
            let (ino, attr) = (INodeNo(entry.ino), file_attr(&attr));
            let is_full = reply
                .lock()
                .as_mut()
                .is_none_or(|reply| reply.add(ino, entry.next, &*entry.name, &ttl, &attr, GENERATION));
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

/// Gets the value of an extended attribute, or its size if `size` is 0.
pub(super) struct GetxattrOperation {
    pub ino: Ino,
    pub name: Vec<u8>,
    pub size: u32,
}

impl RequestOperation<AdapterState> for GetxattrOperation {
    type Reply = ReplyXattr;
    type Output = Vec<u8>;

    fn run(&self, state: &AdapterState, request: &ReadRequest, _: &ReplySlot<ReplyXattr>) -> Result<Vec<u8>> {
        state.superblock.getxattr(self.ino, &self.name, request)
    }

    fn answer(&self, state: &Arc<AdapterState>, value: Result<Vec<u8>>, reply: ReplyXattr) {
        reply_xattr(value.map_err(|error| state.errno(&error)), self.size, reply);
    }
}

/// Lists the names of the extended attributes of a file, or gets the size of the list if `size` is 0.
pub(super) struct ListxattrOperation {
    pub ino: Ino,
    pub size: u32,
}

impl RequestOperation<AdapterState> for ListxattrOperation {
    type Reply = ReplyXattr;
    type Output = Vec<u8>;

    fn run(&self, state: &AdapterState, request: &ReadRequest, _: &ReplySlot<ReplyXattr>) -> Result<Vec<u8>> {
        state.superblock.listxattr(self.ino, request)
    }

    fn answer(&self, state: &Arc<AdapterState>, names: Result<Vec<u8>>, reply: ReplyXattr) {
        reply_xattr(names.map_err(|error| state.errno(&error)), self.size, reply);
    }
}
