//! `SHA256SUMS`: knows how sha256sum(1) of coreutils writes a line, and hashes the tensors whose lines are read.

use super::lines::{Lines, Out, length};
use super::results::Results;
use super::{View, values};
use crate::content::{Content, Data, Error, Generated, Interrupted, Segment};
use crate::model::Model;
use crate::name;
use crate::text::Hex;
use crate::threads;
use sha2::{Digest, Sha256};
use std::io;
use std::ops::Range;

/// Where the lines are: their lengths are known before any hash.
#[derive(Debug)]
pub struct Sums(Lines);

impl Sums {
    /// Measures every line.
    pub fn new(model: &Model) -> Self {
        Self(Lines::new(model.len(), |tensors, out| write_blank(model, tensors, out)))
    }

    /// The file, of the model of that number; `data` finds the bytes of a tensor.
    pub fn content<'a>(
        &'a self,
        model: &'a Model,
        results: &'a Results,
        number: u32,
        data: impl Fn(usize) -> Data<'a> + Sync + 'a,
        interrupted: Interrupted<'a>,
    ) -> Content<'a> {
        let write = move |range: Range<u64>, out: &mut Vec<u8>| {
            let (first, start) = self.0.find(range.start, |tensors, out| write_blank(model, tensors, out));
            let mut ends = start;
            let touched = (first..model.len()).take_while(|tensor| {
                let begins = ends;
                ends += length(|out| write_line(model, *tensor, &[0; 32], out));
                begins < range.end
            });
            let touched: Vec<usize> = touched.filter(|tensor| !model.is_aside(*tensor)).collect();
            let hash = |tensor: &usize| {
                let compute = || sha256(&data(*tensor), interrupted);
                results.get((number, View::Sums, *tensor as u32), interrupted, compute)
            };
            let hashes = threads::map(touched.len(), |at| hash(&touched[at]));
            let mut text = Vec::new();
            for (tensor, hash) in touched.iter().zip(hashes) {
                // A vector cannot refuse text.
                let _ = write_line(model, *tensor, &hash?, &mut text);
            }
            let from = (range.start - start) as usize;
            out.extend_from_slice(&text[from..from + (range.end - range.start) as usize]);
            Ok(())
        };
        Content::new([Segment::Generated(Generated { len: self.0.len(), write: Box::new(write) })])
    }
}

fn sha256(data: &Data, interrupted: Interrupted) -> Result<Vec<u8>, Error> {
    let mut hasher = Sha256::new();
    values::each(data, 0..data.len(), interrupted, |bytes| hasher.update(bytes))?;
    Ok(hasher.finalize().to_vec())
}

/// Lines with nothing but zeros for hashes.
fn write_blank(model: &Model, mut tensors: Range<usize>, out: Out) -> io::Result<()> {
    tensors.try_for_each(|tensor| write_line(model, tensor, &[0; 32], out))
}

/// Nothing for a tensor that is not in `tensors/`.
fn write_line(model: &Model, tensor: usize, hash: &[u8], out: Out) -> io::Result<()> {
    if model.is_aside(tensor) {
        return Ok(());
    }
    let name = name::encode(model.name(tensor));
    // Of what sha256sum escapes, a file name here can have the backslash only.
    if name.contains('\\') {
        out.write_all(b"\\")?;
    }
    write!(out, "{}", Hex(hash))?;
    // By the name `-` it would read its standard input.
    let name = if name == "-" { "./-".into() } else { name };
    writeln!(out, "  {}", name.replace('\\', "\\\\"))
}
