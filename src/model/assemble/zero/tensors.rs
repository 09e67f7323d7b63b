//! The tensors of a checkpoint of DeepSpeed ZeRO: parts of the vectors that consist of all parameters.

use super::names::ZeroName;
use crate::format::pytorch::{RankPart, ZeroModelStates, ZeroPartition, ZeroShape};
use crate::model::assemble::set::{SHARDS_MAX, SetMismatches};
use crate::model::assembled::{SourcePart, TensorAssembly};
use crate::model::ids::ModelFileId;
use crate::model::table::Model;
use crate::text::{brackets, quote};
use std::borrow::Cow;
use std::collections::HashMap;

/// Maximum number of parts of vectors that all parameters consist of.
const PARTS_MAX: usize = 4 << 20;

/// Maximum number of bytes of the names of all tensors.
const TEXT_MAX: usize = 1 << 30;

/// A file of a checkpoint.
pub(super) enum ZeroFile {
    Model(ZeroModelStates),
    Partition(ZeroPartition),
    /// The states of the optimizer, by their names.
    States(Vec<(String, ZeroPartition)>),
}

impl ZeroFile {
    /// Whether it has parts that no other process has. Directories of links may have one file for all equal ones.
    pub fn is_of_one_rank(&self) -> bool {
        match self {
            Self::Model(states) => !states.frozen.is_empty(),
            Self::Partition(_) | Self::States(_) => true,
        }
    }

    /// The part of the vectors of a state of the optimizer, or else of the parameters.
    fn partition(&self, state: Option<&str>) -> Option<&ZeroPartition> {
        match (self, state) {
            (Self::Partition(partition), None) => Some(partition),
            (Self::States(states), Some(state)) => {
                states.iter().find(|(name, _)| name == state).map(|(_, partition)| partition)
            }
            _ => None,
        }
    }
}

/// The names of the states that any file has.
pub(super) fn names_of_states(parsed: &[ZeroFile]) -> Vec<Option<&str>> {
    let mut names = Vec::new();
    for file in parsed {
        if let ZeroFile::States(states) = file {
            let others = states.iter().map(|(name, _)| Some(&name[..])).filter(|name| !names.contains(name));
            names.extend(others.collect::<Vec<_>>());
        }
    }
    names
}

