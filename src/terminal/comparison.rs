//! The differences between two models as text, Markdown and JSON.

use super::output::StandardOutput;
use anstyle::{AnsiColor, Style};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use unicode_width::UnicodeWidthStr;
use weightfs::compare::{CommonNumber, TensorDifference, obstacle};
use weightfs::format::{DtypeBlock, TensorInfo};
use weightfs::model::{Model, ModelDiff, TensorId};
use weightfs::source::Location;
use weightfs::text::{brackets, printable, quote};
use weightfs::units::{format_size, grouped, plural};

/// The differences between two models.
#[derive(Serialize)]
pub struct ModelComparison<'m> {
    same: bool,
    a: ComparedSource,
    b: ComparedSource,
    tensors: TensorChanges<'m>,
    metadata: MetadataChanges<'m>,
    /// `None` if data was not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<DataChanges<'m>>,
}

#[derive(Serialize)]
struct ComparedSource {
    source: String,
    tensors: usize,
    nbytes: u64,
}

#[derive(Serialize)]
struct TensorChanges<'m> {
    added: Vec<TensorEntry<'m>>,
    removed: Vec<TensorEntry<'m>>,
    changed: Vec<ChangedTensor<'m>>,
    alike: usize,
}

#[derive(Serialize)]
struct TensorEntry<'m> {
    name: &'m str,
    #[serde(flatten)]
    layout: ReportLayout<'m>,
}

#[derive(Serialize)]
struct ReportLayout<'m> {
    dtype: &'m str,
    shape: &'m [u64],
    nbytes: u64,
}

#[derive(Serialize)]
struct ChangedTensor<'m> {
    name: &'m str,
    a: ReportLayout<'m>,
    b: ReportLayout<'m>,
}

#[derive(Serialize)]
struct MetadataChanges<'m> {
    added: BTreeMap<&'m str, &'m str>,
    removed: BTreeMap<&'m str, &'m str>,
    changed: BTreeMap<&'m str, BothSides<'m>>,
    alike: usize,
}

#[derive(Serialize)]
struct BothSides<'m> {
    a: &'m str,
    b: &'m str,
}

/// A tensor of both models whose data was compared.
pub struct ComparedTensor {
    /// The tensor of each model.
    pub ids: (TensorId, TensorId),
    /// The type in which the values were compared, if the dtypes differ.
    pub common: Option<CommonNumber>,
    /// The differences.
    pub difference: TensorDifference,
}

#[derive(Serialize)]
struct DataChanges<'m> {
    equal: usize,
    /// How many of these have different dtypes, by the numbers that were compared.
    equal_as: BTreeMap<&'static str, usize>,
    nbytes: u64,
    /// Bytes that both models share on disk, which were not read.
    shared: u64,
    different: Vec<DifferentData<'m>>,
    not_compared: Vec<NotCompared<'m>>,
}

/// A tensor of both models whose values cannot be compared.
#[derive(Serialize)]
pub(super) struct NotCompared<'m> {
    pub name: &'m str,
    pub reason: String,
}

/// A tensor whose data differs. Numbers are null in JSON if the dtype is unknown or there is another one in the other
/// model, and if they are infinite.
#[derive(Serialize)]
struct DifferentData<'m> {
    #[serde(flatten)]
    tensor: TensorEntry<'m>,
    /// The tensor in the other model, and how the values were compared, if the dtypes differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    b: Option<ReportLayout<'m>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compared_as: Option<&'static str>,
    elements: Option<u64>,
    bits_different: Option<u64>,
    elements_different: Option<u64>,
    not_finite: Option<u64>,
    max_abs: Option<f64>,
    max_rel: Option<f64>,
}

