//! Checks the data of a file: verifies hashes and searches the values for NaN and infinity. Both are done in one pass
//! on all cores, so that the data is read from the disk once.

use super::file::File;
use super::report::{Report, Rule};
use crate::format::{Dtype, TensorInfo};
use crate::source;
use crate::stats::Specials;
use crate::text::{Hex, brackets, quote};
use crate::threads;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Approximate number of bytes that are read at a time.
const AT_ONCE: u64 = 1 << 20;

/// Number of pieces that are searched in parallel while the same bytes are hashed.
const PIECES: usize = 64;

/// Consecutive bytes of one or more tensors, searched by one thread.
struct Piece {
    tensors: Range<usize>,
    bytes: Range<u64>,
}

/// The result of a job.
enum Done {
    Hashed,
    /// Tensor index, special values found, and number of elements of the tensor before the piece.
    Searched(Vec<(usize, Specials, u64)>),
}

/// Selects the tensors to search, in the order of the data: those whose dtype has NaN or infinity. Of overlapping
/// tensors, only the first is searched, because a damaged file may have a million tensors that cover all of it.
#[derive(Default)]
struct Picker {
    /// The end of the last selected tensor.
    reached: u64,
}

impl Picker {
    fn picks(&mut self, tensor: &TensorInfo) -> bool {
        let picked =
            tensor.nbytes() > 0 && tensor.range.start >= self.reached && Specials::of(tensor.dtype, &[]).is_some();
        if picked {
            self.reached = tensor.range.end;
        }
        picked
    }
}

/// Number of bytes that [`read`] processes. Bytes that are both hashed and searched count twice.
pub(super) fn bytes_to_read(file: &File, values: bool) -> u64 {
    let hashed = if file.stated.is_empty() { 0 } else { file.source.len() - file.header.data_start() };
    let mut picker = Picker::default();
    let searched = file.header.tensors().filter(|tensor| values && picker.picks(tensor)).map(|tensor| tensor.nbytes());
    searched.fold(hashed, u64::saturating_add)
}

/// Verifies the data hashes in the metadata and, if `values`, searches for NaN and infinity.
pub(super) fn read(
    file: &File,
    values: bool,
    report: &mut Report,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<(), source::Error> {
    let pieces = if values { pieces(file) } else { Vec::new() };
    let mut found: BTreeMap<usize, Specials> = BTreeMap::new();
    let start = file.header.data_start();
    let data = start..if file.stated.is_empty() { start } else { file.source.len() };
    let hasher = Mutex::new(Sha256::new());
    let mut hashed = data.start;
    for window in pieces.chunks(PIECES) {
        let end = window.last().map_or(hashed, |last| last.bytes.end).clamp(hashed, data.end);
        let work = |at: usize| match at.checked_sub(1) {
            None => hash(file, hashed..end, &hasher, advance).map(|()| Done::Hashed),
            Some(at) => search(file, &window[at], advance).map(Done::Searched),
        };
        for done in threads::map(1 + window.len(), work) {
            if let Done::Searched(seen) = done? {
                for (tensor, specials, before) in seen {
                    found.entry(tensor).or_default().merge(&specials, before);
                }
            }
        }
        hashed = end;
    }
    hash(file, hashed..data.end, &hasher, advance)?;
    for (tensor, specials) in found {
        report_specials(file, &file.header.tensor(tensor), &specials, report);
    }
    let digest = Hex(&hasher.into_inner().unwrap_or_else(PoisonError::into_inner).finalize()).to_string();
    for (key, stated) in &file.stated {
        if *stated == digest {
            report.verified.push((file.name.clone(), key.clone()));
        } else {
            report.add(Rule::Hash, &file.name, Some(key), || {
                format!("metadata {} is {stated}, but the SHA-256 of the data is {digest}", quote(key))
            });
        }
    }
    Ok(())
}

/// The pieces to search, in the order of the data. Small tensors are joined; large ones are split between blocks.
fn pieces(file: &File) -> Vec<Piece> {
    let (mut pieces, mut picker): (Vec<Piece>, Picker) = Default::default();
    for (at, tensor) in file.header.tensors().enumerate().filter(|(_, tensor)| picker.picks(tensor)) {
        let Range { mut start, end } = tensor.range;
        let block = tensor.dtype.block().map_or(1, |block| block.bytes);
        let step = (AT_ONCE / block).max(1) * block;
        while start < end {
            let next = end.min(start + step);
            match pieces.last_mut() {
                Some(last) if last.bytes.end == start && next - last.bytes.start <= AT_ONCE => {
                    last.tensors.end = at + 1;
                    last.bytes.end = next;
                }
                _ => pieces.push(Piece { tensors: at..at + 1, bytes: start..next }),
            }
            start = next;
        }
    }
    pieces
}

/// Searches a piece for special values.
fn search(
    file: &File,
    piece: &Piece,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<Vec<(usize, Specials, u64)>, source::Error> {
    let Piece { tensors, bytes } = piece;
    let mut buf = vec![0; (bytes.end - bytes.start) as usize];
    file.source.read_exact_at(&mut buf, bytes.start)?;
    let (mut seen, mut picker): (Vec<_>, Picker) = Default::default();
    for at in tensors.clone() {
        let tensor = file.header.tensor(at);
        // The first tensor of a piece is always selected, so this selection repeats that of `pieces`.
        if !picker.picks(&tensor) {
            continue;
        }
        let TensorInfo { dtype, range, .. } = tensor;
        let part = range.start.max(bytes.start)..range.end.min(bytes.end);
        let encoded = &buf[(part.start - bytes.start) as usize..(part.end - bytes.start) as usize];
        if let Some(specials) = Specials::of(dtype, encoded).filter(|specials| !specials.is_empty()) {
            let before = (part.start - range.start) * 8 / dtype.bits().unwrap_or(8);
            seen.push((at, specials, before));
        }
    }
    advance(buf.len() as u64);
    Ok(seen)
}

fn hash(
    file: &File,
    mut bytes: Range<u64>,
    hasher: &Mutex<Sha256>,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<(), source::Error> {
    let mut hasher = hasher.lock().unwrap_or_else(PoisonError::into_inner);
    let mut buf = vec![0; AT_ONCE.min(bytes.end - bytes.start) as usize];
    while bytes.start < bytes.end {
        let part = &mut buf[..AT_ONCE.min(bytes.end - bytes.start) as usize];
        file.source.read_exact_at(part, bytes.start)?;
        hasher.update(&*part);
        bytes.start += part.len() as u64;
        advance(part.len() as u64);
    }
    Ok(())
}

/// Reports the special values of a tensor.
fn report_specials(file: &File, tensor: &TensorInfo, specials: &Specials, report: &mut Report) {
    let Specials { nan, pos_inf, neg_inf, first } = *specials;
    let counts = [(nan, "NaN"), (pos_inf, "+Inf"), (neg_inf, "-Inf")];
    let counts: Vec<String> =
        counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
    let rule = if nan > 0 { Rule::Nan } else { Rule::Infinite };
    let count = tensor.elements();
    let plural = if count == 1 { "" } else { "s" };
    let elements = match tensor.dtype {
        Dtype::C64 => format!("the {} parts of {count} element{plural}", count.saturating_mul(2)),
        _ => format!("{count} element{plural}"),
    };
    report.add(rule, &file.name, Some(tensor.name), || {
        let at = index(tensor.shape, first.unwrap_or(0));
        format!("tensor {}: {} among {elements}, the first at {at}", quote(tensor.name), counts.join(", "))
    });
}

/// The index of an element in C order, in the notation `[3, 17]`.
fn index(shape: &[u64], mut element: u64) -> String {
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
