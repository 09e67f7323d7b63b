//! The report of `diff --values` on two models, as text, Markdown and JSON.

use super::comparison::{NotCompared, code, comparison_table, count_text, line, rounded, signed};
use super::output::{self, StandardOutput, squeeze};
use serde::Serialize;
use std::fmt::Write;
use unicode_width::UnicodeWidthStr;
use weightfs::compare::Deviation;
use weightfs::model::{Model, TensorId, TensorPartners};
use weightfs::natural;
use weightfs::source::Location;
use weightfs::text::{brackets, printable};
use weightfs::units;
use weightfs::units::{format_size, grouped, plural};

/// Significant digits of an error.
const DIGITS: usize = 3;

/// The columns of the table.
const HEADINGS: [&str; 7] = ["TENSOR", "A", "B", "REL RMS", "RMS", "MAX ABS", "COSINE"];

/// The result of comparing a tensor of both models.
pub enum DeviationFinding {
    /// All values are the same.
    Same,
    /// The distance of the values.
    Compared(Deviation),
    /// Why the values cannot be compared.
    NotCompared(String),
}

/// The differences between the values of two models.
#[derive(Serialize)]
pub struct ValueDeviations<'m> {
    same: bool,
    a: DeviationSide,
    b: DeviationSide,
    values: DeviationValues<'m>,
}

#[derive(Serialize)]
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_dequantized: Vec<String>,
}

#[derive(Serialize)]
struct DeviationValues<'m> {
    added: Vec<DeviationEntry<'m>>,
    removed: Vec<DeviationEntry<'m>>,
    equal: usize,
    /// The largest relative error first.
    different: Vec<DifferentValues<'m>>,
    /// The errors of all tensors that differ, together.
    total: DeviationTotal,
    not_compared: Vec<NotCompared<'m>>,
}

#[derive(Serialize)]
struct DeviationEntry<'m> {
    name: &'m str,
    shape: &'m [u64],
    #[serde(flatten)]
    form: NumberForm<'m>,
}

/// The storage type of numbers.
#[derive(Serialize)]
struct NumberForm<'m> {
    /// The stored dtype, or the type of the codes of a quantized weight.
    dtype: &'m str,
    /// Size in bytes, with the companions that the values depend on.
    nbytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    quantization: Option<String>,
}

#[derive(Serialize)]
struct DifferentValues<'m> {
    name: &'m str,
    shape: &'m [u64],
    a: NumberForm<'m>,
    b: NumberForm<'m>,
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
    nan: DeviationSides,
    infinite: DeviationSides,
}

#[derive(Serialize)]
struct DeviationSides {
    a: u64,
    b: u64,
}

