//! The programs: how each reads from the server, and what is left of it afterwards.

use super::server::{Count, Server};
use crate::inputs::{Tensor, make_once, tensor, warm, write_model};
use crate::systems::{BEFORE, Site, WEIGHTFS, end, mounts, unmount};
use anyhow::{Context, bail, ensure};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    Weightfs,
    /// Another build of weightfs, given with `--before`.
    Before,
    /// `rclone mount --vfs-cache-mode off`. The mode `minimal` reads in the same way.
    Rclone,
    /// `rclone mount --vfs-cache-mode full`.
    RcloneFull,
    Curl,
    /// weightfs on the same files, without the server.
    Local,
}

impl Program {
    pub const ALL: [Self; 6] = [Self::Weightfs, Self::Before, Self::Rclone, Self::RcloneFull, Self::Curl, Self::Local];

    /// Those that read from the server.
    pub const REMOTE: [Self; 5] = [Self::Weightfs, Self::Before, Self::Rclone, Self::RcloneFull, Self::Curl];

    /// Those whose files are mapped. If a mount is given up, a map of it ends this program with SIGBUS, and rclone
    /// takes minutes.
    pub const WEIGHTFS: [Self; 2] = [Self::Weightfs, Self::Before];

    /// Those that mount what the server has.
    pub const MOUNTS: [Self; 4] = [Self::Weightfs, Self::Before, Self::Rclone, Self::RcloneFull];

    pub fn name(self) -> &'static str {
        match self {
            Self::Weightfs => "weightfs",
            Self::Before => "before",
            Self::Rclone => "rclone",
            Self::RcloneFull => "full",
            Self::Curl => "curl",
            Self::Local => "local",
        }
    }

    pub fn is_available(self) -> bool {
        self != Self::Before || BEFORE.get().is_some()
    }

    pub fn is_rclone(self) -> bool {
        matches!(self, Self::Rclone | Self::RcloneFull)
    }

    /// The weightfs program that it runs.
    fn weightfs(self) -> &'static Path {
        BEFORE.get().filter(|_| self == Self::Before).map_or(Path::new(WEIGHTFS), PathBuf::as_path)
    }
}

/// The models that the server has.
pub struct Models {
    pub root: PathBuf,
    /// The tensors of the single file, in the order of their names and of their bytes.
    pub tensors: Vec<Tensor>,
    /// Where the bytes of each of them begin in the file.
    pub starts: Vec<u64>,
    pub shards: usize,
    /// The length of the header of the single file and of the longest header of a shard, with the eight bytes that
    /// precede them.
    pub headers: [u64; 2],
}

/// The single file, relative to the root of the server. It is alone in its directory, which rclone lists.
pub const FILE: &str = "file/model.safetensors";

/// The same over connections of 50 MB/s.
pub const LIMITED: &str = "limited/file/model.safetensors";

/// The index of the shards.
pub const INDEX: &str = "shards/model.safetensors.index.json";

/// A tensor of 33,554,432 bytes in the middle of the single file.
pub const TENSOR: &str = "model.layers.0.self_attn.q_proj.weight";

/// A tensor of 201,326,592 bytes, the first one of the single file.
pub const LARGEST: &str = "model.embed_tokens.weight";

