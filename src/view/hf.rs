//! `export/hf/`: the model as a folder that `from_pretrained` of transformers opens. It has the other files of the
//! model's directory, and the weights as safetensors files under the names that loaders look for. `export/hf-bf16/` and
//! `export/hf-f32/` are the same of a quantized model, with dequantized weights. The folder of a pipeline has the
//! weights of its parts.
//!
//! Source: `modeling_utils.py` of transformers and `utils/modeling.py` of accelerate.

use super::export::{ExportFile, ExportTree, FORMAT_KEY, ModelExport, PYTORCH_FORMAT};
use super::selection::ExportTensors;
use super::shards::{IndexedShard, ShardTensors, index_json, shard_name};
use super::values::{FloatDtype, ValueConversion};
use crate::content::{Content, Segment};
use crate::format::{Dtype, MetadataValue, pytorch, safetensors};
use crate::model::quantization::QuantizedWeight;
use crate::model::{
    self, Catalog, FolderId, INDEX, Model, ModelFile, ModelFileId, OtherFiles, TensorId, TreeEntry, TreeFolder,
};
use crate::name;
use crate::text::quote;
use serde_json::{Map, Value};
use std::ffi::OsStr;
use std::sync::Arc;

/// The folders, and the dtype of dequantized weights in each.
const FOLDERS: [(&str, Option<FloatDtype>); 3] =
    [("hf", None), ("hf-bf16", Some(FloatDtype::Bf16)), ("hf-f32", Some(FloatDtype::F32))];

/// Maximum size of a configuration that is written again, in bytes.
const CONFIG_MAX: usize = 1 << 20;

/// The keys of a configuration that describe the quantization: of transformers, of compressed-tensors, and of MLX.
const QUANTIZATION_KEYS: [&str; 3] = ["quantization_config", "compression_config", "quantization"];

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
const WEIGHTS: [&str; 11] =
    [".safetensors", ".sft", ".bin", ".pt", ".pt2", ".pth", ".pkl", ".ckpt", ".gguf", ".msgpack", ".h5"];

/// The beginnings of the names of files that training writes beside the weights.
const TRAINING: [&str; 5] = ["optimizer", "scheduler", "rng_state", "training_args", "adapter_"];

/// The beginnings of the names of tensors in a file that has the state of a training.
const TRAINING_TENSORS: [&str; 5] = ["optimizer.", "optimizer_states.", "optim.", "state.", "state_dict."];

/// The files of weights by their names in the folder.
type WeightFiles = Vec<(String, Content)>;

/// Adds to `export/` the folders that loaders can open. With `dequantized`, those of dequantized weights too. Logs a
/// warning for each that would not have the whole model.
pub fn add_folders(model: &Arc<Model>, dequantized: bool, tree: &mut ExportTree) {
    if !has_folder(model) {
        return;
    }
    if let Some(refusal) = refusal(model) {
        return log::warn!("export/hf/: skipped: {refusal}");
    }
    let is_quantized = dequantized && !model.quantized.weights().is_empty();
    for (name, to) in FOLDERS.into_iter().filter(|(_, to)| to.is_none() || is_quantized) {
        if let Err(refusal) = add_folder(model, (name, to), tree) {
            log::warn!("export/{name}/: skipped: {refusal}");
        }
    }
}

fn add_folder(model: &Arc<Model>, (name, to): (&str, Option<FloatDtype>), tree: &mut ExportTree) -> Result<(), String> {
    let config = to.map(|to| converted_config(model, to)).transpose()?;
    let weights = weight_files(model, stem_of(model), to)?;
    let Some(folder) = add_others(&model.facts.others, 0, tree, 0, config) else { return Ok(()) };
    for (name, content) in weights {
        tree.add_file(folder, name, ExportFile::Made(content));
    }
    tree.insert(0, folder_name(model.main_file().parent().file_name(), name), TreeEntry::Folder(folder));
    Ok(())
}

/// Adds to `export/` the folder for a pipeline, without the weights of its parts, and returns its number if there is
/// anything in it.
pub fn add_pipeline(catalog: &Catalog, tree: &mut ExportTree) -> Option<usize> {
    let folder = add_others(catalog.others(), 0, tree, 0, None)?;
    let location = &catalog.folder(FolderId::new(0))?.location;
    let [(name, _), ..] = FOLDERS;
    tree.insert(0, folder_name(location.file_name(), name), TreeEntry::Folder(folder));
    Some(folder)
}

