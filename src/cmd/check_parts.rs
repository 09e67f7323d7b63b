//! Parts of a check of values, which are printed with `--part` and joined.

use super::check_report::{CheckPrinter, TROUBLE};
use super::part_files::{PartModel, PartWriter, are_gapless};
use crate::terminal::output::StandardOutput;
use crate::terminal::progress::ProgressLine;
use anyhow::bail;
use weightfs::inspect::check::{CheckedUnits, ModelCheck, join_units};
use weightfs::model::Error;

pub(super) const CHECKING: &str = "checking";

/// Checks and prints the share of a part in a model. Returns the exit code; the outer error is that of reading the
/// model.
pub(super) fn write_share(
    check: &ModelCheck,
    source: String,
    parts: &mut PartWriter,
    out: &mut StandardOutput,
) -> Result<anyhow::Result<u8>, Error> {
    let plan = check.plan();
    let (versions, structure) = check.identity();
    let part = match parts.begin_model(PartModel::of_files(source, versions, structure, plan.units()), out) {
        Ok(part) => part,
        Err(error) => return Ok(Err(error)),
    };
    let progress = ProgressLine::new(CHECKING, plan.bytes_to_read(part));
    let found = check.read_part(&plan, part, &|bytes| progress.add(bytes))?;
    drop(progress);
    Ok(found.iter().try_for_each(|units| parts.write_item(units, out)).map(|()| 0))
}

/// Prints what one process without `--part` prints, and returns the exit code. If `is_failed`, a process could not read
/// all of its part, and models that are not whole are left out.
pub(super) fn print_joined(
    models: Vec<(PartModel, Vec<CheckedUnits>)>,
    printer: CheckPrinter,
    is_failed: bool,
    out: &mut StandardOutput,
) -> anyhow::Result<u8> {
    let mut reports = Vec::new();
    for (model, mut found) in models {
        found.sort_by_key(|found| found.units);
        if are_gapless(found.iter().map(|found| found.units), model.items as u64) {
            reports.push((model.source, join_units(found)));
        } else if is_failed {
            out.complain(&format!("{}: left out, because a part of it is missing", model.source))?;
        } else {
            bail!("{}: the parts do not fit together", model.source);
        }
    }
    let mut code = if is_failed { TROUBLE } else { 0 };
    for (source, mut report) in reports {
        code = code.max(printer.print(&mut report, &source, out)?);
    }
    Ok(code)
}
