//! Findings about a GGUF file beyond the verdict of the parser.

use super::reader::given_shape;
use super::{
    ALIGNMENT_KEY, ARCHITECTURE_KEY, GGML_NAME_MAX, GGML_RANK_MAX, RANK_MAX, SHAPE_PREFIX, SPLIT_NUMBER_KEY, keys,
};
use crate::format::header::Header;
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::lint::HeaderLint;
use crate::format::metadata::{ScalarType, ValueType};
use crate::rules::CheckRule;
use crate::text::quote;

/// Keys that every language model must have, without the name of the architecture. Source: `docs/gguf.md` of ggml,
/// "LLM". llama.cpp loads no model without them.
const MODEL: [&str; 3] = [".context_length", ".embedding_length", ".block_count"];

const HEADS: &str = ".attention.head_count";
const EPSILON: &str = ".attention.layer_norm_epsilon";
const RMS_EPSILON: &str = ".attention.layer_norm_rms_epsilon";
const FEED_FORWARD: &str = ".feed_forward_length";

/// Further keys that an architecture must have: those in `docs/gguf.md` of ggml, "Models", that llama.cpp needs.
const ARCHITECTURES: [(&str, &[&str]); 8] = [
    ("llama", &[HEADS, RMS_EPSILON, FEED_FORWARD]),
    ("mpt", &[HEADS, EPSILON]),
    ("gptneox", &[HEADS, EPSILON, ".use_parallel_residual"]),
    ("gptj", &[HEADS, EPSILON]),
    ("gpt2", &[HEADS, EPSILON]),
    ("bloom", &[HEADS, EPSILON, FEED_FORWARD]),
    ("falcon", &[HEADS, EPSILON]),
    ("mamba", &[RMS_EPSILON, ".ssm.conv_kernel", ".ssm.inner_size", ".ssm.state_size", ".ssm.time_step_rank"]),
];

/// A tensor that every language model has, but no projector, adapter or image model.
const EMBEDDING: &str = "token_embd.weight";

/// Values of `general.type` of files that are not models by themselves.
const NO_MODELS: [&str; 3] = ["adapter", "imatrix", "mmproj"];

const TOKENS: &str = "tokenizer.ggml.tokens";

/// Values of `tokenizer.ggml.model` of models without tokens.
const NO_TOKENS: [&str; 2] = ["none", "no_vocab"];

pub fn lint_gguf(header: &Header, input: &HeaderInput, found: &mut dyn FnMut(HeaderLint)) -> Result<(), MissingRange> {
    KeyLinter { header, found }.lint_keys();
    lint_ggml_limits(header, found);
    let (end, len) = (header.data_end(), input.len());
    let padded = end.next_multiple_of(super::alignment(header));
    if !header.is_empty() && len < padded {
        let message = format!(
            "the padding after the last tensor is missing: {} of {} bytes; ggml maps such a file but does not load it",
            padded - len,
            padded - end
        );
        found(HeaderLint::new(CheckRule::GgufPadding, None, message));
    } else if len > padded {
        let message = format!("{} bytes after the last tensor belong to no tensor", len - padded);
        found(HeaderLint::new(CheckRule::GgufPadding, None, message));
    }
    Ok(())
}

/// Reports tensors that ggml does not load, although the format can describe them.
fn lint_ggml_limits(header: &Header, found: &mut dyn FnMut(HeaderLint)) {
    for tensor in header.tensors() {
        let (name, rank) = (tensor.name, super::stored_shape(header, &tensor).len());
        let faults = [
            (name.len() > GGML_NAME_MAX)
                .then(|| format!("a name of {} bytes; ggml loads at most {GGML_NAME_MAX}", name.len())),
            (rank > GGML_RANK_MAX).then(|| format!("{rank} dimensions; ggml loads at most {GGML_RANK_MAX}")),
        ];
        for fault in faults.into_iter().flatten() {
            let message = format!("tensor {}: {fault}", quote(name));
            found(HeaderLint::new(CheckRule::GgmlLimits, Some(name), message));
        }
    }
}

