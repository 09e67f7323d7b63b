//! The `weightfs` command: parses the command line, runs the subcommand, prints its error and sets the exit code.

mod cli;
mod cmd;
mod models;
mod process;
mod terminal;

use cli::Invocation;
use std::process::ExitCode;

#[cfg(all(panic = "unwind", not(any(test, doc))))]
compile_error!(
    "panic = \"abort\" is needed: a panic in one thread would leave a mount that answers some requests and not others"
);

fn main() -> ExitCode {
    process::logging::report_panics();
    let Invocation { command, codes } = match cli::parse(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(code) => return code,
    };
    let done = match command {
        cli::Command::Mount(args) => cmd::mount::run(&args),
        cli::Command::Umount(args) => cmd::umount::run(&args),
        cli::Command::Ls(args) => cmd::ls::run(&args),
        cli::Command::Inspect(args) => cmd::inspect::run(&args),
        cli::Command::Id(args) => cmd::id::run(&args),
        cli::Command::Summary(args) => cmd::summary::run(&args),
        cli::Command::Check(args) => cmd::check::run(&args),
        cli::Command::Diff(args) => cmd::diff::run(&args),
        cli::Command::Metadata(args) => cmd::metadata::run(&args),
        cli::Command::Export(args) => cmd::export::run(&args),
        cli::Command::CompleteWords { words } => cmd::complete_words::run(&words),
        cli::Command::WriteDocs { dir } => cmd::write_docs::run(&dir),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            process::logging::complain(&error);
            codes.failure()
        }
    }
}
