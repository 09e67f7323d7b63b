//! Settings of the Hub in the environment: its address, the token, the cache, and whether requests are allowed.

use std::path::PathBuf;

use url::{PathSegmentsMut, Url};

use super::super::secret::{AuthorizationValue, SecretText};
use super::super::web::read_token;
use super::super::{EnvironmentCopy, ErrorKind, TransportOptions, TransportResult};
use super::cache::HubCache;
use crate::remote::location::{HubLocation, RepoKind};

#[derive(Clone, Debug)]
pub(super) struct HubSettings {
    /// `HF_ENDPOINT`, or huggingface.co.
    pub endpoint: Url,
    /// The directory with the repositories of the cache, `HF_HUB_CACHE`.
    pub cache: Option<HubCache>,
    pub offline: bool,
    token: HubToken,
}

const TOKENS: [&str; 2] = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];

#[derive(Clone, Debug)]
enum HubToken {
    None,
    /// Of the variable with this name.
    Variable(&'static str, SecretText),
    /// A file that must be there.
    File(PathBuf),
    /// The file in which a login leaves the token, if there was one. Logins are renewed, so it is read for each
    /// request.
    Login(PathBuf),
}

impl HubSettings {
    pub fn new(options: &TransportOptions) -> TransportResult<HubSettings> {
        let environment = &options.environment;
        let endpoint = environment.get("HF_ENDPOINT").unwrap_or("https://huggingface.co");
        let mut endpoint = Url::parse(endpoint)
            .ok()
            .filter(|url| matches!(url.scheme(), "https" | "http") && url.username().is_empty())
            .ok_or_else(|| ErrorKind::Invalid.error("HF_ENDPOINT is not an http or https URL"))?;
        endpoint.set_query(None);
        endpoint.set_fragment(None);
        let cache = cache_dir(environment).map(HubCache);
        let variable = TOKENS.iter().find_map(|name| Some((*name, environment.get(name)?)));
        let token = if let Some(path) = &options.token_file {
            HubToken::File(path.clone())
        } else if environment.flag("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            HubToken::None
        } else if let Some((name, text)) = variable {
            HubToken::Variable(name, SecretText::new(text))
        } else {
            login_file(environment).map_or(HubToken::None, HubToken::Login)
        };
        let offline = options.offline || environment.flag("HF_HUB_OFFLINE") || environment.flag("TRANSFORMERS_OFFLINE");
        Ok(HubSettings { endpoint, cache, offline, token })
    }

    pub fn authorization(&self) -> TransportResult<Option<AuthorizationValue>> {
        let token = match &self.token {
            HubToken::None => None,
            HubToken::Variable(_, token) => Some(token.clone()),
            HubToken::File(path) => Some(read_token(path)?),
            HubToken::Login(path) => read_token(path).ok(),
        };
        Ok(token.map(|token| AuthorizationValue::bearer(&token, &self.endpoint)))
    }

    pub fn file_url(&self, place: &HubLocation, commit: &str) -> TransportResult<Url> {
        let kind = if place.kind == RepoKind::Model { "" } else { place.kind.plural() };
        self.url(&[kind, &place.repo, "resolve", commit, &place.path])
    }

    pub fn api_url(&self, place: &HubLocation, verb: &str, revision: &str) -> TransportResult<Url> {
        let mut url = self.url(&["api", place.kind.plural(), &place.repo, verb])?;
        // A slash of the revision is encoded, as the Hub takes one component.
        segments(&mut url)?.push(revision);
        Ok(url)
    }

    fn url(&self, paths: &[&str]) -> TransportResult<Url> {
        let mut url = self.endpoint.clone();
        paths.iter().try_for_each(|path| push(&mut url, path))?;
        Ok(url)
    }
}

fn home(environment: &EnvironmentCopy) -> Option<PathBuf> {
    environment.path("HF_HOME").or_else(|| {
        let cache = environment.path("XDG_CACHE_HOME").or_else(|| Some(environment.home()?.join(".cache")));
        Some(cache?.join("huggingface"))
    })
}

fn cache_dir(environment: &EnvironmentCopy) -> Option<PathBuf> {
    let named = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"].iter().find_map(|name| environment.path(name));
    named.or_else(|| Some(home(environment)?.join("hub")))
}

fn login_file(environment: &EnvironmentCopy) -> Option<PathBuf> {
    environment.path("HF_TOKEN_PATH").or_else(|| Some(home(environment)?.join("token")))
}

pub(in super::super) fn hub_settings_found(options: &TransportOptions) -> TransportResult<Option<String>> {
    Ok(match HubSettings::new(options)?.token {
        HubToken::None => None,
        HubToken::Variable(name, _) => Some(format!("the variable {name}")),
        HubToken::File(path) => read_token(&path).map(|_| Some(format!("the token file {}", path.display())))?,
        HubToken::Login(path) => read_token(&path).ok().map(|_| format!("the login in {}", path.display())),
    })
}

/// The files and directories that are read for the Hub. A login replaces its file, so the directory is among them.
pub(in super::super) fn hub_reads(environment: &EnvironmentCopy) -> Vec<PathBuf> {
    [home(environment), cache_dir(environment), login_file(environment)].into_iter().flatten().collect()
}

/// Appends components to the path of a URL, percent-encoded.
pub(super) fn push(url: &mut Url, path: &str) -> TransportResult<()> {
    segments(url)?.pop_if_empty().extend(path.split('/').filter(|part| !part.is_empty()));
    Ok(())
}

fn segments(url: &mut Url) -> TransportResult<PathSegmentsMut<'_>> {
    url.path_segments_mut().map_err(|()| ErrorKind::Invalid.error("not a URL with a path"))
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
        assert_eq!(found.cache, Some(HubCache(dir.path().join(".cache/huggingface/hub"))));
        assert_eq!(token(&settings(&[("HOME", home), ("HF_TOKEN", " ENV\n")])), Some("Bearer ENV".into()));
        assert_eq!(token(&settings(&[("HOME", home), ("HF_TOKEN_PATH", &other)])), Some("Bearer OTHER".into()));
        assert_eq!(token(&settings(&[("HOME", home), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "YES")])), None);
        assert_eq!(token(&settings(&[("HOME", "/nonexistent")])), None);
        assert_eq!(token(&settings(&[])), None);
        let moved = settings(&[("HOME", home), ("XDG_CACHE_HOME", "/x"), ("HF_HUB_OFFLINE", "1")]);
        assert_eq!((moved.cache, moved.offline), (Some(HubCache("/x/huggingface/hub".into())), true));
        let moved = settings(&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "~/c"), ("HOME", home)]);
        assert_eq!(moved.cache, Some(HubCache(dir.path().join("c"))));
    }
}
