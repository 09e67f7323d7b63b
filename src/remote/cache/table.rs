//! The block table of an object: a checksum for each block that was written.
//!
//! A header of 64 bytes, then 8 bytes for each block, little-endian: the CRC-32 of the block's bytes, and a *stamp*.
//! Both are 0 for an absent block. The stamp is a hash of the block's number, its checksum, and the session of the
//! system (its boot id) in which the block was written or verified. A valid stamp therefore means that the page cache
//! has the bytes or has written them to the disk. Any other stamp means that the bytes may have been lost with the
//! power, or that the entry is damaged; then the bytes are compared with the checksum.
//!
//! An entry does not cross the boundary of a disk sector, so that it is written as a whole or not at all.

use super::key::ObjectDirId;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

const MAGIC: [u8; 8] = *b"wfsblk01";

/// Size of the header: magic, id (32), salt (16), size of a block as a power of two (4), CRC-32 of all before (4).
const HEADER: u64 = 64;

const ENTRY: u64 = 8;

/// Identifies the time from the start of the system to its end: the id of the kernel, which is new after each start.
/// Without it, an id that is never used again: all blocks are then verified in each session.
pub(super) fn boot_id() -> Vec<u8> {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").ok().filter(|id| id.len() >= 16);
    id.unwrap_or_else(|| {
        log::info!("the boot id is unknown, so all cached blocks are verified");
        random().map(|bytes| bytes.to_vec()).unwrap_or_default()
    })
}

#[derive(Debug)]
pub(super) struct BlockTable {
    file: File,
    seed: u64,
}

impl BlockTable {
    /// Writes the table of an object without blocks into an empty file.
    pub fn create(file: &File, id: ObjectDirId, blocks: u64) -> io::Result<()> {
        file.write_all_at(&header(id, random()?), 0)?;
        file.set_len(table_size(blocks))
    }

    /// Opens a table. `data` identifies the data file. A damaged table gives [`ErrorKind::InvalidData`].
    pub fn open(file: File, id: ObjectDirId, blocks: u64, data: (u64, u64), boot: &[u8]) -> io::Result<Self> {
        let mut found = [0; HEADER as usize];
        if file.metadata()?.len() == table_size(blocks) {
            file.read_exact_at(&mut found, 0)?;
        }
        if found != header(id, std::array::from_fn(|at| found[40 + at])) {
            return Err(ErrorKind::InvalidData.into());
        }
        Ok(Self { seed: seed(boot, &found, data), file })
    }

    /// The entries of blocks: 0 for a block that is absent. Those that a truncated file lacks are absent.
    pub fn read(&self, blocks: Range<u64>) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; ((blocks.end - blocks.start) * ENTRY) as usize];
        let mut done = 0;
        while done < bytes.len() {
            match self.file.read_at(&mut bytes[done..], table_size(blocks.start) + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let entries = bytes.chunks_exact(ENTRY as usize);
        Ok(entries.map(|entry| u64::from_le_bytes(std::array::from_fn(|at| entry[at]))).collect())
    }

    /// Writes the entries of blocks whose bytes have these checksums and are in the data file.
    pub fn write(&self, first: u64, crcs: &[u32]) -> io::Result<()> {
        let entries = (first..).zip(crcs).map(|(block, &crc)| self.current(block, crc));
        self.file.write_all_at(&entries.flat_map(u64::to_le_bytes).collect::<Vec<u8>>(), table_size(first))
    }

    /// The entry of a block whose bytes were written or verified since the system has started. An entry with another
    /// stamp has the checksum in the same place.
    pub fn current(&self, block: u64, crc: u32) -> u64 {
        u64::from(crc) | u64::from(stamp(self.seed, block, crc)) << 32
    }

    pub fn clear(&self, blocks: Range<u64>) -> io::Result<()> {
        clear_blocks(&self.file, blocks)
    }
}

pub(super) fn clear_blocks(file: &File, blocks: Range<u64>) -> io::Result<()> {
    let [start, end] = [blocks.start, blocks.end].map(table_size);
    file.write_all_at(&vec![0; (end - start) as usize], start)
}

/// Size in bytes of the table of an object, which is also where the entry of the next block would be.
pub(super) fn table_size(blocks: u64) -> u64 {
    HEADER + blocks * ENTRY
}

