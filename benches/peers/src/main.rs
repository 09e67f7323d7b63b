//! Compares the decoding of GGUF block types with candle-core and with ggml's C code: see scripts/bench-decoders.
//!
//! The output of 1 MiB, the size of the largest read, stays in the cache of a core. All decoders take turns in each
//! round. The ratios are medians over the rounds.

use candle_core::quantized::k_quants as candle;
use std::hint::black_box;
use std::time::Instant;

/// The codec of weightfs, compiled without the rest of it.
#[path = "../../../src/codec/mod.rs"]
#[allow(dead_code)]
mod codec;

use codec::ggml;

const OUTPUT: usize = 1 << 20;
const ROUNDS: usize = 31;
/// Decodings of the output in a round.
const REPEATS: usize = 8;

unsafe extern "C" {
    fn peers_ggml(number: i32, input: *const u8, output: *mut f32, elements: i64);
}

/// Decodes whole blocks with candle-core.
fn by_candle<B: candle::GgmlType>(input: &[u8], output: &mut [f32]) {
    let blocks = input.len() / size_of::<B>();
    assert!(input.as_ptr().cast::<B>().is_aligned());
    // SAFETY: the blocks are structs of numbers and half-precision numbers, for which all bits are valid. The pointer
    // is aligned.
    let blocks = unsafe { std::slice::from_raw_parts(input.as_ptr().cast::<B>(), blocks) };
    B::to_float(blocks, output);
}

type Ours = fn(&[u8], &mut [u8]);
type Candle = fn(&[u8], &mut [f32]);

/// Name, elements and bytes of a block, number in ggml, and decoders.
type Row = (&'static str, usize, usize, i32, Ours, Option<Candle>);

const TYPES: [Row; 26] = [
    ("Q4_0", 32, 18, 2, ggml::q4_0, Some(by_candle::<candle::BlockQ4_0>)),
    ("Q4_1", 32, 20, 3, ggml::q4_1, Some(by_candle::<candle::BlockQ4_1>)),
    ("Q5_0", 32, 22, 6, ggml::q5_0, Some(by_candle::<candle::BlockQ5_0>)),
    ("Q5_1", 32, 24, 7, ggml::q5_1, Some(by_candle::<candle::BlockQ5_1>)),
    ("Q8_0", 32, 34, 8, ggml::q8_0, Some(by_candle::<candle::BlockQ8_0>)),
    ("Q2_K", 256, 84, 10, ggml::q2_k, Some(by_candle::<candle::BlockQ2K>)),
    ("Q3_K", 256, 110, 11, ggml::q3_k, Some(by_candle::<candle::BlockQ3K>)),
    ("Q4_K", 256, 144, 12, ggml::q4_k, Some(by_candle::<candle::BlockQ4K>)),
    ("Q5_K", 256, 176, 13, ggml::q5_k, Some(by_candle::<candle::BlockQ5K>)),
    ("Q6_K", 256, 210, 14, ggml::q6_k, Some(by_candle::<candle::BlockQ6K>)),
    ("Q8_K", 256, 292, 15, ggml::q8_k, Some(by_candle::<candle::BlockQ8K>)),
    ("IQ1_S", 256, 50, 19, ggml::iq1_s, None),
    ("IQ1_M", 256, 56, 29, ggml::iq1_m, None),
    ("IQ2_XXS", 256, 66, 16, ggml::iq2_xxs, None),
    ("IQ2_XS", 256, 74, 17, ggml::iq2_xs, None),
    ("IQ2_S", 256, 82, 22, ggml::iq2_s, None),
    ("IQ3_XXS", 256, 98, 18, ggml::iq3_xxs, None),
    ("IQ3_S", 256, 110, 21, ggml::iq3_s, None),
    ("IQ4_NL", 32, 18, 20, ggml::iq4_nl, None),
    ("IQ4_XS", 256, 136, 23, ggml::iq4_xs, None),
    ("TQ1_0", 256, 54, 34, ggml::tq1_0, None),
    ("TQ2_0", 256, 66, 35, ggml::tq2_0, None),
    ("MXFP4", 32, 17, 39, ggml::mxfp4, None),
    ("NVFP4", 64, 36, 40, ggml::nvfp4, None),
    ("Q1_0", 128, 18, 41, ggml::q1_0, None),
    ("Q2_0", 64, 18, 42, ggml::q2_0, None),
];

/// The speed of `decode` in bytes of output per second.
fn speed(mut decode: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..REPEATS).for_each(|_| decode());
    (OUTPUT * REPEATS) as f64 / start.elapsed().as_secs_f64()
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn main() {
    println!("{:8} {:>8} {:>8} {:>8} {:>8}", "type", "GB/s", "/memcpy", "/ggml", "/candle");
    let copied = vec![1u8; OUTPUT];
    for (name, elements, bytes, number, ours, candle) in TYPES {
        let count = OUTPUT / 4;
        let len = count / elements * bytes;
        let mut state = 88_172_645_463_325_252_u64;
        // Aligned for every block.
        let words: Vec<u64> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // No exponents of infinities or subnormal numbers, which would be slow in some decoders.
            state & 0x3f3f_3f3f_3f3f_3f3f | 0x2020_2020_2020_2020
        })
        .take(len.div_ceil(8))
        .collect();
        let input: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let input = &input[input.as_ptr().align_offset(4)..][..len.min(input.len())];
        let mut output = vec![0f32; count];
        let mut raw = vec![0u8; OUTPUT];
        let (mut gb, mut of_memcpy, mut of_ggml, mut of_candle) = (vec![], vec![], vec![], vec![]);
        for _ in 0..ROUNDS {
            let mine = speed(|| ours(black_box(input), black_box(&mut raw)));
            gb.push(mine / 1e9);
            of_memcpy.push(mine / speed(|| black_box(&mut raw).copy_from_slice(black_box(&copied))));
            of_ggml.push(
                // SAFETY: both buffers have as many bytes as the elements take.
                mine / speed(|| unsafe {
                    peers_ggml(number, black_box(input).as_ptr(), output.as_mut_ptr(), count as i64)
                }),
            );
            if let Some(candle) = candle {
                of_candle.push(mine / speed(|| candle(black_box(input), black_box(&mut output))));
            }
        }
        let other = if of_candle.is_empty() { String::new() } else { format!("{:8.2}", median(of_candle)) };
        println!("{name:8} {:8.1} {:8.2} {:8.2} {other}", median(gb), median(of_memcpy), median(of_ggml));
    }
}
