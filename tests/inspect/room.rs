//! A temporary directory for one test, with helpers that write models into it and run commands in it.

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The program under test.
const WEIGHTFS: &str = env!("CARGO_BIN_EXE_weightfs");

pub struct Room {
    dir: TempDir,
}

/// A tensor to write: name, dtype, shape, bytes.
pub type Tensor<'a> = (&'a str, Dtype, &'a [usize], Vec<u8>);

/// Standard output, standard error and exit code of a command.
#[derive(Debug, PartialEq, Eq)]
pub struct Output {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Room {
    pub fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a line of bash with `weightfs` in `PATH`.
    pub fn sh(&self, line: &str) -> Output {
        let programs = Path::new(WEIGHTFS).parent().unwrap().display();
        let mut command = Command::new("bash");
        command.args(["-c", line]).current_dir(self.dir.path()).env("LC_ALL", "C").stdin(Stdio::null());
        command.env("PATH", format!("{programs}:{}", std::env::var("PATH").unwrap()));
        for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "RUST_LOG", "TRANSFORMERS_OFFLINE"] {
            command.env_remove(variable);
        }
        let of_the_hub =
            |name: &OsString| name.as_encoded_bytes().starts_with(b"HF_") || name == "HUGGINGFACE_HUB_CACHE";
        for (variable, _) in std::env::vars_os().filter(|(name, _)| of_the_hub(name)) {
            command.env_remove(variable);
        }
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Output { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Runs a line that must succeed with an empty standard error, and returns its standard output.
    pub fn ok(&self, line: &str) -> String {
        let output = self.sh(line);
        assert!(output.code == 0 && output.err.is_empty(), "{line}: {output:?}");
        output.out
    }

    /// Runs a line that must fail with this exit code and message, and print nothing to standard output.
    pub fn fails_with(&self, line: &str, code: i32, error: &str) {
        let said = self.sh(line);
        assert!(said.code == code && said.out.is_empty() && said.err.contains(error), "{line}: {said:?}");
    }

    /// The JSON objects that a line prints.
    pub fn json(&self, line: &str) -> Vec<serde_json::Value> {
        let out = self.sh(line).out;
        serde_json::Deserializer::from_str(&out).into_iter().map(|object| object.expect(&out)).collect()
    }

    /// Writes a file with the official crate.
    pub fn model(&self, name: &str, tensors: &[Tensor], metadata: &[(&str, &str)]) {
        let views = tensors
            .iter()
            .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.to_vec(), bytes).unwrap()));
        let metadata: HashMap<_, _> =
            metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        safetensors::serialize_to_file(views, (!metadata.is_empty()).then_some(metadata), &self.path(name)).unwrap();
    }

    /// Writes a file from a header and data, which need not be valid.
    pub fn raw(&self, name: &str, header: &str, data: &[u8]) {
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat();
        std::fs::write(self.path(name), file).unwrap();
    }

    /// Writes copies of a sound file with one byte of the header changed, and returns their paths. Some copies are
    /// still sound.
    pub fn mutations(&self) -> Vec<PathBuf> {
        let header = concat!(
            r#"{"__metadata__":{"k":"1"},"a":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]},"#,
            r#""b":{"dtype":"U8","shape":[0],"data_offsets":[8,8]},"c.0":{"dtype":"I8","shape":[],"data_offsets":[8,9]}}  "#
        );
        let mut paths = Vec::new();
        for at in 0..header.len() {
            for byte in [&b"1"[..], b"[", b" ", b"\"", b"c", b"}"] {
                let name = format!("{at}{}.safetensors", byte[0]);
                let mutated = [&header.as_bytes()[..at], byte, &header.as_bytes()[at + 1..]].concat();
                self.raw(&name, str::from_utf8(&mutated).unwrap(), &[0; 9]);
                paths.push(self.path(&name));
            }
        }
        paths
    }

    /// Writes two shards and their index, `NAME.safetensors.index.json`, named as huggingface_hub names them.
    pub fn sharded(&self, name: &str) {
        let (first, second) =
            (format!("{name}-00001-of-00002.safetensors"), format!("{name}-00002-of-00002.safetensors"));
        self.model(&first, &[("a.0.w", Dtype::F32, &[2], vec![0; 8]), ("a.1.w", Dtype::BF16, &[3], vec![0; 6])], &[]);
        self.model(&second, &[("b.w", Dtype::F32, &[4], vec![0; 16])], &[("format", "pt")]);
        let index = serde_json::json!({
            "metadata": {"total_size": 30, "total_parameters": 9},
            "weight_map": {"a.0.w": first, "a.1.w": first, "b.w": second},
        });
        std::fs::write(self.path(&format!("{name}.safetensors.index.json")), index.to_string()).unwrap();
    }

    /// Writes a directory with a dataset of two shards in batch mode.
    pub fn dataset(&self, name: &str) {
        std::fs::create_dir(self.path(name)).unwrap();
        for part in ["x", "y"] {
            let images: Tensor = ("images", Dtype::U8, &[2, 3], (0..6).collect());
            self.model(&format!("{name}/{part}.safetensors"), &[images], &[]);
        }
        let bytes = std::fs::metadata(self.path(&format!("{name}/x.safetensors"))).unwrap().len();
        let shard = |part| serde_json::json!({"shard_path": part, "samples_count": 2, "bytes": bytes});
        let manifest = serde_json::json!({
            "format_version": "1.0", "safetensors_version": "1.0", "total_samples": 4, "total_bytes": 2 * bytes,
            "shards": [shard("x.safetensors"), shard("y.safetensors")],
        });
        std::fs::write(self.path(&format!("{name}/dataset_manifest.json")), manifest.to_string()).unwrap();
    }
}

/// Little-endian bytes of floats.
pub fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
