//! `check`: knows everything that a sound model promises, and finds what is not so.
//!
//! A file is sound as the official reader decides and the strict parser agrees. Where it is not, the lenient parser says
//! what is left of it, and the rest is told one by one.

mod data;
mod report;
mod set;

use super::conventions::{self, KOHYA_JSON, MODELSPEC_PREFIX};
use crate::format::safetensors::{Error as Broken, Fault, MAX_HEADER, lint};
use crate::format::{self, Dtype, Header, Mode, Skipped, TensorInfo};
use crate::model::{self, Error};
use crate::source::{self, MappedFile, Source};
use crate::text::quote;
use crate::threads;
use serde::de::IgnoredAny;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

pub use report::{Finding, Report, Rule, Severity};

/// A longer header, in bytes, is refused by huggingface_hub (`constants.py`) and huggingface.js.
const HUB_HEADER_MAX: u64 = 25_000_000;

/// The official writer pads its header to this, so that every element type can be used where it lies.
const DATA_ALIGNMENT: u64 = 8;

/// What is left out for metadata has this name.
const METADATA: &str = "__metadata__";

/// A model whose headers were checked, and whose data may be.
#[derive(Debug)]
pub struct Check {
    files: Vec<File>,
    report: Report,
}

/// A file whose header can be used, if only in parts.
#[derive(Debug)]
struct File {
    /// As errors call it.
    name: String,
    source: MappedFile,
    header: Header,
    /// Hashes that the metadata gives: key and digits. None where the file is damaged, for they could not be right.
    stated: Vec<(String, String)>,
}

impl Check {
    /// Checks the headers of the model at `path`: a file, the index of a sharded model, or the manifest of a dataset. Fails
    /// only where something cannot be read; whatever is wrong with what is read is in the report.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut report = Report::default();
        let paths: Vec<PathBuf> =
            if model::is_set(path) { set::check(path, &mut report)? } else { vec![path.to_owned()] };
        let mut files = Vec::new();
        for checked in threads::map(paths.len(), |at| File::check(&paths[at])) {
            let (file, found) = checked?;
            report.merge(found);
            files.extend(file);
        }
        Ok(Self { files, report })
    }

    /// How many bytes [`Check::read`] is going to go over.
    pub fn bytes_to_read(&self, values: bool) -> u64 {
        self.files.iter().map(|file| data::bytes_to_read(file, values)).sum()
    }

    /// Verifies hashes over the data where the metadata gives any, and looks for NaN and infinity if `values` says so. Tells
    /// `advance` how many bytes were done.
    pub fn read(&mut self, values: bool, advance: &(dyn Fn(u64) + Sync)) -> Result<(), Error> {
        for file in &self.files {
            data::read(file, values, &mut self.report, advance)?;
        }
        self.report.values |= values;
        Ok(())
    }

    /// What was found.
    pub fn into_report(self) -> Report {
        self.report
    }
}

impl File {
    /// Checks one file for itself; there is none left where its header cannot be used at all.
    fn check(path: &Path) -> Result<(Option<Self>, Report), source::Error> {
        let source = MappedFile::open(path)?;
        let name = path.to_string_lossy().into_owned();
        let mut report = Report::of_one_file();
        let beginning = read_header(&source)?;
        let header = match format::parse(&beginning, source.len(), Mode::Strict) {
            Ok(header) => header,
            Err(broken) => {
                let Some(header) = check_damaged(&name, &beginning, source.len(), &broken, &mut report) else {
                    return Ok((None, report));
                };
                let file = Self { name, source, header, stated: Vec::new() };
                file.check_tensors(&mut report);
                return Ok((Some(file), report));
            }
        };
        let mut file = Self { name, source, header, stated: Vec::new() };
        let json = file.header.json();
        if let Some(text) =
            beginning.get(json.start as usize..json.end as usize).and_then(|text| str::from_utf8(text).ok())
        {
            lint(text, &mut |oddity| report.add(Rule::Json, &file.name, oddity.subject(), || oddity.to_string()));
        }
        file.check_header(&mut report);
        file.check_tensors(&mut report);
        file.stated = file.check_metadata(&mut report);
        Ok((Some(file), report))
    }

    fn check_header(&self, report: &mut Report) {
        let json = self.header.json();
        let len = json.end - json.start;
        if len > HUB_HEADER_MAX {
            report.add(Rule::HeaderSize, &self.name, None, || {
                format!("the header has {len} bytes, more than {HUB_HEADER_MAX}")
            });
        }
        if !json.end.is_multiple_of(DATA_ALIGNMENT) && !self.header.is_empty() {
            report.add(Rule::DataStart, &self.name, None, || {
                format!("the data begins at byte {}, no multiple of {DATA_ALIGNMENT}", json.end)
            });
        }
        for dtype in self.header.unknown_dtypes() {
            report.add(Rule::UnknownDtype, &self.name, Some(dtype), || {
                format!("dtype {} is none of the 22 that the format has", quote(dtype))
            });
        }
    }

    /// Counts the tensors and looks where each of them begins.
    fn check_tensors(&self, report: &mut Report) {
        let mut alignment = None;
        for tensor in self.header.tensors() {
            report.tensors += 1;
            report.nbytes = report.nbytes.saturating_add(tensor.nbytes());
            if tensor.nbytes() == 0 {
                continue;
            }
            let start = tensor.range.start;
            alignment = alignment.into_iter().chain([1 << start.trailing_zeros()]).min();
            let width = element_bytes(tensor.dtype);
            if !start.is_multiple_of(width) {
                report.add(Rule::Unaligned, &self.name, Some(tensor.name), || {
                    let TensorInfo { name, dtype, .. } = &tensor;
                    format!("tensor {}: its {dtype} data begins at byte {start}, no multiple of {width}", quote(name))
                });
            }
        }
        report.alignment = alignment;
    }

