//! A model in one line: its network, parameters, quantization or dtype, and size.

use super::conventions::MODELSPEC_PREFIX;
use super::gguf::GgufFacts;
use super::totals::{QuantizationTotal, TensorBreakdown};
use crate::model::{Model, find_value};
use crate::units::{format_count, format_size, plural};

/// What a model is, for its first line and for programs.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelOverview {
    pub format: String,
    /// The network, if the metadata or `config.json` names it, such as `llama`.
    pub architecture: Option<String>,
    /// The number of parameters that the metadata gives, such as `8x7B`.
    pub size_label: Option<String>,
    /// Whether the tensors are those of a LoRA.
    pub is_lora: bool,
    /// Whether the tensors are data, not weights.
    pub is_dataset: bool,
    pub tensors: u64,
    pub parameters: u64,
    /// The quantization or the dtypes with most of the bytes; `None` if there are no tensors.
    pub weights: Option<String>,
    /// Mean number of bits per weight; `None` if there are no parameters.
    pub bits_per_weight: Option<f64>,
    /// Whether most of the parameters are in quantized weights of a known scheme.
    pub is_quantized: bool,
    /// Size of all files in bytes.
    pub nbytes: u64,
}

impl ModelOverview {
    pub fn of(model: &Model, breakdown: &TensorBreakdown) -> Self {
        let metadata = model.metadata();
        // A safetensors file that was made of a GGUF file has these keys too.
        let gguf = GgufFacts::of(metadata);
        let fact = |name| gguf.as_ref()?.general.iter().find(|fact| fact.name == name).map(|fact| fact.value.text());
        let modelspec = || find_value(metadata, &format!("{MODELSPEC_PREFIX}architecture"));
        let architecture = match (fact("architecture"), modelspec()) {
            (Some(name), _) => short_word(name),
            (None, Some(name)) => short_word(name.text()),
            (None, None) => model.network().and_then(|name| short_word(&name)),
        };
        let file_type = gguf.as_ref().and_then(|gguf| gguf.file_type.as_ref()?.short_name());
        let is_dataset = !model.form.holds_weights;
        let quantized = breakdown.quantized.iter().map(|group| group.totals.parameters).fold(0, u64::saturating_add);
        let is_quantized = quantized > breakdown.all.parameters / 2;
        Self {
            format: model.format().to_owned(),
            architecture,
            size_label: fact("size_label").and_then(short_word),
            is_lora: !is_dataset && is_lora(model),
            is_dataset,
            tensors: breakdown.all.tensors,
            parameters: breakdown.all.parameters,
            weights: file_type.filter(|_| breakdown.all.tensors > 0).or_else(|| weights(breakdown, is_quantized)),
            bits_per_weight: breakdown.all.bits_per_weight(),
            is_quantized,
            nbytes: model.sources().iter().map(|source| source.len()).fold(0, u64::saturating_add),
        }
    }

    /// The line, such as `gemma3 270M, Q4_K_M, 7.4 bits per weight, 253 MB`. It has printable ASCII characters only.
    pub fn text(&self) -> String {
        let mut name = self.architecture.as_ref().unwrap_or(&self.format).clone();
        if self.is_lora && !name.to_ascii_lowercase().contains("lora") {
            name.push_str(" LoRA");
        }
        let counted = match self.parameters {
            _ if self.tensors == 0 => "no tensors".to_owned(),
            _ if self.is_dataset => plural(self.tensors, "tensor"),
            1 => "1 parameter".to_owned(),
            number => format!("{} parameters", format_count(number)),
        };
        let size = match (&self.architecture, &self.size_label) {
            (Some(_), _) if self.is_lora || self.tensors == 0 => None,
            (Some(_), Some(label)) => Some(label.clone()),
            (Some(_), None) => (self.parameters >= 1000).then(|| format_count(self.parameters)),
            (None, _) => None,
        };
        // Otherwise the number follows from the dtype.
        let is_telling = |bits: &f64| !self.is_dataset && (self.is_quantized || !is_usual(*bits));
        let parts = [
            Some(if self.is_dataset { format!("{name} dataset") } else { name }),
            Some(counted).filter(|_| size.is_none()),
            self.weights.clone(),
            self.bits_per_weight.filter(is_telling).map(|bits| format!("{bits:.1} bits per weight")),
            Some(format_size(self.nbytes)),
        ];
        let mut parts: Vec<String> = parts.into_iter().flatten().collect();
        if let Some(size) = size {
            parts[0] = format!("{} {size}", parts[0]);
        }
        parts.join(", ")
    }
}

