//! Whether bytes of a file are in the page cache, so that reading them does not wait for a disk.

use rustix::io::{ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Distance between two samples, in bytes. A sample takes about 0.5 us.
const SAMPLES: usize = 256 << 10;

/// Queries the page cache for one file.
#[derive(Debug, Default)]
pub(super) struct PageCache {
    /// Whether cachestat(2) fails: the kernel is older than 6.5, or the file belongs to another user.
    refused: AtomicBool,
}

impl PageCache {
    /// Whether the bytes of `range` are in memory.
    ///
    /// The range is sampled, because this function runs at each read and a complete query is too slow. cachestat(2) of
    /// 1 MiB takes 0.3 us for large folios, but up to 25 us for single pages. mincore(2) takes 20 us, and without
    /// permission reports that all pages are in memory.
    ///
    /// A sample is a read with RWF_NOWAIT. If the page is absent, such a read starts read-ahead, which may wait for a
    /// disk that hangs. Therefore cachestat first looks for the last page, without reading anything. cachestat alone
    /// does not suffice, because it also counts pages that are still being read.
    pub fn has(&self, file: &File, range: &Range<u64>) -> bool {
        let Some(last) = range.end.checked_sub(1).filter(|last| *last >= range.start) else { return true };
        if !self.refused.load(Ordering::Relaxed) {
            match is_cached(file, last) {
                Some(true) => {}
                Some(false) => return false,
                None => self.refused.store(true, Ordering::Relaxed),
            }
        }
        (range.start..=last).rev().step_by(SAMPLES).all(|at| is_read(file, at))
    }
}

/// Whether the byte at `offset` can be read without waiting. False if the file system does not support such reads.
fn is_read(file: &File, offset: u64) -> bool {
    let mut byte = [0];
    // 0 bytes: the file was truncated. Reading it does not wait.
    preadv2(file, &mut [IoSliceMut::new(&mut byte)], offset, ReadWriteFlags::NOWAIT).is_ok()
}

/// Whether the page cache has the page of `offset`. The page may not have been read completely. `None` if this process
/// may not ask.
fn is_cached(file: &File, offset: u64) -> Option<bool> {
    /// The number of the call on all architectures, Linux 6.5. nix, rustix and libc have no function for it.
    const SYS_CACHESTAT: nix::libc::c_long = 451;
    // Offset and length.
    let wanted = [offset, 1];
    // The numbers of pages that are cached, dirty, being written, evicted, and evicted lately.
    let mut found = [0u64; 5];
    // SAFETY: the kernel reads 16 bytes (`struct cachestat_range`) and writes 40 bytes (`struct cachestat`). The arrays
    // have these sizes and live until the call returns. The last argument, the flags, must be 0.
    #[allow(unsafe_code)]
    let result =
        unsafe { nix::libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), wanted.as_ptr(), found.as_mut_ptr(), 0u32) };
    (result == 0).then_some(found[0] > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::version::FileStorage;
    use rustix::fs::{Advice, fadvise};
    use std::os::unix::fs::FileExt;

    #[test]
    fn pages_that_were_dropped_are_not_in_the_page_cache() {
        const LEN: u64 = 2 << 20;
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; LEN as usize], 0).unwrap();
        // Only clean pages can be dropped.
        file.sync_all().unwrap();
        let caches = [PageCache::default(), PageCache { refused: AtomicBool::new(true) }];
        for cache in &caches {
            for range in [0..LEN, 5..6, LEN - 1..LEN, 7..7] {
                assert!(cache.has(&file, &range), "{range:?} {cache:?}");
            }
        }
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        // A file system in memory has no disk to read from again, and some others keep their pages.
        if FileStorage::of(&file) != FileStorage::Local || caches[0].has(&file, &(0..LEN)) {
            return;
        }
        for range in [0..LEN, 4096..4097] {
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            assert!(!caches[0].has(&file, &range), "{range:?}");
            // A sample starts read-ahead, and a fast disk may have delivered the page before the kernel looks again.
            // Then the page is in the page cache.
            assert!(!caches[1].has(&file, &range) || caches[0].has(&file, &range), "{range:?}");
        }
        assert!(caches.iter().all(|cache| cache.has(&file, &(7..7))));
    }
}
