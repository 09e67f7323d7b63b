//! The sets of tensors in one file: the weights, and what training has saved beside them in other entries of the root,
//! such as `state_dict` and `optimizer_states` of Lightning, or `model`, `ema` and `opt`.
//!
//! The weights are the model of the file. Each other set is a model of its own. Its location is `FILE/SET`, at which no
//! file exists.

use super::file;
use super::set::OPTIMIZER;
use crate::format::pytorch::{self, STATE_DICT};
use crate::format::{self, Header, ParseMode, TensorInfo, format_stem};
use crate::model::error::Error;
use crate::model::table::{Model, ModelAccess, ModelFile, ModelForm, NoteKind};
use crate::source::{self, Location};
use crate::text::quote;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::mem;

/// The name of the folder that shows averages of the weights beside these.
pub(in crate::model) const AVERAGE: &str = "ema";

/// The name of the folder that shows the other tensors of a file of training, such as the states of random number
/// generators.
pub const EXTRA: &str = "extra";

/// The sets that a file may have besides the weights.
pub const FILE_SETS: [&str; 3] = [OPTIMIZER, AVERAGE, EXTRA];

const FORM: ModelForm = ModelForm {
    kind: "file",
    edit_refusal: Some(
        "the file has several sets of tensors (`weightfs export` writes one of them as a file of its own)",
    ),
    access: ModelAccess::File,
    has_shards: false,
    shows_stored: false,
    holds_weights: true,
    notes: NoteKind::Splits,
};

/// Opens a file that no other assembler knows. The sets besides the weights are models of their own, in its facts.
pub(super) fn open_file(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let file = file::read_file(location, location, source::open_local(location)?, mode)?;
    let mut model = model_of(location, file)?;
    file::add_remarks(&mut model);
    Ok(model)
}

fn model_of(location: &Location, mut whole: ModelFile) -> Result<Model, Error> {
    let parts = FileEntries::new(&whole.header).and_then(|entries| entries.parts());
    let Some(parts) = parts else { return Ok(Model::new(location, &ModelForm::FILE, vec![whole])) };
    let named = |error| Error::Format { location: location.clone(), error, is_lenient_better: false };
    let SetParts { mut weights, others } = parts.map_err(named)?;
    let sets: Vec<Model> = others.into_iter().map(|(name, part)| model_of_set(location, &whole, name, part)).collect();
    let names: Vec<_> = sets.iter().map(|set| set.location.file_name().to_string_lossy()).collect();
    let description = format!("the weights (the file also has {})", names.join(" and "));
    // The metadata is that of the whole file.
    weights.metadata = mem::take(&mut whole.header.metadata);
    whole.header = weights;
    let mut model = Model::new(location, &FORM, vec![whole]);
    (model.facts.description, model.facts.sets) = (description, sets);
    Ok(model)
}

fn model_of_set(location: &Location, whole: &ModelFile, name: &'static str, header: Header) -> Model {
    let ModelFile { name: file, source, .. } = whole;
    let file = ModelFile { name: file.clone(), location: location.clone(), header, source: source.clone() };
    let mut model = Model::new(&location.join(name), &FORM, vec![file]);
    let facts = &mut model.facts;
    facts.description = format!("{name} of a file with several sets of tensors");
    (facts.main_file, facts.base) = (Some(location.clone()), Some(location.parent()));
    facts.name = file::stem(location.file_name()).map(|stem| set_stem(&stem, name.as_ref()));
    model
}

/// The name of a set in a file with this stem.
fn set_stem(stem: &OsStr, set: &OsStr) -> OsString {
    [stem, set].join("-".as_ref())
}

pub(super) fn stem_of_set(location: &Location) -> Option<OsString> {
    let set = FILE_SETS.iter().find(|set| location.file_name() == **set)?;
    Some(set_stem(format_stem(location.parent().file_name())?, set.as_ref()))
}

/// Whether a location is that of a set in a file that exists. The file is not read.
pub(super) fn is_set_in_file(location: &Location) -> bool {
    FILE_SETS.iter().any(|set| location.file_name() == *set) && source::len_at(&location.parent()).is_some()
}