    /// Holds the metadata against its conventions; returns the hashes that it gives.
    fn check_metadata(&self, report: &mut Report) -> Vec<(String, String)> {
        let metadata = self.header.metadata();
        for (key, what) in conventions::modelspec_faults(metadata) {
            let key = format!("{MODELSPEC_PREFIX}{key}");
            report.add(Rule::ModelSpec, &self.name, Some(&key), || format!("metadata {}: {what}", quote(&key)));
        }
        let given = |key| model::value(metadata, key).filter(|value| *value != "None");
        for key in KOHYA_JSON {
            let broken = |value| serde_json::from_str::<IgnoredAny>(value).err();
            if let Some(error) = given(key).and_then(broken) {
                report.add(Rule::Kohya, &self.name, Some(key), || {
                    format!("metadata {}: no valid JSON: {error}", quote(key))
                });
            }
        }
        if given("sshs_model_hash").is_some_and(|value| conventions::sha256(value).is_none()) {
            report.add(Rule::Kohya, &self.name, Some("sshs_model_hash"), || {
                "metadata \"sshs_model_hash\": no SHA-256 of 64 digits".to_owned()
            });
        }
        let keys = ["modelspec.hash_sha256", "sshs_model_hash"];
        keys.iter().filter_map(|key| Some(((*key).to_owned(), conventions::sha256(given(key)?)?))).collect()
    }
}

/// Bytes of an element, of those that have whole ones; what shares bytes may lie anywhere.
fn element_bytes(dtype: Dtype) -> u64 {
    match dtype {
        // Two parts of four bytes.
        Dtype::C64 => 4,
        _ => dtype.bits().filter(|bits| bits.is_multiple_of(8)).map_or(1, |bits| bits / 8),
    }
}

/// All of a file that a parser may want to see.
fn read_header(source: &dyn Source) -> Result<Vec<u8>, source::Error> {
    /// What tells other formats apart.
    const DETECT: u64 = 512;
    let mut length = [0; 8];
    let have = source.len().min(8) as usize;
    source.read_exact_at(&mut length[..have], 0)?;
    let len = u64::from_le_bytes(length);
    let wanted = if len <= MAX_HEADER { DETECT.max(8 + len) } else { DETECT };
    let mut beginning = vec![0; wanted.min(source.len()) as usize];
    source.read_exact_at(&mut beginning, 0)?;
    Ok(beginning)
}

/// Tells everything that is wrong with a file that the strict parser refuses as `broken`; returns what is left of it.
fn check_damaged(
    name: &str,
    beginning: &[u8],
    len: u64,
    broken: &format::Error,
    report: &mut Report,
) -> Option<Header> {
    let Ok(header) = format::parse(beginning, len, Mode::Lenient) else {
        report.add(Rule::Format, name, None, || broken.to_string());
        return None;
    };
    let (skipped, more) = header.skip_list().told();
    // What is left out may lie where nothing is left.
    let left_out = more > 0 || skipped.iter().any(|skipped| skipped.name != METADATA);
    let or_so = if left_out { ", or of one that is left out" } else { "" };
    for skipped in skipped {
        report
            .add(Rule::Entry, name, Some(&skipped.name), || format!("{}: {}", subject(&skipped.name), skipped.reason));
    }
    // One left out for another reason may stand twice all the same.
    let (twice, mut seen) = (Fault::Duplicate.to_string(), HashSet::new());
    for Skipped { name: tensor, reason } in skipped {
        if tensor != METADATA && *reason != twice && (header.find(tensor).is_some() || !seen.insert(tensor)) {
            report.add(Rule::Entry, name, Some(tensor), || format!("{}: {twice}", subject(tensor)));
        }
    }
    report.add_unseen(Rule::Entry, more);
    let mut expected = header.json().end;
    for tensor in header.tensors() {
        let begin = tensor.range.start;
        let broken = match begin.cmp(&expected) {
            Ordering::Equal => None,
            Ordering::Greater => Some((Rule::Hole, Fault::Hole { begin, expected })),
            Ordering::Less => Some((Rule::Overlap, Fault::Overlap { begin, expected })),
        };
        if let Some((rule, fault)) = broken {
            let or_so = if rule == Rule::Hole { or_so } else { "" };
            report.add(rule, name, Some(tensor.name), || format!("tensor {}: {fault}{or_so}", quote(tensor.name)));
        }
        expected = expected.max(tensor.range.end);
    }
    // One that is cut short is not too long for that its last tensor is left out.
    if expected < len && !matches!(broken, format::Error::Safetensors(Broken::DataCut { .. })) {
        report.add(Rule::Hole, name, None, || format!("{}{or_so}", Broken::TooLong { end: expected, len }));
    }
    // What the strict parser says must be told. The lenient one may not have come to it: it leaves out for one reason.
    let verdict = broken.to_string();
    if !report.tells(&verdict) {
        let (rule, subject) = match broken {
            format::Error::Safetensors(Broken::Tensor { name, .. }) => (Rule::Entry, Some(&name[..])),
            _ => (Rule::Format, None),
        };
        report.add(rule, name, subject, || verdict);
    }
    Some(header)
}

/// What a name of something left out stands for.
fn subject(name: &str) -> String {
    if name == METADATA { name.to_owned() } else { format!("tensor {}", quote(name)) }
}
