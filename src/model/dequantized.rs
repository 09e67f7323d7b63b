//! The values of quantized weights, decoded when they are read. A read of any range reads only the stored bytes that
//! the range needs.

use super::ids::TensorId;
use super::quantization::QuantizedWeight;
use super::table::Model;
use crate::codec::quantized::{
    ByteRuns, CodePacking, DecodedOutput, GatheredParts, LayoutDecoder, Parts, QuantizedPart,
};
use crate::content::{Error, GeneratedBytes, ReadRequest, Segment, TakeRun, reserve, zeroed};
use crate::kept::KeptValues;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

const F32: u64 = 4;

const BF16: u64 = 2;

/// Maximum number of elements that are decoded at a time. They and their codes fit into the cache of a core.
const DECODED_AT_ONCE: u64 = 32 << 10;

/// The same for windows. Each call copies the rows of a transposed matrix first.
const OF_WINDOW_AT_ONCE: u64 = 256 << 10;

/// If the gaps between runs are no longer than this, the runs are looked up or fetched together with the gaps.
const GAP_MAX: u64 = 64 << 10;

/// Up to this many bytes are looked up at a time, and are read without reserving memory first.
const AT_ONCE_MAX: u64 = 2 << 20;

/// Address space in bytes that must be free in addition, before more than [`AT_ONCE_MAX`] is read. It is more than
/// decoding takes, because freeing a block of up to 32 MiB would change the thresholds of malloc of glibc.
const HEADROOM: usize = 33 << 20;

/// Maximum size in bytes of all windows that are kept.
const WINDOWS_MAX: usize = 64 << 20;

/// A window of a weight: the model, the tensor with the codes, and the first element of the window, or [`SHARED`].
type WindowKey = (u64, TensorId, u64);

/// In the place of the first element of a window: the codebooks, which all windows of a weight need.
const SHARED: u64 = u64::MAX;

