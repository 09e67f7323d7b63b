//! The `weightfs` command: parses the command line, runs the subcommand, prints its error and sets the exit code.

mod cli;
mod cmd;
mod opening;
mod process;
mod terminal;

use cli::Invocation;
use std::process::ExitCode;

fn main() -> ExitCode {
    process::logging::end_on_panics();
    if let Some(code) = process::run_named_process() {
        return code;
    }
    // It looks up credentials itself, and parses no model before that.
    let is_doctor = std::env::args_os().nth(1).is_some_and(|command| command == "doctor");
    if let Err(error) = process::secrets::restart_without_secrets(cli::source::masked_url, is_doctor) {
        process::logging::complain(&error.context("cannot hide the secrets of URLs and of the environment"));
    }
    let Invocation { command, failure } = match cli::parse_command_line(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(code) => return code,
    };
    cmd::run_command(&command).unwrap_or_else(|error| {
        process::logging::complain(&error);
        failure
    })
}
