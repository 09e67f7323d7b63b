//! `weightfs metadata`: knows how keys of `__metadata__` are read and changed, without a byte of data ever being in danger.

use crate::cli::{Action, How, MetadataArgs};
use crate::models;
use crate::process::logging::complain;
use crate::process::signals::Interrupted;
use crate::terminal::output::written;
use crate::terminal::output::{pretty, to_stdout};
use crate::terminal::progress::Progress;
use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{AccessFlags, eaccess};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::mem;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};
use weightfs::format::{Mode, safetensors};
use weightfs::model::{Change, Kind, Model, Opened, changes};
use weightfs::source::FileId;
use weightfs::text::printable;
use weightfs::text::quote;
use weightfs::write::Output;

type Pairs = BTreeMap<String, String>;

/// Reads or changes metadata.
pub fn run(args: &MetadataArgs) -> anyhow::Result<ExitCode> {
    match &args.action {
        Action::Get { source, keys, json } => get(source, keys, *json),
        Action::Set { file, pairs, how } => {
            let pairs = read_pairs(pairs)?;
            edit(file, how, |metadata| {
                metadata.extend(pairs);
                Ok(())
            })
        }
        Action::Remove { file, keys, how } => edit(file, how, |metadata| {
            if let Some(absent) = keys.iter().find(|key| !metadata.contains_key(*key)) {
                bail!("{}: no metadata has the key {}", file.display(), quote(absent));
            }
            metadata.retain(|key, _| !keys.contains(key));
            Ok(())
        }),
        Action::Clear { file, how } => edit(file, how, |metadata| {
            metadata.clear();
            Ok(())
        }),
    }
}

