//! `weightfs cache`: lists and removes what was fetched from remote sources.

use crate::cli::{CacheAction, CacheArgs, RemovalOptions};
use crate::terminal::output::{StandardOutput, draw_table, fit_columns, squeeze, to_stdout};
use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;
use weightfs::remote::cache::{
    self, BlockCache, CacheContents, CacheEntry, CacheError, FreedObject, KeptListings, PruneOptions, PruneOutcome,
};
use weightfs::text::printable;
use weightfs::units::{format_size, plural};

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
    const HEADINGS: [&str; 6] = ["FILE", "VERSION", "SIZE", "CACHED", "SHARE", "LAST USE"];
    let CacheContents { entries, listings, .. } = contents;
    let now = SystemTime::now();
    let rows = entries.iter().zip(short_versions(entries.iter())).map(|(entry, version)| {
        let last_use = if entry.in_use { "in use".to_owned() } else { ago(entry.last_use, now) };
        let [size, present] = [entry.len, entry.present].map(format_size);
        vec![shown_name(entry), version, size, present, share(entry.present, entry.len), last_use]
    });
    print_table(&HEADINGS, rows.collect(), out)?;
    let present = contents.cached();
    let len = entries.iter().map(|entry| entry.len).fold(0, u64::saturating_add);
    let in_use = entries.iter().filter(|entry| entry.in_use).count();
    let mut parts = match entries.len() {
        0 => vec!["no files".to_owned()],
        files => vec![plural(files as u64, "file"), format!("{} of {}", format_size(present), format_size(len))],
    };
    if in_use > 0 {
        parts.push(format!("{in_use} in use"));
    }
    parts.extend(locations(listings));
    writeln!(out, "{}: {}", printable(&dir.to_string_lossy()), parts.join(", "))
}

/// Prints a table and an empty line, unless there are no rows.
fn print_table(headings: &[&str], mut rows: Vec<Vec<String>>, out: &mut StandardOutput) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    fit_columns(out, headings, &mut rows, &[0]);
    draw_table(out, headings, &rows)?;
    writeln!(out)
}

fn print_cache_json(dir: &Path, contents: &CacheContents, out: &mut StandardOutput) -> Result<()> {
    let CacheContents { entries, listings, unknown, .. } = contents;
    let unknown: Vec<_> = unknown.iter().map(|path| path.to_string_lossy()).collect();
    out.print_json(&json!({
        "directory": dir.to_string_lossy(),
        "cached": contents.cached(),
        "files": entries.iter().map(entry_to_json).collect::<Vec<_>>(),
        "listings": {"count": listings.count, "bytes": listings.bytes},
        "unknown": unknown,
    }))
}

fn entry_to_json(entry: &CacheEntry) -> Value {
    let last_use = Timestamp::try_from(entry.last_use).map(|time| time.to_string()).ok();
    json!({
        "id": entry.id, "name": entry.name, "version": entry.validator, "size": entry.len, "cached": entry.present,
        "last_use": last_use, "in_use": entry.in_use,
    })
}

fn freed_to_json(freed: &FreedObject) -> Value {
    let mut value = entry_to_json(&freed.entry);
    value["freed"] = freed.bytes.into();
    value["removed"] = freed.is_removed.into();
    value
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
    const HEADINGS: [&str; 5] = ["FILE", "VERSION", "FREED", "HOW", "LAST USE"];
    let PruneOutcome { objects, listings, left, in_use, .. } = pruned;
    if dry_run {
        let now = SystemTime::now();
        let versions = short_versions(objects.iter().map(|freed| &freed.entry));
        let rows = objects.iter().zip(versions).map(|(freed, version)| {
            let how = if freed.is_removed { "remove" } else { "shorten" };
            let last_use = ago(freed.entry.last_use, now);
            vec![shown_name(&freed.entry), version, format_size(freed.bytes), how.to_owned(), last_use]
        });
        print_table(&HEADINGS, rows.collect(), out)?;
    }
    for entry in in_use {
        let version = entry.validator.as_deref().map(essence).unwrap_or_default();
        let (name, size) = (shown_name(entry), format_size(entry.present));
        writeln!(out, "in use, and kept: {name} {} ({size})", printable(version))?;
    }
    let [remove, shorten, free] = match dry_run {
        true => ["would remove", "would shorten", "would free"],
        false => ["removed", "shortened", "freed"],
    };
    let (removed, shortened) = (pruned.removed() as u64, (objects.len() - pruned.removed()) as u64);
    let done = [
        (removed > 0).then(|| format!("{remove} {}", plural(removed, "file"))),
        (shortened > 0).then(|| format!("{shorten} {}", plural(shortened, "file"))),
        locations(listings).map(|locations| format!("{remove} {locations}")),
    ];
    let done = done.into_iter().flatten().reduce(|done, more| format!("{done}, {more}"));
    let done = done.unwrap_or("nothing to remove".to_owned());
    let (dir, freed, left) = (dir.to_string_lossy(), format_size(pruned.freed()), format_size(*left));
    let and_left = if dry_run { ", and leave" } else { ", left" };
    writeln!(out, "{}: {done}; {free} {freed}{and_left} {left}", printable(&dir))
}

