//! The configuration of the quantization of a model, from its configuration files and metadata. Does not read files.

use super::warnings::WeightRefusal;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// The configuration of the quantization of a model.
///
/// There may be parameters for each layer or for groups of layers. Their different values are collected once.
#[derive(Debug, Default)]
pub struct QuantizationConfig {
    /// `quantization_config`, or the object in its place, without the parameters of groups of layers.
    quantization: Map<String, Value>,
    /// Whether there is such a configuration, or one in hf_quant_config.json.
    pub is_quantized: bool,
    /// `quantization` of MLX.
    mlx: Map<String, Value>,
    /// The entries for layers in the metadata of ComfyUI.
    comfy: Map<String, Value>,
    /// The method in lower case; empty if there is none.
    method: String,
    /// Widths of codes; sorted.
    bits: Vec<u64>,
    /// Columns that share a scale; sorted, not 0.
    group_sizes: Vec<u64>,
    /// Rows and columns that share a scale; sorted.
    blocks: Vec<[u64; 2]>,
    /// Whether quantization is symmetric, by each entry about it; sorted.
    symmetry: Vec<bool>,
    /// The layers that have parameters of their own.
    overrides: Vec<String>,
    /// Whether columns are reordered ("act-order"), by the first entry about it.
    pub is_act_order: bool,
    /// Number of tokens of the model (`vocab_size`).
    pub vocabulary: Option<u64>,
}

/// Maximum number of block sizes that are compared with each weight. Most models have one.
const BLOCKS_MAX: usize = 64;

const METHODS: &[&str] = &[
    "fp8",
    "mxfp4",
    "mxfp8",
    "nvfp4",
    "compressed-tensors",
    "awq",
    "gptq",
    "gptqmodel",
    "auto-round",
    "intel/auto-round",
    "bitsandbytes",
    "modelopt",
    "modelopt_fp4",
    "modelopt_mixed",
    "fbgemm_fp8",
    "hqq",
    "aqlm",
    "exl2",
];

/// Methods whose weights are recognised and not decoded, and their schemes.
const UNDECODED: [(&str, &str); 5] =
    [("exl3", "EXL3"), ("quip", "QuIP#"), ("quip_sharp", "QuIP#"), ("spqr", "SpQR"), ("vptq", "VPTQ")];

const FORMATS: &[&str] = &[
    "dense",
    "float-quantized",
    "naive-quantized",
    "int-quantized",
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
];

/// The keys of the configuration in config.json, which may be in one of the objects [`INNER`] there.
const KEYS: [&str; 3] = ["quantization_config", "compression_config", "quantization"];

/// The configurations of the parts of a multimodal model.
const INNER: [&str; 3] = ["text_config", "llm_config", "language_config"];

/// The keys under which groups of layers have their own parameters.
const GROUPS: &[&str] = &["config_groups", "quantized_layers", "modules", "dynamic", "extra_config"];

