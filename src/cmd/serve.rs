//! `weightfs serve`: serves the files of a mount over HTTP, without mounting.

use crate::cli::ServeArgs;
use crate::opening::{self, SourceLocator};
use crate::process::sandbox::Sandbox;
use crate::process::{limits, logging, signals};
use anyhow::{Context, bail};
use nix::sys::signal::SigSet;
use nix::unistd::geteuid;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use weightfs::fs::Ownership;
use weightfs::model::{self, OpenedModel};
use weightfs::serve::{self, PeerTables, ServerAccess, ServerStop};
use weightfs::text::{HexDigits, printable};

/// The first port that is tried, and how many.
const PORT: u16 = 8411;
const PORTS: u16 = 20;

/// Length of a token that is made here, in bytes.
const TOKEN_LEN: usize = 24;

/// Lengths of tokens that are read from a file, in bytes. Shorter ones could be guessed.
const TOKEN_MIN: usize = 16;
const TOKEN_MAX: u64 = 1024;

/// Serves a source until a signal arrives.
pub fn run_serve(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    // Threads inherit the mask.
    let signals = signals::block()?;
    logging::init(args.verbose, args.log_file.as_deref(), None)?;
    let mut at_once = signals::EndAtOnce::start(&signals, |_| ())?;
    limits::raise_open_files();
    limits::limit_address_space();
    let memory = limits::memory();
    let (token, is_random) = token(args)?;
    let mut locator = SourceLocator::new(&args.remote).without_sandbox(args.no_sandbox);
    let source = locator.locate(&args.source)?;
    let opened = model::open_location(&source, opening::parse_mode(args.lenient))?;
    if let OpenedModel::Model(model) = &opened {
        model.report_mount(&source);
    }
    let sandbox = (!args.no_sandbox).then(|| Sandbox::for_listening(&opened.reads()));
    let shown = args.numbers.shown(args.views.clone());
    let version = format!("{} {shown:?} {}", env!("CARGO_PKG_VERSION"), args.lenient);
    let superblock = opening::new_superblock(opened, &source, shown, Ownership::default())?;
    let superblock = locator.show_traffic(superblock);
    if source.path().is_none() {
        superblock.open_all();
    }
    let peers = PeerTables::new(geteuid().as_raw());
    let peers = peers.inspect_err(|error| log::warn!("/proc/net/tcp: {error}: all clients need a token")).ok();
    if peers.is_none() && token.is_none() {
        bail!("connections of this user cannot be told from others without /proc/net/tcp; use --client-token FILE");
    }
    let listener = listen(args)?;
    let address = listener.local_addr().context("the address of the server")?;
    at_once.stop();
    locator.enter(sandbox)?;
    // All threads that keep running are started after this, so they are in the sandbox.
    let stop = ServerStop::default();
    stop_on_signal(signals, stop.clone())?;
    let query = token.as_deref().filter(|_| is_random).map(|token| format!("?token={token}")).unwrap_or_default();
    say_serving(&format!("{} is served at {}{query}", printable(&source.to_string()), url(address)));
    let access = ServerAccess { peers, token, hosts: args.host.clone() };
    let log_traffic = locator.log_traffic(&source);
    let name = source.absolute()?.to_string();
    serve::run_server(listener, superblock, name, &version, access, memory, &stop).context("the server")?;
    log_traffic();
    Ok(ExitCode::SUCCESS)
}

/// The token of other clients, if they are admitted, and whether it was made here.
fn token(args: &ServeArgs) -> anyhow::Result<(Option<String>, bool)> {
    match &args.client_token {
        Some(path) => Ok((Some(read_token(path).with_context(|| path.display().to_string())?), false)),
        None if args.address.is_loopback() => Ok((None, false)),
        None => {
            let mut bytes = [0; TOKEN_LEN];
            let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
            read.context("/dev/urandom")?;
            Ok((Some(HexDigits(&bytes).to_string()), true))
        }
    }
}

fn read_token(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(TOKEN_MAX + 1).read_to_string(&mut text)?;
    let token = text.trim();
    if token.len() < TOKEN_MIN || text.len() as u64 > TOKEN_MAX {
        bail!("a token of {} bytes; it must have {TOKEN_MIN} to {TOKEN_MAX}", token.len());
    }
    // It becomes a header and a part of a URL.
    if !token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte)) {
        bail!("the token has characters other than letters, digits and -._~+/=");
    }
    Ok(token.to_owned())
}

/// Listens on the port of the command line, or on the first free one of several.
fn listen(args: &ServeArgs) -> anyhow::Result<TcpListener> {
    let bind = |port| TcpListener::bind((args.address, port));
    if let Some(port) = args.port {
        return bind(port).with_context(|| format!("port {port} of {}", args.address));
    }
    for port in PORT..PORT + PORTS {
        match bind(port) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => return bound.with_context(|| format!("port {port} of {}", args.address)),
        }
    }
    bail!("the ports from {PORT} to {} of {} are in use; choose one with --port", PORT + PORTS - 1, args.address)
}

/// The URL of the server. It has the address and not a name: a name may also lead to another address of this machine,
/// on which another user may listen.
fn url(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => "127.0.0.1".to_owned(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) if ip.is_unspecified() => "[::1]".to_owned(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    format!("http://{ip}:{}/", address.port())
}

/// Prints a line. A closed standard output does not affect the server.
fn say_serving(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Starts a thread that stops the server at the first signal, and the process at the second.
fn stop_on_signal(signals: SigSet, stop: ServerStop) -> anyhow::Result<()> {
    let wait = move || {
        if signals.wait().is_ok() {
            stop.stop();
        }
        if let Ok(signal) = signals.wait() {
            signals::end_by(signal);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).context("cannot start a thread")?;
    Ok(())
}
