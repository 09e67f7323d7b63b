//! The content of a file in the mount: a sequence of segments.
//!
//! A content owns its sources and borrows nothing from the tree, so it can be sent to another thread and outlive the
//! tree. It is created on demand and not stored.

mod strided;

pub use strided::{StridedData, StridedLayout};

use crate::source::{self, Bytes, Source};
use smallvec::SmallVec;
use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Instant;

/// Called with runs of stored bytes and their sources, until it returns something.
type Find<'a, T> = dyn FnMut(&dyn Source, Range<u64>) -> Option<T> + 'a;

/// A file as a sequence of segments.
#[derive(Debug, Clone)]
pub struct Content {
    segments: SmallVec<[Segment; 2]>,
}

/// A part of a file.
#[derive(Debug, Clone)]
pub enum Segment {
    /// Bytes in memory.
    Literal(Arc<[u8]>),
    /// Bytes of sources.
    Data(Data),
    /// Bytes of sources, decoded.
    Decoded(DecodedData),
    /// Bytes of known number that are generated when they are read.
    Generated(GeneratedBytes),
    /// Many segments, each of which is created when it is read.
    Series(SegmentSeries),
}

/// Bytes of sources.
#[derive(Debug, Clone)]
pub enum Data {
    /// One run.
    Extent(Extent),
    /// Several runs, one after the other.
    Extents(Extents),
    /// Elements that do not lie in C order.
    Strided(StridedData),
}

/// A run of bytes of one source.
#[derive(Debug, Clone)]
pub struct Extent {
    /// The source.
    pub source: Arc<dyn Source>,
    /// In bytes from the start of the source.
    pub range: Range<u64>,
}

/// Runs of bytes of several sources, read as one.
#[derive(Debug, Clone)]
pub struct Extents {
    /// The sources that the runs refer to by index.
    pub sources: Sources,
    /// Sorted by `start`, beginning at 0; none is empty.
    pub runs: Arc<[SourceRun]>,
    /// The part of the runs that is read, in bytes from the start of the first run.
    pub part: Range<u64>,
}

/// The sources of a model.
pub type Sources = Arc<[Arc<dyn Source>]>;

/// One of several runs that are read as one. It ends where the next one starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceRun {
    /// In bytes from the start of the first run.
    pub start: u64,
    /// Index of the source.
    pub source: usize,
    /// In bytes from the start of the source.
    pub offset: u64,
}

/// Data that is decoded when it is read.
#[derive(Debug, Clone)]
pub struct DecodedData {
    /// The encoded bytes: whole blocks.
    pub data: Data,
    /// The decoder.
    pub decoder: BlockDecoder,
}

/// Decodes blocks of a fixed size to blocks of another fixed size. Elements that share bytes are in one block.
#[derive(Debug, Clone, Copy)]
pub struct BlockDecoder {
    /// Size of an encoded block in bytes.
    pub block_in: usize,
    /// Size of a decoded block in bytes.
    pub block_out: usize,
    /// Decodes whole blocks. The output must have exactly the size of the decoded blocks.
    pub decode: fn(&[u8], &mut [u8]),
    /// A second step, which converts what `decode` has written.
    pub then: Option<SecondStep>,
}

/// The second step of a [`BlockDecoder`].
#[derive(Debug, Clone, Copy)]
pub struct SecondStep {
    /// Size in bytes of a block after the first step.
    pub block: usize,
    /// Converts whole blocks to blocks of [`BlockDecoder::block_out`] bytes.
    pub convert: fn(&[u8], &mut [u8]),
}

/// Maximum number of encoded bytes that are decoded at a time, and of bytes between the two steps of a decoder. They
/// and their decoded form fit into the cache of a core.
const DECODED_AT_ONCE: usize = 32 << 10;

/// Bytes that are not kept in memory.
#[derive(Clone)]
pub struct GeneratedBytes {
    /// Length in bytes.
    pub len: u64,
    /// Appends the bytes of a range, which must lie inside the length, to the vector.
    pub write: Arc<Write>,
    /// The stored bytes that `write` reads, if they are known.
    pub needs: Option<Arc<Needs>>,
}

/// Writes a part of the bytes.
pub type Write = dyn Fn(Range<u64>, &ReadRequest, &mut Vec<u8>) -> Result<(), Error> + Send + Sync;

/// Passes the stored runs that a part needs to a function, each with its source, until the function breaks.
pub type Needs = dyn Fn(&Range<u64>, &mut TakeRun) + Send + Sync;

/// Takes a stored run.
pub type TakeRun<'t> = dyn FnMut(&dyn Source, Range<u64>) -> ControlFlow<()> + 't;

