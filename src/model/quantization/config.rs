//! The configuration of the quantization of a model, from its configuration files and metadata. Does not read files.

use serde_json::{Map, Value};
use std::borrow::Cow;

/// The configuration of the quantization of a model.
#[derive(Debug, Default)]
pub struct QuantizationConfig {
    /// `quantization_config`, or the object in its place.
    quantization: Map<String, Value>,
    /// Whether there is such a configuration, or one in hf_quant_config.json.
    is_quantized: bool,
    /// `quantization` of MLX.
    mlx: Map<String, Value>,
    /// The entries for layers in the metadata of ComfyUI.
    comfy: Map<String, Value>,
    /// The method in lower case; empty if there is none.
    method: String,
    /// The parameters of all layers, and of groups of layers.
    named: NamedParameters,
}

/// The different values of the parameters at the top level and of groups of layers. There may be a group for each
/// layer, so the values are collected once.
#[derive(Debug, Default)]
struct NamedParameters {
    /// Widths of codes; sorted.
    bits: Vec<u64>,
    /// Columns that share a scale; sorted, not 0.
    group_sizes: Vec<u64>,
    /// Rows and columns that share a scale; sorted.
    blocks: Vec<[u64; 2]>,
    /// Whether quantization is symmetric, by the first entry about it.
    is_symmetric: bool,
    /// Whether columns are reordered, by the first entry about it.
    is_act_order: bool,
}

/// Methods whose schemes are known.
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
];

/// Formats of compressed-tensors that are known.
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

/// The keys under which groups of layers have their own parameters.
const GROUPS: &[&str] = &["config_groups", "quantized_layers", "modules"];

/// The encoding of the zero points of GPTQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GptqZeros {
    /// The stored number is the zero point minus one.
    MinusOne,
    /// The stored number is the zero point.
    Plain,
    /// In another way, or in a way that the configuration does not say.
    Unknown,
}

impl QuantizationConfig {
    /// Reads config.json, and hf_quant_config.json or quantize_config.json. Whatever is missing or malformed is
    /// ignored.
    pub fn new(config: Option<&Value>, other: Option<&Value>) -> Self {
        let object = |value: Option<&Value>| value.and_then(Value::as_object).cloned();
        let inner = |config: &Value| {
            let keys = ["quantization_config", "compression_config", "quantization"];
            keys.iter().find_map(|key| object(config.get(key)))
        };
        let of_config = config.and_then(|config| {
            let nested = ["text_config", "llm_config", "language_config"];
            inner(config).or_else(|| nested.iter().find_map(|key| inner(config.get(key)?)))
        });
        let of_other = other.and_then(|other| object(other.get("quantization")).or_else(|| object(Some(other))));
        let (quantization, modelopt) = match (of_config, of_other) {
            (None, Some(other)) if other.contains_key("bits") => (other, Map::new()),
            (quantization, modelopt) => (quantization.unwrap_or_default(), modelopt.unwrap_or_default()),
        };
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("").to_ascii_lowercase();
        let named = NamedParameters::new([&quantization, &modelopt]);
        let without_groups = |mut map: Map<String, Value>| {
            map.retain(|key, _| !GROUPS.contains(&&**key));
            map
        };
        let (is_quantized, quantization) =
            (!quantization.is_empty() || !modelopt.is_empty(), without_groups(quantization));
        let mlx = config.and_then(|config| object(config.get("quantization"))).map(without_groups);
        let mlx = mlx.unwrap_or_else(|| quantization.clone());
        Self { quantization, mlx, comfy: Map::new(), method, named, is_quantized }
    }

    /// Adds what ComfyUI writes to the metadata of a safetensors file under [`super::COMFY_METADATA`].
    pub fn with_comfy_metadata(mut self, metadata: &str) -> Self {
        let value: Value = serde_json::from_str(metadata).unwrap_or_default();
        let layers = value.get("layers").and_then(Value::as_object);
        self.comfy.extend(layers.into_iter().flatten().map(|(name, layer)| (name.clone(), layer.clone())));
        self
    }

    /// The entry of ComfyUI for a layer.
    pub fn comfy(&self, layer: &str) -> Option<&Value> {
        self.comfy.get(layer)
    }

    /// Whether the configuration says that the model is quantized.
    pub fn is_quantized(&self) -> bool {
        self.is_quantized
    }

