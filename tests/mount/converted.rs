//! Exports that are converted to BF16 or F32: in a mount, and written by `weightfs export`.

use crate::gguf;
use crate::support::{Mount, Scene, pattern, python, real_model, require_fuse, run_ok};
use crate::views::zoo;
use safetensors::{Dtype, SafeTensors};
use std::fs;
use std::path::Path;

const KINDS: [&str; 2] = ["bf16", "f32"];

/// Compares a converted file with its source in Python.
pub fn compare(source: &Path, file: &Path, mount: &Mount) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/converted.py");
    let f32 = mount.path("f32");
    run_ok(python().to_str().unwrap(), [script.as_path(), source, file, &f32]).trim().to_owned()
}

#[test]
fn converted_exports_match_ml_dtypes_and_the_gguf_package() {
    require_fuse!();
    let scene = gguf::scene();
    let sources = [zoo(&scene), scene.path("types.gguf"), real_model("silero_vad_16k")];
    for (source, tensors) in sources.iter().zip([26, 33, 0]) {
        // Without a page cache, every read reaches the daemon as the reader issues it.
        let mount = scene.mount(source, &["--direct-io"]);
        let stem = source.file_stem().unwrap().to_str().unwrap();
        for kind in KINDS {
            let file = mount.path(format!("export/{stem}-{kind}.safetensors"));
            let said = compare(source, &file, &mount);
            let found = said.strip_suffix(&kind.to_uppercase()).unwrap().trim().parse::<usize>().unwrap();
            assert!(found > 1 && (tensors == 0 || found == tensors), "{said}");
            // The command writes the same file.
            let out = scene.path(format!("{stem}-{kind}.safetensors"));
            let line = format!("weightfs export --force --dtype {kind} {} {}", source.display(), out.display());
            assert_eq!(scene.ok(&line), "");
            assert!(fs::read(&out).unwrap() == fs::read(&file).unwrap(), "{stem} {kind}");
        }
    }
}

#[test]
fn half_floats_are_those_of_numpy() {
    require_fuse!();
    let scene = gguf::scene();
    for source in [zoo(&scene), scene.path("types.gguf"), real_model("silero_vad_16k")] {
        let stem = source.file_stem().unwrap().to_str().unwrap();
        let out = scene.path(format!("{stem}-f16.safetensors"));
        let said = scene.sh(&format!("weightfs export --dtype f16 {} {}", source.display(), out.display()));
        assert!(said.code == 0 && said.err.lines().all(|line| line.ends_with(" become infinite")), "{said:?}");
        let mount = scene.mount(&source, &[]);
        let compared = compare(&source, &out, &mount);
        assert!(compared.ends_with(" F16") && !compared.starts_with("0 "), "{compared}");
    }
}

