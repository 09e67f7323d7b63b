//! Checks the data of a file: verifies hashes, and searches for NaN, infinity and data that is zero. All is done in one
//! pass on all cores, so that the data is read from the disk once.

use super::file::CheckedFile;
use super::report::CheckReport;
use super::sums::StatedSum;
use crate::content::ReadRequest;
use crate::format::{Dtype, DtypeBlock, HeaderTensor};
use crate::model;
use crate::rules::CheckRule;
use crate::stats::SpecialCounts;
use crate::text::{HexDigits, brackets, quote};
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
struct SearchPiece {
    tensors: Range<usize>,
    bytes: Range<u64>,
}

struct PieceFindings {
    /// Tensor index, finding, and number of elements of the tensor before the piece. Nothing for ordinary data.
    tensors: Vec<(usize, TensorFindings, u64)>,
    /// The end of the last byte that is not zero, in bytes from the start of the file.
    end: Option<u64>,
}

/// The findings about a tensor or a part of it.
#[derive(Default)]
struct TensorFindings {
    specials: SpecialCounts,
    /// Size of the parts that are entirely zero.
    zero: u64,
}

/// Fewer zero bytes at the end of the data are not reported. A bias or a small matrix of zeros may be the last tensor.
const ZERO_END_MIN: u64 = 1 << 20;

/// Fewer zero bytes at the end of a tensor do not mean that it was cut: its last values may be zero.
const ZERO_INSIDE_MIN: u64 = 4096;

/// A smaller file that consists of zeros is not reported as such. It may have a few values that are zero.
const ZERO_DATA_MIN: u64 = 4096;

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

/// Number of bytes that [`read_piece`] processes. Bytes that are both hashed and searched count twice.
pub(super) fn bytes_to_read(file: &CheckedFile, values: bool) -> u64 {
    let hashed = hashed_bytes(file);
    let hashed = hashed.end - hashed.start;
    let mut picker = TensorPicker::default();
    let searched = file.header.tensors().filter(|tensor| values && picker.picks(tensor)).map(|tensor| tensor.nbytes);
    let gathered = if values { gathered(file).0 } else { Vec::new() };
    let gathered = gathered.into_iter().map(|at| file.header.tensor(at).nbytes);
    searched.chain(gathered).fold(hashed, u64::saturating_add)
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
}

/// Verifies the hashes of the data and of the whole file and, if `values`, searches for NaN, infinity and zero data.
/// What is found in tensors for which `is_companion` is true is not reported.
pub(super) fn read_piece(
    file: &CheckedFile,
    values: bool,
    is_companion: &(dyn Fn(&HeaderTensor) -> bool + Sync),
    advance: &(dyn Fn(u64) + Sync),
) -> Result<CheckReport, model::Error> {
    let mut report = CheckReport::default();
    let (pieces, unsearched) = if values { pieces(file) } else { Default::default() };
    let (gathered, not_gathered) = if values { gathered(file) } else { Default::default() };
    report.unsearched += unsearched + not_gathered;
    let mut found: BTreeMap<usize, TensorFindings> = BTreeMap::new();
    let start = file.header.data_start;
    let mut nonzero_end = start;
    let wanted = hashed_bytes(file);
    let hasher = Mutex::default();
    let mut hashed = wanted.start;
    for window in pieces.chunks(PIECES) {
        let end = window.last().map_or(hashed, |last| last.bytes.end).clamp(hashed, wanted.end);
        // The first job hashes the bytes that the others search.
        for done in threads::map_parallel(1 + window.len(), |at| match at.checked_sub(1) {
            None => hash(file, hashed..end, &hasher, advance).map(|()| None),
            Some(at) => search(file, &window[at], advance).map(Some),
        }) {
            if let Some(seen) = done? {
                for (tensor, part, before) in seen.tensors {
                    let whole = found.entry(tensor).or_default();
                    whole.specials.merge(&part.specials, before);
                    whole.zero += part.zero;
                }
                nonzero_end = nonzero_end.max(seen.end.unwrap_or(0));
            }
        }
        hashed = end;
    }
    hash(file, hashed..wanted.end, &hasher, advance)?;
    for some in gathered.chunks(GATHERED_TENSORS) {
        let searched = threads::map_parallel(some.len(), |at| search_gathered(file, some[at], advance));
        for (at, part) in some.iter().zip(searched) {
            found.insert(*at, part?);
        }
    }
    let zero_from = zero_end(file, &pieces, nonzero_end, &mut report);
    for (tensor, TensorFindings { specials, zero }) in found {
        let tensor = file.header.tensor(tensor);
        if is_companion(&tensor) {
            continue;
        }
        if !specials.is_empty() {
            report_specials(file, &tensor, &specials, &mut report);
        }
        if zero > 0 && zero == tensor.nbytes && zero_from.is_none_or(|from| tensor.range.start < from) {
            report.add(CheckRule::Zero, &file.name, Some(tensor.name), || {
                format!("tensor {}: all {zero} bytes are zero", quote(tensor.name))
            });
        }
    }
    let FileHashes { file: whole, data } = hasher.into_inner().unwrap_or_else(PoisonError::into_inner);
    let digest = HexDigits(&whole.finalize()).to_string();
    for StatedSum { origin, sum } in &file.sums {
        if *sum == digest {
            report.verified.push((file.name.clone(), format!("SHA-256 ({origin})")));
        } else {
            report.add(CheckRule::FileHash, &file.name, None, || {
                format!("the SHA-256 of the file is {digest}, but {origin} says {sum}")
            });
        }
    }
    let digest = HexDigits(&data.finalize()).to_string();
    for (key, stated) in &file.stated {
        if *stated == digest {
            report.verified.push((file.name.clone(), key.clone()));
        } else {
            report.add(CheckRule::Hash, &file.name, Some(key), || {
                format!("metadata {} is {stated}, but the SHA-256 of the data is {digest}", quote(key))
            });
        }
    }
    Ok(report)
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
            seen.push((at, TensorFindings { specials, zero: if is_zero { encoded.len() as u64 } else { 0 } }, before));
        }
    }
    advance(buf.len() as u64);
    Ok(PieceFindings { tensors: seen, end: (end > 0).then(|| bytes.start + end as u64) })
}

