//! The command line: its options and help text. Also translates `-o` options, as in fstab, and the arguments that
//! mount(8) passes to its helpers.

mod cache;
mod commands;
pub mod complete;
pub mod pattern;
mod source;
mod value;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use value::parse_number;
use weightfs::text;
use weightfs::view::{self, ShownViews};

pub use cache::*;
pub use commands::*;
use source::source;
pub use source::{NumbersArgs, RemoteArgs, SourceArg};

/// A parsed command line.
pub struct Invocation {
    /// The command and its arguments.
    pub command: Command,
    /// The exit codes to use.
    pub codes: ExitCodes,
}

/// The set of exit codes. It depends on the name under which the program was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitCodes {
    /// 1: failure, 2: usage error.
    Weightfs,
    /// As in mount(8). 32: mount failure, 1: usage error.
    MountHelper,
}

impl ExitCodes {
    /// The exit code for a failure.
    pub fn failure(self) -> ExitCode {
        match self {
            Self::Weightfs => ExitCode::from(1),
            Self::MountHelper => ExitCode::from(32),
        }
    }

    fn usage(self) -> ExitCode {
        match self {
            Self::Weightfs => ExitCode::from(2),
            Self::MountHelper => ExitCode::from(1),
        }
    }
}

const AFTER_HELP: &str = "\
Examples:
  weightfs model.safetensors            mount on ./model, which is created
  weightfs model.safetensors /mnt       mount on /mnt
  weightfs hf://org/model /mnt          mount a model of the Hugging Face Hub without downloading it
  ls -l model/tensors                   every tensor is a file
  weightfs umount model                 unmount; removes ./model if it was created
  weightfs umount --all                 unmount all models
  weightfs ls model.safetensors         list tensors without mounting
  weightfs cat model.safetensors npy/lm_head.weight.npy >lm_head.npy

Exit status: 0 success, 1 failure, 2 usage error. See `weightfs COMMAND --help` for each command.";

/// Mount model weights as a read-only file system: every tensor is a file.
#[derive(Parser)]
#[command(name = "weightfs", version, after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
#[command(subcommand_negates_reqs = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    mount: Option<MountArgs>,
}

/// The definition of the command line, for generated documentation.
pub fn definition() -> clap::Command {
    Cli::command()
}

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

impl Command {
    /// The arguments that are paths of this machine: mount points, and files that are written.
    fn paths(&self) -> Vec<&Path> {
        match self {
            Self::Mount(args) => args.mountpoint.iter().map(PathBuf::as_path).collect(),
            Self::Umount(args) => args.mountpoints.iter().map(PathBuf::as_path).collect(),
            Self::Export(args) => vec![&args.out],
            Self::Demo(args) => vec![&args.file],
            Self::Cp(args) => args.paths.last().map(PathBuf::as_path).into_iter().collect(),
            Self::Serve(args) => args.client_token.iter().map(PathBuf::as_path).collect(),
            Self::Metadata(MetadataArgs { action }) => match action {
                MetadataAction::Get { .. } => Vec::new(),
                MetadataAction::Set { file, options, .. }
                | MetadataAction::Remove { file, options, .. }
                | MetadataAction::Clear { file, options } => {
                    std::iter::once(file).chain(&options.out).map(PathBuf::as_path).collect()
                }
            },
            _ => Vec::new(),
        }
    }

    /// What is wrong with the arguments that clap does not check.
    fn mistake(&self) -> Option<&'static str> {
        match self {
            Self::Cp(args) if args.paths.len() < 2 => Some("cp needs SOURCE, at least one PATH, and DIR (see --help)"),
            Self::Cat(args) if args.paths.len() > 1 && (args.offset.is_some() || args.length.is_some()) => {
                Some("--offset and --length are for a single PATH")
            }
            _ => None,
        }
    }

    /// The SOURCE arguments.
    pub fn sources(&self) -> Vec<&SourceArg> {
        match self {
            Self::Mount(args) => vec![&args.source],
            Self::Ls(args) => {
                let more = args.more.iter().filter_map(|operand| match operand {
                    LsOperand::Source(source) => Some(source),
                    LsOperand::Pattern(_) => None,
                });
                std::iter::once(&args.source).chain(more).collect()
            }
            Self::Inspect(args) => args.sources.iter().collect(),
            Self::Id(args) => args.sources.iter().collect(),
            Self::Summary(args) => args.sources.iter().collect(),
            Self::Check(args) => args.sources.iter().collect(),
            Self::Diff(args) => vec![&args.a, &args.b],
            Self::Metadata(MetadataArgs { action: MetadataAction::Get { source, .. } }) => vec![source],
            Self::Export(args) => vec![&args.source],
            Self::Serve(args) => vec![&args.source],
            Self::Cat(args) => vec![&args.source],
            Self::Cp(args) => vec![&args.source],
            Self::Doctor(args) => args.source.iter().collect(),
            _ => Vec::new(),
        }
    }
}

