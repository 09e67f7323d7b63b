//! The sandboxes of the daemon of a mount, of the HTTP server and of the process that fetches: each is restricted
//! permanently to the files (`files`) and system calls (`calls`) that its task needs. The first two have no network but
//! what is open already. The last has no FUSE device, and no file but those of the cache and of its credentials.
//!
//! Landlock, seccomp and dropped privileges overlap, so that an older kernel still refuses most accesses. Missing
//! kernel support is reported, but is not an error: a mount without a sandbox is better than no mount.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
mod calls;
pub mod files;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
mod refused;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
use calls::restrict_calls;
use caps::{CapSet, Capability, CapsHashSet};
use files::SandboxTask;
use landlock::{RulesetCreated, RulesetError};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::prctl::set_no_new_privs;
use nix::unistd::{AccessFlags, faccessat};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug)]
pub struct Sandbox {
    task: SandboxTask,
    files: Result<RulesetCreated, RulesetError>,
    capability: Result<Option<Capability>, String>,
}

impl Sandbox {
    /// Allows reading the files `reads`, and using `own`: the device or the directory of the task, if it needs one.
    /// Opens all paths, and drops capabilities of the calling thread for a moment.
    pub fn new(task: SandboxTask, reads: &[PathBuf], own: Option<&Path>) -> Self {
        let capability = needed_capability(reads).map_err(|error| format!("cannot drop capabilities: {error}"));
        Self { task, files: files::file_rules(task, reads, own), capability }
    }

    /// Restricts the calling thread and all threads that it starts later. Call this while there is only one thread:
    /// only seccomp restricts other threads too.
    pub fn enter(self) -> EnforcedLimits {
        let mut enforced = EnforcedLimits::default();
        enforced.missing.extend(other_threads());
        // The filter comes last, because it refuses the calls of the other steps.
        for step in [
            files::restrict_files(self.files),
            set_no_new_privs().map(|()| "no new privileges".into()).map_err(|error| format!("no_new_privs: {error}")),
            self.capability.and_then(drop_capabilities),
            restrict_calls(self.task),
        ] {
            match step {
                Ok(restriction) => enforced.restrictions.push(restriction),
                Err(reason) => enforced.missing.push(reason),
            }
        }
        enforced
    }
}

#[derive(Debug, Default)]
pub struct EnforcedLimits {
    restrictions: Vec<String>,
    /// The reason for each restriction that is not enforced.
    pub missing: Vec<String>,
}

impl EnforcedLimits {
    /// Logs what is enforced and what is not. `whose` follows the word sandbox.
    #[cfg_attr(test, allow(dead_code, reason = "tests/sandbox.rs has a copy of this module"))]
    pub fn log(&self, whose: &str) {
        log::info!("sandbox{whose}: {self}");
        for missing in &self.missing {
            log::warn!("incomplete sandbox{whose}: {missing}");
        }
    }
}

impl fmt::Display for EnforcedLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.restrictions.is_empty() { f.write_str("nothing") } else { f.write_str(&self.restrictions.join(", ")) }
    }
}

/// Why other threads will not be restricted, if there are any. Joined threads may stay in /proc for a moment.
fn other_threads() -> Option<String> {
    let mut others = 0;
    for _ in 0..100 {
        others = std::fs::read_dir("/proc/self/task").map_or(0, |tasks| tasks.skip(1).count());
        if others == 0 {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(format!("{others} other threads run already and are not restricted"))
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
fn restrict_calls(_: SandboxTask) -> Result<String, String> {
    Err(format!("no system call filter for {}", std::env::consts::ARCH))
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
    let is_needed = reads
        .iter()
        .any(|path| faccessat(AT_FDCWD, path, AccessFlags::R_OK, AtFlags::AT_EACCESS) == Err(Errno::EACCES));
    caps::set(None, CapSet::Effective, &held)?;
    Ok(is_needed.then_some(first))
}

/// Drops all capabilities but `kept`.
fn drop_capabilities(kept: Option<Capability>) -> Result<String, String> {
    let set: CapsHashSet = kept.into_iter().collect();
    // The effective set must never be larger than the permitted one.
    caps::clear(None, CapSet::Inheritable)
        .and_then(|()| caps::set(None, CapSet::Effective, &set))
        .and_then(|()| caps::set(None, CapSet::Permitted, &set))
        .map_err(|error| format!("cannot drop capabilities: {error}"))?;
    Ok(match kept {
        None => "no capabilities".into(),
        Some(kept) => format!("no capability but {}", kept.to_string().trim_start_matches("CAP_")),
    })
}
