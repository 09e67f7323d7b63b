//! Tensors that are made of parts of files: of several files, of some rows, under another name, or of a file without a
//! header.

use super::data::{AssembledRuns, TensorData, array_in};
use super::ids::ModelFileId;
use crate::content::{GatheredSource, SourceRun, Sources, StridedData};
use crate::format::{self, Dtype, HeaderBuilder, HeaderTensor, TensorInfo, TensorTable};
use crate::source::Source;
use std::ops::Range;
use std::sync::Arc;

/// Tensors that are made of parts of files. Their data lies in runs over the numbered sources of a model, which are
/// read as one file: the ranges of the tensors are ranges of that file.
#[derive(Debug, Default)]
pub(super) struct AssembledTensors {
    table: TensorTable,
    runs: Arc<[SourceRun]>,
    /// The sources that the runs refer to: the files of the model, and then the tensors that are gathered from them.
    sources: Sources,
    /// The first file of each gathered tensor.
    gathered: Box<[ModelFileId]>,
}

impl AssembledTensors {
    pub fn table(&self) -> &TensorTable {
        &self.table
    }

    /// A tensor and its data. Panics unless `index` is below their number.
    pub fn tensor(&self, index: usize) -> (TensorInfo<'_>, TensorData<'_>) {
        let HeaderTensor { info, range, .. } = self.table.tensor(index);
        (info, TensorData::Assembled(AssembledRuns::new(&self.sources, &self.runs, &self.gathered, range)))
    }
}

/// A part of a source: the number of a file or of what [`TensorAssembly::stored`] returned, and a range in bytes.
pub(super) type SourcePart = (usize, Range<u64>);

/// Makes tensors of parts of the files of a model.
#[derive(Debug)]
pub(super) struct TensorAssembly {
    builder: HeaderBuilder,
    runs: Vec<SourceRun>,
    /// Size of all runs in bytes.
    len: u64,
    files: Sources,
    /// Tensors whose elements are gathered, as sources with the numbers after those of the files, and the first file of
    /// each.
    gathered: Vec<(Arc<dyn Source>, ModelFileId)>,
}

const TOO_LONG: &str = "it would be too long";

impl TensorAssembly {
    /// `files` are those of the model.
    pub fn new(files: &Sources) -> Self {
        let (builder, runs, gathered) = Default::default();
        Self { builder, runs, len: 0, files: files.clone(), gathered }
    }

    /// The data of a stored tensor in C order.
    pub fn stored(&mut self, file: ModelFileId, tensor: &HeaderTensor) -> SourcePart {
        match array_in(&self.files[file.index()], tensor) {
            None => (file.index(), tensor.range.clone()),
            Some(array) => self.gather(file, array),
        }
    }

    /// The data of an array whose elements are gathered. `file` is the one that holds its first elements.
    pub fn gather(&mut self, file: ModelFileId, array: StridedData) -> SourcePart {
        self.made(file, Arc::new(GatheredSource::new(array)))
    }

    /// The data of a source that is made of bytes of a file.
    pub fn made(&mut self, file: ModelFileId, source: Arc<dyn Source>) -> SourcePart {
        let len = source.len();
        self.gathered.push((source, file));
        (self.files.len() + self.gathered.len() - 1, 0..len)
    }

    /// The source of a part with this number.
    pub fn source(&self, number: usize) -> &Arc<dyn Source> {
        self.files.get(number).unwrap_or_else(|| &self.gathered[number - self.files.len()].0)
    }

