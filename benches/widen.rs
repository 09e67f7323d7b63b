//! How fast elements become float32, beside memcpy: `cargo bench --bench widen`.
//!
//! One thread, in bytes of output a second. The source is in memory, 64 MiB, so that it and the output pass through the
//! caches as a mount's do; a read is 1 MiB, as much as the kernel asks for at once.
#![allow(missing_docs, reason = "a program of its own")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use weightfs::content::{Content, Data, Decoded, Extent, Segment};
use weightfs::format::Dtype;
use weightfs::source::{Memory, Source};
use weightfs::widen;

const SOURCE: usize = 64 << 20;
const READ: usize = 1 << 20;

fn benches(criterion: &mut Criterion) {
    let bytes: Vec<u8> = (0..SOURCE as u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    let source = Memory::new(bytes);
    let mut group = criterion.benchmark_group("output");
    group.throughput(Throughput::Bytes(READ as u64));
    let mut at = 0;
    group.bench_function("memcpy", |bencher| {
        bencher.iter(|| {
            at = (at + READ) % SOURCE;
            black_box(source.bytes(at as u64..(at + READ) as u64).map(|bytes| bytes.to_vec()).ok())
        })
    });
    for dtype in [Dtype::BF16, Dtype::F16, Dtype::F8E4M3, Dtype::F6E2M3, Dtype::F4, Dtype::I8, Dtype::F64] {
        let Some(decoder) = widen::to_f32(dtype) else { continue };
        group.bench_function(dtype.name(), |bencher| {
            bencher.iter(|| {
                let range = 0..(SOURCE / decoder.group_in * decoder.group_in) as u64;
                let decoded =
                    Segment::Decoded(Decoded { data: Data::Extent(Extent { source: &source, range }), decoder });
                let content = Content::new([decoded]);
                at = (at + READ) % (content.len() as usize / READ * READ);
                black_box(content.read_at(at as u64, READ as u32).map(|bytes| bytes.len()).ok())
            })
        });
    }
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
