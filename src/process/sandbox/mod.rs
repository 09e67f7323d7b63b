//! The sandboxes of the daemon and of the process that fetches: each is restricted permanently to the files and system
//! calls that its task needs. The daemon has no network. The other process has no FUSE device, and no file but those of
//! the cache and of its credentials.
//!
//! Landlock, seccomp and dropped privileges overlap, so that an older kernel still refuses most accesses. Missing
//! kernel support is reported, but is not an error: a mount without a sandbox is better than no mount.

mod calls;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
mod refused;
pub mod system;

pub use calls::SandboxTask;
use caps::{CapSet, Capability, CapsHashSet};
use landlock::{
    ABI, Access, AccessFs, AccessNet, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::prctl::set_no_new_privs;
use nix::sys::stat::{FileStat, SFlag, fstat};
use nix::unistd::{AccessFlags, faccessat};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The newest Landlock ABI that was tested. An older kernel enforces the rights that its own ABI has.
const TESTED: ABI = ABI::V7;

/// A sandbox that is not entered yet.
#[derive(Debug)]
pub struct Sandbox {
    files: Result<RulesetCreated, RulesetError>,
    capability: Result<Option<Capability>, String>,
    task: SandboxTask,
}

impl Sandbox {
    /// Allows opening the files `reads` for reading. Also allows opening `device`, if given, for reading and writing.
    /// The rules refer to inodes, not to paths: all paths are opened here, with O_PATH. Drops capabilities of the
    /// calling thread for a moment.
    pub fn new(reads: &[PathBuf], device: Option<&Path>) -> Self {
        let capability = needed_capability(reads).map_err(|error| format!("cannot drop capabilities: {error}"));
        Self { files: rules(reads, device), capability, task: SandboxTask::Serving }
    }

    /// Allows opening the files `reads` for reading, and connections of sockets that listen already.
    #[cfg_attr(not(feature = "serve"), allow(dead_code, reason = "nothing is served over HTTP"))]
    pub fn for_listening(reads: &[PathBuf]) -> Self {
        Self { task: SandboxTask::Listening, ..Self::new(reads, None) }
    }

    /// Allows connections to other hosts, everything but executing files and making devices below the directory
    /// `cache`, and reading `reads`: files, and directories with all that is below them. Opens all paths, as
    /// [`Self::new`] does.
    #[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "nothing is fetched"))]
    pub fn for_fetching(cache: &Path, reads: &[PathBuf]) -> Self {
        let capability = needed_capability(reads).map_err(|error| format!("cannot drop capabilities: {error}"));
        Self { files: rules_for_fetching(cache, reads), capability, task: SandboxTask::Fetching }
    }

    /// Restricts the calling thread and all threads that it starts later. Call this while there is only one thread:
    /// only seccomp restricts other threads too.
    pub fn enter(self) -> EnforcedLimits {
        let mut enforced = EnforcedLimits::default();
        let capabilities = self.capability.and_then(drop_capabilities);
        // The filter comes last, because it refuses the calls of the other steps.
        for step in [alone(), sandbox_files(self.files), no_new_privileges(), capabilities, calls(self.task)] {
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
pub struct EnforcedLimits {
    restrictions: Vec<String>,
    missing: Vec<String>,
}

impl EnforcedLimits {
    /// The reason for each restriction that is not enforced.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }
}

impl fmt::Display for EnforcedLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.restrictions.is_empty() { f.write_str("nothing") } else { f.write_str(&self.restrictions.join(", ")) }
    }
}

/// What this kernel enforces of the Landlock rules, or why it enforces nothing. Landlock restricts one thread, so this
/// tries it in a thread of its own.
#[cfg_attr(test, allow(dead_code, reason = "tests/sandbox.rs has a copy of this module"))]
pub fn landlock() -> Result<String, String> {
    let attempt = std::thread::Builder::new().spawn(|| sandbox_files(rules(&[], None)));
    let enforced = attempt.map_err(|error| error.to_string())?.join().map_err(|_| "the thread has ended".to_owned())?;
    enforced.map(Option::unwrap_or_default)
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

fn calls(task: SandboxTask) -> Step {
    calls::restrict(task).map(|()| Some("seccomp".into()))
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
        // A missing path gets no rule. A file that is created there later cannot be opened. A rule for a directory
        // would allow everything below it, and a shard may be a link to the root directory.
        if let Ok(file) = PathFd::new(path)
            && fstat(&file).is_ok_and(|stat| is_allowed(&stat, device == Some(path)))
        {
            rules = rules.add_rule(PathBeneath::new(file, rights))?;
        }
    }
    Ok(rules)
}

/// The Landlock rules of the process that fetches. It cannot listen, and can connect to all ports.
fn rules_for_fetching(cache: &Path, reads: &[PathBuf]) -> Result<RulesetCreated, RulesetError> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(TESTED))?
        .handle_access(AccessNet::BindTcp)?
        .scope(Scope::from_all(TESTED))?
        .create()?;
    let special = AccessFs::Execute
        | AccessFs::IoctlDev
        | AccessFs::MakeBlock
        | AccessFs::MakeChar
        | AccessFs::MakeFifo
        | AccessFs::MakeSock
        | AccessFs::MakeSym;
    if let Ok(dir) = PathFd::new(cache) {
        rules = rules.add_rule(PathBeneath::new(dir, AccessFs::from_all(TESTED) & !special))?;
    }
    for path in reads {
        let Ok(file) = PathFd::new(path) else { continue };
        let Ok(stat) = fstat(&file) else { continue };
        let rights = match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
            SFlag::S_IFREG => AccessFs::ReadFile.into(),
            SFlag::S_IFCHR if stat.st_rdev == system::RANDOM => AccessFs::ReadFile.into(),
            SFlag::S_IFDIR => AccessFs::ReadFile | AccessFs::ReadDir,
            _ => continue,
        };
        rules = rules.add_rule(PathBeneath::new(file, rights))?;
    }
    Ok(rules)
}

