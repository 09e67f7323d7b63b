//! Element types: knows their names and widths in a file, not how to turn them into numbers.

use crate::text::quote;
use std::fmt;

/// The type of a tensor's elements, by the name that the file uses.
///
/// The 22 known ones are those of the official safetensors crate, version 0.8.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the field's own")]
pub enum Dtype<'a> {
    Bool,
    F4,
    F6E2M3,
    F6E3M2,
    U8,
    I8,
    F8E5M2,
    F8E4M3,
    F8E8M0,
    F8E4M3Fnuz,
    F8E5M2Fnuz,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
    /// A name that weightfs does not know: such a tensor has bytes, but no known element width.
    Unknown(&'a str),
}

/// Each known dtype with its name and the width of an element in bits, in the official order, which is that of
/// alignment.
pub(super) const KNOWN: [(Dtype<'static>, &str, u64); 22] = [
    (Dtype::Bool, "BOOL", 8),
    (Dtype::F4, "F4", 4),
    (Dtype::F6E2M3, "F6_E2M3", 6),
    (Dtype::F6E3M2, "F6_E3M2", 6),
    (Dtype::U8, "U8", 8),
    (Dtype::I8, "I8", 8),
    (Dtype::F8E5M2, "F8_E5M2", 8),
    (Dtype::F8E4M3, "F8_E4M3", 8),
    (Dtype::F8E8M0, "F8_E8M0", 8),
    (Dtype::F8E4M3Fnuz, "F8_E4M3FNUZ", 8),
    (Dtype::F8E5M2Fnuz, "F8_E5M2FNUZ", 8),
    (Dtype::I16, "I16", 16),
    (Dtype::U16, "U16", 16),
    (Dtype::F16, "F16", 16),
    (Dtype::BF16, "BF16", 16),
    (Dtype::I32, "I32", 32),
    (Dtype::U32, "U32", 32),
    (Dtype::F32, "F32", 32),
    (Dtype::C64, "C64", 64),
    (Dtype::F64, "F64", 64),
    (Dtype::I64, "I64", 64),
    (Dtype::U64, "U64", 64),
];

/// Every known dtype.
#[cfg(test)]
pub(crate) const ALL: [Dtype<'static>; KNOWN.len()] = {
    let mut all = [Dtype::Bool; KNOWN.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = KNOWN[at].0;
        at += 1;
    }
    all
};

impl<'a> Dtype<'a> {
    /// The dtype of that name; names are case-sensitive.
    pub fn from_name(name: &'a str) -> Self {
        KNOWN.iter().find(|known| known.1 == name).map_or(Self::Unknown(name), |known| known.0)
    }

    /// The name as it stands in a header.
    pub fn name(self) -> &'a str {
        match self {
            Self::Unknown(name) => name,
            _ => self.known().map_or("", |known| known.1),
        }
    }

    /// The name for a message: one that is not known may be anything.
    pub fn quoted(self) -> String {
        match self {
            Self::Unknown(name) => quote(name),
            known => known.name().to_owned(),
        }
    }

    /// Width of one element in bits; `None` where the dtype is unknown.
    pub fn bits(self) -> Option<u64> {
        self.known().map(|known| known.2)
    }

    fn known(self) -> Option<&'static (Dtype<'static>, &'static str, u64)> {
        KNOWN.iter().find(|known| known.0 == self)
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
    fn names_and_widths_are_those_of_the_official_crate() {
        for (dtype, name, bits) in KNOWN {
            let official: safetensors::Dtype = serde_json::from_value(name.into()).unwrap();
            assert_eq!(official.bitsize() as u64, bits, "{name}");
            assert_eq!(Dtype::from_name(name), dtype);
            assert_eq!(dtype.name(), name);
        }
        assert!(KNOWN.windows(2).all(|pair| {
            let official = |at: usize| serde_json::from_value::<safetensors::Dtype>(pair[at].1.into()).unwrap();
            official(0) < official(1)
        }));
    }

    #[test]
    fn names_are_case_sensitive() {
        assert_eq!(Dtype::from_name("f32"), Dtype::Unknown("f32"));
        assert_eq!(Dtype::from_name("I4").name(), "I4");
        assert_eq!(Dtype::from_name("I4").bits(), None);
    }
}
