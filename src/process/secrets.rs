//! Secrets of the command line and of the environment: only the process that fetches has them, not those that parse
//! models.
//!
//! A process cannot erase all copies of what it was started with. So this program starts itself again, without secrets
//! and with stars in URLs. A socket has the secrets, until the process that fetches receives them and starts itself
//! again, too. Other users see the first command line for the time that this takes.

use super::descriptors::packet_pair;
use anyhow::Context;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::prctl::set_name;
use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::io::Write;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Parts of the names of variables that may have secrets. Proxies may have passwords.
const SECRETS: [&str; 8] = ["TOKEN", "SECRET", "PASS", "_KEY", "CREDENTIAL", "CONNECTION_STRING", "_SAS", "PROXY"];

/// The variable with the number of the socket; empty without a URL, because nothing is fetched then.
pub const SOCKET: &str = "WEIGHTFS_SECRETS_AT";

/// The variable of the process that fetches with the URLs of the command line: each with stars, and as it was.
pub const URLS: &str = "WEIGHTFS_URLS";

/// The lowest number of the socket. The caller hardly names it as a descriptor of its own.
const NUMBER_MIN: RawFd = 200;

/// Starts this program again if it has secrets. `mask` replaces those in a URL by a text, and gives `None` for other
/// arguments. With `keeps_variables`, only the command line is changed.
pub fn restart_without_secrets(
    mask: impl Fn(&str, &str) -> Option<String>,
    keeps_variables: bool,
) -> anyhow::Result<()> {
    if env::var_os(SOCKET).is_some() {
        // The kernel has named the process after /proc/self/exe.
        let name = env::args_os().next().unwrap_or_default();
        let name = CString::new(Path::new(&name).file_name().unwrap_or(OsStr::new("weightfs")).as_bytes())?;
        return set_name(&name).context("prctl");
    }
    let (mut secret, mut variables): (Vec<_>, Vec<_>) = env::vars_os().partition(|(name, _)| is_secret(name));
    let (mut arguments, mut urls) = (Vec::new(), Vec::new());
    for (at, argument) in env::args_os().enumerate() {
        // Numbers of stars tell URLs apart that differ in their secrets.
        let masked = argument.to_str().and_then(|url| Some((mask(url, &"*".repeat(at + 3))?, url.to_owned())));
        arguments.push(masked.as_ref().map_or(argument, |(masked, _)| masked.into()));
        urls.extend(masked);
    }
    let is_masked = urls.iter().any(|(masked, whole)| masked != whole);
    // Without /proc, this program cannot be started again, and nobody can read its command line.
    let is_possible = Path::new("/proc/self/exe").is_symlink();
    if !is_possible || !is_masked && (keeps_variables || secret.is_empty()) {
        return Ok(());
    }
    let mut number = String::new();
    secret.push((URLS.into(), serde_json::to_string(&urls)?.into()));
    if keeps_variables {
        variables.append(&mut secret);
    } else if !urls.is_empty() {
        let named: Vec<OsString> = secret.iter().map(|(name, value)| [&**name, value].join("=".as_ref())).collect();
        let (mut ours, theirs) = packet_pair()?;
        ours.set_nonblocking(true)?;
        ours.write_all(named.join(OsStr::new("\0")).as_bytes())?;
        let duplicate = |number_min| fcntl(&theirs, FcntlArg::F_DUPFD(number_min));
        // The limit of open files may be lower.
        number = duplicate(NUMBER_MIN).or_else(|_| duplicate(3))?.to_string();
    }
    let [name, arguments @ ..] = &arguments[..] else { return Ok(()) };
    let mut command = Command::new("/proc/self/exe");
    command.arg0(name).args(arguments).env_clear().envs(variables).env(SOCKET, number);
    Err(command.exec().into())
}

fn is_secret(name: &OsStr) -> bool {
    let name = name.to_string_lossy().to_ascii_uppercase();
    SECRETS.iter().any(|part| name.contains(part))
}

/// The number of the socket with the secrets, until it is taken.
pub fn socket_number() -> Option<RawFd> {
    env::var(SOCKET).ok()?.parse().ok()
}
