//! Checks the data of a file: verifies hashes, and searches for NaN, infinity and data that is zero. All is done in one
//! pass on all cores, so that the data is read from the disk once.

use super::file::CheckedFile;
use super::findings::{FileFindings, ValueFindings};
use super::report::CheckReport;
use super::sums::StatedSum;
use crate::content::ReadRequest;
use crate::format::{DtypeBlock, HeaderTensor};
use crate::model;
use crate::rules::CheckRule;
use crate::stats::SpecialCounts;
use crate::text::{HexDigits, quote};
use crate::threads;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Approximate number of bytes that are read at a time.
const AT_ONCE: u64 = 1 << 20;

/// Approximate number of bytes that are gathered at a time. It is more than [`AT_ONCE`], because the elements of a part
/// can be anywhere in the tensor.
const GATHERED_AT_ONCE: u64 = 16 << 20;

/// Number of gathered tensors that are searched before what was found is kept.
const GATHERED_TENSORS: usize = 1024;

/// Number of pieces that are searched in parallel while the same bytes are hashed.
const PIECES: usize = 64;

/// Consecutive bytes of one or more tensors, searched by one thread.
#[derive(Debug)]
pub(super) struct SearchPiece {
    tensors: Range<usize>,
    pub bytes: Range<u64>,
}

struct PieceFindings {
    /// Tensor index, finding, and number of elements of the tensor before the piece. Nothing for ordinary data.
    tensors: Vec<(usize, ValueFindings, u64)>,
    /// The end of the last byte that is not zero, in bytes from the start of the file.
    end: Option<u64>,
}

/// Selects the tensors to search, in the order of the data. Of overlapping tensors, only the first is searched, because
/// a damaged file may have a million tensors that cover all of it. Tensors whose elements must be gathered are selected
/// by [`gathered`].
#[derive(Default)]
struct TensorPicker {
    /// The end of the last selected tensor.
    reached: u64,
    /// Number of tensors with bytes that are not searched.
    unsearched: u64,
}

impl TensorPicker {
    fn picks(&mut self, tensor: &HeaderTensor) -> bool {
        if tensor.layout.is_some() || tensor.nbytes == 0 {
            return false;
        }
        let picked = tensor.range.start >= self.reached;
        if picked {
            self.reached = tensor.range.end;
        } else if tensor.range.end > self.reached {
            self.unsearched += 1;
        }
        picked
    }
}

/// Selects the tensors to search whose elements must be gathered, and counts the others. Together they have at most
/// twice as many bytes as the file, because many tensors can share elements, and a tensor can repeat them.
fn gathered(file: &CheckedFile) -> (Vec<usize>, u64) {
    let mut left = file.source.len().saturating_mul(2);
    let (mut picked, mut unsearched) = (Vec::new(), 0);
    let tensors = file.header.tensors().enumerate();
    for (at, tensor) in tensors.filter(|(_, tensor)| tensor.layout.is_some() && tensor.nbytes > 0) {
        match left.checked_sub(tensor.nbytes) {
            Some(rest) => {
                left = rest;
                picked.push(at);
            }
            None => unsearched += 1,
        }
    }
    (picked, unsearched)
}

/// What is to be read of a file.
#[derive(Debug)]
pub(super) struct FileWork {
    pub pieces: Vec<SearchPiece>,
    /// The tensors whose elements are gathered.
    pub gathered: Vec<usize>,
    /// Number of tensors that are not searched.
    pub unsearched: u64,
    /// The bytes that are hashed: those of the whole file or of its data, or none.
    hashed: Range<u64>,
}

/// What a process reads of a file: indices of [`FileWork`].
#[derive(Debug, Clone)]
pub(super) struct FileShare {
    pub pieces: Range<usize>,
    pub gathered: Range<usize>,
    pub is_hashed: bool,
}

impl FileWork {
    /// If `values` is false, nothing is searched.
    pub fn of(file: &CheckedFile, values: bool) -> Self {
        let (pieces, unsearched) = if values { pieces(file) } else { Default::default() };
        let (gathered, not_gathered) = if values { gathered(file) } else { Default::default() };
        Self { pieces, gathered, unsearched: unsearched + not_gathered, hashed: hashed_bytes(file) }
    }

    pub fn whole(&self) -> FileShare {
        FileShare { pieces: 0..self.pieces.len(), gathered: 0..self.gathered.len(), is_hashed: true }
    }

    /// Number of bytes that are hashed.
    pub fn hashed_len(&self) -> u64 {
        self.hashed.end - self.hashed.start
    }

    /// The sizes of all pieces and of the gathered tensors, in bytes.
    pub fn searched_lens(&self, file: &CheckedFile) -> Vec<u64> {
        let pieces = self.pieces.iter().map(|piece| piece.bytes.end - piece.bytes.start);
        pieces.chain(self.gathered.iter().map(|at| file.header.tensor(*at).nbytes)).collect()
    }

