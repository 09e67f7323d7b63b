//! The words of the commands that do not mount.

use super::{location, pattern};
use bytesize::ByteSize;
use clap::{Args, Subcommand, ValueEnum};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use weightfs::source::Location;

const LS_HELP: &str = "\
Examples:
  weightfs ls model.safetensors                          every tensor, in natural order
  weightfs ls model '*.layers.0.*' '*.bias'              those whose names match
  weightfs ls --sort size model | head                   the largest
  weightfs ls --totals --depth 3 model                   counts by dtype and by module
  weightfs ls --json model | jq -r '.tensors[].name'

OFFSET is where the data begins in the file, in bytes. On a terminal two lines with totals follow,
and the middle of a name that does not fit is left out; a pipe or file gets names whole, and no totals.

Exit status: 0 done, 1 failed, or a PATTERN matches no tensor, 2 wrong usage.";

/// What to list, and how.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = LS_HELP)]
pub struct LsArgs {
    /// A .safetensors file, the index of a sharded model (.safetensors.index.json), a dataset
    /// (dataset_manifest.json), or a directory with one model or several
    #[arg(value_parser = location())]
    pub source: Location,

    /// Only tensors whose whole names match one of these globs: * matches any characters, ? one,
    /// [a-z] one of a set
    #[arg(value_name = "PATTERN", value_parser = pattern::parse)]
    pub patterns: Vec<glob::Pattern>,

    /// By what to sort: name (layers.2 before layers.10), size (the largest first), or offset (the
    /// order of the data)
    #[arg(long, value_name = "KEY", default_value = "name", hide_possible_values = true)]
    pub sort: Sort,

    /// Turn the order around
    #[arg(short, long)]
    pub reverse: bool,

    /// Print totals by dtype and by module instead of tensors
    #[arg(long)]
    pub totals: bool,

    /// How many dotted parts of a name make a module
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub depth: usize,

    /// Print sizes in bytes
    #[arg(short, long)]
    pub bytes: bool,

    /// Print no headings
    #[arg(short, long)]
    pub no_headings: bool,

    /// Print JSON, one object for each model: tensors as in index.json of a mount, and totals
    #[arg(long)]
    pub json: bool,

    /// List what is sound in a damaged file, and report the rest
    #[arg(long)]
    pub lenient: bool,
}

/// An order of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Natural order of names.
    Name,
    /// The largest first.
    Size,
    /// File by file in the order of the data.
    Offset,
}

const INSPECT_HELP: &str = "\
Long values of metadata are cut; --all shows every key, and --json gives every value whole.

Exit status: 0 done, 1 failed, 2 wrong usage.";

/// What to look at, and how.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = INSPECT_HELP)]
pub struct InspectArgs {
    /// Files, indices, datasets, or directories with one model or several
    #[arg(required = true, value_name = "SOURCE", value_parser = location())]
    pub sources: Vec<Location>,

    /// Show all shards, modules and keys of metadata
    #[arg(short, long)]
    pub all: bool,

    /// Print JSON, one object for each model
    #[arg(long)]
    pub json: bool,

    /// Look at what is sound in a damaged file, and report the rest
    #[arg(long)]
    pub lenient: bool,
}

const ID_HELP: &str = "\
Two models have the same hash if their names, dtypes, shapes, sizes and metadata are the same; the
data itself does not count. It is the hash of weight-inspect, whose output this is. A model of many
files has that of all of it as one file.

Exit status: 0 done, 1 failed, 2 wrong usage.";

/// Whose identity to print.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = ID_HELP)]
pub struct IdArgs {
    /// Files, indices, datasets, or directories with one model or several
    #[arg(required = true, value_name = "SOURCE", value_parser = location())]
    pub sources: Vec<Location>,

    /// Print JSON, one object for each model
    #[arg(long)]
    pub json: bool,
}

const SUMMARY_HELP: &str = "\
The line is FORMAT,VERSION,TENSORS,METADATA,HASH: safetensors has no version (N/A), METADATA is the
number of keys, and HASH the structural hash of weight-inspect (see `weightfs id --help`). Where
there are several models, the file follows as a last field.

Exit status: 0 done, 1 failed, 2 wrong usage.";

/// Whose summary to print.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = SUMMARY_HELP)]
pub struct SummaryArgs {
    /// Files, indices, datasets, or directories with one model or several
    #[arg(required = true, value_name = "SOURCE", value_parser = location())]
    pub sources: Vec<Location>,
}

const CHECK_HELP: &str = "\
Errors: a header that the official reader refuses, with all that is wrong with it; a tensor name
that stands twice; an index or a manifest that the files do not agree with; a modelspec.hash_sha256
or sshs_model_hash that is not that of the data; NaN.

Warnings: tensors that do not begin at a multiple of their element size; what the format does not
have but readers take; dtypes and header sizes that some readers refuse; an index that names a
tensor twice or gives other totals; metadata against the rules of ModelSpec or sd-scripts;
infinite values.

Where the metadata gives a hash, all data is read to verify it, with --values all data of
floating-point types.

Exit status: 0 sound, 1 an error was found, 2 wrong usage, or something could not be read or
printed, or changed meanwhile.";

/// What to check, and how.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = CHECK_HELP)]
pub struct CheckArgs {
    /// Files, indices, datasets, or directories with one model or several
    #[arg(required = true, value_name = "SOURCE", value_parser = location())]
    pub sources: Vec<Location>,

    /// Look for NaN and infinity in all tensors
    #[arg(long)]
    pub values: bool,

    /// Read headers only, and verify no hash
    #[arg(long, conflicts_with = "values")]
    pub no_data: bool,

    /// Let warnings count as errors in the exit status
    #[arg(long)]
    pub fail_on_warning: bool,