#[test]
fn values_beyond_half_floats_are_warned_about_before_anything_is_written() {
    let scene = Scene::new();
    let f32s = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let wide: Vec<u8> = [65519.99999999999f64, 65520.0, -1e300].iter().flat_map(|value| value.to_le_bytes()).collect();
    // The middle between the largest half float and the next power of two rounds to infinity.
    let plain = [1.0, 65504.0, 65519.996, 65520.0, -70000.0, f32::INFINITY, f32::NAN, 2e-8, 3e-8, 6.1e-5];
    scene.model(
        "m.safetensors",
        &[
            ("f32", Dtype::F32, &[10], f32s(&plain)),
            ("f64", Dtype::F64, &[3], wide),
            ("fits", Dtype::F32, &[2], f32s(&[-65504.0, 0.0])),
            ("ids", Dtype::I64, &[1], 1_000_000i64.to_le_bytes().to_vec()),
            ("mask", Dtype::BF16, &[2], vec![0x80, 0xff, 0x7f, 0xff]),
        ],
        &[("title", "x")],
    );
    let warnings = |source: &str| {
        ["f32\": 2 of 10 values", "f64\": 2 of 3 values", "mask\": 1 of 2 values"]
            .map(|text| format!("weightfs: {source}: tensor \"{text} beyond the range of F16 become infinite\n"))
            .concat()
    };
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(|line| format!("{line}\n")).collect();
        lines.sort();
        lines.concat()
    };
    let said = scene.sh("weightfs export --dtype f16 m.safetensors out.safetensors");
    assert_eq!((said.code, sorted(&said.err)), (0, warnings("m.safetensors")), "{said:?}");
    let bytes = fs::read(scene.path("out.safetensors")).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    let halves = |name: &str| {
        let tensor = read.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), Dtype::F16, "{name}");
        tensor.data().as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect::<Vec<_>>()
    };
    let expected = [0x3c00, 0x7bff, 0x7bff, 0x7c00, 0xfc00, 0x7c00, 0x7e00, 0, 1, 0x3ff];
    assert_eq!(halves("f32"), expected);
    assert_eq!((halves("f64"), halves("fits")), (vec![0x7bff, 0x7c00, 0xfc00], vec![0xfbff, 0]));
    assert_eq!((halves("mask"), read.tensor("ids").unwrap().dtype()), (vec![0xfc00, 0xfc00], Dtype::I64));
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header.metadata().as_ref().unwrap()["title"], "x");
    // Tensors that are not exported are not read, and those of each model of a directory are.
    let said = scene.sh("weightfs export --dtype f16 --only fits m.safetensors fits.safetensors");
    assert_eq!((said.code, &said.err[..]), (0, ""));
    scene.ok("mkdir all && cp m.safetensors all/a.safetensors && cp fits.safetensors all/b.safetensors");
    for options in ["", "--shard-size 30B"] {
        let said = scene.sh(&format!("rm -rf made; weightfs export --dtype f16 {options} all made"));
        assert_eq!((said.code, sorted(&said.err)), (0, warnings("all/a")), "{options}");
    }
    let said = scene.sh("weightfs export --dtype f16 --shard-size 30B m.safetensors parts");
    assert_eq!((said.code, sorted(&said.err)), (0, warnings("m.safetensors")));
    assert!(scene.ok("weightfs diff --data out.safetensors parts").contains("0 different"));
    // Other conversions have the range of float32.
    let said = scene.sh("weightfs export --dtype bf16 m.safetensors bf16.safetensors");
    assert_eq!((said.code, &said.err[..]), (0, ""));
}

#[test]
fn tensors_that_have_the_dtype_are_not_copied_or_reordered() {
    require_fuse!();
    let scene = Scene::new();
    let data = pattern(3 * 4096);
    let hash = "0x00";
    // All NaNs of BF16 are kept as they are.
    scene.model(
        "m.safetensors",
        &[("a", Dtype::BF16, &[4096], data[..8192].to_vec()), ("i", Dtype::I8, &[3], vec![1, 2, 3])],
        &[("format", "pt"), ("modelspec.hash_sha256", hash)],
    );
    let mount = scene.mount(&scene.path("m.safetensors"), &[]);
    assert!(mount.read("export/m-bf16.safetensors") == mount.read("export/m-whole.safetensors"));
    let bytes = mount.read("export/m-f32.safetensors");
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    // The hash is of the stored data.
    let keys: Vec<&String> = header.metadata().as_ref().unwrap().keys().collect();
    assert_eq!(keys, ["format"]);
    let read = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(read.tensor("i").unwrap().data(), [1, 2, 3]);
    let wide = read.tensor("a").unwrap();
    assert_eq!((wide.dtype(), wide.data().len()), (Dtype::F32, 4 * 4096));
    assert!(wide.data().chunks(4).zip(data.chunks(2)).all(|(wide, stored)| wide == [0, 0, stored[0], stored[1]]));
}

/// A GGUF file with a tensor `name` of one block of a type without a known conversion, and an F32 tensor.
fn unknown_values(scene: &Scene) {
    let string = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let tensor = |name: &str, elements: u64, kind: u32, offset: u64| {
        [&string(name)[..], &1u32.to_le_bytes(), &elements.to_le_bytes(), &kind.to_le_bytes(), &offset.to_le_bytes()]
            .concat()
    };
    let mut file = [b"GGUF".to_vec(), 3u32.to_le_bytes().to_vec(), 2u64.to_le_bytes().to_vec()].concat();
    file.extend([0u64.to_le_bytes().to_vec(), tensor("odd", 32, 9, 0), tensor("plain", 8, 0, 64)].concat());
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(pattern(64 + 32));
    fs::write(scene.path("q8_1.gguf"), file).unwrap();
}