pub(super) fn open_set(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let mut whole = open_file(&location.parent(), mode)?;
    let mut sets = mem::take(&mut whole.facts.sets).into_iter();
    let mut set = sets.find(|set| set.location.file_name() == location.file_name()).ok_or_else(|| {
        let name = location.file_name().to_string_lossy();
        Error::of_set(location, format!("the file has no set of tensors {}", quote(&name)))
    })?;
    set.facts.remarks = whole.facts.remarks;
    Ok(set)
}

/// Whether a name has a word, in any case, between other characters than letters.
pub(in crate::model) fn has_word(name: &str, word: &str) -> bool {
    name.split(|char: char| !char.is_ascii_alphabetic()).any(|part| part.eq_ignore_ascii_case(word))
}

/// The entries of the root of a file.
struct FileEntries<'h> {
    header: &'h Header,
    numbers: HashMap<&'h str, usize>,
    /// The entries by their numbers, and last the tensors that are in none.
    entries: Vec<RootEntry<'h>>,
}

/// An entry of the root.
#[derive(Default)]
struct RootEntry<'h> {
    name: &'h str,
    tensors: Vec<usize>,
    /// The keys of its metadata.
    keys: Vec<&'h str>,
    /// What the names of all its tensors begin with: the entry and a dot, and `state_dict.` if all are in there.
    prefix: &'h str,
    /// Set if the entry has nothing but states of optimizers: what names begin with before those of the only
    /// optimizer, or before the numbers or names of several.
    states: Option<&'h str>,
}

/// The sets of a file.
struct SetParts {
    weights: Header,
    /// Each with its name.
    others: Vec<(&'static str, Header)>,
}

impl<'h> FileEntries<'h> {
    /// `None` if the root has no entries, or is a state dict itself.
    fn new(header: &'h Header) -> Option<Self> {
        if header.entries.is_empty() {
            return None;
        }
        let numbers: HashMap<&str, usize> = header.entries.iter().map(String::as_str).zip(0..).collect();
        let entries = header.entries.iter().map(|name| RootEntry { name, ..RootEntry::default() });
        let entries = entries.chain([RootEntry::default()]).collect();
        let mut found = Self { header, numbers, entries };
        for (at, tensor) in header.tensors().enumerate() {
            let number = found.number_of(tensor.info.name);
            found.entries[number].tensors.push(at);
        }
        for (key, _) in &header.metadata {
            let number = found.number_of(key);
            found.entries[number].keys.push(key);
        }
        let (root, entries) = found.entries.split_last_mut()?;
        for entry in entries {
            entry.prefix = entry.find_prefix(header);
            entry.states = entry.find_states(header);
        }
        (!root.has_matrix(header)).then_some(found)
    }

    /// The number of the entry under which a tensor or a value is nested.
    fn number_of(&self, name: &str) -> usize {
        let entry = name.split_once('.').and_then(|(first, _)| self.numbers.get(first).copied());
        entry.unwrap_or(self.entries.len() - 1)
    }

    /// The entries that are the weights: the only one with matrices, besides the states of optimizers and what is
    /// called an average, or `state_dict`. Otherwise all that could be.
    fn weights(&self) -> Vec<usize> {
        let may_be = |entry: &RootEntry| entry.states.is_none() && entry.has_matrix(self.header);
        let all = (0..self.entries.len()).filter(|at| may_be(&self.entries[*at]));
        let (averages, main): (Vec<_>, Vec<_>) = all.partition(|at| has_word(self.entries[*at].name, AVERAGE));
        match main[..] {
            [] => averages,
            [_] => main,
            _ => match main.iter().find(|at| self.entries[**at].name == STATE_DICT) {
                Some(state_dict) => vec![*state_dict],
                None => [main, averages].concat(),
            },
        }
    }