/// The arguments of `mount`.
#[derive(Args, Debug, PartialEq)]
pub struct MountArgs {
    /// A model file, the index of a sharded model (such as model.safetensors.index.json), a dataset manifest
    /// (dataset_manifest.json), a directory with one or more models, such as an Ollama store, or a URL: hf://,
    /// https://, s3://, gs:// or az://
    #[arg(value_parser = source(), value_hint = ValueHint::AnyPath)]
    pub source: SourceArg,

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

    // The help text lists the names of all views.
    #[arg(long, value_name = "VIEW[,VIEW...]", value_parser = parse_views, help = views_help())]
    pub views: Option<ShownViews>,

    #[command(flatten)]
    pub numbers: NumbersArgs,

    /// Mount the valid tensors of a damaged file and report the rest, instead of failing
    #[arg(long)]
    pub lenient: bool,

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

    /// Run the daemon without a sandbox [default: the daemon can open SOURCE and no other file]
    #[arg(long)]
    pub no_sandbox: bool,

    /// Append messages to FILE, also in the background [default: standard error; syslog in the background]
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,

    /// Log informational messages; the environment variable RUST_LOG overrides the log level
    #[arg(short, long)]
    pub verbose: bool,

    /// Make all checks, but do not mount (mount(8)'s -f)
    #[arg(long, hide = true)]
    pub fake: bool,

    /// Keep a mount as it is (mount(8)'s `-o remount`); the value is the long options to compare with those of the
    /// mount
    #[arg(long, hide = true, value_name = "OPTIONS", requires = "mountpoint")]
    pub remount: Option<String>,

    #[command(flatten)]
    pub remote: RemoteArgs,
}

/// The arguments of `umount`.
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

/// Options of mount(8) and libfuse that are accepted and ignored. Every mount is read-only, nosuid, nodev, noexec and
/// noatime, and the kernel keeps its cache when a file is opened again.
const WITHOUT_EFFECT: [&str; 20] = [
    "ro",
    "defaults",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "nosuid",
    "nodev",
    "noexec",
    "noatime",
    "nodiratime",
    "relatime",
    "default_permissions",
    "async",
    "kernel_cache",
];

/// Options of mount(8) that cannot be honoured, and why.
const REFUSED: [(&str, &str); 4] = [
    ("rw", "mounts are read-only; remove it or use ro"),
    ("exec", "nothing in a mount can be executed; remove it or use noexec"),
    ("suid", "every mount is nosuid; remove it or use nosuid"),
    ("dev", "every mount is nodev; remove it or use nodev"),
];

/// Options that mount(8) copies from /proc/self/mountinfo when it remounts.
const COPIED_BY_REMOUNT: [&str; 3] = ["rootmode", "user_id", "group_id"];

/// Options that mount(8) adds unless the user gives the opposite: `rw`, and through mount.fuse3 `dev,suid`.
const ADDED_BY_MOUNT: [&str; 3] = ["rw", "dev", "suid"];

/// Why a command line gives no command to run.
pub enum NoCommand {
    /// Help or the version was requested; this is the text.
    Text(clap::Error),
    /// The command line is wrong; this is the reason, in one line.
    Usage(String),
}

