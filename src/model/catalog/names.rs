//! The names of the items of a folder. Items are named after their files; terminal control characters and bytes that
//! are not UTF-8 are escaped.

use super::{FolderItem, NamedItem};
use crate::model::assemble::model_stem;
use crate::model::unique_names::UsedNames;
use crate::name::harmless;
use crate::source::ListedEntry;
use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

pub(super) struct FolderNames {
    /// The names of all files, and those that were assigned.
    unused: UsedNames<OsString>,
    repeated: HashSet<OsString>,
}

/// Maximum length of the part of a name that is kept in the name of its error file, in bytes.
const ERROR_STEM_MAX: usize = 230;

impl FolderNames {
    /// For a folder whose items are not files of one directory.
    pub fn empty() -> Self {
        Self::new(&[], |_| false)
    }

    /// `is_model` tells which entries are named as models.
    pub fn new(entries: &[ListedEntry], is_model: impl Fn(&ListedEntry) -> bool) -> Self {
        let mut stems = HashSet::new();
        let models = entries.iter().filter(|entry| is_model(entry)).filter_map(|entry| stem_of(&entry.name));
        let repeated = models.filter(|stem| !stems.insert(stem.clone())).collect();
        Self { unused: UsedNames::new(entries.iter().map(|entry| entry.name.clone())), repeated }
    }

    /// The name of a model: its stem, or the name of its file if something else has the stem as its name.
    pub fn of_model(&mut self, file: OsString) -> OsString {
        let stem = stem_of(&file).filter(|stem| !self.repeated.contains(stem) && !self.unused.is_taken(stem));
        self.of_file(stem.unwrap_or(file))
    }

    /// The name of a file, escaped by [`harmless`].
    pub fn of_file(&mut self, name: OsString) -> OsString {
        match harmless(&name) {
            Cow::Borrowed(_) => {
                self.unused.insert(name.clone());
                name
            }
            Cow::Owned(name) => self.free(&name),
        }
    }

    /// As [`FolderNames::of_file`], for a name that may be taken.
    pub fn free(&mut self, name: &OsStr) -> OsString {
        let name = harmless(name).into_owned();
        self.unused.take(|number| {
            let mut name = name.clone();
            if number > 1 {
                name.push(format!("~{number}"));
            }
            name
        })
    }

    /// The item with this name, and the name of its error file if it has one.
    pub fn item(&mut self, name: OsString, item: FolderItem) -> NamedItem {
        let error = match item {
            FolderItem::Model(_) | FolderItem::Unreadable(_) => self.of_error(&name),
            FolderItem::Folder(_) | FolderItem::Link(_) | FolderItem::Export => OsString::new(),
        };
        NamedItem { name, error, item }
    }

    fn of_error(&mut self, name: &OsStr) -> OsString {
        let mut end = name.len().min(ERROR_STEM_MAX);
        while name.to_str().is_some_and(|name| !name.is_char_boundary(end)) {
            end -= 1;
        }
        self.unused.take(|number| {
            let ending = if number == 1 { ".error.txt".to_owned() } else { format!(".error{number}.txt") };
            OsString::from_vec([&name.as_bytes()[..end], ending.as_bytes()].concat())
        })
    }
}

fn stem_of(file: &OsStr) -> Option<OsString> {
    model_stem(&Path::new(file).into())
}
