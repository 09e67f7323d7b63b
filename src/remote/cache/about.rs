//! The description of an object, for people and for `--offline`. If it is damaged, no cached bytes are lost.

use super::dir::{open_file, remove};
use super::key::CacheKey;
use nix::fcntl::{OFlag, renameat};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

const NAME: &str = "about.json";

/// The name of the file while it is written. Only the holder of the object's gate writes.
const TEMPORARY: &str = "about.new";

/// Keys are shorter than this, also with their characters escaped.
const SIZE_MAX: u64 = 64 << 10;

/// The description of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ObjectAbout {
    pub name: String,
    pub validator: String,
    pub len: u64,
}

impl ObjectAbout {
    pub fn of(key: &CacheKey) -> Self {
        Self { name: key.name.clone(), validator: key.validator.clone(), len: key.len }
    }

    /// Reads the description. `None` if there is none, or a damaged one.
    pub fn read(dir: &OwnedFd) -> Option<Self> {
        let mut text = Vec::new();
        open_file(dir, NAME, OFlag::O_RDONLY).ok()?.take(SIZE_MAX).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub fn write(&self, dir: &OwnedFd) -> io::Result<()> {
        // Left over from a process that was killed.
        remove(dir, TEMPORARY)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        let mut file = open_file(dir, TEMPORARY, flags)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        Ok(renameat(dir, TEMPORARY, dir, NAME)?)
    }
}
