//! The references of a model: one JSON object with the metadata of all nodes and the places of all chunks.

use super::array::{ZarrArray, ZarrFormat};
use super::node::{compare_names, is_below, node_name, shared_modules};
use crate::format::SkippedEntry;
use crate::model::{Model, TensorId};
use crate::source::Location;
use crate::text::{HexDigits, write_json_string};
use jiff::Timestamp;
use std::io::{self, Write};

#[derive(Debug, Clone, Copy)]
pub struct ReferenceOptions {
    pub format: ZarrFormat,
    /// Whether all arrays are in the root, named by their full names.
    pub is_flat: bool,
    /// The most bytes of a chunk, unless an element is larger.
    pub chunk: u64,
}

/// The path of a file cannot be written as JSON.
#[derive(Debug, thiserror::Error)]
#[error("{0}: references cannot name this file, because its path is not UTF-8")]
pub struct UnnamedFile(pub Location);

/// A tensor that is left out, and why.
#[derive(Debug)]
struct LeftOutTensor {
    name: String,
    reason: String,
}

/// The references of the tensors of a model.
#[derive(Debug)]
pub struct ReferenceStore<'m> {
    model: &'m Model,
    options: ReferenceOptions,
    /// In the order of their nodes.
    tensors: Vec<TensorId>,
    left_out: Vec<LeftOutTensor>,
    /// The URL of each file.
    pub(super) urls: Vec<String>,
}

impl<'m> ReferenceStore<'m> {
    /// The references of the tensors whose name `is_wanted`.
    pub fn new(
        model: &'m Model,
        options: ReferenceOptions,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Self, UnnamedFile> {
        let urls = model.files.iter().map(|file| url_of(&file.location)).collect::<Result<_, _>>()?;
        let (mut tensors, mut left_out) = (Vec::new(), Vec::new());
        for id in model.logical().iter().filter(|id| is_wanted(model.name(*id))) {
            match ZarrArray::of(model, id, options.format, options.chunk) {
                Ok(_) => tensors.push(id),
                Err(reason) => left_out.push(LeftOutTensor { name: model.name(id).to_owned(), reason }),
            }
        }
        tensors.sort_by(|a, b| match options.is_flat {
            true => model.name(*a).cmp(model.name(*b)),
            false => compare_names(model.name(*a), model.name(*b)),
        });
        Ok(Self { model, options, tensors, left_out, urls })
    }

    /// Number of tensors that have references.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Name and reason of each tensor that is left out.
    pub fn left_out(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.left_out.iter().map(|tensor| (&tensor.name[..], &tensor.reason[..]))
    }

    /// Writes the references, one per line. The metadata of all nodes is also in the root (consolidated metadata), so
    /// that readers need neither list the nodes nor read them one by one.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(b"{\"version\": 1, \"refs\": {\n")?;
        let attributes = self.root_attributes()?;
        let format = self.options.format;
        match format {
            ZarrFormat::V2 => {
                write_pair(".zgroup", GROUP_V2, out)?;
                out.write_all(b",\n")?;
                write_pair(".zattrs", &attributes, out)?;
                out.write_all(b",\n\".zmetadata\": \"")?;
            }
            ZarrFormat::V3 => out.write_all(b"\"zarr.json\": \"")?,
        }
        let mut text = QuotedText { out };
        self.write_consolidated(&attributes, &mut text)?;
        text.write_all(b"}")?;
        out.write_all(b"\"")?;
        self.each_node(&mut |path, node| {
            for (key, document) in &node.documents(format)? {
                out.write_all(b",\n")?;
                write_pair(&format!("{path}/{key}"), document, out)?;
            }
            match node {
                ReferencedNode::Group => Ok(()),
                ReferencedNode::Array(array) => self.write_chunks(path, array, out),
            }
        })?;
        out.write_all(b"\n}}\n")
    }

