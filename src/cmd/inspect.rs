//! `weightfs inspect`: prints a one-page description of a model.

use crate::cli::InspectArgs;
use crate::models::{Models, mode};
use crate::terminal::output::{HEADING, Output, count, cut, grouped, plural, pretty, size, to_stdout};
use crate::terminal::totals::{self, group_name};
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use unicode_width::UnicodeWidthStr;
use weightfs::format::{self, TensorInfo};
use weightfs::inspect::{
    Breakdown, Identity, ImageFolder, KOHYA, Label, MODELSPEC, MODELSPEC_PREFIX, Totals, Training, is_kohya,
};
use weightfs::model::{Kind, Model, NOT_DEQUANTIZED, Shard};
use weightfs::source::{Location, Source};
use weightfs::text::brackets;

/// Maximum number of items of a kind that are shown without --all.
const SHOWN: usize = 12;

/// Maximum width of the name of a tensor or file, in terminal columns, so that it fits on a line.
const NAME_MAX: usize = 80;

/// Maximum width of a field name, in terminal columns, so that a long one does not push the values to the right.
const KEY_MAX: usize = 40;

/// Describes each model.
pub fn run(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    to_stdout(|out| {
        let models = Models::find(&args.sources, out)?;
        models.each(mode(args.lenient), out, |model, location, out| {
            let breakdown = Breakdown::of(model, model.listed().iter(), 1);
            if args.json {
                writeln!(out, "{}", pretty(&to_json(model, location, &breakdown))?)?;
                return Ok(());
            }
            Ok(Page { model, shown: if args.all { usize::MAX } else { SHOWN }, out }.print(location, &breakdown)?)
        })
    })
}

/// The page about a model.
struct Page<'p> {
    model: &'p Model,
    /// Maximum number of items of a kind that are shown.
    shown: usize,
    out: &'p mut Output,
}

