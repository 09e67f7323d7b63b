//! Checks the header of one file: its form, the layout of its tensors, and its metadata.

use super::report::CheckReport;
use super::sums::StatedSum;
use crate::format::{
    self, Dtype, DtypeBlock, Header, HeaderInput, HeaderLint, MetadataValue, ParseMode, TensorInfo, numpy, safetensors,
};
use crate::inspect::conventions::{self, KOHYA_JSON, MODELSPEC_PREFIX};
use crate::model::{self, Error, ModelFile};
use crate::rules::CheckRule;
use crate::source::{self, Location, Source};
use crate::text::quote;
use serde::de::IgnoredAny;
use std::sync::Arc;

/// Longest header that huggingface_hub (`constants.py`) and huggingface.js accept, in bytes.
const HUB_HEADER_MAX: u64 = 25_000_000;

/// The official writer pads the header to a multiple of this many bytes, so that elements of every dtype are aligned.
const DATA_ALIGNMENT: u64 = 8;

/// The values of the metadata key `format` that transformers accepts (`modeling_utils.py`). accelerate accepts these
/// but `mlx`.
const LOADED_FORMATS: [&str; 4] = ["pt", "tf", "flax", "mlx"];

/// A file whose header has been read.
#[derive(Debug)]
pub struct CheckedFile {
    /// The name of the file in messages.
    pub name: String,
    pub location: Location,
    pub source: Arc<dyn Source>,
    /// The header, without damaged entries.
    pub header: Header,
    /// The data hashes (SHA-256) in the metadata: key and hexadecimal digits. Empty if the file is damaged, because the
    /// hashes could not match.
    pub stated: Vec<(String, String)>,
    /// The sums that the whole file must have.
    pub sums: Vec<StatedSum>,
}

impl CheckedFile {
    /// Checks the file at a location. Findings call it `shown`. The header is empty if nothing of it can be used.
    pub fn check(shown: &Location, location: &Location) -> Result<(Self, CheckReport), Error> {
        let source = source::open_local(location)?;
        let (name, location) = (shown.to_string(), location.clone());
        let mut report = CheckReport::of_one_file();
        let (mut input, header) = model::load_header(&*source, ParseMode::Strict)?;
        let header = match header {
            Ok(header) => header,
            Err(broken) => {
                let header = model::load_more(&mut input, &*source, ParseMode::Lenient)?;
                let Some(header) = check_damaged(&name, header, source.len(), &broken, &mut report) else {
                    // The sums say whether the download is broken, or the file has always been so.
                    let header = Header::empty(source.len());
                    return Ok((Self { name, location, source, header, stated: Vec::new(), sums: Vec::new() }, report));
                };
                let file = Self { name, location, source, header, stated: Vec::new(), sums: Vec::new() };
                file.check_tensors(&mut report);
                return Ok((file, report));
            }
        };
        let mut file = Self { name, location, source, header, stated: Vec::new(), sums: Vec::new() };
        file.check_header(&mut input, &mut report)?;
        file.check_tensors(&mut report);
        file.stated = file.check_metadata(&mut report);
        Ok((file, report))
    }

    /// A file that has no header of its own.
    pub fn without_header(file: &ModelFile) -> Result<(Self, CheckReport), Error> {
        let (name, location, source) = (file.location.to_string(), file.location.clone(), file.source.clone());
        let header = Header::empty(source.len());
        let file = Self { name, location, source, header, stated: Vec::new(), sums: Vec::new() };
        Ok((file, CheckReport::of_one_file()))
    }

    fn check_header(&self, input: &mut HeaderInput, report: &mut CheckReport) -> Result<(), source::Error> {
        model::lint_file(&self.header, input, &*self.source, &mut |lint| add(report, &self.name, lint))?;
        let is_safetensors = self.header.format == safetensors::NAME;
        let len = self.header.text().map_or(0, |text| text.end - text.start);
        if len > HUB_HEADER_MAX {
            report.add(CheckRule::HeaderSize, &self.name, None, || {
                format!("the header has {len} bytes, more than {HUB_HEADER_MAX}")
            });
        }
        let start = self.header.data_start;
        if is_safetensors && !start.is_multiple_of(DATA_ALIGNMENT) && !self.header.is_empty() {
            report.add(CheckRule::DataStart, &self.name, None, || {
                format!("the data begins at byte {start}, which is not a multiple of {DATA_ALIGNMENT}")
            });
        }
        let rule = if is_safetensors { CheckRule::UnknownDtype } else { CheckRule::RawDtype };
        for dtype in &self.header.unknown_dtypes {
            report.add(rule, &self.name, Some(dtype), || match is_safetensors {
                true => format!("dtype {} is unknown", quote(dtype)),
                false => format!("dtype {}: its tensors are shown as raw bytes", quote(dtype)),
            });
        }
        for dtype in self.header.size_only_dtypes() {
            report.add(CheckRule::UnknownDtype, &self.name, Some(dtype.name()), || {
                format!(
                    "dtype {dtype}: only its size is known, because no known writer defines how elements are packed"
                )
            });
        }
        Ok(())
    }

