//! The safetensors parser against the official crate: the same verdict and the same tensors on every header, with the
//! intended differences listed here.
#![allow(clippy::panic, reason = "that is how a test fails")]

use proptest::prelude::*;
use weightfs::format::safetensors::{Error, Fault, parse};
use weightfs::format::{Dtype, Header, Mode};

/// 8 bytes of length, the header, and `data` zeros.
fn file(header: &[u8], data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.resize(file.len() + data, 0);
    file
}

/// The names at the top of the header with their repetitions, as plain serde_json reads them.
fn names(header: &[u8]) -> Vec<String> {
    struct Keys(Vec<String>);
    impl<'de> serde::Deserialize<'de> for Keys {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Keys;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("an object")
                }
                fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                    let mut keys = Vec::new();
                    while let Some((key, _)) = map.next_entry::<String, serde::de::IgnoredAny>()? {
                        keys.push(key);
                    }
                    Ok(Keys(keys))
                }
            }
            deserializer.deserialize_map(Visitor)
        }
    }
    serde_json::from_slice(header).map_or(Vec::new(), |keys: Keys| keys.0)
}

fn repeats(mut names: Vec<String>) -> bool {
    names.sort();
    names.windows(2).any(|pair| pair[0] == pair[1])
}

/// Panics where the two readers differ and should not; says whether the file was valid for the official one.
fn compare(header: &[u8], data: usize) -> bool {
    let file = file(header, data);
    let ours = parse(&file, file.len() as u64, Mode::Strict);
    let official = safetensors::SafeTensors::read_metadata(&file);
    let text = || String::from_utf8_lossy(header).into_owned();
    match (&ours, &official) {
        (Ok(ours), Ok((_, official))) => same(ours, official, header.len() as u64 + 8),
        (Err(_), Err(_)) => {}
        // Intended: the official reader keeps the last of a repeated name.
        (Err(_), Ok(_)) if repeats(names(header)) => {}
        // Intended: a dtype of tomorrow is no error.
        (Ok(ours), Err(official)) if !ours.unknown_dtypes().is_empty() => {
            assert!(official.to_string().contains("unknown variant"), "{official} {}", text());
        }
        (Err(ours), Ok(_)) => panic!("refused: {ours}\n{}", text()),
        (Ok(_), Err(official)) => panic!("accepted: {official}\n{}", text()),
    }
    lenient_is_sound(&file, ours.as_ref().ok());
    official.is_ok()
}

fn same(ours: &Header, official: &safetensors::tensor::Metadata, data_start: u64) {
    let tensors = official.tensors();
    assert_eq!(ours.len(), tensors.len());
    for tensor in ours.tensors() {
        let theirs = tensors[tensor.name];
        assert_eq!(tensor.dtype.name(), theirs.dtype.to_string());
        assert_eq!(tensor.shape, theirs.shape.iter().map(|dim| *dim as u64).collect::<Vec<_>>());
        let (begin, end) = theirs.data_offsets;
        assert_eq!(tensor.range, begin as u64 + data_start..end as u64 + data_start);
        assert_eq!(ours.find(tensor.name).map(|found| ours.name(found)), Some(tensor.name));
    }
    let ranges: Vec<_> = ours.tensors().map(|tensor| (tensor.range.start, tensor.range.end)).collect();
    assert!(ranges.is_sorted());
    let theirs = official.metadata().clone().unwrap_or_default();
    let metadata: std::collections::HashMap<_, _> = ours.metadata().iter().cloned().collect();
    assert_eq!(metadata.len(), ours.metadata().len());
    assert_eq!(metadata, theirs);
    assert!(ours.metadata().is_sorted());
}

/// Lenient reading keeps every tensor of a valid file, and of any file only those that lie inside it, each name once.
fn lenient_is_sound(file: &[u8], strict: Option<&Header>) {
    let Ok(lenient) = parse(file, file.len() as u64, Mode::Lenient) else {
        assert!(strict.is_none(), "lenient refuses what strict takes");
        return;
    };
    for (index, tensor) in lenient.tensors().enumerate() {
        assert!(tensor.range.start <= tensor.range.end && tensor.range.end <= file.len() as u64);
        assert_eq!(lenient.find(tensor.name), Some(index));
        if let Some(bits) = tensor.dtype.bits() {
            assert_eq!(tensor.shape.iter().product::<u64>() * bits, tensor.nbytes() * 8);
        }
    }
    if let Some(strict) = strict {
        assert!(lenient.skipped().is_empty());
        assert!(strict.tensors().eq(lenient.tensors()));
        assert_eq!(strict.metadata(), lenient.metadata());
    }
}

