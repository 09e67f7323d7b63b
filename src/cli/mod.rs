//! The command line: its options and help text. Also translates `-o` options, as in fstab, and the arguments that
//! mount(8) passes to its helpers.

mod commands;
pub mod complete;
pub mod pattern;
pub mod slice;
pub mod source;
mod value;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weightfs::text;

pub use commands::*;

pub struct Invocation {
    pub command: Command,
    /// The exit code of a failure.
    pub failure: ExitCode,
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

/// The definition of the command line.
pub fn definition() -> clap::Command {
    with_unbroken_help(Cli::command())
}

/// Joins the lines of each paragraph below the options, because clap wraps them to the width of the terminal.
fn with_unbroken_help(command: clap::Command) -> clap::Command {
    let help = command.get_after_help().map(|help| join_paragraphs(&help.to_string()));
    let command = command.mut_subcommands(with_unbroken_help);
    match help {
        Some(help) => command.after_help(help),
        None => command,
    }
}

/// Joins lines, except those that are indented and those after a heading or an empty line.
fn join_paragraphs(text: &str) -> String {
    let mut joined = String::new();
    let mut breaks = true;
    for line in text.lines() {
        let stands_alone = line.is_empty() || line.starts_with(' ');
        if !joined.is_empty() {
            joined.push(if breaks || stands_alone { '\n' } else { ' ' });
        }
        joined.push_str(line);
        breaks = stands_alone || line.ends_with(':');
    }
    joined
}

/// Options of mount(8) and libfuse that are accepted and ignored. Every mount is read-only, nosuid, nodev, noexec and
/// noatime, and the kernel keeps its cache when a file is opened again.
const WITHOUT_EFFECT: &str = "ro defaults user users nouser owner group auto noauto nofail _netdev nosuid nodev noexec \
                              noatime nodiratime relatime default_permissions async kernel_cache";

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
    let args = options_after_command(args.into_iter().collect());
    let called = args.first().and_then(|name| Path::new(name).file_name()).unwrap_or_default();
    let helper = matches!(called.to_str(), Some("mount.weightfs" | "mount.fuse.weightfs"));
    let mistaken = args.get(1).filter(|_| !helper).and_then(|word| mistaken_command(word.to_str()?));
    let parsed = mistaken.map_or_else(
        || read_arguments(args, helper, helper || run_by_mount()),
        |mistake| Err(NoCommand::Usage(mistake)),
    );
    // The exit codes of a helper are those of mount(8).
    match parsed {
        Ok(command) if helper => Ok(Invocation { command, failure: ExitCode::from(32) }),
        Ok(command) => Ok(Invocation { failure: ExitCode::from(command.failure()), command }),
        // If standard output is closed, the text is lost.
        Err(NoCommand::Text(text)) => {
            let _ = text.print();
            Err(ExitCode::SUCCESS)
        }
        Err(NoCommand::Usage(message)) => {
            let _ = writeln!(io::stderr(), "weightfs: {}", text::message(&message));
            Err(ExitCode::from(if helper { 1 } else { 2 }))
        }
    }
}

/// Parses `args`. If `helper`, they have the form in which mount(8) calls its helpers. If `from_mount`, the options
/// that mount(8) adds are accepted.
pub fn read_arguments(mut args: Vec<OsString>, helper: bool, from_mount: bool) -> Result<Command, NoCommand> {
    if helper {
        args = helper_args(args).map_err(NoCommand::Usage)?;
    }
    let args = insert_mount(expand_options(args, from_mount).map_err(NoCommand::Usage)?);
    let matches = definition().try_get_matches_from(&args).map_err(|error| match several_sources(&args, &error) {
        Some(several) => NoCommand::Usage(several),
        None => clap_error(error),
    })?;
    if let Some(url) = url_for_path(&matches) {
        let message = format!("{url}: a path is needed here; only sources can be URLs");
        return Err(NoCommand::Usage(source::without_secrets(&message)));
    }
    let cli = Cli::from_arg_matches(&matches).map_err(clap_error)?;
    let Some(command) = cli.command.or(cli.mount.map(Command::Mount)) else {
        return Err(clap_error(Cli::command().error(ErrorKind::MissingRequiredArgument, "name a SOURCE to mount")));
    };
    match command.mistake() {
        Some(mistake) => Err(NoCommand::Usage(mistake.into())),
        None => Ok(command),
    }
}