    /// The share with some of the pieces and gathered tensors, which are numbered in this order.
    pub fn searched_share(&self, units: &Range<usize>) -> FileShare {
        let pieces = self.pieces.len();
        FileShare {
            pieces: units.start.min(pieces)..units.end.min(pieces),
            gathered: units.start.saturating_sub(pieces)..units.end.saturating_sub(pieces),
            is_hashed: false,
        }
    }
}

/// The bytes that are hashed: those of the whole file or of its data, or none.
fn hashed_bytes(file: &CheckedFile) -> Range<u64> {
    let (start, end) = (file.header.data_start, file.source.len());
    match (file.sums.is_empty(), file.stated.is_empty()) {
        (false, _) => 0..end,
        (true, false) => start..end,
        (true, true) => start..start,
    }
}

/// The hashes of a file and of its data, as far as they are known.
#[derive(Default)]
struct FileHashes {
    file: Sha256,
    data: Sha256,
}

impl FileHashes {
    /// Adds bytes of a file, which begin at `offset`.
    fn update(&mut self, file: &CheckedFile, bytes: &[u8], offset: u64) {
        if !file.sums.is_empty() {
            self.file.update(bytes);
        }
        if !file.stated.is_empty() {
            let header = file.header.data_start.saturating_sub(offset).min(bytes.len() as u64);
            self.data.update(&bytes[header as usize..]);
        }
    }

    /// Compares the hashes with those that are stated.
    fn report(self, file: &CheckedFile) -> CheckReport {
        let mut report = CheckReport::default();
        let digest = HexDigits(&self.file.finalize()).to_string();
        for StatedSum { origin, sum } in &file.sums {
            if *sum == digest {
                report.verified.push((file.name.clone(), format!("SHA-256 ({origin})")));
            } else {
                report.add(CheckRule::FileHash, &file.name, None, || {
                    format!("the SHA-256 of the file is {digest}, but {origin} says {sum}")
                });
            }
        }
        let digest = HexDigits(&self.data.finalize()).to_string();
        for (key, stated) in &file.stated {
            if *stated == digest {
                report.verified.push((file.name.clone(), key.clone()));
            } else {
                report.add(CheckRule::Hash, &file.name, Some(key), || {
                    format!("metadata {} is {stated}, but the SHA-256 of the data is {digest}", quote(key))
                });
            }
        }
        report
    }
}

/// Searches the data of a file, as far as it is in the share, for NaN, infinity and zeros. Tensors for which
/// `is_left_out` is true are left out. Verifies the hashes of the data and of the whole file if they are in the share,
/// and returns a report about them.
pub(super) fn read_share(
    file: &CheckedFile,
    work: &FileWork,
    share: &FileShare,
    is_left_out: &(dyn Fn(&HeaderTensor) -> bool + Sync),
    advance: &(dyn Fn(u64) + Sync),
) -> Result<(FileFindings, CheckReport), model::Error> {
    let mut found: BTreeMap<usize, ValueFindings> = BTreeMap::new();
    let start = file.header.data_start;
    let mut nonzero_end = start;
    let wanted = if share.is_hashed { work.hashed.clone() } else { start..start };
    let hasher = Mutex::default();
    let mut hashed = wanted.start;
    for window in work.pieces[share.pieces.clone()].chunks(PIECES) {
        let end = window.last().map_or(hashed, |last| last.bytes.end).clamp(hashed, wanted.end);
        // The first job hashes the bytes that the others search.
        for done in threads::map_parallel(1 + window.len(), |at| match at.checked_sub(1) {
            None => hash(file, hashed..end, &hasher, advance).map(|()| None),
            Some(at) => search(file, &window[at], advance).map(Some),
        }) {
            if let Some(seen) = done? {
                for (tensor, part, before) in seen.tensors {
                    found.entry(tensor).or_default().merge(&part, before);
                }
                nonzero_end = nonzero_end.max(seen.end.unwrap_or(0));
            }
        }
        hashed = end;
    }
    hash(file, hashed..wanted.end, &hasher, advance)?;
    for some in work.gathered[share.gathered.clone()].chunks(GATHERED_TENSORS) {
        let searched = threads::map_parallel(some.len(), |at| search_gathered(file, some[at], advance));
        for (at, part) in some.iter().zip(searched) {
            found.insert(*at, part?);
        }
    }
    let searched = work.pieces.iter().map(|piece| piece.bytes.end - piece.bytes.start).sum();
    let mut findings = FileFindings::new(file, searched, nonzero_end);
    for (at, values) in found {
        let tensor = file.header.tensor(at);
        if !is_left_out(&tensor) {
            findings.add(at, &tensor, values);
        }
    }
    let hashes = hasher.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((findings, if share.is_hashed { hashes.report(file) } else { CheckReport::default() }))
}

