//! `weightfs metadata`: reads and changes metadata.

use crate::cli::{Action, EditOptions, MetadataArgs, Pair};
use crate::models;
use crate::process::logging::complain;
use crate::process::signals::Interrupted;
use crate::terminal::output::{pretty, to_stdout, written};
use crate::terminal::progress::Progress;
use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::mem;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};
use weightfs::format::{self, Mode, Value};
use weightfs::model::{self, Change, Kind, Model, Opened, changes};
use weightfs::source::Location;
use weightfs::text::{printable, quote};
use weightfs::write::{Original, Output};

/// How often a file is opened again because another process has replaced it.
const TRIES_MAX: u32 = 1000;

type Pairs = BTreeMap<String, Value>;

/// Reads or changes metadata.
pub fn run(args: &MetadataArgs) -> anyhow::Result<ExitCode> {
    match &args.action {
        Action::Get { source, keys, json } => get(source, keys, *json),
        Action::Set { file, pairs, options } => {
            let pairs = read_pairs(pairs)?;
            edit(file, options, |metadata| {
                metadata.extend(pairs);
                Ok(())
            })
        }
        Action::Remove { file, keys, options } => edit(file, options, |metadata| {
            if let Some(absent) = keys.iter().find(|key| !metadata.contains_key(*key)) {
                bail!("{}: no metadata key {}", file.display(), quote(absent));
            }
            metadata.retain(|key, _| !keys.contains(key));
            Ok(())
        }),
        Action::Clear { file, options } => edit(file, options, |metadata| {
            metadata.clear();
            Ok(())
        }),
    }
}

