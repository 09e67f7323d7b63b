//! The header of an ONNX model: names of tensors, and what is in the file.

use super::NAME;
use super::tensor::{OnnxData, OnnxTensor};
use super::walk::{OnnxGraph, OnnxModel, OnnxNode, OnnxWalk, TensorOwner};
use crate::format::dtype::Dtype;
use crate::format::error::Error;
use crate::format::header::{Header, HeaderBuilder, ParseMode, SkippedEntry, SkippedKind};
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::lint::HeaderLint;
use crate::format::metadata::MetadataValue;
use crate::rules::CheckRule;
use crate::text::quote;
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

/// The fault of a tensor whose name another one of its graph has too.
const DUPLICATE: &str = "another tensor of its graph has the same name";

/// Why a tensor is not in the header of a file that is read by itself.
const ELSEWHERE: &str =
    "its data is in another file, or in a form that is decoded (give the model a name that ends in .onnx)";

/// Maximum number of bytes of names that are those of nodes, and of paths before names.
const NAMES_MAX: usize = 128 << 20;

/// A walk over a file, and the model at its end.
struct WalkedFile {
    walk: OnnxWalk,
    model: Option<Arc<OnnxModel>>,
}

/// The model in a file. In strict mode, a fault of the file is an error.
///
/// Fails with [`Error::Missing`] until `input` has all fields but the data.
pub fn read_onnx(input: &HeaderInput, mode: ParseMode) -> Result<Arc<OnnxModel>, Error> {
    let new = || Ok::<_, Infallible>(Mutex::new(WalkedFile { walk: OnnxWalk::new(input.len()), model: None }));
    let Ok(kept) = input.keep(new);
    let mut file = kept.lock().unwrap_or_else(PoisonError::into_inner);
    let model = match &file.model {
        Some(model) => model.clone(),
        None => {
            let mut model = file.walk.run(input)?;
            model.resolve_names();
            file.model.insert(Arc::new(model)).clone()
        }
    };
    match &model.error {
        Some(error) if mode != ParseMode::Lenient => Err(error.clone()),
        _ => Ok(model),
    }
}

pub fn parse_onnx(input: &HeaderInput, mode: ParseMode) -> Result<Header, Error> {
    onnx_header(&*read_onnx(input, mode)?, mode, true)
}

/// The tensors that are not in the header of a file that is read by itself, although they are sound.
pub fn elsewhere(header: &Header) -> impl Iterator<Item = &SkippedEntry> {
    header.skipped.listed().iter().filter(|skipped| header.format == NAME && skipped.reason == ELSEWHERE)
}

/// The header of a file: the tensors whose data are parts of it. If the file `is_alone`, the others are listed as left
/// out.
pub fn onnx_header(model: &OnnxModel, mode: ParseMode, is_alone: bool) -> Result<Header, Error> {
    let mut builder = HeaderBuilder::new(mode);
    let mut start = u64::MAX;
    for (_, tensor) in &model.tensors {
        let OnnxTensor { name, shape, data, .. } = tensor;
        if tensor.is_repeated {
            if mode != ParseMode::Lenient {
                return Err(Error::Tensor { name: name.clone(), fault: DUPLICATE.to_owned() });
            }
            builder.skip(name, || DUPLICATE.to_owned());
            continue;
        }
        match data {
            OnnxData::Range(range) => {
                start = start.min(range.start);
                let number = match tensor.known_dtype() {
                    Dtype::Unknown(name) => builder.raw_dtype(name),
                    known => builder.known_dtype(known),
                };
                let tensor = builder.tensor(name, number, shape, range.clone());
                builder.push(tensor);
            }
            OnnxData::Decoded(_) | OnnxData::External(_) if is_alone => builder.skip(name, || ELSEWHERE.to_owned()),
            OnnxData::Decoded(_) | OnnxData::External(_) => {}
            OnnxData::LeftOut(reason) => builder.skip(name, || (*reason).to_owned()),
            OnnxData::Fault(fault) if mode == ParseMode::Lenient => builder.skip(name, || fault.clone()),
            OnnxData::Fault(fault) => return Err(Error::Tensor { name: name.clone(), fault: fault.clone() }),
        }
    }
    for (key, value) in &model.metadata {
        builder.metadata(key.clone(), MetadataValue::string(value));
    }
    let mut header = builder.finish(NAME, None, if start == u64::MAX { 0 } else { start }, DUPLICATE)?;
    header.is_copied = true;
    if let Some(error) = &model.error {
        header.skipped.remark(|| SkippedEntry::bytes(error.to_string()));
    }
    Ok(header)
}

