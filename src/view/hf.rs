//! `export/hf/`: the model as a folder that `from_pretrained` of transformers opens. It has the other files of the
//! model's directory, and the weights as safetensors files under the names that loaders look for.
//!
//! Source: `modeling_utils.py` of transformers and `utils/modeling.py` of accelerate.

use super::export::{ExportFile, ExportTree, FORMAT_KEY, ModelExport, PYTORCH_FORMAT};
use super::selection::ExportTensors;
use super::shards::{IndexedShard, ShardTensors, index_json, shard_name};
use crate::content::{Content, Segment};
use crate::format::{Dtype, MetadataValue, pytorch, safetensors};
use crate::model::{self, INDEX, Model, ModelFile, ModelFileId, OtherFiles, TensorId, TreeEntry};
use crate::name;
use crate::text::quote;
use std::sync::Arc;

const FOLDER: &str = "hf";

/// The file without which no loader opens a folder.
const CONFIG: &str = "config.json";

/// Largest size of the data of a shard of weights that were not safetensors, in bytes: that of `save_pretrained`.
const SHARD_MAX: u64 = 5_000_000_000;

/// Maximum number of new files.
const SHARDS_MAX: usize = 10_000;

/// Longest file name that the kernel allows, in bytes.
const NAME_MAX: usize = 255;

/// The beginning of the names of the weights of a part of a pipeline of diffusers.
const DIFFUSERS: &str = "diffusion_pytorch_model";

/// The ends of the names of files that programs take for weights.
const WEIGHTS: [&str; 9] = [".safetensors", ".sft", ".bin", ".pt", ".pt2", ".pth", ".pkl", ".ckpt", ".gguf"];

/// The beginnings of the names of files that training writes beside the weights.
const TRAINING: [&str; 5] = ["optimizer", "scheduler", "rng_state", "training_args", "adapter_"];

/// The beginnings of the names of tensors in a file that has the state of a training.
const TRAINING_TENSORS: [&str; 5] = ["optimizer.", "optimizer_states.", "optim.", "state.", "state_dict."];

/// The files of weights by their names in the folder.
type WeightFiles = Vec<(String, Content)>;

/// Adds the folder to `export/` if loaders can open it. Logs a warning if they could, but it would not have the whole
/// model.
pub fn add_folder(model: &Arc<Model>, tree: &mut ExportTree) {
    if !has_folder(model) {
        return;
    }
    let weights = match refusal(model).map_or_else(|| weight_files(model), Err) {
        Ok(weights) => weights,
        Err(refusal) => return log::warn!("export/{FOLDER}/: skipped: {refusal}"),
    };
    let Some(folder) = add_others(&model.facts.others, 0, tree, 0) else { return };
    for (name, content) in weights {
        tree.add_file(folder, name, ExportFile::Made(content));
    }
    tree.insert(0, folder_name(model), TreeEntry::Folder(folder));
}

/// Whether the model is one of safetensors or PyTorch files and has a configuration.
fn has_folder(model: &Model) -> bool {
    let config = model.facts.others.folder(0).and_then(|folder| folder.find(CONFIG));
    let is_read = |file: &ModelFile| [safetensors::NAME, pytorch::NAME].contains(&file.header.format);
    matches!(config, Some(TreeEntry::File(_))) && model.form.holds_weights && model.files.iter().all(is_read)
}

/// Why the files are not the weights of a whole model. Loaders would take random numbers for what is missing.
fn refusal(model: &Model) -> Option<String> {
    let name = model.main_file().file_name();
    let quoted = quote(&name.to_string_lossy());
    if model.left_out() > 0 {
        return Some(format!("parts of the model that were left out: {}", model.left_out()));
    }
    if model.files.len() == 1 && model::is_numbered(name) {
        return Some(format!("{quoted} is one of several files; name their index or their directory"));
    }
    if TRAINING.iter().any(|start| name.to_string_lossy().starts_with(start)) {
        return Some(format!("{quoted} does not have the weights of a model"));
    }
    let is_of_training = |id: &TensorId| TRAINING_TENSORS.iter().any(|start| model.name(*id).starts_with(start));
    let tensor = quote(model.name(model.logical().iter().find(is_of_training)?));
    Some(format!("tensor {tensor} belongs to the state of a training"))
}

/// The name of the folder. A copy of it beside the directory of the model must not overwrite the model.
fn folder_name(model: &Model) -> String {
    let mut name = FOLDER.to_owned();
    while model.main_file().parent().file_name() == &name[..] {
        name = format!("{name}-{FOLDER}");
    }
    name
}

/// Adds what is in a folder of the other files, and returns the number of the new folder if there is anything. Loaders
/// take every file with a suffix of weights for a part of the model, so those are left out.
fn add_others(others: &OtherFiles, number: usize, tree: &mut ExportTree, parent: usize) -> Option<usize> {
    let folder = others.folder(number)?;
    let added = tree.add_folder(parent, folder.stat);
    for (name, entry) in folder.entries().iter().filter(|(name, _)| !is_weights(name)) {
        match *entry {
            TreeEntry::File(file) => tree.add_file(added, name.clone(), ExportFile::Other(file)),
            TreeEntry::Folder(inner) => {
                if let Some(inner) = add_others(others, inner, tree, added) {
                    tree.insert(added, name.clone(), TreeEntry::Folder(inner));
                }
            }
        }
    }
    tree.drop_empty_folder().then_some(added)
}

/// Whether programs take a file of that name, beside a model, for weights or an index of weights.
fn is_weights(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    WEIGHTS.iter().any(|end| lower.ends_with(end)) || model::index_stem(name.as_ref()).is_some()
}

