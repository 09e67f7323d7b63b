//! Tensors that are renamed, cut, joined and stacked, of sources in other orders of bytes and elements and of quantized
//! ones: every view and every command shows what it shows of the same tensors in one file, which NumPy writes.

use crate::distributed::{assert_equal_files, assert_equal_reads};
use crate::support::{Mount, Scene, WEIGHTFS, python, require_fuse, run, run_ok};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A recipe, and the file with the same tensors.
pub struct RecipeCase {
    pub recipe: PathBuf,
    pub plain: PathBuf,
    /// One of the tensors.
    pub tensor: String,
}

/// Writes all cases below the directory `models` of a scene.
pub fn write_cases(scene: &Scene) -> Vec<RecipeCase> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/recipes.py");
    let dir = scene.mkdir("models");
    let written = run_ok(python().to_str().unwrap(), [script.as_os_str(), dir.as_os_str()]);
    let case = |line: &str| {
        let (plain, tensor) = line.split_once(' ').unwrap();
        let plain = dir.join(plain);
        let recipe = plain.parent().unwrap().with_file_name("recipe/model.recipe");
        RecipeCase { recipe, plain, tensor: tensor.to_owned() }
    };
    let cases: Vec<RecipeCase> = written.lines().map(case).collect();
    assert_eq!(cases.len(), 3);
    cases
}

/// Asserts that every view of a mounted recipe is that of the plain file, also in reads of any length from any place.
pub fn assert_equal_views(recipe: &Mount, plain: &Mount) {
    let mut compared = 0;
    for view in ["tensors", "npy", "f32", "safetensors", "gguf", "stats", "plots", "tree"] {
        assert_eq!(recipe.path(view).exists(), plain.path(view).exists(), "{view}");
        if plain.path(view).exists() {
            compared += assert_equal_files(recipe, plain, view);
        }
    }
    // Folders for loaders are those of models that have only files of safetensors or PyTorch, and a configuration.
    let mut exports = plain.list("export");
    exports.retain(|name| !name.starts_with("hf"));
    assert_eq!(recipe.list("export"), exports);
    for name in &exports {
        let path = format!("export/{name}");
        assert!(recipe.read(&path) == plain.read(&path), "{path}");
    }
    compared += exports.len();
    assert!(compared > 30, "{compared}");
    assert_eq!(recipe.read("SHA256SUMS"), plain.read("SHA256SUMS"));
    assert_equal_reads(recipe, plain);
    assert_eq!((recipe.log(), plain.log()), (String::new(), String::new()));
}

#[test]
fn every_view_of_a_recipe_is_that_of_the_same_tensors_in_one_file() {
    require_fuse!();
    let scene = Scene::new();
    for RecipeCase { recipe, plain, .. } in write_cases(&scene) {
        let scenes = [Scene::new(), Scene::new()];
        assert_equal_views(&scenes[0].mount(&recipe, &[]), &scenes[1].mount(&plain, &[]));
    }
}

#[test]
fn every_command_sees_the_tensors_of_a_recipe() {
    let scene = Scene::new();
    for RecipeCase { recipe, plain, tensor } in write_cases(&scene) {
        let weightfs = |args: &[&OsStr]| run_ok(WEIGHTFS, args);
        weightfs(&["check".as_ref(), "--values".as_ref(), recipe.as_ref()]);
        weightfs(&["diff".as_ref(), "--values".as_ref(), recipe.as_ref(), plain.as_ref()]);
        for command in ["stats", "sums"] {
            let [found, expected] = [&recipe, &plain].map(|source| weightfs(&[command.as_ref(), source.as_ref()]));
            assert_eq!(found, expected, "{}", recipe.display());
        }
        let formats: [&[&str]; 4] = [&[], &["--dtype", "f32"], &["--dtype", "bf16"], &["--dtype", "f16"]];
        for options in formats {
            let written = [&recipe, &plain].map(|source| {
                let to = source.with_file_name("written");
                let args = [&["export", "--force"], options].concat();
                let args = args.iter().map(OsStr::new).chain([source.as_ref(), to.as_ref()]);
                weightfs(&args.collect::<Vec<_>>());
                std::fs::read(to).unwrap()
            });
            assert!(written[0] == written[1], "{} {options:?}", recipe.display());
        }
        let file = format!("f32/{tensor}.f32");
        let [found, expected] =
            [&recipe, &plain].map(|source| run(WEIGHTFS, ["cat".as_ref(), source.as_os_str(), file.as_ref()]).stdout);
        assert!(found == expected && !found.is_empty(), "{}", recipe.display());
    }
}
