//! Which file each path led to when it was opened. Another process may exchange names between the moment at which a
//! file is read and that at which its permissions are decided.

use super::FileId;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::Path;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// The numbers of files by hashes of their paths, with a key that nobody knows; `None` for several files.
#[derive(Default)]
struct OpenedPaths {
    key: RandomState,
    files: HashMap<u64, Option<FileId>>,
}

static OPENED: LazyLock<Mutex<OpenedPaths>> = LazyLock::new(Mutex::default);

fn opened() -> MutexGuard<'static, OpenedPaths> {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that the absolute `path` led to this file.
pub(super) fn note_opened(path: &Path, id: FileId) {
    let mut opened = opened();
    let hash = opened.key.hash_one(path);
    let found = opened.files.entry(hash).or_insert(Some(id));
    *found = found.filter(|found| *found == id);
}

/// Whether no other file than the one with this number was opened at a path. True if none was.
pub(super) fn was_always(path: &Path, id: Option<FileId>) -> bool {
    let Ok(path) = std::path::absolute(path) else { return false };
    let opened = opened();
    opened.files.get(&opened.key.hash_one(&path)).is_none_or(|found| found.is_some() && *found == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_that_led_to_several_files_is_never_that_of_one() {
        let path = Path::new("/absent/file");
        let [id, other] = [(1, 1), (1, 2)];
        assert!(was_always(path, None) && was_always(path, Some(id)));
        note_opened(path, id);
        note_opened(path, id);
        assert!(was_always(path, Some(id)) && !was_always(path, None) && !was_always(path, Some(other)));
        note_opened(path, other);
        note_opened(path, other);
        assert!(!was_always(path, Some(id)) && !was_always(path, Some(other)));
    }
}
