//! `stats/` and `plots/`: knows which bytes of a tensor are read for them, and reads them on every core.

use crate::content::{Data, Decoder, Error, Interrupted};
use crate::format::{Dtype, TensorInfo};
use crate::plot::{self, Heat};
use crate::stats::{Accumulator, Stats};
use crate::threads::{self, cores};
use crate::widen;
use std::ops::Range;

/// Bytes that are read at once: groups of every dtype go into it, and so often a computation looks whether it is still
/// wanted.
const AT_ONCE: usize = 768 << 10;

/// Bytes that are decoded at once: groups of every dtype go into it, too.
const DECODED_AT_ONCE: usize = 24 << 10;

/// Bytes below which a tensor is not worth a second thread.
const PART_MIN: u64 = 4 << 20;

/// Whether a tensor of that dtype has values to count.
pub fn has(dtype: Dtype) -> bool {
    crate::stats::has(dtype)
}

/// The file in `stats/`.
pub fn json(tensor: &TensorInfo, data: &Data, interrupted: Interrupted) -> Result<Vec<u8>, Error> {
    Ok(stats(tensor, data, interrupted)?.to_json())
}

/// The file in `plots/`.
pub fn png(tensor: &TensorInfo, data: &Data, interrupted: Interrupted) -> Result<Vec<u8>, Error> {
    let stats = stats(tensor, data, interrupted)?;
    let heat = match tensor.shape {
        _ if stats.count == 0 => None,
        [] => None,
        [len] => Some(heat(1, *len, tensor, data, interrupted)?),
        [.., rows, cols] => Some(heat(*rows, *cols, tensor, data, interrupted)?),
    };
    let rendered = plot::render(tensor.name, tensor.dtype.name(), tensor.shape, &stats, heat.as_ref());
    rendered.map_err(|error| Error::Picture(error.to_string()))
}

fn stats(tensor: &TensorInfo, data: &Data, interrupted: Interrupted) -> Result<Stats, Error> {
    let none = || Error::Picture(format!("{} has no values to count", tensor.dtype));
    // Whole groups in each part but the last.
    let share = data.len().div_ceil(cores() as u64).max(PART_MIN).next_multiple_of(AT_ONCE as u64);
    let counted = threads::map(data.len().div_ceil(share).max(1) as usize, |at| {
        let mut counted = Accumulator::new(tensor.dtype).ok_or_else(none)?;
        let part = at as u64 * share..((at as u64 + 1) * share).min(data.len());
        each(data, part, interrupted, |bytes| counted.add(bytes)).map(|()| counted)
    });
    let mut counted = counted.into_iter();
    let mut whole = counted.next().ok_or_else(none)??;
    for counted in counted {
        whole.merge(&counted?);
    }
    Ok(whole.finish())
}

/// The first matrix of a tensor: as float64 where float32 would be too narrow, else as that.
fn heat(rows: u64, cols: u64, tensor: &TensorInfo, data: &Data, interrupted: Interrupted) -> Result<Heat, Error> {
    let mut heat = Heat::new(rows, cols);
    let elements = rows.saturating_mul(cols);
    // The part whose groups hold those elements; what the last one has of the next matrix is passed over.
    let part = |group_in: usize, per_group: usize| {
        0..elements.div_ceil(per_group as u64).saturating_mul(group_in as u64).min(data.len())
    };
    let wide: Option<fn([u8; 8]) -> f64> = match tensor.dtype {
        Dtype::F64 => Some(f64::from_le_bytes),
        Dtype::I64 => Some(|bytes| i64::from_le_bytes(bytes) as f64),
        Dtype::U64 => Some(|bytes| u64::from_le_bytes(bytes) as f64),
        _ => None,
    };
    let mut first = 0;
    if let Some(wide) = wide {
        each(data, part(8, 1), interrupted, |bytes| {
            let values: Vec<f64> = bytes.as_chunks().0.iter().map(|bytes| wide(*bytes)).collect();
            heat.add(first, &values);
            first += values.len() as u64;
        })?;
    } else if let Some(Decoder { group_in, group_out, decode }) = widen::to_f32(tensor.dtype) {
        let (mut decoded, mut values) = (Vec::new(), Vec::<f32>::new());
        each(data, part(group_in, group_out / size_of::<f32>()), interrupted, |bytes| {
            for bytes in bytes.chunks(DECODED_AT_ONCE) {
                decoded.resize(bytes.len() / group_in * group_out, 0);
                decode(bytes, &mut decoded);
                values.clear();
                values.extend(decoded.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
                heat.add(first, &values);
                first += values.len() as u64;
            }
        })?;
    }
    Ok(heat)
}

/// Hands the bytes of a part to `take`, piece by piece, for as long as they are wanted.
pub fn each(
    data: &Data,
    mut part: Range<u64>,
    interrupted: Interrupted,
    mut take: impl FnMut(&[u8]),
) -> Result<(), Error> {
    let mut buf = vec![0; AT_ONCE.min((part.end - part.start) as usize)];
    while part.start < part.end {
        if interrupted() {
            return Err(Error::Interrupted);
        }
        let piece = &mut buf[..AT_ONCE.min((part.end - part.start) as usize)];
        data.read_exact_at(piece, part.start)?;
        take(piece);
        part.start += piece.len() as u64;
    }
    Ok(())
}
