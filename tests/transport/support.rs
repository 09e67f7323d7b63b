//! What the tests share: a client without the environment of whoever runs them, and reading through it.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use weightfs::remote::location::RemoteLocation;
use weightfs::remote::transport::{
    EnvironmentCopy, ErrorKind, ServerObject, ServerTree, TransportClient, TransportError, TransportOptions,
};

/// Options that see only the given variables.
pub fn options(variables: &[(&str, &str)]) -> TransportOptions {
    record_log();
    TransportOptions {
        environment: variables.iter().copied().collect::<EnvironmentCopy>(),
        // No test waits for these.
        connect_timeout: Duration::from_secs(120),
        idle_timeout: Duration::from_secs(120),
        ..TransportOptions::default()
    }
}

pub fn client(variables: &[(&str, &str)]) -> TransportClient {
    TransportClient::new(options(variables)).unwrap()
}

pub fn location(text: &str) -> RemoteLocation {
    RemoteLocation::parse(text).unwrap().unwrap_or_else(|| panic!("{text} is local"))
}

pub async fn resolve(client: &TransportClient, text: &str) -> Result<ServerTree, TransportError> {
    client.resolve(&location(text)).await
}

/// Resolves a location of a file and probes it.
pub async fn open(
    client: &TransportClient,
    text: &str,
    first: u64,
) -> Result<(Arc<ServerObject>, Vec<u8>), TransportError> {
    let tree = resolve(client, text).await?;
    assert_ne!(tree.path, "", "{text} is a folder");
    probe(client, &tree, &tree.path, first).await
}

/// The pinned file at a path, and its first bytes.
pub async fn probe(
    client: &TransportClient,
    tree: &ServerTree,
    path: &str,
    first: u64,
) -> Result<(Arc<ServerObject>, Vec<u8>), TransportError> {
    let Some(object) = tree.object(path) else { return client.probe(tree, path, first).await };
    Ok((object.clone(), fetch(client, object, 0..first.min(object.len)).await?))
}

/// Fetches a range into memory.
pub async fn fetch(
    client: &TransportClient,
    object: &ServerObject,
    range: Range<u64>,
) -> Result<Vec<u8>, TransportError> {
    let (result, bytes) = fetch_some(client, object, range).await;
    result.map(|()| bytes)
}

/// Fetches a range into memory. Also returns what arrived before an error.
pub async fn fetch_some(
    client: &TransportClient,
    object: &ServerObject,
    range: Range<u64>,
) -> (Result<(), TransportError>, Vec<u8>) {
    let mut bytes = Vec::new();
    let result = client
        .fetch(object, range, &mut |piece| {
            bytes.extend_from_slice(piece);
            ControlFlow::Continue(())
        })
        .await;
    (result, bytes)
}

/// The error of something that must fail, after a look that it shows none of the secrets.
#[track_caller]
pub fn failure<T>(result: Result<T, TransportError>, kind: ErrorKind, secrets: &[&str]) -> TransportError {
    let Err(error) = result else { panic!("this must fail with {kind:?}") };
    assert_eq!(error.kind, kind, "{error}");
    shows_no(&format!("{error} {error:?} {error:#?}"), secrets);
    error
}

#[track_caller]
pub fn shows_no(text: &str, secrets: &[&str]) {
    for secret in secrets {
        assert!(!text.contains(secret), "{secret} shows in: {text}");
    }
}

pub const TRANSIENT: ErrorKind = ErrorKind::Transient { retry_after: None };

/// All that libraries and weightfs log, at every level.
static LOG: std::sync::Mutex<String> = std::sync::Mutex::new(String::new());

struct Recorder;

impl log::Log for Recorder {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        use std::fmt::Write;
        let _ = writeln!(LOG.lock().unwrap(), "{} {}", record.target(), record.args());
    }

    fn flush(&self) {}
}

pub fn record_log() {
    if log::set_logger(&Recorder).is_ok() {
        log::set_max_level(log::LevelFilter::Trace);
    }
}

/// Checks that a warning of files that are not shown has been logged, by any test.
#[track_caller]
pub fn log_shows(text: &str) {
    let log = LOG.lock().unwrap().clone();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains(" are not shown ")).collect();
    assert!(warnings.iter().any(|line| line.contains(text)), "{text} is not in {warnings:#?}");
}

/// Checks what was logged so far, by any test.
#[track_caller]
pub fn log_shows_no(secrets: &[&str]) {
    let log = LOG.lock().unwrap().clone();
    assert!(!log.is_empty(), "something is logged");
    shows_no(&log, secrets);
}
