//! Models that are built field by field.

use super::*;
use crate::format::error::Error;
use crate::format::header::{Header, ParseMode};
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::table::parse_header;

fn varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn bytes(field: u64, bytes: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

/// A tensor of this dtype and shape, and other fields.
fn tensor(name: &str, dtype: u64, dims: &[u64], rest: &[u8]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|dim| number(1, *dim)).collect();
    [dims, number(2, dtype), bytes(8, name.as_bytes()), rest.to_vec()].concat()
}

/// A model with these fields of its graph.
fn model(graph: &[u8]) -> Vec<u8> {
    [number(1, 10), bytes(7, graph)].concat()
}

/// A model with one initializer.
fn one(tensor: &[u8]) -> Vec<u8> {
    model(&bytes(5, tensor))
}

fn read(file: &[u8], mode: ParseMode) -> Result<Header, Error> {
    let mut input = HeaderInput::new(file.len() as u64);
    loop {
        match parse_header(&input, mode) {
            Err(Error::Missing(MissingRange(range))) => {
                input.add(range.start, file[range.start as usize..range.end as usize].to_vec());
            }
            parsed => return parsed,
        }
    }
}

fn names(file: &[u8]) -> Vec<String> {
    read(file, ParseMode::Strict).unwrap().tensors().map(|tensor| tensor.name.to_owned()).collect()
}

const F32: u64 = 1;
const RAW: &[u8] = &[1, 2, 3, 4];

#[test]
fn data_of_tensors_is_not_read() {
    // Two tensors of 1 GiB, which are holes, between short fields.
    let size = 1u64 << 30;
    let head = |name: &str| {
        let fields = [tensor(name, F32, &[size / 4], b""), varint(9 << 3 | 2), varint(size)].concat();
        [varint(5 << 3 | 2), varint(fields.len() as u64 + size), fields].concat()
    };
    let (a, b) = (head("a"), head("b"));
    let graph = a.len() as u64 + b.len() as u64 + 2 * size;
    let start = [number(1, 10), varint(7 << 3 | 2), varint(graph), a].concat();
    let len = start.len() as u64 + size + b.len() as u64 + size;
    let parts = [(0, &start), (start.len() as u64 + size, &b)];
    let mut input = HeaderInput::new(len);
    let header = loop {
        match parse_header(&input, ParseMode::Strict) {
            Err(Error::Missing(MissingRange(range))) => {
                let mut read = vec![0; (range.end - range.start) as usize];
                for (at, bytes) in parts {
                    for (offset, byte) in bytes.iter().enumerate() {
                        if let Some(to) = (at + offset as u64).checked_sub(range.start)
                            && to < read.len() as u64
                        {
                            read[to as usize] = *byte;
                        }
                    }
                }
                input.add(range.start, read);
            }
            parsed => break parsed.unwrap(),
        }
    };
    let ranges: Vec<_> = header.tensors().map(|tensor| (tensor.name, tensor.range)).collect();
    let first = start.len() as u64;
    assert_eq!(ranges, [("a", first..first + size), ("b", len - size..len)]);
    assert!(input.held() < 64 << 10, "{}", input.held());
}

#[test]
fn values_are_ranges_or_decoded() {
    let floats = bytes(4, &[0; 8]);
    let header = read(&one(&tensor("w", F32, &[2], &floats)), ParseMode::Strict).unwrap();
    assert_eq!((header.tensor(0).nbytes, header.format), (8, NAME));
    let decoded = |dtype: u64, dims: &[u64], fields: &[u8]| {
        let file = one(&tensor("w", dtype, dims, fields));
        let input = HeaderInput::with_prefix(file.len() as u64, file);
        let model = read_onnx(&input, ParseMode::Strict).unwrap();
        match &model.tensors[0].1.data {
            OnnxData::Decoded(bytes) => bytes.to_vec(),
            other => panic!("{other:?}"),
        }
    };
    let minus = varint(u64::MAX);
    assert_eq!(decoded(6, &[2], &bytes(5, &[minus.clone(), varint(7)].concat())), [255, 255, 255, 255, 7, 0, 0, 0]);
    assert_eq!(decoded(3, &[2], &[number(5, u64::MAX), number(5, 3)].concat()), [255, 3]);
    assert_eq!(decoded(10, &[1], &number(5, 0x3c00)), [0, 0x3c]);
    assert_eq!(decoded(22, &[3], &bytes(5, &[0x21, 3])), [0x21, 3]);
    assert_eq!(decoded(12, &[1], &number(11, 0xffff_ffff)), [255; 4]);
    assert_eq!(decoded(7, &[1], &bytes(7, &minus)), [255; 8]);
    // Numbers of fixed size in several parts.
    assert_eq!(
        decoded(F32, &[3], &[bytes(4, &[1; 8]), vec![4 << 3 | 5, 2, 2, 2, 2]].concat()),
        [&[1; 8][..], &[2; 4]].concat()
    );
    // An odd number of elements that share bytes has no values.
    let odd = read(&one(&tensor("w", 23, &[3], &bytes(9, &[1, 2]))), ParseMode::Strict).unwrap();
    assert_eq!((odd.tensor(0).dtype.name(), odd.tensor(0).dtype.block()), ("F4", None));
    let even = read(&one(&tensor("w", 23, &[4], &bytes(9, &[1, 2]))), ParseMode::Strict).unwrap();
    assert!(even.tensor(0).dtype.block().is_some());
}

