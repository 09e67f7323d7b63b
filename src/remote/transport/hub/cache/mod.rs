//! The cache that the Hub's own client fills, read only: which commit a branch was, which files a commit has, and
//! complete local files. Both layouts are read: links into `blobs`, and plain files in `snapshots`.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::pinned::{HubEntry, content_from_hash, is_commit};
use crate::remote::location::{HubLocation, check_path};

/// The largest listing that is read, in bytes.
const LISTING: u64 = 1 << 30;

/// Maximum depth, and maximum number of files, of a walk through an unlisted snapshot.
const DEPTH: usize = 32;
const FILES: usize = 1_000_000;

/// A directory of repositories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HubCache(pub PathBuf);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct LocalFile {
    /// Its path without links.
    pub path: PathBuf,
    /// `sha256:...` or `git:...`, if the layout has the hash.
    pub content: Option<String>,
}

#[derive(Deserialize)]
struct CachedListing {
    format_version: u32,
    files: std::collections::BTreeMap<String, CachedFile>,
}

#[derive(Deserialize)]
struct CachedFile {
    size: u64,
    blob_id: String,
    lfs_sha256: Option<String>,
    lfs_size: Option<u64>,
}

impl HubCache {
    fn repository(&self, place: &HubLocation) -> PathBuf {
        self.0.join(format!("{}--{}", place.kind.plural(), place.repo.replace('/', "--")))
    }

    /// The commit that a branch or tag was when it was downloaded last.
    pub fn commit(&self, place: &HubLocation, revision: &str) -> Option<String> {
        // Names of refs have no component that starts with a dot, see `location`.
        let text = fs::read_to_string(self.repository(place).join("refs").join(revision)).ok()?;
        Some(text.trim().to_string()).filter(|commit| is_commit(commit))
    }

    /// The commits of which there are files; sorted.
    pub fn commits(&self, place: &HubLocation) -> Vec<String> {
        let snapshots = fs::read_dir(self.repository(place).join("snapshots")).into_iter().flatten().flatten();
        let names = snapshots.filter_map(|snapshot| snapshot.file_name().into_string().ok());
        let mut commits: Vec<String> = names.filter(|name| is_commit(name)).collect();
        commits.sort_unstable();
        commits
    }

    /// All files of a commit, which `root` names, if a download of the whole repository left the list.
    pub fn listing(&self, root: &HubLocation) -> Option<Vec<HubEntry>> {
        let path = self.repository(root).join("trees").join(format!("{}.json", root.revision.as_deref()?));
        if fs::metadata(&path).ok()?.len() > LISTING {
            return None;
        }
        let listing: CachedListing = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        if listing.format_version != 1 {
            return None;
        }
        let files = listing.files.into_iter().filter(|(path, _)| !path.is_empty() && check_path(path).is_ok());
        let entries = files.map(|(path, listed)| {
            let hash = listed.lfs_sha256.unwrap_or(listed.blob_id);
            HubEntry { path, len: listed.lfs_size.unwrap_or(listed.size), content: content_from_hash(&hash) }
        });
        Some(entries.collect())
    }

    fn snapshot(&self, place: &HubLocation) -> PathBuf {
        self.repository(place).join("snapshots").join(place.revision.as_deref().unwrap_or_default())
    }

    /// The files of a commit that are there.
    pub fn walk(&self, root: &HubLocation) -> Vec<HubEntry> {
        let mut entries = Vec::new();
        let mut folders = vec![(self.snapshot(root), String::new(), 0)];
        while let Some((folder, prefix, depth)) = folders.pop() {
            for item in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let Ok(name) = item.file_name().into_string() else { continue };
                let path = format!("{prefix}{name}");
                if check_path(&path).is_err() || entries.len() >= FILES {
                    continue;
                }
                if item.file_type().is_ok_and(|kind| kind.is_dir()) {
                    if depth < DEPTH {
                        folders.push((item.path(), format!("{path}/"), depth + 1));
                    }
                } else if let Some(local) = self.file(&HubLocation { path: path.clone(), ..root.clone() }, None, None)
                    && let Ok(about) = fs::metadata(&local.path)
                {
                    entries.push(HubEntry { path, len: about.len(), content: local.content });
                }
            }
        }
        entries
    }

    /// The local file of a commit, if it is complete: downloads are renamed into place. Its length and content must be
    /// those in the listing, as far as both are known.
    pub fn file(&self, place: &HubLocation, len: Option<u64>, content: Option<&str>) -> Option<LocalFile> {
        let snapshot = self.snapshot(place).join(&place.path);
        // The first link names the blob by its hash. A blob may link on to a store by another hash.
        let link = fs::read_link(&snapshot).ok();
        let hash = link.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
        let found = hash.and_then(content_from_hash);
        let path = fs::canonicalize(&snapshot).ok()?;
        let about = fs::metadata(&path).ok()?;
        let inside = fs::canonicalize(&self.0).is_ok_and(|folder| path.starts_with(folder));
        let differs = matches!((content, found.as_deref()), (Some(wanted), Some(found)) if wanted != found);
        if !inside || !about.is_file() || differs || len.is_some_and(|len| len != about.len()) {
            return None;
        }
        Some(LocalFile { path, content: found })
    }
}

#[cfg(test)]
mod tests;
