//! The `weightfs` command: parses the command line, calls the command, prints the error, sets the exit code.

mod cli;
mod cmd;
mod logging;

use cli::Invocation;
use std::io::{self, Write};
use std::process::ExitCode;
use weightfs::name::message;

#[cfg(all(panic = "unwind", not(any(test, doc))))]
compile_error!(
    "panic = \"abort\" is needed: a panic in one thread would leave a mount that answers some requests and not others"
);

fn main() -> ExitCode {
    logging::report_panics();
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
            let _ = writeln!(io::stderr(), "weightfs: {}", message(&cmd::reason(&error)));
            codes.failure()
        }
    }
}
