//! The data of a file: knows how to hash all of it and to look at every value in one go, on every core, so that what is not in
//! memory yet is read from the disk once.

use super::{File, Report, Rule};
use crate::format::{Dtype, TensorInfo};
use crate::source::{self, Source};
use crate::stats::Specials;
use crate::text::{Hex, brackets, quote};
use crate::threads;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Bytes that are read at once: whole elements of every dtype.
const AT_ONCE: u64 = 1 << 20;

/// Pieces that are looked at side by side while the hash goes over the same bytes.
const PIECES: usize = 64;

/// Neighbouring bytes of tensors whose values are looked at.
struct Piece {
    tensors: Range<usize>,
    bytes: Range<u64>,
}

/// What a piece of work came to.
enum Done {
    Hashed,
    /// By the number of the tensor, those before which there are so many elements.
    Seen(Vec<(usize, Specials, u64)>),
}

/// Picks the tensors that are looked at, in the order of the data: those that may hold what is looked for, and of such as
/// overlap the first only. A damaged file could have a million that are all of it.
#[derive(Default)]
struct Picker {
    /// Where the last of them ends.
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

/// How many bytes [`read`] goes over; those that are both hashed and looked at count twice.
pub(super) fn bytes_to_read(file: &File, values: bool) -> u64 {
    let hashed = if file.stated.is_empty() { 0 } else { file.source.len() - file.header.json().end };
    let mut picker = Picker::default();
    let searched = file.header.tensors().filter(|tensor| values && picker.picks(tensor)).map(|tensor| tensor.nbytes());
    searched.fold(hashed, u64::saturating_add)
}

/// Verifies the hashes that a file gives, and looks for NaN and infinity if `values` says so.
pub(super) fn read(
    file: &File,
    values: bool,
    report: &mut Report,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<(), source::Error> {
    let pieces = if values { pieces(file) } else { Vec::new() };
    let mut found: BTreeMap<usize, Specials> = BTreeMap::new();
    let data = file.header.json().end..if file.stated.is_empty() { file.header.json().end } else { file.source.len() };
    let hasher = Mutex::new(Sha256::new());
    let mut hashed = data.start;
    for window in pieces.chunks(PIECES) {
        let end = window.last().map_or(hashed, |last| last.bytes.end).clamp(hashed, data.end);
        let work = |at: usize| match at.checked_sub(1) {
            None => hash(file, hashed..end, &hasher, advance).map(|()| Done::Hashed),
            Some(at) => search(file, &window[at], advance).map(Done::Seen),
        };
        for done in threads::map(1 + window.len(), work) {
            if let Done::Seen(seen) = done? {
                for (tensor, specials, before) in seen {
                    found.entry(tensor).or_default().merge(&specials, before);
                }
            }
        }
        hashed = end;
    }
    hash(file, hashed..data.end, &hasher, advance)?;
    for (tensor, specials) in found {
        tell(file, &file.header.tensor(tensor), &specials, report);
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

/// All that is looked at, in the order of the data: small tensors together, large ones in parts of whole elements.
fn pieces(file: &File) -> Vec<Piece> {
    let (mut pieces, mut picker): (Vec<Piece>, Picker) = Default::default();
    for (at, tensor) in file.header.tensors().enumerate().filter(|(_, tensor)| picker.picks(tensor)) {
        let Range { mut start, end } = tensor.range;
        while start < end {
            let next = end.min(start + AT_ONCE);
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

/// What is special in a piece.
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
        // Others lie between those that are looked at. The first was picked, so that of the rest the same are.
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

/// Reports what was found in a tensor.
fn tell(file: &File, tensor: &TensorInfo, specials: &Specials, report: &mut Report) {
    let Specials { nan, pos_inf, neg_inf, first } = *specials;
    let counts = [(nan, "NaN"), (pos_inf, "+Inf"), (neg_inf, "-Inf")];
    let counts: Vec<String> =
        counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    let rule = if nan > 0 { Rule::Nan } else { Rule::Infinite };
    let count = tensor.elements();
    let plural = if count == 1 { "" } else { "s" };
    let of_what = match tensor.dtype {
        Dtype::C64 => format!("the {} parts of {count} element{plural}", count.saturating_mul(2)),
        _ => format!("{count} element{plural}"),
    };
    report.add(rule, &file.name, Some(tensor.name), || {
        let at = place(tensor.shape, first.unwrap_or(0));
        format!("tensor {}: {} among {of_what}, the first at {at}", quote(tensor.name), counts.join(", "))
    });
}

/// The place of an element as NumPy counts: `[3, 17]`.
fn place(shape: &[u64], mut element: u64) -> String {
    let mut index = vec![0; shape.len()];
    for (at, dim) in shape.iter().enumerate().rev() {
        index[at] = element % (*dim).max(1);
        element /= (*dim).max(1);
    }
    brackets(&index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_is_where_numpy_has_it() {
        assert_eq!(place(&[], 0), "[]");
        assert_eq!(place(&[5], 3), "[3]");
        assert_eq!(place(&[2, 3, 4], 23), "[1, 2, 3]");
        assert_eq!(place(&[2, 3, 4], 13), "[1, 0, 1]");
    }
}