fn get(source: &Location, keys: &[String], json: bool) -> anyhow::Result<ExitCode> {
    let (mut found, mut wanted) = (BTreeMap::new(), keys.to_vec());
    let mut take = |path: String, metadata: &[(String, Value)]| {
        let mut metadata: Pairs = metadata.iter().cloned().collect();
        wanted.retain(|key| !metadata.contains_key(key));
        if !keys.is_empty() {
            metadata.retain(|key, _| keys.contains(key));
        }
        found.insert(path, metadata);
    };
    let mut trouble = false;
    let several = match models::any(source, Mode::Strict)? {
        Opened::Model(model) => {
            take(String::new(), model.metadata());
            false
        }
        Opened::Catalog(catalog) => {
            for (path, id) in catalog.paths() {
                match models::in_catalog(&catalog, id, &source.join(&path)) {
                    Ok(model) => take(path.to_string_lossy().into_owned(), model.metadata()),
                    // The other models are still printed.
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
        bail!("{source}: no metadata key {}", quote(absent));
    }
    let only = found.values().next().cloned().unwrap_or_default();
    let text = match (several, keys, json) {
        (true, _, true) => pretty(&found)? + "\n",
        (false, _, true) => pretty(&only)? + "\n",
        (false, [key], false) => {
            let value = only.get(key).map_or("", Value::text);
            // Control characters must not reach a terminal.
            let lines = || value.split('\n').map(printable).collect::<Vec<_>>().join("\n");
            let value = if io::stdout().is_terminal() { lines() } else { value.to_owned() };
            value + "\n"
        }
        (false, _, false) => only.iter().map(|(key, value)| pair(key, value.text())).collect(),
        (true, _, false) => {
            let lines = |(path, metadata): (&String, &Pairs)| -> String {
                metadata
                    .iter()
                    .map(|(key, value)| format!("{}: {}", printable(path), pair(key, value.text())))
                    .collect()
            };
            found.iter().map(lines).collect()
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

/// A key and its value as a line `KEY=VALUE`.
fn pair(key: &str, value: &str) -> String {
    format!("{}={}\n", printable(key), printable(value))
}

/// The keys with their values. The value of a `KEY` alone is read from standard input.
fn read_pairs(pairs: &[Pair]) -> anyhow::Result<Pairs> {
    let mut read = false;
    let value = |Pair { key, value }: &Pair| {
        let value = match value {
            Some(value) => value[..].into(),
            None if mem::replace(&mut read, true) => {
                bail!("{}: only one value can be read from standard input", quote(key))
            }
            None => Value::string(
                read_value(key).with_context(|| format!("the value of {}, from standard input", quote(key)))?,
            ),
        };
        Ok((key.clone(), value))
    };
    pairs.iter().map(value).collect()
}

/// Reads the value of `key` from standard input. On a terminal, says that it waits for one.
fn read_value(key: &str) -> io::Result<String> {
    if io::stdin().is_terminal() {
        let _ =
            writeln!(io::stderr(), "weightfs: type the value of {}, then press Ctrl-D on an empty line", quote(key));
    }
    io::read_to_string(io::stdin())
}

/// Changes the metadata of `file`, in place or in a copy.
fn edit(
    file: &Path,
    options: &EditOptions,
    change: impl FnOnce(&mut Pairs) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let interrupted = Interrupted::watch()?;
    // The lock is held until the file is replaced, so that no change of another process is lost.
    let mut tries = 0;
    let (model, original, in_place, _lock) = loop {
        let model = models::one(&file.into(), Mode::Strict)?;
        let Some(path) = model.location().path().filter(|_| model.kind() == Kind::File) else {
            bail!("{}: a model of several files; name one of them", file.display());
        };
        let original = Original::open(if file.is_dir() { path } else { file })?;
        let in_place = options.out.as_deref().is_none_or(|out| original.is_at(out));
        let lock = if in_place && !options.dry_run { lock(file, &original, &interrupted)? } else { None };
        // The previous holder of the lock may have replaced the file, and another process may do so at any time.
        let is_same = model.sources().iter().all(|source| source.id() == Some(original.id()));
        if is_same && (lock.is_none() || original.is_current()) {
            break (model, original, in_place, lock);
        }
        tries += 1;
        if tries == TRIES_MAX {
            bail!("{}", replaced(file));
        }
    };
    let old = model.metadata();
    let mut metadata: Pairs = old.iter().cloned().collect();
    change(&mut metadata)?;
    let new: Vec<(String, Value)> = metadata.into_iter().collect();
    let changes = changes(old, &new);
    if options.dry_run {
        head(&model, file, &new)?;
        return print(&changes.iter().map(line).collect::<String>());
    }
    if in_place && changes.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let out = options.out.as_deref().filter(|_| !in_place);
    written(write(&model, file, &original, out, &new, &interrupted))
}

/// Locks the file; waits if another process holds the lock. `file` is the path for messages. `None` if the file system
/// does not support locks.
fn lock(file: &Path, original: &Original, interrupted: &Interrupted) -> anyhow::Result<Option<Flock<File>>> {
    const PAUSE: Duration = Duration::from_millis(10);
    const SILENT: Duration = Duration::from_secs(1);
    let mut opened = original.file().try_clone().with_context(|| file.display().to_string())?;
    let (since, mut reported) = (Instant::now(), false);
    loop {
        opened = match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            Err((opened, Errno::EWOULDBLOCK)) => opened,
            Err(_) => return Ok(None),
        };
        if since.elapsed() > SILENT && !mem::replace(&mut reported, true) {
            log::warn!("{}: locked by another program; waiting for it", file.display());
        }
        interrupted.check()?;
        thread::sleep(PAUSE);
    }
}

/// A change as lines: the old value with `-`, and the new value with `+`.
fn line(change: &Change) -> String {
    let signed = |sign, value: Option<&str>| value.map(|value| format!("{sign} {}", pair(change.key, value)));
    [signed('-', change.old), signed('+', change.new)].into_iter().flatten().collect()
}

/// Writes the model in `file` with other metadata to `out`. Without `out`, replaces the file.
fn write(
    model: &Model,
    file: &Path,
    original: &Original,
    out: Option<&Path>,
    metadata: &[(String, Value)],
    interrupted: &Interrupted,
) -> anyhow::Result<()> {
    if out.is_none() && !original.is_writable() {
        bail!("{}: is write-protected; -o writes a changed copy", file.display());
    }
    let stat = original.file().metadata().with_context(|| file.display().to_string())?;
    let (head, data) = head(model, file, metadata)?;
    let mut output = match out {
        Some(out) => Output::create(out, stat.mode())?,
        None => original.replace()?,
    };
    output.write(&head)?;
    let progress = Progress::new("copying", data.end - data.start);
    output.copy(original.file(), data, &mut |bytes| {
        progress.add(bytes);
        !interrupted.is_set()
    })?;
    // Syncing takes long, so it comes before the last checks.
    progress.during("syncing", || output.sync())?;
    model.verify()?;
    if out.is_none() && !original.is_current() {
        bail!("{}", replaced(file));
    }
    if out.is_none() && stat.nlink() > 1 {
        log::warn!("{}: has {} hard links; only this one refers to the changed file", file.display(), stat.nlink());
    }
    interrupted.check()?;
    Ok(output.commit()?)
}

fn replaced(file: &Path) -> String {
    format!("{}: replaced by another process meanwhile; nothing was written", file.display())
}

/// The header with other metadata, and the range of the data in the file.
fn head(model: &Model, file: &Path, metadata: &[(String, Value)]) -> anyhow::Result<(Vec<u8>, Range<u64>)> {
    let Some(source) = model.sources().first() else { bail!("{}: a model without files", file.display()) };
    let (input, header) = model::load(&**source, Mode::Strict)?;
    let header = header.with_context(|| file.display().to_string())?;
    let head = format::with_metadata(&header, &input, metadata).with_context(|| file.display().to_string())?;
    Ok((head, header.data_start()..source.len()))
}