    /// Calls `report` for a method or format that is not known.
    pub fn unknown(&self, mut report: impl FnMut(&'static str, &str)) {
        if !self.method.is_empty() && !METHODS.contains(&&*self.method) {
            report("a quantization method that is not known", &self.method);
        }
        let checkpoint = self.text("checkpoint_format").unwrap_or("gptq");
        if matches!(&*self.method, "gptq" | "gptqmodel") && !matches!(checkpoint, "gptq" | "gptq_v2") {
            report("a format of GPTQ that is not known", checkpoint);
        }
        let format = self.text("format").unwrap_or("dense");
        if self.method == "compressed-tensors" && !FORMATS.contains(&format) {
            report("a format of compressed-tensors that is not known", format);
        }
    }

    /// A text at the top level.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.quantization.get(key).and_then(Value::as_str)
    }

    /// The width of codes in the configuration for which `fits` is true, if exactly one is.
    pub fn bits(&self, fits: impl Fn(u64) -> bool) -> Option<u64> {
        only(self.named.bits.iter().copied().filter(|bits| fits(*bits)))
    }

    /// The group size in the configuration that divides `cols` columns into `groups` groups, if exactly one does. If
    /// none does, the size of equal groups, if the columns can be divided into those.
    pub fn group_size(&self, cols: u64, groups: u64) -> Option<u64> {
        // The sizes are sorted, so the number of groups never increases, and the sizes that fit are next to each other.
        let sizes = &self.named.group_sizes;
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
        let fits =
            |size: &[u64; 2]| (0..2).all(|axis| size[axis] > 0 && matrix[axis].div_ceil(size[axis]) == blocks[axis]);
        match &self.named.blocks[..] {
            [] => Some([128, 128]).filter(fits),
            named if named.len() > NamedParameters::BLOCKS_MAX => None,
            named => only(named.iter().copied().filter(fits)),
        }
    }

    /// The encoding of the zero points of GPTQ.
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
            ("gptq" | "gptqmodel" | "", None) if self.is_quantized() => GptqZeros::MinusOne,
            _ => GptqZeros::Unknown,
        }
    }

    /// The parameters of MLX for a layer: group size, bits, and mode. `path` is the name of the layer. A layer with its
    /// own parameters does not use those of the model, because mlx-lm passes only its own ones to `to_quantized`.
    pub fn mlx(&self, path: &str) -> Option<(u64, u64, &str)> {
        let own = self.mlx.get(path).and_then(Value::as_object);
        let of = |key: &str| own.unwrap_or(&self.mlx).get(key);
        let mode = of("mode").and_then(Value::as_str).unwrap_or("affine");
        let default = match mode {
            "affine" => (64, 4),
            "nvfp4" => (16, 4),
            "mxfp8" => (32, 8),
            _ => (32, 4),
        };
        let number = |key: &str, default: u64| of(key).map_or(Some(default), Value::as_u64);
        let is_mlx = own.is_some() || of("group_size").is_some() && of("bits").is_some() || of("mode").is_some();
        is_mlx.then_some(())?;
        Some((number("group_size", default.0)?, number("bits", default.1)?, mode))
    }

    /// Whether the configuration says that the quantization is symmetric.
    pub fn is_symmetric(&self) -> bool {
        self.named.is_symmetric
    }

    /// Whether the configuration says that columns are reordered ("act-order").
    pub fn is_act_order(&self) -> bool {
        self.named.is_act_order
    }

    /// Whether scales divide instead of multiplying.
    pub fn is_inverse(&self) -> bool {
        self.text("weight_scale_semantics") == Some("inverse")
    }
}

impl NamedParameters {
    /// Maximum number of block sizes that are compared with each weight. Most models have one.
    const BLOCKS_MAX: usize = 64;

    fn new(tops: [&Map<String, Value>; 2]) -> Self {
        let numbers = |keys: &[&str], is_valid: fn(&u64) -> bool| {
            sorted(values(tops, keys).filter_map(Value::as_u64).filter(is_valid).collect())
        };
        let flag = |keys: &[&str]| values(tops, keys).next().and_then(Value::as_bool).unwrap_or(false);
        Self {
            bits: numbers(&["num_bits", "bits", "w_bit"], |bits| (1..=8).contains(bits)),
            group_sizes: numbers(&["group_size", "q_group_size"], |size| *size > 0),
            blocks: sorted(values(tops, &["weight_block_size", "block_structure"]).filter_map(pair).collect()),
            is_symmetric: flag(&["sym", "symmetric"]),
            is_act_order: flag(&["desc_act"]),
        }
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

fn sorted<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}

/// Reads a JSON file as Python does: `NaN`, `Infinity` and `-Infinity`, which JSON does not have, are null here. A byte
/// order mark is ignored.
///
/// # Errors
/// If the file is no JSON otherwise.
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