/// The opened files of a checkpoint, with their numbers in the model.
pub(super) struct ZeroCheckpoint<'z> {
    pub stage: u64,
    /// Number of processes.
    pub world: usize,
    /// By the numbers of the processes. In stages 1 and 2, there is one.
    models: HashMap<usize, (usize, &'z ZeroModelStates)>,
    partitions: HashMap<usize, (usize, &'z ZeroPartition)>,
    /// The state of the optimizer that the vectors have, if they do not have the parameters.
    pub state: Option<&'z str>,
    /// The name of each file, for messages.
    names: Vec<String>,
}

impl<'z> ZeroCheckpoint<'z> {
    pub fn new(
        model: &Model,
        opened: &[(ZeroName, usize)],
        parsed: &'z [ZeroFile],
        state: Option<&'z str>,
    ) -> Result<Self, String> {
        let names: Vec<String> = model.files.iter().map(|file| quote(&file.name)).collect();
        let (mut whole, mut models, mut partitions) = (None, HashMap::new(), HashMap::new());
        for (name, file) in opened.iter().copied() {
            match (&parsed[file], name.rank) {
                (ZeroFile::Model(states), None) => whole = Some((file, states)),
                (ZeroFile::Model(states), Some(rank)) => _ = models.insert(rank, (file, states)),
                (found, rank) => {
                    let partition = found.partition(state).ok_or_else(|| {
                        format!("{} has no vectors of the state {}", names[file], quote(state.unwrap_or_default()))
                    })?;
                    partitions.insert(rank.unwrap_or_default(), (file, partition));
                }
            }
        }
        let least = partitions.keys().min().and_then(|rank| partitions.get(rank));
        let Some((first, ZeroPartition { stage, count, .. })) = least.copied() else {
            return Err("none of its files of optimizer states can be read".to_owned());
        };
        if let Some((other, found)) = partitions.values().find(|(_, one)| (one.stage, one.count) != (*stage, *count)) {
            let (a, b) = (&names[first], &names[*other]);
            return Err(format!(
                "{a} is of ZeRO stage {stage} and {count} ranks, and {b} of stage {} and {} ranks",
                found.stage, found.count
            ));
        }
        let world = usize::try_from(*count).ok().filter(|world| (1..=SHARDS_MAX).contains(world));
        let world = world.ok_or_else(|| format!("has {count} ranks; at most {SHARDS_MAX} are opened"))?;
        let last = partitions.keys().chain(models.keys()).max().copied().unwrap_or(0);
        if last >= world {
            return Err(format!("has a file of rank {last}, although there are {world} ranks"));
        }
        if *stage != 3 {
            models = whole.into_iter().map(|states| (0, states)).collect();
        }
        if !models.contains_key(&0) {
            let name = if *stage == 3 { "zero_pp_rank_0_mp_rank_00" } else { "mp_rank_00" };
            return Err(format!("{name}_model_states.pt is missing or broken, which describes the model"));
        }
        Ok(Self { stage: *stage, world, models, partitions, state, names })
    }

    /// The names of the files of all processes that are missing. `listed` are those that are there.
    pub fn missing(&self, listed: &HashMap<usize, &str>) -> Vec<String> {
        let partitions = (0..self.world).filter(|rank| !listed.contains_key(rank));
        let partitions = partitions.map(|rank| format!("zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"));
        let models = (0..self.world).filter(|rank| self.stage == 3 && !self.models.contains_key(rank));
        partitions.chain(models.map(|rank| format!("zero_pp_rank_{rank}_mp_rank_00_model_states.pt"))).collect()
    }

    /// All parts of files that it may use, with the numbers of these.
    pub fn parts(&self) -> impl Iterator<Item = (usize, &'z RankPart)> {
        let vectors =
            self.partitions.values().flat_map(|(file, one)| one.vectors.iter().map(move |part| (*file, part)));
        let others = self.models.values().flat_map(|(file, states)| {
            let buffers = states.buffers.iter().map(|(_, part)| part);
            let frozen = states.frozen.iter().filter_map(|(_, part)| part.as_ref());
            buffers.chain(frozen).map(move |part| (*file, part))
        });
        vectors.chain(others)
    }

    /// Adds all tensors. Fails if the files do not fit each other.
    pub fn add_tensors(&self, tensors: &mut ZeroTensors<'_, 'z>, mismatches: &mut SetMismatches) -> Result<(), String> {
        let (file, states) = self.models[&0];
        tensors.state = self.state;
        if self.state.is_none() {
            self.add_whole((file, states), tensors, mismatches)?;
        }
        let vectors = match self.stage {
            3 => self.joined_vectors(tensors.assembly).map(|vectors| vec![vectors]),
            _ => self.group_vectors(states.groups.len(), tensors.assembly),
        };
        match vectors {
            Ok(vectors) => self.add_trained(states, &vectors, tensors)?,
            Err(fault) => {
                for ZeroShape { name, .. } in states.groups.iter().flatten() {
                    let name = tensors.name(name)?;
                    mismatches.push(&name, || format!("tensor {}: {fault}", quote(&name)));
                }
            }
        }
        for (alias, name) in states.aliases.iter().filter(|_| self.state.is_none()) {
            tensors.push_alias(alias, name)?;
        }
        Ok(())
    }

    /// Adds the buffers, and the parameters that are not trained.
    fn add_whole(
        &self,
        (file, states): (usize, &ZeroModelStates),
        tensors: &mut ZeroTensors,
        mismatches: &mut SetMismatches,
    ) -> Result<(), String> {
        for (name, part) in &states.buffers {
            let data = tensors.assembly.stored(ModelFileId::new(file), &part.stored(name));
            tensors.push(name, part, &part.shape, vec![data])?;
        }
        let frozen = self.frozen_parts();
        for (ZeroShape { name, shape }, _) in &states.frozen {
            if let Err(fault) = self.add_frozen(name, shape, &frozen, tensors) {
                mismatches.push(name, || format!("tensor {}: {fault}", quote(name)));
            }
        }
        Ok(())
    }

    /// What each process has of the parameters that are not trained.
    fn frozen_parts(&self) -> FrozenParts<'z> {
        let all = self.models.iter().map(|(rank, (file, states))| {
            let parts = states.frozen.iter().filter_map(|(shape, part)| Some((&shape.name[..], part.as_ref()?)));
            (*rank, (*file, parts.collect()))
        });
        all.collect()
    }

    /// Adds a parameter that is not trained. In stage 3, each process has a part of it.
    fn add_frozen(
        &self,
        name: &str,
        shape: &[u64],
        frozen: &FrozenParts,
        tensors: &mut ZeroTensors,
    ) -> Result<(), String> {
        let needed = elements(shape)?;
        let (mut data, mut found, mut first) = (Vec::new(), 0u64, None);
        let ranks = if self.stage == 3 { self.world } else { 1 };
        for rank in 0..ranks {
            let (file, parts) = frozen.get(&rank).ok_or_else(|| format!("the file of rank {rank} is missing"))?;
            let of = &self.names[*file];
            let part = *parts.get(name).ok_or_else(|| format!("{of} has no part of it"))?;
            let first: &RankPart = first.get_or_insert(part);
            if part.dtype != first.dtype {
                return Err(format!("it is {} in {of}, and {} elsewhere", part.dtype.quoted(), first.dtype.quoted()));
            }
            found = found.saturating_add(part.elements());
            data.push(tensors.assembly.stored(ModelFileId::new(*file), &part.stored(name)));
        }
        let Some(first) = first.filter(|_| if self.stage == 3 { found >= needed } else { found == needed }) else {
            let shape = brackets(shape);
            return Err(format!("its parts have {found} elements, and its shape {shape} has {needed}"));
        };
        let vector = FlatVector::new(data);
        let len = needed.checked_mul(element_size(first)?).ok_or("it is too long")?;
        let data = vector.cut(0, len)?;
        tensors.push(name, first, shape, data)
    }

    /// The vectors of each group over all processes, in stages 1 and 2.
    fn group_vectors(&self, groups: usize, assembly: &mut TensorAssembly) -> Result<Vec<Vec<FlatVector>>, String> {
        let mut vectors: Vec<Vec<SourcePart>> = vec![Vec::new(); groups];
        for rank in 0..self.world {
            let (file, partition) = self.partition(rank)?;
            let (found, name) = (partition.vectors.len(), &self.names[file]);
            if found != groups {
                return Err(format!("{name} has {found} vectors, and the model {groups} groups of parameters"));
            }
            for (vector, part) in vectors.iter_mut().zip(&partition.vectors) {
                self.check_dtype(file, part)?;
                vector.push(assembly.stored(ModelFileId::new(file), &part.stored("")));
            }
        }
        Ok(vectors.into_iter().map(|parts| vec![FlatVector::new(parts)]).collect())
    }

    /// The vectors of each process, with those of all groups one after the other, in stage 3.
    fn joined_vectors(&self, assembly: &mut TensorAssembly) -> Result<Vec<FlatVector>, String> {
        let mut vectors = Vec::new();
        for rank in 0..self.world {
            let (file, partition) = self.partition(rank)?;
            let mut parts = Vec::new();
            for part in &partition.vectors {
                self.check_dtype(file, part)?;
                parts.push(assembly.stored(ModelFileId::new(file), &part.stored("")));
            }
            vectors.push(FlatVector::new(parts));
        }
        Ok(vectors)
    }

    fn partition(&self, rank: usize) -> Result<(usize, &'z ZeroPartition), String> {
        self.partitions.get(&rank).copied().ok_or_else(|| format!("a file of rank {rank} is missing or broken"))
    }

    fn check_dtype(&self, file: usize, part: &RankPart) -> Result<(), String> {
        match self.first_vector().filter(|first| first.dtype != part.dtype) {
            Some(first) => {
                let (found, expected) = (part.dtype.quoted(), first.dtype.quoted());
                Err(format!("a vector in {} is {found}, and another one {expected}", self.names[file]))
            }
            None => Ok(()),
        }
    }

    fn first_vector(&self) -> Option<&'z RankPart> {
        (0..self.world).find_map(|rank| self.partitions.get(&rank)?.1.vectors.first())
    }

    /// Adds the parameters that are trained.
    fn add_trained(
        &self,
        states: &ZeroModelStates,
        vectors: &[Vec<FlatVector>],
        tensors: &mut ZeroTensors,
    ) -> Result<(), String> {
        let Some(part) = self.first_vector() else {
            return match states.groups.iter().flatten().next() {
                Some(ZeroShape { name, .. }) => Err(format!("no vector has tensor {}", quote(name))),
                None => Ok(()),
            };
        };
        let size = element_size(part)?;
        let paddings = self.partitions.get(&0).map_or(&[][..], |(_, partition)| &partition.paddings);
        // In stage 3, all groups are in the same vectors.
        let mut at = 0;
        for (number, group) in states.groups.iter().enumerate() {
            let vectors = if self.stage == 3 { &vectors[0] } else { &vectors[number] };
            let paddings = paddings.get(number).filter(|_| self.stage != 3);
            at = if self.stage == 3 { at } else { 0 };
            for (index, ZeroShape { name, shape }) in group.iter().enumerate() {
                let tensor_fault = |fault: String| format!("tensor {}: {fault}", quote(name));
                let count = elements(shape).map_err(tensor_fault)?;
                let each = count.div_ceil(vectors.len().max(1) as u64);
                let mut data = Vec::new();
                for (rank, vector) in vectors.iter().enumerate() {
                    let start = each.saturating_mul(rank as u64);
                    if start >= count {
                        break;
                    }
                    let len = each.min(count - start).checked_mul(size);
                    let start = u64::checked_mul(at, size);
                    let (start, len) = start.zip(len).ok_or_else(|| tensor_fault("it is too long".to_owned()))?;
                    data.extend(vector.cut(start, len).map_err(tensor_fault)?);
                }
                tensors.push(name, part, shape, data)?;
                let padding = paddings.and_then(|paddings| paddings.get(index)).copied().unwrap_or(0);
                at = at.checked_add(each).and_then(|at| at.checked_add(padding)).ok_or("its vectors are too long")?;
            }
            if self.stage != 3 {
                let unit = 2 * self.world as u64;
                let len: u64 = vectors.iter().map(|vector| vector.len / size).sum();
                if at.div_ceil(unit) != len.div_ceil(unit) {
                    return Err(format!(
                        "the parameters of group {number} have {at} elements, and its vectors {len}, which differs by more \
                         than what fills a multiple of {unit}"
                    ));
                }
            }
        }
        let is_wrong = |vector: &&FlatVector| vector.len / size != at;
        match vectors.first().filter(|_| self.stage == 3).and_then(|vectors| vectors.iter().find(is_wrong)) {
            Some(vector) => {
                let len = vector.len / size;
                Err(format!("the parameters have {at} elements in each rank, and the vectors of one {len}"))
            }
            None => Ok(()),
        }
    }
}

