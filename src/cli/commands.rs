//! The commands, their arguments and their help text.

use super::pattern::parse_pattern;
use super::source::{
    NumbersArgs, OpenArgs, RemoteArgs, ServingArgs, SourceArg, SourceArgs, SourcesArgs, ViewsArgs, source,
};
use super::value::{
    parse_age, parse_align, parse_bytes, parse_group, parse_number, parse_size, parse_umask, parse_user,
};
use bytesize::ByteSize;
use clap::builder::{NonEmptyStringValueParser, OsStringValueParser, PossibleValue, TypedValueParser};
use clap::{ArgGroup, Args, Subcommand, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use weightfs::format;
use weightfs::inspect::check::is_sum;
use weightfs::parts::WorkPart;

/// A command and its arguments.
#[derive(Subcommand, Debug, PartialEq)]
pub enum Command {
    /// Mount a model (same as `weightfs SOURCE`)
    Mount(MountArgs),
    /// Unmount a model
    Umount(UmountArgs),
    /// List the mounts, what they have served and fetched, and the size of the cache
    Status(StatusArgs),
    /// Find out what prevents mounting, and how to fix it
    Doctor(DoctorArgs),
    /// Write a small model to try weightfs with
    Demo(DemoArgs),
    /// Serve the files of a mount and pages about them over HTTP, without mounting
    Serve(ServeArgs),
    /// List tensors
    Ls(LsArgs),
    /// Print the shape, the statistics and some values of a tensor
    Show(ShowArgs),
    /// Print the statistics of the values of all tensors
    Stats(StatsArgs),
    /// Print the SHA-256 of the bytes of all tensors, as SHA256SUMS in a mount
    Sums(SumsArgs),
    /// Join the parts that stats, sums, check, diff and export have printed with --part
    Combine(CombineArgs),
    /// Write files of a mount to standard output, without mounting
    Cat(CatArgs),
    /// Copy files of a mount to a directory, without mounting
    Cp(CpArgs),
    /// Describe models: format, size, dtypes, modules, shards and metadata
    Inspect(InspectArgs),
    /// Print the structural hash of a model
    Id(IdArgs),
    /// Print the structural hash and counts in one line
    Summary(SummaryArgs),
    /// Check models for errors
    Check(CheckArgs),
    /// Compare two models
    Diff(DiffArgs),
    /// Read or change the metadata of a file
    Metadata(MetadataArgs),
    /// Write a model to one or more files, in its own format or as safetensors
    Export(ExportArgs),
    /// Write Kerchunk references, with which Zarr, xarray and Dask read the tensors from the files
    References(ReferencesArgs),
    /// List or remove what was fetched from remote sources
    Cache(CacheArgs),
    /// Write the manual page and shell completions below DIR
    #[command(hide = true)]
    WriteDocs {
        /// Installation prefix; files are written to DIR/share
        dir: PathBuf,
    },
    /// Print what may complete the last of WORDS; for the completions of shells
    #[command(hide = true)]
    CompleteWords {
        /// The arguments up to the cursor
        #[arg(last = true, value_name = "WORDS")]
        words: Vec<OsString>,
    },
}

/// Words that may be meant for a command.
pub(super) const MISTAKEN: [(&str, &[&str]); 21] = [
    ("umount", &["unmount", "eject", "detach"]),
    ("status", &["mounts", "mounted"]),
    ("doctor", &["diagnose", "troubleshoot"]),
    ("demo", &["sample", "example"]),
    ("serve", &["http", "web", "browse", "server"]),
    ("ls", &["list", "tensors", "names"]),
    ("cat", &["print", "dump"]),
    ("cp", &["copy", "extract"]),
    ("show", &["values", "peek", "view"]),
    ("stats", &["statistics", "histogram"]),
    ("inspect", &["info", "describe", "stat"]),
    ("id", &["hash", "fingerprint"]),
    ("summary", &["summarize", "summarise"]),
    ("check", &["verify", "validate", "lint", "test"]),
    ("diff", &["compare", "cmp"]),
    ("metadata", &["meta", "get", "set", "remove", "clear"]),
    ("export", &["convert", "save", "merge"]),
    ("references", &["refs", "kerchunk", "zarr"]),
    ("cache", &["prune", "purge"]),
    ("help", &["man", "usage"]),
    ("--version", &["version"]),
];

impl Command {
    /// The fault of arguments that clap does not check.
    pub(super) fn mistake(&self) -> Option<&'static str> {
        match self {
            Self::Cp(args) if args.paths.len() < 2 => {
                Some("cp needs SOURCE, at least one PATH, and DIR or FILE (see --help)")
            }
            Self::Cat(args) if args.paths.len() > 1 && (args.offset.is_some() || args.length.is_some()) => {
                Some("--offset and --length are for a single PATH")
            }
            Self::Mount(args) if args.mountpoint.as_deref().is_some_and(is_model_file) => Some(SEVERAL_SOURCES),
            _ => None,
        }
    }

    /// The exit code of a failure. For `check` and `diff`, 1 is a result.
    pub(super) fn failure(&self) -> u8 {
        if matches!(self, Self::Check(_) | Self::Diff(_)) { 2 } else { 1 }
    }
}

