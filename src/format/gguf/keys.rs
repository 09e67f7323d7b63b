//! The metadata keys that ggml defines, and their types.
//!
//! Sources: `docs/gguf.md` of ggml, "Standardized key-value pairs", and `GGUFWriter` of the `gguf` package, which uses
//! narrower integers than the document.

use crate::format::metadata::{ScalarType, ValueType};
use ScalarType::{Bool, F32, I32, String, U8, U32};

/// A type, and keys that are separated by spaces. If a key begins with a dot, the name of an architecture precedes it.
type TypedKeys = (ScalarType, &'static str);

/// Keys whose values are single numbers or booleans. All other keys that ggml defines are arrays or strings.
const SCALARS: [TypedKeys; 4] = [
    (
        U32,
        "general.alignment general.base_model.count general.dataset.count general.file_type \
         general.quantization_version tokenizer.ggml.token_type_count .attention.head_count \
         .attention.head_count_kv .attention.key_length .attention.sliding_window .attention.value_length \
         .block_count .context_length .embedding_length .expert_count .expert_feed_forward_length \
         .expert_shared_count .expert_used_count .feed_forward_length .leading_dense_block_count .pooling_type \
         .rope.dimension_count .rope.scaling.original_context_length .ssm.conv_kernel .ssm.inner_size \
         .ssm.state_size .ssm.time_step_rank .vocab_size",
    ),
    (I32, "general.sampling.mirostat general.sampling.penalty_last_n general.sampling.top_k"),
    (
        F32,
        "general.sampling.min_p general.sampling.mirostat_eta general.sampling.mirostat_tau \
         general.sampling.penalty_repeat general.sampling.temp general.sampling.top_p \
         general.sampling.xtc_probability general.sampling.xtc_threshold .attention.clamp_kqv \
         .attention.layer_norm_epsilon .attention.layer_norm_rms_epsilon .attention.max_alibi_bias .rope.freq_base \
         .rope.scaling.factor",
    ),
    (
        Bool,
        "tokenizer.ggml.add_bos_token tokenizer.ggml.add_eos_token tokenizer.ggml.add_sep_token \
         tokenizer.ggml.add_space_prefix tokenizer.ggml.remove_extra_whitespaces .attention.causal \
         .rope.scaling.finetuned .use_parallel_residual",
    ),
];

const ARRAYS: [TypedKeys; 4] = [
    (
        String,
        "general.datasets general.languages general.tags tokenizer.chat_templates tokenizer.ggml.merges \
         tokenizer.ggml.tokens",
    ),
    (I32, "tokenizer.ggml.token_type"),
    (F32, "tokenizer.ggml.scores"),
    (U8, "tokenizer.ggml.precompiled_charsmap"),
];

/// The type that ggml defines for a key. Unknown keys are strings.
pub fn value_type(key: &str) -> ValueType {
    let is_token_id = key.starts_with("tokenizer.ggml.") && key.ends_with("_token_id");
    let (scalar, is_array) = match (type_of(&SCALARS, key), type_of(&ARRAYS, key)) {
        (Some(scalar), _) => (scalar, false),
        (_, Some(scalar)) => (scalar, true),
        _ if is_token_id => (U32, false),
        _ => (String, false),
    };
    ValueType { scalar, is_array }
}

fn type_of(rows: &[TypedKeys], key: &str) -> Option<ScalarType> {
    let of_architecture = key.split_once('.').filter(|(first, _)| !["general", "tokenizer", "split"].contains(first));
    let rest = of_architecture.map_or("", |(first, _)| &key[first.len()..]);
    let found = rows.iter().find(|(_, keys)| keys.split_ascii_whitespace().any(|known| known == key || known == rest));
    found.map(|(scalar, _)| *scalar)
}