#[test]
fn names_are_those_of_initializers_and_constants() {
    let raw = bytes(9, RAW);
    let initializer = |name: &str| bytes(5, &tensor(name, F32, &[1], &raw));
    let attribute =
        |name: &str| bytes(5, &[bytes(1, name.as_bytes()), bytes(5, &tensor("", F32, &[1], &raw))].concat());
    let node = |output: &str, op: &str, rest: &[u8]| {
        bytes(1, &[bytes(2, output.as_bytes()), bytes(3, b"node"), rest.to_vec(), bytes(4, op.as_bytes())].concat())
    };
    let constant = |output: &str| node(output, "Constant", &attribute("value"));
    let others =
        [node("x", "ConstantOfShape", &attribute("value")), node("y", "Constant", &attribute("sparse"))].concat();
    assert_eq!(names(&model(&[constant("k"), initializer("w"), others].concat())), ["k", "w"]);
    // Graphs in attributes: a name that another graph has gets the path.
    let branch = |name: &str, graph: &[u8]| bytes(5, &[bytes(1, name.as_bytes()), bytes(6, graph)].concat());
    let inner =
        [branch("then", &[constant("w"), initializer("a")].concat()), branch("else", &initializer("a"))].concat();
    let file = model(&[node("out", "If", &inner), initializer("w")].concat());
    assert_eq!(names(&file), ["node.then/w", "a", "node.else/a", "w"]);
    let twice = model(&[initializer("w"), constant("w")].concat());
    let error = read(&twice, ParseMode::Strict).unwrap_err().to_string();
    assert_eq!(error, "tensor \"w\": another tensor of its graph has the same name");
    assert_eq!(read(&twice, ParseMode::Lenient).unwrap().len(), 1);
    // Functions, training and sparse tensors.
    let sparse = bytes(
        15,
        &[bytes(1, &tensor("s", F32, &[1], &raw)), bytes(2, &tensor("", 7, &[1], &bytes(9, &[0; 8])))].concat(),
    );
    let node_of_function = bytes(7, &constant("k")[2..]);
    let function = bytes(25, &[bytes(1, b"f"), node_of_function].concat());
    let training = bytes(20, &bytes(1, &initializer("w")));
    let file = [model(&[sparse, initializer("w")].concat()), function, training].concat();
    assert_eq!(names(&file), ["s.values", "s.indices", "w", "k", "training/w"]);
    let metadata = bytes(14, &[bytes(1, b"author"), bytes(2, b"me")].concat());
    let header = read(&[model(&initializer("w")), metadata].concat(), ParseMode::Strict).unwrap();
    assert_eq!(header.value_text("author"), "me");
}