/// The remedy for a mount of several files.
pub const SEVERAL_SOURCES: &str =
    "a mount has one SOURCE; name the index of the model, or the directory that holds its files";

/// Whether a mount point is a file with the suffix of a model: the shell has expanded `model-*.safetensors`.
fn is_model_file(path: &Path) -> bool {
    path.file_name().is_some_and(|name| format::format_stem(name).is_some()) && path.is_file()
}

#[derive(Args, Debug, PartialEq)]
pub struct MountArgs {
    #[command(flatten)]
    pub input: SourceArgs,

    /// Empty directory to mount on [default: ./NAME, named after SOURCE; created if missing, then removed at unmount];
    /// or /dev/fd/N, an open /dev/fuse that the caller has mounted
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: Option<PathBuf>,

    /// Run in the foreground; Ctrl-C unmounts
    #[arg(short, long)]
    pub foreground: bool,

    /// Mount options as in fstab: long options without the dashes, or options of mount(8)
    // `expand_options` replaces them before clap parses the command line. This field only provides the help text.
    #[arg(short, value_name = "OPT[,OPT...]")]
    options: Vec<String>,

    #[command(flatten)]
    pub views: ViewsArgs,

    /// Allow other users to read what SOURCE lets them read; the directories above SOURCE do not count
    #[arg(long, conflicts_with = "allow_root")]
    pub allow_other: bool,

    /// Allow root to access the mount
    #[arg(long)]
    pub allow_root: bool,

    /// Owner of all files, as a name or number [default: owner of SOURCE]
    #[arg(long, value_name = "USER", value_parser = parse_user, value_hint = ValueHint::Username)]
    pub uid: Option<u32>,

    /// Group of all files, as a name or number [default: group of SOURCE]
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    pub gid: Option<u32>,

    /// Permission bits to remove, in octal [default: 0]
    #[arg(long, value_name = "MASK", value_parser = parse_umask)]
    pub umask: Option<u16>,

    /// Name of the source in /proc/mounts [default: absolute path of SOURCE]
    #[arg(long, value_name = "NAME")]
    pub fsname: Option<String>,

    /// Maximum size of a read request of the kernel, in bytes [default: limit of the kernel, 1 MiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_number::<u32>(0..=u32::MAX.into()))]
    pub max_read: Option<u32>,

    /// Allow a MOUNTPOINT that is not empty; the mount hides its contents
    #[arg(long)]
    pub nonempty: bool,

    /// Bypass the page cache of the mount; faster for data that is read once, in large blocks
    #[arg(long)]
    pub direct_io: bool,

    /// Number of threads that serve requests, 1 to 256 [default: one per core, at least 2 and at most 8]
    #[arg(long, value_name = "N", value_parser = parse_number::<u16>(1..=256))]
    pub threads: Option<u16>,

    /// Unmount even if the daemon is killed, so that no dead mount is left behind
    #[arg(long)]
    pub auto_unmount: bool,

    /// Unmount when the other end of the pipe or socket FD is closed, for instance because the process that holds it
    /// has ended. Files that are open stay readable, unless MOUNTPOINT is /dev/fd/N: then the daemon ends at once
    #[arg(long, value_name = "FD", value_parser = parse_number::<i32>(0..=i32::MAX as u64))]
    pub while_open: Option<i32>,

    /// Remove the directory MOUNTPOINT after unmounting, or if mounting on it fails
    #[arg(long, requires = "mountpoint")]
    pub rmdir: bool,

    #[command(flatten)]
    pub serving: ServingArgs,

    /// Print nothing when the mount is ready
    #[arg(short, long, overrides_with = "quiet")]
    pub quiet: bool,

    /// Make all checks, but do not mount (mount(8)'s -f)
    #[arg(long, hide = true)]
    pub fake: bool,

    /// Keep a mount as it is (mount(8)'s `-o remount`); the value is the long options to compare with those of the
    /// mount
    #[arg(long, hide = true, value_name = "OPTIONS", requires = "mountpoint")]
    pub remount: Option<String>,
}

#[derive(Args, Debug, PartialEq)]
pub struct UmountArgs {
    /// Mount points
    #[arg(required_unless_present = "all", value_name = "MOUNTPOINT")]
    pub mountpoints: Vec<PathBuf>,

    /// Unmount every weightfs mount of this user; root unmounts those of all users
    #[arg(short, long, conflicts_with = "mountpoints")]
    pub all: bool,

