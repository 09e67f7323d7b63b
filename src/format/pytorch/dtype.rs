//! The dtypes of PyTorch.

/// A dtype: its name here, the size of an element in bytes, and the width of the numbers in an element, whose bytes are
/// in the byte order of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Type {
    pub name: &'static str,
    pub size: u32,
    pub word: u8,
}

const fn number(name: &'static str, size: u32) -> Type {
    Type { name, size, word: size as u8 }
}

/// Bytes without a type.
const UNTYPED: Type = number("U8", 1);

/// Pairs of 4-bit numbers. The shape counts pairs.
pub const F4_PAIR: &str = "F4";

/// The storage classes, by the names before `Storage`, and the dtypes with the names that they have in `torch`.
/// Source: `torch/storage.py`, `_dtype_to_storage_type_map`, and `torch/_utils.py`, `_rebuild_tensor_v3`.
const TYPES: [(&str, &str, Type); 29] = [
    ("Float", "float32", number("F32", 4)),
    ("Double", "float64", number("F64", 8)),
    ("Half", "float16", number("F16", 2)),
    ("BFloat16", "bfloat16", number("BF16", 2)),
    ("Long", "int64", number("I64", 8)),
    ("Int", "int32", number("I32", 4)),
    ("Short", "int16", number("I16", 2)),
    ("Char", "int8", number("I8", 1)),
    ("Byte", "uint8", number("U8", 1)),
    ("Bool", "bool", number("BOOL", 1)),
    ("ComplexFloat", "complex64", Type { name: "C64", size: 8, word: 4 }),
    ("ComplexDouble", "complex128", Type { name: "C128", size: 16, word: 8 }),
    ("QInt8", "qint8", number("I8", 1)),
    ("QUInt8", "quint8", number("U8", 1)),
    ("QInt32", "qint32", number("I32", 4)),
    ("", "uint16", number("U16", 2)),
    ("", "uint32", number("U32", 4)),
    ("", "uint64", number("U64", 8)),
    ("", "complex32", Type { name: "C32", size: 4, word: 2 }),
    ("", "float8_e5m2", number("F8_E5M2", 1)),
    ("", "float8_e4m3fn", number("F8_E4M3", 1)),
    ("", "float8_e8m0fnu", number("F8_E8M0", 1)),
    ("", "float8_e4m3fnuz", number("F8_E4M3FNUZ", 1)),
    ("", "float8_e5m2fnuz", number("F8_E5M2FNUZ", 1)),
    ("", "float4_e2m1fn_x2", number(F4_PAIR, 1)),
    ("", "bits8", number("BITS8", 1)),
    ("", "bits16", number("BITS16", 2)),
    // Several elements share a byte, and the shape counts elements.
    ("QUInt4x2", "quint4x2", Type { name: "", size: 0, word: 0 }),
    ("QUInt2x4", "quint2x4", Type { name: "", size: 0, word: 0 }),
];

/// The dtype of a storage class.
pub fn of_storage(module: &str, name: &str) -> Option<Type> {
    if module == "torch.storage" && name == "UntypedStorage" {
        return Some(UNTYPED);
    }
    let stem = name.strip_suffix("Storage").filter(|stem| !stem.is_empty())?;
    let row = TYPES.iter().find(|row| row.0 == stem)?;
    ["torch", "torch.cuda"].contains(&module).then_some(row.2)
}

/// The dtype `torch.NAME`.
pub fn of_name(module: &str, name: &str) -> Option<Type> {
    let row = TYPES.iter().find(|row| row.1 == name)?;
    (module == "torch").then_some(row.2)
}
