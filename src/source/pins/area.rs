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
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering, fence};

/// Why the areas cannot be shared.
#[derive(Debug, thiserror::Error)]
pub enum PinsError {
    /// The system failed to create or map an area.
    #[error("shared memory '{area}' of {bytes} bytes: {error}")]
    Io {
        /// `present` or `marks`.
        area: &'static str,
        /// Its size in bytes.
        bytes: usize,
        /// The error of the system.
        error: io::Error,
    },
    /// The descriptor is that of a file which could be truncated while it is mapped.
    #[error("shared memory '{area}': not sealed against shrinking")]
    Unsealed {
        /// `present` or `marks`.
        area: &'static str,
    },
    /// The descriptor is that of a file on a disk, or of huge pages, which may be missing when they are used.
    #[error("shared memory '{area}': not ordinary memory")]
    NotMemory {
        /// `present` or `marks`.
        area: &'static str,
    },
    /// The area is too small for the file.
    #[error("shared memory '{area}': {found} bytes instead of {expected}")]
    Short {
        /// `present` or `marks`.
        area: &'static str,
        /// Its size in bytes.
        found: u64,
        /// The expected size in bytes.
        expected: usize,
    },
    /// The descriptor of the data is not that of a regular file, or the file is too short.
    #[error("not a file of {expected} bytes")]
    NotTheData {
        /// The expected size in bytes.
        expected: u64,
    },
    /// The file has more blocks than the address space has room for.
    #[error("{blocks} blocks are too many")]
    TooMany {
        /// The number of blocks.
        blocks: u64,
    },
}

/// Bytes in memory that several processes have mapped.
#[derive(Debug)]
struct SharedArea {
    map: MmapRaw,
    len: usize,
}

impl SharedArea {
    /// Creates an area of zeros that this process may write to, and its descriptor. `read_only` forbids other
    /// processes to write to it.
    fn create(area: &'static str, len: usize, read_only: bool) -> Result<(Self, OwnedFd), PinsError> {
        let io = |error: io::Error| PinsError::Io { area, bytes: len, error };
        // Linux 6.3 and later log a warning unless the program says whether the memory may be executed.
        let no_exec = MFdFlags::from_bits_retain(nix::libc::MFD_NOEXEC_SEAL);
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let descriptor = match memfd_create("weightfs", flags | no_exec) {
            Err(Errno::EINVAL) => memfd_create("weightfs", flags),
            created => created,
        };
        let file = File::from(descriptor.map_err(|errno| io(errno.into()))?);
        // An empty file cannot be mapped.
        file.set_len(len.max(1) as u64).map_err(io)?;
        let map = MmapOptions::new().len(len.max(1)).map_raw(&file).map_err(io)?;
        let mut seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        if read_only {
            // The map above stays writable.
            seals |= SealFlag::F_SEAL_FUTURE_WRITE;
        }
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(|errno| io(errno.into()))?;
        Ok((Self { map, len }, file.into()))
    }

