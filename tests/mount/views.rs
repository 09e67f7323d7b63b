//! Views as opened by other tools: NumPy, ml_dtypes, the official package, array readers in Rust and C++, and
//! archivers.

use crate::support::{Mount, Scene, pattern, require_fuse, run, run_ok};
use safetensors::Dtype;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// A model with every code of every dtype that is converted to a wider one, all native dtypes, and many shapes.
pub fn zoo(scene: &Scene) -> std::path::PathBuf {
    let codes = |bytes: usize| -> Vec<u8> {
        (0..1u32 << (8 * bytes)).flat_map(|code| code.to_le_bytes().into_iter().take(bytes)).collect()
    };
    // All 64 codes of six bits in order, low bits first.
    let sixes: Vec<u8> = (0..16u32)
        .flat_map(|four| {
            let bits: u32 = (0..4).map(|place| (4 * four + place) << (6 * place)).sum();
            bits.to_le_bytes().into_iter().take(3)
        })
        .collect();
    let wide = |edges: &[u64]| -> Vec<u8> { edges.iter().flat_map(|edge| edge.to_le_bytes()).collect() };
    let integers = wide(&[0, 1, u64::MAX, 1 << 63, (1 << 63) - 1, (1 << 53) + 1, 16_777_217, 16_777_219]);
    let doubles = wide(&[
        0,
        1 << 63,
        0x3ff0_0000_1000_0000,
        0x3ff0_0000_3000_0000,
        0x7fefffff_ffffffff,
        0x7ff0 << 48,
        1,
        0xfff8 << 48,
    ]);
    scene.model(
        "zoo.safetensors",
        &[
            ("bool", Dtype::BOOL, &[2], vec![0, 1]),
            ("f4", Dtype::F4, &[256, 2], codes(1)),
            ("f6_e2m3", Dtype::F6_E2M3, &[64], sixes.clone()),
            ("f6_e3m2", Dtype::F6_E3M2, &[16, 4], sixes),
            ("u8", Dtype::U8, &[256], codes(1)),
            ("i8", Dtype::I8, &[16, 16], codes(1)),
            ("f8_e5m2", Dtype::F8_E5M2, &[256], codes(1)),
            ("f8_e4m3", Dtype::F8_E4M3, &[256], codes(1)),
            ("f8_e8m0", Dtype::F8_E8M0, &[256], codes(1)),
            ("f8_e4m3fnuz", Dtype::F8_E4M3FNUZ, &[256], codes(1)),
            ("f8_e5m2fnuz", Dtype::F8_E5M2FNUZ, &[256], codes(1)),
            ("i16", Dtype::I16, &[1 << 16], codes(2)),
            ("u16", Dtype::U16, &[1 << 16], codes(2)),
            ("f16", Dtype::F16, &[256, 256], codes(2)),
            ("bf16", Dtype::BF16, &[1 << 16], codes(2)),
            ("i32", Dtype::I32, &[16], integers.clone()),
            ("u32", Dtype::U32, &[2, 2, 2, 2], integers.clone()),
            ("f32", Dtype::F32, &[16], doubles.clone()),
            ("c64", Dtype::C64, &[8], pattern(64).iter().map(|byte| byte & 0x3f).collect()),
            ("f64", Dtype::F64, &[8], doubles),
            ("i64", Dtype::I64, &[8], integers.clone()),
            ("u64", Dtype::U64, &[2, 4], integers),
            ("scalar", Dtype::BF16, &[], vec![0x80, 0x3f]),
            ("empty", Dtype::F16, &[0, 3], vec![]),
            ("a/b.. \"quoted\"\n", Dtype::BF16, &[3], pattern(6)),
            ("large", Dtype::BF16, &[1000, 1000], pattern(2_000_000)),
        ],
        &[("format", "pt"), ("thumbnail", "data:image/png;base64,iVBORw0KGgo="), ("bad", "data:image/png;base64,*")],
    )
}

/// Compares every view, or only those named in `only`, with the source.
fn assert_equal_in_python(source: &Path, mount: &Mount, only: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/views.py");
    let python = crate::support::python();
    let args = [script.as_path(), source, &mount.point].into_iter().chain(only.iter().map(Path::new));
    let said = run_ok(python.to_str().unwrap(), args);
    assert!(said.ends_with(" tensors\n"), "{said}");
}

