//! Checks a dataset of safetensors-spark: the names of its shards, its index of tensors, and padding.

use super::report::CheckReport;
use crate::model::{Model, ModelFileId};
use crate::rules::CheckRule;
use crate::source::{self, ListedKind, Location};
use crate::text::{brackets, quote};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The index of tensors, beside the manifest: a directory of Parquet files, as Spark writes it, or one such file.
const INDEX: &str = "_tensor_index.parquet";

/// Maximum number of rows that an index may have beyond the tensors.
const SURPLUS_MAX: usize = 1_000_000;

/// A row of the index of tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexRow {
    pub tensor_key: String,
    pub file_name: String,
    pub shape: Vec<i32>,
    /// Its dtype, named as in safetensors files.
    pub dtype: String,
}

#[derive(Debug)]
pub(super) struct CheckedDataset {
    model: Model,
    /// The manifest, in messages.
    name: String,
    /// The shards by their file names, which the index has.
    shards: HashMap<String, ModelFileId>,
    /// The tensors that the index has, by number.
    indexed: Vec<bool>,
    rows: usize,
}

impl CheckedDataset {
    pub fn new(model: Model, name: String) -> Self {
        let indexed = vec![false; model.stored().iter().last().map_or(0, |last| last.index() + 1)];
        let names = model.files.iter().map(|shard| shard.name.rsplit('/').next().unwrap_or(&shard.name).to_owned());
        let shards = names.enumerate().map(|(at, name)| (name, ModelFileId::new(at))).collect();
        Self { model, name, shards, indexed, rows: 0 }
    }

    /// The files of the index of tensors, sorted. There are none if the writer was not told to write an index.
    pub fn index_files(&self) -> Result<Vec<Location>, source::Error> {
        let Some(index) = &self.model.facts.tensor_list else { return Ok(Vec::new()) };
        if !source::is_dir(index) {
            return Ok(if source::exists(index) { vec![index.clone()] } else { Vec::new() });
        }
        // Spark adds checksums, as hidden files, and an empty file that says that all is there.
        let entries = source::list_dir(index)?.entries.into_iter().filter(|entry| entry.kind == ListedKind::File);
        let mut names: Vec<String> = entries.filter_map(|entry| entry.name.into_string().ok()).collect();
        names.retain(|name| name.ends_with(".parquet") && !name.starts_with(['.', '_']));
        names.sort_unstable();
        Ok(names.iter().map(|name| index.join(name)).collect())
    }

    /// Compares a row of the index with the files. Returns false if there are so many more rows than tensors that the
    /// index cannot be right.
    pub fn compare(&mut self, row: &IndexRow, report: &mut CheckReport) -> bool {
        self.rows += 1;
        for fault in self.row_faults(row) {
            report.add(CheckRule::TensorIndex, &self.name, Some(&row.tensor_key), || fault);
        }
        self.rows <= self.indexed.len().saturating_add(SURPLUS_MAX)
    }

    fn row_faults(&mut self, row: &IndexRow) -> Vec<String> {
        let Self { model, shards, indexed, .. } = self;
        let IndexRow { tensor_key, file_name, shape, dtype } = row;
        let Some(shard) = shards.get(file_name).copied() else {
            // A shard that cannot be opened is reported once.
            if model.facts.unopened.iter().any(|shard| shard.file_name() == file_name.as_str()) {
                return Vec::new();
            }
            return vec![format!("{INDEX} has {} in {}, which is not a shard", quote(tensor_key), quote(file_name))];
        };
        let Some(id) = model.find_in(shard, tensor_key) else {
            return vec![format!("{INDEX} has {} in {}, which does not have it", quote(tensor_key), quote(file_name))];
        };
        let mut faults = Vec::new();
        if let Some(seen) = indexed.get_mut(id.index())
            && std::mem::replace(seen, true)
        {
            faults.push(format!("{INDEX} has {} in {} more than once", quote(tensor_key), quote(file_name)));
        }
        let info = model.tensor(id).info;
        let is_same_shape = shape.iter().map(|dim| u64::try_from(*dim).ok()).eq(info.shape.iter().copied().map(Some));
        if info.dtype.name() != dtype || !is_same_shape {
            let is = format!("{} {} in {}", info.dtype.name(), brackets(info.shape), quote(file_name));
            faults.push(format!("{} is {is}, and {INDEX} says {} {shape:?}", quote(tensor_key), quote(dtype)));
        }
        faults
    }

    /// Reports what no row of the index was about.
    pub fn finish(&self, report: &mut CheckReport) {
        for id in self.model.stored().iter().filter(|id| self.indexed.get(id.index()) == Some(&false)) {
            let (name, shard) = (self.model.name(id), &self.model.file(self.model.file_with(id)).name);
            report.add(CheckRule::TensorIndex, &self.name, Some(name), || {
                format!("{INDEX} does not have {} in {}", quote(name), quote(shard))
            });
        }
    }