#[test]
fn every_dtype_is_read() {
    let dtypes = [
        (1, "F32", 32, 0),
        (2, "U8", 8, 5),
        (3, "I8", 8, 5),
        (4, "U16", 16, 5),
        (5, "I16", 16, 5),
        (6, "I32", 32, 5),
        (7, "I64", 64, 7),
        (9, "BOOL", 8, 5),
        (10, "F16", 16, 5),
        (11, "F64", 64, 0),
        (12, "U32", 32, 11),
        (13, "U64", 64, 11),
        (14, "C64", 64, 0),
        (15, "C128", 128, 0),
        (16, "BF16", 16, 5),
        (17, "F8_E4M3", 8, 5),
        (18, "F8_E4M3FNUZ", 8, 5),
        (19, "F8_E5M2", 8, 5),
        (20, "F8_E5M2FNUZ", 8, 5),
        (21, "U4", 4, 5),
        (22, "I4", 4, 5),
        (23, "F4", 4, 5),
        (24, "F8_E8M0", 8, 5),
        (25, "U2", 2, 5),
        (26, "I2", 2, 5),
        (27, "F6_E2M3", 6, 5),
        (28, "F6_E3M2", 6, 5),
    ];
    for (dtype, name, bits, field) in dtypes {
        // The first count fills whole bytes.
        for elements in [4u64, 3] {
            let nbytes = (elements * bits).div_ceil(8);
            let data: Vec<u8> = (0..nbytes).map(|byte| byte as u8 + 1).collect();
            let file = one(&tensor("w", dtype, &[elements], &bytes(9, &data)));
            let header = read(&file, ParseMode::Strict).unwrap();
            let found = header.tensor(0);
            assert_eq!((found.dtype.name(), found.nbytes), (name, nbytes));
            assert_eq!(&file[found.range.start as usize..found.range.end as usize], data);
            let is_known = found.dtype.block().is_some();
            assert!(is_known || elements == 3 && bits < 8 || ["C128", "U2"].contains(&name), "{name} {elements}");
            if field > 0 {
                // Each number has the low bytes of an element, or a byte of elements that share it.
                let width = (bits as usize / 8).max(1);
                let numbers = data
                    .chunks(width)
                    .flat_map(|part| varint(part.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))));
                let decoded =
                    decoded(&one(&tensor("w", dtype, &[elements], &bytes(field, &numbers.collect::<Vec<_>>()))));
                assert_eq!(decoded, data, "{name}");
            }
        }
    }
}

/// The bytes of the only tensor of a file, which are decoded.
fn decoded(file: &[u8]) -> Vec<u8> {
    let mut input = HeaderInput::new(file.len() as u64);
    loop {
        match read_onnx(&input, ParseMode::Strict) {
            Err(Error::Missing(MissingRange(range))) => {
                input.add(range.start, file[range.start as usize..range.end as usize].to_vec());
            }
            model => match &model.unwrap().tensors[..] {
                [(_, OnnxTensor { data: OnnxData::Decoded(bytes), .. })] => return bytes.to_vec(),
                other => panic!("{other:?}"),
            },
        }
    }
}

#[test]
fn numbers_in_many_parts_are_decoded() {
    // Parts that are not neighbours, so that each is a read of its own.
    let parts: Vec<Vec<u8>> = (0..200u64).map(|part| vec![part as u8; 8 << 10]).collect();
    let fields = parts.iter().flat_map(|part| [bytes(4, part), bytes(99, &[0; 5 << 10])].concat()).collect::<Vec<_>>();
    let file = one(&tensor("w", F32, &[200 << 11], &fields));
    assert_eq!(decoded(&file), parts.concat());
}

#[test]
fn what_is_decoded_is_limited() {
    let most = 8u64 << 20;
    let scalar = bytes(5, &tensor("s", F32, &[], &bytes(9, RAW)));
    // A dimension counts too.
    let with = |numbers: u64| {
        let decoded = bytes(5, &tensor("w", 3, &[numbers], &bytes(5, &vec![1; numbers as usize])));
        read(&model(&[decoded, scalar.clone()].concat()), ParseMode::Strict)
    };
    assert_eq!(with(most - 1).unwrap().tensor(0).name, "s");
    let error = with(most).unwrap_err().to_string();
    assert!(error.contains("more than 8388608 numbers"), "{error}");
    let half = bytes(4, &vec![0; most as usize * 2 + 4]);
    let error = read(&one(&tensor("w", F32, &[most + 2], &half.repeat(2))), ParseMode::Strict).unwrap_err().to_string();
    assert!(error.contains("more than 8388608 numbers"), "{error}");
    // Values of the metadata without text, and numbers of fixed size that are parts of their own.
    let empty = [model(&scalar), b"\x72\0".repeat((1 << 20) - 1)].concat();
    assert!(read(&empty, ParseMode::Strict).is_ok());
    let error = read(&[&empty[..], &b"\x72\0".repeat(2)].concat(), ParseMode::Strict).unwrap_err().to_string();
    assert!(error.contains("or all of them have more than 134217728"), "{error}");
    let single = [4 << 3 | 5, 0, 0, 0, 0].repeat(most as usize / 2);
    let error = read(&one(&tensor("w", F32, &[most / 2], &single)), ParseMode::Strict).unwrap_err().to_string();
    assert!(error.contains("more than 8388608 numbers"), "{error}");
    let name = "n".repeat(1025);
    let place = bytes(13, &[bytes(1, b"location"), bytes(2, name.as_bytes())].concat());
    let error = read(&one(&tensor("w", F32, &[1], &[place, number(14, 1)].concat())), ParseMode::Strict).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor \"w\": the location of its external data has 1025 bytes; at most 1024 are read"
    );
}

