//! `check`: verifies headers, indexes, metadata and data of a model.
//!
//! A file is sound if it is accepted by the strict parser, which follows the rules of the official reader. For other
//! files, the lenient parser finds everything that is wrong.

mod data;
mod dataset;
mod differences;
mod file;
mod findings;
mod like;
mod quantized;
mod report;
mod set;
mod shares;
mod sums;

use crate::format::{HeaderTensor, ParseMode, onnx, pytorch};
use crate::model::{self, Error, LINKED, Model};
use crate::parts::WorkPart;
use crate::source::{self, Location, Source};
use crate::threads;
use data::{FileShare, FileWork};
use dataset::CheckedDataset;
use file::CheckedFile;
use findings::FileFindings;
use like::Likeness;
use shares::{CheckStage, StageShare};
use std::mem;
use sums::{StatedSum, SumLists};

pub use crate::rules::{CheckRule, Severity};
pub use dataset::IndexRow;
pub use like::ReferenceModel;
pub use report::{CheckFinding, CheckReport};
pub use shares::{CheckPlan, CheckedUnits, join_units};
pub use sums::is_sum;

/// A model whose headers have been checked.
#[derive(Debug)]
pub struct ModelCheck {
    files: Vec<CheckedFile>,
    /// The model, if it has quantized weights, and the names of its files in messages.
    quantized: Option<(Model, Vec<String>)>,
    /// The model, if it is a dataset.
    dataset: Option<CheckedDataset>,
    report: CheckReport,
}

impl ModelCheck {
    /// Checks the headers of a model: a file, the index of a sharded model, the manifest of a dataset, or a split.
    /// Fails only if something cannot be read. All other problems are in the report. `top` is the directory below which
    /// the model was found, if the user did not name the model. The model is also compared with `reference`.
    pub fn open(location: &Location, top: Option<&Location>, reference: Option<ReferenceModel>) -> Result<Self, Error> {
        let mut report = CheckReport::default();
        let opened = model::open_below(top, location, ParseMode::Lenient);
        if let Err(Error::Linked { .. }) = opened {
            report.add(CheckRule::Format, &location.to_string(), None, || LINKED.to_owned());
            return Ok(Self { files: Vec::new(), quantized: None, dataset: None, report });
        }
        let is_set = model::is_set(location);
        let (model, locations): (Option<Model>, Vec<Location>) = match is_set {
            true => set::check_set(location, opened, &mut report)?,
            false => match model::file_of(location) {
                Ok(file) => (opened.ok(), vec![file]),
                Err(Error::Set { fault, .. }) => {
                    report.add(CheckRule::Format, &location.to_string(), None, || fault);
                    (None, Vec::new())
                }
                Err(error) => return Err(error),
            },
        };
        let mut files = Vec::new();
        for result in
            threads::map_parallel(locations.len(), |at| match model.as_ref().and_then(|model| model.files.get(at)) {
                Some(file) if is_set && [pytorch::DISTCP, onnx::DATA].contains(&file.header.format) => {
                    CheckedFile::without_header(file)
                }
                _ => CheckedFile::check(if is_set { &locations[at] } else { location }, &locations[at]),
            })
        {
            let (file, found) = result?;
            report.merge(found);
            files.push(file);
        }
        if let Some(file) = files.first().filter(|_| !is_set) {
            if let Some(model) = &model {
                // If a shard is checked by itself, the companions may be in another one.
                let name = location.file_name().to_string_lossy();
                let is_whole = set::number_of_shards(&name).is_none_or(|shards| shards < 2);
                quantized::check_recognition(model, &file.name, is_whole, &mut report);
            }
            for left in onnx::elsewhere(&file.header) {
                report.add(CheckRule::LeftOut, &file.name, Some(&left.name), || left.to_string());
            }
            if let Some(remark) = model::split_remark(&file.header) {
                report.add(CheckRule::SplitName, &file.name, None, || remark);
            }
        }
        if let (Some(reference), Some(model)) = (reference, &model) {
            let name = location.to_string();
            let likeness = Likeness::new(location, model, reference);
            differences::report_likeness(&likeness, (&name, model), reference.model, &mut report);
            report.likeness = Some(likeness.into());
        }
        let names = locations.iter().map(|at| if is_set { at } else { location }.to_string()).collect();
        let (mut quantized, mut dataset) = (None, None);
        match model {
            Some(model) if model.facts.tensor_list.is_some() => {
                dataset = Some(CheckedDataset::new(model, location.to_string()))
            }
            Some(model) if !model.quantized.weights().is_empty() => quantized = Some((model, names)),
            _ => {}
        }
        Ok(Self { files, quantized, dataset, report })
    }

