//! `weightfs status`: lists the mounts, what they have served and fetched, and the size of the cache.

use crate::cli::StatusArgs;
use crate::process::mounts::{self, MountInfo};
use crate::process::probe::{self, DaemonHealth, ProbeAnswer};
use crate::terminal::output::{StandardOutput, draw_table, pretty, squeeze, to_stdout};
use nix::unistd::{Uid, User};
use serde_json::{Value, json};
use std::io::Write;
#[cfg(feature = "remote")]
use std::path::Path;
use std::process::ExitCode;
use unicode_width::UnicodeWidthStr;
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
            writeln!(out, "{}", pretty(&json!({ "mounts": list, "cache": cache.json }))?)?;
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
    /// What was fetched, if the source is remote.
    remote: Option<Value>,
    /// Whether the figures are for the user of the mount only.
    is_private: bool,
}

impl MountStatus {
    fn new((mount, answer): (MountInfo, ProbeAnswer)) -> Self {
        let mut values = answer.attributes.into_iter();
        let mut next = || values.next().flatten();
        let served = next().and_then(|text| str::from_utf8(&text).ok()?.parse().ok());
        // Another version of weightfs may write something else.
        let remote = next().and_then(|text| serde_json::from_slice(&text).ok()).filter(Value::is_object);
        Self { mount, health: answer.health, served, remote, is_private: answer.is_private }
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
    if out.is_terminal {
        fit(&mut rows, &headings, out.width);
    }
    draw_table(out, &headings, &rows)?;
    if mounts.iter().any(|shown| shown.is_private) {
        writeln!(out, "\n?: only the user of the mount can see this")?;
    }
    let mut gap = "\n";
    for MountStatus { mount, health, .. } in mounts {
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

/// The cells of a mount.
fn row(shown: &MountStatus, with_remote: bool) -> Vec<String> {
    let unknown = if shown.is_private { "?" } else { "-" };
    let cell = |text: Option<String>| text.unwrap_or_else(|| unknown.into());
    let remote = shown.remote.as_ref();
    let field = |name: &str| remote?.get(name)?.as_u64();
    let mut row = vec![
        printable(&shown.mount.path.to_string_lossy()).into_owned(),
        printable(&shown.mount.source.to_string_lossy()).into_owned(),
        cell(shown.mount.owner().map(user)),
        cell(shown.served.map(format_size)),
    ];
    if with_remote {
        row.extend([
            cell(field("fetched_bytes").map(format_size)),
            cell(field("requests").map(|number| number.to_string())),
            cell(speed(remote)),
            cell(hits(remote)),
        ]);
    }
    row
}

/// Shortens sources, and then mount points, so that the rows fit into `columns` columns if possible.
fn fit(rows: &mut [Vec<String>], headings: &[&str], columns: usize) {
    for at in [1, 0] {
        let width = |at: usize| {
            let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.width());
            cells.chain([headings[at].width()]).max().unwrap_or(0)
        };
        let others: usize = (0..headings.len()).filter(|other| *other != at).map(|other| width(other) + 2).sum();
        for row in rows.iter_mut() {
            row[at] = squeeze(&row[at], columns.saturating_sub(others)).into_owned();
        }
    }
}

fn user(uid: Uid) -> String {
    User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

/// Bytes per second while anything was fetched.
fn speed(remote: Option<&Value>) -> Option<String> {
    let (bytes, busy) = (remote?.get("fetched_bytes")?.as_u64()?, remote?.get("busy_ms")?.as_u64()?);
    let per_second = u128::from(bytes) * 1000 / u128::from(busy.max(1));
    (bytes > 0).then(|| format!("{}/s", format_size(u64::try_from(per_second).unwrap_or(u64::MAX))))
}

/// The share of the bytes that were read for which nobody had to wait.
fn hits(remote: Option<&Value>) -> Option<String> {
    let (read, waited) = (remote?.get("read_bytes")?.as_u64()?, remote?.get("waited_bytes")?.as_u64()?);
    let hits = u128::from(read.saturating_sub(waited)) * 100 / u128::from(read.max(1));
    (read > 0).then(|| format!("{hits} %"))
}

/// The cache of this user: a line about it, and its figures or why it cannot be listed.
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
            let limit = default_limit(&dir, cached);
            CacheStatus {
                line: Some(cache_line(&dir, files, cached, limit)),
                json: cache_json(&dir, files, cached, limit),
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

/// `cache: /home/me/.cache/weightfs: 2 files, 1.20 GB; default limit 50.0 GB`
#[cfg(feature = "remote")]
fn cache_line(dir: &Path, files: u64, cached: u64, limit: Option<u64>) -> String {
    let limit = limit.map(|limit| format!("; default limit {}", format_size(limit))).unwrap_or_default();
    let files = weightfs::units::plural(files, "file");
    format!("cache: {}: {files}, {}{limit}", printable(&dir.to_string_lossy()), format_size(cached))
}

#[cfg(feature = "remote")]
fn cache_json(dir: &Path, files: u64, cached: u64, limit: Option<u64>) -> Value {
    json!({ "directory": dir.to_string_lossy(), "files": files, "cached": cached, "default_limit": limit })
}