/// The error for a mount of several files, such as `model-*.safetensors`, which the shell expands.
fn several_sources(args: &[OsString], error: &clap::Error) -> Option<String> {
    let [_, command, words @ ..] = args else { return None };
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
    if command != "mount" || error.kind() != ErrorKind::UnknownArgument || unknown.starts_with('-') {
        return None;
    }
    let files = words.iter().filter(|word| Path::new(word).is_file()).count();
    (files > 1).then(|| format!("{files} files: {SEVERAL_SOURCES}"))
}

fn clap_error(error: clap::Error) -> NoCommand {
    match error.use_stderr() {
        true => {
            let line = one_line(&error.to_string(), suggestion(&error));
            NoCommand::Usage(source::without_secrets(&line))
        }
        false => NoCommand::Text(error),
    }
}

/// A URL that was given for an argument that is a path of this machine: a mount point, or a file that is written.
fn url_for_path(matches: &ArgMatches) -> Option<&str> {
    let paths = matches.ids().filter_map(|id| matches.try_get_many::<PathBuf>(id.as_str()).ok().flatten()).flatten();
    let url = paths.filter_map(|path| path.to_str()).find(|path| source::is_url(path));
    url.or_else(|| url_for_path(matches.subcommand()?.1))
}

/// What the user may have meant.
fn suggestion(error: &clap::Error) -> Option<&str> {
    let kinds = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(word) => Some(&**word),
        ContextValue::Strings(words) => words.first().map(String::as_str),
        _ => None,
    })
}

/// The first paragraph of a clap error in one line, without the prefix `error:`, and a suggestion. Usage and tips
/// follow in other paragraphs.
fn one_line(error: &str, meant: Option<&str>) -> String {
    let paragraph = error.split("\n\n").next().unwrap_or_default();
    let lines: Vec<&str> = paragraph.lines().map(str::trim).collect();
    let hint = meant.map_or_else(|| "see --help".to_owned(), |meant| format!("did you mean {meant}?"));
    format!("{} ({hint})", lines.join(" ").trim_start_matches("error: "))
}

