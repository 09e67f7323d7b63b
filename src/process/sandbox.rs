//! The sandbox of the daemon: restricts it permanently to the files and system calls that serving a mount needs.
//!
//! Landlock, seccomp and dropped privileges overlap, so that an older kernel still refuses most accesses. Missing
//! kernel support is reported, but is not an error: a mount without a sandbox is better than no mount.

use caps::{CapSet, Capability, CapsHashSet};
use landlock::{
    ABI, Access, AccessFs, AccessNet, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use nix::sys::prctl::set_no_new_privs;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The newest Landlock ABI that was tested. An older kernel enforces the rights that its own ABI has.
const TESTED: ABI = ABI::V7;

/// A sandbox that is not entered yet.
#[derive(Debug)]
pub struct Sandbox {
    files: Result<RulesetCreated, RulesetError>,
}

impl Sandbox {
    /// Allows opening `reads` for reading: files, and directories with everything below them. Also allows opening
    /// `device`, if given, for reading and writing. The rules refer to inodes, not to paths: all paths are opened here,
    /// by O_PATH.
    pub fn new(reads: &[PathBuf], device: Option<&Path>) -> Self {
        Self { files: rules(reads, device) }
    }

    /// Restricts the calling thread and all threads that it starts later. Call this while there is only one thread:
    /// only seccomp restricts other threads too.
    pub fn enter(self) -> Enforced {
        let mut enforced = Enforced::default();
        for step in [alone(), files(self.files), calls::restrict(), no_new_privileges(), drop_capabilities()] {
            match step {
                Ok(restriction) => enforced.restrictions.extend(restriction),
                Err(reason) => enforced.missing.push(reason),
            }
        }
        enforced
    }
}

/// The restrictions that the kernel enforces.
#[derive(Debug, Default)]
pub struct Enforced {
    restrictions: Vec<String>,
    missing: Vec<String>,
}

impl Enforced {
    /// The reason for each restriction that is not enforced.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }
}

impl fmt::Display for Enforced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.restrictions.is_empty() { f.write_str("nothing") } else { f.write_str(&self.restrictions.join(", ")) }
    }
}

/// The restriction that is enforced, if it is worth reporting, or the reason why it is not enforced.
type Step = Result<Option<String>, String>;

/// Checks that this is the only thread. Joined threads may stay in /proc for a moment.
fn alone() -> Step {
    let others = || std::fs::read_dir("/proc/self/task").map_or(0, |tasks| tasks.skip(1).count());
    for _ in 0..100 {
        if others() == 0 {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(format!("{} other threads run already and are not restricted", others()))
}

fn no_new_privileges() -> Step {
    let set = set_no_new_privs();
    set.map(|()| Some("no new privileges".into())).map_err(|error| format!("no_new_privs: {error}"))
}

/// The Landlock rules: files, TCP, signals to other processes, and abstract sockets.
fn rules(reads: &[PathBuf], device: Option<&Path>) -> Result<RulesetCreated, RulesetError> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(TESTED))?
        .handle_access(AccessNet::from_all(TESTED))?
        .scope(Scope::from_all(TESTED))?
        .create()?;
    let read = AccessFs::ReadFile.into();
    let read_write = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let reads = reads.iter().map(|path| (&**path, read));
    for (path, rights) in reads.chain(device.map(|device| (device, read_write))) {
        // A missing path gets no rule. A file that is created there later cannot be opened.
        if let Ok(file) = PathFd::new(path) {
            rules = rules.add_rule(PathBeneath::new(file, rights))?;
        }
    }
    Ok(rules)
}

fn files(rules: Result<RulesetCreated, RulesetError>) -> Step {
    let status = rules.and_then(RulesetCreated::restrict_self).map_err(|error| format!("Landlock: {error}"))?;
    match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, LandlockStatus::NotEnabled) => {
            Err("Landlock is not enabled in this kernel (boot it with lsm=landlock,...): other files can be read"
                .into())
        }
        (RulesetStatus::NotEnforced, _) => Err("this kernel has no Landlock: other files can be read".into()),
        (_, LandlockStatus::Available { effective_abi, .. }) => Ok(Some(format!("Landlock (ABI {effective_abi})"))),
        _ => Ok(Some("Landlock".into())),
    }
}

