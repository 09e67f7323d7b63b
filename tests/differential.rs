//! The safetensors parser and the official crate give the same verdict and the same tensors for every header, except
//! for the intended differences in `headers/official.rs`.
#![allow(clippy::panic, reason = "tests fail by panicking")]

mod headers;

use arbitrary::Unstructured;
use headers::official::{compare, file, parse};
use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};
use weightfs::format::safetensors;
use weightfs::format::{Dtype, Error, HeaderInput, MissingRange, ParseMode};

/// A header, and the number of bytes of data after it.
type Case = (Vec<u8>, usize);

/// Compares `cases` headers that `make` makes from random bytes; returns how many of them the official reader accepts.
fn run(cases: u32, make: fn(&mut Unstructured) -> arbitrary::Result<Case>) -> u32 {
    let make = |bytes: &[u8]| make(&mut Unstructured::new(bytes)).unwrap_or_default();
    let valid = std::cell::Cell::new(0);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let result = TestRunner::new(config).run(&prop::collection::vec(any::<u8>(), 32..160), |bytes| {
        let (header, data) = make(&bytes);
        valid.set(valid.get() + u32::from(compare(&header, data)));
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, bytes)) => {
            let (header, data) = make(&bytes);
            panic!("{reason}\n{} with {data} bytes of data", header.escape_ascii())
        }
        Err(aborted) => panic!("{aborted}"),
    }
    valid.get()
}

const CASES: u32 = 150_000;

#[test]
fn generated_headers_match_the_official_reader() {
    let valid = run(CASES, headers::header);
    // The generator makes both valid and broken headers.
    assert!((CASES / 10..CASES * 9 / 10).contains(&valid), "{valid} of {CASES} were valid");
}

#[test]
fn mutated_headers_match_the_official_reader() {
    let valid = run(CASES, |bytes| {
        let (mut header, data) = headers::header(bytes)?;
        for _ in 0..bytes.int_in_range(1..=2)? {
            headers::mutate(bytes, &mut header)?;
        }
        Ok((header, data))
    });
    assert!(valid > CASES / 100, "{valid} of {CASES} were valid");
}

