//! A running `weightfs serve`, and the models that it serves.

use crate::browser::PATIENCE;
use crate::lifetime::end_with_this_thread;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;

/// A server that ends with the test.
pub struct Server {
    child: Child,
    /// Without a slash at its end.
    pub url: String,
}

impl Server {
    pub fn start(source: &Path, options: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weightfs"));
        command.arg("serve").arg(source).args(["--port", "0"]).args(options);
        end_with_this_thread(&mut command);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let line = lines.recv_timeout(PATIENCE);
        let mut server = Server { child, url: String::new() };
        let line = line.expect("weightfs serve prints its address");
        let url = line.split_once(" is served at ").unwrap_or_else(|| panic!("{line:?}")).1;
        server.url = url.trim_end().trim_end_matches('/').to_owned();
        server
    }

    /// What `weightfs cat` prints.
    pub fn cat(source: &Path, file: &str) -> Vec<u8> {
        let output = Command::new(env!("CARGO_BIN_EXE_weightfs")).arg("cat").arg(source).arg(file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether Chromium and the real models of `scripts/test` are here. With `REQUIRE_FUSE=1`, the test fails if they are
/// not.
pub fn browser_is_here() -> bool {
    let has_driver = Command::new("chromedriver").arg("--version").output().is_ok();
    if has_driver && real_model().exists() {
        return true;
    }
    let reason = if has_driver { "no .cache/models/all-minilm.safetensors" } else { "no chromedriver" };
    assert!(std::env::var_os("REQUIRE_FUSE").is_none_or(|value| value != "1"), "REQUIRE_FUSE=1, but {reason}");
    // Written directly, because the test harness hides what `eprintln!` prints in a passing test.
    let _ = writeln!(std::io::stderr(), "{}: skipped: {reason}", std::thread::current().name().unwrap_or_default());
    false
}

/// A sentence embedding model with 104 tensors, from PyPI.
pub fn real_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/models/all-minilm.safetensors")
}

/// Writes a file of tensors of 4 bytes with these names, and metadata.
pub fn write_model(path: &Path, names: &[String], metadata: &[(&str, &str)]) {
    let tensors: Vec<(String, u64)> = names.iter().map(|name| (name.clone(), 1)).collect();
    write_sized_model(path, &tensors, metadata);
}

/// Writes a file of tensors with these names and numbers of elements of 4 bytes, and metadata.
pub fn write_sized_model(path: &Path, tensors: &[(String, u64)], metadata: &[(&str, &str)]) {
    let mut header = serde_json::Map::new();
    let metadata: serde_json::Map<_, _> =
        metadata.iter().map(|(key, value)| (key.to_string(), (*value).into())).collect();
    header.insert("__metadata__".into(), metadata.into());
    let mut end = 0;
    for (name, elements) in tensors {
        let offsets = [end, end + 4 * elements];
        header.insert(name.clone(), serde_json::json!({"dtype": "F32", "shape": [elements], "data_offsets": offsets}));
        end = offsets[1];
    }
    let header = serde_json::Value::from(header).to_string();
    std::fs::write(path, [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap();
}
