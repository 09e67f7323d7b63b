//! The block types of GGML, decoded to little-endian float32.
//!
//! Each function decodes whole blocks. The results are those of the `gguf` Python package, bit for bit: the same
//! float32 operations in the same order. Layouts: `ggml-common.h` of ggml.

mod grids;
mod iq;
mod k;
mod legacy;
mod packed;
mod small;

/// Defines functions that decode whole blocks with the function of the same name for one block.
macro_rules! decoders {
    ($($room:ident: $($name:ident)*;)*) => {$($(
        vectorised! {
            #[doc = concat!("Decodes blocks of ", stringify!($name), ".")]
            pub fn $name(input: &[u8], output: &mut [u8]) {
                packed::map_packed(input, output, |block, out| $room::$name(block, out));
            }
        }
    )*)*};
}

decoders! {
    legacy: q4_0 q4_1 q5_0 q5_1 q8_0;
    k: q2_k q3_k q4_k q5_k q6_k q8_k;
    iq: iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s iq4_nl iq4_xs;
    small: q1_0 q2_0 tq1_0 tq2_0 mxfp4 nvfp4;
}

#[cfg(test)]
mod tests {
    use crate::codec::elements::ToF32;
    use crate::format::Dtype;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    fn decode(dtype: Dtype, input: &[u8]) -> Vec<f32> {
        let (block, to_f32) = (dtype.block().unwrap(), dtype.to_f32().unwrap());
        let mut output = vec![0; input.len() / block.bytes as usize * block.elements as usize * 4];
        to_f32(input, &mut output);
        output.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    fn block_types() -> impl Iterator<Item = (Dtype<'static>, ToF32)> {
        Dtype::ALL.iter().filter(|dtype| dtype.has_scales()).filter_map(|dtype| Some((*dtype, dtype.to_f32()?)))
    }

    /// The gguf package does not decode these types. The file has random blocks and what ggml's C code
    /// (`dequantize_row_*` in `ggml-quants.c`) makes of them. `tests/mount/gguf.rs` compares the other types.
    #[test]
    fn types_without_another_reference_match_ggml() {
        let golden = include_str!("../../../tests/golden/ggml/blocks.txt");
        let mut types = 0;
        for line in golden.lines() {
            let [name, input, expected] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let dtype = *Dtype::ALL.iter().find(|dtype| dtype.name() == name).unwrap();
            let expected = hex(expected);
            let expected: Vec<f32> = expected.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            let found = decode(dtype, &hex(input));
            assert_eq!(found.len(), expected.len(), "{name}");
            for (found, expected) in found.iter().zip(&expected) {
                assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(), "{name}");
            }
            types += 1;
        }
        assert_eq!(types, 3);
    }

    /// Some types are decoded several blocks at a time.
    #[test]
    fn any_number_of_blocks_is_decoded_like_single_blocks() {
        for (dtype, _) in block_types() {
            let bytes = dtype.block().unwrap().bytes as usize;
            let encoded: Vec<u8> =
                (0..bytes * 19).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
            let single: Vec<u32> =
                encoded.chunks(bytes).flat_map(|block| decode(dtype, block)).map(f32::to_bits).collect();
            for blocks in [0, 1, 7, 8, 9, 16, 19] {
                let found: Vec<u32> = decode(dtype, &encoded[..blocks * bytes]).into_iter().map(f32::to_bits).collect();
                assert_eq!(found, single[..blocks * dtype.block().unwrap().elements as usize], "{dtype} {blocks}");
            }
        }
        assert_eq!(block_types().count(), 26);
    }
}