    /// Detach the mount now, even if files are in use; open files stay readable
    #[arg(short, long)]
    pub lazy: bool,
}

const LS_HELP: &str = "\
Examples:
  weightfs ls model.safetensors                          all tensors, in natural order
  weightfs ls model '*.layers.0.*' '*.bias'              tensors whose names match a pattern
  weightfs ls *.safetensors                              the tensors of several models
  weightfs ls --sort size model | head                   the largest tensors
  weightfs ls --sort dtype,shape,-name model             by dtype, then by shape, then by name from the end
  weightfs ls --totals --depth 3 model                   totals by dtype and by module
  weightfs ls --json model | jq -r '.tensors[].name'     tensor names, from JSON

An argument after the first is a SOURCE if there is a file of that name, otherwise a PATTERN.

OFFSET is the position of the data in the file, in bytes. On a terminal, long names are shortened in
the middle, two lines of totals follow, and --totals has bars; a pipe or file gets full names only.

Exit status: 0 success, 1 failure or a PATTERN that matches no tensor, 2 usage error.";

#[derive(Args, Debug, PartialEq)]
#[command(after_help = LS_HELP)]
pub struct LsArgs {
    #[command(flatten)]
    pub input: SourceArgs,

    /// More sources, and patterns: if there are any, only tensors whose full name matches one of these globs are
    /// listed: * matches any characters, ? one character, [a-z] one of a set
    #[arg(value_name = "SOURCE|PATTERN", value_parser = operand(), value_hint = ValueHint::AnyPath)]
    pub more: Vec<LsOperand>,

    /// Sort by name (layers.2 before layers.10), dtype, shape, size (largest first) or offset (order of the data in the
    /// files), or by several of these: tensors that are equal by the first are sorted by the second. A - before a key
    /// reverses it. The default is name
    #[arg(long, value_name = "KEY[,KEY...]", default_value = "name", hide_default_value = true, value_delimiter = ',')]
    #[arg(allow_hyphen_values = true)]
    pub sort: Vec<SortKey>,

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
            parse_pattern(pattern).map(LsOperand::Pattern)
        }
        _ => SourceArg::parse(word).map(LsOperand::Source),
    })
}

/// An order, and whether it is reversed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SortKey {
    pub order: TensorOrder,
    pub reversed: bool,
    /// What the user types.
    name: &'static str,
}

impl SortKey {
    const ALL: [Self; 10] = [
        Self { order: TensorOrder::Name, reversed: false, name: "name" },
        Self { order: TensorOrder::Dtype, reversed: false, name: "dtype" },
        Self { order: TensorOrder::Shape, reversed: false, name: "shape" },
        Self { order: TensorOrder::Size, reversed: false, name: "size" },
        Self { order: TensorOrder::Offset, reversed: false, name: "offset" },
        Self { order: TensorOrder::Name, reversed: true, name: "-name" },
        Self { order: TensorOrder::Dtype, reversed: true, name: "-dtype" },
        Self { order: TensorOrder::Shape, reversed: true, name: "-shape" },
        Self { order: TensorOrder::Size, reversed: true, name: "-size" },
        Self { order: TensorOrder::Offset, reversed: true, name: "-offset" },
    ];
}

impl ValueEnum for SortKey {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name).hide(self.reversed))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorOrder {
    /// Natural order of names: numbers by value.
    Name,
    /// Natural order of the names of dtypes.
    Dtype,
    /// Dimension by dimension, outermost first.
    Shape,
    /// The largest first.
    Size,
    /// File by file, in the order of the data.
    Offset,
}

const INSPECT_HELP: &str = "\
The first line says what the model is: its network, if the metadata or config.json beside the model
names it, the number of parameters, the quantization or dtype, and the size. On a terminal, bars show
the shares of dtypes and modules.

Long metadata values are shortened. --all shows every key, --json prints every value in full.

Exit status: 0 success, 1 failure, 2 usage error.";

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

    #[command(flatten)]
    pub open: OpenArgs,
}

const ID_HELP: &str = "\
Two models have the same structural hash if their tensor names, dtypes, shapes, sizes and metadata
are the same; tensor data is not read. The hash and the output are those of weight-inspect. A model
of several files has the hash of the same model in one file.

Exit status: 0 success, 1 failure, 2 usage error.";

#[derive(Args, Debug, PartialEq)]
#[command(after_help = ID_HELP)]
pub struct IdArgs {
    #[command(flatten)]
    pub input: SourcesArgs,

    /// Print one JSON object per model
    #[arg(long)]
    pub json: bool,
}

const DEMO_HELP: &str = "\
Examples:
  weightfs demo && weightfs sample.safetensors     write the model, and mount it on ./sample
  weightfs demo - | head -c 8 | od -t d8           write it to a pipe

The model has random weights in the shape of a small Llama, about 10 MB, which are the same every time.

Exit status: 0 success, 1 failure, 2 usage error.";

