//! The values of quantized weights, decoded when they are read. A read of any range reads only the stored bytes that
//! the range needs.

use super::ids::TensorId;
use super::quantization::QuantizedWeight;
use super::table::Model;
use crate::codec::quantized::{ByteRuns, DecodedOutput, GatheredParts, LayoutDecoder, Parts, QuantizedPart};
use crate::content::{Data, Error, GeneratedBytes, ReadRequest, TakeRun, reserve};
use crate::kept::KeptValues;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, LazyLock};

/// Size of a float32 in bytes.
const F32: u64 = 4;

/// Size of a bfloat16 in bytes.
const BF16: u64 = 2;

/// Maximum number of elements that are decoded at a time. They and their codes fit into the cache of a core.
const DECODED_AT_ONCE: u64 = 32 << 10;

/// The same for a transposed matrix, for which each call copies the rows first.
const TRANSPOSED_AT_ONCE: u64 = 256 << 10;

/// If the gaps between runs are no longer than this, the runs are looked up or fetched together with the gaps.
const GAP_MAX: u64 = 64 << 10;

/// Up to this many bytes are looked up at a time, and are read without reserving memory first.
const AT_ONCE_MAX: u64 = 2 << 20;

/// Address space in bytes that must be free in addition, before more than [`AT_ONCE_MAX`] is read. It is more than
/// decoding takes, because freeing a block of up to 32 MiB would change the thresholds of malloc of glibc.
const HEADROOM: usize = 33 << 20;

/// Maximum size in bytes of all windows that are kept.
const WINDOWS_MAX: usize = 64 << 20;

/// A window of a weight: the model, the tensor with the codes, and the first element of the window.
type Key = (u64, TensorId, u64);

/// The bytes of windows that were read last. A row of a transposed matrix is spread over the whole tensor, so that
/// reading a window once for all of its rows saves much more than it costs. Shared by all models, so that there is one
/// bound.
static WINDOWS: LazyLock<KeptValues<Key, Arc<GatheredParts>>> =
    LazyLock::new(|| KeptValues::new(WINDOWS_MAX, |window| window.bytes()));

/// A weight and the tensors that it is computed from.
struct DequantizedWeight {
    decoder: LayoutDecoder,
    parts: Parts<Option<Data>>,
    /// The model and the tensor with the codes.
    key: (u64, TensorId),
    rounded: bool,
}

impl Model {
    /// The values of a quantized weight of this model as little-endian float32, or if `rounded`, as bfloat16. `None` if
    /// a tensor of the weight is too small.
    pub fn dequantized(&self, weight: &QuantizedWeight, rounded: bool) -> Option<GeneratedBytes> {
        let data = |part| Some(self.data(&self.tensor(TensorId::new(weight.part(part)?))));
        let parts = QuantizedPart::ALL.map(data);
        let sizes = parts.each_ref().map(|part| part.as_ref().map_or(0, Data::len));
        let decoder = LayoutDecoder::new(weight.class.layout, &sizes).ok()?;
        let key = (self.quantized().number(), TensorId::new(weight.values));
        let weight = Arc::new(DequantizedWeight { decoder, parts, key, rounded });
        let len = weight.decoder.layout().elements().checked_mul(weight.size())?;
        let needed = weight.clone();
        let generated = GeneratedBytes::new(len, move |range, request, out| weight.append(range, request, out));
        Some(generated.needing(move |range, take| needed.visit(range, take)))
    }
}

impl DequantizedWeight {
    /// Size of an element of the output in bytes.
    fn size(&self) -> u64 {
        if self.rounded { BF16 } else { F32 }
    }

    /// The elements that overlap a range of bytes.
    fn elements(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.size()..range.end.div_ceil(self.size())
    }

    /// The next elements of `range` that are decoded at once, and the elements whose bytes are read for them.
    fn step(&self, range: &Range<u64>) -> (Range<u64>, Range<u64>) {
        let layout = self.decoder.layout();
        if !layout.packing.is_transposed() {
            let step = range.start..range.end.min(layout.step(range.start, DECODED_AT_ONCE));
            return (step.clone(), step);
        }
        let window = layout.window(range.start..range.start + 1);
        (range.start..range.end.min(window.end).min(range.start + TRANSPOSED_AT_ONCE), window)
    }

    fn key(&self, window: &Range<u64>) -> Key {
        (self.key.0, self.key.1, window.start)
    }

    /// Passes the stored runs of a range of bytes of the output to `take`, until it breaks.
    fn visit(&self, range: &Range<u64>, take: &mut TakeRun) {
        let mut rest = self.elements(range);
        let is_transposed = self.decoder.layout().packing.is_transposed();
        if !is_transposed && self.needed(&rest) <= AT_ONCE_MAX {
            let _ = self.visit_held(&rest, take);
            return;
        }
        while !rest.is_empty() {
            let (step, held) = self.step(&rest);
            let is_kept = is_transposed && WINDOWS.contains(&self.key(&held));
            if !is_kept && self.visit_held(&held, take).is_break() {
                return;
            }
            rest.start = if is_transposed { held.end.min(rest.end) } else { step.end };
        }
    }

