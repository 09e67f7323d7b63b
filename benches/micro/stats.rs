//! Statistics of values compared with memcpy: `cargo bench --bench stats` in benches/micro.
//!
//! One thread, in bytes of input per second. The input is 64 MiB of memory, larger than the CPU caches, as real data
//! is, and is added 1 MiB at a time. Floats have a normal distribution, as most weights do. `random` is random bytes,
//! the worst case for tables of counts. `zeros` is a single value, repeated.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::{bf16, f16};
use std::hint::black_box;
use weightfs::format::Dtype;
use weightfs::stats::StatsAccumulator;

const INPUT: usize = 64 << 20;
const READ: usize = 1 << 20;

/// Approximately normally distributed numbers: each is the sum of four 16-bit parts of a hashed counter.
fn normal(deviation: f64) -> impl Iterator<Item = f64> {
    (1u64..).map(move |at| {
        let mut bits = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        let sum: u64 = (0..4).map(|at| bits >> (16 * at) & 0xffff).sum();
        (sum as f64 / 65536.0 - 2.0) * 3f64.sqrt() * deviation
    })
}

fn input<const N: usize>(deviation: f64, encode: impl Fn(f64) -> [u8; N]) -> Vec<u8> {
    normal(deviation).take(INPUT / N).flat_map(encode).collect()
}

fn benches(criterion: &mut Criterion) {
    let random = input(0.02, |value| (value.to_bits() as u32).to_le_bytes());
    let mut group = criterion.benchmark_group("input");
    group.throughput(Throughput::Bytes(READ as u64));
    let mut at = 0;
    let mut buffer = vec![0; READ];
    group.bench_function("memcpy", |bencher| {
        bencher.iter(|| {
            at = (at + READ) % INPUT;
            buffer.copy_from_slice(&random[at..at + READ]);
            black_box(&buffer);
        })
    });
    let cases = [
        (Dtype::F32, "", input(0.02, |value| (value as f32).to_le_bytes())),
        (Dtype::BF16, "", input(0.02, |value| bf16::from_f64(value).to_le_bytes())),
        (Dtype::F16, "", input(0.02, |value| f16::from_f64(value).to_le_bytes())),
        (Dtype::F64, "", input(0.02, f64::to_le_bytes)),
        // The codes of float8 weights are distributed similarly to the upper bytes of float16.
        (Dtype::F8E4M3, "", input(0.02, |value| [(f16::from_f64(value * 16.0).to_bits() >> 7) as u8 ^ 0x40])),
        (Dtype::I8, "", input(32.0, |value| [value as i8 as u8])),
        (Dtype::I32, "", input(1e4, |value| (value as i32).to_le_bytes())),
        (Dtype::U32, "", input(1e4, |value| (value as i32 as u32 >> 1).to_le_bytes())),
        (Dtype::I64, "", input(1e4, |value| (value as i64).to_le_bytes())),
        (Dtype::U64, "", input(1e4, |value| (value as i64 as u64 >> 1).to_le_bytes())),
        (Dtype::F4, " random", random.clone()),
        (Dtype::F6E2M3, " random", random.clone()),
        (Dtype::U8, " random", random.clone()),
        (Dtype::U16, " random", random.clone()),
        (Dtype::F32, " zeros", vec![0; INPUT]),
        (Dtype::BF16, " zeros", vec![0; INPUT]),
        (Dtype::U8, " zeros", vec![0; INPUT]),
        (Dtype::F32, " one NaN in 1000", {
            let nan = |at: u32, value: f64| if at.is_multiple_of(1000) { f32::NAN } else { value as f32 };
            (0..INPUT as u32 / 4).zip(normal(0.02)).flat_map(|(at, value)| nan(at, value).to_le_bytes()).collect()
        }),
    ];
    for (dtype, values, bytes) in &cases {
        let Some(mut accumulator) = StatsAccumulator::new(*dtype) else { continue };
        let read = READ / 3 * 3;
        group.throughput(Throughput::Bytes(read as u64));
        group.bench_function(format!("{dtype}{values}"), |bencher| {
            bencher.iter(|| {
                at = (at + READ) % INPUT;
                accumulator.add(black_box(&bytes[at..at + read]));
            })
        });
        black_box(accumulator.finish());
    }
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
