//! Logging to the terminal, to a file and to syslog, or to the helper process where there is no syslog.

use super::descriptors::MessageWriter;
use super::recent::RecentMessages;
use anyhow::Context;
use log::{LevelFilter, Log, Metadata, Record};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use weightfs::fuse::LOG_TARGET;
use weightfs::source::strerror;
use weightfs::text::message;
use weightfs::write;

/// Writes messages to the terminal until the program is in the background.
struct ProcessLogger {
    terminal: env_logger::Logger,
    other: Option<env_logger::Logger>,
    /// Whether the other logger also writes what the terminal shows, as a log file does.
    is_doubled: bool,
}

static IN_BACKGROUND: AtomicBool = AtomicBool::new(false);

impl Log for ProcessLogger {
    fn enabled(&self, metadata: &Metadata) -> bool {
        self.terminal.enabled(metadata)
    }

    fn log(&self, record: &Record) {
        let in_background = IN_BACKGROUND.load(Ordering::Relaxed);
        if !in_background {
            self.terminal.log(record);
        }
        if let Some(other) = self.other.as_ref().filter(|_| in_background || self.is_doubled) {
            other.log(record);
        }
    }

    fn flush(&self) {}
}

pub fn leave_terminal() {
    IN_BACKGROUND.store(true, Ordering::Relaxed);
}

/// Starts logging: warnings and errors, and informational messages if `verbose`. The environment variable RUST_LOG
/// overrides the level. Without a log file, messages in the background go to syslog, or to `recent` if there is no
/// syslog. Returns whether they go to `recent`.
pub fn init(verbose: bool, file: Option<&Path>, recent: Option<&RecentMessages>) -> anyhow::Result<bool> {
    let terminal = log_builder(verbose).format(|out, record| writeln!(out, "weightfs: {}", text(record))).build();
    let level = terminal.filter();
    let (other, is_recent) = if let Some(path) = file {
        let file = write::append(path).with_context(|| path.display().to_string())?;
        (Some(to_writer(verbose, file, write_dated)), false)
    } else if let Some(syslog) = connect_syslog() {
        (Some(to_writer(verbose, syslog, write_for_syslog)), false)
    } else {
        let writer = recent.map(RecentMessages::writer).transpose()?;
        (writer.map(|writer| to_writer(verbose, writer, write_dated)), recent.is_some() && level > LevelFilter::Off)
    };
    log::set_max_level(level);
    // This fails only if a logger is set already, by an earlier call. That logger stays.
    let _ = log::set_boxed_logger(Box::new(ProcessLogger { terminal, other, is_doubled: file.is_some() }));
    Ok(is_recent)
}

type LineFormat = fn(&mut env_logger::fmt::Formatter, &Record) -> io::Result<()>;

fn to_writer(verbose: bool, writer: impl Write + Send + 'static, format: LineFormat) -> env_logger::Logger {
    log_builder(verbose).target(env_logger::Target::Pipe(Box::new(writer))).format(format).build()
}

/// Writes a line with the time, the level and the process id.
fn write_dated(out: &mut env_logger::fmt::Formatter, record: &Record) -> io::Result<()> {
    writeln!(out, "{} {:5} [{}] {}", out.timestamp(), record.level(), std::process::id(), text(record))
}

/// Writes a message with its priority by RFC 3164: facility daemon (3) and severity.
fn write_for_syslog(out: &mut env_logger::fmt::Formatter, record: &Record) -> io::Result<()> {
    let severity = match record.level() {
        log::Level::Error => 3,
        log::Level::Warn => 4,
        log::Level::Info => 6,
        log::Level::Debug | log::Level::Trace => 7,
    };
    write!(out, "<{}>weightfs[{}]: {}", 3 << 3 | severity, std::process::id(), text(record))
}

/// Makes a panic in any thread end the program, after it was logged like other errors: if it ended only its thread, a
/// mount would answer some requests and not others. In the background, the message that the standard library prints
/// would be lost; it is printed only if RUST_BACKTRACE is set.
pub fn end_on_panics() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
            default_hook(panic);
        }
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
        let at = panic.location().map_or(String::new(), |at| format!(", {}:{}", at.file(), at.line()));
        let thread = std::thread::current();
        let report = format!(
            "stopped by a bug in weightfs: {} (thread {}{at}); `weightfs umount` removes a mount that is left behind",
            text.unwrap_or("no reason given"),
            thread.name().unwrap_or("unnamed"),
        );
        if log::log_enabled!(log::Level::Error) {
            log::error!("{report}");
        } else {
            let _ = writeln!(io::stderr(), "weightfs: {}", message(&report));
        }
        std::process::abort();
    }));
}

/// Prints an error to standard error.
pub fn complain(error: &anyhow::Error) {
    // If standard error is closed, the exit code still reports the failure.
    let _ = writeln!(io::stderr(), "weightfs: {}", message(&reason(error)));
}

/// An error and its causes in one line. I/O errors are formatted by [`strerror`].
pub fn reason(error: &anyhow::Error) -> String {
    let text = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref::<io::Error>() {
        Some(error) => strerror(error),
        None => cause.to_string(),
    };
    error.chain().map(text).collect::<Vec<_>>().join(": ")
}

fn text(record: &Record) -> String {
    message(&record.args().to_string())
}

fn log_builder(verbose: bool) -> env_logger::Builder {
    let mut builder = env_logger::Builder::new();
    builder.filter_level(if verbose { LevelFilter::Info } else { LevelFilter::Warn });
    // fuser logs each reply that the kernel rejects, which happens whenever a reader is killed.
    builder.filter_module(LOG_TARGET, LevelFilter::Off);
    builder.parse_default_env();
    builder
}

/// A connection to /dev/log. Each message is a datagram.
fn connect_syslog() -> Option<MessageWriter> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect("/dev/log").ok()?;
    socket.set_nonblocking(true).ok()?;
    Some(MessageWriter(socket.into()))
}
