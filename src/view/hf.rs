//! `export/hf/`: the model as a folder that `from_pretrained` of transformers opens. It has the other files of the
//! model's directory, and the weights as safetensors files under the names that loaders look for. `export/hf-bf16/` and
//! `export/hf-f32/` are the same with converted weights. The folder of a pipeline has the weights of its parts.
//!
//! Source: `modeling_utils.py` of transformers and `utils/modeling.py` of accelerate.

use super::export::{self, ExportFile, ExportTree, FORMAT_KEY, ModelExport, PYTORCH_FORMAT};
use super::selection::ExportTensors;
use super::shards::{IndexedShard, ShardTensors, index_json, shard_name};
use super::values::{FloatDtype, ValueConversion};
use crate::content::{Content, Error, ReadRequest, Segment};
use crate::format::{Dtype, MetadataValue, pytorch, safetensors};
use crate::model::quantization::QuantizedWeight;
use crate::model::{
    self, EXTRA, INDEX, Model, ModelFile, ModelFileId, ModelId, OtherFile, OtherFiles, TensorId, TreeEntry,
};
use crate::name;
use crate::text::quote;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;

/// The folders, and the dtype that the weights in each are converted to.
const FOLDERS: [(&str, Option<FloatDtype>); 3] =
    [("hf", None), ("hf-bf16", Some(FloatDtype::Bf16)), ("hf-f32", Some(FloatDtype::F32))];

/// Maximum size of a configuration that is written again, and of those of all parts of a pipeline, in bytes.
pub const CONFIG_MAX: u64 = 1 << 20;

/// The keys of a configuration that describe the quantization: of transformers, of compressed-tensors, and of MLX.
const QUANTIZATION_KEYS: [&str; 3] = ["quantization_config", "compression_config", "quantization"];

/// The file without which no loader opens a folder.
const CONFIG: &str = "config.json";

/// The key of a configuration that names the file of weights, or its index, that transformers reads.
const NAMED_WEIGHTS: &str = "transformers_weights";

/// The key that a configuration of diffusers has.
const DIFFUSERS_CLASS: &str = "_class_name";

/// Largest size of the data of a shard of weights that were not safetensors, in bytes: that of `save_pretrained`.
const SHARD_MAX: u64 = 5_000_000_000;

/// Maximum number of new files.
const SHARDS_MAX: usize = 10_000;

/// Longest file name that the kernel allows, in bytes.
const NAME_MAX: usize = 255;

/// The beginning of the names of the weights of a part of a pipeline of diffusers.
pub const DIFFUSERS: &str = "diffusion_pytorch_model";

/// The ends of the names of files that programs take for weights.
const WEIGHTS: [&str; 11] =
    [".safetensors", ".sft", ".bin", ".pt", ".pt2", ".pth", ".pkl", ".ckpt", ".gguf", ".msgpack", ".h5"];

/// The beginnings of the names of files that training writes beside the weights.
const TRAINING: [&str; 5] = ["optimizer", "scheduler", "rng_state", "training_args", "adapter_"];

/// The beginnings of the names of tensors in a file that has the state of a training.
const TRAINING_TENSORS: [&str; 5] = ["optimizer.", "optimizer_states.", "optim.", "state.", "state_dict."];

/// The files of weights by their names in the folder.
type WeightFiles = Vec<(String, Content)>;

/// The weights that a folder shows: those of a model, or of a part of a pipeline.
#[derive(Debug)]
pub struct FolderWeights {
    pub model: Arc<Model>,
    /// The beginning of the names under which loaders look for the weights.
    pub stem: &'static str,
    /// The folder that holds them, by its number among the other files.
    pub folder: usize,
    pub config: ModelConfig,
    /// The name and the weights of the part of a pipeline, if it is one.
    pub part: Option<(String, ModelId)>,
}

/// The configuration beside weights.
#[derive(Debug)]
pub struct ModelConfig {
    /// Its number among the other files.
    number: usize,
    /// Its text, or why there is none.
    text: Result<Vec<u8>, String>,
    /// The name of another file beside it that describes a quantization.
    other: Option<&'static str>,
}

