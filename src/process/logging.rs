//! Logging to the terminal, to a file and to syslog, or to the helper process where there is no syslog.

use super::recent::RecentMessages;
use anyhow::Context;
use log::{Log, Metadata, Record};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use weightfs::fuse::LOG_TARGET;
use weightfs::source::strerror;
use weightfs::text::message;
use weightfs::write;

/// Writes messages to the terminal until the program is in the background, and always to the log file.
struct ProcessLogger {
    terminal: env_logger::Logger,
    file: Option<env_logger::Logger>,
    /// Used in the background if there is no log file.
    background: Option<env_logger::Logger>,
}

static IN_BACKGROUND: AtomicBool = AtomicBool::new(false);

impl Log for ProcessLogger {
    fn enabled(&self, metadata: &Metadata) -> bool {
        self.terminal.enabled(metadata)
    }

    fn log(&self, record: &Record) {
        let in_background = IN_BACKGROUND.load(Ordering::Relaxed);
        let terminal = (!in_background).then_some(&self.terminal);
        let background = self.background.as_ref().filter(|_| in_background);
        for logger in [terminal, self.file.as_ref(), background].into_iter().flatten() {
            logger.log(record);
        }
    }

    fn flush(&self) {}
}

/// Stops logging to the terminal.
pub fn leave_terminal() {
    IN_BACKGROUND.store(true, Ordering::Relaxed);
}

/// Starts logging: warnings and errors, and informational messages if `verbose`. The environment variable RUST_LOG
/// overrides the level. Without a log file, messages in the background go to syslog, or to `recent` if there is no
/// syslog. Returns whether they go to `recent`.
pub fn init(verbose: bool, file: Option<&Path>, recent: Option<&RecentMessages>) -> anyhow::Result<bool> {
    let terminal = builder(verbose).format(|out, record| writeln!(out, "weightfs: {}", text(record))).build();
    let (mut background, mut is_recent) = (None, false);
    let file = match file {
        Some(path) => Some(to_file(verbose, write::append(path).with_context(|| path.display().to_string())?)),
        None => {
            let syslog = Syslog::connect();
            is_recent = syslog.is_none() && recent.is_some() && terminal.filter() > log::LevelFilter::Off;
            background = match (syslog, recent.filter(|_| is_recent)) {
                (Some(syslog), _) => Some(to_syslog(verbose, syslog)),
                (None, Some(recent)) => Some(to_file(verbose, recent.writer()?)),
                (None, None) => None,
            };
            None
        }
    };
    log::set_max_level(terminal.filter());
    // This fails only if a logger is set already, by an earlier call. That logger stays.
    let _ = log::set_boxed_logger(Box::new(ProcessLogger { terminal, file, background }));
    Ok(is_recent)
}

/// A logger whose lines have the time, the level and the process id.
fn to_file(verbose: bool, file: impl Write + Send + 'static) -> env_logger::Logger {
    let mut builder = builder(verbose);
    builder.target(env_logger::Target::Pipe(Box::new(file)));
    builder.format(|out, record| {
        writeln!(out, "{} {:5} [{}] {}", out.timestamp(), record.level(), std::process::id(), text(record))
    });
    builder.build()
}

fn to_syslog(verbose: bool, syslog: Syslog) -> env_logger::Logger {
    let mut builder = builder(verbose);
    builder.target(env_logger::Target::Pipe(Box::new(syslog)));
    builder.format(|out, record| {
        // Priority by RFC 3164: facility daemon (3) and severity.
        let severity = match record.level() {
            log::Level::Error => 3,
            log::Level::Warn => 4,
            log::Level::Info => 6,
            log::Level::Debug | log::Level::Trace => 7,
        };
        write!(out, "<{}>weightfs[{}]: {}", 3 << 3 | severity, std::process::id(), text(record))
    });
    builder.build()
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

fn builder(verbose: bool) -> env_logger::Builder {
    let mut builder = env_logger::Builder::new();
    builder.filter_level(if verbose { log::LevelFilter::Info } else { log::LevelFilter::Warn });
    // fuser logs each reply that the kernel rejects, which happens whenever a reader is killed.
    builder.filter_module(LOG_TARGET, log::LevelFilter::Off);
    builder.parse_default_env();
    builder
}

/// A connection to /dev/log. Each message is a datagram. A message that cannot be sent is lost, as with syslog(3).
struct Syslog(UnixDatagram);

impl Syslog {
    fn connect() -> Option<Self> {
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect("/dev/log").ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(Self(socket))
    }
}

impl Write for Syslog {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let _ = self.0.send(message);
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
