//! What the configuration files of a model say about its quantization.

use serde_json::{Map, Value};

/// What the configuration says.
#[derive(Debug, Default)]
pub struct Config {
    /// `quantization_config` and what corresponds to it.
    quantization: Map<String, Value>,
    /// `quantization` of hf_quant_config.json.
    modelopt: Map<String, Value>,
    /// `quantization` of MLX.
    mlx: Map<String, Value>,
    /// The layers in the metadata of ComfyUI.
    comfy: Map<String, Value>,
    /// The method in lower case; empty if there is none.
    method: String,
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

/// Where a group of layers has parameters of its own.
const GROUPS: &[&str] = &["config_groups", "quantized_layers", "modules"];

/// What is added to the zero points of GPTQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GptqZeros {
    /// One less is stored than is meant.
    MinusOne,
    /// Stored as they are.
    Plain,
    /// Something else, or not known.
    Unknown,
}

impl Config {
    /// Reads config.json, and hf_quant_config.json or quantize_config.json. Whatever is missing or malformed is ignored.
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
        let mlx = config.and_then(|config| object(config.get("quantization"))).unwrap_or_else(|| quantization.clone());
        Self { quantization, modelopt, mlx, comfy: Map::new(), method }
    }

    /// Adds what ComfyUI writes to the metadata of a safetensors file under [`super::COMFY_METADATA`].
    pub fn with_comfy_metadata(mut self, metadata: &str) -> Self {
        let value: Value = serde_json::from_str(metadata).unwrap_or_default();
        let layers = value.get("layers").and_then(Value::as_object);
        self.comfy.extend(layers.into_iter().flatten().map(|(name, layer)| (name.clone(), layer.clone())));
        self
    }

    /// What ComfyUI says about a layer.
    pub fn comfy(&self, layer: &str) -> Option<&Value> {
        self.comfy.get(layer)
    }

    /// Whether the model is said to be quantized.
    pub fn is_quantized(&self) -> bool {
        !self.quantization.is_empty() || !self.modelopt.is_empty()
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

    /// Every value that one of some keys has, at the top level or for a group of layers, in the order of the file.
    fn values<'c>(&'c self, keys: &'c [&'c str]) -> impl Iterator<Item = &'c Value> {
        let tops = [&self.quantization, &self.modelopt];
        let groups = tops.into_iter().flat_map(|top| GROUPS.iter().filter_map(|key| top.get(*key)?.as_object()));
        let groups = groups
            .flat_map(Map::values)
            .flat_map(|group| [group.get("weights").and_then(Value::as_object), group.as_object()]);
        let maps = tops.into_iter().map(Some).chain(groups).flatten();
        maps.flat_map(move |map| keys.iter().filter_map(|key| map.get(*key)))
    }

    fn numbers<'c>(&'c self, keys: &'c [&'c str]) -> impl Iterator<Item = u64> {
        self.values(keys).filter_map(Value::as_u64)
    }

    /// The only one of the widths that the configuration names for which `fits` is true.
    pub fn bits(&self, fits: impl Fn(u64) -> bool) -> Option<u64> {
        only(self.numbers(&["num_bits", "bits", "w_bit"]).filter(|bits| (1..=8).contains(bits) && fits(*bits)))
    }

    /// The only one of the group sizes that the configuration names that makes `groups` groups of `cols` columns. If
    /// there is none, the group size that leaves no column over.
    pub fn group_size(&self, cols: u64, groups: u64) -> Option<u64> {
        let fits = |size: &u64| *size > 0 && cols.div_ceil(*size) == groups;
        let mut named = self.numbers(&["group_size", "q_group_size"]).filter(fits).peekable();
        if named.peek().is_some() {
            return only(named);
        }
        (groups > 0 && cols.is_multiple_of(groups)).then(|| (cols / groups).max(1))
    }

    /// The only one of the block sizes that the configuration names that makes `blocks` of a matrix. If it names none,
    /// 128 x 128, if that fits.
    pub fn block(&self, matrix: [u64; 2], blocks: [u64; 2]) -> Option<[u64; 2]> {
        let fits =
            |size: &[u64; 2]| (0..2).all(|axis| size[axis] > 0 && matrix[axis].div_ceil(size[axis]) == blocks[axis]);
        let mut named = self.values(&["weight_block_size", "block_structure"]).filter_map(pair).peekable();
        if named.peek().is_some() { only(named.filter(fits)) } else { Some([128, 128]).filter(fits) }
    }

    /// How the zero points of GPTQ are stored.
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

    /// The parameters of MLX for a layer: group size, bits, and mode. `path` is the name of the layer.
    pub fn mlx(&self, path: &str) -> Option<(u64, u64, &str)> {
        let of = |key: &str| self.mlx.get(path).and_then(|layer| layer.get(key)).or_else(|| self.mlx.get(key));
        let mode = of("mode").and_then(Value::as_str).unwrap_or("affine");
        let default = match mode {
            "affine" => (64, 4),
            "nvfp4" => (16, 4),
            "mxfp8" => (32, 8),
            _ => (32, 4),
        };
        let number = |key: &str, default: u64| of(key).map_or(Some(default), Value::as_u64);
        let is_mlx = of("group_size").is_some() && of("bits").is_some() || of("mode").is_some();
        is_mlx.then_some(())?;
        Some((number("group_size", default.0)?, number("bits", default.1)?, mode))
    }

    /// Whether the quantization is said to be symmetric.
    pub fn is_symmetric(&self) -> bool {
        self.values(&["sym", "symmetric"]).next().and_then(Value::as_bool).unwrap_or(false)
    }

    /// Whether columns are said to be in an order of their own.
    pub fn is_act_order(&self) -> bool {
        self.values(&["desc_act"]).next().and_then(Value::as_bool).unwrap_or(false)
    }

    /// Whether scales divide instead of multiplying.
    pub fn is_inverse(&self) -> bool {
        self.text("weight_scale_semantics") == Some("inverse")
    }
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
