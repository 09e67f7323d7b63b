//! Tensors that are made of parts of files: of several files, of some rows, under another name, or of a file without a
//! header.

use super::ids::ShardId;
use crate::content::SourceRun;
use crate::format::{self, Dtype, HeaderBuilder, TensorInfo, TensorTable};
use std::ops::Range;
use std::sync::Arc;

/// Tensors that are made of parts of files. Their data lies in runs over the numbered sources of a model, which are
/// read as one file: the ranges of the tensors are ranges of that file.
#[derive(Debug, Default)]
pub(super) struct AssembledTensors {
    table: TensorTable,
    runs: Arc<[SourceRun]>,
}

/// The files that hold the data of a tensor.
#[derive(Debug, Clone)]
pub enum TensorParts<'m> {
    /// All of it is in one file, as its header says.
    One(ShardId),
    /// Runs in one or several files, one after the other; none for a tensor without data.
    Many(AssembledRuns<'m>),
}

#[derive(Debug, Clone)]
pub struct AssembledRuns<'m> {
    runs: &'m Arc<[SourceRun]>,
    /// In bytes from the start of the first run.
    part: Range<u64>,
}

impl AssembledTensors {
    pub fn table(&self) -> &TensorTable {
        &self.table
    }

    /// A tensor, whose range counts from its own start, and its data. Panics unless `index` is below their number.
    pub fn tensor(&self, index: usize) -> (TensorInfo<'_>, TensorParts<'_>) {
        let info = self.table.tensor(index);
        let part = info.range.clone();
        let parts = TensorParts::Many(AssembledRuns { runs: &self.runs, part: part.clone() });
        (TensorInfo { range: 0..part.end - part.start, ..info }, parts)
    }
}

impl<'m> AssembledRuns<'m> {
    /// Each run, which starts in bytes from the start of the tensor, and its length in bytes.
    pub fn iter(&self) -> impl Iterator<Item = (SourceRun, u64)> + use<'m> {
        let (all, part) = (&self.runs[..], self.part.clone());
        let first = all.partition_point(|run| run.start <= part.start).saturating_sub(1);
        let touched = if part.is_empty() { first } else { all.partition_point(|run| run.start < part.end) };
        (first..touched).map(move |at| {
            let end = all.get(at + 1).map_or(part.end, |next| next.start.min(part.end));
            let SourceRun { start, source, offset } = all[at];
            let before = part.start.saturating_sub(start);
            let run = SourceRun { start: start + before - part.start, source, offset: offset + before };
            (run, end - start - before)
        })
    }

    pub fn count(&self) -> usize {
        self.iter().count()
    }

    /// The runs of all assembled tensors, and which part of them is that of the tensor, in bytes.
    pub(super) fn shared(&self) -> (Arc<[SourceRun]>, Range<u64>) {
        (self.runs.clone(), self.part.clone())
    }
}

#[derive(Debug, Default)]
pub(super) struct TensorAssembly {
    builder: HeaderBuilder,
    runs: Vec<SourceRun>,
    /// Size of all runs in bytes.
    len: u64,
}

const TOO_LONG: &str = "it would be too long";

impl TensorAssembly {
    /// Adds a tensor in C order. `parts` are ranges of sources, in bytes; together they have the size of the tensor.
    /// The caller has checked that they lie inside the sources.
    pub fn push(
        &mut self,
        name: &str,
        dtype: Dtype,
        shape: &[u64],
        parts: impl IntoIterator<Item = (usize, Range<u64>)>,
    ) -> Result<(), &'static str> {
        let start = self.len;
        for (source, range) in parts.into_iter().filter(|(_, range)| !range.is_empty()) {
            let end = self.len.checked_add(range.end - range.start).filter(|end| *end <= i64::MAX as u64);
            self.runs.push(SourceRun { start: self.len, source, offset: range.start });
            self.len = end.ok_or(TOO_LONG)?;
        }
        // Names are those of safetensors headers, which have none for the types of GGUF.
        let dtype = match dtype {
            Dtype::Unknown(name) => self.builder.dtype_number(name),
            known => self.builder.known_dtype(known),
        };
        let tensor = self.builder.tensor(name, dtype, shape, start..self.len);
        self.builder.push(tensor);
        Ok(())
    }

    /// An error if two tensors have the same name, or if the names are too long.
    pub fn finish(self) -> Result<AssembledTensors, format::Error> {
        Ok(AssembledTensors { table: self.builder.finish_tensors()?, runs: self.runs.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The runs of each tensor are what was pushed, without empty ones.
        #[test]
        fn runs_of_a_tensor_are_its_own(
            tensors in prop::collection::vec(prop::collection::vec((0usize..3, 0u64..100, 0u64..5), 0..4), 0..6),
        ) {
            let mut assembly = TensorAssembly::default();
            for (at, parts) in tensors.iter().enumerate() {
                let size = parts.iter().map(|part| part.2).sum();
                let parts = parts.iter().map(|(source, from, len)| (*source, *from..from + len));
                let name = format!("t{at}");
                prop_assert!(assembly.push(&name, Dtype::U8, &[size], parts).is_ok());
            }
            let assembled = assembly.finish().unwrap();
            for (at, parts) in tensors.iter().enumerate() {
                let (info, TensorParts::Many(runs)) = assembled.tensor(at) else { panic!() };
                let mut start = 0;
                let expected = parts.iter().filter(|part| part.2 > 0).map(|(source, offset, len)| {
                    start += len;
                    (SourceRun { start: start - len, source: *source, offset: *offset }, *len)
                });
                prop_assert_eq!(runs.iter().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
                let name = format!("t{at}");
                prop_assert_eq!((info.name, info.range), (&name[..], 0..start));
            }
        }
    }

    #[test]
    fn sizes_beyond_those_of_files_are_an_error() {
        let mut assembly = TensorAssembly::default();
        let half = 0..(i64::MAX as u64 / 2 + 1);
        assert_eq!(assembly.push("a", Dtype::U8, &[half.end], [(0, half.clone())]), Ok(()));
        assert_eq!(assembly.push("b", Dtype::U8, &[half.end], [(0, half)]), Err(TOO_LONG));
    }

    #[test]
    fn names_are_unique() {
        let mut assembly = TensorAssembly::default();
        assembly.push("a", Dtype::U8, &[1], [(0, 0..1)]).unwrap();
        assembly.push("a", Dtype::Unknown("X7"), &[1], [(0, 0..1)]).unwrap();
        assert_eq!(assembly.finish().unwrap_err().tensor(), Some("a"));
    }
}
