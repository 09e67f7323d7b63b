//! Checkpoints of torch before version 0.1.10: tar archives with the members `storages`, `tensors`, `pickle` and
//! `sys_info`. Pickles of single values lie between the data.
//!
//! Source: `torch/serialization.py`, `legacy_load` in `_legacy_load`.

use super::dtype::{self, TorchDtype};
use super::legacy::{SHORT_MAX, check_machine, load_at};
use super::lower::lower_tree;
use super::storages::{TarTensor, TorchStorages, object_key};
use super::{PICKLE_MAX, RANK_MAX, checkpoint_error};
use crate::format::detect::{self, TAR_BLOCK, has_tar_times, is_tar_torch, tar_checksum};
use crate::format::error::Error;
use crate::format::header::{Header, ParseMode};
use crate::format::input::{HeaderInput, MissingRange, number_at};
use crate::format::pickle::{PickleTree, PickleValue, load_first, load_pickle};
use crate::format::tensors::fits;
use crate::text::quote;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

const BLOCK: u64 = TAR_BLOCK as u64;

/// Maximum number of headers of members, which bounds the time: the parser starts again after each read. Torch writes
/// four, and Python may write another one before each.
const HEADERS_MAX: usize = 64;

/// The facts about a member that may precede its header, because they do not change what it is.
const HARMLESS: [&str; 5] = ["mtime", "atime", "ctime", "uid", "gid"];

/// Maximum number of storages, which bounds the time: the parser starts again after each read.
const STORAGES_MAX: i64 = 2000;

/// Maximum size of the member `tensors`, in bytes.
const TENSORS_MAX: u64 = 4 << 20;

/// Number of bytes that are read of a short pickle at first, and of what follows it.
const FIRST: u64 = 4 << 10;

/// Where the parts of an archive are.
pub struct TarLayout {
    pickle: Range<u64>,
    tensors: HashMap<String, TarTensor>,
    data_start: u64,
}

struct TarStorage {
    dtype: TorchDtype,
    range: Range<u64>,
}

pub fn is_tar(input: &HeaderInput) -> Result<bool, MissingRange> {
    let prefix = input.get(0..detect::PREFIX)?;
    Ok(is_tar_torch(if has_tar_times(prefix) { input.get(0..detect::TAR_PREFIX)? } else { prefix }))
}

pub fn parse_tar(input: &HeaderInput, mode: ParseMode) -> Result<Header, Error> {
    let layout = TarLayout::read(input)?;
    let storages = TorchStorages::of_tensors(&layout.tensors);
    let mut header = lower_tree(&layout.tree(input)?, &storages, layout.data_start, mode)?;
    header.is_copied = true;
    Ok(header)
}

impl TarLayout {
    pub fn read(input: &HeaderInput) -> Result<Arc<Self>, Error> {
        input.keep(|| Self::find(input))
    }

    fn find(input: &HeaderInput) -> Result<Self, Error> {
        let members = members(input)?;
        let member = |name: &str| {
            let found = members.iter().find(|(other, _)| other == name).map(|(_, range)| range.clone());
            found.ok_or_else(|| checkpoint_error(format!("the tar archive has no member {name}")))
        };
        let pickle = member("pickle")?;
        let (machine, table) = (member("sys_info")?, member("tensors")?);
        for (name, range, max) in
            [("pickle", &pickle, PICKLE_MAX), ("tensors", &table, TENSORS_MAX), ("sys_info", &machine, SHORT_MAX)]
        {
            let size = range.end - range.start;
            if size > max {
                let fault = format!("{name} has {size} bytes; weightfs reads at most {max}");
                return Err(checkpoint_error(fault));
            }
        }
        let machine = load_pickle(input.get(machine)?).map_err(checkpoint_error)?;
        check_plain(&machine)?;
        check_machine(&machine)?;
        let storages = storages(input, member("storages")?)?;
        let tensors = tensors(input.get(table)?, &storages)?;
        let data_start = storages.values().map(|storage| storage.range.start).min().unwrap_or(pickle.end);
        input.get(pickle.clone())?;
        Ok(Self { pickle, tensors, data_start })
    }

    pub fn tree<'i>(&self, input: &'i HeaderInput) -> Result<PickleTree<'i>, Error> {
        load_pickle(input.get(self.pickle.clone())?).map_err(checkpoint_error)
    }
}