    /// Maps the area that another process has created.
    fn open(area: &'static str, descriptor: OwnedFd, len: usize, read_only: bool) -> Result<Self, PinsError> {
        let io = |error: io::Error| PinsError::Io { area, bytes: len, error };
        let file = File::from(descriptor);
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS).map_err(|_| PinsError::Unsealed { area })?;
        if !SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_SHRINK) {
            return Err(PinsError::Unsealed { area });
        }
        let system = fstatfs(&file).map_err(|errno| io(errno.into()))?;
        if system.filesystem_type() != TMPFS_MAGIC {
            return Err(PinsError::NotMemory { area });
        }
        let found = file.metadata().map_err(io)?.len();
        if found < len.max(1) as u64 {
            return Err(PinsError::Short { area, found, expected: len });
        }
        let mut options = MmapOptions::new();
        options.len(len.max(1));
        let map = if read_only { options.map_raw_read_only(&file) } else { options.map_raw(&file) };
        Ok(Self { map: map.map_err(io)?, len })
    }

    fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: the map has `len` bytes, checked by `create` and `open`, for as long as `self` exists. The memory is
        // sealed against shrinking, so that each access finds a page. This file is the only code that has the address,
        // and accesses the bytes as atomics only; so does the code of the other process, which is this file too. If
        // that process misbehaves, the values are arbitrary, and all values are valid. `PresentBlocks::open` maps the
        // area read-only, and its `PresentBlocks` allows relaxed loads only, which Rust defines for read-only memory.
        #[allow(unsafe_code)]
        unsafe {
            slice::from_raw_parts(self.map.as_ptr().cast::<AtomicU8>(), self.len)
        }
    }

    /// The first `count` pairs of bytes.
    fn pairs(&self, count: usize) -> &[AtomicU16] {
        let count = count.min(self.len / 2);
        // SAFETY: as in `bytes`. Maps begin at a page, so pairs are aligned; `count` pairs are inside the map.
        // `BlockMarks` uses these bytes as pairs only, and the bytes after them as bytes only.
        #[allow(unsafe_code)]
        unsafe {
            slice::from_raw_parts(self.map.as_ptr().cast::<AtomicU16>(), count)
        }
    }
}

fn pin_count(blocks: u64, bytes_per_block: u64) -> Result<usize, PinsError> {
    let bytes = blocks.checked_mul(bytes_per_block).filter(|&bytes| bytes <= isize::MAX as u64);
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or(PinsError::TooMany { blocks })
}

/// The state of each block, in one byte: [`PRESENT`] and [`TRIGGER`].
#[derive(Debug)]
pub struct PresentBlocks {
    area: SharedArea,
    is_owner: bool,
}

impl PresentBlocks {
    /// The states of `blocks` absent blocks, and the descriptor for the reader, who cannot write to it.
    pub fn create(blocks: u64) -> Result<(Self, OwnedFd), PinsError> {
        let (area, descriptor) = SharedArea::create("present", pin_count(blocks, 1)?, true)?;
        Ok((Self { area, is_owner: true }, descriptor))
    }

    /// The reader's side.
    pub(super) fn open(descriptor: OwnedFd, blocks: u64) -> Result<Self, PinsError> {
        Ok(Self { area: SharedArea::open("present", descriptor, pin_count(blocks, 1)?, true)?, is_owner: false })
    }

    /// The state of a block; 0 past the end.
    pub fn state(&self, block: u64) -> u8 {
        usize::try_from(block).ok().and_then(|at| self.area.bytes().get(at)).map_or(0, |at| at.load(Ordering::Relaxed))
    }

    /// Whether all `blocks` are present.
    pub fn has(&self, blocks: Range<u64>) -> bool {
        self.states(blocks).iter().all(|state| state.load(Ordering::Relaxed) & PRESENT != 0)
    }

    /// Whether one of the `blocks` is a trigger.
    pub(super) fn has_trigger(&self, blocks: Range<u64>) -> bool {
        self.states(blocks).iter().any(|state| state.load(Ordering::Relaxed) & TRIGGER != 0)
    }

    /// Adds `bits` to the state of a block and returns the state before. Only the owner can do so.
    pub fn set(&self, block: u64, bits: u8) -> u8 {
        self.update(block, |state| state.fetch_or(bits, Ordering::SeqCst))
    }

    /// Removes `bits` from the state of a block and returns the state before. Only the owner can do so.
    pub fn clear(&self, block: u64, bits: u8) -> u8 {
        self.update(block, |state| state.fetch_and(!bits, Ordering::SeqCst))
    }

    fn update(&self, block: u64, update: impl FnOnce(&AtomicU8) -> u8) -> u8 {
        // The reader's map is read-only.
        if !self.is_owner {
            return 0;
        }
        usize::try_from(block).ok().and_then(|at| self.area.bytes().get(at)).map_or(0, update)
    }

    fn states(&self, blocks: Range<u64>) -> &[AtomicU8] {
        slice_of(self.area.bytes(), blocks)
    }
}

