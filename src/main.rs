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
    #[cfg(feature = "remote")]
    if process::fetcher::is_fetcher() {
        return process::fetcher::run_fetcher();
    }
    #[cfg(feature = "parquet")]
    if process::parquet::is_parquet_reader() {
        return process::parquet::run_parquet_reader();
    }
    let Invocation { command, codes } = match cli::parse_command_line(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(code) => return code,
    };
    let hidden = process::arguments::hide(command.sources().into_iter().flat_map(cli::SourceArg::secrets));
    if let Err(error) = hidden {
        process::logging::complain(&anyhow::Error::new(error).context("cannot hide the secrets of a URL from ps(1)"));
    }
    let done = match command {
        cli::Command::Mount(args) => cmd::mount::run_mount(&args),
        cli::Command::Umount(args) => cmd::umount::run_umount(&args),
        cli::Command::Status(args) => cmd::status::run_status(&args),
        cli::Command::Doctor(args) => cmd::doctor::run_doctor(&args),
        cli::Command::Demo(args) => cmd::demo::run_demo(&args),
        #[cfg(feature = "serve")]
        cli::Command::Serve(args) => cmd::serve::run_serve(&args),
        #[cfg(not(feature = "serve"))]
        cli::Command::Serve(_) => Err(anyhow::anyhow!("this weightfs was built without the feature serve")),
        cli::Command::Ls(args) => cmd::ls::run_ls(&args),
        cli::Command::Cat(args) => cmd::cat::run_cat(&args),
        cli::Command::Cp(args) => cmd::cp::run_cp(&args),
        cli::Command::Inspect(args) => cmd::inspect::run_inspect(&args),
        cli::Command::Id(args) => cmd::id::run_id(&args),
        cli::Command::Summary(args) => cmd::summary::run_summary(&args),
        cli::Command::Check(args) => cmd::check::run_check(&args),
        cli::Command::Diff(args) => cmd::diff::run_diff(&args),
        cli::Command::Metadata(args) => cmd::metadata::run_metadata(&args),
        cli::Command::Export(args) => cmd::export::run_export(&args),
        #[cfg(feature = "remote")]
        cli::Command::Cache(args) => cmd::cache::run_cache(&args),
        #[cfg(not(feature = "remote"))]
        cli::Command::Cache(_) => {
            Err(anyhow::anyhow!("this weightfs was built without remote sources, so it has no cache"))
        }
        cli::Command::CompleteWords { words } => cmd::complete_words::run_complete_words(&words),
        cli::Command::WriteDocs { dir } => cmd::write_docs::run_write_docs(&dir),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            process::logging::complain(&error);
            codes.failure()
        }
    }
}
