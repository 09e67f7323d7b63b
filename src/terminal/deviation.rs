//! The report of `diff --values` on two models.

use super::comparison::NotCompared;
use super::report::{BothSides, ReportLine, ReportPage, ReportPart, ReportTable, count_text, rounded};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt::Write;
use weightfs::compare::Deviation;
use weightfs::model::{Model, TensorId, TensorPartners};
use weightfs::natural;
use weightfs::source::Location;
use weightfs::text::{brackets, printable};
use weightfs::units;
use weightfs::units::{format_size, grouped, plural};

/// Significant digits of an error.
const DIGITS: usize = 3;

/// The columns of the table, in text and in Markdown.
const HEADINGS: (&[&str], &[&str]) = (
    &["TENSOR", "A", "B", "REL RMS", "RMS", "MAX ABS", "COSINE"],
    &["tensor", "a", "b", "relative RMS", "RMS", "max abs", "cosine"],
);

/// The result of comparing a tensor of both models.
pub enum DeviationFinding {
    Same,
    Compared(Deviation),
    NotCompared(String),
}

/// A tensor of both models.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairedTensor {
    pub name: String,
    pub shape: Vec<u64>,
    #[serde(flatten)]
    sides: BothSides<NumberForm>,
}

/// What the headers of two models say, besides the tensors that are in both.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviationOutline {
    #[serde(flatten)]
    sides: BothSides<DeviationSide>,
    added: Vec<DeviationEntry>,
    removed: Vec<DeviationEntry>,
}

/// The differences between the values of two models.
#[derive(Serialize)]
pub struct ValueDeviations {
    pub same: bool,
    #[serde(flatten)]
    sides: BothSides<DeviationSide>,
    values: DeviationValues,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct DeviationSide {
    source: String,
    /// Number of tensors without the companions of quantized weights.
    tensors: usize,
    elements: u64,
    /// Size of the stored tensors, companions included.
    nbytes: u64,
    /// The schemes of the quantized weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    quantization: Option<String>,
    /// Warnings about tensors that look quantized and are compared by their stored numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    not_dequantized: Vec<String>,
}

#[derive(Serialize)]
struct DeviationValues {
    added: Vec<DeviationEntry>,
    removed: Vec<DeviationEntry>,
    equal: usize,
    /// The largest relative error first.
    different: Vec<DifferentValues>,
    /// The errors of all tensors that differ, together.
    total: DeviationTotal,
    not_compared: Vec<NotCompared>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct DeviationEntry {
    name: String,
    shape: Vec<u64>,
    #[serde(flatten)]
    form: NumberForm,
}

/// The storage type of numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct NumberForm {
    /// The stored dtype, or the type of the codes of a quantized weight.
    dtype: String,
    /// Size in bytes, with the companions that the values depend on.
    nbytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    quantization: Option<String>,
}

#[derive(Serialize)]
struct DifferentValues {
    #[serde(flatten)]
    tensor: PairedTensor,
    #[serde(flatten)]
    errors: DeviationErrors,
}

#[derive(Serialize)]
struct DeviationTotal {
    tensors: usize,
    #[serde(flatten)]
    errors: DeviationErrors,
}

/// In JSON, infinite errors are null. The cosine is null if all values of a side are zero.
#[derive(Serialize)]
struct DeviationErrors {
    elements: u64,
    elements_different: u64,
    max_abs: f64,
    rms: f64,
    relative_rms: f64,
    cosine: Option<f64>,
    not_finite: u64,
    not_finite_different: u64,
    nan: BothSides<u64>,
    infinite: BothSides<u64>,
}

impl PairedTensor {
    pub fn new(a: &Model, b: &Model, (id_a, id_b): (TensorId, TensorId)) -> Self {
        let DeviationEntry { name, shape, form } = DeviationEntry::new(a, id_a);
        Self { name, shape, sides: BothSides { a: form, b: NumberForm::of(b, id_b) } }
    }
}

impl DeviationOutline {
    /// The outline of two models, each with its location on the command line.
    pub fn new(
        (location_a, a): (&Location, &Model),
        (location_b, b): (&Location, &Model),
        partners: &TensorPartners,
    ) -> Self {
        let pairs = &partners.pairs;
        let of_a = pairs.iter().map(|pair| pair.0).chain(partners.removed.iter().copied());
        let of_b = pairs.iter().map(|pair| pair.1).chain(partners.added.iter().copied());
        let sides =
            BothSides { a: DeviationSide::new(location_a, a, of_a), b: DeviationSide::new(location_b, b, of_b) };
        let added = partners.added.iter().map(|id| DeviationEntry::new(b, *id)).collect();
        let removed = partners.removed.iter().map(|id| DeviationEntry::new(a, *id)).collect();
        Self { sides, added, removed }
    }