#[derive(Args, Debug, PartialEq)]
#[command(after_help = DEMO_HELP)]
pub struct DemoArgs {
    /// The safetensors file to write; - writes to standard output
    #[arg(default_value = "sample.safetensors", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,

    /// Replace FILE if it exists
    #[arg(short, long)]
    pub force: bool,
}

const SUMMARY_HELP: &str = "\
The line is FORMAT,VERSION,TENSORS,METADATA,HASH. VERSION is N/A for safetensors. TENSORS and
METADATA are the numbers of tensors and of metadata keys. HASH is the structural hash that
`weightfs id` prints. If there are several models, the file is added as the last field.

Exit status: 0 success, 1 failure, 2 usage error.";

#[derive(Args, Debug, PartialEq)]
#[command(after_help = SUMMARY_HELP)]
pub struct SummaryArgs {
    #[command(flatten)]
    pub input: SourcesArgs,
}

const CHECK_HELP: &str = "\
Examples:
  weightfs check model.safetensors                       headers, and hashes that are known
  weightfs check --values hf://org/model                 also NaN, infinite values and zeros
  weightfs check --like model checkpoint.pt              why load_state_dict fails

Errors: a header that the official reader rejects, with every problem in it; a duplicate tensor
name; an index or manifest that does not match the files; a modelspec.hash_sha256 or sshs_model_hash
that does not match the data; a file that does not match its SHA-256; NaN values; data that ends in 1 MiB of zeros or more as an unfinished
download does, from the middle of a tensor on or in most of the model; data that is all zeros.

Warnings: a tensor that is not aligned to its element size; deviations from the format that readers
accept; dtypes and header sizes that some readers reject; an index with duplicate tensors or wrong
totals; metadata that violates the rules of ModelSpec or sd-scripts; infinite values. In GGUF files
also: metadata keys that llama.cpp and other programs need but that are missing or have another
type; token lists of different lengths; missing padding, and bytes after the last tensor.

Notes: tensors whose bytes are all zero, except single values. Many models have some: biases, and
matrices that are zero before training. Notes do not change the exit status.

If a hash is known, all data is read to verify it: a hash in the metadata, --sha256, a line of a file
SHA256SUMS beside the model, and the name of a file in the cache of the Hugging Face Hub or in a store
of Ollama. --values reads all data and looks for NaN, infinite values and zeros.

--like adds to this what load_state_dict of PyTorch would say if REFERENCE were the state dict of the
program: tensors that are missing, that are unexpected, or that have another shape are errors. If a
prefix of the names, such as that of DataParallel or torch.compile, explains most of it, the report
names it, with the command that changes it, and then what still differs. Other dtypes are notes, and so
is a lm_head.weight that only one side has if config.json ties it to the embedding: from_pretrained
loads it, load_state_dict only with strict=False. Quantized weights have their logical names and
shapes. Names are not translated between formats.

Exit status: 0 no errors, 1 errors, 2 usage error, or a file that cannot be read or changed during
the check, or output that cannot be printed.";

#[derive(Args, Debug, PartialEq)]
#[command(after_help = CHECK_HELP)]
pub struct CheckArgs {
    #[command(flatten)]
    pub input: SourcesArgs,

    /// Read all data and look for NaN, infinite values, zeros in place of data, and unusable scales of quantized
    /// weights
    #[arg(long)]
    pub values: bool,

    /// Read only headers; do not verify hashes
    #[arg(long, conflicts_with = "values")]
    pub no_data: bool,

    /// Also compare names, shapes and dtypes with a model of the same architecture, in any format
    #[arg(long, value_name = "REFERENCE", value_parser = source(), value_hint = ValueHint::AnyPath,
          conflicts_with = "part")]
    pub like: Option<SourceArg>,

    /// SHA-256 that the file must have
    #[arg(long, value_name = "SUM", value_parser = parse_sum, conflicts_with = "no_data")]
    pub sha256: Option<String>,

    /// Also exit with status 1 if there are only warnings
    #[arg(long)]
    pub fail_on_warning: bool,

    /// Print only files that cannot be read; the exit status reports the findings
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,

    /// Print one JSON object per model
    #[arg(long)]
    pub json: bool,

    /// Do only part I of N of the check, on one of several machines, and print it for weightfs combine; the exit status
    /// is 0 even if there are findings, and 2 if something cannot be read
    #[arg(long, value_name = "I/N", requires = "values", conflicts_with = "no_data")]
    pub part: Option<WorkPart>,
}

const DIFF_HELP: &str = "\
Examples:
  weightfs diff base.safetensors tuned.safetensors       compare tensor names, layout and metadata
  weightfs diff --data base tuned                        compare the data of the tensors too
  weightfs diff --values original quantized              the quantization error of each tensor
  weightfs diff --json --data a b | jq '.data.different[].max_abs'
  weightfs diff --values a b --part 1/2 > 1.part         half of the values, for weightfs combine

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
values are counted, and excluded from the errors. Layout, dtypes and metadata do not count as differences.

