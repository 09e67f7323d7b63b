//! `check`: verifies headers, indexes, metadata and data of a model.
//!
//! A file is sound if it is accepted by the strict parser, which follows the rules of the official reader. For other
//! files, the lenient parser finds everything that is wrong.

mod data;
mod file;
mod report;
mod set;

use crate::format::Mode;
use crate::model::{self, Error};
use crate::source::Location;
use crate::threads;
use file::File;

pub use report::{Finding, Report, Rule, Severity};

/// A model whose headers have been checked.
#[derive(Debug)]
pub struct Check {
    files: Vec<File>,
    report: Report,
}

impl Check {
    /// Checks the headers of a model: a file, the index of a sharded model, the manifest of a dataset, or a split.
    /// Fails only if something cannot be read. All other problems are in the report.
    pub fn open(location: &Location) -> Result<Self, Error> {
        let mut report = Report::default();
        let is_set = model::is_set(location.file_name());
        let locations: Vec<Location> = match is_set {
            true => set::check(location, &mut report)?,
            false => match model::file_of(location) {
                Ok(file) => vec![file],
                Err(Error::Set { error, .. }) => {
                    report.add(Rule::Format, &location.to_string(), None, || error.to_string());
                    Vec::new()
                }
                Err(error) => return Err(error),
            },
        };
        let mut files = Vec::new();
        for result in threads::map(locations.len(), |at| {
            File::check(if is_set { &locations[at] } else { location }, &locations[at])
        }) {
            let (file, found) = result?;
            report.merge(found);
            files.extend(file);
        }
        if let Some(file) = files.first().filter(|_| !is_set) {
            // A damaged file has findings already.
            let model = model::open_model(location, Mode::Lenient).ok();
            for note in model.iter().flat_map(|model| model.quantized().notes()) {
                report.add(Rule::Quantized, &file.name, None, || note);
            }
            if let Some(remark) = model::split_remark(&file.header) {
                report.add(Rule::SplitName, &file.name, None, || remark);
            }
        }
        Ok(Self { files, report })
    }

    /// Number of bytes that [`Check::read`] will read.
    pub fn bytes_to_read(&self, values: bool) -> u64 {
        self.files.iter().map(|file| data::bytes_to_read(file, values)).sum()
    }

    /// Verifies the data hashes in the metadata and, if `values`, searches for NaN, infinity and zero data. Calls
    /// `advance` with the number of bytes that have been read since the last call.
    pub fn read(&mut self, values: bool, advance: &(dyn Fn(u64) + Sync)) -> Result<(), Error> {
        for file in &self.files {
            data::read(file, values, &mut self.report, advance)?;
        }
        self.report.values |= values;
        Ok(())
    }

    /// The findings.
    pub fn into_report(self) -> Report {
        self.report
    }
}
