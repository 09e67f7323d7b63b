//! A checkpoint that every process of FSDP has written for itself, as verl and SkyRL do: the files
//! `model_world_size_4_rank_0.pt` and so on in one directory. Each has the part of every tensor that the process holds.
//! The files `optim_world_size_4_rank_0.pt` have the states of the optimizer in the same way, and are a model of their
//! own.
//!
//! Source: verl, `verl/utils/checkpoint/fsdp_checkpoint_manager.py`.
//!
//! The location of such a model is the pattern of these names, `model_world_size_4_rank_*.pt`. No file has that name.
//! The name of one of the files leads to the whole model.

use super::set::{KnownFiles, OPTIMIZER, SEVERAL_FILES, SHARDS_MAX, SetMismatches};
use super::split::missing_files;
use crate::content;
use crate::format::pytorch::{self, HeldTensor, RankBox, RankFile, RankLimits, RankPart};
use crate::format::{self, Header, HeaderInput, HeaderTensor, ParseMode};
use crate::model::assembled::TensorAssembly;
use crate::model::boxes::TensorBox;
use crate::model::error::{Error, LINKED};
use crate::model::header::load_parsed;
use crate::model::ids::ModelFileId;
use crate::model::linked::is_below;
use crate::model::table::{Model, ModelAccess, ModelFile, ModelForm, NoteKind};
use crate::source::{self, FileId, Location};
use crate::text::{brackets, quote};
use crate::threads;
use crate::units::plural;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};

/// A kind of such files, which are a model together.
#[derive(Debug, PartialEq, Eq)]
enum RankSet {
    Weights,
    OptimizerStates,
}

const SETS: [RankSet; 2] = [RankSet::Weights, RankSet::OptimizerStates];

impl RankSet {
    /// The beginning of the names of the files.
    fn before(&self) -> &'static str {
        match self {
            Self::Weights => "model_world_size_",
            Self::OptimizerStates => "optim_world_size_",
        }
    }

    fn description(&self) -> &'static str {
        match self {
            Self::Weights => "an FSDP checkpoint",
            Self::OptimizerStates => "the optimizer states of an FSDP checkpoint",
        }
    }

    fn parse(&self, input: &HeaderInput, limits: &RankLimits) -> Result<RankFile, format::Error> {
        match self {
            Self::Weights => pytorch::parse_rank_file(input, limits),
            Self::OptimizerStates => pytorch::parse_rank_states(input, limits),
        }
    }

    /// Why a tensor that every file has as a whole may be another one in each.
    fn whole_fault(&self, world: usize, shape: &[u64]) -> Option<&'static str> {
        let is_flat = *self == Self::OptimizerStates && world > 1 && shape.len() == 1;
        is_flat.then_some(
            "it is a vector without a description, as FSDP1 keeps a part of all parameters in each process, whose shapes \
             only the program knows",
        )
    }
}

const RANK: &str = "_rank_";

const SUFFIX: &str = ".pt";

/// The parser drops no tensor that can be joined.
const _: () = assert!(pytorch::TENSOR_BOXES_MAX == content::BOXES_MAX);

/// The numbers in the name of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WorldName {
    set: &'static RankSet,
    /// Number of processes.
    world: usize,
    /// The number of the process, from 0 on; `None` in the pattern of all names.
    rank: Option<usize>,
}

impl WorldName {
    fn parse(name: &OsStr) -> Option<Self> {
        let name = name.to_str()?;
        let (set, numbers) = SETS.iter().find_map(|set| Some((set, name.strip_prefix(set.before())?)))?;
        let (world, rank) = numbers.strip_suffix(SUFFIX)?.split_once(RANK)?;
        let world = plain_number(world).filter(|world| *world > 0)?;
        match rank {
            "*" => Some(Self { set, world, rank: None }),
            _ => Some(Self { set, world, rank: Some(plain_number(rank).filter(|rank| *rank < world)?) }),
        }
    }

    fn stem(self) -> String {
        format!("{}{}", self.set.before(), self.world)
    }

    fn pattern(self) -> OsString {
        format!("{}{RANK}*{SUFFIX}", self.stem()).into()
    }

    fn file(self, rank: usize) -> String {
        format!("{}{RANK}{rank}{SUFFIX}", self.stem())
    }
}

/// A number as programs write it, without zeros before it.
pub(super) fn plain_number(text: &str) -> Option<usize> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse::<u32>().ok().filter(|_| is_plain).map(|number| number as usize)
}

/// The pattern of the names of all files, from the name of one of them.
pub(in crate::model) fn pattern_of(name: &OsStr) -> Option<OsString> {
    WorldName::parse(name).filter(|name| name.rank.is_some()).map(WorldName::pattern)
}