Exit status: 0 no differences, 1 differences, 2 failure or usage error.";

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

    /// Compare only part I of N of the values, on one of several machines, and print it for weightfs combine; the exit
    /// status is 0 even if they differ
    #[arg(long, value_name = "I/N", requires = "values")]
    pub part: Option<WorkPart>,

    #[command(flatten)]
    pub open: OpenArgs,
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

#[derive(Args, Debug, PartialEq)]
#[command(after_help = METADATA_HELP)]
pub struct MetadataArgs {
    #[command(subcommand)]
    pub action: MetadataAction,
}

#[derive(Subcommand, Debug, PartialEq)]
pub enum MetadataAction {
    /// Print the value of one KEY, or KEY=VALUE lines; lines begin with the path if there are several models
    Get {
        #[command(flatten)]
        input: SourceArgs,
        /// Keys to print [default: all]
        #[arg(value_name = "KEY")]
        keys: Vec<String>,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
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

#[derive(Debug, Clone, PartialEq)]
pub struct MetadataPair {
    /// Not empty.
    pub key: String,
    /// `None` if it is read from standard input.
    pub value: Option<String>,
}

/// A SHA-256 as programs print it, with or without `sha256:` before it.
fn parse_sum(word: &str) -> Result<String, String> {
    let sum = word.strip_prefix("sha256:").unwrap_or(word).to_ascii_lowercase();
    is_sum(&sum).then_some(sum).ok_or_else(|| "a SHA-256 has 64 hexadecimal digits".to_owned())
}

/// Parses `KEY=VALUE`, split at the first `=`, or a `KEY` alone.
fn parse_pair(word: &str) -> Result<MetadataPair, String> {
    let (key, value) = word.split_once('=').map_or((word, None), |(key, value)| (key, Some(value.to_owned())));
    if key.is_empty() {
        return Err("the key is empty; write KEY=VALUE".into());
    }
    Ok(MetadataPair { key: key.to_owned(), value })
}

#[derive(Args, Debug, PartialEq)]
pub struct EditOptions {
    /// Write the changed file to OUT and leave FILE unchanged; - is standard output
    #[arg(short, long, value_name = "OUT")]
    pub out: Option<PathBuf>,

    /// Replace OUT if it exists
    #[arg(short, long, requires = "out")]
    pub force: bool,

    /// Print the changes, but write nothing
    #[arg(long)]
    pub dry_run: bool,
}

const EXPORT_HELP: &str = "\
Examples:
  weightfs export model model.safetensors                write a sharded model as one file
  weightfs export --shard-size 5GB model.safetensors parts
  weightfs export --only '*.layers.0.*' model.safetensors layer0.safetensors
  weightfs export --strip module. ddp.pt model.safetensors    names as before DataParallel
  weightfs export --clean model.safetensors - | ssh host 'cat >model.safetensors'
  weightfs export --dtype bf16 model.gguf model.safetensors   dequantize
  weightfs export --dtype f16 model.gguf half.safetensors     half floats; warns of values beyond 65504
  weightfs export --dtype bf16 DeepSeek-V3 bf16.safetensors   also FP8, MXFP4, NVFP4, GPTQ, AWQ, ...
  weightfs export model-00001-of-00003.gguf whole.gguf

The format is that of the source, unless --format, --dtype or the suffix of OUT (.safetensors or
.gguf) names another one. A safetensors file can hold quantized tensors of GGUF only if --dtype
converts them.

A file that exists is replaced only with --force. The output gets its name only when it is complete
and synced to disk, so an interrupted export leaves an existing file intact. A new file gets the permissions of the source, less the umask.
Metadata is kept, except hashes of data (modelspec.hash_*, sshs_*) that is not what is written.

Exit status: 0 success, 1 failure, 2 usage error.";

#[derive(Args, Debug, PartialEq)]
#[command(after_help = EXPORT_HELP)]
pub struct ExportArgs {
    #[command(flatten)]
    pub input: SourceArgs,

    /// File to write, existing directory to write it to, or - for standard output; for several models or --shard-size,
    /// a new or empty directory
    pub out: PathBuf,

    /// Replace OUT if it exists
    #[arg(short, long)]
    pub force: bool,

    /// Export only tensors whose full name matches a glob: * matches any characters, ? one character, [a-z] one of a
    /// set; can be repeated
    #[arg(long, value_name = "PATTERN", value_parser = parse_pattern)]
    pub only: Vec<glob::Pattern>,

    /// Remove PREFIX, such as module., from the names that begin with it. Each model must have such a name
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true, value_parser = NonEmptyStringValueParser::new())]
    pub strip: Option<String>,

