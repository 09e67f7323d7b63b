//! The arguments and help text of the commands that do not mount.

use super::value::{parse_bytes, parse_number, parse_size};
use super::{NumbersArgs, RemoteArgs, SourceArg, parse_views, pattern, source, views_help};
use bytesize::ByteSize;
use clap::builder::{NonEmptyStringValueParser, OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use weightfs::view::ShownViews;

const LS_HELP: &str = "\
Examples:
  weightfs ls model.safetensors                          all tensors, in natural order
  weightfs ls model '*.layers.0.*' '*.bias'              tensors whose names match a pattern
  weightfs ls *.safetensors                              the tensors of several models
  weightfs ls --sort size model | head                   the largest tensors
  weightfs ls --totals --depth 3 model                   totals by dtype and by module
  weightfs ls --json model | jq -r '.tensors[].name'     tensor names, from JSON

An argument after the first is a SOURCE if there is a file of that name, otherwise a PATTERN.

OFFSET is the position of the data in the file, in bytes. On a terminal, long names are shortened in
the middle and two lines of totals follow; a pipe or file gets full names and no totals.

Exit status: 0 success, 1 failure or a PATTERN that matches no tensor, 2 usage error.";

/// The arguments of `ls`.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = LS_HELP)]
pub struct LsArgs {
    /// A model file, the index of a sharded model (such as model.safetensors.index.json), a dataset manifest
    /// (dataset_manifest.json), a directory with one or more models, or a URL as for `weightfs mount`
    #[arg(value_parser = source(), value_hint = ValueHint::AnyPath)]
    pub source: SourceArg,

    /// More sources, and patterns: if there are any, only tensors whose full name matches one of these globs are
    /// listed: * matches any characters, ? one character, [a-z] one of a set
    #[arg(value_name = "SOURCE|PATTERN", value_parser = operand(), value_hint = ValueHint::AnyPath)]
    pub more: Vec<LsOperand>,

    /// Sort by name (layers.2 before layers.10), size (largest first) or offset (order of the data in the files)
    #[arg(long, value_name = "KEY", default_value = "name", hide_possible_values = true)]
    pub sort: TensorOrder,

    /// Reverse the order
    #[arg(short, long)]
    pub reverse: bool,

    /// Print totals by dtype and by module instead of tensors
    #[arg(long)]
    pub totals: bool,

    /// List the files of a mount instead of tensors: those in its root, or in the directory that is given after SOURCE
    #[arg(long, conflicts_with = "totals")]
    pub files: bool,

    /// With --files, list all files below the directory, by their paths in a mount
    #[arg(short = 'R', long, requires = "files")]
    pub recursive: bool,

    /// With --files, the text between key and column in the names of a dataset in key-value mode, for samples/
    #[arg(long, value_name = "TEXT", requires = "files", value_parser = NonEmptyStringValueParser::new())]
    pub kv_separator: Option<String>,

    /// Number of leading dotted components of a tensor name that form its module
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_number::<usize>(0..=u32::MAX.into()))]
    pub depth: usize,

    /// Print sizes in bytes and exact counts, instead of rounded numbers
    #[arg(short, long)]
    pub bytes: bool,

    /// Omit the column headings of the list, and its lines of totals
    #[arg(short, long)]
    pub no_headings: bool,

    /// Print one JSON object per model: the tensors as in index.json of a mount, and totals
    #[arg(long)]
    pub json: bool,

    /// List the valid tensors of a damaged file and report the rest, instead of failing
    #[arg(long)]
    pub lenient: bool,

    #[command(flatten)]
    pub remote: RemoteArgs,
}

/// An argument of `ls` after the first.
#[derive(Debug, Clone, PartialEq)]
pub enum LsOperand {
    /// An existing file or directory.
    Source(SourceArg),
    /// A pattern for tensor names.
    Pattern(glob::Pattern),
}