/// The name of the model, from the pattern.
pub(in crate::model) fn stem_of(pattern: &OsStr) -> Option<OsString> {
    let name = WorldName::parse(pattern).filter(|name| name.rank.is_none())?;
    Some(name.stem().into())
}

/// The name of the folder that shows the model beside the weights.
pub(super) fn set_of(location: &Location) -> Option<&'static str> {
    let name = WorldName::parse(location.file_name())?;
    (*name.set == RankSet::OptimizerStates).then_some(OPTIMIZER)
}

/// Whether a location is the pattern of the names of such files, and no file.
pub fn is_pattern(location: &Location) -> bool {
    stem_of(location.file_name()).is_some() && !source::exists(location)
}

/// Whether a location is such a pattern, or one of the files.
pub(in crate::model) fn is_of_ranks(location: &Location) -> bool {
    pattern_of(location.file_name()).is_some() || is_pattern(location)
}

pub(super) fn rank_files(location: &Location) -> KnownFiles {
    let dir = location.parent();
    let name = WorldName::parse(location.file_name()).filter(|name| name.world <= SHARDS_MAX);
    let mut files = name.iter().flat_map(|name| (0..name.world).map(|rank| dir.join(name.file(rank))));
    KnownFiles::with(&files.next().unwrap_or_else(|| location.clone()), files.collect())
}

const FORM: ModelForm = ModelForm {
    kind: "ranks",
    edit_refusal: Some(SEVERAL_FILES),
    access: ModelAccess::FilesAndDirectories,
    has_shards: false,
    shows_stored: false,
    holds_weights: true,
    notes: NoteKind::Numbers,
};

/// Files of a checkpoint, and what a parser found in each.
pub(super) struct ParsedFiles<T> {
    pub files: Vec<ModelFile>,
    pub parsed: Vec<T>,
    /// The index in `files` of each name, if the file could be opened.
    pub homes: Vec<Option<usize>>,
    pub unopened: Vec<Location>,
    pub mismatches: SetMismatches,
}

/// Opens files of the model at `location`. `parse` gets the number of a name, and `is_own` says whether no two files of
/// what was found may be the same one.
pub(super) fn open_parsed<T: Send>(
    location: &Location,
    names: &[String],
    parse: impl Fn(usize, &HeaderInput) -> Result<T, format::Error> + Sync,
    is_own: impl Fn(&T) -> bool,
) -> Result<ParsedFiles<T>, Error> {
    let (model, dir) = (location, &location.parent());
    let mut ids: HashMap<FileId, &str> = HashMap::new();
    let opened = threads::map_parallel(names.len(), |at| {
        let source = source::open_local(&dir.join(&names[at]))?;
        let parsed = load_parsed(&*source, |input| parse(at, input))?;
        Ok::<_, source::Error>((source, parsed))
    });
    let mut all = ParsedFiles {
        files: Vec::new(),
        parsed: Vec::new(),
        homes: vec![None; names.len()],
        unopened: Vec::new(),
        mismatches: SetMismatches::default(),
    };
    for ((at, name), opened) in names.iter().enumerate().zip(opened) {
        let location = dir.join(name);
        let fault = match opened {
            Ok((source, Ok(parsed))) => {
                let id = source.id().filter(|_| is_own(&parsed));
                if let Some(other) = id.and_then(|id| ids.insert(id, name)) {
                    let (a, b) = (quote(other), quote(name));
                    return Err(Error::of_set(model, format!("{a} and {b} are the same file")));
                }
                all.homes[at] = Some(all.files.len());
                let mut header = Header::empty(0);
                header.format = pytorch::NAME;
                all.files.push(ModelFile { name: name.clone(), location, header, source });
                all.parsed.push(parsed);
                continue;
            }
            // The file may be intact.
            Err(error) if error.is_transient() => return Err(error.into()),
            Err(error) => error.to_string(),
            // What a link out of the directory leads to may be private.
            Ok((_, Err(_))) if !is_below(&location, dir) => format!("{}: {LINKED}", quote(name)),
            Ok((_, Err(error))) => format!("{}: {error}", quote(name)),
        };
        all.mismatches.push_shard(name, || format!("a file is missing or broken: {fault}"));
        all.unopened.push(location);
    }
    Ok(all)
}

/// An error of a model that may quote any of its files.
pub(super) fn quoting_error(error: Error, model: &Model, location: &Location) -> Error {
    let dir = location.parent();
    match model.files.iter().all(|file| is_below(&file.location, &dir)) {
        true => error,
        false => error.hidden(location),
    }
}

