//! ONNX models. `tests/checkpoints/onnx` has those that the package `onnx` has written, and one that was made by hand,
//! with the sums of their tensors.

use crate::checkpoints::sums_of;
use crate::room::Room;
use std::path::{Path, PathBuf};

fn written() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/onnx")
}

/// A directory with all models; that with external data is in `external`.
fn room() -> Room {
    let room = Room::new();
    for name in ["raw", "odd", "subgraph", "typed"] {
        let file = format!("{name}.onnx");
        std::fs::copy(written().join(&file), room.path(&file)).unwrap();
    }
    room.ok(&format!("cp -r {} .", written().join("external").display()));
    room
}

/// What a command prints that must fail.
fn failed(room: &Room, line: &str) -> String {
    let output = room.sh(line);
    assert!(output.code != 0, "{output:?}");
    output.out + &output.err
}

/// A message of Protocol Buffers with a field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len() < 128);
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

/// As [`field`], with at least 128 and less than 16,384 bytes.
fn long_field(number: u8, bytes: &[u8]) -> Vec<u8> {
    if bytes.len() < 128 {
        return field(number, bytes);
    }
    [&[number << 3 | 2, bytes.len() as u8 | 0x80, (bytes.len() >> 7) as u8], bytes].concat()
}

fn entry(key: &str, value: &str) -> Vec<u8> {
    [field(1, key.as_bytes()), field(2, value.as_bytes())].concat()
}

/// The fields of a tensor of four bytes in another file, with these entries of its external data.
fn tensor_at(name: &str, entries: &[(&str, &str)]) -> Vec<u8> {
    let mut tensor = [&b"\x08\x04\x10\x02"[..], &field(8, name.as_bytes())].concat();
    entries.iter().for_each(|(key, value)| tensor.extend(field(13, &entry(key, value))));
    tensor.extend(b"\x70\x01");
    tensor
}

/// A model with one tensor `w` of four bytes in another file, with these entries of its external data.
fn external(entries: &[(&str, &str)]) -> Vec<u8> {
    [b"\x08\x0a".to_vec(), field(7, &field(5, &tensor_at("w", entries)))].concat()
}

#[test]
fn models_have_their_tensors() {
    let room = room();
    let sums = std::fs::read_to_string(written().join("sums.tsv")).unwrap();
    for (case, file) in [
        ("raw", "raw.onnx"),
        ("odd", "odd.onnx"),
        ("subgraph", "subgraph.onnx"),
        ("typed", "typed.onnx"),
        ("external", "external/model.onnx"),
        ("external", "external"),
    ] {
        let mut expected: Vec<&str> = sums.lines().filter_map(|line| line.strip_prefix(&format!("{case}\t"))).collect();
        expected.sort();
        assert_eq!(sums_of(&room, file), expected, "{case}");
        let check = room.ok(&format!("weightfs check {file} && weightfs check --values {file}"));
        let count = format!("({} tensors", expected.len());
        assert!(check.matches(": OK").count() == 2 && check.matches(&count).count() == 2, "{check}");
    }
}

#[test]
fn models_are_exported() {
    let room = room();
    for file in ["odd.onnx", "subgraph.onnx", "external/model.onnx"] {
        room.ok(&format!("weightfs export {file} out.safetensors --force"));
        assert_eq!(sums_of(&room, "out.safetensors"), sums_of(&room, file), "{file}");
    }
    for file in ["typed.onnx", "raw.onnx"] {
        let said = failed(&room, &format!("weightfs export {file} none.safetensors"));
        assert!(said.contains("the values of \"") && said.contains("\" are not known"), "{said}");
    }
    let page = room.ok("weightfs inspect external/model.onnx");
    assert!(page.contains("data in 2 other files"), "{page}");
}

#[test]
fn several_names_of_a_file_are_one_file() {
    let room = Room::new();
    room.ok("printf 0123456789 > data && ln data link");
    let write = |location: &str, rest: [(&str, &str); 2]| {
        let v = tensor_at("v", &[("location", "data"), ("offset", "0"), ("length", "4")]);
        let w = tensor_at("w", &[("location", location), rest[0], rest[1]]);
        let graph = long_field(7, &[field(5, &v), field(5, &w)].concat());
        std::fs::write(room.path("model.onnx"), [b"\x08\x0a".to_vec(), graph].concat()).unwrap();
        room.ok("weightfs inspect model.onnx")
    };
    for location in ["data", "./data", "link"] {
        let page = write(location, [("offset", "6"), ("length", "4")]);
        assert!(page.contains("data in 1 other file"), "{page}");
        assert_eq!(room.ok("weightfs cat model.onnx tensors/w"), "6789");
    }
    // The model itself has the data.
    let page = write("model.onnx", [("offset", "0"), ("length", "4")]);
    assert!(page.contains("data in 1 other file"), "{page}");
}

#[test]
fn check_says_what_is_elsewhere_only_under_another_name() {
    let room = room();
    let listed = "its data is in another file, or in a form that is decoded";
    room.ok("cp external/model.onnx external/model.ort");
    let said = room.sh("weightfs check external/model.ort");
    assert!(said.out.contains(listed), "{said:?}");
    // The second tensor has a dtype that is not known.
    let sound = field(5, &tensor_at("w", &[("location", "tail.bin"), ("length", "4")]));
    let wrong = field(5, &[&b"\x10\x63"[..], &field(8, b"x")].concat());
    std::fs::write(room.path("wrong.onnx"), [b"\x08\x0a".to_vec(), field(7, &[sound, wrong].concat())].concat())
        .unwrap();
    std::fs::write(room.path("tail.bin"), "0123").unwrap();
    let said = failed(&room, "weightfs check wrong.onnx");
    assert!(said.contains("its dtype has the number 99") && !said.contains(listed), "{said}");
}