impl LsOperand {
    /// The argument as a path.
    pub fn path(&self) -> &Path {
        match self {
            Self::Source(SourceArg::Path(path)) => path,
            Self::Source(SourceArg::Url(url)) => Path::new(url.as_str()),
            Self::Pattern(pattern) => Path::new(pattern.as_str()),
        }
    }
}

fn operand() -> impl TypedValueParser<Value = LsOperand> {
    OsStringValueParser::new().try_map(|word| match word.to_str() {
        Some(pattern) if !pattern.contains("://") && Path::new(&word).symlink_metadata().is_err() => {
            pattern::parse_pattern(pattern).map(LsOperand::Pattern)
        }
        _ => SourceArg::parse(word).map(LsOperand::Source),
    })
}

/// The order of a list of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TensorOrder {
    /// Natural order of names: numbers by value.
    Name,
    /// The largest first.
    Size,
    /// File by file, in the order of the data.
    Offset,
}

const INSPECT_HELP: &str = "\
Long metadata values are shortened. --all shows every key, --json prints every value in full.

Exit status: 0 success, 1 failure, 2 usage error.";

/// The arguments of `inspect`.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = INSPECT_HELP)]
pub struct InspectArgs {
    /// Model files, indexes of sharded models, dataset manifests, directories with one or more models, or URLs
    #[arg(required = true, value_name = "SOURCE", value_parser = source(), value_hint = ValueHint::AnyPath)]
    pub sources: Vec<SourceArg>,

    /// Show all shards, modules and metadata keys
    #[arg(short, long)]
    pub all: bool,

    /// Print one JSON object per model
    #[arg(long)]
    pub json: bool,

    /// Describe the valid part of a damaged file and report the rest, instead of failing
    #[arg(long)]
    pub lenient: bool,

    #[command(flatten)]
    pub remote: RemoteArgs,
}

const ID_HELP: &str = "\
Two models have the same structural hash if their tensor names, dtypes, shapes, sizes and metadata
are the same; tensor data is not read. The hash and the output are those of weight-inspect. A model
of several files has the hash of the same model in one file.

Exit status: 0 success, 1 failure, 2 usage error.";

/// The arguments of `id`.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = ID_HELP)]
pub struct IdArgs {
    /// Model files, indexes of sharded models, dataset manifests, directories with one or more models, or URLs
    #[arg(required = true, value_name = "SOURCE", value_parser = source(), value_hint = ValueHint::AnyPath)]
    pub sources: Vec<SourceArg>,

    /// Print one JSON object per model
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub remote: RemoteArgs,
}

const DEMO_HELP: &str = "\
Examples:
  weightfs demo && weightfs sample.safetensors     write the model, and mount it on ./sample
  weightfs demo - | head -c 8 | od -t d8           write it to a pipe

The model has random weights in the shape of a small Llama, about 10 MB, which are the same every time.

Exit status: 0 success, 1 failure, 2 usage error.";

/// The arguments of `demo`.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = DEMO_HELP)]
pub struct DemoArgs {
    /// The safetensors file to write; - writes to standard output
    #[arg(default_value = "sample.safetensors", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,

    /// Replace FILE if it exists
    #[arg(long)]
    pub force: bool,
}

const SUMMARY_HELP: &str = "\
The line is FORMAT,VERSION,TENSORS,METADATA,HASH. VERSION is N/A for safetensors. TENSORS and
METADATA are the numbers of tensors and of metadata keys. HASH is the structural hash that
`weightfs id` prints. If there are several models, the file is added as the last field.

Exit status: 0 success, 1 failure, 2 usage error.";

/// The arguments of `summary`.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = SUMMARY_HELP)]
pub struct SummaryArgs {
    /// Model files, indexes of sharded models, dataset manifests, directories with one or more models, or URLs
    #[arg(required = true, value_name = "SOURCE", value_parser = source(), value_hint = ValueHint::AnyPath)]
    pub sources: Vec<SourceArg>,

