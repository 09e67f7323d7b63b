//! Profiles of the AWS tools: `~/.aws/config` and `~/.aws/credentials`. Static keys are read here; keys of a
//! `credential_process` come from this program; logins (SSO) and assumed roles come from the AWS command line.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use serde::Deserialize;
use tokio::process::Command;
use tokio::sync::Mutex;

use super::super::environment::EnvironmentCopy;
use super::super::error::{ErrorKind, TransportError};
use super::failure::CarriedError;

/// The time limit for a program. A login may ask the user in a browser.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keys are renewed this long before they expire.
const MARGIN: Duration = Duration::from_secs(300);

/// The settings of one profile, from both files.
#[derive(Default)]
pub(super) struct AwsProfile {
    name: String,
    values: BTreeMap<String, String>,
    /// The section that `services` names.
    services: BTreeMap<String, String>,
}

/// Values may be keys.
impl fmt::Debug for AwsProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").field("name", &self.name).field("values", &self.values.keys()).finish()
    }
}

impl AwsProfile {
    /// Reads the profile that the environment names, or `default`.
    ///
    /// # Errors
    /// A profile is named and neither file has it.
    pub(super) fn load(environment: &EnvironmentCopy) -> Result<AwsProfile, TransportError> {
        let named = environment.get("AWS_PROFILE").or_else(|| environment.get("AWS_DEFAULT_PROFILE"));
        let name = named.unwrap_or("default");
        let read = |path: Option<PathBuf>| path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        let [config, credentials] = profile_files(environment).map(|path| sections(&read(path)));
        let in_config =
            config.get(&format!("profile {name}")).or_else(|| config.get(name).filter(|_| name == "default"));
        let in_credentials = credentials.get(name);
        if named.is_some() && in_config.is_none() && in_credentials.is_none() {
            let text = format!("the AWS profile {name} is neither in the config file nor in the credentials file");
            return Err(TransportError::new(ErrorKind::Credentials, text));
        }
        let mut values = in_config.cloned().unwrap_or_default();
        values.extend(in_credentials.cloned().unwrap_or_default());
        let services = values.get("services").and_then(|name| config.get(&format!("services {name}")));
        Ok(AwsProfile { name: name.to_string(), services: services.cloned().unwrap_or_default(), values })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The server for S3.
    pub(super) fn endpoint(&self) -> Option<&str> {
        let service = self.services.get("s3.endpoint_url").map(String::as_str).filter(|value| !value.is_empty());
        service.or_else(|| self.get("endpoint_url"))
    }
}

/// The two files of the AWS tools: the configuration and the credentials.
pub(super) fn profile_files(environment: &EnvironmentCopy) -> [Option<PathBuf>; 2] {
    [("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")].map(|(variable, name)| {
        environment.path(variable).or_else(|| Some(environment.home()?.join(".aws").join(name)))
    })
}

/// Parses the INI dialect of AWS: indented lines below an empty value are values of their own, `s3.endpoint_url`.
fn sections(text: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut sections: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let (mut section, mut outer) = (None, String::new());
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[') {
            let name = name.split(']').next().unwrap_or("");
            let name = name.split_whitespace().map(|part| part.trim_matches(['"', '\''])).collect::<Vec<_>>().join(" ");
            sections.entry(name.clone()).or_default();
            (section, outer) = (Some(name), String::new());
            continue;
        }
        let (Some(section), Some((key, value))) = (&section, trimmed.split_once('=')) else { continue };
        // A comment starts at white space before its sign.
        let value = [" #", " ;", "\t#", "\t;"].iter().fold(value, |value, sign| value.split(sign).next().unwrap_or(""));
        let (mut key, value) = (key.trim().to_ascii_lowercase(), value.trim().to_string());
        if line.starts_with(char::is_whitespace) && !outer.is_empty() {
            key = format!("{outer}.{key}");
        } else {
            outer = if value.is_empty() { key.clone() } else { String::new() };
        }
        sections.entry(section.clone()).or_default().insert(key, value);
    }
    sections
}

/// Gives the keys of a profile, and renews them.
#[derive(Debug)]
pub(super) struct ProfileProvider {
    origin: KeyOrigin,
    current: Mutex<Option<(Arc<AwsCredential>, Option<SystemTime>)>>,
}

enum KeyOrigin {
    Keys(Arc<AwsCredential>),
    /// A program and its arguments. The text for errors does not repeat them.
    Program {
        program: String,
        arguments: Vec<String>,
        name: &'static str,
        profile: String,
    },
}

impl fmt::Debug for KeyOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyOrigin::Keys(_) => f.write_str("Keys"),
            KeyOrigin::Program { name, .. } => f.write_str(name),
        }
    }
}

