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

use super::super::{EnvironmentCopy, ErrorKind, TransportError, TransportResult};

/// The time limit for a program. A login may ask the user in a browser.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keys are renewed this long before they expire.
const MARGIN: Duration = Duration::from_secs(300);

#[derive(Default)]
pub(super) struct AwsProfile {
    pub name: String,
    values: BTreeMap<String, String>,
}

/// Values may be keys.
impl fmt::Debug for AwsProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").field("name", &self.name).field("values", &self.values.keys()).finish()
    }
}

impl AwsProfile {
    /// Reads the profile that the environment names, or `default`. Fails if a profile is named and neither file has it.
    pub fn load(environment: &EnvironmentCopy) -> TransportResult<AwsProfile> {
        let named = environment.get("AWS_PROFILE").or_else(|| environment.get("AWS_DEFAULT_PROFILE"));
        let name = named.unwrap_or("default");
        let texts = profile_files(environment).map(|path| path.and_then(|path| fs::read_to_string(path).ok()));
        let [config, credentials] = texts.map(|text| sections(&text.unwrap_or_default()));
        let in_config =
            config.get(&format!("profile {name}")).or_else(|| config.get(name).filter(|_| name == "default"));
        let in_credentials = credentials.get(name);
        if named.is_some() && in_config.is_none() && in_credentials.is_none() {
            let text = format!("the AWS profile {name} is neither in the config file nor in the credentials file");
            return Err(ErrorKind::Credentials.error(text));
        }
        let mut values = in_config.cloned().unwrap_or_default();
        values.extend(in_credentials.cloned().unwrap_or_default());
        // The server for S3 alone comes before that for all services.
        let services = values.get("services").and_then(|name| config.get(&format!("services {name}")));
        let endpoint = services.and_then(|services| services.get("s3.endpoint_url")).filter(|url| !url.is_empty());
        values.extend(endpoint.map(|url| ("endpoint_url".to_string(), url.clone())));
        Ok(AwsProfile { name: name.to_string(), values })
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
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
pub(super) struct ProfileProvider {
    /// The program that gives them; `None` for keys in a file.
    pub program: Option<KeyProgram>,
    /// With the time when they expire.
    current: Mutex<Option<(Arc<AwsCredential>, Option<SystemTime>)>>,
}

/// A program that prints keys. Neither errors nor `Debug` show its arguments.
pub(super) struct KeyProgram {
    command: Vec<String>,
    name: &'static str,
    pub profile: String,
}

impl fmt::Debug for ProfileProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program.as_ref().map_or("Keys", |program| program.name))
    }
}

impl ProfileProvider {
    /// The provider of a profile; `None` if the profile has no credentials. Fails if it has half a pair of keys.
    pub fn of(profile: &AwsProfile, environment: &EnvironmentCopy) -> TransportResult<Option<ProfileProvider>> {
        let has = |names: &[&str]| names.iter().any(|name| profile.get(name).is_some());
        let pair = (profile.get("aws_access_key_id"), profile.get("aws_secret_access_key"));
        let mut keys = None;
        let program = if has(&["role_arn"]) && has(&["source_profile", "credential_source"]) {
            Some(KeyProgram::export(profile, environment))
        } else if let (Some(id), Some(key)) = pair {
            let token = profile.get("aws_session_token").map(str::to_string);
            keys = Some((Arc::new(AwsCredential { key_id: id.into(), secret_key: key.into(), token }), None));
            None
        } else if pair.0.is_some() || pair.1.is_some() {
            let text = format!("the AWS profile {} has only one of key id and secret key", profile.name);
            return Err(ErrorKind::Credentials.error(text));
        } else if let Some(process) = profile.get("credential_process") {
            let command = ["/bin/sh", "-c", process].map(str::to_string).to_vec();
            Some(KeyProgram { command, name: "credential_process", profile: profile.name.clone() })
        } else if has(&["sso_session", "sso_start_url", "role_arn", "login_session"]) {
            Some(KeyProgram::export(profile, environment))
        } else {
            return Ok(None);
        };
        Ok(Some(ProfileProvider { program, current: Mutex::new(keys) }))
    }

    async fn keys(&self) -> TransportResult<Arc<AwsCredential>> {
        let mut current = self.current.lock().await;
        let now = SystemTime::now();
        match (&*current, &self.program) {
            (Some((keys, expires)), _) if expires.is_none_or(|expires| now + MARGIN < expires) => Ok(keys.clone()),
            (_, Some(program)) => {
                let keys = program.run().await?;
                Ok(current.insert(keys).0.clone())
            }
            (_, None) => Err(ErrorKind::Credentials.error("no program gives these keys")),
        }
    }
}

impl KeyProgram {
    /// The command of the AWS command line, version 2, which handles every kind of profile.
    fn export(profile: &AwsProfile, environment: &EnvironmentCopy) -> KeyProgram {
        let program = environment.get("AWS_CLI").unwrap_or("aws");
        let command = [program, "configure", "export-credentials", "--format", "process", "--profile", &profile.name];
        KeyProgram {
            command: command.map(str::to_string).to_vec(),
            name: "aws configure export-credentials",
            profile: profile.name.clone(),
        }
    }

    async fn run(&self) -> TransportResult<(Arc<AwsCredential>, Option<SystemTime>)> {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output()).await;
        let output = output.map_err(|_| self.failure("takes too long"))?;
        let output = output.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                self.failure("is not installed; it needs version 2 of the AWS command line")
            }
            _ => self.failure("cannot be started"),
        })?;
        if !output.status.success() {
            return Err(self.failure("fails; run it in a shell to see why"));
        }
        let keys: PrintedKeys =
            serde_json::from_slice(&output.stdout).map_err(|_| self.failure("prints no credentials"))?;
        let expires = keys.expiration.map(|text| text.parse::<jiff::Timestamp>().map(SystemTime::from));
        let expires = expires.transpose().map_err(|_| self.failure("prints a wrong date"))?;
        let (key_id, secret_key, token) = (keys.access_key_id, keys.secret_access_key, keys.session_token);
        Ok((Arc::new(AwsCredential { key_id, secret_key, token }), expires))
    }

    fn failure(&self, what: &str) -> TransportError {
        let Self { command: _, name, profile } = self;
        ErrorKind::Credentials.error(format!("`{name}` of the AWS profile {profile} {what}"))
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
        self.keys().await.map_err(|error| object_store::Error::Generic { store: "S3", source: Box::new(error) })
    }
}

#[cfg(test)]
mod tests;
