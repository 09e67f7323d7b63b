//! Decoding elements to float32 and bfloat16 compared with memcpy: `cargo bench --bench codec` in benches/micro.
//!
//! One thread, in bytes of output per second. The source is 64 MiB of memory, larger than the CPU caches, as real data
//! is. A read is 1 MiB, the size of the kernel's largest request.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use weightfs::content::{BlockDecoder, Content, DecodedData, ReadRequest, Segment};
use weightfs::format::Dtype;
use weightfs::source::{MemorySource, Source};
use weightfs::view::FloatDtype;

const SOURCE: usize = 64 << 20;
const READ: usize = 1 << 20;

fn benches(criterion: &mut Criterion) {
    let bytes: Vec<u8> = (0..SOURCE as u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    let source: Arc<dyn Source> = Arc::new(MemorySource::new(bytes));
    let mut group = criterion.benchmark_group("output");
    group.throughput(Throughput::Bytes(READ as u64));
    let mut at = 0;
    group.bench_function("memcpy", |bencher| {
        bencher.iter(|| {
            at = (at + READ) % SOURCE;
            black_box(source.bytes(at as u64..(at + READ) as u64).map(|bytes| bytes.to_vec()).ok())
        })
    });
    let mut bench = |name: String, decoder: BlockDecoder| {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let range = 0..(SOURCE / decoder.block_in * decoder.block_in) as u64;
                let data = Segment::extent(&source, range);
                let content = Content::from(Segment::Decoded(DecodedData { data, decoder }.into()));
                at = (at + READ) % (content.len() as usize / READ * READ);
                black_box(content.read(at as u64..(at + READ) as u64, &ReadRequest::WAIT).map(|bytes| bytes.len()).ok())
            })
        });
    };
    let elements = [Dtype::BF16, Dtype::F16, Dtype::F8E4M3, Dtype::F6E2M3, Dtype::F4, Dtype::I8, Dtype::F64];
    let blocks = Dtype::ALL.iter().copied().filter(|dtype| dtype.has_scales());
    for dtype in elements.into_iter().chain(blocks.clone()) {
        if let Some(decoder) = FloatDtype::F32.decoder(dtype) {
            bench(dtype.name().to_owned(), decoder);
        }
    }
    let elements = [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::F8E4M3, Dtype::F8E5M2, Dtype::F4];
    for dtype in elements.into_iter().chain(blocks) {
        if let Some(decoder) = FloatDtype::Bf16.decoder(dtype) {
            bench(format!("{dtype} to bf16"), decoder);
        }
    }
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