/// The names of the members, and the ranges of their data in bytes from the start of the file.
/// Source: "pax Interchange Format" in POSIX.1-2017.
fn members(input: &HeaderInput) -> Result<Vec<(String, Range<u64>)>, Error> {
    let (mut members, mut at) = (Vec::new(), 0);
    for _ in 0..HEADERS_MAX {
        let block = input.get(at..at.saturating_add(BLOCK))?;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(members);
        }
        let fault = |what: &str| checkpoint_error(format!("the header of a tar member at byte {at} {what}"));
        if block.len() < TAR_BLOCK || octal(&block[148..156]) != Some(tar_checksum(block)) {
            return Err(fault("is cut or has a wrong checksum"));
        }
        if block[345] != 0 {
            return Err(fault("has a prefix of its name, which torch does not write"));
        }
        let size = octal(&block[124..136]).ok_or_else(|| fault("has no octal size"))?;
        let (start, padded) = (at + BLOCK, size.checked_next_multiple_of(BLOCK));
        let next = padded.and_then(|padded| fits(start.checked_add(padded)?));
        let next = next.ok_or_else(|| fault("has a size that is too large"))?;
        let end = start + size;
        if end > input.len() {
            return Err(Error::data_cut(end, input.len()));
        }
        match block[156] {
            b'0' | 0 => {
                let name = block[..100].split(|byte| *byte == 0).next().unwrap_or_default();
                let name = String::from_utf8_lossy(name).into_owned();
                if members.iter().any(|(other, _)| *other == name) {
                    return Err(checkpoint_error(format!("the tar archive has two members {}", quote(&name))));
                }
                members.push((name, start..end));
            }
            // Times in more detail, as Python writes them.
            b'x' | b'g' if size <= BLOCK => {
                if !are_harmless(input.get(start..end)?) {
                    return Err(fault("has other facts about a member than times and owners, which is not supported"));
                }
            }
            other => return Err(fault(&format!("is of a type that torch does not write ({other})"))),
        }
        at = next;
    }
    Err(checkpoint_error(format!("the tar archive has more than {} members", HEADERS_MAX - 1)))
}

/// Whether facts about a member, each `LENGTH KEY=VALUE` and a line feed, are harmless.
fn are_harmless(mut facts: &[u8]) -> bool {
    while !facts.is_empty() {
        let digits = facts.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let len = str::from_utf8(&facts[..digits]).ok().and_then(|len| len.parse().ok());
        let Some((fact, rest)) = len.and_then(|len| facts.split_at_checked(len)) else { return false };
        let fact = fact.get(digits..).and_then(|fact| fact.strip_prefix(b" ")?.strip_suffix(b"\n")).unwrap_or_default();
        let is_of = |key: &&str| fact.strip_prefix(key.as_bytes()).is_some_and(|value| value.starts_with(b"="));
        if !HARMLESS.iter().any(is_of) {
            return false;
        }
        facts = rest;
    }
    true
}

/// A number in octal digits, with spaces or NUL around them.
fn octal(field: &[u8]) -> Option<u64> {
    let text = str::from_utf8(field).ok()?.trim_matches([' ', '\0']);
    u64::from_str_radix(text, 8).ok()
}

/// The storages of the member that has this range, by their keys, with those that are views of others.
fn storages(input: &HeaderInput, member: Range<u64>) -> Result<HashMap<String, TarStorage>, Error> {
    let mut at = member.start;
    let count = load_short(input, &mut at, &member)?;
    let PickleValue::Int(count @ 0..=STORAGES_MAX) = count.root else {
        return Err(checkpoint_error(format!("its number of storages is not one of 0 to {STORAGES_MAX}")));
    };
    let mut storages = HashMap::new();
    for number in 0..count {
        let fault = |what: &str| checkpoint_error(format!("storage {number}: {what}"));
        let tree = load_short(input, &mut at, &member)?;
        let [key, _, class] = tree.elements(tree.root) else {
            return Err(fault("it has no key, location and class"));
        };
        let dtype = tree.global(*class).and_then(|(module, name)| dtype::of_storage(module, name));
        let dtype = dtype.filter(|dtype| dtype.size > 0).ok_or_else(|| fault("its class is not known"))?;
        let key = object_key(&tree, *key).ok_or_else(|| fault("its key is not a number"))?;
        let elements = number_at(input.get(at..at.saturating_add(8))?, 0, 8);
        let start = at + 8;
        let len = elements.checked_mul(dtype.size.into());
        let end = len.and_then(|len| start.checked_add(len)).filter(|end| *end <= member.end);
        at = end.ok_or_else(|| {
            fault(&format!("its {elements} elements from byte {start} on end beyond byte {} of the file", member.end))
        })?;
        if storages.insert(key, TarStorage { dtype, range: start..at }).is_some() {
            return Err(fault("another one has its key"));
        }
    }
    let views = load_short(input, &mut at, &member)?;
    for view in views.elements(views.root) {
        let made = match views.elements(*view) {
            [key, root, PickleValue::Int(offset @ 0..), PickleValue::Int(len @ 0..)] => {
                let root = object_key(&views, *root).and_then(|root| storages.get(&root));
                let view = root.and_then(|root| root.view(offset.unsigned_abs(), len.unsigned_abs()));
                object_key(&views, *key).zip(view)
            }
            _ => None,
        };
        let (key, view) = made.ok_or_else(|| checkpoint_error("a view of a storage does not lie in a storage"))?;
        storages.insert(key, view);
    }
    Ok(storages)
}

