//! S3 and compatible servers: configured by the environment, and by the profiles of the AWS tools.

use std::path::PathBuf;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use url::Url;

use super::super::wire::HttpWire;
use super::super::{EnvironmentCopy, ErrorKind, TransportResult};
use super::bucket::{OpenedBucket, advise, no_retries};
use super::profile::{AwsProfile, ProfileProvider, profile_files};
use crate::remote::location::{StoreKind, is_loopback};

const KEYS: [&str; 2] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];

/// Variables with which `object_store` finds credentials by itself.
const CONTAINER: [&str; 2] = ["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"];

/// Opens a bucket. Credentials are the first of: keys in the environment, a web identity, the profile, the container's
/// service, the machine's service. A profile that is named must exist.
pub(super) fn open_s3(wire: &HttpWire, bucket: &str, region: Option<&str>) -> TransportResult<OpenedBucket> {
    let environment = &wire.options().environment;
    let mut builder = AmazonS3Builder::new();
    for (key, value) in environment.settings("AWS_") {
        builder = builder.with_config(key, value);
    }
    let anonymous = environment.flag("AWS_SKIP_SIGNATURE");
    let profile = AwsProfile::load(environment)?;
    let configured = builder.get_config_value(&AmazonS3ConfigKey::Region);
    let region = region.or(configured.as_deref()).or_else(|| environment.get("AWS_DEFAULT_REGION"));
    if let Some(region) = region.or_else(|| profile.get("region")) {
        builder = builder.with_region(region);
    }
    let variables = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    let mut endpoint = variables.iter().find_map(|name| environment.get(name));
    if endpoint.is_none() && !environment.flag("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") {
        endpoint = profile.get("endpoint_url");
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint);
        }
    }
    if !anonymous && !has_own_keys(environment) {
        if let Some(provider) = ProfileProvider::of(&profile, environment)? {
            builder = builder.with_credentials(Arc::new(provider));
        } else if !CONTAINER.iter().any(|name| environment.has(name)) && environment.flag("AWS_EC2_METADATA_DISABLED") {
            let error = ErrorKind::Credentials.error("no credentials are configured");
            return Err(advise(error, StoreKind::S3));
        }
    }
    let url = endpoint.and_then(|endpoint| Url::parse(endpoint).ok());
    if url.is_some_and(|url| url.scheme() == "http" && !is_loopback(&url)) {
        log::warn!(
            "s3://{bucket}: the endpoint is unencrypted http: others on the network path can read and change what is sent"
        );
    }
    let endpoint = endpoint.map(|endpoint| endpoint.trim_end_matches('/').to_string());
    let builder = builder.with_bucket_name(bucket).with_skip_signature(anonymous).with_retry(no_retries());
    OpenedBucket::new(builder.with_http_connector(wire.clone()).build(), StoreKind::S3, anonymous, endpoint)
}

/// Whether the environment names credentials that go before those of a profile: keys, or a web identity.
fn has_own_keys(environment: &EnvironmentCopy) -> bool {
    let web = environment.has("AWS_WEB_IDENTITY_TOKEN_FILE") && environment.has("AWS_ROLE_ARN");
    web || KEYS.iter().any(|name| environment.has(name))
}

/// The origin of the credentials, in the order of [`open_s3`].
pub(super) fn aws_credentials_found(environment: &EnvironmentCopy) -> TransportResult<Option<String>> {
    if environment.flag("AWS_SKIP_SIGNATURE") {
        return Ok(None);
    }
    if let Some(name) = KEYS.iter().find(|name| environment.has(name)) {
        return Ok(Some(format!("the variable {name}")));
    }
    if has_own_keys(environment) {
        return Ok(Some("the web identity of AWS_WEB_IDENTITY_TOKEN_FILE".into()));
    }
    let profile = AwsProfile::load(environment)?;
    if let Some(provider) = ProfileProvider::of(&profile, environment)? {
        let how = if provider.program.is_some() { ", which runs a program" } else { "" };
        return Ok(Some(format!("the AWS profile {}{how}", profile.name)));
    }
    if let Some(name) = CONTAINER.iter().find(|name| environment.has(name)) {
        return Ok(Some(format!("the container's service, named by {name}")));
    }
    let is_disabled = environment.flag("AWS_EC2_METADATA_DISABLED");
    Ok((!is_disabled).then(|| "the service of the machine, if it is in AWS".into()))
}

pub(super) fn aws_program(environment: &EnvironmentCopy) -> Option<String> {
    if environment.flag("AWS_SKIP_SIGNATURE") || has_own_keys(environment) {
        return None;
    }
    let provider = ProfileProvider::of(&AwsProfile::load(environment).ok()?, environment).ok()??;
    provider.program.map(|program| format!("the AWS profile {} runs a program", program.profile))
}

pub(super) fn aws_reads(environment: &EnvironmentCopy) -> Vec<PathBuf> {
    let tokens = ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"];
    let tokens = tokens.into_iter().filter_map(|name| environment.token_place(name));
    profile_files(environment).into_iter().flatten().chain(tokens).collect()
}