impl Page<'_> {
    fn print(mut self, location: &Location, breakdown: &Breakdown) -> io::Result<()> {
        self.out.title(location, "")?;
        self.print_model(breakdown)?;
        if self.model.kind() != Kind::File {
            self.print_shards()?;
        }
        self.print_known("ModelSpec", &MODELSPEC, MODELSPEC_PREFIX, |key| key.starts_with(MODELSPEC_PREFIX))?;
        self.print_known("Training (kohya sd-scripts)", &KOHYA, "", is_kohya)?;
        if let Some(training) = Training::of(self.model.metadata()) {
            self.print_training(&training)?;
        }
        self.print_other()
    }

    fn heading(&mut self, text: &'static str) -> io::Result<()> {
        let text = self.out.styled(HEADING, text);
        writeln!(self.out, "{text}")
    }

    /// Prints names and values in two columns. If `cut_values`, values are cut at the end of the line.
    fn fields(&mut self, fields: &[(String, String)], cut_values: bool) -> io::Result<()> {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (cut(name, KEY_MAX), value)).collect();
        let width = fields.iter().map(|(name, _)| name.width()).max().unwrap_or(0);
        let room = if cut_values { self.out.width.saturating_sub(width + 4) } else { usize::MAX };
        for (name, value) in fields {
            let padding = " ".repeat(width - name.width());
            let line = format!("  {name}{padding}  {}", cut(value, room));
            writeln!(self.out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn more(&mut self, all: usize, shown: usize, what: &str) -> io::Result<()> {
        match all.checked_sub(shown) {
            Some(more @ 1..) => {
                writeln!(self.out, "  and {} (--all)", plural(more as u64, &format!("more {what}")))
            }
            _ => Ok(()),
        }
    }

    fn print_model(&mut self, breakdown: &Breakdown) -> io::Result<()> {
        let model = self.model;
        let Breakdown { all, dtypes, modules } = breakdown;
        let bytes = model.sources().iter().map(|source| source.len()).fold(0, u64::saturating_add);
        let header = model.shards().iter().map(|shard| shard.header.data_start()).fold(0, u64::saturating_add);
        let left_out = model.left_out();
        let one = |name: &str, value: String| vec![(name.to_owned(), value)];
        // Numbers below 1000 are not rounded.
        let exact = |number: u64, what: &str| match number {
            0..1000 => String::new(),
            _ => format!(" ({}{what})", grouped(number)),
        };
        // A packed element counts once, however many weights it holds.
        let quantized = model.quantized();
        let counted = if quantized.is_empty() { "" } else { ", counted as stored elements" };
        let size_of_it = format!("{}{}, {} of it header", size(bytes), exact(bytes, " bytes"), size(header));
        let facts = [
            one("Format", format(model)),
            one("Size", size_of_it),
            one("Tensors", grouped(all.tensors)),
            one("Parameters", count(all.parameters) + &exact(all.parameters, "") + counted),
            match quantized.summary() {
                Some(summary) => [one("Quantization", summary), one("", NOT_DEQUANTIZED.to_owned())].concat(),
                None => Vec::new(),
            },
            groups("Dtypes", dtypes, self.shown),
            // A tensor whose name has no dots is in no module.
            if modules.iter().all(|(name, _)| name.is_empty()) {
                Vec::new()
            } else {
                groups("Modules", modules, self.shown)
            },
            largest(model).map_or(Vec::new(), |largest| one("Largest", largest)),
            one("Structural hash", Identity::of(model).hash),
            if left_out == 0 { Vec::new() } else { one("Left out", grouped(left_out as u64)) },
        ];
        self.fields(&facts.concat(), false)
    }

    fn print_shards(&mut self) -> io::Result<()> {
        let model = self.model;
        self.heading("Shards")?;
        let shards = model.shards().iter().zip(model.sources().iter().map(|source| &**source));
        let field = |(shard, source): (&Shard, &dyn Source)| {
            (
                cut(&shard.name, NAME_MAX),
                format!("{} in {}", size(source.len()), plural(shard.header.len() as u64, "tensor")),
            )
        };
        let fields: Vec<_> = shards.take(self.shown).map(field).collect();
        self.fields(&fields, false)?;
        self.more(model.shards().len(), fields.len(), "shard")
    }

    /// Prints the metadata of a convention: keys that have a label first, in the order of the labels.
    fn print_known(
        &mut self,
        title: &'static str,
        labels: &[Label],
        prefix: &str,
        belongs: fn(&str) -> bool,
    ) -> io::Result<()> {
        let mut rest: BTreeMap<&str, &str> = self
            .model
            .metadata()
            .iter()
            .filter(|(key, _)| belongs(key))
            .map(|(key, value)| (&**key, value.text()))
            .collect();
        let show_all = self.shown == usize::MAX;
        // Training scripts write Python's None for a missing value.
        let has_value = |value: &str| show_all || !matches!(value, "" | "None");
        let named = labels.iter().filter_map(|(key, label)| {
            let value = rest.remove(&*format!("{prefix}{key}"))?;
            has_value(value).then(|| ((*label).to_owned(), value.to_owned()))
        });
        let mut fields: Vec<_> = named.collect();
        let mut left = rest.len();
        if show_all {
            fields.extend(rest.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())));
            left = 0;
        }
        if fields.is_empty() && left == 0 {
            return Ok(());
        }
        self.heading(title)?;
        self.fields(&fields, true)?;
        self.more(left, 0, "key")
    }

    fn print_training(&mut self, training: &Training) -> io::Result<()> {
        let Training { folders, tags, frequent_tags, resolutions, started, finished, seconds } = training;
        let mut fields = Vec::new();
        let mut field = |name: &str, value: String| fields.push((name.to_owned(), value));
        if let Some(started) = started {
            field("Started", started.clone());
        }
        if let Some(finished) = finished {
            let took = seconds.map_or(String::new(), |seconds| format!(" (took {})", duration(seconds)));
            field("Finished", format!("{finished}{took}"));
        }
        if !resolutions.is_empty() {
            field("Resolutions", resolutions.join(", "));
        }
        for (at, ImageFolder { name, images, repeats, regularisation }) in folders.iter().take(self.shown).enumerate() {
            let kind = if *regularisation { ", for regularisation" } else { "" };
            let label = if at == 0 { "Folders" } else { "" };
            field(label, format!("{name}: {} times {repeats}{kind}", plural(*images, "image")));
        }
        if folders.len() > self.shown {
            field("", format!("and {} more (--all)", folders.len() - self.shown));
        }
        if *tags > 0 {
            let most: Vec<String> = frequent_tags.iter().map(|(tag, count)| format!("{tag} ({count})")).collect();
            field("Tags", format!("{}, most often {}", grouped(*tags as u64), most.join(", ")));
        }
        self.heading("Training data")?;
        self.fields(&fields, true)
    }

    fn print_other(&mut self) -> io::Result<()> {
        let other = |key: &str| !key.starts_with(MODELSPEC_PREFIX) && !is_kohya(key);
        let named = |(key, value): &(String, format::Value)| {
            (if key.is_empty() { "(empty)" } else { key }.to_owned(), metadata_text(value))
        };
        let fields: Vec<_> = self.model.metadata().iter().filter(|(key, _)| other(key)).map(named).collect();
        if fields.is_empty() {
            return Ok(());
        }
        let shown = fields.len().min(self.shown);
        self.heading("Metadata")?;
        self.fields(&fields[..shown], true)?;
        self.more(fields.len(), shown, "key")
    }
}