#[test]
fn numpy_and_official_package_read_every_view() {
    require_fuse!();
    let scene = Scene::new();
    let source = zoo(&scene);
    let mount = scene.mount(&source, &[]);
    assert_equal_in_python(&source, &mount, &[]);
    assert_eq!(mount.read("metadata/thumbnail.png"), b"\x89PNG\r\n\x1a\n");
    assert_eq!(mount.list("metadata"), ["bad", "format", "thumbnail", "thumbnail.png"]);
    assert!(mount.log().contains("metadata \"bad\": not decoded: not valid base64"), "{}", mount.log());
}

#[test]
fn real_models_are_read_in_every_view() {
    require_fuse!();
    for (name, _) in crate::clients::REAL {
        let source = crate::support::real_model(name);
        let scene = Scene::new();
        // The others have all dtypes of this one, which is large.
        let only: &[&str] = if name == "all-minilm" { &["npy"] } else { &[] };
        assert_equal_in_python(&source, &scene.mount(&source, &[]), only);
    }
}

#[test]
fn rust_and_cpp_libraries_open_npy_files() {
    require_fuse!();
    let scene = Scene::new();
    let source = zoo(&scene);
    let mount = scene.mount(&source, &[]);
    let npy =
        |name: &str| npyz::NpyFile::new(std::fs::File::open(mount.path(format!("npy/{name}.npy"))).unwrap()).unwrap();
    let halves = npy("large");
    assert_eq!(halves.shape(), [1000, 1000]);
    let expected: Vec<u32> = pattern(2_000_000).chunks(2).map(|b| u32::from_le_bytes([0, 0, b[0], b[1]])).collect();
    let found: Vec<u32> = halves.into_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect();
    assert!(found == expected);
    assert_eq!(npy("i8").into_vec::<i8>().unwrap(), (0..=255u8).map(|code| code as i8).collect::<Vec<_>>());
    assert_eq!((npy("scalar").shape(), npy("empty").shape()), (&[][..], &[0, 3][..]));

    let program = scene.path("sum");
    let code = r#"
        #include <xtensor/xnpy.hpp>
        #include <xtensor/xarray.hpp>
        #include <iostream>
        int main(int argc, char **argv) {
            auto halves = xt::load_npy<float>(argv[1]);
            auto shorts = xt::load_npy<short>(argv[2]);
            auto empty = xt::load_npy<float>(argv[3]);
            std::cout << halves.dimension() << ' ' << halves.size() << ' ' << halves(2) << ' ' << shorts(256) << ' '
                      << shorts(65535) << ' ' << empty.dimension() << std::endl;
        }"#;
    std::fs::write(scene.path("sum.cpp"), code).unwrap();
    run_ok(
        "g++",
        ["-std=c++17".as_ref(), "-O0".as_ref(), "-o".as_ref(), program.as_os_str(), scene.path("sum.cpp").as_os_str()],
    );
    let files = ["f8_e4m3", "i16", "scalar"].map(|name| mount.path(format!("npy/{name}.npy")));
    // The third code of E4M3 is twice its smallest positive number, 2^-9.
    assert_eq!(run_ok(program.to_str().unwrap(), files), "1 256 0.00390625 256 -1 0\n");
}

#[test]
fn archivers_copy_the_whole_mount() {
    require_fuse!();
    let scene = Scene::new();
    let source = zoo(&scene);
    let mount = scene.mount(&source, &[]);
    let point = mount.point.to_str().unwrap();
    let copies = ["cp", "rsync", "tar", "sparse"].map(|name| scene.mkdir(name));
    let [cp, rsync, tar, sparse] = copies.each_ref().map(|path| path.to_str().unwrap());
    run_ok("cp", ["-a", &format!("{point}/."), cp]);
    run_ok("rsync", ["-aH", &format!("{point}/"), rsync]);
    run_ok("bash", ["-c", &format!("set -o pipefail; tar -C {point} -c . | tar -C {tar} -x")]);
    // tar --sparse takes a file without blocks for a hole and does not read it.
    run_ok("bash", ["-c", &format!("set -o pipefail; tar -C {point} --sparse -c . | tar -C {sparse} -x")]);
    for copy in [cp, rsync, tar, sparse] {
        run_ok("diff", ["-r", point, copy]);
        let inode = |path: &str| std::fs::metadata(format!("{copy}/{path}")).unwrap().ino();
        assert_eq!(inode("tensors/f32"), inode("tree/f32"), "{copy}");
        assert_eq!(inode("tensors/f32"), inode("f32/f32.f32"), "{copy}");
    }
    // The blocks of the data are counted once, in the raw files. Every other file that is not empty has one block.
    let blocks = |path: &str| -> u64 {
        let du = run_ok("du", ["-s", "--block-size=512", &format!("{point}/{path}")]);
        du.split_whitespace().next().unwrap().parse().unwrap()
    };
    let find = |args: &[&str]| run_ok("find", args).lines().count() as u64;
    let raw: u64 = find(&[&format!("{point}/tensors"), "-type", "f"]);
    let others = find(&[point, "-type", "f", "-size", "+0"]) - 2 * (raw - 1) - 1;
    assert_eq!(blocks("."), blocks("tensors") + others);
    let data: u64 =
        std::fs::read_dir(mount.path("tensors")).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!((data / 512..data / 512 + raw).contains(&blocks("tensors")));
}