#[test]
fn names_of_several_graphs_never_collide() {
    let initializer = |name: &str| bytes(5, &tensor(name, F32, &[1], &bytes(9, RAW)));
    let branch = |field: u64, names: &[&str]| {
        let graphs: Vec<u8> = names.iter().flat_map(|name| bytes(field, &initializer(name))).collect();
        bytes(1, &[bytes(3, b"node"), bytes(5, &[bytes(1, b"then"), graphs].concat())].concat())
    };
    let main = [initializer("w"), initializer("node.then/w")].concat();
    let cases = [
        ([&main[..], &branch(6, &["w"])].concat(), vec![], ["w", "node.then/w", "node.then/w#2"]),
        ([&initializer("w")[..], &branch(11, &["w", "w"])].concat(), vec![], ["w", "node.then/w", "node.then/w#2"]),
        (
            initializer("w"),
            bytes(20, &[bytes(1, &initializer("w")), bytes(2, &initializer("w"))].concat()),
            ["w", "training/w", "training/w#2"],
        ),
    ];
    for (graph, rest, expected) in cases {
        let file = [model(&graph), rest].concat();
        for mode in [ParseMode::Strict, ParseMode::Lenient] {
            let header = read(&file, mode).unwrap();
            assert_eq!(header.tensors().map(|tensor| tensor.name.to_owned()).collect::<Vec<_>>(), expected);
        }
    }
}

#[test]
fn the_last_tensor_with_a_name_is_kept_in_lenient_mode() {
    let with = |data: &[u8]| bytes(5, &tensor("w", F32, &[1], data));
    let external = bytes(5, &tensor("x", F32, &[1], &[place_of("data"), number(14, 1)].concat()));
    for rest in [vec![], external] {
        let file = model(&[with(&bytes(9, RAW)), with(&bytes(9, b"last")), rest].concat());
        let error = read(&file, ParseMode::Strict).unwrap_err().to_string();
        assert_eq!(error, "tensor \"w\": another tensor of its graph has the same name");
        let header = read(&file, ParseMode::Lenient).unwrap();
        assert_eq!(&file[header.tensor(0).range.start as usize..][..4], b"last");
        assert_eq!(header.skipped.listed().iter().filter(|skipped| skipped.name == "w").count(), 1);
    }
}

/// The place of data in another file.
fn place_of(location: &str) -> Vec<u8> {
    bytes(13, &[bytes(1, b"location"), bytes(2, location.as_bytes())].concat())
}

#[test]
fn models_are_recognised_whatever_follows_their_version() {
    let graph = bytes(7, &bytes(5, &tensor("w", F32, &[1], &bytes(9, RAW))));
    let version = number(1, 10);
    let entry = bytes(14, &[bytes(1, b"key"), bytes(2, &[b'v'; 600])].concat());
    let function = bytes(25, &[bytes(1, b"f"), bytes(7, b"")].concat());
    for fields in [[&entry[..], &function], [&bytes(20, b""), &entry], [&function, &entry]] {
        assert_eq!(names(&[&version[..], fields[0], fields[1], &graph].concat()), ["w"]);
    }
}

/// Where the fields of the graph begin in a file of [`model`].
fn graph_start(file: &[u8]) -> usize {
    let len = file[3..].iter().position(|byte| *byte < 0x80).unwrap();
    3 + len + 1
}