/// JSON that stands where it should not, serde's side doors among it.
fn odd_value() -> impl Strategy<Value = String> {
    let fixed = prop::sample::select(vec![
        "null",
        "true",
        "0",
        "-0",
        "-1",
        "1.0",
        "1e2",
        "1e999999",
        "-1e999999",
        "18446744073709551615",
        "18446744073709551616",
        "9223372036854775808",
        "\"\"",
        "\"U8\"",
        "\"x\"",
        r#""\u0041""#,
        r#""\ud800""#,
        r#""\ud83d\ude00""#,
        "\"\t\"",
        r#""\x""#,
        "[]",
        "{}",
        "[0]",
        "[0,1]",
        "[0,1,2]",
        "[[0,1]]",
        r#"{"a":1}"#,
        r#"{"U8":null}"#,
        r#"{"U8":{}}"#,
        r#"{"U8":[]}"#,
        r#"{"U8":1}"#,
        r#"{"U8":null,"U8":null}"#,
        r#"{"I4":null}"#,
        r#"{"\u0055\u0038":null}"#,
        r#"["U8",[2],[0,2]]"#,
        r#"{"dtype":"U8","shape":[],"data_offsets":[0,1]}"#,
        "01",
        "+1",
        ".5",
        "1.",
        "NaN",
        "[1,]",
        "{,}",
        "'a'",
        "tru",
    ])
    .prop_map(str::to_owned);
    let deep = (120usize..132, any::<bool>()).prop_map(|(depth, array)| {
        let (open, close) = if array { ("[", "]") } else { (r#"{"a":"#, "}") };
        format!("{}{}{}", open.repeat(depth), if array { "" } else { "1" }, close.repeat(depth))
    });
    prop_oneof![12 => fixed, 1 => deep]
}

fn name() -> impl Strategy<Value = String> {
    let odd = prop::sample::select(vec![
        "",
        ".",
        "..",
        "/",
        "a/b",
        "a.b",
        "a",
        r"\u0061",
        r"\u0000",
        r"\ud83d\ude00",
        r"\ud800",
        "__metadata__",
        r"\u005f_metadata__",
        "日本",
        "dtype",
        "a\u{7f}",
        r"\n",
        "\n",
    ]);
    prop_oneof![6 => "[a-z]{1,3}(\\.[0-9a-z]{1,2}){0,2}", 1 => odd.prop_map(str::to_owned)]
}

fn dtype() -> impl Strategy<Value = (&'static str, u64)> {
    prop::sample::select(vec![
        ("BOOL", 8),
        ("F4", 4),
        ("F6_E2M3", 6),
        ("F6_E3M2", 6),
        ("U8", 8),
        ("I8", 8),
        ("F8_E5M2", 8),
        ("F8_E4M3", 8),
        ("F8_E8M0", 8),
        ("F8_E4M3FNUZ", 8),
        ("F8_E5M2FNUZ", 8),
        ("I16", 16),
        ("U16", 16),
        ("F16", 16),
        ("BF16", 16),
        ("I32", 32),
        ("U32", 32),
        ("F32", 32),
        ("C64", 64),
        ("F64", 64),
        ("I64", 64),
        ("U64", 64),
        ("I4", 4),
        ("f32", 32),
    ])
}

/// What an entry is made of; sizes and offsets are filled in so that they fit, before something is broken.
#[derive(Debug, Clone)]
struct Entry {
    name: String,
    dtype: (&'static str, u64),
    shape: Vec<u64>,
    form: Form,
    extra: Option<String>,
}

#[derive(Debug, Clone)]
enum Form {
    Object,
    Array,
    EnumDtype,
    /// One field, by number, holds another value.
    Odd(usize, String),
    /// The whole value is another.
    OddEntry(String),
    Missing(usize),
    Twice(usize),
    FourElements,
    /// The offsets moved by so much at the beginning and at the end.
    Moved(i64, i64),
}

fn entry() -> impl Strategy<Value = Entry> {
    let dim = prop_oneof![
        20 => 0u64..5,
        1 => prop::sample::select(vec![8, 1 << 31, 1 << 32, 1 << 60, 1 << 61, 1 << 63, u64::MAX]),
    ];
    let form = prop_oneof![
        24 => Just(Form::Object),
        3 => Just(Form::Array),
        2 => Just(Form::EnumDtype),
        2 => (0usize..3, odd_value()).prop_map(|(field, value)| Form::Odd(field, value)),
        1 => odd_value().prop_map(Form::OddEntry),
        1 => (0usize..3).prop_map(Form::Missing),
        1 => (0usize..3).prop_map(Form::Twice),
        1 => Just(Form::FourElements),
        2 => (-3i64..4, -3i64..4).prop_map(|(begin, end)| Form::Moved(begin, end)),
    ];
    let extra = prop::option::weighted(0.1, odd_value());
    (name(), dtype(), prop::collection::vec(dim, 0..4), form, extra)
        .prop_map(|(name, dtype, shape, form, extra)| Entry { name, dtype, shape, form, extra })
}

impl Entry {
    /// The entry as JSON and the offset at which its data ends.
    fn render(&self, begin: u64) -> (String, u64) {
        let bits = self.shape.iter().try_fold(self.dtype.1, |bits, dim| bits.checked_mul(*dim)).unwrap_or(8);
        let end = begin.saturating_add(bits / 8);
        let offsets = match self.form {
            Form::Moved(by, to) => [begin.saturating_add_signed(by), end.saturating_add_signed(to)],
            _ => [begin, end],
        };
        let mut values =
            [format!("{:?}", self.dtype.0), format!("{:?}", self.shape), format!("[{},{}]", offsets[0], offsets[1])];
        if matches!(self.form, Form::EnumDtype) {
            values[0] = format!("{{{:?}:null}}", self.dtype.0);
        }
        if let Form::Odd(field, value) = &self.form {
            values[*field] = value.clone();
        }
        let mut fields: Vec<String> = ["dtype", "shape", "data_offsets"]
            .iter()
            .zip(&values)
            .map(|(key, value)| format!("{key:?}:{value}"))
            .collect();
        match self.form {
            Form::Missing(field) => drop(fields.remove(field)),
            Form::Twice(field) => fields.push(fields[field].clone()),
            _ => {}
        }
        if let Some(extra) = &self.extra {
            fields.insert(0, format!("\"extra\":{extra}"));
        }
        let value = match &self.form {
            Form::Array => format!("[{}]", values.join(",")),
            Form::FourElements => format!("[{},0]", values.join(",")),
            Form::OddEntry(value) => value.clone(),
            _ => format!("{{{}}}", fields.join(",")),
        };
        (format!("\"{}\":{value}", self.name), end)
    }
}

/// A header and the length of the data that it describes.
fn header() -> impl Strategy<Value = (String, u64)> {
    let metadata = prop_oneof![
        6 => Just(None),
        2 => Just(Some(r#"{"format":"pt","b":"\u0000","a":"x","format":"np"}"#.to_owned())),
        1 => odd_value().prop_map(Some),
        1 => odd_value().prop_map(|value| Some(format!("{{\"k\":{value}}}"))),
    ];
    let space = prop::sample::select(vec!["", "", "", " ", "\n", "\t", "\r", "   ", "\0", "\u{feff}"]);
    (metadata, prop::collection::vec(entry(), 0..6), any::<prop::sample::Index>(), space.clone(), space).prop_map(
        |(metadata, entries, order, before, after)| {
            let mut end = 0;
            let mut members = Vec::new();
            for entry in &entries {
                let (text, next) = entry.render(end);
                members.push(text);
                end = next;
            }
            if !members.is_empty() {
                // The order of the header need not be that of the data.
                members.rotate_left(order.index(entries.len()));
            }
            if let Some(metadata) = metadata {
                members.insert(order.index(members.len() + 1), format!("\"__metadata__\":{metadata}"));
            }
            (format!("{before}{{{}}}{after}", members.join(",")), end)
        },
    )
}

/// A change of bytes, blind to the structure.
#[derive(Debug, Clone)]
enum Mutation {
    Replace(prop::sample::Index, u8),
    Insert(prop::sample::Index, u8),
    Remove(prop::sample::Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let byte = prop_oneof![prop::sample::select(b"{}[]\",:0123456789-.eE\\ \n\tutfn_".to_vec()), any::<u8>()];
    prop_oneof![
        (any::<prop::sample::Index>(), byte.clone()).prop_map(|(at, byte)| Mutation::Replace(at, byte)),
        (any::<prop::sample::Index>(), byte).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        any::<prop::sample::Index>().prop_map(Mutation::Remove),
    ]
}

fn mutate(header: &mut Vec<u8>, mutation: &Mutation) {
    match mutation {
        Mutation::Replace(at, byte) => {
            let at = at.index(header.len().max(1));
            if let Some(place) = header.get_mut(at) {
                *place = *byte;
            }
        }
        Mutation::Insert(at, byte) => header.insert(at.index(header.len() + 1), *byte),
        Mutation::Remove(at) if !header.is_empty() => drop(header.remove(at.index(header.len()))),
        Mutation::Remove(_) => {}
    }
}

/// Runs `cases` generated headers and returns how many of them the official reader took.
fn run<S: Strategy<Value = (Vec<u8>, usize)>>(cases: u32, strategy: S) -> u32 {
    let valid = std::cell::Cell::new(0);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let result = runner.run(&strategy, |(header, data)| {
        valid.set(valid.get() + u32::from(compare(&header, data)));
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(proptest::test_runner::TestError::Fail(reason, (header, data))) => {
            panic!("{reason}\n{} with {data} bytes of data", header.escape_ascii())
        }
        Err(aborted) => panic!("{aborted}"),
    }
    valid.get()
}

const CASES: u32 = 150_000;

#[test]
fn generated_headers_get_the_official_verdict() {
    let data = |end: u64, off: i64| if end < 1 << 20 { (end as i64 + off).max(0) as usize } else { 16 };
    let off = prop_oneof![12 => Just(0i64), 1 => -2i64..3];
    let valid = run(CASES, (header(), off).prop_map(move |((text, end), off)| (text.into_bytes(), data(end, off))));
    // A generator of broken headers only, or of whole ones only, would show little.
    assert!((CASES / 10..CASES * 9 / 10).contains(&valid), "{valid} of {CASES} were valid");
}

#[test]
fn mutated_headers_get_the_official_verdict() {
    let valid = run(
        CASES,
        (header(), prop::collection::vec(mutation(), 1..3)).prop_map(|((text, end), mutations)| {
            let mut header = text.into_bytes();
            mutations.iter().for_each(|mutation| mutate(&mut header, mutation));
            (header, if end < 1 << 20 { end as usize } else { 16 })
        }),
    );
    assert!(valid > CASES / 100, "{valid} of {CASES} were valid");
}

#[test]
fn what_facts_say_is_accepted_and_refused() {
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
    // Sums that overflow 64 bits.
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
fn a_repeated_name_is_an_error_that_names_it() {
    let header = r#"{"a.b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a\u002eb":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let file = file(header.as_bytes(), 1);
    let error = parse(&file, file.len() as u64, Mode::Strict).unwrap_err();
    assert_eq!(error, Error::Tensor { name: "a.b".into(), fault: Fault::Duplicate });
    let lenient = parse(&file, file.len() as u64, Mode::Lenient).unwrap();
    assert_eq!((lenient.len(), lenient.skipped().len()), (1, 1));
}

#[test]
fn an_unknown_dtype_keeps_its_bytes_and_its_name() {
    let header = r#"{"a":{"dtype":"I4","shape":[3,3],"data_offsets":[0,5]},"b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}}"#;
    let file = file(header.as_bytes(), 6);
    let header = parse(&file, file.len() as u64, Mode::Strict).unwrap();
    assert_eq!(header.tensor(0).dtype, Dtype::Unknown("I4"));
    assert_eq!(header.tensor(0).nbytes(), 5);
    assert_eq!(header.unknown_dtypes(), ["I4"]);
}

#[test]
fn a_header_is_asked_for_in_pieces() {
    let file = file(br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, 1);
    let len = file.len() as u64;
    assert_eq!(parse(&[], len, Mode::Strict).unwrap_err(), Error::Incomplete { needed: 8 });
    assert_eq!(parse(&file[..7], len, Mode::Strict).unwrap_err(), Error::Incomplete { needed: 8 });
    for end in 8..file.len() - 1 {
        assert_eq!(parse(&file[..end], len, Mode::Strict).unwrap_err(), Error::Incomplete { needed: len - 1 });
    }
    // The data itself is not needed.
    assert!(parse(&file[..file.len() - 1], len, Mode::Strict).is_ok());
}
