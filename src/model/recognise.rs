//! Finds the quantized weights of a model. Reads the configuration files and the small tensors that this needs; the
//! schemes themselves are in `quantization`.

use super::assemble::set;
use super::contradictions::{self, SAMPLE_BYTES};
use super::error::Error;
use super::ids::TensorId;
use super::population::TensorPopulation;
use super::prefix::PrefixChange;
use super::quantization::{self, QuantizationConfig, RecognisedWeights, SiteTensor, StoredTensors};
use super::quantized::QuantizedWeights;
use super::table::{DescribingFile, Model};
use crate::content::ReadRequest;
use crate::source::{self, Location};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

const CONFIG: &str = "config.json";

/// Files that describe the quantization if `config.json` does not: those of ModelOpt, and of old versions of GPTQ and
/// AWQ.
const OTHERS: [&str; 3] = ["hf_quant_config.json", "quantize_config.json", "quant_config.json"];

/// Maximum size of such a file in bytes. A file with parameters for every layer has some hundred kilobytes.
const CONFIG_MAX: u64 = 16 << 20;

/// The names of the files beside a model that may describe its quantization.
pub fn configs() -> impl Iterator<Item = &'static str> {
    [CONFIG].into_iter().chain(OTHERS)
}

impl Model {
    /// Finds the quantized weights. Call this once the name space is complete. Reads the configuration beside the model
    /// and some small tensors, if the names and dtypes of its tensors look quantized.
    pub(super) fn recognise(&mut self) -> Result<(), Error> {
        let mut tensors = LogicalTensors { model: self, logical: self.logical(), contents: HashMap::new() };
        if !self.form.holds_weights || !quantization::may_be_quantized(&tensors) {
            return Ok(());
        }
        let ReadConfigs { own, config, network, files } = read_configs(self)?;
        let found = match quantization::wanted(&tensors) {
            Ok(wanted) => {
                let all: Vec<(usize, u64)> =
                    wanted.iter().map(|index| (*index, tensors.tensor(*index).bytes)).collect();
                tensors.contents = read_contents(self, &all)?;
                let mut found = quantization::recognise_weights(&tensors, &config);
                contradictions::add_contradictions(&mut found, &tensors, &config);
                let samples = contradictions::zero_point_samples(&found, &tensors);
                let words: Vec<(usize, u64)> = samples.iter().map(|(_, zeros)| (*zeros, SAMPLE_BYTES)).collect();
                // They only serve a warning. What cannot be read will be an error where it is used.
                let words = read_contents(self, &words).unwrap_or_default();
                for (weight, zeros) in samples {
                    contradictions::check_sample(
                        &mut found,
                        weight,
                        words.get(&zeros).map_or(&[], Vec::as_slice),
                        &tensors,
                    );
                }
                found
            }
            Err(warnings) => RecognisedWeights { warnings, ..RecognisedWeights::default() },
        };
        self.quantized = QuantizedWeights::new(found);
        self.facts.described_by.extend(files);
        (self.facts.config, self.facts.network) = (own, network);
        Ok(())
    }

    /// The network that `config.json` beside the model names. A file on a server is not fetched for this alone.
    pub fn network(&self) -> Option<String> {
        self.facts.network.clone().or_else(|| named_network(&self.config()?))
    }

    /// Whether `config.json` beside the model says that the output layer has the weights of the embedding. A file on a
    /// server is not fetched for this alone.
    pub fn ties_embeddings(&self) -> bool {
        let Some(config) = self.config() else { return false };
        let configs = [Some(&config), config.get("text_config")];
        configs.into_iter().flatten().any(|config| config.get("tie_word_embeddings") == Some(&Value::Bool(true)))
    }

    /// The first layer that the quantization in `config.json` names, as it does those that are not quantized, and whose
    /// tensors get other names. A file on a server is not fetched for this alone.
    pub fn configured_layer(&self, change: &PrefixChange) -> Option<&str> {
        let config = self.config()?;
        let mut named = HashSet::new();
        for (key, value) in quantization::quantization_in(&config)? {
            named.insert(&**key);
            add_texts(value, &mut named);
        }
        let names = self.logical().iter().map(|id| self.name(id)).filter(|name| change.applies_to(name));
        names.flat_map(contradictions::layers).find(|layer| named.contains(layer))
    }

    fn config(&self) -> Option<Value> {
        let dir = self.main_file().parent();
        let text = match &self.facts.config {
            Some(text) => text.clone(),
            None if !self.form.holds_weights || dir.path().is_none() => return None,
            None => set::read_list(&dir.join(CONFIG), CONFIG_MAX).ok()?.0,
        };
        quantization::parse_config(&text).ok()
    }
}

/// The name of the network in `config.json` of transformers or, for a part of a pipeline, of diffusers.
fn named_network(config: &Value) -> Option<String> {
    ["model_type", "_class_name"].iter().find_map(|key| Some(config.get(key)?.as_str()?.to_owned()))
}

/// The contents of the configuration files of a model.
struct ReadConfigs {
    /// The text of `config.json`.
    own: Option<Vec<u8>>,
    config: QuantizationConfig,
    network: Option<String>,
    files: Vec<DescribingFile>,
}