#[test]
fn hostile_models_are_refused() {
    let deep = (0..40).fold(Vec::new(), |inner: Vec<u8>, _| bytes(1, &bytes(5, &bytes(6, &inner))));
    let raw = bytes(9, RAW);
    let sound = bytes(5, &tensor("w", F32, &[1], &raw));
    let with = |rest: &[u8]| model(&[&sound[..], rest].concat());
    let numbers = bytes(5, &tensor("w", 3, &[9 << 20], &bytes(5, &vec![1; 9 << 20])));
    // A long name of a node, which many tensors have before theirs.
    let same = bytes(5, &tensor("w", F32, &[1], &raw)).repeat(40_000);
    let branch = bytes(5, &[bytes(1, b"then"), bytes(6, &same)].concat());
    let long = bytes(1, &[bytes(3, &[b'n'; 1 << 16]), branch].concat());
    let twice = [bytes(1, b"value"), bytes(5, &tensor("", F32, &[1], &raw)).repeat(2)].concat();
    let twice = bytes(1, &[bytes(2, b"k"), bytes(4, b"Constant"), bytes(5, &twice)].concat());
    // A length beyond its message, in a file that goes on.
    let beyond = [tensor("w", F32, &[1], b""), varint(9 << 3 | 2), varint(1 << 40)].concat();
    let beyond = [one(&beyond), bytes(14, b"")].concat();
    let cases = [
        (with(&twice), "an attribute has its tensor twice, which is not supported"),
        (beyond, "a field of 1099511627776 bytes goes beyond its message, which ends at byte"),
        (with(&long), "more than 134217728 bytes of names"),
        (model(&deep), "messages are nested more than 100 deep"),
        (with(&[7 << 3 | 3, 6 << 3 | 4]), "the end of group 6 has no beginning"),
        (with(&[7 << 3 | 3]), "group 7 has no end"),
        (with(&[6 << 3 | 4]), "the end of group 6 has no beginning"),
        (with(&[7 << 3 | 6]), "a field has the type 6"),
        (with(&[7 << 3 | 7]), "a field has the type 7"),
        (with(&[2]), "a field has the number 0"),
        (with(&[0xff; 11]), "a number is cut or has more than 10 bytes"),
        ([with(&[5 << 3 | 2, 100]), vec![0; 200]].concat(), "a field of 100 bytes goes beyond its message"),
        (with(&[&[5 << 3 | 2][..], &varint(1 << 40)].concat()), "truncated: the data ends at byte 1099511627"),
        (
            with(&[&[5 << 3 | 2][..], &varint(u64::MAX)].concat()),
            "truncated: the data ends at byte 18446744073709551615",
        ),
        (model(&numbers), "more than 8388608 numbers in fields such as int32_data"),
        (one(&tensor("w", F32, &[2], &raw)), "tensor \"w\": its data has 4 bytes, but dtype and shape give 8"),
        (one(&tensor("w", F32, &[1], b"")), "its data has 0 bytes, but dtype and shape give 4"),
        (one(&tensor("w", 6, &[2], &number(5, 1))), "its data has 1 numbers, but dtype and shape give 8 bytes"),
        (one(&tensor("w", 99, &[1], &raw)), "its dtype has the number 99, which is not known"),
        (one(&tensor("w", F32, &[u64::MAX], &raw)), "its dimension -1 is negative"),
        (one(&tensor("w", F32, &[1 << 40, 1 << 40], &raw)), "has more than 2^63-1 elements or bytes"),
        (one(&tensor("w", F32, &[1; 65], &raw)), "it has 65 dimensions; at most 64 are supported"),
        (one(&tensor("w", F32, &[1], &[&raw[..], &bytes(3, b"")].concat())), "it is stored in segments"),
    ];
    for (file, expected) in cases {
        let error = read(&file, ParseMode::Strict).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\n{expected}");
        // What is before the fault is shown.
        let lenient = read(&file, ParseMode::Lenient).unwrap();
        // The first tensor of the attribute is sound too.
        let more = usize::from(expected.starts_with("an attribute has its tensor twice"));
        let is_before = file.windows(sound.len()).position(|part| part == sound) == Some(graph_start(&file));
        // Without whole names, nothing is shown.
        let count = if expected.ends_with("bytes of names") { 0 } else { usize::from(is_before) + more };
        assert_eq!((lenient.len(), lenient.skipped.total() > 0), (count, true), "{expected}");
    }
    // A group whose fields are skipped, a name twice, and strings.
    let odd = with(&[&[9 << 3 | 3, 1 << 3, 5, 1 << 3 | 3, 1 << 3 | 4][..], &[9 << 3 | 4]].concat());
    assert_eq!(names(&odd), ["w"]);
    let strings = read(&with(&bytes(5, &tensor("s", 8, &[1], &bytes(6, b"text")))), ParseMode::Strict).unwrap();
    assert_eq!((strings.len(), &strings.skipped.listed()[0].reason[..]), (1, "its elements are strings"));
}
