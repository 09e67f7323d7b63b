//! The command line: knows its words, and how fstab's `-o` and mount(8)'s helper call are the same words in other form.

mod commands;
pub mod pattern;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weightfs::source::Location;
use weightfs::text;
use weightfs::view::{self, Shown};

pub use commands::*;

/// What was asked for.
pub struct Invocation {
    /// The command and its arguments.
    pub command: Command,
    /// How failure is told.
    pub codes: Codes,
}

/// The exit codes, which depend on the name by which the program was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codes {
    /// 1 failed, 2 usage.
    Weightfs,
    /// As mount(8) has them: 32 mount failure, 1 usage.
    MountHelper,
}

impl Codes {
    /// It did not work.
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
  weightfs model.safetensors            mount on ./model, made for it
  weightfs model.safetensors /mnt       mount on /mnt
  ls -l model/tensors                   every tensor is a file
  weightfs umount model                 the same as `umount model`
  weightfs ls model.safetensors         list tensors without mounting

Exit status: 0 done, 1 failed, 2 wrong usage. `weightfs COMMAND --help` tells more of a command.";

/// Mount model weights as a read-only file system: every tensor is a file.
#[derive(Parser)]
#[command(name = "weightfs", version, after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
#[command(subcommand_negates_reqs = true, disable_help_subcommand = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    mount: Option<MountArgs>,
}

/// All words, for those who describe them.
pub fn words() -> clap::Command {
    Cli::command()
}

/// What weightfs can do.
#[derive(Subcommand, Debug, PartialEq)]
pub enum Command {
    /// Mount SOURCE (what `weightfs SOURCE` does as well)
    Mount(MountArgs),
    /// Unmount a model
    Umount(UmountArgs),
    /// List tensors
    Ls(LsArgs),
    /// Tell what a model is
    Inspect(InspectArgs),
    /// Print the structural hash of a model
    Id(IdArgs),
    /// Print the structural hash and counts in one line
    Summary(SummaryArgs),
    /// Find what is wrong with a model
    Check(CheckArgs),
    /// Tell what differs between two models
    Diff(DiffArgs),
    /// Read or change the metadata of a file
    Metadata(MetadataArgs),
    /// Write a model as one file or several
    Export(ExportArgs),
    /// Write the manual page and shell completions below DIR
    #[command(hide = true)]
    WriteDocs {
        /// Where `share` is to be
        dir: PathBuf,
    },
}

/// How to mount.
#[derive(Args, Debug, PartialEq)]
pub struct MountArgs {
    /// A .safetensors file, the index of a sharded model (.safetensors.index.json), a dataset
    /// (dataset_manifest.json), or a directory with one model or several
    #[arg(value_parser = location())]
    pub source: Location,

    /// An empty directory; by default one named after SOURCE is made here, and removed at unmount
    pub mountpoint: Option<PathBuf>,

    /// Stay in the foreground; Ctrl-C unmounts
    #[arg(short, long)]
    pub foreground: bool,

    /// Mount options as in fstab: the long options below without their dashes, and fstab's own
    // Expanded before clap sees the command line; here for the help only.
    #[arg(short, value_name = "OPT[,OPT...]")]
    options: Vec<String>,

    // The names come from the table of views.
    #[arg(long, value_name = "VIEW[,VIEW...]", value_parser = parse_views, help = views_help())]
    pub views: Option<Shown>,

    /// Mount what is sound in a damaged file, and report the rest
    #[arg(long)]
    pub lenient: bool,

    /// Let other users in, as far as the permissions of SOURCE let them
    #[arg(long, conflicts_with = "allow_root")]
    pub allow_other: bool,

    /// Let root in
    #[arg(long)]
    pub allow_root: bool,

    /// Owner of the files [default: that of SOURCE]
    #[arg(long, value_name = "USER", value_parser = parse_user)]
    pub uid: Option<u32>,

    /// Group of the files [default: that of SOURCE]
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    pub gid: Option<u32>,