/// The pieces to search, in the order of the data, and the number of tensors that are not searched. Small tensors are
/// joined; large ones are split between blocks.
fn pieces(file: &CheckedFile) -> (Vec<SearchPiece>, u64) {
    let (mut pieces, mut picker): (Vec<SearchPiece>, TensorPicker) = Default::default();
    for (at, tensor) in file.header.tensors().enumerate().filter(|(_, tensor)| picker.picks(tensor)) {
        let Range { start, end } = tensor.range;
        let block = tensor.dtype.block().map_or(1, |block| block.bytes);
        let step = (AT_ONCE / block).max(1) * block;
        for start in (start..end).step_by(step as usize) {
            let next = end.min(start + step);
            match pieces.last_mut() {
                Some(last) if last.bytes.end == start && next - last.bytes.start <= AT_ONCE => {
                    last.tensors.end = at + 1;
                    last.bytes.end = next;
                }
                _ => pieces.push(SearchPiece { tensors: at..at + 1, bytes: start..next }),
            }
        }
    }
    (pieces, picker.unsearched)
}

fn search(
    file: &CheckedFile,
    piece: &SearchPiece,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<PieceFindings, model::Error> {
    let SearchPiece { tensors, bytes } = piece;
    let mut buf = vec![0; (bytes.end - bytes.start) as usize];
    file.source.read_exact_at(&mut buf, bytes.start)?;
    let (mut seen, mut picker): (Vec<_>, TensorPicker) = Default::default();
    let end = nonzero_len(&buf);
    for at in tensors.clone() {
        let tensor = file.header.tensor(at);
        // The first tensor of a piece is always selected, so this selection repeats that of `pieces`.
        if !picker.picks(&tensor) {
            continue;
        }
        let (dtype, range) = (tensor.dtype, tensor.range.clone());
        let part = range.start.max(bytes.start)..range.end.min(bytes.end);
        let encoded = &buf[(part.start - bytes.start) as usize..(part.end - bytes.start) as usize];
        let specials = SpecialCounts::of(dtype, encoded).unwrap_or_default();
        // Single values are zero in many models.
        let is_zero = tensor.elements() > 1 && nonzero_len(encoded) == 0;
        if is_zero || !specials.is_empty() {
            let DtypeBlock { elements, bytes } = dtype.block().unwrap_or(DtypeBlock { elements: 1, bytes: 1 });
            let before = (part.start - range.start) / bytes * elements;
            seen.push((at, ValueFindings { specials, zero: if is_zero { encoded.len() as u64 } else { 0 } }, before));
        }
    }
    advance(buf.len() as u64);
    Ok(PieceFindings { tensors: seen, end: (end > 0).then(|| bytes.start + end as u64) })
}

fn search_gathered(
    file: &CheckedFile,
    at: usize,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<ValueFindings, model::Error> {
    let tensor = file.header.tensor(at);
    let (data, len) = (model::data_in(&file.source, &tensor), tensor.nbytes);
    let size = tensor.layout.map_or(1, |layout| u64::from(layout.size).max(1));
    let step = (GATHERED_AT_ONCE / size).max(1) * size;
    let (mut found, mut buf) = (ValueFindings::default(), Vec::new());
    for start in (0..len).step_by(step as usize) {
        let end = len.min(start + step);
        buf.resize((end - start) as usize, 0);
        data.fill(&mut buf, start, &ReadRequest::WAIT)?;
        found.specials.merge(&SpecialCounts::of(tensor.dtype, &buf).unwrap_or_default(), start / size);
        if tensor.elements() > 1 && nonzero_len(&buf) == 0 {
            found.zero += end - start;
        }
        advance(end - start);
    }
    Ok(found)
}

/// The length of `bytes` without the zeros at their end.
fn nonzero_len(bytes: &[u8]) -> usize {
    // Comparing chunks is faster than comparing bytes.
    let (_, chunks) = bytes.as_rchunks::<64>();
    let zeros = 64 * chunks.iter().rev().take_while(|chunk| **chunk == [0; 64]).count();
    bytes[..bytes.len() - zeros].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

fn hash(
    file: &CheckedFile,
    bytes: Range<u64>,
    hasher: &Mutex<FileHashes>,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<(), model::Error> {
    let mut hasher = hasher.lock().unwrap_or_else(PoisonError::into_inner);
    let mut buf = vec![0; AT_ONCE.min(bytes.end - bytes.start) as usize];
    for start in bytes.clone().step_by(AT_ONCE as usize) {
        let part = &mut buf[..AT_ONCE.min(bytes.end - start) as usize];
        file.source.read_exact_at(part, start)?;
        hasher.update(file, part, start);
        advance(part.len() as u64);
    }
    Ok(())
}
