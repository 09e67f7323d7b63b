//! The report of `diff` on the headers and the stored data of two models.

use super::report::{BothSides, ReportLine, ReportPage, ReportPart, change_summary, count_text, rounded};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use weightfs::compare::{CommonNumber, TensorDifference, obstacle};
use weightfs::format::{DtypeBlock, TensorInfo};
use weightfs::model::{Model, ModelDiff, TensorId};
use weightfs::source::Location;
use weightfs::text::{brackets, printable, quote};
use weightfs::units::{format_size, grouped, plural};

/// Significant digits of a difference.
const DIGITS: usize = 4;

/// The differences between two models.
#[derive(Serialize)]
pub struct ModelComparison<'m> {
    pub same: bool,
    #[serde(flatten)]
    sides: BothSides<ComparedSource>,
    tensors: ChangedParts<Vec<TensorEntry<'m>>, Vec<ChangedTensor<'m>>>,
    metadata: ChangedParts<BTreeMap<&'m str, &'m str>, BTreeMap<&'m str, BothSides<&'m str>>>,
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

/// The differences between the tensors or the metadata.
#[derive(Serialize)]
struct ChangedParts<T, C> {
    added: T,
    removed: T,
    changed: C,
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
    #[serde(flatten)]
    sides: BothSides<ReportLayout<'m>>,
}

/// A tensor of both models whose data was compared.
pub struct ComparedTensor {
    /// The tensor of each model.
    pub ids: (TensorId, TensorId),
    /// The type in which the values were compared, if the dtypes differ.
    pub common: Option<CommonNumber>,
    pub difference: TensorDifference,
}

#[derive(Serialize)]
struct DataChanges<'m> {
    equal: usize,
    /// Number of these that have different dtypes, by the numbers that were compared.
    equal_as: BTreeMap<&'static str, usize>,
    nbytes: u64,
    /// Bytes that both models share on disk, which were not read.
    shared: u64,
    different: Vec<DifferentData<'m>>,
    not_compared: Vec<NotCompared>,
}

/// A tensor of both models whose values cannot be compared.
#[derive(Serialize)]
pub(super) struct NotCompared {
    pub name: String,
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
        let changed = diff.changed.iter().map(|(id_a, id_b)| {
            let (old, new) = (TensorEntry::new(a, *id_a), TensorEntry::new(b, *id_b));
            ChangedTensor { name: old.name, sides: BothSides { a: old.layout, b: new.layout } }
        });
        let tensors = ChangedParts {
            added: diff.added.iter().map(|id| TensorEntry::new(b, *id)).collect(),
            removed: diff.removed.iter().map(|id| TensorEntry::new(a, *id)).collect(),
            changed: changed.collect(),
            alike: diff.alike.len(),
        };
        let mut metadata =
            ChangedParts { added: BTreeMap::new(), removed: BTreeMap::new(), changed: BTreeMap::new(), alike: 0 };
        for change in &diff.metadata {
            match (change.old, change.new) {
                (Some(a), Some(b)) => drop(metadata.changed.insert(change.key, BothSides { a, b })),
                (Some(a), None) => drop(metadata.removed.insert(change.key, a)),
                (None, Some(b)) => drop(metadata.added.insert(change.key, b)),
                (None, None) => {}
            }
        }
        metadata.alike = a.metadata().len() - metadata.removed.len() - metadata.changed.len();
        let data = data.map(|compared| DataChanges::new(a, b, diff, compared));
        let same = diff.is_empty() && data.as_ref().is_none_or(|data| data.different.is_empty());
        let sides = BothSides { a: ComparedSource::new(location_a, a), b: ComparedSource::new(location_b, b) };
        Self { same, sides, tensors, metadata, data }
    }

    pub fn page(&self) -> ReportPage<'_> {
        let Self { tensors, metadata, .. } = self;
        let removed = tensors.removed.iter().map(|tensor| ('-', tensor.name, tensor.layout.text()));
        let added = tensors.added.iter().map(|tensor| ('+', tensor.name, tensor.layout.text()));
        let changed = tensors.changed.iter().map(|ChangedTensor { name, sides: BothSides { a, b } }| {
            ('~', *name, format!("{} -> {}", a.text(), b.text()))
        });
        let tensors = ReportPart {
            title: "tensors",
            summary: change_summary(added.len(), removed.len(), changed.len(), tensors.alike),
            table: None,
            columns: &["", "tensor", "dtype, shape and size"],
            is_quoted: false,
            lines: removed.chain(added).chain(changed).collect(),
        };
        let removed = metadata.removed.iter().map(|(key, value)| ('-', *key, quote(value)));
        let added = metadata.added.iter().map(|(key, value)| ('+', *key, quote(value)));
        let changed = metadata.changed.iter();
        let changed = changed.map(|(key, BothSides { a, b })| ('~', *key, format!("{} -> {}", quote(a), quote(b))));
        let metadata = ReportPart {
            title: "metadata",
            summary: change_summary(added.len(), removed.len(), changed.len(), metadata.alike),
            table: None,
            columns: &["", "key", "value"],
            is_quoted: true,
            lines: removed.chain(added).chain(changed).collect(),
        };
        let sides = [&self.sides.a, &self.sides.b].map(|side| (&*side.source, side.size()));
        let parts = [tensors, metadata].into_iter().chain(self.data.as_ref().map(DataChanges::part)).collect();
        ReportPage { sides, parts }
    }
}