/// The format, and whether the model has several files.
fn format(model: &Model) -> String {
    let shards = plural(model.shards().len() as u64, "shard");
    match model.kind() {
        Kind::File => model.format().to_owned(),
        Kind::Sharded => format!("{}, {shards} by an index", model.format()),
        Kind::Dataset => format!("{}, a dataset of {shards}", model.format()),
    }
}

/// The fields for dtypes or modules. Only the first field has a name.
fn groups(name: &str, groups: &[(&str, Totals)], shown: usize) -> Vec<(String, String)> {
    let text = |(group, totals): &(&str, Totals)| {
        format!("{} {} in {}", group_name(group), size(totals.nbytes), plural(totals.tensors, "tensor"))
    };
    let more = groups.len().saturating_sub(shown);
    let more = (more > 0).then(|| format!("and {} more (--all)", grouped(more as u64)));
    let texts = groups.iter().take(shown).map(text).chain(more);
    texts.enumerate().map(|(at, text)| (if at == 0 { name } else { "" }.to_owned(), text)).collect()
}

/// The largest tensor. If several are equally large, the first.
fn largest(model: &Model) -> Option<String> {
    let id = model.listed().iter().max_by_key(|id| (model.tensor(*id).info.nbytes(), Reverse(*id)))?;
    let tensor = model.tensor(id).info;
    let TensorInfo { name, dtype, shape, .. } = tensor;
    let (name, dtype) = (cut(name, NAME_MAX), cut(dtype.name(), NAME_MAX));
    Some(format!("{name}  {dtype} {}  {}", brackets(shape), size(tensor.nbytes())))
}

/// A duration, such as `1 h 02 min`.
fn duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (hours, minutes, _) => format!("{} h {minutes:02} min", grouped(hours)),
    }
}

/// The description as JSON, with full metadata values.
fn to_json(model: &Model, location: &Location, breakdown: &Breakdown) -> Value {
    let Identity { hash, .. } = Identity::of(model);
    let kind = match model.kind() {
        Kind::File => "file",
        Kind::Sharded => "sharded",
        Kind::Dataset => "dataset",
    };
    let files = model.shards().iter().zip(model.sources().iter()).map(|(shard, source)| {
        let Shard { name, header } = shard;
        json!({"name": name, "nbytes": source.len(), "data_start": header.data_start(), "tensors": header.len()})
    });
    let metadata: Map<String, Value> =
        model.metadata().iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    json!({
        "source": location.to_string(), "format": model.format(), "kind": kind, "files": files.collect::<Vec<_>>(),
        "totals": totals::to_json(breakdown), "structural_hash": hash,
        "quantization": model.quantized().note().map(|note| json!({"tensors": model.quantized().len(), "note": note})),
        "left_out": model.left_out(), "metadata": metadata,
        "training": Training::of(model.metadata()),
    })
}

/// A metadata value for a table: a string or a number, or the first elements of an array and their number.
fn metadata_text(value: &format::Value) -> String {
    const SHOWN: usize = 8;
    if !value.is_array() {
        return value.text().to_owned();
    }
    let total = value.text().lines().count();
    let first: Vec<&str> = value.text().lines().take(SHOWN).collect();
    let more = if total > SHOWN { format!(", ... ({total})") } else { String::new() };
    format!("[{}{more}]", first.join(", "))
}
