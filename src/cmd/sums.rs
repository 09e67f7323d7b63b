//! `weightfs sums`: the SHA-256 of the bytes of all tensors, in the format of sha256sum(1).

use super::part_files::{PartCommand, PartHead, PartModel, PartWriter};
use crate::cli::SumsArgs;
use crate::cli::pattern::WantedPatterns;
use crate::opening::{SourceLocator, open_catalog_model, report_unmatched};
use crate::terminal::output::{StandardOutput, to_stdout};
use crate::terminal::progress::ProgressLine;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use weightfs::content::ReadRequest;
use weightfs::inspect::check::is_sum;
use weightfs::model::{self, Model, OpenedModel, TensorId};
use weightfs::parts::WorkPart;
use weightfs::source::Location;
use weightfs::text::{printable, quote};
use weightfs::{threads, view};

/// About how many bytes of tensors are hashed side by side, before their lines are printed.
const TOGETHER: u64 = 1 << 30;

/// The sum of a tensor, in a part.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TensorSum {
    index: usize,
    /// The path of its file in a mount.
    path: String,
    /// In hexadecimal digits.
    sha256: String,
}

impl TensorSum {
    /// Whether a line can have them: the path of a file in a mount has no control characters.
    fn is_possible(&self) -> bool {
        is_sum(&self.sha256) && !self.path.contains(|char: char| char.is_ascii_control())
    }

    fn print(&self, out: &mut StandardOutput) -> anyhow::Result<()> {
        let line = view::sum_line(&self.path, &self.sha256);
        let shown = if out.is_terminal { printable(&line) } else { line.into() };
        Ok(writeln!(out, "{shown}")?)
    }
}

pub fn run_sums(args: &SumsArgs) -> anyhow::Result<ExitCode> {
    to_stdout(|out| {
        let source = SourceLocator::for_command(&args.input.open.remote)?.locate(&args.input.source)?;
        let mode = args.input.open.mode();
        let head = |part| PartHead::new(PartCommand::Sums, part, &args.only, args.input.open.lenient);
        let parts = args.part.map(|part| PartWriter::begin(head(part), out)).transpose()?;
        let mut printer = SumsPrinter { wanted: WantedPatterns::new(&args.only), parts };
        let (mut opened, mut failed) = (false, false);
        match model::open_location(&source, mode)? {
            OpenedModel::Model(model, _) => {
                opened = true;
                model.report(&source);
                printer.print(&model, &source, Path::new(""), out)?;
            }
            OpenedModel::Catalog(catalog) => {
                for (path, id) in catalog.paths() {
                    let location = source.join(&path);
                    match open_catalog_model(&catalog, id, &location) {
                        Ok(model) => {
                            opened = true;
                            printer.print(&model, &location, &path, out)?;
                        }
                        Err(error) => {
                            failed = true;
                            out.complain(&error.to_string())?;
                        }
                    }
                }
            }
        }
        let code = ExitCode::from(u8::from(failed));
        let SumsPrinter { wanted, parts } = printer;
        // If no model could be opened, the patterns were not tried.
        let code = match opened {
            true => report_unmatched(&wanted, std::slice::from_ref(&args.input.source), code, out)?,
            false => code,
        };
        if let Some(parts) = parts {
            parts.end(code != ExitCode::SUCCESS, out)?;
        }
        Ok(code)
    })
}

/// Prints what `combine` finds in all parts.
pub(super) fn print_joined(models: Vec<(PartModel, Vec<TensorSum>)>, out: &mut StandardOutput) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for (model, mut sums) in models {
        sums.sort_by_key(|sum| sum.index);
        model.check_whole(sums.iter().map(|sum| sum.index))?;
        if let Some(sum) = sums.iter().find(|sum| !sum.is_possible()) {
            bail!("{}: there is no sum like {} of {}", model.source, quote(&sum.sha256), quote(&sum.path));
        }
        all.extend(sums);
    }
    // Nothing is printed before everything is known to fit.
    all.iter().try_for_each(|sum| sum.print(out))
}

struct SumsPrinter<'a> {
    wanted: WantedPatterns<'a>,
    parts: Option<PartWriter>,
}

impl SumsPrinter<'_> {
    /// Hashes the tensors of a model, or those of a part of the work, and prints their lines. `dir` is the directory of
    /// the model in a mount.
    fn print(&mut self, model: &Model, name: &Location, dir: &Path, out: &mut StandardOutput) -> anyhow::Result<()> {
        let tensors: Vec<TensorId> = model.logical().iter().filter(|id| self.wanted.matches(model.name(*id))).collect();
        let part = match &mut self.parts {
            Some(parts) => {
                parts.begin_model(PartModel::new(name.to_string(), model, tensors.len(), Vec::new()), out)?
            }
            None => WorkPart::WHOLE,
        };
        let sizes: Vec<u64> = tensors.iter().map(|id| model.tensor(*id).info.nbytes).collect();
        // A tensor is hashed by one part.
        let share = part.shares_whole(sizes.iter().copied());
        let progress = ProgressLine::new("hashing", share.iter().map(|at| sizes[*at]).fold(0, u64::saturating_add));
        let mut rest = &share[..];
        while !rest.is_empty() {
            let mut bytes = 0u64;
            let together = rest.iter().take_while(|at| {
                bytes = bytes.saturating_add(sizes[**at]);
                bytes <= TOGETHER
            });
            let (some, after) = rest.split_at(together.count().max(threads::cores()).min(rest.len()));
            let sums = threads::map_parallel(some.len(), |at| {
                view::tensor_sum(model, tensors[some[at]], &ReadRequest::WAIT, &|bytes| progress.add(bytes))
            });
            let sums = some.iter().zip(sums).map(|(index, sum)| {
                let tensor = model.name(tensors[*index]);
                let sha256 = sum.with_context(|| format!("{name}: {}", quote(tensor)))?;
                let path = dir.join(view::stored_path(tensor)).to_string_lossy().into_owned();
                anyhow::Ok(TensorSum { index: *index, path, sha256 })
            });
            progress.suspend(|| {
                for sum in sums {
                    match &mut self.parts {
                        Some(parts) => parts.write_item(sum?, out)?,
                        None => sum?.print(out)?,
                    }
                }
                anyhow::Ok(out.flush()?)
            })?;
            rest = after;
        }
        Ok(model.verify()?)
    }
}
