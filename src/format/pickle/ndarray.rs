//! Arrays, scalars and dtypes of NumPy in a pickle. Arrays are named; scalars are read.
//!
//! Source: `numpy/_core/src/multiarray/methods.c`, `array_reduce`, `scalartypes.c.src`, `gentype_reduce`, and
//! `descriptor.c`, `arraydescr_reduce`, of NumPy 2.4.

use super::tree::{PickleObject, PickleTree, PickleValue};
use crate::format::metadata::{ScalarType, float_text};
use crate::text::brackets;

/// The modules of the functions that build arrays and scalars.
const MODULES: [&str; 4] =
    ["numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric"];

/// A dtype: its name, its kind and size in bytes as in `f4`, and whether its numbers are in big-endian order.
struct NdarrayDtype {
    name: String,
    code: String,
    is_big_endian: bool,
}

/// An object in one line, with its type. `None` if it is not of NumPy, or an array of Python objects.
pub fn describe_ndarray(tree: &PickleTree, object: &PickleObject) -> Option<(ScalarType, String)> {
    let (module, name) = tree.global(object.class)?;
    let string = |text: String| Some((ScalarType::String, text));
    let args = tree.elements(object.args);
    match (name, args) {
        ("dtype", _) if module == "numpy" => string(format!("numpy.{}", dtype(tree, object)?.name)),
        _ if !MODULES.contains(&module) => None,
        ("_reconstruct", [class, ..]) => {
            let [_, shape, dtype, _, data] = tree.elements(object.state) else { return None };
            let class = tree.global(*class)?;
            array(tree, class, *dtype, *shape).filter(|_| !matches!(data, PickleValue::List(_))).and_then(string)
        }
        ("_frombuffer", [_, dtype, shape, ..]) => array(tree, ("numpy", "ndarray"), *dtype, *shape).and_then(string),
        ("scalar", [of, data]) => {
            let dtype = dtype(tree, tree.object(*of)?)?;
            let value = bytes(tree, *data).and_then(|bytes| scalar(&dtype, bytes));
            value.or_else(|| string(format!("<numpy.{}>", dtype.name)))
        }
        _ => None,
    }
}

/// Whether a value is an array, whose elements are in the pickle.
pub fn is_ndarray(tree: &PickleTree, value: PickleValue) -> bool {
    let Some(object) = tree.object(value) else { return false };
    let builds =
        |(module, name): (&str, &str)| MODULES.contains(&module) && ["_reconstruct", "_frombuffer"].contains(&name);
    tree.global(object.class).is_some_and(builds) && describe_ndarray(tree, object).is_some()
}

fn array(tree: &PickleTree, (module, name): (&str, &str), of: PickleValue, shape: PickleValue) -> Option<String> {
    let dtype = dtype(tree, tree.object(of)?)?;
    let dim = |dim: &PickleValue| if let PickleValue::Int(dim) = dim { u64::try_from(*dim).ok() } else { None };
    let shape = tree.elements(shape);
    // NumPy has at most 64 dimensions.
    let shape = if shape.len() > 64 { None } else { shape.iter().map(dim).collect::<Option<Vec<u64>>>() };
    Some(format!("<{module}.{name} {} {}>", dtype.name, brackets(&shape?)))
}

fn dtype(tree: &PickleTree, object: &PickleObject) -> Option<NdarrayDtype> {
    (tree.global(object.class)? == ("numpy", "dtype")).then_some(())?;
    let code = tree.text(*tree.elements(object.args).first()?)?;
    // The longest code is that of a text, such as `U1000`.
    (code.len() <= 32).then_some(())?;
    let order = tree.elements(object.state).get(1).and_then(|order| tree.text(*order));
    let bits = |size: &str| size.parse::<u32>().ok().and_then(|size| size.checked_mul(8));
    let (kind, size) = code.split_at_checked(1)?;
    let word = match kind {
        "f" => "float",
        "i" => "int",
        "u" => "uint",
        "c" => "complex",
        "b" => "bool",
        "O" => "object",
        _ => "",
    };
    let name = match (word, bits(size)) {
        ("bool" | "object", _) => word.to_owned(),
        ("", _) | (_, None) => code.to_owned(),
        (word, Some(bits)) => format!("{word}{bits}"),
    };
    Some(NdarrayDtype { name, code: code.to_owned(), is_big_endian: order == Some(">") })
}

/// The bytes of a short value. Protocol 2 has no bytes: they are the code points of a text.
fn bytes(tree: &PickleTree, value: PickleValue) -> Option<Vec<u8>> {
    const MOST: usize = 16;
    if let PickleValue::Bytes(span) = value {
        let bytes = tree.bytes(span);
        return (bytes.len() <= MOST).then(|| bytes.to_vec());
    }
    let object = tree.object(value)?;
    (tree.global(object.class)? == ("_codecs", "encode")).then_some(())?;
    let text = tree.text(*tree.elements(object.args).first()?).filter(|text| text.len() <= 2 * MOST)?;
    text.chars().map(|letter| u8::try_from(letter).ok()).collect()
}

fn scalar(dtype: &NdarrayDtype, mut bytes: Vec<u8>) -> Option<(ScalarType, String)> {
    if dtype.is_big_endian {
        bytes.reverse();
    }
    let size = dtype.code.get(1..)?.parse::<usize>().ok()?;
    if size != bytes.len() || size > 8 {
        return None;
    }
    let mut wide = [0; 8];
    wide[..size].copy_from_slice(&bytes);
    let number = u64::from_le_bytes(wide);
    let unused = 64 - 8 * size as u32;
    Some(match (&dtype.code[..1], size) {
        ("f", 8) => (ScalarType::F64, float_text(f64::from_bits(number))),
        ("f", 4) => (ScalarType::F64, float_text(f64::from(f32::from_bits(number as u32)))),
        ("i", 1 | 2 | 4 | 8) => (ScalarType::I64, (number << unused).cast_signed().wrapping_shr(unused).to_string()),
        ("u", 1 | 2 | 4) => (ScalarType::I64, number.to_string()),
        ("u", 8) => (ScalarType::U64, number.to_string()),
        ("b", 1) => (ScalarType::Bool, (number != 0).to_string()),
        _ => return None,
    })
}
