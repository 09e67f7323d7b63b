//! Compares the views with simple reference implementations and with the official reader.

use super::export::ExportFile;
use super::*;
use crate::codec::bf16;
use crate::content::{Content, Error, ReadRequest};
use crate::format::ParseMode;
use crate::model::{Model, ModelFileId, TensorId};
use crate::name;
use crate::source::{self, Bytes, MemorySource, Source, SourceInfo};
use proptest::prelude::*;
use safetensors::SafeTensors;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A tensor: name, dtype, bits per element, shape.
type Tensor = (String, &'static str, usize, Vec<usize>);

const DTYPES: [(&str, usize); 22] = [
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
];

fn tensors() -> impl Strategy<Value = Vec<Tensor>> {
    let dtype = prop::sample::select(DTYPES.to_vec());
    let tensor = (dtype, prop::collection::vec(0usize..7, 0..4), "[a-c/%.\"]{0,3}").prop_map(
        |((dtype, bits), mut shape, name)| {
            if bits < 8 {
                // Four elements of any bit width fill whole bytes.
                shape.push(4);
            }
            (name, dtype, bits, shape)
        },
    );
    prop::collection::vec(tensor, 0..6).prop_map(|tensors| {
        let named = |(at, (name, dtype, bits, shape)): (usize, Tensor)| (format!("{name}{at}"), dtype, bits, shape);
        tensors.into_iter().enumerate().map(named).collect()
    })
}

fn bytes_of((_, _, bits, shape): &Tensor) -> usize {
    shape.iter().product::<usize>() * bits / 8
}

/// The views of a file with these tensors, and the bytes of the file. The tensor data is `data`, repeated.
fn views(tensors: &[Tensor], data: &[u8], metadata: &str) -> (ModelViews, Vec<u8>) {
    let mut members: Vec<String> =
        if metadata.is_empty() { vec![] } else { vec![format!("\"__metadata__\":{metadata}")] };
    let mut end = 0;
    for tensor in tensors {
        let (name, dtype, _, shape) = tensor;
        let begin = end;
        end += bytes_of(tensor);
        let name = serde_json::to_string(name).unwrap();
        members.push(format!(r#"{name}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#));
    }
    let header = format!("{{{}}}", members.join(","));
    let mut file = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    file.extend(data.iter().cycle().take(end));
    (views_of(MemorySource::new(file.clone()), ParseMode::Strict), file)
}

fn views_of(source: impl Source + 'static, mode: ParseMode) -> ModelViews {
    let model = Model::from_source(&Path::new("/model.safetensors").into(), Arc::new(source), mode).unwrap();
    ModelViews::new(model, ShownViews::default(), Arc::default(), 0)
}

/// The view with that file or directory name.
fn view(file: &str) -> View {
    View::all().find(|view| view.row().file == file).unwrap()
}

/// The content of a view's file with that number, if there is one.
fn find(views: &ModelViews, view: View, number: usize) -> Option<Content> {
    // A lookup comes before every other request, and makes the files of `export/`.
    views.exports(&ReadRequest::WAIT).unwrap();
    view.content(views, &view.file(views, number as u32)?, &ReadRequest::WAIT).unwrap()
}

fn content(views: &ModelViews, file: &str, number: usize) -> Content {
    find(views, view(file), number).unwrap()
}

fn all_of(content: &Content) -> Vec<u8> {
    content.read(0..u64::MAX, &ReadRequest::WAIT).unwrap().to_vec()
}

fn read(views: &ModelViews, file: &str, number: usize) -> Vec<u8> {
    all_of(&content(views, file, number))
}

fn shows(views: &ModelViews, file: &str, tensor: usize) -> bool {
    view(file).file(views, tensor as u32).is_some()
}

/// Decodes element by element to float32, according to the definitions of the formats.
fn naive_f32(dtype: &str, bytes: &[u8]) -> Vec<f32> {
    fn parts<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f32) -> Vec<f32> {
        bytes.chunks(N).map(|part| value(part.try_into().unwrap())).collect()
    }
    // Decodes a small float from its field widths and bias. NaN and infinity depend on the dtype.
    let small = |code: u32, exponent_bits: u32, mantissa_bits: u32, bias: i32| -> f32 {
        let magnitude = code & ((1 << (exponent_bits + mantissa_bits)) - 1);
        let negative = code >> (exponent_bits + mantissa_bits) == 1;
        let (exponent, mantissa) = ((magnitude >> mantissa_bits) as i32, magnitude & ((1 << mantissa_bits) - 1));
        let all_ones = magnitude == (1 << (exponent_bits + mantissa_bits)) - 1;
        let fraction = f64::from(mantissa) / f64::from(1u32 << mantissa_bits);
        let value = match dtype {
            "F8_E5M2" if exponent == 31 => {
                if mantissa == 0 {
                    f64::INFINITY
                } else {
                    f64::NAN
                }
            }
            "F8_E4M3" if all_ones => f64::NAN,
            "F8_E4M3FNUZ" | "F8_E5M2FNUZ" if negative && magnitude == 0 => f64::NAN,
            _ if exponent == 0 => fraction * 2f64.powi(1 - bias),
            _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
        };
        if negative { -value as f32 } else { value as f32 }
    };
    let packed = |width: usize| -> Vec<u32> {
        let bit = |at: usize| u32::from(bytes[at / 8] >> (at % 8) & 1);
        (0..bytes.len() * 8 / width).map(|at| (0..width).map(|shift| bit(at * width + shift) << shift).sum()).collect()
    };
    match dtype {
        "BOOL" => parts(bytes, |[byte]| if byte == 0 { 0.0 } else { 1.0 }),
        "U8" => parts(bytes, |byte: [u8; 1]| u8::from_le_bytes(byte) as f32),
        "I8" => parts(bytes, |byte: [u8; 1]| i8::from_le_bytes(byte) as f32),
        "U16" => parts(bytes, |bytes| u16::from_le_bytes(bytes) as f32),
        "I16" => parts(bytes, |bytes| i16::from_le_bytes(bytes) as f32),
        "U32" => parts(bytes, |bytes| u32::from_le_bytes(bytes) as f32),
        "I32" => parts(bytes, |bytes| i32::from_le_bytes(bytes) as f32),
        "U64" => parts(bytes, |bytes| u64::from_le_bytes(bytes) as f32),
        "I64" => parts(bytes, |bytes| i64::from_le_bytes(bytes) as f32),
        "F64" => parts(bytes, |bytes| f64::from_le_bytes(bytes) as f32),
        "F32" => parts(bytes, f32::from_le_bytes),
        "F16" => parts(bytes, |bytes| half::f16::from_le_bytes(bytes).to_f32()),
        "BF16" => parts(bytes, |bytes| half::bf16::from_le_bytes(bytes).to_f32()),
        "F8_E5M2" => parts(bytes, |[code]| small(code.into(), 5, 2, 15)),
        "F8_E4M3" => parts(bytes, |[code]| small(code.into(), 4, 3, 7)),
        "F8_E5M2FNUZ" => parts(bytes, |[code]| small(code.into(), 5, 2, 16)),
        "F8_E4M3FNUZ" => parts(bytes, |[code]| small(code.into(), 4, 3, 8)),
        "F8_E8M0" => {
            parts(bytes, |[code]| if code == 255 { f32::NAN } else { 2f64.powi(i32::from(code) - 127) as f32 })
        }
        "F4" => packed(4).into_iter().map(|code| small(code, 2, 1, 1)).collect(),
        "F6_E2M3" => packed(6).into_iter().map(|code| small(code, 2, 3, 1)).collect(),
        "F6_E3M2" => packed(6).into_iter().map(|code| small(code, 3, 2, 3)).collect(),
        other => panic!("{other}"),
    }
}

/// The header of a safetensors file without the spaces after it, and the data.
fn without_padding(file: &[u8]) -> (&[u8], &[u8]) {
    let (header, data) = file[8..].split_at(u64::from_le_bytes(file[..8].try_into().unwrap()) as usize);
    (header.trim_ascii_end(), data)
}

/// Whether float32 values are equal to the bit. All NaNs are considered equal.
fn same_f32(bytes: &[u8], expected: &[f32]) -> bool {
    bytes.len() == expected.len() * 4
        && bytes.chunks(4).zip(expected).all(|(bytes, expected)| {
            let found = f32::from_le_bytes(bytes.try_into().unwrap());
            found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan()
        })
}

/// The dtype that a converted export has for a tensor, if it is not that of the source.
fn converted(from: safetensors::Dtype, to: FloatDtype) -> Option<safetensors::Dtype> {
    use safetensors::Dtype::{BF16, BOOL, C64, F16, F32, I8, I16, I32, I64, U8, U16, U32, U64};
    let to = match to {
        FloatDtype::Bf16 => BF16,
        FloatDtype::F16 => F16,
        FloatDtype::F32 => F32,
    };
    let kept = [BOOL, C64, I8, I16, I32, I64, U8, U16, U32, U64];
    (from != to && !kept.contains(&from)).then_some(to)
}

/// Whether bfloat16 values are `values` rounded. All NaNs are considered equal.
fn same_bf16(found: &[u8], dtype: &str, stored: &[u8], values: &[f32]) -> bool {
    let mut expected = vec![0; values.len() * 2];
    if dtype == "F64" {
        // The tests of this function compare it with exact distances.
        bf16::from_f64(stored, &mut expected);
    } else {
        for (expected, value) in expected.as_chunks_mut::<2>().0.iter_mut().zip(values) {
            *expected = half::bf16::from_f32(*value).to_le_bytes();
        }
    }
    let numbers = |bytes: &[u8]| -> Vec<half::bf16> {
        bytes.as_chunks().0.iter().map(|bytes| half::bf16::from_le_bytes(*bytes)).collect()
    };
    let (found, expected) = (numbers(found), numbers(&expected));
    let same = |a: &half::bf16, b: &half::bf16| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    found.len() == expected.len() && found.iter().zip(&expected).all(|(a, b)| same(a, b))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn views_match_official_reader(tensors in tensors(), data in prop::collection::vec(any::<u8>(), 1..300)) {
        let (views, file) = views(&tensors, &data, r#"{"k":"v","a":"\""}"#);
        let official = SafeTensors::deserialize(&file).unwrap();
        for item in 0..views.model.logical().len() {
            let name = views.model.name(TensorId::new(item)).to_owned();
            let (_, dtype, _, shape) = tensors.iter().find(|tensor| tensor.0 == name).unwrap();
            let bytes = official.tensor(&name).unwrap().data();
            prop_assert_eq!(read(&views, "tensors", item), bytes);
            let single = read(&views, "safetensors", item);
            let (_, metadata) = SafeTensors::read_metadata(&single).unwrap();
            prop_assert!(metadata.metadata().is_none());
            let single = SafeTensors::deserialize(&single).unwrap();
            prop_assert_eq!(single.names(), vec![&name]);
            prop_assert_eq!(single.tensor(&name).unwrap(), official.tensor(&name).unwrap());
            // The float32 file of an F32 tensor is a link to the stored one.
            prop_assert_eq!(shows(&views, "f32", item), !["C64", "F32"].contains(dtype));
            if shows(&views, "f32", item) {
                prop_assert!(same_f32(&read(&views, "f32", item), &naive_f32(dtype, bytes)), "{}", dtype);
            }
            let npy = read(&views, "npy", item);
            let data = npy.iter().position(|byte| *byte == b'\n').unwrap() + 1;
            prop_assert_eq!(data % 64, 0);
            let text = String::from_utf8(npy[10..data].to_vec()).unwrap();
            let tuple = format!("{shape:?}").replace('[', "(").replace(']', if shape.len() == 1 { ",)" } else { ")" });
            prop_assert!(text.contains(&format!("'fortran_order': False, 'shape': {tuple}, }}")), "{}", text);
            if text.contains("'<f4'") && *dtype != "F32" {
                prop_assert!(same_f32(&npy[data..], &naive_f32(dtype, bytes)));
            } else {
                prop_assert_eq!(&npy[data..], bytes);
            }
        }
        for (item, clean) in [(0, false), (1, true)] {
            let export = read(&views, "export", item);
            let (header, metadata) = SafeTensors::read_metadata(&export).unwrap();
            prop_assert_eq!((header + 8) % 4096, 0);
            prop_assert_eq!(metadata.metadata().is_none(), clean);
            for (name, info) in metadata.tensors() {
                let (begins, ends) = info.data_offsets;
                prop_assert!(begins == ends || begins % (info.dtype.bitsize() / 8).max(1) == 0, "{} {}", name, begins);
            }
            if !clean {
                prop_assert_eq!(&metadata.metadata().as_ref().unwrap()["a"], "\"");
            } else {
                let serialized = safetensors::serialize(official.tensors(), None).unwrap();
                prop_assert_eq!(without_padding(&export), without_padding(&serialized));
            }
            let export = SafeTensors::deserialize(&export).unwrap();
            prop_assert_eq!(export.len(), official.len());
            for (name, tensor) in official.tensors() {
                prop_assert_eq!(export.tensor(&name).unwrap(), tensor);
            }
        }
        for (item, float) in [(2, FloatDtype::Bf16), (3, FloatDtype::F32)] {
            let export = read(&views, "export", item);
            let (header, metadata) = SafeTensors::read_metadata(&export).unwrap();
            prop_assert_eq!((header + 8) % 4096, 0);
            prop_assert_eq!(&metadata.metadata().as_ref().unwrap()["a"], "\"");
            let export = SafeTensors::deserialize(&export).unwrap();
            prop_assert_eq!(export.len(), official.len());
            for (name, dtype, _, shape) in &tensors {
                let (found, stored) = (export.tensor(name).unwrap(), official.tensor(name).unwrap());
                prop_assert_eq!(found.shape(), &shape[..]);
                let Some(expected) = converted(stored.dtype(), float) else {
                    prop_assert_eq!(found, stored);
                    continue;
                };
                prop_assert_eq!(found.dtype(), expected);
                let values = naive_f32(dtype, stored.data());
                match float {
                    FloatDtype::F32 => prop_assert!(same_f32(found.data(), &values), "{}", dtype),
                    FloatDtype::F16 => unreachable!("no file of a mount has half floats"),
                    FloatDtype::Bf16 => prop_assert!(same_bf16(found.data(), dtype, stored.data(), &values), "{}", dtype),
                }
            }
            // Each tensor begins at a multiple of the size of its elements.
            for (_, info) in metadata.tensors() {
                let size = (info.dtype.bitsize() / 8).max(1);
                prop_assert_eq!(info.data_offsets.0 % size, 0, "{:?}", info);
            }
        }
    }

    #[test]
    fn partial_reads_match_whole_file(
        tensors in tensors(),
        data in prop::collection::vec(any::<u8>(), 1..300),
        parts in prop::collection::vec((any::<prop::sample::Index>(), 0u64..9000, 0u64..9000), 40),
    ) {
        let (views, _) = views(&tensors, &data, r#"{"k":"v","t":"data:image/png;base64,iVBORw0KGgo="}"#);
        let files: Vec<(View, usize)> = View::all()
            // Files that need a pass over the data are slow and have their own tests.
            .filter(|view| !COMPUTED.contains(&view.row().file))
            .flat_map(|view| (0..10).map(move |number| (view, number)))
            .filter(|(view, number)| find(&views, *view, *number).is_some())
            .collect();
        for (file, offset, size) in parts {
            let (view, number) = *file.get(&files);
            let content = find(&views, view, number).unwrap();
            let whole = all_of(&content);
            prop_assert_eq!(content.len(), whole.len() as u64);
            let (from, to) = (offset.min(whole.len() as u64), (offset + size).min(whole.len() as u64));
            let part = content.read(offset..offset + size, &ReadRequest::NOWAIT).unwrap();
            let expected = &whole[from as usize..to as usize];
            prop_assert!(part[..] == *expected, "{} {} {}..{}", view.row().file, number, from, to);
        }
    }
}

#[test]
fn only_decoded_bytes_are_copied() {
    let tensors = vec![("a".to_owned(), "BF16", 16, vec![64]), ("b".to_owned(), "F16", 16, vec![64])];
    let (views, _) = views(&tensors, b"xyz", "");
    use crate::source::Bytes::{Owned, Shared};
    let part = |file, number, range| content(&views, file, number).read(range, &ReadRequest::NOWAIT);
    assert!(matches!(part("npy", 0, 128..192), Ok(Owned(_))));
    assert!(matches!(part("npy", 1, 128..192), Ok(Shared(..))));
    assert!(matches!(part("safetensors", 1, 100..128), Ok(Shared(..))));
    assert!(matches!(part("export", 1, 4096..4352), Ok(Shared(_, range)) if range.len() == 256));
}

/// The views whose files need a pass over the data.
const COMPUTED: [&str; 3] = ["SHA256SUMS", "plots", "stats"];

#[test]
fn only_computed_files_wait_and_only_once() {
    let tensors = vec![("a".to_owned(), "U8", 8, vec![4])];
    let (views, _) = views(&tensors, b"xyz", "");
    for view in View::all() {
        let Some(content) = find(&views, view, 0) else { continue };
        let waits = || match content.read(0..content.len(), &ReadRequest::NOWAIT) {
            Err(Error::WouldBlock(wait)) => Some(wait),
            read => read.map(|_| None).unwrap(),
        };
        let wait = waits();
        assert_eq!(wait.is_some(), COMPUTED.contains(&view.row().file), "{}", view.row().file);
        if let Some(wait) = wait {
            content.read(0..1, &ReadRequest::only(wait)).unwrap();
            assert_eq!(waits(), None);
        }
    }
}

#[test]
fn nonexistent_files_have_no_content() {
    let tensors = vec![("a".to_owned(), "C64", 64, vec![1])];
    let (views, _) = views(&tensors, b"xyz", r#"{"k":"v"}"#);
    for (file, numbers) in [
        ("tensors", 1),
        ("npy", 1),
        ("f32", 0),
        ("stats", 0),
        ("metadata", 2),
        ("export", 4),
        ("index.json", 1),
        ("dataset_manifest.json", 0),
        ("tree", 0),
        ("shards", 0),
    ] {
        let found = (0..9).filter(|number| find(&views, view(file), *number).is_some()).count();
        assert_eq!(found, numbers, "{file}");
        assert!(find(&views, view(file), u32::MAX as usize).is_none(), "{file}");
    }
    // One file for the whole model and one for its only shard.
    assert_eq!(View::only_file(Some(ModelFileId::new(0))), 1);
    assert!(find(&views, view("header.json"), 1).is_some() && find(&views, view("header.json"), 2).is_none());
}

#[test]
fn export_of_damaged_file_is_valid() {
    // A hole before b, c overlaps b, d has the same bytes as c, and z exceeds the file.
    let entry = |name, begin, end| {
        format!(r#""{name}":{{"dtype":"U8","shape":[{}],"data_offsets":[{begin},{end}]}}"#, end - begin)
    };
    let entries = [
        entry("a", 0, 4),
        entry("b", 6, 12),
        entry("c", 8, 14),
        entry("d", 8, 14),
        entry("e", 14, 14),
        entry("z", 14, 99),
    ];
    let header = format!("{{{}}}", entries.join(","));
    let data: Vec<u8> = (0..14).collect();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    let export = read(&views_of(MemorySource::new(file), ParseMode::Lenient), "export", 0);
    let export = SafeTensors::deserialize(&export).unwrap();
    for (name, range) in [("a", 0..4), ("b", 6..12), ("c", 8..14), ("d", 8..14), ("e", 14..14)] {
        assert_eq!(export.tensor(name).unwrap().data(), &data[range]);
    }
    assert_eq!(export.len(), 5);
}

#[test]
fn files_for_loaders_have_all_tensors_also_in_several_files() {
    let entry = |name, begin, end| {
        format!(r#""{name}":{{"dtype":"U8","shape":[{}],"data_offsets":[{begin},{end}]}}"#, end - begin)
    };
    // b has the same bytes as a, and d a part of those of c. e has none.
    let expected = [("a", 0..6), ("b", 0..6), ("c", 6..12), ("d", 7..12), ("e", 12..12)];
    let entries: Vec<String> = expected.iter().map(|(name, range)| entry(*name, range.start, range.end)).collect();
    let header = format!("{{{}}}", entries.join(","));
    let data: Vec<u8> = (0..12).collect();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    let views = views_of(MemorySource::new(file), ParseMode::Lenient);
    let made = |max: u64| -> Vec<(String, Vec<u8>)> {
        let files = hf::made_files(&views.model, "model", None, max).unwrap();
        let read = |content: Content| content.read(0..content.len(), &ReadRequest::WAIT).unwrap().to_vec();
        files.into_iter().map(|(name, content)| (name, read(content))).collect()
    };
    let format = Some([("format".to_owned(), "pt".to_owned())].into());

    let [(name, only)] = &made(23)[..] else { panic!() };
    let (_, metadata) = SafeTensors::read_metadata(only).unwrap();
    assert_eq!((&name[..], metadata.metadata()), ("model.safetensors", &format));
    let only = SafeTensors::deserialize(only).unwrap();
    assert_eq!(only.len(), expected.len());
    assert!(expected.iter().all(|(name, range)| only.tensor(name).unwrap().data() == &data[range.clone()]));

    let files = made(18);
    let names: Vec<&str> = files.iter().map(|(name, _)| &name[..]).collect();
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    assert_eq!(names, [shards[0], shards[1], "model.safetensors.index.json"]);
    let index: serde_json::Value = serde_json::from_slice(&files[2].1).unwrap();
    assert_eq!(index["metadata"], serde_json::json!({"total_size": 23, "total_parameters": 23}));
    for (name, range) in expected {
        let (_, file) = files.iter().find(|(file, _)| index["weight_map"][name] == **file).unwrap();
        assert_eq!(SafeTensors::deserialize(file).unwrap().tensor(name).unwrap().data(), &data[range], "{name}");
    }
    let (_, metadata) = SafeTensors::read_metadata(&files[1].1).unwrap();
    assert_eq!(metadata.metadata(), &format);
}

#[test]
fn valid_data_urls_are_decoded_and_others_skipped() {
    let metadata = r#"{"modelspec.thumbnail":"data:image/jpeg;base64,/9j/4A==","bad":"data:image/png;base64,???","text":"data:,x",
        "odd/type":"data:x/y;charset=utf-8;base64,AAEC","taken":"data:text/plain;base64,eA==","taken.txt":"mine"}"#;
    let (views, _) = views(&[], b"x", metadata);
    let files = &views.metadata;
    let values = views.model.metadata().len();
    let found: Vec<_> = (values..files.len(None))
        .map(|position| files.at(None, position))
        .map(|file| (files.name(file).unwrap().into_owned(), read(&views, "metadata", file)))
        .collect();
    let expected = [("modelspec.thumbnail.jpg", &b"\xff\xd8\xff\xe0"[..]), ("odd%2Ftype.bin", b"\0\x01\x02")];
    assert_eq!(found, expected.map(|(name, bytes)| (name.to_owned(), bytes.to_vec())));
    assert_eq!(name::encode_name("odd/type"), "odd%2Ftype");
}

#[test]
fn data_urls_over_32_mib_are_not_decoded() {
    let decoded = |bytes: usize| {
        let text = "A".repeat(bytes / 3 * 4);
        let (views, _) = views(&[], b"x", &format!(r#"{{"k":"data:image/png;base64,{text}"}}"#));
        let files = &views.metadata;
        (1..files.len(None)).map(|position| read(&views, "metadata", files.at(None, position)).len()).sum::<usize>()
    };
    assert_eq!(decoded(32 << 20), (32 << 20) / 3 * 3);
    assert_eq!(decoded((32 << 20) + 3), 0);
}

/// A source of `i64::MAX` bytes: the given bytes, followed by zeros.
#[derive(Debug)]
struct Huge(Vec<u8>, SourceInfo);

impl Huge {
    fn new(bytes: Vec<u8>) -> Self {
        Self(bytes, SourceInfo::anonymous(i64::MAX as u64))
    }
}

impl Source for Huge {
    fn info(&self) -> &SourceInfo {
        &self.1
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes, source::Error> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.read_runs_at(&mut bytes, usize::MAX, range.start, 0)?;
        Ok(Bytes::Owned(bytes))
    }

    fn read_runs_at(&self, buf: &mut [u8], len: usize, offset: u64, step: u64) -> Result<(), source::Error> {
        for (run, start) in source::each_run(buf, len, offset, step) {
            for (byte, at) in run.iter_mut().zip(start as usize..) {
                *byte = self.0.get(at).copied().unwrap_or(0);
            }
        }
        Ok(())
    }
}

/// The header of a GGUF file whose tensors are vectors of `len` elements of the type I8, all at offset 0.
fn gguf(alignment: u32, names: &[&str], len: u64) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let numbers = [&3u32.to_le_bytes()[..], &(names.len() as u64).to_le_bytes(), &1u64.to_le_bytes()].concat();
    let key = [&string("general.alignment")[..], &4u32.to_le_bytes(), &alignment.to_le_bytes()].concat();
    let info = |name: &&str| [&string(name)[..], &[1, 0, 0, 0], &len.to_le_bytes(), &[24, 0, 0, 0], &[0; 8]].concat();
    [&b"GGUF"[..], &numbers, &key, &names.iter().flat_map(info).collect::<Vec<u8>>()].concat()
}

#[test]
fn whole_gguf_file_is_left_out_if_it_is_too_large() {
    for (names, len, count) in [
        (&["a", "b", "c", "d", "e"][..], 1u64 << 62, 0),
        (&["a", "b"], 1 << 62, 0),
        (&["a", "b"], 1 << 61, 3),
        (&["a"], i64::MAX as u64 - 4096, 1),
        (&["a"], i64::MAX as u64 - 100, 0),
    ] {
        let views = views_of(Huge::new(gguf(32, names, len)), ParseMode::Lenient);
        assert_eq!(views.exports(&ReadRequest::WAIT).unwrap().files().len(), count, "{names:?} {len}");
        assert!(content(&views, "gguf", names.len() - 1).len() > len);
    }
}

#[test]
fn padding_of_any_alignment_takes_no_memory() {
    /// The largest amount of memory that the process has used, in KiB.
    fn most() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
    let alignment = 1u64 << 31;
    let file = gguf(alignment as u32, &["t"], 5);
    let before = most();
    let views = views_of(Huge::new(file.clone()), ParseMode::Strict);
    let Some(ExportFile::Made(whole)) = views.exports(&ReadRequest::WAIT).unwrap().file(0) else { panic!() };
    for content in [&content(&views, "gguf", 0), whole] {
        assert_eq!(content.len(), 2 * alignment);
        assert_eq!(content.read(0..file.len() as u64, &ReadRequest::NOWAIT).unwrap()[..], file);
        assert_eq!(content.read(2 * alignment - 3..u64::MAX, &ReadRequest::NOWAIT).unwrap()[..], [0; 3]);
    }
    assert!(most() - before < 1 << 20, "{} KiB", most() - before);
}

#[test]
fn huge_total_size_does_not_overflow() {
    // 300 overlapping tensors of 2^62 bytes each.
    let entries = (0..300).map(|at| format!(r#""{at}":{{"dtype":"Z","shape":[1],"data_offsets":[0,{}]}}"#, 1u64 << 62));
    let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    let views = views_of(Huge::new(file), ParseMode::Lenient);
    assert!(views.exports(&ReadRequest::WAIT).unwrap().files().is_empty());
    let end = 1 << 62;
    assert_eq!(content(&views, "tensors", 299).read(end - 3..end + 6, &ReadRequest::NOWAIT).unwrap()[..], [0; 3]);
    assert_eq!(content(&views, "safetensors", 299).len(), end + 80);
    let index = String::from_utf8(read(&views, "index.json", 0)).unwrap();
    assert_eq!(index.matches(r#", "shown": true}"#).count(), 299);
    // For each line: hash, two spaces, `tensors/`, name of one to three digits, and newline.
    assert_eq!(content(&views, "SHA256SUMS", 0).len(), 300 * 75 + 10 + 90 * 2 + 200 * 3);
}

#[test]
fn shards_are_filled_up_to_the_size_limit() {
    let tensor = |at: usize, len: usize| (format!("t{at}"), "U8", 8, vec![len]);
    // Tensor sizes, the limit, and the expected tensor sizes of each shard.
    type Sizes<'s> = &'s [usize];
    let table: [(Sizes, u64, &[Sizes]); 7] = [
        (&[], 5, &[&[]]),
        (&[3, 2, 1], 6, &[&[3, 2, 1]]),
        (&[3, 2, 1], 5, &[&[3, 2], &[1]]),
        (&[1, 9, 1], 5, &[&[1], &[9], &[1]]),
        (&[9, 0, 5], 5, &[&[9], &[0, 5]]),
        (&[5, 0, 5], 5, &[&[5, 0], &[5]]),
        (&[1, 1], 0, &[&[1], &[1]]),
    ];
    for (sizes, max, expected) in table {
        let tensors: Vec<Tensor> = sizes.iter().enumerate().map(|(at, len)| tensor(at, *len)).collect();
        let (views, _) = views(&tensors, &[7], "");
        let model = &views.model;
        let shards = ShardTensors::new(model, &ExportTensors::Whole, None, max);
        let size = |id: &TensorId| model.tensor(*id).info.nbytes as usize;
        let found: Vec<Vec<usize>> = shards.files().map(|(_, tensors)| tensors.iter().map(size).collect()).collect();
        assert_eq!(found, expected);
        assert_eq!(shards.index(model).is_some(), expected.len() > 1);
    }
}

#[test]
fn export_of_reordered_subset_is_valid() {
    let tensor = |at: usize| (format!("t{at}"), "U8", 8, vec![at]);
    let tensors: Vec<Tensor> = (0..2000).map(tensor).collect();
    let data: Vec<u8> = (0..=255).chain(7..99).collect();
    let (views, _) = views(&tensors, &data, r#"{"a":"b"}"#);
    let whole = read(&views, "export", 0);
    let whole = SafeTensors::deserialize(&whole).unwrap();
    for align in [8, 64, 1 << 20] {
        let numbers: Vec<TensorId> = (0..2000).rev().filter(|at| at % 3 > 0).map(TensorId::new).collect();
        let export = ModelExport::new(&views.model, ExportTensors::These(numbers.clone().into()), None, Some(align));
        let content = export.content(false).unwrap();
        let bytes = all_of(content);
        let (len, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!((len as u64 + 8) % align, 0);
        assert_eq!(metadata.metadata().as_ref().unwrap()["a"], "b");
        let found = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(found.len(), numbers.len());
        for (name, tensor) in found.iter() {
            assert!(tensor.data() == whole.tensor(name).unwrap().data(), "{name}");
        }
        for from in (0..bytes.len()).step_by(bytes.len() / 7) {
            let part = content.read(from as u64..from as u64 + 70_000, &ReadRequest::NOWAIT).unwrap();
            assert!(part[..] == bytes[from..(from + 70_000).min(bytes.len())], "{from}");
        }
    }
}