    /// Writes the metadata of all nodes as one JSON object, without its last bracket.
    pub(super) fn write_consolidated(&self, attributes: &[u8], text: &mut dyn Write) -> io::Result<()> {
        let format = self.options.format;
        match format {
            ZarrFormat::V2 => {
                text.write_all(b"{\"zarr_consolidated_format\": 1, \"metadata\": {\".zgroup\": ")?;
                text.write_all(GROUP_V2)?;
                text.write_all(b", \".zattrs\": ")?;
                text.write_all(attributes)?;
            }
            ZarrFormat::V3 => {
                text.write_all(&group_v3(attributes, b", \"consolidated_metadata\": {\"kind\": \"inline\", "))?;
                text.write_all(b"\"must_understand\": false, \"metadata\": {")?;
            }
        }
        let mut is_first = format == ZarrFormat::V3;
        self.each_node(&mut |path, node| {
            for (key, document) in &node.documents(format)? {
                text.write_all(if is_first { b"" } else { b", " })?;
                is_first = false;
                match format {
                    ZarrFormat::V2 => write_json_string(&format!("{path}/{key}"), &mut *text)?,
                    ZarrFormat::V3 => write_json_string(path, &mut *text)?,
                }
                text.write_all(b": ")?;
                text.write_all(document)?;
            }
            Ok(())
        })?;
        text.write_all(if format == ZarrFormat::V2 { b"}" } else { b"}}" })
    }

    fn write_chunks(&self, path: &str, array: &ZarrArray, out: &mut dyn Write) -> io::Result<()> {
        let nbytes = array.grid.nbytes;
        let (prefix, separator, scalar) = match self.options.format {
            ZarrFormat::V2 => ("", ".", "0"),
            ZarrFormat::V3 => ("c/", "/", "c"),
        };
        array.each_chunk(|index, file, offset| {
            let numbers: Vec<String> = index.iter().map(u64::to_string).collect();
            out.write_all(b",\n")?;
            match &numbers[..] {
                [] => write_json_string(&format!("{path}/{scalar}"), out)?,
                numbers => write_json_string(&format!("{path}/{prefix}{}", numbers.join(separator)), out)?,
            }
            out.write_all(b": [")?;
            write_json_string(&self.urls[file], out)?;
            write!(out, ", {offset}, {nbytes}]")
        })
    }

    /// Passes the path of each node below the root to `take`, a group before the nodes in it.
    pub(super) fn each_node(&self, take: &mut TakeNode) -> io::Result<()> {
        let mut before = "";
        for (at, id) in self.tensors.iter().enumerate() {
            let name = self.model.name(*id);
            let path = match self.options.is_flat {
                true => node_name(name).into_owned(),
                false => {
                    // The modules that the tensor before this one is not in.
                    let shared = if at == 0 { 0 } else { shared_modules(before, name) };
                    for (dot, _) in name.match_indices('.').filter(|(dot, _)| *dot >= shared) {
                        take(&module_path(&name[..dot]), ReferencedNode::Group)?;
                    }
                    let is_group = self.tensors.get(at + 1).is_some_and(|next| is_below(self.model.name(*next), name));
                    module_path(name) + if is_group { "%" } else { "" }
                }
            };
            before = name;
            // The same was done in `new`.
            if let Ok(array) = ZarrArray::of(self.model, *id, self.options.format, self.options.chunk) {
                take(&path, ReferencedNode::Array(&array))?;
            }
        }
        Ok(())
    }

