//! Facts from the metadata of a GGUF file about the network, its quantization and its tokenizer.
//!
//! Keys that are missing or have another type are left out. Sources: `docs/gguf.md` of ggml; `llama_model_ftype_name`
//! in `llama-model-loader.cpp` of llama.cpp.

use crate::format::{MetadataValue, ScalarType};
use crate::model::find_value;
use std::collections::HashSet;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufFacts<'m> {
    /// Facts about the whole model, such as its name.
    pub general: Vec<GgufFact<'m>>,
    /// Sizes of the network. A size that differs between layers is an array.
    pub network: Vec<GgufFact<'m>>,
    /// The quantization that most tensors have.
    pub file_type: Option<GgufFileType>,
    pub tokenizer: TokenizerFacts<'m>,
    /// The Jinja template that turns messages into a prompt.
    pub chat_template: Option<&'m str>,
    /// The keys of all these facts.
    pub keys: HashSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgufFact<'m> {
    /// A label for the value, for people.
    pub label: &'static str,
    /// A name for the value, for programs.
    pub name: &'static str,
    pub value: &'m MetadataValue,
}

/// The value of `general.file_type`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufFileType {
    pub number: String,
    /// The name that llama.cpp prints; `None` if the number is not known.
    pub name: Option<&'static str>,
}

impl GgufFileType {
    /// The name that llama-quantize takes, such as `Q4_K_M`, which is also that in file names.
    pub fn short_name(&self) -> Option<String> {
        let name = self.name?;
        Some(match name.split_once(" - ") {
            None if name == "all F32" => "F32".to_owned(),
            None => name.replace(' ', "_").to_uppercase(),
            Some(("Q2_K", "Medium")) => "Q2_K".to_owned(),
            Some(("IQ3_S mix", _)) => "IQ3_M".to_owned(),
            Some((family, size @ ("Small" | "Medium" | "Large"))) => format!("{family}_{}", &size[..1]),
            // A number of bits per weight follows.
            Some((family, _)) => family.to_owned(),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenizerFacts<'m> {
    /// Its kind and its pre-tokenizer.
    pub facts: Vec<GgufFact<'m>>,
    pub tokens: Option<usize>,
    pub special: Vec<SpecialToken<'m>>,
}

/// A token with a special meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecialToken<'m> {
    /// Its meaning, for people.
    pub label: &'static str,
    /// Its meaning, for programs.
    pub name: &'static str,
    pub id: &'m MetadataValue,
    /// Its text; `None` if there is no token with that number.
    pub text: Option<String>,
}

/// A key, its label and its name in JSON.
type Label = (&'static str, &'static str, &'static str);

const GENERAL: [Label; 5] = [
    ("general.architecture", "Architecture", "architecture"),
    ("general.name", "Name", "name"),
    ("general.size_label", "Size label", "size_label"),
    ("general.type", "Type", "type"),
    ("general.license", "License", "license"),
];

/// Keys after the name of the architecture and a dot.
const NETWORK: [Label; 8] = [
    ("context_length", "Context length", "context_length"),
    ("embedding_length", "Embedding length", "embedding_length"),
    ("feed_forward_length", "Feed-forward length", "feed_forward_length"),
    ("block_count", "Layers", "layers"),
    ("attention.head_count", "Heads", "heads"),
    ("attention.head_count_kv", "KV heads", "kv_heads"),
    ("expert_count", "Experts", "experts"),
    ("expert_used_count", "Experts used", "experts_used"),
];

const TOKENIZER: [Label; 2] =
    [("tokenizer.ggml.model", "Model", "model"), ("tokenizer.ggml.pre", "Pre-tokenizer", "pre")];

const SPECIAL: [Label; 4] = [
    ("tokenizer.ggml.bos_token_id", "BOS", "bos"),
    ("tokenizer.ggml.eos_token_id", "EOS", "eos"),
    ("tokenizer.ggml.unknown_token_id", "UNK", "unk"),
    ("tokenizer.ggml.padding_token_id", "PAD", "pad"),
];

const TOKENS: &str = "tokenizer.ggml.tokens";
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";
const FILE_TYPE: &str = "general.file_type";

/// Finds facts in metadata that is sorted by key.
struct FactFinder<'m> {
    metadata: &'m [(String, MetadataValue)],
    keys: HashSet<String>,
}

impl<'m> FactFinder<'m> {
    /// The value of a key if it has the right kind. `is_array` is `None` if it may be an array or not.
    fn find(
        &mut self,
        key: &str,
        is_kind: fn(ScalarType) -> bool,
        is_array: Option<bool>,
    ) -> Option<&'m MetadataValue> {
        let value = find_value(self.metadata, key)?;
        if !is_kind(value.kind()) || is_array.is_some_and(|is_array| is_array != value.is_array()) {
            return None;
        }
        self.keys.insert(key.to_owned());
        Some(value)
    }

    fn text(&mut self, key: &str) -> Option<&'m str> {
        self.find(key, ScalarType::is_string, Some(false)).map(MetadataValue::text)
    }

