//! The values of quantized weights, decoded when they are read. A read of any range reads only the stored bytes that
//! the range needs.

use super::ids::TensorId;
use super::quantization::QuantizedWeight;
use super::table::Model;
use crate::codec::quantized::{ByteRuns, DecodedOutput, GatheredParts, LayoutDecoder, Parts, QuantizedPart};
use crate::content::{Error, GeneratedBytes, ReadRequest, Segment, TakeRun, reserve, zeroed};
use crate::kept::KeptValues;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

const F32: u64 = 4;

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
type WindowKey = (u64, TensorId, u64);

/// The bytes of windows that were read last. A row of a transposed matrix is spread over the whole tensor, so that
/// reading a window once for all of its rows saves much more than it costs. Shared by all models, so that there is one
/// bound.
static WINDOWS: LazyLock<KeptValues<WindowKey, Arc<GatheredParts>>> =
    LazyLock::new(|| KeptValues::new(WINDOWS_MAX, |window| window.bytes()));

struct DequantizedWeight {
    decoder: LayoutDecoder,
    parts: Parts<Option<Segment>>,
    key: (u64, TensorId),
    /// Size of an element of the output in bytes: [`F32`] or [`BF16`].
    size: u64,
    len: u64,
}

impl Model {
    /// The values of a quantized weight of this model as little-endian float32, or if `rounded`, as bfloat16. `None` if
    /// a tensor of the weight is too small.
    pub fn dequantized(&self, weight: &QuantizedWeight, rounded: bool) -> Option<Segment> {
        let data = |part| Some(self.data(&self.tensor(TensorId::new(weight.part(part)?))));
        let parts = QuantizedPart::ALL.map(data);
        let sizes = parts.each_ref().map(|part| part.as_ref().map_or(0, Segment::len));
        let decoder = LayoutDecoder::new(weight.class.layout, &sizes).ok()?;
        let key = (self.quantized.number(), TensorId::new(weight.values));
        let size = if rounded { BF16 } else { F32 };
        let len = decoder.layout().elements().checked_mul(size)?;
        Some(Segment::Generated(Arc::new(DequantizedWeight { decoder, parts, key, size, len })))
    }
}

impl GeneratedBytes for DequantizedWeight {
    fn nbytes(&self) -> u64 {
        self.len
    }

    fn fill(&self, buf: &mut [u8], offset: u64, request: &ReadRequest) -> Result<(), Error> {
        let part = offset..offset + buf.len() as u64;
        let elements = self.elements(&part);
        let whole = elements.start * self.size..elements.end * self.size;
        if whole == part {
            return self.decode(elements, buf, request);
        }
        // The first or the last element is not needed as a whole.
        let mut decoded = zeroed((whole.end - whole.start) as usize)?;
        self.decode(elements, &mut decoded, request)?;
        buf.copy_from_slice(&decoded[(part.start - whole.start) as usize..][..buf.len()]);
        Ok(())
    }

    fn visit_runs(&self, part: &Range<u64>, take: &mut TakeRun) -> bool {
        let is_transposed = self.decoder.layout().packing.is_transposed();
        let mut rest = self.elements(part);
        if !is_transposed {
            let needs = self.decoder.needs(&rest);
            if size_of_runs(&needs) <= AT_ONCE_MAX {
                return self.visit_needs(needs, take);
            }
        }
        // Windows of transposed matrices are kept.
        let mut are_final = !is_transposed;
        while !rest.is_empty() {
            let (step, held) = self.step(&rest);
            if !self.is_kept(&held) {
                are_final &= self.visit_needs(self.decoder.needs(&held), take);
            }
            rest.start = step.end.max(held.end.min(rest.end));
        }
        are_final
    }
}

fn size_of_runs(needs: &Parts<ByteRuns>) -> u64 {
    needs.iter().map(ByteRuns::bytes).fold(0, u64::saturating_add)
}

