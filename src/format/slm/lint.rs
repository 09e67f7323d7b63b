//! Findings about an SLM1 file beyond the verdict of the parser.

use super::names::{ModelSizes, required};
use super::reader::PREFIX;
use super::{ALIGNMENT, CHECKSUM_KEY, SCALES};
use crate::format::header::Header;
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::lint::{HeaderLint, LintKind};
use crate::format::metadata::MetadataValue;
use crate::text::{brackets, quote};

/// Findings of one kind after which no more are searched. The number of layers in a header is not trusted.
const MOST: usize = 20;

/// Reports what is unusual in a sound header.
pub fn lint_slm(header: &Header, input: &HeaderInput, found: &mut dyn FnMut(HeaderLint)) -> Result<(), MissingRange> {
    let checksum = header.value(CHECKSUM_KEY).map_or("", MetadataValue::text);
    let message = format!("checksum {checksum}");
    found(HeaderLint { kind: LintKind::Unverified, subject: Some(CHECKSUM_KEY.to_owned()), message });
    lint_fields(header, found);
    lint_tensors(header, found);
    let end = header.tensors().map(|tensor| tensor.range.end).max().unwrap_or(header.data_start());
    // Writers pad the data.
    if input.len() > end.next_multiple_of(ALIGNMENT) {
        let message = format!("{} bytes after the last tensor belong to no tensor", input.len() - end);
        found(HeaderLint { kind: LintKind::Trailing, subject: None, message });
    }
    Ok(())
}

fn lint_number<T: std::str::FromStr + Default>(header: &Header, field: &str) -> T {
    let value = header.value(&format!("{PREFIX}{field}"));
    value.and_then(|value| value.text().parse().ok()).unwrap_or_default()
}

/// Reports fields that TinyRustLM does not accept.
fn lint_fields(header: &Header, found: &mut dyn FnMut(HeaderLint)) {
    let field = |name: &str| lint_number::<u32>(header, name);
    let mut report = |name: &str, rule: String| {
        let message = format!("the field {name} of the header is {}: {rule}", header_text(header, name));
        found(HeaderLint { kind: LintKind::Model, subject: Some(name.to_owned()), message });
    };
    if field("model_type") != 1 {
        report("model_type", "only 1 is defined".to_owned());
    }
    for (name, least) in [("vocab_size", 260), ("special_token_count", 4)] {
        if field(name) < least {
            report(name, format!("it must be at least {least}"));
        }
    }
    let (hidden, heads, dim) = (field("hidden_size"), field("head_count"), field("head_dim"));
    if u64::from(heads) * u64::from(dim) != u64::from(hidden) {
        report("hidden_size", format!("{heads} heads of {dim} have another width"));
    }
    let kv_heads = field("kv_head_count");
    if kv_heads != 0 && !heads.is_multiple_of(kv_heads) {
        report("kv_head_count", format!("it does not divide the number of heads, {heads}"));
    }
    for name in ["rope_theta", "rms_norm_epsilon"] {
        if !(lint_number::<f32>(header, name) > 0.0 && lint_number::<f32>(header, name).is_finite()) {
            report(name, "it must be positive and finite".to_owned());
        }
    }
}

fn header_text<'h>(header: &'h Header, field: &str) -> &'h str {
    header.value(&format!("{PREFIX}{field}")).map_or("", MetadataValue::text)
}

/// Reports tensors that are missing or have another size than the header gives.
fn lint_tensors(header: &Header, found: &mut dyn FnMut(HeaderLint)) {
    let field = |name: &str| lint_number::<u32>(header, name);
    let sizes = ModelSizes {
        layers: field("layer_count"),
        vocabulary: field("vocab_size"),
        hidden: field("hidden_size"),
        ffn: field("ffn_size"),
        tied: field("flags") & 1 == 1,
    };
    let mut known = 0;
    let mut left = MOST;
    for (name, elements) in required(&sizes) {
        let index = header.find(&name);
        let message = match index.map(|index| header.tensor(index)) {
            None => format!("tensor {} is missing", quote(&name)),
            Some(tensor) => {
                let is_packed = header.find(&[&name, SCALES].concat()).is_some() && tensor.dtype.name() == "U8";
                known += 1;
                if tensor.elements().saturating_mul(1 + u64::from(is_packed)) == elements {
                    continue;
                }
                let shape = brackets(tensor.shape);
                format!("tensor {}: shape {shape} does not have the {elements} elements of the header", quote(&name))
            }
        };
        found(HeaderLint { kind: LintKind::Model, subject: Some(name), message });
        left -= 1;
        if left == 0 {
            return;
        }
    }
    let named = header.tensors().filter(|tensor| !tensor.name.ends_with(SCALES)).count();
    if named > known {
        let message =
            format!("tensors whose hash matches no documented name: {}; they are called tensor-HASH", named - known);
        found(HeaderLint { kind: LintKind::Model, subject: None, message });
    }
}
