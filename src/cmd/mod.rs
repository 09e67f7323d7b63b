//! The commands, one per file.

#[cfg(feature = "remote")]
pub mod cache;
pub mod cat;
pub mod check;
mod check_parts;
mod check_report;
pub mod combine;
pub mod complete_words;
mod counted;
mod counted_parts;
pub mod cp;
pub mod demo;
pub mod diff;
mod diff_parts;
mod diff_report;
mod diff_values;
pub mod doctor;
pub mod export;
pub mod files;
pub mod id;
pub mod inspect;
pub mod ls;
pub mod metadata;
pub mod mount;
mod part_files;
pub mod references;
#[cfg(feature = "serve")]
pub mod serve;
pub mod show;
mod sort;
pub mod stats;
mod status;
pub mod summary;
pub mod sums;
pub mod umount;
pub mod write_docs;

use crate::cli::Command;
use anyhow::Result;
use std::process::ExitCode;

/// Runs a command, and returns its exit code.
pub fn run_command(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Mount(args) => mount::run_mount(args),
        Command::Umount(args) => umount::run_umount(args),
        Command::Status(args) => status::run_status(args),
        Command::Doctor(args) => doctor::run_doctor(args),
        Command::Demo(args) => demo::run_demo(args),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run_serve(args),
        #[cfg(not(feature = "serve"))]
        Command::Serve(_) => anyhow::bail!("this weightfs was built without the feature serve"),
        Command::Ls(args) => ls::run_ls(args),
        Command::Show(args) => show::run_show(args),
        Command::Stats(args) => stats::run_stats(args),
        Command::Sums(args) => sums::run_sums(args),
        Command::Combine(args) => combine::run_combine(args),
        Command::Cat(args) => cat::run_cat(args),
        Command::Cp(args) => cp::run_cp(args),
        Command::Inspect(args) => inspect::run_inspect(args),
        Command::Id(args) => id::run_id(args),
        Command::Summary(args) => summary::run_summary(args),
        Command::Check(args) => check::run_check(args),
        Command::Diff(args) => diff::run_diff(args),
        Command::Metadata(args) => metadata::run_metadata(args),
        Command::Export(args) => export::run_export(args),
        Command::References(args) => references::run_references(args),
        #[cfg(feature = "remote")]
        Command::Cache(args) => cache::run_cache(args),
        #[cfg(not(feature = "remote"))]
        Command::Cache(_) => anyhow::bail!("this weightfs was built without remote sources, so it has no cache"),
        Command::CompleteWords { words } => complete_words::run_complete_words(words),
        Command::WriteDocs { dir } => write_docs::run_write_docs(dir),
    }
}
