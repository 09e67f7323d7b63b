//! `weightfs doctor`: finds out what prevents mounting on this machine, and how to fix it. Changes nothing
//! but the cache.

use crate::cli::DoctorArgs;
use crate::cli::source::{RemoteArgs, SourceArg};
use crate::opening::{self, SourceLocator};
use crate::process::logging::reason;
use crate::process::mounts::{self, FUSERMOUNT, MountInfo};
use crate::process::probe::{self, DaemonHealth};
use crate::process::sandbox::files::try_landlock;
use crate::terminal::output::{ERROR, GOOD, StandardOutput, WARNING, to_stdout, wrap_words};
use anstyle::Style;
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
use weightfs::format::ParseMode;
use weightfs::fuse::DEVICE;
use weightfs::model::{self, OpenedModel};
use weightfs::source::{self, RemoteFailure};
use weightfs::text::{message, shell_word};
use weightfs::units::plural;

const FUSE_CONF: &str = "/etc/fuse.conf";

/// Read-ahead of a mount, in KiB, as root sets it when it mounts.
const READ_AHEAD: u32 = 1024;

/// Width of the longest state, `warning`.
const STATE_WIDTH: usize = 7;

/// Width of the longest name of a check, `allow_other`.
const CHECK_WIDTH: usize = 11;

/// Prints a finding for each thing that mounting needs. The exit code is 1 if something prevents mounting.
pub fn run_doctor(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    opening::prepare_process(args.remote.verbose)?;
    // This comes first, because it forks, and other checks start threads.
    let mounted = mounted();
    to_stdout(|out| {
        let mut report = DoctorReport { out, json: args.json, findings: Vec::new() };
        report.add("device", check_device())?;
        report.add("permission", permission())?;
        report.add("allow_other", allow_other())?;
        report.add("Landlock", landlock())?;
        report.add("seccomp", seccomp())?;
        for verdict in mounted {
            report.add("mounts", verdict)?;
        }
        let remedy = check_remote(args.source.as_ref(), &args.remote, &mut report)?;
        if let Some(source) = &args.source {
            let (check, verdict) = open_checked(source, &args.remote, remedy);
            report.add(check, verdict)?;
        }
        report.end()
    })
}

/// The findings so far. Each is printed as soon as it is known, because the next one may wait for a network.
struct DoctorReport<'a> {
    out: &'a mut StandardOutput,
    json: bool,
    findings: Vec<DoctorFinding>,
}

impl DoctorReport<'_> {
    fn add(&mut self, check: &'static str, verdict: DoctorVerdict) -> anyhow::Result<()> {
        let finding = (check, verdict);
        if !self.json {
            print_finding(&finding, self.out)?;
            self.out.flush()?;
        }
        self.findings.push(finding);
        Ok(())
    }

    /// Prints the conclusion. The exit code is 1 if something prevents mounting.
    fn end(self) -> anyhow::Result<ExitCode> {
        let Self { out, json, findings } = self;
        let troubles = findings.iter().filter_map(|(_, verdict)| verdict.as_ref().err());
        let failures = troubles.filter(|trouble| trouble.is_fatal).count();
        if json {
            let list: Vec<Value> = findings.iter().map(finding_to_json).collect();
            out.print_json(&json!({ "ok": failures == 0, "findings": list }))?;
        } else {
            match failures as u64 {
                0 => writeln!(out, "\nnothing prevents mounting")?,
                1 => writeln!(out, "\n1 problem prevents mounting")?,
                more => writeln!(out, "\n{} prevent mounting", plural(more, "problem"))?,
            }
        }
        Ok(ExitCode::from(u8::from(failures > 0)))
    }
}