impl ComparedSource {
    fn new(location: &Location, model: &Model) -> Self {
        let sizes = model.logical().iter().map(|id| model.tensor(id).info.nbytes);
        let (tensors, nbytes) = sizes.fold((0, 0u64), |(count, sum), nbytes| (count + 1, sum.saturating_add(nbytes)));
        Self { source: location.to_string(), tensors, nbytes }
    }

    fn size(&self) -> String {
        format!("{}, {}", plural(self.tensors as u64, "tensor"), format_size(self.nbytes))
    }
}

impl<'m> TensorEntry<'m> {
    fn new(model: &'m Model, id: TensorId) -> Self {
        let TensorInfo { name, dtype, shape, .. } = model.tensor(id).info;
        let nbytes = model.tensor(id).info.nbytes;
        Self { name, layout: ReportLayout { dtype: dtype.name(), shape, nbytes } }
    }
}

impl ReportLayout<'_> {
    fn text(&self) -> String {
        format!("{} {}, {}", printable(self.dtype), brackets(self.shape), format_size(self.nbytes))
    }
}

impl<'m> DataChanges<'m> {
    fn new(a: &'m Model, b: &'m Model, diff: &ModelDiff, compared: &[ComparedTensor]) -> Self {
        let (mut equal, mut equal_as, mut different) = (0, BTreeMap::new(), Vec::new());
        for ComparedTensor { ids, common, difference } in compared {
            if !difference.is_empty() {
                different.push(DifferentData::new((a, ids.0), (b, ids.1), *common, difference));
                continue;
            }
            equal += 1;
            if let Some(common) = common {
                *equal_as.entry(common.name()).or_default() += 1;
            }
        }
        let nbytes = compared.iter().map(|compared| a.tensor(compared.ids.0).info.nbytes).sum();
        let shared = compared.iter().map(|compared| compared.difference.shared).sum();
        let not_compared = diff.changed.iter().filter_map(|(id_a, id_b)| {
            let (a, b) = (a.tensor(*id_a).info, b.tensor(*id_b).info);
            let reason = obstacle((a.dtype, a.shape), (b.dtype, b.shape))?;
            Some(NotCompared { name: a.name.to_owned(), reason })
        });
        Self { equal, equal_as, nbytes, shared, different, not_compared: not_compared.collect() }
    }

    fn part(&self) -> ReportPart<'_> {
        let Self { equal, equal_as, nbytes, shared, different, not_compared } = self;
        let mut summary = format!("{} different, {} equal", count_text(different.len()), count_text(*equal));
        // Writing to a string cannot fail.
        if !equal_as.is_empty() {
            let equal_as = equal_as.iter().map(|(name, equal)| format!("{} {}", count_text(*equal), as_numbers(name)));
            let _ = write!(summary, " ({})", equal_as.collect::<Vec<_>>().join(", "));
        }
        if !not_compared.is_empty() {
            let _ = write!(summary, ", {} not compared", count_text(not_compared.len()));
        }
        if *shared > 0 {
            let (shared, nbytes) = (format_size(*shared), format_size(*nbytes));
            let _ = write!(summary, "; {shared} of {nbytes} are shared on disk and were not read");
        }
        let different = different.iter().map(|different| ('~', different.tensor.name, different.text()));
        let lines = different.chain(not_compared.iter().map(NotCompared::line)).collect();
        let columns = &["tensor", "difference"];
        ReportPart { title: "data", summary, table: None, columns, is_quoted: false, lines }
    }
}

impl NotCompared {
    pub fn line(&self) -> ReportLine<'_> {
        ('?', &self.name, format!("not compared: {}", self.reason))
    }
}

/// The common numbers of the comparison: `as float32`.
fn as_numbers(name: &str) -> String {
    if name == CommonNumber::Exact.name() { "exactly".to_owned() } else { format!("as {name}") }
}

impl<'m> DifferentData<'m> {
    fn new(
        (model_a, a): (&'m Model, TensorId),
        (model_b, b): (&'m Model, TensorId),
        common: Option<CommonNumber>,
        difference: &TensorDifference,
    ) -> Self {
        let (tensor, values) = (TensorEntry::new(model_a, a), difference.values);
        let block = model_a.tensor(a).info.dtype.block();
        Self {
            b: common.map(|_| TensorEntry::new(model_b, b).layout),
            compared_as: common.map(CommonNumber::name),
            // A tensor that differs is not empty, so its size gives the number of elements.
            elements: block.map(|block| elements(tensor.layout.nbytes, block)),
            bits_different: difference.bits,
            elements_different: values.map(|values| values.elements),
            not_finite: values.map(|values| values.not_finite),
            max_abs: values.map(|values| values.max_abs),
            max_rel: values.map(|values| values.max_rel),
            tensor,
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
            let (abs, rel) = (rounded(abs, DIGITS), rounded(rel, DIGITS));
            let _ = write!(text, "; largest difference {abs}, relative {rel}");
        }
        if not_finite > 0 {
            let _ = write!(text, "; {} infinite or NaN in either model", grouped(not_finite));
        }
        text
    }
}

/// The number of elements in `nbytes` bytes of whole blocks.
fn elements(nbytes: u64, block: DtypeBlock) -> u64 {
    (u128::from(nbytes) * u128::from(block.elements) / u128::from(block.bytes)) as u64
}
