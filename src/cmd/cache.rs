//! `weightfs cache`: lists and removes what was fetched from remote sources.

use crate::cli::{CacheAction, CacheArgs, RemovalOptions};
use crate::terminal::output::{StandardOutput, draw_table, pretty, squeeze, to_stdout};
use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;
use unicode_width::UnicodeWidthStr;
use weightfs::remote::cache::{
    self, BlockCache, CacheContents, CacheEntry, CacheError, FreedObject, KeptListings, PruneOptions, PruneOutcome,
};
use weightfs::text::printable;
use weightfs::units::{format_size, plural};

/// Lists or removes what was fetched.
pub fn run_cache(args: &CacheArgs) -> Result<ExitCode> {
    let dir = cache::default_dir().context("no cache: neither XDG_CACHE_HOME nor HOME is an absolute path")?;
    to_stdout(|out| match &args.action {
        CacheAction::List { json } => list_cache(&dir, *json, out),
        CacheAction::Prune { size, older_than, options } => {
            let size = size.map(|size| size.as_u64());
            remove(&dir, PruneOptions { size, unused_since: *older_than, dry_run: options.dry_run }, options, out)
        }
        CacheAction::Clear { options } => {
            remove(&dir, PruneOptions { size: Some(0), unused_since: None, dry_run: options.dry_run }, options, out)
        }
    })
}

fn list_cache(dir: &Path, json: bool, out: &mut StandardOutput) -> Result<ExitCode> {
    let contents = BlockCache::list(dir)?;
    if json {
        print_cache_json(dir, &contents, out)?
    } else {
        print_cache(dir, &contents, out)?
    }
    for path in &contents.unknown {
        out.complain(&format!("{}: not from weightfs; it is left alone", path.display()))?;
    }
    report_cache(&contents.failed, out)
}

