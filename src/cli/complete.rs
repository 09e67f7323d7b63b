//! Completion: what the next word of an unfinished command line may be. The scripts in docs/completions show it in
//! bash, fish and zsh.

use super::definition;
use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Command, ValueHint};
use weightfs::view;

// The ids of arguments whose values have their own completion: the names of fields of the structs of arguments.
const VIEWS: &str = "views";
const OPTIONS: &str = "options";
const MOUNTPOINTS: &str = "mountpoints";
const GROUP: &str = "gid";
const MOUNT_PATHS: &str = "paths";
const TENSOR: &str = "tensor";
const PATTERNS: &str = "more";
const KEYS: &str = "keys";

/// The candidates for completing a word.
#[derive(Debug, PartialEq)]
pub struct CompletionKind {
    /// The beginning of the word that stays as it is, such as `--views=npy,`.
    pub kept: String,
    /// The words that may follow it, with descriptions.
    pub words: Vec<(String, String)>,
    /// The other words that may follow it.
    pub others: OtherCandidates,
    /// What of a model may follow it.
    pub of_model: Option<ModelCandidates>,
}

/// Candidates that a model has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCandidates {
    pub kind: ModelCandidateKind,
    /// The path of the model, as it was typed.
    pub source: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelCandidateKind {
    /// Paths of files in a mount.
    Paths,
    Tensors,
    /// Keys of the metadata.
    Keys,
}

/// Candidates that are not part of the command line's definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherCandidates {
    Nothing,
    Files,
    Directories,
    Mountpoints,
    Users,
    Groups,
}

/// Completes the last of `words`, the arguments up to the cursor.
pub fn complete_word(words: &[String]) -> CompletionKind {
    let mut definition = definition();
    definition.build();
    let (word, before) = words.split_last().map_or(("", words), |(word, before)| (&word[..], before));
    let mut line = CompletedLine {
        command: &definition,
        operands: Vec::new(),
        used: Vec::new(),
        awaiting: None,
        only_operands: false,
    };
    for word in before {
        line.push(word);
    }
    line.complete(word)
}

/// The command line before the cursor.
struct CompletedLine<'c> {
    command: &'c Command,
    operands: Vec<String>,
    used: Vec<&'c Arg>,
    /// The option whose value is the next word.
    awaiting: Option<&'c Arg>,
    /// Whether there was a `--`.
    only_operands: bool,
}

impl<'c> CompletedLine<'c> {
    fn push(&mut self, word: &str) {
        if self.awaiting.take().is_some() {
        } else if word == "--" && !self.only_operands {
            self.only_operands = true;
        } else if let Some((options, value)) = self.options(word) {
            // The last of several options may take a value.
            self.awaiting = options.last().copied().filter(|option| value.is_none() && takes_value(option));
            self.used.extend(options);
        } else if let Some(command) = self.subcommands().find(|command| command.get_name() == word) {
            self.command = command;
        } else {
            self.operands.push(word.to_owned());
        }
    }

    /// The options in a word, and the start of the value of the last one, if the word contains it. `None` if the word
    /// is an operand.
    fn options(&self, word: &str) -> Option<(Vec<&'c Arg>, Option<usize>)> {
        if self.only_operands || !word.starts_with('-') || word == "-" {
            return None;
        }
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) = match long.find('=') {
                Some(at) => (&long[..at], Some(2 + at + 1)),
                None => (long, None),
            };
            let option = self.command.get_arguments().find(|option| option.get_long() == Some(name));
            return Some((option.into_iter().collect(), value));
        }
        let mut options = Vec::new();
        for (at, letter) in word.char_indices().skip(1) {
            let option = self.command.get_arguments().find(|option| option.get_short() == Some(letter));
            options.extend(option);
            if option.is_some_and(takes_value) {
                let value = at + letter.len_utf8();
                return Some((options, (value < word.len()).then_some(value)));
            }
        }
        Some((options, None))
    }

    /// The commands that the next word may name. Options before it belong to `mount`.
    fn subcommands(&self) -> impl Iterator<Item = &'c Command> + use<'c> {
        let possible = self.operands.is_empty() && self.used.is_empty() && !self.only_operands;
        let command = self.command;
        command.get_subcommands().filter(move |_| possible)
    }

    fn complete(&self, word: &str) -> CompletionKind {
        if let Some(option) = self.awaiting {
            return complete_value(option, self.command, String::new(), word);
        }
        match self.options(word) {
            Some((options, Some(at))) => match options.last() {
                Some(option) => complete_value(option, self.command, word[..at].to_owned(), &word[at..]),
                None => nothing(String::new()),
            },
            Some(_) => self.complete_option(),
            None if word == "-" && !self.only_operands => self.complete_option(),
            None => self.complete_operand(word),
        }
    }

    fn complete_option(&self) -> CompletionKind {
        let shown = self.command.get_opts().chain(self.command.get_arguments().filter(|option| !takes_value(option)));
        let mut words: Vec<(String, String)> = shown
            .filter(|option| !option.is_hide_set())
            .filter(|option| repeats(option) || !self.used.iter().any(|used| used.get_id() == option.get_id()))
            .filter_map(|option| {
                let long = option.get_long().map(|long| format!("--{long}"));
                let word = long.or_else(|| option.get_short().map(|short| format!("-{short}")))?;
                Some((word, help(option)))
            })
            .collect();
        words.sort();
        these_words(String::new(), words)
    }

    fn complete_operand(&self, word: &str) -> CompletionKind {
        let positionals: Vec<&Arg> = self.command.get_positionals().collect();
        let operand = positionals.get(self.operands.len()).or(positionals.last().filter(|last| repeats(last)));
        let mut completion = match operand {
            Some(operand) => complete_value(operand, self.command, String::new(), word),
            None => nothing(String::new()),
        };
        let kind = operand.and_then(|operand| match operand.get_id().as_str() {
            MOUNT_PATHS => Some(ModelCandidateKind::Paths),
            TENSOR | PATTERNS => Some(ModelCandidateKind::Tensors),
            KEYS => Some(ModelCandidateKind::Keys),
            _ => None,
        });
        let source = self.operands.first().cloned();
        completion.of_model = kind.zip(source).map(|(kind, source)| ModelCandidates { kind, source });
        let commands = self.subcommands().filter(|command| !command.is_hide_set());
        let words = commands.map(|command| (command.get_name().to_owned(), help_text(command.get_about())));
        completion.words.extend(words);
        completion
    }
}