/// The logical tensors of a model, by their numbers.
struct LogicalTensors<'m> {
    model: &'m Model,
    logical: TensorPopulation<'m>,
    contents: HashMap<usize, Vec<u8>>,
}

impl StoredTensors for LogicalTensors<'_> {
    fn count(&self) -> usize {
        self.logical.len().checked_sub(1).map_or(0, |last| self.logical.at(last).index() + 1)
    }

    fn tensor(&self, index: usize) -> SiteTensor<'_> {
        if !self.logical.contains(TensorId::new(index)) {
            return SiteTensor { index, name: "", dtype: "", shape: &[], bytes: 0 };
        }
        let info = self.model.tensor(TensorId::new(index)).info;
        SiteTensor { index, name: info.name, dtype: info.dtype.name(), shape: info.shape, bytes: info.nbytes }
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.model.find(name).map(TensorId::index)
    }

    fn contents(&self, index: usize) -> Option<&[u8]> {
        self.contents.get(&index).map(Vec::as_slice)
    }
}

const FETCHED_AT_ONCE: usize = 32;

/// The first bytes of tensors, which are given by their numbers with how many bytes are read.
fn read_contents(model: &Model, wanted: &[(usize, u64)]) -> Result<HashMap<usize, Vec<u8>>, Error> {
    let is_remote = model.sources().iter().any(|source| source.id().is_some_and(|(device, _)| source::is_tree(device)));
    let threads = if is_remote { FETCHED_AT_ONCE } else { 1 };
    let (first, rest) = wanted.split_at(wanted.len().div_ceil(threads));
    std::thread::scope(|scope| {
        let threads = rest.chunks(first.len().max(1)).map(|share| {
            let thread = std::thread::Builder::new().name("contents".into());
            (share, thread.spawn_scoped(scope, move || read_share(model, share)))
        });
        let threads: Vec<_> = threads.collect();
        let mut all: HashMap<usize, Vec<u8>> = read_share(model, first)?.into_iter().collect();
        for (share, thread) in threads {
            let done = thread.ok().and_then(|thread| thread.join().ok());
            // If the thread could not be started, the calling thread reads its share.
            all.extend(done.unwrap_or_else(|| read_share(model, share))?);
        }
        Ok(all)
    })
}

fn read_share(model: &Model, share: &[(usize, u64)]) -> Result<Vec<(usize, Vec<u8>)>, Error> {
    let read = share.iter().map(|(index, len)| {
        let tensor = model.tensor(TensorId::new(*index));
        let mut bytes = vec![0; *len as usize];
        model.data(&tensor).fill(&mut bytes, 0, &ReadRequest::WAIT)?;
        Ok((*index, bytes))
    });
    read.collect()
}

/// Adds all keys and strings in a JSON value. The parser bounds its depth.
fn add_texts<'v>(value: &'v Value, texts: &mut HashSet<&'v str>) {
    match value {
        Value::String(text) => drop(texts.insert(text)),
        Value::Array(values) => values.iter().for_each(|value| add_texts(value, texts)),
        Value::Object(entries) => {
            for (key, value) in entries {
                texts.insert(key);
                add_texts(value, texts);
            }
        }
        _ => {}
    }
}

/// The configuration in the files beside the model and in the metadata.
fn read_configs(model: &Model) -> Result<ReadConfigs, Error> {
    let dir = model.main_file().parent();
    let mut files = Vec::new();
    let (config, own) = read_config(&dir.join(CONFIG), &mut files)?.unzip();
    let mut found = QuantizationConfig::new(config.as_ref(), None);
    for other in OTHERS {
        if found.is_quantized {
            break;
        }
        if let Some((other, _)) = read_config(&dir.join(other), &mut files)? {
            found = QuantizationConfig::new(config.as_ref(), Some(&other));
        }
    }
    let metadata = model.files.iter().flat_map(|file| &file.header.metadata);
    let comfy = metadata.filter(|(key, _)| key == quantization::COMFY_METADATA);
    let network = config.as_ref().and_then(named_network);
    Ok(ReadConfigs {
        config: comfy.fold(found, |config, (_, value)| config.with_comfy_metadata(value.text())),
        own,
        network,
        files,
    })
}

/// The content and the text of a JSON file, which is added to `files`; `None` if it is absent or unusable. An unusable
/// file is logged. Fails if another attempt may succeed.
fn read_config(location: &Location, files: &mut Vec<DescribingFile>) -> Result<Option<(Value, Vec<u8>)>, Error> {
    if !source::exists(location) {
        return Ok(None);
    }
    let ignored = match set::read_list(location, CONFIG_MAX) {
        Ok((text, file)) => match quantization::parse_config(&text) {
            Ok(value) => {
                files.push(file);
                return Ok(Some((value, text)));
            }
            Err(error) => format!("{location}: ignored: {error}"),
        },
        Err(error) if error.is_transient() => return Err(error),
        // The error names the file.
        Err(error) => format!("ignored: {error}"),
    };
    log::warn!("{ignored}");
    Ok(None)
}