fn header(id: ObjectDirId, salt: [u8; 16]) -> [u8; HEADER as usize] {
    let mut header = [0; HEADER as usize];
    header[..8].copy_from_slice(&MAGIC);
    header[8..40].copy_from_slice(&id.bytes());
    header[40..56].copy_from_slice(&salt);
    header[56..60].copy_from_slice(&crate::source::pins::BLOCK.ilog2().to_le_bytes());
    let crc = crc32fast::hash(&header[..60]);
    header[60..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// The seed of valid stamps. It depends on the data file too, so that the blocks of a copied or restored cache are
/// verified.
fn seed(boot: &[u8], header: &[u8], data: (u64, u64)) -> u64 {
    let hash = Sha256::new_with_prefix(header)
        .chain_update(data.0.to_le_bytes())
        .chain_update(data.1.to_le_bytes())
        .chain_update(boot)
        .finalize();
    u64::from_le_bytes(std::array::from_fn(|at| hash[at]))
}

/// A hash of 32 bits, never 0: the last steps of MurmurHash3.
fn stamp(seed: u64, block: u64, crc: u32) -> u32 {
    let mut x = seed.wrapping_add(block.wrapping_mul(0x9e37_79b9_7f4a_7c15)) ^ u64::from(crc);
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        x = (x ^ (x >> 33)).wrapping_mul(factor);
    }
    ((x >> 32) as u32).max(1)
}

fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::cache::key::CacheKey;

    fn id() -> ObjectDirId {
        ObjectDirId::of(&CacheKey { identity: "a".into(), validator: "b".into(), len: 5, name: "c".into() })
    }

    fn is_current(table: &BlockTable, block: u64, entry: u64) -> bool {
        entry != 0 && entry == table.current(block, entry as u32)
    }

    #[test]
    fn only_entries_of_this_boot_table_and_data_file_are_current() {
        let (boot, other) = (b"one", b"two");
        let file = tempfile::tempfile().unwrap();
        BlockTable::create(&file, id(), 100).unwrap();
        let open = |data, boot| BlockTable::open(file.try_clone().unwrap(), id(), 100, data, boot).unwrap();
        let table = open((1, 2), boot);
        table.write(10, &[7, 0, 9]).unwrap();
        let current = |table: &BlockTable| -> Vec<u64> {
            let entries = table.read(0..100).unwrap();
            (0..)
                .zip(entries)
                .filter(|(block, entry)| is_current(table, *block, *entry))
                .map(|(block, _)| block)
                .collect()
        };
        assert_eq!(current(&open((1, 2), boot)), [10, 11, 12]);
        for table in [open((1, 2), other), open((1, 3), boot), open((2, 2), boot)] {
            assert!(current(&table).is_empty());
            let exists: Vec<bool> = table.read(9..14).unwrap().iter().map(|entry| *entry != 0).collect();
            assert_eq!(exists, [false, true, true, true, false]);
        }
        table.clear(11..12).unwrap();
        assert_eq!(current(&table), [10, 12]);
    }

    #[test]
    fn damaged_entry_is_not_current() {
        let file = tempfile::tempfile().unwrap();
        BlockTable::create(&file, id(), 4).unwrap();
        let table = BlockTable::open(file.try_clone().unwrap(), id(), 4, (1, 2), b"one").unwrap();
        table.write(0, &[1, 2, 3, 4]).unwrap();
        let mut bytes = [0; 32];
        file.read_exact_at(&mut bytes, HEADER).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut garbled = bytes;
            garbled[bit / 8] ^= 1 << (bit % 8);
            file.write_all_at(&garbled, HEADER).unwrap();
            let entries = table.read(0..4).unwrap();
            let current: Vec<bool> = (0..4).map(|block| is_current(&table, block, entries[block as usize])).collect();
            assert_eq!(current.iter().filter(|current| !**current).count(), 1, "bit {bit}");
        }
        // Entries in each other's place.
        bytes.rotate_left(8);
        file.write_all_at(&bytes, HEADER).unwrap();
        let entries = table.read(0..4).unwrap();
        assert!((0..4).all(|block| !is_current(&table, block, entries[block as usize])));
    }

    #[test]
    fn damaged_header_or_size_makes_a_table_unusable() {
        let file = tempfile::tempfile().unwrap();
        BlockTable::create(&file, id(), 4).unwrap();
        let is_usable = || BlockTable::open(file.try_clone().unwrap(), id(), 4, (1, 2), b"one").is_ok();
        assert!(is_usable());
        let mut header = [0; 64];
        file.read_exact_at(&mut header, 0).unwrap();
        for (at, byte) in (0..).zip(header) {
            file.write_all_at(&[byte ^ 1], at).unwrap();
            assert!(!is_usable(), "byte {at}");
            file.write_all_at(&[byte], at).unwrap();
        }
        for len in [0, 63, 64, 95, 97] {
            file.set_len(len).unwrap();
            assert!(!is_usable(), "{len} bytes");
        }
    }
}