/// Parses the command line. Prints help, the version or a usage error itself, and then returns the exit code.
pub fn parse_command_line(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, ExitCode> {
    let args: Vec<OsString> = args.into_iter().collect();
    let called = args.first().and_then(|name| Path::new(name).file_name()).unwrap_or_default();
    let helper = matches!(called.to_str(), Some("mount.weightfs" | "mount.fuse.weightfs"));
    let codes = if helper { ExitCodes::MountHelper } else { ExitCodes::Weightfs };
    let mistaken = |word: &&str| {
        let may_be_command = !helper && !word.starts_with('-') && !word.contains(['.', '/']);
        may_be_command && !is_command(word.as_ref()) && Path::new(word).symlink_metadata().is_err()
    };
    if let Some(message) = args.get(1).and_then(|word| word.to_str()).filter(mistaken).and_then(mistaken_command) {
        return Err(usage_error(&message, codes));
    }
    match read_arguments(args, helper, helper || run_by_mount()) {
        Ok(command) => Ok(Invocation { command, codes }),
        // If standard output is closed, the text is lost.
        Err(NoCommand::Text(text)) => {
            let _ = text.print();
            Err(ExitCode::SUCCESS)
        }
        Err(NoCommand::Usage(message)) => Err(usage_error(&message, codes)),
    }
}

/// Prints a usage error, and returns its exit code.
fn usage_error(message: &str, codes: ExitCodes) -> ExitCode {
    let _ = writeln!(io::stderr(), "weightfs: {}", text::message(message));
    codes.usage()
}

/// Parses `args`. If `helper`, they have the form in which mount(8) calls its helpers. If `from_mount`, the options
/// that mount(8) adds are accepted.
pub fn read_arguments(mut args: Vec<OsString>, helper: bool, from_mount: bool) -> Result<Command, NoCommand> {
    if helper {
        args = helper_args(args).map_err(NoCommand::Usage)?;
    }
    let args = insert_mount(expand_options(args, from_mount).map_err(NoCommand::Usage)?);
    let command = Cli::try_parse_from(args).and_then(|cli| {
        let missing = || Cli::command().error(ErrorKind::MissingRequiredArgument, "name a SOURCE to mount");
        cli.command.or(cli.mount.map(Command::Mount)).ok_or_else(missing)
    });
    let command = command.map_err(|error| match error.use_stderr() {
        true => NoCommand::Usage(source::without_secrets(&one_line(&error.to_string()))),
        false => NoCommand::Text(error),
    })?;
    if let Some(mistake) = command.mistake() {
        return Err(NoCommand::Usage(mistake.into()));
    }
    match command.paths().into_iter().find(|path| path.to_str().is_some_and(source::is_url)) {
        Some(url) => {
            let message = format!("{}: a path is needed here; only sources can be URLs", url.display());
            Err(NoCommand::Usage(source::without_secrets(&message)))
        }
        None => Ok(command),
    }
}

/// The first paragraph of a clap error in one line, without the prefix `error:`. Usage and tips follow in other
/// paragraphs.
fn one_line(error: &str) -> String {
    let paragraph = error.split("\n\n").next().unwrap_or_default();
    let lines: Vec<&str> = paragraph.lines().map(str::trim).collect();
    format!("{} (see --help)", lines.join(" ").trim_start_matches("error: "))
}

/// Rewrites `mount.weightfs SOURCE DIR [-sfnv] [-N namespace] [-o options] [-t type]`, the form in which mount(8) calls
/// its helpers, to `weightfs mount`.
fn helper_args(args: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let mut words = args.into_iter().skip(1);
    let mut rewritten: Vec<OsString> = vec!["weightfs".into(), "mount".into()];
    let mut paths = Vec::new();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-o") => rewritten.extend([word, words.next().ok_or("-o needs a value")?]),
            Some("-t" | "-N") => drop(words.next()),
            Some(flags) if flags.starts_with('-') && flags.len() > 1 => {
                for flag in flags[1..].chars() {
                    match flag {
                        'v' => rewritten.push("--verbose".into()),
                        'f' => rewritten.push("--fake".into()),
                        // -s (sloppy) and -n (no mtab) have no effect.
                        's' | 'n' => {}
                        other => return Err(format!("unknown option -{other}")),
                    }
                }
            }
            _ => paths.push(word),
        }
    }
    if paths.len() != 2 {
        return Err("usage: mount.weightfs SOURCE DIR [-fnsv] [-o options]".into());
    }
    rewritten.push("--".into());
    rewritten.extend(paths);
    Ok(rewritten)
}

/// Inserts the optional `mount`, so that usage errors refer to that command. `--help` and `--version` without a command
/// stay those of the program.
fn insert_mount(mut args: Vec<OsString>) -> Vec<OsString> {
    let is_global = |word: &OsString| matches!(word.to_str(), Some("-h" | "--help" | "-V" | "--version"));
    if args.len() > 1 && !args.iter().any(is_global) && !args.get(1).is_some_and(|word| is_command(word)) {
        args.insert(1, "mount".into());
    }
    args
}

