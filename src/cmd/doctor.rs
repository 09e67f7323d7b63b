//! `weightfs doctor`: finds out what prevents mounting on this machine, and how to fix it. Changes nothing
//! but the cache.

use crate::cli::{DoctorArgs, RemoteArgs, SourceArg};
use crate::opening::{self, SourceLocator};
use crate::process::logging::reason;
use crate::process::mounts::{self, FUSERMOUNT, MountInfo};
use crate::process::probe::{self, DaemonHealth};
use crate::process::sandbox;
use crate::terminal::output::{ERROR, GOOD, StandardOutput, WARNING, pretty, to_stdout};
use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access, geteuid};
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;
use unicode_width::UnicodeWidthStr;
use weightfs::format::ParseMode;
use weightfs::fuse::DEVICE;
use weightfs::model::{self, OpenedModel};
use weightfs::source::{self, RemoteFailure};
use weightfs::text::{message, shell_word};
use weightfs::units::plural;

/// The configuration file of libfuse.
const FUSE_CONF: &str = "/etc/fuse.conf";

/// Read-ahead of a mount, in KiB, as root sets it when it mounts.
const READ_AHEAD: u32 = 1024;

/// Prints a finding for each thing that mounting needs. The exit code is 1 if something prevents mounting.
pub fn run_doctor(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    opening::prepare_process()?;
    // This comes first, because it forks, and other checks start threads.
    let mounted = mounted();
    let mut findings = vec![check_device(), permission(), allow_other(), landlock(), seccomp()];
    findings.extend(mounted);
    let url = args.source.as_ref().filter(|source| source.path().is_none());
    let remedy = remote(url, &args.remote, &mut findings);
    findings.extend(args.source.as_ref().map(|source| opened(source, &args.remote, remedy)));
    let failures = findings.iter().filter(|finding| finding.state == FindingState::Failure).count();
    to_stdout(|out| {
        if args.json {
            let list: Vec<Value> = findings.iter().map(DoctorFinding::to_json).collect();
            writeln!(out, "{}", pretty(&json!({ "ok": failures == 0, "findings": list }))?)?;
        } else {
            print_finding(&findings, out)?;
            match failures as u64 {
                0 => writeln!(out, "\nnothing prevents mounting")?,
                1 => writeln!(out, "\n1 problem prevents mounting")?,
                more => writeln!(out, "\n{} prevent mounting", plural(more, "problem"))?,
            }
        }
        Ok(ExitCode::from(u8::from(failures > 0)))
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FindingState {
    Good,
    /// Something works worse, or only for some users.
    Warning,
    /// Mounting is impossible.
    Failure,
}

impl FindingState {
    fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Warning => "warning",
            Self::Failure => "failure",
        }
    }
}

/// What was found out about one thing.
struct DoctorFinding {
    check: &'static str,
    state: FindingState,
    /// One line.
    text: String,
    /// What the user can do about it; `None` if the text says that already.
    remedy: Option<String>,
}

impl DoctorFinding {
    fn good(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, state: FindingState::Good, text: text.into(), remedy: None }
    }

    fn warning(check: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, state: FindingState::Warning, text: text.into(), remedy: Some(remedy.into()) }
    }

    fn failure(check: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, state: FindingState::Failure, text: text.into(), remedy: Some(remedy.into()) }
    }

    fn to_json(&self) -> Value {
        let Self { check, state, text, remedy } = self;
        json!({ "check": check, "state": state.name(), "finding": text, "remedy": remedy })
    }
}

