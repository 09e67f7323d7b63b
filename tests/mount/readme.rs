//! The commands of README.md and docs/tour.md work: every line that begins with `$` in a `console` block is run.

#[cfg(feature = "remote")]
use crate::servers::python::Python;
use crate::support::{Detached, Scene, WEIGHTFS, require_fuse, wait_until};
use safetensors::Dtype;
use std::path::Path;
use std::process::{Command, Stdio};

fn commands() -> Vec<&'static str> {
    let pages = [include_str!("../../README.md"), include_str!("../../docs/tour.md")];
    let blocks = pages.iter().flat_map(|page| page.split("```console\n").skip(1));
    let lines = blocks.flat_map(|rest| rest.split("```").next().unwrap().lines());
    lines.filter_map(|line| line.strip_prefix("$ ")).collect()
}

#[test]
fn commands_of_the_readme_and_the_tour_work() {
    require_fuse!();
    let scene = Scene::new();
    scene.model("original.safetensors", &[("w.weight", Dtype::BF16, &[2, 2], [0x81, 0x3f].repeat(4))], &[]);
    let scale = ("w.weight_scale", Dtype::F32, &[][..], 1f32.to_le_bytes().to_vec());
    scene.model("quantized.safetensors", &[("w.weight", Dtype::F8_E4M3, &[2, 2], vec![0x38; 4]), scale], &[]);
    scene.mkdir("llama");
    scene.model("llama/model-1.safetensors", &[("a", Dtype::U8, &[1], vec![1])], &[]);
    scene.model("llama/model-2.safetensors", &[("b", Dtype::U8, &[1], vec![2])], &[]);
    let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    std::fs::write(scene.path("llama/model.safetensors.index.json"), index).unwrap();
    scene.mkdir("loras");
    let lora = scene.model("loras/style.safetensors", &[("a", Dtype::U8, &[1], vec![1])], &[("ss_network_dim", "8")]);
    std::fs::copy(lora, scene.path("loras/face.safetensors")).unwrap();
    std::fs::write(scene.path("loras/half.safetensors"), b"half of it").unwrap();
    scene.mkdir("train");
    for part in ["train/a.safetensors", "train/b.safetensors"] {
        scene.model(part, &[("images", Dtype::U8, &[1, 3], vec![1, 2, 3])], &[]);
    }
    let listed = |file| serde_json::json!({"shard_path": file, "samples_count": 1, "bytes": 75});
    let manifest =
        serde_json::json!({"format_version": "1.0", "shards": [listed("a.safetensors"), listed("b.safetensors")]});
    std::fs::write(scene.path("train/dataset_manifest.json"), manifest.to_string()).unwrap();
    std::fs::write(scene.path("model.gguf"), crate::gguf::tokens()).unwrap();
    scene.ok(&format!("cp -r {}/tests/checkpoints/dcp/fsdp checkpoint-500", env!("CARGO_MANIFEST_DIR")));
    let repository = scene.mkdir("repository").join("model.safetensors");
    assert!(Command::new(WEIGHTFS).arg("demo").arg(repository).stdout(Stdio::null()).status().unwrap().success());
    let _mounts = ["model", "mnt", "broken", "whole", "all", "data", "gg", "fp8", "hub", "trained"]
        .map(|name| Detached(scene.path(name)));
    let path = format!("{}:{}", Path::new(WEIGHTFS).parent().unwrap().display(), std::env::var("PATH").unwrap());
    // A stub of the Hugging Face Hub, whose repositories all have the files of that directory.
    #[cfg(feature = "remote")]
    let hub = {
        let mut hub = Python::start("hub.py");
        hub.ask(serde_json::json!({"do": "serve", "folder": scene.path("repository")}));
        hub
    };
    #[cfg(feature = "remote")]
    let endpoint = hub.text("url");
    #[cfg(not(feature = "remote"))]
    let endpoint = String::new();
    let mut commands = commands();
    commands.retain(|command| cfg!(feature = "remote") || !command.contains("hub"));
    assert!(commands.len() > 20, "{}", commands.len());
    for command in commands {
        let output = Command::new("bash")
            .args(["-c", command])
            .current_dir(scene.dir.path())
            .env("PATH", &path)
            .env("HF_ENDPOINT", &endpoint)
            .env("XDG_CACHE_HOME", scene.path("bin/cache"))
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "$ {command}\n{}{}", text(&output.stdout), text(&output.stderr));
        let is_silent = [
            "mkdir ",
            "weightfs umount",
            "weightfs metadata set tuned",
            "weightfs metadata remove",
            "weightfs export",
            "weightfs cp",
            "(cd mnt",
            "cmp ",
            "cp ",
            "jq -r 'select",
        ]
        .iter()
        .any(|quiet| command.starts_with(quiet));
        assert!(is_silent || command.contains('>') || !output.stdout.is_empty(), "$ {command}\nprinted nothing");
        let errors = text(&output.stderr);
        assert!(command.contains("--lenient") || errors.is_empty(), "$ {command}\n{errors}");
    }
    // The daemon removes the mount point that it created shortly after the unmount.
    wait_until("the mount point is removed", || !scene.path("model").exists());
}
