//! The work of a check in units, of which several processes do a part each, and what they find.

use super::file::CheckedFile;
use super::findings::FileFindings;
use super::report::CheckReport;
use crate::model;
use crate::parts::WorkPart;
use crate::text::HexDigits;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::ops::Range;

/// A kind of work, with the number of the file if it is that of a file. Its units are done in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckStage {
    Headers,
    Search(usize),
    Hash(usize),
    Companions,
    ZeroPoints,
    Padding,
}

/// All units of the work on a model, with the number of bytes that each of them reads.
#[derive(Debug, Default)]
pub struct CheckPlan {
    costs: Vec<u64>,
    /// The units of each stage.
    stages: Vec<(CheckStage, Range<usize>)>,
}

/// The units of a stage that a process does.
#[derive(Debug, Clone)]
pub(super) struct StageShare {
    pub stage: CheckStage,
    /// Among all units.
    pub units: Range<usize>,
    /// Among those of the stage.
    pub within: Range<usize>,
    pub is_whole: bool,
}

impl CheckPlan {
    pub(super) fn add(&mut self, stage: CheckStage, costs: impl IntoIterator<Item = u64>) {
        let start = self.costs.len();
        self.costs.extend(costs);
        self.stages.push((stage, start..self.costs.len()));
    }

    /// The number of units.
    pub fn units(&self) -> usize {
        self.costs.len()
    }

    /// The number of bytes that a part reads.
    pub fn bytes_to_read(&self, part: WorkPart) -> u64 {
        self.costs[self.share(part)].iter().copied().fold(0, u64::saturating_add)
    }

    /// The units of a part, which follow each other.
    fn share(&self, part: WorkPart) -> Range<usize> {
        let units = part.shares_whole(self.costs.iter().copied());
        units.first().map_or(0..0, |first| *first..first + units.len())
    }

    /// The stages of a part that are not empty.
    pub(super) fn stages(&self, part: WorkPart) -> Vec<StageShare> {
        let share = self.share(part);
        let stages = self.stages.iter().map(|(stage, all)| {
            let (start, end) = (share.start.max(all.start), share.end.min(all.end).max(all.start));
            let within = start.min(end) - all.start..end - all.start;
            let is_whole = within.len() == all.len();
            StageShare { stage: *stage, units: start.min(end)..end, within, is_whole }
        });
        stages.filter(|share| !share.units.is_empty()).collect()
    }
}

/// What a process has found in some units that follow each other.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckedUnits {
    pub units: (u64, u64),
    found: UnitFindings,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum UnitFindings {
    Report(CheckReport),
    /// What was found in the data of a file, which has this number. Others may have searched the rest of it.
    File(usize, FileFindings),
}

impl CheckedUnits {
    pub(super) fn report(units: &Range<usize>, report: CheckReport) -> Self {
        Self { units: (units.start as u64, units.end as u64), found: UnitFindings::Report(report) }
    }

    pub(super) fn file(units: &Range<usize>, file: usize, findings: FileFindings) -> Self {
        Self { units: (units.start as u64, units.end as u64), found: UnitFindings::File(file, findings) }
    }
}

/// The report on a model, from what was found in all units, in their order.
pub fn join_units(all: impl IntoIterator<Item = CheckedUnits>) -> CheckReport {
    let mut all = all.into_iter().map(|units| units.found).peekable();
    // The headers come first. Their report may count findings that it does not have.
    let mut report = match all.next_if(|found| matches!(found, UnitFindings::Report(_))) {
        Some(UnitFindings::Report(report)) => report,
        _ => CheckReport::default(),
    };
    while let Some(found) = all.next() {
        match found {
            UnitFindings::Report(other) => report.merge(other),
            UnitFindings::File(file, mut findings) => {
                while let Some(UnitFindings::File(_, rest)) =
                    all.next_if(|next| matches!(next, UnitFindings::File(of, _) if *of == file))
                {
                    findings.merge(rest);
                }
                report.merge(findings.report());
            }
        }
    }
    report
}

/// Hash of what the findings depend on besides the data: the names of the files in findings, the sums that they must
/// have, the metadata, and the names, dtypes, shapes and places of all tensors.
pub(super) fn structure_of(files: &[CheckedFile]) -> String {
    let mut hasher = Sha256::new();
    for file in files {
        hasher.update(format!("{:?}\n", (&file.name, &file.stated, &file.sums, &file.header.metadata)));
        for tensor in file.header.tensors() {
            hasher.update(format!("{:?}\n", (tensor.name, tensor.dtype.name(), tensor.shape, &tensor.range)));
        }
        hasher.update("\n");
    }
    HexDigits(&hasher.finalize()).to_string()
}

/// The version of each file; `None` if the server gives no versions.
pub(super) fn versions_of(files: &[CheckedFile]) -> Vec<Option<String>> {
    files.iter().map(|file| model::version_of(&*file.source)).collect()
}