    fn facts(
        &mut self,
        prefix: &str,
        labels: &[Label],
        is_kind: fn(ScalarType) -> bool,
        is_array: Option<bool>,
    ) -> Vec<GgufFact<'m>> {
        let facts = labels.iter().filter_map(|(key, label, name)| {
            let value = self.find(&format!("{prefix}{key}"), is_kind, is_array)?;
            Some(GgufFact { label, name, value })
        });
        facts.collect()
    }
}

impl<'m> GgufFacts<'m> {
    /// The facts in the metadata, which is sorted by key. `None` if there are none.
    pub fn of(metadata: &'m [(String, MetadataValue)]) -> Option<Self> {
        let mut finder = FactFinder { metadata, keys: HashSet::new() };
        let general = finder.facts("", &GENERAL, ScalarType::is_string, Some(false));
        let network = match general.first() {
            Some(GgufFact { name: "architecture", value, .. }) => {
                finder.facts(&format!("{}.", value.text()), &NETWORK, ScalarType::is_integer, None)
            }
            _ => Vec::new(),
        };
        let tokens = finder.find(TOKENS, ScalarType::is_string, Some(true)).map(MetadataValue::text);
        let special = finder.facts("", &SPECIAL, ScalarType::is_integer, Some(false));
        let special = special.into_iter().map(|GgufFact { label, name, value: id }| {
            let line = id.text().parse().ok().and_then(|at| tokens?.lines().nth(at));
            SpecialToken { label, name, id, text: line.and_then(|line| serde_json::from_str(line).ok()) }
        });
        let tokenizer = TokenizerFacts {
            facts: finder.facts("", &TOKENIZER, ScalarType::is_string, Some(false)),
            tokens: tokens.map(|tokens| tokens.lines().count()),
            special: special.collect(),
        };
        let file_type = finder.find(FILE_TYPE, ScalarType::is_integer, Some(false)).map(|value| GgufFileType {
            number: value.text().to_owned(),
            name: value.text().parse().ok().and_then(file_type_name),
        });
        let chat_template = finder.text(CHAT_TEMPLATE);
        let keys = finder.keys;
        (!keys.is_empty()).then_some(Self { general, network, file_type, tokenizer, chat_template, keys })
    }

    /// The first line of the chat template that is not empty.
    pub fn first_line(&self) -> Option<&'m str> {
        self.chat_template?.lines().map(str::trim).find(|line| !line.is_empty())
    }
}