impl ProfileProvider {
    /// The provider of a profile; `None` if the profile has no credentials.
    ///
    /// # Errors
    /// The profile has half a pair of keys.
    pub(super) fn of(
        profile: &AwsProfile,
        environment: &EnvironmentCopy,
    ) -> Result<Option<ProfileProvider>, TransportError> {
        let logins = ["sso_session", "sso_start_url", "role_arn", "login_session"];
        let pair = (profile.get("aws_access_key_id"), profile.get("aws_secret_access_key"));
        let origin = if let Some(role) = profile.get("role_arn")
            && (profile.get("source_profile").is_some() || profile.get("credential_source").is_some())
        {
            log::debug!("the role {role} is assumed by the AWS command line");
            KeyOrigin::export(profile, environment)
        } else if let (Some(id), Some(key)) = pair {
            let token = profile.get("aws_session_token").map(str::to_string);
            KeyOrigin::Keys(Arc::new(AwsCredential { key_id: id.to_string(), secret_key: key.to_string(), token }))
        } else if pair.0.is_some() || pair.1.is_some() {
            let text = format!("the AWS profile {} has only one of key id and secret key", profile.name);
            return Err(TransportError::new(ErrorKind::Credentials, text));
        } else if let Some(process) = profile.get("credential_process") {
            KeyOrigin::Program {
                program: "/bin/sh".to_string(),
                arguments: vec!["-c".to_string(), process.to_string()],
                name: "credential_process",
                profile: profile.name.clone(),
            }
        } else if logins.iter().any(|name| profile.get(name).is_some()) {
            KeyOrigin::export(profile, environment)
        } else {
            return Ok(None);
        };
        Ok(Some(ProfileProvider { origin, current: Mutex::default() }))
    }

    /// The name of the profile, if a program gives its keys.
    pub(super) fn runs_for(&self) -> Option<&str> {
        match &self.origin {
            KeyOrigin::Keys(_) => None,
            KeyOrigin::Program { profile, .. } => Some(profile),
        }
    }

    async fn keys(&self) -> Result<Arc<AwsCredential>, TransportError> {
        if let KeyOrigin::Keys(keys) = &self.origin {
            return Ok(keys.clone());
        }
        let mut current = self.current.lock().await;
        let now = SystemTime::now();
        if let Some((keys, expires)) = &*current
            && expires.is_none_or(|expires| now + MARGIN < expires)
        {
            return Ok(keys.clone());
        }
        let (keys, expires) = self.origin.run().await?;
        *current = Some((keys.clone(), expires));
        Ok(keys)
    }
}

impl KeyOrigin {
    /// The command of the AWS command line, version 2, which handles every kind of profile.
    fn export(profile: &AwsProfile, environment: &EnvironmentCopy) -> KeyOrigin {
        let arguments = ["configure", "export-credentials", "--format", "process", "--profile", &profile.name];
        KeyOrigin::Program {
            program: environment.get("AWS_CLI").unwrap_or("aws").to_string(),
            arguments: arguments.map(str::to_string).to_vec(),
            name: "aws configure export-credentials",
            profile: profile.name.clone(),
        }
    }

    async fn run(&self) -> Result<(Arc<AwsCredential>, Option<SystemTime>), TransportError> {
        let KeyOrigin::Program { program, arguments, name, profile } = self else {
            return Err(TransportError::new(ErrorKind::Credentials, "no program gives these keys"));
        };
        let failed = |what: &str| {
            TransportError::new(ErrorKind::Credentials, format!("`{name}` of the AWS profile {profile} {what}"))
        };
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output()).await;
        let output = output.map_err(|_| failed("takes too long"))?;
        let output = output.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => failed("is not installed; it needs version 2 of the AWS command line"),
            _ => failed("cannot be started"),
        })?;
        if !output.status.success() {
            return Err(failed("fails; run it in a shell to see why"));
        }
        let wrong = |_| failed("prints no credentials");
        let keys: PrintedKeys = serde_json::from_slice(&output.stdout).map_err(wrong)?;
        let expires = match keys.expiration {
            Some(text) => Some(text.parse::<jiff::Timestamp>().map_err(|_| failed("prints a wrong date"))?.into()),
            None => None,
        };
        let (key_id, secret_key, token) = (keys.access_key_id, keys.secret_access_key, keys.session_token);
        Ok((Arc::new(AwsCredential { key_id, secret_key, token }), expires))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PrintedKeys {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

#[async_trait::async_trait]
impl CredentialProvider for ProfileProvider {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.keys()
            .await
            .map_err(|error| object_store::Error::Generic { store: "S3", source: Box::new(CarriedError(error)) })
    }
}

#[cfg(test)]
mod tests;