impl GeneratedBytes {
    /// `len` bytes. `write` generates any part of them.
    pub fn new(
        len: u64,
        write: impl Fn(Range<u64>, &ReadRequest, &mut Vec<u8>) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Self {
        Self { len, write: Arc::new(write), needs: None }
    }

    /// The same bytes, of which `write` generates a part from the stored runs that `needs` visits.
    pub fn needing(self, needs: impl Fn(&Range<u64>, &mut TakeRun) + Send + Sync + 'static) -> Self {
        Self { needs: Some(Arc::new(needs)), ..self }
    }

    /// As [`Segment::find_run`].
    fn find_run<T>(&self, part: &Range<u64>, find: &mut Find<T>) -> Option<T> {
        let mut found = None;
        self.needs.as_ref()?(part, &mut |source, range| {
            found = find(source, range);
            if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found
    }
}

/// Consecutive segments that are not kept in memory.
#[derive(Clone)]
pub struct SegmentSeries {
    /// Total length in bytes.
    pub len: u64,
    /// Visits the segments.
    pub visit: Arc<Visit>,
}

/// Calls a function for each segment and the offset at which it begins, until the function breaks. The first segment is
/// the one that contains the byte at the given offset. No segment is a [`Segment::Series`].
pub type Visit = dyn Fn(u64, &mut dyn FnMut(&Segment, u64) -> ControlFlow<()>) + Send + Sync;

impl fmt::Debug for SegmentSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Series {{ len: {} }}", self.len)
    }
}

impl fmt::Debug for GeneratedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Generated {{ len: {} }}", self.len)
    }
}

/// The resource that an operation waits for. It decides when and on which thread the operation continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitFor {
    /// The resource.
    pub need: WaitResource,
    /// Identifies the result. One of the operations with the same key makes it, and the others wait for that. `None` if
    /// no other operation can use the result.
    pub key: Option<ResultId>,
}

/// A resource for which operations wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitResource {
    /// A device or a file system, by its number (`st_dev`).
    Device(u64),
    /// A core, for a computation.
    Cores {
        /// Number of bytes that are processed: the expected cost.
        bytes: u64,
        /// The device that holds these bytes, if they are read from a source.
        device: Option<u64>,
    },
}

/// Maximum number of operations that wait for a device at a time: enough requests in flight for an NVMe disk or a
/// network file system. More for remote files, because their requests take longer.
pub fn running_max(device: u64) -> usize {
    if source::is_tree(device) { 64 } else { 16 }
}

/// Identifies a result that several operations may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResultId {
    /// The number of the model in the mount, or of the folder.
    pub model: u32,
    /// The view, or one of the constants.
    pub kind: u8,
    /// The number of the result.
    pub item: u32,
}

impl ResultId {
    /// The header of a model.
    pub const MODEL: u8 = u8::MAX;
    /// The headers of all models in a folder that are on one device.
    pub const FOLDER: u8 = u8::MAX - 1;
    /// The tables of a model.
    pub const TABLES: u8 = u8::MAX - 2;
}

/// The limits of an operation: whether it may wait, its deadline, and whether it was cancelled.
#[derive(Clone, Copy)]
pub struct ReadRequest<'r> {
    may: MayWait,
    deadline: Option<Instant>,
    is_cancelled: Option<&'r (dyn Fn() -> bool + Sync)>,
}

/// The resources that a request may wait for.
#[derive(Debug, Clone, Copy)]
enum MayWait {
    Nothing,
    Only(WaitFor),
    Everything,
}

impl<'r> ReadRequest<'r> {
    /// Fails with [`Error::WouldBlock`] instead of waiting.
    pub const NOWAIT: Self = Self { may: MayWait::Nothing, deadline: None, is_cancelled: None };

    /// Waits without a time limit.
    pub const WAIT: Self = Self { may: MayWait::Everything, ..Self::NOWAIT };

    /// Waits for one thing, and fails with [`Error::WouldBlock`] instead of waiting for something else.
    pub fn only(wait: WaitFor) -> Self {
        Self { may: MayWait::Only(wait), ..Self::NOWAIT }
    }

    /// The same request, which fails as soon as `is_cancelled` returns true. `is_cancelled` is called often and must be
    /// fast.
    pub fn cancelled_by(self, is_cancelled: &'r (dyn Fn() -> bool + Sync)) -> Self {
        Self { is_cancelled: Some(is_cancelled), ..self }
    }

