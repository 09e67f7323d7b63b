//! Element types: one table with the name, size and conversion of each.

use crate::codec::bf16::{self, ToBf16};
use crate::codec::elements::{self, ToF32};
use crate::codec::ggml;
use crate::text::quote;
use std::fmt;

/// The smallest group of elements that takes a whole number of bytes. Loops over data step by blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DtypeBlock {
    pub elements: u64,
    pub bytes: u64,
}

/// Approximate number of encoded bytes that are decoded at a time. They and the decoded values stay in a core's cache.
const DECODED_AT_ONCE: usize = 24 << 10;

impl DtypeBlock {
    /// Decodes whole blocks to float32, some at a time, and passes the little-endian values of each step to `take`.
    /// `buffer` holds them, so that several calls can share its memory.
    pub fn decode_each(self, to_f32: ToF32, encoded: &[u8], buffer: &mut Vec<u8>, mut take: impl FnMut(&[u8])) {
        let (bytes, elements) = (self.bytes as usize, self.elements as usize);
        for encoded in encoded.chunks((DECODED_AT_ONCE / bytes).max(1) * bytes) {
            buffer.resize(encoded.len() / bytes * elements * size_of::<f32>(), 0);
            to_f32(encoded, buffer);
            take(buffer);
        }
    }
}

#[derive(Debug)]
struct DtypeRow {
    name: &'static str,
    block: DtypeBlock,
    numpy: Option<&'static str>,
    to_f32: Option<ToF32>,
    ggml: Option<u32>,
    has_scales: bool,
}

/// Defines the enum and its table from one row per dtype, and a constant for each group of rows.
macro_rules! dtypes {
    ($(
        $(#[$doc:meta])*
        $group:ident, scales: $scales:literal {
            $($variant:ident $name:literal, $elements:literal in $bytes:literal, $numpy:expr, $to_f32:expr, $ggml:expr;)*
        }
    )*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Dtype<'a> {
            $($($variant,)*)*
            /// A name that is not in the table. Such a tensor has bytes, but no known block size.
            Unknown(&'a str),
        }

        impl Dtype<'_> {
            /// Every known dtype, in the order of the table.
            pub const ALL: &'static [Dtype<'static>] = &[$($(Dtype::$variant,)*)*];

            $(
                $(#[$doc])*
                pub const $group: &'static [Dtype<'static>] = &[$(Dtype::$variant),*];
            )*

            fn row(self) -> Option<&'static DtypeRow> {
                match self {
                    $($(Self::$variant => Some(const {
                        &DtypeRow {
                            name: $name,
                            block: DtypeBlock { elements: $elements, bytes: $bytes },
                            numpy: $numpy,
                            to_f32: $to_f32,
                            ggml: $ggml,
                            has_scales: $scales,
                        }
                    }),)*)*
                    Self::Unknown(_) => None,
                }
            }
        }
    };
}

