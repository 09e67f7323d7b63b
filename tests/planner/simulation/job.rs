//! What readers do: which bytes they read in which order, and the least time that it can take.

use super::{Random, network::Network};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;
use weightfs::remote::planner::BLOCK;

const MIB: u64 = 1 << 20;

/// Bytes per second that a mount serves to one reader from the page cache (docs/performance.md).
pub const MOUNT: f64 = 2e9;

/// A read(2) that reaches the file system.
#[derive(Debug, Clone)]
pub struct Access {
    pub object: u32,
    pub range: Range<u64>,
    /// The tensor.
    pub within: Range<u64>,
    /// Whether it starts only when all accesses before are done.
    pub is_dependent: bool,
}

/// One thread of a program.
#[derive(Debug, Clone)]
pub struct Reader {
    pub accesses: Vec<Access>,
    /// Reads in flight at a time.
    pub depth: usize,
    pub start: Duration,
}

#[derive(Debug, Clone)]
pub struct Job {
    pub name: String,
    /// Lengths of the objects.
    pub objects: Vec<u64>,
    pub readers: Vec<Reader>,
}

impl Job {
    fn new(name: &str, objects: Vec<u64>, readers: Vec<Reader>) -> Self {
        Self { name: name.into(), objects, readers }
    }

    /// Bytes that are read, each counted once.
    pub fn bytes(&self) -> u64 {
        let accesses = self.readers.iter().flat_map(|reader| &reader.accesses);
        let mut ranges: Vec<_> = accesses.map(|access| (access.object, access.range.start, access.range.end)).collect();
        ranges.sort_unstable();
        let (mut sum, mut at) = (0, (0, 0));
        for (object, start, end) in ranges {
            let from = if at.0 == object { start.max(at.1) } else { start };
            sum += end.saturating_sub(from);
            at = (object, end.max(if at.0 == object { at.1 } else { 0 }));
        }
        sum
    }

    /// Bytes of the blocks that are read.
    pub fn block_bytes(&self) -> u64 {
        let accesses = self.readers.iter().flat_map(|reader| &reader.accesses);
        let blocks = accesses.flat_map(|access| {
            (access.range.start / BLOCK..access.range.end.div_ceil(BLOCK)).map(|block| (access.object, block))
        });
        blocks.collect::<BTreeSet<_>>().len() as u64 * BLOCK
    }

    /// The time of a transfer that uses the whole link from its start, after a connection is set up (two round trips).
    /// Each tensor, and each access that depends on the ones before, costs a round trip, because nothing may be fetched
    /// of a tensor before it is read.
    pub fn ideal(&self, network: &Network) -> Duration {
        let waits = |reader: &Reader| {
            let mut seen = BTreeSet::new();
            let waits = reader.accesses.iter().filter(|access| {
                let blocks = access.range.start / BLOCK..access.range.end.div_ceil(BLOCK);
                let is_new =
                    blocks.map(|block| seen.insert((access.object, block))).filter(|is_new| *is_new).count() > 0;
                access.is_dependent && is_new
            });
            1 + waits.count() as u32
        };
        let waits = self.readers.iter().map(waits).max().unwrap_or(0);
        let mount = MOUNT * self.readers.len() as f64;
        (2 + waits) * network.rtt + Duration::from_secs_f64(self.bytes() as f64 / network.link.min(mount))
    }
}

fn reads(object: u32, tensor: &Range<u64>, size: u64) -> Vec<Access> {
    let starts = (tensor.start..tensor.end).step_by(size as usize);
    let range = |start: u64| start..(start + size).min(tensor.end);
    let access = |start| Access { object, range: range(start), within: tensor.clone(), is_dependent: false };
    starts.map(access).collect()
}

fn reader(accesses: Vec<Access>, depth: usize) -> Reader {
    Reader { accesses, depth, start: Duration::ZERO }
}

/// The tensors of a model of 1.4 GB with 25 layers, in the order of the file.
pub fn tensors() -> Vec<Range<u64>> {
    const LAYER: [u64; 12] = [
        8_192, 8_388_608, 8_192, 1_048_576, 4_096, 1_048_576, 4_096, 8_388_608, 8_192, 12_582_912, 12_582_912,
        12_582_912,
    ];
    let mut at = 31_336;
    let mut next = |len: &u64| {
        at += len;
        at - len..at
    };
    (0..25).flat_map(|_| LAYER).map(|len| next(&len)).collect()
}