    /// The same request with a deadline.
    pub fn until(self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Fails unless the operation may wait for this.
    pub fn wait(&self, wait: WaitFor) -> Result<(), Error> {
        match self.may {
            MayWait::Everything => Ok(()),
            MayWait::Only(only) if only.need == wait.need && wait.key.is_none() => Ok(()),
            MayWait::Only(only) if only.key.is_some() && only.key == wait.key => Ok(()),
            MayWait::Only(_) | MayWait::Nothing => Err(Error::WouldBlock(wait)),
        }
    }

    /// Fails if the operation should end now. Long operations call this regularly.
    pub fn check(&self) -> Result<(), Error> {
        if self.is_cancelled.is_some_and(|is_cancelled| is_cancelled()) {
            return Err(Error::Interrupted);
        }
        match self.deadline {
            Some(deadline) if deadline <= Instant::now() => Err(Error::TimedOut),
            _ => Ok(()),
        }
    }

    /// Waits until `range` of `source` can be read without waiting, or the operation should end.
    fn prepare(&self, source: &dyn Source, range: Range<u64>) -> Result<(), Error> {
        let prepared = source.prepare(range, &|| self.check().is_err());
        self.check()?;
        Ok(prepared?)
    }
}

impl fmt::Debug for ReadRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request {{ may: {:?}, deadline: {:?} }}", self.may, self.deadline)
    }
}

/// Why the content of a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source failed.
    #[error(transparent)]
    Source(#[from] source::Error),
    /// The content is not available without waiting, and the request does not allow waiting.
    #[error("not available without waiting")]
    WouldBlock(WaitFor),
    /// There is not enough memory.
    #[error("out of memory")]
    NoMemory,
    /// The request was cancelled.
    #[error("interrupted")]
    Interrupted,
    /// The deadline has passed.
    #[error("timed out")]
    TimedOut,
    /// The content cannot be computed from the data.
    #[error("{0}")]
    Compute(String),
}

impl Content {
    /// A file of these segments, in this order.
    pub fn new(segments: impl IntoIterator<Item = Segment>) -> Self {
        Self { segments: segments.into_iter().collect() }
    }

    /// A file of these bytes.
    pub fn literal(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self::new([Segment::Literal(bytes.into())])
    }

    /// Length in bytes. Does no I/O.
    pub fn len(&self) -> u64 {
        self.segments.iter().map(Segment::len).sum()
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device of the first stored bytes of `range` that are not available at once. What generated bytes have to
    /// wait for may be known only when they are read.
    pub fn waits_for(&self, range: &Range<u64>) -> Option<WaitFor> {
        let device = self.parts(range).find_map(|(segment, part)| segment.blocking(&part))?;
        Some(WaitFor { need: WaitResource::Device(device), key: None })
    }

    /// Waits until the stored bytes of `range` can be read without waiting for a network.
    fn prepare(&self, range: &Range<u64>, request: &ReadRequest) -> Result<(), Error> {
        self.parts(range).try_for_each(|(segment, part)| {
            segment.find_run(&part, &mut |source, range| request.prepare(source, range).err()).map_or(Ok(()), Err)
        })
    }

    /// The bytes of `range`, cut at the end of the file. The result is never shorter for another reason, because the
    /// kernel treats a short reply as the end of the file.
    ///
    /// Stored bytes of a single segment that are available at once are not copied and may be a slice of a memory map:
    /// see [`Source::bytes`]. Others are copied.
    pub fn read(&self, range: Range<u64>, request: &ReadRequest) -> Result<Bytes, Error> {
        let end = range.end.min(self.len());
        let range = range.start.min(end)..end;
        let wait = self.waits_for(&range);
        if let Some(wait) = wait {
            request.wait(wait)?;
            self.prepare(&range, request)?;
        }
        let mut joined = Vec::new();
        for (segment, part) in self.parts(&range) {
            if part.end - part.start == range.end - range.start {
                return segment.read(part, request, wait.is_none());
            }
            reserve(&mut joined, (range.end - range.start) as usize)?;
            segment.append(part, request, &mut joined)?;
        }
        Ok(Bytes::Owned(joined))
    }

    /// Replaces `out` by the bytes of `range`, which must lie inside the file. The bytes may be interpreted.
    pub fn copy(&self, range: Range<u64>, request: &ReadRequest, out: &mut Vec<u8>) -> Result<(), Error> {
        out.clear();
        reserve(out, (range.end - range.start) as usize)?;
        self.prepare(&range, request)?;
        self.parts(&range).try_for_each(|(segment, part)| segment.append(part, request, out))
    }

    /// The device of the first stored bytes that the file needs, as far as they are known.
    pub fn device(&self) -> Option<u64> {
        let part = 0..self.len().min(1);
        self.parts(&part)
            .find_map(|(segment, part)| segment.find_run(&part, &mut |source, _| Some(device_need(source))))
    }

    /// The segments that overlap `range`, each with the overlapping part in bytes from the start of the segment.
    fn parts(&self, range: &Range<u64>) -> impl Iterator<Item = (&Segment, Range<u64>)> {
        let (start, end) = (range.start, range.end);
        let mut from = 0;
        self.segments.iter().filter_map(move |segment| {
            let len = segment.len();
            let part = start.saturating_sub(from).min(len)..end.saturating_sub(from).min(len);
            from += len;
            (part.start < part.end).then_some((segment, part))
        })
    }
}

impl Segment {
    fn len(&self) -> u64 {
        match self {
            Self::Literal(bytes) => bytes.len() as u64,
            Self::Data(data) => data.len(),
            Self::Decoded(DecodedData { data, decoder }) => {
                data.len() / decoder.block_in as u64 * decoder.block_out as u64
            }
            Self::Generated(generated) => generated.len,
            Self::Series(series) => series.len,
        }
    }