/// The keys among these under which the groups are layers: ModelOpt, GPTQModel and AutoRound.
const LAYERS: &[&str] = &["quantized_layers", "dynamic", "extra_config"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GptqZeros {
    /// The stored number is the zero point minus one.
    MinusOne,
    Plain,
    /// In another way, or in a way that the configuration does not say.
    Unknown,
}

impl QuantizationConfig {
    /// Reads config.json, and hf_quant_config.json or quantize_config.json. Whatever is missing or malformed is
    /// ignored.
    pub fn new(config: Option<&Value>, other: Option<&Value>) -> Self {
        let inner = config.into_iter().flat_map(|config| INNER.iter().filter_map(|key| config.get(*key)));
        let vocabulary = config.into_iter().chain(inner).find_map(|config| config.get("vocab_size")?.as_u64());
        let of_config = config.and_then(quantization_in);
        let of_other = other.and_then(|other| object_at(other, "quantization").or(other.as_object()));
        let empty = Map::new();
        let (quantization, modelopt) = match (of_config, of_other) {
            (None, Some(other)) if other.contains_key("bits") => (other, &empty),
            (quantization, modelopt) => (quantization.unwrap_or(&empty), modelopt.unwrap_or(&empty)),
        };
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or_default();
        let all = [quantization, modelopt];
        let mlx = config.and_then(|config| object_at(config, "quantization")).unwrap_or(quantization);
        Self {
            quantization: without_groups(quantization),
            is_quantized: !quantization.is_empty() || !modelopt.is_empty(),
            mlx: without_groups(mlx),
            comfy: Map::new(),
            method: method.to_ascii_lowercase(),
            bits: sorted(numbers(all, &["num_bits", "bits", "w_bit"]).filter(|bits| (1..=8).contains(bits))),
            group_sizes: sorted(numbers(all, &["group_size", "q_group_size"]).filter(|size| *size > 0)),
            blocks: sorted(values(all, &["weight_block_size", "block_structure"]).filter_map(pair)),
            symmetry: sorted(
                values(all, &["sym", "symmetric"]).filter_map(Value::as_bool).chain(unstated(quantization)),
            ),
            overrides: all.into_iter().flat_map(overrides).chain(layers_of_mlx(mlx, method)).collect(),
            is_act_order: first_flag(all, &["desc_act"]),
            vocabulary,
        }
    }

    /// Adds what ComfyUI writes to the metadata of a safetensors file under [`super::COMFY_METADATA`].
    pub fn with_comfy_metadata(mut self, metadata: &str) -> Self {
        let value: Value = serde_json::from_str(metadata).unwrap_or_default();
        let layers = value.get("layers").and_then(Value::as_object);
        self.comfy.extend(layers.into_iter().flatten().map(|(name, layer)| (name.clone(), layer.clone())));
        self
    }

    /// Whether quantization is symmetric; `None` if the configuration does not say so, or not of all layers.
    pub fn symmetry(&self) -> Option<bool> {
        only(self.symmetry.iter().copied())
    }

    /// The names of the layers that have parameters of their own.
    pub fn overrides(&self) -> impl Iterator<Item = String> {
        self.overrides.iter().chain(self.comfy.keys()).cloned()
    }

    pub fn comfy(&self, layer: &str) -> Option<&Value> {
        self.comfy.get(layer)
    }

    /// The method and its format, if they are not known.
    pub fn unknown(&self) -> impl Iterator<Item = WeightRefusal> {
        let method = &*self.method;
        let checkpoint = self.text("checkpoint_format").unwrap_or("gptq");
        let format = self.text("format").unwrap_or("dense");
        let is_gptq = !matches!(method, "gptq" | "gptqmodel") || matches!(checkpoint, "gptq" | "gptq_v2");
        let is_compressed = method != "compressed-tensors" || FORMATS.contains(&format);
        let rules = [
            (
                method.is_empty() || METHODS.contains(&method) || self.undecoded().is_some(),
                "a quantization method that is not known",
                method,
            ),
            (is_gptq, "a format of GPTQ that is not known", checkpoint),
            (is_compressed, "a format of compressed-tensors that is not known", format),
        ];
        let broken = rules.into_iter().filter(|(is_known, ..)| !is_known);
        broken.map(|(_, reason, found)| WeightRefusal::unknown(reason, found))
    }

    /// The scheme of the method, if it is one that is not decoded.
    pub fn undecoded(&self) -> Option<&'static str> {
        UNDECODED.into_iter().find(|(method, _)| *method == self.method).map(|(_, scheme)| scheme)
    }

    pub fn is_aqlm(&self) -> bool {
        self.method == "aqlm"
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.quantization.get(key).and_then(Value::as_str)
    }

    pub fn number(&self, key: &str) -> Option<u64> {
        self.quantization.get(key).and_then(Value::as_u64)
    }

    /// The width of codes in the configuration for which `fits` is true, if exactly one is.
    pub fn bits(&self, fits: impl Fn(u64) -> bool) -> Option<u64> {
        only(self.bits.iter().copied().filter(|bits| fits(*bits)))
    }

    /// The group size in the configuration that divides `cols` columns into `groups` groups, if exactly one does. If
    /// none does, the size of equal groups, if the columns can be divided into those.
    pub fn group_size(&self, cols: u64, groups: u64) -> Option<u64> {
        // The sizes are sorted, so the number of groups never increases, and the sizes that fit are next to each other.
        let sizes = &self.group_sizes;
        let fitting = &sizes[sizes.partition_point(|size| cols.div_ceil(*size) > groups)..];
        match fitting.partition_point(|size| cols.div_ceil(*size) == groups) {
            0 => (groups > 0 && cols.is_multiple_of(groups)).then(|| (cols / groups).max(1)),
            1 => Some(fitting[0]),
            _ => None,
        }
    }

    /// The block size in the configuration that divides `matrix` into `blocks`, if exactly one does. If the
    /// configuration has no block sizes, 128 x 128, if that fits.
    pub fn block(&self, matrix: [u64; 2], blocks: [u64; 2]) -> Option<[u64; 2]> {
        let sizes: &[[u64; 2]] = match &self.blocks[..] {
            [] => &[[128, 128]],
            named if named.len() > BLOCKS_MAX => return None,
            named => named,
        };
        only(sizes.iter().copied().filter(|[rows, cols]| {
            *rows > 0 && *cols > 0 && [matrix[0].div_ceil(*rows), matrix[1].div_ceil(*cols)] == blocks
        }))
    }

    pub fn gptq_zeros(&self) -> GptqZeros {
        let format = self.text("checkpoint_format").or_else(|| self.text("format"));
        let packing = self.text("packing_format").unwrap_or("auto_round");
        match (&*self.method, format) {
            ("auto-round" | "intel/auto-round", _) if packing.contains("auto_gptq") => GptqZeros::MinusOne,
            ("auto-round" | "intel/auto-round", _) if matches!(packing, "auto_round" | "auto_round:gptqmodel") => {
                GptqZeros::Plain
            }
            ("auto-round" | "intel/auto-round", _) => GptqZeros::Unknown,
            (_, Some("gptq_v2")) => GptqZeros::Plain,
            (_, Some("gptq")) => GptqZeros::MinusOne,
            ("gptq" | "gptqmodel" | "", None) if self.is_quantized => GptqZeros::MinusOne,
            _ => GptqZeros::Unknown,
        }
    }

    /// The parameters of MLX for a layer: group size, bits, and mode. `path` is the name of the layer. A layer with its
    /// own parameters does not use those of the model, because mlx-lm passes only its own ones to `to_quantized`.
    pub fn mlx(&self, path: &str) -> Option<(u64, u64, &str)> {
        let own = self.mlx.get(path).and_then(Value::as_object);
        let parameters = own.unwrap_or(&self.mlx);
        let [size, bits, mode] = ["group_size", "bits", "mode"].map(|key| parameters.get(key));
        if own.is_none() && mode.is_none() && (size.is_none() || bits.is_none()) {
            return None;
        }
        let mode = mode.and_then(Value::as_str).unwrap_or("affine");
        let (default_size, default_bits) = match mode {
            "affine" => (64, 4),
            "nvfp4" => (16, 4),
            "mxfp8" => (32, 8),
            _ => (32, 4),
        };
        let size = size.map_or(Some(default_size), Value::as_u64)?;
        Some((size, bits.map_or(Some(default_bits), Value::as_u64)?, mode))
    }

    pub fn is_inverse(&self) -> bool {
        self.text("weight_scale_semantics") == Some("inverse")
    }
}

