//! Target `mount`: every file of a mounted model has the expected size and bytes, and no request panics.

use super::headers::{self, official, once_in};
use super::shards::read;
use arbitrary::{Result, Unstructured};
use safetensors::SafeTensors;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use weightfs::codec::bf16;
use weightfs::content::ReadRequest;
use weightfs::format::{Dtype, MetadataValue, ParseMode};
use weightfs::fs::{FileKind, Ino, Ownership, ROOT, Superblock};
use weightfs::model::{Model, OpenedModel, TensorId};
use weightfs::name;
use weightfs::source::MemorySource;
use weightfs::view::{ShownViews, View};

pub fn run(bytes: &[u8]) -> bool {
    explore(&mut Unstructured::new(bytes)).unwrap_or(false)
}

/// The bytes of files by path; `None` for files that are slow to compute.
type Files = BTreeMap<String, Option<Vec<u8>>>;

/// A tensor as its header describes it.
struct Tensor {
    name: String,
    dtype: String,
    is_known: bool,
    shape: Vec<u64>,
    data: Vec<u8>,
}

fn explore(bytes: &mut Unstructured) -> Result<bool> {
    let mode = if bytes.arbitrary()? { ParseMode::Lenient } else { ParseMode::Strict };
    let (factor, addend): (u8, u8) = bytes.arbitrary()?;
    let (header, len) = headers::header(bytes)?;
    let mut file = official::file(&header, len);
    for (at, byte) in file[8 + header.len()..].iter_mut().enumerate() {
        *byte = (at as u8).wrapping_mul(factor).wrapping_add(addend);
    }
    let source = Arc::new(MemorySource::new(file.clone()));
    let Ok(model) = Model::from_source(&Path::new("/m.safetensors").into(), source, mode) else { return Ok(false) };
    let tensor = |id: TensorId| {
        let (_, tensor) = model.stored_tensor(id);
        Tensor {
            name: tensor.name.to_owned(),
            dtype: tensor.dtype.name().to_owned(),
            is_known: tensor.dtype == Dtype::C64 || tensor.dtype.to_f32().is_some(),
            shape: tensor.shape.to_vec(),
            data: file[tensor.range.start as usize..tensor.range.end as usize].to_vec(),
        }
    };
    let tensors: Vec<Tensor> = model.logical().iter().map(tensor).collect();
    let text = |(key, value): &(String, MetadataValue)| (key.clone(), value.text().to_owned());
    let metadata: Vec<(String, String)> = model.metadata().iter().map(text).collect();
    let opened = OpenedModel::Model(model.into(), None);
    let superblock = Superblock::new(opened, ShownViews::default(), Ownership::default()).unwrap();
    let mut files = Files::new();
    walk(&superblock, ROOT, "", &mut files, bytes)?;
    check_tensors(&files, &tensors);
    check_whole(&files, &tensors, &metadata);
    assert_eq!(files["/header.json"].as_ref().unwrap(), &header);
    // Pictures are slow, so only a few are made.
    let has_values = |tensor: &&Tensor| tensor.is_known && tensor.dtype != "C64";
    if let Some(tensor) = tensors.first().filter(has_values)
        && once_in(256, bytes)?
    {
        let dir = superblock.lookup(ROOT, b"plots", &ReadRequest::WAIT).unwrap().ino;
        let file = format!("{}.png", name::encode_name(&tensor.name));
        let attr = superblock.lookup(dir, file.as_bytes(), &ReadRequest::WAIT).unwrap();
        let picture = read(&superblock, attr.ino, 0, u64::MAX).unwrap();
        assert_eq!((&picture[..4], picture.len() as u64), (&b"\x89PNG"[..], attr.size));
    }
    while !bytes.is_empty() {
        request_anything(&superblock, bytes)?;
    }
    Ok(true)
}