    /// Names both models.
    pub fn sources(&self) -> String {
        format!("{} and {}", self.sides.a.source, self.sides.b.source)
    }
}

impl ValueDeviations {
    /// A report on two models. `found` has the result for each tensor of both.
    pub fn new(outline: DeviationOutline, found: Vec<(PairedTensor, DeviationFinding)>) -> Self {
        let (mut equal, mut total) = (0, Deviation::default());
        let (mut different, mut not_compared): (Vec<DifferentValues>, Vec<NotCompared>) = Default::default();
        for (tensor, finding) in found {
            match finding {
                DeviationFinding::Compared(deviation) if deviation.different > 0 => {
                    total = total.merge(deviation);
                    different.push(DifferentValues { tensor, errors: DeviationErrors::new(&deviation) });
                }
                DeviationFinding::Compared(_) | DeviationFinding::Same => equal += 1,
                DeviationFinding::NotCompared(reason) => not_compared.push(NotCompared { name: tensor.name, reason }),
            }
        }
        let DeviationOutline { sides, added, removed } = outline;
        let same = added.is_empty() && removed.is_empty() && different.is_empty() && not_compared.is_empty();
        different.sort_by(|a, b| {
            b.errors.order(&a.errors).then_with(|| natural::compare_paths(&a.tensor.name, &b.tensor.name))
        });
        let total = DeviationTotal { tensors: different.len(), errors: DeviationErrors::new(&total) };
        let values = DeviationValues { added, removed, equal, different, total, not_compared };
        Self { same, sides, values }
    }

    pub fn page(&self) -> ReportPage<'_> {
        let DeviationValues { added, removed, equal, different, total, not_compared } = &self.values;
        let mut summary = format!("{} different, {} equal", count_text(different.len()), count_text(*equal));
        for (what, number) in
            [("not compared", not_compared.len()), ("only in a", removed.len()), ("only in b", added.len())]
        {
            if number > 0 {
                // Writing to a string cannot fail.
                let _ = write!(summary, ", {} {what}", count_text(number));
            }
        }
        if different.is_empty() && *equal == 0 && not_compared.is_empty() && !added.is_empty() && !removed.is_empty() {
            summary.push_str("; no name is in both models, and names are not translated");
        }
        let mut rows: Vec<Vec<String>> = different.iter().map(DifferentValues::row).collect();
        if !rows.is_empty() {
            rows.push(total.errors.row(format!("total of {}", plural(total.tensors as u64, "tensor")), "", ""));
        }
        let removed = removed.iter().map(|entry| ('-', &*entry.name, entry.text()));
        let added = added.iter().map(|entry| ('+', &*entry.name, entry.text()));
        let not_finite = different.iter().filter_map(DifferentValues::not_finite);
        let lines = removed.chain(added).chain(not_compared.iter().map(NotCompared::line)).chain(not_finite).collect();
        let (table, columns) = (Some(ReportTable { headings: HEADINGS, rows }), &["", "tensor", ""]);
        let part = ReportPart { title: "values", summary, table, columns, is_quoted: false, lines };
        let sides = [&self.sides.a, &self.sides.b].map(|side| (&*side.source, side.size()));
        ReportPage { sides, parts: vec![part] }
    }
}

impl DifferentValues {
    fn row(&self) -> Vec<String> {
        let PairedTensor { name, sides, .. } = &self.tensor;
        self.errors.row(printable(name).into_owned(), &sides.a.dtype, &sides.b.dtype)
    }