/// The files of weights of a part of a pipeline, whose library is diffusers or another one.
pub fn part_files(model: &Arc<Model>, is_of_diffusers: bool) -> Result<WeightFiles, String> {
    if !has_readable_weights(model) {
        let name = quote(&model.main_file().file_name().to_string_lossy());
        return Err(format!("{name} does not have weights in safetensors or PyTorch files"));
    }
    match refusal(model) {
        Some(refusal) => Err(refusal),
        None => weight_files(model, if is_of_diffusers { DIFFUSERS } else { stem_of(model) }, None),
    }
}

/// Whether the model is one of safetensors or PyTorch files and has a configuration.
fn has_folder(model: &Model) -> bool {
    model.facts.others.folder(0).is_some_and(has_config) && has_readable_weights(model)
}

/// Whether a folder has a configuration.
pub fn has_config(folder: &TreeFolder) -> bool {
    matches!(folder.find(CONFIG), Some(TreeEntry::File(_)))
}

/// Whether the model has the weights of a network, in safetensors or PyTorch files.
fn has_readable_weights(model: &Model) -> bool {
    let is_read = |file: &ModelFile| [safetensors::NAME, pytorch::NAME].contains(&file.header.format);
    model.form.holds_weights && model.files.iter().all(is_read)
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

/// The configuration of a model of these numbers, which are no longer quantized. Fails if loaders would not take the
/// dequantized weights for those of the model.
fn converted_config(model: &Model, to: FloatDtype) -> Result<Content, String> {
    if let Some(warning) = model.quantized.warnings().first() {
        return Err(warning.to_string());
    }
    if let Some((weight, reason)) = model.quantized.weights().iter().find_map(|weight| Some((weight, unlike(weight)?)))
    {
        let name = quote(model.numbers(TensorId::new(weight.values), true).name());
        return Err(format!("tensor {name}: {reason}"));
    }
    let text = model.facts.config.as_ref().filter(|text| text.len() <= CONFIG_MAX);
    let text = text.ok_or_else(|| format!("{CONFIG} is missing, or has more than {CONFIG_MAX} bytes"))?;
    // Python writes words for infinite numbers that JSON does not have, and reads nothing else as such.
    let config: Result<Map<String, Value>, _> = serde_json::from_slice(text);
    let mut config = config.map_err(|error| format!("{CONFIG} cannot be written again: {error}"))?;
    if is_rotated(&config) {
        return Err(format!("{CONFIG} describes a rotation of the activations (transform_config)"));
    }
    convert_fields(&mut config, to);
    config.insert("dtype".into(), to.torch_name().into());
    // Serializing a value that was parsed cannot fail.
    Ok(Content::literal((serde_json::to_string(&config).unwrap_or_default() + "\n").into_bytes()))
}

/// Why a dequantized weight is not what the layer of a loader multiplies with.
fn unlike(weight: &QuantizedWeight) -> Option<&'static str> {
    let class = &weight.class;
    match class.scheme {
        _ if class.parameters.smoothed => Some("its activations have to be scaled too"),
        // The experts of gpt-oss are transposed, and MLX joins those of one layer under names of its own.
        "MXFP4" | "MLX" if class.shape.len() > 2 => {
            Some("loaders expect its matrices in another order or under other names")
        }
        _ => None,
    }
}

