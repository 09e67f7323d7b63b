//! Azure Blob Storage: configured by the variables of `object_store` (`AZURE_*`) and of Azure's own tools.

use std::path::PathBuf;

use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};

use super::super::wire::HttpWire;
use super::super::{EnvironmentCopy, ErrorKind, TransportResult};
use super::bucket::{OpenedBucket, no_retries};
use crate::remote::location::StoreKind;

pub(super) fn open_azure(wire: &HttpWire, container: &str) -> TransportResult<OpenedBucket> {
    let environment = &wire.options().environment;
    let mut builder = MicrosoftAzureBuilder::new();
    let tools =
        [("AZURE_STORAGE_ACCOUNT", AzureConfigKey::AccountName), ("AZURE_STORAGE_KEY", AzureConfigKey::AccessKey)];
    for (name, key) in tools {
        if let Some(value) = environment.get(name) {
            builder = builder.with_config(key, value);
        }
    }
    for (key, value) in environment.settings("AZURE_") {
        builder = builder.with_config(key, value);
    }
    let anonymous = environment.flag("AZURE_SKIP_SIGNATURE");
    let account = builder.get_config_value(&AzureConfigKey::AccountName);
    let emulator = builder.get_config_value(&AzureConfigKey::UseEmulator).is_some_and(|value| value == "true");
    if account.is_none() && !emulator {
        return Err(ErrorKind::Credentials.error("az:// needs the storage account: set AZURE_STORAGE_ACCOUNT"));
    }
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint).or(account);
    let builder = builder.with_container_name(container).with_skip_signature(anonymous).with_retry(no_retries());
    OpenedBucket::new(builder.with_http_connector(wire.clone()).build(), StoreKind::Azure, anonymous, endpoint)
}

/// Variables with a key, a token, or the name of a file that has one.
const SECRETS: [&str; 11] = [
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_STORAGE_FEDERATED_TOKEN_FILE",
];

/// The origin of the credentials. The last one is the machine, if it is in Azure.
pub(super) fn azure_credentials_found(environment: &EnvironmentCopy) -> Option<String> {
    if environment.flag("AZURE_SKIP_SIGNATURE") {
        return None;
    }
    let variable = SECRETS.iter().find(|name| environment.get(name).is_some());
    let place = variable.map(|name| format!("the variable {name}")).or_else(|| azure_program(environment));
    Some(place.unwrap_or_else(|| "the service of the machine, if it is in Azure".into()))
}

pub(super) fn azure_program(environment: &EnvironmentCopy) -> Option<String> {
    let cli = ["AZURE_USE_AZURE_CLI", "AZURE_USE_CLI"].iter().any(|name| environment.flag(name));
    let cli =
        cli || environment.get("AZURE_CREDENTIAL_TYPE").is_some_and(|kind| kind.eq_ignore_ascii_case("azure_cli"));
    cli.then(|| "the Azure command line gives the credentials".to_owned())
}

pub(super) fn azure_reads(environment: &EnvironmentCopy) -> Vec<PathBuf> {
    environment.token_place("AZURE_FEDERATED_TOKEN_FILE").into_iter().collect()
}
