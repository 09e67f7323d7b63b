//! Target `options`: options in `-o` mean the same as the long options, and no arguments make the parser panic.

use super::headers::once_in;
use arbitrary::{Result, Unstructured};
use cli::{Command, NoCommand};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

#[path = "../../src/cli/mod.rs"]
#[allow(dead_code, reason = "it is a module of the binary")]
pub mod cli;

pub fn run(bytes: &[u8]) -> bool {
    parse(&mut Unstructured::new(bytes)).unwrap_or(false)
}

const FLAGS: [&str; 10] = [
    "allow_other",
    "allow_root",
    "auto_unmount",
    "direct_io",
    "fake",
    "foreground",
    "lenient",
    "no_sandbox",
    "nonempty",
    "verbose",
];

const WITH_VALUE: [&str; 8] = ["fsname", "gid", "log_file", "max_read", "threads", "uid", "umask", "views"];

const VALUES: [&str; 16] = [
    "0",
    "5",
    "root",
    "022",
    "777",
    "1000",
    "65536",
    "4294967295",
    "tensors",
    "tensors:tree",
    "tree,npy",
    "",
    "=",
    r"a\,b",
    "-x",
    "nobody",
];

const WITHOUT_EFFECT: [&str; 9] =
    ["ro", "defaults", "_netdev", "noatime", "kernel_cache", "x-systemd.automount", "x-a=b", "comment=--lenient", ""];

/// Arguments that some command or option takes.
const WORDS: [&str; 25] = [
    "-o",
    "-f",
    "-v",
    "-fo",
    "-ofake",
    "-oro,rw",
    "-oremount,ro,uid=5",
    "--",
    "-",
    "-h",
    "--help",
    "-V",
    "mount",
    "umount",
    "-l",
    "SOURCE",
    "DIR",
    "--uid",
    "--views=all",
    "-s",
    "-n",
    "-N",
    "-t",
    "help",
    "",
];

fn parse(bytes: &mut Unstructured) -> Result<bool> {
    if once_in(3, bytes)? {
        return any_words(bytes);
    }
    // The helper of mount(8) does not accept flags combined with -o, such as -fo.
    let helper = bytes.arbitrary()?;
    let (mut long, mut short) = (Vec::new(), Vec::new());
    for _ in 0..bytes.int_in_range(0..=3)? {
        let mut options = Vec::new();
        for _ in 0..bytes.int_in_range(0..=3)? {
            let (in_list, word) = option(bytes)?;
            options.push(in_list);
            long.extend(word);
        }
        let (options, flags) = (options.join(","), if helper { "" } else { *bytes.choose(&["", "", "f", "v"])? });
        if !flags.is_empty() {
            long.push(format!("-{flags}"));
        }
        let apart = helper || options.is_empty() || bytes.arbitrary()?;
        short.push(if apart { vec![format!("-{flags}o"), options] } else { vec![format!("-{flags}o{options}")] });
    }
    let paths = ["/source", "/dir"].map(str::to_owned);
    let at = bytes.int_in_range(0..=short.len())?;
    let short = [&short[..at].concat(), &paths[..], &short[at..].concat()].concat();
    let long = [&long[..], &paths].concat();
    let from_mount = bytes.arbitrary()?;
    let read = |name: &str, words: &[String], helper: bool| {
        let words = std::iter::once(name).chain(words.iter().map(String::as_str)).map(OsString::from).collect();
        match cli::read_arguments(words, helper, from_mount) {
            Ok(Command::Mount(args)) => Some(args),
            _ => None,
        }
    };
    // The helper is silent if it succeeds.
    let long = [if helper { vec!["--quiet".to_owned()] } else { Vec::new() }, long].concat();
    let expected = read("weightfs", &long, false);
    let name = if helper { "mount.weightfs" } else { "weightfs" };
    assert_eq!(read(name, &short, helper), expected, "{short:?} and {long:?}");
    Ok(expected.is_some())
}

/// An option as written in `-o`, and the equivalent long option; `None` if the option has no effect.
fn option(bytes: &mut Unstructured) -> Result<(String, Option<String>)> {
    Ok(match bytes.int_in_range(0..=9)? {
        0..=3 => {
            let flag = *bytes.choose(&FLAGS)?;
            let long = flag.replace('_', "-");
            (if bytes.arbitrary()? { flag.into() } else { long.clone() }, Some(format!("--{long}")))
        }
        4..=8 => {
            let option = *bytes.choose(&WITH_VALUE)?;
            let odd = once_in(6, bytes)?;
            let value = if odd { bytes.arbitrary::<String>()? } else { bytes.choose(&VALUES)?.to_string() };
            // Commas separate options; a backslash escapes the next character.
            let escaped = value.replace('\\', r"\\").replace(',', r"\,");
            (format!("{option}={escaped}"), Some(format!("--{}={value}", option.replace('_', "-"))))
        }
        _ => (bytes.choose(&WITHOUT_EFFECT)?.to_string(), None),
    })
}

/// Parses arbitrary arguments, also as the helper of mount(8).
fn any_words(bytes: &mut Unstructured) -> Result<bool> {
    let (helper, from_mount) = (bytes.arbitrary()?, bytes.arbitrary()?);
    let mut words: Vec<OsString> = Vec::new();
    for _ in 0..bytes.int_in_range(0..=8)? {
        words.push(match bytes.int_in_range(0..=3)? {
            0..=2 => bytes.choose(&WORDS)?.into(),
            _ => {
                let len = bytes.int_in_range(0..=12)?;
                OsString::from_vec(bytes.bytes(len.min(bytes.len()))?.to_vec())
            }
        });
    }
    match cli::read_arguments(words, helper, from_mount) {
        Ok(_) => Ok(true),
        Err(NoCommand::Text(text)) => Ok(!text.to_string().is_empty()),
        Err(NoCommand::Usage(message)) => {
            assert!(!message.is_empty());
            Ok(false)
        }
    }
}