/// The bytes of windows that were read last. A row of a transposed matrix is spread over the whole tensor, so that
/// reading a window once for all of its rows saves much more than it costs. The codebooks of a weight are kept beside
/// its windows, not in each. Shared by all models, so that there is one bound.
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
        let has_windows = self.decoder.layout().packing.has_windows();
        let mut rest = self.elements(part);
        if !has_windows && rest.end <= self.decoder.layout().part_end(rest.start) {
            let needs = self.decoder.needs(&rest);
            if size_of_runs(&needs) <= AT_ONCE_MAX {
                return self.visit_needs(needs, take);
            }
        }
        // Windows are kept, and so are codebooks.
        let mut are_final = !has_windows;
        let mut is_first = true;
        while !rest.is_empty() {
            let (step, held) = self.step(&rest);
            if !self.is_kept(held.start) {
                let [needs, shared] = self.needs(&held);
                if is_first && !self.is_kept(SHARED) {
                    are_final &= self.visit_needs(shared, take);
                }
                is_first = false;
                are_final &= self.visit_needs(needs, take);
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
        if !layout.packing.has_windows() {
            let step = range.start..range.end.min(layout.step(range.start, DECODED_AT_ONCE));
            return (step.clone(), step);
        }
        let window = layout.window(range.start..range.start + 1);
        (range.start..range.end.min(window.end).min(range.start + OF_WINDOW_AT_ONCE), window)
    }

    /// The key of a window by its first element, or [`SHARED`].
    fn key(&self, first: u64) -> WindowKey {
        (self.key.0, self.key.1, first)
    }

    /// Whether the bytes of a window are in memory.
    fn is_kept(&self, first: u64) -> bool {
        self.decoder.layout().packing.has_windows() && WINDOWS.contains(&self.key(first))
    }

    /// The bytes that only `held` needs, and those that all windows of the weight need.
    fn needs(&self, held: &Range<u64>) -> [Parts<ByteRuns>; 2] {
        let (mut needs, mut shared) = (self.decoder.needs(held), Parts::default());
        if let CodePacking::Codebooks(_) = self.decoder.layout().packing {
            let books = QuantizedPart::Map as usize;
            shared[books] = std::mem::take(&mut needs[books]);
        }
        [needs, shared]
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
            let [needs, shared] = self.needs(&held);
            let shared = match size_of_runs(&shared) {
                0 => Arc::default(),
                _ => self.gather(held.clone(), SHARED, shared, request)?,
            };
            let gathered = self.gather(held.clone(), held.start, needs, request)?;
            let (here, rest) = out.split_at_mut(((step.end - step.start) * self.size) as usize);
            let here = match self.size {
                BF16 => DecodedOutput::Bf16(here.as_chunks_mut().0),
                _ => DecodedOutput::F32(here.as_chunks_mut().0),
            };
            let decoded = gathered.decode_with(&shared, &self.decoder, &step, here);
            decoded.map_err(|mismatch| Error::Compute(mismatch.to_string()))?;
            (elements.start, out) = (step.end, rest);
        }
        Ok(())
    }

    /// Finds or reads what `held` needs. If it is a window, it is kept by its first element, or [`SHARED`].
    fn gather(
        &self,
        held: Range<u64>,
        first: u64,
        needs: Parts<ByteRuns>,
        request: &ReadRequest,
    ) -> Result<Arc<GatheredParts>, Error> {
        let key = self.key(first);
        let is_kept = self.decoder.layout().packing.has_windows();
        if is_kept && let Some(window) = WINDOWS.find(&key) {
            return Ok(window);
        }
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
        model_with(tensors, &[])
    }

    /// The same with the first bytes of the data, which are those of the first tensors.
    fn model_with(tensors: &[Described], data: &[u8]) -> (Model, Arc<Mutex<Vec<Range<u64>>>>, u64) {
        let mut end = 0;
        let entries = tensors.iter().map(|(name, dtype, shape, nbytes)| {
            let begin = end;
            end += nbytes;
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#)
        });
        let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
        let start = 8 + header.len() as u64;
        let head = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat();
        let reads = Arc::default();
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

    /// The small tensors of HQQ that describe a weight.
    struct HqqNumbers(Vec<u8>, &'static [Described<'static>]);

    fn hqq(shape: [i64; 2], bits: i32, axis: i32, group: Option<i32>, packing: &[u8; 7]) -> HqqNumbers {
        let shape = shape.map(i64::to_le_bytes);
        let data = [shape.as_flattened(), &bits.to_le_bytes(), &axis.to_le_bytes(), packing];
        let all: &[Described] = &[
            ("w.shape", "I64", &[2], 16),
            ("w.nbits", "I32", &[], 4),
            ("w.axis", "I32", &[], 4),
            ("w.packing", "U8", &[7], 7),
            ("w.group_size", "I32", &[], 4),
        ];
        let group = group.map(i32::to_le_bytes);
        let listed = if group.is_some() { all } else { &all[..4] };
        HqqNumbers([&data.concat()[..], group.as_ref().map_or(&[], |size| &size[..])].concat(), listed)
    }

    impl HqqNumbers {
        fn model(&self, tensors: &[Described]) -> (Model, Arc<Mutex<Vec<Range<u64>>>>, u64) {
            model_with(&[self.1, tensors].concat(), &self.0)
        }
    }

    /// The rows of HQQ are in parts, so that a row of the weight may have codes of two parts.
    #[test]
    fn part_of_an_hqq_matrix_needs_its_codes_scales_and_zero_points_only() {
        let (groups, size) = (48u64, 64u64);
        let numbers = hqq([24, 128], 4, 1, Some(64), b"4bit_u8");
        let (model, reads, start) = numbers.model(&[
            ("w.W_q", "U8", &[groups / 2, size], 24 * 64),
            ("w.scale", "F16", &[groups, 1], 96),
            ("w.zero", "F16", &[groups, 1], 96),
        ]);
        let start = start + numbers.0.len() as u64;
        let content = values(&model);
        // Elements of the groups 23 and 24: the last of the first half, and the first of the second half.
        let range = (24 * size - 3) * F32..(24 * size + 5) * F32;
        content.read(range.clone(), &ReadRequest::WAIT).unwrap();
        let mut read = std::mem::take(&mut *reads.lock().unwrap());
        read.sort_by_key(|range| range.start);
        let codes = 24 * size;
        let expected = [0..5, codes - 3..codes, codes + 46..codes + 48, codes + 48..codes + 50];
        let zeros = [codes + 96 + 46..codes + 96 + 48, codes + 96 + 48..codes + 96 + 50];
        let expected: Vec<_> =
            expected.into_iter().chain(zeros).map(|range| start + range.start..start + range.end).collect();
        assert_eq!(read, expected);
        let mut needed = Vec::new();
        let segment = model.dequantized(&model.quantized.weights()[0], false).unwrap();
        segment.visit_runs(&range, &mut |_, run| needed.push(run));
        needed.sort_by_key(|range| range.start);
        assert_eq!(needed, expected);
    }

    /// A model with a weight of EXL2 of `groups` groups of 128 codes of 4 bits, without the order of the columns.
    fn exl2(rows: u64, groups: u16) -> (Model, Arc<Mutex<Vec<Range<u64>>>>, u64) {
        let list: Vec<u8> = (0..groups).flat_map(|group| [4, group * 16]).flat_map(u16::to_le_bytes).collect();
        let groups = u64::from(groups);
        let words = groups * 16;
        let tensors: [Described; 4] = [
            ("w.q_groups", "I16", &[groups * 2], groups * 4),
            ("w.q_weight", "I32", &[words, rows], words * rows * 4),
            ("w.q_scale", "I32", &[groups, rows / 8], groups * rows / 2),
            ("w.q_scale_max", "F16", &[groups], groups * 2),
        ];
        model_with(&tensors, &list)
    }

    #[test]
    fn exl2_matrix_is_read_once_for_all_rows_of_a_window() {
        let (rows, cols) = (1024, 512);
        let (model, reads, _) = exl2(rows, 4);
        assert_eq!(model.quantized.weights()[0].class.summary(), "EXL2: INT4, groups of 128, nested");
        let content = values(&model);
        for at in [0, 1, 77, rows - 1] {
            content.read(at * cols * F32..(at + 1) * cols * F32, &ReadRequest::WAIT).unwrap();
        }
        let read: u64 = reads.lock().unwrap().iter().map(|range| range.end - range.start).sum();
        assert_eq!(read, 64 * rows * 4 + 4 * rows / 2 + 4 * 2 + 4 * 4);
    }

    /// The windows of the whole need each byte of the codes and scales once, and the description of the groups each.
    #[test]
    fn windows_of_an_exl2_matrix_need_its_bytes_once() {
        let (rows, groups) = (8192, 224);
        let (model, ..) = exl2(rows, groups);
        let layout = model.quantized.weights()[0].class.layout;
        let decoder = LayoutDecoder::new(layout, &layout.required().unwrap()).unwrap();
        let (groups, mut at, mut needed) = (u64::from(groups), 0, 0);
        while at < layout.elements() {
            let window = layout.window(at..at + 1);
            let here = size_of_runs(&decoder.needs(&window));
            assert!(here <= 5 << 20, "{here}");
            (at, needed) = (window.end, needed + here);
        }
        let windows = rows.div_ceil(288);
        assert_eq!(needed, groups * 16 * rows * 4 + groups * rows / 2 + windows * groups * (2 + 4));
        assert_short_read_is_small(exl2(rows, 224), true);
    }

    #[test]
    fn memory_for_a_read_does_not_follow_the_size_of_the_tensor() {
        let long = 1u64 << 27;
        let matrices: [(bool, &[Described]); 7] = [
            // A read across two rows needs some groups of each, and one across two matrices some rows of each.
            (true, &[("w.weight", "I8", &[2, long], 2 * long), ("w.weight_scale", "F32", &[2, long / 2], 4 * long)]),
            (
                true,
                &[("w.weight", "F8_E4M3", &[2, long, 1], 2 * long), ("w.weight_scale", "F32", &[2, long, 1], 8 * long)],
            ),
            (
                true,
                &[
                    ("w.qweight", "I32", &[1 << 16, 1 << 11], 1 << 29),
                    ("w.qzeros", "I32", &[1 << 16, 1 << 11], 1 << 29),
                    ("w.scales", "F16", &[1 << 16, 1 << 14], 1 << 31),
                ],
            ),
            // Too many columns to be decoded.
            (
                false,
                &[
                    ("w.qweight", "I32", &[long, 1], 4 * long),
                    ("w.qzeros", "I32", &[1, 1], 4),
                    ("w.scales", "F16", &[1, 8], 16),
                ],
            ),
            // Many codes for an element, the largest codebooks, and the longest rows.
            (
                true,
                &[
                    ("w.codes", "I8", &[1 << 20, 1, 64], 1 << 26),
                    ("w.codebooks", "F16", &[64, 2, 1, 1], 256),
                    ("w.scales", "F16", &[1 << 20, 1, 1, 1], 1 << 21),
                ],
            ),
            (
                true,
                &[
                    ("w.codes", "I16", &[2, 1 << 15, 64], 1 << 23),
                    ("w.codebooks", "F16", &[64, 1 << 16, 1, 1], 8 << 20),
                    ("w.scales", "F16", &[2, 1, 1, 1], 4),
                ],
            ),
            // So many codes for an element that it is not decoded.
            (
                false,
                &[
                    ("w.codes", "I8", &[1024, 1, 1 << 21], 1 << 31),
                    ("w.codebooks", "F16", &[1 << 21, 2, 1, 1], 8 << 20),
                    ("w.scales", "F16", &[1024, 1, 1, 1], 2048),
                ],
            ),
        ];
        for (is_decoded, tensors) in matrices {
            assert_short_read_is_small(model(tensors), is_decoded);
        }
        // Rows with a scale for each column, and rows with codes of 3 bits.
        let columns = hqq([1 << 15, 1 << 15], 1, 0, Some(8), b"1bit_u8").model(&[
            ("w.W_q", "U8", &[1, long], long),
            ("w.scale", "F16", &[1, long], 2 * long),
            ("w.zero", "F16", &[1, long], 2 * long),
        ]);
        assert_short_read_is_small(columns, true);
        let rows = hqq([20, 1 << 24], 3, 1, None, b"3bit_32").model(&[
            ("w.W_q", "I32", &[2, 1 << 24], long),
            ("w.scale", "F16", &[20, 1], 40),
            ("w.zero", "F16", &[20, 1], 40),
        ]);
        assert_short_read_is_small(rows, true);
    }

    /// Reads some values around the middle of the weight, if there is one.
    fn assert_short_read_is_small((model, reads, _): (Model, Arc<Mutex<Vec<Range<u64>>>>, u64), is_decoded: bool) {
        let weights = model.quantized.weights().len();
        assert_eq!(weights, usize::from(is_decoded), "{:?}", model.quantized.warnings());
        if weights == 0 {
            return;
        }
        let content = values(&model);
        let middle = content.len() / 2;
        content.read(middle - 4000..middle + 4000, &ReadRequest::WAIT).unwrap();
        let read: u64 = reads.lock().unwrap().iter().map(|range| range.end - range.start).sum();
        assert!(read < 20 << 20, "{read} bytes for {}", model.quantized.weights()[0].class.summary());
    }

    /// The codebooks are read once for all windows, and a row needs no codes of other windows.
    #[test]
    fn codebooks_are_read_once_for_a_weight() {
        let (rows, cols, books) = (1024u64, 4096u64, 65536 * 8 * 2);
        let (model, reads, _) = model(&[
            ("w.codes", "I16", &[rows, cols / 8, 1], rows * cols / 8 * 2),
            ("w.codebooks", "F16", &[1, 65536, 1, 8], books),
            ("w.scales", "F16", &[rows, 1, 1, 1], rows * 2),
        ]);
        assert_eq!(model.quantized.weights()[0].class.summary(), "AQLM: 1x16, a scale per row");
        let content = values(&model);
        let read_rows = |rows: &[u64]| {
            for row in rows {
                content.read(row * cols * F32..(row + 1) * cols * F32, &ReadRequest::WAIT).unwrap();
            }
            reads.lock().unwrap().iter().map(|range| range.end - range.start).sum::<u64>()
        };
        let window = 256 * (cols / 8 * 2 + 2);
        assert_eq!(read_rows(&[300, 301, 302, 500]), books + window);
        // The scheduler is not told of what is kept.
        let mut needed = 0;
        let segment = model.dequantized(&model.quantized.weights()[0], false).unwrap();
        segment.visit_runs(&(0..content.len()), &mut |_, run| needed += run.end - run.start);
        assert_eq!(needed, 3 * window);
        assert_eq!(read_rows(&[0, 255, 256, 511, 512, 1023]), books + 4 * window);
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