/// Reads everything below a directory, and compares what different operations return.
fn walk(superblock: &Superblock, dir: Ino, path: &str, files: &mut Files, bytes: &mut Unstructured) -> Result<()> {
    let list = |offset| {
        let mut entries = Vec::new();
        let add = |entry: weightfs::fs::Dentry<'_>| {
            entries.push((entry.name.to_str().unwrap().to_owned(), entry.ino, entry.kind, entry.next));
            false
        };
        superblock.readdir(dir, offset, &ReadRequest::WAIT, add).unwrap();
        entries
    };
    let entries = list(0);
    assert_eq!((&entries[0].0[..], entries[0].1, &entries[1].0[..]), (".", dir, ".."));
    let at = bytes.choose_index(entries.len())?;
    assert_eq!(list(entries[at].3), entries[at + 1..], "resumed listing of {path}");
    for (name, ino, kind, _) in &entries[2..] {
        let below = format!("{path}/{name}");
        assert!(name.len() <= 255 && !name.contains('/'), "{below}");
        let attr = superblock.lookup(dir, name.as_bytes(), &ReadRequest::WAIT).unwrap();
        assert_eq!((attr.ino, attr.kind), (*ino, *kind), "{below}");
        assert_eq!(superblock.getattr(*ino, &ReadRequest::WAIT).unwrap(), attr, "{below}");
        if *kind == FileKind::Dir {
            walk(superblock, *ino, &below, files, bytes)?;
            continue;
        }
        let names = superblock.listxattr(*ino, &ReadRequest::WAIT).unwrap();
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            superblock.getxattr(*ino, name, &ReadRequest::WAIT).unwrap();
        }
        let whole = if path == "/plots" { None } else { Some(read_all(superblock, *ino, attr.size, &below, bytes)?) };
        assert!(files.insert(below, whole).is_none());
    }
    Ok(())
}

/// Reads a file of `len` bytes whole, and compares a part of it with that.
fn read_all(superblock: &Superblock, ino: Ino, len: u64, path: &str, bytes: &mut Unstructured) -> Result<Vec<u8>> {
    let read = |offset, size| read(superblock, ino, offset, size).unwrap().to_vec();
    let whole = read(0, u64::MAX);
    assert_eq!(whole.len() as u64, len, "{path}");
    let (offset, size) = (bytes.int_in_range(0..=len)?, bytes.int_in_range(0..=len + 1)?);
    let end = len.min(offset + size);
    assert!(read(offset, size) == whole[offset as usize..end as usize], "{path}: {size} bytes at offset {offset}");
    Ok(whole)
}

/// Checks the views of each tensor.
fn check_tensors(files: &Files, tensors: &[Tensor]) {
    for tensor in tensors {
        let file = |dir: &str, ending: &str| {
            files.get(&format!("/{dir}/{}{ending}", name::encode_name(&tensor.name)))?.as_ref()
        };
        assert_eq!(file("tensors", "").unwrap(), &tensor.data);
        // Values of an unknown dtype cannot be decoded.
        let count: u64 = if tensor.is_known { elements(&tensor.shape) } else { 0 };
        let has_values = tensor.is_known && tensor.dtype != "C64";
        let f32 = file("f32", ".f32");
        assert_eq!(f32.map(|f32| f32.len() as u64), has_values.then_some(count * 4));
        let npy = file("npy", ".npy");
        assert_eq!(npy.is_some(), tensor.is_known);
        let has_data = |npy: &Vec<u8>| npy.ends_with(&tensor.data) || f32.is_some_and(|f32| npy.ends_with(f32));
        assert!(npy.is_none_or(|npy| npy.starts_with(b"\x93NUMPY") && has_data(npy)));
        let stats = file("stats", ".json").map(|text| serde_json::from_slice::<serde_json::Value>(text).unwrap());
        assert_eq!(stats.map(|stats| stats["count"].as_u64().unwrap()), has_values.then_some(count));
        let single = file("safetensors", ".safetensors").unwrap();
        if tensor.is_known {
            let read = SafeTensors::deserialize(single).unwrap();
            assert_eq!(read.tensor(&tensor.name).unwrap().data(), tensor.data);
            assert_eq!(read.len(), 1);
        }
    }
}

/// The number of elements. If a dimension is 0, the product of the others may overflow, so it is not computed.
fn elements(shape: &[u64]) -> u64 {
    if shape.contains(&0) { 0 } else { shape.iter().product() }
}