fn print_removal_json(dir: &Path, pruned: &PruneOutcome, dry_run: bool, out: &mut StandardOutput) -> Result<()> {
    out.print_json(&json!({
        "directory": dir.to_string_lossy(),
        "dry_run": dry_run,
        "freed": pruned.freed(),
        "left": pruned.left,
        "files": pruned.objects.iter().map(freed_to_json).collect::<Vec<_>>(),
        "listings": {"count": pruned.listings.count, "bytes": pruned.listings.bytes},
        "in_use": pruned.in_use.iter().map(entry_to_json).collect::<Vec<_>>(),
    }))
}

/// `the listings of 2 locations (1.20 kB)`. `None` if there are none.
fn locations(listings: &KeptListings) -> Option<String> {
    let KeptListings { count, bytes } = *listings;
    let listings = if count == 1 { "the listing" } else { "the listings" };
    (count > 0).then(|| format!("{listings} of {} ({})", plural(count as u64, "location"), format_size(bytes)))
}

/// The name of an object for people.
fn name(entry: &CacheEntry) -> &str {
    // Without a description, only the directory is known.
    entry.name.as_deref().unwrap_or(&entry.id)
}

fn shown_name(entry: &CacheEntry) -> String {
    printable(name(entry)).into_owned()
}

/// The present part of a file: `25.6 %`. Only a whole file has 100 %.
fn share(present: u64, len: u64) -> String {
    if present >= len {
        return "100 %".to_owned();
    }
    format!("{:.1} %", (1000.0 * present as f64 / len as f64).floor() / 10.0)
}

/// The time since then, or its date.
fn ago(time: SystemTime, now: SystemTime) -> String {
    const UNITS: [(u64, u64, &str); 3] = [(3600, 60, "minute"), (86_400, 3600, "hour"), (30 * 86_400, 86_400, "day")];
    // The clock may have been set back.
    let seconds = now.duration_since(time).map_or(u64::MAX, |past| past.as_secs());
    match UNITS.iter().find(|(end, _, _)| seconds < *end) {
        Some(_) if seconds < 60 => "just now".to_owned(),
        Some((_, length, unit)) => format!("{} ago", plural(seconds / length, unit)),
        None => Timestamp::try_from(time).map_or("-".to_owned(), |time| time.strftime("%Y-%m-%d").to_string()),
    }
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
fn short_versions<'e>(entries: impl Iterator<Item = &'e CacheEntry>) -> Vec<String> {
    const SHORT: usize = 8;
    const LONGEST: usize = 40;
    let versions = entries.map(|entry| (name(entry), entry.validator.as_deref().map_or("-", essence)));
    let versions: Vec<(&str, &str)> = versions.collect();
    let mut sorted = versions.clone();
    sorted.sort_unstable();
    sorted.dedup();
    let short = versions.iter().map(|(name, version)| {
        // The common part of two neighbours is the longest of any two.
        let at = sorted.binary_search(&(name, version)).unwrap_or(0);
        let others = [at.checked_sub(1), Some(at + 1)].into_iter().flatten().filter_map(|at| sorted.get(at));
        let common = others.filter(|other| other.0 == *name).map(|other| common_len(version, other.1)).max();
        // The start of a date is the same for many versions.
        let length = if version.contains(' ') { usize::MAX } else { SHORT.max(common.map_or(0, |common| common + 1)) };
        squeeze(&version.chars().take(length).collect::<String>(), LONGEST).into_owned()
    });
    short.collect()
}

/// Number of characters at the start that two texts have in common.
fn common_len(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count()
}