fn get(source: &Path, keys: &[String], json: bool) -> anyhow::Result<ExitCode> {
    let (mut found, mut wanted) = (BTreeMap::new(), keys.to_vec());
    let mut take = |place: String, metadata: &[(String, String)]| {
        let mut metadata: Pairs = metadata.iter().cloned().collect();
        wanted.retain(|key| !metadata.contains_key(key));
        if !keys.is_empty() {
            metadata.retain(|key, _| keys.contains(key));
        }
        found.insert(place, metadata);
    };
    let mut trouble = false;
    let several = match models::any(source, Mode::Strict)? {
        Opened::Model(model) => {
            take(String::new(), model.metadata());
            false
        }
        Opened::Catalog(catalog) => {
            for (place, number) in catalog.places() {
                match models::in_catalog(&catalog, number, &source.join(&place)) {
                    Ok(model) => take(place.to_string_lossy().into_owned(), model.metadata()),
                    // The others are no worse for it.
                    Err(error) => {
                        complain(&error);
                        trouble = true;
                    }
                }
            }
            true
        }
    };
    if let Some(absent) = wanted.first() {
        bail!("{}: no metadata has the key {}", source.display(), quote(absent));
    }
    let only = found.values().next().cloned().unwrap_or_default();
    let text = match (several, keys, json) {
        (true, _, true) => pretty(&found)? + "\n",
        (false, _, true) => pretty(&only)? + "\n",
        (false, [key], false) => {
            let value = only.get(key).map_or("", String::as_str);
            // Byte for byte, but not for a terminal, which would obey what is in it.
            let lines = || value.split('\n').map(printable).collect::<Vec<_>>().join("\n");
            let value = if io::stdout().is_terminal() { lines() } else { value.to_owned() };
            value + "\n"
        }
        (false, _, false) => only.iter().map(|(key, value)| pair(key, value)).collect(),
        (true, _, false) => {
            let of = |(place, metadata): (&String, &Pairs)| -> String {
                metadata.iter().map(|(key, value)| format!("{}: {}", printable(place), pair(key, value))).collect()
            };
            found.iter().map(of).collect()
        }
    };
    print(&text)?;
    Ok(if trouble { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    to_stdout(|out| {
        out.write_all(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    })
}

/// One line.
fn pair(key: &str, value: &str) -> String {
    format!("{}={}\n", printable(key), printable(value))
}

/// Splits `KEY=VALUE` at the first `=`, and reads the value of a `KEY` alone.
fn read_pairs(words: &[String]) -> anyhow::Result<Pairs> {
    let mut pairs = Pairs::new();
    let mut read = false;
    for word in words {
        let (key, value) = match word.split_once('=') {
            Some((key, value)) => (key, value.to_owned()),
            None if mem::replace(&mut read, true) => bail!("{}: only one value can be read", quote(word)),
            None => {
                let mut value = String::new();
                let read = io::stdin().read_to_string(&mut value);
                read.with_context(|| format!("the value of {}, from standard input", quote(word)))?;
                (&word[..], value)
            }
        };
        pairs.insert(key.to_owned(), value);
    }
    Ok(pairs)
}

/// Changes the metadata of `file`, there or in a copy.
fn edit(file: &Path, how: &How, change: impl FnOnce(&mut Pairs) -> anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    let interrupted = Interrupted::watch()?;
    // Until the end nobody else changes the file that this one replaces.
    let (model, in_place, _lock) = loop {
        let model = models::one(file, Mode::Strict)?;
        if model.kind() != Kind::File {
            bail!("{}: a model of several files; name one of them", file.display());
        }
        let in_place = how.out.as_deref().is_none_or(|out| is_same(out, model.path()));
        let lock = if in_place && !how.dry_run { lock(file, model.path(), &interrupted)? } else { None };
        // Who had it before has put another file there.
        let id = lock.as_ref().and_then(|lock| Some(id(&lock.metadata().ok()?)));
        if id.is_none_or(|id| is_at(model.path(), id) && model.sources().iter().all(|source| source.id() == Some(id))) {
            break (model, in_place, lock);
        }
    };
    let old = model.metadata();
    let mut metadata: Pairs = old.iter().cloned().collect();
    change(&mut metadata)?;
    let new: Vec<(String, String)> = metadata.into_iter().collect();
    let changes = changes(old, &new);
    if how.dry_run {
        head(&model, file, &new)?;
        return print(&changes.iter().map(line).collect::<String>());
    }
    if in_place && changes.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let out = how.out.as_deref().filter(|_| !in_place);
    written(write(&model, file, out, &new, &interrupted))
}

/// Waits for the others who change the file at `path`, which its user calls `file`. Not every file system can.
fn lock(file: &Path, path: &Path, interrupted: &Interrupted) -> anyhow::Result<Option<Flock<File>>> {
    const PAUSE: Duration = Duration::from_millis(10);
    const SILENT: Duration = Duration::from_secs(1);
    let mut opened = File::open(path).with_context(|| file.display().to_string())?;
    let (since, mut said) = (Instant::now(), false);
    loop {
        opened = match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            Err((opened, Errno::EWOULDBLOCK)) => opened,
            Err(_) => return Ok(None),
        };
        if since.elapsed() > SILENT && !mem::replace(&mut said, true) {
            log::warn!("{}: locked by another program; waiting for it", file.display());
        }
        interrupted.check()?;
        thread::sleep(PAUSE);
    }
}

/// Whether two paths lead to one name of a file. Other names of it are others.
fn is_same(a: &Path, b: &Path) -> bool {
    a.canonicalize().ok().is_some_and(|place| b.canonicalize().is_ok_and(|other| other == place))
}

/// A change as a line.
fn line(change: &Change) -> String {
    let signed = |sign, value: Option<&str>| value.map(|value| format!("{sign} {}", pair(change.key, value)));
    [signed('-', change.old), signed('+', change.new)].into_iter().flatten().collect()
}

/// Writes the model in `file` with other metadata to `out`, or in its own place.
fn write(
    model: &Model,
    file: &Path,
    out: Option<&Path>,
    metadata: &[(String, String)],
    interrupted: &Interrupted,
) -> anyhow::Result<()> {
    let Some(source) = model.sources().first() else {
        bail!("{}: a model of no files", file.display());
    };
    let path = model.path();
    // The directory alone decides who may replace it; but who protects a file means it.
    if out.is_none() && eaccess(path, AccessFlags::W_OK).is_err() {
        bail!("{}: may not be written to; -o writes a changed copy", file.display());
    }
    let opened = File::open(path).with_context(|| file.display().to_string())?;
    let stat = opened.metadata()?;
    let replaced = || format!("{}: replaced by somebody else meanwhile; nothing was written", file.display());
    if source.id() != Some(id(&stat)) {
        bail!("{}", replaced());
    }
    let (head, data) = head(model, file, metadata)?;
    let place = if file.is_dir() { path } else { file };
    let mut output = Output::create(out.unwrap_or(place), stat.mode())?;
    output.write(&head)?;
    let progress = Progress::new("copying", data.end - data.start);
    output.copy(&opened, data, &mut |bytes| {
        progress.add(bytes);
        !interrupted.is_set()
    })?;
    progress.set_message("to the disk");
    // That takes long, and what comes after does not.
    output.sync()?;
    models::still_the_same(model)?;
    if out.is_none() && !is_at(path, id(&stat)) {
        bail!("{}", replaced());
    }
    if out.is_none() && stat.nlink() > 1 {
        log::warn!("{}: had {} names; under the others it stays as it was", file.display(), stat.nlink());
    }
    interrupted.check()?;
    Ok(output.commit()?)
}

/// What stands before the data of the model in `file` with other metadata, and where the data is now.
fn head(model: &Model, file: &Path, metadata: &[(String, String)]) -> anyhow::Result<(Vec<u8>, Range<u64>)> {
    let (Some(shard), Some(source)) = (model.shards().first(), model.sources().first()) else {
        bail!("{}: a model of no files", file.display());
    };
    let json = shard.header.json();
    let mut text = vec![0; (json.end - json.start) as usize];
    source.read_exact_at(&mut text, json.start)?;
    let text = String::from_utf8(text).with_context(|| file.display().to_string())?;
    let head = safetensors::with_metadata(&text, json.end, metadata).with_context(|| file.display().to_string())?;
    Ok((head, json.end..source.len()))
}

fn id(stat: &fs::Metadata) -> FileId {
    (stat.dev(), stat.ino())
}

fn is_at(path: &Path, file: FileId) -> bool {
    fs::metadata(path).is_ok_and(|found| id(&found) == file)
}