    /// The same for what is read for these elements.
    fn visit_held(&self, held: &Range<u64>, take: &mut TakeRun) -> ControlFlow<()> {
        for (runs, data) in self.decoder.needs(held).into_iter().zip(&self.parts) {
            let Some(data) = data.as_ref().filter(|_| runs.count > 0) else { continue };
            if runs.stride - runs.len <= GAP_MAX {
                let end = runs.start + (runs.count - 1) * runs.stride + runs.len;
                data.visit(&(runs.start..end), take)?;
                continue;
            }
            runs.ranges().try_for_each(|run| data.visit(&run, take))?;
        }
        ControlFlow::Continue(())
    }

    /// Appends a range of bytes of the output.
    fn append(&self, range: Range<u64>, request: &ReadRequest, out: &mut Vec<u8>) -> Result<(), Error> {
        let mut rest = self.elements(&range);
        let skipped = (range.start - rest.start * self.size()) as usize;
        let from = out.len();
        let len = (rest.end - rest.start) * self.size();
        reserve(out, from + len as usize)?;
        while !rest.is_empty() {
            request.check()?;
            let (step, held) = self.step(&rest);
            let gathered = self.gather(held, request)?;
            let (at, count) = (out.len(), (step.end - step.start) as usize);
            out.resize(at + count * self.size() as usize, 0);
            let out = match self.rounded {
                true => DecodedOutput::Bf16(out[at..].as_chunks_mut().0),
                false => DecodedOutput::F32(out[at..].as_chunks_mut().0),
            };
            let mismatch = |error| Error::Compute(format!("{error}"));
            gathered.decode(&self.decoder, &step, out).map_err(mismatch)?;
            rest.start = step.end;
        }
        out.drain(from..from + skipped);
        out.truncate(from + (range.end - range.start) as usize);
        Ok(())
    }

    /// Number of bytes that these elements need.
    fn needed(&self, held: &Range<u64>) -> u64 {
        self.decoder.needs(held).iter().map(ByteRuns::bytes).fold(0, u64::saturating_add)
    }

    /// The bytes that the elements `held` need.
    fn gather(&self, held: Range<u64>, request: &ReadRequest) -> Result<Arc<GatheredParts>, Error> {
        let is_kept = self.decoder.layout().packing.is_transposed();
        let key = self.key(&held);
        if let Some(window) = Some(&key).filter(|_| is_kept).and_then(|key| WINDOWS.find(key)) {
            return Ok(window);
        }
        let needed = self.needed(&held);
        if needed > AT_ONCE_MAX {
            // An allocation that fails later would end the program.
            reserve(&mut Vec::new(), needed as usize + HEADROOM)?;
        }
        let gathered = GatheredParts::new(&self.decoder, held, |part, offset, bytes| {
            request.check()?;
            let missing = || Error::Compute(format!("a quantized weight without {}", part.name()));
            self.parts[part as usize].as_ref().ok_or_else(missing)?.read_exact_at(bytes, offset).map_err(Error::from)
        })?;
        let gathered = Arc::new(gathered);
        if is_kept {
            WINDOWS.keep(key, gathered.clone());
        }
        Ok(gathered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::{Content, Segment};
    use crate::format::ParseMode;
    use crate::source::{self, Bytes, MemorySource, Source, SourceStat};
    use std::path::Path;
    use std::sync::Mutex;

    /// A file that begins with `head` and continues with zeros. Records the ranges that are read.
    #[derive(Debug)]
    struct Noted {
        head: Vec<u8>,
        len: u64,
        reads: Arc<Mutex<Vec<Range<u64>>>>,
    }

    impl Source for Noted {
        fn len(&self) -> u64 {
            self.len
        }

        fn bytes(&self, range: Range<u64>) -> Result<Bytes, source::Error> {
            Err(source::Error::OutOfRange { range, len: 0 })
        }

        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), source::Error> {
            let range = offset..offset + buf.len() as u64;
            assert!(range.end <= self.len);
            self.reads.lock().unwrap().push(range);
            buf.fill(0);
            let head = self.head.get(offset as usize..).unwrap_or_default();
            let here = head.len().min(buf.len());
            buf[..here].copy_from_slice(&head[..here]);
            Ok(())
        }

        fn verify(&self) -> Result<(), source::Error> {
            Ok(())
        }

        fn may_block(&self, _: &Range<u64>) -> bool {
            true
        }

        fn stat(&self) -> SourceStat {
            MemorySource::new(Vec::new()).stat()
        }
    }

    /// Name, dtype, shape, and size in bytes.
    type Described<'t> = (&'t str, &'t str, &'t [u64], u64);

