//! Conversions of numbers: pure functions over slices, without I/O. Only `quantized` allocates memory.

/// Defines a function over slices, and compiles its body twice: for any processor, and for vectors of twice the size.
macro_rules! vectorised {
    ($(#[$doc:meta])* $visible:vis fn $name:ident($($input:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        $visible fn $name($($input: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2($($input: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has AVX2, which is all that the function requires.
                #[allow(unsafe_code)]
                return unsafe { avx2($($input),*) };
            }
            $body
        }
    };
}

/// A float32 in little-endian order.
pub type F32 = [u8; 4];

pub mod bf16;
pub mod elements;
pub mod f16;
pub mod ggml;
pub mod quantized;