/// For each block, the number of reads in progress (*pins*) and whether it was read since the owner last looked.
#[derive(Debug)]
pub struct BlockMarks {
    area: SharedArea,
    blocks: usize,
}

/// One more pin than this is refused, long before the count would wrap around to zero.
const PINS_MAX: u16 = 0x7fff;

impl BlockMarks {
    /// The marks of `blocks` blocks, and the descriptor for the reader.
    pub fn create(blocks: u64) -> Result<(Self, OwnedFd), PinsError> {
        let (area, descriptor) = SharedArea::create("marks", pin_count(blocks, 3)?, false)?;
        Ok((Self { area, blocks: pin_count(blocks, 1)? }, descriptor))
    }

    /// The reader's side.
    pub(super) fn open(descriptor: OwnedFd, blocks: u64) -> Result<Self, PinsError> {
        Ok(Self {
            area: SharedArea::open("marks", descriptor, pin_count(blocks, 3)?, false)?,
            blocks: pin_count(blocks, 1)?,
        })
    }

    /// Pins blocks, so that they are not evicted. Pins none of them and returns false if one has too many pins.
    ///
    /// After a fence, [`PresentBlocks`] says whether they are there.
    pub fn pin(&self, blocks: Range<u64>) -> bool {
        let pins = slice_of(self.area.pairs(self.blocks), blocks);
        let refused = pins.iter().position(|pins| pins.fetch_add(1, Ordering::Relaxed) >= PINS_MAX);
        // Pairs with the fence in `unpinned`. Either that one sees the pins, or the caller sees that a block is absent.
        fence(Ordering::SeqCst);
        if let Some(at) = refused {
            pins.iter().take(at + 1).for_each(|pins| _ = pins.fetch_sub(1, Ordering::Release));
        }
        refused.is_none()
    }

    /// Undoes [`BlockMarks::pin`].
    pub fn unpin(&self, blocks: Range<u64>) {
        // Released after the bytes were read, and acquired by `unpinned` before they are replaced by a hole.
        slice_of(self.area.pairs(self.blocks), blocks).iter().for_each(|pins| _ = pins.fetch_sub(1, Ordering::Release));
    }

    /// Whether a block has no pins. The owner calls [`BlockMarks::fence`] after it has marked the block as absent, and
    /// then this.
    pub fn is_unpinned(&self, block: u64) -> bool {
        slice_of(self.area.pairs(self.blocks), one(block)).iter().all(|pins| pins.load(Ordering::Acquire) == 0)
    }

    /// Orders what the owner wrote to [`PresentBlocks`] before what it reads from the marks.
    pub fn fence() {
        fence(Ordering::SeqCst);
    }

    /// Marks blocks as used.
    pub fn set_used(&self, blocks: Range<u64>) {
        for used in slice_of(self.used(), blocks) {
            // A load is cheaper than a store that takes the cache line from other processors.
            if used.load(Ordering::Relaxed) == 0 {
                used.store(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether one of the blocks was used since the last call. Marks all of them as not used.
    pub fn take_used(&self, blocks: Range<u64>) -> bool {
        let mut any = false;
        for used in slice_of(self.used(), blocks) {
            if used.load(Ordering::Relaxed) != 0 {
                used.store(0, Ordering::Relaxed);
                any = true;
            }
        }
        any
    }

    fn used(&self) -> &[AtomicU8] {
        self.area.bytes().get(self.blocks * 2..).unwrap_or_default()
    }
}

fn one(block: u64) -> Range<u64> {
    block..block.saturating_add(1)
}

/// The part of `slice` that is in `range`.
fn slice_of<T>(slice: &[T], range: Range<u64>) -> &[T] {
    let end = usize::try_from(range.end).unwrap_or(usize::MAX).min(slice.len());
    let start = usize::try_from(range.start).unwrap_or(usize::MAX).min(end);
    &slice[start..end]
}