#[test]
fn changed_source_is_an_error_in_every_view() {
    require_fuse!();
    // One file of each view, whose last data is after the cut. The header is before it.
    let files = [
        "tensors/large",
        "npy/large.npy",
        "f32/large.f32",
        "safetensors/large.safetensors",
        "export/zoo-whole.safetensors",
        "export/zoo-f32.safetensors",
    ];
    for (cut, expected) in [(true, nix::libc::EIO), (false, nix::libc::ESTALE)] {
        let scene = Scene::new();
        let source = zoo(&scene);
        let mount = scene.mount(&source, &[]);
        let file = std::fs::File::options().write(true).open(&source).unwrap();
        if cut {
            file.set_len(file.metadata().unwrap().len() / 4).unwrap();
        } else {
            file.write_all_at(b"!", 100_000).unwrap();
        }
        for name in files {
            let view = std::fs::File::open(mount.path(name)).unwrap();
            let end = view.metadata().unwrap().len();
            let error = view.read_exact_at(&mut [0; 4096], end - 4096).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(expected), "{name}");
        }
        assert_eq!(mount.log().matches("zoo.safetensors: ").count(), 1, "{}", mount.log());
        assert!(mount.list("npy").len() > 20);
    }
}

#[test]
fn views_are_selected_by_either_option_syntax() {
    require_fuse!();
    let scene = Scene::new();
    let source = scene.sample();
    for args in [["--views", "npy,tensors"], ["-o", "views=npy:tensors"]] {
        assert_eq!(scene.mount(&source, &args).list(""), ["npy", "tensors"]);
    }
    let refused = run(crate::support::WEIGHTFS, ["--views", "npz", source.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("no view is called \"npz\"") && said.contains("npy"), "{said}");
}

#[test]
fn copying_exports_beside_the_source_overwrites_no_source() {
    require_fuse!();
    let scene = Scene::new();
    let whole = std::fs::read(scene.sample()).unwrap();
    scene.ok("weightfs sample.safetensors && cp sample/export/* . && weightfs umount sample");
    assert!(std::fs::read(scene.path("sample.safetensors")).unwrap() == whole);
    scene.ok("weightfs diff --data sample.safetensors sample-whole.safetensors");

    // Shards with the names that exports usually have.
    let scene = Scene::new();
    let shards = ["model-whole.safetensors", "model-clean.safetensors"];
    let map: serde_json::Map<_, _> = ["a", "b"].into_iter().map(String::from).zip(shards.map(Into::into)).collect();
    for (tensor, shard) in ["a", "b"].into_iter().zip(shards) {
        scene.model(shard, &[(tensor, Dtype::U8, &[3], pattern(3))], &[]);
    }
    let index = serde_json::json!({ "weight_map": map }).to_string();
    std::fs::write(scene.path("model.safetensors.index.json"), index).unwrap();
    let before = shards.map(|shard| std::fs::read(scene.path(shard)).unwrap());
    let listed = scene.ok("weightfs model.safetensors.index.json && ls model/export && cp model/export/* .");
    let exports = ["model-bf16", "model-clean-clean", "model-f32", "model-whole-whole"];
    let expected = exports.map(|name| format!("\n{name}.safetensors")).concat() + "\n";
    assert!(listed.ends_with(&expected), "{listed}");
    scene.ok("weightfs umount model");
    assert_eq!(shards.map(|shard| std::fs::read(scene.path(shard)).unwrap()), before);
    scene.wait_for_end();
}
