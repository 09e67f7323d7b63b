//! The rules of `check`: those of headers, on which the formats report, and those of data, indexes and manifests.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The model is not sound.
    Error,
    /// The model is sound, but some programs may have problems with it.
    Warning,
    /// The model is sound. Users should know this about it.
    Note,
}

/// A rule that is checked: errors first, then warnings, then notes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckRule {
    Format,
    Entry,
    /// Bytes between the data of two tensors, or after the last tensor, belong to no tensor.
    Hole,
    Overlap,
    Index,
    Split,
    Hash,
    /// A whole file does not have the SHA-256 that its name, a list beside it or the command line says.
    FileHash,
    Nan,
    /// An entry of an archive is described in two ways that differ.
    Archive,
    /// A pickle names a function that can run code.
    PickleCode,
    ZeroEnd,
    Scale,
    GroupIndex,
    /// The names of a model have a prefix that those of the reference do not have, or the other way round.
    NamePrefix,
    /// None of the names is one of the reference.
    OtherNames,
    MissingTensor,
    UnexpectedTensor,
    /// A tensor has another shape in the reference.
    OtherShape,

    Manifest,
    TensorIndex,
    IndexTwice,
    IndexTotals,
    SplitName,
    /// The parser accepts the header, but some readers reject it.
    Json,
    /// Metadata keys are missing, or have values that programs do not expect.
    GgufKeys,
    /// A tensor has a name or a shape that the format can describe and that ggml does not load.
    GgmlLimits,
    /// The padding after the data is missing or too long.
    GgufPadding,
    /// Bytes after the data belong to no tensor. Readers of the format ignore them.
    Trailing,
    /// Tensors of a sound file cannot be shown.
    LeftOut,
    /// The tensors or the parameters are not those of a complete model of the architecture.
    Model,
    /// A pickle names a class or a function that is not needed for tensors.
    PickleGlobal,
    HeaderSize,
    /// A safetensors file has metadata that does not say which library wrote it.
    MetadataFormat,
    DataStart,
    Unaligned,
    UnknownDtype,
    #[serde(rename = "modelspec")]
    ModelSpec,
    Kohya,
    Infinite,
    Companion,
    /// The configuration contradicts the tensors of quantized weights.
    QuantizationConfig,
    ZeroWeight,

    /// Shards without an index are one model because of the numbers in their names.
    NoIndex,
    RawDtype,
    /// The file has a checksum that cannot be computed.
    Unverified,
    ZeroScale,
    Zero,
    Padding,
    Quantized,
    /// Tensors have another dtype in the reference.
    OtherDtype,
    /// Weights are quantized, or are in the reference, and not in the same way.
    OtherScheme,
    /// The output layer is missing on one side, and a configuration says that it has the weights of the embedding.
    TiedEmbedding,
}

impl CheckRule {
    pub fn severity(self) -> Severity {
        match self {
            rule if rule <= Self::OtherShape => Severity::Error,
            rule if rule <= Self::ZeroWeight => Severity::Warning,
            _ => Severity::Note,
        }
    }

    /// The consequences of a violation, if they are not obvious.
    pub fn hint(self) -> Option<&'static str> {
        Some(match self {
            Self::Hash => "the data has changed since the hash was computed, or was written in another order",
            Self::FileHash => {
                "the download broke, the file was changed, or the sum is that of another version: fetch both again"
            }
            Self::Archive => "programs that read the other description see another file",
            Self::PickleCode => {
                "do not load the file with torch.load or pickle unless you trust its origin; weightfs and torch.load(..., \
                 weights_only=True) do not run it"
            }
            Self::PickleGlobal => "torch.load(..., weights_only=True) refuses the file",
            Self::ZeroEnd => "probably an unfinished download or copy: fetch the file again",
            Self::IndexTwice => "readers may take the first entry, or none",
            Self::IndexTotals => "transformers and accelerate do not compare them",
            Self::NoIndex => {
                "transformers and diffusers need an index: `weightfs export --shard-size` writes shards with one"
            }
            Self::SplitName => "llama.cpp finds the splits of a model by their names and keys",
            Self::Json => "the official reader accepts it, others may not",
            Self::GgufKeys => "programs such as llama.cpp may fail to load the model",
            Self::GgmlLimits => {
                "llama.cpp and other programs that use ggml do not load the file; readers such as the gguf package do"
            }
            Self::Model => "the program of the format may not load the model",
            Self::MetadataFormat => {
                "transformers and accelerate refuse such a file, and accept one without metadata: `weightfs metadata set FILE \
                 format=pt`"
            }
            Self::HeaderSize => "huggingface_hub and huggingface.js reject such headers",
            Self::DataStart => {
                "the official writer pads the header to a multiple of 8 bytes; wide elements may not be usable in place"
            }
            Self::Unaligned => {
                "this affects readers that use mapped bytes in place: Rust's bytemuck::cast_slice panics, torch cannot view such \
                 bytes as another dtype, others copy; NumPy and the official readers accept them; `weightfs export` aligns \
                 all tensors"
            }
            Self::UnknownDtype => "the official reader (0.8.0) rejects the file",
            Self::Infinite => "masks may have infinite values, weights should not",
            Self::Companion => {
                "such weights are shown as stored: the model is incomplete, or weightfs does not recognise a variant of the scheme"
            }
            Self::QuantizationConfig => {
                "the configuration may be that of another model, or of another version of this one"
            }
            Self::ZeroWeight => "a trained weight is not zero; data may be missing",
            Self::ZeroScale => "normal for groups in which all weights are zero, or nearly so",
            Self::Zero => "normal for biases, and for matrices that are zero before training, such as those of a LoRA",
            Self::OtherNames => {
                "the models have different architectures, a wrapper in every layer, or programs that name tensors \
                 differently; names are not translated"
            }
            Self::MissingTensor => {
                "load_state_dict fails; with strict=False it leaves these parameters of the model as they are"
            }
            Self::UnexpectedTensor => "load_state_dict fails; with strict=False it ignores them",
            Self::OtherShape => "load_state_dict fails, with strict=False too",
            Self::OtherDtype => "load_state_dict converts values to the dtype of the model",
            Self::OtherScheme => {
                "quantized weights are stored as other tensors, which load_state_dict needs as they are: `weightfs export \
                 --dtype` dequantizes them"
            }
            Self::TiedEmbedding => {
                "config.json says tie_word_embeddings: from_pretrained gives the output layer the weights of the \
                 embedding; load_state_dict needs strict=False"
            }
            Self::Padding => "normal for the last batch of a task if the dataset was written with tail_strategy=pad",
            _ => return None,
        })
    }
}