/// Parts of files, one after the other.
struct FlatVector {
    parts: Vec<SourcePart>,
    /// The position of the end of each part in the vector, in bytes.
    ends: Vec<u64>,
    len: u64,
}

impl FlatVector {
    fn new(parts: Vec<SourcePart>) -> Self {
        let mut len = 0u64;
        let ends = parts.iter().map(|(_, range)| {
            len = len.saturating_add(range.end - range.start);
            len
        });
        let ends = ends.collect();
        Self { parts, ends, len }
    }

    /// The parts of files that have `len` bytes from a position on.
    fn cut(&self, start: u64, len: u64) -> Result<Vec<SourcePart>, String> {
        let end = start.checked_add(len).filter(|end| *end <= self.len);
        let end = end.ok_or_else(|| {
            format!("its {len} bytes at byte {start} of a vector go beyond its end, at byte {}", self.len)
        })?;
        let first = self.ends.partition_point(|end| *end <= start);
        let mut cut = Vec::new();
        for ((source, range), part_end) in self.parts.iter().zip(&self.ends).skip(first) {
            let part_start = part_end - (range.end - range.start);
            if part_start >= end {
                break;
            }
            let (from, to) = (start.max(part_start) - part_start, end.min(*part_end) - part_start);
            if from < to {
                cut.push((*source, range.start + from..range.start + to));
            }
        }
        Ok(cut)
    }
}