    /// Put PREFIX, such as model., before all names, or before those from which --strip removes another prefix
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true, value_parser = NonEmptyStringValueParser::new())]
    pub prepend: Option<String>,

    /// Convert floating-point and quantized tensors to bf16, f16 or f32, rounded to nearest even, and write
    /// safetensors; integers, booleans and complex numbers stay as they are. With f16, a warning names each tensor with
    /// values beyond its range, which become infinite
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

    /// Write only part I of N of the shards, on one of several machines, to the directory OUT, which may exist; print
    /// the part, from which weightfs combine prints the index
    #[arg(long, value_name = "I/N", requires = "shard_size")]
    pub part: Option<WorkPart>,
}

const REFERENCES_HELP: &str = "\
Examples:
  weightfs references model.safetensors -o model.json    a group for each module
  weightfs references --flat model -o model.json         one array per tensor, named by its full name
  weightfs references --zarr 2 hf://org/model -o model.json
  python -c 'import zarr; print(zarr.open_group(\"reference://\", mode=\"r\", storage_options={\"fo\": \"model.json\"}).tree())'

The references are Zarr arrays whose chunks are byte ranges of the files of SOURCE, which are neither copied nor
changed. zarr-python, xarray and Dask read them through fsspec, without weightfs. If a file is
changed or moved, write its references again.

The arrays are the stored tensors: quantized weights are not dequantized. BF16 and 8-bit floats are
unsigned integers with the same bits, and the attribute weightfs_dtype says what they are. Tensors
that are not ranges of bytes, such as block types of GGUF, are left out and named in the attribute
skipped of the root.

The URLs of the files have no secrets: give credentials to fsspec, as remote_options.

Exit status: 0 success, 1 failure, 2 usage error.";

#[derive(Args, Debug, PartialEq)]
#[command(after_help = REFERENCES_HELP)]
pub struct ReferencesArgs {
    #[command(flatten)]
    pub input: SourceArgs,

    /// Write the references to OUT, a JSON file or a directory NAME.parquet [default: standard output]
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    pub out: Option<PathBuf>,

    /// Replace OUT if it exists
    #[arg(short, long, requires = "out")]
    pub force: bool,

    /// Version of the Zarr format: 2 or 3
    #[arg(long, value_name = "VERSION", default_value_t = 3, value_parser = parse_number::<u8>(2..=3))]
    pub zarr: u8,

    /// Make no groups: the arrays in the root have the full names of the tensors
    #[arg(long)]
    pub flat: bool,

    /// The most bytes of a chunk, such as 16MiB; the number of rows of a chunk divides that of the tensor [default:
    /// 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub chunk: Option<ByteSize>,

    /// Write only tensors whose full name matches a glob, as in `weightfs export`; can be repeated
    #[arg(long, value_name = "PATTERN", value_parser = parse_pattern)]
    pub only: Vec<glob::Pattern>,
}

const CAT_HELP: &str = "\
Examples:
  weightfs cat model.safetensors npy/lm_head.weight.npy >lm_head.npy
  weightfs cat model.safetensors index.json | jq '.tensors[].name'
  weightfs cat --offset 1MB --length 64 model.safetensors tensors/lm_head.weight | hexdump -C
  weightfs cat hf://org/model stats/model.norm.weight.json

`weightfs ls --files SOURCE` lists the files. All files are found before anything is written.";

#[derive(Args, Debug, PartialEq)]
#[command(after_help = CAT_HELP)]
pub struct CatArgs {
    #[command(flatten)]
    pub input: SourceArgs,

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
}

const SHOW_HELP: &str = "\
Examples:
  weightfs show model.safetensors lm_head.weight
  weightfs show model.safetensors lm_head.weight 0:4,:8
  weightfs show --json model.gguf blk.0.attn_q.weight -1,::64
  weightfs show --no-statistics hf://org/model model.norm.weight :16

SLICE has the syntax of NumPy: an index, start:stop:step, or ... for each axis. Of more than 1000 selected elements, the first
and last three of each axis are shown. Quantized weights are dequantized. The statistics are those of the whole tensor, and
computing them reads all of it.

Exit status: 0 success, 1 failure, 2 usage error.";

#[derive(Args, Debug, PartialEq)]
#[command(after_help = SHOW_HELP)]
pub struct ShowArgs {
    #[command(flatten)]
    pub input: SourceArgs,

    /// The full name of the tensor
    #[arg(value_hint = ValueHint::Other)]
    pub tensor: String,

    /// The elements to show, such as 0:4,:,-1 [default: all]
    #[arg(allow_hyphen_values = true, value_hint = ValueHint::Other)]
    pub slice: Option<String>,

    /// Do not compute the statistics
    #[arg(long)]
    pub no_statistics: bool,

    /// Print a JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub numbers: NumbersArgs,
}

