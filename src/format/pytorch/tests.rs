//! Checkpoints that are built opcode by opcode.

use super::*;
use crate::format::header::{Header, ParseMode};
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::lint::HeaderLint;
use crate::format::zip::tests::{archive, by_torch};
use crate::rules::CheckRule;

/// Builds pickles.
pub(super) struct Pickle(Vec<u8>);

impl Pickle {
    pub(super) fn new() -> Self {
        Self(vec![0x80, 2])
    }

    pub(super) fn text(mut self, text: &str) -> Self {
        self.0.push(b'X');
        self.0.extend((text.len() as u32).to_le_bytes());
        self.0.extend(text.as_bytes());
        self
    }

    pub(super) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(super) fn int(mut self, number: i32) -> Self {
        self.0.push(b'J');
        self.0.extend(number.to_le_bytes());
        self
    }

    pub(super) fn ints(self, numbers: &[i32]) -> Self {
        numbers.iter().fold(self.raw(b"("), |pickle, number| pickle.int(*number)).raw(b"t")
    }

    /// A tensor of `class` in storage `key`.
    pub(super) fn tensor(
        self,
        class: &str,
        key: &str,
        numel: i32,
        offset: i32,
        shape: &[i32],
        strides: &[i32],
    ) -> Self {
        let pickle = self.raw(b"ctorch._utils\n_rebuild_tensor_v2\n((").text("storage");
        let pickle = pickle.raw(format!("ctorch\n{class}\n").as_bytes()).text(key).text("cpu").int(numel);
        pickle.raw(b"tQ").int(offset).ints(shape).ints(strides).raw(b"\x89}tR")
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        self.0.push(b'.');
        self.0
    }
}

pub(super) fn file(pickle: Vec<u8>) -> Vec<u8> {
    archive(&[("a/data.pkl", &pickle), ("a/data/0", &[7; 48]), ("a/version", b"3\n")]).0
}

fn read(file: &[u8], mode: ParseMode) -> Result<Header, Error> {
    parse_pytorch(&HeaderInput::with_prefix(file.len() as u64, file.to_vec()), mode)
}

/// A dict with one tensor `w`.
fn one(class: &str, numel: i32, offset: i32, shape: &[i32], strides: &[i32]) -> Vec<u8> {
    file(Pickle::new().raw(b"}").text("w").tensor(class, "0", numel, offset, shape, strides).raw(b"s").end())
}

#[test]
fn tensors_are_parts_of_the_file() {
    let header = read(&one("FloatStorage", 12, 2, &[2, 3], &[3, 1]), ParseMode::Strict).unwrap();
    let tensor = header.tensor(0);
    assert_eq!((tensor.name, tensor.dtype.name(), tensor.shape, tensor.layout), ("w", "F32", &[2, 3][..], None));
    assert_eq!((tensor.range.start - header.data_start, tensor.nbytes), (8, 24));
    let header = read(&one("HalfStorage", 24, 1, &[3, 4], &[1, 5]), ParseMode::Strict).unwrap();
    let tensor = header.tensor(0);
    assert_eq!((tensor.layout.unwrap().strides, tensor.nbytes), (&[1, 5][..], 24));
    assert_eq!(tensor.range.end - tensor.range.start, 2 * (2 + 15 + 1));
}

#[test]
fn wrong_tensors_are_refused_or_left_out() {
    let most = i32::MAX;
    let cases = [
        (one("FloatStorage", 11, 0, &[1], &[1]), "its storage \"data/0\" has 48 bytes, but 11 elements of 4 bytes"),
        (one("FloatStorage", -1, 0, &[1], &[1]), "its storage is not a storage of the file"),
        (
            one("FloatStorage", 12, 0, &[13], &[1]),
            "shape [13] with strides [1] from element 0 on needs 13 elements, but its storage has 12",
        ),
        (one("FloatStorage", 12, 12, &[1], &[1]), "needs 13 elements, but its storage has 12"),
        (one("FloatStorage", 12, 0, &[2, 2], &[11, 1]), "needs 13 elements"),
        (one("FloatStorage", 12, 0, &[2], &[1, 1]), "has 1 dimensions, but there are 2 strides"),
        (one("FloatStorage", 12, 0, &[1; 65], &[1; 65]), "65 dimensions; torch has at most 64"),
        (one("FloatStorage", 12, 0, &[-2], &[1]), "shape [-2] or strides [1]: a number is negative"),
        (one("FloatStorage", 12, -1, &[2], &[1]), "a number is negative"),
        (one("FloatStorage", 12, 0, &[2], &[-1]), "a number is negative"),
        (one("FloatStorage", 12, 0, &[most, most, most], &[0, 0, 0]), "is larger than 2^63-1 bytes"),
        (one("StrangeStorage", 12, 0, &[1], &[1]), "storage class \"torch.StrangeStorage\" is not known"),
        (one("QUInt4x2Storage", 48, 0, &[1], &[1]), "share a byte, which is not supported"),
        (
            file(Pickle::new().raw(b"}").text("w").tensor("FloatStorage", "1", 12, 0, &[1], &[1]).raw(b"s").end()),
            "its storage \"data/1\" is not in the archive",
        ),
        (
            file(Pickle::new().raw(b"}").text("w").raw(b"ctorch._utils\n_rebuild_tensor_v2\n)Rs").end()),
            "_rebuild_tensor_v2 has arguments that torch does not write",
        ),
    ];
    for (file, expected) in cases {
        let error = read(&file, ParseMode::Strict).unwrap_err().to_string();
        assert!(error.starts_with("tensor \"w\": ") && error.contains(expected), "{error}\n{expected}");
        let header = read(&file, ParseMode::Lenient).unwrap();
        assert_eq!((header.len(), header.skipped.total()), (0, 1));
    }
    // Legal, although large: no elements, or one element many times.
    assert_eq!(
        read(&one("FloatStorage", 12, 0, &[0, most, most, most], &[1, 1, 1, 1]), ParseMode::Strict).unwrap().len(),
        1
    );
    let header = read(&one("FloatStorage", 12, 0, &[most, 3], &[0, 1]), ParseMode::Strict).unwrap();
    assert_eq!(header.tensor(0).nbytes, 12 * most as u64);
}

#[test]
fn archives_without_a_usable_pickle_are_refused() {
    let plain = Pickle::new().raw(b"}").end();
    let cases = [
        (archive(&[("a/version", b"3\n")]).0, "no entry data.pkl in the zip archive"),
        (
            archive(&[("a/data.pkl", &plain), ("b/data.pkl", &plain)]).0,
            "both \"a/data.pkl\" and \"b/data.pkl\" could be",
        ),
        (archive(&[("a/data.pkl", b"\x80\x02")]).0, "PyTorch checkpoint: byte 2 of the pickle: it is truncated"),
        (archive(&[("a/data.pkl", &plain), ("a/byteorder", b"middle")]).0, "the entry byteorder is neither"),
        (archive(&[("a/data.pkl", &plain), ("a/byteorder", b"little\n")]).0, "the entry byteorder is neither"),
    ];
    let twice = archive(&[("a/data.pkl", &plain), ("a/DATA.PKL", &plain)]).0;
    let cases = cases.into_iter().chain([(twice, "both \"a/data.pkl\" and \"a/DATA.PKL\" could be")]);
    for (file, expected) in cases {
        for mode in [ParseMode::Strict, ParseMode::Lenient] {
            let error = read(&file, mode).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}\n{expected}");
        }
    }
}