impl<'m> ValueDeviations<'m> {
    /// A report on two models, each with its location on the command line. `found` has the result for each pair of
    /// `partners`.
    pub fn new(
        (location_a, a): (&Location, &'m Model),
        (location_b, b): (&Location, &'m Model),
        partners: &TensorPartners,
        found: Vec<DeviationFinding>,
    ) -> Self {
        let entry = |model: &'m Model, id: &TensorId| {
            let numbers = model.numbers(*id, true);
            DeviationEntry { name: numbers.name(), shape: numbers.shape(), form: NumberForm::of(model, *id) }
        };
        let (mut equal, mut total) = (0, Deviation::default());
        let (mut different, mut not_compared) = (Vec::new(), Vec::new());
        for ((id_a, id_b), finding) in partners.pairs.iter().zip(found) {
            let DeviationEntry { name, shape, form } = entry(a, id_a);
            match finding {
                DeviationFinding::Compared(deviation) if deviation.different > 0 => {
                    total = total.merge(deviation);
                    let errors = DeviationErrors::new(&deviation);
                    different.push(DifferentValues { name, shape, a: form, b: NumberForm::of(b, *id_b), errors });
                }
                DeviationFinding::Compared(_) | DeviationFinding::Same => equal += 1,
                DeviationFinding::NotCompared(reason) => not_compared.push(NotCompared { name, reason }),
            }
        }
        let added: Vec<_> = partners.added.iter().map(|id| entry(b, id)).collect();
        let removed: Vec<_> = partners.removed.iter().map(|id| entry(a, id)).collect();
        let same = added.is_empty() && removed.is_empty() && different.is_empty() && not_compared.is_empty();
        different.sort_by(|a, b| {
            let errors = |different: &DifferentValues| {
                (different.errors.not_finite_different > 0, different.errors.relative_rms, different.errors.max_abs)
            };
            let (of_a, of_b) = (errors(a), errors(b));
            let order = of_b.0.cmp(&of_a.0).then(of_b.1.total_cmp(&of_a.1)).then(of_b.2.total_cmp(&of_a.2));
            order.then_with(|| natural::compare_paths(a.name, b.name))
        });
        let total = DeviationTotal { tensors: different.len(), errors: DeviationErrors::new(&total) };
        let values = DeviationValues { added, removed, equal, different, total, not_compared };
        let pairs = &partners.pairs;
        let of_a = pairs.iter().map(|pair| pair.0).chain(partners.removed.iter().copied());
        let of_b = pairs.iter().map(|pair| pair.1).chain(partners.added.iter().copied());
        Self { same, a: DeviationSide::new(location_a, a, of_a), b: DeviationSide::new(location_b, b, of_b), values }
    }

    /// Whether both models have the same numbers.
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
        line(&mut text, &format!("\nvalues: {}", self.summary()));
        let DeviationValues { different, removed, added, not_compared, .. } = &self.values;
        if !different.is_empty() {
            let mut rows: Vec<Vec<String>> = self.rows().collect();
            if out.is_terminal {
                let widest = |at: usize| rows.iter().map(|row| row[at].width()).chain([HEADINGS[at].len()]).max();
                let others: usize = (1..HEADINGS.len()).filter_map(widest).map(|width| width + 2).sum();
                rows.iter_mut()
                    .for_each(|row| row[0] = squeeze(&row[0], out.width.saturating_sub(others)).into_owned());
            }
            text.push('\n');
            output::lines(out, &HEADINGS, &rows).iter().for_each(|row| line(&mut text, row));
        }
        if !(removed.is_empty() && added.is_empty() && not_compared.is_empty() && self.not_finite().next().is_none()) {
            text.push('\n');
        }
        for (sign, name, what) in self.others() {
            signed(&mut text, out, sign, &printable(name), &what);
        }
        text
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        let (from, to) = (code(&self.a.source), code(&self.b.source));
        line(&mut text, &format!("# {from} and {to}\n\n| | a | b |\n|---|---|---|"));
        line(&mut text, &format!("| source | {from} | {to} |\n| size | {} | {} |", self.a.size(), self.b.size()));
        line(&mut text, &format!("\n## Values\n\n{}", self.summary()));
        let rows: Vec<String> = self
            .rows()
            .map(|mut row| {
                row[0] = if row[1].is_empty() { row[0].clone() } else { code(&row[0]) };
                format!("| {} |", row.join(" | "))
            })
            .collect();
        if !self.values.different.is_empty() {
            comparison_table(
                &mut text,
                "| tensor | a | b | relative RMS | RMS | max abs | cosine |\n|---|---|---|---|---|---|---|",
                &rows,
            );
        }
        let other = |(sign, name, what): (char, &str, String)| {
            let (sign, what) = match sign {
                '+' => ("added", code(&what)),
                '-' => ("removed", code(&what)),
                '!' => ("not finite", what),
                _ => ("not compared", what),
            };
            format!("| {sign} | {} | {what} |", code(name))
        };
        comparison_table(&mut text, "| | tensor | |\n|---|---|---|", &self.others().map(other).collect::<Vec<_>>());
        text
    }

    fn summary(&self) -> String {
        let DeviationValues { added, removed, equal, different, not_compared, .. } = &self.values;
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
        summary
    }