    #[command(flatten)]
    pub remote: RemoteArgs,
}

const CHECK_HELP: &str = "\
Errors: a header that the official reader rejects, with every problem in it; a duplicate tensor
name; an index or manifest that does not match the files; a modelspec.hash_sha256 or sshs_model_hash
that does not match the data; NaN values; data that ends in 1 MiB of zeros or more as an unfinished
download does, from the middle of a tensor on or in most of the model; data that is all zeros.

Warnings: a tensor that is not aligned to its element size; deviations from the format that readers
accept; dtypes and header sizes that some readers reject; an index with duplicate tensors or wrong
totals; metadata that violates the rules of ModelSpec or sd-scripts; infinite values. In GGUF files
also: metadata keys that llama.cpp and other programs need but that are missing or have another
type; token lists of different lengths; missing padding, and bytes after the last tensor.

Notes: tensors whose bytes are all zero, except single values. Many models have some: biases, and
matrices that are zero before training. Notes do not change the exit status.

If the metadata contains a hash, all data is read to verify it. --values reads all data and looks
for NaN, infinite values and zeros.

Exit status: 0 no errors, 1 errors, 2 usage error, or a file that cannot be read or changed during
the check, or output that cannot be printed.";

/// The arguments of `check`.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = CHECK_HELP)]
pub struct CheckArgs {
    /// Model files, indexes of sharded models, dataset manifests, directories with one or more models, or URLs
    #[arg(required = true, value_name = "SOURCE", value_parser = source(), value_hint = ValueHint::AnyPath)]
    pub sources: Vec<SourceArg>,

    /// Read all data and look for NaN, infinite values, zeros in place of data, and unusable scales of quantized
    /// weights
    #[arg(long)]
    pub values: bool,

    /// Read only headers; do not verify hashes
    #[arg(long, conflicts_with = "values")]
    pub no_data: bool,

    /// Also exit with status 1 if there are only warnings
    #[arg(long)]
    pub fail_on_warning: bool,

    /// Print only files that cannot be read; the exit status reports the findings
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,

    /// Print one JSON object per model
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub remote: RemoteArgs,
}

const DIFF_HELP: &str = "\
Examples:
  weightfs diff base.safetensors tuned.safetensors       compare tensor names, layout and metadata
  weightfs diff --data base tuned                        compare the data of the tensors too
  weightfs diff --values original quantized              the quantization error of each tensor
  weightfs diff --json --data a b | jq '.data.different[].max_abs'

Tensors of the same shape and different dtypes are compared by their values, converted to float32 or
wider without rounding. Values of different shapes are not compared, and the report says so.
A relative difference is the absolute difference divided by the larger magnitude of the two values.
Data that both models share on disk (hard links, or copies by cp --reflink) is not read.

--values compares the values of two models, whatever their formats, dtypes and quantization. Quantized
weights are dequantized, under their logical names and shapes, and their scales and other companions
are left out. Names are not translated between formats. The report has a line for each tensor whose
values differ, the largest relative error first, and a line for all of these tensors together.
RMS is the root mean square of B - A, and REL RMS is RMS divided by the root mean square of A. MAX ABS is
the largest magnitude of B - A, and COSINE is the cosine of the angle between A and B. NaN and infinite
values are counted, and left out of the errors. Layout, dtypes and metadata do not count as differences.

Exit status: 0 no differences, 1 differences, 2 failure or usage error.";

/// The arguments of `diff`.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = DIFF_HELP)]
pub struct DiffArgs {
    /// Old model, or directory of models; any SOURCE that `weightfs mount` accepts
    #[arg(value_parser = source(), value_hint = ValueHint::AnyPath)]
    pub a: SourceArg,

    /// New model, or directory of models
    #[arg(value_parser = source(), value_hint = ValueHint::AnyPath)]
    pub b: SourceArg,