/// Sets where the used parts end in each file, for sources that read ahead.
pub(super) fn set_ends<'p>(model: &Model, parts: impl Iterator<Item = (usize, &'p RankPart)>) {
    let mut ends: Vec<Vec<u64>> = vec![Vec::new(); model.files.len()];
    parts.for_each(|(file, part)| ends[file].push(part.range.end));
    for (file, ends) in model.files.iter().zip(ends) {
        file.source.set_ends(ends.into_iter());
    }
}

/// Opens the files of all processes, of which the location names one, or the pattern of their names.
pub(super) fn open_ranks(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let dir = location.parent();
    let Some(name) = WorldName::parse(location.file_name()) else {
        return Err(Error::of_set(location, "no file has such a name"));
    };
    let location = &dir.join(name.pattern());
    let WorldName { set, world, .. } = name;
    if world > SHARDS_MAX {
        return Err(Error::of_set(location, format!("has {world} ranks; at most {SHARDS_MAX} are opened")));
    }
    let names: Vec<String> = (0..world).map(|rank| name.file(rank)).collect();
    let is_missing = threads::map_parallel(world, |rank| !source::exists(&dir.join(&names[rank])));
    let missing: Vec<&str> = names.iter().zip(&is_missing).filter(|(_, is)| **is).map(|(name, _)| &name[..]).collect();
    if mode != ParseMode::Lenient && !missing.is_empty() {
        return Err(Error::of_set(location, missing_files(&missing, world, "ranks")));
    }
    let limits = RankLimits::default();
    let parse = |_, input: &HeaderInput| set.parse(input, &limits);
    // The files say themselves where their parts belong, and processes that hold the same parts may share one.
    let ParsedFiles { files, parsed, unopened, mut mismatches, .. } = open_parsed(location, &names, parse, |_| false)?;
    if files.is_empty() {
        mismatches.refuse_nothing(location, "ranks")?;
    }
    let mut model = Model::new(location, &FORM, files);
    let ranks: Vec<&RankFile> = parsed.iter().collect();
    let used = ranks.iter().enumerate().flat_map(|(file, rank)| {
        let held = rank.tensors.iter().flat_map(|tensor| &tensor.held);
        held.flat_map(move |held| held.boxes.iter().map(move |one| (file, &one.part)))
    });
    set_ends(&model, used);
    let mut assembly = TensorAssembly::new(model.sources());
    for (name, held) in by_name(&ranks) {
        if let Err(reason) = join(&model, (set, world), name, &held, &mut assembly) {
            mismatches.push(name, || format!("tensor {}: {reason}", quote(name)));
        }
    }
    let assembled = assembly.finish().map_err(|_| Error::of_set(location, "the names of its tensors are too long"))?;
    let mismatches = mismatches.settle(location, mode).map_err(|error| quoting_error(error, &model, location))?;
    let objects = match ranks.first().map_or(0, |rank| rank.objects) {
        0 => String::new(),
        objects => format!(", without {}", plural(objects as u64, "other object")),
    };
    model.set_assembled(assembled, Vec::new());
    let first = model.files.first().map(|file| file.location.clone());
    let facts = &mut model.facts;
    facts.description = format!("{} of {}{objects}", set.description(), plural(world as u64, "rank"));
    (facts.main_file, facts.metadata) = (first, Some(Vec::new()));
    (facts.unopened, facts.mismatches) = (unopened, mismatches);
    Ok(model)
}

/// What the files have of one tensor: the number of each file, and what it has or why that cannot be used.
type HeldParts<'r> = Vec<(usize, &'r Result<HeldTensor, String>)>;

/// What the files have of the tensors of each name, in the order in which the files have the names.
fn by_name<'r>(ranks: &[&'r RankFile]) -> Vec<(&'r str, HeldParts<'r>)> {
    let (mut numbers, mut tensors): (HashMap<&str, usize>, Vec<(&str, HeldParts)>) = Default::default();
    for (file, rank) in ranks.iter().enumerate() {
        for tensor in &rank.tensors {
            let number = *numbers.entry(&tensor.name).or_insert(tensors.len());
            match tensors.get_mut(number) {
                Some((_, held)) => held.push((file, &tensor.held)),
                None => tensors.push((&tensor.name, vec![(file, &tensor.held)])),
            }
        }
    }
    tensors
}

