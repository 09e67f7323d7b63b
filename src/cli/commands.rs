//! The words of the commands that do not mount.

use super::pattern;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

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
    pub source: PathBuf,

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
    #[arg(required = true, value_name = "SOURCE")]
    pub sources: Vec<PathBuf>,

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
    #[arg(required = true, value_name = "SOURCE")]
    pub sources: Vec<PathBuf>,

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
    #[arg(required = true, value_name = "SOURCE")]
    pub sources: Vec<PathBuf>,
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
    #[arg(required = true, value_name = "SOURCE")]
    pub sources: Vec<PathBuf>,

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