const STATS_HELP: &str = "\
Examples:
  weightfs stats model.safetensors
  weightfs stats --only '*.mlp.*' model.gguf
  weightfs stats --csv hf://org/model >model.csv
  weightfs stats --json model.safetensors | jq -c '.tensors[] | select(.nan > 0) | .name'

The statistics are those of the files in stats/ of a mount; --json has the histograms too. Quantized weights are dequantized.
All data is read. In the table, smallest and largest values, means and standard deviations are those of the finite values.

Exit status: 0 success, 1 failure, 2 usage error.";

#[derive(Args, Debug, PartialEq)]
#[command(after_help = STATS_HELP)]
pub struct StatsArgs {
    #[command(flatten)]
    pub input: SourceArgs,

    /// Count only tensors whose full name matches this glob; * matches dots and slashes too; can be repeated
    #[arg(long, value_name = "PATTERN", value_parser = parse_pattern)]
    pub only: Vec<glob::Pattern>,

    /// Print one JSON object per model, with one tensor per line
    #[arg(long)]
    pub json: bool,

    /// Print one line of comma-separated values per tensor, after a line of names (RFC 4180)
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,

    /// Count the stored numbers of quantized weights, instead of dequantizing them
    #[arg(long)]
    pub stored: bool,

    /// Count only part I of N, on one of several machines, and print it for weightfs combine
    #[arg(long, value_name = "I/N")]
    pub part: Option<WorkPart>,
}

const SUMS_HELP: &str = "\
Examples:
  weightfs sums model.safetensors > sums
  weightfs sums hf://org/model --only '*.norm.weight'
  cd mnt && sha256sum -c ../sums              in a mount of the same source

Each line has the sum of a tensor and the path of its file in a mount. The sums are those of the stored bytes: quantized weights are
not dequantized. A tensor is read by one thread, and by one part.

Exit status: 0 success, 1 failure, 2 usage error.";

#[derive(Args, Debug, PartialEq)]
#[command(after_help = SUMS_HELP)]
pub struct SumsArgs {
    #[command(flatten)]
    pub input: SourceArgs,

    /// Print only tensors whose full name matches this glob; * matches dots and slashes too; can be repeated
    #[arg(long, value_name = "PATTERN", value_parser = parse_pattern)]
    pub only: Vec<glob::Pattern>,

    /// Hash only part I of N, on one of several machines, and print it for weightfs combine
    #[arg(long, value_name = "I/N")]
    pub part: Option<WorkPart>,
}

const COMBINE_HELP: &str = "\
Examples:
  weightfs stats s3://bucket/model --json --part 1/2 > 1.part      on one machine
  weightfs stats s3://bucket/model --json --part 2/2 > 2.part      on another one
  weightfs combine *.part
  weightfs export --dtype bf16 --shard-size 5GB model out --part 1/2 > 1.part
  weightfs combine *.part > out/model.safetensors.index.json       after part 2/2

The output is byte for byte that of the command without --part: stats, sums, check --values or
diff --values; for export, it is the index of the shards. Parts of different versions of a model, or
with other options, are refused, and missing ones are named. A part may be given twice.

Exit status: 0 success, 1 failure, 2 usage error. For parts of check and diff: that of the command
without --part.";

#[derive(Args, Debug, PartialEq)]
#[command(after_help = COMBINE_HELP)]
pub struct CombineArgs {
    /// Files that weightfs stats, sums, check, diff or export has printed with --part
    #[arg(required = true, value_name = "PART", value_hint = ValueHint::FilePath)]
    pub parts: Vec<PathBuf>,
}

const SERVE_HELP: &str = "\
Examples:
  weightfs serve model.safetensors                      pages for a browser on this machine
  weightfs serve hf://org/model --port 8000             a model of the Hugging Face Hub
  curl -r 0-1023 http://127.0.0.1:8411/tensors/lm_head.weight
  weightfs serve models --address 0.0.0.0               other machines need the token that is printed

Like a mount, the files are for the user who has started the server, and for root. Everybody else needs a token.
Ctrl-C stops the server after the transfers that are running; a second Ctrl-C stops it at once.";

#[derive(Args, Debug, PartialEq)]
#[command(after_help = SERVE_HELP)]
pub struct ServeArgs {
    #[command(flatten)]
    pub input: SourceArgs,

    /// Port; 0 for any [default: 8411, or the next one that is free]
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,

    /// IP address to listen on; other machines reach 0.0.0.0 or [::], and need a token
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub address: IpAddr,

    /// A name of this machine by which browsers may address the server, besides IP addresses and localhost
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,

    /// Open the page in the browser of this desktop
    #[arg(long)]
    pub open: bool,

    /// Also admit clients with the token in this file [default: none on this machine; a random one on other addresses]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub client_token: Option<PathBuf>,