    /// The device of the first source for which reading `part` may wait.
    fn blocking(&self, part: &Range<u64>) -> Option<u64> {
        self.find_run(part, &mut |source, range| source.may_block(&range).then(|| device_need(source)))
    }

    /// Passes the stored runs that are needed for `part`, as far as they are known, to `find`, until it returns
    /// something.
    fn find_run<T>(&self, part: &Range<u64>, find: &mut Find<T>) -> Option<T> {
        match self {
            Self::Literal(_) => None,
            Self::Generated(generated) => generated.find_run(part, find),
            Self::Data(data) => data.find_run(part, find),
            Self::Decoded(decoded) => {
                let blocks = decoded.blocks(part);
                let block_in = decoded.decoder.block_in as u64;
                decoded.data.find_run(&(blocks.start * block_in..blocks.end * block_in), find)
            }
            Self::Series(series) => series.find(part, |segment, part| segment.find_run(&part, find)),
        }
    }

    /// The bytes of `part`. Bytes that are not available at once are read into a buffer: while the kernel waits for a
    /// page of a memory map, the reader cannot be killed.
    fn read(&self, part: Range<u64>, request: &ReadRequest, at_once: bool) -> Result<Bytes, Error> {
        match self {
            Self::Literal(bytes) => return Ok(Bytes::Shared(bytes.clone(), indices(&part))),
            Self::Data(data) if at_once => {
                if let Some((source, range)) = data.run(&part) {
                    return Ok(source.bytes(range)?);
                }
            }
            Self::Series(series) => return series.read(part, request, at_once),
            Self::Data(_) | Self::Decoded(_) | Self::Generated(_) => {}
        }
        let mut bytes = Vec::new();
        reserve(&mut bytes, (part.end - part.start) as usize)?;
        self.append(part, request, &mut bytes)?;
        Ok(Bytes::Owned(bytes))
    }

