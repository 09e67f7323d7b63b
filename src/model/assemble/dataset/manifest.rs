//! The manifest of a dataset: reading it, and comparing it with the files.
//!
//! Source: the JSON schema and `SafetensorsBatchWrite.scala` of `github.com/SemyonSinchenko/safetensors-spark`.

use crate::model::error::json_fault;
use crate::model::ids::{ModelFileId, TensorId};
use crate::model::quiet::QuietValue;
use crate::model::table::Model;
use crate::text::{brackets, quote};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;

const REMARKS_MAX: usize = 1000;

/// A shard in the order of the manifest: its name, and the index of its file if that could be opened.
pub(super) type ListedShard<'n> = (&'n str, Option<usize>);

#[derive(Deserialize)]
pub(super) struct DatasetManifest<'t> {
    pub format_version: String,
    safetensors_version: Option<String>,
    total_samples: Option<QuietValue<u64>>,
    total_bytes: Option<QuietValue<u64>>,
    /// Read later: a mistake in it is no reason to refuse the dataset.
    #[serde(borrow)]
    schema: Option<&'t RawValue>,
    pub shards: QuietValue<Vec<QuietValue<ManifestShard>>>,
}

#[derive(Deserialize)]
pub(super) struct ManifestShard {
    /// Relative to the manifest.
    pub shard_path: String,
    /// Rows, padding included.
    samples_count: QuietValue<u64>,
    /// Size of the whole file.
    bytes: QuietValue<u64>,
}

/// A tensor in the schema: that of the first row, or the first batch, with its name.
#[derive(Deserialize)]
struct SchemaTensor {
    dtype: String,
    shape: QuietValue<Vec<QuietValue<u64>>>,
    #[serde(skip)]
    is_found: bool,
    #[serde(skip)]
    differs: bool,
}

pub(super) fn read_manifest(text: &[u8]) -> Result<DatasetManifest<'_>, String> {
    let manifest: Result<QuietValue<DatasetManifest>, _> = serde_json::from_slice(text);
    Ok(manifest.map_err(|error| json_fault("dataset manifest", &error))?.0)
}

/// Compares the files with the manifest. Nothing is left out because of a difference: the headers take precedence.
/// `joined` is the first joined array, if there is one: then the dataset is in batch mode.
pub(super) fn compare_manifest(
    model: &Model,
    joined: Option<TensorId>,
    manifest: &DatasetManifest,
    shards: &[ListedShard],
) -> Vec<String> {
    let mut remarks = compare_counts(model, joined, manifest, shards);
    if let Some(version) = manifest.safetensors_version.as_deref().filter(|version| *version != "1.0") {
        remarks.push(format!("safetensors_version is {} in the manifest; \"1.0\" is the only one", quote(version)));
    }
    if let Some(schema) = manifest.schema {
        let is_complete = shards.iter().all(|(_, shard)| shard.is_some());
        compare_schema(model, joined.is_some(), is_complete, schema, &mut remarks);
    }
    remarks
}

/// Compares the numbers of rows and bytes in the manifest with the files, and with each other.
fn compare_counts(
    model: &Model,
    joined: Option<TensorId>,
    manifest: &DatasetManifest,
    shards: &[ListedShard],
) -> Vec<String> {
    let mut remarks = Vec::new();
    for (QuietValue(listed), (name, shard)) in manifest.shards.0.iter().zip(shards) {
        let Some(shard) = shard.map(ModelFileId::new) else { continue };
        let len = model.source(shard).len();
        let ManifestShard { bytes: QuietValue(bytes), samples_count: QuietValue(samples), .. } = listed;
        if len != *bytes {
            remarks.push(format!("{} has {len} bytes, but the manifest says {bytes}", quote(name)));
        }
        let part = joined.and_then(|joined| model.find_in(shard, model.name(joined)));
        let rows = part.and_then(|part| model.tensor(part).info.shape.first().copied());
        if let Some(rows) = rows.filter(|rows| rows != samples) {
            let plural = if rows == 1 { "" } else { "s" };
            remarks.push(format!("{} has {rows} row{plural}, and the manifest says {samples}", quote(name)));
        }
    }
    let DatasetManifest { total_samples, total_bytes, shards, .. } = manifest;
    remarks.truncate(REMARKS_MAX);
    let (mut samples, mut bytes) = (0u64, 0u64);
    for QuietValue(shard) in &shards.0 {
        samples = samples.saturating_add(shard.samples_count.0);
        bytes = bytes.saturating_add(shard.bytes.0);
    }
    for (key, stated, sum) in [("total_samples", total_samples, samples), ("total_bytes", total_bytes, bytes)] {
        if let Some(QuietValue(stated)) = stated.as_ref().filter(|stated| stated.0 != sum) {
            remarks.push(format!("{key} is {stated} in the manifest, and its shards add up to {sum}"));
        }
    }
    remarks
}

/// Compares the schema with the tensors of all shards. The first dimension of an array differs between shards.
fn compare_schema(model: &Model, is_joined: bool, is_complete: bool, schema: &RawValue, remarks: &mut Vec<String>) {
    let mut schema: HashMap<String, QuietValue<SchemaTensor>> = match serde_json::from_str(schema.get()) {
        Ok(QuietValue(schema)) => schema,
        Err(error) => return remarks.push(json_fault("schema in the manifest", &error)),
    };
    let skipped = usize::from(is_joined);
    let (mut absent, mut first_absent, mut found) = (0, None, Vec::new());
    for id in model.stored().iter() {
        let info = model.tensor(id).info;
        let Some(QuietValue(described)) = schema.get_mut(info.name) else {
            absent += usize::from(model.find(info.name) == Some(id));
            first_absent = first_absent.or(Some(info.name));
            continue;
        };
        described.is_found = true;
        let shape: Vec<u64> = described.shape.0.iter().map(|dimension| dimension.0).collect();
        let is_equal = described.dtype == info.dtype.name()
            && shape.len() == info.shape.len()
            && shape.get(skipped..) == info.shape.get(skipped..);
        if !is_equal && !described.differs && found.len() < REMARKS_MAX {
            described.differs = true;
            let shard = quote(&model.file(model.file_with(id)).name);
            found.push(format!(
                "{} is {} {} in {shard}, and the schema in the manifest says {} {}",
                quote(info.name),
                info.dtype.name(),
                brackets(info.shape),
                quote(&described.dtype),
                brackets(&shape)
            ));
        }
    }
    remarks.extend(found);
    if let Some(first) = first_absent {
        remarks.push(format!("the schema in the manifest does not have {}", first_of(absent.max(1), first)));
    }
    let mut unused: Vec<&String> =
        schema.iter().filter(|(_, QuietValue(one))| !one.is_found).map(|(name, _)| name).collect();
    unused.sort_unstable();
    if let Some(first) = unused.first().filter(|_| is_complete) {
        remarks.push(format!("the schema in the manifest has {}; no shard does", first_of(unused.len(), first)));
    }
}

/// The first of some tensors and the number of the others, in words.
fn first_of(count: usize, first: &str) -> String {
    match count {
        1 => quote(first),
        2 => format!("{} and another tensor", quote(first)),
        more => format!("{} and {} other tensors", quote(first), more - 1),
    }
}