/// The subject of a check, and its result.
type DoctorFinding = (&'static str, DoctorVerdict);

/// A line about what is good, or a trouble.
type DoctorVerdict = Result<String, DoctorTrouble>;

struct DoctorTrouble {
    /// Whether mounting is impossible. Otherwise, something works worse, or only for some users.
    is_fatal: bool,
    /// One line.
    text: String,
    /// The remedy, for the user.
    remedy: String,
}

fn warning(text: impl Into<String>, remedy: impl Into<String>) -> DoctorVerdict {
    Err(DoctorTrouble { is_fatal: false, text: text.into(), remedy: remedy.into() })
}

fn failure(text: impl Into<String>, remedy: impl Into<String>) -> DoctorVerdict {
    Err(DoctorTrouble { is_fatal: true, text: text.into(), remedy: remedy.into() })
}

/// The state in words, its style, the text and the remedy.
fn described(verdict: &DoctorVerdict) -> (&'static str, Style, &str, Option<&str>) {
    match verdict {
        Ok(text) => ("ok", GOOD, text, None),
        Err(DoctorTrouble { is_fatal: false, text, remedy }) => ("warning", WARNING, text, Some(remedy)),
        Err(DoctorTrouble { is_fatal: true, text, remedy }) => ("failure", ERROR, text, Some(remedy)),
    }
}

fn finding_to_json((check, verdict): &DoctorFinding) -> Value {
    let (state, _, text, remedy) = described(verdict);
    json!({ "check": check, "state": state, "finding": text, "remedy": remedy })
}

/// Prints a line for a finding, and below it the remedy. Long lines are wrapped on a terminal.
fn print_finding((check, verdict): &DoctorFinding, out: &mut StandardOutput) -> io::Result<()> {
    let indent = STATE_WIDTH + 2 + CHECK_WIDTH + 2;
    let columns = if out.is_terminal { out.width.saturating_sub(indent).max(40) } else { usize::MAX };
    let (state, style, text, remedy) = described(verdict);
    let gap = " ".repeat(STATE_WIDTH - state.len());
    write!(out, "{}{gap}  {check:CHECK_WIDTH$}  ", out.styled(style, state))?;
    let remedy = remedy.map(|remedy| format!("remedy: {remedy}"));
    let lines = [Some(text), remedy.as_deref()].into_iter().flatten();
    let lines: Vec<String> = lines.flat_map(|line| wrap_words(&message(line), columns)).collect();
    writeln!(out, "{}", lines.join(&format!("\n{}", " ".repeat(indent))))
}

fn check_device() -> DoctorVerdict {
    let container = "give it to the container (--device /dev/fuse)";
    let Err(error) = OpenOptions::new().read(true).write(true).open(DEVICE) else {
        return Ok(format!("{DEVICE} can be opened"));
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
    failure(format!("{DEVICE}: {what}"), remedy)
}

/// Whether this user may mount: root by mount(2), other users by the setuid program of libfuse.
fn permission() -> DoctorVerdict {
    let is_root = geteuid().is_root();
    if is_root && caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).unwrap_or(false) {
        return Ok("root may mount".into());
    }
    let helper = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|dir| dir.join(FUSERMOUNT))
        .find(|path| path.is_file());
    let container = "give the container CAP_SYS_ADMIN (--cap-add SYS_ADMIN)";
    match helper {
        None if is_root => failure("root has no CAP_SYS_ADMIN here, and may not mount", container),
        None => failure(
            format!("{FUSERMOUNT} is missing; users other than root need it to mount"),
            "install the package fuse3",
        ),
        Some(helper) if is_root => {
            let shown = helper.display();
            let text = format!("root has no CAP_SYS_ADMIN here; {shown} mounts instead, which may not be permitted");
            warning(text, container)
        }
        Some(helper) => match obstacle(&helper) {
            Some((text, remedy)) => failure(format!("{} {text}", helper.display()), remedy),
            None => Ok(format!("users may mount with {}, which is setuid root", helper.display())),
        },
    }
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
fn allow_other() -> DoctorVerdict {
    if geteuid().is_root() {
        return Ok("root may use --allow-other".into());
    }
    let conf = std::fs::read_to_string(FUSE_CONF).unwrap_or_default();
    if conf.lines().any(|line| line.trim() == "user_allow_other") {
        return Ok("users may use --allow-other".into());
    }
    let text = format!("users may not use --allow-other or --allow-root: {FUSE_CONF} has no line user_allow_other");
    warning(text, "an administrator can add that line")
}

fn landlock() -> DoctorVerdict {
    const REMEDY: &str = "boot Linux 5.13 or later with landlock in lsm=; mounts work without it";
    match try_landlock() {
        Ok(text) => Ok(format!("the kernel enforces {text}")),
        Err(text) => warning(text, REMEDY),
    }
}

fn seccomp() -> DoctorVerdict {
    const REMEDY: &str = "boot a kernel with CONFIG_SECCOMP_FILTER; mounts work without it";
    let kernel = Path::new("/proc/sys/kernel");
    match kernel.exists().then(|| kernel.join("seccomp/actions_avail").exists()) {
        Some(true) => Ok("the kernel can filter system calls".into()),
        Some(false) => warning("the kernel cannot filter system calls", REMEDY),
        None => warning("unknown, because /proc/sys is missing", "mount /proc"),
    }
}

/// The mounts that are dead, hang, or read ahead too little.
fn mounted() -> Vec<DoctorVerdict> {
    let all = match mounts::all() {
        Ok(mounts) => mounts,
        Err(error) => return vec![warning(reason(&error), "mount /proc")],
    };
    let mounts: Vec<MountInfo> = all.iter().filter(|mount| mount.fstype == mounts::TYPE).cloned().collect();
    let answers = match probe::ask(&mounts, &all, &[]) {
        Ok(answers) => answers,
        Err(error) => return vec![warning(reason(&error), "recreate /dev/null, or end other processes")],
    };
    let asked = mounts.iter().zip(answers);
    let troubles: Vec<_> = asked.filter_map(|(mount, answer)| mount_trouble(mount, answer.health)).collect();
    match (troubles.is_empty(), mounts.len() as u64) {
        (false, _) => troubles,
        (true, 0) => vec![Ok("no mounts".into())],
        (true, mounts) => vec![Ok(format!("{}, none of them dead", plural(mounts, "mount")))],
    }
}

fn mount_trouble(mount: &MountInfo, health: DaemonHealth) -> Option<DoctorVerdict> {
    let (path, word) = (mount.path.display(), shell_word(&mount.path));
    match health {
        DaemonHealth::Dead => {
            let text = format!("{path}: dead: its daemon has ended");
            return Some(warning(text, format!("weightfs umount {word}")));
        }
        DaemonHealth::Silent => {
            let remedy = format!("resume it with `kill -CONT` if it is stopped, or run weightfs umount {word}");
            return Some(warning(format!("{path}: its daemon does not answer"), remedy));
        }
        DaemonHealth::Alive | DaemonHealth::Private | DaemonHealth::Covered => {}
    }
    let file = format!("/sys/class/bdi/{}/read_ahead_kb", mount.device);
    let kib: u32 = std::fs::read_to_string(&file).ok()?.trim().parse().ok()?;
    (kib < READ_AHEAD).then(|| {
        let text = format!("{path}: reads only {kib} KiB ahead, which slows down sequential reads of large files");
        warning(text, format!("as root: echo {READ_AHEAD} >{file}"))
    })
}

/// Adds what is found about the cache, and about the credentials for a URL. Returns what the user can do if the server
/// refuses them.
#[cfg(feature = "remote")]
fn check_remote(
    source: Option<&SourceArg>,
    args: &RemoteArgs,
    report: &mut DoctorReport,
) -> anyhow::Result<Option<String>> {
    use weightfs::remote::location::RemoteLocation;
    use weightfs::remote::transport::{self, TransportOptions};
    let url = source.and_then(|source| if let SourceArg::Url(url) = source { Some(url) } else { None });
    let cache = match cache() {
        Err(DoctorTrouble { is_fatal: true, text, remedy }) if url.is_none() => {
            warning(format!("{text}; URLs cannot be mounted"), remedy)
        }
        verdict => verdict,
    };
    report.add("cache", cache)?;
    let Some(location) = url.and_then(|url| RemoteLocation::parse(url).ok()?) else { return Ok(None) };
    let options = TransportOptions { token_file: args.token_file.clone(), ..TransportOptions::default() };
    let (verdict, remedy) = match transport::credentials(&options, &location) {
        Ok(Some(place)) => {
            let remedy = format!("check that the credentials from {place} are valid, and give access to the file");
            (Ok(format!("from {place}")), remedy)
        }
        Ok(None) => (Ok("none: requests carry no credentials".into()), how_to_log_in(&location).to_owned()),
        Err(error) => {
            let remedy = "correct that file, or remove the variable or option that names it";
            (failure(error.to_string(), remedy), remedy.to_owned())
        }
    };
    report.add("credentials", verdict)?;
    Ok(Some(remedy))
}

/// The ways to give credentials for a location.
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
fn check_remote(_: Option<&SourceArg>, _: &RemoteArgs, report: &mut DoctorReport) -> anyhow::Result<Option<String>> {
    report.add("cache", Ok("none: this weightfs was built without remote sources".into()))?;
    Ok(None)
}

/// Whether the cache can be used.
#[cfg(feature = "remote")]
fn cache() -> DoctorVerdict {
    use weightfs::remote::cache::{BlockCache, default_dir, default_limit};
    use weightfs::units::format_size;
    const OTHER: &str = "set XDG_CACHE_HOME to another directory";
    let Some(dir) = default_dir() else {
        return failure("neither XDG_CACHE_HOME nor HOME is an absolute path", "set one of them");
    };
    let shown = dir.display();
    // The cache is created when it is first used.
    let Some(existing) = dir.ancestors().find(|dir| dir.exists()) else {
        return failure(format!("{shown}: there is no such directory, and none above it"), OTHER);
    };
    if !existing.is_dir() {
        return failure(format!("{}: not a directory", existing.display()), OTHER);
    }
    if let Err(errno) = access(existing, AccessFlags::W_OK | AccessFlags::X_OK) {
        return failure(format!("{}: cannot be written to: {}", existing.display(), errno.desc()), OTHER);
    }
    let contents = match BlockCache::list(&dir) {
        Err(error) => return failure(error.to_string(), OTHER),
        Ok(contents) => contents,
    };
    let cached = contents.cached();
    let limit = default_limit(&dir, cached);
    let kind = file_system(existing).unwrap_or_else(|| "an unknown file system".into());
    if limit == Some(0) {
        return failure(format!("{shown}: no space left on {kind}"), format!("free disk space, or {OTHER}"));
    }
    if let Some(error) = contents.failed.first() {
        let text = format!("{}: {error}", plural(contents.failed.len() as u64, "unreadable file"));
        return warning(text, "remove them: weightfs cache clear");
    }
    let limit = limit.map(|limit| format!(" of at most {}", format_size(limit))).unwrap_or_default();
    Ok(format!("{shown}: {}{limit}, on {kind}", format_size(cached)))
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
fn open_checked(source: &SourceArg, remote: &RemoteArgs, refused: Option<String>) -> DoctorFinding {
    const URL: &str = "check the URL";
    const NETWORK: &str = "check the name of the host, the network, and HTTPS_PROXY and NO_PROXY; or try again later";
    const PATH: &str = "check that this is the path of a model; `weightfs check` reports all that is wrong with it";
    let mut locator = SourceLocator::new(remote);
    let found = locator.locate(source).and_then(|location| Ok(model::open_location(&location, ParseMode::Strict)?));
    let error = match found {
        Ok(OpenedModel::Model(model, _)) => {
            let tensors = plural(model.listed().len() as u64, "tensor");
            return ("source", Ok(format!("{source}: {}, {tensors}", model.format())));
        }
        Ok(OpenedModel::Catalog(catalog)) => {
            let models = plural(catalog.models().len() as u64, "model");
            return ("source", Ok(format!("{source}: a directory with {models}")));
        }
        Err(error) => error,
    };
    let (check, remedy) = match remote_failure(&error) {
        Some(RemoteFailure::Transient) => ("network", NETWORK),
        Some(RemoteFailure::Refused) => ("credentials", refused.as_deref().unwrap_or(URL)),
        Some(RemoteFailure::WholeOnly) => ("server", "download the file, and mount the copy"),
        Some(RemoteFailure::Changed) => ("source", "try again: the file changed while it was read"),
        Some(RemoteFailure::Lasting) => ("source", URL),
        None => ("source", PATH),
    };
    (check, failure(reason(&error), remedy))
}

/// Why a remote source cannot be opened. `None` if it is local, or if its bytes were received.
fn remote_failure(error: &anyhow::Error) -> Option<RemoteFailure> {
    let error = match error.downcast_ref::<model::Error>() {
        Some(model::Error::Source(error)) => Some(error),
        _ => error.downcast_ref::<source::Error>(),
    };
    match error? {
        source::Error::Remote { failure, .. } => Some(*failure),
        _ => None,
    }
}
