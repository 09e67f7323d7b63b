//! Conversions of numbers: pure functions over slices, which neither allocate nor do I/O.

/// Defines a function that converts bytes to bytes, and compiles its body twice: for any processor, and for vectors of
/// twice the size.
macro_rules! vectorised {
    ($(#[$doc:meta])* $name:ident($input:ident, $output:ident) $body:expr) => {
        $(#[$doc])*
        pub fn $name($input: &[u8], $output: &mut [u8]) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2($input: &[u8], $output: &mut [u8]) {
                $body;
            }

            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has AVX2, which is all that the function requires.
                #[allow(unsafe_code)]
                return unsafe { avx2($input, $output) };
            }
            $body;
        }
    };
}

pub mod bf16;
pub mod elements;
pub mod ggml;