/// Joins what the files have of a tensor. The error is the reason why they do not make one.
fn join(
    model: &Model,
    (set, world): (&RankSet, usize),
    name: &str,
    parts: &HeldParts,
    assembly: &mut TensorAssembly,
) -> Result<(), String> {
    let of = |file: usize| quote(&model.files[file].name);
    let mut held = Vec::new();
    for (file, part) in parts {
        held.push((*file, part.as_ref().map_err(|fault| format!("in {}: {fault}", of(*file)))?));
    }
    let Some((first, HeldTensor { is_sharded, dtype, shape, .. })) = held.first() else { return Ok(()) };
    for (file, other) in &held {
        if (other.is_sharded, other.dtype, &other.shape) != (*is_sharded, *dtype, shape) {
            let (a, b) = (described(*is_sharded, shape), described(other.is_sharded, &other.shape));
            let (dtype, other) = (dtype.quoted(), other.dtype.quoted());
            return Err(format!("it is {dtype} {a} in {}, and {other} {b} in {}", of(*first), of(*file)));
        }
    }
    if let Some(fault) = set.whole_fault(world, shape).filter(|_| !is_sharded) {
        return Err(format!("in {}: {fault}", of(*first)));
    }
    // Every process has all of it.
    let used = if *is_sharded { &held[..] } else { &held[..1] };
    let boxes = used.iter().flat_map(|(file, held)| held.boxes.iter().map(move |one| (*file, one)));
    let boxes = boxes.map(|(file, RankBox { offsets, part })| {
        let stored: HeaderTensor = part.stored(name);
        TensorBox { file: ModelFileId::new(file), stored, offsets }
    });
    let data = assembly.join_boxes(shape, &boxes.collect::<Vec<_>>())?;
    assembly.push(name, *dtype, shape, data).map_err(str::to_owned)
}

fn described(is_sharded: bool, shape: &[u64]) -> String {
    format!("{}{}", brackets(shape), if is_sharded { " in parts" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_have_a_pattern() {
        let cases = [
            ("model_world_size_4_rank_0.pt", Some("model_world_size_4_rank_*.pt")),
            ("model_world_size_16_rank_15.pt", Some("model_world_size_16_rank_*.pt")),
            ("model_world_size_4_rank_4.pt", None),
            ("model_world_size_04_rank_0.pt", None),
            ("model_world_size_4_rank_00.pt", None),
            ("model_world_size_0_rank_0.pt", None),
            ("model_world_size_4_rank_*.pt", None),
            ("model_world_size_4_rank_+1.pt", None),
            ("optim_world_size_4_rank_0.pt", Some("optim_world_size_4_rank_*.pt")),
            ("extra_state_world_size_4_rank_0.pt", None),
            ("model_world_size_4_rank_0.pth", None),
        ];
        for (name, expected) in cases {
            let pattern = pattern_of(name.as_ref());
            assert_eq!(pattern.as_deref(), expected.map(OsStr::new), "{name}");
            assert_eq!(pattern.is_some(), pattern.and_then(|pattern| stem_of(&pattern)).is_some(), "{name}");
        }
        let stem = stem_of("model_world_size_8_rank_*.pt".as_ref());
        assert_eq!(stem.as_deref(), Some(OsStr::new("model_world_size_8")));
        assert_eq!(set_of(&Location::from("d/optim_world_size_8_rank_*.pt".as_ref())), Some(OPTIMIZER));
        assert_eq!(set_of(&Location::from("d/model_world_size_8_rank_*.pt".as_ref())), None);
    }

    #[test]
    fn file_of_two_processes_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("a"), "x").unwrap();
        std::fs::hard_link(at("a"), at("b")).unwrap();
        std::os::unix::fs::symlink("a", at("c")).unwrap();
        std::fs::write(at("d"), "x").unwrap();
        let open = |names: [&str; 2], is_own: bool| {
            let names = names.map(str::to_owned);
            let found = open_parsed(&Location::from(&*at("m")), &names, |_, _| Ok(()), |()| is_own);
            found.map(|found| found.files.len()).map_err(|error| error.to_string())
        };
        for other in ["b", "c"] {
            let error = open(["a", other], true).unwrap_err();
            assert!(error.ends_with(&format!("\"a\" and \"{other}\" are the same file")), "{error}");
            assert_eq!(open(["a", other], false), Ok(2));
        }
        assert_eq!(open(["a", "d"], true), Ok(2));
    }

    #[test]
    fn all_files_of_a_world_are_known() {
        let KnownFiles { main, others, .. } = rank_files(&Location::from("d/model_world_size_3_rank_1.pt".as_ref()));
        let found: Vec<OsString> =
            std::iter::once(&main).chain(&others).map(|file| file.file_name().to_owned()).collect();
        assert_eq!(found, [0, 1, 2].map(|rank| OsString::from(format!("model_world_size_3_rank_{rank}.pt"))));
        let far = rank_files(&Location::from("d/model_world_size_4000000000_rank_1.pt".as_ref()));
        assert!(far.others.is_empty());
    }
}
