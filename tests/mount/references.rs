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
        assert_eq!(zarr(["check", version, &text(&scene, &refs), &text(&scene, ODD)]), "34 0\n", "{options}");
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
    assert_eq!(zarr(["check", "3", &text(&scene, "refs.json"), &text(&scene, ODD)]), "34 0\n");
}
