//! The sandbox: knows what serving needs of the kernel, and has the kernel refuse the rest for good.
//!
//! The same is refused in more than one way, so that an older kernel still refuses most of it. What a kernel lacks is
//! told, not an error: a mount without a sandbox is better than none.

use caps::{CapSet, Capability, CapsHashSet};
use landlock::{
    ABI, Access, AccessFs, AccessNet, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use nix::sys::prctl::set_no_new_privs;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The rights of Landlock that were tested; of an older kernel those that it knows.
const TESTED: ABI = ABI::V7;

/// A sandbox that is made, and not entered yet.
#[derive(Debug)]
pub struct Sandbox {
    files: Result<RulesetCreated, RulesetError>,
}

impl Sandbox {
    /// Lets `reads` be opened to be read, files, and directories with all that is below them; and `device` once more,
    /// if it is said. They are opened for it, to be known by more than their names, but not read.
    pub fn new(reads: &[PathBuf], device: Option<&Path>) -> Self {
        Self { files: rules(reads, device) }
    }

    /// Restricts this thread, and with it those that it starts from now on. There should be no other: of those that run
    /// already Landlock would leave each as it is.
    pub fn enter(self) -> Enforced {
        let mut enforced = Enforced::default();
        for step in [alone(), files(self.files), calls::restrict(), no_new_privileges(), few_capabilities()] {
            match step {
                Ok(what) => enforced.what.extend(what),
                Err(reason) => enforced.missing.push(reason),
            }
        }
        enforced
    }
}

/// What the kernel made of it.
#[derive(Debug, Default)]
pub struct Enforced {
    what: Vec<String>,
    missing: Vec<String>,
}

impl Enforced {
    /// What is not in force, each with the reason.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }
}

impl fmt::Display for Enforced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.what.is_empty() { f.write_str("nothing") } else { f.write_str(&self.what.join(", ")) }
    }
}

/// What is in force, where that is worth a word; or what is not, and why.
type Step = Result<Option<String>, String>;