impl ModelConfig {
    /// Reads the configuration of `model` with a number in a folder of the other files, unless it was read before, and
    /// subtracts its size from `left`. Fails only if it can be read later.
    pub fn read(
        model: &Model,
        others: &OtherFiles,
        (folder, number): (usize, usize),
        left: &mut u64,
        request: &ReadRequest,
    ) -> Result<Self, Error> {
        let content = others.file(number).map_or_else(|| Content::new([]), OtherFile::content);
        let text = match (content.len(), &model.facts.config) {
            (len, _) if len > *left => Err(format!("{CONFIG} has {len} bytes; at most {left} are written again")),
            (_, Some(text)) => Ok(text.clone()),
            (len, None) => match content.plan(0..len).read_owned(request) {
                Err(Error::Source(error)) if error.is_transient() => return Err(Error::Source(error)),
                Err(error @ (Error::WouldBlock(_) | Error::Interrupted | Error::NoMemory)) => return Err(error),
                text => text.map_err(|error| error.to_string()),
            },
        };
        *left -= text.as_ref().map_or(0, |text| text.len() as u64).min(*left);
        let is_there = |name: &&str| others.folder(folder).is_some_and(|folder| folder.find(name).is_some());
        let other = model::configs().filter(|name| *name != CONFIG).find(is_there);
        Ok(Self { number, text, other })
    }
}

/// The number of the configuration in a folder of the other files.
pub fn config_in(others: &OtherFiles, folder: usize) -> Option<usize> {
    match others.folder(folder)?.find(CONFIG)? {
        TreeEntry::File(number) => Some(number),
        TreeEntry::Folder(_) => None,
    }
}

/// The weights of a model for its folders, if it has any: those of a model of safetensors or PyTorch files that has a
/// configuration. Fails only if the configuration can be read later.
pub fn model_weights(model: &Arc<Model>, request: &ReadRequest) -> Result<Option<FolderWeights>, Error> {
    let others = &model.facts.others;
    let Some(number) = config_in(others, 0).filter(|_| has_readable_weights(model)) else { return Ok(None) };
    let config = ModelConfig::read(model, others, (0, number), &mut CONFIG_MAX.clone(), request)?;
    Ok(Some(FolderWeights { model: model.clone(), stem: stem_of(model), folder: 0, config, part: None }))
}

/// Adds to `export/` the folders of `others` and these weights, which come from the directory called `dir`. With
/// `dequantized`, those of quantized weights are converted too. Logs a warning for the first folder that would not have
/// the whole model, and adds none after it.
pub fn add_folders(
    (others, dir): (&OtherFiles, &OsStr),
    all: &[FolderWeights],
    dequantized: bool,
    tree: &mut ExportTree,
) {
    let is_converted = all.iter().any(|weights| has_floats(&weights.model))
        && (dequantized || all.iter().all(|weights| is_plain(&weights.model)));
    for (name, to) in FOLDERS.into_iter().filter(|(_, to)| to.is_none() || is_converted) {
        let made: Result<Vec<_>, String> = all.iter().map(|weights| weights.files(to)).collect();
        let mut files: MadeFiles = match made {
            Ok(files) => all.iter().map(|weights| weights.folder).zip(files).collect(),
            // The others would be refused too, most of them for the same reason.
            Err(refusal) => return log::warn!("export/{name}/: skipped: {refusal}"),
        };
        if let Some(folder) = add_others(others, 0, tree, 0, (&mut files, to.is_some())) {
            tree.insert(0, folder_name(dir, name), TreeEntry::Folder(folder));
        }
    }
}

/// The files of the folders with weights, by the numbers of these.
type MadeFiles = BTreeMap<usize, Vec<(String, ExportFile)>>;

impl FolderWeights {
    /// The files of weights, stored or converted, and the configuration if it is not that of the source.
    fn files(&self, to: Option<FloatDtype>) -> Result<Vec<(String, ExportFile)>, String> {
        let made = self.made(to).map_err(|reason| match &self.part {
            Some((name, _)) => part_fault(name, &reason),
            None => reason,
        });
        let (weights, config) = made?;
        let weights = weights.into_iter().map(|(name, content)| match &self.part {
            Some((_, id)) => (name, ExportFile::Weights(content, *id)),
            None => (name, ExportFile::Made(content)),
        });
        let config = config.map(|content| (CONFIG.to_owned(), ExportFile::Edited(content, self.config.number)));
        Ok(weights.chain(config).collect())
    }