/// Prints a line for each finding, and below it the remedy. Long lines are wrapped on a terminal.
fn print_finding(findings: &[DoctorFinding], out: &mut StandardOutput) -> io::Result<()> {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    // The width of the longest state, and two gaps.
    let indent = 7 + 2 + width + 2;
    let columns = if out.is_terminal { out.width.saturating_sub(indent).max(40) } else { usize::MAX };
    for DoctorFinding { check, state, text, remedy } in findings {
        let style = match state {
            FindingState::Good => GOOD,
            FindingState::Warning => WARNING,
            FindingState::Failure => ERROR,
        };
        let gap = " ".repeat(7 - state.name().len());
        write!(out, "{}{gap}  {check:width$}  ", out.styled(style, state.name()))?;
        let remedy = remedy.as_ref().map(|remedy| format!("remedy: {remedy}"));
        let lines = [Some(text), remedy.as_ref()].into_iter().flatten();
        let lines: Vec<String> = lines.flat_map(|line| wrapped(&message(line), columns)).collect();
        writeln!(out, "{}", lines.join(&format!("\n{}", " ".repeat(indent))))?;
    }
    Ok(())
}

/// The lines of a text of at most `columns` columns, unless a word is longer.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.width() + 1 + word.width() <= columns => line.extend([" ", word]),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn check_device() -> DoctorFinding {
    const CHECK: &str = "device";
    let container = "give it to the container (--device /dev/fuse)";
    let Err(error) = OpenOptions::new().read(true).write(true).open(DEVICE) else {
        return DoctorFinding::good(CHECK, format!("{DEVICE} can be opened"));
    };
    let errno = error.raw_os_error().map(Errno::from_raw);
    let remedy = match errno {
        Some(Errno::ENOENT) => format!("load the module with `modprobe fuse`, or {container}"),
        Some(Errno::ENODEV | Errno::ENXIO) => "load the module with `modprobe fuse`".to_owned(),
        Some(Errno::EACCES) if !geteuid().is_root() => {
            "an administrator can let users open it: chmod 666 /dev/fuse".to_owned()
        }
        _ => container.to_owned(),
    };
    let what = errno.map_or_else(|| error.to_string(), |errno| errno.desc().to_owned());
    DoctorFinding::failure(CHECK, format!("{DEVICE}: {what}"), remedy)
}

/// Whether this user may mount: root by mount(2), other users by the setuid program of libfuse.
fn permission() -> DoctorFinding {
    const CHECK: &str = "permission";
    let is_root = geteuid().is_root();
    if is_root && caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).unwrap_or(false) {
        return DoctorFinding::good(CHECK, "root may mount");
    }
    let helper = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|dir| dir.join(FUSERMOUNT))
        .find(|path| path.is_file());
    let container = "give the container CAP_SYS_ADMIN (--cap-add SYS_ADMIN)";
    let Some(helper) = helper else {
        return match is_root {
            true => DoctorFinding::failure(CHECK, "root has no CAP_SYS_ADMIN here, and may not mount", container),
            false => DoctorFinding::failure(
                CHECK,
                format!("{FUSERMOUNT} is missing; users other than root need it to mount"),
                "install the package fuse3",
            ),
        };
    };
    let shown = helper.display();
    if is_root {
        let text = format!("root has no CAP_SYS_ADMIN here; {shown} mounts instead, which may not be permitted");
        return DoctorFinding::warning(CHECK, text, container);
    }
    if let Some((text, remedy)) = obstacle(&helper) {
        return DoctorFinding::failure(CHECK, format!("{shown} {text}"), remedy);
    }
    DoctorFinding::good(CHECK, format!("users may mount with {shown}, which is setuid root"))
}