// Columns: variant, name, elements in bytes, NumPy name, conversion to float32, number in GGUF files.
dtypes! {
    /// The dtypes of the official safetensors crate, version 0.8.0, in the order of that crate: by alignment.
    SAFETENSORS, scales: false {
        Bool       "BOOL",        1 in 1, Some("|b1"), Some(elements::bool), None;
        F4         "F4",          2 in 1, None,        Some(elements::f4), None;
        F6E2M3     "F6_E2M3",     4 in 3, None,        Some(elements::f6_e2m3), None;
        F6E3M2     "F6_E3M2",     4 in 3, None,        Some(elements::f6_e3m2), None;
        U8         "U8",          1 in 1, Some("|u1"), Some(elements::u8), None;
        I8         "I8",          1 in 1, Some("|i1"), Some(elements::i8), Some(24);
        F8E5M2     "F8_E5M2",     1 in 1, None,        Some(elements::f8_e5m2), None;
        F8E4M3     "F8_E4M3",     1 in 1, None,        Some(elements::f8_e4m3), None;
        F8E8M0     "F8_E8M0",     1 in 1, None,        Some(elements::f8_e8m0), None;
        F8E4M3Fnuz "F8_E4M3FNUZ", 1 in 1, None,        Some(elements::f8_e4m3_fnuz), None;
        F8E5M2Fnuz "F8_E5M2FNUZ", 1 in 1, None,        Some(elements::f8_e5m2_fnuz), None;
        I16        "I16",         1 in 2, Some("<i2"), Some(elements::i16), Some(25);
        U16        "U16",         1 in 2, Some("<u2"), Some(elements::u16), None;
        F16        "F16",         1 in 2, Some("<f2"), Some(elements::f16), Some(1);
        BF16       "BF16",        1 in 2, None,        Some(elements::bf16), Some(30);
        I32        "I32",         1 in 4, Some("<i4"), Some(elements::i32), Some(26);
        U32        "U32",         1 in 4, Some("<u4"), Some(elements::u32), None;
        F32        "F32",         1 in 4, Some("<f4"), Some(elements::f32), Some(0);
        C64        "C64",         1 in 8, Some("<c8"), None, None;
        F64        "F64",         1 in 8, Some("<f8"), Some(elements::f64), Some(28);
        I64        "I64",         1 in 8, Some("<i8"), Some(elements::i64), Some(27);
        U64        "U64",         1 in 8, Some("<u8"), Some(elements::u64), None;
    }

    /// Dtypes in safetensors headers of which only the size is known, because no known writer defines how their
    /// elements are packed into bytes. Their tensors are shown as stored. The official reader (0.8.0) rejects them.
    SIZE_ONLY, scales: false {
        I4         "I4",          2 in 1, None,        None, None;
        U4         "U4",          2 in 1, None,        None, None;
        I2         "I2",          4 in 1, None,        None, None;
    }

    /// The block types of ggml, in the order of their numbers. Numbers are from `ggml.h`, sizes from `ggml-common.h`.
    BLOCK_TYPES, scales: true {
        Q4_0       "Q4_0",      32 in 18, None, Some(ggml::q4_0), Some(2);
        Q4_1       "Q4_1",      32 in 20, None, Some(ggml::q4_1), Some(3);
        Q5_0       "Q5_0",      32 in 22, None, Some(ggml::q5_0), Some(6);
        Q5_1       "Q5_1",      32 in 24, None, Some(ggml::q5_1), Some(7);
        Q8_0       "Q8_0",      32 in 34, None, Some(ggml::q8_0), Some(8);
        Q8_1       "Q8_1",      32 in 36, None, None, Some(9);
        Q2K        "Q2_K",      256 in 84, None, Some(ggml::q2_k), Some(10);
        Q3K        "Q3_K",      256 in 110, None, Some(ggml::q3_k), Some(11);
        Q4K        "Q4_K",      256 in 144, None, Some(ggml::q4_k), Some(12);
        Q5K        "Q5_K",      256 in 176, None, Some(ggml::q5_k), Some(13);
        Q6K        "Q6_K",      256 in 210, None, Some(ggml::q6_k), Some(14);
        Q8K        "Q8_K",      256 in 292, None, Some(ggml::q8_k), Some(15);
        Iq2Xxs     "IQ2_XXS",   256 in 66, None, Some(ggml::iq2_xxs), Some(16);
        Iq2Xs      "IQ2_XS",    256 in 74, None, Some(ggml::iq2_xs), Some(17);
        Iq3Xxs     "IQ3_XXS",   256 in 98, None, Some(ggml::iq3_xxs), Some(18);
        Iq1S       "IQ1_S",     256 in 50, None, Some(ggml::iq1_s), Some(19);
        Iq4Nl      "IQ4_NL",    32 in 18, None, Some(ggml::iq4_nl), Some(20);
        Iq3S       "IQ3_S",     256 in 110, None, Some(ggml::iq3_s), Some(21);
        Iq2S       "IQ2_S",     256 in 82, None, Some(ggml::iq2_s), Some(22);
        Iq4Xs      "IQ4_XS",    256 in 136, None, Some(ggml::iq4_xs), Some(23);
        Iq1M       "IQ1_M",     256 in 56, None, Some(ggml::iq1_m), Some(29);
        Tq1_0      "TQ1_0",     256 in 54, None, Some(ggml::tq1_0), Some(34);
        Tq2_0      "TQ2_0",     256 in 66, None, Some(ggml::tq2_0), Some(35);
        Mxfp4      "MXFP4",     32 in 17, None, Some(ggml::mxfp4), Some(39);
        Nvfp4      "NVFP4",     64 in 36, None, Some(ggml::nvfp4), Some(40);
        Q1_0       "Q1_0",      128 in 18, None, Some(ggml::q1_0), Some(41);
        Q2_0       "Q2_0",      64 in 18, None, Some(ggml::q2_0), Some(42);
    }
}

impl<'a> Dtype<'a> {
    /// The number in [`Dtype::ALL`] of the dtype called `name` in a safetensors header.
    pub(super) fn number_of(name: &str) -> Option<usize> {
        let named = Self::ALL.iter().take(Self::SAFETENSORS.len() + Self::SIZE_ONLY.len());
        named.map(|dtype| dtype.name()).position(|known| known == name)
    }

    /// The dtype called `name` in a safetensors header. Names are case-sensitive.
    pub fn from_name(name: &'a str) -> Self {
        Self::number_of(name).map_or(Self::Unknown(name), |number| Self::ALL[number])
    }