    /// Compare the data too: report which tensors differ, in how many bits, and by how much
    #[arg(long)]
    pub data: bool,

    /// Compare dequantized values instead of what is stored, and report the errors of each tensor of B
    #[arg(long)]
    pub values: bool,

    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,

    /// Print Markdown
    #[arg(long)]
    pub markdown: bool,

    /// Compare the valid tensors of damaged files and report the rest, instead of failing
    #[arg(long)]
    pub lenient: bool,

    #[command(flatten)]
    pub remote: RemoteArgs,
}

const METADATA_HELP: &str = "\
Examples:
  weightfs metadata get model.safetensors                all keys and values
  weightfs metadata set model.safetensors modelspec.author=me license=mit
  weightfs metadata set model.safetensors notes <notes.txt
  weightfs metadata remove model.safetensors ss_dataset_dirs
  weightfs metadata clear model.safetensors -o clean.safetensors
  weightfs metadata set model.gguf general.file_type=15 my.note=hello 'my.sizes:u32[]=[1, 2]'
  weightfs metadata get model.gguf tokenizer.ggml.tokens | sed '3s/.*/\"<eos>\"/' |
    weightfs metadata set model.gguf tokenizer.ggml.tokens

In safetensors, all values are strings. In GGUF, an existing key keeps its type. A new key gets the
type that ggml defines for it, otherwise string. KEY:TYPE=VALUE gives another type: u8, i8, u16,
i16, u32, i32, u64, i64, f32, f64, bool or string, or an array of one of them, such as u32[]. A new
key that contains a colon needs its type after that: a:b:string=VALUE. An array is a JSON array, or
one JSON value per line as `get` prints it. All other keys stay as they are, byte for byte. In a
GGUF file, `clear` needs -o, because no program can load a model without its metadata. A split of a
GGUF model is changed alone: the first one has the metadata of the model.

The changed file replaces the old one only when it is complete and synced to disk, so an interrupted
change leaves the old file intact. Owner, permissions and extended attributes are kept. The data is
shared with the old file, not copied, if the file system supports it (reflinks on Btrfs and XFS) and
if the position of the data in the file allows it: always in safetensors files, and in GGUF files if
the size of the header, rounded up to a multiple of 32 bytes, does not change.

Exit status: 0 success, 1 failure, 2 usage error.";

/// The arguments of `metadata`.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = METADATA_HELP)]
pub struct MetadataArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub action: MetadataAction,
}

/// A subcommand of `metadata`.
#[derive(Subcommand, Debug, PartialEq)]
pub enum MetadataAction {
    /// Print the value of one KEY, or KEY=VALUE lines; lines begin with the path if there are several models
    Get {
        /// Any SOURCE that `weightfs mount` accepts
        #[arg(value_parser = source(), value_hint = ValueHint::AnyPath)]
        source: SourceArg,
        /// Keys to print [default: all]
        #[arg(value_name = "KEY")]
        keys: Vec<String>,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        remote: RemoteArgs,
    },
    /// Set keys to values
    Set {
        /// A .safetensors or .gguf file
        file: PathBuf,
        /// Key and value, in GGUF also with a type as KEY:TYPE=VALUE; without =, the value is read from standard input
        #[arg(value_name = "KEY[=VALUE]", required = true, value_parser = parse_pair)]
        pairs: Vec<MetadataPair>,
        #[command(flatten)]
        options: EditOptions,
    },
    /// Remove keys
    Remove {
        /// A .safetensors or .gguf file
        file: PathBuf,
        /// Keys to remove; all must exist
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<String>,
        #[command(flatten)]
        options: EditOptions,
    },
    /// Remove all metadata; with a .gguf file, only in a copy (-o)
    Clear {
        /// A .safetensors or .gguf file
        file: PathBuf,
        #[command(flatten)]
        options: EditOptions,
    },
}

