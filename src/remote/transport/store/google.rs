//! Google Cloud Storage: configured by the variables of `object_store` (`GOOGLE_*`) and by Google's own
//! `GOOGLE_APPLICATION_CREDENTIALS`, the login of gcloud and `STORAGE_EMULATOR_HOST`.

use std::path::PathBuf;

use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};

use super::super::wire::HttpWire;
use super::super::{EnvironmentCopy, TransportResult};
use super::bucket::{OpenedBucket, no_retries};
use crate::remote::location::StoreKind;

pub(super) fn open_google(wire: &HttpWire, bucket: &str) -> TransportResult<OpenedBucket> {
    let environment = &wire.options().environment;
    let mut builder = GoogleCloudStorageBuilder::new();
    if let Some(path) = environment.get("SERVICE_ACCOUNT") {
        builder = builder.with_config(GoogleConfigKey::ServiceAccount, path);
    }
    for (key, value) in environment.settings("GOOGLE_") {
        builder = builder.with_config(key, value);
    }
    let emulator = environment.get("STORAGE_EMULATOR_HOST").map(|host| {
        let scheme = if host.contains("://") { "" } else { "http://" };
        format!("{scheme}{}", host.trim_end_matches('/'))
    });
    let mut anonymous = environment.flag("GOOGLE_SKIP_SIGNATURE");
    if let Some(emulator) = &emulator {
        builder = builder.with_base_url(emulator);
        anonymous = true;
    }
    let endpoint = emulator.or_else(|| builder.get_config_value(&GoogleConfigKey::BaseUrl));
    let builder = builder.with_bucket_name(bucket).with_skip_signature(anonymous).with_retry(no_retries());
    OpenedBucket::new(builder.with_http_connector(wire.clone()).build(), StoreKind::Gcs, anonymous, endpoint)
}

/// The origin of the credentials. The last one is the machine, if it is in Google's cloud.
pub(super) fn google_credentials_found(environment: &EnvironmentCopy) -> Option<String> {
    if environment.flag("GOOGLE_SKIP_SIGNATURE") || environment.get("STORAGE_EMULATOR_HOST").is_some() {
        return None;
    }
    if environment.get("GOOGLE_SERVICE_ACCOUNT_KEY").is_some() {
        return Some("the variable GOOGLE_SERVICE_ACCOUNT_KEY".into());
    }
    let file = google_reads(environment).into_iter().find(|path| path.is_file());
    let machine = "the service of the machine, if it is in Google's cloud".to_string();
    Some(file.map_or(machine, |path| path.display().to_string()))
}

/// The files that are read for credentials. `object_store` finds the login of gcloud in the same way.
pub(super) fn google_reads(environment: &EnvironmentCopy) -> Vec<PathBuf> {
    let names =
        ["SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS"];
    let login = environment.home().map(|home| home.join(".config/gcloud/application_default_credentials.json"));
    names.iter().filter_map(|name| environment.path(name)).chain(login).collect()
}
