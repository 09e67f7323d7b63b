//! `weightfs show`: the shape, the statistics and a corner of the values of a tensor, as NumPy prints arrays.

use crate::cli::ShowArgs;
use crate::cli::slice::{AxisSlice, parse_slice};
use crate::opening::{SourceFiles, most_similar};
use crate::terminal::array::{ArrayNode, ShownElement, format_array, format_statistic};
use crate::terminal::output::{StandardOutput, to_stdout};
use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use weightfs::content::{Content, ReadRequest};
use weightfs::fs::ROOT;
use weightfs::model::TensorNumbers;
use weightfs::name::encode_name;
use weightfs::text::{printable, quote};
use weightfs::view::ShownViews;

/// As in NumPy: of more elements than this, only the first and last ones of each axis are shown.
const ELEMENTS_MAX: u64 = 1000;
const EDGE: u64 = 3;

/// The names of statistics in the files of `stats/`, and their labels.
const STATISTICS: [(&str, &str); 8] = [
    ("min", "min"),
    ("max", "max"),
    ("mean", "mean"),
    ("std", "std"),
    ("zeros", "zeros"),
    ("nan", "NaN"),
    ("pos_inf", "+Inf"),
    ("neg_inf", "-Inf"),
];

pub fn run_show(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let files = SourceFiles::open(&args.input, args.numbers.shown(ShownViews::default()))?;
    let model = files.superblock.model(ROOT, &ReadRequest::WAIT)?;
    let Some(model) = model else { bail!("{}: several models; name one of them", files.source) };
    let id = model.find(&args.tensor).with_context(|| {
        let names = model.logical().iter().map(|id| model.name(id));
        let hint =
            most_similar(&args.tensor, names, 0.85).map_or_else(String::new, |name| format!("; did you mean {name}?"));
        format!("{}: no tensor {}{hint}", files.source, quote(&args.tensor))
    })?;
    let numbers = model.numbers(id, !args.numbers.stored);
    let slices = parse_slice(args.slice.as_deref().unwrap_or_default(), numbers.shape());
    let slices = slices.map_err(|reason| anyhow!("{}: {}: {reason}", files.source, quote(&args.tensor)))?;
    let statistics = if args.no_statistics { Value::Null } else { statistics(&files, &args.tensor)? };
    let values = ShownValues::open(&files, &numbers)?;
    let selected: u64 = slices.iter().map(|slice| slice.count).fold(1, u64::saturating_mul);
    let corner = values.corner(&files, &slices, selected > ELEMENTS_MAX)?;
    let shape: Vec<u64> = slices.iter().filter(|slice| slice.keeps_axis).map(|slice| slice.count).collect();
    to_stdout(|out| {
        if args.json {
            out.print_json(&json!({
                "name": args.tensor, "dtype": numbers.dtype().name(), "shape": numbers.shape(),
                "selected_shape": shape, "is_complete": selected <= ELEMENTS_MAX,
                "values": corner.to_json(), "statistics": statistics,
            }))?;
        } else {
            print_tensor(&numbers, &shape, &statistics, &corner, out)?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn print_tensor(
    numbers: &TensorNumbers,
    selected: &[u64],
    statistics: &Value,
    corner: &ArrayNode,
    out: &mut StandardOutput,
) -> anyhow::Result<()> {
    let scheme = numbers.weight.map_or_else(String::new, |weight| format!(", {}", weight.class.summary()));
    writeln!(out, "{}: {} {:?}{scheme}", printable(numbers.name()), numbers.dtype().name(), numbers.shape())?;
    let known = STATISTICS.iter().filter_map(|(key, label)| match &statistics[key] {
        Value::Null => None,
        Value::Number(number) if number.is_f64() => Some(format!("{label} {}", format_statistic(number.as_f64()?))),
        number => Some(format!("{label} {number}")),
    });
    let known: Vec<String> = known.collect();
    if !known.is_empty() {
        writeln!(out, "{}", known.join("  "))?;
    }
    if selected != numbers.shape() {
        writeln!(out, "selected {selected:?}")?;
    }
    Ok(writeln!(out, "{}", format_array(corner, out.width))?)
}

/// The statistics of the whole tensor, which reads all of it. Null if it has none.
fn statistics(files: &SourceFiles, tensor: &str) -> anyhow::Result<Value> {
    let path = PathBuf::from(format!("stats/{}.json", encode_name(tensor)));
    let Ok(content) = files.content(&path) else { return Ok(Value::Null) };
    let bytes = content.read(0..content.len(), &ReadRequest::WAIT).with_context(|| files.name(&path))?;
    let mut statistics: Value = serde_json::from_slice(&bytes).with_context(|| files.name(&path))?;
    if let Value::Object(fields) = &mut statistics {
        fields.remove("histogram");
        fields.remove("fractions");
    }
    Ok(statistics)
}

/// The elements of a tensor in C order.
struct ShownValues<'m> {
    path: PathBuf,
    content: Content,
    /// The position of the first element in the file, in bytes.
    start: u64,
    descr: &'static str,
    shape: &'m [u64],
}

impl<'m> ShownValues<'m> {
    /// Integers, booleans, complex numbers and float64 are read from `npy/`, which has them unchanged; `f32/` has all
    /// other values.
    fn open(files: &SourceFiles, numbers: &TensorNumbers<'m>) -> anyhow::Result<Self> {
        let stored = numbers.dtype().numpy().filter(|descr| numbers.weight.is_none() && *descr != "<f2");
        let (descr, path) = match stored {
            Some(descr) => (descr, format!("npy/{}.npy", encode_name(numbers.name()))),
            None => ("<f4", format!("f32/{}.f32", encode_name(numbers.name()))),
        };
        let path = PathBuf::from(path);
        let content = files
            .content(&path)
            .with_context(|| format!("{} has no numbers to show; `tensors/` has its bytes", numbers.dtype().name()))?;
        let len = numbers.elements().checked_mul(element_size(descr));
        let start = len.and_then(|len| content.len().checked_sub(len)).with_context(|| files.name(&path))?;
        Ok(Self { path, content, start, descr, shape: numbers.shape() })
    }

    /// The selected elements, or those at the corners if `is_cut`.
    fn corner(&self, files: &SourceFiles, slices: &[AxisSlice], is_cut: bool) -> anyhow::Result<ArrayNode> {
        self.node(0, 0, slices, is_cut).with_context(|| files.name(&self.path))
    }

    /// The elements below `index`, the position in the first `axis` axes.
    fn node(
        &self,
        axis: usize,
        index: u64,
        slices: &[AxisSlice],
        is_cut: bool,
    ) -> Result<ArrayNode, weightfs::content::Error> {
        let (Some(slice), Some(dim)) = (slices.get(axis), self.shape.get(axis)) else {
            return self.element(index).map(ArrayNode::Element);
        };
        let gap = is_cut && slice.keeps_axis && slice.count > 2 * EDGE;
        let shown = (0..slice.count).filter(|at| !gap || *at < EDGE || *at >= slice.count - EDGE);
        let mut nodes = Vec::new();
        for at in shown {
            if gap && at == slice.count - EDGE {
                nodes.push(ArrayNode::Gap);
            }
            nodes.push(self.node(axis + 1, index * dim + slice.position(at), slices, is_cut)?);
        }
        match nodes.pop() {
            Some(only) if !slice.keeps_axis => Ok(only),
            last => Ok(ArrayNode::List(nodes.into_iter().chain(last).collect())),
        }
    }

    fn element(&self, index: u64) -> Result<ShownElement, weightfs::content::Error> {
        let size = element_size(self.descr);
        let from = self.start + index * size;
        let bytes = self.content.read(from..from + size, &ReadRequest::WAIT)?;
        Ok(ShownElement::decode(self.descr, &bytes))
    }
}

/// The size of an element in bytes, which ends its name in NumPy, such as `<f4`.
fn element_size(descr: &str) -> u64 {
    descr.get(2..).and_then(|digits| digits.parse().ok()).unwrap_or(1)
}