/// A metadata key and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct MetadataPair {
    /// The key; not empty.
    pub key: String,
    /// The value; `None` if it is read from standard input.
    pub value: Option<String>,
}

/// Parses `KEY=VALUE`, split at the first `=`, or a `KEY` alone.
fn parse_pair(word: &str) -> Result<MetadataPair, String> {
    let (key, value) = match word.split_once('=') {
        Some((key, value)) => (key, Some(value.to_owned())),
        None => (word, None),
    };
    if key.is_empty() {
        return Err("the key is empty; write KEY=VALUE".into());
    }
    Ok(MetadataPair { key: key.to_owned(), value })
}

/// The options of the subcommands that change a file.
#[derive(Args, Debug, PartialEq)]
pub struct EditOptions {
    /// Write the changed file to OUT and leave FILE unchanged; - is standard output
    #[arg(short, long, value_name = "OUT")]
    pub out: Option<PathBuf>,

    /// Print the changes, but write nothing
    #[arg(long)]
    pub dry_run: bool,
}

const EXPORT_HELP: &str = "\
Examples:
  weightfs export model model.safetensors                write a sharded model as one file
  weightfs export --shard-size 5GB model.safetensors parts
  weightfs export --only '*.layers.0.*' model.safetensors layer0.safetensors
  weightfs export --clean model.safetensors - | ssh host 'cat >model.safetensors'
  weightfs export --dtype bf16 model.gguf model.safetensors   dequantize
  weightfs export --dtype bf16 DeepSeek-V3 bf16.safetensors   also FP8, MXFP4, NVFP4, GPTQ, AWQ, ...
  weightfs export model-00001-of-00003.gguf whole.gguf

The format is that of the source, unless --format, --dtype or the suffix of OUT (.safetensors or
.gguf) names another one. A safetensors file can hold quantized tensors of GGUF only if --dtype
converts them.

The output gets its name only when it is complete and synced to disk, so an interrupted export
leaves an existing file intact. A new file gets the permissions of the source, less the umask.
Metadata is kept, except hashes of data (modelspec.hash_*, sshs_*) that is not what is written.

Exit status: 0 success, 1 failure, 2 usage error.";

/// The arguments of `export`.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = EXPORT_HELP)]
pub struct ExportArgs {
    /// A model file, the index of a sharded model (such as model.safetensors.index.json), a dataset manifest
    /// (dataset_manifest.json), a directory with one or more models, or a URL as for `weightfs mount`
    #[arg(value_parser = source(), value_hint = ValueHint::AnyPath)]
    pub source: SourceArg,

    /// File to write, existing directory to write it to, or - for standard output; for several models or --shard-size,
    /// a new or empty directory
    pub out: PathBuf,

    /// Export only tensors whose full name matches a glob: * matches any characters, ? one character, [a-z] one of a
    /// set; can be repeated
    #[arg(long, value_name = "PATTERN", value_parser = pattern::parse_pattern)]
    pub only: Vec<glob::Pattern>,

    /// Convert floating-point and quantized tensors to bf16 or f32, rounded to nearest even, and write safetensors;
    /// integers, booleans and complex numbers stay as they are
    #[arg(long, value_name = "DTYPE", hide_possible_values = true)]
    pub dtype: Option<FloatArg>,

    /// With --dtype, convert the stored numbers of quantized weights instead of dequantizing them
    #[arg(long, requires = "dtype")]
    pub stored: bool,

    /// Write this format: safetensors or gguf
    #[arg(long, value_name = "FORMAT", hide_possible_values = true)]
    pub format: Option<FormatArg>,

    /// Omit the metadata
    #[arg(long)]
    pub clean: bool,

    /// Align the start of the data to BYTES, a power of two from 8 to 67108864 [default: 4096]
    #[arg(long, value_name = "BYTES", value_parser = parse_align)]
    pub align: Option<u64>,

    /// Write shards of at most SIZE of data each, such as 5GB, and their index; a larger tensor gets its own shard
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub shard_size: Option<ByteSize>,

