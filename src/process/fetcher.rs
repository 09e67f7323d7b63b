//! The process that fetches remote files: starts it, and runs it.
//!
//! It is this program again, under another name. It shares only a socket with the reading process, and ends with it.

use super::sandbox::Sandbox;
use super::sandbox::files::{SandboxTask, system_reads};
use super::secrets::{self, SOCKET, URLS};
use super::{descriptors, limits, signals};
use anyhow::Context;
use nix::sys::prctl::set_name;
use nix::unistd::dup;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use weightfs::remote::FetchClient;
use weightfs::remote::fetch::Fetcher;
use weightfs::remote::protocol::{FetchOptions, WireChannel};

pub const NAME: &str = "weightfs-fetch";

/// Maximum size of all secrets in bytes, which come in one packet.
const SECRETS_MAX: usize = 200 << 10;

pub fn start_fetcher(start: FetchOptions) -> anyhow::Result<FetchClient> {
    let what = "cannot start weightfs-fetch";
    let (ours, theirs) = WireChannel::pair().context(what)?;
    let theirs: OwnedFd = theirs.as_fd().try_clone_to_owned().context(what)?;
    // This file stays the same if the program is replaced.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).stdin(theirs).stdout(take_socket()).stderr(Stdio::null());
    // Not waited for: it ends after this process.
    command.spawn().context(what)?;
    FetchClient::new(ours, start).context(what)
}

/// Serves the process at the other end of standard input, until it ends. Errors are reported through the socket.
pub fn run_fetcher() -> anyhow::Result<()> {
    restart_with_secrets()?;
    // A signal to the process group is for the reading process, which may still need this one.
    signals::block()?;
    set_name(c"weightfs-fetch").context("prctl")?;
    descriptors::close_others(&[]);
    limits::raise_open_files();
    let socket = dup(io::stdin()).context("standard input")?;
    if let Some(fetcher) = Fetcher::accept(WireChannel::from(socket), whole_url)? {
        restrict_fetcher(&fetcher);
        fetcher.serve()?;
    }
    Ok(())
}

/// The socket with the secrets, as the standard output of the process that fetches.
fn take_socket() -> Stdio {
    let socket = secrets::socket_number().and_then(|number| descriptors::take(number).ok());
    socket.map_or_else(Stdio::null, Stdio::from)
}

/// Receives the secrets from the socket that is the standard output, and starts this program again with them.
fn restart_with_secrets() -> anyhow::Result<()> {
    if secrets::socket_number().is_none() {
        return Ok(());
    }
    let mut text = vec![0; SECRETS_MAX];
    let len = File::from(io::stdout().as_fd().try_clone_to_owned()?).read(&mut text)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).env_remove(SOCKET).stdout(Stdio::null());
    for variable in text[..len].split(|byte| *byte == 0) {
        if let Some(at) = variable.iter().position(|byte| *byte == b'=') {
            command.env(OsStr::from_bytes(&variable[..at]), OsStr::from_bytes(&variable[at + 1..]));
        }
    }
    Err(command.exec().into())
}

/// The URL of the command line that `url` stands for.
fn whole_url(url: String) -> String {
    let urls: Vec<(String, String)> =
        std::env::var(URLS).ok().and_then(|urls| serde_json::from_str(&urls).ok()).unwrap_or_default();
    urls.into_iter().find(|(masked, _)| *masked == url).map_or(url, |(_, whole)| whole)
}

fn restrict_fetcher(fetcher: &Fetcher) {
    let Some(cache) = fetcher.sandbox_dir() else { return log::info!("{NAME} has no sandbox") };
    if let Some(reason) = fetcher.program() {
        return log::info!("{NAME} has no sandbox: {reason}");
    }
    let reads = [system_reads(), fetcher.reads()].concat();
    Sandbox::new(SandboxTask::Fetch, &reads, Some(cache)).enter().log(&format!(" of {NAME}"));
}