/// By the numbers of processes: the number of a file, and its parts of parameters by their names.
type FrozenParts<'z> = HashMap<usize, (usize, HashMap<&'z str, &'z RankPart>)>;

/// By the names of tensors: a part with the dtype, the shape, and the data.
type AddedTensors = HashMap<String, (RankPart, Vec<u64>, Vec<SourcePart>)>;

/// The tensors that were added.
pub(super) struct ZeroTensors<'a, 'z> {
    assembly: &'a mut TensorAssembly,
    added: AddedTensors,
    /// Number of parts of all of them.
    parts: usize,
    /// Number of bytes of the names of all states of the optimizer.
    text: usize,
    /// The state of the optimizer that the tensors have now, if they are not the parameters.
    state: Option<&'z str>,
}

impl<'a> ZeroTensors<'a, '_> {
    pub fn new(assembly: &'a mut TensorAssembly) -> Self {
        Self { assembly, added: HashMap::new(), parts: 0, text: 0, state: None }
    }

    /// The name of a tensor that belongs to a parameter. That of a state is the one that PyTorch gives it in a
    /// flattened state dict of an optimizer.
    fn name<'n>(&mut self, parameter: &'n str) -> Result<Cow<'n, str>, String> {
        let Some(state) = self.state else { return Ok(parameter.into()) };
        let name = format!("state.{parameter}.{state}");
        self.text = self.text.saturating_add(name.len());
        match self.text > TEXT_MAX {
            true => Err(format!("the names of its tensors have more than {} MiB", TEXT_MAX >> 20)),
            false => Ok(name.into()),
        }
    }

    /// Adds a tensor of the dtype of a part.
    fn push(&mut self, parameter: &str, like: &RankPart, shape: &[u64], data: Vec<SourcePart>) -> Result<(), String> {
        let name = &*self.name(parameter)?;
        self.parts += data.len();
        if self.parts > PARTS_MAX {
            return Err(format!("its parameters have more than {PARTS_MAX} parts"));
        }
        if self.added.contains_key(name) {
            return Err(format!("two tensors are called {}", quote(name)));
        }
        let pushed = self.assembly.push(name, like.dtype, shape, data.iter().cloned());
        pushed.map_err(|fault| format!("tensor {}: {fault}", quote(name)))?;
        self.added.insert(name.to_owned(), (like.clone(), shape.to_vec(), data));
        Ok(())
    }

    /// Adds another name of a tensor. One of a tensor that is not there is left out, as DeepSpeed does. A name that has
    /// values of its own keeps them, so that none is lost; DeepSpeed would write those of the other tensor over them.
    fn push_alias(&mut self, alias: &str, name: &str) -> Result<(), String> {
        match self.added.get(name).cloned() {
            Some((like, shape, data)) if !self.added.contains_key(alias) => self.push(alias, &like, &shape, data),
            _ => Ok(()),
        }
    }
}