    /// Adds a tensor in C order. `parts` together have the size of the tensor. The caller has checked that they lie
    /// inside the sources.
    pub fn push(
        &mut self,
        name: &str,
        dtype: Dtype,
        shape: &[u64],
        parts: impl IntoIterator<Item = SourcePart>,
    ) -> Result<(), &'static str> {
        let start = self.len;
        for (source, range) in parts.into_iter().filter(|(_, range)| !range.is_empty()) {
            let end = self.len.checked_add(range.end - range.start).filter(|end| *end <= i64::MAX as u64);
            // Many tensors lie one after the other, as in the file that they are from.
            let continues =
                |run: &SourceRun| run.source == source && run.offset + (self.len - run.start) == range.start;
            if !self.runs.last().is_some_and(continues) {
                self.runs.push(SourceRun { start: self.len, source, offset: range.start });
            }
            self.len = end.ok_or(TOO_LONG)?;
        }
        // Names are those of safetensors headers, which have none for the types of GGUF.
        let dtype = match dtype {
            Dtype::Unknown(name) => self.builder.raw_dtype(name),
            known => self.builder.known_dtype(known),
        };
        let tensor = self.builder.tensor(name, dtype, shape, start..self.len);
        self.builder.push(tensor);
        Ok(())
    }

    /// An error if two tensors have the same name, or if the names are too long.
    pub fn finish(self) -> Result<AssembledTensors, format::Error> {
        let (gathered, first_files): (Vec<_>, Vec<_>) = self.gathered.into_iter().unzip();
        let sources =
            if gathered.is_empty() { self.files } else { self.files.iter().cloned().chain(gathered).collect() };
        let (table, runs) = (self.builder.finish_tensors()?, self.runs.into());
        Ok(AssembledTensors { table, runs, sources, gathered: first_files.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;
    use proptest::prelude::*;

    fn assembly(files: usize) -> TensorAssembly {
        TensorAssembly::new(&(0..files).map(|_| Arc::new(MemorySource::new(Vec::new())) as Arc<dyn Source>).collect())
    }

    proptest! {
        /// The runs of each tensor are what was pushed, without empty ones; those that continue the one before are one.
        #[test]
        fn runs_of_a_tensor_are_its_own(
            tensors in prop::collection::vec(prop::collection::vec((0usize..3, 0u64..100, 0u64..5), 0..4), 0..6),
        ) {
            let mut assembly = assembly(3);
            for (at, parts) in tensors.iter().enumerate() {
                let size = parts.iter().map(|part| part.2).sum();
                let parts = parts.iter().map(|(source, from, len)| (*source, *from..from + len));
                let name = format!("t{at}");
                prop_assert!(assembly.push(&name, Dtype::U8, &[size], parts).is_ok());
            }
            let assembled = assembly.finish().unwrap();
            for (at, parts) in tensors.iter().enumerate() {
                let (info, TensorData::Assembled(runs)) = assembled.tensor(at) else { panic!() };
                let mut expected: Vec<(SourceRun, u64)> = Vec::new();
                let mut start = 0;
                for (source, offset, len) in parts.iter().copied().filter(|part| part.2 > 0) {
                    match expected.last_mut() {
                        Some((run, before)) if (run.source, run.offset + *before) == (source, offset) => *before += len,
                        _ => expected.push((SourceRun { start, source, offset }, len)),
                    }
                    start += len;
                }
                prop_assert_eq!(runs.iter().collect::<Vec<_>>(), expected);
                let name = format!("t{at}");
                prop_assert_eq!((info.name, info.nbytes), (&name[..], start));
            }
        }
    }

    #[test]
    fn sizes_beyond_those_of_files_are_an_error() {
        let mut assembly = assembly(3);
        let half = 0..(i64::MAX as u64 / 2 + 1);
        assert_eq!(assembly.push("a", Dtype::U8, &[half.end], [(0, half.clone())]), Ok(()));
        assert_eq!(assembly.push("b", Dtype::U8, &[half.end], [(0, half)]), Err(TOO_LONG));
    }

    #[test]
    fn names_are_unique() {
        let mut assembly = assembly(3);
        assembly.push("a", Dtype::U8, &[1], [(0, 0..1)]).unwrap();
        assembly.push("a", Dtype::Unknown("X7"), &[1], [(0, 0..1)]).unwrap();
        assert_eq!(assembly.finish().unwrap_err().tensor(), Some("a"));
    }
}
