//! Settings of the Hub in the environment: its address, the token, the cache, and whether requests are allowed.

use std::path::PathBuf;

use url::Url;

use super::super::environment::EnvironmentCopy;
use super::super::error::{ErrorKind, TransportError};
use super::super::options::TransportOptions;
use super::super::secret::{AuthorizationValue, SecretText};
use super::super::web::read_token;
use crate::remote::location::{HubLocation, RepoKind};

/// The settings of the Hub's own client.
#[derive(Clone, Debug)]
pub(super) struct HubSettings {
    /// `HF_ENDPOINT`, or huggingface.co.
    pub(super) endpoint: Url,
    /// The directory with the repositories of the cache, `HF_HUB_CACHE`.
    pub(super) cache: Option<PathBuf>,
    pub(super) offline: bool,
    token: HubToken,
}

/// Variables that hold a token.
const TOKENS: [&str; 2] = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];

#[derive(Clone, Debug)]
enum HubToken {
    None,
    Text(SecretText),
    /// A file that must be there.
    File(PathBuf),
    /// Where a login leaves the token, if there was one. Logins are renewed, so it is read for each request.
    Login(PathBuf),
}

impl HubSettings {
    pub(super) fn new(options: &TransportOptions) -> Result<HubSettings, TransportError> {
        let environment = &options.environment;
        let endpoint = environment.get("HF_ENDPOINT").unwrap_or("https://huggingface.co");
        let wrong = || TransportError::new(ErrorKind::Invalid, "HF_ENDPOINT is not an http or https URL");
        let mut endpoint = Url::parse(endpoint).map_err(|_| wrong())?;
        if !matches!(endpoint.scheme(), "https" | "http") || !endpoint.username().is_empty() {
            return Err(wrong());
        }
        endpoint.set_query(None);
        endpoint.set_fragment(None);
        let (cache, login) = (cache_dir(environment), login_file(environment));
        let text = TOKENS.iter().find_map(|name| environment.get(name));
        let token = if options.anonymous {
            HubToken::None
        } else if let Some(path) = &options.token_file {
            HubToken::File(path.clone())
        } else if environment.flag("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            HubToken::None
        } else {
            match (text, login) {
                (Some(text), _) => HubToken::Text(SecretText::new(text)),
                (None, Some(path)) => HubToken::Login(path),
                (None, None) => HubToken::None,
            }
        };
        let offline = options.offline || environment.flag("HF_HUB_OFFLINE") || environment.flag("TRANSFORMERS_OFFLINE");
        Ok(HubSettings { endpoint, cache, offline, token })
    }

    /// The token, if there is one, for the endpoint alone.
    pub(super) fn authorization(&self) -> Result<Option<AuthorizationValue>, TransportError> {
        let token = match &self.token {
            HubToken::None => None,
            HubToken::Text(token) => Some(token.clone()),
            HubToken::File(path) => Some(read_token(path)?),
            HubToken::Login(path) => read_token(path).ok(),
        };
        Ok(token.map(|token| AuthorizationValue::bearer(&token, &self.endpoint)))
    }

    /// The address of a file at a commit.
    pub(super) fn file_url(&self, place: &HubLocation, commit: &str) -> Result<Url, TransportError> {
        let mut url = self.endpoint.clone();
        if place.kind != RepoKind::Model {
            push(&mut url, place.kind.plural())?;
        }
        for part in [&place.repo, "resolve", commit, &place.path] {
            push(&mut url, part)?;
        }
        Ok(url)
    }

    /// The address of a request about a repository.
    pub(super) fn api_url(&self, place: &HubLocation, verb: &str, revision: &str) -> Result<Url, TransportError> {
        let mut url = self.endpoint.clone();
        for part in ["api", place.kind.plural(), &place.repo, verb] {
            push(&mut url, part)?;
        }
        // A slash of the revision is encoded, as the Hub takes one component.
        let mut segments =
            url.path_segments_mut().map_err(|()| TransportError::new(ErrorKind::Invalid, "not a URL with a path"))?;
        segments.push(revision);
        drop(segments);
        Ok(url)
    }
}

fn home(environment: &EnvironmentCopy) -> Option<PathBuf> {
    let cache_home = || environment.path("XDG_CACHE_HOME").or_else(|| Some(environment.home()?.join(".cache")));
    environment.path("HF_HOME").or_else(|| Some(cache_home()?.join("huggingface")))
}

fn cache_dir(environment: &EnvironmentCopy) -> Option<PathBuf> {
    let named = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"].iter().find_map(|name| environment.path(name));
    named.or_else(|| Some(home(environment)?.join("hub")))
}