impl<'m> ModelComparison<'m> {
    /// Compares two models, each with its location on the command line. `data` has the tensors whose data was compared.
    pub fn new(
        (location_a, a): (&Location, &'m Model),
        (location_b, b): (&Location, &'m Model),
        diff: &ModelDiff<'m>,
        data: Option<&[ComparedTensor]>,
    ) -> Self {
        let tensor = |model: &'m Model, id: &TensorId| TensorEntry::new(&model.tensor(*id).info);
        let changed = |(old, new): &(TensorId, TensorId)| {
            let (old, new) = (tensor(a, old), tensor(b, new));
            ChangedTensor { name: old.name, a: old.layout, b: new.layout }
        };
        let tensors = TensorChanges {
            added: diff.added.iter().map(|id| tensor(b, id)).collect(),
            removed: diff.removed.iter().map(|id| tensor(a, id)).collect(),
            changed: diff.changed.iter().map(changed).collect(),
            alike: diff.alike.len(),
        };
        let data = data.map(|compared| DataChanges::new(a, b, diff, compared));
        let metadata = MetadataChanges::new(a, diff);
        let same = diff.is_empty() && data.as_ref().is_none_or(|data| data.different.is_empty());
        Self {
            same,
            a: ComparedSource::new(location_a, a),
            b: ComparedSource::new(location_b, b),
            tensors,
            metadata,
            data,
        }
    }

    /// Whether nothing differs. Data counts only if it was compared.
    pub fn is_same(&self) -> bool {
        self.same
    }

    /// As text for a terminal.
    pub fn text(&self, out: &StandardOutput) -> String {
        let mut text = String::new();
        let sides = [&self.a, &self.b].map(|side| (printable(&side.source), side.size()));
        let width = sides.iter().map(|(source, _)| source.width()).max().unwrap_or(0);
        for (source, size) in &sides {
            line(&mut text, &format!("{source}{:pad$}  {size}", "", pad = width - source.width()));
        }
        line(&mut text, &format!("\ntensors: {}", self.tensors.summary()));
        for (sign, name, what) in self.tensors.rows() {
            signed(&mut text, out, sign, &printable(name), &what);
        }
        line(&mut text, &format!("\nmetadata: {}", self.metadata.summary()));
        for (sign, key, what) in self.metadata.rows() {
            signed(&mut text, out, sign, &quote(key), &what);
        }
        if let Some(data) = &self.data {
            line(&mut text, &format!("\ndata: {}", data.summary()));
            for different in &data.different {
                signed(&mut text, out, '~', &printable(different.tensor.name), &different.text());
            }
            for other in &data.not_compared {
                signed(&mut text, out, '?', &printable(other.name), &other.text());
            }
        }
        text
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        let (from, to) = (code(&self.a.source), code(&self.b.source));
        line(&mut text, &format!("# {from} and {to}\n\n| | a | b |\n|---|---|---|"));
        line(&mut text, &format!("| source | {from} | {to} |\n| size | {} | {} |", self.a.size(), self.b.size()));
        let row = |sign: char, name: &str, what: &str| {
            let sign = match sign {
                '+' => "added",
                '-' => "removed",
                _ => "changed",
            };
            format!("| {sign} | {} | {} |", code(name), code(what))
        };
        line(&mut text, &format!("\n## Tensors\n\n{}", self.tensors.summary()));
        let rows: Vec<String> = self.tensors.rows().map(|(sign, name, what)| row(sign, name, &what)).collect();
        comparison_table(&mut text, "| | tensor | dtype, shape and size |\n|---|---|---|", &rows);
        line(&mut text, &format!("\n## Metadata\n\n{}", self.metadata.summary()));
        let rows: Vec<String> = self.metadata.rows().map(|(sign, key, what)| row(sign, key, &what)).collect();
        comparison_table(&mut text, "| | key | value |\n|---|---|---|", &rows);
        if let Some(data) = &self.data {
            line(&mut text, &format!("\n## Data\n\n{}", data.summary()));
            let row = |different: &DifferentData| format!("| {} | {} |", code(different.tensor.name), different.text());
            let other = |other: &NotCompared| format!("| {} | {} |", code(other.name), other.text());
            let rows: Vec<String> = data.different.iter().map(row).chain(data.not_compared.iter().map(other)).collect();
            comparison_table(&mut text, "| tensor | difference |\n|---|---|", &rows);
        }
        text
    }
}

impl ComparedSource {
    fn new(location: &Location, model: &Model) -> Self {
        let (tensors, nbytes) = model
            .logical()
            .iter()
            .fold((0, 0u64), |(count, nbytes), id| (count + 1, nbytes.saturating_add(model.tensor(id).info.nbytes())));
        Self { source: location.to_string(), tensors, nbytes }
    }

    fn size(&self) -> String {
        format!("{}, {}", plural(self.tensors as u64, "tensor"), format_size(self.nbytes))
    }
}

impl<'m> TensorEntry<'m> {
    fn new(tensor: &TensorInfo<'m>) -> Self {
        let layout = ReportLayout { dtype: tensor.dtype.name(), shape: tensor.shape, nbytes: tensor.nbytes() };
        Self { name: tensor.name, layout }
    }
}

impl ReportLayout<'_> {
    fn text(&self) -> String {
        format!("{} {}, {}", printable(self.dtype), brackets(self.shape), format_size(self.nbytes))
    }
}

/// A line of a list: a sign, a name or key, and a description.
type Row<'r> = (char, &'r str, String);

