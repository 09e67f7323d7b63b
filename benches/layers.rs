//! What the layers cost without a kernel: `cargo bench --bench layers`.
//!
//! Reading a header of a million tensors, finding one by its name, and taking a piece of a file out of a splice: a slice of
//! one segment, and a copy across the seam of header and data, as in `npy/`. Widening is in `widen.rs`.
#![allow(missing_docs, reason = "a program of its own")]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use weightfs::content::{Content, Data, Extent, Segment};
use weightfs::format::{self, Mode};
use weightfs::source::Memory;

const TENSORS: usize = 1_000_000;
const READ: u32 = 128 << 10;

fn name(at: usize) -> String {
    format!("layers.{}.experts.{}.w", at / 1000, at % 1000)
}

/// A file of that many tensors of 64 bytes, without their data.
fn file(count: usize) -> Vec<u8> {
    let tensor = |at| {
        format!("\"{}\":{{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[{},{}]}}", name(at), at * 64, at * 64 + 64)
    };
    let json = format!("{{{}}}", (0..count).map(tensor).collect::<Vec<_>>().join(","));
    [&(json.len() as u64).to_le_bytes(), json.as_bytes()].concat()
}

fn header(criterion: &mut Criterion) {
    let file = file(TENSORS);
    let len = (file.len() + TENSORS * 64) as u64;
    let mut group = criterion.benchmark_group("header");
    group.sample_size(10).throughput(Throughput::Elements(TENSORS as u64));
    group.bench_function("parse 1,000,000 tensors", |bencher| {
        bencher.iter_batched(|| (), |()| format::parse(black_box(&file), len, Mode::Strict), BatchSize::PerIteration)
    });
    let Ok(header) = format::parse(&file, len, Mode::Strict) else { return };
    let names: Vec<String> = (0..TENSORS).map(|at| name(at.wrapping_mul(7919) % TENSORS)).collect();
    group.sample_size(100).throughput(Throughput::Elements(1));
    let mut at = 0;
    group.bench_function("find a name", |bencher| {
        bencher.iter(|| {
            at = (at + 1) % TENSORS;
            header.find(black_box(&names[at]))
        })
    });
    group.bench_function("find none", |bencher| bencher.iter(|| header.find(black_box("layers.7.experts.7.b"))));
    group.finish();
}

fn read_at(criterion: &mut Criterion) {
    let source = Memory::new(vec![7; 64 << 20]);
    let data = || Segment::Data(Data::Extent(Extent { source: &source, range: 8..64 << 20 }));
    let npy = || Content::new([Segment::Literal(vec![b' '; 128].into()), data()]);
    let mut group = criterion.benchmark_group("read_at 128 KiB");
    group.bench_function("raw", |bencher| {
        bencher.iter(|| Content::new([data()]).read_at(black_box(1 << 20), READ).map(|bytes| bytes.len()).ok())
    });
    group.bench_function("behind the header", |bencher| {
        bencher.iter(|| npy().read_at(black_box(1 << 20), READ).map(|bytes| bytes.len()).ok())
    });
    group.bench_function("across the seam", |bencher| {
        bencher.iter(|| npy().read_at(black_box(0), READ).map(|bytes| bytes.len()).ok())
    });
    group.finish();
}

criterion_group!(all, header, read_at);
criterion_main!(all);