/// Reports the tensors that the lenient parser left out of a broken file. Those that are elsewhere are sound.
pub fn onnx_damage(header: &Header, broken: &Error, _: u64, found: &mut dyn FnMut(HeaderLint)) {
    let skipped: Vec<_> = header.skipped.listed().iter().filter(|skipped| skipped.reason != ELSEWHERE).collect();
    for SkippedEntry { name, reason, kind } in &skipped {
        found(match kind {
            SkippedKind::Bytes => HeaderLint::new(CheckRule::Hole, None, reason.clone()),
            _ => HeaderLint::new(CheckRule::Entry, Some(name), format!("tensor {}: {reason}", quote(name))),
        });
    }
    if skipped.is_empty() {
        found(HeaderLint::new(CheckRule::Entry, None, broken.to_string()));
    }
}

/// Reports what is left out of a sound file.
pub fn lint_onnx(_: &Header, input: &HeaderInput, found: &mut dyn FnMut(HeaderLint)) -> Result<(), MissingRange> {
    let model = match read_onnx(input, ParseMode::Lenient) {
        Err(Error::Missing(missing)) => return Err(missing),
        // The file was parsed before, so that there is no other error.
        Err(_) => return Ok(()),
        Ok(model) => model,
    };
    for (_, tensor) in &model.tensors {
        if let OnnxData::LeftOut(reason) = tensor.data {
            let skipped = SkippedEntry::new(&tensor.name, reason);
            found(HeaderLint::new(CheckRule::LeftOut, Some(&tensor.name), skipped.to_string()));
        }
    }
    Ok(())
}

/// Takes a length off those that are left. Returns whether there were enough.
fn spend(left: &mut usize, len: usize) -> bool {
    let after = left.checked_sub(len);
    *left = after.unwrap_or(0);
    after.is_some()
}

/// The name, or the name with the first number that makes it differ from those that are taken.
fn free_name(name: String, taken: &mut HashMap<String, usize>) -> String {
    let Some(mut number) = taken.get(&name).copied() else {
        taken.insert(name.clone(), 1);
        return name;
    };
    loop {
        number += 1;
        let numbered = format!("{name}#{number}");
        if !taken.contains_key(&numbered) {
            taken.insert(name, number);
            taken.insert(numbered.clone(), 1);
            return numbered;
        }
    }
}

/// Marks all but the last of the tensors with one name.
fn mark_repeated(tensors: &mut [(TensorOwner, OnnxTensor)]) {
    let mut later: HashSet<&str> = HashSet::new();
    let is_repeated: Vec<bool> = tensors.iter().rev().map(|(_, tensor)| !later.insert(&tensor.name)).collect();
    for ((_, tensor), is_repeated) in tensors.iter_mut().rev().zip(is_repeated) {
        tensor.is_repeated = is_repeated;
    }
}

