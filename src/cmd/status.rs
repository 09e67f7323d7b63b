//! `weightfs status`: lists the mounts, and what those of remote sources have fetched.

use crate::cli::StatusArgs;
use crate::process::mounts::{self, Mount};
use crate::terminal::output::{Output, pretty, size, table, to_stdout};
use nix::unistd::{Uid, User};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::process::ExitCode;
use weightfs::fs::TRAFFIC;
use weightfs::text::printable;

/// Lists the mounts of all users. What a mount has fetched is known to those who may access it.
pub fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let mut mounts = mounts::all()?;
    mounts.retain(|mount| mount.fstype == mounts::TYPE);
    let mounts: Vec<(Mount, Traffic)> = mounts
        .into_iter()
        .map(|mount| {
            let traffic = Traffic::of(&mount);
            (mount, traffic)
        })
        .collect();
    to_stdout(|out| {
        if args.json {
            let list: Vec<Value> = mounts.iter().map(|(mount, traffic)| to_json(mount, traffic)).collect();
            writeln!(out, "{}", pretty(&json!({ "mounts": list }))?)?;
        } else {
            print(&mounts, out)?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// What a mount has read and fetched.
enum Traffic {
    /// The figures of the mount.
    Known(Value),
    /// The source is local.
    None,
    /// The figures are for the user of the mount only.
    Private,
}

impl Traffic {
    fn of(mount: &Mount) -> Self {
        match xattr::get(&mount.path, TRAFFIC) {
            Ok(text) => text.and_then(|text| serde_json::from_slice(&text).ok()).map_or(Self::None, Self::Known),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Self::Private,
            Err(_) => Self::None,
        }
    }

    fn value(&self) -> Option<&Value> {
        match self {
            Self::Known(value) => Some(value),
            Self::None | Self::Private => None,
        }
    }
}

fn print(mounts: &[(Mount, Traffic)], out: &mut Output) -> anyhow::Result<()> {
    if mounts.is_empty() {
        writeln!(out, "no mounts")?;
        return Ok(());
    }
    let rows: Vec<Vec<String>> = mounts
        .iter()
        .map(|(mount, traffic)| {
            let unknown = if matches!(traffic, Traffic::Private) { "?" } else { "-" };
            let shown = |number: Option<String>| number.unwrap_or_else(|| unknown.into());
            let field = |name: &str| traffic.value()?.get(name)?.as_u64();
            vec![
                printable(&mount.path.to_string_lossy()).into_owned(),
                printable(&mount.source.to_string_lossy()).into_owned(),
                shown(mount.owner().map(user)),
                shown(field("fetched_bytes").map(size)),
                shown(field("requests").map(|number| number.to_string())),
                shown(speed(traffic.value())),
                shown(hits(traffic.value())),
            ]
        })
        .collect();
    table(out, &["MOUNTPOINT", "SOURCE", "USER", "FETCHED", "REQUESTS", "SPEED", "HITS"], &rows)?;
    if mounts.iter().any(|(_, traffic)| matches!(traffic, Traffic::Private)) {
        writeln!(out, "\n?: only the user of the mount can see this")?;
    }
    Ok(())
}

fn user(uid: Uid) -> String {
    User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

/// Bytes per second while anything was fetched.
fn speed(traffic: Option<&Value>) -> Option<String> {
    let (bytes, busy) = (traffic?.get("fetched_bytes")?.as_u64()?, traffic?.get("busy_ms")?.as_u64()?);
    let per_second = u128::from(bytes) * 1000 / u128::from(busy.max(1));
    (bytes > 0).then(|| format!("{}/s", size(u64::try_from(per_second).unwrap_or(u64::MAX))))
}

/// The share of the bytes that were read for which nobody had to wait.
fn hits(traffic: Option<&Value>) -> Option<String> {
    let (read, waited) = (traffic?.get("read_bytes")?.as_u64()?, traffic?.get("waited_bytes")?.as_u64()?);
    let hits = u128::from(read.saturating_sub(waited)) * 100 / u128::from(read.max(1));
    (read > 0).then(|| format!("{hits} %"))
}

fn to_json(mount: &Mount, traffic: &Traffic) -> Value {
    json!({
        "mountpoint": mount.path.to_string_lossy(),
        "source": mount.source.to_string_lossy(),
        "user": mount.owner().map(Uid::as_raw),
        "remote": traffic.value(),
    })
}