/// Why a user cannot mount by the setuid program `helper`, and what to do about it.
fn obstacle(helper: &Path) -> Option<(String, String)> {
    let word = shell_word(helper);
    let metadata = std::fs::metadata(helper).ok()?;
    if access(helper, AccessFlags::X_OK).is_err() {
        let text = format!("may be run by its group {} only", metadata.gid());
        return Some((text, "an administrator can add you to that group".into()));
    }
    if metadata.permissions().mode() & 0o4000 == 0 || metadata.uid() != 0 {
        let remedy = format!("an administrator can restore it: chown root {word} && chmod u+s {word}");
        return Some(("is not setuid root".into(), remedy));
    }
    if statvfs(helper).is_ok_and(|stat| stat.flags().contains(FsFlags::ST_NOSUID)) {
        let remedy = "an administrator can mount that file system without nosuid";
        return Some(("is on a file system that is mounted nosuid".into(), remedy.into()));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let flag = status.lines().find_map(|line| line.strip_prefix("NoNewPrivs:"));
    (flag.map(str::trim) == Some("1")).then(|| {
        let remedy = "start the shell without it (a container: without --security-opt no-new-privileges)";
        ("cannot gain privileges, because no_new_privs is set".into(), remedy.into())
    })
}

/// Whether a user may share a mount. Root always may.
fn allow_other() -> DoctorFinding {
    const CHECK: &str = "allow_other";
    if geteuid().is_root() {
        return DoctorFinding::good(CHECK, "root may use --allow-other");
    }
    let conf = std::fs::read_to_string(FUSE_CONF).unwrap_or_default();
    if conf.lines().any(|line| line.trim() == "user_allow_other") {
        return DoctorFinding::good(CHECK, "users may use --allow-other");
    }
    let text = format!("users may not use --allow-other or --allow-root: {FUSE_CONF} has no line user_allow_other");
    DoctorFinding::warning(CHECK, text, "an administrator can add that line")
}

fn landlock() -> DoctorFinding {
    const CHECK: &str = "Landlock";
    match sandbox::landlock() {
        Ok(text) => DoctorFinding::good(CHECK, format!("the kernel enforces {text}")),
        Err(text) => DoctorFinding::warning(
            CHECK,
            text,
            "boot Linux 5.13 or later with landlock in lsm=; mounts work without it",
        ),
    }
}

fn seccomp() -> DoctorFinding {
    const CHECK: &str = "seccomp";
    let kernel = Path::new("/proc/sys/kernel");
    match kernel.exists().then(|| kernel.join("seccomp/actions_avail").exists()) {
        Some(true) => DoctorFinding::good(CHECK, "the kernel can filter system calls"),
        Some(false) => {
            let remedy = "boot a kernel with CONFIG_SECCOMP_FILTER; mounts work without it";
            DoctorFinding::warning(CHECK, "the kernel cannot filter system calls", remedy)
        }
        None => DoctorFinding::warning(CHECK, "unknown, because /proc/sys is missing", "mount /proc"),
    }
}

/// The mounts that are dead, hang, or read ahead too little.
fn mounted() -> Vec<DoctorFinding> {
    const CHECK: &str = "mounts";
    let all = match mounts::all() {
        Ok(mounts) => mounts,
        Err(error) => return vec![DoctorFinding::warning(CHECK, reason(&error), "mount /proc")],
    };
    let mounts: Vec<MountInfo> = all.iter().filter(|mount| mount.fstype == mounts::TYPE).cloned().collect();
    let answers = match probe::ask(&mounts, &all, &[]) {
        Ok(answers) => answers,
        Err(error) => {
            return vec![DoctorFinding::warning(CHECK, reason(&error), "recreate /dev/null, or end other processes")];
        }
    };
    let asked = mounts.iter().zip(answers);
    let mut findings: Vec<DoctorFinding> = asked.filter_map(|(mount, answer)| trouble(mount, answer.health)).collect();
    if findings.is_empty() {
        let text = match mounts.len() as u64 {
            0 => "no mounts".to_owned(),
            mounts => format!("{}, none of them dead", plural(mounts, "mount")),
        };
        findings.push(DoctorFinding::good(CHECK, text));
    }
    findings
}

fn trouble(mount: &MountInfo, health: DaemonHealth) -> Option<DoctorFinding> {
    const CHECK: &str = "mounts";
    let (path, word) = (mount.path.display(), shell_word(&mount.path));
    match health {
        DaemonHealth::Dead => {
            let text = format!("{path}: dead: its daemon has ended");
            return Some(DoctorFinding::warning(CHECK, text, format!("weightfs umount {word}")));
        }
        DaemonHealth::Silent => {
            let text = format!("{path}: its daemon does not answer");
            return Some(DoctorFinding::warning(
                CHECK,
                text,
                format!("resume it with `kill -CONT` if it is stopped, or run weightfs umount {word}"),
            ));
        }
        DaemonHealth::Alive | DaemonHealth::Private | DaemonHealth::Covered => {}
    }
    let file = format!("/sys/class/bdi/{}/read_ahead_kb", mount.device);
    let kib: u32 = std::fs::read_to_string(&file).ok()?.trim().parse().ok()?;
    (kib < READ_AHEAD).then(|| {
        let text = format!("{path}: reads only {kib} KiB ahead, which slows down sequential reads of large files");
        DoctorFinding::warning(CHECK, text, format!("as root: echo {READ_AHEAD} >{file}"))
    })
}

/// Adds what is found about the cache, and about the credentials for a URL. Returns what the user can do if the server
/// refuses them.
#[cfg(feature = "remote")]
fn remote(url: Option<&SourceArg>, args: &RemoteArgs, findings: &mut Vec<DoctorFinding>) -> Option<String> {
    use weightfs::remote::{location::RemoteLocation, transport};
    const CHECK: &str = "credentials";
    findings.push(cache(url.is_some()));
    let Some(SourceArg::Url(url)) = url else { return None };
    let location = RemoteLocation::parse(url).ok()??;
    let options =
        transport::TransportOptions { token_file: args.token_file.clone(), ..transport::TransportOptions::default() };
    let (finding, remedy) = match transport::credentials(&options, &location) {
        Ok(Some(place)) => {
            let remedy = format!("check that the credentials from {place} are valid, and give access to the file");
            (DoctorFinding::good(CHECK, format!("from {place}")), remedy)
        }
        Ok(None) => {
            (DoctorFinding::good(CHECK, "none: requests carry no credentials"), how_to_log_in(&location).to_owned())
        }
        Err(error) => {
            let remedy = "correct that file, or remove the variable or option that names it";
            (DoctorFinding::failure(CHECK, error.to_string(), remedy), remedy.to_owned())
        }
    };
    findings.push(finding);
    Some(remedy)
}

/// How to give credentials for a location.
#[cfg(feature = "remote")]
fn how_to_log_in(location: &weightfs::remote::location::RemoteLocation) -> &'static str {
    use weightfs::remote::location::{RemoteLocation, StoreKind};
    match location {
        RemoteLocation::Hub(_) => {
            "run `hf auth login`, or set HF_TOKEN; if the model is gated, accept its terms on its page"
        }
        RemoteLocation::Web(_) => "use --token-file FILE, or write a line for the host into ~/.netrc",
        RemoteLocation::Store(store) => match store.kind {
            StoreKind::S3 => "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            StoreKind::Gcs => "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
            StoreKind::Azure => "set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
        },
    }
}