    pub(super) fn root_attributes(&self) -> io::Result<Vec<u8>> {
        let model = self.model;
        let mut text = Vec::new();
        text.extend(b"{\"source\": ");
        write_json_string(&model.location.to_string(), &mut text)?;
        text.extend(b", \"format\": ");
        write_json_string(model.format(), &mut text)?;
        text.extend(b", \"versions\": [");
        for (at, (file, url)) in model.files.iter().zip(&self.urls).enumerate() {
            text.extend(if at == 0 { &b"{\"url\": "[..] } else { b", {\"url\": " });
            write_json_string(url, &mut text)?;
            let info = file.source.info();
            write!(text, ", \"size\": {}", info.len)?;
            if let Some(version) = info.version {
                write!(text, ", \"version\": \"{}\"", HexDigits(&version))?;
            }
            let is_local = file.location.path().is_some();
            if let Some(time) = Timestamp::try_from(info.stat.mtime).ok().filter(|_| is_local) {
                write!(text, ", \"mtime\": \"{time}\"")?;
            }
            text.push(b'}');
        }
        text.extend(b"], \"metadata\": {");
        for (at, (key, value)) in model.metadata().iter().enumerate() {
            text.extend(if at == 0 { &b""[..] } else { b", " });
            write_json_string(key, &mut text)?;
            text.extend(b": ");
            value.write_json(&mut text)?;
        }
        text.extend(b"}, \"skipped\": [");
        let damaged = model.skipped().filter(|entry| entry.is_left_out());
        let damaged = damaged.map(|SkippedEntry { name, reason, .. }| (&name[..], &reason[..]));
        for (at, (name, reason)) in self.left_out().chain(damaged).enumerate() {
            text.extend(if at == 0 { &b"{\"name\": "[..] } else { b", {\"name\": " });
            write_json_string(name, &mut text)?;
            text.extend(b", \"reason\": ");
            write_json_string(reason, &mut text)?;
            text.push(b'}');
        }
        text.extend(b"]}");
        Ok(text)
    }
}

/// The URL of a file, as fsspec takes it: its local file systems do not decode percent-encoded characters.
fn url_of(location: &Location) -> Result<String, UnnamedFile> {
    let absolute = location.absolute().unwrap_or_else(|_| location.clone());
    match absolute.path().map(|path| path.to_str()) {
        None => Ok(location.to_string()),
        Some(Some(path)) => Ok(format!("file://{path}")),
        Some(None) => Err(UnnamedFile(location.clone())),
    }
}

/// The path of the group of a module, or of the array of a tensor.
fn module_path(name: &str) -> String {
    let mut path = String::with_capacity(name.len());
    for (at, component) in name.split('.').enumerate() {
        path.push_str(if at == 0 { "" } else { "/" });
        path.push_str(&node_name(component));
    }
    path
}

/// A node below the root.
#[derive(Debug, Clone, Copy)]
pub(super) enum ReferencedNode<'n> {
    Group,
    Array(&'n ZarrArray<'n>),
}

impl ReferencedNode<'_> {
    fn documents(self, format: ZarrFormat) -> io::Result<NodeDocuments> {
        match self {
            Self::Group => Ok(group_documents(format)),
            Self::Array(array) => array_documents(array, format),
        }
    }
}

/// Takes the path of a node, and the node.
pub(super) type TakeNode<'t> = dyn FnMut(&str, ReferencedNode) -> io::Result<()> + 't;

/// Writes a JSON text as a part of a JSON string.
struct QuotedText<'o> {
    out: &'o mut dyn Write,
}

impl Write for QuotedText<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..b' ')) {
            self.out.write_all(&rest[..at])?;
            match rest[at] {
                control @ 0..b' ' => write!(self.out, "\\u{control:04x}")?,
                escaped => self.out.write_all(&[b'\\', escaped])?,
            }
            rest = &rest[at + 1..];
        }
        self.out.write_all(rest)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes a key and a JSON document as a string.
fn write_pair(key: &str, document: &[u8], out: &mut dyn Write) -> io::Result<()> {
    write_json_string(key, out)?;
    out.write_all(b": \"")?;
    QuotedText { out }.write_all(document)?;
    out.write_all(b"\"")
}