    /// Reports that the files of the index cannot be read.
    pub fn unreadable(&self, file: &Location, reason: &str, report: &mut CheckReport) {
        report.add(CheckRule::TensorIndex, &self.name, None, || format!("{file}: {reason}"));
    }

    /// Reports rows at the ends of shards that are zero in all arrays: the last batch of a task is filled up with such
    /// rows if the dataset was written with the option `tail_strategy=pad`.
    pub fn find_padding(&self, report: &mut CheckReport) -> Result<(), source::Error> {
        // In key-value mode there are no batches.
        if self.model.stored().len() == self.model.logical().len() {
            return Ok(());
        }
        for shard in (0..self.model.files.len()).map(ModelFileId::new) {
            let Some((padding, rows)) = self.padding(shard)? else { continue };
            let name = &self.model.file(shard).name;
            report.add(CheckRule::Padding, &self.name, Some(name), || {
                format!("the last {padding} of {rows} rows of {} are zero in all arrays", quote(name))
            });
        }
        Ok(())
    }

    /// Number of rows at the end of a shard that are zero in all arrays, and of all rows. `None` if there are
    /// none, or if the arrays have different numbers of rows.
    fn padding(&self, shard: ModelFileId) -> Result<Option<(u64, u64)>, source::Error> {
        let (model, source) = (&self.model, self.model.source(shard));
        let mut found: Option<(u64, u64)> = None;
        for id in model.stored_in(shard).iter() {
            let (_, info) = model.stored_tensor(id);
            let Some(&rows) = info.shape.first().filter(|_| info.layout.is_none()) else { return Ok(None) };
            let (mut zero, all) = found.unwrap_or((rows, rows));
            if rows != all || zero == 0 || info.nbytes == 0 {
                return Ok(None);
            }
            let row = info.nbytes / rows;
            let end = nonzero_end(&**source, info.range.end - zero * row..info.range.end)?;
            zero = (info.range.end - end) / row;
            found = Some((zero, rows));
        }
        Ok(found.filter(|(zero, _)| *zero > 0))
    }
}

/// The end of the last byte in a range that is not zero, or its start.
fn nonzero_end(source: &dyn source::Source, range: std::ops::Range<u64>) -> Result<u64, source::Error> {
    const STEP: u64 = 1 << 20;
    let mut end = range.end;
    while end > range.start {
        let start = end.saturating_sub(STEP).max(range.start);
        let bytes = source.bytes(start..end)?;
        if let Some(last) = bytes.iter().rposition(|byte| *byte != 0) {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(end)
}

/// Reports shards of a dataset whose names are not those that the writer gives.
pub(super) fn check_names(model: &Model, name: &str, report: &mut CheckReport) {
    for shard in model.files.iter().filter(|shard| !is_part(&shard.name)) {
        report.add(CheckRule::Manifest, name, Some(&shard.name), || {
            format!(
                "{} is not called part-NNNNN-NNNN-UUID.safetensors, as safetensors-spark calls its files",
                quote(&shard.name)
            )
        });
    }
}

/// Whether safetensors-spark may have given a file this name: the number of the task, the number of the shard within
/// it, and a UUID. Numbers have more digits if needed.
fn is_part(path: &str) -> bool {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    let rest = name.strip_prefix("part-").and_then(|rest| rest.strip_suffix(".safetensors"));
    let fields: Vec<&[u8]> = rest.unwrap_or_default().split('-').map(str::as_bytes).collect();
    let [task, shard, uuid @ ..] = &fields[..] else { return false };
    (5..=10).contains(&task.len())
        && (4..=10).contains(&shard.len())
        && task.iter().chain(*shard).all(u8::is_ascii_digit)
        && uuid.iter().map(|field| field.len()).eq([8, 4, 4, 4, 12])
        && uuid.concat().iter().all(u8::is_ascii_hexdigit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_writer_are_recognised() {
        let uuid = "0e8b1f5c-1d6e-4f0a-9f5e-0123456789ab";
        for (name, expected) in [
            (format!("part-00003-0000-{uuid}.safetensors"), true),
            (format!("dir/part-100000-12345-{uuid}.safetensors"), true),
            (format!("part-0003-0000-{uuid}.safetensors"), false),
            (format!("part-00003-0000-{uuid}-c000.safetensors"), false),
            (format!("part-00003-0000-{uuid}"), false),
            ("part-00003-0000-x.safetensors".into(), false),
            ("model.safetensors".into(), false),
        ] {
            assert_eq!(is_part(&name), expected, "{name}");
        }
    }
}
