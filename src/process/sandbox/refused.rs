//! Reports the system calls that the filter refuses. The kernel sends SIGSYS for each, and the handler makes it fail.

use nix::errno::Errno;
use nix::libc::{self, c_int, c_long, c_void, siginfo_t, ucontext_t};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::io::{self, PipeReader, Read, pipe};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

struct RefusalHandler {
    /// Receives the number of each refused call once.
    numbers: OwnedFd,
    /// Calls that are refused because of their arguments.
    conditional: Vec<c_long>,
}

static HANDLER: OnceLock<RefusalHandler> = OnceLock::new();

/// Calls with larger numbers count as one.
const NUMBERS: usize = 1024;

/// A bit for each call that was refused.
static SEEN: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

/// Starts to report refused calls, each once. The `conditional` calls are refused only with some arguments.
pub fn report_refused(conditional: Vec<c_long>) -> io::Result<()> {
    let (reader, writer) = pipe()?;
    if HANDLER.set(RefusalHandler { numbers: writer.into(), conditional }).is_err() {
        return Ok(());
    }
    SigSet::from(Signal::SIGSYS).thread_unblock()?;
    // The handler runs on the stack of its thread: at the end of the program, Rust unmaps the alternate stack of the
    // main thread, which then calls pause(2).
    let flags = SaFlags::SA_SIGINFO | SaFlags::SA_RESTART;
    let action = SigAction::new(SigHandler::SigAction(refuse), flags, SigSet::empty());
    // SAFETY: the handler only uses atomics, write(2) and its arguments, all of which are async-signal-safe.
    #[allow(unsafe_code)]
    unsafe {
        sigaction(Signal::SIGSYS, &action)?;
    }
    // The thread inherits Landlock, and the filter is applied to it too.
    std::thread::Builder::new().name("refused".into()).spawn(move || log_each(reader)).map(drop)
}

/// Logs the calls whose numbers arrive.
fn log_each(mut numbers: PipeReader) {
    let mut number = [0; 8];
    while numbers.read_exact(&mut number).is_ok() {
        let (number, arch) = (c_long::from_ne_bytes(number), std::env::consts::ARCH);
        log::warn!(
            "the sandbox refused system call {number} ({arch}): please report this; if something does not work, mount \
             with --no-sandbox"
        );
    }
}

extern "C" fn refuse(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the context of the interrupted thread, which it restores when the handler returns.
    #[allow(unsafe_code)]
    let context = unsafe { &mut *context.cast::<ucontext_t>() };
    let before = Errno::last();
    let number = call(context);
    let at = usize::try_from(number).unwrap_or(NUMBERS).min(NUMBERS - 1);
    let bit = 1 << (at % 64);
    let handler = HANDLER.get();
    if let Some(handler) = handler
        && SEEN[at / 64].fetch_or(bit, Ordering::Relaxed) & bit == 0
    {
        let _ = nix::unistd::write(&handler.numbers, &number.to_ne_bytes());
    }
    let is_conditional = handler.is_some_and(|handler| handler.conditional.contains(&number));
    fail(context, if is_conditional { libc::EPERM } else { libc::ENOSYS });
    before.set();
}

fn call(context: &ucontext_t) -> c_long {
    #[cfg(target_arch = "x86_64")]
    return context.uc_mcontext.gregs[libc::REG_RAX as usize];
    #[cfg(target_arch = "aarch64")]
    return context.uc_mcontext.regs[8] as c_long;
    // Register a7.
    #[cfg(target_arch = "riscv64")]
    return context.uc_mcontext.__gregs[17] as c_long;
}

fn fail(context: &mut ucontext_t, errno: c_int) {
    #[cfg(target_arch = "x86_64")]
    let result = &mut context.uc_mcontext.gregs[libc::REG_RAX as usize];
    #[cfg(target_arch = "aarch64")]
    let result = &mut context.uc_mcontext.regs[0];
    // Register a0.
    #[cfg(target_arch = "riscv64")]
    let result = &mut context.uc_mcontext.__gregs[10];
    *result = -i64::from(errno) as _;
}