impl TensorChanges<'_> {
    fn summary(&self) -> String {
        summary(self.added.len(), self.removed.len(), self.changed.len(), self.alike)
    }

    fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let one = |sign| move |tensor: &TensorEntry<'_>| (sign, tensor.layout.text());
        let removed = self.removed.iter().map(move |tensor| (tensor.name, one('-')(tensor)));
        let added = self.added.iter().map(move |tensor| (tensor.name, one('+')(tensor)));
        let changed = self.changed.iter();
        let changed = changed.map(|tensor| (tensor.name, ('~', format!("{} -> {}", tensor.a.text(), tensor.b.text()))));
        removed.chain(added).chain(changed).map(|(name, (sign, what))| (sign, name, what))
    }
}

impl<'m> MetadataChanges<'m> {
    fn new(old: &Model, diff: &ModelDiff<'m>) -> Self {
        let (added, removed, changed) = Default::default();
        let mut metadata = Self { added, removed, changed, alike: 0 };
        for change in &diff.metadata {
            match (change.old, change.new) {
                (Some(a), Some(b)) => drop(metadata.changed.insert(change.key, BothSides { a, b })),
                (Some(a), None) => drop(metadata.removed.insert(change.key, a)),
                (None, Some(b)) => drop(metadata.added.insert(change.key, b)),
                (None, None) => {}
            }
        }
        metadata.alike = old.metadata().len() - metadata.removed.len() - metadata.changed.len();
        metadata
    }

    fn summary(&self) -> String {
        summary(self.added.len(), self.removed.len(), self.changed.len(), self.alike)
    }

    fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let removed = self.removed.iter().map(|(key, value)| ('-', *key, quote(value)));
        let added = self.added.iter().map(|(key, value)| ('+', *key, quote(value)));
        let both = |BothSides { a, b }: &BothSides| format!("{} -> {}", quote(a), quote(b));
        removed.chain(added).chain(self.changed.iter().map(move |(key, values)| ('~', *key, both(values))))
    }
}

impl<'m> DataChanges<'m> {
    fn new(a: &'m Model, b: &'m Model, diff: &ModelDiff, compared: &[ComparedTensor]) -> Self {
        let (mut equal, mut equal_as, mut different) = (0, BTreeMap::new(), Vec::new());
        for ComparedTensor { ids, common, difference } in compared {
            if !difference.is_empty() {
                different.push(DifferentData::new(&a.tensor(ids.0).info, &b.tensor(ids.1).info, *common, difference));
                continue;
            }
            equal += 1;
            if let Some(common) = common {
                *equal_as.entry(common.name()).or_default() += 1;
            }
        }
        let nbytes = compared.iter().map(|compared| a.tensor(compared.ids.0).info.nbytes()).sum();
        let shared = compared.iter().map(|compared| compared.difference.shared).sum();
        let not_compared = diff.changed.iter().filter_map(|(id_a, id_b)| {
            let (a, b) = (a.tensor(*id_a).info, b.tensor(*id_b).info);
            Some(NotCompared { name: a.name, reason: obstacle((a.dtype, a.shape), (b.dtype, b.shape))? })
        });
        Self { equal, equal_as, nbytes, shared, different, not_compared: not_compared.collect() }
    }

