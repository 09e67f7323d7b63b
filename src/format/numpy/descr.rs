//! The dtype of an array, as its header describes it.
//!
//! Source: `numpy/lib/format.py`, `dtype_to_descr` and `descr_to_dtype`, and "The array interface protocol" of NumPy,
//! `typestr`.

use super::literal::PythonLiteral;
use crate::format::dtype::Dtype;
use crate::format::error::Error;
use crate::text::{quote, shorten};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayDescr {
    /// The dtype in little-endian order, if the table of dtypes has it.
    pub known: Option<Dtype<'static>>,
    /// The dtype as in the header, or for big-endian order the same dtype in little-endian order: `<f4`.
    pub name: String,
    pub item: u64,
    /// Width in bytes of the numbers that are in big-endian order. Those in records keep their order.
    pub swapped: Option<u64>,
}

/// Longest name of a dtype that is not in the table, in bytes. Only a structured dtype has a longer one.
const NAME_MAX: usize = 1000;

const OBJECTS: &str = "Python objects, which are stored as a pickle that weightfs does not run (load it with \
                       numpy.load(..., allow_pickle=True) if you trust its origin, and save an array of numbers)";

#[derive(Debug)]
enum DescrFault {
    Unknown,
    Objects,
}

impl ArrayDescr {
    pub fn new(literal: &PythonLiteral) -> Result<Self, Error> {
        let mut name = String::new();
        match literal {
            PythonLiteral::Text(text) => name.push_str(text),
            other => other.print(&mut name),
        }
        let item = descr_size(literal).map_err(|fault| match fault {
            DescrFault::Unknown => {
                Error::Unsupported(format!("dtype {} is not known", quote(&shorten(&name, NAME_MAX))))
            }
            DescrFault::Objects => Error::Unsupported(OBJECTS.to_owned()),
        })?;
        let text = if let PythonLiteral::Text(text) = literal { text.as_bytes() } else { &[] };
        let (order, kind) = match text {
            [order @ (b'<' | b'>' | b'|' | b'='), kind @ ..] => (*order, kind),
            kind => (b'=', kind),
        };
        let kind = if kind == b"?" { b"b1" } else { kind };
        // Files were written on machines of both orders; NumPy writes the native order as `<` or `>`.
        let known = Dtype::ALL.iter().find(|dtype| dtype.numpy().is_some_and(|numpy| numpy.as_bytes()[1..] == *kind));
        let width = match kind.first() {
            Some(b'c') => item / 2,
            // UTF-32.
            Some(b'U') => 4,
            Some(b'i' | b'u' | b'f' | b'M' | b'm') => item,
            _ => 1,
        };
        let swapped = Some(width).filter(|width| order == b'>' && *width > 1);
        let name = match swapped {
            Some(_) => format!("<{}", String::from_utf8_lossy(kind)),
            None => shorten(&name, NAME_MAX).into_owned(),
        };
        Ok(Self { known: known.copied(), name, item, swapped })
    }
}

/// The size of an element in bytes of a dtype with this name, if it is the description of a dtype in a header.
pub fn element_size(name: &str) -> Option<u64> {
    if !name.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
        return None;
    }
    let literal =
        if name.starts_with('[') { PythonLiteral::parse(name).ok()? } else { PythonLiteral::Text(name.to_owned()) };
    descr_size(&literal).ok()
}

/// Whether a dtype is one that only NumPy has: texts, dates, records, and wide numbers.
pub fn is_own(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Unknown(name) if name.starts_with("[(") || element_size(name).is_some())
}

/// Whether a text is the unit of a date: `ns`, or `25s`.
fn is_unit(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'/')
}

fn descr_size(literal: &PythonLiteral) -> Result<u64, DescrFault> {
    match literal {
        PythonLiteral::Text(text) => simple_size(text),
        PythonLiteral::List(fields) => fields.iter().try_fold(0u64, |sum, field| {
            let PythonLiteral::Tuple(field) = field else { return Err(DescrFault::Unknown) };
            let (dtype, count) = match &field[..] {
                [name, dtype] if is_name(name) => (dtype, Some(1)),
                [name, dtype, shape] if is_name(name) => (dtype, descr_count(shape)),
                _ => return Err(DescrFault::Unknown),
            };
            let size = descr_size(dtype)?;
            let end = count.and_then(|count| sum.checked_add(size.checked_mul(count)?));
            end.ok_or(DescrFault::Unknown)
        }),
        _ => Err(DescrFault::Unknown),
    }
}

/// Whether a literal is the name of a field, or its title and its name.
fn is_name(literal: &PythonLiteral) -> bool {
    match literal {
        PythonLiteral::Text(_) => true,
        PythonLiteral::Tuple(parts) => matches!(&parts[..], [PythonLiteral::Text(_), PythonLiteral::Text(_)]),
        _ => false,
    }
}

/// Number of elements of a field with a shape of its own.
fn descr_count(shape: &PythonLiteral) -> Option<u64> {
    match shape {
        PythonLiteral::Integer(count) => Some(*count),
        tuple => tuple.numbers()?.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim)),
    }
}

