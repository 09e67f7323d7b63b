//! The Python package: models as Dask arrays.

use crate::support::{Scene, python};
use std::path::Path;

/// Runs a test of `dask_arrays.py` in an empty directory.
fn run(test: &str) {
    let scene = Scene::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (package, script) = (root.join("python"), root.join("tests/mount/dask_arrays.py"));
    let line = format!("PYTHONPATH={} {} {} {test} 2>&1", package.display(), python().display(), script.display());
    let said = scene.sh(&line);
    assert!(said.code == 0 && said.out.ends_with("ok\n"), "{said:?}");
}

#[test]
fn arrays_are_those_of_numpy() {
    run("arrays");
}

#[test]
fn patterns_select_tensors_and_errors_say_what_is_wrong() {
    run("names");
}

#[test]
fn task_reads_its_rows_only() {
    run("rows");
}

#[test]
fn server_that_was_killed_is_replaced() {
    run("ended_servers");
}

#[test]
fn another_version_is_an_error() {
    run("versions");
}

#[cfg(feature = "remote")]
#[test]
fn processes_open_remote_sources_in_their_version() {
    run("remote");
}

#[test]
fn killed_workers_count_nothing_twice() {
    run("killed_workers");
}

#[test]
fn examples_print_what_numpy_computes() {
    run("examples");
}