/// Reports keys without which programs cannot load the model, and keys that contradict each other.
struct KeyLinter<'h, 'f> {
    header: &'h Header,
    found: &'f mut dyn FnMut(HeaderLint),
}

impl KeyLinter<'_, '_> {
    fn report(&mut self, key: &str, what: &str) {
        let message = format!("metadata key {} {what}", quote(key));
        (self.found)(HeaderLint::new(CheckRule::GgufKeys, Some(key), message));
    }

    /// Reports a key that is missing, or whose value is not of the kind that ggml defines for it.
    fn need(&mut self, key: &str) {
        self.need_typed(key, keys::value_type(key));
    }

    fn need_typed(&mut self, key: &str, value_type: ValueType) {
        match self.header.value(key) {
            None => self.report(key, "is missing"),
            Some(value) if !has_kind(value.value_type(), value_type) => {
                let kind = kind_name(value_type);
                self.report(key, &format!("has the type {}, but must be {kind}", value.value_type()));
            }
            Some(_) => {}
        }
    }

    fn count(&self, key: &str) -> Option<usize> {
        let array = self.header.value(key).filter(|value| value.is_array());
        array.map(|array| array.text().lines().count())
    }

    fn lint_keys(mut self) {
        let header = self.header;
        // Only the first split of a model has the keys of the model.
        let is_later_split = !["", "0"].contains(&header.value_text(SPLIT_NUMBER_KEY));
        let is_model = !is_later_split && !NO_MODELS.contains(&header.value_text("general.type"));
        if is_model {
            self.need(ARCHITECTURE_KEY);
            if header.tensors().any(|tensor| tensor.dtype.has_scales()) {
                self.need("general.quantization_version");
            }
        }
        let architecture = header.value_text(ARCHITECTURE_KEY);
        if is_model && !["", "clip"].contains(&architecture) && header.find(EMBEDDING).is_some() {
            let further = ARCHITECTURES.iter().find(|(name, _)| *name == architecture);
            for key in MODEL.iter().chain(further.map_or(&[][..], |(_, keys)| keys)) {
                self.need_typed(&format!("{architecture}{key}"), keys::value_type(key));
            }
            self.need("tokenizer.ggml.model");
            if !NO_TOKENS.contains(&header.value_text("tokenizer.ggml.model")) {
                self.need(TOKENS);
            }
        }
        for key in ["tokenizer.ggml.scores", "tokenizer.ggml.token_type"] {
            if let (Some(found), Some(tokens)) = (self.count(key), self.count(TOKENS))
                && found != tokens
            {
                self.report(key, &format!("has {found} elements, but there are {tokens} tokens"));
            }
        }
        for (key, value) in &header.metadata {
            let tensor = key.strip_prefix(SHAPE_PREFIX).and_then(|name| header.find(name));
            let Some(tensor) = tensor.map(|at| header.tensor(at)) else { continue };
            match given_shape(value) {
                Some(given) if given == tensor.shape => {}
                Some(given) => {
                    self.report(key, &format!("gives the shape {given:?}, which does not fit {:?}", tensor.shape));
                }
                None => self.report(key, &format!("is no shape of at most {RANK_MAX} dimensions")),
            }
        }
        let alignment = super::alignment(header);
        if !alignment.is_multiple_of(8) {
            self.report(ALIGNMENT_KEY, &format!("is {alignment}, not a multiple of 8"));
        }
    }
}

/// Whether a type is of the kind that a key must have: any width will do, and an array may have an integer for each
/// block.
fn has_kind(found: ValueType, needed: ValueType) -> bool {
    let (scalar, other) = (needed.scalar, found.scalar);
    let is_same = scalar == other || scalar.is_integer() && other.is_integer() || scalar.is_float() && other.is_float();
    is_same && (needed.is_array == found.is_array || scalar.is_integer())
}

fn kind_name(needed: ValueType) -> &'static str {
    match needed.scalar {
        ScalarType::String if needed.is_array => "an array of strings",
        ScalarType::String => "a string",
        ScalarType::Bool => "a boolean",
        scalar if scalar.is_float() => "a floating-point number",
        _ => "an integer",
    }
}
