//! `export/hf/` of a pipeline of diffusers: a folder that `DiffusionPipeline.from_pretrained` opens. It has the other
//! files of the directory, and one set of weights of each part under the names that its loader looks for. So have
//! `export/hf-bf16/` and `export/hf-f32/`, with converted weights.
//!
//! Source: `pipelines/pipeline_utils.py` and `pipelines/pipeline_loading_utils.py` of diffusers.

use super::export::ExportTree;
use super::hf::{self, FolderWeights, ModelConfig, part_fault};
use crate::content::{Content, Error, ReadRequest};
use crate::model::{Catalog, CatalogFolder, FolderId, FolderItem, Model, ModelId, PIPELINE, TreeEntry};
use crate::text::quote;
use serde_json::Value;
use std::ffi::OsStr;
use std::sync::Arc;

/// Maximum size of the file that names the parts, in bytes.
const INDEX_MAX: u64 = 1 << 20;

/// The names that diffusers looks for, in this order.
const OF_DIFFUSERS: [&str; 4] = [
    "diffusion_pytorch_model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.bin.index.json",
    "diffusion_pytorch_model.bin",
];

/// The names that transformers looks for, in this order. The parts of other libraries have these too.
const OF_TRANSFORMERS: [&str; 4] =
    ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"];

/// The library whose models have names of weights of their own.
const DIFFUSERS: &str = "diffusers";

const TRANSFORMERS: &str = "transformers";

/// A part of a pipeline that has weights.
#[derive(Debug)]
pub struct PipelinePart {
    /// The name of its folder.
    pub name: String,
    library: String,
    /// The set of weights that is shown.
    pub weights: ModelId,
    /// Its folder and its configuration, by their numbers among the other files.
    folder: usize,
    config: usize,
}

impl PipelinePart {
    /// The weights of the part, which are those of this model. At most `left` bytes of its configuration are kept, and
    /// their number is subtracted. Fails only if it can be read later.
    pub fn folder_weights(
        &self,
        catalog: &Catalog,
        model: &Arc<Model>,
        left: &mut u64,
        request: &ReadRequest,
    ) -> Result<FolderWeights, Error> {
        let stem = match &self.library[..] {
            DIFFUSERS => hf::DIFFUSERS,
            TRANSFORMERS => "model",
            _ => hf::stem_of(model),
        };
        let config = ModelConfig::read(model, catalog.others(), (self.folder, self.config), left, request)?;
        let (folder, part) = (self.folder, Some((self.name.clone(), self.weights)));
        Ok(FolderWeights { model: model.clone(), stem, folder, config, part })
    }
}

/// The content of the file that names the parts.
pub fn pipeline_index(catalog: &Catalog) -> Result<Content, String> {
    if catalog.lacks_others {
        return Err("the directory has more files that are not models than are shown".to_owned());
    }
    let others = catalog.others();
    let index = match others.folder(0).and_then(|top| top.find(PIPELINE)) {
        Some(TreeEntry::File(number)) => others.file(number).map(|file| file.content()),
        _ => None,
    };
    let index = index.ok_or_else(|| format!("{PIPELINE} is not a file of the directory"))?;
    match index.len() {
        ..=INDEX_MAX => Ok(index),
        len => Err(format!("{PIPELINE} has {len} bytes; at most {INDEX_MAX} are read")),
    }
}

/// The parts with weights of a pipeline whose file of parts has this text.
pub fn pipeline_parts(catalog: &Catalog, text: &[u8]) -> Result<Vec<PipelinePart>, String> {
    let index: Value = serde_json::from_slice(text).map_err(|error| format!("{PIPELINE}: {error}"))?;
    let index = index.as_object().ok_or_else(|| format!("{PIPELINE} is not a JSON object"))?;
    let mut parts = Vec::new();
    for (name, value) in index {
        // A part that the pipeline does without has null instead of library and class. Other values are options.
        let [Value::String(library), Value::String(_)] = value.as_array().map_or(&[][..], Vec::as_slice) else {
            continue;
        };
        if name.is_empty() || name.contains('/') || [".", ".."].contains(&&name[..]) {
            return Err(format!("{PIPELINE}: part {} does not have the name of a folder", quote(name)));
        }
        let part = pipeline_part(catalog, name, library).map_err(|reason| part_fault(name, &reason))?;
        parts.extend(part);
    }
    match parts.is_empty() {
        true => Err(format!("{PIPELINE} names no part with weights")),
        false => Ok(parts),
    }
}

