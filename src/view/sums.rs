//! `SHA256SUMS`: a line for each logical tensor, in the form of sha256sum(1). A line is hashed when it is read.

use super::lines::{Lines, Out, length};
use super::results::{Key, Results};
use super::values::each;
use crate::content::{Content, Data, Error, Generated, Request, Segment};
use crate::model::{Model, TensorId};
use crate::name;
use crate::text::Hex;
use crate::threads;
use sha2::{Digest, Sha256};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are hashed at a time.
const STEP: u64 = 1 << 20;

/// The file. Every line is measured; no line is hashed. `key` is that of the file, and its item that of a tensor.
pub fn content(model: &Arc<Model>, results: &Arc<Results>, key: Key) -> Content {
    let (model, results) = (model.clone(), results.clone());
    let lines = Lines::new(model.logical().len(), |lines, out| write_blank(&model, lines, out));
    Content::new([Segment::Generated(Generated::new(lines.len(), move |range, request, out| {
        let logical = model.logical();
        let (first, start) = lines.find(range.start, |lines, out| write_blank(&model, lines, out));
        let mut ends = start;
        let touched = (first..logical.len()).map(|line| logical.at(line)).take_while(|tensor| {
            let begins = ends;
            ends += length(|out| write_line(&model, *tensor, &[0; 32], out));
            begins < range.end
        });
        let touched: Vec<TensorId> = touched.collect();
        let hashes = threads::map(touched.len(), |at| {
            let key = Key { item: touched[at].into(), ..key };
            results.get(key, request, || sha256(&model.data(&model.tensor(touched[at])), request))
        });
        let mut text = Vec::new();
        for (tensor, hash) in touched.iter().zip(hashes) {
            // Writing to a vector does not fail.
            let _ = write_line(&model, *tensor, &hash?, &mut text);
        }
        let from = (range.start - start) as usize;
        out.extend_from_slice(&text[from..from + (range.end - range.start) as usize]);
        Ok(())
    }))])
}

fn sha256(data: &Data, request: &Request) -> Result<Vec<u8>, Error> {
    let mut hasher = Sha256::new();
    each(data, 0..data.len(), STEP, request, |bytes| hasher.update(bytes))?;
    Ok(hasher.finalize().to_vec())
}

/// Lines with zeros in place of hashes: they have the same lengths.
fn write_blank(model: &Model, mut lines: Range<usize>, out: Out) -> io::Result<()> {
    let logical = model.logical();
    lines.try_for_each(|line| write_line(model, logical.at(line), &[0; 32], out))
}

fn write_line(model: &Model, tensor: TensorId, hash: &[u8], out: Out) -> io::Result<()> {
    let name = name::encode(model.name(tensor));
    // sha256sum escapes backslashes and newlines. File names here hold no newline.
    if name.contains('\\') {
        out.write_all(b"\\")?;
    }
    // sha256sum takes the name `-` for its standard input.
    let name = if name == "-" { "./-".into() } else { name };
    writeln!(out, "{}  {}", Hex(hash), name.replace('\\', "\\\\"))
}
