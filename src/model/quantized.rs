//! The quantized weights of a model: reads what recognition needs, and finds weights by tensor and by name.

use super::error::Error;
use super::ids::TensorId;
use super::quantization::{self, Config, Recognised, Stored, Tensors, Warning, Weight};
use super::set;
use super::table::{Kind, Model};
use crate::source::{self, Location, Stat};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The configuration of a model, in its directory.
const CONFIG: &str = "config.json";

/// Files with the configuration of the quantization, if `config.json` has none: those of ModelOpt, and of old versions
/// of GPTQ and AWQ.
const OTHERS: [&str; 3] = ["hf_quant_config.json", "quantize_config.json", "quant_config.json"];

/// Maximum size of such a file in bytes. One with the parameters of every layer has some hundred kilobytes.
const CONFIG_MAX: u64 = 16 << 20;

/// The names of the files beside a model that may describe its quantization.
pub(super) fn configs() -> impl Iterator<Item = &'static str> {
    [CONFIG].into_iter().chain(OTHERS)
}

/// The quantized weights of a model.
#[derive(Debug)]
pub struct Quantized {
    number: u64,
    /// Sorted by the number of the tensor with the codes.
    weights: Vec<Weight>,
    /// The weights whose names are not those of tensors, by name.
    named: Vec<u32>,
    /// The tensors that belong to weights without being their codes, sorted, and the index of the weight.
    companions: Vec<(TensorId, u32)>,
    warnings: Vec<Warning>,
}

impl Default for Quantized {
    fn default() -> Self {
        Self::new(Recognised::default())
    }
}

impl Quantized {
    /// Finds the quantized weights of a model. Reads the configuration beside it and some small tensors, if the names
    /// and dtypes of its tensors look quantized. Also returns the permissions of the configuration.
    pub(super) fn of(model: &Model) -> Result<(Self, Vec<Stat>), Error> {
        // The numbers of the arrays of a dataset are data, not weights.
        if model.kind() == Kind::Dataset {
            return Ok(Default::default());
        }
        let logical = model.logical();
        let len = logical.iter().last().map_or(0, |last| last.index() + 1);
        let tensor = |index| match logical.contains(TensorId::new(index)) {
            true => stored(model, TensorId::new(index)),
            false => Stored { name: "", dtype: "", shape: &[], bytes: 0 },
        };
        let find = |name: &str| model.find(name).map(TensorId::index);
        if !quantization::may_be_quantized((0..len).map(tensor), |name| find(name).map(tensor)) {
            return Ok(Default::default());
        }
        let (config, needed) = config(model)?;
        let contents = contents(model, &quantization::wanted((0..len).map(tensor)))?;
        let contents = |index: usize| contents.get(&index).cloned();
        let tensors = Tensors { len, tensor: &tensor, find: &find, contents: &contents };
        Ok((Self::new(quantization::recognise(&tensors, &config)), needed))
    }

    fn new(Recognised { weights, warnings }: Recognised) -> Self {
        let mut named: Vec<u32> = (0..weights.len() as u32).filter(|at| weights[*at as usize].name.is_some()).collect();
        named.sort_by(|a, b| weights[*a as usize].name.cmp(&weights[*b as usize].name));
        let companions = (0..).zip(&weights);
        let companions = companions.flat_map(|(at, weight): (u32, _)| weight.companions().map(move |id| (id, at)));
        let mut companions: Vec<_> = companions.map(|(id, at)| (TensorId::new(id), at)).collect();
        companions.sort_unstable();
        companions.dedup_by_key(|companion| companion.0);
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { number, weights, named, companions, warnings }
    }

    /// A number that no other model of this process has.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The weights, sorted by the numbers of the tensors with their codes.
    pub fn weights(&self) -> &[Weight] {
        &self.weights
    }

    /// The weight whose codes are in a tensor.
    pub fn weight(&self, codes: TensorId) -> Option<&Weight> {
        let at = self.weights.binary_search_by_key(&codes.index(), |weight| weight.values).ok()?;
        Some(&self.weights[at])
    }

    /// The weight that a tensor belongs to without being its codes.
    pub fn owner(&self, companion: TensorId) -> Option<&Weight> {
        let at = self.companions.binary_search_by_key(&companion, |companion| companion.0).ok()?;
        Some(&self.weights[self.companions[at].1 as usize])
    }