    /// A model of tensors that are zero, the ranges that are read after its header, and the offset of its data.
    fn model(tensors: &[Described]) -> (Model, Arc<Mutex<Vec<Range<u64>>>>, u64) {
        let mut end = 0;
        let entries = tensors.iter().map(|(name, dtype, shape, nbytes)| {
            let begin = end;
            end += nbytes;
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#)
        });
        let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
        let head = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        let (start, reads) = (head.len() as u64, Arc::default());
        let source = Noted { len: start + end, head, reads: Arc::clone(&reads) };
        let location = Path::new("/nonexistent/model.safetensors").into();
        let mut model = Model::from_source(&location, Arc::new(source), ParseMode::Strict).unwrap();
        model.recognise().unwrap();
        reads.lock().unwrap().clear();
        (model, reads, start)
    }

    fn values(model: &Model) -> Content {
        let weight = &model.quantized().weights()[0];
        Content::new(model.dequantized(weight, false).map(Segment::Generated))
    }

    #[test]
    fn row_of_an_fp8_matrix_needs_its_codes_and_scales_only() {
        let (rows, cols) = (7168, 18432);
        let (model, reads, start) = model(&[
            ("w.weight", "F8_E4M3", &[rows, cols], rows * cols),
            ("w.weight_scale_inv", "F32", &[56, 144], 56 * 144 * 4),
        ]);
        let content = values(&model);
        assert_eq!(content.len(), rows * cols * F32);
        let row = 1000;
        let range = row * cols * F32..(row + 1) * cols * F32;
        assert_eq!(content.read(range.clone(), &ReadRequest::WAIT).unwrap().len(), (cols * F32) as usize);
        let scales = start + rows * cols + row / 128 * 144 * 4;
        let codes = start + row * cols..start + (row + 1) * cols;
        let mut read = std::mem::take(&mut *reads.lock().unwrap());
        read.sort_by_key(|range| range.start);
        assert_eq!(read, [codes.clone(), scales..scales + 144 * 4]);
        // The scheduler can ask which bytes these are before they are read.
        let mut needed = Vec::new();
        let Some(generated) = model.dequantized(&model.quantized().weights()[0], false) else { panic!() };
        generated.needs.unwrap()(&range, &mut |_, range| {
            needed.push(range);
            ControlFlow::Continue(())
        });
        assert_eq!(needed, read);
        // One element needs one byte of codes and one scale.
        content.read(range.start + 5..range.start + 6, &ReadRequest::WAIT).unwrap();
        let read: u64 = reads.lock().unwrap().iter().map(|range| range.end - range.start).sum();
        assert_eq!(read, 1 + 4);
    }

    #[test]
    fn memory_for_a_read_does_not_follow_the_size_of_the_tensor() {
        let long = 1u64 << 27;
        let matrices: [&[Described]; 4] = [
            // A read across two rows needs some groups of each, and one across two matrices some rows of each.
            &[("w.weight", "I8", &[2, long], 2 * long), ("w.weight_scale", "F32", &[2, long / 2], 4 * long)],
            &[("w.weight", "F8_E4M3", &[2, long, 1], 2 * long), ("w.weight_scale", "F32", &[2, long, 1], 8 * long)],
            &[
                ("w.qweight", "I32", &[1 << 16, 1 << 11], 1 << 29),
                ("w.qzeros", "I32", &[1 << 16, 1 << 11], 1 << 29),
                ("w.scales", "F16", &[1 << 16, 1 << 14], 1 << 31),
            ],
            // Too many columns to be decoded.
            &[
                ("w.qweight", "I32", &[long, 1], 4 * long),
                ("w.qzeros", "I32", &[1, 1], 4),
                ("w.scales", "F16", &[1, 8], 16),
            ],
        ];
        for (at, tensors) in matrices.into_iter().enumerate() {
            let (model, reads, _) = model(tensors);
            let weights = model.quantized().weights().len();
            assert_eq!(weights, usize::from(at < 3), "{:?}", model.quantized().warnings());
            if weights == 0 {
                continue;
            }
            let content = values(&model);
            let middle = content.len() / 2;
            content.read(middle - 4000..middle + 4000, &ReadRequest::WAIT).unwrap();
            let read: u64 = reads.lock().unwrap().iter().map(|range| range.end - range.start).sum();
            assert!(read < 20 << 20, "{read} bytes for {tensors:?}");
        }
    }

    #[test]
    fn transposed_matrix_is_read_once_for_all_rows_of_a_window() {
        let (rows, cols) = (4096u64, 512u64);
        let (model, reads, _) = model(&[
            ("w.qweight", "I32", &[cols, rows / 8], cols * rows / 2),
            ("w.qzeros", "I32", &[4, rows / 8], 4 * rows / 2),
            ("w.scales", "F16", &[4, rows], 4 * rows * 2),
        ]);
        assert_eq!(model.quantized().weights()[0].class.scheme.name, "AWQ");
        let content = values(&model);
        let row = |row: u64| row * cols * F32..(row + 1) * cols * F32;
        for at in [0, 1, 77, rows - 1] {
            content.read(row(at), &ReadRequest::WAIT).unwrap();
        }
        let read: u64 = reads.lock().unwrap().iter().map(|range| range.end - range.start).sum();
        assert_eq!(read, cols * rows / 2 + 4 * rows / 2 + 4 * rows * 2);
    }
}
