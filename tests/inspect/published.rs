//! Models as people publish them: suffixes, indices and names of shards that are not those of the libraries, files of
//! other programs beside them, and files that lost or gained bytes on the way.

use crate::pickles::{checkpoint, zip};
use crate::room::{Output, Room, Tensor, floats};
use safetensors::Dtype;

fn one<'t>(name: &'t str, values: &[f32]) -> Vec<Tensor<'t>> {
    vec![(name, Dtype::F32, Box::leak(Box::new([values.len()])), floats(values))]
}

/// Adds a string of GGUF.
fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A GGUF file with these metadata keys, all of the type uint16, and F32 tensors.
fn gguf(keys: &[(&str, u16)], tensors: &[(&str, &[f32])]) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((keys.len() as u64).to_le_bytes());
    for (key, value) in keys {
        string(&mut out, key);
        out.extend([2, 0, 0, 0]);
        out.extend(value.to_le_bytes());
    }
    let mut data = Vec::new();
    for (name, values) in tensors {
        string(&mut out, name);
        out.extend(1u32.to_le_bytes());
        out.extend((values.len() as u64).to_le_bytes());
        out.extend(0u32.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.extend(floats(values));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    out
}

fn write(room: &Room, name: &str, bytes: &[u8]) {
    let path = room.path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

fn write_model(room: &Room, name: &str, tensors: &[Tensor]) {
    std::fs::create_dir_all(room.path(name).parent().unwrap()).unwrap();
    room.model(name, tensors, &[]);
}

#[test]
fn suffixes_of_models_are_found_in_directories() {
    let room = Room::new();
    for name in ["a/flux.sft", "b/flux.SAFETENSORS", "c/flux.Safetensors", "d/flux.SFT"] {
        write_model(&room, name, &one("w", &[1.0, 2.0]));
    }
    write(&room, "e/model.GGUF", &gguf(&[], &[("w", &[1.0, 2.0])]));
    write(&room, "f/model.PT", &checkpoint(&[1.0, 2.0]));
    write(&room, "g/model_best.pth.tar", &checkpoint(&[1.0, 2.0]));
    write(&room, "h/my_model.BIN", &checkpoint(&[1.0, 2.0]));
    write(&room, "i/model.jit", &checkpoint(&[1.0, 2.0]));
    for dir in ["a", "b", "c", "d", "e", "f", "g", "h", "i"] {
        assert_eq!(
            room.ok(&format!("weightfs cat {dir} f32/w.f32 | od -An -tf4")).trim(),
            "1               2",
            "{dir}"
        );
    }
    for name in ["m/ae.sft", "m/clip.safetensors", "m/unet.SAFETENSORS"] {
        write_model(&room, name, &one("w", &[1.0]));
    }
    assert_eq!(room.ok("weightfs check m").lines().count(), 3);
    // The suffix is not a part of the name.
    assert!(room.ok("weightfs ls --json g").contains("\"format\": \"pytorch\""));
}

#[test]
fn files_of_other_programs_are_plain_files() {
    let room = Room::new();
    write_model(&room, "repo/model.safetensors", &one("w", &[1.0]));
    let random: Vec<u8> = (0..4096u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8 | 0x80).collect();
    write(&room, "repo/openvino_model.bin", &random);
    write(&room, "repo/openvino/openvino_model.bin", &[0; 600]);
    write(&room, "repo/model.bin", b"\x06\0\0\0\x10\0TransformerSpec\0\x02\0\0\0");
    let weights = "repo/coreml/model.mlpackage/Data/com.apple.CoreML/weights/weight.bin";
    write(&room, weights, &[&b"\x02\0\0\0\x02\0\0\0"[..], &[0; 600]].concat());
    write(&room, "repo/whisper/ggml-model.bin", b"lmgg\x00\x7d\0\0\0\0\0\0");
    write(&room, "repo/weights.ckpt", &random);
    let line = "repo/model.safetensors: OK (1 tensor, 4 B; data aligned to 16 bytes)\n";
    let found = room.ok("weightfs check repo");
    assert!(found.starts_with("repo/model.safetensors: OK (1 tensor, 4 B"), "{found}{line}");
    assert_eq!(found.lines().count(), 1, "{found}");
    // The only model of the directory is at the root, and the other files are beside it.
    assert_eq!(room.ok("weightfs cat repo tensors/w | od -An -tf4").trim(), "1");
    // A checkpoint whose download failed is not one of them.
    write(&room, "failed/pytorch_model.bin", &random);
    write(&room, "pointer/model.bin", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
    for dir in ["failed", "pointer"] {
        assert_ne!(room.sh(&format!("weightfs check {dir}")).code, 0);
    }
}

#[test]
fn index_is_what_has_a_weight_map() {
    let room = Room::new();
    let names = [
        "m.safetensors.fp16.index.json",
        "m.safetensors.index.fp16.json",
        "M.SAFETENSORS.INDEX.JSON",
        "weights.index.json",
        "map.json",
    ];
    for (at, index) in names.into_iter().enumerate() {
        let dir = at.to_string();
        write_model(&room, &format!("{dir}/x.safetensors"), &one("a", &[1.0]));
        write_model(&room, &format!("{dir}/y.safetensors"), &one("b", &[2.0]));
        write(&room, &format!("{dir}/config.json"), b"{\"model_type\": \"x\"}");
        // Editors of Windows write a byte order mark.
        let text = b"\xef\xbb\xbf{\"metadata\":{},\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}";
        write(&room, &format!("{dir}/{index}"), text);
        for source in [dir.clone(), format!("{dir}/{index}")] {
            assert_eq!(room.ok(&format!("weightfs cat {source} tensors/b | od -An -tf4")).trim(), "2", "{index}");
        }
        // The indices of TensorFlow and Flax name files of other formats.
        let other = br#"{"weight_map":{"a":"tf_model-00001-of-00002.h5"}}"#;
        write(&room, &format!("{dir}/tf_model.h5.index.json"), other);
        let checked = room.ok(&format!("weightfs check {dir}"));
        assert!(checked.starts_with(&format!("{dir}/{index}: OK (2 tensors, 8 B; 2 files")), "{checked}");
        assert!(!checked.contains("tf_model"), "{checked}");
    }
}

#[test]
fn shards_without_an_index_are_one_model() {
    let room = Room::new();
    let name = |at: usize| format!("m/model-0000{at}-of-00003.safetensors");
    for (at, tensor) in ["a", "b", "c"].into_iter().enumerate() {
        write_model(&room, &name(at + 1), &one(tensor, &[at as f32]));
    }
    // Another numbering with an index is another model.
    for (at, tensor) in ["a", "b"].into_iter().enumerate() {
        write_model(&room, &format!("m/model-0000{}-of-00002.fp16.safetensors", at + 1), &one(tensor, &[9.0]));
    }
    let map =
        r#"{"weight_map":{"a":"model-00001-of-00002.fp16.safetensors","b":"model-00002-of-00002.fp16.safetensors"}}"#;
    write(&room, "m/model.safetensors.index.fp16.json", map.as_bytes());
    let Output { code, out, err } = room.sh("weightfs check m");
    assert_eq!((code, &err[..]), (0, ""));
    assert!(out.contains("m/model-*-of-00003.safetensors: OK, with 1 note (3 tensors, 12 B; 3 files"), "{out}");
    assert!(
        out.contains("note: no index names these 3 shards; the numbers in their names make them one model"),
        "{out}"
    );
    assert!(out.contains("m/model.safetensors.index.fp16.json: OK (2 tensors"), "{out}");
    let read = room.sh("weightfs cat m model/tensors/c | od -An -tf4");
    assert_eq!((read.out.trim(), read.code), ("2", 0), "{}", read.err);
    // The path that check prints is accepted.
    assert_eq!(room.sh("weightfs cat 'm/model-*-of-00003.safetensors' tensors/b | od -An -tf4").out.trim(), "1");
    // A shard alone is a file as it is.
    assert_eq!(room.ok(&format!("weightfs cat {} tensors/a | od -An -tf4", name(1))).trim(), "0");
    std::fs::remove_file(room.path("m/model.safetensors.index.fp16.json")).unwrap();
    std::fs::remove_file(room.path(&name(2))).unwrap();
    let Output { code, out, .. } = room.sh("weightfs check m");
    assert!(code == 1 && out.contains("error: a shard is missing or broken: m/model-00002-of-00003"), "{out}");
    let error = room.sh("weightfs ls 'm/model-*-of-00003.safetensors'").err;
    let expected =
        "1 of the 3 shards of the model is missing: \"model-00002-of-00003.safetensors\" (--lenient mounts the";
    assert!(error.contains(expected), "{error}");
    let Output { code, out, .. } = room.sh("weightfs ls --lenient 'm/model-*-of-00003.safetensors'");
    assert!(code == 0 && out.contains('c'), "{out}");
}

#[test]
fn splits_that_were_joined_with_cat_are_an_error() {
    let room = Room::new();
    let split = |at: u16, name: &str| gguf(&[("split.no", at), ("split.count", 3)], &[(name, &[f32::from(at); 8])]);
    let files = [split(0, "a"), split(1, "b"), split(2, "c")];
    let (first, all) = (files[0].len(), files.concat());
    write(&room, "joined.gguf", &all);
    let message = format!(
        "joined.gguf: 2 more GGUF files follow, at bytes {first} to {}, as when splits are joined with `cat` (join the \
         splits themselves with `llama-gguf-split --merge FIRST_SPLIT OUT.gguf`)",
        all.len()
    );
    for line in
        ["ls joined.gguf", "export joined.gguf out.safetensors", "export joined.gguf out.gguf", "inspect joined.gguf"]
    {
        let Output { code, err, .. } = room.sh(&format!("weightfs {line}"));
        assert_eq!((code, err), (1, format!("weightfs: {message} (--lenient mounts the rest)\n")), "{line}");
    }
    assert!(!room.path("out.safetensors").exists() && !room.path("out.gguf").exists());
    let checked = room.sh("weightfs check joined.gguf");
    assert!(checked.code == 1 && checked.out.contains("error: 2 more GGUF files follow"), "{checked:?}");
    let lenient = room.sh("weightfs ls --lenient joined.gguf");
    assert!(
        lenient.code == 0 && lenient.err.contains("joined.gguf: 2 more GGUF files follow, at bytes"),
        "{lenient:?}"
    );
    // The files that follow are not lost by a replacement.
    let replaced = room.sh("weightfs export --lenient --force joined.gguf joined.gguf");
    assert!(replaced.code == 1 && replaced.err.contains("the source itself, which is damaged"), "{replaced:?}");
    assert_eq!(std::fs::read(room.path("joined.gguf")).unwrap(), all);
}

#[test]
fn exports_of_other_formats_say_which_library_reads_them() {
    let room = Room::new();
    write(&room, "m.pt", &checkpoint(&[1.0, 2.0]));
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
    let npy =
        [&b"\x93NUMPY\x01\0"[..], &[118, 0], format!("{header:<117}\n").as_bytes(), &floats(&[1.0, 2.0])].concat();
    write(&room, "m.npy", &npy);
    write(&room, "m.npz", &zip(&[("w.npy", &npy)]));
    for source in ["m.pt", "m.npy", "m.npz"] {
        for (options, format) in [("", "pt"), ("--dtype bf16", "pt")] {
            room.ok(&format!("weightfs export {options} --force {source} o.safetensors"));
            assert_eq!(room.ok("weightfs metadata get o.safetensors format").trim(), format, "{source} {options}");
        }
        room.ok(&format!("weightfs export --clean --force {source} o.safetensors"));
        assert_ne!(room.sh("weightfs metadata get o.safetensors format").code, 0, "{source}");
    }
}

#[test]
fn metadata_without_a_format_is_a_warning() {
    let room = Room::new();
    for (metadata, expected) in [
        (&[][..], None),
        (&[("format", "pt"), ("a", "b")][..], None),
        (&[("a", "b")], Some("the metadata has no key \"format\"")),
        (&[("format", "np")], Some("metadata \"format\" is \"np\", not \"pt\"")),
    ] {
        room.model("m.safetensors", &one("w", &[1.0, 2.0]), metadata);
        let out = room.ok("weightfs check m.safetensors");
        let warning = expected.map(|expected| format!("m.safetensors: warning: {expected}\n"));
        assert_eq!(warning.as_ref().is_some_and(|warning| out.contains(warning)), expected.is_some(), "{out}");
    }
}

#[test]
fn lenient_reports_what_is_shown_but_does_not_fit() {
    let room = Room::new();
    let entry = |name: &str, begin: u64, end: u64| {
        let len = end - begin;
        format!(r#""{name}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{begin},{end}]}}"#)
    };
    let header = format!("{{{},{},{}}}", entry("v", 0, 8), entry("w", 4, 12), entry("x", 16, 20));
    room.raw("m.safetensors", &header, &[1; 32]);
    let start = 8 + header.len() as u64;
    let Output { code, err, .. } = room.sh("weightfs ls m.safetensors");
    assert!(code == 1 && err.ends_with("(--lenient mounts the rest)\n"), "{err}");
    let object = &room.json("weightfs ls --json --lenient m.safetensors")[0];
    assert_eq!(object["tensors"].as_array().unwrap().len(), 3);
    let unused = |begin: u64, end: u64| {
        let (from, to) = (start + begin, start + end);
        format!("bytes {from} to {to} of the file belong to no tensor that is shown: {} in all", end - begin)
    };
    let shared = format!("shares bytes {} to {} with \"v\"", start + 4, start + 8);
    let expected = serde_json::json!([
        {"name": "w", "reason": shared, "shown": true},
        {"name": "", "reason": unused(12, 16)},
        {"name": "", "reason": unused(20, 32)},
    ]);
    assert_eq!(object["skipped"], expected);
    let err = room.sh("weightfs ls --lenient m.safetensors").err;
    assert!(!err.contains("skipped") && err.contains(&format!("m.safetensors: \"w\": {shared}\n")), "{err}");
    // The tensor that two shards have is shown.
    room.model("base.safetensors", &one("b", &[2.0]), &[]);
    room.model("overlay.safetensors", &one("b", &[3.0]), &[]);
    let map = r#"{"weight_map":{"b":"overlay.safetensors","c":"base.safetensors"}}"#;
    write(&room, "m.safetensors.index.json", map.as_bytes());
    let objects = room.json("weightfs ls --json --lenient m.safetensors.index.json");
    let skipped = objects[0]["skipped"].as_array().unwrap();
    let left_out: Vec<_> =
        skipped.iter().filter(|entry| entry["shown"].is_null()).map(|entry| &entry["name"]).collect();
    assert_eq!(left_out, ["c"], "{skipped:?}");
    assert_eq!(room.sh("weightfs cat --lenient m.safetensors.index.json tensors/b | od -An -tf4").out.trim(), "3");
}

#[test]
fn one_fault_is_one_finding() {
    let room = Room::new();
    for keys in [&[("k", 1), ("k", 2)][..], &[("", 1)]] {
        std::fs::write(room.path("m.gguf"), gguf(keys, &[("t", &[1.0; 8])])).unwrap();
        let object = &room.json("weightfs check --json m.gguf")[0];
        assert_eq!(object["errors"], 1, "{object}");
    }
    std::fs::write(room.path("m.gguf"), gguf(&[], &[("t", &[1.0; 8]), ("t", &[1.0; 8])])).unwrap();
    let object = &room.json("weightfs check --json m.gguf")[0];
    let errors: Vec<_> = object["findings"].as_array().unwrap().iter().map(|finding| &finding["message"]).collect();
    assert!(
        errors.iter().filter(|error| error.as_str().unwrap().contains("more than once")).count() == 1,
        "{errors:?}"
    );
}

#[test]
fn mount_of_several_files_names_what_to_mount() {
    let room = Room::new();
    for count in [2, 3] {
        room.model(&format!("model-{count}.safetensors"), &one("w", &[1.0]), &[]);
        room.model("model-1.safetensors", &one("w", &[1.0]), &[]);
        let Output { code, err, .. } = room.sh("weightfs mount model-*.safetensors");
        let remedy = "a mount has one SOURCE; name the index of the model, or the directory that holds its files\n";
        assert!(code == 2 && err.ends_with(remedy), "{err}");
    }
}

/// A GGUF file with Q8_0 tensors, `(name, innermost dimension first)`, and the keys of ComfyUI-GGUF for shapes.
fn quantized_gguf(shapes: &[(&str, &[u32])], tensors: &[(&str, [u64; 2])]) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((shapes.len() as u64).to_le_bytes());
    for (name, dims) in shapes {
        string(&mut out, &format!("comfy.gguf.orig_shape.{name}"));
        // An array of int32.
        out.extend([9u32, 5].map(u32::to_le_bytes).concat());
        out.extend((dims.len() as u64).to_le_bytes());
        dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
    }
    let mut data: Vec<u8> = Vec::new();
    for (name, dims) in tensors {
        string(&mut out, name);
        out.extend(2u32.to_le_bytes());
        dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
        out.extend(8u32.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        for block in 0..dims[0] * dims[1] / 32 {
            // The scale is 1.
            data.extend([0, 0x3c]);
            data.extend([block as u8 % 100; 32]);
        }
        data.resize(data.len().next_multiple_of(32), 0);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    out
}

/// ComfyUI-GGUF stores convolutions as matrices whose rows blocks divide, and their shapes in the metadata.
#[test]
fn shapes_in_the_metadata_of_gguf_are_used() {
    let room = Room::new();
    let conv: [u32; 4] = [64, 4, 3, 3];
    let many = vec![1; 100];
    let shapes: [(&str, &[u32]); 5] =
        [("conv", &conv), ("other", &[7, 5]), ("gone", &[1]), ("many", &many), ("deep", &[2, 2, 2, 2, 32])];
    let matrices = [("conv", [256, 9]), ("other", [32, 2]), ("many", [32, 1]), ("deep", [256, 2])];
    write(&room, "m.gguf", &quantized_gguf(&shapes, &matrices));
    // From a file, because the warning about the other tensor goes to standard error.
    let listed = |model: &str| {
        let said = room.sh(&format!("weightfs ls --json {model}"));
        assert_eq!(said.code, 0, "{said:?}");
        let object: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        let shapes = object["tensors"].as_array().unwrap().iter().map(|tensor| tensor["shape"].to_string());
        (shapes.collect::<Vec<_>>(), said.err)
    };
    let warning = "weightfs: m.gguf: \"other\": comfy.gguf.orig_shape.* gives it the shape [7, 5], which does not fit the \
                   stored shape [2, 32]\n";
    let expected = ["[64,4,3,3]", "[2,2,2,2,32]", "[1,32]", "[2,32]"].map(str::to_owned).to_vec();
    assert_eq!(listed("m.gguf"), (expected, warning.to_owned()));
    let said = room.sh("weightfs check m.gguf");
    let expected = "metadata key \"comfy.gguf.orig_shape.other\" gives the shape [7, 5], which does not fit [2, 32]\n";
    assert!(said.code == 0 && said.out.contains(expected), "{said:?}");
    assert!(said.out.contains("\"comfy.gguf.orig_shape.many\" is no shape of at most 64 dimensions\n"), "{said:?}");
    // The file has a matrix, which ggml loads.
    assert!(said.out.matches("orig_shape").count() == 2 && !said.out.contains("dimensions; ggml"), "{said:?}");
    // The values are in the same order.
    room.sh("weightfs cat m.gguf npy/conv.npy >conv.npy 2>messages");
    let npy = std::fs::read(room.path("conv.npy")).unwrap();
    assert!(String::from_utf8_lossy(&npy[..128]).contains("'shape': (64, 4, 3, 3), "));
    let values: Vec<f32> = npy[128..].as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
    assert_eq!((values.len(), values[31], values[32], values[2303]), (2304, 0.0, 1.0, 71.0));
    // What is written can be read by others: blocks divide the rows, and the shape is in the metadata.
    for file in ["export/m-whole.gguf", "gguf/conv.gguf"] {
        room.sh(&format!("weightfs cat m.gguf {file} >copy.gguf 2>messages"));
        assert_eq!(listed("copy.gguf").0[0], "[64,4,3,3]", "{file}");
        let copy = std::fs::read(room.path("copy.gguf")).unwrap();
        let info = [&4u64.to_le_bytes()[..], b"conv", &2u32.to_le_bytes(), &256u64.to_le_bytes(), &9u64.to_le_bytes()];
        let info = info.concat();
        assert!(copy.windows(info.len()).any(|part| part == info), "{file}");
    }
}

/// What cannot be read is named, with what helps.
#[test]
fn archives_of_other_kinds_say_what_they_are() {
    let room = Room::new();
    let message = |name: &str, bytes: &[u8]| {
        write(&room, name, bytes);
        let said = room.sh(&format!("weightfs ls {name}"));
        assert_eq!((said.code, said.out.as_str(), said.err.lines().count()), (1, "", 1), "{said:?}");
        said.err
    };
    let mut deflated = checkpoint(&[1.0, 2.0]);
    // The compression methods, in the local headers and in the directory.
    for (signature, method) in [(b"PK\x03\x04", 8), (b"PK\x01\x02", 10)] {
        let places: Vec<usize> = (0..deflated.len() - 4).filter(|at| deflated[*at..].starts_with(signature)).collect();
        places.iter().for_each(|at| deflated[at + method] = 8);
    }
    let expected = "compressed (method 8); only stored entries can be read in place (unpack it with unzip, and pack it again \
                    with `zip -0 -D -r`)\n";
    assert!(message("deflated.pt", &deflated).ends_with(expected));
    let exported = "a program that torch.export has written (.pt2) (load it with torch.export.load, and save its state_dict with \
                    safetensors.torch.save_file)\n";
    let old = zip(&[("serialized_exported_program.json", b"{}"), ("version", b"8.1")]);
    let new = zip(&[("m/version", b"3"), ("m/archive_format", b"pt2"), ("m/models/model.json", b"{}")]);
    let first = zip(&[("m/archive_format", b"pt2"), ("m/models/model.json", b"{}")]);
    for (at, file) in [old, new, first].iter().enumerate() {
        assert!(message(&format!("{at}.pt2"), file).ends_with(exported), "{at}");
    }
    let archive = zip(&[("model.gguf", &gguf(&[], &[("w", &[1.0])]))]);
    for file in [[b"MZqFpD='\n\0".to_vec(), vec![0; 4000]].concat(), [b"MZqFpD".to_vec(), archive].concat()] {
        let found = message("m.llamafile", &file);
        assert!(
            found.contains("a llamafile, a program with a GGUF model in it (unpack the model with `unzip"),
            "{found}"
        );
    }
}

/// One array that NumPy cannot have written hides no others.
#[test]
fn arrays_of_unknown_dtypes_are_left_out_of_an_archive() {
    let room = Room::new();
    let npy = |descr: &str| {
        let header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (2,), }}");
        let header = format!("{header:<117}\n");
        [&b"\x93NUMPY\x01\0\x76\0"[..], header.as_bytes(), &[1; 8]].concat()
    };
    let entries = ["'<f4'", "'<f1'", "'bfloat16'", "'int4'"].map(npy);
    let names = ["w.npy", "q.npy", "b.npy", "i.npy"];
    let entries: Vec<(&str, &[u8])> = names.into_iter().zip(entries.iter().map(|entry| &entry[..])).collect();
    write(&room, "m.npz", &zip(&entries));
    let said = room.sh("weightfs ls m.npz");
    assert!(said.code == 0 && said.out.contains("  w\n") && said.out.lines().count() == 2, "{said:?}");
    for (name, dtype) in [("q", "<f1"), ("b", "bfloat16"), ("i", "int4")] {
        assert!(said.err.contains(&format!("m.npz: skipped \"{name}\": dtype \"{dtype}\" is not known\n")), "{said:?}");
    }
    let said = room.sh("weightfs check m.npz");
    assert!(said.code == 0 && said.out.contains("OK, with 3 warnings"), "{said:?}");
}

#[test]
fn shards_are_named_without_a_leading_dot() {
    let room = Room::new();
    for (at, name) in ["one", "two"].iter().enumerate() {
        write_model(&room, &format!("{name}.safetensors"), &one(name, &[at as f32]));
    }
    let map = r#"{"weight_map": {"one": "./one.safetensors", "two": "././two.safetensors"}}"#;
    write(&room, "model.safetensors.index.json", map.as_bytes());
    let [ref object] = room.json("weightfs ls --json model.safetensors.index.json")[..] else { panic!() };
    let shards = object["tensors"].as_array().unwrap().iter().map(|tensor| tensor["shard"].as_str().unwrap());
    assert_eq!(shards.collect::<Vec<_>>(), ["one.safetensors", "two.safetensors"]);
    assert_eq!(room.ok("weightfs check model.safetensors.index.json").lines().count(), 1);
}

/// Tensors without data have no values to search.
#[test]
fn empty_tensors_do_not_count_as_not_searched() {
    let room = Room::new();
    let tensors: [Tensor; 3] = [
        ("a", Dtype::F32, &[0, 3], Vec::new()),
        ("b", Dtype::F32, &[2], floats(&[1.0, 2.0])),
        ("c", Dtype::F32, &[0], Vec::new()),
    ];
    write_model(&room, "m.safetensors", &tensors);
    let found = room.ok("weightfs check --values m.safetensors");
    assert!(found.contains("all values finite") && !found.contains("not searched"), "{found}");
}

#[test]
fn verbose_may_precede_or_follow_any_command() {
    let room = Room::new();
    write_model(&room, "m.safetensors", &one("w", &[1.0]));
    std::fs::create_dir(room.path("dir")).unwrap();
    std::os::unix::fs::symlink("../broken", room.path("dir/l.safetensors")).unwrap();
    write(&room, "broken", b"no model, and what it has is not quoted");
    for line in ["weightfs -v ls", "weightfs ls -v", "weightfs --verbose inspect", "weightfs check --verbose"] {
        assert!(room.ok(&format!("{line} m.safetensors")).contains("safetensors") || line.contains("ls"));
        // The log has the reason that the error hides.
        let said = room.sh(&format!("{line} dir"));
        assert!(said.err.contains("not a model but text"), "{line}: {said:?}");
    }
}