    /// The sets of the file. `None` if it has neither states of an optimizer nor an average of the weights: its entries
    /// may be anything then.
    fn parts(&self) -> Option<Result<SetParts, format::Error>> {
        let weights = self.weights();
        let is_average = |entry: &RootEntry| match weights[..] {
            [main] => has_word(entry.name, AVERAGE) && entry.is_like(&self.entries[main], self.header),
            _ => false,
        };
        let mut sets: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, entry) in self.entries.iter().enumerate().filter(|(at, _)| !weights.contains(at)) {
            let set = if entry.states.is_some() {
                OPTIMIZER
            } else if entry.tensors.is_empty() {
                continue;
            } else if is_average(entry) {
                AVERAGE
            } else {
                EXTRA
            };
            sets.entry(set).or_default().push(at);
        }
        if weights.is_empty() || !sets.contains_key(OPTIMIZER) && !sets.contains_key(AVERAGE) {
            return None;
        }
        let others = FILE_SETS.into_iter().filter_map(|name| Some((name, sets.get(name)?)));
        let others: Result<_, _> = others.map(|(name, of)| Ok((name, self.part(name, of)?))).collect();
        Some(others.and_then(|others| Ok(SetParts { weights: self.part("", &weights)?, others })))
    }

    /// The set with a name that consists of some entries. Names begin in the only one.
    fn part(&self, name: &str, entries: &[usize]) -> Result<Header, format::Error> {
        let prefix = match entries {
            [only] if name != EXTRA => self.entries[*only].states.unwrap_or(self.entries[*only].prefix),
            _ => "",
        };
        let mut tensors: Vec<usize> = entries.iter().flat_map(|at| self.entries[*at].tensors.iter().copied()).collect();
        tensors.sort_unstable();
        // The names stay different, because all of them lose the same prefix.
        self.header.part(prefix, &tensors, |key| entries.contains(&self.number_of(key)))
    }
}

impl<'h> RootEntry<'h> {
    fn infos<'t>(&'t self, header: &'h Header) -> impl Iterator<Item = TensorInfo<'h>> + use<'t, 'h> {
        self.tensors.iter().map(|at| header.tensor(*at).info)
    }

    /// The names of its tensors, and the keys of its metadata.
    fn names<'t>(&'t self, header: &'h Header) -> impl Iterator<Item = &'h str> + use<'t, 'h> {
        self.infos(header).map(|info| info.name).chain(self.keys.iter().copied())
    }

