//! The files at a URL.

use super::client::FetchClient;
use super::location::RemoteLocation;
use super::protocol::{WireAbout, WireAttributes};
use super::{location, lock_mutex};
use crate::source::{
    DirListing, Error, FIRST_TREE, FetchFailure, ListedEntry, ListedKind, Location, RemoteFailure, Source, SourceStat,
    SourceTree,
};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Bound;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

impl FetchClient {
    /// The files at a URL, pinned to their current version: if a file changes later, reading it is an error.
    pub fn resolve(&self, url: &str) -> Result<Location, Error> {
        let (number, about, files) = self.find(url)?;
        let path = about.path.clone();
        let (client, name) = (self.clone(), tree_name(&about.url));
        let (tried, device) = (Mutex::default(), next_device());
        let Ok(Some(folder)) = RemoteLocation::parse(&about.url) else {
            return Err(FetchFailure::lasting("weightfs-fetch sent an invalid URL").of(&about.url));
        };
        let asked = RemoteLocation::parse(url).ok().flatten();
        let named = asked.filter(|asked| matches!(asked, RemoteLocation::Web(_)) && !path.is_empty());
        let tree = RemoteTree { client, number, about, folder, named, name, files, tried, device };
        Ok(Location::in_tree(Arc::new(tree), &path))
    }
}

struct RemoteTree {
    client: FetchClient,
    number: u32,
    about: WireAbout,
    /// The location of the tree.
    folder: RemoteLocation,
    /// The URL of the file that was asked for, which may be written differently from a joined one.
    named: Option<RemoteLocation>,
    name: String,
    /// The size of each file in bytes, by its path.
    files: BTreeMap<String, u64>,
    /// The files that were opened to find out whether they exist, by their path; `None` if they do not. The server of
    /// the tree lists no files then.
    tried: Mutex<HashMap<String, Option<Arc<dyn Source>>>>,
    /// The number of the device of its files: each tree has its own lane in the scheduler.
    device: u64,
}

fn next_device() -> u64 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    FIRST_TREE + u64::from(NEXT.fetch_add(1, Ordering::Relaxed))
}

impl RemoteTree {
    /// The entries of a directory, sorted: name, kind, and size in bytes.
    fn entries(&self, dir: &str) -> impl Iterator<Item = (&str, ListedKind, u64)> {
        let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let mut from = prefix.clone();
        std::iter::from_fn(move || {
            loop {
                let (path, len) = self.files.range::<str, _>((Bound::Included(&from[..]), Bound::Unbounded)).next()?;
                let below = path.strip_prefix(&prefix)?;
                let Some((name, _)) = below.split_once('/') else {
                    from = format!("{path}\0");
                    return Some((below, ListedKind::File, *len));
                };
                // The paths in a directory are followed by those that go on with the character after the slash.
                from = format!("{prefix}{name}0");
                // If weightfs-fetch lists a file with others below it, only the file is shown.
                if !self.files.contains_key(&path[..prefix.len() + name.len()]) {
                    return Some((name, ListedKind::Dir, 0));
                }
            }
        })
    }

    fn open_now(&self, path: &str) -> Result<Arc<dyn Source>, Error> {
        // The names of shards come from indexes. weightfs-fetch ends the connection if a path is not allowed.
        location::check_path(path).map_err(|error| FetchFailure::lasting(error.to_string()).of(&self.place(path)))?;
        self.client.open(self.number, path, &self.place(path), (self.device, number_of(path)))
    }

    /// Opens a file that is not listed, to find out whether it exists. If that fails for a reason that may pass, the
    /// file may exist, and opening it again gives the reason.
    fn can_open(&self, path: &str) -> bool {
        if let Some(tried) = lock_mutex(&self.tried).get(path) {
            return tried.is_some();
        }
        let tried = match self.open_now(path) {
            Ok(source) => Some(source),
            Err(Error::Remote {
                failure: RemoteFailure::Lasting | RemoteFailure::Refused | RemoteFailure::WholeOnly,
                ..
            }) => None,
            Err(_) => return true,
        };
        let exists = tried.is_some();
        lock_mutex(&self.tried).insert(path.to_owned(), tried);
        exists
    }
}

/// Owner and permissions of a directory whose files have these attributes.
fn searchable(files: WireAttributes) -> SourceStat {
    let file = files.stat();
    // Everyone who may read a directory may search it.
    SourceStat { mode: file.mode | file.mode >> 2, ..file }
}

/// The name of the tree at a URL: that of its repository, or else the last component.
fn tree_name(url: &str) -> String {
    let path = match RemoteLocation::parse(url) {
        Ok(Some(RemoteLocation::Hub(hub))) if hub.path.is_empty() => hub.repo,
        _ => url.trim_end_matches('/').to_owned(),
    };
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

/// The number of a path in a tree, in place of an inode number: its hash (FNV-1a).
fn number_of(path: &str) -> u64 {
    let add = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    path.bytes().fold(0xcbf2_9ce4_8422_2325, add)
}

impl fmt::Debug for RemoteTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteTree({}, {} files)", self.about.url, self.files.len())
    }
}

impl SourceTree for RemoteTree {
    fn url(&self) -> &str {
        &self.about.url
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn place(&self, path: &str) -> String {
        match &self.named {
            Some(named) if path == self.about.path => named.to_string(),
            _ => match self.folder.join(path) {
                Ok(place) => place.to_string(),
                // The path cannot be opened. An error shows it as it is.
                Err(_) => format!("{}/{path}", self.about.url.trim_end_matches('/')),
            },
        }
    }

    fn open(&self, path: &str) -> Result<Arc<dyn Source>, Error> {
        let tried = lock_mutex(&self.tried).get(path).cloned().flatten();
        tried.map_or_else(|| self.open_now(path), Ok)
    }

    fn announce(&self, path: &str, head: Option<u64>) {
        if location::check_path(path).is_ok() {
            self.client.announce(self.number, path, head);
        }
    }

    fn list(&self, path: &str) -> Result<DirListing, Error> {
        if !self.about.is_listed {
            let reason = "the server does not list files; name a file or the index of a sharded model";
            return Err(FetchFailure::lasting(reason).of(&self.place(path)));
        }
        Ok(self.known(path))
    }

    fn known(&self, path: &str) -> DirListing {
        let entry = |(name, kind, len): (&str, ListedKind, u64)| ListedEntry {
            name: name.into(),
            kind,
            is_link: false,
            len,
            device: self.device,
        };
        let entries = self.entries(path).map(entry).collect();
        let id = (self.device, number_of(&format!("{path}/")));
        DirListing { id, parent: None, version: None, stat: searchable(self.about.attributes), entries }
    }

    fn device(&self) -> u64 {
        self.device
    }

    fn len(&self, path: &str) -> Option<u64> {
        self.files.get(path).copied()
    }

    fn stat(&self) -> SourceStat {
        // Without a listing, there is no directory that could be private: only its files are.
        let is_public = self.about.attributes.is_public || !self.about.is_listed;
        searchable(WireAttributes { is_public, ..self.about.attributes })
    }

    fn is_dir(&self, path: &str) -> bool {
        self.about.is_listed && !self.files.contains_key(path) && self.entries(path).next().is_some()
    }

    fn exists(&self, path: &str) -> bool {
        self.files.contains_key(path) || if self.about.is_listed { self.is_dir(path) } else { self.can_open(path) }
    }
}
