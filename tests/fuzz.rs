//! Runs the fuzz targets without a fuzzer: on the corpus that `scripts/fuzz` has saved, and on random inputs.
#![cfg(feature = "remote")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "../fuzz/src/lib.rs"]
mod fuzz;

use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};
use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

macro_rules! targets {
    ($($target:ident)*) => {
        const TARGETS: &[&str] = &[$(stringify!($target)),*];
        $(
            #[test]
            fn $target() {
                replay(stringify!($target), fuzz::$target::run);
                run_on_random_inputs(fuzz::$target::run);
            }
        )*
    };
}

targets! { commands content gguf header index location manifest mount names numpy ollama onnx options protocol pytorch quantized slm }

fn entries(dir: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(dir);
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn replay(target: &str, run: fn(&[u8]) -> bool) {
    let mut any_valid = false;
    for path in entries(&format!("corpus/{target}")) {
        let bytes = std::fs::read(&path).unwrap();
        let is_valid = catch_unwind(|| run(&bytes)).unwrap_or_else(|_| panic!("{}", path.display()));
        any_valid |= is_valid;
    }
    // A corpus of only invalid inputs would test little.
    assert!(any_valid, "no valid input in the corpus");
}

fn run_on_random_inputs(run: fn(&[u8]) -> bool) {
    let config = ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() };
    let result = TestRunner::new(config).run(&prop::collection::vec(any::<u8>(), 0..256), |bytes| {
        run(&bytes);
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, bytes)) => panic!("{reason}\nwith b\"{}\"", bytes.escape_ascii()),
        Err(aborted) => panic!("{aborted}"),
    }
}

#[test]
fn every_target_is_replayed() {
    let stems = |dir: &str| -> BTreeSet<String> {
        entries(dir).iter().map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
    };
    let targets: BTreeSet<String> = TARGETS.iter().map(|target| target.to_string()).collect();
    assert_eq!(stems("fuzz_targets"), targets);
    assert_eq!(stems("corpus"), targets);
}
