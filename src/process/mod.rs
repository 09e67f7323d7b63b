//! Services around processes: daemons, helpers, signals, descriptors, limits, logs, the mount table, and the sandbox.

pub mod daemon;
pub mod daemon_helper;
pub mod descriptors;
#[cfg(feature = "remote")]
pub mod fetcher;
pub mod limits;
pub mod logging;
pub mod mounts;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod probe;
pub mod recent;
pub mod sandbox;
pub mod secrets;
pub mod signals;

use std::process::ExitCode;

/// A process for which this program is started again: its name, and what it runs.
type NamedProcess = (&'static str, fn() -> anyhow::Result<()>);

const NAMED: &[NamedProcess] = &[
    #[cfg(feature = "remote")]
    (fetcher::NAME, fetcher::run_fetcher),
    #[cfg(feature = "parquet")]
    (parquet::NAME, parquet::run_parquet_reader),
];

/// Runs the process for which this program was started again. `None` if a user has started it.
pub fn run_named_process() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    let (_, run) = NAMED.iter().find(|(known, _)| name == *known)?;
    Some(run().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}
