//! Target `commands`: the position and the form of an option do not change its meaning, and completion does not panic
//! on any unfinished command line.

use super::headers::once_in;
use super::options::cli;
use arbitrary::{Result, Unstructured};
use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, Command};
use std::ffi::OsString;

pub fn run(bytes: &[u8]) -> bool {
    parse(&mut Unstructured::new(bytes)).unwrap_or(false)
}

/// Values of options, and operands: paths, patterns, sizes, numbers, keys and values.
const VALUES: [&str; 28] = [
    "/a.safetensors",
    "/b",
    "-",
    "",
    "0",
    "3",
    "-1",
    "8",
    "4096",
    "67108865",
    "18446744073709551616",
    "5GB",
    "1.5 MiB",
    "0B",
    "9999999999999999999EB",
    "name",
    "size",
    "*.weight",
    "[",
    "[!a-z]?",
    "**",
    "a=b",
    "a=",
    "=b",
    "key",
    "npy,f32",
    "-x",
    "--",
];

fn parse(bytes: &mut Unstructured) -> Result<bool> {
    let mut definition = cli::definition();
    definition.build();
    let mut names = vec![definition.get_name().to_owned()];
    let mut command = &definition;
    while command.has_subcommands() {
        let all: Vec<&Command> = command.get_subcommands().filter(|known| known.get_name() != "help").collect();
        command = *bytes.choose(&all)?;
        names.push(command.get_name().to_owned());
    }
    let known: Vec<&Arg> = command.get_opts().chain(flags(command)).filter(|arg| arg.get_id() != "options").collect();

    // Each option in two equivalent forms, and operands between them.
    let (mut options, mut operands) = (Vec::new(), Vec::new());
    for _ in 0..bytes.int_in_range(0..=4)? {
        if !known.is_empty() {
            options.push(option(bytes.choose(&known)?, bytes)?);
        }
    }
    for _ in 0..bytes.int_in_range(0..=3)? {
        operands.push(any_value(&[], bytes)?);
    }
    complete(&names[1..], &options, &operands, bytes)?;

    // Before a first word that begins with -, the options end.
    let dashes = operands.iter().any(|word| word.starts_with('-') && word != "-");
    let mut first = names.clone();
    first.extend(options.iter().flat_map(|option| option.0.clone()));
    first.extend(dashes.then(|| "--".into()));
    first.extend(operands.iter().cloned());
    let mut second = names;
    let between = if dashes { 0 } else { bytes.int_in_range(0..=operands.len())? };
    second.extend(operands[..between].iter().cloned());
    second.extend(options.iter().flat_map(|option| option.1.clone()));
    second.extend(dashes.then(|| "--".into()));
    second.extend(operands[between..].iter().cloned());

    let read = |words: &[String]| cli::read_arguments(words.iter().map(OsString::from).collect(), false, false).ok();
    let expected = read(&first);
    assert_eq!(read(&second), expected, "{first:?} and {second:?}");
    Ok(expected.is_some())
}

fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_flag = |arg: &&Arg| matches!(arg.get_action(), ArgAction::SetTrue) && arg.get_long().is_some();
    command.get_arguments().filter(is_flag)
}

/// An option as `--long=value`, and in another form.
fn option(arg: &Arg, bytes: &mut Unstructured) -> Result<(Vec<String>, Vec<String>)> {
    let long = format!("--{}", arg.get_long().unwrap());
    let other = match arg.get_short() {
        Some(short) if bytes.arbitrary()? => format!("-{short}"),
        _ => long.clone(),
    };
    if !arg.get_action().takes_values() {
        return Ok((vec![long], vec![other]));
    }
    let value = any_value(&arg.get_possible_values(), bytes)?;
    // A separate word that begins with - would be an option.
    let other = match other.starts_with("--") {
        _ if !value.starts_with('-') => vec![other, value.clone()],
        true => vec![format!("{other}={value}")],
        false => vec![format!("{other}{value}")],
    };
    Ok((vec![format!("{long}={value}")], other))
}

fn any_value(possible: &[PossibleValue], bytes: &mut Unstructured) -> Result<String> {
    if once_in(6, bytes)? {
        return Ok(bytes.arbitrary::<String>()?.replace('\0', ""));
    }
    if !possible.is_empty() && !once_in(4, bytes)? {
        return Ok(bytes.choose(possible)?.get_name().to_owned());
    }
    Ok(bytes.choose(&VALUES)?.to_string())
}

/// Completes the line, cut after any word and any character.
fn complete(
    names: &[String],
    options: &[(Vec<String>, Vec<String>)],
    operands: &[String],
    bytes: &mut Unstructured,
) -> Result<()> {
    let mut words = names.to_vec();
    words.extend(options.iter().flat_map(|option| option.1.clone()));
    words.extend(operands.iter().cloned());
    words.truncate(bytes.int_in_range(1..=words.len())?);
    if let Some(last) = words.last_mut() {
        let cut = bytes.int_in_range(0..=last.chars().count())?;
        *last = last.chars().take(cut).collect();
    }
    let completion = cli::complete::complete_word(&words);
    let (last, kept) = (words.last().map_or("", String::as_str), &completion.kept);
    assert!(last.starts_with(kept.as_str()), "{words:?} is completed to begin with {kept:?}");
    Ok(())
}