#[test]
fn known_headers_match_the_official_reader() {
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let with = |extra: &str| format!(r#"{{"a":{{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":{extra}}}}}"#);
    let shape = |shape: &str| format!(r#"{{"a":{{"dtype":"U8","shape":{shape},"data_offsets":[0,0]}}}}"#);
    let accepted: [(String, usize); 13] = [
        (" \r\n\t{} \n\t\r ".into(), 0),
        (r#"{"__metadata__":null}"#.into(), 0),
        (r#"{"\u005f_metadata__":{}}"#.into(), 0),
        (r#"{"__metadata__":{"a":"1","a":"2"}}"#.into(), 0),
        (r#"{"a":["U8",[2],[0,2]]}"#.into(), 2),
        (r#"{"a":{"dtype":{"U8":null},"shape":[2],"data_offsets":[0,2]}}"#.into(), 2),
        (with(&deep(125)), 2),
        (with(r#"1,"x":2"#), 2),
        (shape("[0,18446744073709551615,3]").replace(",3]", "]"), 0),
        (shape("[0,9223372036854775808,4]"), 0),
        (r#"{"":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]}}"#.into(), 3),
        (r#"{"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#.into(), 2),
        (format!(r#"{{"{}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#, "n".repeat(65_536)), 1),
    ];
    for (header, data) in accepted {
        assert!(compare(header.as_bytes(), data), "{header}");
    }
    let refused: [(String, usize); 12] = [
        ("".into(), 0),
        ("\u{feff}{}".into(), 0),
        ("{}\0".into(), 0),
        (r#"{"__metadata__":{},"__metadata__":{}}"#.into(), 0),
        (r#"{"__metadata__":{"a":1}}"#.into(), 0),
        (with(&deep(126)), 2),
        (with("1e999999"), 2),
        (with(r#""\ud800""#), 2),
        (shape("[9223372036854775808,4,0]"), 0),
        (shape("[-1]"), 0),
        (shape("[0.0]"), 0),
        (r#"{"a":{"dtype":"F4","shape":[],"data_offsets":[0,0]}}"#.into(), 0),
    ];
    for (header, data) in refused {
        assert!(!compare(header.as_bytes(), data), "{header}");
    }
    // The sum of the sizes overflows 64 bits.
    let mut eight = String::from("{");
    for index in 0..8u64 {
        let size = (1u64 << 61) - 1;
        eight += &format!(
            r#""{index}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{},{}]}},"#,
            index * size,
            (index + 1) * size
        );
    }
    eight.pop();
    assert!(!compare(format!("{eight}}}").as_bytes(), 0));
}

#[test]
fn repeated_name_is_an_error_with_the_name() {
    let header = r#"{"a.b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a\u002eb":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let file = file(header.as_bytes(), 1);
    let error = parse(&file, ParseMode::Strict).unwrap_err();
    assert_eq!(error, Error::Tensor { name: "a.b".into(), fault: "the name occurs twice in the header".into() });
    let lenient = parse(&file, ParseMode::Lenient).unwrap();
    assert_eq!((lenient.len(), lenient.skipped.total()), (1, 1));
}

#[test]
fn unknown_dtype_keeps_its_bytes_and_name() {
    let header = r#"{"a":{"dtype":"X4","shape":[3,3],"data_offsets":[0,5]},"b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}}"#;
    let file = file(header.as_bytes(), 6);
    let header = parse(&file, ParseMode::Strict).unwrap();
    assert_eq!(header.tensor(0).dtype, Dtype::Unknown("X4"));
    assert_eq!(header.tensor(0).nbytes, 5);
    assert_eq!(header.unknown_dtypes, ["X4"]);
}

#[test]
fn sizes_of_dtypes_without_values_are_checked_by_their_bits() {
    let parse = |dtype: &str, shape: &str, nbytes: usize| {
        let header = format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{nbytes}]}}}}"#);
        compare(header.as_bytes(), nbytes);
        parse(&file(header.as_bytes(), nbytes), ParseMode::Strict).map_err(|error| error.to_string())
    };
    for (dtype, shape, nbytes) in [("I4", "[3,4]", 6), ("U4", "[2]", 1), ("I2", "[2,2,2]", 2), ("I2", "[0,3]", 0)] {
        let header = parse(dtype, shape, nbytes).unwrap();
        assert_eq!((header.tensor(0).dtype.name(), header.tensor(0).nbytes), (dtype, nbytes as u64));
        assert!(header.unknown_dtypes.is_empty());
        assert_eq!(header.size_only_dtypes().map(|dtype| dtype.name()).collect::<Vec<_>>(), [dtype]);
        let error = parse(dtype, shape, nbytes + 1).unwrap_err();
        assert!(error.contains(&format!("takes {nbytes} bytes, but its data_offsets span {}", nbytes + 1)), "{error}");
    }
    for (dtype, shape, bits) in [("I4", "[3,3]", 36), ("U4", "[1]", 4), ("I2", "[3]", 6)] {
        let error = parse(dtype, shape, 5).unwrap_err();
        assert!(error.contains(&format!("takes {bits} bits")), "{error}");
    }
}

#[test]
fn parser_requests_only_the_header() {
    let file = file(br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, 1);
    let len = file.len() as u64;
    let parse = |end: usize| {
        safetensors::parse_safetensors(&HeaderInput::with_prefix(len, file[..end].to_vec()), ParseMode::Strict)
    };
    for end in 0..8 {
        assert_eq!(parse(end).unwrap_err(), Error::Missing(MissingRange(0..8)));
    }
    for end in 8..file.len() - 1 {
        assert_eq!(parse(end).unwrap_err(), Error::Missing(MissingRange(8..len - 1)));
    }
    // The data itself is not needed.
    assert!(parse(file.len() - 1).is_ok());
}
