//! The structural hash of weight-inspect. Two models have the same hash if they have the same format, metadata, and
//! names, dtypes, shapes and sizes of tensors.
//!
//! Source: `github.com/las7/weight-inspect` 0.1.0, `src/types.rs` and `src/hash.rs`. weight-inspect rejects tensors
//! without data; here, their size is 0.

use crate::format::{MetadataValue, ScalarType, gguf};
use crate::model::{Model, TensorId};
use crate::text::HexDigits;
use crate::threads;
use serde_json::to_writer;
use sha2::{Digest, Sha256};
use std::io::{self, BufWriter, Write};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelIdentity {
    /// SHA-256 of the canonical text, as 64 lower-case hexadecimal digits.
    pub hash: String,
    pub tensors: usize,
    pub metadata: usize,
}

impl ModelIdentity {
    /// Computes the identity. A model of several files has the same identity as a single file with the same content.
    pub fn of(model: &Model) -> Self {
        // weight-inspect does not recognise entries of an unusual form.
        let mut tensors: Vec<TensorId> = model.logical().iter().filter(|id| !model.is_unusual(*id)).collect();
        threads::sort_by(&mut tensors, |a, b| model.name(*a).cmp(model.name(*b)));
        let mut text = BufWriter::with_capacity(64 << 10, HashWriter(Sha256::new()));
        // Writing to a hash cannot fail.
        let _ = write_canonical(model, &tensors, &mut text).and_then(|()| text.flush());
        let hash = text.get_ref().0.clone().finalize();
        Self { hash: HexDigits(&hash).to_string(), tensors: tensors.len(), metadata: model.metadata().len() }
    }
}

/// Writes the canonical text: compact JSON. The metadata of a model is already sorted by key.
fn write_canonical(model: &Model, tensors: &[TensorId], out: &mut impl Write) -> io::Result<()> {
    out.write_all(b"{\"format\":")?;
    to_writer(&mut *out, model.format())?;
    if let Some(version) = model.format_version() {
        write!(out, ",\"gguf_version\":{version}")?;
    }
    out.write_all(b",\"metadata\":{")?;
    for (at, (key, value)) in model.metadata().iter().enumerate() {
        out.write_all(if at == 0 { b"" } else { b"," })?;
        to_writer(&mut *out, key)?;
        out.write_all(b":")?;
        to_writer(&mut *out, &canonical(value))?;
    }
    out.write_all(b"},\"tensors\":{")?;
    for (at, tensor) in tensors.iter().enumerate() {
        let tensor = model.tensor(*tensor).info;
        out.write_all(if at == 0 { b"" } else { b"," })?;
        to_writer(&mut *out, tensor.name)?;
        out.write_all(b":{\"name\":")?;
        to_writer(&mut *out, tensor.name)?;
        out.write_all(b",\"dtype\":")?;
        to_writer(&mut *out, &tensor.dtype.name().to_lowercase())?;
        out.write_all(b",\"shape\":")?;
        // weight-inspect keeps the order of GGUF: innermost dimension first.
        let reversed: Vec<u64> = tensor.shape.iter().rev().copied().collect();
        to_writer(&mut *out, if model.format() == gguf::NAME { &reversed[..] } else { tensor.shape })?;
        // weight-inspect does not compute the size of blocks with scales.
        write!(out, ",\"byte_length\":{}}}", if tensor.dtype.has_scales() { 0 } else { tensor.nbytes })?;
    }
    out.write_all(b"}}")
}

/// A metadata value in the form of weight-inspect, which is then written as a JSON string.
fn canonical(value: &MetadataValue) -> String {
    match (value.is_array(), value.kind()) {
        (false, kind) => canonical_scalar(kind, value.text()),
        (true, kind) => {
            let elements = value.text().lines().map(|line| match kind {
                ScalarType::String => hash_string(&serde_json::from_str::<String>(line).unwrap_or_default()),
                kind => canonical_scalar(kind, line),
            });
            format!("[{}]", elements.collect::<Vec<_>>().join(","))
        }
    }
}

fn canonical_scalar(kind: ScalarType, text: &str) -> String {
    match kind {
        ScalarType::String => hash_string(text),
        ScalarType::Bool => text.to_owned(),
        ScalarType::F32 => format!("f32:{}", f64::from(text.parse::<f32>().unwrap_or(f32::NAN)).to_bits()),
        ScalarType::F64 => text.parse::<f64>().unwrap_or(f64::NAN).to_bits().to_string(),
        // weight-inspect converts all integers to signed 64 bits.
        _ => (text.parse::<i128>().unwrap_or_default() as i64).to_string(),
    }
}

/// A string with quotes and escapes, which differ from those of serde_json for some control characters.
fn hash_string(value: &str) -> String {
    let mut text = String::with_capacity(value.len() + 2);
    text.push('"');
    for char in value.chars() {
        match char {
            '"' | '\\' => text.extend(['\\', char]),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            char if char.is_ascii_control() => text.push_str(&format!("\\u{:04x}", char as u32)),
            char => text.push(char),
        }
    }
    text.push('"');
    text
}

/// Hashes what is written to it.
struct HashWriter(Sha256);

impl Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
