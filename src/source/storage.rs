//! The kinds of file systems: in memory, on a local disk, or served by another machine or program.

use rustix::fs::fstatfs;
use std::fs::File;

/// The medium of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileStorage {
    /// In memory: reading a file never waits.
    Memory,
    /// On a disk of this machine. The kernel has the current attributes of an open file.
    Local,
    /// On another machine, or served by another program. The kernel may have attributes and bytes of an earlier
    /// version, and any operation may wait for ever.
    Remote,
}

/// Values of `f_type` of file systems that keep their files in memory.
const IN_MEMORY: &[u32] = &[
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
];

/// Values of `f_type` of file systems on local disks, from `linux/magic.h` and the sources of the file systems.
const ON_DISK: &[u32] = &[
    0x0000_ef53, // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // btrfs
    0xca45_1a4e, // bcachefs
    0xf2f5_2010, // f2fs
    0x2fc1_2fc1, // ZFS
    0x794c_7630, // overlayfs
    0xe0f5_e1e2, // EROFS
    0x7371_7368, // squashfs
    0x0000_9660, // ISO 9660
    0x1501_3346, // UDF
    0x0000_4d44, // FAT
    0x2011_bab0, // exFAT
    0x7366_746e, // ntfs3
    0x3153_464a, // JFS
    0x5265_4973, // ReiserFS
    0x0000_3434, // NILFS
    0x0000_482b, // HFS+
];

impl FileStorage {
    /// Unknown file systems count as remote, which is slower but always right.
    pub fn of(file: &File) -> Self {
        match fstatfs(file).map(|found| found.f_type as u32) {
            Ok(kind) if IN_MEMORY.contains(&kind) => Self::Memory,
            Ok(kind) if ON_DISK.contains(&kind) => Self::Local,
            _ => Self::Remote,
        }
    }
}