/// The size of an element in bytes.
fn element_size(part: &RankPart) -> Result<u64, String> {
    let block = part.dtype.block().filter(|block| block.elements == 1);
    block.map(|block| block.bytes).ok_or_else(|| format!("its dtype is {}, of unknown size", part.dtype.quoted()))
}

fn elements(shape: &[u64]) -> Result<u64, String> {
    let count = shape.iter().try_fold(1u64, |count, dim| count.checked_mul(*dim));
    count.ok_or_else(|| format!("its shape {} is too large", brackets(shape)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{MemorySource, Source};
    use std::ops::Range;
    use std::sync::Arc;

    #[test]
    fn vectors_are_cut_at_the_ends_of_their_parts() {
        let vector = FlatVector::new(vec![(0, 100..110), (1, 5..5), (2, 0..4)]);
        assert_eq!(vector.len, 14);
        assert_eq!(vector.cut(0, 14).unwrap(), [(0, 100..110), (2, 0..4)]);
        assert_eq!(vector.cut(8, 4).unwrap(), [(0, 108..110), (2, 0..2)]);
        assert_eq!(vector.cut(10, 4).unwrap(), [(2, 0..4)]);
        assert_eq!(vector.cut(14, 0).unwrap(), []);
        for (start, len) in [(0, 15), (14, 1), (u64::MAX, 2)] {
            assert!(vector.cut(start, len).unwrap_err().contains("beyond its end, at byte 14"), "{start} {len}");
        }
    }

    fn shapes(list: &[(&str, &[u64])]) -> Vec<ZeroShape> {
        list.iter().map(|(name, shape)| ZeroShape { name: (*name).to_owned(), shape: (*shape).into() }).collect()
    }

    /// The tensors of a checkpoint of two ranks, whose files 0 and 1 have the vectors, and the faults of those that are
    /// left out.
    fn tensors(
        stage: u64,
        models: &[ZeroModelStates],
        partitions: &[ZeroPartition],
    ) -> Result<(HashMap<String, Vec<SourcePart>>, SetMismatches), String> {
        let sources = (0..2).map(|_| Arc::new(MemorySource::new(vec![0; 1000])) as Arc<dyn Source>).collect();
        let checkpoint = ZeroCheckpoint {
            stage,
            world: 2,
            models: models.iter().enumerate().map(|(at, states)| (at, (at, states))).collect(),
            partitions: partitions.iter().enumerate().map(|(at, partition)| (at, (at, partition))).collect(),
            state: None,
            names: vec!["\"a\"".to_owned(), "\"b\"".to_owned()],
        };
        let (mut assembly, mut mismatches) = (TensorAssembly::new(&sources), SetMismatches::default());
        let mut tensors = ZeroTensors::new(&mut assembly);
        checkpoint.add_tensors(&mut tensors, &mut mismatches)?;
        Ok((tensors.added.into_iter().map(|(name, (_, _, data))| (name, data)).collect(), mismatches))
    }

    fn model(groups: Vec<Vec<ZeroShape>>) -> ZeroModelStates {
        let aliases = [("alias", "b"), ("lost", "absent"), ("a", "b")];
        let aliases = aliases.map(|(alias, name)| (alias.to_owned(), name.to_owned())).into();
        ZeroModelStates { buffers: Vec::new(), frozen: Vec::new(), groups, aliases }
    }

    fn partition(stage: u64, vectors: &[Range<u64>], paddings: Vec<Vec<u64>>) -> ZeroPartition {
        let vectors = vectors.iter().map(|range| RankPart::of_f32(4 * range.start..4 * range.end)).collect();
        ZeroPartition { stage, count: 2, vectors, paddings }
    }

    #[test]
    fn parameters_of_stage_2_follow_each_other_over_the_ranks() {
        let groups = || vec![shapes(&[("a", &[3]), ("b", &[2, 2])]), shapes(&[("c", &[])])];
        // One element is between a and b, and the second group fills a multiple of 4 elements.
        let paddings = || vec![vec![1, 0], vec![0]];
        let partitions = [partition(2, &[10..16, 20..22], paddings()), partition(2, &[0..2, 30..32], paddings())];
        let (found, _) = tensors(2, &[model(groups())], &partitions).unwrap();
        let part = |source: usize, range: Range<u64>| (source, 4 * range.start..4 * range.end);
        assert_eq!(found["a"], [part(0, 10..13)]);
        assert_eq!(found["b"], [part(0, 14..16), part(1, 0..2)]);
        assert_eq!(found["alias"], found["b"]);
        assert_eq!(found["c"], [part(0, 20..21)]);
        assert_eq!(found.len(), 4);
        let far = [partition(2, &[10..16, 20..22], paddings()), partition(2, &[0..7, 30..32], paddings())];
        let fault = tensors(2, &[model(groups())], &far).unwrap_err();
        assert!(fault.contains("the parameters of group 0 have 8 elements, and its vectors 13"), "{fault}");
        let short = [partition(2, &[10..14, 20..22], paddings()), partition(2, &[0..2, 30..32], paddings())];
        let fault = tensors(2, &[model(groups())], &short).unwrap_err();
        assert!(fault.contains("tensor \"b\": its 16 bytes at byte 16 of a vector go beyond its end"), "{fault}");
        let twice = model(vec![shapes(&[("a", &[3]), ("a", &[2, 2])]), shapes(&[("c", &[])])]);
        assert_eq!(tensors(2, &[twice], &partitions).unwrap_err(), "two tensors are called \"a\"");
        let huge = model(vec![shapes(&[("a", &[1 << 40, 1 << 40])]), shapes(&[("c", &[])])]);
        assert!(tensors(2, &[huge], &partitions).unwrap_err().contains("is too large"));
        let other = [partition(2, &[10..16, 20..22, 0..1], paddings()), partition(2, &[0..2, 30..32], paddings())];
        let (found, mismatches) = tensors(2, &[model(groups())], &other).unwrap();
        assert!(found.is_empty());
        let reason = mismatches.finish().listed()[0].reason.clone();
        assert_eq!(reason, "tensor \"a\": \"a\" has 3 vectors, and the model 2 groups of parameters");
    }

    #[test]
    fn parameters_of_stage_3_are_cut_over_the_ranks() {
        let states = |name: &str| ZeroModelStates {
            frozen: vec![(shapes(&[(name, &[3])]).remove(0), Some(RankPart::of_f32(400..408)))],
            ..model(vec![shapes(&[("a", &[3])]), shapes(&[("b", &[2, 2]), ("c", &[1])])])
        };
        // Two vectors, and three parameters of 2, 2 and 1 elements in each rank.
        let partitions = [partition(3, &[10..13, 20..22], Vec::new()), partition(3, &[0..3, 30..32], Vec::new())];
        let (found, _) = tensors(3, &[states("f"), states("f")], &partitions).unwrap();
        let part = |source: usize, range: Range<u64>| (source, 4 * range.start..4 * range.end);
        assert_eq!(found["a"], [part(0, 10..12), part(1, 0..1)]);
        assert_eq!(found["b"], [part(0, 12..13), part(0, 20..21), part(1, 2..3), part(1, 30..31)]);
        assert_eq!(found["c"], [part(0, 21..22)]);
        assert_eq!(found["f"], [part(0, 100..102), part(1, 100..101)]);
        let (found, mismatches) = tensors(3, &[states("f"), states("g")], &partitions).unwrap();
        assert!(!found.contains_key("f") && found.contains_key("a"));
        assert_eq!(mismatches.finish().listed()[0].reason, "tensor \"f\": \"b\" has no part of it");
        let long = [partition(3, &[10..13, 20..22], Vec::new()), partition(3, &[0..3, 30..33], Vec::new())];
        let fault = tensors(3, &[states("f"), states("f")], &long).unwrap_err();
        assert_eq!(fault, "the parameters have 5 elements in each rank, and the vectors of one 6");
    }
}