fn is_command(word: &OsStr) -> bool {
    word == HELP || Cli::command().get_subcommands().any(|known| OsStr::new(known.get_name()) == word)
}

/// The command that clap adds.
const HELP: &str = "help";

/// Each command, and words that may be meant for it.
const MISTAKEN: [(&str, &[&str]); 19] = [
    ("mount", &[]),
    ("umount", &["unmount", "eject", "detach"]),
    ("status", &["mounts", "mounted"]),
    ("doctor", &["diagnose", "troubleshoot"]),
    ("demo", &["sample", "example"]),
    ("serve", &["http", "web", "browse", "server"]),
    ("ls", &["list", "tensors", "names"]),
    ("cat", &["print", "dump"]),
    ("cp", &["copy", "extract"]),
    ("inspect", &["info", "show", "describe", "view", "stat"]),
    ("id", &["hash", "fingerprint"]),
    ("summary", &["summarize", "summarise"]),
    ("check", &["verify", "validate", "lint", "test"]),
    ("diff", &["compare", "cmp"]),
    ("metadata", &["meta", "get", "set", "remove", "clear"]),
    ("export", &["convert", "save", "merge"]),
    ("cache", &["prune", "purge"]),
    (HELP, &["man", "usage"]),
    ("--version", &["version"]),
];

/// The error for a first word that is neither a file nor a command, but resembles a command.
fn mistaken_command(word: &str) -> Option<String> {
    let meant = MISTAKEN.iter().find(|(name, words)| *name == word || words.contains(&word)).map(|(name, _)| *name);
    let command = meant.or_else(|| similar_command(word))?;
    Some(format!("{word}: No such file or directory, and no such command; did you mean `weightfs {command}`?"))
}

/// The command whose name clap finds similar to `word`.
fn similar_command(word: &str) -> Option<&'static str> {
    /// Names of models often begin with the name of a command, such as `checkpoints`.
    const LONGER: usize = 2;
    let names = || MISTAKEN.iter().map(|(name, _)| *name);
    let parser = clap::Command::new("weightfs").disable_help_subcommand(true).subcommand_required(true);
    let error = parser.subcommands(names().map(clap::Command::new)).try_get_matches_from(["weightfs", word]).err()?;
    let Some(ContextValue::Strings(similar)) = error.get(ContextKind::SuggestedSubcommand) else { return None };
    // The most similar name is the last one.
    let similar = similar.last()?;
    // Any letter resembles a command, and `model` resembles `demo`.
    let begins = word.bytes().next() == similar.bytes().next();
    let is_close = begins && word.len() > LONGER && word.len().abs_diff(similar.len()) <= LONGER;
    names().find(|name| name == similar).filter(|_| is_close)
}

/// Replaces each `-o a,b=c` of a `mount` command by `--a --b=c`, and drops options without effect.
fn expand_options(args: Vec<OsString>, from_mount: bool) -> Result<Vec<OsString>, String> {
    if args.get(1).is_some_and(|word| word != "mount" && is_command(word)) {
        return Ok(args);
    }
    let mut expanded = Vec::new();
    let mut words = args.into_iter();
    while let Some(word) = words.next() {
        if word == "--" {
            expanded.push(word);
            expanded.extend(words);
            break;
        }
        // `-o a` and `-oa`, and after other flags, as in getopt(3), `-fo a` and `-foa`.
        let flags =
            |word: &str| word.strip_prefix('-').map(|word| word.len() - word.trim_start_matches(['f', 'v']).len());
        let text = word.to_str().unwrap_or_default();
        let options = match flags(text).map(|flags| text.split_at(1 + flags)) {
            Some((flags, options)) if options.starts_with('o') => {
                if flags != "-" {
                    expanded.push(flags.into());
                }
                match &options[1..] {
                    "" => words.next().ok_or("-o needs a value")?,
                    options => options.into(),
                }
            }
            _ => {
                expanded.push(word);
                continue;
            }
        };
        let options = options.to_str().ok_or_else(|| format!("-o {}: not UTF-8", options.display()))?;
        expanded.extend(expand_list(&split_options(options), from_mount)?.into_iter().map(OsString::from));
    }
    Ok(expanded)
}