    /// The remark about values that are not finite, if there are any.
    fn not_finite(&self) -> Option<ReportLine<'_>> {
        let DeviationErrors { not_finite, not_finite_different, nan, infinite, .. } = &self.errors;
        let counts = [("NaN", nan), ("infinite", infinite)].into_iter().filter(|(_, sides)| sides.a + sides.b > 0);
        let counts =
            counts.map(|(what, BothSides { a, b })| format!("{what}: {} in a, {} in b", grouped(*a), grouped(*b)));
        let counts = counts.collect::<Vec<_>>().join("; ");
        let left_out = format!("{} excluded from the errors", plural(*not_finite, "element"));
        let text = format!("{counts}; {left_out}, {} of them differ", grouped(*not_finite_different));
        (*not_finite > 0).then_some(('!', &*self.tensor.name, text))
    }
}

impl DeviationSide {
    fn new(location: &Location, model: &Model, numbers: impl Iterator<Item = TensorId>) -> Self {
        let (tensors, elements) = numbers.fold((0, 0u64), |(tensors, elements), id| {
            (tensors + 1, elements.saturating_add(model.numbers(id, true).elements()))
        });
        let nbytes = model.logical().iter().map(|id| model.tensor(id).info.nbytes).fold(0, u64::saturating_add);
        let not_dequantized = model.quantized.warnings().iter().map(ToString::to_string).collect();
        let quantization = model.quantized.summary();
        Self { source: location.to_string(), tensors, elements, nbytes, quantization, not_dequantized }
    }

    fn size(&self) -> String {
        let Self { tensors, elements, nbytes, quantization, .. } = self;
        let quantization = quantization.as_ref().map(|summary| format!("; {summary}")).unwrap_or_default();
        let tensors = plural(*tensors as u64, "tensor");
        let parameters = if *elements == 1 { "parameter" } else { "parameters" };
        format!("{tensors}, {} {parameters}, {}{quantization}", units::format_count(*elements), format_size(*nbytes))
    }
}

impl NumberForm {
    fn of(model: &Model, id: TensorId) -> Self {
        let numbers = model.numbers(id, true);
        match numbers.weight {
            Some(weight) => {
                let class = &weight.class;
                Self { dtype: class.dtype.to_owned(), nbytes: weight.bytes, quantization: Some(class.summary()) }
            }
            None => {
                let info = &numbers.tensor.info;
                Self { dtype: info.dtype.name().to_owned(), nbytes: info.nbytes, quantization: None }
            }
        }
    }
}

impl DeviationEntry {
    fn new(model: &Model, id: TensorId) -> Self {
        let numbers = model.numbers(id, true);
        let (name, shape) = (numbers.name().to_owned(), numbers.shape().to_vec());
        Self { name, shape, form: NumberForm::of(model, id) }
    }

    fn text(&self) -> String {
        let NumberForm { dtype, nbytes, .. } = &self.form;
        format!("{} {}, {}", printable(dtype), brackets(&self.shape), format_size(*nbytes))
    }
}

impl DeviationErrors {
    fn new(deviation: &Deviation) -> Self {
        let ([nan_a, nan_b], [infinite_a, infinite_b]) = (deviation.nan, deviation.infinite);
        Self {
            elements: deviation.elements,
            elements_different: deviation.different,
            max_abs: deviation.max_abs,
            rms: deviation.rms(),
            relative_rms: deviation.relative_rms(),
            cosine: deviation.cosine(),
            not_finite: deviation.not_finite,
            not_finite_different: deviation.not_finite_different,
            nan: BothSides { a: nan_a, b: nan_b },
            infinite: BothSides { a: infinite_a, b: infinite_b },
        }
    }

    /// The order of tensors: those whose values are not finite on both sides are the greatest.
    fn order(&self, other: &Self) -> Ordering {
        let order = (self.not_finite_different > 0).cmp(&(other.not_finite_different > 0));
        order.then(self.relative_rms.total_cmp(&other.relative_rms)).then(self.max_abs.total_cmp(&other.max_abs))
    }

    fn row(&self, name: String, dtype_a: &str, dtype_b: &str) -> Vec<String> {
        let [a, b] = [dtype_a, dtype_b].map(|dtype| printable(dtype).into_owned());
        let [relative, rms, max] = [self.relative_rms, self.rms, self.max_abs].map(|error| rounded(error, DIGITS));
        // Cut, so that a cosine below 1 is not shown as 1.
        let cosine = self.cosine.map_or("-".into(), |cosine| format!("{:.6}", (cosine * 1e6).trunc() / 1e6));
        vec![name, a, b, relative, rms, max, cosine]
    }
}
