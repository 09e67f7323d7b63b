//! Azure Blob Storage: configured by the variables of `object_store` (`AZURE_*`) and by those of Azure's own tools,
//! `AZURE_STORAGE_ACCOUNT` and `AZURE_STORAGE_KEY`.

use std::path::PathBuf;
use std::sync::Arc;

use object_store::RetryConfig;
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};

use super::super::environment::EnvironmentCopy;
use super::super::error::{ErrorKind, TransportError};
use super::bucket::OpenedBucket;
use super::connector::StoreConnector;
use super::failure::translate;
use crate::remote::location::StoreKind;

pub(super) fn open_azure(
    environment: &EnvironmentCopy,
    anonymous: bool,
    container: &str,
    connector: StoreConnector,
) -> Result<OpenedBucket, TransportError> {
    let mut builder = MicrosoftAzureBuilder::new();
    let tools =
        [("AZURE_STORAGE_ACCOUNT", AzureConfigKey::AccountName), ("AZURE_STORAGE_KEY", AzureConfigKey::AccessKey)];
    for (name, key) in tools {
        if let Some(value) = environment.get(name) {
            builder = builder.with_config(key, value);
        }
    }
    for (name, value) in environment.starting_with("AZURE_").filter(|(_, value)| !value.is_empty()) {
        if let Ok(key) = name.to_ascii_lowercase().parse::<AzureConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    let anonymous = anonymous || environment.flag("AZURE_SKIP_SIGNATURE");
    let account = builder.get_config_value(&AzureConfigKey::AccountName);
    let emulator = builder.get_config_value(&AzureConfigKey::UseEmulator).is_some_and(|value| value == "true");
    if account.is_none() && !emulator {
        return Err(TransportError::new(
            ErrorKind::Credentials,
            "az:// needs the storage account: set AZURE_STORAGE_ACCOUNT",
        ));
    }
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint).or(account);
    let builder = builder
        .with_container_name(container)
        .with_skip_signature(anonymous)
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_http_connector(connector);
    let store = builder.build().map_err(|error| translate(error, StoreKind::Azure))?;
    Ok(OpenedBucket { store: Arc::new(store), anonymous, endpoint })
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

/// Where the credentials come from. The last place is the machine, if it is in Azure.
pub(super) fn azure_credentials_found(environment: &EnvironmentCopy) -> Option<String> {
    if environment.flag("AZURE_SKIP_SIGNATURE") {
        return None;
    }
    let variable = SECRETS.iter().find(|name| environment.get(name).is_some());
    let place = variable.map(|name| format!("the variable {name}")).or_else(|| azure_program(environment));
    Some(place.unwrap_or_else(|| "the service of the machine, if it is in Azure".into()))
}

/// Why a program must be run to get credentials, if so.
pub(super) fn azure_program(environment: &EnvironmentCopy) -> Option<String> {
    let cli = ["AZURE_USE_AZURE_CLI", "AZURE_USE_CLI"].iter().any(|name| environment.flag(name));
    let cli =
        cli || environment.get("AZURE_CREDENTIAL_TYPE").is_some_and(|kind| kind.eq_ignore_ascii_case("azure_cli"));
    cli.then(|| "the Azure command line gives the credentials".to_owned())
}

/// The files and directories that are read for credentials.
pub(super) fn azure_reads(environment: &EnvironmentCopy) -> Vec<PathBuf> {
    environment.token_place("AZURE_FEDERATED_TOKEN_FILE").into_iter().collect()
}
