//! Findings about an SLM1 file beyond the verdict of the parser.

use super::names::{ModelSizes, required};
use super::reader::PREFIX;
use super::{ALIGNMENT, CHECKSUM_KEY, SCALES};
use crate::format::header::Header;
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::lint::HeaderLint;
use crate::rules::CheckRule;
use crate::text::{brackets, quote};

/// Findings of one kind after which no more are searched. The number of layers in a header is not trusted.
const MOST: usize = 20;

pub fn lint_slm(header: &Header, input: &HeaderInput, found: &mut dyn FnMut(HeaderLint)) -> Result<(), MissingRange> {
    let checksum = format!("checksum {}", header.value_text(CHECKSUM_KEY));
    found(HeaderLint::new(CheckRule::Unverified, Some(CHECKSUM_KEY), checksum));
    lint_fields(header, found);
    lint_tensors(header, found);
    let end = header.data_end();
    // Writers pad the data.
    if input.len() > end.next_multiple_of(ALIGNMENT) {
        let message = format!("{} bytes after the last tensor belong to no tensor", input.len() - end);
        found(HeaderLint::new(CheckRule::Trailing, None, message));
    }
    Ok(())
}

fn field_text<'h>(header: &'h Header, field: &str) -> &'h str {
    header.value_text(&format!("{PREFIX}{field}"))
}

fn field_number(header: &Header, field: &str) -> u64 {
    field_text(header, field).parse().unwrap_or_default()
}

/// Reports fields that TinyRustLM does not accept.
fn lint_fields(header: &Header, found: &mut dyn FnMut(HeaderLint)) {
    let [hidden, heads, kv_heads, dim] =
        ["hidden_size", "head_count", "kv_head_count", "head_dim"].map(|field| field_number(header, field));
    let mut rules = vec![("model_type", field_number(header, "model_type") == 1, "only 1 is defined".to_owned())];
    for (field, least) in [("vocab_size", 260), ("special_token_count", 4)] {
        rules.push((field, field_number(header, field) >= least, format!("it must be at least {least}")));
    }
    rules.push(("hidden_size", heads * dim == hidden, format!("{heads} heads of {dim} have another width")));
    let divides = kv_heads == 0 || heads.is_multiple_of(kv_heads);
    rules.push(("kv_head_count", divides, format!("it does not divide the number of heads, {heads}")));
    for field in ["rope_theta", "rms_norm_epsilon"] {
        let number: f32 = field_text(header, field).parse().unwrap_or_default();
        rules.push((field, number > 0.0 && number.is_finite(), "it must be positive and finite".to_owned()));
    }
    for (field, _, rule) in rules.into_iter().filter(|(_, holds, _)| !holds) {
        let message = format!("the field {field} of the header is {}: {rule}", field_text(header, field));
        found(HeaderLint::new(CheckRule::Model, Some(field), message));
    }
}

/// Reports tensors that are missing or have another size than the header gives.
fn lint_tensors(header: &Header, found: &mut dyn FnMut(HeaderLint)) {
    let [layers, vocabulary, hidden, ffn, flags] =
        ["layer_count", "vocab_size", "hidden_size", "ffn_size", "flags"].map(|field| field_number(header, field));
    let sizes = ModelSizes { layers, vocabulary, hidden, ffn, tied: flags & 1 == 1 };
    let (mut known, mut left) = (0, MOST);
    for (name, elements) in required(&sizes) {
        let message = match header.find(&name).map(|index| header.tensor(index)) {
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
        found(HeaderLint::new(CheckRule::Model, Some(&name), message));
        left -= 1;
        if left == 0 {
            return;
        }
    }
    let named = header.tensors().filter(|tensor| !tensor.name.ends_with(SCALES)).count();
    if named > known {
        let message =
            format!("tensors whose hash matches no documented name: {}; they are called tensor-HASH", named - known);
        found(HeaderLint::new(CheckRule::Model, None, message));
    }
}
