//! A checkpoint of DeepSpeed ZeRO: a directory such as `global_step100/` with the files of all processes. The file
//! `mp_rank_00_model_states.pt` has the names and shapes of the parameters, and each file
//! `bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt` has a part of the vectors that consist of all of them. In stage 3,
//! each process also has a file of the first kind.
//!
//! Source: `deepspeed/utils/zero_to_fp32.py`. The tensors are those that this script makes, except that buffers keep
//! their dtypes.
//!
//! The location of such a model is the pattern of these names, `*mp_rank_*_states.pt`. No file has that name. The name
//! of one of the files leads to the whole model. The states of the optimizer in the same files are a model of their
//! own, with the location `*mp_rank_*_optim_states.pt`.

use super::listed::{names_beside, note_names, noted_files};
use super::ranks::{ParsedFiles, open_parsed, plain_number, quoting_error, set_ends};
use super::set::{KnownFiles, OPTIMIZER, SEVERAL_FILES, SHARDS_MAX, SetMismatches};
use super::split::missing_files;
use crate::format::pytorch::{self, RankLimits, RankPart, ZeroModelStates, ZeroPartition, ZeroShape};
use crate::format::{HeaderInput, ParseMode};
use crate::model::assembled::{SourcePart, TensorAssembly};
use crate::model::error::Error;
use crate::model::ids::ModelFileId;
use crate::model::table::{Model, ModelAccess, ModelForm, NoteKind};
use crate::source::{self, Location};
use crate::text::{brackets, quote};
use crate::units::plural;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};

/// The pattern of the names of all files.
const PATTERN: &str = "*mp_rank_*_states.pt";

/// The pattern that stands for the states of the optimizer.
pub(super) const STATES: &str = "*mp_rank_*_optim_states.pt";

/// The file with the tag of the newest checkpoint, beside the directories of all checkpoints, and its maximum size.
const LATEST: &str = "latest";
const LATEST_MAX: u64 = 1024;

/// Maximum number of parts of vectors that all parameters consist of.
const PARTS_MAX: usize = 4 << 20;

/// Maximum number of bytes of the names of all tensors.
const TEXT_MAX: usize = 1 << 30;

/// The parts of the name of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ZeroName {
    /// Whether the file has a part of the vectors. Otherwise it describes the model.
    is_partition: bool,
    /// The number of the process, if it is there.
    rank: Option<usize>,
    /// The number of the part of the model that its tensors were cut into.
    slice: usize,
}

impl ZeroName {
    fn parse(name: &OsStr) -> Option<Self> {
        let text = name.to_str()?.strip_suffix("_states.pt")?;
        let (text, is_partition) = match text.strip_suffix("_optim") {
            Some(text) => (text.strip_prefix("bf16_").unwrap_or(text), true),
            None => (text.strip_suffix("_model")?, false),
        };
        let (rank, rest) = match text.strip_prefix("zero_pp_rank_") {
            Some(text) => {
                let (rank, rest) = text.split_once('_')?;
                (Some(plain_number(rank)?), rest)
            }
            None => (None, text),
        };
        let slice = rest.strip_prefix("mp_rank_")?;
        let slice = slice.parse::<u32>().ok().filter(|number| format!("{number:02}") == slice)? as usize;
        (!is_partition || rank.is_some()).then_some(Self { is_partition, rank, slice })
    }
}

/// The pattern of the names of all files, if a file of that name may belong to such a checkpoint.
pub(in crate::model) fn pattern_of(name: &OsStr) -> Option<OsString> {
    ZeroName::parse(name).map(|_| PATTERN.into())
}

/// Whether files of these names, which have the pattern, are one model. Without parts of vectors, a file is an ordinary
/// checkpoint.
pub(super) fn are_model(names: &[&OsStr]) -> bool {
    names.iter().any(|name| ZeroName::parse(name).is_some_and(|name| name.is_partition))
}