    /// Serve the connections whose sockets arrive on the Unix socket FD (SCM_RIGHTS), and no others, until its other
    /// end is closed; for the Python package
    #[arg(long, value_name = "FD", hide = true, value_parser = parse_number::<i32>(0..=i32::MAX as u64),
          conflicts_with_all = ["port", "address", "host", "open", "client_token"])]
    pub clients: Option<i32>,

    #[command(flatten)]
    pub views: ViewsArgs,

    #[command(flatten)]
    pub serving: ServingArgs,
}

const CP_HELP: &str = "\
Examples:
  weightfs cp model.safetensors npy arrays               all arrays, to arrays/npy
  weightfs cp model.safetensors tensors/lm_head.weight header.json .
  weightfs cp model.safetensors tensors/lm_head.weight head.bin
  weightfs cp hf://org/model export/model-bf16.safetensors /data

DIR is created if it is missing, but the copy of a single file gets the name that does not exist, as
with cp(1); DIR/ is always a directory. A file that exists is replaced only with --force. While files are
copied, DIR has a directory .weightfs-cp with unfinished files. After an interruption, the same
command continues with what is on the disk, unless the source has changed. Files of a URL (from the
cache) and links in a directory of models are copied again. On a file system without hard links, a
file that was complete counts as one that exists.";

#[derive(Args, Debug, PartialEq)]
#[command(after_help = CP_HELP, override_usage = "weightfs cp [OPTIONS] SOURCE PATH FILE\n       weightfs cp [OPTIONS] SOURCE PATH... DIR")]
pub struct CpArgs {
    #[command(flatten)]
    pub input: SourceArgs,

    /// Files and directories, by their paths in a mount, and the directory DIR to copy them to, or a FILE
    // `read` checks that there are two: clap would count those after an option anew.
    #[arg(required = true, num_args = 1.., value_names = ["PATH", "DIR"], value_hint = ValueHint::DirPath)]
    pub paths: Vec<PathBuf>,

    /// Replace files that exist
    #[arg(short, long)]
    pub force: bool,

    #[command(flatten)]
    pub numbers: NumbersArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FloatArg {
    /// bfloat16.
    Bf16,
    /// float16, the half floats of IEEE 754.
    F16,
    /// float32.
    F32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// One or several safetensors files.
    Safetensors,
    /// A GGUF file.
    Gguf,
}

impl FormatArg {
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Safetensors => ".safetensors",
            Self::Gguf => ".gguf",
        }
    }
}

const STATUS_HELP: &str = "\
SERVED is how many bytes readers have received. FETCHED, REQUESTS and SPEED describe what a mount of a
URL has fetched since it was mounted. HITS is the share of the bytes read that were
available without waiting. A mount whose daemon has ended is dead; `weightfs umount` removes it.

Exit status: 0 success, 1 failure, 2 usage error.";

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

const CACHE_HELP: &str = "\
Examples:
  weightfs cache list                                    what is cached, the last used first
  weightfs cache prune --size 50GB                       keep 50 GB of what was used last
  weightfs cache prune --older-than 30d --dry-run        what was not used for 30 days
  weightfs cache clear                                   remove all that is not in use
  weightfs cache list --json | jq -r '.files[] | select(.cached == .size) | .name'

The cache is $XDG_CACHE_HOME/weightfs, or ~/.cache/weightfs. It has the blocks of remote files that
were read, and what each location led to, for --offline. Files that a mount or a command uses are
kept. All else can be removed at any time: it is fetched again when it is read.

Exit status: 0 success, 1 failure, 2 usage error.";

#[derive(Args, Debug, PartialEq)]
#[command(after_help = CACHE_HELP, arg_required_else_help = false)]
pub struct CacheArgs {
    #[command(subcommand)]
    pub action: CacheAction,
}

#[derive(Subcommand, Debug, PartialEq)]
pub enum CacheAction {
    /// List the cached files, the last used first
    List {
        /// Print a JSON object, with exact numbers
        #[arg(long)]
        json: bool,
    },
    /// Remove what was not used for the longest time
    #[command(group = ArgGroup::new("wanted").args(["size", "older_than"]).required(true).multiple(true))]
    Prune {
        /// Leave at most SIZE, such as 50GB; of the last file, blocks at its end are removed
        #[arg(long, value_name = "SIZE")]
        size: Option<ByteSize>,
        /// Remove files that were not used for AGE, such as 12h, 30d or 6 months
        #[arg(long, value_name = "AGE", value_parser = parse_age)]
        older_than: Option<SystemTime>,
        #[command(flatten)]
        options: RemovalOptions,
    },
    /// Remove everything that is not in use
    Clear {
        #[command(flatten)]
        options: RemovalOptions,
    },
}

#[derive(Args, Debug, PartialEq)]
pub struct RemovalOptions {
    /// List what would be removed, and remove nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// Print a JSON object, with exact numbers
    #[arg(long)]
    pub json: bool,
}