    /// Looks for the sums that the files must have: the names of blobs, and lists beside the files.
    pub fn find_sums(&mut self) {
        let mut lists = SumLists::default();
        for file in &mut self.files {
            let (sums, fault) = lists.sums_of(&file.location);
            file.sums.extend(sums);
            if let Some(fault) = fault {
                self.report.add(CheckRule::Unverified, &file.name, None, || fault);
            }
        }
    }

    /// States the SHA-256 that the file must have, 64 hexadecimal digits in lower case. Fails with the number of files
    /// if the model has several.
    pub fn expect_sum(&mut self, sum: String) -> Result<(), usize> {
        match &mut self.files[..] {
            [_, _, ..] => return Err(self.files.len()),
            files => {
                files.iter_mut().for_each(|file| file.sums.push(StatedSum { origin: "--sha256", sum: sum.clone() }))
            }
        }
        Ok(())
    }

    /// Number of bytes that [`ModelCheck::read`] will read.
    pub fn bytes_to_read(&self, values: bool) -> u64 {
        self.plan_of(&self.works(values), values).bytes_to_read(WorkPart::WHOLE)
    }

    fn works(&self, values: bool) -> Vec<FileWork> {
        self.files.iter().map(|file| FileWork::of(file, values)).collect()
    }

    /// All units of the work.
    fn plan_of(&self, works: &[FileWork], values: bool) -> CheckPlan {
        let mut plan = CheckPlan::default();
        plan.add(CheckStage::Headers, [0]);
        for (at, (file, work)) in self.files.iter().zip(works).enumerate() {
            plan.add(CheckStage::Search(at), work.searched_lens(file));
            let is_hashed = !file.sums.is_empty() || !file.stated.is_empty();
            plan.add(CheckStage::Hash(at), is_hashed.then(|| work.hashed_len()));
        }
        if let Some((model, _)) = self.quantized.as_ref().filter(|_| values) {
            plan.add(CheckStage::Companions, quantized::companion_lens(model));
            plan.add(CheckStage::ZeroPoints, quantized::zero_point_lens(model));
        }
        plan.add(CheckStage::Padding, self.dataset.as_ref().filter(|_| values).map(|_| 0));
        plan
    }

    fn is_searched_elsewhere(&self, tensor: &HeaderTensor) -> bool {
        self.quantized.as_ref().is_some_and(|(model, _)| quantized::is_searched_elsewhere(model, tensor))
    }

    /// Verifies the hashes of the data and of whole files and, if `values`, searches for NaN, infinity and zero data,
    /// and checks the companions of quantized weights. Calls `advance` with the number of bytes that have been read
    /// since the last call.
    pub fn read(&mut self, values: bool, advance: &(dyn Fn(u64) + Sync)) -> Result<(), Error> {
        let mut report = mem::take(&mut self.report);
        // The values of one file are searched on all cores. A hash takes one core, so that all files are hashed at
        // once.
        let at_once = if values { 1 } else { self.files.len().max(1) };
        let works = self.works(values);
        let all: Vec<usize> = (0..self.files.len()).collect();
        for some in all.chunks(at_once) {
            for found in threads::map_parallel(some.len(), |at| {
                let work = &works[some[at]];
                self.read_file(some[at], work, &work.whole(), advance)
            }) {
                let (findings, hashes) = found?;
                report.merge(findings.report());
                report.merge(hashes);
            }
        }
        report.unsearched += works.iter().map(|work| work.unsearched).sum::<u64>();
        if let Some((model, names)) = self.quantized.as_ref().filter(|_| values) {
            quantized::read_companion((model, names), &(0..usize::MAX), &mut report, advance)?;
            quantized::read_zero_points((model, names), &(0..usize::MAX), &mut report, advance)?;
        }
        if let Some(dataset) = self.dataset.as_ref().filter(|_| values) {
            dataset.find_padding(&mut report)?;
        }
        report.values |= values;
        self.report = report;
        Ok(())
    }

