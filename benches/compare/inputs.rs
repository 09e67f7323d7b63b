//! The inputs: models, and the same tensors in the form that each system mounts.
//!
//! They are kept in `.cache/bench/` and made only if they are missing.

use crate::systems::{Mounted, Site, System, run};
use anyhow::{Context, bail};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The sizes of the inputs.
#[derive(Clone, Copy)]
pub struct Size {
    /// Whether the inputs are less than a tenth of the full size.
    pub quick: bool,
    /// Number of tensors of the tiny model.
    pub tiny: u64,
    /// Number of tensors of the file that is only opened.
    pub header: u64,
    layers: u64,
    vocabulary: u64,
}

impl Size {
    pub fn new(quick: bool) -> Self {
        if quick {
            Self { quick, tiny: 10_000, header: 100_000, layers: 6, vocabulary: 16_384 }
        } else {
            Self { quick, tiny: 100_000, header: 1_000_000, layers: 24, vocabulary: 128_256 }
        }
    }
}

/// A directory with one model in the form of every system.
#[derive(Clone)]
pub struct Input(pub PathBuf);

impl Input {
    pub fn model(&self) -> PathBuf {
        self.0.join("model.safetensors")
    }

    pub fn native(&self) -> PathBuf {
        self.0.join("native")
    }

    pub fn squashfs(&self) -> PathBuf {
        self.0.join("model.squashfs")
    }

    pub fn tar(&self) -> PathBuf {
        self.0.join("model.tar")
    }

    pub fn tar_index(&self) -> PathBuf {
        self.0.join("model.tar.index")
    }

    pub fn zip(&self) -> PathBuf {
        self.0.join("model.zip")
    }

    /// The file or directory that a system reads.
    fn source(&self, system: System) -> PathBuf {
        match system {
            System::Native => self.native(),
            System::Weightfs | System::Before | System::User => self.model(),
            System::Squashfuse => self.squashfs(),
            System::Ratarmount => self.tar(),
            System::FuseZip => self.zip(),
        }
    }

    /// Reads the source once, so that it is in the page cache.
    pub fn warm(&self, system: System) -> anyhow::Result<()> {
        warm(&self.source(system))
    }
}

/// Reads a file, or all files of a directory, so that they are in the page cache.
pub fn warm(source: &Path) -> anyhow::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut read = |path: &Path| -> anyhow::Result<()> {
        let mut file = File::open(path)?;
        while file.read(&mut buffer)? > 0 {}
        Ok(())
    };
    if source.is_dir() {
        return std::fs::read_dir(source)?.try_for_each(|entry| read(&entry?.path()));
    }
    read(source)
}

pub struct Inputs {
    /// A Llama-shaped model in BF16; 1.3 GB unless `--quick`.
    pub model: Input,
    /// The same in F16, a dtype that NumPy has. Only weightfs reads it.
    pub half: Input,
    /// Many tensors of 64 bytes each.
    pub tiny: Input,
    /// A file whose header is longer than its data.
    pub header: PathBuf,
}

impl Inputs {
    /// The inputs in `cache`; made if they are missing.
    pub fn ready(cache: &Path, size: Size, site: &Site) -> anyhow::Result<Self> {
        let dir = cache.join(if size.quick { "quick-1" } else { "full-1" });
        let [model, half, tiny] = ["model", "half", "tiny"].map(|name| Input(dir.join(name)));
        let header = dir.join("header.safetensors");
        let need = if size.quick { 1_500_000_000 } else { 9_000_000_000 };
        make_once(&dir, need, |partial| {
            make(&Input(partial.join("model")), &llama(size, "BF16"), site)?;
            std::fs::create_dir(partial.join("half"))?;
            write_model(&Input(partial.join("half")).model(), &llama(size, "F16"), None)?;
            make(&Input(partial.join("tiny")), &tiny_tensors(size.tiny), site)?;
            write_model(&partial.join("header.safetensors"), &tiny_tensors(size.header), None)
        })?;
        Ok(Self { model, half, tiny, header })
    }
}

/// Makes the directory `dir` with `make`, which needs `need` bytes of disk space, unless it exists.
pub fn make_once(dir: &Path, need: u64, make: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    if dir.exists() {
        return Ok(());
    }
    // Renamed when complete, so that an interrupted run leaves no partial inputs.
    let cache = dir.parent().context("no directory for the inputs")?;
    let partial = cache.join("partial");
    if partial.exists() {
        std::fs::remove_dir_all(&partial)?;
    }
    std::fs::create_dir_all(&partial)?;
    let free = nix::sys::statvfs::statvfs(&partial)?;
    let free = free.blocks_available() as u64 * free.fragment_size() as u64;
    let gb = |bytes| bytes as f64 / 1e9;
    if free < need {
        bail!("{}: the inputs need {:.1} GB, only {:.1} GB are free", cache.display(), gb(need), gb(free));
    }
    eprintln!("making inputs of about {:.1} GB in {}", gb(need), dir.display());
    make(&partial)?;
    // Otherwise the disk would still be writing during the first round.
    nix::unistd::sync();
    Ok(std::fs::rename(&partial, dir)?)
}