    /// Print nothing but what could not be read: the exit status tells
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,

    /// Print JSON, one object for each model
    #[arg(long)]
    pub json: bool,
}

const DIFF_HELP: &str = "\
Examples:
  weightfs diff base.safetensors tuned.safetensors       tensors and metadata, by the headers
  weightfs diff --data base tuned                        the bytes, too, and how far apart
  weightfs diff --json --data a b | jq '.data.different[].max_abs'

Relative is a distance in parts of the larger of the two values. Data that both have in the same
place of a disk (one file by two names, or shared by cp --reflink) is not read.

Exit status: 0 no difference, 1 some, 2 trouble.";

/// What to compare, and how to tell.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = DIFF_HELP)]
pub struct DiffArgs {
    /// The old model, or directory of models: what `mount` takes
    #[arg(value_parser = location())]
    pub a: Location,

    /// The new one
    #[arg(value_parser = location())]
    pub b: Location,

    /// Compare the data, too: which tensors differ, in how many bits, and how far their values are apart
    #[arg(long)]
    pub data: bool,

    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,

    /// Print Markdown
    #[arg(long)]
    pub markdown: bool,

    /// Compare what is sound of damaged files, and report the rest
    #[arg(long)]
    pub lenient: bool,
}

const METADATA_HELP: &str = "\
Examples:
  weightfs metadata get model.safetensors                every key and its value
  weightfs metadata set model.safetensors modelspec.author=me license=mit
  weightfs metadata set model.safetensors notes <notes.txt
  weightfs metadata remove model.safetensors ss_dataset_dirs
  weightfs metadata clear model.safetensors -o clean.safetensors

A changed file is written beside the old one and takes its place when it is whole and on the disk:
until then the old one stays. Owner, permissions and extended attributes are kept. Where the file
system can, the data is shared with the old file and not copied.

Exit status: 0 done, 1 failed, 2 wrong usage.";

/// What to do with the metadata.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = METADATA_HELP)]
pub struct MetadataArgs {
    /// What exactly.
    #[command(subcommand)]
    pub action: Action,
}

/// What to do with the metadata of a file.
#[derive(Subcommand, Debug, PartialEq)]
pub enum Action {
    /// Print the value of a key, or KEY=VALUE of several or of all; of several models each with its place
    Get {
        /// What `mount` takes
        #[arg(value_parser = location())]
        source: Location,
        /// Keys; none for all of them
        #[arg(value_name = "KEY")]
        keys: Vec<String>,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Set keys to values
    Set {
        /// A .safetensors file
        file: PathBuf,
        /// A key and its value; a KEY alone takes the text on standard input
        #[arg(value_name = "KEY[=VALUE]", required = true)]
        pairs: Vec<String>,
        #[command(flatten)]
        how: How,
    },
    /// Remove keys
    Remove {
        /// A .safetensors file
        file: PathBuf,
        /// Keys, all of which must be there
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<String>,
        #[command(flatten)]
        how: How,
    },
    /// Remove all metadata
    Clear {
        /// A .safetensors file
        file: PathBuf,
        #[command(flatten)]
        how: How,
    },
}

/// How a change is made.
#[derive(Args, Debug, PartialEq)]
pub struct How {
    /// Write the changed file here, and leave FILE as it is; - is standard output
    #[arg(short, long, value_name = "OUT")]
    pub out: Option<PathBuf>,

    /// Only print what would change
    #[arg(long)]
    pub dry_run: bool,
}

const EXPORT_HELP: &str = "\
Examples:
  weightfs export model model.safetensors                a sharded model as one file
  weightfs export --shard-size 5GB model.safetensors parts
  weightfs export --only '*.layers.0.*' model.safetensors layer0.safetensors
  weightfs export --clean model.safetensors - | ssh host 'cat >model.safetensors'

A file or a directory gets its name when it is whole and on the disk: until then what had it stays.

Exit status: 0 done, 1 failed, 2 wrong usage.";

/// How to export.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = EXPORT_HELP)]
pub struct ExportArgs {
    /// What `mount` takes: a .safetensors file, the index of a sharded model, a dataset, or a directory with one model
    /// or several
    #[arg(value_parser = location())]
    pub source: Location,

    /// The file to write, a directory to write it to, or - for standard output; of several models, or with
    /// --shard-size, a new directory
    pub out: PathBuf,

    /// Only tensors whose whole names match: * stands for any characters, ? for one, [a-z] for one of
    /// a set; may be given more than once
    #[arg(long, value_name = "PATTERN", value_parser = pattern::parse)]
    pub only: Vec<glob::Pattern>,

    /// Leave the metadata out
    #[arg(long)]
    pub clean: bool,

    /// Have the data begin at a multiple of this, a power of two [default: 4096]
    #[arg(long, value_name = "BYTES", value_parser = parse_align)]
    pub align: Option<u64>,

    /// Write several files of at most this much data each, such as 5GB, and their index
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub shard_size: Option<ByteSize>,

    /// Export what is sound of a damaged file, and report the rest
    #[arg(long)]
    pub lenient: bool,
}

fn parse_size(text: &str) -> Result<ByteSize, String> {
    match text.parse() {
        Ok(ByteSize(0)) => Err("no data fits into that".into()),
        size => size,
    }
}

/// Least alignment that the official writer has, and most that makes sense: huge pages are not larger.
const ALIGN: RangeInclusive<u64> = 8..=1 << 26;

fn parse_align(text: &str) -> Result<u64, String> {
    let align = text.parse().ok().filter(|align: &u64| align.is_power_of_two() && ALIGN.contains(align));
    align.ok_or_else(|| format!("not a power of two from {} to {}", ALIGN.start(), ALIGN.end()))
}