/// The keys of the metadata of a node, and their JSON texts.
type NodeDocuments = Vec<(&'static str, Vec<u8>)>;

const GROUP_V2: &[u8] = b"{\"zarr_format\": 2}";

fn group_documents(format: ZarrFormat) -> NodeDocuments {
    match format {
        ZarrFormat::V2 => vec![(".zgroup", GROUP_V2.to_vec()), (".zattrs", b"{}".to_vec())],
        ZarrFormat::V3 => vec![("zarr.json", group_v3(b"{}", b"}"))],
    }
}

/// The metadata of a group up to its attributes, followed by `tail`.
fn group_v3(attributes: &[u8], tail: &[u8]) -> Vec<u8> {
    [b"{\"zarr_format\": 3, \"node_type\": \"group\", \"attributes\": ", attributes, tail].concat()
}

fn array_documents(array: &ZarrArray, format: ZarrFormat) -> io::Result<NodeDocuments> {
    Ok(match format {
        ZarrFormat::V2 => vec![(".zarray", array_v2(array)?), (".zattrs", attributes(array, format)?)],
        ZarrFormat::V3 => vec![("zarr.json", array_v3(array)?)],
    })
}

fn array_v3(array: &ZarrArray) -> io::Result<Vec<u8>> {
    let (name, endian) = (array.dtype.name, if array.is_big_endian { "big" } else { "little" });
    let mut text = Vec::new();
    write!(text, "{{\"zarr_format\": 3, \"node_type\": \"array\", \"shape\": {:?}", array.info.shape)?;
    write!(text, ", \"data_type\": \"{name}\", \"chunk_grid\": {{\"name\": \"regular\", \"configuration\": ")?;
    write!(
        text,
        "{{\"chunk_shape\": {:?}}}}}, \"chunk_key_encoding\": {{\"name\": \"default\", ",
        array.chunk_shape()
    )?;
    text.extend(b"\"configuration\": {\"separator\": \"/\"}}, \"codecs\": [");
    if !array.is_in_order() {
        write!(text, "{{\"name\": \"transpose\", \"configuration\": {{\"order\": {:?}}}}}, ", array.order)?;
    }
    write!(text, "{{\"name\": \"bytes\", \"configuration\": {{\"endian\": \"{endian}\"}}}}], ")?;
    write!(text, "\"fill_value\": {}, \"dimension_names\": ", fill_value(array))?;
    write_dimensions(array, &mut text)?;
    text.extend(b", \"attributes\": ");
    text.extend(attributes(array, ZarrFormat::V3)?);
    text.push(b'}');
    Ok(text)
}

fn array_v2(array: &ZarrArray) -> io::Result<Vec<u8>> {
    let order = match (array.dtype.size, array.is_big_endian) {
        (1, _) => '|',
        (_, true) => '>',
        (_, false) => '<',
    };
    let (kind, size, c_order) = (array.dtype.kind, array.dtype.size, if array.is_in_order() { 'C' } else { 'F' });
    let mut text = Vec::new();
    write!(text, "{{\"zarr_format\": 2, \"shape\": {:?}, \"chunks\": {:?}", array.info.shape, array.chunk_shape())?;
    write!(text, ", \"dtype\": \"{order}{kind}{size}\", \"order\": \"{c_order}\"")?;
    // No chunk is missing. xarray would take a fill value for missing data, and show zeros as NaN.
    text.extend(b", \"fill_value\": null, \"compressor\": null, \"filters\": null, ");
    text.extend(b"\"dimension_separator\": \".\"}");
    Ok(text)
}

fn fill_value(array: &ZarrArray) -> &'static str {
    match array.dtype.kind {
        'b' => "false",
        'f' => "0.0",
        'c' => "[0.0, 0.0]",
        _ => "0",
    }
}

fn attributes(array: &ZarrArray, format: ZarrFormat) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    text.extend(b"{\"name\": ");
    write_json_string(array.info.name, &mut text)?;
    text.extend(b", \"dtype\": ");
    write_json_string(array.info.dtype.name(), &mut text)?;
    if array.dtype.is_bits {
        text.extend(b", \"weightfs_dtype\": ");
        write_json_string(array.info.dtype.name(), &mut text)?;
    }
    if format == ZarrFormat::V2 {
        text.extend(b", \"_ARRAY_DIMENSIONS\": ");
        write_dimensions(array, &mut text)?;
    }
    text.push(b'}');
    Ok(text)
}

/// Writes the names of the dimensions, which xarray needs. It wants dimensions with the same name to have the same
/// size, and those of one array to have different names.
fn write_dimensions(array: &ZarrArray, text: &mut Vec<u8>) -> io::Result<()> {
    text.push(b'[');
    for (axis, dim) in array.info.shape.iter().enumerate() {
        write!(text, "{}\"dim{axis}_{dim}\"", if axis == 0 { "" } else { ", " })?;
    }
    text.push(b']');
    Ok(())
}