impl OnnxModel {
    /// Gives each tensor its whole name, and drops those that are not weights: values of attributes other than those of
    /// constants.
    fn resolve_names(&mut self) {
        let sparse: HashMap<usize, String> = self
            .tensors
            .iter()
            .filter_map(|(owner, tensor)| match owner {
                TensorOwner::Sparse { number, has_indices: false, .. } => Some((*number, tensor.name.clone())),
                _ => None,
            })
            .collect();
        let mut tensors = std::mem::take(&mut self.tensors);
        // Many tensors can have the name of one node.
        let (mut left, mut is_full) = (NAMES_MAX, false);
        tensors.retain_mut(|(owner, tensor)| {
            let (name, part) = match owner {
                TensorOwner::Graph(_) => return true,
                TensorOwner::Sparse { number, has_indices, .. } => {
                    let part = if *has_indices { ".indices" } else { ".values" };
                    (sparse.get(number).map_or("", |name| name), part)
                }
                TensorOwner::Attribute(attribute) => {
                    let OnnxNode { is_constant, output, .. } = &self.nodes[self.attributes[*attribute].node];
                    if !is_constant || self.attributes[*attribute].name != "value" {
                        return false;
                    }
                    (output.as_deref().unwrap_or_default(), "")
                }
            };
            is_full |= !spend(&mut left, name.len());
            if !is_full {
                tensor.name = format!("{name}{part}");
            }
            !is_full
        });
        let graphs: Vec<usize> = tensors.iter().map(|(owner, _)| self.graph_of(*owner)).collect();
        // The graph that has each name first: the main one, if it has it.
        let mut first: HashMap<&str, usize> = HashMap::new();
        for ((_, tensor), graph) in tensors.iter().zip(&graphs) {
            let of = first.entry(&tensor.name).or_insert(*graph);
            *of = if *graph == 0 { 0 } else { *of };
        }
        let moved: Vec<bool> = tensors
            .iter()
            .zip(&graphs)
            .map(|((_, tensor), graph)| first.get(&tensor.name[..]) != Some(graph))
            .collect();
        // The names that the others have, with the number of those that would have them too. Tensors of one graph with
        // one name keep having one.
        let mut taken: HashMap<String, usize> = HashMap::new();
        if moved.contains(&true) {
            for ((_, tensor), _) in tensors.iter().zip(&moved).filter(|(_, is_moved)| !**is_moved) {
                is_full |= !spend(&mut left, tensor.name.len());
                if is_full {
                    break;
                }
                taken.insert(tensor.name.clone(), 1);
            }
        }
        let mut given: HashMap<(usize, String), String> = HashMap::new();
        for ((_, tensor), graph) in
            tensors.iter_mut().zip(&graphs).zip(&moved).filter(|(_, moved)| **moved).map(|(at, _)| at)
        {
            let own = std::mem::take(&mut tensor.name);
            let prefix = self.prefix(*graph);
            is_full |= !spend(&mut left, 4 * (prefix.len() + own.len()));
            if is_full {
                break;
            }
            let whole = format!("{prefix}{own}");
            let name = given.entry((*graph, own)).or_insert_with(|| free_name(whole, &mut taken));
            tensor.name.clone_from(name);
        }
        mark_repeated(&mut tensors);
        match is_full {
            false => self.tensors = tensors,
            true => self.error = Some(Error::Limit(format!("ONNX model: more than {NAMES_MAX} bytes of names"))),
        }
    }

    fn graph_of(&self, owner: TensorOwner) -> usize {
        match owner {
            TensorOwner::Graph(graph) | TensorOwner::Sparse { graph, .. } => graph,
            TensorOwner::Attribute(attribute) => self.nodes[self.attributes[attribute].node].graph,
        }
    }

    /// The path of a graph: `NODE.ATTRIBUTE/` for each graph on it but the main one.
    fn prefix(&self, graph: usize) -> String {
        let (mut parts, mut graph) = (Vec::new(), graph);
        while graph != 0 {
            let OnnxGraph { attribute, label } = &self.graphs[graph];
            let Some(attribute) = attribute.map(|at| &self.attributes[at]) else {
                parts.push(format!("{label}/"));
                break;
            };
            let node = &self.nodes[attribute.node];
            let name = if node.name.is_empty() { node.output.as_deref().unwrap_or_default() } else { &node.name };
            parts.push(format!("{name}.{}/", attribute.name));
            graph = node.graph;
        }
        parts.reverse();
        parts.concat()
    }
}
