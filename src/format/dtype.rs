//! Element types: one table with the name, size and conversion of each.

use crate::codec::elements::{self, ToF32};
use crate::text::quote;
use std::fmt;

/// The smallest group of elements that takes a whole number of bytes. Loops over data step by blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Elements in a block.
    pub elements: u64,
    /// Bytes of a block.
    pub bytes: u64,
}

/// The properties of a known dtype.
#[derive(Debug)]
struct Row {
    name: &'static str,
    block: Block,
    numpy: Option<&'static str>,
    to_f32: Option<ToF32>,
}

/// Defines the enum and its table from one row per dtype.
macro_rules! dtypes {
    ($($variant:ident $name:literal, $elements:literal in $bytes:literal, $numpy:expr, $to_f32:expr;)*) => {
        /// The type of a tensor's elements.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "the variants are the usual names of dtypes")]
        pub enum Dtype<'a> {
            $($variant,)*
            /// A name that is not in the table. Such a tensor has bytes, but no known block size.
            Unknown(&'a str),
        }

        impl Dtype<'_> {
            /// Every known dtype, in the order of the table.
            pub const ALL: &'static [Dtype<'static>] = &[$(Dtype::$variant),*];

            fn row(self) -> Option<&'static Row> {
                match self {
                    $(Self::$variant => Some(const {
                        &Row {
                            name: $name,
                            block: Block { elements: $elements, bytes: $bytes },
                            numpy: $numpy,
                            to_f32: $to_f32,
                        }
                    }),)*
                    Self::Unknown(_) => None,
                }
            }
        }
    };
}

// The dtypes of the official safetensors crate, version 0.8.0, in the order of that crate: by alignment.
// Columns: variant, name in a header, elements in bytes, NumPy name, conversion to float32.
dtypes! {
    Bool       "BOOL",        1 in 1, Some("|b1"), Some(elements::bool);
    F4         "F4",          2 in 1, None,        Some(elements::f4);
    F6E2M3     "F6_E2M3",     4 in 3, None,        Some(elements::f6_e2m3);
    F6E3M2     "F6_E3M2",     4 in 3, None,        Some(elements::f6_e3m2);
    U8         "U8",          1 in 1, Some("|u1"), Some(elements::u8);
    I8         "I8",          1 in 1, Some("|i1"), Some(elements::i8);
    F8E5M2     "F8_E5M2",     1 in 1, None,        Some(elements::f8_e5m2);
    F8E4M3     "F8_E4M3",     1 in 1, None,        Some(elements::f8_e4m3);
    F8E8M0     "F8_E8M0",     1 in 1, None,        Some(elements::f8_e8m0);
    F8E4M3Fnuz "F8_E4M3FNUZ", 1 in 1, None,        Some(elements::f8_e4m3_fnuz);
    F8E5M2Fnuz "F8_E5M2FNUZ", 1 in 1, None,        Some(elements::f8_e5m2_fnuz);
    I16        "I16",         1 in 2, Some("<i2"), Some(elements::i16);
    U16        "U16",         1 in 2, Some("<u2"), Some(elements::u16);
    F16        "F16",         1 in 2, Some("<f2"), Some(elements::f16);
    BF16       "BF16",        1 in 2, None,        Some(elements::bf16);
    I32        "I32",         1 in 4, Some("<i4"), Some(elements::i32);
    U32        "U32",         1 in 4, Some("<u4"), Some(elements::u32);
    F32        "F32",         1 in 4, Some("<f4"), Some(elements::f32);
    C64        "C64",         1 in 8, Some("<c8"), None;
    F64        "F64",         1 in 8, Some("<f8"), Some(elements::f64);
    I64        "I64",         1 in 8, Some("<i8"), Some(elements::i64);
    U64        "U64",         1 in 8, Some("<u8"), Some(elements::u64);
}

impl<'a> Dtype<'a> {
    /// The dtype called `name`. Names are case-sensitive.
    pub fn from_name(name: &'a str) -> Self {
        Self::ALL.iter().copied().find(|dtype| dtype.name() == name).unwrap_or(Self::Unknown(name))
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

    /// The block of elements; `None` for an unknown dtype.
    pub fn block(self) -> Option<Block> {
        self.row().map(|row| row.block)
    }

    /// Width of an element in bits; `None` for an unknown dtype, or if that is not a whole number.
    pub fn bits(self) -> Option<u64> {
        let Block { elements, bytes } = self.block()?;
        (bytes * 8).is_multiple_of(elements).then_some(bytes * 8 / elements)
    }

    /// The NumPy name of the same type in little-endian order, if NumPy has that type.
    pub fn numpy(self) -> Option<&'static str> {
        self.row()?.numpy
    }

    /// The conversion of whole blocks to float32; `None` for C64, which is complex, and for an unknown dtype.
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
        for dtype in Dtype::ALL {
            assert_eq!(Some(official(dtype).bitsize() as u64), dtype.bits(), "{dtype}");
            assert_eq!(Dtype::from_name(dtype.name()), *dtype);
        }
        assert!(Dtype::ALL.windows(2).all(|pair| official(&pair[0]) < official(&pair[1])));
    }

    #[test]
    fn block_is_the_smallest_group_of_whole_bytes() {
        for dtype in Dtype::ALL {
            let Block { elements, bytes } = dtype.block().unwrap();
            let bits = dtype.bits().unwrap();
            let smallest = (1..).find(|elements| (bits * elements).is_multiple_of(8)).unwrap();
            assert_eq!((elements, bytes), (smallest, bits * smallest / 8), "{dtype}");
        }
    }

    #[test]
    fn names_are_case_sensitive() {
        assert_eq!(Dtype::from_name("f32"), Dtype::Unknown("f32"));
        let unknown = Dtype::from_name("I4");
        assert_eq!((unknown.name(), unknown.block(), unknown.bits()), ("I4", None, None));
        assert!(unknown.to_f32().is_none() && unknown.numpy().is_none());
    }
}
