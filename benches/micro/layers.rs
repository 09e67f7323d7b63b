//! Header parsing, tensor lookup and reads, measured without FUSE: `cargo bench --bench layers` in benches/micro.
//!
//! Parses a header of a million tensors, finds tensors by name, and reads a spliced file as in `npy/`: a slice within
//! one segment, and a copy across the boundary of header and data. `codec.rs` measures decoding.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use weightfs::content::{Content, ReadRequest, Segment};
use weightfs::format::{self, HeaderInput, ParseMode};
use weightfs::source::{MemorySource, Source};

const TENSORS: usize = 1_000_000;
const READ: u64 = 128 << 10;

fn name(at: usize) -> String {
    format!("layers.{}.experts.{}.w", at / 1000, at % 1000)
}

/// The length and header of a file of `count` tensors of 64 bytes. Their data is left out.
fn file(count: usize) -> Vec<u8> {
    let tensor = |at| {
        format!("\"{}\":{{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[{},{}]}}", name(at), at * 64, at * 64 + 64)
    };
    let json = format!("{{{}}}", (0..count).map(tensor).collect::<Vec<_>>().join(","));
    [&(json.len() as u64).to_le_bytes(), json.as_bytes()].concat()
}

fn header(criterion: &mut Criterion) {
    let file = file(TENSORS);
    let input = HeaderInput::with_prefix((file.len() + TENSORS * 64) as u64, file);
    let mut group = criterion.benchmark_group("header");
    group.sample_size(10).throughput(Throughput::Elements(TENSORS as u64));
    group.bench_function("parse 1,000,000 tensors", |bencher| {
        bencher.iter_batched(
            || (),
            |()| format::parse_header(black_box(&input), ParseMode::Strict),
            BatchSize::PerIteration,
        )
    });
    let Ok(header) = format::parse_header(&input, ParseMode::Strict) else { return };
    let names: Vec<String> = (0..TENSORS).map(|at| name(at.wrapping_mul(7919) % TENSORS)).collect();
    group.sample_size(100).throughput(Throughput::Elements(1));
    let mut at = 0;
    group.bench_function("find an existing name", |bencher| {
        bencher.iter(|| {
            at = (at + 1) % TENSORS;
            header.find(black_box(&names[at]))
        })
    });
    group.bench_function("find a missing name", |bencher| {
        bencher.iter(|| header.find(black_box("layers.7.experts.7.b")))
    });
    group.finish();
}

fn read(criterion: &mut Criterion) {
    let source: Arc<dyn Source> = Arc::new(MemorySource::new(vec![7; 64 << 20]));
    let data = || Segment::extent(&source, 8..64 << 20);
    let len = |content: Content, at: u64| content.read(at..at + READ, &ReadRequest::WAIT).map(|bytes| bytes.len()).ok();
    let npy = || Content::new([Segment::Literal(vec![b' '; 128].into()), data()]);
    let mut group = criterion.benchmark_group("read 128 KiB");
    group.bench_function("raw", |bencher| bencher.iter(|| len(Content::new([data()]), black_box(1 << 20))));
    group.bench_function("after the header", |bencher| bencher.iter(|| len(npy(), black_box(1 << 20))));
    group.bench_function("across the boundary", |bencher| bencher.iter(|| len(npy(), black_box(0))));
    group.finish();
}

criterion_group!(all, header, read);
criterion_main!(all);
