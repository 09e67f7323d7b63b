//! Findings about a GGUF file beyond the verdict of the parser.

use super::{ALIGNMENT_KEY, ARCHITECTURE_KEY, SPLIT_NUMBER_KEY};
use crate::format::header::Header;
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::lint::{HeaderLint, LintKind};
use crate::format::metadata::{MetadataValue, ScalarType};
use crate::text::quote;

/// The kind of value that a key must have.
#[derive(Debug, Clone, Copy)]
enum KeyKind {
    String,
    Strings,
    /// An integer of any width, or an array with an integer for each block.
    Integer,
    Float,
    Bool,
}

/// A key and the kind of its value. If the key begins with a dot, the name of the architecture precedes it.
type Key = (&'static str, KeyKind);

/// Keys that every language model must have. Source: `docs/gguf.md` of ggml, "LLM". llama.cpp loads no model without
/// them.
const MODEL: [Key; 3] = [
    (".context_length", KeyKind::Integer),
    (".embedding_length", KeyKind::Integer),
    (".block_count", KeyKind::Integer),
];

const HEADS: Key = (".attention.head_count", KeyKind::Integer);
const EPSILON: Key = (".attention.layer_norm_epsilon", KeyKind::Float);
const RMS_EPSILON: Key = (".attention.layer_norm_rms_epsilon", KeyKind::Float);
const FEED_FORWARD: Key = (".feed_forward_length", KeyKind::Integer);

/// Further keys that an architecture must have: those in `docs/gguf.md` of ggml, "Models", that llama.cpp needs.
const ARCHITECTURES: [(&str, &[Key]); 8] = [
    ("llama", &[HEADS, RMS_EPSILON, FEED_FORWARD]),
    ("mpt", &[HEADS, EPSILON]),
    ("gptneox", &[HEADS, EPSILON, (".use_parallel_residual", KeyKind::Bool)]),
    ("gptj", &[HEADS, EPSILON]),
    ("gpt2", &[HEADS, EPSILON]),
    ("bloom", &[HEADS, EPSILON, FEED_FORWARD]),
    ("falcon", &[HEADS, EPSILON]),
    (
        "mamba",
        &[
            RMS_EPSILON,
            (".ssm.conv_kernel", KeyKind::Integer),
            (".ssm.inner_size", KeyKind::Integer),
            (".ssm.state_size", KeyKind::Integer),
            (".ssm.time_step_rank", KeyKind::Integer),
        ],
    ),
];

/// A tensor that every language model has, but no projector, adapter or image model.
const EMBEDDING: &str = "token_embd.weight";

/// Values of `general.type` of files that are not models by themselves.
const NO_MODELS: [&str; 3] = ["adapter", "imatrix", "mmproj"];

const TOKENS: &str = "tokenizer.ggml.tokens";

/// Values of `tokenizer.ggml.model` of models without tokens.
const NO_TOKENS: [&str; 2] = ["none", "no_vocab"];

/// Reports what is unusual in a sound header.
pub fn lint_gguf(header: &Header, input: &HeaderInput, found: &mut dyn FnMut(HeaderLint)) -> Result<(), MissingRange> {
    lint_keys(header, found);
    let end = header.tensors().map(|tensor| tensor.range.end).max().unwrap_or(header.data_start());
    let padded = end.next_multiple_of(super::alignment(header));
    let mut report = |message| found(HeaderLint { kind: LintKind::Padding, subject: None, message });
    if !header.is_empty() && input.len() < padded {
        report(format!(
            "the padding after the last tensor is missing: {} of {} bytes; ggml maps such a file but does not load it",
            padded - input.len(),
            padded - end
        ));
    } else if input.len() > padded {
        report(format!("{} bytes after the last tensor belong to no tensor", input.len() - padded));
    }
    Ok(())
}

/// Reports keys without which programs cannot load the model, and keys that contradict each other.
fn lint_keys(header: &Header, found: &mut dyn FnMut(HeaderLint)) {
    let text = |key: &str| header.value(key).map_or("", MetadataValue::text);
    let mut report = |key: &str, what: &str| {
        let message = format!("metadata key {} {what}", quote(key));
        found(HeaderLint { kind: LintKind::Keys, subject: Some(key.to_owned()), message });
    };
    let mut need = |key: &str, kind: KeyKind| match header.value(key) {
        None => report(key, "is missing"),
        Some(value) if !kind.fits(value) => {
            report(key, &format!("has the type {}, but must be {}", value.value_type(), kind.name()));
        }
        Some(_) => {}
    };
    // Only the first split of a model has the keys of the model.
    let is_later_split = !["", "0"].contains(&text(SPLIT_NUMBER_KEY));
    let is_model = !is_later_split && !NO_MODELS.contains(&text("general.type"));
    if is_model {
        need(ARCHITECTURE_KEY, KeyKind::String);
        if header.tensors().any(|tensor| tensor.dtype.has_scales()) {
            need("general.quantization_version", KeyKind::Integer);
        }
    }
    let architecture = text(ARCHITECTURE_KEY);
    if is_model && !["", "clip"].contains(&architecture) && header.find(EMBEDDING).is_some() {
        let further = ARCHITECTURES.iter().find(|(name, _)| *name == architecture).map_or(&[][..], |(_, keys)| keys);
        for (key, kind) in MODEL.iter().chain(further) {
            need(&format!("{architecture}{key}"), *kind);
        }
        need("tokenizer.ggml.model", KeyKind::String);
        if !NO_TOKENS.contains(&text("tokenizer.ggml.model")) {
            need(TOKENS, KeyKind::Strings);
        }
    }
    let count =
        |key: &str| header.value(key).filter(|value| value.is_array()).map(|value| value.text().lines().count());
    for key in ["tokenizer.ggml.scores", "tokenizer.ggml.token_type"] {
        if let (Some(found), Some(tokens)) = (count(key), count(TOKENS))
            && found != tokens
        {
            report(key, &format!("has {found} elements, but there are {tokens} tokens"));
        }
    }
    let alignment = super::alignment(header);
    if !alignment.is_multiple_of(8) {
        report(ALIGNMENT_KEY, &format!("is {alignment}, not a multiple of 8"));
    }
}

impl KeyKind {
    fn fits(self, value: &MetadataValue) -> bool {
        use ScalarType::{Bool, F32, F64, String};
        match (self, value.kind(), value.is_array()) {
            (Self::String, String, false) | (Self::Strings, String, true) => true,
            (Self::Float, F32 | F64, false) | (Self::Bool, Bool, false) => true,
            (Self::Integer, scalar, _) => scalar.is_integer(),
            _ => false,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::String => "a string",
            Self::Strings => "an array of strings",
            Self::Integer => "an integer",
            Self::Float => "a floating-point number",
            Self::Bool => "a boolean",
        }
    }
}
