//! A file of one array.

use super::array;
use super::{MAGIC, NPY, UNNAMED};
use crate::format::error::Error;
use crate::format::header::{Header, HeaderBuilder, ParseMode};
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::lint::HeaderLint;
use crate::rules::CheckRule;
use std::ops::Range;

pub fn is_npy(input: &HeaderInput) -> Result<bool, MissingRange> {
    Ok(input.get(0..MAGIC.len() as u64)? == MAGIC)
}

pub fn parse_npy(input: &HeaderInput, mode: ParseMode) -> Result<Header, Error> {
    let array = array::read_array_header(input, &(0..input.len()));
    let array = array.map_err(|error| error.map_part(|fault| Error::Broken(format!("NumPy array: {fault}"))))?;
    let (Range { start, end }, len) = (array.range.clone(), input.len());
    if end > len && mode == ParseMode::Strict {
        return Err(Error::data_cut(end, len));
    }
    let mut builder = HeaderBuilder::new(mode);
    builder.version(array.version.into());
    if end > len && mode == ParseMode::Lenient {
        builder.skip(UNNAMED, || array::outside(&array.range, len));
    } else {
        array.push(UNNAMED, &mut builder);
    }
    // One name is never repeated.
    builder.finish(NPY, None, start, "")
}

pub fn lint_npy(header: &Header, input: &HeaderInput, found: &mut dyn FnMut(HeaderLint)) -> Result<(), MissingRange> {
    let end = header.data_end();
    let more = input.len().saturating_sub(end);
    if more > 0 {
        let next = input.get(end..end + MAGIC.len() as u64)?;
        let what = if next == MAGIC { ", which begin with another array" } else { "" };
        let message = format!("{more} bytes after the array{what}; only the first array of a file is read");
        found(HeaderLint::new(CheckRule::Trailing, None, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with this version, header and number of bytes of data.
    fn file(version: u8, dict: &str, data: usize) -> Vec<u8> {
        let len = dict.len();
        let length =
            if version == 1 { (len as u16).to_le_bytes().to_vec() } else { (len as u32).to_le_bytes().to_vec() };
        [MAGIC, &[version, 0], &length, dict.as_bytes(), &vec![7; data]].concat()
    }

    fn read(file: &[u8], mode: ParseMode) -> Result<Header, Error> {
        parse_npy(&HeaderInput::with_prefix(file.len() as u64, file.to_vec()), mode)
    }

    const DICT: &str = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";

    #[test]
    fn all_versions_are_read() {
        for (version, start) in [(1, 10), (2, 12), (3, 12)] {
            let header = read(&file(version, DICT, 24), ParseMode::Strict).unwrap();
            let tensor = header.tensor(0);
            let start = start + DICT.len() as u64;
            assert_eq!((tensor.name, tensor.dtype.name(), tensor.shape), (UNNAMED, "F32", &[2, 3][..]));
            assert_eq!((tensor.range, header.data_start), (start..start + 24, start));
            assert_eq!(header.version, Some(version.into()));
        }
        // Latin-1, and UTF-8.
        let latin = b"{'descr': [('\xe9', '<f4')], 'fortran_order': False, 'shape': ()}";
        let latin = [MAGIC, b"\x01\0", &[latin.len() as u8, 0], latin, &[0; 4]].concat();
        let utf8 = file(3, "{'descr': [('\u{e9}', '<f4')], 'fortran_order': False, 'shape': ()}", 4);
        for file in [latin, utf8] {
            assert_eq!(read(&file, ParseMode::Strict).unwrap().tensor(0).dtype.name(), "[('\u{e9}', '<f4')]");
        }
    }

    #[test]
    fn only_a_part_of_the_file_is_needed() {
        let whole = file(1, DICT, 24);
        let mut input = HeaderInput::new(whole.len() as u64);
        let mut asked = 0;
        let header = loop {
            match parse_npy(&input, ParseMode::Strict) {
                Err(Error::Missing(MissingRange(range))) => {
                    assert!(range.end <= 10 + DICT.len() as u64, "{range:?}");
                    input.add(range.start, whole[range.start as usize..range.end as usize].to_vec());
                    asked += 1;
                }
                parsed => break parsed.unwrap(),
            }
        };
        assert_eq!((asked, header.len()), (2, 1));
    }

    #[test]
    fn hostile_files_are_refused() {
        let dict = |descr: &str, order: &str, shape: &str| {
            file(1, &format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}"), 24)
        };
        let most = i64::MAX;
        let cases = [
            (file(4, DICT, 24), "version 4 of the array format"),
            (file(0, DICT, 24), "version 0 of the array format"),
            (MAGIC.to_vec(), "does not begin with the magic number"),
            (file(1, DICT, 0)[..11].to_vec(), "truncated: its header goes on to byte 69, but it ends at byte 11"),
            (file(2, DICT, 0)[..11].to_vec(), "truncated: its header goes on to byte 12, but it ends at byte 11"),
            (
                [MAGIC, b"\x02\0\xff\xff\xff\xff"].concat(),
                "its header has 4294967295 bytes; weightfs reads at most 1048576",
            ),
            (file(3, "\u{e9}", 0)[..13].to_vec(), "truncated"),
            (file(1, DICT, 23), "truncated: the data ends at byte 93, but the file ends at byte 92; 1 bytes missing"),
            (file(1, "(1,)", 0), "its header is not a dict"),
            (file(1, "__import__('os').system('id')", 0), "not a Python literal: neither a string"),
            (file(1, "{}", 0), "its header has no descr"),
            (file(1, "{'descr': '<f4', 'shape': ()}", 0), "its header has no fortran_order"),
            (file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (), 'x': 1}", 4), "the unknown key \"x\""),
            (dict("'<f4'", "0", "(6,)"), "fortran_order is neither True nor False"),
            (dict("'<f4'", "False", "6"), "the shape is not a tuple of whole numbers"),
            (dict("'<f4'", "False", "('6',)"), "the shape is not a tuple of whole numbers"),
            (dict("'<f4'", "False", "(-6,)"), "not a Python literal"),
            (dict("'<f3'", "False", "(6,)"), "dtype \"<f3\" is not known"),
            (dict("'>U1073741824'", "False", "(0, 6)"), "elements of 4294967296 bytes in Fortran order or with"),
            (
                dict("'|V65537'", "True", "(2, 2)"),
                "elements of 65537 bytes in Fortran order or with reversed bytes; at most",
            ),
            (dict("'|O'", "False", "(6,)"), "Python objects, which are stored as a pickle"),
            (dict("'<f8'", "False", &format!("({most},)")), "more than 2^63-1 elements or bytes"),
            (dict("'|u1'", "False", &format!("({most}, {most})")), "more than 2^63-1 elements or bytes"),
            (dict("'|u1'", "False", &format!("({most},)")), "more than 2^63-1 elements or bytes"),
            (dict("'|u1'", "False", "(18446744073709551615, 0)"), "more than 2^63-1 elements or bytes"),
        ];
        for (file, expected) in cases {
            let error = read(&file, ParseMode::Strict).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}\n{expected}");
        }
    }

    #[test]
    fn cut_array_is_left_out_in_lenient_mode() {
        let file = file(1, DICT, 20);
        let header = read(&file, ParseMode::Lenient).unwrap();
        assert_eq!((header.len(), header.skipped.total()), (0, 1));
        let skipped = &header.skipped.listed()[0];
        assert_eq!(skipped.reason, "its data takes bytes 69 to 93, but the file ends at byte 89");
        assert_eq!(read(&file, ParseMode::Header).unwrap().len(), 1);
    }

    #[test]
    fn bytes_after_the_array_are_reported() {
        let file = |more: &[u8]| [&file(1, DICT, 24), more].concat();
        for (more, expected) in [
            (&b""[..], None),
            (b"abc", Some("3 bytes after the array; only")),
            (b"\x93NUMPY\x01", Some("7 bytes after the array, which begin with another array; only")),
        ] {
            let file = file(more);
            let input = HeaderInput::with_prefix(file.len() as u64, file.clone());
            let mut found = Vec::new();
            lint_npy(&parse_npy(&input, ParseMode::Strict).unwrap(), &input, &mut |lint| found.push(lint.message))
                .unwrap();
            assert_eq!(found.len(), usize::from(expected.is_some()));
            assert!(found.iter().all(|message| message.starts_with(expected.unwrap())), "{found:?}");
        }
    }
}
