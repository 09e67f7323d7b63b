//! `weightfs inspect`: prints a one-page description of a model.

use crate::cli::InspectArgs;
use crate::opening::NamedModels;
use crate::terminal::bars::append_bars;
use crate::terminal::output::{HEADING, StandardOutput, cut_text, to_stdout, wrap_words};
use crate::terminal::totals::{self, draw_groups, group_name};
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use unicode_width::UnicodeWidthStr;
use weightfs::format::{self, Dtype, TensorInfo, gguf};
use weightfs::inspect::{
    GgufFact, GgufFacts, GgufFileType, ImageFolder, KOHYA, Label, MODELSPEC, MODELSPEC_PREFIX, ModelIdentity,
    ModelOverview, QuantizationTotal, SpecialToken, TensorBreakdown, TensorTotals, TrainingFacts, is_kohya,
};
use weightfs::model::quantization::ProblemKind;
use weightfs::model::{Model, ModelFile};
use weightfs::source::Location;
use weightfs::text::{brackets, printable, quote};
use weightfs::units::{format_count, format_size, grouped, plural};

/// The labels of fields that have bars.
const DTYPES: &str = "Dtypes";
const MODULES: &str = "Modules";

/// Maximum number of items of a kind that are shown without --all.
const SHOWN: usize = 12;

/// Maximum width of the name of a tensor or file, in terminal columns, so that it fits on a line.
const NAME_MAX: usize = 80;

/// Maximum width of a field name, in terminal columns, so that a long one does not push the values to the right.
const KEY_MAX: usize = 40;

pub fn run_inspect(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    to_stdout(|out| {
        let models = NamedModels::find(&args.sources, &args.open.remote, out)?;
        models.each(args.open.mode(), out, |model, location, out| {
            let breakdown = TensorBreakdown::of(model, model.listed().iter(), 1);
            if args.json {
                return out.print_json(&to_json(model, location, &breakdown));
            }
            let (gguf, shown) = (gguf_of(model), if args.all { usize::MAX } else { SHOWN });
            Ok(InspectPage { model, gguf, shown, out }.print(location, &breakdown)?)
        })
    })
}

/// The facts that only GGUF files have. A safetensors file converted from one has some of the keys, but all as strings.
fn gguf_of(model: &Model) -> Option<GgufFacts<'_>> {
    GgufFacts::of(model.metadata()).filter(|_| model.format() == gguf::NAME)
}

/// The page about a model.
struct InspectPage<'p> {
    model: &'p Model,
    gguf: Option<GgufFacts<'p>>,
    /// Maximum number of items of a kind that are shown.
    shown: usize,
    out: &'p mut StandardOutput,
}

