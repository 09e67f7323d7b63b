//! `weightfs status`: lists the mounts, what they have served and fetched, and the size of the cache.

use crate::cli::StatusArgs;
use crate::process::mounts::{self, MountInfo};
use crate::process::probe::{self, DaemonHealth, ProbeAnswer};
use crate::process::recent::find_recent;
use crate::terminal::output::{StandardOutput, draw_table, fit_columns, to_stdout};
use nix::unistd::{Uid, User};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use weightfs::fs::{SERVED, TRAFFIC};
use weightfs::text::{printable, shell_word};
use weightfs::units::format_size;

/// Lists the mounts of all users. The traffic of a mount is known to those who may access it.
pub fn run_status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let all = mounts::all()?;
    let mounts: Vec<MountInfo> = all.iter().filter(|mount| mount.fstype == mounts::TYPE).cloned().collect();
    let answers = probe::ask(&mounts, &all, &[SERVED, TRAFFIC])?;
    let mounts: Vec<MountStatus> = mounts.into_iter().zip(answers).map(MountStatus::new).collect();
    let cache = cache();
    to_stdout(|out| {
        if args.json {
            let list: Vec<Value> = mounts.iter().map(MountStatus::to_json).collect();
            out.print_json(&json!({ "mounts": list, "cache": cache.json }))?;
        } else {
            print_status(&mounts, out)?;
            if let Some(line) = &cache.line {
                writeln!(out, "\n{line}")?;
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// A mount, and what is known of it.
struct MountStatus {
    mount: MountInfo,
    health: DaemonHealth,
    /// Bytes that were sent to readers. `None` if that is unknown: an older weightfs does not count them.
    served: Option<u64>,
    /// The counts of fetched bytes, if the source is remote.
    remote: Option<Value>,
    /// The file with the last messages of the daemon, where there is no syslog.
    log: Option<PathBuf>,
    /// Whether the figures are for the user of the mount only.
    is_private: bool,
}

impl MountStatus {
    fn new((mount, answer): (MountInfo, ProbeAnswer)) -> Self {
        let mut values = answer.attributes.into_iter();
        let served = values.next().flatten().and_then(|text| str::from_utf8(&text).ok()?.parse().ok());
        // Another version of weightfs may write something else.
        let remote = values.next().flatten().and_then(|text| serde_json::from_slice(&text).ok());
        let remote = remote.filter(Value::is_object);
        let log = find_recent(&mount.path);
        Self { mount, health: answer.health, served, remote, log, is_private: answer.is_private }
    }

    fn to_json(&self) -> Value {
        json!({
            "mountpoint": self.mount.path.to_string_lossy(),
            "source": self.mount.source.to_string_lossy(),
            "user": self.mount.owner().map(Uid::as_raw),
            "daemon": match self.health {
                DaemonHealth::Alive => "alive",
                DaemonHealth::Dead => "dead",
                DaemonHealth::Silent => "silent",
                DaemonHealth::Covered => "covered",
                DaemonHealth::Private => "unknown",
            },
            "served_bytes": self.served,
            "remote": self.remote,
            "log": self.log,
        })
    }
}

fn print_status(mounts: &[MountStatus], out: &mut StandardOutput) -> anyhow::Result<()> {
    if mounts.is_empty() {
        writeln!(out, "no mounts")?;
        return Ok(());
    }
    let mut headings = vec!["MOUNTPOINT", "SOURCE", "USER", "SERVED"];
    // The source of a private mount may be remote.
    let any_remote = mounts.iter().any(|shown| shown.remote.is_some() || shown.is_private);
    if any_remote {
        headings.extend(["FETCHED", "REQUESTS", "SPEED", "HITS"]);
    }
    let mut rows: Vec<Vec<String>> = mounts.iter().map(|shown| row(shown, any_remote)).collect();
    fit_columns(out, &headings, &mut rows, &[1, 0]);
    draw_table(out, &headings, &rows)?;
    if mounts.iter().any(|shown| shown.is_private) {
        writeln!(out, "\n?: only the user of the mount can see this")?;
    }
    let mut gap = "\n";
    for MountStatus { mount, health, log, .. } in mounts {
        if let Some(log) = log {
            writeln!(out, "{gap}{}: log in {}", printable(&mount.path.to_string_lossy()), log.display())?;
            gap = "";
        }
        let unmount = shell_word(&mount.path);
        let trouble = match health {
            DaemonHealth::Alive | DaemonHealth::Private => continue,
            DaemonHealth::Dead => format!("dead: its daemon has ended (weightfs umount {unmount})"),
            DaemonHealth::Silent => format!("its daemon does not answer (weightfs umount {unmount})"),
            DaemonHealth::Covered => "another mount covers it".to_owned(),
        };
        writeln!(out, "{gap}{}: {trouble}", printable(&mount.path.to_string_lossy()))?;
        gap = "";
    }
    Ok(())
}

fn row(shown: &MountStatus, with_remote: bool) -> Vec<String> {
    let remote = shown.remote.as_ref();
    let mut row = vec![
        Some(printable(&shown.mount.path.to_string_lossy()).into_owned()),
        Some(printable(&shown.mount.source.to_string_lossy()).into_owned()),
        shown.mount.owner().map(user),
        shown.served.map(format_size),
    ];
    if with_remote {
        row.extend([
            figure(remote, "fetched_bytes").map(format_size),
            figure(remote, "requests").map(|number| number.to_string()),
            speed(remote),
            hits(remote),
        ]);
    }
    let unknown = if shown.is_private { "?" } else { "-" };
    row.into_iter().map(|cell| cell.unwrap_or_else(|| unknown.into())).collect()
}

fn figure(remote: Option<&Value>, name: &str) -> Option<u64> {
    remote?.get(name)?.as_u64()
}

fn user(uid: Uid) -> String {
    User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

/// Bytes per second while anything was fetched.
fn speed(remote: Option<&Value>) -> Option<String> {
    let (bytes, busy) = (figure(remote, "fetched_bytes")?, figure(remote, "busy_ms")?);
    let per_second = u128::from(bytes) * 1000 / u128::from(busy.max(1));
    (bytes > 0).then(|| format!("{}/s", format_size(u64::try_from(per_second).unwrap_or(u64::MAX))))
}

/// The share of the bytes that were read for which nobody had to wait.
fn hits(remote: Option<&Value>) -> Option<String> {
    let (read, waited) = (figure(remote, "read_bytes")?, figure(remote, "waited_bytes")?);
    let hits = u128::from(read.saturating_sub(waited)) * 100 / u128::from(read.max(1));
    (read > 0).then(|| format!("{hits} %"))
}

/// The cache of this user: a line about it, such as `cache: /home/me/cache: 2 files, 1.20 GB`, and its figures or why
/// it cannot be listed.
#[derive(Default)]
struct CacheStatus {
    line: Option<String>,
    json: Value,
}

#[cfg(feature = "remote")]
fn cache() -> CacheStatus {
    use weightfs::remote::cache::{BlockCache, default_dir, default_limit};
    let Some(dir) = default_dir() else { return CacheStatus::default() };
    match BlockCache::list(&dir) {
        Ok(contents) => {
            let (cached, files) = (contents.cached(), contents.entries.len() as u64);
            let default = default_limit(&dir, cached);
            let limit = default.map(|limit| format!("; default limit {}", format_size(limit))).unwrap_or_default();
            let content = format!("{}, {}{limit}", weightfs::units::plural(files, "file"), format_size(cached));
            CacheStatus {
                line: Some(format!("cache: {}: {content}", printable(&dir.to_string_lossy()))),
                json: json!({
                    "directory": dir.to_string_lossy(), "files": files, "cached": cached, "default_limit": default,
                }),
            }
        }
        // The mounts are listed in any case, so this is no failure of the command.
        Err(error) => CacheStatus {
            line: Some(format!("cache: {}", printable(&error.to_string()))),
            json: json!({ "directory": dir.to_string_lossy(), "error": error.to_string() }),
        },
    }
}

#[cfg(not(feature = "remote"))]
fn cache() -> CacheStatus {
    CacheStatus::default()
}
