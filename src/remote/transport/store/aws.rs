//! S3 and compatible servers: configured by the environment, and by the profiles of the AWS tools.

use std::path::PathBuf;
use std::sync::Arc;

use object_store::RetryConfig;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

use super::super::environment::EnvironmentCopy;
use super::super::error::{ErrorKind, TransportError};
use super::bucket::OpenedBucket;
use super::connector::StoreConnector;
use super::failure::translate;
use super::profile::{self, AwsProfile, ProfileProvider};
use crate::remote::location::{StoreKind, is_loopback};

/// Variables with which `object_store` finds credentials by itself.
const CONTAINER: [&str; 2] = ["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"];

/// Opens a bucket. Credentials are the first of: keys in the environment, a web identity, the profile, the container's
/// service, the machine's service. A profile that is named must exist.
pub(super) fn open_s3(
    environment: &EnvironmentCopy,
    anonymous: bool,
    bucket: &str,
    region: Option<&str>,
    connector: StoreConnector,
) -> Result<OpenedBucket, TransportError> {
    let mut builder = AmazonS3Builder::new();
    for (name, value) in environment.starting_with("AWS_").filter(|(_, value)| !value.is_empty()) {
        if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    let anonymous = anonymous || environment.flag("AWS_SKIP_SIGNATURE");
    let has = |name| environment.get(name).is_some();
    let profile = AwsProfile::load(environment)?;

    let configured = region.map(str::to_string).or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Region));
    let configured = configured.or_else(|| environment.get("AWS_DEFAULT_REGION").map(str::to_string));
    if let Some(region) = configured.as_deref().or_else(|| profile.get("region")) {
        builder = builder.with_region(region);
    }
    let variables = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    let mut endpoint = variables.iter().find_map(|name| environment.get(name));
    if endpoint.is_none() && !environment.flag("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") {
        endpoint = profile.endpoint();
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint);
        }
    }
    if !anonymous && !has_own_keys(environment) {
        if let Some(provider) = ProfileProvider::of(&profile, environment)? {
            builder = builder.with_credentials(Arc::new(provider));
        } else if !CONTAINER.into_iter().any(has) && environment.flag("AWS_EC2_METADATA_DISABLED") {
            let error = TransportError::new(ErrorKind::Credentials, "no credentials are configured");
            return Err(super::failure::advise(error, StoreKind::S3));
        }
    }
    if endpoint.is_some_and(|endpoint| url::Url::parse(endpoint).is_ok_and(|url| is_open(&url))) {
        log::warn!(
            "s3://{bucket}: the endpoint is unencrypted http: others on the network path can read and change what is sent"
        );
    }
    let endpoint = endpoint.map(|endpoint| endpoint.trim_end_matches('/').to_string());
    let builder = builder
        .with_bucket_name(bucket)
        .with_skip_signature(anonymous)
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_http_connector(connector);
    let store = builder.build().map_err(|error| translate(error, StoreKind::S3))?;
    Ok(OpenedBucket { store: Arc::new(store), anonymous, endpoint })
}

/// Whether the environment names credentials that go before those of a profile: keys, or a web identity.
fn has_own_keys(environment: &EnvironmentCopy) -> bool {
    let has = |name| environment.get(name).is_some();
    let web = has("AWS_WEB_IDENTITY_TOKEN_FILE") && has("AWS_ROLE_ARN");
    web || has("AWS_ACCESS_KEY_ID") || has("AWS_SECRET_ACCESS_KEY")
}

/// Where the credentials come from, in the order of [`open_s3`].
pub(super) fn aws_credentials_found(environment: &EnvironmentCopy) -> Result<Option<String>, TransportError> {
    let has = |name| environment.get(name).is_some();
    if environment.flag("AWS_SKIP_SIGNATURE") {
        return Ok(None);
    }
    if let Some(name) = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].into_iter().find(|name| has(name)) {
        return Ok(Some(format!("the variable {name}")));
    }
    if has_own_keys(environment) {
        return Ok(Some("the web identity of AWS_WEB_IDENTITY_TOKEN_FILE".into()));
    }
    let profile = AwsProfile::load(environment)?;
    if let Some(provider) = ProfileProvider::of(&profile, environment)? {
        let how = if provider.runs_for().is_some() { ", which runs a program" } else { "" };
        return Ok(Some(format!("the AWS profile {}{how}", profile.name())));
    }
    if let Some(name) = CONTAINER.into_iter().find(|name| has(name)) {
        return Ok(Some(format!("the container's service, named by {name}")));
    }
    let is_disabled = environment.flag("AWS_EC2_METADATA_DISABLED");
    Ok((!is_disabled).then(|| "the service of the machine, if it is in AWS".into()))
}

/// Why a program must be run to get credentials, if so.
pub(super) fn aws_program(environment: &EnvironmentCopy, anonymous: bool) -> Option<String> {
    if anonymous || environment.flag("AWS_SKIP_SIGNATURE") || has_own_keys(environment) {
        return None;
    }
    let provider = ProfileProvider::of(&AwsProfile::load(environment).ok()?, environment).ok()??;
    provider.runs_for().map(|profile| format!("the AWS profile {profile} runs a program"))
}

/// The files and directories that are read for credentials.
pub(super) fn aws_reads(environment: &EnvironmentCopy) -> Vec<PathBuf> {
    let tokens = ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"];
    let tokens = tokens.into_iter().filter_map(|name| environment.token_place(name));
    profile::profile_files(environment).into_iter().flatten().chain(tokens).collect()
}

fn is_open(url: &url::Url) -> bool {
    url.scheme() == "http" && !is_loopback(url)
}
