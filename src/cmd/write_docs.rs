//! `weightfs write-docs`: writes the manual page and the completions of bash, fish and zsh. The manual page is
//! generated from the definition of the command line and, for the list of files in a mount, from the README.

use crate::cli;
use anyhow::Context;
use clap::{Arg, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

const PAGE: &str = include_str!("../../docs/weightfs.1.in");
const README: &str = include_str!("../../README.md");

/// The definition with which the roff crate begins each text.
const APOSTROPHE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// The completions of each shell, and their path below the prefix.
const COMPLETIONS: [(&str, &str); 3] = [
    (include_str!("../../docs/completions/weightfs.bash"), "share/bash-completion/completions/weightfs"),
    (include_str!("../../docs/completions/weightfs.fish"), "share/fish/vendor_completions.d/weightfs.fish"),
    (include_str!("../../docs/completions/weightfs.zsh"), "share/zsh/site-functions/_weightfs"),
];

/// Writes the manual page and the completions below `dir`.
pub fn run_write_docs(dir: &Path) -> anyhow::Result<ExitCode> {
    write_all(dir).with_context(|| dir.display().to_string()).map(|()| ExitCode::SUCCESS)
}

fn write_all(prefix: &Path) -> io::Result<()> {
    let command = cli::definition();
    write_doc(&prefix.join("share/man/man1/weightfs.1"), manual_page(&command)?.as_bytes())?;
    write_doc(&prefix.join("share/man/man8/mount.weightfs.8"), b".so man1/weightfs.1\n")?;
    for (script, path) in COMPLETIONS {
        write_doc(&prefix.join(path), script.as_bytes())?;
    }
    Ok(())
}

fn write_doc(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, bytes)
}

/// The manual page: the template with each `@NAME@` replaced.
fn manual_page(command: &Command) -> io::Result<String> {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut commands = String::new();
    for subcommand in command.get_subcommands() {
        describe_command(&mut commands, command, subcommand, command.get_name())?;
    }
    let page = PAGE
        .replace("@VERSION@", command.get_version().unwrap_or_default())
        .replace("@ABOUT@", &uncapitalised(&about))
        .replace("@SYNOPSIS@\n", &synopsis(command))
        .replace("@OPTIONS@\n", &options(command)?)
        .replace("@COMMANDS@\n", &commands)
        .replace("@FILES@\n", &doc_files())
        .replace("@AFTER_HELP@\n", &after_help(command, "SH"));
    // The page needs the definition only once.
    Ok(format!("{APOSTROPHE}{}", page.replace(APOSTROPHE, "")))
}

fn uncapitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

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
fn describe_command(page: &mut String, whole: &Command, command: &Command, parent: &str) -> io::Result<()> {
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
    command.get_subcommands().try_for_each(|inner| describe_command(page, whole, inner, &name))
}

/// The list of files in a mount, from the README.
fn doc_files() -> String {
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