impl InspectPage<'_> {
    fn print(mut self, location: &Location, breakdown: &TensorBreakdown) -> io::Result<()> {
        let overview = ModelOverview::of(self.model, breakdown);
        self.print_overview(location, &overview.text())?;
        self.print_model(breakdown, overview.nbytes)?;
        if self.model.form.has_shards {
            self.print_shards()?;
        }
        if let Some(gguf) = self.gguf.take() {
            self.print_gguf(&gguf, breakdown)?;
            self.gguf = Some(gguf);
        }
        self.print_known("ModelSpec", &MODELSPEC, MODELSPEC_PREFIX, |key| key.starts_with(MODELSPEC_PREFIX))?;
        self.print_known("Training (kohya sd-scripts)", &KOHYA, "", is_kohya)?;
        if let Some(training) = TrainingFacts::of(self.model.metadata()) {
            self.print_training(&training)?;
        }
        self.print_other()
    }

    /// Prints the location and what the model is, on one line unless it is too long for the terminal.
    fn print_overview(&mut self, location: &Location, text: &str) -> io::Result<()> {
        const INDENT: &str = "  ";
        let width = printable(&location.to_string()).width() + ": ".len() + text.width();
        if !self.out.is_terminal || width <= self.out.width {
            return self.out.title(location, &format!(": {text}"));
        }
        self.out.title(location, ":")?;
        let lines = wrap_words(text, self.out.width.saturating_sub(INDENT.len()));
        lines.iter().try_for_each(|line| writeln!(self.out, "{INDENT}{line}"))
    }

    fn heading(&mut self, text: &'static str) -> io::Result<()> {
        let text = self.out.styled(HEADING, text);
        writeln!(self.out, "{text}")
    }

    /// Prints names and values in two columns. If `cut_values`, values are cut at the end of the line.
    fn fields(&mut self, fields: &[(String, String)], cut_values: bool) -> io::Result<()> {
        let lines = self.field_lines(fields, cut_values);
        lines.iter().try_for_each(|line| writeln!(self.out, "{line}"))
    }

    fn field_lines(&self, fields: &[(String, String)], cut_values: bool) -> Vec<String> {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (cut_text(name, KEY_MAX), value)).collect();
        let width = fields.iter().map(|(name, _)| name.width()).max().unwrap_or(0);
        let room = if cut_values { self.out.width.saturating_sub(width + 4) } else { usize::MAX };
        let lines = fields.into_iter().map(|(name, value)| {
            let padding = " ".repeat(width - name.width());
            format!("  {name}{padding}  {}", cut_text(value, room)).trim_end().to_owned()
        });
        lines.collect()
    }

    fn more(&mut self, all: usize, shown: usize, what: &str) -> io::Result<()> {
        match all.checked_sub(shown) {
            Some(more @ 1..) => {
                writeln!(self.out, "  and {} (--all)", plural(more as u64, &format!("more {what}")))
            }
            _ => Ok(()),
        }
    }

    /// `bytes` is the size of all files.
    fn print_model(&mut self, breakdown: &TensorBreakdown, bytes: u64) -> io::Result<()> {
        let model = self.model;
        let TensorBreakdown { all, dtypes, modules, quantized } = breakdown;
        let header = model.files.iter().map(|shard| shard.header.data_start).fold(0, u64::saturating_add);
        let left_out = model.left_out();
        let bits = all.bits_per_weight().filter(|_| !quantized.is_empty());
        let bits = bits.map_or(String::new(), |bits| format!(", {bits:.2} bits per weight"));
        let size_of_it =
            format!("{}{}, {} of it header", format_size(bytes), unrounded(bytes, " bytes"), format_size(header));
        let stored_only = names(&model.size_only_dtypes()).join(", ");
        let facts = [
            labelled("Format", [format(model)]),
            labelled("Size", [size_of_it]),
            labelled("Tensors", [grouped(all.tensors)]),
            labelled("Parameters", [format_count(all.parameters) + &unrounded(all.parameters, "") + &bits]),
            self.quantized(quantized),
            self.quantization_warnings(),
            // The page of a GGUF model has a table of them.
            if self.gguf.is_some() { Vec::new() } else { group_rows(DTYPES, dtypes, self.shown) },
            labelled(
                "Stored only",
                (!stored_only.is_empty())
                    .then(|| format!("{stored_only}: no known writer defines how values are packed")),
            ),
            // A tensor whose name has no dots is in no module.
            if modules.iter().all(|(name, _)| name.is_empty()) {
                Vec::new()
            } else {
                group_rows(MODULES, modules, self.shown)
            },
            labelled("Largest", largest(model)),
            labelled("Structural hash", [ModelIdentity::of(model).hash]),
            labelled("Skipped", (left_out > 0).then(|| grouped(left_out as u64))),
        ];
        let facts = facts.concat();
        let mut lines = self.field_lines(&facts, false);
        for (label, groups) in [(DTYPES, dtypes), (MODULES, modules)] {
            if let Some(first) = facts.iter().position(|(name, _)| name == label) {
                let groups = &groups[..groups.len().min(self.shown)];
                append_bars(self.out, &mut lines[first..][..groups.len()], groups.iter().map(|group| group.1.nbytes));
            }
        }
        lines.iter().try_for_each(|line| writeln!(self.out, "{line}"))
    }

    /// The quantization of weights, three lines for each kind.
    fn quantized(&self, kinds: &[QuantizationTotal]) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        for QuantizationTotal { summary, totals, companions, roles, .. } in kinds.iter().take(self.shown) {
            let TensorTotals { tensors, parameters, nbytes } = *totals;
            let bits = totals.bits_per_weight().map_or(String::new(), |bits| format!(", {bits:.2} bits each"));
            let of_it = format!("{} parameters in {}{bits}", format_count(parameters), format_size(nbytes));
            lines.extend([summary.clone(), format!("  {}: {of_it}", plural(tensors, "weight"))]);
            let roles = format!("{}: {}", plural(*companions, "companion"), roles.join(", "));
            lines.extend(self.fold(&roles).into_iter().map(|line| format!("  {line}")));
        }
        labelled("Quantization", lines.into_iter().chain(and_more(kinds.len(), self.shown)))
    }

    /// Warnings about tensors that look quantized and are not recognised, and about values that may be wrong.
    fn quantization_warnings(&self) -> Vec<(String, String)> {
        let warnings = self.model.quantized.warnings().iter();
        let (doubtful, warnings): (Vec<_>, Vec<_>) =
            warnings.partition(|warning| warning.problem == ProblemKind::Contradiction);
        let counted = "their stored elements are counted as parameters".to_owned();
        let counted = warnings.iter().any(|warning| !warning.example.is_empty()).then_some(counted);
        let warnings = warnings.into_iter().flat_map(|warning| self.fold(&warning.to_string())).chain(counted);
        let doubtful = doubtful.into_iter().flat_map(|warning| self.fold(&warning.to_string()));
        [labelled("Not recognised", warnings), labelled("Doubtful values", doubtful)].concat()
    }

    /// Text as lines that fit beside the labels.
    fn fold(&self, text: &str) -> Vec<String> {
        /// Width of the labels with the space around them.
        const LABELS: usize = 21;
        wrap_words(text, self.out.width.saturating_sub(LABELS).max(LABELS))
    }

    fn print_shards(&mut self) -> io::Result<()> {
        let model = self.model;
        self.heading("Shards")?;
        let fields = model.files.iter().take(self.shown).map(|ModelFile { name, header, source, .. }| {
            let text = format!("{} in {}", format_size(source.len()), plural(header.len() as u64, "tensor"));
            (cut_text(name, NAME_MAX), text)
        });
        let fields: Vec<_> = fields.collect();
        self.fields(&fields, false)?;
        self.more(model.files.len(), fields.len(), "shard")
    }

    fn print_gguf(&mut self, gguf: &GgufFacts, breakdown: &TensorBreakdown) -> io::Result<()> {
        let mut architecture: Vec<_> = gguf.general.iter().chain(&gguf.network).map(fact_field).collect();
        if let Some(GgufFileType { number, name }) = &gguf.file_type {
            let name = name.map_or_else(|| format!("{number} (unknown)"), str::to_owned);
            architecture.push(("Quantization".to_owned(), name));
        }
        self.section("Network", &architecture)?;
        if breakdown.all.tensors > 0 {
            self.heading("Types")?;
            let rows: Vec<_> = breakdown
                .dtypes
                .iter()
                .chain([&("total", breakdown.all)])
                .map(|row| type_row(row, &breakdown.all))
                .collect();
            const HEADINGS: [&str; 6] = ["  TYPE", "TENSORS", "PARAMETERS", "SIZE", "SHARE", "BITS PER WEIGHT"];
            draw_groups(self.out, &HEADINGS, &rows, &breakdown.dtypes)?;
        }
        let tokenizer = &gguf.tokenizer;
        let mut fields: Vec<_> = tokenizer.facts.iter().map(fact_field).collect();
        fields.extend(tokenizer.tokens.map(|tokens| ("Tokens".to_owned(), grouped(tokens as u64))));
        fields.extend(tokenizer.special.iter().map(|SpecialToken { label, id, text, .. }| {
            let text = text.as_ref().map_or(String::new(), |text| format!("  {}", quote(text)));
            ((*label).to_owned(), format!("{}{text}", id.text()))
        }));
        if let (Some(template), first) = (gguf.chat_template, gguf.first_line()) {
            let first = first.map_or(String::new(), |line| format!(", begins with {line}"));
            fields.push(("Chat template".to_owned(), format!("{}{first}", format_size(template.len() as u64))));
        }
        self.section("Tokenizer", &fields)
    }

    /// Prints a heading and fields, or nothing if there are no fields.
    fn section(&mut self, title: &'static str, fields: &[(String, String)]) -> io::Result<()> {
        if fields.is_empty() {
            return Ok(());
        }
        self.heading(title)?;
        self.fields(fields, true)
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
        let named = labels.iter().filter_map(|(key, label)| {
            let value = rest.remove(&*format!("{prefix}{key}"))?;
            // Training scripts write Python's None for a missing value.
            (show_all || !matches!(value, "" | "None")).then(|| ((*label).to_owned(), value.to_owned()))
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

    fn print_training(&mut self, training: &TrainingFacts) -> io::Result<()> {
        let TrainingFacts { folders, tags, frequent_tags, resolutions, started, finished, seconds } = training;
        let took = seconds.map_or(String::new(), |seconds| format!(" (took {})", duration(seconds)));
        let shown = folders.iter().take(self.shown).map(|ImageFolder { name, images, repeats, regularisation }| {
            let kind = if *regularisation { ", for regularisation" } else { "" };
            format!("{name}: {} times {repeats}{kind}", plural(*images, "image"))
        });
        let most: Vec<String> = frequent_tags.iter().map(|(tag, count)| format!("{tag} ({count})")).collect();
        let tags = (*tags > 0).then(|| format!("{}, most often {}", grouped(*tags as u64), most.join(", ")));
        let fields = [
            labelled("Started", started.clone()),
            labelled("Finished", finished.as_ref().map(|finished| format!("{finished}{took}"))),
            labelled("Resolutions", (!resolutions.is_empty()).then(|| resolutions.join(", "))),
            labelled("Folders", shown.chain(and_more(folders.len(), self.shown))),
            labelled("Tags", tags),
        ];
        self.heading("Training data")?;
        self.fields(&fields.concat(), true)
    }

    fn print_other(&mut self) -> io::Result<()> {
        let gguf = self.gguf.as_ref().filter(|_| self.shown < usize::MAX);
        let mut fields = Vec::new();
        for (key, value) in self.model.metadata() {
            let is_shown = gguf.is_some_and(|gguf| gguf.keys.contains(&**key));
            if !key.starts_with(MODELSPEC_PREFIX) && !is_kohya(key) && !is_shown {
                fields.push((if key.is_empty() { "(empty)" } else { key }.to_owned(), metadata_text(value)));
            }
        }
        if fields.is_empty() {
            return Ok(());
        }
        let shown = fields.len().min(self.shown);
        self.heading("Metadata")?;
        self.fields(&fields[..shown], true)?;
        self.more(fields.len(), shown, "key")
    }
}

fn names(dtypes: &[Dtype<'static>]) -> Vec<&'static str> {
    dtypes.iter().map(|dtype| dtype.name()).collect()
}

/// The format, and what the model is besides.
fn format(model: &Model) -> String {
    [model.format(), &model.facts.description]
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join(", ")
}

/// The fields for dtypes or modules. Only the first field has a name.
fn group_rows(name: &str, groups: &[(&str, TensorTotals)], shown: usize) -> Vec<(String, String)> {
    let texts = groups.iter().take(shown).map(|(group, totals)| {
        format!("{} {} in {}", group_name(group), format_size(totals.nbytes), plural(totals.tensors, "tensor"))
    });
    labelled(name, texts.chain(and_more(groups.len(), shown)))
}

fn and_more(all: usize, shown: usize) -> Option<String> {
    (all > shown).then(|| format!("and {} more (--all)", grouped((all - shown) as u64)))
}

/// The digits of a number that is rounded elsewhere. Numbers below 1000 are not rounded.
fn unrounded(number: u64, what: &str) -> String {
    if number < 1000 { String::new() } else { format!(" ({}{what})", grouped(number)) }
}

fn fact_field(fact: &GgufFact) -> (String, String) {
    (fact.label.to_owned(), metadata_text(fact.value))
}

/// Fields of which only the first has a name.
fn labelled(name: &str, texts: impl IntoIterator<Item = String>) -> Vec<(String, String)> {
    texts.into_iter().enumerate().map(|(at, text)| (if at == 0 { name } else { "" }.to_owned(), text)).collect()
}

/// A row of the table of types: tensors, parameters, size, share of the size, and bits per weight.
fn type_row((name, totals): &(&str, TensorTotals), all: &TensorTotals) -> Vec<String> {
    let TensorTotals { tensors, parameters, nbytes } = *totals;
    let bits = totals.bits_per_weight().map_or(String::new(), |bits| format!("{bits:.2}"));
    vec![
        format!("  {}", printable(name)),
        grouped(tensors),
        format_count(parameters),
        format_size(nbytes),
        format!("{:.1} %", totals.percent_of(all)),
        bits,
    ]
}

/// The largest tensor. If several are equally large, the first.
fn largest(model: &Model) -> Option<String> {
    let id = model.listed().iter().max_by_key(|id| (model.tensor(*id).info.nbytes, Reverse(*id)))?;
    let tensor = model.tensor(id).info;
    let TensorInfo { name, dtype, shape, .. } = tensor;
    let (name, dtype) = (cut_text(name, NAME_MAX), cut_text(dtype.name(), NAME_MAX));
    Some(format!("{name}  {dtype} {}  {}", brackets(shape), format_size(tensor.nbytes)))
}

/// A duration, such as `1 h 02 min`.
fn duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (hours, minutes, _) => format!("{} h {minutes:02} min", grouped(hours)),
    }
}

fn to_json(model: &Model, location: &Location, breakdown: &TensorBreakdown) -> Value {
    let ModelIdentity { hash, .. } = ModelIdentity::of(model);
    let files = model.files.iter().map(|ModelFile { name, header, source, .. }| {
        json!({"name": name, "nbytes": source.len(), "data_start": header.data_start, "tensors": header.len()})
    });
    let metadata: Map<String, Value> =
        model.metadata().iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    json!({
        "source": location.to_string(), "format": model.format(), "kind": model.form.kind,
        "summary": overview(&ModelOverview::of(model, breakdown)), "files": files.collect::<Vec<_>>(),
        "totals": totals::to_json(breakdown), "stored_only": names(&model.size_only_dtypes()), "structural_hash": hash,
        "quantization": quantization(model, breakdown),
        "left_out": model.left_out(), "metadata": metadata,
        "training": TrainingFacts::of(model.metadata()),
        "gguf": gguf_of(model).map(|gguf| gguf_to_json(&gguf, breakdown)),
    })
}

/// The first line of the page, and the facts in it. Those that are not known are null.
fn overview(overview: &ModelOverview) -> Value {
    json!({
        "text": overview.text(), "architecture": overview.architecture, "size_label": overview.size_label,
        "lora": overview.is_lora, "dataset": overview.is_dataset, "weights": overview.weights,
        "parameters": overview.parameters, "bits_per_weight": overview.bits_per_weight, "nbytes": overview.nbytes,
    })
}

/// The number of quantized weights; null if there are none. The totals have the schemes.
fn quantization(model: &Model, breakdown: &TensorBreakdown) -> Value {
    let (quantized, notes) = (&model.quantized, model.quantized.notes().collect::<Vec<_>>());
    if quantized.weights().is_empty() && notes.is_empty() {
        return Value::Null;
    }
    let companions: u64 = breakdown.quantized.iter().map(|kind| kind.companions).sum();
    json!({
        "weights": quantized.weights().len(), "companions": companions, "summary": quantized.summary(), "notes": notes,
    })
}

/// The facts about a GGUF model as JSON. Those that the file does not state are left out.
fn gguf_to_json(gguf: &GgufFacts, breakdown: &TensorBreakdown) -> Value {
    let mut object: Map<String, Value> = gguf.general.iter().chain(&gguf.network).map(fact_to_json).collect();
    if let Some(GgufFileType { number, name }) = &gguf.file_type {
        object.insert("file_type".to_owned(), json!({"number": number.parse::<u64>().ok(), "name": name}));
    }
    let types = breakdown.dtypes.iter().map(|(name, totals)| {
        let TensorTotals { tensors, parameters, nbytes } = *totals;
        let share = if breakdown.all.nbytes == 0 { 0.0 } else { nbytes as f64 / breakdown.all.nbytes as f64 };
        json!({
            "type": name, "tensors": tensors, "parameters": parameters, "nbytes": nbytes, "share": share,
            "bits_per_weight": totals.bits_per_weight(),
        })
    });
    object.insert("types".to_owned(), types.collect());
    let mut tokenizer: Map<String, Value> = gguf.tokenizer.facts.iter().map(fact_to_json).collect();
    tokenizer.extend(gguf.tokenizer.tokens.map(|tokens| ("tokens".to_owned(), json!(tokens))));
    for SpecialToken { name, id, text, .. } in &gguf.tokenizer.special {
        tokenizer.insert((*name).to_owned(), json!({"id": id, "token": text}));
    }
    object.insert("tokenizer".to_owned(), tokenizer.into());
    if let Some(template) = gguf.chat_template {
        let template = json!({"nbytes": template.len(), "first_line": gguf.first_line()});
        object.insert("chat_template".to_owned(), template);
    }
    object.into()
}

fn fact_to_json(fact: &GgufFact) -> (String, Value) {
    (fact.name.to_owned(), json!(fact.value))
}

/// A metadata value for a table: a string or a number, or the first elements of an array and their number.
fn metadata_text(value: &format::MetadataValue) -> String {
    const SHOWN: usize = 8;
    if !value.is_array() {
        return value.text().to_owned();
    }
    let total = value.text().lines().count();
    let first: Vec<&str> = value.text().lines().take(SHOWN).collect();
    let more = if total > SHOWN { format!(", ... ({total})") } else { String::new() };
    format!("[{}{more}]", first.join(", "))
}