impl TarStorage {
    /// Some of its elements.
    fn view(&self, offset: u64, len: u64) -> Option<Self> {
        let size = u64::from(self.dtype.size);
        let start = self.range.start.checked_add(offset.checked_mul(size)?)?;
        let end = start.checked_add(len.checked_mul(size)?).filter(|end| *end <= self.range.end)?;
        Some(Self { dtype: self.dtype, range: start..end })
    }
}

/// The short pickle at byte `at` of a member. Goes behind it.
fn load_short<'i>(input: &'i HeaderInput, at: &mut u64, member: &Range<u64>) -> Result<PickleTree<'i>, Error> {
    let tree = load_at(input, *at..member.end.min(at.saturating_add(SHORT_MAX)), FIRST, "a pickle of storages")?;
    check_plain(&tree)?;
    *at += tree.len as u64;
    Ok(tree)
}

/// Fails if a pickle makes objects, or names other globals than the classes of storages and tensors.
fn check_plain(tree: &PickleTree) -> Result<(), Error> {
    let is_class = |(module, name): (&str, &str)| {
        ["torch", "torch.cuda"].contains(&module) && (name.ends_with("Storage") || name.ends_with("Tensor"))
    };
    if let Some((module, name)) = tree.globals().find(|global| !is_class(*global)) {
        let global = quote(&format!("{module}.{name}"));
        return Err(checkpoint_error(format!("a short pickle names {global}, which torch does not write there")));
    }
    match tree.has_objects() {
        true => Err(checkpoint_error("a short pickle makes an object, which torch does not write there")),
        false => Ok(()),
    }
}

/// The tensors of the member with these bytes, by their keys.
fn tensors(bytes: &[u8], storages: &HashMap<String, TarStorage>) -> Result<HashMap<String, TarTensor>, Error> {
    let mut rest = bytes;
    let count = take_pickle(&mut rest)?;
    let PickleValue::Int(count @ 0..) = count.root else {
        return Err(checkpoint_error("its number of tensors is not a number"));
    };
    let mut tensors = HashMap::new();
    for number in 0..count {
        let fault = |what: &str| checkpoint_error(format!("tensor {number} of the tar archive: {what}"));
        let tree = take_pickle(&mut rest)?;
        let [key, storage, _] = tree.elements(tree.root) else {
            return Err(fault("it has no key, storage and class"));
        };
        let storage = object_key(&tree, *storage).and_then(|key| storages.get(&key));
        let storage = storage.ok_or_else(|| fault("its storage is not there"))?;
        let key = object_key(&tree, *key).ok_or_else(|| fault("its key is not a number"))?;
        // The upper half of 8 bytes is not used.
        let rank = take(&mut rest, 8).map(|rank| number_at(rank, 0, 4) as usize).filter(|rank| *rank <= RANK_MAX);
        let rank = rank.ok_or_else(|| fault("it is cut, or has more than 64 dimensions"))?;
        let numbers = take(&mut rest, 8 * (2 * rank + 1)).ok_or_else(|| fault("it is cut"))?;
        let number = |at: usize| number_at(numbers, 8 * at, 8).cast_signed();
        let tensor = TarTensor {
            dtype: storage.dtype,
            shape: (0..rank).map(number).collect(),
            strides: (rank..2 * rank).map(number).collect(),
            offset: number(2 * rank),
            range: storage.range.clone(),
        };
        if tensors.insert(key, tensor).is_some() {
            return Err(fault("another one has its key"));
        }
    }
    Ok(tensors)
}

/// The pickle with which bytes begin. Goes behind it.
fn take_pickle<'i>(rest: &mut &'i [u8]) -> Result<PickleTree<'i>, Error> {
    let tree = load_first(rest).map_err(|fault| checkpoint_error(format!("tensors: {}", fault.message)))?;
    check_plain(&tree)?;
    *rest = &rest[tree.len..];
    Ok(tree)
}

fn take<'i>(rest: &mut &'i [u8], len: usize) -> Option<&'i [u8]> {
    let (taken, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(taken)
}