    /// Counts the tensors, and checks the alignment of each.
    fn check_tensors(&self, report: &mut CheckReport) {
        let mut alignment = None;
        // numpy.load copies the arrays of an archive, which are not aligned.
        let is_copied = self.header.format == numpy::NPZ || self.header.is_copied;
        for tensor in self.header.tensors() {
            report.tensors += 1;
            report.nbytes = report.nbytes.saturating_add(tensor.nbytes);
            if tensor.nbytes == 0 {
                continue;
            }
            let start = tensor.range.start;
            alignment = alignment.into_iter().chain([1 << start.trailing_zeros()]).min();
            let width = self::alignment(tensor.dtype);
            if !start.is_multiple_of(width) && !is_copied {
                report.add(CheckRule::Unaligned, &self.name, Some(tensor.name), || {
                    let TensorInfo { name, dtype, .. } = tensor.info;
                    format!(
                        "tensor {}: its {dtype} data begins at byte {start}, which is not a multiple of {width}",
                        quote(name)
                    )
                });
            }
        }
        report.alignment = alignment;
    }

    /// Checks the metadata against its conventions and returns the hashes in it.
    fn check_metadata(&self, report: &mut CheckReport) -> Vec<(String, String)> {
        let metadata = &self.header.metadata;
        if self.header.format == safetensors::NAME && !metadata.is_empty() {
            let format = model::metadata_text(metadata, "format");
            if !format.is_some_and(|format| LOADED_FORMATS.contains(&format)) {
                report.add(CheckRule::MetadataFormat, &self.name, Some("format"), || match format {
                    Some(format) => format!("metadata \"format\" is {}, not \"pt\"", quote(format)),
                    None => "the metadata has no key \"format\"".to_owned(),
                });
            }
        }
        for (key, fault) in conventions::modelspec_faults(metadata) {
            let key = format!("{MODELSPEC_PREFIX}{key}");
            report.add(CheckRule::ModelSpec, &self.name, Some(&key), || format!("metadata {}: {fault}", quote(&key)));
        }
        for key in KOHYA_JSON {
            if let Some(error) =
                given_text(metadata, key).and_then(|text| serde_json::from_str::<IgnoredAny>(text).err())
            {
                report.add(CheckRule::Kohya, &self.name, Some(key), || {
                    format!("metadata {}: not valid JSON: {error}", quote(key))
                });
            }
        }
        if given_text(metadata, "sshs_model_hash").is_some_and(|value| conventions::sha256(value).is_none()) {
            report.add(CheckRule::Kohya, &self.name, Some("sshs_model_hash"), || {
                "metadata \"sshs_model_hash\": not a SHA-256 hash of 64 digits".to_owned()
            });
        }
        let keys = ["modelspec.hash_sha256", "sshs_model_hash"];
        let hashes = keys.iter().filter_map(|key| {
            let hash = conventions::sha256(given_text(metadata, key)?)?;
            Some(((*key).to_owned(), hash))
        });
        hashes.collect()
    }
}

/// A metadata value, unless it is Python's None.
fn given_text<'m>(metadata: &'m [(String, MetadataValue)], key: &str) -> Option<&'m str> {
    model::metadata_text(metadata, key).filter(|value| *value != "None")
}

/// The alignment of a dtype's elements in bytes: 1 for elements that share bytes.
fn alignment(dtype: Dtype) -> u64 {
    match dtype {
        // A complex number consists of two floats of four bytes.
        Dtype::C64 => 4,
        _ => match dtype.block() {
            Some(DtypeBlock { elements: 1, bytes }) => bytes,
            _ => 1,
        },
    }
}

/// Reports everything that is wrong with a file that the strict parser rejects with the error `broken`. Returns the
/// usable part of the header.
fn check_damaged(
    name: &str,
    header: Result<Header, format::Error>,
    len: u64,
    broken: &format::Error,
    report: &mut CheckReport,
) -> Option<Header> {
    let Ok(header) = header else {
        report.add(CheckRule::Format, name, None, || broken.to_string());
        return None;
    };
    format::header_damage(&header, broken, len, &mut |lint| add(report, name, lint));
    let (skipped, _) = header.skipped.kept();
    let kept = skipped.iter().filter(|skipped| skipped.is_left_out()).count();
    report.add_unseen(CheckRule::Entry, header.skipped.left_out().saturating_sub(kept));
    // The lenient parser gives one reason for each entry, which may differ from that of the strict parser.
    let verdict = broken.to_string();
    if !skipped.iter().any(|skipped| skipped.is_same_fault(broken)) && !report.contains(&verdict) {
        let rule = if broken.tensor().is_some() { CheckRule::Entry } else { CheckRule::Format };
        report.add(rule, name, broken.tensor(), || verdict);
    }
    Some(header)
}

fn add(report: &mut CheckReport, name: &str, lint: HeaderLint) {
    report.add(lint.rule, name, lint.subject.as_deref(), || lint.message);
}