/// Size of an element of a dtype that is not structured, in bytes: a byte order, a letter, and a size.
fn simple_size(text: &str) -> Result<u64, DescrFault> {
    let kind = text.strip_prefix(['<', '>', '|', '=']).unwrap_or(text);
    let mut chars = kind.chars();
    let letter = chars.next().ok_or(DescrFault::Unknown)?;
    // Dates have a unit: `<M8[ns]`.
    let (digits, has_unit) = match chars.as_str().split_once('[') {
        Some((digits, unit)) if unit.strip_suffix(']').is_some_and(is_unit) => (digits, true),
        Some(_) => return Err(DescrFault::Unknown),
        None => (chars.as_str(), false),
    };
    let number = match digits {
        "" => None,
        _ if !digits.bytes().all(|digit| digit.is_ascii_digit()) => return Err(DescrFault::Unknown),
        digits => Some(digits.parse::<u64>().map_err(|_| DescrFault::Unknown)?),
    };
    match (letter, number) {
        _ if has_unit && !matches!(letter, 'M' | 'm') => Err(DescrFault::Unknown),
        ('O', _) => Err(DescrFault::Objects),
        ('?', None) | ('b', Some(1)) => Ok(1),
        ('i' | 'u', Some(size @ (1 | 2 | 4 | 8))) => Ok(size),
        // float128 and float96 are the long double of the processor.
        ('f', Some(size @ (2 | 4 | 8 | 10 | 12 | 16))) => Ok(size),
        ('c', Some(size @ (8 | 16 | 20 | 24 | 32))) => Ok(size),
        ('M' | 'm', Some(8)) => Ok(8),
        ('S' | 'a' | 'V', Some(size)) => Ok(size),
        ('U', Some(size)) => size.checked_mul(4).ok_or(DescrFault::Unknown),
        _ => Err(DescrFault::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descr(text: &str) -> Result<ArrayDescr, Error> {
        ArrayDescr::new(&PythonLiteral::parse(text).unwrap())
    }

    #[test]
    fn dtypes_have_the_sizes_of_numpy() {
        use Dtype::{Bool, C64, F16, F32, I8, I64, U16};
        for (text, known, item, swapped) in [
            ("'<f4'", Some(F32), 4, None),
            ("'>f4'", Some(F32), 4, Some(4)),
            ("'=f4'", Some(F32), 4, None),
            ("'f4'", Some(F32), 4, None),
            ("'>i8'", Some(I64), 8, Some(8)),
            ("'>u2'", Some(U16), 2, Some(2)),
            ("'>f2'", Some(F16), 2, Some(2)),
            ("'>c8'", Some(C64), 8, Some(4)),
            ("'|b1'", Some(Bool), 1, None),
            ("'?'", Some(Bool), 1, None),
            ("'>i1'", Some(I8), 1, None),
            ("'<c16'", None, 16, None),
            ("'>f16'", None, 16, Some(16)),
            ("'>c16'", None, 16, Some(8)),
            ("'>M8[ns]'", None, 8, Some(8)),
            ("'|S7'", None, 7, None),
            ("'|S0'", None, 0, None),
            ("'>U3'", None, 12, Some(4)),
            ("'<M8[ns]'", None, 8, None),
            ("'<m8'", None, 8, None),
            ("'|V3'", None, 3, None),
            ("[('a', '<f4'), ('b', '|u1', (2, 3)), ('', '|V2')]", None, 12, None),
            ("[(('title', 'a'), [('x', '>i2')], 5)]", None, 10, None),
            ("[]", None, 0, None),
        ] {
            let found = descr(text).unwrap();
            assert_eq!((found.known, found.item, found.swapped), (known, item, swapped), "{text}");
        }
        assert_eq!(descr("[('a','<f4')]").unwrap().name, "[('a', '<f4')]");
        assert_eq!(descr("'<M8[ns]'").unwrap().name, "<M8[ns]");
        assert_eq!(descr("'>U3'").unwrap().name, "<U3");
    }

    #[test]
    fn names_of_dtypes_in_headers_have_sizes() {
        let cases =
            [("<U3", Some(12)), ("[('a', '<f4')]", Some(4)), ("|O", None), ("F99", None), ("[('é', '<f4')]", None)];
        for (name, size) in cases {
            assert_eq!(element_size(name), size, "{name}");
        }
    }

    #[test]
    fn objects_and_unknown_dtypes_are_refused() {
        for text in ["'|O'", "'O8'", "[('a', '<f4'), ('b', [('c', '|O')])]"] {
            assert_eq!(descr(text), Err(Error::Unsupported(OBJECTS.to_owned())), "{text}");
        }
        let most = u64::MAX;
        for text in [
            "''",
            "'<'",
            "'f3'",
            "'<f'",
            "'x4'",
            "'<f4x'",
            "'<M8[ns'",
            "'<M8[]'",
            "'<M8[a,b]'",
            "'<f4[ns]'",
            "1",
            "None",
            "('<f4', (2,))",
            "[('a',)]",
            "[(1, '<f4')]",
            "['<f4']",
            "[('a', '<f4', 'b')]",
            &format!("'U{most}'"),
            &format!("[('a', 'S{most}'), ('b', 'S1')]"),
            &format!("[('a', 'S3', {most})]"),
        ] {
            let error = descr(text).unwrap_err();
            assert!(matches!(&error, Error::Unsupported(fault) if fault.ends_with(" is not known")), "{text}: {error}");
        }
        // NumPy has no byte order for a long name, so it can only be structured.
        let long = format!("[{}]", "('a', '<f4'), ".repeat(1000));
        assert!(descr(&long).unwrap().name.len() <= NAME_MAX + 40);
    }
}
