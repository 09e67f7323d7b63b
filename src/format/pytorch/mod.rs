//! PyTorch checkpoints: the zip archives that `torch.save` writes since version 1.6, and the files of older versions.
//!
//! The entry `data.pkl` is a pickle that describes the tensors. Each storage is an entry `data/KEY` of its own, whose
//! bytes are stored as they are, so that a tensor is a part of the file. In older files, the storages follow the
//! pickle. Nothing in a pickle is executed, imported or called. Source: `torch/serialization.py` and
//! `torch/_weights_only_unpickler.py` of torch 2.15.

mod archive;
mod dcp;
mod dtype;
mod forms;
mod globals;
mod legacy;
mod lint;
mod lower;
mod ranks;
mod rebuild;
mod recover;
mod storages;
mod tar;
#[cfg(test)]
mod tests;
mod value;

use super::error::Error;
use super::suffix::strip_suffix;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;

pub use archive::is_pickle;
pub use dcp::{CheckpointIndex, CheckpointPart, CheckpointTensor, ItemPlace, METADATA_MAX, PartBounds};
pub use forms::{is_pytorch, parse_pytorch};
pub use lint::{lint_pytorch, pytorch_damage};
pub use lower::parse_zip;
pub use ranks::{
    HeldTensor, RankBox, RankFile, RankLimits, RankPart, RankTensor, TENSOR_BOXES_MAX, ZeroModelStates, ZeroPartition,
    ZeroShape, parse_rank_file, parse_rank_states, parse_zero_model, parse_zero_partition, parse_zero_states,
};

pub const NAME: &str = "pytorch";

/// The format of the files of a distributed checkpoint.
pub const DISTCP: &str = "distcp";

/// Maximum number of dimensions of a tensor, as in torch.
const RANK_MAX: usize = 64;

/// Maximum size of a pickle in bytes. Those of the largest models have a few megabytes.
pub const PICKLE_MAX: u64 = 100 << 20;

/// The entry of the root that holds the weights in a checkpoint of training.
pub const STATE_DICT: &str = "state_dict";

/// The entries of the state dict of an optimizer.
const STATE: &str = "state";
const GROUPS: &str = "param_groups";

/// The name of a tensor that has none, because it is the root.
pub const UNNAMED: &str = "tensor";

/// The fault of a tensor whose name another one has too.
const DUPLICATE: &str = "a dict on the path to it has the same key twice";

/// A broken rule of a checkpoint.
fn checkpoint_error(fault: impl Display) -> Error {
    Error::Broken(format!("PyTorch checkpoint: {fault}"))
}

/// Whether the suffix of a file name is that of many programs: OpenVINO, CTranslate2 and Core ML write weights of their
/// own to `.bin` files, and TensorFlow to `.ckpt` files. Libraries of Hugging Face give their checkpoints names that
/// others do not use.
pub fn is_shared(name: &OsStr) -> bool {
    let is_known = ["pytorch_model", "adapter_model"]
        .iter()
        .any(|known| name.as_bytes().windows(known.len()).any(|window| window == known.as_bytes()));
    !is_known && [".bin", ".ckpt"].iter().any(|suffix| strip_suffix(name, suffix).is_some())
}

/// Whether a file name is that of a file that is no model although it has a suffix of PyTorch's. Many programs use the
/// suffix `.bin`, so that only names with `model` or `weights` count. The others are those that Trainer of transformers
/// and verl write beside a model.
pub fn is_other(name: &OsStr) -> bool {
    let lower = name.as_bytes().to_ascii_lowercase();
    let name = &lower[..];
    let has = |word: &[u8]| name.windows(word.len()).any(|window| window == word);
    match () {
        () if name.ends_with(b".bin") => !has(b"model") && !has(b"weights"),
        () => {
            let beside = [&b"optimizer.pt"[..], b"scheduler.pt", b"scaler.pt", b"rng_state.pth"];
            beside.contains(&name)
                || name.starts_with(b"rng_state_") && name.ends_with(b".pth")
                || name.starts_with(b"extra_state_world_size_") && name.ends_with(b".pt")
        }
    }
}

/// The number of bytes before `state` and `param_groups` if these names, of all tensors and other values, are those of
/// the state dict of an optimizer. It may be in one entry of the root, such as `optimizer`. The state may be empty, as
/// that of SGD without momentum.
pub fn states_start<'n>(names: impl IntoIterator<Item = &'n str>) -> Option<usize> {
    let (mut before, mut has_groups) = (None, false);
    for name in names {
        let mut starts = [0].into_iter().chain(name.find('.').map(|dot| dot + 1));
        let entry = |start: usize| name[start..].split('.').next().unwrap_or_default();
        let start = starts.find(|start| [STATE, GROUPS].contains(&entry(*start)))?;
        if *before.get_or_insert(&name[..start]) != &name[..start] {
            return None;
        }
        has_groups |= entry(start) == GROUPS;
    }
    before.filter(|_| has_groups).map(str::len)
}

/// The file name of the safetensors model that programs prefer to the file with this name, if both are in a directory.
/// Shards and indices are those of a whole model.
///
/// Source: `transformers/modeling_utils.py`, `_get_resolved_checkpoint_files`.
pub fn preferred(name: &OsStr) -> Option<[OsString; 2]> {
    let name = name.to_str()?;
    let stem = name.strip_suffix(".bin.index.json").or_else(|| name.strip_suffix(".bin"))?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let whole = stem.rsplit_once("-of-").and_then(|(before, count)| {
        let (whole, number) = before.rsplit_once('-')?;
        (is_number(count) && is_number(number)).then_some(whole)
    });
    let stem = whole.unwrap_or(stem);
    let stem = if stem.starts_with("pytorch_model") { &stem["pytorch_".len()..] } else { stem };
    Some([format!("{stem}.safetensors").into(), format!("{stem}.safetensors.index.json").into()])
}