/// Rewrites `mount.weightfs SOURCE DIR [-sfnv] [-N namespace] [-o options] [-t type]`, the form in which mount(8) calls
/// its helpers, to `weightfs mount`.
fn helper_args(args: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let mut words = args.into_iter().skip(1);
    let mut rewritten: Vec<OsString> = vec!["weightfs".into(), "mount".into(), "--quiet".into()];
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

/// Moves `-v` that precedes a command behind it.
fn options_after_command(mut args: Vec<OsString>) -> Vec<OsString> {
    let before = args.iter().skip(1).take_while(|word| matches!(word.to_str(), Some("-v" | "--verbose"))).count();
    if args.get(1 + before).is_some_and(|word| is_command(word)) {
        args[1..2 + before].rotate_right(1);
    }
    args
}

/// Inserts the optional `mount`, so that usage errors refer to that command. `--help` and `--version` without a command
/// stay those of the program.
fn insert_mount(mut args: Vec<OsString>) -> Vec<OsString> {
    let is_global = args.iter().any(|word| matches!(word.to_str(), Some("-h" | "--help" | "-V" | "--version")));
    if !is_global && args.get(1).is_some_and(|word| !is_command(word)) {
        args.insert(1, "mount".into());
    }
    args
}

fn is_command(word: &OsStr) -> bool {
    word == HELP || Cli::command().get_subcommands().any(|known| OsStr::new(known.get_name()) == word)
}

/// The command that clap adds.
const HELP: &str = "help";

/// The error for a first word that is neither a file nor a command, but resembles a command.
fn mistaken_command(word: &str) -> Option<String> {
    let may_be_command = !word.starts_with('-') && !word.contains(['.', '/']);
    if !may_be_command || is_command(word.as_ref()) || Path::new(word).symlink_metadata().is_ok() {
        return None;
    }
    let meant = MISTAKEN.iter().find(|(_, words)| words.contains(&word)).map(|(name, _)| (*name).to_owned());
    let command = meant.or_else(|| similar_command(word))?;
    Some(format!("{word}: No such file or directory, and no such command; did you mean `weightfs {command}`?"))
}

/// The command whose name clap finds similar to `word`.
fn similar_command(word: &str) -> Option<String> {
    /// Names of models often begin with the name of a command, such as `checkpoints`.
    const LONGER: usize = 2;
    let definition = Cli::command();
    let shown = definition.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let parser = clap::Command::new("weightfs").subcommand_required(true).subcommands(shown);
    let error = parser.try_get_matches_from(["weightfs", word]).err()?;
    let Some(ContextValue::Strings(similar)) = error.get(ContextKind::SuggestedSubcommand) else { return None };
    // The most similar name is the last one.
    let similar = similar.last()?;
    // Any letter resembles a command, and `model` resembles `demo`.
    let begins = word.bytes().next() == similar.bytes().next();
    (begins && word.len() > LONGER && word.len().abs_diff(similar.len()) <= LONGER).then(|| similar.clone())
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
        let text = word.to_str().unwrap_or_default();
        let options = text.strip_prefix('-').map(|flags| flags.trim_start_matches(['f', 'v']));
        let options = match options.map(|options| text.split_at(text.len() - options.len())) {
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
    let mut long = Vec::new();
    for option in others {
        let name = option.split('=').next().unwrap_or_default();
        if !remount || !COPIED_BY_REMOUNT.contains(&name) {
            // mount(8) adds `rw` to the options of a new mount only.
            long.extend(expand(option, from_mount && !remount)?);
        }
    }
    Ok(if remount { vec![format!("--remount={}", long.join(","))] } else { long })
}

/// The long option for one `-o` option. `None` if it has no effect.
fn expand(option: &str, from_mount: bool) -> Result<Option<String>, String> {
    let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
    if option.is_empty()
        || WITHOUT_EFFECT.split(' ').any(|ignored| ignored == option)
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
    let parent = nix::unistd::getppid().to_string();
    let grandparent = process_status(&parent, "PPid:");
    [Some(parent), grandparent].iter().flatten().any(|pid| process_status(pid, "Name:").as_deref() == Some("mount"))
}

/// A field of /proc/PID/status.
fn process_status(pid: &str, field: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix(field)?.trim().to_owned()))
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
        for (command, words) in MISTAKEN {
            assert!(command == "--version" || is_command(command.as_ref()), "{command}");
            assert!(words.iter().all(|word| similar(word).as_deref() == Some(command)), "{command}");
        }
    }

    /// A paragraph is broken only where the next word would not fit.
    #[test]
    fn help_is_wrapped_once() {
        const WIDTH: usize = 80;
        for mut command in definition().get_subcommands().cloned().map(|command| command.term_width(WIDTH)) {
            let help = command.render_long_help().to_string();
            // Headings and lines of options, examples and lists are indented or end with a colon.
            let after = help.rsplit_once("\n\n      ").map_or("", |(_, after)| after);
            let after = after.split_once("\n\n").map_or("", |(_, after)| after);
            let lines: Vec<&str> = after.lines().collect();
            for pair in lines.windows(2) {
                let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
                if is_text(pair[0]) && is_text(pair[1]) {
                    let word = pair[1].split(' ').next().unwrap_or_default();
                    assert!(pair[0].len() + 1 + word.len() > WIDTH, "{}: {pair:?}", command.get_name());
                }
            }
        }
        let joined = join_paragraphs("Examples:\n  a  b\n  c\n\nOne\ntwo.\nThree:\n  d\n\nEnd");
        assert_eq!(joined, "Examples:\n  a  b\n  c\n\nOne two. Three:\n  d\n\nEnd");
    }

    #[test]
    fn mount_helper_call_is_rewritten() {
        let call = |words: &[&str]| {
            let args = helper_args(words.iter().map(OsString::from).collect())?;
            Ok::<_, String>(args.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" "))
        };
        let rewritten =
            call(&["mount.weightfs", "/a", "/b", "-sfnv", "-o", "rw,nofail", "-t", "fuse.weightfs"]).unwrap();
        assert_eq!(rewritten, "weightfs mount --quiet --fake --verbose -o rw,nofail -- /a /b");
        assert!(call(&["mount.weightfs", "/a"]).unwrap_err().starts_with("usage:"));
        assert_eq!(call(&["mount.weightfs", "/a", "/b", "-z"]).unwrap_err(), "unknown option -z");
    }
}