    fn summary(&self) -> String {
        let Self { equal, equal_as, nbytes, shared, different, not_compared } = self;
        let mut summary = format!("{} different, {} equal", count_text(different.len()), count_text(*equal));
        let converted: Vec<String> =
            equal_as.iter().map(|(numbers, equal)| format!("{} {}", count_text(*equal), as_numbers(numbers))).collect();
        // Writing to a string cannot fail.
        if !converted.is_empty() {
            let _ = write!(summary, " ({})", converted.join(", "));
        }
        if !not_compared.is_empty() {
            let _ = write!(summary, ", {} not compared", count_text(not_compared.len()));
        }
        if *shared > 0 {
            let (shared, nbytes) = (format_size(*shared), format_size(*nbytes));
            let _ = write!(summary, "; {shared} of {nbytes} are shared on disk and were not read");
        }
        summary
    }
}

impl NotCompared<'_> {
    pub fn text(&self) -> String {
        format!("not compared: {}", self.reason)
    }
}

/// How values were compared: `as float32`.
fn as_numbers(name: &str) -> String {
    if name == CommonNumber::Exact.name() { "exactly".to_owned() } else { format!("as {name}") }
}

impl<'m> DifferentData<'m> {
    fn new(
        a: &TensorInfo<'m>,
        b: &TensorInfo<'m>,
        common: Option<CommonNumber>,
        difference: &TensorDifference,
    ) -> Self {
        let values = difference.values;
        Self {
            tensor: TensorEntry::new(a),
            b: common.map(|_| TensorEntry::new(b).layout),
            compared_as: common.map(CommonNumber::name),
            // A tensor that differs is not empty, so its size gives the number of elements.
            elements: a.dtype.block().map(|block| elements(a.nbytes(), block)),
            bits_different: difference.bits,
            elements_different: values.map(|values| values.elements),
            not_finite: values.map(|values| values.not_finite),
            max_abs: values.map(|values| values.max_abs),
            max_rel: values.map(|values| values.max_rel),
        }
    }

    fn text(&self) -> String {
        let bits = self.bits_different.map(|bits| plural(bits, "bit"));
        let (Some(all), Some(elements), Some(not_finite)) = (self.elements, self.elements_different, self.not_finite)
        else {
            return bits.unwrap_or_default();
        };
        let mut text = match (&self.b, self.compared_as) {
            (Some(b), Some(name)) => format!("{} and {}, {}: ", self.tensor.layout.dtype, b.dtype, as_numbers(name)),
            _ => String::new(),
        };
        // Writing to a string cannot fail.
        let _ = write!(text, "{} of {}", grouped(elements), plural(all, "element"));
        if let Some(bits) = bits {
            let _ = write!(text, ", {bits}");
        }
        if let (Some(abs), Some(rel), true) = (self.max_abs, self.max_rel, elements > not_finite) {
            let _ = write!(text, "; largest difference {}, relative {}", short_text(abs), short_text(rel));
        }
        if not_finite > 0 {
            let _ = write!(text, "; {} infinite or NaN in either model", grouped(not_finite));
        }
        text
    }
}

fn summary(added: usize, removed: usize, changed: usize, alike: usize) -> String {
    let [added, removed, changed, alike] = [added, removed, changed, alike].map(count_text);
    format!("{added} added, {removed} removed, {changed} changed, {alike} alike")
}

/// A number with its digits in groups of three.
pub(super) fn count_text(count: usize) -> String {
    grouped(count as u64)
}

