//! `weightfs serve`: serves the files of a mount over HTTP, without mounting.

use crate::cli::ServeArgs;
use crate::opening::{self, ServedSource, SourceLocator};
use crate::process::sandbox::Sandbox;
use crate::process::sandbox::files::SandboxTask;
use crate::process::{descriptors, limits, logging, signals};
use crate::terminal::output::print_line;
use anyhow::{Context, bail};
use nix::sys::signal::SigSet;
use nix::unistd::geteuid;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use weightfs::fs::Ownership;
use weightfs::serve::{self, PeerTables, ServedClients, ServerAccess, ServerStop};
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
    let passed = args.clients.map(|fd| descriptors::take(fd).with_context(|| format!("--clients {fd}"))).transpose()?;
    let serving = &args.serving;
    logging::init(args.input.open.remote.verbose, serving.log_file.as_deref(), None)?;
    let mut at_once = signals::EndAtOnce::start(&signals, |_| ())?;
    limits::raise_open_files();
    limits::limit_address_space();
    let memory = limits::memory();
    let (token, is_random) = token(args)?;
    let mut locator = SourceLocator::new(&args.input.open.remote).without_sandbox(serving.no_sandbox);
    let source = locator.locate(&args.input.source)?;
    let (shown, open) = (args.views.shown(), &args.input.open);
    let version = format!("{} {shown:?} {}", env!("CARGO_PKG_VERSION"), open.lenient);
    let served = opening::open_served(&source, open.mode(), shown, Ownership::default())?;
    let ServedSource { superblock, reads, .. } = served;
    let sandbox = (!serving.no_sandbox).then(|| Sandbox::new(SandboxTask::Http, &reads, None));
    let superblock = locator.show_traffic(superblock);
    let (clients, peers, url) = match passed {
        Some(passed) => (passed_clients(passed).context("--clients")?, None, None),
        None => {
            let peers = peer_tables(token.is_some())?;
            let listener = listen(args)?;
            let address = listener.local_addr().context("the address of the server")?;
            let query = token.as_deref().filter(|_| is_random).map(|token| format!("?token={token}"));
            let url = format!("{}{}", browser_url(address), query.unwrap_or_default());
            (ServedClients::Listener(listener), peers, Some(url))
        }
    };
    if let Some(url) = url.as_deref().filter(|_| args.open) {
        open_browser(url);
    }
    at_once.stop();
    locator.enter(sandbox)?;
    // All threads that keep running are started after this, so they are in the sandbox.
    let stop = ServerStop::default();
    let stopped = stop.clone();
    signals::start_thread("signals", move || stop_on_signal(&signals, &stopped))?;
    if let Some(url) = url {
        print_line(&format!("{} is served at {url}", printable(&source.to_string())));
        print_line("Ctrl-C stops the server");
    }
    let access = ServerAccess { peers, token, hosts: args.host.clone() };
    let log_traffic = locator.log_traffic(&source);
    let name = source.absolute()?.to_string();
    serve::run_server(clients, superblock, name, &version, access, memory, &stop).context("the server")?;
    log_traffic();
    Ok(ExitCode::SUCCESS)
}

/// The tables of the users of connections. Without them, only clients with a token can be admitted.
fn peer_tables(has_token: bool) -> anyhow::Result<Option<PeerTables>> {
    let peers = PeerTables::new(geteuid().as_raw());
    let peers = peers.inspect_err(|error| log::warn!("/proc/net/tcp: {error}: all clients need a token")).ok();
    if peers.is_none() && !has_token {
        bail!("connections of this user cannot be told from others without /proc/net/tcp; use --client-token FILE");
    }
    Ok(peers)
}

/// The clients whose sockets arrive on a socket. Whoever can send them may read everything.
fn passed_clients(socket: OwnedFd) -> anyhow::Result<ServedClients> {
    // The caller may wait for it in another way.
    descriptors::make_blocking(&socket)?;
    let socket = UnixStream::from(socket);
    // Fails for what never gives a connection.
    socket.peer_addr()?;
    let next = move || Ok(descriptors::receive_descriptor(&socket)?.map(UnixStream::from));
    Ok(ServedClients::Passed(Box::new(next)))
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
    for port in args.port.map_or(PORT..=PORT + PORTS - 1, |port| port..=port) {
        match TcpListener::bind((args.address, port)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && args.port.is_none() => {}
            bound => return bound.with_context(|| format!("port {port} of {}", args.address)),
        }
    }
    bail!("the ports from {PORT} to {} of {} are in use; choose one with --port", PORT + PORTS - 1, args.address)
}

/// The URL of the server. It has the address and not a name: a name may also lead to another address of this machine,
/// on which another user may listen.
/// The URL of the server. If it listens on all addresses, the URL has the one by which other machines reach this one.
fn browser_url(mut address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        address.set_ip(address_for_others(address.ip()));
    }
    format!("http://{address}/")
}

/// The address from which this machine sends to the internet; without a network, that of this machine alone.
fn address_for_others(unspecified: IpAddr) -> IpAddr {
    // Addresses for documentation (RFC 5737 and RFC 3849): connecting a UDP socket chooses a route and sends nothing.
    let (outside, loopback): (IpAddr, IpAddr) = match unspecified {
        IpAddr::V4(_) => (Ipv4Addr::new(192, 0, 2, 1).into(), Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(_) => (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(), Ipv6Addr::LOCALHOST.into()),
    };
    let socket = UdpSocket::bind((unspecified, 0));
    let local = socket.and_then(|socket| socket.connect((outside, 9)).and_then(|()| socket.local_addr()));
    local.map_or(loopback, |local| local.ip())
}

/// Opens a URL in the browser of the desktop. Failing to do so does not affect the server.
fn open_browser(url: &str) {
    let mut opener = Command::new("xdg-open");
    // Not waited for: it may run as long as the browser.
    let opened = opener.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    if let Err(error) = opened {
        log::warn!("no browser was opened: xdg-open: {error}");
    }
}

/// Stops the server at the first signal, and the process at the second.
fn stop_on_signal(signals: &SigSet, stop: &ServerStop) {
    if signals.wait().is_ok() {
        stop.stop();
    }
    if let Ok(signal) = signals.wait() {
        signals::end_by(signal);
    }
}
