//! Target `manifest`: the arrays of a dataset are those of its shards, concatenated in the order of the manifest.

use super::headers::once_in;
use super::shards::{self, Meaning, ODD_NAMES, Seen, Shards, Tensors};
use arbitrary::{Result, Unstructured};
use std::collections::{BTreeMap, BTreeSet};
use weightfs::format::ParseMode;

pub fn run(bytes: &[u8]) -> bool {
    open(&mut Unstructured::new(bytes)).unwrap_or(false)
}

/// The shards in the order of the manifest, which is not that of their names.
const SHARDS: [&str; 4] = ["c.safetensors", "a.safetensors", "sub/d.safetensors", "b.safetensors"];

const TENSORS: [&str; 3] = ["x", "x.y", "重/%\n"];

#[derive(Debug, Clone)]
struct Tensor {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
    data: Vec<u8>,
}

/// The tensors of each file; `None` for a file that is not a safetensors file.
type Files = BTreeMap<&'static str, Option<Vec<Tensor>>>;

impl Tensor {
    fn new(name: String, dtype: &'static str, shape: Vec<u64>, seed: usize) -> Self {
        let width = if dtype == "U16" { 2 } else { 1 };
        let len = if shape.contains(&0) { 0 } else { shape.iter().product::<u64>() * width };
        let data = (0..len).map(|at| (at as usize * 3 + seed) as u8).collect();
        Self { name, dtype, shape, data }
    }

    fn seen(&self, shard: &str) -> Seen {
        Seen { shard: Some(shard.to_owned()), shape: format!("{:?}", self.shape), data: self.data.clone() }
    }
}

/// The tensors of the file of a number. `alike` files have the same names.
fn file(number: usize, alike: bool, bytes: &mut Unstructured) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::new();
    for (at, name) in TENSORS.into_iter().enumerate() {
        // The parts of an array have the same dtype and trailing dimensions, except for an occasional fault.
        let (mut dtype, mut trailing) = (["U8", "U16", "I8"][at], [&[][..], &[2], &[0, 3]][at].to_vec());
        let rows = match bytes.int_in_range(0..=12)? {
            rows @ 0..=9 => rows % 5,
            10 => {
                dtype = "BOOL";
                1
            }
            11 => {
                trailing.push(1);
                2
            }
            _ => continue,
        };
        // A huge number of rows is possible only for tensors of no bytes.
        let rows = if trailing.contains(&0) && once_in(4, bytes)? { rows << 62 } else { rows };
        let mut shape = [&[rows], &trailing[..]].concat();
        if once_in(24, bytes)? {
            shape.clear();
        }
        let name = if alike { name.to_owned() } else { format!("{name}{number}") };
        tensors.push(Tensor::new(name, dtype, shape, number * 40 + at));
    }
    Ok(tensors)
}

