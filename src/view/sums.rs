//! `SHA256SUMS`: a line for each logical tensor, in the format of sha256sum(1). A tensor is hashed when its line is
//! read.

use super::lines::{Out, TextLines, length};
use super::results::{CachedResults, ResultKey};
use super::stats::need;
use super::values::each_value;
use crate::content::{Content, Error, GeneratedBytes, ReadRequest, Segment, WaitResource};
use crate::model::{Model, TensorId};
use crate::name;
use crate::text::HexDigits;
use crate::threads;
use sha2::{Digest, Sha256};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are read and hashed at a time.
const STEP: u64 = 1 << 20;

/// The file. Measures all lines and hashes nothing yet. Hashes are cached under `key`, with the tensor as the item.
pub fn sums_content(model: &Arc<Model>, results: &Arc<CachedResults>, key: ResultKey) -> Content {
    let (model, results) = (model.clone(), results.clone());
    let lines = TextLines::new(model.logical().len(), |lines, out| write_blank(&model, lines, out));
    Content::new([Segment::Generated(GeneratedBytes::new(lines.len(), move |range, request, out| {
        let logical = model.logical();
        let (first, start) = lines.find(range.start, |lines, out| write_blank(&model, lines, out));
        let mut ends = start;
        let touched = (first..logical.len()).map(|line| logical.at(line)).take_while(|tensor| {
            let begins = ends;
            ends += length(|out| write_line(&model, *tensor, &[0; 32], out));
            begins < range.end
        });
        let touched: Vec<TensorId> = touched.collect();
        let key_of = |tensor: TensorId| ResultKey { item: tensor.into(), ..key };
        let missing = touched.iter().filter(|tensor| results.kept(key_of(**tensor)).is_none());
        let needs = missing.map(|tensor| need(&stored(&model, *tensor)));
        if let Some(need) = needs.reduce(with) {
            request.wait(key.wait(need))?;
        }
        let hashes = threads::map_parallel(touched.len(), |at| {
            let compute = || sha256(&stored(&model, touched[at]), request);
            // The request has waited for this above.
            results.get(key_of(touched[at]), NOTHING, &ReadRequest::WAIT, compute)
        });
        let mut text = Vec::new();
        for (tensor, hash) in touched.iter().zip(hashes) {
            // Writing to a vector cannot fail.
            let _ = write_line(&model, *tensor, &hash?, &mut text);
        }
        let from = (range.start - start) as usize;
        out.extend_from_slice(&text[from..from + (range.end - range.start) as usize]);
        Ok(())
    }))])
}

/// The need of a hash that is a part of a computation for which the request has waited.
const NOTHING: WaitResource = WaitResource::Cores { bytes: 0, device: None };

/// What two computations need together. The device is that of the first one.
fn with(first: WaitResource, second: WaitResource) -> WaitResource {
    match (first, second) {
        (WaitResource::Cores { bytes, device }, WaitResource::Cores { bytes: more, .. }) => {
            WaitResource::Cores { bytes: bytes.saturating_add(more), device }
        }
        (first, _) => first,
    }
}

fn stored(model: &Model, tensor: TensorId) -> Content {
    Content::new([Segment::Data(model.data(&model.tensor(tensor)))])
}

fn sha256(data: &Content, request: &ReadRequest) -> Result<Vec<u8>, Error> {
    let mut hasher = Sha256::new();
    each_value(data, 0..data.len(), STEP, request, |bytes| hasher.update(bytes))?;
    Ok(hasher.finalize().to_vec())
}

/// Writes lines with zeros instead of hashes. They have the same lengths as the real ones.
fn write_blank(model: &Model, mut lines: Range<usize>, out: Out) -> io::Result<()> {
    let logical = model.logical();
    lines.try_for_each(|line| write_line(model, logical.at(line), &[0; 32], out))
}

fn write_line(model: &Model, tensor: TensorId, hash: &[u8], out: Out) -> io::Result<()> {
    let name = name::encode_name(model.name(tensor));
    // sha256sum marks names with escaped characters by a leading backslash. Encoded names contain no newlines, so only
    // backslashes need escaping.
    if name.contains('\\') {
        out.write_all(b"\\")?;
    }
    // sha256sum reads standard input if the name is `-`.
    let name = if name == "-" { "./-".into() } else { name };
    writeln!(out, "{}  {}", HexDigits(hash), name.replace('\\', "\\\\"))
}
