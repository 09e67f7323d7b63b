//! Where the data of a tensor lies.

use super::ids::ModelFileId;
use crate::content::{Extents, Segment, SourceRun, Sources, StridedData, StridedLayout};
use crate::format::{HeaderTensor, TensorLayout};
use crate::source::Source;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use std::sync::Arc;

/// How the data of a tensor is stored. Only the model matches on it: others ask for the data, or for its places.
#[derive(Debug, Clone)]
pub(super) enum TensorData<'m> {
    /// In one file, as its header says: a run of bytes, or elements that do not lie in C order.
    Stored { file: ModelFileId, tensor: HeaderTensor<'m> },
    /// In runs over the files, and over tensors that are gathered from them.
    Assembled(AssembledRuns<'m>),
}

#[derive(Debug, Clone)]
pub(super) struct AssembledRuns<'m> {
    sources: &'m Sources,
    runs: &'m Arc<[SourceRun]>,
    /// The last sources are gathered tensors. This is the first file of each; the other sources are files.
    gathered: &'m [ModelFileId],
    /// In bytes from the start of the first run.
    part: Range<u64>,
}

/// A run of bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BytePlace {
    pub file: ModelFileId,
    /// In bytes from the start of the file.
    pub range: Range<u64>,
}

pub type BytePlaces = SmallVec<[BytePlace; 1]>;

impl TensorData<'_> {
    /// The places of the bytes, one after the other; none if they have to be gathered.
    pub fn places(&self) -> BytePlaces {
        match self {
            _ if self.is_gathered() => BytePlaces::new(),
            Self::Stored { file, tensor } => smallvec![BytePlace { file: *file, range: tensor.range.clone() }],
            Self::Assembled(assembled) => assembled.places(),
        }
    }

    /// Whether the bytes lie nowhere as they are.
    pub fn is_gathered(&self) -> bool {
        match self {
            Self::Stored { tensor, .. } => tensor.layout.is_some(),
            Self::Assembled(assembled) => assembled.iter().any(|(run, _)| run.source >= assembled.files()),
        }
    }

    /// The file that holds the first bytes. `None` if there are no bytes.
    pub fn first_file(&self) -> Option<ModelFileId> {
        match self {
            Self::Stored { file, .. } => Some(*file),
            Self::Assembled(assembled) => assembled.first_file(),
        }
    }
}

impl<'m> AssembledRuns<'m> {
    pub fn new(
        sources: &'m Sources,
        runs: &'m Arc<[SourceRun]>,
        gathered: &'m [ModelFileId],
        part: Range<u64>,
    ) -> Self {
        Self { sources, runs, gathered, part }
    }

    /// The number of sources that are files.
    fn files(&self) -> usize {
        self.sources.len() - self.gathered.len()
    }

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

    fn places(&self) -> BytePlaces {
        let place = |(run, len): (SourceRun, u64)| BytePlace {
            file: ModelFileId::new(run.source),
            range: run.offset..run.offset + len,
        };
        self.iter().map(place).collect()
    }

    fn first_file(&self) -> Option<ModelFileId> {
        let (first, _) = self.iter().next()?;
        let gathered = first.source.checked_sub(self.files());
        Some(gathered.map_or_else(|| ModelFileId::new(first.source), |gathered| self.gathered[gathered]))
    }

    pub fn data(&self) -> Segment {
        Segment::Extents(Extents { sources: self.sources.clone(), runs: self.runs.clone(), part: self.part.clone() })
    }
}

/// The data of a tensor that a file holds, in C order and little-endian order.
pub fn data_in(source: &Arc<dyn Source>, tensor: &HeaderTensor) -> Segment {
    match array_in(source, tensor) {
        None => Segment::extent(source, tensor.range.clone()),
        Some(array) => Segment::Strided(array),
    }
}

/// The elements of a tensor that do not lie in C order and little-endian order in a file. `None` for other tensors.
pub(super) fn array_in(source: &Arc<dyn Source>, tensor: &HeaderTensor) -> Option<StridedData> {
    let TensorLayout { strides, size, word } = tensor.layout?;
    let layout = StridedLayout::new(tensor.shape, strides, size as usize, word.into());
    Some(StridedData::new(source, tensor.range.start, layout))
}