#[test]
fn model_whose_values_are_not_known_has_no_converted_file() {
    require_fuse!();
    let scene = Scene::new();
    unknown_values(&scene);
    for (file, dtype) in [("i4", "I4"), ("other", "X4")] {
        let header = format!(
            r#"{{"a":{{"dtype":"{dtype}","shape":[4],"data_offsets":[0,2]}},"b":{{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}}}"#
        );
        scene.raw(&format!("{file}.safetensors"), header.as_bytes(), &pattern(6));
    }
    let cases = [
        ("q8_1.gguf", &["q8_1-whole.gguf"][..], "tensor \"odd\": the values of Q8_1 are not known", "plain"),
        (
            "i4.safetensors",
            &["i4-clean.safetensors", "i4-whole.safetensors"],
            "tensor \"a\": the values of I4 are not known",
            "b",
        ),
        (
            "other.safetensors",
            &["other-clean.safetensors", "other-whole.safetensors"],
            "tensor \"a\": the values of \"X4\" are not known",
            "b",
        ),
    ];
    for (source, exports, reason, other) in cases {
        let mount = scene.mount(&scene.path(source), &[]);
        assert_eq!(mount.list("export"), exports);
        assert_eq!(mount.list("tensors").len(), 2);
        for (view, suffix) in [("npy", "npy"), ("f32", "f32"), ("stats", "json"), ("plots", "png")] {
            assert_eq!(mount.list(view), [format!("{other}.{suffix}")]);
        }
        let log = mount.log();
        assert_eq!(log.contains("dtype I4: no known writer defines its values"), source == "i4.safetensors", "{log}");
        for kind in KINDS {
            assert!(log.contains(&format!("export/: -{kind} skipped: {reason}")), "{log}");
        }
        let said = scene.sh(&format!("weightfs export --force --dtype bf16 {source} out"));
        assert!(said.code == 1 && said.err.ends_with(&format!("weightfs: {source}: {reason}\n")), "{said:?}");
        assert!(!scene.path("out").exists());
        // The other tensors can be chosen.
        let said = scene.sh(&format!("weightfs export --force --dtype bf16 --only {other} {source} out"));
        assert_eq!(said.code, 0, "{said:?}");
        let out = fs::read(scene.path("out")).unwrap();
        assert_eq!(SafeTensors::deserialize(&out).unwrap().names(), [other]);
        fs::remove_file(scene.path("out")).unwrap();
    }
}

