//! `SHA256SUMS`: a line for each logical tensor, in the format of sha256sum(1). A tensor is hashed when its line is
//! read.

use super::lines::{Out, TextLines, TextPieces};
use super::results::{CachedResults, ResultKey};
use super::stats::need;
use super::values::each_value;
use crate::content::{Content, Error, GeneratedBytes, ReadRequest, WaitResource};
use crate::model::{Model, TensorId};
use crate::name;
use crate::text::HexDigits;
use crate::threads;
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::sync::Arc;
use std::{fmt, io};

/// Bytes that are read and hashed at a time.
const STEP: u64 = 1 << 20;

/// The file. Measures all lines and hashes nothing yet. Hashes are cached under `key`, with the tensor as the item.
pub fn sums_content(model: &Arc<Model>, results: &Arc<CachedResults>, key: ResultKey) -> Content {
    Content::generated(SumsFile { lines: TextLines::new(BlankSums(model.clone())), results: results.clone(), key })
}

/// The text of the file. Its lines are as long as those with zeros instead of hashes.
struct SumsFile {
    lines: TextLines<BlankSums>,
    results: Arc<CachedResults>,
    key: ResultKey,
}

/// Lines with zeros instead of hashes.
struct BlankSums(Arc<Model>);

impl TextPieces for BlankSums {
    fn count(&self) -> usize {
        self.0.logical().len()
    }

    fn write(&self, mut lines: Range<usize>, out: Out) -> io::Result<()> {
        let logical = self.0.logical();
        lines.try_for_each(|line| write_line(&self.0, logical.at(line), &[0; 32], out))
    }
}

impl SumsFile {
    fn model(&self) -> &Model {
        &self.lines.pieces().0
    }

    fn key_of(&self, tensor: TensorId) -> ResultKey {
        ResultKey { item: tensor.into(), ..self.key }
    }

    /// The hash of a tensor, for which the request has waited.
    fn hash_of(&self, tensor: TensorId, request: &ReadRequest) -> Result<Arc<[u8]>, Error> {
        self.results.get(self.key_of(tensor), NOTHING, &ReadRequest::WAIT, || {
            sha256(&stored_content(self.model(), tensor), request, &|_| ())
        })
    }

    /// The tensors whose lines overlap `range`, and the offset of the first line.
    fn lines_in(&self, range: &Range<u64>) -> (Vec<TensorId>, u64) {
        let logical = self.model().logical();
        let (first, start) = self.lines.find(range.start);
        let (mut touched, mut ends) = (Vec::new(), start);
        for line in first..logical.len() {
            if ends >= range.end {
                break;
            }
            touched.push(logical.at(line));
            ends += self.lines.pieces().measure(line..line + 1);
        }
        (touched, start)
    }
}

impl GeneratedBytes for SumsFile {
    fn nbytes(&self) -> u64 {
        self.lines.nbytes()
    }

    fn fill(&self, buf: &mut [u8], offset: u64, request: &ReadRequest) -> Result<(), Error> {
        let (touched, start) = self.lines_in(&(offset..offset + buf.len() as u64));
        let missing = touched.iter().filter(|tensor| self.results.kept(self.key_of(**tensor)).is_none());
        let needs = missing.map(|tensor| need(&stored_content(self.model(), *tensor)));
        if let Some(need) = needs.reduce(with) {
            request.wait(self.key.wait(need))?;
        }
        let hashes = threads::map_parallel(touched.len(), |at| self.hash_of(touched[at], request));
        let mut text = Vec::new();
        for (tensor, hash) in touched.iter().zip(hashes) {
            // Writing to a vector cannot fail.
            let _ = write_line(self.model(), *tensor, &hash?, &mut text);
        }
        buf.copy_from_slice(&text[(offset - start) as usize..][..buf.len()]);
        Ok(())
    }
}

/// The need of a hash that is a part of a computation for which the request has waited.
const NOTHING: WaitResource = WaitResource::Cores { bytes: 0, device: None };

/// The needs of two computations together. The device is that of the first one.
fn with(first: WaitResource, second: WaitResource) -> WaitResource {
    match (first, second) {
        (WaitResource::Cores { bytes, device }, WaitResource::Cores { bytes: more, .. }) => {
            WaitResource::Cores { bytes: bytes.saturating_add(more), device }
        }
        (first, _) => first,
    }
}

fn stored_content(model: &Model, tensor: TensorId) -> Content {
    model.data(&model.tensor(tensor)).into()
}

/// The SHA-256 of the bytes of a tensor, in hexadecimal digits. Passes the number of bytes of each step to `advance`.
pub fn tensor_sum(
    model: &Model,
    tensor: TensorId,
    request: &ReadRequest,
    advance: &dyn Fn(u64),
) -> Result<String, Error> {
    Ok(HexDigits(&sha256(&stored_content(model, tensor), request, advance)?).to_string())
}

fn sha256(data: &Content, request: &ReadRequest, advance: &dyn Fn(u64)) -> Result<Vec<u8>, Error> {
    let mut hasher = Sha256::new();
    each_value(data, 0..data.len(), STEP, request, |bytes| {
        hasher.update(bytes);
        advance(bytes.len() as u64);
    })?;
    Ok(hasher.finalize().to_vec())
}

fn write_line(model: &Model, tensor: TensorId, hash: &[u8], out: Out) -> io::Result<()> {
    writeln!(out, "{}", sum_line(&stored_path(model.name(tensor)), &HexDigits(hash)))
}

/// The path of the file of a tensor in a mount of its model.
pub fn stored_path(name: &str) -> String {
    format!("tensors/{}", name::encode_name(name))
}

/// A line as sha256sum(1) prints it, without the line feed.
pub fn sum_line(path: &str, sum: &dyn fmt::Display) -> String {
    // A leading backslash marks paths with escaped characters.
    match path.contains(['\\', '\n', '\r']) {
        true => {
            let path = path.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r");
            format!("\\{sum}  {path}")
        }
        false => format!("{sum}  {path}"),
    }
}