/// Whether the configuration of compressed-tensors says that activations are rotated.
fn is_rotated(config: &Map<String, Value>) -> bool {
    let parts = QUANTIZATION_KEYS.iter().filter_map(|key| config.get(*key)?.get("transform_config"));
    parts.filter_map(Value::as_object).any(|transforms| transforms.values().any(|value| !is_empty(value)))
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// Removes the description of the quantization from a configuration and from those in it, and sets the dtypes that they
/// state. The weights have other names now, too.
fn convert_fields(config: &mut Map<String, Value>, to: FloatDtype) {
    let has_dtype = ["dtype", "torch_dtype"].iter().any(|key| config.contains_key(*key));
    config.retain(|key, _| {
        !QUANTIZATION_KEYS.contains(&&key[..]) && key != "torch_dtype" && key != "transformers_weights"
    });
    if has_dtype {
        config.insert("dtype".into(), to.torch_name().into());
    }
    config.values_mut().filter_map(Value::as_object_mut).for_each(|part| convert_fields(part, to));
}

/// The name of a folder. A copy of it beside the directory of the model, which is called `dir`, must not overwrite the
/// model.
fn folder_name(dir: &OsStr, name: &str) -> String {
    let mut found = name.to_owned();
    while dir == &found[..] {
        found = format!("{found}-{name}");
    }
    found
}

/// Adds what is in a folder of the other files, and returns the number of the new folder if there is anything. Loaders
/// take every file with a suffix of weights for a part of the model, so those are left out. With a `config`, that
/// replaces those that describe the quantization.
fn add_others(
    others: &OtherFiles,
    number: usize,
    tree: &mut ExportTree,
    parent: usize,
    config: Option<Content>,
) -> Option<usize> {
    let folder = others.folder(number)?;
    let added = tree.add_folder(parent, folder.stat);
    let is_replaced = |name: &str| config.is_some() && model::configs().any(|replaced| replaced == name);
    for (name, entry) in folder.entries().iter().filter(|(name, _)| !is_weights(name) && !is_replaced(name)) {
        match *entry {
            TreeEntry::File(file) => tree.add_file(added, name.clone(), ExportFile::Other(file)),
            TreeEntry::Folder(inner) => {
                if let Some(inner) = add_others(others, inner, tree, added, None) {
                    tree.insert(added, name.clone(), TreeEntry::Folder(inner));
                }
            }
        }
    }
    if let Some(config) = config {
        tree.add_file(added, CONFIG.to_owned(), ExportFile::Made(config));
    }
    tree.drop_empty_folder().then_some(added)
}

/// Whether programs take a file of that name, beside a model, for weights or an index of weights.
fn is_weights(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    WEIGHTS.iter().any(|end| lower.ends_with(end)) || model::index_stem(name.as_ref()).is_some()
}

/// The beginning of the names under which loaders look for the weights.
fn stem_of(model: &Model) -> &'static str {
    let name = model.main_file().file_name().to_string_lossy();
    if name.starts_with(DIFFUSERS) { DIFFUSERS } else { "model" }
}

/// The files of weights, and their index if loaders need one. Fails if a safetensors file cannot hold a tensor.
fn weight_files(model: &Arc<Model>, stem: &str, to: Option<FloatDtype>) -> Result<WeightFiles, String> {
    match to {
        None if are_safetensors(model) => stored_files(model, stem),
        to => made_files(model, stem, to.map(|to| ValueConversion { to, dequantized: true }), SHARD_MAX),
    }
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
            None => new_index(model, &files, model.file_ids().map(|id| model.stored_in(id).iter().collect()), None),
        };
        files.push((index, content));
    }
    Ok(files)
}

/// The index of files with these tensors.
fn new_index(
    model: &Model,
    files: &WeightFiles,
    tensors: impl Iterator<Item = Vec<TensorId>>,
    conversion: Option<ValueConversion>,
) -> Content {
    let shards = files.iter().zip(tensors);
    let shards = shards.map(|((name, _), ids)| IndexedShard::new(model, name.clone(), ids.into_iter(), conversion));
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
    made_content(model, tensors, None, &header.metadata)
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
    conversion: Option<ValueConversion>,
    metadata: &[(String, MetadataValue)],
) -> Result<Content, String> {
    let export = ModelExport::for_loaders(model, tensors, conversion, metadata);
    export.content(false).cloned().ok_or_else(|| export.refusal())
}

/// New files for all tensors of the model, with at most `max` bytes of data each. Tensors that share their bytes, such
/// as an output layer that is tied to the embeddings, are all written: only the configuration tells which of them
/// loaders tie again.
pub fn made_files(
    model: &Arc<Model>,
    stem: &str,
    conversion: Option<ValueConversion>,
    max: u64,
) -> Result<WeightFiles, String> {
    let all = ExportTensors::all(model, conversion);
    if conversion.is_none() {
        check_dtypes(model, &all)?;
    }
    let made = ShardTensors::new(model, &all, conversion, max);
    let count = made.count();
    if count > SHARDS_MAX {
        return Err(format!("it would have {count} files; at most {SHARDS_MAX} are made"));
    }
    let mut files = WeightFiles::new();
    for (at, (_, tensors)) in made.files().enumerate() {
        let content = made_content(model, ExportTensors::These(tensors.into()), conversion, &[])?;
        files.push((shard_name(stem, at, count), content));
    }
    if count > 1 {
        let index = new_index(model, &files, made.files().map(|(_, tensors)| tensors.to_vec()), conversion);
        files.push((format!("{stem}.safetensors.index.json"), index));
    }
    Ok(files)
}
