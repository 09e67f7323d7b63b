//! Every scheme against the libraries that define it, and against its formula in NumPy.
//!
//! `vectors.py` has written `cases.safetensors` with the numbers of the libraries. `formulas.py` has the formulas,
//! which give the same numbers; `random_vectors.py` applies them to other tensors.

use crate::cases::{Case, cases, cases_of, floats, is_same};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A sequence of numbers that is the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if end == 0 { 0 } else { (self.0 >> 33) % end }
    }
}

fn check(case: &Case, found: &[f32], expected: &[f32], start: u64) {
    assert_eq!(found.len(), expected.len(), "{}", case.name);
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let at = start as usize + at;
        assert!(is_same(*found, *expected, case.zero_sign), "{}: [{at}] is {found:e}, not {expected:e}", case.name);
    }
}

#[test]
fn whole_weights_are_those_of_the_libraries() {
    compare_whole(&cases());
}

fn compare_whole(cases: &[Case]) {
    let mut wrong = Vec::new();
    for case in cases {
        let recognised = case.file.recognise(&case.config());
        if !recognised.warnings.is_empty() || recognised.weights.len() != 1 {
            let warnings: Vec<String> = recognised.warnings.iter().map(ToString::to_string).collect();
            wrong.push(format!("{}: {} weights, {warnings:?}", case.name, recognised.weights.len()));
            continue;
        }
        let weight = &recognised.weights[0];
        let name = weight.name.as_deref().unwrap_or(&case.file.tensors[weight.values].name).to_owned();
        let [expected] = &case.expected.tensors[..] else { panic!("{}", case.name) };
        assert_eq!(
            (&name, &weight.class.shape),
            (&expected.name, &expected.shape),
            "{}: {}",
            case.name,
            weight.class.summary()
        );
        let expected = floats(expected);
        let range = 0..weight.class.elements();
        assert_eq!(range.end, expected.len() as u64, "{}", case.name);
        let found = case.file.decode(weight, &range, &range);
        let is_same = |(found, expected): (&f32, &f32)| is_same(*found, *expected, case.zero_sign);
        let different = found.iter().zip(&expected).filter(|pair| !is_same(*pair)).count();
        if different > 0 {
            let at = found.iter().zip(&expected).position(|pair| !is_same(pair)).unwrap();
            let (found, expected) = (found[at], expected[at]);
            wrong
                .push(format!("{}: {different} of {}, first [{at}] {found:e}, not {expected:e}", case.name, range.end));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn any_range_is_decoded_from_the_bytes_that_it_needs() {
    compare_ranges(&cases(), 300);
}

fn compare_ranges(cases: &[Case], rounds: u64) {
    let mut random = Random(1);
    for case in cases {
        let recognised = case.file.recognise(&case.config());
        let weight = &recognised.weights[0];
        let expected = floats(&case.expected.tensors[0]);
        let (elements, cols) = (weight.class.elements(), weight.class.layout.cols);
        for round in 0..rounds {
            // Ranges of all lengths: short ones, parts of a row, whole rows, and others.
            let start = random.below(elements + 1);
            let most = match round % 4 {
                0 => 8,
                1 => cols,
                2 => 3 * cols,
                _ => elements,
            };
            let end = (start + random.below(most + 1)).min(elements);
            let range = start..end;
            let held = match round % 3 {
                0 => weight.class.layout.window(range.clone()),
                1 => start - random.below(start.min(70) + 1)..end + random.below((elements - end).min(70) + 1),
                _ => range.clone(),
            };
            let found = case.file.decode(weight, &held, &range);
            check(case, &found, &expected[start as usize..end as usize], start);
        }
    }
}

/// Runs a script of this folder.
fn run(script: &str, arguments: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join(".venv/bin/python");
    let python = std::env::var_os("WEIGHTFS_PYTHON").map_or(python, PathBuf::from);
    assert!(python.exists(), "{} is missing: run scripts/test, which installs it", python.display());
    let script = root.join("tests/quantized").join(script);
    let output = Command::new(python).arg("-B").arg(script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The cases that a script makes: the same in every run, and others with another `QUANTIZED_SEED`.
fn made(script: &str, options: &[&str], then: impl FnOnce(&str)) -> Vec<Case> {
    let seed = std::env::var("QUANTIZED_SEED").unwrap_or_else(|_| "1".into());
    println!("QUANTIZED_SEED={seed}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cases.safetensors");
    let file = file.to_str().unwrap();
    run(script, &[&[file, &seed], options].concat());
    then(file);
    cases_of(Path::new(file))
}

/// Whether tests may take minutes, and all libraries are installed.
fn is_long() -> bool {
    std::env::var_os("REQUIRE_ORACLES").is_some()
}

#[test]
fn formulas_give_the_numbers_of_the_libraries() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quantized/cases.safetensors");
    let output = run("formulas.py", &[file.to_str().unwrap()]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{} cases\n", cases().len()));
}

#[test]
fn new_vectors_of_the_formulas_are_decoded() {
    let options: &[&str] = if is_long() { &["--large"] } else { &[] };
    let cases = made("random_vectors.py", options, |_| {});
    assert!(cases.len() > 1500, "{}", cases.len());
    compare_whole(&cases);
    compare_ranges(&cases, 40);
}

/// New vectors, with larger cases, from the libraries themselves, which `scripts/oracles` installs.
#[test]
fn new_vectors_of_the_libraries_are_decoded() {
    if !is_long() {
        eprintln!("skipped: takes a minute and 6 GB of Python packages; run scripts/oracles and set REQUIRE_ORACLES=1");
        return;
    }
    let cases = made("vectors.py", &["--large"], |file| {
        run("formulas.py", &[file]);
    });
    compare_whole(&cases);
    compare_ranges(&cases, 300);
}