#[cfg(not(feature = "remote"))]
fn remote(_: Option<&SourceArg>, _: &RemoteArgs, findings: &mut Vec<DoctorFinding>) -> Option<String> {
    findings.push(DoctorFinding::good("cache", "none: this weightfs was built without remote sources"));
    None
}

/// Whether the cache can be used. Without it, no URL can be mounted.
#[cfg(feature = "remote")]
fn cache(is_needed: bool) -> DoctorFinding {
    use weightfs::remote::cache::{BlockCache, default_dir, default_limit};
    use weightfs::units::format_size;
    const CHECK: &str = "cache";
    let broken = |text: String, remedy: &str| match is_needed {
        true => DoctorFinding::failure(CHECK, text, remedy),
        false => DoctorFinding::warning(CHECK, format!("{text}; URLs cannot be mounted"), remedy),
    };
    const OTHER: &str = "set XDG_CACHE_HOME to another directory";
    let Some(dir) = default_dir() else {
        return broken("neither XDG_CACHE_HOME nor HOME is an absolute path".into(), "set one of them");
    };
    let shown = dir.display();
    // The cache is created when it is first used.
    let Some(existing) = dir.ancestors().find(|dir| dir.exists()) else {
        return broken(format!("{shown}: there is no such directory, and none above it"), OTHER);
    };
    if !existing.is_dir() {
        return broken(format!("{}: not a directory", existing.display()), OTHER);
    }
    if let Err(errno) = access(existing, AccessFlags::W_OK | AccessFlags::X_OK) {
        return broken(format!("{}: cannot be written to: {}", existing.display(), errno.desc()), OTHER);
    }
    match BlockCache::list(&dir) {
        Err(error) => broken(error.to_string(), OTHER),
        Ok(contents) => {
            let cached = contents.cached();
            let limit = default_limit(&dir, cached);
            let kind = file_system(existing).unwrap_or_else(|| "an unknown file system".into());
            if limit == Some(0) {
                return broken(format!("{shown}: no space left on {kind}"), &format!("free disk space, or {OTHER}"));
            }
            if let Some(error) = contents.failed.first() {
                let text = format!("{}: {error}", plural(contents.failed.len() as u64, "unreadable file"));
                return DoctorFinding::warning(CHECK, text, "remove them: weightfs cache clear");
            }
            let limit = limit.map(|limit| format!(" of at most {}", format_size(limit))).unwrap_or_default();
            DoctorFinding::good(CHECK, format!("{shown}: {}{limit}, on {kind}", format_size(cached)))
        }
    }
}

