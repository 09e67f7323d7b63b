//! The environment variables that configure transports, taken once, so that a caller can leave some out.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// A copy of environment variables. Its `Debug` shows names only, as values may be secrets.
#[derive(Clone, Default)]
pub struct EnvironmentCopy(BTreeMap<String, String>);

impl EnvironmentCopy {
    /// The environment of this process, without what is not UTF-8.
    pub fn of_process() -> EnvironmentCopy {
        let text = |text: std::ffi::OsString| text.into_string().ok();
        EnvironmentCopy(std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect())
    }

    /// The value of a variable, trimmed; `None` if it is empty or not there.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// A variable that holds a path.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        let text = self.get(name)?;
        match text.strip_prefix("~/") {
            Some(rest) => Some(self.home()?.join(rest)),
            None => Some(PathBuf::from(text)),
        }
    }

    /// What must be readable for a variable that holds the path of a token: the file, or its directory if the path is a
    /// link. Kubernetes renews a token by replacing what its link leads to.
    pub(super) fn token_place(&self, name: &str) -> Option<PathBuf> {
        let path = self.path(name)?;
        if path.is_symlink() { path.parent().map(Path::to_owned) } else { Some(path) }
    }

    /// Whether a variable is 1, on, yes or true, as the Hub's client and the AWS tools read flags.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|value| ["1", "on", "yes", "true"].iter().any(|truth| value.eq_ignore_ascii_case(truth)))
    }

    /// The home directory.
    pub(super) fn home(&self) -> Option<&Path> {
        self.get("HOME").map(Path::new).filter(|home| home.is_absolute())
    }

    /// All variables whose name starts with `prefix`.
    pub(super) fn starting_with(&self, prefix: &'static str) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.trim()))
            .filter(move |(name, _)| name.starts_with(prefix))
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
