//! The options of transports.

use std::path::PathBuf;
use std::time::Duration;

use super::environment::EnvironmentCopy;

/// How a [`super::TransportClient`] connects, and where its credentials are configured.
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// Where credentials, endpoints and the directories of the Hugging Face cache are configured. Proxies and
    /// certificates are always those of the process (`HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`,
    /// `SSL_CERT_DIR`).
    pub environment: EnvironmentCopy,
    /// Send no request. `HF_HUB_OFFLINE` and `TRANSFORMERS_OFFLINE` do so for the Hub alone.
    pub offline: bool,
    /// Send no credentials, for public data.
    pub anonymous: bool,
    /// A file with a bearer token for the server of a URL, or for the Hub. It is read for each request, so a renewed
    /// token is used at once.
    pub token_file: Option<PathBuf>,
    /// The name that servers see.
    pub user_agent: String,
    /// The time limit for a connection.
    pub connect_timeout: Duration,
    /// The time for which a server may send nothing.
    pub idle_timeout: Duration,
    /// Number of idle connections that are kept to one host.
    pub connections: usize,
}

impl Default for TransportOptions {
    fn default() -> TransportOptions {
        TransportOptions {
            environment: EnvironmentCopy::of_process(),
            offline: false,
            anonymous: false,
            token_file: None,
            user_agent: concat!("weightfs/", env!("CARGO_PKG_VERSION")).to_string(),
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(30),
            connections: 32,
        }
    }
}
