//! The process that fetches remote files: starts it, and runs it.
//!
//! It is this program again, under another name, so that it shares nothing with the reading process but a socket. It
//! ends when the socket does.

use super::sandbox::{Sandbox, system};
use super::{descriptors, limits, signals};
use anyhow::Context;
use nix::sys::prctl::set_name;
use nix::unistd::dup;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use weightfs::remote::FetchClient;
use weightfs::remote::fetch::Fetcher;
use weightfs::remote::protocol::{FetchOptions, WireChannel};

/// The name of the process, as in `ps`.
const NAME: &str = "weightfs-fetch";

/// Starts the process.
pub fn start_fetcher(start: FetchOptions) -> anyhow::Result<FetchClient> {
    let what = "cannot start weightfs-fetch";
    let (ours, theirs) = WireChannel::pair().context(what)?;
    let theirs: OwnedFd = theirs.as_fd().try_clone_to_owned().context(what)?;
    // This file stays the same if the program is replaced.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
    // Not waited for: it ends after this process.
    command.spawn().context(what)?;
    FetchClient::new(ours, start).context(what)
}

/// Whether this process is the one that fetches.
pub fn is_fetcher() -> bool {
    std::env::args_os().next().is_some_and(|name| name == NAME)
}

/// Runs the process: serves the one at the other end of standard input. Errors are reported through the socket.
pub fn run_fetcher() -> ExitCode {
    match serve_fetcher() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve_fetcher() -> anyhow::Result<()> {
    // A signal to the process group is for the reading process, which may still need this one.
    signals::block()?;
    set_name(c"weightfs-fetch").context("prctl")?;
    descriptors::close_others(&[]);
    limits::raise_open_files();
    let socket = dup(io::stdin()).context("standard input")?;
    if let Some(fetcher) = Fetcher::accept(WireChannel::from(socket))? {
        restrict_fetcher(&fetcher);
        fetcher.serve()?;
    }
    Ok(())
}

/// Enters the sandbox, and logs which parts of it are not enforced.
fn restrict_fetcher(fetcher: &Fetcher) {
    // Without a cache, all requests are refused.
    let Some(cache) = fetcher.cache_dir().filter(|_| !fetcher.has_no_sandbox()) else {
        return log::info!("{NAME} has no sandbox");
    };
    if let Some(reason) = fetcher.program() {
        return log::info!("{NAME} has no sandbox: {reason}");
    }
    let enforced = Sandbox::for_fetching(cache, &[system::system_reads(), fetcher.reads()].concat()).enter();
    log::info!("sandbox of {NAME}: {enforced}");
    for missing in enforced.missing() {
        log::warn!("incomplete sandbox of {NAME}: {missing}");
    }
}