#[test]
fn bombs_are_refused() {
    // Lists that hold the one before ten times.
    let mut bomb = Pickle::new().raw(b"]K\x01aq\0");
    for level in 0..10u8 {
        bomb = bomb.raw(b"](").raw(&[b'h', level].repeat(10)).raw(&[b'e', b'q', level + 1]);
    }
    let nested = Pickle::new().raw(b")").raw(&[0x85; 100_000]);
    let name = "n".repeat(1 << 20);
    let mut long = Pickle::new().raw(b"}(");
    long = long.text(&name).raw(b"q\0N");
    for _ in 0..3000 {
        long = long.raw(b"h\0N");
    }
    let long = long.raw(b"u");
    // A million entries without a name or with one letter, and a long text in many lists.
    let batch = [&b"("[..], &b"h\0".repeat(2000), b"u"].concat();
    let entries = Pickle::new().text("").raw(b"q\x000}").raw(&batch.repeat(1100));
    // Modules that share a state of many items, and their list of buffers that are left out.
    let modules = Pickle::new().raw(b"ccollections\nOrderedDict\n}(").text("_parameters").raw(b"}");
    let modules = modules.text("_modules").raw(b"}").text("_buffers").raw(b"}(");
    let modules = (0..1000).fold(modules, |pickle, at| pickle.text(&at.to_string()).raw(b"N")).raw(b"u");
    let modules = modules.text("_non_persistent_buffers_set").raw(b"](").raw(&b"N".repeat(100_000));
    let modules = modules.raw(b"eu\x85Rq\0](").raw(&b"cmy\nModule\n)\x81h\0b".repeat(5000)).raw(b"e");
    // Lists of one long text, which is not copied to find the tensors.
    let text = Pickle::new().raw(b"](").text(&"t".repeat(2 << 20)).raw(b"q\0").raw(&b"h\0".repeat(20_000)).raw(b"e");
    let root = text.raw(b"q\x010}(").text("state_dict").raw(b"}").text("lists").raw(b"](").raw(&b"h\x01".repeat(7));
    let root = root.raw(b"eu");
    let cases = [
        (root, "more than 128 MiB of names and metadata"),
        (modules, "too many paths lead to the same values"),
        (entries, "more than 128 MiB of names and metadata"),
        (bomb, "too many paths lead to the same values"),
        (nested, "values are nested too deeply"),
        (long, "more than 128 MiB of names and metadata"),
    ];
    for (pickle, expected) in cases {
        let error = read(&file(pickle.end()), ParseMode::Strict).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:.300}\n{expected}");
    }
}

#[test]
fn other_values_are_metadata() {
    let pickle = Pickle::new().raw(b"}(").text("epoch").int(3).text("none").raw(b"N");
    let pickle = pickle.text("list").raw(b"](K\x01K\x02e").text("mixed").raw(b"](K\x01").text("x").raw(b"e");
    let pickle = pickle.text("lr").raw(b"G?\xe0\0\0\0\0\0\0").raw(b"K\x07").text("int key");
    let pickle = pickle.text("class").raw(b"cargparse\nNamespace\n)\x81}").text("seed").int(5).raw(b"sb");
    let pickle = pickle.text("device").raw(b"ctorch\ndevice\n").text("cuda").int(1).raw(b"\x86R");
    let pickle = pickle.text("dtype").raw(b"ctorch\nfloat16\n").text("w");
    let pickle = pickle.tensor("FloatStorage", "0", 12, 0, &[12], &[1]).raw(b"u");
    let header = read(&file(pickle.end()), ParseMode::Strict).unwrap();
    let found: Vec<_> = header.metadata.iter().map(|(key, value)| (&key[..], value.text())).collect();
    let expected = [
        ("7", "int key"),
        ("class", "<argparse.Namespace>"),
        ("class.seed", "5"),
        ("device", "cuda:1"),
        ("dtype", "torch.float16"),
        ("epoch", "3"),
        ("list", "1\n2\n"),
        ("lr", "0.5"),
        ("mixed.0", "1"),
        ("mixed.1", "x"),
        ("none", "None"),
    ];
    assert_eq!(found, expected);
    assert_eq!(header.tensor(0).name, "w");
}