/// Whether a rule may refer to a file: to a regular file, or to the device.
fn is_allowed(stat: &FileStat, is_device: bool) -> bool {
    let kind = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits());
    kind == if is_device { SFlag::S_IFCHR } else { SFlag::S_IFREG }
}

fn sandbox_files(rules: Result<RulesetCreated, RulesetError>) -> Step {
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

/// The capability that is needed to open all of `reads` again: root may mount files that only other users may read.
fn needed_capability(reads: &[PathBuf]) -> Result<Option<Capability>, caps::errors::CapsError> {
    let held = caps::read(None, CapSet::Effective)?;
    // In many containers, root has DAC_OVERRIDE but not DAC_READ_SEARCH.
    let candidates = [Capability::CAP_DAC_READ_SEARCH, Capability::CAP_DAC_OVERRIDE];
    let Some(first) = candidates.into_iter().find(|candidate| held.contains(candidate)) else { return Ok(None) };
    let without: CapsHashSet = held.iter().copied().filter(|capability| !candidates.contains(capability)).collect();
    // Without the capabilities, the kernel itself says which files are readable.
    caps::set(None, CapSet::Effective, &without)?;
    let is_refused = |path: &PathBuf| {
        let access = faccessat(AT_FDCWD, path, AccessFlags::R_OK, AtFlags::AT_EACCESS);
        access == Err(nix::errno::Errno::EACCES)
    };
    let is_needed = reads.iter().any(is_refused);
    caps::set(None, CapSet::Effective, &held)?;
    Ok(is_needed.then_some(first))
}

/// Drops all capabilities but `kept`.
fn drop_capabilities(kept: Option<Capability>) -> Step {
    let drop_most = || {
        let set: CapsHashSet = kept.into_iter().collect();
        // The effective set must never be larger than the permitted one.
        caps::clear(None, CapSet::Inheritable)?;
        caps::set(None, CapSet::Effective, &set)?;
        caps::set(None, CapSet::Permitted, &set)
    };
    match (drop_most(), kept) {
        (Ok(()), None) => Ok(Some("no capabilities".into())),
        (Ok(()), Some(kept)) => Ok(Some(format!("no capability but {}", kept.to_string().trim_start_matches("CAP_")))),
        (Err(error), _) => Err(format!("cannot drop capabilities: {error}")),
    }
}
