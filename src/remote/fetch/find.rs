//! Finds out what a location leads to.

use super::kept::{self, Kept};
use super::retry::retry;
use super::trouble::Trouble;
use crate::remote::cache::Cache;
use crate::remote::location::{Location, ParseError};
use crate::remote::transport::{self, Client, Kind, Tree};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// What a location leads to.
pub struct Found {
    /// `None` if it was found in the cache only.
    pub tree: Option<Arc<Tree>>,
    pub kept: Kept,
    /// The name under which it is kept.
    pub name: String,
    /// The files that the listing of the tree does not contain, as they were found when they were opened.
    pub opened: HashMap<String, transport::Object>,
}

/// Finds out what is at a URL. Offline, that is what was found earlier, or what the Hugging Face cache has.
pub async fn resolve(
    client: &Client,
    cache: &Cache,
    url: &str,
    timeout: Duration,
    offline: bool,
) -> Result<Found, Trouble> {
    let invalid = |error: ParseError| Trouble::Transport(error.into());
    let location = Location::parse(url).map_err(invalid)?.ok_or(Trouble::Absent)?;
    let name = kept::name_of(client, &location);
    let found_earlier =
        || Kept::find(cache, &name).map(|kept| Found { tree: None, kept, name: name.clone(), opened: HashMap::new() });
    let resolved = retry(timeout, || client.resolve(&location)).await;
    match resolved.map_err(|error| (error.kind(), error)) {
        Ok(tree) if offline => {
            // A repository of which the Hugging Face cache has some files. Offline, there are no others.
            let kept = Kept { is_listed: true, ..Kept::of(&tree) };
            Ok(Found { tree: Some(Arc::new(tree)), kept, name, opened: HashMap::new() })
        }
        Ok(tree) => {
            let kept = Kept::of(&tree);
            if kept.is_listed || kept.files.values().all(|file| file.version.is_some()) {
                kept.keep(cache, &name);
            }
            Ok(Found { tree: Some(Arc::new(tree)), kept, name, opened: HashMap::new() })
        }
        Err((Kind::Offline, error)) => found_earlier().ok_or(Trouble::Transport(error)),
        Err((Kind::Transient { .. }, error)) if found_earlier().is_some() => {
            Err(Trouble::Transport(error.and("--offline reads what was fetched before")))
        }
        Err((_, error)) => Err(Trouble::Transport(error)),
    }
}
