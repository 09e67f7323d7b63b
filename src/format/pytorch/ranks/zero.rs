//! The files of a ZeRO checkpoint of DeepSpeed: what the model has, and the flat vectors of float32 parameters of each
//! process.
//!
//! Source: `deepspeed/utils/zero_to_fp32.py` of DeepSpeed 0.19.

use super::{BOXES_MAX, BoxDims, RankLimits, RankPart, RankReader, quote, read_archive};
use crate::format::error::Error;
use crate::format::input::HeaderInput;
use crate::format::pickle::PickleValue;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Maximum number of groups of parameters, and of vectors of a process.
const GROUPS_MAX: usize = 1 << 16;

/// Maximum number of states of each parameter. Optimizers have at most four.
const STATES_MAX: usize = 16;

/// The name and the shape of a parameter.
#[derive(Debug)]
pub struct ZeroShape {
    pub name: String,
    pub shape: BoxDims,
}

/// What the file `…model_states.pt` says about a model.
#[derive(Debug)]
pub struct ZeroModelStates {
    /// The names and the values of the buffers.
    pub buffers: Vec<(String, RankPart)>,
    /// The parameters that are not trained, and what the file has of each.
    pub frozen: Vec<(ZeroShape, Option<RankPart>)>,
    /// The parameters of each group, in the order of the vectors.
    pub groups: Vec<Vec<ZeroShape>>,
    /// Other names of parameters, and the names of these.
    pub aliases: Vec<(String, String)>,
}

/// The file `…optim_states.pt` of one process.
#[derive(Debug, Clone)]
pub struct ZeroPartition {
    pub stage: u64,
    /// Number of processes.
    pub count: u64,
    /// Flat vectors: one for each group in stages 1 and 2, and those of all groups one after the other in stage 3.
    pub vectors: Vec<RankPart>,
    /// Number of elements after each parameter of each group that belong to no parameter, if there are any.
    pub paddings: Vec<Vec<u64>>,
}

/// Reads a file `…model_states.pt`. Of other processes than the first, only the parameters that are not trained are
/// read.
///
/// Fails with [`Error::Missing`] until the directory, the pickle and some local headers are in `input`.
pub fn parse_zero_model(input: &HeaderInput, limits: &RankLimits, is_first: bool) -> Result<ZeroModelStates, Error> {
    read_archive(input, limits, |reader, root| {
        let frozen = reader.frozen(root)?;
        if !is_first {
            return Ok(ZeroModelStates { frozen, buffers: Vec::new(), groups: Vec::new(), aliases: Vec::new() });
        }
        let shapes = reader.entry(root, "param_shapes")?.ok_or("it has no param_shapes")?;
        let module = reader.entries(reader.entry(root, "module")?, "module")?;
        let mut used = HashSet::new();
        let mut buffers = Vec::new();
        for value in reader.optional_list(reader.entry(root, "buffer_names")?, "buffer_names")? {
            let name = reader.tree.text(*value).ok_or("the name of a buffer is not a text")?;
            // A buffer that is not persistent is not there.
            let Some(value) = module.get(name).filter(|_| used.insert(name)) else { continue };
            let part = reader.plain(*value, "it").and_then(|tensor| reader.part(&tensor));
            let part = part.map_err(|fault| format!("tensor {}: {fault}", quote(name)))?;
            reader.take_boxes(1, part.shape.len())?;
            buffers.push((reader.name(name)?, part));
        }
        let mut groups = Vec::new();
        let listed = reader.list(shapes, "param_shapes")?;
        check_groups(listed.len())?;
        for group in listed {
            groups.push(reader.shapes(*group, "a group of param_shapes")?);
        }
        let aliases = reader.aliases(reader.entry(root, "shared_params")?.unwrap_or_default())?;
        Ok(ZeroModelStates { buffers, frozen, groups, aliases })
    })
}

/// Reads a file `…optim_states.pt`. The states of the optimizer are not looked at.
///
/// Fails with [`Error::Missing`] until the directory, the pickle and some local headers are in `input`.
pub fn parse_zero_partition(input: &HeaderInput, limits: &RankLimits) -> Result<ZeroPartition, Error> {
    read_archive(input, limits, |reader, root| {
        let (state, mut partition) = reader.partition(root)?;
        let key = if partition.stage == 3 { "fp32_flat_groups" } else { "single_partition_of_fp32_groups" };
        let vectors = reader.entry(state, key)?.ok_or_else(|| format!("it has no {key}"))?;
        let vectors = reader.list(vectors, key)?;
        check_groups(vectors.len())?;
        let vectors = vectors.iter().map(|value| {
            let vector = reader.plain(*value, key)?;
            match vector.shape.len() {
                1 => reader.part(&vector),
                rank => Err(format!("an array of {key} has {rank} dimensions instead of one")),
            }
        });
        partition.vectors = vectors.collect::<Result<Vec<_>, String>>()?;
        Ok(partition)
    })
}