fn nothing(kept: String) -> CompletionKind {
    these_words(kept, Vec::new())
}

fn these_words(kept: String, words: Vec<(String, String)>) -> CompletionKind {
    CompletionKind { kept, words, others: OtherCandidates::Nothing, of_model: None }
}

fn repeats(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Append)
}

fn takes_value(option: &Arg) -> bool {
    option.get_action().takes_values()
}

/// Whether it is `--help` or `--version`, which are not mount options.
fn is_global(option: &Arg) -> bool {
    !matches!(option.get_action(), ArgAction::Set | ArgAction::SetTrue)
}

/// The first line of the help text of an option.
fn help(option: &Arg) -> String {
    help_text(option.get_help()).lines().next().unwrap_or_default().to_owned()
}

fn help_text(text: Option<&StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}

/// The name of an option after `-o`.
fn mount_option(option: &Arg) -> Option<String> {
    Some(option.get_long()?.replace('-', "_"))
}

/// Completes the value of an option or an operand of `command`. The word is `kept` and then `text`.
fn complete_value(argument: &Arg, command: &Command, kept: String, text: &str) -> CompletionKind {
    match argument.get_id().as_str() {
        VIEWS => {
            let start = text.rfind([',', ':']).map_or(0, |at| at + 1);
            let used: Vec<&str> = text[..start].split([',', ':']).collect();
            let mut names = view::names();
            names.retain(|name| !used.contains(name));
            names.sort_unstable();
            let words = names.into_iter().map(|name| (name.to_owned(), String::new())).collect();
            return these_words(kept + &text[..start], words);
        }
        OPTIONS => {
            let start = text.rfind(',').map_or(0, |at| at + 1);
            let (kept, option) = (kept + &text[..start], &text[start..]);
            if let Some((name, text)) = option.split_once('=') {
                let wanted = Some(name.replace('-', "_"));
                let known = command.get_opts().find(|known| mount_option(known) == wanted);
                let kept = format!("{kept}{name}=");
                return known.map_or(nothing(kept.clone()), |known| complete_value(known, command, kept, text));
            }
            let shown = command.get_arguments().filter(|option| !option.is_hide_set() && !is_global(option));
            let words = shown.filter_map(|option| {
                let equals = if takes_value(option) { "=" } else { "" };
                Some((mount_option(option)? + equals, help(option)))
            });
            let mut words: Vec<(String, String)> = words.collect();
            words.sort();
            return these_words(kept, words);
        }
        _ => {}
    }
    let possible = argument.get_possible_values();
    if takes_value(argument) && !possible.is_empty() {
        let start = argument.get_value_delimiter().and_then(|mark| text.rfind(mark)).map_or(0, |at| at + 1);
        let (used, shown) = (&text[..start], possible.iter().filter(|value| !value.is_hide_set()));
        let words = shown.map(|value| (value.get_name().to_owned(), help_text(value.get_help())));
        return these_words(kept + used, words.collect());
    }
    let others = match (argument.get_id().as_str(), argument.get_value_hint()) {
        (MOUNTPOINTS, _) => OtherCandidates::Mountpoints,
        (GROUP, _) => OtherCandidates::Groups,
        (_, ValueHint::Username) => OtherCandidates::Users,
        (_, ValueHint::DirPath) => OtherCandidates::Directories,
        (_, ValueHint::AnyPath | ValueHint::FilePath) => OtherCandidates::Files,
        _ => OtherCandidates::Nothing,
    };
    CompletionKind { others, ..nothing(kept) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> (String, Vec<String>, OtherCandidates) {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let CompletionKind { kept, words, others, .. } = complete_word(&words);
        (kept, words.into_iter().map(|(word, _)| word).collect(), others)
    }

    #[test]
    fn commands_and_files_complete_the_first_word_only() {
        let (_, words, others) = of("");
        assert!(["mount", "umount", "ls", "help"].iter().all(|command| words.iter().any(|word| word == command)));
        assert!(!words.iter().any(|word| word.starts_with('-') || word == "write-docs"), "{words:?}");
        assert_eq!(others, OtherCandidates::Files);
        for line in
            ["-v ", "-- ", "mount ", "ls ", "inspect a ", "ls a ", "export ", "export a ", "diff a ", "--log-file "]
        {
            assert_eq!(of(line), (String::new(), vec![], OtherCandidates::Files), "{line:?}");
        }
        for line in ["a ", "mount a ", "-v a ", "--uid 5 a ", "-fo ro a "] {
            assert_eq!(of(line).2, OtherCandidates::Directories, "{line:?}");
        }
        for line in ["a b ", "ls --depth ", "metadata get a ", "diff a b ", "cache list ", "--nosuch="] {
            assert_eq!(of(line), (String::new(), vec![], OtherCandidates::Nothing), "{line:?}");
        }
        assert_eq!(of("metadata ").1, ["get", "set", "remove", "clear", "help"]);
        assert_eq!(of("cache ").1, ["list", "prune", "clear", "help"]);
        assert_eq!(of("cache prune --").1, ["--dry-run", "--help", "--json", "--older-than", "--size"]);
        assert!(of("help ").1.contains(&"metadata".to_owned()));
    }

    #[test]
    fn options_complete_a_dash_unless_they_were_given() {
        let (_, words, others) = of("mount -");
        assert_eq!(others, OtherCandidates::Nothing);
        assert!(words.iter().all(|word| word.len() > 2 || word == "-o"), "{words:?}");
        let has = |line: &str, option: &str| of(line).1.iter().any(|word| word == option);
        assert!(has("--", "--allow-other") && has("a --v", "--views") && has("ls a --", "--sort"));
        assert!(!has("--views=npy --", "--views") && !has("-f -", "--foreground") && !has("--", "--fake"));
        assert!(has("-o ro -", "-o") && !has("-- -", "-o"));
    }

    #[test]
    fn lists_complete_their_last_item() {
        let words = |line: &str| {
            let (kept, words, others) = of(line);
            assert_eq!(others, OtherCandidates::Nothing);
            (kept, words)
        };
        let views = view::names().len();
        for (line, kept, count) in [
            ("--views ", "", views),
            ("--views npy,", "npy,", views - 1),
            ("mount --views=npy,tree,x", "--views=npy,tree,", views - 2),
            ("a -o ro,views=npy:", "ro,views=npy:", views - 1),
            ("a -oviews=", "-oviews=", views),
        ] {
            let (found, words) = words(line);
            assert_eq!((&found[..], words.len()), (kept, count), "{line}");
        }
        let (kept, options) = words("a b -o lenient,");
        assert_eq!(kept, "lenient,");
        for option in ["allow_other", "uid=", "views=", "auto_unmount"] {
            assert!(options.iter().any(|word| word == option), "{option}: {options:?}");
        }
        assert!(!options.iter().any(|word| word == "help" || word == "version" || word == "remount="));
        let keys = ["name", "dtype", "shape", "size", "offset"].map(str::to_owned);
        assert_eq!(words("ls --sort "), (String::new(), keys.to_vec()));
        assert_eq!(words("ls --sort dtype,s"), ("dtype,".to_owned(), keys.to_vec()));
    }

    #[test]
    fn models_complete_their_paths_tensors_and_keys() {
        let of_model = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            complete_word(&words).of_model.map(|candidates| (candidates.kind, candidates.source))
        };
        for (line, kind) in [
            ("cat m ", ModelCandidateKind::Paths),
            ("cat --offset 5 m x ", ModelCandidateKind::Paths),
            ("cp m ten", ModelCandidateKind::Paths),
            ("show m ", ModelCandidateKind::Tensors),
            ("ls m a", ModelCandidateKind::Tensors),
            ("metadata get m ", ModelCandidateKind::Keys),
            ("metadata remove m a ", ModelCandidateKind::Keys),
        ] {
            assert_eq!(of_model(line), Some((kind, "m".into())), "{line}");
        }
        for line in ["cat ", "ls ", "show m x ", "inspect m ", "cat m --"] {
            assert_eq!(of_model(line), None, "{line}");
        }
    }

    #[test]
    fn users_groups_and_mount_points_complete_their_arguments() {
        for (line, kept, others) in [
            ("--uid ", "", OtherCandidates::Users),
            ("-o uid=", "uid=", OtherCandidates::Users),
            ("a -ogid=", "-ogid=", OtherCandidates::Groups),
            ("-o log_file=/tmp/", "log_file=", OtherCandidates::Files),
            ("--log-file=/tmp/", "--log-file=", OtherCandidates::Files),
            ("umount ", "", OtherCandidates::Mountpoints),
            ("umount -l a ", "", OtherCandidates::Mountpoints),
        ] {
            assert_eq!(of(line), (kept.to_owned(), vec![], others), "{line:?}");
        }
    }
}