/// A text from a file if it can be a name in the line: short and of printable ASCII characters.
fn short_word(text: &str) -> Option<String> {
    const LONGEST: usize = 40;
    let text = text.trim();
    let is_printable = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    (!text.is_empty() && text.len() <= LONGEST && is_printable).then(|| text.to_owned())
}

/// Whether at least half of the tensors have the names of LoRA factors, as PEFT, kohya and llama.cpp write them.
fn is_lora(model: &Model) -> bool {
    const FACTORS: [&str; 6] = ["lora_A", "lora_B", "lora_a", "lora_b", "lora_down", "lora_up"];
    let tensors = model.listed();
    let is_factor = |name: &str| name.split('.').any(|part| FACTORS.contains(&part));
    let factors = tensors.iter().filter(|id| is_factor(model.name(*id))).count();
    factors > 0 && 2 * factors >= tensors.len()
}

/// The scheme of most weights if they are quantized, otherwise the dtypes of most of the bytes.
fn weights(breakdown: &TensorBreakdown, is_quantized: bool) -> Option<String> {
    /// If the first dtype has this part of the bytes, others are not named.
    const NEARLY_ALL: f64 = 90.0;
    if let Some(QuantizationTotal { scheme, dtype, .. }) = breakdown.quantized.first().filter(|_| is_quantized) {
        return Some(if scheme == dtype { (*scheme).to_owned() } else { format!("{scheme} {dtype}") });
    }
    let name = |name: &str| short_word(name).unwrap_or_else(|| "unknown dtype".to_owned());
    match &breakdown.dtypes[..] {
        [] => None,
        [(first, totals), (second, _), ..] if totals.percent_of(&breakdown.all) < NEARLY_ALL => {
            Some(format!("{} and {}", name(first), name(second)))
        }
        [(first, _), ..] => Some(name(first)),
    }
}

/// Whether a number of bits per weight, rounded to one decimal, is the width of a dtype of whole bytes.
fn is_usual(bits: f64) -> bool {
    [8.0, 16.0, 32.0, 64.0].iter().any(|width: &f64| (bits - width).abs() < 0.05)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_says_what_is_known() {
        let plain = ModelOverview {
            format: "safetensors".into(),
            architecture: None,
            size_label: None,
            is_lora: false,
            is_dataset: false,
            tensors: 2,
            parameters: 268_098_176,
            weights: Some("F32".into()),
            bits_per_weight: Some(32.0),
            is_quantized: false,
            nbytes: 1_072_400_000,
        };
        let named = ModelOverview { architecture: Some("gemma3".into()), ..plain.clone() };
        let quantized = ModelOverview {
            size_label: Some("270M".into()),
            weights: Some("Q4_K_M".into()),
            bits_per_weight: Some(7.44),
            nbytes: 253_000_000,
            ..named.clone()
        };
        let lora = ModelOverview { is_lora: true, ..named.clone() };
        let kohya = ModelOverview { architecture: Some("stable-diffusion-v1/lora".into()), ..lora.clone() };
        let data = ModelOverview { is_dataset: true, ..plain.clone() };
        let even = ModelOverview { is_quantized: true, bits_per_weight: Some(8.0), ..quantized.clone() };
        let small = ModelOverview { parameters: 1, ..named.clone() };
        let empty = ModelOverview { tensors: 0, parameters: 0, weights: None, ..quantized.clone() };
        let cases = [
            (plain, "safetensors, 268M parameters, F32, 1.07 GB"),
            (named, "gemma3 268M, F32, 1.07 GB"),
            (quantized, "gemma3 270M, Q4_K_M, 7.4 bits per weight, 253 MB"),
            (even, "gemma3 270M, Q4_K_M, 8.0 bits per weight, 253 MB"),
            (lora, "gemma3 LoRA, 268M parameters, F32, 1.07 GB"),
            (kohya, "stable-diffusion-v1/lora, 268M parameters, F32, 1.07 GB"),
            (data, "safetensors dataset, 2 tensors, F32, 1.07 GB"),
            (small, "gemma3, 1 parameter, F32, 1.07 GB"),
            (ModelOverview { bits_per_weight: None, ..empty }, "gemma3, no tensors, 253 MB"),
        ];
        for (overview, expected) in cases {
            assert_eq!(overview.text(), expected);
        }
    }

    #[test]
    fn text_that_a_terminal_would_act_on_is_no_name() {
        for text in ["", " ", "a\u{1b}[31m", "a\nb", "重", &"x".repeat(41)] {
            assert_eq!(short_word(text), None, "{text:?}");
        }
        assert_eq!(short_word(" 8x7B ").as_deref(), Some("8x7B"));
    }
}