/// Whether a location is the pattern of the names of such files, and no file.
pub fn is_pattern(location: &Location) -> bool {
    location.file_name() == PATTERN && !source::exists(location)
}

/// Whether a location is the pattern that stands for the states of the optimizer, and no file.
pub(super) fn is_of_states(location: &Location) -> bool {
    location.file_name() == STATES && !source::exists(location)
}

/// Whether a location is the pattern, or a file of a checkpoint. If its directory cannot be listed, the other files are
/// not known, and each is an ordinary checkpoint.
pub(in crate::model) fn is_zero(location: &Location) -> bool {
    is_pattern(location) || ZeroName::parse(location.file_name()).is_some() && has_partition(location)
}

fn has_partition(location: &Location) -> bool {
    let names = names_beside(&pattern_location(location)).unwrap_or_default();
    are_model(&names.iter().map(|name| &name[..]).collect::<Vec<_>>())
}

/// The directory of the newest checkpoint, if `dir` has the checkpoints of a training.
pub(in crate::model) fn latest_in(dir: &Location) -> Option<Location> {
    let latest = dir.join(LATEST);
    if !source::exists(&latest) {
        return None;
    }
    let (text, _) = super::set::read_list(&latest, LATEST_MAX).ok()?;
    let tag = str::from_utf8(&text).ok()?.trim();
    let is_name = !tag.is_empty() && tag != "." && tag != ".." && !tag.contains(['/', '\0']);
    is_name.then(|| dir.join(tag))
}

/// The names of the files in a directory, sorted, and the files that belong to the checkpoint.
struct ZeroListing {
    files: Vec<(ZeroName, String)>,
    /// A file of a model of another kind, which is not read.
    other: Option<String>,
}

impl ZeroListing {
    fn read(location: &Location) -> Result<Self, source::Error> {
        let mut names = names_beside(location)?;
        names.sort();
        let files = names.iter().filter_map(|name| Some((ZeroName::parse(name)?, name.to_str()?.to_owned())));
        let files: Vec<_> = files.collect();
        let other = names.iter().find(|name| is_of_other_kind(name)).and_then(|name| name.to_str());
        note_names(location, files.iter().map(|(_, name)| &name[..]).chain(other).map(OsString::from));
        Ok(Self { files, other: other.map(str::to_owned) })
    }

    /// The names of the files with parts of vectors by the numbers of their processes. Of the others, no two can have
    /// the same number.
    fn partitions(&self) -> Result<HashMap<usize, &str>, String> {
        let mut names = HashMap::new();
        let files = self.files.iter().filter(|(name, _)| name.is_partition);
        for (rank, name) in files.filter_map(|(name, file)| Some((name.rank?, &file[..]))) {
            if let Some(other) = names.insert(rank, name) {
                let (a, b) = (quote(other), quote(name));
                return Err(format!("both {a} and {b} are of rank {rank}"));
            }
        }
        Ok(names)
    }
}

/// Whether a file is one of a layer of a pipeline, or of an expert.
pub(super) fn is_of_other_kind(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let is_layer = name.starts_with("layer_") && name.contains("-model_");
    (is_layer || name.starts_with("expert_") || name.contains("_expert_")) && name.ends_with("_states.pt")
}

fn pattern_location(location: &Location) -> Location {
    location.parent().join(PATTERN)
}

pub(super) fn zero_files(location: &Location) -> KnownFiles {
    let location = pattern_location(location);
    // Notes the names that are there now.
    let _ = ZeroListing::read(&location);
    noted_files(&location)
}

const FORM: ModelForm = ModelForm {
    kind: "zero",
    edit_refusal: Some(SEVERAL_FILES),
    access: ModelAccess::FilesAndDirectories,
    has_shards: false,
    shows_stored: false,
    holds_weights: true,
    notes: NoteKind::Numbers,
};

