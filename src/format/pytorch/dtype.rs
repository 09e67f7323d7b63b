//! The dtypes of PyTorch.

/// A dtype: its name here, the size of an element in bytes, and the width of the numbers in an element, whose bytes are
/// in the byte order of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TorchDtype {
    pub name: &'static str,
    pub size: u32,
    pub word: u8,
}

const fn dtype_number(name: &'static str, size: u32) -> TorchDtype {
    TorchDtype { name, size, word: size as u8 }
}

const UNTYPED: TorchDtype = dtype_number("U8", 1);

/// Pairs of 4-bit numbers. The shape counts pairs.
pub const F4_PAIR: &str = "F4";

/// The storage classes, by the names before `Storage`, and the dtypes with the names that they have in `torch`.
/// Source: `torch/storage.py`, `_dtype_to_storage_type_map`, and `torch/_utils.py`, `_rebuild_tensor_v3`.
const TYPES: [(&str, &str, TorchDtype); 29] = [
    ("Float", "float32", dtype_number("F32", 4)),
    ("Double", "float64", dtype_number("F64", 8)),
    ("Half", "float16", dtype_number("F16", 2)),
    ("BFloat16", "bfloat16", dtype_number("BF16", 2)),
    ("Long", "int64", dtype_number("I64", 8)),
    ("Int", "int32", dtype_number("I32", 4)),
    ("Short", "int16", dtype_number("I16", 2)),
    ("Char", "int8", dtype_number("I8", 1)),
    ("Byte", "uint8", dtype_number("U8", 1)),
    ("Bool", "bool", dtype_number("BOOL", 1)),
    ("ComplexFloat", "complex64", TorchDtype { name: "C64", size: 8, word: 4 }),
    ("ComplexDouble", "complex128", TorchDtype { name: "C128", size: 16, word: 8 }),
    ("QInt8", "qint8", dtype_number("I8", 1)),
    ("QUInt8", "quint8", dtype_number("U8", 1)),
    ("QInt32", "qint32", dtype_number("I32", 4)),
    ("", "uint16", dtype_number("U16", 2)),
    ("", "uint32", dtype_number("U32", 4)),
    ("", "uint64", dtype_number("U64", 8)),
    ("", "complex32", TorchDtype { name: "C32", size: 4, word: 2 }),
    ("", "float8_e5m2", dtype_number("F8_E5M2", 1)),
    ("", "float8_e4m3fn", dtype_number("F8_E4M3", 1)),
    ("", "float8_e8m0fnu", dtype_number("F8_E8M0", 1)),
    ("", "float8_e4m3fnuz", dtype_number("F8_E4M3FNUZ", 1)),
    ("", "float8_e5m2fnuz", dtype_number("F8_E5M2FNUZ", 1)),
    ("", "float4_e2m1fn_x2", dtype_number(F4_PAIR, 1)),
    ("", "bits8", dtype_number("BITS8", 1)),
    ("", "bits16", dtype_number("BITS16", 2)),
    // Several elements share a byte, and the shape counts elements.
    ("QUInt4x2", "quint4x2", TorchDtype { name: "", size: 0, word: 0 }),
    ("QUInt2x4", "quint2x4", TorchDtype { name: "", size: 0, word: 0 }),
];

pub fn of_storage(module: &str, name: &str) -> Option<TorchDtype> {
    if module == "torch.storage" && name == "UntypedStorage" {
        return Some(UNTYPED);
    }
    let stem = name.strip_suffix("Storage").filter(|stem| !stem.is_empty())?;
    let row = TYPES.iter().find(|row| row.0 == stem)?;
    ["torch", "torch.cuda"].contains(&module).then_some(row.2)
}

/// The dtype `torch.NAME`.
pub fn of_name(module: &str, name: &str) -> Option<TorchDtype> {
    let row = TYPES.iter().find(|row| row.1 == name)?;
    (module == "torch").then_some(row.2)
}