/// The differences between two directories of models: as text if `screen` is given, otherwise as Markdown. `texts`
/// describe the models that differ.
pub fn catalogs(
    removed: &[String],
    added: &[String],
    alike: usize,
    texts: &[String],
    screen: Option<&StandardOutput>,
) -> String {
    let summary = summary(added.len(), removed.len(), texts.len(), alike);
    let mut text = String::new();
    let names = removed.iter().map(|name| ('-', name)).chain(added.iter().map(|name| ('+', name)));
    if let Some(out) = screen {
        line(&mut text, &format!("models: {summary}"));
        names.for_each(|(sign, name)| signed(&mut text, out, sign, &printable(name), ""));
    } else {
        line(&mut text, &format!("# Models\n\n{summary}"));
        let word = |sign| if sign == '-' { "removed" } else { "added" };
        let rows: Vec<String> = names.map(|(sign, name)| format!("| {} | {} |", word(sign), code(name))).collect();
        comparison_table(&mut text, "| | model |\n|---|---|", &rows);
    }
    for model in texts {
        line(&mut text, &format!("\n{}", model.trim_end()));
    }
    text
}

/// A number with at most four significant digits, and with an exponent if it is below 1e-4 or at least 1e7.
fn short_text(number: f64) -> String {
    rounded(number, 4)
}

/// The same with at most `digits` significant digits.
pub(super) fn rounded(number: f64, digits: usize) -> String {
    let rounded = format!("{number:.*e}", digits - 1);
    match rounded.parse::<f64>() {
        Ok(value) if value == 0.0 || (1e-4..1e7).contains(&value.abs()) => value.to_string(),
        _ => rounded,
    }
}

pub(super) fn line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// Appends a line that begins with a coloured sign.
pub(super) fn signed(text: &mut String, out: &StandardOutput, sign: char, name: &str, what: &str) {
    let style: Style = match sign {
        '+' => AnsiColor::Green,
        '-' => AnsiColor::Red,
        _ => AnsiColor::Yellow,
    }
    .on_default();
    line(text, format!("{}  {what}", out.styled(style, format!("{sign} {name}"))).trim_end());
}

/// Appends a table, unless it has no rows.
pub(super) fn comparison_table(text: &mut String, head: &str, rows: &[String]) {
    if !rows.is_empty() {
        line(text, &format!("\n{head}\n{}", rows.join("\n")));
    }
}

/// `text` as inline code in a cell of a Markdown table.
pub(super) fn code(text: &str) -> String {
    let text = printable(text).replace('|', "\\|");
    let runs = text.split(|char| char != '`').map(str::len);
    let fence = "`".repeat(runs.max().unwrap_or(0) + 1);
    // Markdown removes one space from each end of inline code.
    let pad = if text.is_empty() || text.starts_with(['`', ' ']) || text.ends_with(['`', ' ']) { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

/// The number of elements in `nbytes` bytes of whole blocks.
fn elements(nbytes: u64, block: DtypeBlock) -> u64 {
    (u128::from(nbytes) * u128::from(block.elements) / u128::from(block.bytes)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        let table = [
            (0.0, "0"),
            (1.0, "1"),
            (0.123456, "0.1235"),
            (1234.56, "1235"),
            (0.00001234567, "1.235e-5"),
            (9.87654e30, "9.877e30"),
            (2.0, "2"),
            (f64::INFINITY, "inf"),
        ];
        for (number, expected) in table {
            assert_eq!(short_text(number), expected);
        }
    }

    #[test]
    fn names_are_escaped_in_markdown_cells() {
        let table = [
            ("model.embed_tokens", "`model.embed_tokens`"),
            ("a|b", "`a\\|b`"),
            ("a`b``c", "```a`b``c```"),
            ("`", "`` ` ``"),
            ("", "`  `"),
            ("new\nline", "`new\\nline`"),
        ];
        for (name, expected) in table {
            assert_eq!(code(name), expected);
        }
    }
}