    /// The tensor with the codes of the weight called `name`, if no tensor has that name.
    pub fn find(&self, name: &str) -> Option<TensorId> {
        let name_of = |at: &u32| self.weights[*at as usize].name.as_deref().unwrap_or_default();
        let at = self.named.binary_search_by(|at| name_of(at).cmp(name)).ok()?;
        Some(TensorId::new(self.weights[self.named[at] as usize].values))
    }

    /// What looks quantized and was not recognised.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// How many weights of which schemes there are, the most frequent first; `None` if there are none.
    pub fn summary(&self) -> Option<String> {
        let mut counts: Vec<(String, usize)> = Vec::new();
        let mut at: HashMap<String, usize> = HashMap::new();
        for weight in &self.weights {
            let at = *at.entry(weight.class.summary()).or_insert_with_key(|summary| {
                counts.push((summary.clone(), 0));
                counts.len() - 1
            });
            counts[at].1 += 1;
        }
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let one = |(summary, count): &(String, usize)| {
            format!("{count} {} ({summary})", if *count == 1 { "weight" } else { "weights" })
        };
        (!counts.is_empty()).then(|| counts.iter().map(one).collect::<Vec<_>>().join("; "))
    }

    /// The messages for users about what was not recognised.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.warnings.iter().map(|warning| format!("not dequantized: {warning}; {NOT_DEQUANTIZED}"))
    }
}

/// What a mount shows of weights that look quantized and were not recognised.
pub const NOT_DEQUANTIZED: &str =
    "npy/, f32/, stats/, plots/ and converted exports have their stored numbers, which are not the weights";

fn stored(model: &Model, id: TensorId) -> Stored<'_> {
    let info = model.tensor(id).info;
    Stored { name: info.name, dtype: info.dtype.name(), shape: info.shape, bytes: info.nbytes() }
}

/// Number of threads that read small tensors which are not on this machine.
const FETCHED_AT_ONCE: usize = 32;

/// The data of small tensors, by their numbers.
fn contents(model: &Model, wanted: &[usize]) -> Result<HashMap<usize, Vec<u8>>, source::Error> {
    let read = |index: usize| {
        let id = TensorId::new(index);
        let info = model.tensor(id).info;
        let mut bytes = vec![0; info.nbytes() as usize];
        model.source(model.shard_of(id)).read_exact_at(&mut bytes, info.range.start)?;
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
            // Without a thread, this one reads the share.
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

/// What the files beside the model and the metadata say about its quantization, and the permissions of these files.
fn config(model: &Model) -> Result<(Config, Vec<Stat>), Error> {
    let dir = model.main_file().parent();
    let mut needed = Vec::new();
    let mut read = |name: &str| -> Result<Option<Value>, Error> {
        let Some((value, stat)) = read(&dir.join(name))? else { return Ok(None) };
        needed.push(stat);
        Ok(Some(value))
    };
    let config = read(CONFIG)?;
    let mut found = Config::new(config.as_ref(), None);
    for other in OTHERS {
        if found.is_quantized() {
            break;
        }
        if let Some(other) = read(other)? {
            found = Config::new(config.as_ref(), Some(&other));
        }
    }
    let metadata = model.shards().iter().flat_map(|shard| shard.header.metadata());
    let comfy = metadata.filter(|(key, _)| key == quantization::COMFY_METADATA);
    Ok((comfy.fold(found, |config, (_, value)| config.with_comfy_metadata(value.text())), needed))
}

/// A JSON file and its permissions; `None` if there is none. A file that cannot be used is reported and left out, unless
/// another attempt may succeed.
fn read(location: &Location) -> Result<Option<(Value, Stat)>, Error> {
    if !source::exists(location) {
        return Ok(None);
    }
    let (text, stat) = match set::read_list(location, CONFIG_MAX) {
        Ok(read) => read,
        Err(error) if error.is_transient() => return Err(error),
        Err(error) => {
            log::warn!("{location}: ignored: {error}");
            return Ok(None);
        }
    };
    match serde_json::from_slice(&text) {
        Ok(value) => Ok(Some((value, stat))),
        Err(error) => {
            log::warn!("{location}: ignored: {error}");
            Ok(None)
        }
    }
}