    pub fn from_ggml(number: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|dtype| dtype.ggml() == Some(number))
    }

    /// The number in GGUF files; `None` for dtypes that they cannot hold.
    pub fn ggml(self) -> Option<u32> {
        self.row()?.ggml
    }

    /// The name as written in a header.
    pub fn name(self) -> &'a str {
        match (self, self.row()) {
            (_, Some(row)) => row.name,
            (Self::Unknown(name), None) => name,
            (_, None) => "",
        }
    }

    /// The name for messages. Unknown names are quoted, because they can contain any character.
    pub fn quoted(self) -> String {
        match self {
            Self::Unknown(name) => quote(name),
            known => known.name().to_owned(),
        }
    }

    pub fn block(self) -> Option<DtypeBlock> {
        self.row().map(|row| row.block)
    }

    /// Width of an element in bits; `None` for an unknown dtype, and for block types, whose elements share scales.
    pub fn bits(self) -> Option<u64> {
        let DtypeBlock { elements, bytes } = self.block().filter(|_| !self.has_scales())?;
        Some(bytes * 8 / elements)
    }

    /// Whether the elements of a block share scales that are stored in the block.
    pub fn has_scales(self) -> bool {
        self.row().is_some_and(|row| row.has_scales)
    }

    /// The NumPy name of the same type in little-endian order, if NumPy has that type.
    pub fn numpy(self) -> Option<&'static str> {
        self.row()?.numpy
    }

    /// The conversion of whole blocks to bfloat16, where there is one that does not convert them to float32 first.
    pub fn to_bf16(self) -> Option<ToBf16> {
        match self {
            Self::F32 => Some(bf16::from_f32),
            // Two steps would round twice.
            Self::F64 => Some(bf16::from_f64),
            Self::F8E5M2 => Some(elements::f8_e5m2_to_bf16),
            Self::F8E4M3 => Some(elements::f8_e4m3_to_bf16),
            Self::F8E8M0 => Some(elements::f8_e8m0_to_bf16),
            Self::F8E4M3Fnuz => Some(elements::f8_e4m3_fnuz_to_bf16),
            Self::F8E5M2Fnuz => Some(elements::f8_e5m2_fnuz_to_bf16),
            _ => None,
        }
    }

    /// Whether the elements are integers or booleans, of a known representation.
    pub fn is_integer(self) -> bool {
        use Dtype::{Bool, I8, I16, I32, I64, U8, U16, U32, U64};
        matches!(self, Bool | U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64)
    }

    /// The conversion of whole blocks to float32; `None` for C64, which is complex, and for dtypes that cannot be
    /// decoded.
    pub fn to_f32(self) -> Option<ToF32> {
        self.row()?.to_f32
    }
}

impl fmt::Display for Dtype<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sizes_and_order_match_the_official_crate() {
        let official = |dtype: &Dtype| serde_json::from_value::<safetensors::Dtype>(dtype.name().into()).unwrap();
        for dtype in Dtype::SAFETENSORS {
            assert_eq!(Some(official(dtype).bitsize() as u64), dtype.bits(), "{dtype}");
            assert_eq!(Dtype::from_name(dtype.name()), *dtype);
        }
        assert!(Dtype::SAFETENSORS.windows(2).all(|pair| official(&pair[0]) < official(&pair[1])));
    }

    #[test]
    fn block_is_the_smallest_group_of_whole_bytes() {
        for dtype in Dtype::SAFETENSORS.iter().chain(Dtype::SIZE_ONLY) {
            let DtypeBlock { elements, bytes } = dtype.block().unwrap();
            let bits = dtype.bits().unwrap();
            let smallest = (1..).find(|elements| (bits * elements).is_multiple_of(8)).unwrap();
            assert_eq!((elements, bytes), (smallest, bits * smallest / 8), "{dtype}");
        }
    }

    #[test]
    fn names_are_case_sensitive() {
        assert_eq!(Dtype::from_name("f32"), Dtype::Unknown("f32"));
        let unknown = Dtype::from_name("i4");
        assert_eq!((unknown.name(), unknown.block(), unknown.bits()), ("i4", None, None));
        assert!(unknown.to_f32().is_none() && unknown.numpy().is_none());
    }

    #[test]
    fn dtypes_without_a_known_packing_have_a_size_and_no_values() {
        let sizes = Dtype::SIZE_ONLY.iter().map(|dtype| (dtype.name(), dtype.bits()));
        assert_eq!(sizes.collect::<Vec<_>>(), [("I4", Some(4)), ("U4", Some(4)), ("I2", Some(2))]);
        for dtype in Dtype::SIZE_ONLY {
            assert_eq!(Dtype::from_name(dtype.name()), *dtype);
            assert!(serde_json::from_value::<safetensors::Dtype>(dtype.name().into()).is_err(), "{dtype}");
            assert!(dtype.to_f32().is_none() && dtype.numpy().is_none() && !dtype.has_scales(), "{dtype}");
        }
    }

    #[test]
    fn block_types_are_not_dtypes_of_safetensors() {
        assert_eq!(Dtype::from_name("Q4_0"), Dtype::Unknown("Q4_0"));
        assert_eq!(Dtype::from_ggml(12), Some(Dtype::Q4K));
        assert_eq!((Dtype::from_ggml(4), Dtype::from_ggml(43), Dtype::U8.ggml()), (None, None, None));
        // 5 and 9 bits an element with the scales, but no element has that width.
        assert_eq!((Dtype::Q4_1.bits(), Dtype::Q8_1.bits()), (None, None));
        assert!(Dtype::Q4_1.has_scales() && !Dtype::F6E2M3.has_scales());
        let numbers: Vec<u32> = Dtype::ALL.iter().filter_map(|dtype| dtype.ggml()).collect();
        for (at, number) in numbers.iter().enumerate() {
            assert!(!numbers[at + 1..].contains(number), "{number}");
        }
    }
}