/// A file of a checkpoint.
enum ZeroFile {
    Model(ZeroModelStates),
    Partition(ZeroPartition),
    /// The states of the optimizer, by their names.
    States(Vec<(String, ZeroPartition)>),
}

impl ZeroFile {
    /// Whether it has parts that no other process has. Directories of links may have one file for all equal ones.
    fn is_of_one_rank(&self) -> bool {
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

/// Opens the checkpoint in the directory of a location.
pub(super) fn open_zero(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    // In stages 1 and 2, this file also has all parameters with 16 bits.
    let is_whole = ZeroName::parse(location.file_name()).is_some_and(|name| !name.is_partition && name.rank.is_none());
    open_all(&pattern_location(location), mode).map_err(|error| match error {
        Error::Set { location, fault } if is_whole => {
            Error::Set { location, fault: format!("{fault}; a link with another name shows this file alone") }
        }
        error => error,
    })
}

/// Opens the files that the pattern at a location describes, as weights or as states of the optimizer.
pub(super) fn open_all(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let refuse = |fault: String| Error::of_set(location, fault);
    let is_of_states = location.file_name() == STATES;
    let listing = ZeroListing::read(&pattern_location(location))?;
    check_supported(&listing).map_err(refuse)?;
    let partitions = listing.partitions().map_err(refuse)?;
    let Some(last) = partitions.keys().max().copied() else { return Err(refuse("no file has such a name".to_owned())) };
    if last >= SHARDS_MAX || listing.files.len() > 2 * SHARDS_MAX {
        return Err(refuse(format!("has more than {SHARDS_MAX} ranks; at most {SHARDS_MAX} are opened")));
    }
    let names: Vec<String> = listing.files.iter().map(|(_, name)| name.clone()).collect();
    let limits = RankLimits::default();
    let parse = |at: usize, input: &HeaderInput| {
        let name: ZeroName = listing.files[at].0;
        Ok(match name.is_partition {
            true if is_of_states => ZeroFile::States(pytorch::parse_zero_states(input, &limits)?),
            true => ZeroFile::Partition(pytorch::parse_zero_partition(input, &limits)?),
            false => ZeroFile::Model(pytorch::parse_zero_model(input, &limits, name.rank.unwrap_or(0) == 0)?),
        })
    };
    let ParsedFiles { files, parsed, homes, unopened, mut mismatches } =
        open_parsed(location, &names, parse, ZeroFile::is_of_one_rank)?;
    if files.is_empty() {
        mismatches.refuse_nothing(location, "ranks")?;
    }
    let mut model = Model::new(location, &FORM, files);
    mismatches.check(location, mode)?;
    let opened = listing.files.iter().zip(&homes).filter_map(|((name, _), home)| Some((*name, (*home)?)));
    let opened: Vec<(ZeroName, usize)> = opened.collect();
    // One checkpoint for each state, of which all have the same layout.
    let states = if is_of_states { names_of_states(&parsed) } else { vec![None] };
    let mut checkpoints = Vec::new();
    for state in states {
        match (ZeroCheckpoint::new(&model, &opened, &parsed, state), state) {
            (Ok(checkpoint), _) => checkpoints.push(checkpoint),
            (Err(fault), Some(name)) => mismatches.push(name, || fault),
            (Err(fault), None) => return Err(quoting_error(refuse(fault), &model, location)),
        }
    }
    mismatches.check(location, mode).map_err(|error| quoting_error(error, &model, location))?;
    let Some(checkpoint) = checkpoints.first() else { return Err(refuse("no file can be read".to_owned())) };
    let missing = checkpoint.missing(&partitions);
    if mode != ParseMode::Lenient && !missing.is_empty() {
        return Err(refuse(missing_files(&missing, checkpoint.world, "ranks")));
    }
    set_ends(&model, checkpoints.iter().flat_map(ZeroCheckpoint::parts));
    let mut assembly = TensorAssembly::new(model.sources());
    let mut tensors = ZeroTensors { assembly: &mut assembly, added: HashMap::new(), parts: 0, text: 0, state: None };
    let added = checkpoints.iter().try_for_each(|checkpoint| {
        let added = checkpoint.add_tensors(&mut tensors, &mut mismatches);
        added.map_err(|fault| match checkpoint.state {
            Some(state) => format!("state {}: {fault}", quote(state)),
            None => fault,
        })
    });
    added.map_err(|fault| quoting_error(refuse(fault), &model, location))?;
    let assembled = assembly.finish().map_err(|_| refuse("the names of its tensors are too long".to_owned()))?;
    let mismatches = mismatches.settle(location, mode).map_err(|error| quoting_error(error, &model, location))?;
    let (stage, world) = (checkpoint.stage, checkpoint.world as u64);
    model.set_assembled(assembled, Vec::new());
    let first = model.files.first().map(|file| file.location.clone());
    let facts = &mut model.facts;
    let of = if is_of_states { "the optimizer states of " } else { "" };
    facts.description = format!("{of}a DeepSpeed checkpoint of ZeRO stage {stage} and {}", plural(world, "rank"));
    (facts.main_file, facts.metadata) = (first, Some(Vec::new()));
    (facts.unopened, facts.mismatches) = (unopened, mismatches);
    Ok(model)
}

/// The names of the states that any file has.
fn names_of_states(parsed: &[ZeroFile]) -> Vec<Option<&str>> {
    let mut names = Vec::new();
    for file in parsed {
        if let ZeroFile::States(states) = file {
            let others = states.iter().map(|(name, _)| Some(&name[..])).filter(|name| !names.contains(name));
            names.extend(others.collect::<Vec<_>>());
        }
    }
    names
}

/// Fails if the checkpoint has files of kinds that are not read.
fn check_supported(listing: &ZeroListing) -> Result<(), String> {
    if let Some((_, name)) = listing.files.iter().find(|(name, _)| name.slice > 0) {
        return Err(format!("has {}: checkpoints of tensor parallel models are not supported", quote(name)));
    }
    match &listing.other {
        Some(name) => {
            let name = quote(name);
            Err(format!("has {name}: checkpoints of pipelines and of mixtures of experts are not supported"))
        }
        None => Ok(()),
    }
}

/// The opened files of a checkpoint, with their numbers in the model.
struct ZeroCheckpoint<'z> {
    stage: u64,
    /// Number of processes.
    world: usize,
    /// By the numbers of the processes. In stages 1 and 2, there is one.
    models: HashMap<usize, (usize, &'z ZeroModelStates)>,
    partitions: HashMap<usize, (usize, &'z ZeroPartition)>,
    /// The state of the optimizer that the vectors have, if they do not have the parameters.
    state: Option<&'z str>,
    /// The name of each file, for messages.
    names: Vec<String>,
}

impl<'z> ZeroCheckpoint<'z> {
    fn new(
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
    fn missing(&self, listed: &HashMap<usize, &str>) -> Vec<String> {
        let partitions = (0..self.world).filter(|rank| !listed.contains_key(rank));
        let partitions = partitions.map(|rank| format!("zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"));
        let models = (0..self.world).filter(|rank| self.stage == 3 && !self.models.contains_key(rank));
        partitions.chain(models.map(|rank| format!("zero_pp_rank_{rank}_mp_rank_00_model_states.pt"))).collect()
    }

    /// All parts of files that it may use, with the numbers of these.
    fn parts(&self) -> impl Iterator<Item = (usize, &'z RankPart)> {
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
    fn add_tensors(&self, tensors: &mut ZeroTensors<'_, 'z>, mismatches: &mut SetMismatches) -> Result<(), String> {
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
struct ZeroTensors<'a, 'z> {
    assembly: &'a mut TensorAssembly,
    added: AddedTensors,
    /// Number of parts of all of them.
    parts: usize,
    /// Number of bytes of the names of all states of the optimizer.
    text: usize,
    /// The state of the optimizer that the tensors have now, if they are not the parameters.
    state: Option<&'z str>,
}

impl ZeroTensors<'_, '_> {
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

/// The name of the model, from the pattern: that of its directory.
pub(super) fn stem_of(location: &Location) -> Option<OsString> {
    let name = location.parent().file_name().to_owned();
    match location.file_name() {
        pattern if pattern == STATES => Some(OPTIMIZER.into()),
        pattern => (pattern == PATTERN).then(|| if name.is_empty() { "model".into() } else { name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{MemorySource, Source};
    use std::ops::Range;
    use std::sync::Arc;

    #[test]
    fn names_of_files_are_parsed() {
        let name = |is_partition, rank, slice| Some(ZeroName { is_partition, rank, slice });
        let cases = [
            ("mp_rank_00_model_states.pt", name(false, None, 0)),
            ("mp_rank_01_model_states.pt", name(false, None, 1)),
            ("zero_pp_rank_12_mp_rank_00_model_states.pt", name(false, Some(12), 0)),
            ("zero_pp_rank_0_mp_rank_00_optim_states.pt", name(true, Some(0), 0)),
            ("bf16_zero_pp_rank_3_mp_rank_02_optim_states.pt", name(true, Some(3), 2)),
            ("mp_rank_00_optim_states.pt", None),
            ("bf16_mp_rank_00_model_states.pt", None),
            ("zero_pp_rank_x_mp_rank_00_optim_states.pt", None),
            ("mp_rank_100_model_states.pt", name(false, None, 100)),
            // Files of other names than DeepSpeed writes could be of the same rank as others.
            ("mp_rank_000_model_states.pt", None),
            ("zero_pp_rank_0_mp_rank_0_optim_states.pt", None),
            ("zero_pp_rank_0_mp_rank_000_model_states.pt", None),
            ("zero_pp_rank_00_mp_rank_00_model_states.pt", None),
            ("layer_00-model_00-model_states.pt", None),
            ("model_states.pt", None),
        ];
        for (text, expected) in cases {
            assert_eq!(ZeroName::parse(text.as_ref()), expected, "{text}");
        }
        assert!(is_of_other_kind("layer_00-model_00-model_states.pt".as_ref()));
        assert!(is_of_other_kind("layer_1_expert_0_mp_rank_00_model_states.pt".as_ref()));
        assert!(is_of_other_kind("expert_0_mp_rank_00_model_states.pt".as_ref()));
        assert!(!is_of_other_kind("mp_rank_00_model_states.pt".as_ref()));
    }

    #[test]
    fn noted_names_are_read_if_the_directory_is_not_listed() {
        let dir = tempfile::tempdir().unwrap();
        let location = Location::from(&*dir.path().join("absent").join(PATTERN));
        assert!(
            ZeroListing::read(&location).is_err() && !is_zero(&location.parent().join("mp_rank_00_model_states.pt"))
        );
        let partition = "zero_pp_rank_0_mp_rank_00_optim_states.pt";
        // Its directory has no other file that is known.
        assert!(!is_zero(&location.parent().join(partition)));
        let other = "expert_0_mp_rank_00_model_states.pt";
        let beside = [other, partition, "other.pt"].map(OsStr::new);
        let (_, pattern) = super::super::pattern_of(partition.as_ref()).unwrap();
        pattern.note_files(&location, &[OsStr::new(partition)], beside.into_iter());
        let listing = ZeroListing::read(&location).unwrap();
        assert_eq!((listing.files.len(), &listing.files[0].1[..]), (1, partition));
        assert_eq!(listing.other.as_deref(), Some(other));
        assert!(is_zero(&location.parent().join(partition)));
    }

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
        let mut tensors =
            ZeroTensors { assembly: &mut assembly, added: HashMap::new(), parts: 0, text: 0, state: None };
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
