//! Google Cloud Storage: configured by the variables of `object_store` (`GOOGLE_*`) and by Google's own
//! `GOOGLE_APPLICATION_CREDENTIALS`, the login of gcloud and `STORAGE_EMULATOR_HOST`.

use std::path::PathBuf;
use std::sync::Arc;

use object_store::RetryConfig;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};

use super::super::environment::EnvironmentCopy;
use super::super::error::TransportError;
use super::bucket::OpenedBucket;
use super::connector::StoreConnector;
use super::failure::translate;
use crate::remote::location::StoreKind;

pub(super) fn open_google(
    environment: &EnvironmentCopy,
    anonymous: bool,
    bucket: &str,
    connector: StoreConnector,
) -> Result<OpenedBucket, TransportError> {
    let mut builder = GoogleCloudStorageBuilder::new();
    if let Some(path) = environment.get("SERVICE_ACCOUNT") {
        builder = builder.with_config(GoogleConfigKey::ServiceAccount, path);
    }
    for (name, value) in environment.starting_with("GOOGLE_").filter(|(_, value)| !value.is_empty()) {
        if let Ok(key) = name.to_ascii_lowercase().parse::<GoogleConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    let emulator = environment.get("STORAGE_EMULATOR_HOST").map(|host| {
        let scheme = if host.contains("://") { "" } else { "http://" };
        format!("{scheme}{}", host.trim_end_matches('/'))
    });
    let mut anonymous = anonymous || environment.flag("GOOGLE_SKIP_SIGNATURE");
    if let Some(emulator) = &emulator {
        builder = builder.with_base_url(emulator);
        anonymous = true;
    }
    let endpoint = emulator.or_else(|| builder.get_config_value(&GoogleConfigKey::BaseUrl));
    let builder = builder
        .with_bucket_name(bucket)
        .with_skip_signature(anonymous)
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_http_connector(connector);
    let store = builder.build().map_err(|error| translate(error, StoreKind::Gcs))?;
    Ok(OpenedBucket { store: Arc::new(store), anonymous, endpoint })
}

/// Where the credentials come from. The last place is the machine, if it is in Google's cloud.
pub(super) fn google_credentials_found(environment: &EnvironmentCopy) -> Option<String> {
    if environment.flag("GOOGLE_SKIP_SIGNATURE") || environment.get("STORAGE_EMULATOR_HOST").is_some() {
        return None;
    }
    if environment.get("GOOGLE_SERVICE_ACCOUNT_KEY").is_some() {
        return Some("the variable GOOGLE_SERVICE_ACCOUNT_KEY".into());
    }
    let file = google_reads(environment).into_iter().find(|path| path.is_file());
    Some(
        file.map_or("the service of the machine, if it is in Google's cloud".into(), |path| path.display().to_string()),
    )
}

/// The files that are read for credentials. `object_store` finds the login of gcloud in the same way.
pub(super) fn google_reads(environment: &EnvironmentCopy) -> Vec<PathBuf> {
    let names =
        ["SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS"];
    let login = environment.home().map(|home| home.join(".config/gcloud/application_default_credentials.json"));
    names.iter().filter_map(|name| environment.path(name)).chain(login).collect()
}