/// All values of some keys, at the top level and of groups of layers, in the order of the file.
fn values<'c>(tops: [&'c Map<String, Value>; 2], keys: &[&str]) -> impl Iterator<Item = &'c Value> {
    let groups = tops.into_iter().flat_map(|top| GROUPS.iter().filter_map(|key| top.get(*key)?.as_object()));
    let groups = groups
        .flat_map(Map::values)
        .flat_map(|group| [group.get("weights").and_then(Value::as_object), group.as_object()]);
    let maps = tops.into_iter().map(Some).chain(groups).flatten();
    maps.flat_map(move |map| keys.iter().filter_map(|key| map.get(*key)))
}

fn numbers(tops: [&Map<String, Value>; 2], keys: &[&str]) -> impl Iterator<Item = u64> {
    values(tops, keys).filter_map(Value::as_u64)
}

fn first_flag(tops: [&Map<String, Value>; 2], keys: &[&str]) -> bool {
    values(tops, keys).next().and_then(Value::as_bool).unwrap_or_default()
}

fn sorted<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.collect::<BTreeSet<T>>().into_iter().collect()
}

fn object_at<'c>(config: &'c Value, key: &str) -> Option<&'c Map<String, Value>> {
    config.get(key)?.as_object()
}

/// The quantization in config.json, or in the configuration of a part of the model there.
pub fn quantization_in(config: &Value) -> Option<&Map<String, Value>> {
    let configs = [config].into_iter().chain(INNER.iter().filter_map(|key| config.get(*key)));
    let mut found = configs.flat_map(|config| KEYS.iter().filter_map(|key| config.get(*key)?.as_object()));
    found.next()
}