impl DequantizedWeight {
    /// The elements that overlap a range of bytes.
    fn elements(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.size..range.end.div_ceil(self.size)
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

    fn key(&self, window: &Range<u64>) -> WindowKey {
        (self.key.0, self.key.1, window.start)
    }

    /// Whether the bytes that `held` needs are in memory.
    fn is_kept(&self, held: &Range<u64>) -> bool {
        self.decoder.layout().packing.is_transposed() && WINDOWS.contains(&self.key(held))
    }

    /// Passes the stored runs of each part to `take`, as [`Segment::visit_runs`]. Short gaps between them are included.
    fn visit_needs(&self, needs: Parts<ByteRuns>, take: &mut TakeRun) -> bool {
        let mut are_final = true;
        for (runs, data) in needs.into_iter().zip(&self.parts) {
            let Some(data) = data.as_ref().filter(|_| runs.count > 0) else { continue };
            if runs.stride - runs.len <= GAP_MAX {
                let end = runs.start + (runs.count - 1) * runs.stride + runs.len;
                are_final &= data.visit_runs(&(runs.start..end), take);
                continue;
            }
            runs.ranges().for_each(|run| are_final &= data.visit_runs(&run, take));
        }
        are_final
    }

    /// Decodes elements to `out`, which has their size.
    fn decode(&self, mut elements: Range<u64>, mut out: &mut [u8], request: &ReadRequest) -> Result<(), Error> {
        while !elements.is_empty() {
            request.check()?;
            let (step, held) = self.step(&elements);
            let gathered = self.gather(held, request)?;
            let (here, rest) = out.split_at_mut(((step.end - step.start) * self.size) as usize);
            let here = match self.size {
                BF16 => DecodedOutput::Bf16(here.as_chunks_mut().0),
                _ => DecodedOutput::F32(here.as_chunks_mut().0),
            };
            let decoded = gathered.decode(&self.decoder, &step, here);
            decoded.map_err(|mismatch| Error::Compute(mismatch.to_string()))?;
            (elements.start, out) = (step.end, rest);
        }
        Ok(())
    }

    fn gather(&self, held: Range<u64>, request: &ReadRequest) -> Result<Arc<GatheredParts>, Error> {
        let key = self.key(&held);
        let is_kept = self.decoder.layout().packing.is_transposed();
        if is_kept && let Some(window) = WINDOWS.find(&key) {
            return Ok(window);
        }
        let needs = self.decoder.needs(&held);
        let size = size_of_runs(&needs);
        if size > AT_ONCE_MAX {
            // An allocation that fails later would end the program.
            reserve(&mut Vec::new(), size as usize + HEADROOM)?;
        }
        let gathered = Arc::new(GatheredParts::new(held, needs, |part, offset, bytes| {
            request.check()?;
            let missing = || Error::Compute(format!("a quantized weight without {}", part.name()));
            self.parts[part as usize].as_ref().ok_or_else(missing)?.fill(bytes, offset, request)
        })?);
        if is_kept {
            WINDOWS.keep(key, gathered.clone());
        }
        Ok(gathered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Content;
    use crate::format::ParseMode;
    use crate::source::{self, Bytes, Source, SourceInfo};
    use std::path::Path;
    use std::sync::Mutex;

    /// A file that begins with `head` and continues with zeros. Records the ranges that are read.
    #[derive(Debug)]
    struct Noted {
        head: Vec<u8>,
        info: SourceInfo,
        reads: Arc<Mutex<Vec<Range<u64>>>>,
    }

    impl Source for Noted {
        fn info(&self) -> &SourceInfo {
            &self.info
        }

        fn bytes(&self, range: Range<u64>) -> Result<Bytes, source::Error> {
            Err(source::Error::OutOfRange { range, len: 0 })
        }

        fn read_runs_at(&self, buf: &mut [u8], len: usize, offset: u64, step: u64) -> Result<(), source::Error> {
            for (buf, offset) in source::each_run(buf, len, offset, step) {
                let range = offset..offset + buf.len() as u64;
                assert!(range.end <= self.info.len);
                self.reads.lock().unwrap().push(range);
                buf.fill(0);
                let head = self.head.get(offset as usize..).unwrap_or_default();
                let here = head.len().min(buf.len());
                buf[..here].copy_from_slice(&head[..here]);
            }
            Ok(())
        }

        fn may_block(&self, _: &Range<u64>) -> bool {
            true
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
        let source = Noted { info: SourceInfo::anonymous(start + end), head, reads: Arc::clone(&reads) };
        let location = Path::new("/nonexistent/model.safetensors").into();
        let mut model = Model::from_source(&location, Arc::new(source), ParseMode::Strict).unwrap();
        model.recognise().unwrap();
        reads.lock().unwrap().clear();
        (model, reads, start)
    }

    fn values(model: &Model) -> Content {
        let weight = &model.quantized.weights()[0];
        Content::new(model.dequantized(weight, false))
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
        let segment = model.dequantized(&model.quantized.weights()[0], false).unwrap();
        segment.visit_runs(&range, &mut |_, run| needed.push(run));
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
            let weights = model.quantized.weights().len();
            assert_eq!(weights, usize::from(at < 3), "{:?}", model.quantized.warnings());
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
        assert_eq!(model.quantized.weights()[0].class.scheme, "AWQ");
        let content = values(&model);
        let row = |row: u64| row * cols * F32..(row + 1) * cols * F32;
        for at in [0, 1, 77, rows - 1] {
            content.read(row(at), &ReadRequest::WAIT).unwrap();
        }
        let read: u64 = reads.lock().unwrap().iter().map(|range| range.end - range.start).sum();
        assert_eq!(read, cols * rows / 2 + 4 * rows / 2 + 4 * rows * 2);
    }
}
