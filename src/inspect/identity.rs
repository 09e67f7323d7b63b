//! The structural hash: knows the canonical text of weight-inspect, in which two models are the same whose formats,
//! metadata, and names, dtypes, shapes and sizes of tensors are.
//!
//! Source: `github.com/las7/weight-inspect` 0.1.0, `src/types.rs` and `src/hash.rs`. It refuses tensors without data; their
//! size is 0 here.

use crate::model::Model;
use crate::text::Hex;
use crate::threads;
use serde_json::to_writer;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};

/// What a model is, its data left aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// SHA-256 of the canonical text, in 64 lower-case digits.
    pub hash: String,
    /// Tensors that went into it.
    pub tensors: usize,
    /// Keys of metadata that did.
    pub metadata: usize,
}

impl Identity {
    /// That of a model of many files is the one that all of it as one file would have.
    pub fn of(model: &Model) -> Self {
        // An entry that is a list is no tensor to weight-inspect.
        let mut tensors: Vec<u32> = model.whole().filter(|at| !model.is_list(*at as usize)).collect();
        threads::sort_by(&mut tensors, |a, b| model.name(*a as usize).cmp(model.name(*b as usize)));
        let mut text = BufWriter::with_capacity(64 << 10, Hashing(Sha256::new()));
        // A hash cannot refuse text.
        let _ = write_canonical(model, &tensors, &mut text).and_then(|()| text.flush());
        let hash = text.get_ref().0.clone().finalize();
        Self { hash: Hex(&hash).to_string(), tensors: tensors.len(), metadata: model.metadata().len() }
    }
}

/// Compact JSON. Keys of metadata come sorted from the model.
fn write_canonical(model: &Model, tensors: &[u32], out: &mut impl Write) -> io::Result<()> {
    out.write_all(b"{\"format\":\"safetensors\",\"metadata\":{")?;
    for (at, (key, value)) in model.metadata().iter().enumerate() {
        out.write_all(if at == 0 { b"" } else { b"," })?;
        to_writer(&mut *out, key)?;
        out.write_all(b":")?;
        to_writer(&mut *out, &canonical(value))?;
    }
    out.write_all(b"},\"tensors\":{")?;
    for (at, tensor) in tensors.iter().enumerate() {
        let (tensor, _) = model.tensor(*tensor as usize);
        out.write_all(if at == 0 { b"" } else { b"," })?;
        to_writer(&mut *out, tensor.name)?;
        out.write_all(b":{\"name\":")?;
        to_writer(&mut *out, tensor.name)?;
        out.write_all(b",\"dtype\":")?;
        to_writer(&mut *out, &tensor.dtype.name().to_lowercase())?;
        out.write_all(b",\"shape\":")?;
        to_writer(&mut *out, tensor.shape)?;
        write!(out, ",\"byte_length\":{}}}", tensor.nbytes())?;
    }
    out.write_all(b"}}")
}

/// A value as it stands in the text before JSON escapes it once more.
fn canonical(value: &str) -> String {
    let mut text = String::with_capacity(value.len() + 2);
    text.push('"');
    for char in value.chars() {
        match char {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            char if char.is_ascii_control() => {
                // A string cannot refuse text.
                let _ = write!(text, "\\u{:04x}", char as u32);
            }
            char => text.push(char),
        }
    }
    text.push('"');
    text
}

/// Takes text and keeps its hash only.
struct Hashing(Sha256);

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