fn model() -> u64 {
    tensors().iter().map(|tensor| tensor.end).max().unwrap_or(0)
}

pub fn open_one() -> Job {
    let head = 0..512 << 10;
    Job::new("open 1 file", vec![model()], vec![reader(reads(0, &head, 512 << 10), 1)])
}

pub fn open_shards() -> Job {
    // The index tells that all but the first shard need less.
    let head = |shard| if shard == 0 { 512 << 10 } else { 128 << 10 };
    let accesses = (0..160).flat_map(|shard| reads(shard, &(0..head(shard)), head(shard))).collect();
    Job::new("open 160 shards", vec![4_300_000_000; 160], vec![reader(accesses, 160)])
}

pub const TENSOR: Range<u64> = 123_456_789..156_456_789;

pub fn tensor(depth: usize) -> Job {
    let name = format!("33 MB tensor, {depth} read{} in flight", if depth == 1 { "" } else { "s" });
    Job::new(&name, vec![model()], vec![reader(reads(0, &TENSOR, MIB), depth)])
}

/// Rows in the middle of a tensor, read as a memory map or `pread` of them on a mount is.
pub fn slice(len: u64) -> Job {
    let tensor = 31_336..31_336 + 2_147_483_648;
    let rows = tensor.start + 805_306_368..tensor.start + 805_306_368 + len;
    let mut accesses = reads(0, &rows, MIB);
    accesses.iter_mut().for_each(|access| access.within = tensor.clone());
    Job::new(&format!("{} MB of a tensor of 2 GB", len / 1_000_000), vec![tensor.end], vec![reader(accesses, 2)])
}

/// A command that asks for the whole tensor.
pub fn tensor_at_once() -> Job {
    Job::new("33 MB tensor at once", vec![model()], vec![reader(reads(0, &TENSOR, TENSOR.end), 1)])
}

pub fn tiny_tensor() -> Job {
    let tensor = 1_000_000..1_004_096;
    Job::new("4 KiB tensor", vec![model()], vec![reader(reads(0, &tensor, MIB), 1)])
}

pub fn whole_file() -> Job {
    Job::new("1.4 GB model as one file", vec![model()], vec![reader(reads(0, &(0..model()), MIB), 4)])
}

/// Reads tensors one after the other, each from its start.
fn in_order(tensors: &[Range<u64>], size: u64, depth: usize) -> Reader {
    let mut accesses = Vec::new();
    for tensor in tensors {
        let first = accesses.len();
        accesses.extend(reads(0, tensor, size));
        accesses[first].is_dependent = first > 0;
    }
    reader(accesses, depth)
}

pub fn copy_tensors() -> Job {
    Job::new("`cp -r tensors/`, 300 tensors", vec![model()], vec![in_order(&tensors(), MIB, 4)])
}

pub fn loader() -> Job {
    let mut tensors = tensors();
    Random(7).shuffle(&mut tensors);
    Job::new("loader, 300 tensors in random order", vec![model()], vec![in_order(&tensors, MIB, 2)])
}

pub fn small_tensors() -> Job {
    let small: Vec<_> = tensors().into_iter().filter(|tensor| tensor.end - tensor.start < MIB).collect();
    Job::new("`sha256sum` of the 125 tensors below 1 MB", vec![model()], vec![in_order(&small, MIB, 1)])
}

/// Tensors of 4 KiB that lie one after the other.
pub fn adjacent_tensors() -> Job {
    let tensors: Vec<_> = (0..1000u64).map(|at| 31_336 + at * 4096..31_336 + (at + 1) * 4096).collect();
    Job::new("1000 adjacent tensors of 4 KiB", vec![model()], vec![in_order(&tensors, MIB, 1)])
}

/// Page faults in random order, from four threads.
pub fn faults() -> Job {
    let mut accesses = reads(0, &TENSOR, 128 << 10);
    Random(9).shuffle(&mut accesses);
    let readers = accesses.chunks(accesses.len().div_ceil(4)).map(|chunk| reader(chunk.to_vec(), 1)).collect();
    Job::new("33 MB tensor, random faults of 4 threads", vec![model()], readers)
}