/// Drops all capabilities. Root keeps the one to read files of other users, because such files may be reopened.
fn drop_capabilities() -> Step {
    let drop_most = || {
        let held = caps::read(None, CapSet::Permitted)?;
        // In many containers, root has DAC_OVERRIDE but not DAC_READ_SEARCH.
        let candidates =
            [(Capability::CAP_DAC_READ_SEARCH, "DAC_READ_SEARCH"), (Capability::CAP_DAC_OVERRIDE, "DAC_OVERRIDE")];
        let kept = candidates.into_iter().find(|(capability, _)| held.contains(capability));
        let set: CapsHashSet = kept.iter().map(|(capability, _)| *capability).collect();
        // The effective set must never be larger than the permitted one.
        caps::clear(None, CapSet::Inheritable)?;
        caps::set(None, CapSet::Effective, &set)?;
        caps::set(None, CapSet::Permitted, &set)?;
        Ok::<_, caps::errors::CapsError>(kept.map(|kept| kept.1))
    };
    match drop_most() {
        Ok(None) => Ok(Some("no capabilities".into())),
        Ok(Some(kept)) => Ok(Some(format!("no capability but {kept}"))),
        Err(error) => Err(format!("cannot drop capabilities: {error}")),
    }
}

/// The system call filter (seccomp).
///
/// It is a list of refused calls, not of allowed ones, because the calls that libc makes to start threads and to
/// allocate memory differ from version to version. The list has the calls that Landlock does not control, that bypass
/// it, or that affect other processes or start programs.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
mod calls {
    use super::Step;
    use nix::libc::*;
    use seccompiler::{
        BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule, TargetArch, apply_filter_all_threads, sock_filter,
    };
    use std::collections::BTreeMap;

    /// System calls that fail with EPERM.
    const REFUSED: &[c_long] = &[
        // Start of other programs.
        SYS_execve,
        SYS_execveat,
        // Access to other processes.
        SYS_ptrace,
        SYS_process_vm_readv,
        SYS_process_vm_writev,
        SYS_process_madvise,
        SYS_kcmp,
        SYS_pidfd_open,
        SYS_pidfd_getfd,
        SYS_pidfd_send_signal,
        SYS_kill,
        SYS_tkill,
        SYS_rt_sigqueueinfo,
        SYS_rt_tgsigqueueinfo,
        // System V IPC and POSIX message queues.
        SYS_shmget,
        SYS_shmat,
        SYS_semget,
        SYS_msgget,
        SYS_mq_open,
        // New sockets and connections, and messages that can carry descriptors. Connected sockets stay usable.
        SYS_socket,
        SYS_socketpair,
        SYS_bind,
        SYS_connect,
        SYS_listen,
        SYS_accept,
        SYS_accept4,
        SYS_sendmsg,
        SYS_sendmmsg,
        SYS_recvmsg,
        SYS_recvmmsg,
        // Changes of mounts, the root directory and namespaces; files opened by handle.
        SYS_mount,
        SYS_umount2,
        SYS_move_mount,
        SYS_open_tree,
        SYS_fsopen,
        SYS_fsconfig,
        SYS_fsmount,
        SYS_fspick,
        SYS_mount_setattr,
        SYS_pivot_root,
        SYS_chroot,
        SYS_unshare,
        SYS_setns,
        SYS_name_to_handle_at,
        SYS_open_by_handle_at,
        // Changes of file attributes and file notifications, which Landlock does not control.
        SYS_fchmod,
        SYS_fchmodat,
        SYS_fchown,
        SYS_fchownat,
        SYS_utimensat,
        SYS_setxattr,
        SYS_lsetxattr,
        SYS_fsetxattr,
        SYS_removexattr,
        SYS_lremovexattr,
        SYS_fremovexattr,
        SYS_inotify_init1,
        SYS_fanotify_init,
        // Also refused by Landlock, if the kernel has it.
        SYS_truncate,
        SYS_ftruncate,
        SYS_unlinkat,
        SYS_renameat2,
        SYS_mkdirat,
        SYS_mknodat,
        SYS_linkat,
        SYS_symlinkat,
        // Kernel features that serving does not use, and that had many vulnerabilities.
        SYS_bpf,
        SYS_perf_event_open,
        SYS_userfaultfd,
        SYS_io_uring_setup,
        SYS_io_uring_enter,
        SYS_io_uring_register,
        SYS_keyctl,
        SYS_add_key,
        SYS_request_key,
        SYS_init_module,
        SYS_finit_module,
        SYS_delete_module,
        SYS_kexec_load,
    ];

