//! The `weightfs` command: parses the command line, calls the command, prints the error, sets the exit code.

mod cli;
mod cmd;
mod logging;

use cli::Invocation;
use std::io::{self, Write};
use std::process::ExitCode;
use weightfs::name::printable;

fn main() -> ExitCode {
    let Invocation { command, codes } = match cli::parse(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(code) => return code,
    };
    let done = match command {
        cli::Command::Mount(args) => cmd::mount::run(&args),
        cli::Command::Umount(args) => cmd::umount::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            // Where standard error is closed there is nobody to tell, and the exit code says it too.
            let _ = writeln!(io::stderr(), "weightfs: {}", printable(&cmd::reason(&error)));
            codes.failure()
        }
    }
}