/// Reads the states of the optimizer in a file `…optim_states.pt`: their names, such as `exp_avg`, and for each the
/// vectors that have the layout of those of the parameters. Values that are no vectors are left out.
///
/// Fails with [`Error::Missing`] until the directory, the pickle and some local headers are in `input`.
pub fn parse_zero_states(input: &HeaderInput, limits: &RankLimits) -> Result<Vec<(String, ZeroPartition)>, Error> {
    read_archive(input, limits, |reader, root| {
        let (state, partition) = reader.partition(root)?;
        let key = if partition.stage == 3 { "optimizer_state_dict" } else { "base_optimizer_state" };
        let base = reader.entry(state, key)?.ok_or_else(|| format!("it has no {key}"))?;
        let mut states: Vec<(String, ZeroPartition)> = Vec::new();
        for group in reader.state_groups(base)? {
            for (key, value) in reader.mapping(group, "the state of a group")?.items() {
                let (Some(key), Some(_)) = (reader.tree.text(key), reader.find_tensor(value)) else { continue };
                let vector = reader.plain(value, key)?;
                if vector.shape.len() != 1 {
                    continue;
                }
                reader.take_boxes(1, 1)?;
                let part = reader.part(&vector)?;
                match states.iter().position(|(known, _)| known == key) {
                    Some(at) => states[at].1.vectors.push(part),
                    None if states.len() == STATES_MAX => {
                        return Err(format!("more than {STATES_MAX} states of parameters"));
                    }
                    None => {
                        states.push((reader.name(key)?, ZeroPartition { vectors: vec![part], ..partition.clone() }));
                    }
                }
            }
        }
        match states.is_empty() {
            true => Err("it has no vectors of states of the optimizer".to_owned()),
            false => Ok(states),
        }
    })
}

fn check_groups(count: usize) -> Result<(), String> {
    if count > GROUPS_MAX {
        return Err(format!("{count} groups of parameters; at most {GROUPS_MAX} are read"));
    }
    Ok(())
}

impl<'t> RankReader<'t> {
    /// The state of a process, and what it says about the vectors, which are left out.
    fn partition(&self, root: PickleValue) -> Result<(PickleValue, ZeroPartition), String> {
        let state = self.entry(root, "optimizer_state_dict")?.ok_or("it has no optimizer_state_dict")?;
        let stage = self.stage(self.entry(state, "zero_stage")?.ok_or("it has no zero_stage")?)?;
        if !(1..=3).contains(&stage) {
            return Err(format!("ZeRO stage {stage} is not known"));
        }
        let count = self.count(self.entry(state, "partition_count")?.ok_or("it has no partition_count")?)?;
        let paddings = match self.entry(state, "param_alignment_paddings")? {
            Some(paddings) if stage != 3 && paddings != PickleValue::None => self.paddings(paddings)?,
            _ => Vec::new(),
        };
        Ok((state, ZeroPartition { stage, count, vectors: Vec::new(), paddings }))
    }

    /// The dict of states of each group, in their order: a list, or the state dict of an optimizer, in which every
    /// group is one parameter.
    fn state_groups(&self, base: PickleValue) -> Result<Vec<PickleValue>, String> {
        if let PickleValue::List(_) = base {
            let groups = self.tree.elements(base);
            check_groups(groups.len())?;
            return Ok(groups.to_vec());
        }
        let state = self.entry(base, "state")?.ok_or("the optimizer has no state")?;
        let mut groups = BTreeMap::new();
        for (key, group) in self.mapping(state, "the state of the optimizer")?.items() {
            groups.insert(self.number(key, "a key of the state of the optimizer")?, group);
            check_groups(groups.len())?;
        }
        match groups.keys().zip(0..).find(|(number, at)| **number != *at) {
            Some((_, at)) => Err(format!("the state of the optimizer has no group {at}")),
            None => Ok(groups.into_values().collect()),
        }
    }

    /// The value of a key of a dict.
    pub fn entry(&self, dict: PickleValue, key: &str) -> Result<Option<PickleValue>, String> {
        let items = self.mapping(dict, "what should have the entries of a checkpoint")?;
        // The last one counts, as in Python.
        Ok(items.items().filter(|(found, _)| self.tree.is_text(*found, key)).map(|(_, value)| value).last())
    }

