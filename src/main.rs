//! The `weightfs` command: parses the command line, runs the subcommand, prints its error and sets the exit code.

mod cli;
mod cmd;
mod models;
mod process;
mod terminal;

use cli::Invocation;
use std::process::ExitCode;

fn main() -> ExitCode {
    process::logging::end_on_panics();
    #[cfg(feature = "remote")]
    if process::fetcher::is_this() {
        return process::fetcher::run();
    }
    #[cfg(feature = "parquet")]
    if process::parquet::is_this() {
        return process::parquet::run();
    }
    let Invocation { command, codes } = match cli::parse(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(code) => return code,
    };
    let hidden = process::arguments::hide(command.sources().into_iter().flat_map(cli::SourceArg::secrets));
    if let Err(error) = hidden {
        process::logging::complain(&anyhow::Error::new(error).context("cannot hide the secrets of a URL from ps(1)"));
    }
    let done = match command {
        cli::Command::Mount(args) => cmd::mount::run(&args),
        cli::Command::Umount(args) => cmd::umount::run(&args),
        cli::Command::Status(args) => cmd::status::run(&args),
        cli::Command::Doctor(args) => cmd::doctor::run(&args),
        #[cfg(feature = "serve")]
        cli::Command::Serve(args) => cmd::serve::run(&args),
        #[cfg(not(feature = "serve"))]
        cli::Command::Serve(_) => Err(anyhow::anyhow!("this weightfs was built without the feature serve")),
        cli::Command::Ls(args) => cmd::ls::run(&args),
        cli::Command::Cat(args) => cmd::cat::run(&args),
        cli::Command::Cp(args) => cmd::cp::run(&args),
        cli::Command::Inspect(args) => cmd::inspect::run(&args),
        cli::Command::Id(args) => cmd::id::run(&args),
        cli::Command::Summary(args) => cmd::summary::run(&args),
        cli::Command::Check(args) => cmd::check::run(&args),
        cli::Command::Diff(args) => cmd::diff::run(&args),
        cli::Command::Metadata(args) => cmd::metadata::run(&args),
        cli::Command::Export(args) => cmd::export::run(&args),
        #[cfg(feature = "remote")]
        cli::Command::Cache(args) => cmd::cache::run(&args),
        #[cfg(not(feature = "remote"))]
        cli::Command::Cache(_) => {
            Err(anyhow::anyhow!("this weightfs was built without remote sources, so it has no cache"))
        }
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