/// A part, if it has weights. Fails if its files cannot be shown.
fn pipeline_part(catalog: &Catalog, name: &str, library: &str) -> Result<Option<PipelinePart>, String> {
    if hf::is_weights(name) {
        return Err("a folder of that name is left out, because its name is like that of weights".to_owned());
    }
    let weights = part_weights(catalog, name, library)?;
    let others = catalog.others();
    let folder = match others.folder(0).and_then(|top| top.find(name)) {
        Some(TreeEntry::Folder(folder)) => Some(folder),
        _ => None,
    };
    let Some(weights) = weights else {
        return match folder.is_some_and(|folder| hf::shows_any(others, folder)) {
            true => Ok(None),
            false => Err("it has no files, or only links".to_owned()),
        };
    };
    match folder.and_then(|folder| Some((folder, hf::config_in(others, folder)?))) {
        Some((folder, config)) => {
            Ok(Some(PipelinePart { name: name.to_owned(), library: library.to_owned(), weights, folder, config }))
        }
        None => Err("its directory has no config.json".to_owned()),
    }
}

/// The set of weights of a part that its loader would read, if it has any. If none has the name that the loader looks
/// for, it is the only one.
fn part_weights(catalog: &Catalog, name: &str, library: &str) -> Result<Option<ModelId>, String> {
    let top = catalog.folder(FolderId::new(0));
    let folder = match top.and_then(|top| top.find(OsStr::new(name))) {
        Some((FolderItem::Folder(folder), _)) => catalog.folder(folder),
        Some((FolderItem::Link(_), _)) => return Err("not a directory, or one that is shown elsewhere".to_owned()),
        Some((FolderItem::Unreadable(number), false)) => {
            return Err(catalog.unreadable_at(number).map_or_else(String::new, |(reason, _)| reason.to_owned()));
        }
        _ => None,
    };
    let Some(folder) = folder else { return Ok(None) };
    let sets = sets_of_weights(catalog, folder);
    let names = if library == DIFFUSERS { OF_DIFFUSERS } else { OF_TRANSFORMERS };
    if let Some((_, model)) = names.iter().find_map(|wanted| sets.iter().find(|(name, _)| name == wanted)) {
        return Ok(Some(*model));
    }
    let safetensors: Vec<_> = sets.iter().filter(|(name, _)| name.contains(".safetensors")).cloned().collect();
    let sets = if safetensors.is_empty() { sets } else { safetensors };
    match &sets[..] {
        [] => Ok(None),
        [(_, model)] => Ok(Some(*model)),
        [(first, _), (second, _), ..] => Err(format!(
            "{} sets of weights, such as {} and {}, and none has the name that loaders look for",
            sets.len(),
            quote(first),
            quote(second)
        )),
    }
}

/// The models of a folder, by the names of their files.
fn sets_of_weights(catalog: &Catalog, folder: &CatalogFolder) -> Vec<(String, ModelId)> {
    folder.models().map(|model| (catalog.model(model).file_name().to_string_lossy().into_owned(), model)).collect()
}

/// The files of `export/`, from the weights of the parts. See `hf::add_folders`.
pub fn pipeline_tree(catalog: &Catalog, parts: &[FolderWeights], dequantized: bool) -> ExportTree {
    let mut tree = ExportTree::default();
    tree.add_folder(0, None);
    let dir = catalog.folder(FolderId::new(0)).map_or(OsStr::new(""), |top| top.location.file_name());
    hf::add_folders((catalog.others(), dir), parts, dequantized, &mut tree);
    tree
}