fn search_gathered(
    file: &CheckedFile,
    at: usize,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<TensorFindings, model::Error> {
    let tensor = file.header.tensor(at);
    let (data, len) = (model::data_in(&file.source, &tensor), tensor.nbytes);
    let size = tensor.layout.map_or(1, |layout| u64::from(layout.size).max(1));
    let step = (GATHERED_AT_ONCE / size).max(1) * size;
    let (mut found, mut buf) = (TensorFindings::default(), Vec::new());
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

/// Reports data that ends in zeros as an unfinished download does. Returns where these zeros begin.
///
/// `nonzero_end` is the end of the last byte that is not zero. Normal models may end in zeros, too: their last tensors
/// may be entirely zero, and an embedding may be padded with rows of zeros. A download ends in the middle of a tensor:
/// mostly in the middle of a row, or before other tensors, or before a large part of the data. Files of integers are
/// data sets more often than models, and may hold any values.
fn zero_end(file: &CheckedFile, pieces: &[SearchPiece], nonzero_end: u64, report: &mut CheckReport) -> Option<u64> {
    let (start, end) = (file.header.data_start, file.source.len());
    let (zeros, len) = (end.checked_sub(nonzero_end)?, end.checked_sub(start)?);
    let read: u64 = pieces.iter().map(|piece| piece.bytes.end - piece.bytes.start).sum();
    // If not all data was read, the values are not wanted, or the file is damaged.
    if read != len || !file.header.tensors().any(|tensor| is_float(&tensor)) {
        return None;
    }
    if zeros == len {
        if len < ZERO_DATA_MIN {
            return None;
        }
        report.add(CheckRule::ZeroEnd, &file.name, None, || format!("all {len} bytes of the data are zero"));
        return Some(start);
    }
    let cut = file.header.tensors().find(|tensor| tensor.range.contains(&nonzero_end))?;
    let (before, inside) = (nonzero_end - cut.range.start, cut.range.end - nonzero_end);
    let is_in_row = match (cut.shape.last(), cut.dtype.bits()) {
        (Some(columns), Some(bits)) => !(before * 8).div_ceil(bits).is_multiple_of((*columns).max(1)),
        _ => true,
    };
    let is_in_tensor = before > 0 && inside >= ZERO_INSIDE_MIN;
    let is_cut = match end - cut.range.end {
        ZERO_END_MIN.. => is_in_tensor,
        0 if !is_float(&cut) => false,
        _ => is_in_tensor && (is_in_row || zeros >= len / 16),
    };
    let whole = file.header.tensors().filter(|tensor| tensor.range.start >= nonzero_end && tensor.elements() > 1);
    if zeros < ZERO_END_MIN || !is_cut && (zeros <= len / 2 || whole.count() < 2) {
        return None;
    }
    report.add(CheckRule::ZeroEnd, &file.name, Some(cut.name), || {
        let percent = zeros as f64 / len as f64 * 100.0;
        format!(
            "the last {zeros} of {len} bytes of the data ({percent:.1} %) are zero, from byte {nonzero_end} of the file, \
             in tensor {}",
            quote(cut.name)
        )
    });
    Some(nonzero_end)
}

fn is_float(tensor: &HeaderTensor) -> bool {
    let is_opaque = tensor.dtype.block().is_none() || Dtype::SIZE_ONLY.contains(&tensor.dtype);
    !is_opaque && !tensor.dtype.is_integer()
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

fn report_specials(file: &CheckedFile, tensor: &HeaderTensor, specials: &SpecialCounts, report: &mut CheckReport) {
    let SpecialCounts { nan, pos_inf, neg_inf, first } = *specials;
    let rule = if nan > 0 { CheckRule::Nan } else { CheckRule::Infinite };
    report.add(rule, &file.name, Some(tensor.name), || {
        let counts = [(nan, "NaN"), (pos_inf, "+Inf"), (neg_inf, "-Inf")].into_iter().filter(|(count, _)| *count > 0);
        let counts = counts.map(|(count, name)| format!("{count} {name}")).collect::<Vec<_>>().join(", ");
        let count = tensor.elements();
        let parts = if tensor.dtype == Dtype::C64 {
            format!("the {} parts of ", count.saturating_mul(2))
        } else {
            String::new()
        };
        let plural = if count == 1 { "" } else { "s" };
        let at = index(tensor.shape, first.unwrap_or(0));
        format!("tensor {}: {counts} among {parts}{count} element{plural}, the first at {at}", quote(tensor.name))
    });
}

/// The index of an element in C order, in the notation `[3, 17]`.
pub(super) fn index(shape: &[u64], mut element: u64) -> String {
    let mut indices = vec![0; shape.len()];
    for (at, dim) in shape.iter().enumerate().rev() {
        indices[at] = element % (*dim).max(1);
        element /= (*dim).max(1);
    }
    brackets(&indices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_indices_match_numpy() {
        assert_eq!(index(&[], 0), "[]");
        assert_eq!(index(&[5], 3), "[3]");
        assert_eq!(index(&[2, 3, 4], 23), "[1, 2, 3]");
        assert_eq!(index(&[2, 3, 4], 13), "[1, 0, 1]");
    }
}