/// The names of layers in a configuration. GPTQModel and AutoRound also have regular expressions, which are left out
/// unless they are names with escaped dots.
fn overrides(parameters: &Map<String, Value>) -> impl Iterator<Item = String> {
    let layers = LAYERS.iter().filter_map(|key| parameters.get(*key)?.as_object()).flat_map(Map::keys);
    let names = layers.map(|name| name.trim_start_matches(['+', '-', ':']).replace("\\.", "."));
    names.filter(|name| !name.is_empty() && !name.contains(|byte| "*+?[](){}|^$\\:".contains(byte)))
}

/// The layers with parameters of their own in `quantization` of MLX. The configurations of other programs name a
/// method.
fn layers_of_mlx(parameters: &Map<String, Value>, method: &str) -> impl Iterator<Item = String> {
    let own = parameters.iter().filter(|(name, value)| value.is_object() && !GROUPS.contains(&&***name));
    let own = own.filter(|_| method.is_empty());
    own.map(|(name, _)| name.clone())
}

/// The symmetry of the groups of compressed-tensors that do not state it.
/// Source: `compressed_tensors`, `quantization/quant_args.py`, `QuantizationArgs.symmetric`.
fn unstated(quantization: &Map<String, Value>) -> impl Iterator<Item = bool> {
    let groups = quantization.get("config_groups").and_then(Value::as_object).into_iter().flat_map(Map::values);
    let weights = groups.filter_map(|group| group.get("weights")?.as_object());
    weights.filter(|weights| !weights.contains_key("symmetric")).map(|_| true)
}

fn without_groups(parameters: &Map<String, Value>) -> Map<String, Value> {
    let own = parameters.iter().filter(|(key, _)| !GROUPS.contains(&&***key));
    own.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Reads a JSON file as Python does: `NaN`, `Infinity` and `-Infinity`, which JSON does not have, are null here. A byte
/// order mark is ignored.
pub fn parse_config(text: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(&without_words(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)))
}

/// Replaces the words that only Python writes, outside strings.
fn without_words(text: &[u8]) -> Cow<'_, [u8]> {
    const WORDS: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
    let (mut replaced, mut copied) = (Vec::new(), 0);
    let (mut at, mut is_string) = (0, false);
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => is_string = !is_string,
            b'\\' if is_string => at += 1,
            b'N' | b'I' | b'-' if !is_string => {
                if let Some(word) = WORDS.iter().find(|word| text[at..].starts_with(word)) {
                    replaced.extend([&text[copied..at], b"null"].concat());
                    at += word.len();
                    copied = at;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return text.into();
    }
    replaced.extend(&text[copied..]);
    replaced.into()
}

/// Two numbers: `[128, 128]` or `"128x128"`.
fn pair(value: &Value) -> Option<[u64; 2]> {
    if let Some(text) = value.as_str() {
        let (rows, cols) = text.split_once('x')?;
        return Some([rows.parse().ok()?, cols.parse().ok()?]);
    }
    let [rows, cols] = &value.as_array()?[..] else { return None };
    Some([rows.as_u64()?, cols.as_u64()?])
}

/// The only value; `None` if there are none, or different ones.
fn only<T: PartialEq>(mut values: impl Iterator<Item = T>) -> Option<T> {
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}