impl Models {
    /// The models in `cache`; made if they are missing.
    pub fn ready(cache: &Path, quick: bool) -> anyhow::Result<Self> {
        let root = cache.join(if quick { "remote-quick-1" } else { "remote-1" });
        let tensors = llama(if quick { 1 } else { 3 });
        let shards: usize = if quick { 40 } else { 160 };
        make_once(&root, if quick { 1_000_000_000 } else { 2_500_000_000 }, |partial| {
            std::fs::create_dir(partial.join("file"))?;
            std::fs::create_dir(partial.join("shards"))?;
            write_model(&partial.join(FILE), &tensors, None)?;
            let mut map = serde_json::Map::new();
            for shard in 0..shards {
                let experts = experts(shard);
                let name = format!("model-{:05}-of-{shards:05}.safetensors", shard + 1);
                write_model(&partial.join("shards").join(&name), &experts, None)?;
                map.extend(experts.into_iter().map(|tensor| (tensor.name, name.clone().into())));
            }
            let index = serde_json::json!({"metadata": {"total_size": 0}, "weight_map": map});
            Ok(std::fs::write(partial.join(INDEX), serde_json::to_vec(&index)?)?)
        })?;
        warm(&root.join("file"))?;
        warm(&root.join("shards"))?;
        let header = |path: &Path| -> anyhow::Result<u64> {
            let mut length = [0; 8];
            File::open(path)?.read_exact_at(&mut length, 0)?;
            Ok(8 + u64::from_le_bytes(length))
        };
        let first = header(&root.join(FILE))?;
        let mut longest = 0;
        for entry in std::fs::read_dir(root.join("shards"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "safetensors") {
                longest = longest.max(header(&path)?);
            }
        }
        let starts = tensors.iter().scan(first, |at, tensor| Some(std::mem::replace(at, *at + tensor.bytes))).collect();
        Ok(Self { root, tensors, starts, shards, headers: [first, longest] })
    }

    /// The length of the single file.
    pub fn len(&self) -> u64 {
        self.headers[0] + self.tensors.iter().map(|tensor| tensor.bytes).sum::<u64>()
    }

    /// The number of tensors in the shards.
    pub fn experts(&self) -> usize {
        self.shards * experts(0).len()
    }
}

/// The first layers of Llama 2 7B in BF16, and 24,576 rows of its embeddings: 1.4 GB for three layers.
fn llama(layers: u64) -> Vec<Tensor> {
    const HIDDEN: u64 = 4096;
    const FEED_FORWARD: u64 = 11008;
    let weight = |name: String, shape: &[u64]| tensor(name, "BF16", 2, shape);
    let mut tensors = vec![
        weight("model.embed_tokens.weight".into(), &[24_576, HIDDEN]),
        weight("model.norm.weight".into(), &[HIDDEN]),
    ];
    for layer in 0..layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            tensors.push(weight(name(&format!("self_attn.{part}")), &[HIDDEN, HIDDEN]));
        }
        for (part, shape) in [
            ("gate_proj", [FEED_FORWARD, HIDDEN]),
            ("up_proj", [FEED_FORWARD, HIDDEN]),
            ("down_proj", [HIDDEN, FEED_FORWARD]),
        ] {
            tensors.push(weight(name(&format!("mlp.{part}")), &shape));
        }
        tensors.push(weight(name("input_layernorm"), &[HIDDEN]));
        tensors.push(weight(name("post_attention_layernorm"), &[HIDDEN]));
    }
    // The official writer sorts tensors of one dtype by name.
    tensors.sort_by(|one, other| one.name.cmp(&other.name));
    tensors
}

/// The tensors of a shard: as many as in a shard of DeepSeek-V3, whose header has 60 kB as here, but only 1 kB each.
fn experts(shard: usize) -> Vec<Tensor> {
    let name = |at: usize| {
        let part = ["gate_proj", "up_proj", "down_proj"][at % 3];
        format!("model.layers.{shard}.mlp.experts.{}.{part}.weight", at / 3)
    };
    let mut tensors: Vec<_> = (0..564).map(|at| tensor(name(at), "BF16", 2, &[8, 64])).collect();
    tensors.sort_by(|one, other| one.name.cmp(&other.name));
    tensors
}

/// A program at a server, in one round.
pub struct Client<'a> {
    pub program: Program,
    pub site: &'a Site,
    pub models: &'a Models,
    pub server: &'a Mutex<Server>,
    /// The server, or the proxy that adds latency.
    pub address: std::net::SocketAddr,
    /// The home and the cache of the program. The environment of all its processes names it.
    pub cache: TempDir,
}

