//! The memory that the owner and the reader of a file share.

use super::{PRESENT, TRIGGER};
use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::slice;
use std::sync::atomic::{AtomicU16, Ordering, fence};

/// Why the areas or the data cannot be shared.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PinsError(pub(super) String);

impl PinsError {
    fn of(area: &str, reason: &str) -> Self {
        Self(format!("shared memory '{area}': {reason}"))
    }

    fn io(area: &str, error: impl Into<io::Error>) -> Self {
        Self::of(area, &error.into().to_string())
    }
}

/// Memory that several processes have mapped: a word for each block.
#[derive(Debug)]
struct SharedArea {
    map: MmapRaw,
    blocks: usize,
}

impl SharedArea {
    /// Creates an area of zeros that this process may write to, and its descriptor. `read_only` forbids other
    /// processes to write to it.
    fn create(area: &str, blocks: u64, read_only: bool) -> Result<(Self, OwnedFd), PinsError> {
        let (blocks, len) = area_size(blocks)?;
        let created = create_memory(len, read_only).map_err(|error| PinsError::io(area, error))?;
        Ok((Self { map: created.0, blocks }, created.1))
    }

    /// Maps the area that another process has created. A file that could be truncated while it is mapped is refused.
    /// So are files on a disk and huge pages, which may be missing when they are used.
    fn open(area: &str, descriptor: OwnedFd, blocks: u64, read_only: bool) -> Result<Self, PinsError> {
        let (blocks, len) = area_size(blocks)?;
        let file = File::from(descriptor);
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS).unwrap_or(0);
        if !SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_SHRINK) {
            return Err(PinsError::of(area, "not sealed against shrinking"));
        }
        let system = fstatfs(&file).map_err(|errno| PinsError::io(area, errno))?;
        if system.filesystem_type() != TMPFS_MAGIC {
            return Err(PinsError::of(area, "not ordinary memory"));
        }
        let found = file.metadata().map_err(|error| PinsError::io(area, error))?.len();
        if found < len as u64 {
            return Err(PinsError::of(area, &format!("{found} bytes instead of {len}")));
        }
        let mut options = MmapOptions::new();
        options.len(len);
        let map = if read_only { options.map_raw_read_only(&file) } else { options.map_raw(&file) };
        Ok(Self { map: map.map_err(|error| PinsError::io(area, error))?, blocks })
    }

    /// The words of those blocks of a range that exist.
    fn words(&self, blocks: Range<u64>) -> &[AtomicU16] {
        // SAFETY: the map has a word for each of `blocks`, checked by `create` and `open`, for as long as `self`
        // exists, and begins at a page. The memory is sealed against shrinking, so that each access finds a page. This
        // file is the only code that has the address, and accesses the words as atomics only; so does the code of the
        // other process, which is this file too. If that process misbehaves, the values are arbitrary, and all values
        // are valid. `PresentBlocks::open` maps the area read-only, and its `PresentBlocks` allows relaxed loads only,
        // which Rust defines for read-only memory.
        #[allow(unsafe_code)]
        let words = unsafe { slice::from_raw_parts(self.map.as_ptr().cast::<AtomicU16>(), self.blocks) };
        let end = usize::try_from(blocks.end).unwrap_or(usize::MAX).min(words.len());
        let start = usize::try_from(blocks.start).unwrap_or(usize::MAX).min(end);
        &words[start..end]
    }
}

/// The number of blocks, and the size of an area for them in bytes. An empty file cannot be mapped.
fn area_size(blocks: u64) -> Result<(usize, usize), PinsError> {
    let count = usize::try_from(blocks).ok().filter(|count| *count <= isize::MAX as usize / size_of::<AtomicU16>());
    let count = count.ok_or_else(|| PinsError(format!("{blocks} blocks are too many")))?;
    Ok((count, count.max(1) * size_of::<AtomicU16>()))
}

/// Memory of `len` zeros whose size cannot change: mapped, and the descriptor for another process.
fn create_memory(len: usize, read_only: bool) -> io::Result<(MmapRaw, OwnedFd)> {
    // Linux 6.3 and later log a warning unless the program says whether the memory may be executed.
    let no_exec = MFdFlags::from_bits_retain(nix::libc::MFD_NOEXEC_SEAL);
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let descriptor = match memfd_create("weightfs", flags | no_exec) {
        Err(Errno::EINVAL) => memfd_create("weightfs", flags),
        created => created,
    };
    let file = File::from(descriptor?);
    file.set_len(len as u64)?;
    let map = MmapOptions::new().len(len).map_raw(&file)?;
    let mut seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    if read_only {
        // The map above stays writable.
        seals |= SealFlag::F_SEAL_FUTURE_WRITE;
    }
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok((map, file.into()))
}

/// The state of each block: [`PRESENT`] and [`TRIGGER`].
#[derive(Debug)]
pub struct PresentBlocks {
    area: SharedArea,
    is_owner: bool,
}