    /// Export the valid tensors of a damaged file and report the rest, instead of failing
    #[arg(long)]
    pub lenient: bool,

    #[command(flatten)]
    pub remote: RemoteArgs,
}

const CAT_HELP: &str = "\
Examples:
  weightfs cat model.safetensors npy/lm_head.weight.npy >lm_head.npy
  weightfs cat model.safetensors index.json | jq '.tensors[].name'
  weightfs cat --offset 1MB --length 64 model.safetensors tensors/lm_head.weight | hexdump -C
  weightfs cat hf://org/model stats/model.norm.weight.json

`weightfs ls --files SOURCE` lists the files. All files are found before anything is written.";

/// The arguments of `cat`.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = CAT_HELP)]
pub struct CatArgs {
    /// A model file, the index of a sharded model (such as model.safetensors.index.json), a dataset manifest
    /// (dataset_manifest.json), a directory with one or more models, or a URL as for `weightfs mount`
    #[arg(value_parser = source(), value_hint = ValueHint::AnyPath)]
    pub source: SourceArg,

    /// Files, by their paths in a mount, such as tensors/lm_head.weight
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::Other)]
    pub paths: Vec<PathBuf>,

    /// Skip this many bytes of the file, such as 4096 or 1MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub offset: Option<ByteSize>,

    /// Write at most this many bytes of the file
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub length: Option<ByteSize>,

    #[command(flatten)]
    pub numbers: NumbersArgs,

    /// Write files of the valid tensors of a damaged model, instead of failing
    #[arg(long)]
    pub lenient: bool,

    #[command(flatten)]
    pub remote: RemoteArgs,
}

const SERVE_HELP: &str = "\
Examples:
  weightfs serve model.safetensors                      pages for a browser on this machine
  weightfs serve hf://org/model --port 8000             a model of the Hugging Face Hub
  curl -r 0-1023 http://127.0.0.1:8411/tensors/lm_head.weight
  weightfs serve models --address 0.0.0.0               other machines need the token that is printed

Like a mount, the files are for the user who has started the server, and for root. Everybody else needs a token.
Ctrl-C stops the server after the transfers that are running; a second Ctrl-C stops it at once.";

/// The arguments of `serve`.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = SERVE_HELP)]
pub struct ServeArgs {
    /// A model file, the index of a sharded model (such as model.safetensors.index.json), a dataset manifest
    /// (dataset_manifest.json), a directory with one or more models, or a URL as for `weightfs mount`
    #[arg(value_parser = source(), value_hint = ValueHint::AnyPath)]
    pub source: SourceArg,

    /// Port; 0 for any [default: 8411, or the next one that is free]
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,

    /// IP address to listen on; other machines reach 0.0.0.0 or [::], and need a token
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub address: IpAddr,

    /// A name of this machine by which browsers may address the server, besides IP addresses and localhost
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,

    /// Also admit clients with the token in this file [default: none on this machine; a random one on other addresses]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub client_token: Option<PathBuf>,

    // The help text lists the names of all views.
    #[arg(long, value_name = "VIEW[,VIEW...]", value_parser = parse_views, help = views_help())]
    pub views: Option<ShownViews>,

    #[command(flatten)]
    pub numbers: NumbersArgs,

    /// Serve the valid tensors of a damaged model, instead of failing
    #[arg(long)]
    pub lenient: bool,

    /// Run without a sandbox [default: the server can open SOURCE and no other file]
    #[arg(long)]
    pub no_sandbox: bool,

    /// Append messages to FILE [default: standard error]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub log_file: Option<PathBuf>,

    /// Log informational messages; the environment variable RUST_LOG overrides the log level
    #[arg(short, long)]
    pub verbose: bool,

    #[command(flatten)]
    pub remote: RemoteArgs,
}

