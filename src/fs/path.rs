//! Paths of files in the file system.

use super::attr::{Attr, Error, FileKind, ROOT, SECTOR};
use super::superblock::Superblock;
use crate::content::ReadRequest;
use std::ffi::OsString;

impl Superblock {
    /// The file or directory at a path from the root, with slashes between names. `.`, `..`, and slashes at the start,
    /// at the end or next to each other have their usual meaning; `..` does not lead out of the root. A symbolic link
    /// is followed: the result is a file with the size of the target, and [`Superblock::open`] opens the target.
    pub fn resolve(&self, path: &[u8], request: &ReadRequest) -> Result<Attr, Error> {
        let mut above = Vec::new();
        let mut here = self.getattr(ROOT, request)?;
        for name in path.split(|byte| *byte == b'/') {
            if here.kind != FileKind::Dir {
                return Err(Error::NotADirectory);
            }
            match name {
                b"" | b"." => {}
                b".." => here = above.pop().unwrap_or(here),
                _ => {
                    let found = self.lookup(here.ino, name, request)?;
                    above.push(std::mem::replace(&mut here, found));
                }
            }
        }
        self.followed(here, request)
    }

    /// The names and attributes of the files in a directory, in the order of the directory, without `.` and `..`.
    /// Symbolic links are followed; those that lead nowhere are left out.
    pub fn entries(&self, dir: &Attr, request: &ReadRequest) -> Result<Vec<(OsString, Attr)>, Error> {
        let mut names = Vec::new();
        self.readdir(dir.ino, 0, request, |entry| {
            names.push((entry.name.into_owned(), entry.ino));
            false
        })?;
        let mut entries = Vec::with_capacity(names.len());
        for (name, ino) in names.into_iter().filter(|(name, _)| name != "." && name != "..") {
            match self.getattr(ino, request).and_then(|attr| self.followed(attr, request)) {
                Ok(attr) => entries.push((name, attr)),
                Err(Error::NoEntry) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    }

    /// Attributes of the target of a link; those of anything else are returned as they are.
    fn followed(&self, attr: Attr, request: &ReadRequest) -> Result<Attr, Error> {
        if attr.kind != FileKind::Link {
            return Ok(attr);
        }
        let size = self.open(attr.ino, request)?.len();
        Ok(Attr { kind: FileKind::File, size, blocks: size.div_ceil(SECTOR), perm: 0o444, ..attr })
    }
}