fn login_file(environment: &EnvironmentCopy) -> Option<PathBuf> {
    environment.path("HF_TOKEN_PATH").or_else(|| Some(home(environment)?.join("token")))
}

/// The origin of the token for the Hub.
pub(in super::super) fn hub_settings_found(options: &TransportOptions) -> Result<Option<String>, TransportError> {
    Ok(match HubSettings::new(options)?.token {
        HubToken::None => None,
        HubToken::Text(_) => {
            let name = TOKENS.iter().find(|name| options.environment.get(name).is_some());
            name.map(|name| format!("the variable {name}"))
        }
        HubToken::File(path) => read_token(&path).map(|_| Some(format!("the token file {}", path.display())))?,
        HubToken::Login(path) => read_token(&path).ok().map(|_| format!("the login in {}", path.display())),
    })
}

/// The files and directories that are read for the Hub. A login replaces its file, so the directory is among them.
pub(in super::super) fn hub_reads(environment: &EnvironmentCopy) -> Vec<PathBuf> {
    [home(environment), cache_dir(environment), login_file(environment)].into_iter().flatten().collect()
}

/// Appends components to the path of a URL, percent-encoded.
pub(super) fn push(url: &mut Url, path: &str) -> Result<(), TransportError> {
    let mut segments =
        url.path_segments_mut().map_err(|()| TransportError::new(ErrorKind::Invalid, "not a URL with a path"))?;
    segments.pop_if_empty().extend(path.split('/').filter(|part| !part.is_empty()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::location::RemoteLocation;

    fn settings(variables: &[(&str, &str)]) -> HubSettings {
        let environment = variables.iter().map(|(name, value)| (*name, *value)).collect();
        HubSettings::new(&TransportOptions { environment, ..TransportOptions::default() }).unwrap()
    }

    fn place(text: &str) -> HubLocation {
        match RemoteLocation::parse(text).unwrap().unwrap() {
            RemoteLocation::Hub(hub) => hub,
            _ => panic!("{text}"),
        }
    }

    #[test]
    fn addresses_encode_names_and_revisions() {
        let hub = settings(&[("HF_ENDPOINT", "https://mirror.example/hf/")]);
        let place = place("hf://datasets/a/b@refs%2Fpr%2F1/x y/ä?#%.bin");
        assert_eq!(
            hub.file_url(&place, "c0").unwrap().as_str(),
            "https://mirror.example/hf/datasets/a/b/resolve/c0/x%20y/%C3%A4%3F%23%25.bin"
        );
        assert_eq!(
            hub.api_url(&place, "revision", "refs/pr/1").unwrap().as_str(),
            "https://mirror.example/hf/api/datasets/a/b/revision/refs%2Fpr%2F1"
        );
    }

    #[test]
    fn tokens_and_folders_come_from_where_the_hubs_client_has_them() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap();
        std::fs::create_dir_all(dir.path().join(".cache/huggingface")).unwrap();
        std::fs::write(dir.path().join(".cache/huggingface/token"), "LOGIN\n").unwrap();
        std::fs::write(dir.path().join("other"), "OTHER").unwrap();
        let other = format!("{home}/other");
        let token = |settings: &HubSettings| {
            let header = settings.authorization().unwrap()?.header()?;
            Some(header.to_str().unwrap().to_string())
        };
        let found = settings(&[("HOME", home)]);
        assert_eq!(token(&found), Some("Bearer LOGIN".into()));
        assert_eq!(found.cache, Some(dir.path().join(".cache/huggingface/hub")));
        assert_eq!(token(&settings(&[("HOME", home), ("HF_TOKEN", " ENV\n")])), Some("Bearer ENV".into()));
        assert_eq!(token(&settings(&[("HOME", home), ("HF_TOKEN_PATH", &other)])), Some("Bearer OTHER".into()));
        assert_eq!(token(&settings(&[("HOME", home), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "YES")])), None);
        assert_eq!(token(&settings(&[("HOME", "/nonexistent")])), None);
        assert_eq!(token(&settings(&[])), None);
        let moved = settings(&[("HOME", home), ("XDG_CACHE_HOME", "/x"), ("HF_HUB_OFFLINE", "1")]);
        assert_eq!((moved.cache, moved.offline), (Some("/x/huggingface/hub".into()), true));
        let moved = settings(&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "~/c"), ("HOME", home)]);
        assert_eq!(moved.cache, Some(dir.path().join("c")));
    }
}
