//! The options of transports, and a copy of the environment variables that configure them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The options of a [`super::TransportClient`] for connections and credentials.
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// The variables that configure credentials, endpoints and the directories of the Hugging Face cache. Proxies and
    /// certificates are always those of the process (`HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`,
    /// `SSL_CERT_DIR`).
    pub environment: EnvironmentCopy,
    /// Send no request. `HF_HUB_OFFLINE` and `TRANSFORMERS_OFFLINE` do so for the Hub alone.
    pub offline: bool,
    /// A file with a bearer token for the server of a URL, or for the Hub. It is read for each request.
    pub token_file: Option<PathBuf>,
    /// Hosts to which public servers may redirect although they are inside of this network.
    pub redirects_to: Vec<String>,
    pub connect_timeout: Duration,
    /// The time for which a server may send nothing.
    pub idle_timeout: Duration,
}

impl Default for TransportOptions {
    fn default() -> TransportOptions {
        TransportOptions {
            environment: EnvironmentCopy::of_process(),
            offline: false,
            token_file: None,
            redirects_to: Vec::new(),
            connect_timeout: Duration::from_secs(4),
            idle_timeout: Duration::from_secs(30),
        }
    }
}

/// A copy of environment variables. Its `Debug` shows names only, as values may be secrets.
#[derive(Clone, Default)]
pub struct EnvironmentCopy(BTreeMap<String, String>);

impl EnvironmentCopy {
    /// The environment of this process, without what is not UTF-8.
    pub fn of_process() -> EnvironmentCopy {
        let variables = std::env::vars_os();
        variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect()
    }

    /// The value of a variable, trimmed; `None` if it is empty or not there.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        let text = self.get(name)?;
        match text.strip_prefix("~/") {
            Some(rest) => Some(self.home()?.join(rest)),
            None => Some(PathBuf::from(text)),
        }
    }

    /// The path that must be readable for a variable with the path of a token: the file, or its directory if the path
    /// is a link. Kubernetes renews a token by replacing what its link leads to.
    pub(super) fn token_place(&self, name: &str) -> Option<PathBuf> {
        let path = self.path(name)?;
        if path.is_symlink() { path.parent().map(Path::to_owned) } else { Some(path) }
    }

    /// Whether a variable is 1, on, yes or true, as the Hub's client and the AWS tools read flags.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|value| ["1", "on", "yes", "true"].iter().any(|truth| value.eq_ignore_ascii_case(truth)))
    }

    pub(super) fn home(&self) -> Option<&Path> {
        self.get("HOME").map(Path::new).filter(|home| home.is_absolute())
    }

    /// The settings of a builder of `object_store`, named like the variables that start with `prefix`.
    pub(super) fn settings<K: FromStr>(&self, prefix: &'static str) -> impl Iterator<Item = (K, &str)> {
        let named = self.0.keys().filter(move |name| name.starts_with(prefix));
        named.filter_map(|name| Some((name.to_ascii_lowercase().parse().ok()?, self.get(name)?)))
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for EnvironmentCopy {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> EnvironmentCopy {
        EnvironmentCopy(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl fmt::Debug for EnvironmentCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