/// Checks the files of the whole model.
fn check_whole(files: &Files, tensors: &[Tensor], metadata: &[(String, String)]) {
    let file = |path: &str| files[path].as_ref().unwrap();
    let index: serde_json::Value = serde_json::from_slice(file("/index.json")).unwrap();
    let names: Vec<&str> =
        index["tensors"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert!(names.iter().copied().eq(tensors.iter().map(|tensor| &tensor.name[..])));
    let sums = std::str::from_utf8(file("/SHA256SUMS")).unwrap();
    assert_eq!(sums.lines().count(), tensors.len());
    let all: HashMap<String, String> = metadata.iter().cloned().collect();
    assert_eq!(serde_json::from_slice::<HashMap<String, String>>(file("/metadata.json")).unwrap(), all);
    for (key, value) in metadata {
        assert_eq!(file(&format!("/metadata/{}", name::encode_name(key))), value.as_bytes());
    }
    if tensors.iter().any(|tensor| !tensor.is_known) {
        return;
    }
    for (path, expected) in [("/export/m-whole.safetensors", all), ("/export/m-clean.safetensors", HashMap::new())] {
        let (_, header) = SafeTensors::read_metadata(file(path)).unwrap();
        assert_eq!(header.metadata().clone().unwrap_or_default(), expected);
        let read = SafeTensors::deserialize(file(path)).unwrap();
        assert_eq!(read.len(), tensors.len());
        for tensor in tensors {
            let found = read.tensor(&tensor.name).unwrap();
            assert!(
                found.data() == tensor.data && found.shape().iter().map(|dim| *dim as u64).eq(tensor.shape.clone())
            );
            assert_eq!(found.dtype().to_string(), tensor.dtype);
        }
    }
    check_converted(files, tensors);
}

/// Checks the files of the whole model that are converted to another dtype.
fn check_converted(files: &Files, tensors: &[Tensor]) {
    const KEPT: [&str; 10] = ["BOOL", "C64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64"];
    for (path, to) in [("/export/m-bf16.safetensors", "BF16"), ("/export/m-f32.safetensors", "F32")] {
        let read = SafeTensors::deserialize(files[path].as_ref().unwrap()).unwrap();
        assert_eq!(read.len(), tensors.len());
        for tensor in tensors {
            let found = read.tensor(&tensor.name).unwrap();
            assert!(found.shape().iter().map(|dim| *dim as u64).eq(tensor.shape.clone()));
            if KEPT.contains(&&tensor.dtype[..]) || tensor.dtype == to {
                assert!(found.dtype().to_string() == tensor.dtype && found.data() == tensor.data);
                continue;
            }
            assert_eq!(found.dtype().to_string(), to);
            let floats = files[&format!("/f32/{}.f32", name::encode_name(&tensor.name))].as_ref().unwrap();
            let mut expected = vec![0; floats.len() / 2];
            match (to, &tensor.dtype[..]) {
                ("F32", _) => expected.clone_from(floats),
                (_, "F64") => bf16::from_f64(&tensor.data, &mut expected),
                _ => bf16::from_f32(floats, &mut expected),
            }
            assert!(found.data() == expected, "{}", tensor.dtype);
        }
    }
}

/// Sends requests for an arbitrary inode and name.
fn request_anything(superblock: &Superblock, bytes: &mut Unstructured) -> Result<()> {
    let ino = if once_in(4, bytes)? {
        bytes.arbitrary()?
    } else {
        bytes.int_in_range(0..=160u64)? << 32 | bytes.int_in_range(0..=20)?
    };
    let len = bytes.int_in_range(0..=12)?;
    let name = bytes.bytes(len.min(bytes.len()))?;
    let (offset, size) = (bytes.arbitrary()?, bytes.int_in_range(0..=1u64 << 20)?);
    let kind = superblock.getattr(ino, &ReadRequest::WAIT).map(|attr| {
        assert_eq!(attr.ino, ino);
        attr.kind
    });
    let found = superblock.lookup(ino, name, &ReadRequest::WAIT).is_ok();
    let mut listed = 0;
    let mut same_name = false;
    let is_dir = superblock.readdir(ino, 0, &ReadRequest::WAIT, |entry| {
        listed += 1;
        same_name |= listed > 2 && entry.name.as_encoded_bytes() == name;
        false
    });
    assert_eq!(found, same_name, "{name:?} in {ino:#x}");
    assert_eq!(is_dir.is_ok(), matches!(kind, Ok(FileKind::Dir)));
    let _ = superblock.readdir(ino, offset, &ReadRequest::WAIT, |_| true);
    let _ = superblock.getxattr(ino, name, &ReadRequest::WAIT);
    assert_eq!(superblock.listxattr(ino, &ReadRequest::WAIT).is_ok(), kind.is_ok());
    // Pictures are slow.
    let is_plot = View::all().any(|view| view.row().file == "plots" && ino >> 32 == 128 + view.index() as u64);
    if !is_plot {
        assert_eq!(read(superblock, ino, offset, size).is_ok(), matches!(kind, Ok(FileKind::File)), "{ino:#x}");
    }
    assert!(superblock.readlink(ino).is_err());
    let _ = superblock.statfs();
    Ok(())
}
