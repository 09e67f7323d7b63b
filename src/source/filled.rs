//! Parts of the map of a file that another process fills.

use super::error::Error;
use super::map::{FileMap, ServedBytes};
use super::pins::PinnedBlocks;
use std::fs::File;
use std::ops::{Deref, Range};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The data file, and its map.
#[derive(Debug)]
pub(super) struct FillingMap {
    /// For messages.
    name: PathBuf,
    pub file: File,
    map: Option<FileMap>,
}

/// All data files, so that the pages of their maps are released together.
static ALL: Mutex<Vec<Weak<FillingMap>>> = Mutex::new(Vec::new());

/// Bytes served from maps since pages were last released, over all data files.
static SERVED: ServedBytes = ServedBytes(AtomicU64::new(0));

impl FillingMap {
    /// Maps the file if possible. Messages call it `name`.
    pub fn new(name: &str, len: u64, file: File) -> Arc<Self> {
        let map = FileMap::new(&file, len, name.as_ref());
        let filling = Arc::new(Self { name: name.into(), file, map });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&filling));
        filling
    }

    /// A part of the map. Returns the pins if the file is not mapped, or the map is shorter.
    pub fn part(self: &Arc<Self>, range: Range<usize>, pinned: PinnedBlocks) -> Result<FilledBytes, PinnedBlocks> {
        if self.map.as_ref().is_none_or(|map| range.end > map.len()) {
            return Err(pinned);
        }
        Ok(FilledBytes { filling: self.clone(), range, _pinned: pinned })
    }
}

/// Releases the pages of all maps.
fn release_all() {
    let all: Vec<_> = ALL.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect();
    all.iter().for_each(|filling| filling.map.iter().for_each(|map| map.release(&filling.name)));
}

/// A part of a map. Its blocks are not evicted as long as this exists.
#[derive(Debug)]
pub struct FilledBytes {
    filling: Arc<FillingMap>,
    range: Range<usize>,
    _pinned: PinnedBlocks,
}

impl FilledBytes {
    /// See [`super::Bytes::verify`]. Nobody changes blocks that are present, so only the reason of a failure is found
    /// out.
    pub(super) fn verify(&self, unreadable: bool) -> Result<(), Error> {
        if !unreadable {
            return Ok(());
        }
        let FillingMap { name, file, .. } = &*self.filling;
        let read = file.read_exact_at(&mut vec![0; self.range.len()], self.range.start as u64);
        let error = read.err().unwrap_or_else(|| nix::errno::Errno::EIO.into());
        Err(Error::Io { path: name.clone(), error })
    }
}

impl Deref for FilledBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.filling.map.as_ref().map_or(&[], |map| map.get(self.range.clone()))
    }
}

impl Drop for FilledBytes {
    fn drop(&mut self) {
        if let Some(map) = &self.filling.map {
            map.mark(&self.range);
        }
        if SERVED.add(self.range.len()) {
            release_all();
        }
    }
}