    /// All units of the work of a check of the values, which follow from the headers and the sums.
    pub fn plan(&self) -> CheckPlan {
        self.plan_of(&self.works(true), true)
    }

    /// The version of each file, and a hash of the names, dtypes, shapes and places of all tensors.
    pub fn identity(&self) -> (Vec<Option<String>>, String) {
        (shares::versions_of(&self.files), shares::structure_of(&self.files))
    }

    /// Does a part of the work of a check of the values, and returns what was found, in the order of the units.
    pub fn read_part(
        &self,
        plan: &CheckPlan,
        part: WorkPart,
        advance: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<CheckedUnits>, Error> {
        let works = self.works(true);
        let mut found = Vec::new();
        let mut stages = plan.stages(part).into_iter().peekable();
        while let Some(share) = stages.next() {
            let CheckStage::Search(at) = share.stage else {
                found.push(CheckedUnits::report(&share.units, self.read_stage(&share, &works, advance)?));
                continue;
            };
            // A whole file is hashed while it is searched.
            let hash = stages.next_if(|next| share.is_whole && next.stage == CheckStage::Hash(at));
            let wanted = FileShare { is_hashed: hash.is_some(), ..works[at].searched_share(&share.within) };
            let (findings, hashes) = self.read_file(at, &works[at], &wanted, advance)?;
            found.push(CheckedUnits::file(&share.units, at, findings));
            found.extend(hash.map(|hash| CheckedUnits::report(&hash.units, hashes)));
        }
        Ok(found)
    }

    /// The report on some units of a stage that does not search a file.
    fn read_stage(
        &self,
        share: &StageShare,
        works: &[FileWork],
        advance: &(dyn Fn(u64) + Sync),
    ) -> Result<CheckReport, Error> {
        let mut report = CheckReport::default();
        match (share.stage, &self.quantized, &self.dataset) {
            (CheckStage::Headers, ..) => {
                report = self.report.clone();
                report.unsearched += works.iter().map(|work| work.unsearched).sum::<u64>();
                report.values = true;
            }
            (CheckStage::Hash(at), ..) => {
                let wanted = FileShare { is_hashed: true, ..works[at].searched_share(&(0..0)) };
                report = self.read_file(at, &works[at], &wanted, advance)?.1;
            }
            (CheckStage::Companions, Some((model, names)), _) => {
                quantized::read_companion((model, names), &share.within, &mut report, advance)?;
            }
            (CheckStage::ZeroPoints, Some((model, names)), _) => {
                quantized::read_zero_points((model, names), &share.within, &mut report, advance)?;
            }
            (CheckStage::Padding, _, Some(dataset)) => dataset.find_padding(&mut report)?,
            _ => {}
        }
        Ok(report)
    }

    fn read_file(
        &self,
        at: usize,
        work: &FileWork,
        share: &FileShare,
        advance: &(dyn Fn(u64) + Sync),
    ) -> Result<(FileFindings, CheckReport), Error> {
        data::read_share(&self.files[at], work, share, &|tensor| self.is_searched_elsewhere(tensor), advance)
    }

    /// Compares the index of tensors of a dataset with its files, if it has one. `read` passes the rows of a Parquet
    /// file on until that returns false, or says why the file cannot be read.
    pub fn compare_index(
        &mut self,
        read: impl Fn(&dyn Source, &mut dyn FnMut(&IndexRow) -> bool) -> Result<(), String>,
    ) -> Result<(), Error> {
        let Self { dataset: Some(dataset), report, .. } = self else { return Ok(()) };
        let files = dataset.index_files()?;
        let mut is_whole = !files.is_empty();
        for file in files {
            let source = source::open_local(&file)?;
            if let Err(reason) = read(&*source, &mut |row| dataset.compare(row, report)) {
                dataset.unreadable(&file, &reason, report);
                is_whole = false;
            }
        }
        // The content of a file that cannot be read is unknown.
        if is_whole {
            dataset.finish(report);
        }
        Ok(())
    }

    pub fn into_report(self) -> CheckReport {
        self.report
    }
}