impl PresentBlocks {
    /// The states of `blocks` absent blocks, and the descriptor for the reader, who cannot write to it.
    pub fn create(blocks: u64) -> Result<(Self, OwnedFd), PinsError> {
        let (area, descriptor) = SharedArea::create("present", blocks, true)?;
        Ok((Self { area, is_owner: true }, descriptor))
    }

    /// The reader's side.
    pub(super) fn open(descriptor: OwnedFd, blocks: u64) -> Result<Self, PinsError> {
        Ok(Self { area: SharedArea::open("present", descriptor, blocks, true)?, is_owner: false })
    }

    /// Whether all `blocks` are present.
    pub fn has(&self, blocks: Range<u64>) -> bool {
        self.area.words(blocks).iter().all(|state| state.load(Ordering::Relaxed) & PRESENT != 0)
    }

    /// Whether one of the `blocks` is a trigger.
    pub(super) fn has_trigger(&self, blocks: Range<u64>) -> bool {
        self.area.words(blocks).iter().any(|state| state.load(Ordering::Relaxed) & TRIGGER != 0)
    }

    /// Adds `bits` to the state of a block and returns the state before. Only the owner can do so.
    pub fn set(&self, block: u64, bits: u16) -> u16 {
        self.own(block).map_or(0, |state| state.fetch_or(bits, Ordering::SeqCst))
    }

    /// Removes `bits` from the state of a block and returns the state before. Only the owner can do so.
    pub fn clear(&self, block: u64, bits: u16) -> u16 {
        self.own(block).map_or(0, |state| state.fetch_and(!bits, Ordering::SeqCst))
    }

    /// The state of a block, if this process may change it: the reader's map is read-only.
    fn own(&self, block: u64) -> Option<&AtomicU16> {
        self.area.words(one(block)).first().filter(|_| self.is_owner)
    }
}

/// For each block, the number of reads in progress (*pins*) and whether it was read since the owner last looked.
#[derive(Debug)]
pub struct BlockMarks(SharedArea);

/// The bit of a mark that says that the block was read.
const USED: u16 = 0x8000;

/// The other bits count the pins. One more pin than this is refused, long before the count would reach the bit above.
const PINS_MAX: u16 = 0x3fff;

impl BlockMarks {
    /// The marks of `blocks` blocks, and the descriptor for the reader.
    pub fn create(blocks: u64) -> Result<(Self, OwnedFd), PinsError> {
        SharedArea::create("marks", blocks, false).map(|(area, descriptor)| (Self(area), descriptor))
    }

    /// The reader's side.
    pub(super) fn open(descriptor: OwnedFd, blocks: u64) -> Result<Self, PinsError> {
        SharedArea::open("marks", descriptor, blocks, false).map(Self)
    }

    /// Pins blocks, so that they are not evicted. Pins none of them and returns false if one has too many pins. After a
    /// fence, [`PresentBlocks`] says whether they are there.
    pub fn pin(&self, blocks: Range<u64>) -> bool {
        let marks = self.0.words(blocks);
        let refused = marks.iter().position(|mark| mark.fetch_add(1, Ordering::Relaxed) & !USED >= PINS_MAX);
        // Pairs with the fence in `unpinned`. Either that one sees the pins, or the caller sees that a block is absent.
        fence(Ordering::SeqCst);
        if let Some(at) = refused {
            marks.iter().take(at + 1).for_each(|mark| _ = mark.fetch_sub(1, Ordering::Release));
        }
        refused.is_none()
    }

    /// Undoes [`BlockMarks::pin`].
    pub fn unpin(&self, blocks: Range<u64>) {
        // Released after the bytes were read, and acquired by `unpinned` before they are replaced by a hole.
        self.0.words(blocks).iter().for_each(|mark| _ = mark.fetch_sub(1, Ordering::Release));
    }

    /// Whether a block has no pins. The owner calls [`BlockMarks::fence`] after it has marked the block as absent, and
    /// then this.
    pub fn is_unpinned(&self, block: u64) -> bool {
        self.0.words(one(block)).iter().all(|mark| mark.load(Ordering::Acquire) & !USED == 0)
    }

    /// Orders what the owner wrote to [`PresentBlocks`] before what it reads from the marks.
    pub fn fence() {
        fence(Ordering::SeqCst);
    }

    /// Marks blocks as used.
    pub fn set_used(&self, blocks: Range<u64>) {
        self.0.words(blocks).iter().for_each(|mark| _ = mark.fetch_or(USED, Ordering::Relaxed));
    }

    /// Whether one of the blocks was used since the last call. Marks all of them as not used.
    pub fn take_used(&self, blocks: Range<u64>) -> bool {
        let mut any = false;
        for mark in self.0.words(blocks) {
            if mark.load(Ordering::Relaxed) & USED != 0 {
                mark.fetch_and(!USED, Ordering::Relaxed);
                any = true;
            }
        }
        any
    }
}

fn one(block: u64) -> Range<u64> {
    block..block.saturating_add(1)
}
