//! `weightfs metadata`: reads and changes metadata.

use crate::cli::source::SourceArgs;
use crate::cli::{EditOptions, MetadataAction, MetadataArgs, MetadataPair};
use crate::opening;
use crate::process::logging::complain;
use crate::process::signals::InterruptFlag;
use crate::terminal::output::{pretty, to_stdout, written};
use crate::terminal::progress::ProgressLine;
use anyhow::{Context, bail};
use nix::errno::Errno;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::mem;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};
use weightfs::format::{self, Assignment, Header, MetadataEdit, MetadataValue, NewHead, ParseMode, ValueType};
use weightfs::model::{self, Model, OpenedModel, changes, find_value};
use weightfs::text::{printable, quote};
use weightfs::write::{OriginalFile, OutputFile};

/// Maximum number of times that a file is opened again because another process has replaced it.
const TRIES_MAX: u32 = 1000;

pub fn run_metadata(args: &MetadataArgs) -> anyhow::Result<ExitCode> {
    match &args.action {
        MetadataAction::Get { input, keys, json } => get(input, keys, *json),
        MetadataAction::Set { file, pairs, options } => {
            let pairs = read_pairs(pairs)?;
            edit_file(file, options, |model| {
                let assignments: anyhow::Result<_> = pairs.iter().map(|pair| assignment(model, pair)).collect();
                Ok(MetadataEdit::Set(assignments.with_context(|| file.display().to_string())?))
            })
        }
        MetadataAction::Remove { file, keys, options } => edit_file(file, options, |model| {
            if let Some(absent) = keys.iter().find(|key| find_value(model.metadata(), key).is_none()) {
                bail!("{}: no metadata key {}", file.display(), quote(absent));
            }
            Ok(MetadataEdit::Remove(keys.clone()))
        }),
        MetadataAction::Clear { file, options } => edit_file(file, options, |_| Ok(MetadataEdit::Clear)),
    }
}

