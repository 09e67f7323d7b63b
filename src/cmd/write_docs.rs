//! `weightfs write-docs`: writes the manual page and the completions of bash, fish and zsh. They are generated from the
//! definition of the command line and, for the list of files in a mount, from the README.

use crate::cli;
use anyhow::Context;
use clap::{Arg, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

const PAGE: &str = include_str!("../../docs/weightfs.1");
const README: &str = include_str!("../../README.md");

/// The definition with which the roff crate begins each text.
const APOSTROPHE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// The path of the completions of each shell, below the prefix.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/weightfs"),
    (Shell::Fish, "share/fish/vendor_completions.d/weightfs.fish"),
    (Shell::Zsh, "share/zsh/site-functions/_weightfs"),
];

/// Replacements in the zsh completions. clap generates only commands for the first word; here it can also be a SOURCE,
/// followed by a MOUNTPOINT.
const FOR_ZSH: [(&str, &str); 2] = [
    (r#"":: :_weightfs_commands" \"#, r#"":: :{_weightfs_commands; _files}" \"#),
    ("\n        esac\n    ;;\nesac\n}\n", "\n(*) _files && ret=0 ;;\n        esac\n    ;;\nesac\n}\n"),
];

/// Writes the manual page and the completions below `dir`.
pub fn run(dir: &Path) -> anyhow::Result<ExitCode> {
    write_all(dir).with_context(|| dir.display().to_string()).map(|()| ExitCode::SUCCESS)
}

/// Writes all files below `prefix`.
fn write_all(prefix: &Path) -> io::Result<()> {
    let command = cli::definition();
    write(&prefix.join("share/man/man1/weightfs.1"), page(&command)?.as_bytes())?;
    write(&prefix.join("share/man/man8/mount.weightfs.8"), b".so man1/weightfs.1\n")?;
    for (shell, path) in COMPLETIONS {
        write(&prefix.join(path), completion(shell, &command)?.as_bytes())?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, bytes)
}

fn completion(shell: Shell, command: &Command) -> io::Result<String> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut completed(command), command.get_name(), &mut script);
    let mut script = String::from_utf8(script).map_err(io::Error::other)?;
    if shell == Shell::Zsh {
        for (clap, ours) in FOR_ZSH {
            let (before, after) = script
                .split_once(clap)
                .ok_or_else(|| io::Error::other("unexpected zsh completions from clap_complete"))?;
            script = format!("{before}{ours}{after}");
        }
    }
    Ok(script)
}

/// `command` as shells should complete it: without hidden items, and without the positional arguments of a command that
/// has subcommands, after which zsh would expect the subcommand.
fn completed(command: &Command) -> Command {
    let left_out = |argument: &&Arg| argument.is_hide_set() || command.has_subcommands() && argument.is_positional();
    let arguments = command.get_arguments().filter(|argument| !left_out(argument)).cloned();
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set()).map(completed);
    // clap requires a name that lives as long as the program.
    let name: &str = command.get_name().to_owned().leak();
    Command::new(name)
        .about(command.get_about().cloned().unwrap_or_default())
        .version(command.get_version().map(|version| &*version.to_owned().leak()))
        .args(arguments)
        .subcommands(commands)
        .disable_help_subcommand(true)
}

/// The manual page: the template with each `@NAME@` replaced.
fn page(command: &Command) -> io::Result<String> {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut commands = String::new();
    for subcommand in command.get_subcommands() {
        describe(&mut commands, command, subcommand, command.get_name())?;
    }
    let page = PAGE
        .replace("@VERSION@", command.get_version().unwrap_or_default())
        .replace("@ABOUT@", &uncapitalised(&about))
        .replace("@SYNOPSIS@\n", &synopsis(command))
        .replace("@OPTIONS@\n", &options(command)?)
        .replace("@COMMANDS@\n", &commands)
        .replace("@FILES@\n", &files())
        .replace("@AFTER_HELP@\n", &after_help(command, "SH"));
    // The page needs the definition only once.
    Ok(format!("{APOSTROPHE}{}", page.replace(APOSTROPHE, "")))
}

fn uncapitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

/// The usage lines of a command.
fn usage(command: &Command) -> Vec<String> {
    let usage = command.clone().render_usage().to_string();
    usage.trim_start_matches("Usage:").lines().map(|line| line.trim().to_owned()).collect()
}

fn synopsis(command: &Command) -> String {
    let mut roff = Roff::new();
    for line in usage(command) {
        roff.text([bold(line)]).control("br", []);
    }
    roff.render()
}

/// The section about the arguments, without its heading.
fn options(command: &Command) -> io::Result<String> {
    let mut section = Vec::new();
    Man::new(command.clone()).render_options_section(&mut section)?;
    let section = String::from_utf8(section).map_err(io::Error::other)?;
    Ok(section.split_once(".SH OPTIONS\n").map(|(_, options)| options.to_owned()).unwrap_or_default())
}

/// Appends a section about a command, and about its subcommands. Arguments equal to those of the program, as for
/// `mount`, are not repeated.
fn describe(page: &mut String, whole: &Command, command: &Command, parent: &str) -> io::Result<()> {
    if command.is_hide_set() {
        return Ok(());
    }
    let name = format!("{parent} {}", command.get_name());
    let command = command.clone().bin_name(&name).disable_help_flag(true);
    let mut roff = Roff::new();
    roff.control("SS", [&usage(&command).join(" ")[..]]);
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        roff.text([roman(about.to_string())]);
    }
    page.push_str(&roff.render());
    if !command.get_arguments().map(Arg::get_id).eq(whole.get_arguments().map(Arg::get_id)) {
        page.push_str(&options(&command)?);
    }
    page.push_str(&after_help(&command, "PP"));
    command.get_subcommands().try_for_each(|inner| describe(page, whole, inner, &name))
}

/// The list of files in a mount, from the README.
fn files() -> String {
    let section = README.split("\n## What is in a mount\n").nth(1).unwrap_or_default();
    let list = section.trim_start_matches('\n').lines().map_while(|line| line.strip_prefix("    "));
    let mut roff = Roff::new();
    for (name, meaning) in list.filter_map(|line| line.split_once("  ")) {
        roff.control("TP", []).text([bold(name)]).text([roman(meaning.trim_start())]);
    }
    roff.render()
}

/// The text below the help. It consists of paragraphs, some of which begin with a title and a colon, and of indented
/// lines. With the heading `SH`, titles become section headings.
fn after_help(command: &Command, heading: &str) -> String {
    let text = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string).unwrap_or_default();
    let mut roff = Roff::new();
    for paragraph in text.split("\n\n") {
        let (first, lines) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
        match (heading, first.split_once(':')) {
            ("SH", Some((title, ""))) => roff.control("SH", [&title.to_uppercase()[..]]),
            ("SH", Some((title, text))) => {
                roff.control("SH", [&title.to_uppercase()[..]]).text([roman(text.trim_start())])
            }
            _ => roff.control("PP", []).text([roman(first)]),
        };
        if lines.starts_with(' ') {
            roff.control("EX", []);
            for line in lines.lines() {
                roff.text([roman(line)]);
            }
            roff.control("EE", []);
        } else {
            roff.text([roman(lines.replace('\n', " "))]);
        }
    }
    roff.render()
}