pub struct Tensor {
    pub name: String,
    dtype: &'static str,
    shape: Vec<u64>,
    pub bytes: u64,
}

pub fn tensor(name: String, dtype: &'static str, width: u64, shape: &[u64]) -> Tensor {
    Tensor { name, dtype, shape: shape.to_vec(), bytes: width * shape.iter().product::<u64>() }
}

/// The tensors of a Llama-shaped model.
fn llama(size: Size, dtype: &'static str) -> Vec<Tensor> {
    const HIDDEN: u64 = 1024;
    const KEYS: u64 = 256;
    const FEED_FORWARD: u64 = 4096;
    let weight = |name: String, shape: &[u64]| tensor(name, dtype, 2, shape);
    let mut tensors = vec![
        weight("model.embed_tokens.weight".into(), &[size.vocabulary, HIDDEN]),
        weight("lm_head.weight".into(), &[size.vocabulary, HIDDEN]),
        weight("model.norm.weight".into(), &[HIDDEN]),
    ];
    for layer in 0..size.layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        for (part, shape) in [
            ("self_attn.q_proj", [HIDDEN, HIDDEN]),
            ("self_attn.k_proj", [KEYS, HIDDEN]),
            ("self_attn.v_proj", [KEYS, HIDDEN]),
            ("self_attn.o_proj", [HIDDEN, HIDDEN]),
            ("mlp.gate_proj", [FEED_FORWARD, HIDDEN]),
            ("mlp.up_proj", [FEED_FORWARD, HIDDEN]),
            ("mlp.down_proj", [HIDDEN, FEED_FORWARD]),
        ] {
            tensors.push(weight(name(part), &shape));
        }
        tensors.push(weight(name("input_layernorm"), &[HIDDEN]));
        tensors.push(weight(name("post_attention_layernorm"), &[HIDDEN]));
    }
    tensors
}

/// Tensors of 64 bytes each.
fn tiny_tensors(count: u64) -> Vec<Tensor> {
    let name = |at: u64| format!("layers.{}.experts.{}.w", at / 1000, at % 1000);
    (0..count).map(|at| tensor(name(at), "F32", 4, &[16])).collect()
}

/// Writes the model, each tensor as a file, and an archive of these files for each peer.
fn make(input: &Input, tensors: &[Tensor], site: &Site) -> anyhow::Result<()> {
    let native = input.native();
    std::fs::create_dir_all(&native)?;
    write_model(&input.model(), tensors, Some(&native))?;
    make_squashfs(input)?;
    let context = |program: &str| format!("making an input with {program}");
    run(Command::new("tar").arg("-cf").arg(input.tar()).arg("-C").arg(&native).arg("."))
        .with_context(|| context("tar"))?;
    run(Command::new("zip").args(["-0", "-q", "-r", "-X"]).arg(input.zip()).arg(".").current_dir(&native))
        .with_context(|| context("zip"))?;
    // The first mount writes the index that later mounts read.
    if let Err(error) = Mounted::new(site, System::Ratarmount, input, &[], Duration::from_secs(120)) {
        eprintln!("ratarmount did not write an index: {error:#}");
    }
    Ok(())
}

/// Makes an archive of the native files for squashfuse, without compression.
pub fn make_squashfs(input: &Input) -> anyhow::Result<()> {
    let mut squashfs = Command::new("mksquashfs");
    squashfs.args([&input.native(), &input.squashfs()]).args(["-noI", "-noId", "-noD", "-noF", "-noX", "-no-xattrs"]);
    run(squashfs.args(["-quiet", "-no-progress"])).context("making an input with mksquashfs")
}

/// Writes a model, and each tensor as a file in `native`, if given.
pub fn write_model(path: &Path, tensors: &[Tensor], native: Option<&Path>) -> anyhow::Result<()> {
    let mut header = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    let mut at = 0;
    for Tensor { name, dtype, shape, bytes } in tensors {
        let end = at + bytes;
        header += &format!(",\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{at},{end}]}}");
        at = end;
    }
    header.push('}');
    // The official writer pads the header with spaces to a multiple of 8 bytes.
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut random = Random(0x5eed);
    let mut values = Vec::new();
    for Tensor { name, bytes, .. } in tensors {
        values.clear();
        // The mask clears a bit of each exponent, so that every BF16, F16 and F32 is below 2.
        values.extend((0..bytes.div_ceil(8)).flat_map(|_| (random.next() & 0xbfff_bfff_bfff_bfff).to_le_bytes()));
        values.truncate(*bytes as usize);
        file.write_all(&values)?;
        if let Some(native) = native {
            std::fs::write(native.join(name), &values)?;
        }
    }
    file.flush()?;
    Ok(())
}

/// A SplitMix64 generator: the same numbers on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}