    /// The rows of the table: all tensors that differ, and the total.
    fn rows(&self) -> impl Iterator<Item = Vec<String>> {
        let DeviationValues { different, total, .. } = &self.values;
        let row = |name: String, a: &str, b: &str, errors: &DeviationErrors| {
            let number = |number| rounded(number, DIGITS);
            // Cut, so that a cosine below 1 is not shown as 1.
            let cosine = errors.cosine.map_or("-".into(), |cosine| format!("{:.6}", (cosine * 1e6).trunc() / 1e6));
            let dtypes = [a, b].map(|dtype| printable(dtype).into_owned());
            let [a, b] = dtypes;
            vec![name, a, b, number(errors.relative_rms), number(errors.rms), number(errors.max_abs), cosine]
        };
        let of_tensor = move |different: &DifferentValues| {
            row(printable(different.name).into_owned(), different.a.dtype, different.b.dtype, &different.errors)
        };
        let all = row(format!("total of {}", plural(total.tensors as u64, "tensor")), "", "", &total.errors);
        different.iter().map(of_tensor).chain([all])
    }

    /// The tensors that are in no row or need a remark: a sign, the name, and the remark.
    fn others(&self) -> impl Iterator<Item = (char, &str, String)> {
        let DeviationValues { added, removed, not_compared, .. } = &self.values;
        let removed = removed.iter().map(|entry| ('-', entry.name, entry.text()));
        let added = added.iter().map(|entry| ('+', entry.name, entry.text()));
        let not_compared = not_compared.iter().map(|other| ('?', other.name, other.text()));
        let not_finite = self.not_finite().map(|(name, what)| ('!', name, what));
        removed.chain(added).chain(not_compared).chain(not_finite)
    }

    /// The tensors that differ and have values that are not finite.
    fn not_finite(&self) -> impl Iterator<Item = (&str, String)> {
        let with = self.values.different.iter().filter(|different| different.errors.not_finite > 0);
        with.map(|different| {
            let DeviationErrors { not_finite, not_finite_different, nan, infinite, .. } = &different.errors;
            let counts = |what: &str, sides: &DeviationSides| {
                let is_any = sides.a + sides.b > 0;
                is_any.then(|| format!("{what}: {} in a, {} in b", grouped(sides.a), grouped(sides.b)))
            };
            let counts: Vec<String> =
                [counts("NaN", nan), counts("infinite", infinite)].into_iter().flatten().collect();
            let of_them = format!("{} left out of the errors", plural(*not_finite, "element"));
            (
                different.name,
                format!("{}; {of_them}, {} of them differ", counts.join("; "), grouped(*not_finite_different)),
            )
        })
    }
}

impl DeviationSide {
    fn new(location: &Location, model: &Model, numbers: impl Iterator<Item = TensorId>) -> Self {
        let (tensors, elements) = numbers.fold((0, 0u64), |(tensors, elements), id| {
            (tensors + 1, elements.saturating_add(model.numbers(id, true).elements()))
        });
        let nbytes = model.logical().iter().map(|id| model.tensor(id).info.nbytes()).fold(0, u64::saturating_add);
        let not_dequantized = model.quantized().warnings().iter().map(ToString::to_string).collect();
        let quantization = model.quantized().summary();
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

impl<'m> NumberForm<'m> {
    fn of(model: &'m Model, id: TensorId) -> Self {
        let numbers = model.numbers(id, true);
        match numbers.weight {
            Some(weight) => {
                let class = &weight.class;
                Self { dtype: class.dtype, nbytes: weight.bytes, quantization: Some(class.summary()) }
            }
            None => {
                let info = &numbers.tensor.info;
                Self { dtype: info.dtype.name(), nbytes: info.nbytes(), quantization: None }
            }
        }
    }
}

impl DeviationEntry<'_> {
    fn text(&self) -> String {
        let NumberForm { dtype, nbytes, .. } = self.form;
        format!("{} {}, {}", printable(dtype), brackets(self.shape), format_size(nbytes))
    }
}

impl DeviationErrors {
    fn new(deviation: &Deviation) -> Self {
        let sides = |[a, b]: [u64; 2]| DeviationSides { a, b };
        Self {
            elements: deviation.elements,
            elements_different: deviation.different,
            max_abs: deviation.max_abs,
            rms: deviation.rms(),
            relative_rms: deviation.relative_rms(),
            cosine: deviation.cosine(),
            not_finite: deviation.not_finite,
            not_finite_different: deviation.not_finite_different,
            nan: sides(deviation.nan),
            infinite: sides(deviation.infinite),
        }
    }
}