    /// The values of a dict by their keys. Keys that are no texts are left out.
    fn entries(&self, value: Option<PickleValue>, what: &str) -> Result<HashMap<&'t str, PickleValue>, String> {
        let value = value.unwrap_or_default();
        if value == PickleValue::None {
            return Ok(HashMap::new());
        }
        let items = self.mapping(value, what)?;
        Ok(items.items().filter_map(|(key, value)| Some((self.tree.text(key)?, value))).collect())
    }

    /// A list that may be missing or `None`.
    fn optional_list(&self, value: Option<PickleValue>, what: &str) -> Result<&'t [PickleValue], String> {
        match value.unwrap_or_default() {
            PickleValue::None => Ok(&[]),
            value => self.list(value, what),
        }
    }

    /// The parameters that are not trained.
    fn frozen(&self, root: PickleValue) -> Result<Vec<(ZeroShape, Option<RankPart>)>, String> {
        let shapes = self.entry(root, "frozen_param_shapes")?.unwrap_or_default();
        if shapes == PickleValue::None {
            return Ok(Vec::new());
        }
        let fragments = self.entries(self.entry(root, "frozen_param_fragments")?, "frozen_param_fragments")?;
        let frozen = self.shapes(shapes, "frozen_param_shapes")?.into_iter().map(|shape| {
            let fragment = fragments.get(&shape.name[..]);
            let part = fragment.map(|value| self.plain(*value, "it").and_then(|tensor| self.part(&tensor))).transpose();
            let part = part.map_err(|fault| format!("tensor {}: {fault}", quote(&shape.name)))?;
            Ok((shape, part))
        });
        frozen.collect()
    }

    fn shapes(&self, value: PickleValue, what: &str) -> Result<Vec<ZeroShape>, String> {
        let mut shapes = Vec::new();
        for (key, value) in self.mapping(value, what)?.items() {
            let name = self.tree.text(key).ok_or("the name of a parameter is not a text")?;
            let shape = self.numbers(value, "a shape").map_err(|fault| format!("tensor {}: {fault}", quote(name)))?;
            self.take_boxes(1, shape.len())?;
            shapes.push(ZeroShape { name: self.name(name)?, shape });
        }
        Ok(shapes)
    }

    /// A dict, or a list of pairs.
    fn aliases(&self, value: PickleValue) -> Result<Vec<(String, String)>, String> {
        let pairs: Vec<(PickleValue, PickleValue)> = match value {
            PickleValue::None => Vec::new(),
            PickleValue::List(_) | PickleValue::Tuple(_) => {
                let pairs = self.tree.elements(value).iter().map(|pair| match self.tree.elements(*pair) {
                    [alias, name] => Ok((*alias, *name)),
                    _ => Err("shared_params has other values than pairs".to_owned()),
                });
                pairs.collect::<Result<_, String>>()?
            }
            _ => self.mapping(value, "shared_params")?.items().take(BOXES_MAX + 1).collect(),
        };
        let mut aliases = Vec::new();
        for (alias, name) in pairs {
            self.take_boxes(1, 0)?;
            let (Some(alias), Some(name)) = (self.tree.text(alias), self.tree.text(name)) else {
                return Err("shared_params has other values than names".to_owned());
            };
            aliases.push((self.name(alias)?, self.name(name)?));
        }
        Ok(aliases)
    }

    /// A number, or a member of the enumeration `ZeroStageEnum`.
    fn stage(&self, value: PickleValue) -> Result<u64, String> {
        let inner = self.tree.object(value).and_then(|object| self.tree.elements(object.args).first());
        self.number(inner.copied().unwrap_or(value), "zero_stage")
    }

    /// A number, or the largest of a list.
    fn count(&self, value: PickleValue) -> Result<u64, String> {
        let what = "partition_count";
        match value {
            PickleValue::List(_) | PickleValue::Tuple(_) => {
                let counts = self.tree.elements(value);
                check_groups(counts.len())?;
                let counts = counts.iter().map(|count| self.number(*count, what));
                Ok(counts.collect::<Result<Vec<_>, String>>()?.into_iter().max().unwrap_or(0))
            }
            _ => self.number(value, what),
        }
    }

    fn paddings(&self, value: PickleValue) -> Result<Vec<Vec<u64>>, String> {
        let what = "param_alignment_paddings";
        let groups = self.list(value, what)?;
        check_groups(groups.len())?;
        let mut paddings = Vec::new();
        for group in groups {
            let group = self.list(*group, what)?;
            self.take_boxes(group.len(), 0)?;
            paddings.push(group.iter().map(|padding| self.number(*padding, what)).collect::<Result<_, String>>()?);
        }
        Ok(paddings)
    }
}