/// Looks whether this is the only thread. Threads that were joined may take a moment to go.
fn alone() -> Step {
    let others = || std::fs::read_dir("/proc/self/task").map_or(0, |tasks| tasks.skip(1).count());
    for _ in 0..100 {
        if others() == 0 {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(format!("{} other threads run already, with all rights", others()))
}

fn no_new_privileges() -> Step {
    let set = set_no_new_privs();
    set.map(|()| Some("no new privileges".into())).map_err(|error| format!("privileges may be gained: {error}"))
}

/// Rules of Landlock: files, TCP, signals to other processes and abstract sockets.
fn rules(reads: &[PathBuf], device: Option<&Path>) -> Result<RulesetCreated, RulesetError> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(TESTED))?
        .handle_access(AccessNet::from_all(TESTED))?
        .scope(Scope::from_all(TESTED))?
        .create()?;
    let read = AccessFs::ReadFile.into();
    let serve = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let reads = reads.iter().map(|path| (&**path, read));
    for (path, rights) in reads.chain(device.map(|device| (device, serve))) {
        // What is not there has no rule, and nothing that comes to be there later can be opened.
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

/// Root keeps what it takes to read files of other users, as those may be opened once more.
fn few_capabilities() -> Step {
    let drop_most = || {
        let held = caps::read(None, CapSet::Permitted)?;
        // In many containers root has the second without the first.
        let ways =
            [(Capability::CAP_DAC_READ_SEARCH, "DAC_READ_SEARCH"), (Capability::CAP_DAC_OVERRIDE, "DAC_OVERRIDE")];
        let kept = ways.into_iter().find(|(way, _)| held.contains(way));
        let set: CapsHashSet = kept.iter().map(|(way, _)| *way).collect();
        // The effective set must never be larger than the permitted one.
        caps::clear(None, CapSet::Inheritable)?;
        caps::set(None, CapSet::Effective, &set)?;
        caps::set(None, CapSet::Permitted, &set)?;
        Ok::<_, caps::errors::CapsError>(kept.map(|kept| kept.1))
    };
    match drop_most() {
        Ok(None) => Ok(Some("no capabilities".into())),
        Ok(Some(kept)) => Ok(Some(format!("no capability but {kept}"))),
        Err(error) => Err(format!("capabilities stay: {error}")),
    }
}

/// System calls, by seccomp.
///
/// All are allowed but those on a list: what libc calls to start a thread or to get memory is another thing in each of
/// its versions, and a daemon that fails over it one day would help nobody. What the list holds is therefore what
/// Landlock does not see, what gets around it, and what ends in another process or program.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
mod calls {
    use super::Step;
    use nix::libc::*;
    use seccompiler::{
        BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule, TargetArch, apply_filter_all_threads, sock_filter,
    };
    use std::collections::BTreeMap;

    /// They fail with EPERM.
    const REFUSED: &[c_long] = &[
        // Other programs.
        SYS_execve,
        SYS_execveat,
        // Other processes.
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
        // What they share.
        SYS_shmget,
        SYS_shmat,
        SYS_semget,
        SYS_msgget,
        SYS_mq_open,
        // The network and all sockets but those that are connected already; and descriptors that come over one.
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
        // Other places for the same names, and files without a name.
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
        // What changes a file, or tells of it, without opening it: nothing to Landlock.
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
        // What Landlock refuses where there is one.
        SYS_truncate,
        SYS_ftruncate,
        SYS_unlinkat,
        SYS_renameat2,
        SYS_mkdirat,
        SYS_mknodat,
        SYS_linkat,
        SYS_symlinkat,
        // Parts of the kernel that serving has no use for, and that had many holes.
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

    /// What other architectures never had.
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

    /// The last call that the list was made with, set_mempolicy_home_node of Linux 5.17. From 424 on calls have the
    /// same number everywhere. Later ones are taken to be unknown to the kernel, as is every call of the x32 ABI, whose
    /// numbers are far above: libc then goes back to the older ones.
    const NEWEST: u32 = 450;

    /// FUSE_DEV_IOC_CLONE: /dev/fuse once more, for another thread.
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
        // Refused where the argument of that number is so.
        let in_part = [
            // A process instead of a thread.
            (SYS_clone, (0, Qword, bit(CLONE_THREAD), 0)),
            // A signal to others than this process, which sends itself one to die by.
            (SYS_tgkill, (0, Dword, Ne, u64::from(std::process::id()))),
            // A message to others than whom the socket is connected to.
            (SYS_sendto, (4, Qword, Ne, 0)),
            // Keys typed into the terminal that the foreground shares with a shell, and much else.
            (SYS_ioctl, (1, Dword, Ne, IOC_CLONE)),
            // Code that was not there from the start.
            (SYS_mmap, executable.clone()),
            (SYS_mprotect, executable.clone()),
            (SYS_pkey_mprotect, executable),
        ];
        let mut rules: BTreeMap<_, _> = REFUSED.iter().chain(REFUSED_OLD).map(|call| (*call, Vec::new())).collect();
        for (call, (argument, width, is, value)) in in_part {
            let condition = SeccompCondition::new(argument, width, is, value)?;
            rules.insert(call, vec![SeccompRule::new(vec![condition])?]);
        }
        let arch = TargetArch::try_from(std::env::consts::ARCH)?;
        let refuse = SeccompAction::Errno(EPERM as u32);
        let rest = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?;
        let mut program = unknown().to_vec();
        program.extend(BpfProgram::try_from(rest)?);
        Ok(program)
    }

    /// What goes before the rest: later calls do not exist, and neither does clone3, whose flags lie in memory, where a
    /// filter cannot look; libc then takes clone.
    fn unknown() -> [sock_filter; 4] {
        let code = |code: u32, jt: u8, jf: u8, k: u32| sock_filter { code: code as u16, jt, jf, k };
        // The number of the call comes first in what a filter is given.
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
        Err(format!("there is no filter of system calls for {}", std::env::consts::ARCH))
    }
}