    /// Permission bits to take away, in octal
    #[arg(long, value_name = "MASK", value_parser = parse_umask)]
    pub umask: Option<u16>,

    /// What /proc/mounts shows as the source [default: the path of SOURCE]
    #[arg(long, value_name = "NAME")]
    pub fsname: Option<String>,

    /// Most bytes that the kernel asks for at once
    #[arg(long, value_name = "BYTES")]
    pub max_read: Option<u32>,

    /// Mount over a directory that is not empty
    #[arg(long)]
    pub nonempty: bool,

    /// Read past the mount's own page cache: for data that is read once, in large blocks
    #[arg(long)]
    pub direct_io: bool,

    /// Threads that serve requests [default: one for each core, 2 to 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,

    /// Leave the daemon all rights of who mounts [default: it can open SOURCE and no other file]
    #[arg(long)]
    pub no_sandbox: bool,

    /// Append messages to this file [default: standard error, in the background syslog]
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,

    /// Say more; the variable RUST_LOG says what exactly
    #[arg(short, long)]
    pub verbose: bool,

    /// Check everything and mount nothing (mount(8)'s -f)
    #[arg(long, hide = true)]
    pub fake: bool,
}

/// How to unmount.
#[derive(Args, Debug, PartialEq)]
pub struct UmountArgs {
    /// Where the model is mounted
    pub mountpoint: PathBuf,

    /// Detach now, even while files are in use
    #[arg(short, long)]
    pub lazy: bool,
}

/// fstab's own options, which say nothing to us: the mount is read-only, nosuid, nodev, noexec and noatime in any case.
const WITHOUT_EFFECT: [&str; 19] = [
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
];

/// What mount(8) adds of its own accord when nobody said otherwise: `rw`, and `dev,suid` by way of mount.fuse3.
const ADDED_BY_MOUNT: [&str; 3] = ["rw", "dev", "suid"];

/// Why a command line names no command.
pub enum NoCommand {
    /// Help or version were asked for; this is the text.
    Text(clap::Error),
    /// It is wrong; this says why, in one line.
    Usage(String),
}

/// Reads the command line. What is wrong with it is printed already; so are help and version.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, ExitCode> {
    let args: Vec<OsString> = args.into_iter().collect();
    let called = args.first().and_then(|name| Path::new(name).file_name()).unwrap_or_default();
    let helper = matches!(called.to_str(), Some("mount.weightfs" | "mount.fuse.weightfs"));
    let codes = if helper { Codes::MountHelper } else { Codes::Weightfs };
    match read(args, helper, helper || run_by_mount()) {
        Ok(command) => Ok(Invocation { command, codes }),
        // Standard output may be closed; there is nobody else to tell.
        Err(NoCommand::Text(text)) => {
            let _ = text.print();
            Err(ExitCode::SUCCESS)
        }
        Err(NoCommand::Usage(message)) => {
            let _ = writeln!(io::stderr(), "weightfs: {}", text::message(&message));
            Err(codes.usage())
        }
    }
}

/// The command that `args` name, in the words of mount(8)'s helper if it was called as that.
pub fn read(mut args: Vec<OsString>, helper: bool, from_mount: bool) -> Result<Command, NoCommand> {
    if helper {
        args = helper_args(args).map_err(NoCommand::Usage)?;
    }
    let args = name_mount(expand_options(args, from_mount).map_err(NoCommand::Usage)?);
    let command = Cli::try_parse_from(args).and_then(|cli| {
        let missing = || Cli::command().error(ErrorKind::MissingRequiredArgument, "name a SOURCE to mount");
        cli.command.or(cli.mount.map(Command::Mount)).ok_or_else(missing)
    });
    command.map_err(|error| match error.use_stderr() {
        true => NoCommand::Usage(one_line(&error.to_string())),
        false => NoCommand::Text(error),
    })
}