    /// Older calls, which only x86-64 has.
    #[cfg(not(target_arch = "x86_64"))]
    const REFUSED_OLD: &[c_long] = &[];
    #[cfg(target_arch = "x86_64")]
    const REFUSED_OLD: &[c_long] = &[
        SYS_fork,
        SYS_vfork,
        SYS_chmod,
        SYS_chown,
        SYS_lchown,
        SYS_utime,
        SYS_utimes,
        SYS_futimesat,
        SYS_inotify_init,
        SYS_unlink,
        SYS_rename,
        SYS_renameat,
        SYS_mkdir,
        SYS_rmdir,
        SYS_mknod,
        SYS_link,
        SYS_symlink,
        SYS_modify_ldt,
    ];

    /// The newest call that the lists consider: cachestat, Linux 6.5. Numbers from 424 on are the same
    /// on all architectures. Calls with larger numbers, including all of the x32 ABI, fail with ENOSYS, so that libc
    /// falls back to older calls.
    const NEWEST: u32 = 451;

    /// FUSE_DEV_IOC_CLONE: connects another descriptor of /dev/fuse to the session, for another thread.
    const IOC_CLONE: u64 = 0x8004_e500;

    pub fn restrict() -> Step {
        let filter = filter().map_err(|error| format!("system calls: {error}"))?;
        let applied = apply_filter_all_threads(&filter);
        applied.map(|()| Some("seccomp".into())).map_err(|error| format!("this kernel has no seccomp: {error}"))
    }

    fn filter() -> Result<BpfProgram, BackendError> {
        use SeccompCmpArgLen::{Dword, Qword};
        use SeccompCmpOp::{MaskedEq, Ne};
        let bit = |bit: c_int| MaskedEq(bit as u64);
        let executable = (2, Qword, bit(PROT_EXEC), PROT_EXEC as u64);
        // Each call is refused if the argument with this index matches.
        let conditional = [
            // Without CLONE_THREAD: a new process instead of a thread.
            (SYS_clone, (0, Qword, bit(CLONE_THREAD), 0)),
            // A signal to another process. A signal to this process is needed to abort.
            (SYS_tgkill, (0, Dword, Ne, u64::from(std::process::id()))),
            // A message with an address: to another destination than the connected peer.
            (SYS_sendto, (4, Qword, Ne, 0)),
            // Every request except FUSE_DEV_IOC_CLONE. TIOCSTI, for example, types into the terminal of a mount in the
            // foreground.
            (SYS_ioctl, (1, Dword, Ne, IOC_CLONE)),
            // New executable memory.
            (SYS_mmap, executable.clone()),
            (SYS_mprotect, executable.clone()),
            (SYS_pkey_mprotect, executable),
        ];
        let mut rules: BTreeMap<_, _> = REFUSED.iter().chain(REFUSED_OLD).map(|call| (*call, Vec::new())).collect();
        for (call, (argument, width, operator, value)) in conditional {
            let condition = SeccompCondition::new(argument, width, operator, value)?;
            rules.insert(call, vec![SeccompRule::new(vec![condition])?]);
        }
        let arch = TargetArch::try_from(std::env::consts::ARCH)?;
        let refuse = SeccompAction::Errno(EPERM as u32);
        let listed = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?;
        let mut program = unsupported().to_vec();
        program.extend(BpfProgram::try_from(listed)?);
        Ok(program)
    }

    /// The beginning of the filter: ENOSYS for calls after [`NEWEST`], and for clone3, because its flags are in memory,
    /// which a filter cannot read. libc then uses clone.
    fn unsupported() -> [sock_filter; 4] {
        let code = |code: u32, jt: u8, jf: u8, k: u32| sock_filter { code: code as u16, jt, jf, k };
        // The number of the call is the first field of `seccomp_data`, the input of a filter.
        [
            code(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
            code(BPF_JMP | BPF_JGT | BPF_K, 1, 0, NEWEST),
            code(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_clone3 as u32),
            code(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | ENOSYS as u32),
        ]
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
mod calls {
    use super::Step;

    pub fn restrict() -> Step {
        Err(format!("no system call filter for {}", std::env::consts::ARCH))
    }
}