/// The files of weights, and their index if loaders need one. Fails if a safetensors file cannot hold a tensor.
fn weight_files(model: &Arc<Model>) -> Result<WeightFiles, String> {
    let name = model.main_file().file_name().to_string_lossy();
    let stem = if name.starts_with(DIFFUSERS) { DIFFUSERS } else { "model" };
    if are_safetensors(model) { stored_files(model, stem) } else { made_files(model, stem, SHARD_MAX) }
}

/// Whether the files of the model are safetensors files that hold its tensors, as the official reader reads them.
fn are_safetensors(model: &Model) -> bool {
    let is_stored = |id: TensorId| model.tensor(id).file().is_some() && !model.is_unusual(id);
    model.files.iter().all(|file| file.header.format == safetensors::NAME)
        && model.logical().len() == model.stored().len()
        && model.logical().iter().all(is_stored)
}

/// A file for each file of the model. They keep their names if the index of the model and they have the names that
/// loaders look for.
fn stored_files(model: &Arc<Model>, stem: &str) -> Result<WeightFiles, String> {
    let (index, only) = (format!("{stem}.safetensors.index.json"), format!("{stem}.safetensors"));
    // Loaders that find `only` do not read the index. Some take all files whose names begin like it.
    let keeps_name = |file: &ModelFile| file.name.starts_with(stem) && is_usable(&file.name) && file.name != only;
    let keeps_names = model.main_file().file_name() == &index[..] && model.files.iter().all(keeps_name);
    let count = model.files.len();
    let mut files = WeightFiles::new();
    for id in model.file_ids() {
        let name = if keeps_names { model.file(id).name.clone() } else { shard_name(stem, id.index(), count) };
        files.push((name, stored_content(model, id)?));
    }
    if keeps_names || count > 1 {
        let own = model.facts.documents.iter().find(|(name, _)| *name == INDEX && keeps_names);
        let content = match own {
            Some((_, source)) => Segment::extent(source, 0..source.len()).into(),
            None => new_index(model, &files, model.file_ids().map(|id| model.stored_in(id).iter().collect())),
        };
        files.push((index, content));
    }
    Ok(files)
}

/// The index of files with these tensors.
fn new_index(model: &Model, files: &WeightFiles, tensors: impl Iterator<Item = Vec<TensorId>>) -> Content {
    let shards = files.iter().zip(tensors);
    let shards = shards.map(|((name, _), ids)| IndexedShard::new(model, name.clone(), ids.into_iter(), None));
    Content::literal(index_json(&shards.collect::<Vec<_>>()).into_bytes())
}

/// Whether a name in an index can be that of a file of weights in the folder.
fn is_usable(name: &str) -> bool {
    let is_name = name.len() <= NAME_MAX && !name.contains('/');
    is_name && name.ends_with(".safetensors") && *name::harmless(name.as_ref()) == *name
}

/// A file of the model as it is, or with another header if accelerate would refuse its metadata.
fn stored_content(model: &Arc<Model>, id: ModelFileId) -> Result<Content, String> {
    let ModelFile { header, source, .. } = model.file(id);
    let tensors = match model.files.len() {
        1 => ExportTensors::Whole,
        _ => ExportTensors::These(model.stored_in(id).iter().collect()),
    };
    check_dtypes(model, &tensors)?;
    if model::metadata_text(&header.metadata, FORMAT_KEY) == Some(PYTORCH_FORMAT) {
        return Ok(Segment::extent(source, 0..source.len()).into());
    }
    made_content(model, tensors, &header.metadata)
}

/// Fails if the official reader refuses the dtype of a tensor.
fn check_dtypes(model: &Model, tensors: &ExportTensors) -> Result<(), String> {
    let infos = (0..tensors.len(model)).map(|at| model.tensor(tensors.at(model, at)).info);
    match infos.into_iter().find(|info| !Dtype::SAFETENSORS.contains(&info.dtype)) {
        Some(info) => Err(format!("tensor {}: no loader reads the dtype {}", quote(info.name), info.dtype.quoted())),
        None => Ok(()),
    }
}

/// Tensors as a safetensors file with this metadata and the format that loaders look for.
fn made_content(
    model: &Arc<Model>,
    tensors: ExportTensors,
    metadata: &[(String, MetadataValue)],
) -> Result<Content, String> {
    let export = ModelExport::for_loaders(model, tensors, metadata);
    export.content(false).cloned().ok_or_else(|| export.refusal())
}

/// New files for all tensors of the model, with at most `max` bytes of data each. Tensors that share their bytes, such
/// as an output layer that is tied to the embeddings, are all written: only the configuration tells which of them
/// loaders tie again.
pub fn made_files(model: &Arc<Model>, stem: &str, max: u64) -> Result<WeightFiles, String> {
    check_dtypes(model, &ExportTensors::Whole)?;
    let made = ShardTensors::new(model, &ExportTensors::Whole, None, max);
    let count = made.count();
    if count > SHARDS_MAX {
        return Err(format!("it would have {count} files; at most {SHARDS_MAX} are made"));
    }
    let mut files = WeightFiles::new();
    for (at, (_, tensors)) in made.files().enumerate() {
        let content = made_content(model, ExportTensors::These(tensors.into()), &[])?;
        files.push((shard_name(stem, at, count), content));
    }
    if count > 1 {
        let index = new_index(model, &files, made.files().map(|(_, tensors)| tensors.to_vec()));
        files.push((format!("{stem}.safetensors.index.json"), index));
    }
    Ok(files)
}