    fn made(&self, to: Option<FloatDtype>) -> Result<(WeightFiles, Option<Content>), String> {
        if let Some(refusal) = refusal(&self.model) {
            return Err(refusal);
        }
        if to.is_some() {
            check_quantization(&self.model)?;
        }
        let weights = weight_files(&self.model, self.stem, to)?;
        let config = match to {
            Some(to) => Some(self.converted_config(to)?),
            None => self.stored_config(&weights)?,
        };
        Ok((weights, config))
    }

    /// The configuration of weights as they are stored, unless that of the source is right. If it names a file that is
    /// not there, the new one names none.
    fn stored_config(&self, weights: &WeightFiles) -> Result<Option<Content>, String> {
        let key = NAMED_WEIGHTS.as_bytes();
        let has_key = |text: &&Vec<u8>| text.windows(key.len()).any(|part| part == key);
        if self.config.text.as_ref().ok().filter(has_key).is_none() {
            return Ok(None);
        }
        let mut config = self.parsed_config()?;
        let named = config.remove(NAMED_WEIGHTS);
        // The index comes last.
        let is_there = |named: Value| weights.last().is_some_and(|(name, _)| named == name[..]);
        Ok(if named.is_none_or(is_there) { None } else { Some(config_content(&config)) })
    }

    /// The configuration of converted weights, which are not quantized. Fails if loaders would not take them for those
    /// of the model.
    fn converted_config(&self, to: FloatDtype) -> Result<Content, String> {
        let mut config = self.parsed_config()?;
        if is_rotated(&config) {
            return Err(format!("{CONFIG} describes a rotation of the activations (transform_config)"));
        }
        let described_by = if describes_quantization(&config) { Some(CONFIG) } else { self.config.other };
        if let Some(name) = described_by.filter(|_| self.model.quantized.weights().is_empty()) {
            return Err(format!("{name} describes a quantization, but no quantized weights were found"));
        }
        convert_fields(&mut config, to);
        // diffusers has no such key, and warns of it.
        if !config.contains_key(DIFFUSERS_CLASS) {
            config.insert("dtype".into(), to.torch_name().into());
        }
        Ok(config_content(&config))
    }

    /// Fails for infinite numbers: Python writes and reads them as words that JSON does not have.
    fn parsed_config(&self) -> Result<Map<String, Value>, String> {
        let text = self.config.text.as_ref().map_err(Clone::clone)?;
        serde_json::from_slice(text).map_err(|error| format!("{CONFIG} cannot be written again: {error}"))
    }
}

fn config_content(config: &Map<String, Value>) -> Content {
    // Serializing a value that was parsed cannot fail.
    Content::literal((serde_json::to_string(config).unwrap_or_default() + "\n").into_bytes())
}

/// Why a part of a pipeline cannot be shown.
pub fn part_fault(part: &str, reason: &str) -> String {
    format!("part {}: {reason}", quote(part))
}

/// Whether nothing says that the model is quantized.
fn is_plain(model: &Model) -> bool {
    model.quantized.weights().is_empty() && model.quantized.warnings().is_empty()
}

/// Whether the model has numbers that can be converted.
fn has_floats(model: &Model) -> bool {
    let is_float = |id| !export::is_kept(model.tensor(id).info.dtype);
    !model.quantized.weights().is_empty() || model.logical().iter().any(is_float)
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
    if !has_readable_weights(model) {
        return Some(format!("{quoted} does not have weights in safetensors or PyTorch files"));
    }
    if model.left_out() > 0 {
        return Some(format!("parts of the model that were left out: {}", model.left_out()));
    }
    if model.files.len() == 1 && model::is_numbered(name) {
        return Some(format!("{quoted} is one of several files; name their index or their directory"));
    }
    // The name of a file, or of a set of tensors in it.
    let set = model.location.file_name();
    let is_of_training = |name: &OsStr| TRAINING.iter().any(|start| name.to_string_lossy().starts_with(start));
    if is_of_training(name) || set != name && (is_of_training(set) || set == EXTRA) {
        let quoted = quote(&if is_of_training(name) { name } else { set }.to_string_lossy());
        return Some(format!("{quoted} does not have the weights of a model"));
    }
    let is_of_training = |id: &TensorId| TRAINING_TENSORS.iter().any(|start| model.name(*id).starts_with(start));
    let tensor = quote(model.name(model.logical().iter().find(is_of_training)?));
    Some(format!("tensor {tensor} belongs to the state of a training"))
}

