//! The system call filters (seccomp): lists of the calls that serving a mount needs, and that fetching needs.
//!
//! A list has what the program, the standard library and libc call after the sandbox is entered. It also has the other
//! calls that versions of glibc and musl choose between: fstat, newfstatat or statx; poll or ppoll; open or openat;
//! clone3 or clone. All tests run with glibc 2.36; reads of all views were tried with glibc 2.41 and 2.43 and musl, and
//! nothing was refused. Landlock decides which files may be opened.
//!
//! A call that is not on the list fails with ENOSYS, as in a kernel without it, so that libc falls back to another one;
//! with other arguments than those on the list, a call fails with EPERM. Both are logged, except starts of processes.
/// The task of a process in the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxTask {
    /// Serves a mount.
    Serving,
    /// Serves HTTP clients.
    #[cfg_attr(not(feature = "serve"), allow(dead_code, reason = "nothing is served over HTTP"))]
    Listening,
    /// Fetches remote files.
    Fetching,
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
pub use filter::restrict;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
pub fn restrict(_: SandboxTask) -> Result<(), String> {
    Err(format!("no system call filter for {}", std::env::consts::ARCH))
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
mod filter {
    use super::super::refused;
    use super::SandboxTask;
    use nix::libc::*;
    use seccompiler::{
        BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule, TargetArch, apply_filter_all_threads, sock_filter,
    };
    use std::collections::BTreeMap;

    // These calls are newer than the libc crate. Numbers from 424 on are the same on all architectures.
    const CACHESTAT: c_long = 451;
    const FUTEX_WAKE_2: c_long = 454;
    const FUTEX_WAIT_2: c_long = 455;
    const FUTEX_REQUEUE_2: c_long = 456;

    /// Calls that are allowed with all arguments, for both tasks.
    const ALLOWED: &[c_long] = &[
        // Memory.
        SYS_brk,
        SYS_munmap,
        SYS_mremap,
        SYS_madvise,
        SYS_mincore,
        SYS_membarrier,
        // Files. Reading by descriptor, and opening, which Landlock restricts.
        SYS_openat,
        SYS_openat2,
        SYS_close,
        SYS_close_range,
        SYS_read,
        SYS_readv,
        SYS_pread64,
        SYS_preadv,
        SYS_preadv2,
        SYS_write,
        SYS_writev,
        SYS_lseek,
        SYS_fstat,
        SYS_newfstatat,
        SYS_statx,
        SYS_statfs,
        SYS_fstatfs,
        SYS_faccessat,
        SYS_faccessat2,
        SYS_readlinkat,
        SYS_fgetxattr,
        SYS_name_to_handle_at,
        SYS_fadvise64,
        SYS_readahead,
        CACHESTAT,
        SYS_getcwd,
        SYS_chdir,
        SYS_dup,
        SYS_dup3,
        SYS_pipe2,
        SYS_eventfd2,
        SYS_ppoll,
        // Connected sockets.
        SYS_recvfrom,
        SYS_recvmsg,
        SYS_shutdown,
        // Threads.
        SYS_exit,
        SYS_exit_group,
        SYS_futex,
        SYS_futex_waitv,
        FUTEX_WAKE_2,
        FUTEX_WAIT_2,
        FUTEX_REQUEUE_2,
        SYS_set_robust_list,
        SYS_set_tid_address,
        SYS_rseq,
        SYS_gettid,
        SYS_getpid,
        SYS_getppid,
        SYS_setsid,
        SYS_sched_yield,
        // glibc queries the affinity of a new thread by its number. A filter cannot check that the number is of this
        // process.
        SYS_sched_getaffinity,
        SYS_getcpu,
        // Signals.
        SYS_rt_sigaction,
        SYS_rt_sigprocmask,
        SYS_rt_sigreturn,
        SYS_rt_sigtimedwait,
        SYS_sigaltstack,
        SYS_restart_syscall,
        // Time, randomness, and facts about the process and the machine.
        SYS_nanosleep,
        SYS_clock_nanosleep,
        SYS_clock_gettime,
        SYS_clock_getres,
        SYS_gettimeofday,
        SYS_getrandom,
        SYS_getuid,
        SYS_geteuid,
        SYS_getgid,
        SYS_getegid,
        SYS_uname,
        SYS_sysinfo,
    ];

    /// Further calls that fetching needs.
    const FETCHING: &[c_long] = &[
        // Sockets. The filter allows those of the internet only, besides pairs of connected ones; Landlock refuses to
        // listen.
        SYS_bind,
        SYS_connect,
        SYS_getsockname,
        SYS_getpeername,
        SYS_getsockopt,
        SYS_setsockopt,
        SYS_sendto,
        SYS_sendmsg,
        SYS_sendmmsg,
        SYS_recvmmsg,
        SYS_epoll_create1,
        SYS_epoll_ctl,
        SYS_epoll_pwait,
        SYS_epoll_pwait2,
        // Files of the cache.
        SYS_pwrite64,
        SYS_pwritev,
        SYS_ftruncate,
        SYS_fallocate,
        SYS_fdatasync,
        SYS_fsync,
        SYS_getdents64,
        SYS_mkdirat,
        SYS_unlinkat,
        SYS_renameat2,
        SYS_fchmod,
        SYS_utimensat,
        SYS_memfd_create,
    ];

    /// Further calls that serving HTTP clients needs: connections of the socket that listens already.
    const LISTENING: &[c_long] = &[
        SYS_accept4,
        SYS_getsockname,
        SYS_getpeername,
        SYS_getsockopt,
        SYS_epoll_create1,
        SYS_epoll_ctl,
        SYS_epoll_pwait,
        SYS_epoll_pwait2,
    ];

    /// Older calls, which only x86-64 has. musl prefers them.
    #[cfg(not(target_arch = "x86_64"))]
    const ALLOWED_OLD: &[c_long] = &[];
    #[cfg(target_arch = "x86_64")]
    const FETCHING_OLD: &[c_long] = &[SYS_epoll_wait, SYS_mkdir, SYS_rename, SYS_renameat, SYS_rmdir, SYS_unlink];
    #[cfg(target_arch = "x86_64")]
    const LISTENING_OLD: &[c_long] = &[SYS_accept, SYS_epoll_wait];
    #[cfg(not(target_arch = "x86_64"))]
    const LISTENING_OLD: &[c_long] = &[SYS_accept];
    #[cfg(target_arch = "aarch64")]
    const FETCHING_OLD: &[c_long] = &[SYS_renameat];
    #[cfg(target_arch = "riscv64")]
    const FETCHING_OLD: &[c_long] = &[];
    #[cfg(target_arch = "x86_64")]
    const ALLOWED_OLD: &[c_long] =
        &[SYS_open, SYS_stat, SYS_lstat, SYS_access, SYS_readlink, SYS_dup2, SYS_poll, SYS_pipe, SYS_time, SYS_pause];

    /// FUSE_DEV_IOC_CLONE: connects another descriptor of /dev/fuse to the session, for another thread.
    const IOC_CLONE: u64 = 0x8004_e500;

    // TCGETS, FIONBIO and FIONREAD, whose types differ between versions of libc: the attributes of a terminal,
    // nonblocking mode, and the number of bytes to read, for which libc asks when it resolves a name.
    const GET_TERMINAL: u64 = 0x5401;
    const NONBLOCKING: u64 = 0x5421;
    const TO_READ: u64 = 0x541b;

    /// The flags of clone(2) for new namespaces. Source: include/uapi/linux/sched.h.
    const NEW_NAMESPACES: c_int =
        CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;

    /// Applies the filter to all threads. The error is the reason why it is not enforced.
    pub fn restrict(task: SandboxTask) -> Result<(), String> {
        let filter = filter(task).map_err(|error| format!("system calls: {error}"))?;
        // Refused calls need the handler, or they end the process.
        refused::report_refused(conditional(task).into_iter().map(|(call, _)| call).collect())
            .map_err(|error| format!("system calls: {error}"))?;
        apply_filter_all_threads(&filter).map_err(|error| format!("this kernel has no seccomp: {error}"))
    }

    /// A comparison with the argument that has this index.
    type Comparison = (u8, SeccompCmpArgLen, SeccompCmpOp, u64);

    /// The calls that are allowed only with some arguments: a call is allowed if all comparisons of one of its lists
    /// hold.
    fn conditional(task: SandboxTask) -> Vec<(c_long, Vec<Vec<Comparison>>)> {
        use SeccompCmpArgLen::{Dword, Qword};
        use SeccompCmpOp::{Eq, MaskedEq};
        let is_fetching = task == SandboxTask::Fetching;
        let is = |argument: u8, value: u64| (argument, Dword, Eq, value);
        let is_any = |argument: u8, values: &[u64]| values.iter().map(|value| vec![is(argument, *value)]).collect();
        let is_null = |argument: u8| (argument, Qword, Eq, 0);
        let not_executable = || vec![vec![(2, Qword, MaskedEq(PROT_EXEC as u64), 0)]];
        let thread = MaskedEq((CLONE_THREAD | NEW_NAMESPACES) as u32 as u64);
        let own_priority = || vec![vec![is(0, PRIO_PROCESS as u64), is(1, 0)]];
        let timeout = |option: c_int| vec![is(1, SOL_SOCKET as u64), is(2, option as u64)];
        let mut descriptor = vec![F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_GET_SEALS];
        if is_fetching {
            descriptor.extend([F_ADD_SEALS, F_OFD_SETLK, F_OFD_SETLKW, F_OFD_GETLK]);
        }
        let descriptor: Vec<u64> = descriptor.into_iter().map(|request| request as u64).collect();
        let mut descriptor: Vec<_> = is_any(1, &descriptor);
        descriptor.push(vec![is(1, F_SETFL as u64), (2, Dword, MaskedEq(O_ASYNC as u64), 0)]);
        let mut map = not_executable();
        if is_fetching {
            // A file whose code cannot be changed: libraries that libc loads when it resolves a name.
            let prot = (PROT_WRITE | PROT_EXEC) as u64;
            map.push(vec![(2, Qword, MaskedEq(prot), PROT_EXEC as u64), (3, Dword, MaskedEq(MAP_ANONYMOUS as u64), 0)]);
        }
        let mut conditional = vec![
            (SYS_mmap, map),
            (SYS_mprotect, not_executable()),
            // A thread, not a process, and no new namespace.
            (SYS_clone, vec![vec![(0, Qword, thread, CLONE_THREAD as u64)]]),
            // A signal to this process, which abort(3) sends.
            (SYS_tgkill, vec![vec![is(0, std::process::id().into())]]),
            // Reading limits of this process.
            (SYS_prlimit64, vec![vec![is(0, 0), is_null(2)]]),
            // The priority of the calling thread.
            (SYS_setpriority, own_priority()),
            (SYS_getpriority, own_priority()),
            // Not F_SETOWN and F_SETLEASE, which affect other processes, and not O_ASYNC: the kernel then sends
            // signals to the processes in the foreground of a terminal.
            (SYS_fcntl, descriptor),
            // Not TIOCSTI, for example, which types into the terminal of a mount in the foreground.
            (SYS_ioctl, is_any(1, &[IOC_CLONE, GET_TERMINAL, NONBLOCKING, TO_READ])),
            // The names of threads and memory areas.
            (SYS_prctl, is_any(0, &[PR_SET_NAME as u64, PR_GET_NAME as u64, PR_SET_VMA as u64])),
        ];
        match task {
            SandboxTask::Serving => conditional.extend([
                // No address: to the connected peer only.
                (SYS_sendto, vec![vec![is_null(4)]]),
                (SYS_setsockopt, vec![timeout(SO_RCVTIMEO), timeout(SO_SNDTIMEO)]),
            ]),
            SandboxTask::Listening => conditional.extend([
                (SYS_sendto, vec![vec![is_null(4)]]),
                (SYS_setsockopt, vec![vec![is(1, IPPROTO_TCP as u64), is(2, TCP_NODELAY as u64)]]),
                (SYS_socketpair, vec![vec![is(0, AF_UNIX as u64)]]),
            ]),
            SandboxTask::Fetching => conditional.extend([
                // Not AF_UNIX: its sockets lead to other programs, such as a container engine or a desktop. Landlock
                // does not restrict connections to their paths.
                (SYS_socket, [internet_sockets(), vec![vec![is(0, AF_NETLINK as u64), is(2, 0)]]].concat()),
                (SYS_socketpair, vec![vec![is(0, AF_UNIX as u64)]]),
            ]),
        }
        conditional
    }

    /// TCP and UDP. The type has flags in its higher bits.
    fn internet_sockets() -> Vec<Vec<Comparison>> {
        let kinds = [AF_INET, AF_INET6].into_iter().flat_map(|family| [(family, SOCK_STREAM), (family, SOCK_DGRAM)]);
        let is = |(family, kind): (c_int, c_int)| {
            let family = (0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, family as u64);
            vec![family, (1, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(0xf), kind as u64)]
        };
        kinds.map(is).collect()
    }

    fn filter(task: SandboxTask) -> Result<BpfProgram, BackendError> {
        let mut rules: BTreeMap<_, _> = ALLOWED.iter().chain(ALLOWED_OLD).map(|call| (*call, Vec::new())).collect();
        let more: [&[c_long]; 2] = match task {
            SandboxTask::Serving => [&[], &[]],
            SandboxTask::Listening => [LISTENING, LISTENING_OLD],
            SandboxTask::Fetching => [FETCHING, FETCHING_OLD],
        };
        rules.extend(more.into_iter().flatten().map(|call| (*call, Vec::new())));
        for (call, lists) in conditional(task) {
            let all = |list: Vec<Comparison>| {
                let each = list
                    .into_iter()
                    .map(|(argument, width, operator, value)| SeccompCondition::new(argument, width, operator, value));
                SeccompRule::new(each.collect::<Result<_, _>>()?)
            };
            rules.insert(call, lists.into_iter().map(all).collect::<Result<_, _>>()?);
        }
        let arch = TargetArch::try_from(std::env::consts::ARCH)?;
        // A call of another architecture ends the process.
        let listed = SeccompFilter::new(rules, SeccompAction::Trap, SeccompAction::Allow, arch)?;
        let mut program = new_processes().to_vec();
        if task == SandboxTask::Fetching {
            program.extend(local_sockets());
        }
        program.extend(BpfProgram::try_from(listed)?);
        Ok(program)
    }

    /// The beginning of the filter: calls that fail without SIGSYS. libc blocks all signals while it starts a process,
    /// and SIGSYS would then end this process. clone without CLONE_THREAD fails with EPERM. clone3 fails with ENOSYS:
    /// its flags are in memory, which a filter cannot read, and libc then uses clone.
    fn new_processes() -> [sock_filter; 7] {
        let code = |code: u32, jt: u8, jf: u8, k: u32| sock_filter { code: code as u16, jt, jf, k };
        // The number of the call is the first field of `seccomp_data`, the input of a filter. The arguments follow
        // after 16 bytes. A jump skips `jt` instructions if the comparison holds, and `jf` otherwise.
        [
            code(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
            code(BPF_JMP | BPF_JEQ | BPF_K, 4, 0, SYS_clone3 as u32),
            code(BPF_JMP | BPF_JEQ | BPF_K, 0, 4, SYS_clone as u32),
            code(BPF_LD | BPF_W | BPF_ABS, 0, 0, 16),
            code(BPF_JMP | BPF_JSET | BPF_K, 2, 0, CLONE_THREAD as u32),
            code(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM as u32),
            code(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | ENOSYS as u32),
        ]
    }

    /// More of the beginning: a local socket fails with EAFNOSUPPORT and is not logged, because libc tries to reach
    /// services of this machine before it resolves a name itself.
    fn local_sockets() -> [sock_filter; 5] {
        let code = |code: u32, jt: u8, jf: u8, k: u32| sock_filter { code: code as u16, jt, jf, k };
        [
            code(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
            code(BPF_JMP | BPF_JEQ | BPF_K, 0, 3, SYS_socket as u32),
            code(BPF_LD | BPF_W | BPF_ABS, 0, 0, 16),
            code(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, AF_UNIX as u32),
            code(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EAFNOSUPPORT as u32),
        ]
    }
}