fn file_type_name(number: u32) -> Option<&'static str> {
    Some(match number {
        0 => "all F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K - Medium",
        11 => "Q3_K - Small",
        12 => "Q3_K - Medium",
        13 => "Q3_K - Large",
        14 => "Q4_K - Small",
        15 => "Q4_K - Medium",
        16 => "Q5_K - Small",
        17 => "Q5_K - Medium",
        18 => "Q6_K",
        19 => "IQ2_XXS - 2.0625 bpw",
        20 => "IQ2_XS - 2.3125 bpw",
        21 => "Q2_K - Small",
        22 => "IQ3_XS - 3.3 bpw",
        23 => "IQ3_XXS - 3.0625 bpw",
        24 => "IQ1_S - 1.5625 bpw",
        25 => "IQ4_NL - 4.5 bpw",
        26 => "IQ3_S - 3.4375 bpw",
        27 => "IQ3_S mix - 3.66 bpw",
        28 => "IQ2_S - 2.5 bpw",
        29 => "IQ2_M - 2.7 bpw",
        30 => "IQ4_XS - 4.25 bpw",
        31 => "IQ1_M - 1.75 bpw",
        32 => "BF16",
        36 => "TQ1_0 - 1.69 bpw ternary",
        37 => "TQ2_0 - 2.06 bpw ternary",
        38 => "MXFP4 MoE",
        39 => "NVFP4",
        40 => "Q1_0",
        41 => "Q2_0",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(number: i64) -> MetadataValue {
        MetadataValue::scalar(ScalarType::U32, number.to_string())
    }

    fn sorted(pairs: Vec<(&str, MetadataValue)>) -> Vec<(String, MetadataValue)> {
        let mut metadata: Vec<_> = pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        metadata.sort_by(|a, b| a.0.cmp(&b.0));
        metadata
    }

    #[test]
    fn facts_are_found_by_the_name_of_the_architecture() {
        let metadata = sorted(vec![
            ("general.architecture", "qwen3".into()),
            ("general.file_type", number(15)),
            ("llama.context_length", number(1)),
            ("qwen3.context_length", number(40960)),
            ("qwen3.attention.head_count", MetadataValue::array(ScalarType::U32, "8\n16\n".into())),
            ("tokenizer.ggml.tokens", MetadataValue::array(ScalarType::String, "\"<s>\"\n\"a\\\"\\u001b\"\n".into())),
            ("tokenizer.ggml.bos_token_id", number(1)),
            ("tokenizer.ggml.eos_token_id", number(2)),
            ("tokenizer.ggml.padding_token_id", number(-1)),
            ("tokenizer.chat_template", "\n  \n  {{ x }}\nmore".into()),
        ]);
        let found = GgufFacts::of(&metadata).unwrap();
        let network: Vec<_> = found.network.iter().map(|fact| (fact.name, fact.value.text())).collect();
        assert_eq!(network, [("context_length", "40960"), ("heads", "8\n16\n")]);
        assert_eq!(found.file_type, Some(GgufFileType { number: "15".into(), name: Some("Q4_K - Medium") }));
        let special: Vec<_> =
            found.tokenizer.special.iter().map(|token| (token.name, token.id.text(), token.text.as_deref())).collect();
        assert_eq!(special, [("bos", "1", Some("a\"\u{1b}")), ("eos", "2", None), ("pad", "-1", None)]);
        assert_eq!((found.tokenizer.tokens, found.first_line()), (Some(2), Some("{{ x }}")));
        assert!(found.keys.contains("qwen3.context_length") && !found.keys.contains("llama.context_length"));
    }

    #[test]
    fn short_names_are_those_of_llama_quantize() {
        let cases = [
            (0, Some("F32")),
            (7, Some("Q8_0")),
            (10, Some("Q2_K")),
            (14, Some("Q4_K_S")),
            (15, Some("Q4_K_M")),
            (13, Some("Q3_K_L")),
            (27, Some("IQ3_M")),
            (30, Some("IQ4_XS")),
            (36, Some("TQ1_0")),
            (38, Some("MXFP4_MOE")),
            (1000, None),
        ];
        for (number, expected) in cases {
            let file_type = GgufFileType { number: number.to_string(), name: file_type_name(number) };
            assert_eq!(file_type.short_name().as_deref(), expected, "{number}");
        }
    }

    #[test]
    fn values_of_other_types_are_left_out() {
        assert_eq!(GgufFacts::of(&[]), None);
        assert_eq!(GgufFacts::of(&sorted(vec![("format", "pt".into()), ("general.architecture", number(7))])), None);
        let list = || MetadataValue::array(ScalarType::String, "\"a\"\n".into());
        let wrong = sorted(vec![
            ("general.architecture", "llama".into()),
            ("general.name", list()),
            ("general.file_type", "15".into()),
            ("llama.context_length", "4096".into()),
            ("tokenizer.ggml.model", list()),
            ("tokenizer.ggml.tokens", "text".into()),
            ("tokenizer.ggml.bos_token_id", MetadataValue::scalar(ScalarType::F32, "1.0".into())),
            ("tokenizer.chat_template", list()),
        ]);
        let found = GgufFacts::of(&wrong).unwrap();
        assert_eq!((found.general.len(), found.network.len(), found.keys.len()), (1, 0, 1));
        assert_eq!((&found.tokenizer, found.file_type, found.chat_template), (&TokenizerFacts::default(), None, None));
        let unknown = sorted(vec![("general.file_type", number(33))]);
        let found = GgufFacts::of(&unknown).unwrap().file_type;
        assert_eq!(found, Some(GgufFileType { number: "33".into(), name: None }));
    }
}