/// The type of the file system that has a directory.
#[cfg(feature = "remote")]
fn file_system(dir: &Path) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    let mounts = mounts::all().ok()?;
    // Of several mounts on one directory, the last is on top.
    let holds = mounts.into_iter().filter(|mount| dir.starts_with(&mount.path));
    Some(holds.max_by_key(|mount| mount.path.as_os_str().len())?.fstype)
}

/// Whether a source can be opened, which reads its headers. `refused` is the remedy if the server refuses it.
fn opened(source: &SourceArg, remote: &RemoteArgs, refused: Option<String>) -> DoctorFinding {
    const CHECK: &str = "source";
    const URL: &str = "check the URL";
    const NETWORK: &str = "check the name of the host, the network, and HTTPS_PROXY and NO_PROXY; or try again later";
    let mut locator = SourceLocator::new(remote);
    let found = locator.locate(source).and_then(|location| Ok(model::open_location(&location, ParseMode::Strict)?));
    match found {
        Ok(OpenedModel::Model(model)) => {
            let tensors = plural(model.listed().len() as u64, "tensor");
            DoctorFinding::good(CHECK, format!("{source}: {}, {tensors}", model.format()))
        }
        Ok(OpenedModel::Catalog(catalog)) => {
            let models = plural(catalog.models().len() as u64, "model");
            DoctorFinding::good(CHECK, format!("{source}: a directory with {models}"))
        }
        Err(error) => {
            let (check, remedy) = match failed_finding(&error) {
                Some(RemoteFailure::Transient) => ("network", NETWORK),
                Some(RemoteFailure::Refused) => ("credentials", refused.as_deref().unwrap_or(URL)),
                Some(RemoteFailure::WholeOnly) => ("server", "download the file, and mount the copy"),
                Some(RemoteFailure::Changed) => (CHECK, "try again: the file changed while it was read"),
                Some(RemoteFailure::Lasting) => (CHECK, URL),
                None => (
                    CHECK,
                    "check that this is the path of a model; `weightfs check` reports all that is wrong with it",
                ),
            };
            DoctorFinding::failure(check, reason(&error), remedy)
        }
    }
}

/// Why a remote source cannot be opened. `None` if it is local, or if its bytes were received.
fn failed_finding(error: &anyhow::Error) -> Option<RemoteFailure> {
    let error = match error.downcast_ref::<model::Error>() {
        Some(model::Error::Source(error)) => Some(error),
        _ => error.downcast_ref::<source::Error>(),
    };
    match error? {
        source::Error::Remote { failure, .. } => Some(*failure),
        _ => None,
    }
}