#[test]
fn names_begin_in_the_state_dict_if_it_has_all_tensors() {
    let tensor = |pickle: Pickle| pickle.tensor("FloatStorage", "0", 12, 0, &[12], &[1]);
    let inside = || tensor(Pickle::new().raw(b"}(").text("state_dict").raw(b"}").text("w")).raw(b"s");
    let names = |pickle: Pickle| {
        let header = read(&file(pickle.end()), ParseMode::Strict).unwrap();
        header.tensors().map(|tensor| tensor.name.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(inside().text("epoch").int(1).raw(b"u")), ["w"]);
    assert_eq!(names(tensor(inside().text("ema")).raw(b"u")), ["state_dict.w", "ema"]);
    assert_eq!(names(tensor(Pickle::new())), ["tensor"]);
}

#[test]
fn entries_are_the_keys_of_the_root_that_may_have_parts() {
    let tensor = |pickle: Pickle| pickle.tensor("FloatStorage", "0", 12, 0, &[12], &[1]);
    let entries = |pickle: Pickle| read(&file(pickle.raw(b"u").end()), ParseMode::Strict).unwrap().entries;
    let model = || tensor(Pickle::new().raw(b"}(").text("model").raw(b"}").text("w")).raw(b"s");
    let others = |pickle: Pickle| pickle.text("epoch").int(3).text("losses").ints(&[1]).text("").ints(&[1]);
    assert_eq!(entries(others(model())), ["losses", "model"]);
    assert_eq!(entries(others(model()).text("a.b").ints(&[1])), ["losses", "model"]);
    // A key with the name of a path.
    assert_eq!(entries(others(model()).text("model.b").ints(&[1])), [""; 0]);
    // Names begin inside the only entry with tensors.
    assert_eq!(entries(tensor(Pickle::new().raw(b"}(").text("state_dict").raw(b"}").text("w")).raw(b"s")), [""; 0]);
    let many = |count: usize| {
        (0..count).fold(tensor(Pickle::new().raw(b"}(").int(0)), |pickle, at| pickle.text(&at.to_string()).raw(b"]"))
    };
    assert_eq!((entries(many(100)).len(), entries(many(101)).len()), (100, 0));
    // A long key that the pickle has once, and a dict often.
    let key = Pickle::new().raw(b"}(").text(&"k".repeat(1 << 20)).raw(b"q\x01").raw(b"]");
    let often = tensor((0..200).fold(key, |pickle, _| pickle.raw(b"h\x01]")).text("w"));
    let error = read(&file(often.raw(b"u").end()), ParseMode::Strict).unwrap_err().to_string();
    assert!(error.contains("more than 128 MiB of names and metadata"), "{error}");
}

#[test]
fn tensors_of_different_paths_with_the_same_name_are_numbered() {
    let tensor = |pickle: Pickle, offset: i32| pickle.tensor("FloatStorage", "0", 12, offset, &[1], &[1]);
    // Two keys with a dot beside paths, a number beside its digits, and a name that a number would give.
    let pickle = tensor(Pickle::new().raw(b"}(").text("a.b"), 0);
    let pickle = tensor(pickle.text("a").raw(b"}").text("b"), 1).raw(b"s");
    let pickle = tensor(pickle.text("1"), 2);
    let pickle = tensor(pickle.raw(b"K\x01"), 3);
    let pickle = tensor(pickle.text("c.d"), 4);
    let pickle = tensor(pickle.text("c").raw(b"}").text("d"), 5).raw(b"s");
    let file_of = |pickle: Pickle| file(pickle.raw(b"u").end());
    let numbered = file_of(tensor(pickle.text("c.d#2"), 6));
    for mode in [ParseMode::Strict, ParseMode::Lenient] {
        let header = read(&numbered, mode).unwrap();
        let names: Vec<_> = header.tensors().map(|tensor| tensor.name.to_owned()).collect();
        assert_eq!(names, ["a.b", "a.b#2", "1", "1#2", "c.d", "c.d#3", "c.d#2"]);
    }
    // One dict with the same key twice, of which Python keeps the last.
    let pickle = tensor(Pickle::new().raw(b"}(").text("a").raw(b"}").text("b"), 0).raw(b"s");
    let twice = file_of(tensor(pickle.text("a").raw(b"}").text("b"), 1).raw(b"s"));
    let error = read(&twice, ParseMode::Strict).unwrap_err().to_string();
    assert_eq!(error, "tensor \"a.b\": a dict on the path to it has the same key twice");
    let header = read(&twice, ParseMode::Lenient).unwrap();
    assert_eq!((header.len(), header.skipped.total()), (1, 1));
    assert_eq!(header.tensor(0).range.start - header.data_start, 4);
}

#[test]
fn metadata_of_different_paths_with_the_same_key_is_numbered() {
    let pickle = Pickle::new().raw(b"}(").text("a.b").int(1);
    let pickle = pickle.text("a").raw(b"}").text("b").int(2).raw(b"s");
    let pickle = pickle.text("1").text("text").raw(b"K\x01").text("number");
    // One key twice, of which Python keeps the last.
    let pickle = pickle.text("c.d").int(3).text("c.d").int(4).text("c").raw(b"}").text("d").int(5).raw(b"s");
    // A dict and a list with attributes.
    let pickle = pickle.text("dict").raw(b"cmy\nDict\n)\x81}").text("loss").int(6).raw(b"sb").text("loss").int(7);
    let pickle = pickle.raw(b"s").text("list").raw(b"cmy\nList\n)\x81(K\x08K\x09e");
    let pickle = pickle.text("w").tensor("FloatStorage", "0", 12, 0, &[1], &[1]).raw(b"u");
    let file = file(pickle.end());
    for mode in [ParseMode::Strict, ParseMode::Lenient] {
        let header = read(&file, mode).unwrap();
        let found: Vec<_> = header.metadata.iter().map(|(key, value)| (&key[..], value.text())).collect();
        let expected = [
            ("1", "text"),
            ("1#2", "number"),
            ("a.b", "1"),
            ("a.b#2", "2"),
            ("c.d", "4"),
            ("c.d#2", "5"),
            ("dict", "<my.Dict>"),
            ("dict.loss", "6"),
            ("dict.loss#2", "7"),
            ("list", "<my.List>"),
            ("list#2", "8\n9\n"),
        ];
        assert_eq!(found, expected);
    }
    // Beside the dict with the tensors.
    let inner = Pickle::new().raw(b"}(").text("state_dict").raw(b"}(").text("epoch").int(1).text("w");
    let inner = inner.tensor("FloatStorage", "0", 12, 0, &[1], &[1]).raw(b"u").text("epoch").int(2).raw(b"u");
    let header = read(&self::file(inner.end()), ParseMode::Strict).unwrap();
    let found: Vec<_> = header.metadata.iter().map(|(key, value)| (&key[..], value.text())).collect();
    assert_eq!(found, [("epoch", "1"), ("epoch#2", "2")]);
}

#[test]
fn containers_that_contain_themselves_are_named() {
    let pickle = Pickle::new().raw(b"}q\0(").text("self").raw(b"h\0").text("list").raw(b"]q\x01(K\x01h\x01e");
    let pickle = pickle.text("object").raw(b"cmy\nThing\n)\x81q\x02}").text("me").raw(b"h\x02sb").text("w");
    let pickle = pickle.tensor("FloatStorage", "0", 12, 0, &[12], &[1]).raw(b"u");
    let header = read(&file(pickle.end()), ParseMode::Strict).unwrap();
    let found: Vec<_> = header.metadata.iter().map(|(key, value)| (&key[..], value.text())).collect();
    let expected = [
        ("list.0", "1"),
        ("list.1", "<list that contains itself>"),
        ("object", "<my.Thing>"),
        ("object.me", "<object that contains itself>"),
        ("self", "<dict that contains itself>"),
    ];
    assert_eq!(found, expected);
    assert_eq!((header.len(), header.tensor(0).name), (1, "w"));
    // Also if the search for `state_dict` meets them, and if there is nothing else.
    let pickle = Pickle::new().raw(b"}q\0(").text("self").raw(b"h\0").text("state_dict").raw(b"}u");
    assert_eq!(read(&file(pickle.end()), ParseMode::Strict).unwrap().metadata.len(), 1);
    assert!(read(&file(Pickle::new().raw(b"]q\0h\0a").end()), ParseMode::Strict).unwrap().is_empty());
}

#[test]
fn tensors_that_are_copied_to_a_device_are_those_of_the_file() {
    let device = |dtype: &str| {
        let pickle = Pickle::new().raw(b"}").text("w").raw(b"ctorch._utils\n_rebuild_device_tensor_from_cpu_tensor\n(");
        let pickle = pickle.tensor("FloatStorage", "0", 12, 0, &[12], &[1]);
        let pickle = pickle.raw(format!("ctorch\n{dtype}\n").as_bytes()).text("xla:0").raw(b"\x89tRs");
        read(&file(pickle.end()), ParseMode::Strict).unwrap()
    };
    let header = device("float32");
    assert_eq!((header.tensor(0).name, header.tensor(0).dtype.name(), header.metadata.len()), ("w", "F32", 0));
    // Torch would convert the values.
    let header = device("float16");
    let expected = "<torch._utils._rebuild_device_tensor_from_cpu_tensor>";
    assert_eq!((header.len(), header.metadata[0].1.text()), (0, expected));
}

#[test]
fn arrays_of_numpy_are_named_and_its_scalars_are_read() {
    let dtype = |pickle: Pickle, code: &str, order: &str| {
        let pickle = pickle.raw(b"cnumpy\ndtype\n(").text(code).raw(b"\x89\x88tR(K\x03").text(order);
        pickle.raw(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb")
    };
    let encode = |pickle: Pickle, text: &str| pickle.raw(b"c_codecs\nencode\n").text(text).text("latin1").raw(b"\x86R");
    let scalar = |pickle: Pickle, key: &str, code: &str, order: &str, bytes: &str| {
        let pickle = pickle.text(key).raw(b"cnumpy._core.multiarray\nscalar\n");
        encode(dtype(pickle, code, order), bytes).raw(b"\x86R")
    };
    let array = |pickle: Pickle, key: &str| {
        let pickle = pickle.text(key).raw(b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85");
        encode(pickle, "b").raw(b"\x87R(K\x01K\x02K\x01\x86")
    };
    // As numpy 2.4.6 and pickle.dumps(..., 2) write them.
    let pickle = Pickle::new().raw(b"}(");
    let pickle = encode(dtype(array(pickle, "array"), "f4", "<").raw(b"\x89"), "\0\0\u{80}?\0\0\0@").raw(b"tb");
    let pickle = dtype(array(pickle, "objects"), "O8", "|").raw(b"\x89](").text("x").raw(b"]etb");
    let pickle = dtype(pickle.text("dtype"), "i8", "<");
    let pickle = scalar(pickle, "f8", "f8", "<", "\0\0\0\0\0\0\u{f8}?");
    let pickle = scalar(pickle, "big", "i2", ">", "\u{ff}\u{fe}");
    let pickle = scalar(pickle, "bool", "b1", "|", "\x01");
    let pickle = scalar(pickle, "u8", "u8", "<", "\u{ff}\u{ff}\u{ff}\u{ff}\u{ff}\u{ff}\u{ff}\u{ff}");
    let pickle = scalar(pickle, "short", "f4", "<", "\0");
    let pickle = scalar(pickle, "time", "M8", "<", "\0\0\0\0\0\0\0\0").raw(b"u");
    let header = read(&file(pickle.end()), ParseMode::Strict).unwrap();
    let found: Vec<_> = header.metadata.iter().map(|(key, value)| (&key[..], value.text())).collect();
    let expected = [
        ("array", "<numpy.ndarray float32 [2, 1]>"),
        ("big", "-2"),
        ("bool", "true"),
        ("dtype", "numpy.int64"),
        ("f8", "1.5"),
        ("objects", "<numpy.core.multiarray._reconstruct>"),
        ("objects.state.1", "2\n1\n"),
        ("objects.state.2", "numpy.object"),
        ("objects.state.4.0", "x"),
        ("objects.state.4.1", ""),
        ("short", "<numpy.float32>"),
        ("time", "<numpy.M8>"),
        ("u8", "18446744073709551615"),
    ];
    assert_eq!(found, expected);
    let skipped: Vec<_> = header.skipped.listed().iter().map(|skipped| &skipped.name[..]).collect();
    assert_eq!(skipped, ["array"]);
}

#[test]
fn tensors_inside_an_object_of_a_subclass_are_shown() {
    let wrapper = |pickle: Pickle| {
        pickle.raw(
            b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\ncmy\nQuantized\n)}(",
        )
    };
    let pickle = wrapper(Pickle::new().raw(b"}(").text("q.weight"));
    let pickle = pickle.text("qdata").tensor("FloatStorage", "0", 12, 0, &[2], &[1]);
    let pickle = pickle.text("scale").tensor("FloatStorage", "0", 12, 2, &[1], &[1]).raw(b"utR");
    let pickle = wrapper(pickle.text("empty")).text("axis").raw(b"K\x01utRu");
    let header = read(&file(pickle.end()), ParseMode::Strict).unwrap();
    let tensors: Vec<_> = header.tensors().map(|tensor| (tensor.name, tensor.nbytes)).collect();
    assert_eq!(tensors, [("q.weight.qdata", 8), ("q.weight.scale", 4)]);
    let skipped: Vec<_> = header.skipped.listed().iter().map(|skipped| &skipped.name[..]).collect();
    assert_eq!(skipped, ["empty"]);
    assert_eq!(header.value_text("q.weight"), "<torch._utils._rebuild_wrapper_subclass>");
}

#[test]
fn globals_are_reported_by_what_they_can_do() {
    let calls = b"cposix\nsystem\nX\x02\0\0\0id\x85R0cmy.module\nThing\n)R0cbuiltins\neval\n)R0ccollections\nOrderedDict\n)R\
        0cmy.module\nrun\n)R0cmy.module\nvalue\n0cmy.module\nconfig\n)\x810ctorch.serialization\nos.system\n\
        0cnumpy.core.multiarray\nscalar\n)R0ctorch.jit\nload\n0ctorch._tensor\n_rebuild_from_type_v2\ncmy.module\ninner\n\x85R0N";
    let file = file(Pickle::new().raw(calls).end());
    let input = HeaderInput::with_prefix(file.len() as u64, file.clone());
    let mut found = Vec::new();
    lint_pytorch(&read(&file, ParseMode::Strict).unwrap(), &input, &mut |lint: HeaderLint| {
        found.push((lint.rule, lint.subject.unwrap()))
    })
    .unwrap();
    let expected = [
        (CheckRule::PickleCode, "builtins.eval"),
        (CheckRule::PickleGlobal, "my.module.Thing"),
        (CheckRule::PickleGlobal, "my.module.config"),
        (CheckRule::PickleCode, "my.module.inner"),
        (CheckRule::PickleCode, "my.module.run"),
        (CheckRule::PickleGlobal, "my.module.value"),
        (CheckRule::PickleGlobal, "numpy.core.multiarray.scalar"),
        (CheckRule::PickleCode, "posix.system"),
        (CheckRule::PickleCode, "torch.jit.load"),
        (CheckRule::PickleCode, "torch.serialization.os.system"),
    ]
    .map(|(kind, name)| (kind, name.to_owned()));
    assert_eq!(found, expected);
}

#[test]
fn a_long_byte_order_is_not_read() {
    let plain = Pickle::new().raw(b"}").end();
    let (file, start) = archive(&[("a/data.pkl", &plain), ("a/byteorder", b"")]);
    let mut tail = file[start..].to_vec();
    let (entry, end) = (46 + 10, tail.len() - 22);
    let size = u32::MAX - 1;
    tail[entry + 20..entry + 24].copy_from_slice(&size.to_le_bytes());
    tail[entry + 24..entry + 28].copy_from_slice(&size.to_le_bytes());
    let offset = start as u64 + u64::from(size);
    // The place of the directory needs 64 bits.
    let mut end64 = [0; 56];
    end64[..4].copy_from_slice(b"PK\x06\x06");
    end64[32..40].copy_from_slice(&2_u64.to_le_bytes());
    end64[40..48].copy_from_slice(&(end as u64).to_le_bytes());
    end64[48..56].copy_from_slice(&offset.to_le_bytes());
    let place = (offset + end as u64).to_le_bytes();
    let locator = [&b"PK\x06\x07\0\0\0\0"[..], &place, &[1, 0, 0, 0]].concat();
    tail.splice(end..end, [&end64[..], &locator].concat());
    let len = offset + tail.len() as u64;
    let mut input = HeaderInput::with_prefix(len, file[..start].to_vec());
    let before = 64 << 10;
    input.add(offset - before, [vec![0; before as usize], tail].concat());
    let error = parse_pytorch(&input, ParseMode::Strict).unwrap_err().to_string();
    assert!(error.contains("the entry byteorder is neither"), "{error}");
}

#[test]
fn local_headers_are_read_together_for_the_lint() {
    let storages: Vec<String> = (0..200).map(|at| format!("a/data/{at}")).collect();
    let plain = Pickle::new().raw(b"}").end();
    let mut entries = vec![("a/data.pkl", &plain[..])];
    let bytes = vec![0; 80 << 10];
    entries.extend(storages.iter().map(|name| (&name[..], &bytes[..])));
    let (whole, _) = archive(&entries);
    let header = read(&whole, ParseMode::Strict).unwrap();
    let mut input = HeaderInput::new(whole.len() as u64);
    let mut asked = 0;
    while let Err(MissingRange(range)) = lint_pytorch(&header, &input, &mut |_| {}) {
        input.add(range.start, whole[range.start as usize..range.end as usize].to_vec());
        asked += 1;
    }
    assert!(asked < 30, "{asked}");
}

#[test]
fn only_a_part_of_the_file_is_needed() {
    let storages: Vec<(String, Vec<u8>)> = (0..20).map(|at| (format!("a/data/{at}"), vec![at; 1 << 20])).collect();
    let pickle = (0..20).fold(Pickle::new().raw(b"}("), |pickle, at| {
        pickle.text(&format!("w{at}")).tensor("FloatStorage", &at.to_string(), 1 << 18, 0, &[1 << 18], &[1])
    });
    let pickle = pickle.raw(b"u").end();
    for alignment in ["64", "16", "4096"] {
        let mut entries = vec![("a/data.pkl", &pickle[..]), ("a/.storage_alignment", alignment.as_bytes())];
        entries.push(("a/byteorder", b"little"));
        entries.extend(storages.iter().map(|(name, data)| (&name[..], &data[..])));
        let (whole, _) = by_torch(&entries, alignment.parse().unwrap());
        let mut input = HeaderInput::new(whole.len() as u64);
        let (mut asked, mut bytes) = (0, 0);
        let header = loop {
            match parse_zip(&input, ParseMode::Strict) {
                Err(Error::Missing(MissingRange(range))) => {
                    (asked, bytes) = (asked + 1, bytes + range.end - range.start);
                    input.add(range.start, whole[range.start as usize..range.end as usize].to_vec());
                }
                parsed => break parsed.unwrap(),
            }
        };
        // The end with the directory, and the pickle.
        assert_eq!((asked, header.len()), (2, 20), "{alignment}");
        assert!(bytes < 90_000, "{bytes}");
        for (at, tensor) in header.tensors().enumerate() {
            assert_eq!(whole[tensor.range.start as usize..][..2], [at as u8; 2], "{alignment}");
            assert_eq!(whole[tensor.range.end as usize - 1], at as u8);
        }
    }
}

#[test]
fn an_entry_with_a_wrong_local_header_is_left_out_in_lenient_mode() {
    let tensor = |pickle: Pickle, key: &str| pickle.text(key).tensor("FloatStorage", key, 12, 0, &[12], &[1]);
    let pickle = tensor(tensor(Pickle::new().raw(b"}("), "0"), "1").raw(b"u").end();
    let (mut file, _) = archive(&[("a/data.pkl", &pickle), ("a/data/0", &[7; 48]), ("a/data/1", &[8; 48])]);
    let at = file.windows(8).position(|bytes| bytes == b"a/data/0").unwrap() - 30;
    // The fields are as long as the data, so that the data would end in the next entry.
    file[at + 28] = 48;
    // Bytes after the data, so that the place of the data does not follow from the next entry.
    let error = read(&gap(&file), ParseMode::Strict).unwrap_err().to_string();
    assert!(error.contains("the 48 bytes of entry \"a/data/0\" end at byte"), "{error}");
    let header = read(&gap(&file), ParseMode::Lenient).unwrap();
    assert_eq!(header.tensors().map(|tensor| tensor.name.to_owned()).collect::<Vec<_>>(), ["1"]);
    let (skipped, _) = header.skipped.kept();
    assert!(skipped.len() == 1 && skipped[0].name == "0", "{skipped:?}");
    assert!(skipped[0].reason.contains("the 48 bytes of entry \"a/data/0\" end at byte"), "{skipped:?}");
}

/// Puts a byte before the entry `a/data/1`.
fn gap(file: &[u8]) -> Vec<u8> {
    let mut file = file.to_vec();
    let find = |file: &[u8]| file.windows(8).rposition(|bytes| bytes == b"a/data/1").unwrap();
    let first = file.windows(8).position(|bytes| bytes == b"a/data/1").unwrap() - 30;
    file.insert(first, 0);
    let (entry, end) = (find(&file) - 4, file.len() - 6);
    for at in [entry, end] {
        let offset = u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) + 1;
        file[at..at + 4].copy_from_slice(&offset.to_le_bytes());
    }
    file
}

#[test]
fn state_dicts_of_optimizers_are_recognised_by_their_names() {
    for (names, expected) in [
        (&["state.0.exp_avg", "param_groups.0.lr"][..], Some(0)),
        (&["optimizer.param_groups", "optimizer.state.a.b.exp_avg"], Some(10)),
        (&["state.0.exp_avg"], None),
        (&["param_groups.0.lr"], Some(0)),
        (&["a.state.0", "b.param_groups"], None),
        (&["a.b.state.0", "a.b.param_groups"], None),
        (&["state.0.exp_avg", "param_groups.0.lr", "model.w"], None),
        (&["optimizer.state.w.exp_avg", "optimizer.param_groups", "model.w"], None),
        (&["states.0", "param_groups_2"], None),
        (&[""], None),
        (&[], None),
    ] {
        assert_eq!(states_start(names.iter().copied()), expected, "{names:?}");
    }
}

#[test]
fn files_beside_a_model_are_no_models() {
    for name in ["optimizer.pt", "scheduler.pt", "rng_state.pth", "rng_state_3.pth", "training_args.bin", "x.bin"] {
        assert!(is_other(name.as_ref()), "{name}");
    }
    let name = "extra_state_world_size_8_rank_0.pt";
    assert!(is_other(name.as_ref()) && !is_other(name.replace("_world", "").as_ref()));
    for name in ["model.pt", "last.ckpt", "pytorch_model.bin", "pytorch_lora_weights.bin", "consolidated.00.pth"] {
        assert!(!is_other(name.as_ref()), "{name}");
    }
}

#[test]
fn safetensors_models_are_preferred() {
    let cases = [
        ("pytorch_model.bin", Some("model.safetensors")),
        ("pytorch_model.bin.index.json", Some("model.safetensors")),
        ("pytorch_model-00001-of-00002.bin", Some("model.safetensors")),
        ("adapter_model.bin", Some("adapter_model.safetensors")),
        ("diffusion_pytorch_model.fp16.bin", Some("diffusion_pytorch_model.fp16.safetensors")),
        ("last.ckpt", None),
    ];
    for (name, expected) in cases {
        let found = preferred(name.as_ref()).map(|[file, _]| file.into_string().unwrap());
        assert_eq!(found.as_deref(), expected, "{name}");
    }
}

/// The entries of an archive are recovered from the pickle and the local headers, wherever the file ends.
#[test]
fn complete_storages_of_a_broken_download_are_recovered() {
    let tensors = [("x", "0", 3, "Float"), ("y", "1", 40, "Half"), ("z", "2", 70, "Byte")];
    let pickle = tensors.iter().fold(Pickle::new().raw(b"}("), |pickle, (name, key, count, class)| {
        pickle.text(name).tensor(&format!("{class}Storage"), key, *count, 0, &[*count], &[1])
    });
    let pickle = pickle.raw(b"u").end();
    let entries: [(&str, &[u8]); 6] = [
        ("a/data.pkl", &pickle),
        ("a/byteorder", b"little"),
        ("a/data/0", &[1; 12]),
        ("a/data/1", &[2; 80]),
        ("a/data/2", &[3; 70]),
        ("a/version", b"3\n"),
    ];
    let (file, directory) = by_torch(&entries, 64);
    let whole = read(&file, ParseMode::Strict).unwrap();
    let ends: Vec<u64> = whole.tensors().map(|tensor| tensor.range.end).collect();
    let pickle_end = file.windows(pickle.len()).position(|part| part == pickle).unwrap() + pickle.len();
    for cut in 30..file.len() {
        let cut_file = &file[..cut];
        assert!(read(cut_file, ParseMode::Strict).is_err());
        let found = read(cut_file, ParseMode::Lenient);
        // The end of the pickle is known by the descriptor after it.
        if cut < pickle_end + 16 {
            let error = found.unwrap_err().to_string();
            assert!(
                error.contains("data.pkl, which describes the tensors, is not among the 0 entries"),
                "{cut}: {error}"
            );
            continue;
        }
        let found = found.unwrap();
        let expected = ends.iter().filter(|end| **end <= cut as u64).count();
        assert_eq!(found.len(), expected, "{cut}");
        for (a, b) in whole.tensors().zip(found.tensors()) {
            assert_eq!(a, b);
        }
        let skipped = found.skipped.listed();
        assert_eq!(skipped.len(), 1 + 3 - expected, "{cut}: {skipped:?}");
        assert!(skipped.last().unwrap().reason.contains(&format!("of {cut} bytes, the first ")), "{skipped:?}");
    }
    // With a wrong descriptor, the size of the entry is not certain, and nothing after it is used.
    let mut broken = file[..directory].to_vec();
    broken[ends[1] as usize + 8] ^= 1;
    let found = read(&broken, ParseMode::Lenient).unwrap();
    assert_eq!(found.tensors().map(|tensor| tensor.name).collect::<Vec<_>>(), ["x"]);
    // Archives of other programs have the sizes in the local headers.
    let (plain, directory) = archive(&entries);
    assert_eq!(read(&plain[..directory], ParseMode::Lenient).unwrap().len(), 3);
    // Without the pickle, no entry says what the storages are.
    let (late, directory) = archive(&[entries[2], entries[0]]);
    let error = read(&late[..directory - 1], ParseMode::Lenient).unwrap_err().to_string();
    assert!(error.contains("is not among the 1 entries that are complete"), "{error}");
}

/// A file of torch before version 1.6 with the object `pickle`, storages with these keys, counts and sizes, and
/// whatever the second and the third pickle hold.
fn legacy(pickle: Vec<u8>, storages: &[(&str, u64, usize)], version: i32, machine: &[u8]) -> Vec<u8> {
    let mut out = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.".to_vec();
    out.extend(Pickle::new().int(version).end());
    out.extend(Pickle::new().raw(b"}").text("little_endian").raw(machine).raw(b"s").end());
    out.extend(pickle);
    let keys = storages.iter().fold(Pickle::new().raw(b"]("), |keys, (key, ..)| keys.text(key)).raw(b"e");
    out.extend(keys.end());
    for (_, count, size) in storages {
        out.extend(count.to_le_bytes());
        out.extend(vec![7; *size]);
    }
    out
}

/// The pickle of a dict with tensors `a` and `b` in the storages `0` and `1`, the second a view.
fn two_tensors(view: impl Fn(Pickle) -> Pickle) -> Vec<u8> {
    let pickle = Pickle::new().raw(b"}(").text("a").tensor("FloatStorage", "0", 4, 0, &[2, 2], &[1, 2]).text("b");
    let pickle = pickle.raw(b"ctorch._utils\n_rebuild_tensor_v2\n((").text("storage").raw(b"ctorch\nHalfStorage\n");
    let pickle = view(pickle.text("1").text("cpu").int(5));
    pickle.raw(b"tQ").int(1).ints(&[2]).ints(&[1]).raw(b"\x89}tRu").end()
}

const TRUE: &[u8] = b"\x88";

#[test]
fn storages_after_the_pickles_are_found() {
    let pickle = || two_tensors(|pickle| pickle.text("7").int(1).int(3).raw(b"\x87"));
    let file = legacy(pickle(), &[("1", 5, 10), ("0", 4, 16)], 1001, TRUE);
    let header = read(&file, ParseMode::Strict).unwrap();
    let len = file.len() as u64;
    // The second element of the view is the third one of the storage.
    let found: Vec<_> = header.tensors().map(|tensor| (tensor.name, tensor.range, tensor.layout.is_some())).collect();
    assert_eq!(found, [("b", len - 34 + 4..len - 34 + 8, false), ("a", len - 16..len, true)]);
    assert_eq!((header.data_start, header.format), (len - 34, NAME));
    // Without the last bytes, the complete storages are left.
    let error = read(&file[..file.len() - 3], ParseMode::Strict).unwrap_err().to_string();
    assert!(error.contains(&format!("truncated: the data ends at byte {len}, but the file ends at byte {}", len - 3)));
    let header = read(&file[..file.len() - 3], ParseMode::Lenient).unwrap();
    assert_eq!((header.len(), header.tensor(0).name, header.skipped.total()), (1, "b", 1));
    // A view that is none.
    let file = legacy(two_tensors(|pickle| pickle.raw(b"N")), &[("0", 4, 16), ("1", 5, 10)], 1001, TRUE);
    assert_eq!(read(&file, ParseMode::Strict).unwrap().len(), 2);
}

#[test]
fn broken_files_of_old_versions_are_refused() {
    let plain = || two_tensors(|pickle| pickle.raw(b"N"));
    let (zero, one) = (("0", 4, 16), ("1", 5, 10));
    let with = |storages: &[(&str, u64, usize)]| legacy(plain(), storages, 1001, TRUE);
    let keyed =
        |key: &str, offset: i32, len: i32| two_tensors(|pickle| pickle.text(key).int(offset).int(len).raw(b"\x87"));
    let view = |offset: i32, len: i32| keyed("7", offset, len);
    let with_key = |key: &str, offset: i32, len: i32| legacy(keyed(key, offset, len), &[zero, one], 1001, TRUE);
    // Two views with a key.
    let [first, second] = [(1, 3), (1, 2)].map(|(offset, len)| keyed("7", offset, len));
    let both = [&b"\x80\x02]("[..], &first[2..first.len() - 1], &second[2..second.len() - 1], b"e."].concat();
    let views = legacy(both, &[zero, one], 1001, TRUE);
    let with_version = |version: Vec<u8>| {
        let mut file = with(&[zero, one]);
        file.splice(15..15 + Pickle::new().int(0).end().len(), version);
        file
    };
    let texts = with_version(Pickle::new().text("1001").end());
    let long = with_version(Pickle::new().text(&"1".repeat(70_000)).end());
    // The version is a text that has a checksum where a tar archive has it, of signed and of unsigned bytes.
    let checked = |bytes: &[u8]| with_version(Pickle::new().text(&String::from_utf8_lossy(bytes)).end());
    let sum_into = |mut file: Vec<u8>, is_signed: bool| {
        file[148..156].fill(b' ');
        let sum: i64 = file[..512]
            .iter()
            .map(|byte| if is_signed { i64::from(byte.cast_signed()) } else { i64::from(*byte) })
            .sum();
        file[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        file
    };
    let [tar, signed] = [false, true].map(|is_signed| sum_into(checked(&[b'v'; 600]), is_signed));
    let mut trailing = with(&[zero, one]);
    trailing.extend([0; 5]);
    let huge = Pickle::new().tensor("FloatStorage", "0", i32::MAX, 0, &[1], &[1]).end();
    let code = Pickle::new().raw(b"cos\nsystem\n").raw(b"0").int(1001).end();
    let mut called = with(&[zero, one]);
    called.splice(15..15 + Pickle::new().int(0).end().len(), code);
    let cases = [
        (with(&[zero]), "tensor \"b\": its storage \"1\" is not in the file"),
        (with(&[zero, one, one]), "storage \"1\": it is listed twice"),
        (with(&[zero, one, ("2", 1, 4)]), "storage \"2\": the object has no id of it with a class of known size"),
        (with(&[zero, ("1", 6, 10)]), "storage \"1\" has 6 elements according to byte "),
        (with(&[zero, ("1", 5, 9)]), "truncated: the data ends at byte"),
        (trailing, "5 bytes after the last storage, which ends at byte"),
        (legacy(huge, &[("0", 4, 16)], 1001, TRUE), "truncated: the data ends at byte"),
        (legacy(plain(), &[zero, one], 1002, TRUE), "its version is 1002; 1001 is supported"),
        (texts, "its version is not a number; 1001 is supported"),
        (with_key("0", 0, 2), "the view \"0\" of a storage has the key of a storage"),
        (views, "the view \"7\" of a storage occurs with other elements"),
        (long, "the version at byte 15 does not end within 65536 bytes"),
        (tar, "its first bytes are also the header of a tar archive, which torch would read"),
        (signed, "its first bytes are also the header of a tar archive, which torch would read"),
        (legacy(plain(), &[zero, one], 1001, b"\x89"), "a big-endian machine (little_endian is False)"),
        (called, "the version names \"os.system\", which torch does not write there"),
        (legacy(view(3, 3), &[zero, one], 1001, TRUE), "a view of elements 3 to 6 of \"1\", which has 5"),
        (legacy(view(-1, 3), &[zero, one], 1001, TRUE), "a view with a key or numbers that torch does not write"),
        (legacy(view(0, 2), &[zero, one], 1001, TRUE), "needs 3 elements, but its storage has 2"),
        (legacy(plain()[..60].to_vec(), &[], 1001, TRUE), "the object at byte"),
    ];
    for (file, expected) in cases {
        let error = read(&file, ParseMode::Strict).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\n{expected}");
    }
}

#[test]
fn counts_that_are_far_apart_are_not_all_read() {
    // More than 1000 places, and more than 16 MiB of storages that are read with the counts between them.
    for (number, size, most) in [(1100, 20 << 10, 1000), (1200, 15 << 10, 17)] {
        let keys: Vec<String> = (0..number).map(|key| key.to_string()).collect();
        let pickle = keys
            .iter()
            .fold(Pickle::new().raw(b"]("), |pickle, key| pickle.tensor("ByteStorage", key, size, 0, &[1], &[1]));
        let storages: Vec<_> = keys.iter().map(|key| (&key[..], size as u64, size as usize)).collect();
        let mut file = legacy(pickle.raw(b"e").end(), &storages, 1001, TRUE);
        // The count of the last storage is wrong, and not compared.
        let last = file.len() - size as usize - 8;
        file[last] ^= 1;
        let header = read(&file, ParseMode::Strict).unwrap();
        assert_eq!(header.len(), number);
        let mut input = HeaderInput::new(file.len() as u64);
        let (mut reads, mut found) = (0, Vec::new());
        while let Err(MissingRange(range)) = lint_pytorch(&header, &input, &mut |lint| found.push(lint)) {
            input.add(range.start, file[range.start as usize..range.end as usize].to_vec());
            reads += 1;
        }
        assert!(
            (most - 8..most + 8).contains(&reads) && input.held() < 17 << 20,
            "{reads} reads, {} bytes",
            input.held()
        );
        let [HeaderLint { rule: CheckRule::Unverified, message, .. }] = &found[..] else { panic!("{found:?}") };
        let left: usize = message.split(' ').find_map(|word| word.parse().ok()).unwrap();
        assert!(message.ends_with("storages are too far apart, and were not compared with the pickle"), "{message}");
        assert!((1..300).contains(&left), "{message}");
    }
}

#[test]
fn storages_of_old_versions_are_not_read() {
    // A pickle that is longer than the first read, and a storage of 4 GiB that is a hole.
    let count = 1u64 << 30;
    let long = "n".repeat(300_000);
    let pickle = Pickle::new().raw(b"}(").text(&long).int(1).text("w");
    let pickle = pickle.tensor("FloatStorage", "0", count as i32, 0, &[3], &[1]).raw(b"u").end();
    let start = legacy(pickle, &[("0", count, 0)], 1001, TRUE);
    let len = start.len() as u64 + 4 * count;
    let mut input = HeaderInput::new(len);
    let mut reads = 0;
    let header = loop {
        match parse_pytorch(&input, ParseMode::Strict) {
            Err(Error::Missing(MissingRange(range))) => {
                reads += 1;
                let known = start.get(range.start as usize..).unwrap_or_default();
                let mut bytes = known[..known.len().min((range.end - range.start) as usize)].to_vec();
                bytes.resize((range.end - range.start) as usize, 0);
                input.add(range.start, bytes);
            }
            parsed => break parsed.unwrap(),
        }
    };
    assert_eq!((header.len(), header.metadata.len()), (1, 1));
    assert!(reads < 10 && input.held() < 2 << 20, "{reads} reads, {} bytes", input.held());
}

/// A tar archive of old torch with these members.
fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let members: Vec<_> = members.iter().map(|(name, data)| (*name, b'0', *data)).collect();
    tar_of(&members)
}

/// A tar archive with members of these names, types and data. What follows a line feed in a name is its prefix.
fn tar_of(members: &[(&str, u8, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, kind, data) in members {
        let mut block = [0; 512];
        let (name, prefix) = name.split_once('\n').unwrap_or((name, ""));
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[345..345 + prefix.len()].copy_from_slice(prefix.as_bytes());
        block[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
        block[156] = *kind;
        block[257..263].copy_from_slice(b"ustar\0");
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        out.extend([&block[..], data].concat());
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out.resize(out.len() + 1024, 0);
    out
}

/// The members `storages` and `tensors` of one tensor with this class of its storage, number of elements, rank and
/// numbers.
fn tar_members(class: &str, count: u64, views: Pickle, rank: u32, numbers: &[i64]) -> [Vec<u8>; 2] {
    let class = format!("ctorch\n{class}\n");
    let storage = Pickle::new().raw(b"(").int(0).text("cpu").raw(class.as_bytes()).raw(b"t").end();
    let storages = [Pickle::new().int(1).end(), storage, count.to_le_bytes().to_vec(), vec![7; 24], views.end()];
    let tensor = Pickle::new().raw(b"(").int(9).int(0).raw(b"ctorch\nFloatTensor\nt").end();
    let numbers = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let rank = [rank.to_le_bytes(), [0xff; 4]].concat();
    [storages.concat(), [Pickle::new().int(1).end(), tensor, rank, numbers].concat()]
}

#[test]
fn tar_archives_are_read_or_refused() {
    let info = Pickle::new().raw(b"}").text("little_endian").raw(TRUE).raw(b"s").end();
    let pickle = Pickle::new().raw(b"}").text("w").text("9").raw(b"Qs").end();
    let none = || Pickle::new().raw(b"]");
    let whole = |[storages, tensors]: [Vec<u8>; 2]| {
        tar(&[("sys_info", &info), ("pickle", &pickle), ("tensors", &tensors), ("storages", &storages)])
    };
    let sound = || tar_members("FloatStorage", 6, none(), 2, &[2, 2, 1, 2, 1]);
    let header = read(&whole(sound()), ParseMode::Strict).unwrap();
    let tensor = header.tensor(0);
    assert_eq!((tensor.name, tensor.shape, tensor.layout.unwrap().strides), ("w", &[2, 2][..], &[1, 2][..]));
    assert_eq!(tensor.range, header.data_start + 4..header.data_start + 20);
    // In a state dict, the tensors of which are the values of the pickle.
    let inside = Pickle::new().raw(b"}").text("state_dict").raw(b"}").text("w").text("9").raw(b"Qss").end();
    let [storages, tensors] = sound();
    let members = [("sys_info", &info[..]), ("pickle", &inside), ("tensors", &tensors), ("storages", &storages)];
    assert_eq!(read(&tar(&members), ParseMode::Strict).unwrap().tensor(0).name, "w");
    let mut damaged = whole(sound());
    damaged[3] ^= 1;
    damaged[0] = b's';
    let big = Pickle::new().raw(b"}").text("little_endian").raw(b"\x89s").end();
    let view = |offset: i32| none().raw(b"((").int(5).int(0).int(offset).int(2).raw(b"te");
    let members =
        |class: &str, count, views, rank, numbers: &[i64]| whole(tar_members(class, count, views, rank, numbers));
    let [storages, tensors] = sound();
    // Facts about members before them.
    let facts = |facts: &[u8]| {
        let fact = ("././@PaxHeader", b'x', facts);
        let members = [("sys_info", b'0', &info[..]), ("pickle", b'0', &pickle), ("tensors", b'0', &tensors)];
        tar_of(&[&[fact], &members[..], &[fact, ("storages", b'0', &storages)]].concat())
    };
    let times = facts(b"28 mtime=1480000000.1234567\n12 uid=7000\n");
    assert_eq!(read(&times, ParseMode::Strict).unwrap().len(), 1);
    let other = "has other facts about a member than times and owners";
    let many = [("././@PaxHeader", b'x', &b"12 uid=7000\n"[..])].repeat(64);
    let many = tar_of(&[&[("sys_info", b'0', &info[..])], &many[..]].concat());
    let long = Pickle::new().raw(b"}").text(&"n".repeat(70_000)).raw(b"Ns").end();
    let long_number =
        [Pickle::new().raw(b"(").text(&"n".repeat(70_000)).raw(b"0").int(0).end(), storages.clone()].concat();
    let count = |count: i32| Pickle::new().int(count).end();
    let with = |info: &[u8], storages: &[u8]| {
        tar(&[("sys_info", info), ("pickle", &pickle), ("tensors", &tensors), ("storages", storages)])
    };
    let cut = |by: usize| {
        let whole = whole(sound());
        whole[..whole.len() - 1024 - by].to_vec()
    };
    let cases = [
        (facts(b"13 path=pick\n"), other),
        (facts(b"12 size=100\n"), other),
        (facts(b"9 mtime=1\n"), other),
        (facts(b"mtime=1\n"), other),
        (facts(b"0 mtime=1\n"), other),
        (many, "the tar archive has more than 63 members"),
        (tar(&[("sys_info\nfolder", &info)]), "has a prefix of its name, which torch does not write"),
        (with(&long, &storages), "sys_info has 70011 bytes; weightfs reads at most 65536"),
        (with(&info, &long_number), "does not end within 65536 bytes"),
        (with(&info, &count(1)), "a pickle of storages at byte"),
        (with(&info, &count(2001)), "its number of storages is not one of 0 to 2000"),
        (with(&info, &count(2000)), "a pickle of storages at byte"),
        (cut(500), "truncated: the data ends at byte"),
        (tar(&[("sys_info", &info), ("pickle", &pickle)]), "the tar archive has no member tensors"),
        (tar(&[("pickle", &pickle), ("pickle", &pickle)]), "two members \"pickle\""),
        (tar(&[("sys_info", &big), ("pickle", &pickle), ("tensors", &tensors), ("storages", &storages)]), "big-endian"),
        (whole(sound())[..1200].to_vec(), "the header of a tar member at byte 1024 is cut"),
        (members("OddStorage", 6, none(), 0, &[0]), "storage 0: its class is not known"),
        (members("FloatStorage", 7000, none(), 0, &[0]), "storage 0: its 7000 elements from byte"),
        (members("FloatStorage", u64::MAX, none(), 0, &[0]), "storage 0: its 18446744073709551615 elements"),
        (members("FloatStorage", 6, view(5), 0, &[0]), "a view of a storage does not lie in a storage"),
        (members("FloatStorage", 6, none(), 65, &[0]), "tensor 0 of the tar archive: it is cut, or has more than 64"),
        (members("FloatStorage", 6, none(), 3, &[0]), "tensor 0 of the tar archive: it is cut"),
        (members("FloatStorage", 6, none(), 1, &[7, 1, 0]), "tensor \"w\": shape [7] with strides [1] from element 0"),
        (members("FloatStorage", 6, none(), 1, &[-7, 1, 0]), "a number is negative"),
        (members("FloatStorage", 6, none().raw(b"cos\nsystem\n0"), 0, &[0]), "names \"os.system\""),
    ];
    for (file, expected) in cases {
        let error = read(&file, ParseMode::Strict).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\n{expected}");
    }
    // A tensor of a tar archive is only one there: an id of another kind is no tensor in other files.
    let id = || Pickle::new().raw(b"}(").text("state_dict").raw(b"}").text("w").text("9").raw(b"Qu").end();
    for file in [file(id()), legacy(id(), &[], 1001, TRUE)] {
        let header = read(&file, ParseMode::Strict).unwrap();
        assert_eq!((header.len(), header.value_text("w")), (0, "<storage>"));
    }
    let mut wrong = whole(sound());
    wrong[130] ^= 1;
    let error = read(&wrong, ParseMode::Strict).unwrap_err().to_string();
    assert!(error.contains("at byte 0 is cut or has a wrong checksum"), "{error}");
    assert!(!tar::is_tar(&HeaderInput::with_prefix(damaged.len() as u64, damaged)).unwrap());
}