/// The long options for a list of `-o` options.
fn expand_list(options: &[String], from_mount: bool) -> Result<Vec<String>, String> {
    let (remount, others): (Vec<&String>, _) = options.iter().partition(|option| *option == "remount");
    let remount = !remount.is_empty();
    let is_copied = |option: &String| {
        let name = option.split('=').next().unwrap_or_default();
        remount && COPIED_BY_REMOUNT.contains(&name)
    };
    let mut long = Vec::new();
    for option in others.into_iter().filter(|option| !is_copied(option)) {
        // mount(8) adds `rw` to the options of a new mount only.
        long.extend(expand(option, from_mount && !remount)?);
    }
    Ok(if remount { vec![format!("--remount={}", long.join(","))] } else { long })
}

/// The long option for one `-o` option. `None` if it has no effect.
fn expand(option: &str, from_mount: bool) -> Result<Option<String>, String> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    if option.is_empty()
        || WITHOUT_EFFECT.contains(&option)
        || name.starts_with("x-")
        || name == "comment"
        || from_mount && ADDED_BY_MOUNT.contains(&option)
    {
        return Ok(None);
    }
    if let Some((name, reason)) = REFUSED.iter().find(|(name, _)| *name == option) {
        return Err(format!("option {name}: {reason}"));
    }
    let long = name.replace('_', "-");
    let command = Cli::command();
    let known = command.get_arguments().find(|known| known.get_long() == Some(&long));
    match (known.map(|known| known.get_action().takes_values()), value) {
        (Some(true), Some(value)) => Ok(Some(format!("--{long}={value}"))),
        (Some(true), None) => Err(format!("option {name} needs a value: {name}=...")),
        (Some(false), None) => Ok(Some(format!("--{long}"))),
        (Some(false), Some(_)) => Err(format!("option {name} takes no value, but got {option}")),
        (None, _) => Err(format!("unknown mount option {option:?}")),
    }
}

/// Splits at commas. As in libfuse, a backslash escapes the next character.
fn split_options(options: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = options.chars();
    while let Some(char) = chars.next() {
        match (char, parts.last_mut()) {
            (',', _) => parts.push(String::new()),
            ('\\', Some(part)) => part.extend(chars.next()),
            (char, Some(part)) => part.push(char),
            (_, None) => {}
        }
    }
    parts
}

/// Whether mount(8) runs this program through mount.fuse3. mount.fuse3 calls `weightfs`, not `mount.weightfs`, through
/// a shell. The shell may remain as a process between mount(8) and this program, so the grandparent is checked too.
fn run_by_mount() -> bool {
    let status = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field =
        |status: &str, name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
    let parent = status(&nix::unistd::getppid().to_string());
    let grandparent = field(&parent, "PPid:").map(|pid| status(&pid)).unwrap_or_default();
    [parent, grandparent].iter().any(|status| field(status, "Name:").as_deref() == Some("mount"))
}

pub(super) fn views_help() -> String {
    let mut names = view::names();
    names.sort_unstable();
    format!("Show only these views: {} [default: all]", names.join(", "))
}

/// Parses view names, separated by commas, or by colons where a comma would end the option, as in
/// `-o views=tensors:tree`.
pub(super) fn parse_views(names: &str) -> Result<ShownViews, String> {
    view::shown_views(names.split([',', ':'])).map_err(|error| error.to_string())
}

fn parse_umask(mask: &str) -> Result<u16, String> {
    u16::from_str_radix(mask, 8)
        .ok()
        .filter(|mask| *mask <= 0o777)
        .ok_or_else(|| "not an octal number up to 777".into())
}

fn parse_user(user: &str) -> Result<u32, String> {
    let by_name = || nix::unistd::User::from_name(user).ok().flatten().map(|user| user.uid.as_raw());
    user.parse().ok().filter(|uid| *uid != u32::MAX).or_else(by_name).ok_or_else(|| "no such user".into())
}