/// The tensors of the mount; `None` if the model must be refused. `listed` are the shards in the manifest's order.
fn expected(files: &Files, listed: &[&'static str], mode: ParseMode) -> Option<Tensors> {
    let find = |name: &str| files.get(&shards::path(name)[..])?.as_ref();
    let opened: BTreeMap<&str, &Vec<Tensor>> = listed.iter().filter_map(|name| Some((*name, find(name)?))).collect();
    let distinct = |names: Vec<String>| names.iter().collect::<BTreeSet<_>>().len() == names.len();
    let once = distinct(listed.iter().map(|name| name.to_string()).collect())
        && distinct(opened.keys().map(|name| shards::path(name)).collect());
    let broken = opened.len() < listed.len();
    let nothing = broken && (opened.is_empty() || mode == ParseMode::Strict);
    if !once || nothing || listed.iter().any(|name| shards::is_refused(name)) {
        return None;
    }
    // In key-value mode a tensor is that of the first shard that has it, in the order of shard names.
    let mut first: Tensors = BTreeMap::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (shard, tensors) in &opened {
        for tensor in *tensors {
            first.entry(tensor.name.clone()).or_insert_with(|| tensor.seen(shard));
            *counts.entry(&tensor.name).or_default() += 1;
        }
    }
    let shared: usize = counts.values().filter(|count| **count > 1).sum();
    if shared == 0 || shared * 2 < counts.values().sum::<usize>() {
        return Some(first);
    }
    let join = |name: &str| {
        let part = |shard: &&str| opened.get(shard)?.iter().find(|tensor| tensor.name == name);
        let parts: Vec<&Tensor> = listed.iter().map(part).collect::<Option<_>>()?;
        let (dtype, trailing) = (parts[0].dtype, parts[0].shape.get(1..)?);
        let alike = |part: &&Tensor| part.dtype == dtype && part.shape.get(1..) == Some(trailing);
        let rows = parts.iter().try_fold(0u64, |rows, part| rows.checked_add(*part.shape.first()?))?;
        let data = parts.iter().flat_map(|part| part.data.clone()).collect();
        let shape = format!("{:?}", [&[rows], trailing].concat());
        parts.iter().all(alike).then_some(Seen { shard: None, shape, data })
    };
    Some(counts.keys().filter_map(|name| Some((name.to_string(), join(name)?))).collect())
}

/// The text of a manifest.
fn text(listed: &[&str], bytes: &mut Unstructured) -> Result<(Vec<u8>, Meaning)> {
    let shard = |name: &&str| {
        let name = serde_json::to_string(name).unwrap();
        format!(r#"{{"shard_path":{name},"samples_count":1,"bytes":100}}"#)
    };
    let listed = listed.iter().map(shard).collect::<Vec<_>>().join(",");
    let version = *bytes.choose(&["1.0", "1", "1.9.9"])?;
    let spoilt = match bytes.int_in_range(0..=15)? {
        0 => format!(r#"{{"format_version":"2.0","shards":[{listed}]}}"#),
        1 => format!(r#"{{"format_version":1,"shards":[{listed}]}}"#),
        2 => format!(r#"{{"shards":[{listed}]}}"#),
        3 => r#"{"format_version":"1.0"}"#.into(),
        4 => r#"{"format_version":"1.0","shards":{}}"#.into(),
        5 => {
            r#"{"format_version":"1.0","shards":[{"shard_path":"a.safetensors","samples_count":-1,"bytes":1}]}"#.into()
        }
        6 => r#"{"format_version":"1.0","shards":[{"shard_path":"a.safetensors"}]}"#.into(),
        _ => {
            let text =
                format!(r#"{{"total_samples":0,"format_version":"{version}","schema":{{}},"shards":[{listed}]}}"#);
            return shards::spoil(&text, bytes);
        }
    };
    Ok((spoilt.into(), Meaning::Invalid))
}

fn open(bytes: &mut Unstructured) -> Result<bool> {
    let alike = !once_in(4, bytes)?;
    let mut files = Files::new();
    let mut listed = Vec::new();
    for (number, name) in SHARDS.into_iter().enumerate().take(bytes.int_in_range(0..=SHARDS.len())?) {
        // Some shards have the names of the other kind of dataset.
        let alike = alike != once_in(16, bytes)?;
        files.insert(name, if once_in(16, bytes)? { None } else { Some(file(number, alike, bytes)?) });
        listed.push(if once_in(24, bytes)? { *bytes.choose(&ODD_NAMES)? } else { name });
        if once_in(32, bytes)? {
            listed.push(name);
        }
    }
    let (text, meaning) = text(&listed, bytes)?;
    let content = |(name, tensors): (&&'static str, &Option<Vec<Tensor>>)| {
        let Some(tensors) = tensors else { return (*name, b"no tensors".to_vec()) };
        let listed: Vec<_> = tensors
            .iter()
            .map(|tensor| (&tensor.name[..], tensor.dtype, &tensor.shape[..], &tensor.data[..]))
            .collect();
        (*name, shards::file(&listed))
    };
    let directory = Shards::new(files.iter().map(content));
    let mut sound = false;
    for mode in [ParseMode::Strict, ParseMode::Lenient] {
        let opening = directory.open("dataset_manifest.json", &text, mode);
        for (shard, seen) in opening.iter().flat_map(|opening| &opening.shards) {
            // Each shard shows its own tensors, whether they can be joined or not.
            let name = weightfs::name::decode_name(shard).unwrap();
            let tensors = files[&shards::path(&name)[..]].as_ref().unwrap();
            let expected: Tensors = tensors.iter().map(|tensor| (tensor.name.clone(), tensor.seen(&name))).collect();
            assert_eq!(*seen, expected, "{shard}");
        }
        let expected = expected(&files, &listed, mode).filter(|_| meaning == Meaning::Same);
        let whole = opening.map(|opening| opening.whole);
        sound |= whole.is_some();
        assert!(
            meaning == Meaning::Unknown || whole == expected,
            "{mode:?}: {whole:?}, expected {expected:?}, files {files:?}"
        );
    }
    Ok(sound)
}