/// Fails if loaders would not take the dequantized weights for those of the model.
fn check_quantization(model: &Model) -> Result<(), String> {
    if let Some(warning) = model.quantized.warnings().first() {
        return Err(warning.to_string());
    }
    match model.quantized.weights().iter().find_map(|weight| Some((weight, unlike(weight)?))) {
        None => Ok(()),
        Some((weight, reason)) => {
            let name = quote(model.numbers(TensorId::new(weight.values), true).name());
            Err(format!("tensor {name}: {reason}"))
        }
    }
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

/// What a configuration says about the quantization.
fn quantizations(config: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    QUANTIZATION_KEYS.iter().filter_map(|key| config.get(*key))
}

/// Whether a configuration, or one in it, describes a quantization.
fn describes_quantization(config: &Map<String, Value>) -> bool {
    let mut parts = config.values().filter_map(Value::as_object);
    quantizations(config).any(|value| !is_empty(value)) || parts.any(describes_quantization)
}

/// Whether the configuration of compressed-tensors says that activations are rotated.
fn is_rotated(config: &Map<String, Value>) -> bool {
    let parts = quantizations(config).filter_map(|value| value.get("transform_config"));
    parts.filter_map(Value::as_object).any(|transforms| transforms.values().any(|value| !is_empty(value)))
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// Removes the description of the quantization from a configuration and from those in it, and sets the dtypes that they
/// state. The weights have other names now, too.
fn convert_fields(config: &mut Map<String, Value>, to: FloatDtype) {
    let has_dtype = ["dtype", "torch_dtype"].iter().any(|key| config.contains_key(*key));
    config.retain(|key, _| !QUANTIZATION_KEYS.contains(&&key[..]) && key != "torch_dtype" && key != NAMED_WEIGHTS);
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

/// Adds what is in a folder of the other files and what is made for it, and returns the number of the new folder if
/// there is anything. Loaders take every file with a suffix of weights for a part of the model, so those are left out.
/// Beside converted weights, so are the files that describe the quantization.
fn add_others(
    others: &OtherFiles,
    number: usize,
    tree: &mut ExportTree,
    parent: usize,
    (files, are_converted): (&mut MadeFiles, bool),
) -> Option<usize> {
    let folder = others.folder(number)?;
    let added = tree.add_folder(parent, folder.stat);
    let made = files.remove(&number).unwrap_or_default();
    let has_converted = are_converted && !made.is_empty();
    // The first of two files with the same name is kept.
    for (name, file) in made {
        tree.add_file(added, name, file);
    }
    let is_left_out = |name: &str| is_weights(name) || has_converted && model::configs().any(|config| config == name);
    for (name, entry) in folder.entries().iter().filter(|(name, _)| !is_left_out(name)) {
        match *entry {
            TreeEntry::File(file) => tree.add_file(added, name.clone(), ExportFile::Other(file)),
            TreeEntry::Folder(inner) => {
                if let Some(inner) = add_others(others, inner, tree, added, (files, are_converted)) {
                    tree.insert(added, name.clone(), TreeEntry::Folder(inner));
                }
            }
        }
    }
    tree.drop_empty_folder().then_some(added)
}

/// Whether anything of a folder of the other files is shown.
pub fn shows_any(others: &OtherFiles, folder: usize) -> bool {
    let entries = others.folder(folder).map_or(&[][..], |folder| folder.entries());
    entries.iter().any(|(name, entry)| match *entry {
        TreeEntry::File(_) => !is_weights(name),
        TreeEntry::Folder(inner) => !is_weights(name) && shows_any(others, inner),
    })
}

/// Whether programs take a file of that name, beside a model, for weights or an index of weights.
pub fn is_weights(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    WEIGHTS.iter().any(|end| lower.ends_with(end)) || model::index_stem(name.as_ref()).is_some()
}

/// The beginning of the names under which loaders look for the weights of a model whose library is not known.
pub fn stem_of(model: &Model) -> &'static str {
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