    fn append(&self, part: Range<u64>, request: &ReadRequest, out: &mut Vec<u8>) -> Result<(), Error> {
        match self {
            Self::Literal(bytes) => out.extend_from_slice(&bytes[indices(&part)]),
            Self::Data(data) => {
                let from = out.len();
                out.resize(from + (part.end - part.start) as usize, 0);
                data.read_exact_at(&mut out[from..], part.start)?;
            }
            Self::Decoded(decoded) => decoded.append(part, out)?,
            Self::Generated(generated) => (generated.write)(part, request, out)?,
            Self::Series(series) => {
                let append =
                    |segment: &Self, part: Range<u64>| segment.append(part, request, out).err().map(Err::<(), Error>);
                series.find(&part, append).unwrap_or(Ok(()))?;
            }
        }
        Ok(())
    }
}

impl SegmentSeries {
    /// Passes the segments that overlap `part` to `find`, each with the overlapping part in bytes from the start of the
    /// segment, until `find` returns something.
    fn find<T>(&self, part: &Range<u64>, mut find: impl FnMut(&Segment, Range<u64>) -> Option<T>) -> Option<T> {
        let mut found = None;
        if part.is_empty() {
            return found;
        }
        (self.visit)(part.start, &mut |segment, begins| {
            let here = part.start.saturating_sub(begins)..(part.end - begins).min(segment.len());
            if !here.is_empty() {
                found = find(segment, here);
            }
            let is_last = begins + segment.len() >= part.end;
            if found.is_some() || is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found
    }

    /// As [`Segment::read`].
    fn read(&self, part: Range<u64>, request: &ReadRequest, at_once: bool) -> Result<Bytes, Error> {
        let len = part.end - part.start;
        let mut joined = Vec::new();
        let read = self.find(&part, |segment, here| {
            if here.end - here.start == len {
                return Some(segment.read(here, request, at_once));
            }
            let appended = reserve(&mut joined, len as usize).and_then(|()| segment.append(here, request, &mut joined));
            appended.err().map(Err)
        });
        read.unwrap_or(Ok(Bytes::Owned(joined)))
    }
}

impl Data {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Extent(extent) => extent.range.end - extent.range.start,
            Self::Extents(extents) => extents.part.end - extents.part.start,
            Self::Strided(strided) => strided.layout.nbytes(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `buf.len()` bytes from `offset` on to `buf`. They must lie inside the length.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), source::Error> {
        match self {
            Self::Extent(extent) => extent.source.read_exact_at(buf, extent.range.start + offset),
            Self::Extents(extents) => extents.read_exact_at(buf, offset),
            Self::Strided(strided) => strided.read_exact_at(buf, offset),
        }
    }

    /// Passes the runs of `part` to `take`, each with its source, until `take` breaks.
    pub fn visit(&self, part: &Range<u64>, take: &mut TakeRun) -> ControlFlow<()> {
        let found = self.find_run(part, &mut |source, range| take(source, range).is_break().then_some(()));
        if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Passes the runs of `part` to `find`, each with its source, until it returns something.
    fn find_run<T>(&self, part: &Range<u64>, find: &mut Find<T>) -> Option<T> {
        match self {
            Self::Extent(Extent { source, range }) => find(&**source, range.start + part.start..range.start + part.end),
            Self::Extents(extents) => extents.find_run(part, find),
            Self::Strided(strided) => strided.find_run(part, find),
        }
    }

    /// The source of `part` and the range there, if `part` lies in one run.
    fn run(&self, part: &Range<u64>) -> Option<(&dyn Source, Range<u64>)> {
        match self {
            Self::Extent(Extent { source, range }) => {
                Some((&**source, range.start + part.start..range.start + part.end))
            }
            Self::Extents(extents) => extents.run(part),
            Self::Strided(_) => None,
        }
    }
}

impl Extents {
    /// All of `runs`, `len` bytes in total.
    pub fn new(sources: Sources, runs: Arc<[SourceRun]>, len: u64) -> Self {
        Self { sources, runs, part: 0..len }
    }

    fn run(&self, part: &Range<u64>) -> Option<(&dyn Source, Range<u64>)> {
        let (start, end) = (self.part.start + part.start, self.part.start + part.end);
        let at = self.run_at(start);
        let run = self.runs.get(at)?;
        let from = run.offset + start - run.start;
        (end <= self.end(at)).then(|| (&*self.sources[run.source], from..from + end - start))
    }

    fn find_run<T>(&self, part: &Range<u64>, find: &mut Find<T>) -> Option<T> {
        let (first, last) = (self.part.start + part.start, self.part.start + part.end);
        let touched = (self.run_at(first)..self.runs.len()).take_while(|at| self.runs[*at].start < last);
        touched.into_iter().find_map(|at| {
            let SourceRun { start, source, offset } = self.runs[at];
            let (from, to) = (first.max(start), last.min(self.end(at)));
            find(&*self.sources[source], offset + from - start..offset + to - start)
        })
    }

    fn read_exact_at(&self, mut buf: &mut [u8], offset: u64) -> Result<(), source::Error> {
        let mut offset = self.part.start + offset;
        for at in self.run_at(offset)..self.runs.len() {
            if buf.is_empty() {
                break;
            }
            let run = self.runs[at];
            let here = (self.end(at) - offset).min(buf.len() as u64);
            let (part, rest) = buf.split_at_mut(here as usize);
            self.sources[run.source].read_exact_at(part, run.offset + offset - run.start)?;
            (buf, offset) = (rest, offset + here);
        }
        Ok(())
    }

    fn run_at(&self, offset: u64) -> usize {
        self.runs.partition_point(|run| run.start <= offset).saturating_sub(1)
    }

    /// The end of a run. The last one ends where the part does.
    fn end(&self, at: usize) -> u64 {
        self.runs.get(at + 1).map_or(self.part.end, |next| next.start)
    }
}

impl DecodedData {
    /// The blocks that overlap a part of the decoded bytes.
    fn blocks(&self, part: &Range<u64>) -> Range<u64> {
        let block_out = self.decoder.block_out as u64;
        part.start / block_out..part.end.div_ceil(block_out)
    }

    /// Decodes only the blocks that overlap `part`.
    fn append(&self, part: Range<u64>, out: &mut Vec<u8>) -> Result<(), Error> {
        let BlockDecoder { block_in, block_out, decode, then } = self.decoder;
        let Range { start: mut block, end } = self.blocks(&part);
        let skipped = (part.start - block * block_out as u64) as usize;
        let from = out.len();
        // Gathering little at a time would read the same parts of a source many times.
        let gathered = match &self.data {
            Data::Strided(_) => {
                let mut gathered = vec![0; (end - block) as usize * block_in];
                self.data.read_exact_at(&mut gathered, block * block_in as u64)?;
                gathered
            }
            Data::Extent(_) | Data::Extents(_) => Vec::new(),
        };
        let gathered_from = block;
        let mut encoded = [0; DECODED_AT_ONCE];
        let mut between = Vec::new();
        let at_once = DECODED_AT_ONCE / then.map_or(block_in, |then| then.block.max(block_in));
        while block < end {
            let blocks = (end - block).min(at_once as u64) as usize;
            let encoded = match gathered.get((block - gathered_from) as usize * block_in..) {
                Some(gathered) if !gathered.is_empty() => &gathered[..blocks * block_in],
                _ => {
                    let encoded = &mut encoded[..blocks * block_in];
                    self.data.read_exact_at(encoded, block * block_in as u64)?;
                    encoded
                }
            };
            let at = out.len();
            out.resize(at + blocks * block_out, 0);
            match then {
                None => decode(encoded, &mut out[at..]),
                Some(SecondStep { block, convert }) => {
                    between.resize(blocks * block, 0);
                    decode(encoded, &mut between);
                    convert(&between, &mut out[at..]);
                }
            }
            block += blocks as u64;
        }
        out.drain(from..from + skipped);
        out.truncate(from + (part.end - part.start) as usize);
        Ok(())
    }
}

/// The number of the device or file system of a source, 0 if it has none.
fn device_need(source: &dyn Source) -> u64 {
    source.id().map_or(0, |(device, _)| device)
}

/// Reserves capacity for a total of `len` bytes. Fails if there is not enough memory.
pub fn reserve(bytes: &mut Vec<u8>, len: usize) -> Result<(), Error> {
    bytes.try_reserve_exact(len.saturating_sub(bytes.len())).map_err(|_| Error::NoMemory)
}

/// A part of a segment in memory, as indices.
fn indices(part: &Range<u64>) -> Range<usize> {
    part.start as usize..part.end as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{MemorySource, SourceStat};
    use proptest::prelude::*;
    use std::time::Duration;

    #[derive(Debug, Clone)]
    enum Kind {
        Literal(Vec<u8>),
        Extent(usize, usize),
        Generated(Vec<u8>),
        Extents(Vec<(usize, usize)>),
        Decoded(usize, usize),
        /// Decoded in two steps.
        Twice(usize, usize),
        Series(Vec<Kind>),
    }

    /// Decodes three bytes to five: their sum, the three bytes, and a zero.
    const DECODER: BlockDecoder = BlockDecoder {
        block_in: 3,
        block_out: 5,
        decode: |input, output| {
            for (input, output) in input.chunks_exact(3).zip(output.chunks_exact_mut(5)) {
                output.copy_from_slice(&[input.iter().sum(), input[0], input[1], input[2], 0]);
            }
        },
        then: None,
    };

    /// Decodes three bytes to five and these to two.
    const TWICE: BlockDecoder = BlockDecoder {
        block_out: 2,
        then: Some(SecondStep {
            block: 5,
            convert: |input, output| {
                for (input, output) in input.chunks_exact(5).zip(output.chunks_exact_mut(2)) {
                    output.copy_from_slice(&input[..2]);
                }
            },
        }),
        ..DECODER
    };

    fn kind() -> impl Strategy<Value = Kind> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..12);
        let plain = prop_oneof![
            bytes().prop_map(Kind::Literal),
            bytes().prop_map(Kind::Generated),
            (0usize..60, 0usize..12).prop_map(|(start, len)| Kind::Extent(start, (start + len).min(64))),
            prop::collection::vec((0usize..60, 1usize..5), 0..5)
                .prop_map(|runs| Kind::Extents(runs.into_iter().map(|(start, len)| (start, start + len)).collect())),
            (0usize..50, 0usize..5).prop_map(|(start, blocks)| Kind::Decoded(start, start + blocks * 3)),
            (0usize..50, 0usize..5).prop_map(|(start, blocks)| Kind::Twice(start, start + blocks * 3)),
        ];
        let series = prop::collection::vec(plain.clone(), 0..5).prop_map(Kind::Series);
        prop_oneof![4 => plain, 1 => series]
    }

    fn runs(extents: &[(usize, usize)]) -> Arc<[SourceRun]> {
        let mut start = 0;
        let run = |(from, to): &(usize, usize)| {
            let run = SourceRun { start, source: 0, offset: *from as u64 };
            start += (to - from) as u64;
            run
        };
        extents.iter().map(run).collect()
    }

    fn content(kinds: &[Kind], source: &Arc<dyn Source>) -> Content {
        Content::new(kinds.iter().map(|kind| segment(kind, source)))
    }

    fn segment(kind: &Kind, source: &Arc<dyn Source>) -> Segment {
        let extent =
            |start: usize, end: usize| Data::Extent(Extent { source: source.clone(), range: start as u64..end as u64 });
        match kind {
            Kind::Extents(extents) => {
                let len = extents.iter().map(|(from, to)| (to - from) as u64).sum();
                Segment::Data(Data::Extents(Extents::new([source.clone()].into(), runs(extents), len)))
            }
            Kind::Decoded(start, end) => Segment::Decoded(DecodedData { data: extent(*start, *end), decoder: DECODER }),
            Kind::Twice(start, end) => Segment::Decoded(DecodedData { data: extent(*start, *end), decoder: TWICE }),
            Kind::Literal(bytes) => Segment::Literal(bytes.clone().into()),
            Kind::Extent(start, end) => Segment::Data(extent(*start, *end)),
            Kind::Generated(bytes) => {
                let bytes = bytes.clone();
                Segment::Generated(GeneratedBytes::new(bytes.len() as u64, move |range, _, out| {
                    out.extend_from_slice(&bytes[indices(&range)]);
                    Ok(())
                }))
            }
            Kind::Series(kinds) => {
                let segments: Vec<Segment> = kinds.iter().map(|kind| segment(kind, source)).collect();
                let len = segments.iter().map(Segment::len).sum();
                let visit = move |offset: u64, take: &mut dyn FnMut(&Segment, u64) -> ControlFlow<()>| {
                    let mut begins = 0;
                    for segment in &segments {
                        if begins + segment.len() > offset && take(segment, begins).is_break() {
                            return;
                        }
                        begins += segment.len();
                    }
                };
                Segment::Series(SegmentSeries { len, visit: Arc::new(visit) })
            }
        }
    }

    /// The bytes of a segment, if those of the source are `bytes`.
    fn whole(kind: &Kind, bytes: &[u8]) -> Vec<u8> {
        match kind {
            Kind::Literal(bytes) | Kind::Generated(bytes) => bytes.clone(),
            Kind::Extent(start, end) => bytes[*start..*end].to_vec(),
            Kind::Extents(runs) => runs.iter().flat_map(|(from, to)| bytes[*from..*to].to_vec()).collect(),
            Kind::Decoded(start, end) => {
                let mut decoded = vec![0; (end - start) / 3 * 5];
                (DECODER.decode)(&bytes[*start..*end], &mut decoded);
                decoded
            }
            Kind::Twice(start, end) => {
                bytes[*start..*end].chunks_exact(3).flat_map(|block| [block.iter().sum(), block[0]]).collect()
            }
            Kind::Series(kinds) => kinds.iter().flat_map(|kind| whole(kind, bytes)).collect(),
        }
    }

    /// Whether each byte of a segment comes from the byte at `slow`, or from a block that contains it.
    fn waits(kind: &Kind, slow: usize) -> Vec<bool> {
        let blocks = |start: usize, end: usize, block_out: usize| {
            let blocks = (start..end).step_by(3).map(move |block| (block..block + 3).contains(&slow));
            blocks.flat_map(|waits| vec![waits; block_out]).collect()
        };
        match kind {
            Kind::Literal(bytes) | Kind::Generated(bytes) => vec![false; bytes.len()],
            Kind::Extent(start, end) => (*start..*end).map(|at| at == slow).collect(),
            Kind::Extents(runs) => runs.iter().flat_map(|(from, to)| (*from..*to).map(|at| at == slow)).collect(),
            Kind::Decoded(start, end) => blocks(*start, *end, 5),
            Kind::Twice(start, end) => blocks(*start, *end, 2),
            Kind::Series(kinds) => kinds.iter().flat_map(|kind| waits(kind, slow)).collect(),
        }
    }

    fn memory(bytes: Vec<u8>) -> Arc<dyn Source> {
        Arc::new(MemorySource::new(bytes))
    }

    proptest! {
        #[test]
        fn reads_match_plain_concatenation(kinds in prop::collection::vec(kind(), 0..6)) {
            let bytes: Vec<u8> = (0..64).collect();
            let whole: Vec<u8> = kinds.iter().flat_map(|kind| whole(kind, &bytes)).collect();
            let content = content(&kinds, &memory(bytes));
            prop_assert_eq!(content.len(), whole.len() as u64);
            for from in 0..whole.len() + 2 {
                for to in from..whole.len() + 2 {
                    let read = content.read(from as u64..to as u64, &ReadRequest::NOWAIT).unwrap();
                    prop_assert_eq!(&read[..], &whole[from.min(whole.len())..to.min(whole.len())]);
                }
            }
            let far = content.read(u64::MAX - 1..u64::MAX, &ReadRequest::NOWAIT).unwrap();
            prop_assert!(far.is_empty());
        }

        #[test]
        fn may_block_if_a_source_of_the_range_may(kinds in prop::collection::vec(kind(), 0..6), slow in 0u64..64) {
            /// A source that may block only when a certain byte is read.
            #[derive(Debug)]
            struct Slow(MemorySource, u64);

            impl Source for Slow {
                fn len(&self) -> u64 {
                    self.0.len()
                }
                fn bytes(&self, range: Range<u64>) -> Result<Bytes, source::Error> {
                    self.0.bytes(range)
                }
                fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), source::Error> {
                    self.0.read_exact_at(buf, offset)
                }
                fn verify(&self) -> Result<(), source::Error> {
                    self.0.verify()
                }
                fn may_block(&self, range: &Range<u64>) -> bool {
                    range.contains(&self.1)
                }
                fn stat(&self) -> SourceStat {
                    self.0.stat()
                }
            }

            let source: Arc<dyn Source> = Arc::new(Slow(MemorySource::new(vec![0; 64]), slow));
            let content = content(&kinds, &source);
            let waits: Vec<bool> = kinds.iter().flat_map(|kind| waits(kind, slow as usize)).collect();
            for from in 0..=waits.len() {
                for to in from..=waits.len() {
                    let range = from as u64..to as u64;
                    let expected = waits[from..to].contains(&true);
                    let wait = WaitFor { need: WaitResource::Device(0), key: None };
                    prop_assert_eq!(content.waits_for(&range), expected.then_some(wait));
                    let read = content.read(range.clone(), &ReadRequest::NOWAIT);
                    prop_assert_eq!(matches!(read, Err(Error::WouldBlock(found)) if found == wait), expected);
                    prop_assert!(content.read(range.clone(), &ReadRequest::only(wait)).is_ok());
                    prop_assert!(content.read(range, &ReadRequest::WAIT).is_ok());
                }
            }
        }
    }