impl Client<'_> {
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// A program with an empty home, whose environment has the path of its cache.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> anyhow::Result<Command> {
        let mut command = Command::new(program);
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_ascii_lowercase().as_bytes().ends_with(b"_proxy"))
        {
            command.env_remove(name);
        }
        command.env("HOME", self.cache.path()).env("XDG_CACHE_HOME", self.cache.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(self.site.log())?).process_group(0);
        Ok(command)
    }

    /// Runs a program to its end.
    fn finish(&self, command: &mut Command) -> anyhow::Result<()> {
        let status = command.status().with_context(|| command.get_program().display().to_string())?;
        ensure!(status.success(), "{}, {status}: {}", command.get_program().display(), self.last_words());
        Ok(())
    }

    pub fn curl(&self, arguments: &[&str]) -> anyhow::Result<()> {
        self.finish(self.command("curl")?.args(["-fsS", "-o", "/dev/null"]).args(arguments))
    }

    pub fn inspect(&self, source: impl AsRef<std::ffi::OsStr>) -> anyhow::Result<()> {
        self.finish(self.command(self.program.weightfs())?.arg("inspect").arg(source))
    }

    /// Mounts what the program mounts for `path`: the model, or with rclone its directory.
    pub fn mount(&self, path: &str) -> anyhow::Result<Mount> {
        if !self.program.is_rclone() {
            let source = if self.program == Program::Local {
                self.models.root.join(path).into_os_string()
            } else {
                self.url(path).into()
            };
            return self.weightfs(source);
        }
        let directory = path.rsplit_once('/').map_or(path, |(directory, _)| directory);
        let mode = if self.program == Program::Rclone { "off" } else { "full" };
        let mut command = self.command("rclone")?;
        command.args(["mount", ":http:"]).arg(self.site.named("rclone")?).arg("--cache-dir").arg(self.cache.path());
        command.args(["--read-only", "--config", "", "--vfs-cache-mode", mode, "--http-url"]);
        command.arg(self.url(&format!("{directory}/")));
        self.mounted(command, self.site.named("rclone")?)
    }

    /// Mounts a location with weightfs.
    pub fn weightfs(&self, source: impl AsRef<std::ffi::OsStr>) -> anyhow::Result<Mount> {
        let point = self.site.named("weightfs")?;
        let mut command = self.command(self.program.weightfs())?;
        command.arg("-f").arg(source).arg(&point);
        self.mounted(command, point)
    }

    /// Runs a daemon until the mount table shows its mount.
    fn mounted(&self, mut command: Command, point: PathBuf) -> anyhow::Result<Mount> {
        let child = command.spawn().with_context(|| command.get_program().display().to_string())?;
        let mut mount = Mount { point, child };
        while !mounts().any(|mounted| mounted == mount.point) {
            if let Some(status) = mount.child.try_wait()? {
                bail!("the daemon ended without mounting, {status}: {}", self.last_words());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(mount)
    }

    /// The requests since the last call.
    pub fn count(&self) -> anyhow::Result<Count> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).count()
    }

    /// The same, once all processes of the program have ended.
    pub fn count_all(&self) -> anyhow::Result<Count> {
        if !ends_within(Duration::from_secs(5), || family(self.cache.path()).is_empty()) {
            family(self.cache.path()).into_iter().for_each(end);
            bail!("a process did not end within 5 s");
        }
        self.count()
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.site.log()).unwrap_or_default();
        log.lines().last().unwrap_or_default().to_owned()
    }
}

/// The processes whose environment names `cache`. Root sees them all; another user does not see those that forbid it.
pub fn family(cache: &Path) -> Vec<u32> {
    let cache = cache.as_os_str().as_bytes();
    let is_of_it = |environ: Vec<u8>| environ.windows(cache.len()).any(|part| part == cache);
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(is_of_it)).collect()
}

/// A mount that is served by a child process, and perhaps by others that the child has started.
pub struct Mount {
    pub point: PathBuf,
    child: Child,
}

impl Drop for Mount {
    fn drop(&mut self) {
        if mounts().any(|mount| mount == self.point) {
            unmount(&self.point);
        } else {
            end(self.child.id());
        }
        if !ends_within(Duration::from_secs(5), || !matches!(self.child.try_wait(), Ok(None))) {
            end(self.child.id());
            let _ = self.child.wait();
        }
    }
}

/// Waits until `has_ended` returns true, at most as long as `limit`. Returns whether it has.
fn ends_within(limit: Duration, mut has_ended: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !has_ended() {
        if start.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    true
}