/// Prints why objects could not be read or removed, and returns the exit code.
fn report_cache(failed: &[CacheError], out: &mut StandardOutput) -> Result<ExitCode> {
    failed.iter().try_for_each(|error| out.complain(&error.to_string()))?;
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_cache(dir: &Path, contents: &CacheContents, out: &mut StandardOutput) -> io::Result<()> {
    let CacheContents { entries, listings, .. } = contents;
    let now = SystemTime::now();
    let versions = short_versions(entries);
    let row = |(entry, version): (&CacheEntry, &String)| {
        let last_use = if entry.in_use { "in use".to_owned() } else { ago(entry.last_use, now) };
        [version.clone(), format_size(entry.len), format_size(entry.present), share(entry.present, entry.len), last_use]
    };
    let headings = ["FILE", "VERSION", "SIZE", "CACHED", "SHARE", "LAST USE"];
    if !entries.is_empty() {
        print_table(&headings, entries, entries.iter().zip(&versions).map(row).map(Vec::from).collect(), out)?;
        writeln!(out)?;
    }
    let present = contents.cached();
    let len = sum(entries.iter().map(|entry| entry.len));
    let in_use = entries.iter().filter(|entry| entry.in_use).count();
    let mut parts = match entries.len() {
        0 => vec!["no files".to_owned()],
        files => vec![plural(files as u64, "file"), format!("{} of {}", format_size(present), format_size(len))],
    };
    if in_use > 0 {
        parts.push(format!("{in_use} in use"));
    }
    parts.extend(locations(listings));
    writeln!(out, "{}: {}", shown_entry(dir), parts.join(", "))
}

/// Prints a table with a row for each of `entries`: its name, then `cells`. It fits the terminal.
fn print_table(
    headings: &[&str],
    entries: &[CacheEntry],
    cells: Vec<Vec<String>>,
    out: &mut StandardOutput,
) -> io::Result<()> {
    let width = |at: usize| {
        let widths = cells.iter().filter_map(|cells| cells.get(at)).map(|cell| cell.width());
        widths.chain(headings.get(at + 1).map(|heading| heading.width())).max().unwrap_or(0)
    };
    let others: usize = (0..headings.len() - 1).map(|at| width(at) + 2).sum();
    // Programs and files get full names.
    let name_max = if out.is_terminal { out.width.saturating_sub(others) } else { usize::MAX };
    let row = |(entry, cells): (&CacheEntry, Vec<String>)| {
        let mut row = vec![squeeze(name(entry), name_max).into_owned()];
        row.extend(cells);
        row
    };
    let rows: Vec<Vec<String>> = entries.iter().zip(cells).map(row).collect();
    draw_table(out, headings, &rows)
}

fn print_cache_json(dir: &Path, contents: &CacheContents, out: &mut StandardOutput) -> Result<()> {
    let CacheContents { entries, listings, unknown, .. } = contents;
    let unknown: Vec<_> = unknown.iter().map(|path| path.to_string_lossy()).collect();
    let value = json!({
        "directory": dir.to_string_lossy(),
        "cached": contents.cached(),
        "files": entries.iter().map(to_json).collect::<Vec<_>>(),
        "listings": {"count": listings.count, "bytes": listings.bytes},
        "unknown": unknown,
    });
    Ok(writeln!(out, "{}", pretty(&value)?)?)
}

fn to_json(entry: &CacheEntry) -> Value {
    let last_use = Timestamp::try_from(entry.last_use).map(|time| time.to_string()).ok();
    json!({
        "id": entry.id, "name": entry.name, "version": entry.validator, "size": entry.len, "cached": entry.present,
        "last_use": last_use, "in_use": entry.in_use,
    })
}

fn remove(dir: &Path, pruning: PruneOptions, options: &RemovalOptions, out: &mut StandardOutput) -> Result<ExitCode> {
    let pruned = BlockCache::prune(dir, &pruning)?;
    if options.json {
        print_removal_json(dir, &pruned, options.dry_run, out)?;
    } else {
        print_removal(dir, &pruned, options.dry_run, out)?;
    }
    report_cache(&pruned.failed, out)
}

fn print_removal(dir: &Path, pruned: &PruneOutcome, dry_run: bool, out: &mut StandardOutput) -> io::Result<()> {
    let PruneOutcome { objects, listings, left, in_use, .. } = pruned;
    if dry_run && !objects.is_empty() {
        let entries: Vec<CacheEntry> = objects.iter().map(|freed| freed.entry.clone()).collect();
        let now = SystemTime::now();
        let cells = |(freed, version): (&FreedObject, String)| {
            let what = if freed.is_removed { "remove" } else { "shorten" };
            vec![version, format_size(freed.bytes), what.to_owned(), ago(freed.entry.last_use, now)]
        };
        let cells = objects.iter().zip(short_versions(&entries)).map(cells).collect();
        print_table(&["FILE", "VERSION", "FREED", "HOW", "LAST USE"], &entries, cells, out)?;
        writeln!(out)?;
    }
    for entry in in_use {
        let version = entry.validator.as_deref().map(essence).unwrap_or_default();
        writeln!(
            out,
            "in use, and kept: {} {} ({})",
            printable(name(entry)),
            printable(version),
            format_size(entry.present)
        )?;
    }
    let (removed, shortened) = (pruned.removed(), objects.len() - pruned.removed());
    let mut done = Vec::new();
    if removed > 0 {
        done.push(format!("{} {}", if dry_run { "would remove" } else { "removed" }, plural(removed as u64, "file")));
    }
    if shortened > 0 {
        let what = if dry_run { "would shorten" } else { "shortened" };
        done.push(format!("{what} {}", plural(shortened as u64, "file")));
    }
    if let Some(locations) = locations(listings) {
        let what = if dry_run { "would remove" } else { "removed" };
        done.push(format!("{what} {locations}"));
    }
    if done.is_empty() {
        done.push("nothing to remove".to_owned());
    }
    let freed = format_size(pruned.freed());
    let sizes = if dry_run {
        format!("would free {freed}, and leave {}", format_size(*left))
    } else {
        format!("freed {freed}, left {}", format_size(*left))
    };
    writeln!(out, "{}: {}; {sizes}", shown_entry(dir), done.join(", "))
}

fn print_removal_json(dir: &Path, pruned: &PruneOutcome, dry_run: bool, out: &mut StandardOutput) -> Result<()> {
    let object = |freed: &FreedObject| {
        let mut value = to_json(&freed.entry);
        value["freed"] = freed.bytes.into();
        value["removed"] = freed.is_removed.into();
        value
    };
    let value = json!({
        "directory": dir.to_string_lossy(),
        "dry_run": dry_run,
        "freed": pruned.freed(),
        "left": pruned.left,
        "files": pruned.objects.iter().map(object).collect::<Vec<_>>(),
        "listings": {"count": pruned.listings.count, "bytes": pruned.listings.bytes},
        "in_use": pruned.in_use.iter().map(to_json).collect::<Vec<_>>(),
    });
    Ok(writeln!(out, "{}", pretty(&value)?)?)
}

/// `the listings of 2 locations (1.20 kB)`. `None` if there are none.
fn locations(listings: &KeptListings) -> Option<String> {
    let KeptListings { count, bytes } = *listings;
    let listings = if count == 1 { "the listing" } else { "the listings" };
    (count > 0).then(|| format!("{listings} of {} ({})", plural(count as u64, "location"), format_size(bytes)))
}

/// What people call an object.
fn name(entry: &CacheEntry) -> &str {
    // Without a description, only the directory is known.
    entry.name.as_deref().unwrap_or(&entry.id)
}

fn shown_entry(dir: &Path) -> String {
    printable(&dir.to_string_lossy()).into_owned()
}

fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

/// The present part of a file: `25.6 %`. Only a whole file has 100 %.
fn share(present: u64, len: u64) -> String {
    if present >= len {
        return "100 %".to_owned();
    }
    format!("{:.1} %", (1000.0 * present as f64 / len as f64).floor() / 10.0)
}

/// How long ago a time was, or its date.
fn ago(time: SystemTime, now: SystemTime) -> String {
    const UNITS: [(u64, u64, &str); 3] = [(3600, 60, "minute"), (86_400, 3600, "hour"), (30 * 86_400, 86_400, "day")];
    let date = || Timestamp::try_from(time).map_or("-".to_owned(), |time| time.strftime("%Y-%m-%d").to_string());
    // The clock may have been set back.
    let Ok(past) = now.duration_since(time) else { return date() };
    let seconds = past.as_secs();
    if seconds < 60 {
        return "just now".to_owned();
    }
    let unit = UNITS.iter().find(|(end, _, _)| seconds < *end);
    unit.map_or_else(date, |(_, length, unit)| format!("{} ago", plural(seconds / length, unit)))
}

/// The part of a validator that differs between versions: without its kind, quotes, and the date that follows an ETag.
fn essence(validator: &str) -> &str {
    let text = ["sha256:", "git:", "etag:", "weak:"].iter().find_map(|kind| validator.strip_prefix(kind));
    let text = text.unwrap_or(validator);
    if let Some(date) = text.strip_prefix("- ") {
        return date;
    }
    let tag = match text.strip_prefix("W/").unwrap_or(text).strip_prefix('"') {
        Some(tag) => tag.split('"').next().unwrap_or(tag),
        None => text,
    };
    if tag == "none" { "-" } else { tag }
}

/// A short form of the version of each object: the first 8 characters, and more if another version of the file has the
/// same ones.
fn short_versions(entries: &[CacheEntry]) -> Vec<String> {
    const SHORT: usize = 8;
    const LONGEST: usize = 40;
    let version = |at: usize| entries[at].validator.as_deref().map_or("-", essence);
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|&at| (name(&entries[at]), version(at)));
    // What two neighbours have in common is the most that any two have.
    let common = |a: usize, b: usize| match name(&entries[a]) == name(&entries[b]) && version(a) != version(b) {
        true => version(a).chars().zip(version(b).chars()).take_while(|(a, b)| a == b).count(),
        false => 0,
    };
    let shared: Vec<usize> = order.windows(2).map(|pair| common(pair[0], pair[1])).collect();
    let mut short = vec![String::new(); entries.len()];
    for (place, &at) in order.iter().enumerate() {
        let before = place.checked_sub(1).and_then(|before| shared.get(before)).copied().unwrap_or(0);
        let after = shared.get(place).copied().unwrap_or(0);
        // The start of a date is the same for many versions.
        let length = if version(at).contains(' ') { usize::MAX } else { SHORT.max(before.max(after) + 1) };
        let part: String = version(at).chars().take(length).collect();
        short[at] = squeeze(&part, LONGEST).into_owned();
    }
    short
}
