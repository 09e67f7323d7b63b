//! Finds the quantized weights of a model. Reads the configuration files and the small tensors that this needs; the
//! schemes themselves are in `quantization`.

use super::assemble::set;
use super::error::Error;
use super::ids::TensorId;
use super::quantization::{self, QuantizationConfig, RecognisedWeights, SiteTensor, StoredTensors};
use super::quantized::QuantizedWeights;
use super::table::Model;
use crate::source::{self, Location, SourceStat};
use serde_json::Value;
use std::collections::HashMap;

/// The configuration of a model, in its directory.
const CONFIG: &str = "config.json";

/// Files that describe the quantization if `config.json` does not: those of ModelOpt, and of old versions of GPTQ and
/// AWQ.
const OTHERS: [&str; 3] = ["hf_quant_config.json", "quantize_config.json", "quant_config.json"];

/// Maximum size of such a file in bytes. A file with parameters for every layer has some hundred kilobytes.
const CONFIG_MAX: u64 = 16 << 20;

/// The names of the files beside a model that may describe its quantization.
pub(super) fn configs() -> impl Iterator<Item = &'static str> {
    [CONFIG].into_iter().chain(OTHERS)
}

impl Model {
    /// Finds the quantized weights. Call this once the name space is complete.
    pub(super) fn recognise(&mut self) -> Result<(), Error> {
        let (quantized, needed) = find_config(self)?;
        self.set_quantized(quantized);
        self.facts_mut().described_by.extend(needed);
        Ok(())
    }
}

/// Finds the quantized weights of a model. Reads the configuration beside it and some small tensors, if the names
/// and dtypes of its tensors look quantized. Also returns the permissions of the configuration.
fn find_config(model: &Model) -> Result<(QuantizedWeights, Vec<SourceStat>), Error> {
    if !model.form().holds_weights {
        return Ok(Default::default());
    }
    let logical = model.logical();
    let len = logical.iter().last().map_or(0, |last| last.index() + 1);
    let tensor = |index| match logical.contains(TensorId::new(index)) {
        true => stored(model, TensorId::new(index)),
        false => SiteTensor { name: "", dtype: "", shape: &[], bytes: 0 },
    };
    let find = |name: &str| model.find(name).map(TensorId::index);
    if !quantization::may_be_quantized((0..len).map(tensor), |name| find(name).map(tensor)) {
        return Ok(Default::default());
    }
    let (config, needed) = config(model)?;
    let wanted = match quantization::wanted((0..len).map(tensor), |name| find(name).is_some()) {
        Ok(wanted) => wanted,
        Err(warning) => {
            return Ok((
                QuantizedWeights::new(RecognisedWeights { warnings: vec![warning], ..Default::default() }),
                needed,
            ));
        }
    };
    let contents = contents(model, &wanted)?;
    let contents = |index: usize| contents.get(&index).map(Vec::as_slice);
    let tensors = StoredTensors { len, tensor: &tensor, find: &find, contents: &contents };
    Ok((QuantizedWeights::new(quantization::recognise_weights(&tensors, &config)), needed))
}

fn stored(model: &Model, id: TensorId) -> SiteTensor<'_> {
    let info = model.tensor(id).info;
    SiteTensor { name: info.name, dtype: info.dtype.name(), shape: info.shape, bytes: info.nbytes() }
}

/// Number of threads that read small tensors from a remote source.
const FETCHED_AT_ONCE: usize = 32;

/// The data of small tensors, by their numbers.
fn contents(model: &Model, wanted: &[usize]) -> Result<HashMap<usize, Vec<u8>>, source::Error> {
    let read = |index: usize| {
        let id = TensorId::new(index);
        let tensor = model.tensor(id);
        let mut bytes = vec![0; tensor.info.nbytes() as usize];
        model.data(&tensor).read_exact_at(&mut bytes, 0)?;
        Ok((index, bytes))
    };
    let is_remote = model.sources().iter().any(|source| source.id().is_some_and(|(device, _)| source::is_tree(device)));
    if !is_remote {
        return wanted.iter().map(|index| read(*index)).collect();
    }
    let share = wanted.len().div_ceil(FETCHED_AT_ONCE).max(1);
    std::thread::scope(|scope| {
        let read = |share: &[usize]| share.iter().map(|index| read(*index)).collect::<Result<Vec<_>, _>>();
        let (first, rest) = wanted.split_at(share.min(wanted.len()));
        let threads = rest.chunks(share).map(|share| {
            let thread = std::thread::Builder::new().name("contents".into());
            // If no thread can be started, the calling thread reads the share below.
            (share, thread.spawn_scoped(scope, move || read(share)))
        });
        let threads: Vec<_> = threads.collect();
        let mut all = read(first)?;
        for (share, thread) in threads {
            all.extend(match thread.map(|thread| thread.join()) {
                Ok(Ok(done)) => done?,
                Ok(Err(_)) | Err(_) => read(share)?,
            });
        }
        Ok(all.into_iter().collect())
    })
}

/// The configuration in the files beside the model and in the metadata, and the permissions of these files.
fn config(model: &Model) -> Result<(QuantizationConfig, Vec<SourceStat>), Error> {
    let dir = model.main_file().parent();
    let mut needed = Vec::new();
    let mut read = |name: &str| -> Result<Option<Value>, Error> {
        let Some((value, stat)) = read_needed_data(&dir.join(name))? else { return Ok(None) };
        needed.push(stat);
        Ok(Some(value))
    };
    let config = read(CONFIG)?;
    let mut found = QuantizationConfig::new(config.as_ref(), None);
    for other in OTHERS {
        if found.is_quantized() {
            break;
        }
        if let Some(other) = read(other)? {
            found = QuantizationConfig::new(config.as_ref(), Some(&other));
        }
    }
    let metadata = model.shards().iter().flat_map(|shard| shard.header.metadata());
    let comfy = metadata.filter(|(key, _)| key == quantization::COMFY_METADATA);
    Ok((comfy.fold(found, |config, (_, value)| config.with_comfy_metadata(value.text())), needed))
}

/// A JSON file and its permissions; `None` if the file is absent or unusable. An unusable file is logged. Fails if
/// another attempt may succeed.
fn read_needed_data(location: &Location) -> Result<Option<(Value, SourceStat)>, Error> {
    if !source::exists(location) {
        return Ok(None);
    }
    let (text, stat) = match set::read_list(location, CONFIG_MAX) {
        Ok(read) => read,
        Err(error) if error.is_transient() => return Err(error),
        Err(error) => {
            // The error names the file.
            log::warn!("ignored: {error}");
            return Ok(None);
        }
    };
    match quantization::parse_config(&text) {
        Ok(value) => Ok(Some((value, stat))),
        Err(error) => {
            log::warn!("{location}: ignored: {error}");
            Ok(None)
        }
    }
}