#[test]
fn models_beside_another_one_belong_to_it() {
    let room = room();
    room.ok("weightfs export odd.onnx model.safetensors && mkdir hub both only several");
    room.ok("cp -r external hub/onnx && cp model.safetensors hub && cp odd.onnx hub/onnx/model_fp16.onnx");
    room.ok("cp model.safetensors raw.onnx both && mkdir only/onnx && cp odd.onnx only/onnx");
    room.ok("cp odd.onnx raw.onnx several && mkdir several/onnx && cp typed.onnx several/onnx");
    let sources = |dir: &str| -> Vec<String> {
        let listed = room.json(&format!("weightfs ls --json {dir}"));
        listed.iter().map(|model| model["source"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(sources("hub"), ["hub/model.safetensors"]);
    assert_eq!(sources("both"), ["both/model.safetensors"]);
    assert_eq!(sources("only"), ["only/onnx/odd.onnx"]);
    assert_eq!(sources("several"), ["several/odd.onnx", "several/onnx/typed.onnx", "several/raw.onnx"]);
    assert_eq!(sources("hub/onnx"), ["hub/onnx/model.onnx", "hub/onnx/model_fp16.onnx"]);
    assert_eq!(sources("hub/onnx/model.onnx"), ["hub/onnx/model.onnx"]);
    assert!(room.ok("weightfs inspect hub").contains("safetensors"));
    assert!(room.ok("weightfs ls --files hub files/onnx").contains("model.onnx_data"));
    // A folder with another name may have a model of its own.
    room.ok("mv hub/onnx hub/other");
    assert_eq!(sources("hub").len(), 3);
}

#[test]
fn files_of_data_are_no_models() {
    let room = room();
    assert_eq!(room.json("weightfs ls --json .").len(), 5);
    assert_eq!(room.json("weightfs ls --json external").len(), 1);
}

#[test]
fn places_outside_of_the_directory_are_refused() {
    let room = Room::new();
    room.ok(
        "mkdir -p model/sub model/directory && printf 0123456789 > data && cp data model/data && cp data model/sub/",
    );
    let location = |location| ("location", location);
    let cases: [(&[(&str, &str)], &str); 13] = [
        (&[location("../data")], "the location \"../data\" of its external data leads out of the directory"),
        (&[location("sub/../../data")], "leads out of the directory"),
        (&[location("/etc/passwd")], "the location \"/etc/passwd\" of its external data is absolute"),
        (&[location("")], "the location \"\" of its external data is empty"),
        (&[], "is empty"),
        (&[location("a\0b")], "has a NUL character"),
        (&[location("./")], "names no file"),
        (&[location("directory")], "a file with external data is missing or broken"),
        (&[location("absent")], "a file with external data is missing or broken"),
        (
            &[location("data"), ("offset", "7")],
            "from byte 7 to the end of \"data\" has 3 bytes, but dtype and shape give 4",
        ),
        (&[location("data"), ("offset", "7"), ("length", "4")], "its 4 bytes at byte 7 go beyond the end of \"data\""),
        (&[location("data"), ("offset", "-1")], "the offset of its external data is \"-1\""),
        (&[location("data"), ("length", "5")], "its data in \"data\" has 5 bytes, but dtype and shape give 4"),
    ];
    for (entries, expected) in cases {
        std::fs::write(room.path("model/model.onnx"), external(entries)).unwrap();
        // A missing file is named before its tensors.
        let named = if expected.contains("missing") { entries[0].1 } else { "\"w\"" };
        for command in ["ls", "check"] {
            let said = failed(&room, &format!("weightfs {command} model/model.onnx"));
            assert!(said.contains(expected) && said.contains(named), "{said}\n{expected}");
        }
        let lenient = room.sh("weightfs ls --lenient model/model.onnx");
        assert!(lenient.code == 0, "{lenient:?}");
    }
    for (entries, expected) in [
        (&[location("data"), ("length", "4")][..], "0123"),
        (&[location("sub/data"), ("offset", "6"), ("checksum", "?")], "6789"),
    ] {
        std::fs::write(room.path("model/model.onnx"), external(entries)).unwrap();
        assert_eq!(room.ok("weightfs cat model/model.onnx tensors/w"), expected);
        // The links of the cache of the Hub.
        room.ok("rm -rf linked && cp -rs $PWD/model linked");
        let linked = room.sh("weightfs cat linked/model.onnx tensors/w");
        assert!(linked.out == expected, "{linked:?}");
    }
}

#[test]
fn truncated_models_are_read_in_part() {
    let room = room();
    let bytes = std::fs::read(room.path("raw.onnx")).unwrap();
    std::fs::write(room.path("cut.onnx"), &bytes[..700]).unwrap();
    let said = failed(&room, "weightfs ls cut.onnx");
    assert!(
        said.contains("truncated: the data ends at byte 1515, but") && said.contains("the file ends at byte 700"),
        "{said}"
    );
    let listed = room.json("weightfs ls --json --lenient cut.onnx");
    let count = listed[0]["tensors"].as_array().unwrap().len();
    assert!((5..24).contains(&count), "{count}");
}