fn get(input: &SourceArgs, keys: &[String], json: bool) -> anyhow::Result<ExitCode> {
    let (source, opened) = opening::open_source(input)?;
    let (mut found, mut trouble) = (BTreeMap::new(), false);
    let several = match opened {
        OpenedModel::Model(model, _) => {
            found.insert(String::new(), chosen_pairs(&model, keys));
            false
        }
        OpenedModel::Catalog(catalog) => {
            for (path, id) in catalog.paths() {
                match opening::open_catalog_model(&catalog, id, &source.join(&path)) {
                    Ok(model) => drop(found.insert(path.to_string_lossy().into_owned(), chosen_pairs(&model, keys))),
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
    if let Some(absent) = keys.iter().find(|key| !found.values().any(|pairs| pairs.contains_key(*key))) {
        bail!("{source}: no metadata key {}", quote(absent));
    }
    let only = found.values().next().cloned().unwrap_or_default();
    let text = match (several, keys, json) {
        (true, _, true) => (pretty(&found)? + "\n").into(),
        (false, _, true) => (pretty(&only)? + "\n").into(),
        (false, [key], false) => only.get(key).map_or_else(Vec::new, whole_metadata_text),
        (false, _, false) => only.iter().map(|(key, value)| pair(key, value)).collect::<String>().into(),
        (true, _, false) => {
            let pairs = found.iter().flat_map(|(path, pairs)| pairs.iter().map(move |pair| (path, pair)));
            let lines = pairs.map(|(path, (key, value))| format!("{}: {}", printable(path), pair(key, value)));
            lines.collect::<String>().into()
        }
    };
    print_metadata(&text)?;
    Ok(if trouble { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The metadata with these keys, or all if there are no keys.
fn chosen_pairs(model: &Model, keys: &[String]) -> BTreeMap<String, MetadataValue> {
    model.metadata().iter().filter(|(key, _)| keys.is_empty() || keys.contains(key)).cloned().collect()
}

/// The value of a single key: its exact bytes and a newline. The lines of an array end with a newline already.
fn whole_metadata_text(value: &MetadataValue) -> Vec<u8> {
    let mut text = match io::stdout().is_terminal() {
        // Control characters must not reach a terminal.
        true => value.text().split('\n').map(printable).collect::<Vec<_>>().join("\n").into(),
        false => value.bytes().to_vec(),
    };
    if !value.is_array() {
        text.push(b'\n');
    }
    text
}

fn print_metadata(text: &[u8]) -> anyhow::Result<ExitCode> {
    to_stdout(|out| {
        out.write_all(text)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// A key and its value as a line `KEY=VALUE`. An array is a JSON array.
fn pair(key: &str, value: &MetadataValue) -> String {
    format!("{}={}\n", printable(key), printable(&text(value)))
}

/// A value on one line.
fn text(value: &MetadataValue) -> Cow<'_, str> {
    if !value.is_array() {
        return value.text().into();
    }
    let mut json = Vec::new();
    // Writing to a vector cannot fail.
    let _ = value.write_json(&mut json);
    String::from_utf8(json).unwrap_or_default().into()
}

/// The words before the first `=`, with their values. The value of a word alone is read from standard input.
fn read_pairs(pairs: &[MetadataPair]) -> anyhow::Result<Vec<(String, String)>> {
    let (mut complete, mut read) = (Vec::new(), false);
    for MetadataPair { key, value } in pairs {
        let value = match value {
            Some(value) => value.clone(),
            None if mem::replace(&mut read, true) => {
                bail!("{}: only one value can be read from standard input", quote(key))
            }
            None => read_value(key).with_context(|| format!("the value of {}, from standard input", quote(key)))?,
        };
        complete.push((key.clone(), value));
    }
    Ok(complete)
}

/// Reads the value of `key` from standard input. On a terminal, says that it waits for one.
fn read_value(key: &str) -> io::Result<String> {
    if io::stdin().is_terminal() {
        let _ =
            writeln!(io::stderr(), "weightfs: type the value of {}, then press Ctrl-D on an empty line", quote(key));
    }
    io::read_to_string(io::stdin())
}

/// `KEY` and a value or, if metadata has types in the format of the model, also `KEY:TYPE` and a value. Fails if what
/// follows the last colon of a new key is no type: it is more likely mistyped than a part of the key.
fn assignment(model: &Model, (word, text): &(String, String)) -> anyhow::Result<Assignment> {
    let typed = word.rsplit_once(':').filter(|_| format::has_types(model.format()));
    let (key, value_type) = match typed.map(|(key, name)| (key, name, ValueType::parse(name))) {
        Some((key, _, Some(value_type))) => (key, Some(value_type)),
        Some((_, name, None)) if find_value(model.metadata(), word).is_none() => bail!(
            "{}: {} is not a type; types are u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, bool and string, and \
             string[] is an array (a key with a colon needs its type: KEY:string=VALUE)",
            quote(word),
            quote(name)
        ),
        _ => (&word[..], None),
    };
    Ok(Assignment { key: key.to_owned(), value_type, text: text.clone() })
}

/// Changes the metadata of `file`, in place or in a copy.
fn edit_file(
    file: &Path,
    options: &EditOptions,
    change: impl FnOnce(&Model) -> anyhow::Result<MetadataEdit>,
) -> anyhow::Result<ExitCode> {
    let interrupted = InterruptFlag::watch()?;
    // `original` holds the lock until the file is replaced, so that no change of another process is lost.
    let mut tries = 0;
    let (model, original, in_place) = loop {
        let model = opening::open_model_file(&file.into(), ParseMode::Strict)?;
        if let Some(reason) = model.form.edit_refusal {
            bail!("{}: {reason}", file.display());
        }
        let Some(path) = model.location.path() else {
            bail!("{}: not a file of this machine; only local files can be changed", file.display());
        };
        let original = OriginalFile::open(if file.is_dir() { path } else { file })?;
        let in_place = options.out.as_deref().is_none_or(|out| original.is_at(out));
        let is_replaced = in_place && !options.dry_run;
        if is_replaced {
            lock(file, &original, &interrupted)?;
        }
        // The previous holder of the lock may have replaced the file, and another process may do so at any time.
        let is_same = model.sources().iter().all(|source| source.id() == Some(original.id));
        if is_same && (!is_replaced || original.is_current()) {
            break (model, original, in_place);
        }
        tries += 1;
        if tries == TRIES_MAX {
            bail!("{}", replaced(file));
        }
    };
    let edit = change(&model)?;
    let is_typed = format::has_types(model.format());
    if edit == MetadataEdit::Clear && is_typed && in_place && !options.dry_run && !model.metadata().is_empty() {
        bail!(
            "{}: the metadata of a GGUF file holds the architecture and the tokenizer, without which the model cannot \
             be used; remove single keys, or write a copy without metadata with -o",
            file.display()
        );
    }
    let (old, head, new) = apply(&model, file, &edit)?;
    let changes = changes(&old.metadata, &new.metadata);
    head.remarks.iter().for_each(|remark| log::warn!("{}: {remark}", file.display()));
    if options.dry_run {
        let keys = changes.iter().map(|change| change.key);
        let lines = keys.map(|key| change_lines(key, old.value(key), new.value(key), is_typed));
        return print_metadata(lines.collect::<String>().as_bytes());
    }
    if in_place && changes.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let out = options.out.as_deref().filter(|_| !in_place);
    written(write_metadata(&model, file, &original, (out, options.force), &head, &interrupted))
}

/// Locks the file, unless the file system does not support locks; waits if another process holds the lock. `file` is
/// the path for messages.
fn lock(file: &Path, original: &OriginalFile, interrupted: &InterruptFlag) -> anyhow::Result<()> {
    const PAUSE: Duration = Duration::from_millis(10);
    const SILENT: Duration = Duration::from_secs(1);
    let (since, mut reported) = (Instant::now(), false);
    while original.lock() == Err(Errno::EWOULDBLOCK) {
        if since.elapsed() > SILENT && !mem::replace(&mut reported, true) {
            log::warn!("{}: locked by another program; waiting for it", file.display());
        }
        interrupted.check()?;
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// A change as lines: the old value with `-`, and the new value with `+`. For an array that keeps its type,
/// only the elements that change are listed.
fn change_lines(key: &str, old: Option<&MetadataValue>, new: Option<&MetadataValue>, is_typed: bool) -> String {
    let mut text = String::new();
    if let (Some(old), Some(new)) = (old, new)
        && old.value_type() == new.value_type()
        && old.is_array()
    {
        let (mut old, mut new) = (old.text().lines(), new.text().lines());
        for at in 0.. {
            let key = format!("{key}[{at}]");
            match (old.next(), new.next()) {
                (None, None) => break,
                (old, new) if old == new => {}
                (old, new) => {
                    text.extend(old.map(|old| change_line('-', &key, old)));
                    text.extend(new.map(|new| change_line('+', &key, new)));
                }
            }
        }
        return text;
    }
    for (sign, value) in [('-', old), ('+', new)] {
        if let Some(value) = value {
            let key = if is_typed { format!("{key}:{}", value.value_type()) } else { key.to_owned() };
            text += &change_line(sign, &key, &self::text(value));
        }
    }
    text
}

fn change_line(sign: char, key: &str, value: &str) -> String {
    format!("{sign} {}={}\n", printable(key), printable(value))
}

/// Writes the model in `file` with other metadata to `out`, which is replaced only with `force`. Without `out`,
/// replaces the file.
fn write_metadata(
    model: &Model,
    file: &Path,
    original: &OriginalFile,
    (out, force): (Option<&Path>, bool),
    head: &NewHead,
    interrupted: &InterruptFlag,
) -> anyhow::Result<()> {
    if out.is_none() && !original.is_writable() {
        bail!("{}: is write-protected; -o writes a changed copy", file.display());
    }
    let stat = original.file.metadata().with_context(|| file.display().to_string())?;
    let mut output = match out {
        Some(out) => OutputFile::create(out, stat.mode())?,
        None => original.replace()?,
    };
    output.check_force(out.is_none() || force)?;
    output.write(&head.bytes)?;
    let data = head.data_start..model.sources().first().map_or(head.data_start, |source| source.len());
    let progress = ProgressLine::new("copying", data.end - data.start);
    output.copy(&original.file, data, &mut |bytes| {
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

/// Applies a change to the header. Returns the old header, the new beginning of the file, and the new header.
fn apply(model: &Model, file: &Path, edit: &MetadataEdit) -> anyhow::Result<(Header, NewHead, Header)> {
    let Some(source) = model.sources().first() else { bail!("{}: a model without files", file.display()) };
    let (input, header) = model::load_header(&**source, ParseMode::Strict)?;
    let header = header.with_context(|| file.display().to_string())?;
    let (head, new) = format::edit_metadata(&header, &input, edit).with_context(|| file.display().to_string())?;
    Ok((header, head, new))
}
