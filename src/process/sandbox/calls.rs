//! The system call filters (seccomp): tables of the calls that each kind of process needs.
//!
//! A table has what the program, the standard library and libc call after the sandbox is entered. It also has the other
//! calls that versions of glibc and musl choose between: fstat, newfstatat or statx; poll or ppoll; open or openat;
//! clone3 or clone. All tests run with glibc 2.36; reads of all views were tried with glibc 2.41 and 2.43 and musl, and
//! nothing was refused. Landlock decides which files may be opened.
//!
//! A call that is not in the table fails with ENOSYS, as in a kernel without it, so that libc falls back to another
//! one; with other arguments, a call fails with EPERM. Both are logged, except starts of processes.

use super::files::SandboxTask;
use super::refused;
use nix::libc::*;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads, sock_filter,
};
use std::collections::BTreeMap;
use std::slice::from_ref;

struct CallTable {
    /// Groups of calls that are allowed with all arguments.
    free: &'static [&'static [c_long]],
    /// Calls that are allowed with some arguments. Each row of a call allows more of them.
    limited: &'static [LimitedCall],
}

/// A call, and tests that its arguments must all pass.
type LimitedCall = (c_long, &'static [ArgumentTest]);

/// A test of the argument that has an index.
enum ArgumentTest {
    /// It is one of these numbers of 32 bits.
    Is(u8, &'static [c_int]),
    /// These bits of it are one of these numbers.
    Bits(u8, c_int, &'static [c_int]),
    NullPointer(u8),
    OwnProcess(u8),
}
use ArgumentTest::{Bits, Is, NullPointer, OwnProcess};

/// The calls that all kinds of processes need.
const EVERY: CallTable = CallTable {
    free: &[
        // Memory.
        &[SYS_brk, SYS_munmap, SYS_mremap, SYS_madvise, SYS_mincore, SYS_membarrier],
        // Opening files, which Landlock restricts.
        &[SYS_openat, SYS_openat2, SYS_close, SYS_close_range, SYS_dup, SYS_dup3, SYS_pipe2, SYS_eventfd2, SYS_ppoll],
        // Reading and writing by descriptor.
        &[SYS_read, SYS_readv, SYS_pread64, SYS_preadv, SYS_preadv2, SYS_write, SYS_writev, SYS_lseek],
        &[SYS_fadvise64, SYS_readahead, CACHESTAT],
        // Attributes and paths.
        &[SYS_fstat, SYS_newfstatat, SYS_statx, SYS_statfs, SYS_fstatfs, SYS_faccessat, SYS_faccessat2],
        &[SYS_readlinkat, SYS_fgetxattr, SYS_name_to_handle_at, SYS_getcwd, SYS_chdir],
        // Connected sockets.
        &[SYS_recvfrom, SYS_recvmsg, SYS_shutdown],
        // Threads.
        &[SYS_exit, SYS_exit_group, SYS_set_robust_list, SYS_set_tid_address, SYS_rseq, SYS_sched_yield, SYS_getcpu],
        &[SYS_futex, SYS_futex_waitv, FUTEX_WAKE_2, FUTEX_WAIT_2, FUTEX_REQUEUE_2],
        // glibc queries this for a new thread by its number. A filter cannot check whose number it is.
        &[SYS_sched_getaffinity],
        // Signals.
        &[SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigtimedwait, SYS_sigaltstack],
        &[SYS_restart_syscall],
        // Time, randomness, and facts about the process and the machine.
        &[SYS_nanosleep, SYS_clock_nanosleep, SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday, SYS_getrandom],
        &[SYS_gettid, SYS_getpid, SYS_getppid, SYS_setsid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid],
        &[SYS_uname, SYS_sysinfo],
        // Older calls, which only x86-64 has. musl prefers them.
        #[cfg(target_arch = "x86_64")]
        &[SYS_open, SYS_stat, SYS_lstat, SYS_access, SYS_readlink, SYS_dup2, SYS_poll, SYS_pipe, SYS_time, SYS_pause],
    ],
    limited: &[
        (SYS_mmap, NOT_EXECUTABLE),
        (SYS_mprotect, NOT_EXECUTABLE),
        // A thread, not a process, and no new namespace.
        (SYS_clone, &[Bits(0, CLONE_THREAD | NEW_NAMESPACES, &[CLONE_THREAD])]),
        // A signal to this process, which abort(3) sends.
        (SYS_tgkill, &[OwnProcess(0)]),
        // Reading limits of this process.
        (SYS_prlimit64, &[Is(0, &[0]), NullPointer(2)]),
        (SYS_setpriority, OWN_PRIORITY),
        (SYS_getpriority, OWN_PRIORITY),
        // Not F_SETOWN and F_SETLEASE, which affect other processes, and not O_ASYNC: the kernel then sends signals to
        // the processes in the foreground of a terminal.
        (SYS_fcntl, &[Is(1, &[F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_GET_SEALS])]),
        (SYS_fcntl, &[Is(1, &[F_SETFL]), Bits(2, O_ASYNC, &[0])]),
        // Not TIOCSTI, for example, which types into the terminal of a mount in the foreground.
        (SYS_ioctl, &[Is(1, &[IOC_CLONE, GET_TERMINAL, NONBLOCKING, TO_READ])]),
        // The names of threads and memory areas.
        (SYS_prctl, &[Is(0, &[PR_SET_NAME, PR_GET_NAME, PR_SET_VMA])]),
    ],
};

/// Further calls of the daemon of a mount.
const MOUNT: CallTable = CallTable {
    free: &[],
    limited: &[
        (SYS_sendto, TO_CONNECTED_PEER),
        (SYS_setsockopt, &[Is(1, &[SOL_SOCKET]), Is(2, &[SO_RCVTIMEO, SO_SNDTIMEO])]),
    ],
};

/// Further calls of the HTTP server: connections of the socket that listens already.
const HTTP: CallTable = CallTable {
    free: &[
        &[SYS_accept4, SYS_getsockname, SYS_getpeername, SYS_getsockopt],
        EVENTS,
        #[cfg(not(target_arch = "x86_64"))]
        &[SYS_accept],
        #[cfg(target_arch = "x86_64")]
        &[SYS_accept, SYS_epoll_wait],
    ],
    limited: &[
        (SYS_sendto, TO_CONNECTED_PEER),
        (SYS_setsockopt, &[Is(1, &[IPPROTO_TCP]), Is(2, &[TCP_NODELAY])]),
        (SYS_socketpair, &[Is(0, &[AF_UNIX])]),
    ],
};

/// Further calls of the process that fetches.
const FETCH: CallTable = CallTable {
    free: &[
        // Sockets. Those of the internet only, besides pairs of connected ones; Landlock refuses to listen.
        &[SYS_bind, SYS_connect, SYS_getsockname, SYS_getpeername, SYS_getsockopt, SYS_setsockopt],
        &[SYS_sendto, SYS_sendmsg, SYS_sendmmsg, SYS_recvmmsg],
        EVENTS,
        // Files of the cache.
        &[SYS_pwrite64, SYS_pwritev, SYS_ftruncate, SYS_fallocate, SYS_fdatasync, SYS_fsync, SYS_getdents64],
        &[SYS_mkdirat, SYS_unlinkat, SYS_renameat2, SYS_memfd_create],
        #[cfg(target_arch = "x86_64")]
        &[SYS_epoll_wait, SYS_mkdir, SYS_rename, SYS_renameat, SYS_rmdir, SYS_unlink],
        #[cfg(target_arch = "aarch64")]
        &[SYS_renameat],
    ],
    limited: &[
        // TCP and UDP; the type has flags in its higher bits. Not AF_UNIX: its sockets lead to other programs, such as
        // a container engine or a desktop. Landlock does not restrict connections to their paths.
        (SYS_socket, &[Is(0, &[AF_INET, AF_INET6]), Bits(1, 0xf, &[SOCK_STREAM, SOCK_DGRAM])]),
        (SYS_socket, &[Is(0, &[AF_NETLINK]), Is(2, &[0])]),
        (SYS_socketpair, &[Is(0, &[AF_UNIX])]),
        // The times of an open file. Landlock does not restrict times, and those of a path could be anybody's.
        (SYS_utimensat, &[NullPointer(1)]),
        (SYS_fcntl, &[Is(1, &[F_ADD_SEALS, F_OFD_SETLK, F_OFD_SETLKW, F_OFD_GETLK])]),
        // A file whose code cannot be changed: libraries that libc loads when it resolves a name.
        (SYS_mmap, &[Bits(2, PROT_WRITE | PROT_EXEC, &[PROT_EXEC]), Bits(3, MAP_ANONYMOUS, &[0])]),
    ],
};

// Parts of several tables.
const EVENTS: &[c_long] = &[SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2];
const NOT_EXECUTABLE: &[ArgumentTest] = &[Bits(2, PROT_EXEC, &[0])];
/// The priority of the calling thread.
const OWN_PRIORITY: &[ArgumentTest] = &[Is(0, &[PRIO_PROCESS as c_int]), Is(1, &[0])];
/// No address: to the connected peer only.
const TO_CONNECTED_PEER: &[ArgumentTest] = &[NullPointer(4)];

// These calls are newer than the libc crate. Numbers from 424 on are the same on all architectures.
const CACHESTAT: c_long = 451;
const FUTEX_WAKE_2: c_long = 454;
const FUTEX_WAIT_2: c_long = 455;
const FUTEX_REQUEUE_2: c_long = 456;

/// FUSE_DEV_IOC_CLONE: connects another descriptor of /dev/fuse to the session, for another thread.
const IOC_CLONE: c_int = 0x8004_e500_u32 as c_int;

// TCGETS, FIONBIO and FIONREAD, whose types differ between versions of libc: the attributes of a terminal, nonblocking
// mode, and the number of bytes to read, for which libc asks when it resolves a name.
const GET_TERMINAL: c_int = 0x5401;
const NONBLOCKING: c_int = 0x5421;
const TO_READ: c_int = 0x541b;

/// The flags of clone(2) for new namespaces. Source: include/uapi/linux/sched.h.
const NEW_NAMESPACES: c_int =
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;

fn tables(task: SandboxTask) -> [CallTable; 2] {
    match task {
        SandboxTask::Mount => [EVERY, MOUNT],
        SandboxTask::Http => [EVERY, HTTP],
        SandboxTask::Fetch => [EVERY, FETCH],
    }
}

/// Applies the filter to all threads. Returns what is enforced, or why it is not.
pub fn restrict_calls(task: SandboxTask) -> Result<String, String> {
    let filter = filter(task).map_err(|error| format!("system calls: {error}"))?;
    let limited = tables(task).iter().flat_map(|table| table.limited).map(|(call, _)| *call).collect();
    // Refused calls need the handler, or they end the process.
    refused::report_refused(limited).map_err(|error| format!("system calls: {error}"))?;
    let applied = apply_filter_all_threads(&filter).map(|()| "seccomp".into());
    applied.map_err(|error| format!("this kernel has no seccomp: {error}"))
}

fn filter(task: SandboxTask) -> Result<BpfProgram, BackendError> {
    let tables = tables(task);
    let free = tables.iter().flat_map(|table| table.free).copied().flatten();
    // No rules mean that all arguments are allowed.
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> = free.map(|call| (*call, Vec::new())).collect();
    for (call, tests) in tables.iter().flat_map(|table| table.limited) {
        rules.entry(*call).or_default().extend(alternatives(tests)?);
    }
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    // A call of another architecture ends the process.
    let listed = SeccompFilter::new(rules, SeccompAction::Trap, SeccompAction::Allow, arch)?;
    let mut program = new_processes().to_vec();
    if task == SandboxTask::Fetch {
        program.extend(local_sockets());
    }
    program.extend(BpfProgram::try_from(listed)?);
    Ok(program)
}

/// The rules for arguments that pass all of `tests`: one for each combination of the numbers that the tests accept.
fn alternatives(tests: &[ArgumentTest]) -> Result<Vec<SeccompRule>, BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    let mut rules: Vec<Vec<SeccompCondition>> = vec![Vec::new()];
    for test in tests {
        let own = [std::process::id() as c_int];
        let (index, width, operator, numbers) = match *test {
            Is(index, numbers) => (index, Dword, SeccompCmpOp::Eq, numbers),
            Bits(index, mask, numbers) => (index, Dword, SeccompCmpOp::MaskedEq(mask as u32 as u64), numbers),
            NullPointer(index) => (index, Qword, SeccompCmpOp::Eq, &[0][..]),
            OwnProcess(index) => (index, Dword, SeccompCmpOp::Eq, &own[..]),
        };
        let mut longer = Vec::new();
        for number in numbers {
            let condition = SeccompCondition::new(index, width.clone(), operator.clone(), *number as u32 as u64)?;
            longer.extend(rules.iter().map(|rule| [&rule[..], from_ref(&condition)].concat()));
        }
        rules = longer;
    }
    rules.into_iter().map(SeccompRule::new).collect()
}

/// An instruction. A jump skips `jt` instructions if the comparison holds, and `jf` otherwise.
const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

// The number of the call is the first field of `seccomp_data`, the input of a filter; arguments follow at byte 16.
const LOAD_CALL: sock_filter = instruction(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0);
const LOAD_ARGUMENT: sock_filter = instruction(BPF_LD | BPF_W | BPF_ABS, 0, 0, 16);

/// The beginning of the filter: calls that fail without SIGSYS. libc blocks all signals while it starts a process, and
/// SIGSYS would then end this process. clone without CLONE_THREAD fails with EPERM. clone3 fails with ENOSYS: its flags
/// are in memory, which a filter cannot read, and libc then uses clone.
fn new_processes() -> [sock_filter; 7] {
    [
        LOAD_CALL,
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 4, 0, SYS_clone3 as u32),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 0, 4, SYS_clone as u32),
        LOAD_ARGUMENT,
        instruction(BPF_JMP | BPF_JSET | BPF_K, 2, 0, CLONE_THREAD as u32),
        instruction(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM as u32),
        instruction(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | ENOSYS as u32),
    ]
}

/// More of the beginning: a local socket fails with EAFNOSUPPORT and is not logged, because libc tries to reach
/// services of this machine before it resolves a name itself.
fn local_sockets() -> [sock_filter; 5] {
    [
        LOAD_CALL,
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 0, 3, SYS_socket as u32),
        LOAD_ARGUMENT,
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, AF_UNIX as u32),
        instruction(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EAFNOSUPPORT as u32),
    ]
}