/// What clap says in several lines, the first of which begins with "error:", without its advice.
fn one_line(error: &str) -> String {
    let paragraph = error.split("\n\n").next().unwrap_or_default();
    let lines: Vec<&str> = paragraph.lines().map(str::trim).collect();
    format!("{} (see --help)", lines.join(" ").trim_start_matches("error: "))
}

/// Rewrites `mount.weightfs SOURCE DIR [-sfnv] [-N namespace] [-o options] [-t type]`, which mount(8) calls.
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
                        // Sloppy and no-mtab mean nothing here.
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

/// Writes out the `mount` that may be left out, so that an error speaks of a mount. Help and version are of the whole.
fn name_mount(mut args: Vec<OsString>) -> Vec<OsString> {
    let of_the_whole = |word: &OsString| matches!(word.to_str(), Some("-h" | "--help" | "-V" | "--version"));
    let command = Cli::command();
    let names_one = |word: &OsString| command.get_subcommands().any(|known| OsStr::new(known.get_name()) == word);
    if args.len() > 1 && !args.iter().any(of_the_whole) && !args.get(1).is_some_and(names_one) {
        args.insert(1, "mount".into());
    }
    args
}

/// Replaces each `-o a,b=c` of a mount by `--a --b=c`, and drops what has no effect.
fn expand_options(args: Vec<OsString>, from_mount: bool) -> Result<Vec<OsString>, String> {
    let is_command = |word: &OsString| {
        let command = Cli::command();
        command.get_subcommands().any(|known| known.get_name() != "mount" && OsStr::new(known.get_name()) == word)
    };
    if args.get(1).is_some_and(is_command) {
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
        // `-o a`, `-oa`, and, as getopt(3) has it, `-fo a` and `-foa`.
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
        for option in split(options) {
            expanded.extend(expand(&option, from_mount)?.map(OsString::from));
        }
    }
    Ok(expanded)
}

/// The ordinary option for one of `-o`, if it has any effect.
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
    if option == "rw" {
        return Err("option rw: a model is mounted read-only; leave it out or say ro".into());
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

/// Splits at commas; as in libfuse a backslash takes the next character as it is.
fn split(options: &str) -> Vec<String> {
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

/// Whether mount(8) runs us, by way of mount.fuse3: that calls the program by its own name, through a shell, which may
/// stay in between.
fn run_by_mount() -> bool {
    let status = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field =
        |status: &str, name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
    let parent = status(&nix::unistd::getppid().to_string());
    let grandparent = field(&parent, "PPid:").map(|pid| status(&pid)).unwrap_or_default();
    [parent, grandparent].iter().any(|status| field(status, "Name:").as_deref() == Some("mount"))
}

/// Parses the place of a file or a directory.
fn location() -> impl TypedValueParser<Value = Location> {
    PathBufValueParser::new().map(Location::from)
}

fn views_help() -> String {
    let mut names = view::names();
    names.sort_unstable();
    format!("Show these only: {} [default: all]", names.join(", "))
}

/// Names with commas, or with colons where a comma would end the option: `-o views=tensors:tree`.
fn parse_views(names: &str) -> Result<Shown, String> {
    view::shown(names.split([',', ':'])).map_err(|error| error.to_string())
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
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_of_fstab_become_ordinary_ones() {
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
        let errors = [
            ("rw", "option rw: a model is mounted read-only; leave it out or say ro"),
            ("ro,bogus=1", "unknown mount option \"bogus=1\""),
            ("suid", "unknown mount option \"suid\""),
            ("uid", "option uid needs a value: uid=..."),
            ("lenient=1", "option lenient takes no value, but got lenient=1"),
        ];
        for (options, expected) in errors {
            assert_eq!(expand_all(&["w", "-o", options], false).unwrap_err(), expected);
        }
        assert_eq!(expand_all(&["w", "-o"], false).unwrap_err(), "-o needs a value");
    }

    #[test]
    fn the_call_of_mount_8_is_understood() {
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
