//! Finds out what a location leads to.

use super::kept::{self, KeptTree};
use super::retry::retry;
use super::trouble::absent;
use crate::remote::cache::BlockCache;
use crate::remote::location::RemoteLocation;
use crate::remote::transport::{self, ErrorKind, ServerTree, TransportClient, TransportError};
use crate::source::FetchFailure;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The files that a location leads to.
pub struct FoundTree {
    /// `None` if it was found in the cache only.
    pub tree: Option<Arc<ServerTree>>,
    pub kept: KeptTree,
    /// The name under which it is kept.
    pub name: String,
    /// The files that the listing of the tree does not contain, as they were found when they were opened.
    pub opened: HashMap<String, transport::ServerObject>,
}

/// Finds out what is at a URL. Offline, that is what was found earlier, or what the Hugging Face cache has.
pub async fn resolve_location(
    client: &TransportClient,
    cache: &BlockCache,
    url: &str,
    timeout: Duration,
    offline: bool,
) -> Result<FoundTree, FetchFailure> {
    let location = RemoteLocation::parse(url).map_err(TransportError::from)?.ok_or_else(absent)?;
    let name = kept::kept_name(client, &location);
    let found_earlier = || {
        KeptTree::find(cache, &name).map(|kept| FoundTree {
            tree: None,
            kept,
            name: name.clone(),
            opened: HashMap::new(),
        })
    };
    let resolved = retry(timeout, || client.resolve(&location)).await;
    match resolved.map_err(|error| (error.kind(), error)) {
        Ok(tree) if offline => {
            // A repository of which the Hugging Face cache has some files. Offline, there are no others.
            let kept = KeptTree { is_listed: true, ..KeptTree::of(&tree) };
            Ok(FoundTree { tree: Some(Arc::new(tree)), kept, name, opened: HashMap::new() })
        }
        Ok(tree) => {
            let kept = KeptTree::of(&tree);
            if kept.is_listed || kept.files.values().all(|file| file.version.is_some()) {
                kept.keep(cache, &name);
            }
            Ok(FoundTree { tree: Some(Arc::new(tree)), kept, name, opened: HashMap::new() })
        }
        Err((ErrorKind::Offline, error)) => found_earlier().ok_or_else(|| error.into()),
        Err((ErrorKind::Transient { .. }, error)) if found_earlier().is_some() => {
            Err(error.and("--offline reads what was fetched before").into())
        }
        Err((_, error)) => Err(error.into()),
    }
}