fn parse_group(group: &str) -> Result<u32, String> {
    let by_name = || nix::unistd::Group::from_name(group).ok().flatten().map(|group| group.gid.as_raw());
    group.parse().ok().filter(|gid| *gid != u32::MAX).or_else(by_name).ok_or_else(|| "no such group".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand_all(words: &[&str], from_mount: bool) -> Result<Vec<String>, String> {
        let args = words.iter().map(OsString::from).collect();
        let expanded = expand_options(args, from_mount)?;
        Ok(expanded.into_iter().map(|word| word.into_string().unwrap()).collect())
    }

    #[test]
    fn command_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn fstab_options_become_long_options() {
        let cases: [(&[&str], &[&str]); 8] = [
            (&["w", "a", "b"], &["w", "a", "b"]),
            (&["w", "a", "-o", "ro,allow_other,uid=5", "b"], &["w", "a", "--allow-other", "--uid=5", "b"]),
            (&["w", "-oallow-other", "-f", "a"], &["w", "--allow-other", "-f", "a"]),
            (&["w", "-fvo", "uid=5", "-foallow-other", "a"], &["w", "-fv", "--uid=5", "-f", "--allow-other", "a"]),
            (&["w", "-o", r"fsname=a\,b\\c,,nofail,x-systemd.automount,comment=x,noauto"], &["w", r"--fsname=a,b\c"]),
            (&["w", "-o", "views=tensors:tree,log_file=/x=y"], &["w", "--views=tensors:tree", "--log-file=/x=y"]),
            (&["w", "mount", "a", "-o", "lenient"], &["w", "mount", "a", "--lenient"]),
            (&["w", "umount", "-o", "lenient"], &["w", "umount", "-o", "lenient"]),
        ];
        for (words, expected) in cases {
            assert_eq!(expand_all(words, false).unwrap(), expected);
        }
        assert_eq!(expand_all(&["w", "a", "b", "-o", "rw,dev,suid"], true).unwrap(), ["w", "a", "b"]);
        let remount = "ro,nosuid,remount,user_id=0,group_id=0,default_permissions,allow_other,uid=5,kernel_cache";
        let kept = ["w", "a", "b", "--remount=--allow-other,--uid=5"];
        assert_eq!(expand_all(&["w", "a", "b", "-o", remount], true).unwrap(), kept);
        assert!(expand_all(&["w", "a", "b", "-o", "remount,rw"], true).is_err());
        let errors = [
            ("rw", "option rw: mounts are read-only; remove it or use ro"),
            ("ro,bogus=1", "unknown mount option \"bogus=1\""),
            ("suid", "option suid: every mount is nosuid; remove it or use nosuid"),
            ("ro,exec", "option exec: nothing in a mount can be executed; remove it or use noexec"),
            ("remount,rw", "option rw: mounts are read-only; remove it or use ro"),
            ("remount,bogus", "unknown mount option \"bogus\""),
            ("uid", "option uid needs a value: uid=..."),
            ("lenient=1", "option lenient takes no value, but got lenient=1"),
        ];
        for (options, expected) in errors {
            assert_eq!(expand_all(&["w", "-o", options], false).unwrap_err(), expected);
        }
        assert_eq!(expand_all(&["w", "-o"], false).unwrap_err(), "-o needs a value");
    }

    #[test]
    fn mistaken_commands_name_the_similar_one() {
        let similar = |word: &str| {
            let message = mistaken_command(word)?;
            Some(message.split('`').nth(1)?.strip_prefix("weightfs ")?.to_owned())
        };
        let cases = [
            ("list", "ls"),
            ("info", "inspect"),
            ("inspct", "inspect"),
            ("unmount", "umount"),
            ("chekc", "check"),
            ("version", "--version"),
        ];
        for (word, command) in cases {
            assert_eq!(similar(word).as_deref(), Some(command), "{word}");
        }
        for word in ["model", "models", "absent", "llama", "mistral", "checkpoints", "x", "é", ""] {
            assert_eq!(similar(word), None, "{word}");
        }
        let commands = Cli::command();
        let shown = commands.get_subcommands().filter(|command| !command.is_hide_set());
        for command in shown {
            assert_eq!(similar(command.get_name()).as_deref(), Some(command.get_name()));
        }
    }

    #[test]
    fn mount_helper_call_is_rewritten() {
        let call = |words: &[&str]| {
            let args = helper_args(words.iter().map(OsString::from).collect())?;
            Ok::<_, String>(args.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" "))
        };
        let rewritten =
            call(&["mount.weightfs", "/a", "/b", "-sfnv", "-o", "rw,nofail", "-t", "fuse.weightfs"]).unwrap();
        assert_eq!(rewritten, "weightfs mount --fake --verbose -o rw,nofail -- /a /b");
        assert!(call(&["mount.weightfs", "/a"]).unwrap_err().starts_with("usage:"));
        assert_eq!(call(&["mount.weightfs", "/a", "/b", "-z"]).unwrap_err(), "unknown option -z");
    }
}