const CP_HELP: &str = "\
Examples:
  weightfs cp model.safetensors npy arrays               all arrays, to arrays/npy
  weightfs cp model.safetensors tensors/lm_head.weight header.json .
  weightfs cp hf://org/model export/model-bf16.safetensors /data

DIR is created if it is missing. A file that exists is replaced only with --force. While files are
copied, DIR has a directory .weightfs-cp with unfinished files and a journal of what is on the disk.
After an interruption, the same command continues from the last journal entry, unless the source has
changed. Files of a URL (from the cache) and links in a directory of models are copied again.";

/// The arguments of `cp`.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = CP_HELP, override_usage = "weightfs cp [OPTIONS] SOURCE PATH... DIR")]
pub struct CpArgs {
    /// A model file, the index of a sharded model (such as model.safetensors.index.json), a dataset manifest
    /// (dataset_manifest.json), a directory with one or more models, or a URL as for `weightfs mount`
    #[arg(value_parser = source(), value_hint = ValueHint::AnyPath)]
    pub source: SourceArg,

    /// Files and directories, by their paths in a mount, and the directory DIR to copy them to
    // `read` checks that there are two: clap would count those after an option anew.
    #[arg(required = true, num_args = 1.., value_names = ["PATH", "DIR"], value_hint = ValueHint::DirPath)]
    pub paths: Vec<PathBuf>,

    /// Replace files that exist
    #[arg(short, long)]
    pub force: bool,

    #[command(flatten)]
    pub numbers: NumbersArgs,

    /// Copy files of the valid tensors of a damaged model, instead of failing
    #[arg(long)]
    pub lenient: bool,

    #[command(flatten)]
    pub remote: RemoteArgs,
}

/// The dtypes of `export --dtype`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FloatArg {
    /// bfloat16.
    Bf16,
    /// float32.
    F32,
}

/// The formats of `export --format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// One or several safetensors files.
    Safetensors,
    /// A GGUF file.
    Gguf,
}

impl FormatArg {
    /// The suffix of its files.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Safetensors => ".safetensors",
            Self::Gguf => ".gguf",
        }
    }
}

/// The allowed alignments in bytes: from 8, which the official writer uses, to 64 MiB, more than a huge page of 2 MiB.
const ALIGN: RangeInclusive<u64> = 8..=1 << 26;

fn parse_align(text: &str) -> Result<u64, String> {
    let align = text.parse().ok().filter(|align: &u64| align.is_power_of_two() && ALIGN.contains(align));
    align.ok_or_else(|| format!("not a power of two from {} to {}", ALIGN.start(), ALIGN.end()))
}

const STATUS_HELP: &str = "\
SERVED is how many bytes readers have received. FETCHED, REQUESTS and SPEED describe what a mount of a
URL has fetched since it was mounted. HITS is the share of the bytes read that were
available without waiting. A mount whose daemon has ended is dead; `weightfs umount` removes it.

Exit status: 0 success, 1 failure, 2 usage error.";

/// The arguments of `status`.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = STATUS_HELP)]
pub struct StatusArgs {
    /// Print a JSON object with exact numbers
    #[arg(long)]
    pub json: bool,
}

const DOCTOR_HELP: &str = "\
Examples:
  weightfs doctor                          check what mounting needs on this machine
  weightfs doctor model.safetensors        also open a model
  weightfs doctor hf://org/model           also check the network, the server and the credentials

A failure prevents mounting. A warning is about something that is slower or limited, or that only some users can do.
Credentials are never printed, only the place where they were found.

Exit status: 0 nothing prevents mounting, 1 something does, 2 usage error.";

/// The arguments of `doctor`.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = DOCTOR_HELP)]
pub struct DoctorArgs {
    /// A source to open, as for `weightfs mount`
    #[arg(value_parser = source(), value_hint = ValueHint::AnyPath)]
    pub source: Option<SourceArg>,

    /// Print a JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub remote: RemoteArgs,
}
