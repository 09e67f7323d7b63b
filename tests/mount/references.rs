//! Kerchunk references, read by zarr-python, xarray and Dask.

use crate::support::{Scene, run_ok};
use std::ffi::OsStr;
use std::path::Path;

/// Runs `references.py`.
pub fn zarr<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/references.py");
    let args = args.into_iter().map(|arg| arg.as_ref().to_owned());
    run_ok(crate::support::python().to_str().unwrap(), [script.into_os_string()].into_iter().chain(args))
}

/// Writes the models of `references.py` to `models`.
pub fn write_models(scene: &Scene) {
    zarr(["write".as_ref(), scene.path("models").as_os_str()]);
}

fn models() -> Scene {
    let scene = Scene::new();
    write_models(&scene);
    scene
}

/// A path of a scene as text.
pub fn text(scene: &Scene, name: &str) -> String {
    scene.path(name).to_str().unwrap().to_owned()
}

/// A directory and a file whose names URLs would have to escape.
const ODD: &str = "models/a b#%20{{?/m + #1.safetensors";

#[test]
fn arrays_of_local_files_are_those_of_numpy() {
    let scene = models();
    for (at, options) in
        ["", "--chunk 40", "--flat --chunk 16", "--zarr 2", "--zarr 2 --flat --chunk 1"].iter().enumerate()
    {
        let version = if options.contains("--zarr 2") { "2" } else { "3" };
        let refs = format!("{at}.json");
        scene.ok(&format!("weightfs references {options} '{ODD}' -o {refs}"));
        assert_eq!(zarr(["check", version, &text(&scene, &refs), &text(&scene, ODD)]), "35 0\n", "{options}");
    }
}

#[test]
fn function_of_the_python_package_opens_groups() {
    let scene = models();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (package, script) = (root.join("python"), root.join("tests/mount/references.py"));
    for (source, expected) in [(ODD, "35 0\n35 0\n"), ("models/orders.npz", "39 0\n39 0\n")] {
        let (package, python, script) = (package.display(), crate::support::python(), script.display());
        let line = format!("PYTHONPATH={package} {} {script} function '{source}' '{source}'", python.display());
        assert_eq!(scene.ok(&line), expected);
    }
}

#[test]
fn arrays_in_other_orders_are_those_of_numpy() {
    let scene = models();
    for (at, options) in ["", "--chunk 40", "--zarr 2", "--zarr 2 --chunk 40"].iter().enumerate() {
        let version = if options.contains("--zarr 2") { "2" } else { "3" };
        let refs = format!("{at}.json");
        scene.ok(&format!("weightfs references {options} models/orders.npz -o {refs}"));
        assert_eq!(zarr(["check", version, &text(&scene, &refs), &text(&scene, "models/orders.npz")]), "39 0\n");
    }
}

#[test]
fn xarray_and_dask_read_references() {
    let scene = models();
    let plain = text(&scene, "models/plain.safetensors");
    for version in ["2", "3"] {
        let refs = format!("{version}.json");
        scene.ok(&format!("weightfs references --flat --chunk 40 --zarr {version} models/plain.safetensors -o {refs}"));
        assert_eq!(zarr(["xarray", &text(&scene, &refs), &plain]), "18\n");
        assert_eq!(zarr(["dask", &text(&scene, &refs), &plain]), "18\n");
    }
}

#[test]
fn virtualizarr_reads_references_of_format_2_without_groups() {
    let scene = models();
    scene.ok("weightfs references --flat --chunk 40 --zarr 2 models/plain.safetensors -o refs.json");
    let plain = text(&scene, "models/plain.safetensors");
    assert_eq!(zarr(["virtual", &text(&scene, "refs.json"), &plain]), "17\n");
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_references_are_read_like_those_in_json() {
    let scene = models();
    for (refs, options, model, expected) in [
        ("odd.parquet", "--chunk 16", ODD, "35 0\n"),
        ("orders.parq", "--chunk 4", "models/orders.npz", "39 0\n"),
        // A table has at most 10,000 chunks.
        ("long.parquet", "--chunk 1", "models/long.safetensors", "1 0\n"),
    ] {
        scene.ok(&format!("weightfs references --zarr 2 --flat {options} '{model}' -o {refs}"));
        assert_eq!(zarr(["check", "2", &text(&scene, refs), &text(&scene, model)]), expected, "{refs}");
    }
    assert_eq!(scene.ok("ls long.parquet/long").trim(), "refs.0.parq\nrefs.1.parq");
    scene.ok("weightfs references --flat --chunk 40 --zarr 2 models/plain.safetensors -o plain.parquet");
    let [refs, plain] = ["plain.parquet", "models/plain.safetensors"].map(|name| text(&scene, name));
    for (reader, expected) in [("xarray", "18\n"), ("dask", "18\n"), ("virtual", "17\n")] {
        assert_eq!(zarr([reader, &refs, &plain]), expected, "{reader}");
    }
}

#[cfg(feature = "remote")]
#[test]
fn arrays_of_files_on_a_server_are_those_of_numpy() {
    let scene = models();
    let nginx = crate::servers::nginx::Nginx::start();
    let odd = std::fs::read(scene.path(ODD)).unwrap();
    nginx.put("m/a b#.safetensors", &odd);
    let url = nginx.url("m/a%20b%23.safetensors");
    let said = scene.sh(&format!("weightfs references --chunk 40 '{url}?key=SECRET' -o refs.json"));
    assert!(said.code == 0 && said.err.contains("neither the user nor the query"), "{said:?}");
    let refs = std::fs::read_to_string(scene.path("refs.json")).unwrap();
    assert!(refs.contains(&format!("[\"{url}\", ")) && !refs.contains("SECRET"), "{refs}");
    assert_eq!(zarr(["check", "3", &text(&scene, "refs.json"), &text(&scene, ODD)]), "35 0\n");
}