    #[test]
    fn read_inside_one_segment_does_not_copy() {
        let data = Data::Extent(Extent { source: memory(vec![1; 64]), range: 8..64 });
        let npy = Content::new([Segment::Literal(b"header"[..].into()), Segment::Data(data)]);
        let read = |range| npy.read(range, &ReadRequest::NOWAIT);
        assert!(matches!(read(0..6), Ok(Bytes::Shared(..))));
        assert!(matches!(read(6..62), Ok(Bytes::Shared(_, range)) if range == (8..64)));
        assert!(matches!(read(6..106), Ok(Bytes::Shared(_, range)) if range == (8..64)));
        assert!(matches!(read(5..7), Ok(Bytes::Owned(bytes)) if bytes == b"r\x01"));
    }

    #[test]
    fn request_waits_only_for_what_it_may() {
        let device = |device, key| WaitFor { need: WaitResource::Device(device), key };
        let key = |item| Some(ResultId { model: 1, kind: ResultId::MODEL, item });
        let all = [device(1, None), device(2, None), device(1, key(1)), device(1, key(2))];
        let allowed = |request: ReadRequest| all.map(|wait| request.wait(wait).is_ok());
        assert_eq!((allowed(ReadRequest::NOWAIT), allowed(ReadRequest::WAIT)), ([false; 4], [true; 4]));
        assert_eq!(allowed(ReadRequest::only(device(1, None))), [true, false, false, false]);
        assert_eq!(allowed(ReadRequest::only(device(1, key(1)))), [true, false, true, false]);
    }

    #[test]
    fn cancelled_or_late_request_fails() {
        assert!(ReadRequest::WAIT.check().is_ok() && ReadRequest::NOWAIT.check().is_ok());
        assert!(matches!(ReadRequest::WAIT.cancelled_by(&|| true).check(), Err(Error::Interrupted)));
        assert!(ReadRequest::WAIT.cancelled_by(&|| false).check().is_ok());
        let now = Instant::now();
        assert!(matches!(ReadRequest::WAIT.until(now).check(), Err(Error::TimedOut)));
        assert!(ReadRequest::WAIT.until(now + Duration::from_secs(3600)).check().is_ok());
    }
}
