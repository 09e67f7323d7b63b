//! `check`: verifies everything that a sound model promises.
//!
//! The official reader decides whether a file is sound, and the strict parser agrees with it. If a file is not sound,
//! the lenient parser is used to find everything that is wrong with it.

mod data;
mod file;
mod report;
mod set;

use crate::model::{self, Error};
use crate::source::Location;
use crate::threads;
use file::File;

pub use report::{Finding, Report, Rule, Severity};

/// A model whose headers were checked.
#[derive(Debug)]
pub struct Check {
    files: Vec<File>,
    report: Report,
}

impl Check {
    /// Checks the headers of a model: a file, the index of a sharded model, or the manifest of a dataset. Fails only if
    /// something cannot be read; everything that is wrong with what was read is in the report.
    pub fn open(location: &Location) -> Result<Self, Error> {
        let mut report = Report::default();
        let locations: Vec<Location> = match model::is_set(location.file_name()) {
            true => set::check(location, &mut report)?,
            false => vec![location.clone()],
        };
        let mut files = Vec::new();
        for result in threads::map(locations.len(), |at| File::check(&locations[at])) {
            let (file, found) = result?;
            report.merge(found);
            files.extend(file);
        }
        Ok(Self { files, report })
    }

    /// Number of bytes that [`Check::read`] will read.
    pub fn bytes_to_read(&self, values: bool) -> u64 {
        self.files.iter().map(|file| data::bytes_to_read(file, values)).sum()
    }

    /// Verifies the hashes of data that the metadata gives. If `values`, it also looks for NaN and infinity. Calls
    /// `advance` with the number of bytes that were read since the last call.
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