#[test]
fn export_chooses_the_format_by_options_name_and_source() {
    require_fuse!();
    let scene = gguf::scene();
    scene.sample();
    let mount = scene.mount(&scene.path("types.gguf"), &[]);
    fs::write(scene.path("whole"), mount.read("export/types-whole.gguf")).unwrap();
    fs::write(scene.path("bf16"), mount.read("export/types-bf16.safetensors")).unwrap();
    drop(mount);
    scene.mkdir("dir");
    scene.ok("weightfs export --force types.gguf out.gguf && cmp out.gguf whole && weightfs export --force types.gguf - | cmp - whole");
    scene.ok(
        "weightfs export --force types.gguf dir && cmp dir/types.gguf whole && weightfs export --force types.gguf out && cmp out whole",
    );
    scene.ok("weightfs export --force --format gguf types.gguf x.bytes && cmp x.bytes whole");
    scene.ok("weightfs export --force --dtype bf16 types.gguf x.safetensors && cmp x.safetensors bf16");
    scene.ok("weightfs export --force --dtype bf16 types.gguf dir && cmp dir/types.safetensors bf16");
    // Tensors of types that safetensors has need no conversion. GGUF names its types; safetensors has the same ones.
    scene.ok("weightfs export --force --only 'plain.*' types.gguf plain.safetensors && weightfs export --force --only '*.F16' types.gguf f16.gguf");
    let plain = fs::read(scene.path("plain.safetensors")).unwrap();
    let plain = SafeTensors::deserialize(&plain).unwrap();
    assert_eq!((plain.len(), plain.tensor("plain.I16").unwrap().dtype()), (8, Dtype::I16));
    assert_eq!(scene.ok("weightfs ls --json f16.gguf | jq -r '.tensors[].name'"), "plain.F16\n");
    // A directory of models.
    scene.ok("mkdir all && cp types.gguf all/a.gguf && cp sample.safetensors all/b.safetensors");
    scene.ok("weightfs export --force all same && cmp same/a.gguf whole && ls same/b.safetensors");
    scene.ok("weightfs export --force --dtype bf16 all some && cmp some/a.safetensors bf16 && ls some/b.safetensors");
    let refused = [
        (
            "types.gguf no.safetensors",
            "safetensors has no dtype Q4_0; use --dtype bf16 or --dtype f32, or write a .gguf file",
        ),
        ("sample.safetensors no.gguf", "sample.safetensors: only GGUF models can be written as GGUF"),
        ("--dtype bf16 types.gguf no.gguf", "--dtype writes safetensors files, not GGUF"),
        ("--dtype bf16 --format gguf types.gguf no", "--dtype writes safetensors files, not GGUF"),
        ("--shard-size 1MB types.gguf no", "--shard-size is for safetensors files"),
        ("--clean types.gguf no", "--clean is for safetensors files"),
        ("--align 64 types.gguf no", "--align is for safetensors files"),
        ("--dtype bf16 types.gguf types.gguf", "not GGUF"),
        ("--format safetensors --only 'plain.*' types.gguf types.gguf", "would not be what the suffix .gguf says"),
        ("--dtype f32 sample.safetensors sample.safetensors", "the source itself, which would be converted"),
    ];
    let before = fs::read(scene.path("types.gguf")).unwrap();
    for (line, expected) in refused {
        let said = scene.sh(&format!("weightfs export --force {line}"));
        assert!(said.code == 1 && said.err.contains(expected), "{line}: {said:?}");
        assert!(scene.sh("ls -d no*").code != 0, "{line}");
    }
    assert!(fs::read(scene.path("types.gguf")).unwrap() == before);
}

#[test]
fn converted_shards_hold_the_same_tensors_as_one_file() {
    require_fuse!();
    let scene = gguf::scene();
    scene.ok("weightfs export --force --dtype bf16 types.gguf one.safetensors");
    scene.ok("weightfs export --force --dtype bf16 --shard-size 60kB types.gguf parts");
    let said = scene.ok("weightfs diff --data one.safetensors parts");
    assert!(said.contains("0 different"), "{said}");
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(scene.path("parts/model.safetensors.index.json")).unwrap()).unwrap();
    let one = fs::read(scene.path("one.safetensors")).unwrap();
    let total: usize = SafeTensors::deserialize(&one).unwrap().iter().map(|(_, tensor)| tensor.data().len()).sum();
    assert_eq!(index["metadata"]["total_size"], total);
    let mut files = 0;
    for file in fs::read_dir(scene.path("parts")).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().unwrap() == "safetensors" {
            let bytes = fs::read(&file).unwrap();
            let sizes =
                SafeTensors::deserialize(&bytes).unwrap().iter().map(|(_, t)| t.data().len()).collect::<Vec<_>>();
            assert!(sizes.len() == 1 || sizes.iter().sum::<usize>() <= 60_000, "{sizes:?}");
            files += 1;
        }
    }
    assert!(files > 2, "{files}");
    // Codes of no known scheme are exported as stored, and a warning says so.
    scene.model(
        "fp8.safetensors",
        &[("w", Dtype::F8_E4M3, &[16], vec![0x38; 16]), ("w_scale", Dtype::F32, &[1], vec![0; 4])],
        &[],
    );
    let said = scene.sh("weightfs export --force --dtype f32 fp8.safetensors out");
    assert!(
        said.code == 0 && said.err.contains("not dequantized: scales of no known scheme (w_scale), such as \"w\""),
        "{said:?}"
    );
}