/// Random faults with many in flight.
pub fn deep_faults() -> Job {
    let mut accesses = reads(0, &TENSOR, 128 << 10);
    Random(9).shuffle(&mut accesses);
    Job::new("33 MB tensor, random faults, 64 in flight", vec![model()], vec![reader(accesses, 64)])
}

pub const MATRIX: Range<u64> = 4578 * BLOCK..20_962 * BLOCK;

/// Rows of a matrix, with gaps between them.
pub fn rows(len: u64, stride: u64, count: usize, depth: usize) -> Job {
    let starts = (MATRIX.start..MATRIX.end).step_by(stride as usize).take(count);
    let is_dependent = depth == 1;
    let access = |start| Access { object: 0, range: start..start + len, within: MATRIX, is_dependent };
    let accesses: Vec<_> = starts.map(access).collect();
    let count = accesses.len();
    let name = format!("{count} rows of {} KiB, one in {} KiB, {depth} in flight", len >> 10, stride >> 10);
    Job::new(&name, vec![model()], vec![reader(accesses, depth)])
}

pub fn strided() -> Job {
    rows(4 << 10, 256 << 10, 400, 1)
}

pub fn gather() -> Job {
    rows(192 << 10, 256 << 10, 400, 64)
}

pub fn backward() -> Job {
    let mut accesses = reads(0, &TENSOR, MIB);
    accesses.reverse();
    accesses.iter_mut().skip(1).for_each(|access| access.is_dependent = true);
    Job::new("33 MB tensor backward", vec![model()], vec![reader(accesses, 1)])
}

pub fn four_readers() -> Job {
    let tensor = |at: u64| 300_000_000 + at * 200_000_000..400_000_000 + at * 200_000_000;
    let readers = (0..4).map(|at| reader(reads(0, &tensor(at), MIB), 2)).collect();
    Job::new("4 readers of tensors of 100 MB", vec![model()], readers)
}

/// A reader of a large tensor, and one that reads small tensors meanwhile.
pub fn mixed() -> Job {
    let large = reader(reads(0, &(300_000_000..1_000_000_000), MIB), 4);
    let small = (0..20u64).map(|at| 31_336 + at * 7_000_000..41_336 + at * 7_000_000).collect::<Vec<_>>();
    let small = Reader { start: Duration::from_secs(1), ..in_order(&small, MIB, 1) };
    Job::new("700 MB tensor, and 20 tensors of 10 kB meanwhile", vec![model()], vec![large, small])
}

/// The same with read-ahead across tensors, which the caller allows by a wider `within`.
pub fn copy_tensors_wide() -> Job {
    let mut job = copy_tensors();
    job.name = "the same, with read-ahead across tensors".into();
    let accesses = job.readers.iter_mut().flat_map(|reader| &mut reader.accesses);
    accesses.for_each(|access| access.within = 0..job.objects[0]);
    job
}

/// Reads the first half of tensors and goes on to the next.
pub fn abandoned() -> Job {
    let accesses = (0..10u64).flat_map(|at| {
        let tensor = at * 130_000_000..(at + 1) * 130_000_000;
        let mut reads = reads(0, &tensor, MIB);
        reads.truncate(20);
        reads[0].is_dependent = at > 0;
        reads
    });
    Job::new("first 20 MiB of 10 tensors of 130 MB", vec![model()], vec![reader(accesses.collect(), 2)])
}

/// The jobs of docs/performance.md.
pub fn all() -> Vec<Job> {
    vec![
        open_one(),
        open_shards(),
        tiny_tensor(),
        tensor(1),
        tensor(4),
        tensor(16),
        tensor_at_once(),
        slice(16 << 20),
        slice(512 << 20),
        whole_file(),
        copy_tensors(),
        copy_tensors_wide(),
        loader(),
        small_tensors(),
        adjacent_tensors(),
        faults(),
        deep_faults(),
        strided(),
        gather(),
        backward(),
        four_readers(),
        mixed(),
        abandoned(),
    ]
}