    fn find_prefix(&self, header: &'h Header) -> &'h str {
        let end = self.name.len() + 1;
        let is_inside = |info: TensorInfo| {
            let inner = info.name.get(end..).and_then(|name| name.strip_prefix(STATE_DICT));
            inner.is_some_and(|name| name.starts_with('.'))
        };
        let is_state_dict = !self.tensors.is_empty() && self.infos(header).all(is_inside);
        let end = if is_state_dict { end + STATE_DICT.len() + 1 } else { end };
        self.names(header).find_map(|name| name.get(..end)).unwrap_or_default()
    }

    fn find_states(&self, header: &'h Header) -> Option<&'h str> {
        let names: Vec<&str> = self.names(header).filter_map(|name| name.strip_prefix(self.prefix)).collect();
        if let Some(start) = pytorch::states_start(names.iter().copied()) {
            let all = self.names(header).find(|name| name.starts_with(self.prefix))?;
            return all.get(..self.prefix.len() + start);
        }
        let mut several: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for name in names {
            let (optimizer, name) = name.split_once('.')?;
            several.entry(optimizer).or_default().push(name);
        }
        let is_several =
            several.len() > 1 && several.into_values().all(|names| pytorch::states_start(names) == Some(0));
        is_several.then_some(self.prefix)
    }

    /// Whether it has a tensor of at least two dimensions with elements that are not integers. The weights of every
    /// network have one; states of random number generators and losses have none.
    fn has_matrix(&self, header: &'h Header) -> bool {
        self.infos(header).any(|info| info.shape.len() > 1 && !info.dtype.is_integer())
    }

    /// Whether an entry has tensors with the same names and shapes.
    fn is_like(&self, other: &Self, header: &'h Header) -> bool {
        let shapes = |entry: &Self| -> HashSet<_> {
            entry.infos(header).map(|info| (info.name.strip_prefix(entry.prefix), info.shape)).collect()
        };
        self.tensors.len() == other.tensors.len() && shapes(self) == shapes(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::HeaderBuilder;
    use proptest::prelude::*;

    /// A header with these entries of the root, tensors and keys of metadata. Tensors are matrices of float32 numbers.
    /// Those whose names end in `!` have integers, and those whose names end in `-` have one dimension.
    fn header(entries: &[&str], tensors: &[&str], metadata: &[&str]) -> Header {
        let mut builder = HeaderBuilder::new(ParseMode::Strict);
        builder.entries(entries.iter().map(|entry| (*entry).to_owned()).collect());
        metadata.iter().for_each(|key| builder.metadata((*key).to_owned(), "1".into()));
        for (at, name) in tensors.iter().enumerate() {
            let dtype = builder.dtype_number(if name.ends_with('!') { "I32" } else { "F32" });
            let (shape, start): (&[u64], _) = (if name.ends_with('-') { &[4] } else { &[2, 2] }, 16 * at as u64);
            let tensor = builder.tensor(name, dtype, shape, start..start + 16);
            builder.push(tensor);
        }
        builder.finish("pytorch", None, 0, "twice").unwrap()
    }

    /// The names of the tensors of each set. The weights come first.
    fn sets(header: &Header) -> Vec<(&'static str, Vec<String>)> {
        let Some(parts) = FileEntries::new(header).and_then(|entries| entries.parts()) else { return Vec::new() };
        let SetParts { weights, others } = parts.unwrap();
        let names = |part: &Header| part.tensors().map(|tensor| tensor.name.to_owned()).collect();
        let all = [("", weights)].into_iter().chain(others);
        all.map(|(name, part)| (name, names(&part))).collect()
    }

    #[test]
    fn sets_are_recognised_by_their_content() {
        type Case<'c> = (&'c [&'c str], &'c [&'c str], &'c [&'c str], &'c [(&'c str, &'c [&'c str])]);
        let cases: &[Case] = &[
            // Lightning: several optimizers, and one.
            (
                &["state_dict", "optimizer_states", "callbacks"],
                &["state_dict.w", "optimizer_states.0.state.0.m", "optimizer_states.1.state.0.m", "callbacks.best-"],
                &["epoch", "optimizer_states.0.param_groups.0.lr", "optimizer_states.1.param_groups.0.lr"],
                &[("", &["w"]), ("optimizer", &["0.state.0.m", "1.state.0.m"]), ("extra", &["callbacks.best-"])],
            ),
            (
                &["state_dict", "optimizer_states"],
                &["state_dict.w", "optimizer_states.0.state.0.m"],
                &["optimizer_states.0.param_groups.0.lr"],
                &[("", &["w"]), ("optimizer", &["state.0.m"])],
            ),
            // Any names of the weights and of the optimizers, of which each has an entry; states of generators.
            (
                &["net", "a", "b", "rng"],
                &["net.state_dict.w", "a.state.0.m", "b.state.0.m", "rng.0!", "loss-", "generator!!"],
                &["a.param_groups.0.lr", "b.param_groups.0.lr"],
                &[
                    ("", &["w"]),
                    ("optimizer", &["a.state.0.m", "b.state.0.m"]),
                    ("extra", &["rng.0!", "loss-", "generator!!"]),
                ],
            ),
            // Averages, without states of an optimizer too. One with other tensors is none.
            (&["model", "ema"], &["model.w", "ema.w"], &[], &[("", &["w"]), ("ema", &["w"])]),
            (
                &["state_dict", "state_dict_ema", "ema_2"],
                &["state_dict.w", "state_dict_ema.w", "ema_2.w"],
                &[],
                &[("", &["w"]), ("ema", &["state_dict_ema.w", "ema_2.w"])],
            ),
            (&["model", "ema"], &["model.w", "ema.shadow.w"], &[], &[]),
            (&["model", "schema"], &["model.w", "schema.w"], &[], &[]),
            // The weights of two networks keep their paths, and an average of one of them too.
            (
                &["student", "teacher", "teacher_ema", "opt", "rng"],
                &["student.w", "teacher.w", "teacher_ema.w", "opt.state.0.m", "rng.0!"],
                &["opt.param_groups.0.lr"],
                &[
                    ("", &["student.w", "teacher.w", "teacher_ema.w"]),
                    ("optimizer", &["state.0.m"]),
                    ("extra", &["rng.0!"]),
                ],
            ),
            // Nothing but an average, losses beside the weights, and an optimizer that has no tensors.
            (
                &["ema", "opt", "losses"],
                &["ema.w", "losses.0-"],
                &["opt.param_groups.0.lr"],
                &[("", &["w"]), ("optimizer", &[]), ("extra", &["losses.0-"])],
            ),
            // Without states and averages, entries may be anything. So may those that look like paths to modules.
            (&["state_dict", "other"], &["state_dict.w", "other.w"], &["epoch"], &[]),
            (&["model"], &["model.w"], &["lr"], &[]),
            (&[], &["model.w", "ema.w"], &[], &[]),
            // A root that is a state dict itself, with tensors of more than one number.
            (&["model", "opt"], &["model.w", "view", "opt.state.0.m"], &["opt.param_groups.0.lr"], &[]),
            // Nothing but states, or states and what is no part of them.
            (&["opt"], &["opt.state.0.m"], &["opt.param_groups.0.lr"], &[]),
            (&["state"], &["state.0.m"], &["param_groups.0.lr"], &[]),
            (&["model", "opt"], &["model.w", "opt.state.0.m", "opt.w"], &["opt.param_groups.0.lr"], &[]),
            // States and numbers of another kind, which are no weights.
            (&["opt", "rng"], &["opt.state.0.m", "rng.0!", "step-"], &["opt.param_groups.0.lr"], &[]),
            // An object of its own, which is metadata too.
            (
                &["model", "opt"],
                &["model.w", "opt.state.0.m"],
                &["model", "opt", "opt.param_groups.0.lr"],
                &[("", &["w"]), ("optimizer", &["state.0.m"])],
            ),
        ];
        for (entries, tensors, metadata, expected) in cases {
            let expected: Vec<(&str, Vec<String>)> = expected
                .iter()
                .map(|(set, names)| (*set, names.iter().map(|name| (*name).to_owned()).collect()))
                .collect();
            assert_eq!(sets(&header(entries, tensors, metadata)), expected, "{tensors:?}");
        }
    }

    #[test]
    fn every_set_tells_what_was_left_out_of_the_file() {
        let mut builder = HeaderBuilder::new(ParseMode::Strict);
        builder.entries(vec!["ema".to_owned(), "model".to_owned()]);
        for (at, name) in ["model.w", "ema.w"].into_iter().enumerate() {
            let (dtype, start) = (builder.dtype_number("F32"), 16 * at as u64);
            let tensor = builder.tensor(name, dtype, &[2, 2], start..start + 16);
            builder.push(tensor);
        }
        builder.skip("ema.x", || "a fault".to_owned());
        let header = builder.finish("pytorch", None, 0, "twice").unwrap();
        let SetParts { weights, others } = FileEntries::new(&header).unwrap().parts().unwrap().unwrap();
        assert_eq!((weights.skipped.left_out(), others.len(), others[0].1.skipped.left_out()), (1, 1, 1));
    }

    proptest! {
        /// Each tensor is in one set, and no two of a set have the same name.
        #[test]
        fn no_tensor_is_lost(
            entries in prop::collection::btree_set("(a|b_ema|opt|state_dict|)", 1..5),
            names in prop::collection::btree_set("(a|b_ema|opt|x)(\\.(0|state|state_dict|param_groups|w)){0,4}[!-]?", 1..30),
            keys in prop::collection::btree_set("(a|opt)(\\.(0|state|param_groups)){0,3}", 0..8),
        ) {
            let [entries, names, keys] = [&entries, &names, &keys].map(|all| all.iter().map(|name| &name[..]).collect::<Vec<_>>());
            let header = header(&entries, &names, &keys);
            let found = sets(&header);
            let count = found.iter().map(|(_, names)| names.len()).sum::<usize>();
            prop_assert!(found.is_empty() || count == names.len());
        }
    }
}
