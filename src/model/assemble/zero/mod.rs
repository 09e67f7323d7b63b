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

mod names;
mod tensors;

use super::ranks::{ParsedFiles, open_parsed, quoting_error, set_ends};
use super::set::{SEVERAL_FILES, SHARDS_MAX};
use super::split::missing_files;
use crate::format::pytorch::{self, RankLimits};
use crate::format::{HeaderInput, ParseMode};
use crate::model::assembled::TensorAssembly;
use crate::model::error::Error;
use crate::model::table::{Model, ModelAccess, ModelForm, NoteKind};
use crate::source::Location;
use crate::text::quote;
use crate::units::plural;
pub(super) use names::{STATES, are_model, is_of_other_kind, is_of_states, stem_of, zero_files};
use names::{ZeroListing, ZeroName, check_supported, pattern_location};
pub(in crate::model) use names::{is_zero, latest_in, pattern_of};
use tensors::{ZeroCheckpoint, ZeroFile, ZeroTensors, names_of_states};

const FORM: ModelForm = ModelForm {
    kind: "zero",
    edit_refusal: Some(SEVERAL_FILES),
    access: ModelAccess::FilesAndDirectories,
    has_shards: false,
    shows_stored: false,
    holds_weights: true,
    notes: NoteKind::Numbers,
};

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
    let mut tensors = ZeroTensors::new(&mut assembly);
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
