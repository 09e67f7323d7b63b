//! What the search of the data of a file finds, in one process or in several, and the report on it.

use super::file::CheckedFile;
use super::report::CheckReport;
use crate::format::{Dtype, HeaderTensor};
use crate::rules::CheckRule;
use crate::stats::SpecialCounts;
use crate::text::{brackets, quote};
use serde::{Deserialize, Serialize};

/// Fewer zero bytes at the end of the data are not reported. A bias or a small matrix of zeros may be the last tensor.
const ZERO_END_MIN: u64 = 1 << 20;

/// Fewer zero bytes at the end of a tensor do not mean that it was cut: its last values may be zero.
const ZERO_INSIDE_MIN: u64 = 4096;

/// A smaller file that consists of zeros is not reported as such. It may have a few values that are zero.
const ZERO_DATA_MIN: u64 = 4096;

/// The findings about the values of a tensor or of a part of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ValueFindings {
    pub specials: SpecialCounts,
    /// Size of the parts that are entirely zero.
    pub zero: u64,
}

impl ValueFindings {
    /// Adds the findings about another part of the same tensor, which begins at the element with index `elements`.
    pub fn merge(&mut self, other: &Self, elements: u64) {
        self.specials.merge(&other.specials, elements);
        self.zero = self.zero.saturating_add(other.zero);
    }
}

/// A tensor with findings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct FoundTensor {
    /// Its index in the header.
    index: usize,
    name: String,
    shape: Vec<u64>,
    is_complex: bool,
    /// Where its data begins in the file.
    start: u64,
    nbytes: u64,
    values: ValueFindings,
}

/// The end of the data, judged by the last byte that is not zero.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct DataEnd {
    /// Where this byte ends in the file.
    nonzero_end: u64,
    /// Where the zeros of an unfinished download begin.
    zero_from: Option<u64>,
    report: CheckReport,
}

/// What was found in the data of a file, or in a part of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileFindings {
    /// The name of the file in messages.
    file: String,
    /// In the order of the header.
    tensors: Vec<FoundTensor>,
    end: DataEnd,
}

impl FileFindings {
    /// `searched` is the number of bytes of the file that are searched by all processes, and `nonzero_end` is where the
    /// last byte ends that is not zero and that this process has read.
    pub(super) fn new(file: &CheckedFile, searched: u64, nonzero_end: u64) -> Self {
        let mut report = CheckReport::default();
        let zero_from = zero_end(file, searched, nonzero_end, &mut report);
        let end = DataEnd { nonzero_end, zero_from, report };
        Self { file: file.name.clone(), tensors: Vec::new(), end }
    }

    /// Adds findings about the values of a tensor, which comes after all others in the header.
    pub(super) fn add(&mut self, index: usize, tensor: &HeaderTensor, values: ValueFindings) {
        self.tensors.push(FoundTensor {
            index,
            name: tensor.name.to_owned(),
            shape: tensor.shape.to_vec(),
            is_complex: tensor.dtype == Dtype::C64,
            start: tensor.range.start,
            nbytes: tensor.nbytes,
            values,
        });
    }

    /// Adds what another process has found in the same file.
    pub(super) fn merge(&mut self, other: Self) {
        self.tensors.extend(other.tensors);
        self.tensors.sort_by_key(|tensor| tensor.index);
        self.tensors.dedup_by(|next, tensor| {
            let is_same = next.index == tensor.index;
            if is_same {
                tensor.values.merge(&next.values, 0);
            }
            is_same
        });
        if other.end.nonzero_end > self.end.nonzero_end {
            self.end = other.end;
        }
    }

    /// The report on what all processes have found.
    pub(super) fn report(self) -> CheckReport {
        let Self { file, tensors, end: DataEnd { zero_from, mut report, .. } } = self;
        for tensor in tensors {
            let FoundTensor { name, start, nbytes, values: ValueFindings { specials, zero }, .. } = &tensor;
            if !specials.is_empty() {
                report_specials(&file, &tensor, specials, &mut report);
            }
            if *zero > 0 && zero == nbytes && zero_from.is_none_or(|from| *start < from) {
                report.add(CheckRule::Zero, &file, Some(name), || {
                    format!("tensor {}: all {zero} bytes are zero", quote(name))
                });
            }
        }
        report
    }
}

/// Reports data that ends in zeros as an unfinished download does. Returns where these zeros begin.
///
/// `searched` is the number of bytes that all processes search, and `nonzero_end` is the end of the last byte that is
/// not zero. Normal models may end in zeros, too: their last tensors may be entirely zero, and an embedding may be
/// padded with rows of zeros. A download ends in the middle of a tensor: mostly in the middle of a row, or before other
/// tensors, or before a large part of the data. Files of integers are data sets more often than models, and may hold
/// any values.
fn zero_end(file: &CheckedFile, searched: u64, nonzero_end: u64, report: &mut CheckReport) -> Option<u64> {
    let (start, end) = (file.header.data_start, file.source.len());
    let (zeros, len) = (end.checked_sub(nonzero_end)?, end.checked_sub(start)?);
    // If not all data is searched, the values are not wanted, or the file is damaged.
    if searched != len || !file.header.tensors().any(|tensor| is_float(&tensor)) {
        return None;
    }
    if zeros == len {
        if len < ZERO_DATA_MIN {
            return None;
        }
        report.add(CheckRule::ZeroEnd, &file.name, None, || format!("all {len} bytes of the data are zero"));
        return Some(start);
    }
    let cut = file.header.tensors().find(|tensor| tensor.range.contains(&nonzero_end))?;
    let (before, inside) = (nonzero_end - cut.range.start, cut.range.end - nonzero_end);
    let is_in_row = match (cut.shape.last(), cut.dtype.bits()) {
        (Some(columns), Some(bits)) => !(before * 8).div_ceil(bits).is_multiple_of((*columns).max(1)),
        _ => true,
    };
    let is_in_tensor = before > 0 && inside >= ZERO_INSIDE_MIN;
    let is_cut = match end - cut.range.end {
        ZERO_END_MIN.. => is_in_tensor,
        0 if !is_float(&cut) => false,
        _ => is_in_tensor && (is_in_row || zeros >= len / 16),
    };
    let whole = file.header.tensors().filter(|tensor| tensor.range.start >= nonzero_end && tensor.elements() > 1);
    if zeros < ZERO_END_MIN || !is_cut && (zeros <= len / 2 || whole.count() < 2) {
        return None;
    }
    report.add(CheckRule::ZeroEnd, &file.name, Some(cut.name), || {
        let percent = zeros as f64 / len as f64 * 100.0;
        format!(
            "the last {zeros} of {len} bytes of the data ({percent:.1} %) are zero, from byte {nonzero_end} of the file, \
             in tensor {}",
            quote(cut.name)
        )
    });
    Some(nonzero_end)
}

fn is_float(tensor: &HeaderTensor) -> bool {
    let is_opaque = tensor.dtype.block().is_none() || Dtype::SIZE_ONLY.contains(&tensor.dtype);
    !is_opaque && !tensor.dtype.is_integer()
}

fn report_specials(file: &str, tensor: &FoundTensor, specials: &SpecialCounts, report: &mut CheckReport) {
    let SpecialCounts { nan, pos_inf, neg_inf, first } = *specials;
    let FoundTensor { name, shape, is_complex, .. } = tensor;
    let rule = if nan > 0 { CheckRule::Nan } else { CheckRule::Infinite };
    report.add(rule, file, Some(name), || {
        let counts = [(nan, "NaN"), (pos_inf, "+Inf"), (neg_inf, "-Inf")].into_iter().filter(|(count, _)| *count > 0);
        let counts = counts.map(|(count, name)| format!("{count} {name}")).collect::<Vec<_>>().join(", ");
        let count = shape.iter().fold(1, |product: u64, dim| product.saturating_mul(*dim));
        let parts = match is_complex {
            true => format!("the {} parts of ", count.saturating_mul(2)),
            false => String::new(),
        };
        let plural = if count == 1 { "" } else { "s" };
        let at = index(shape, first.unwrap_or(0));
        format!("tensor {}: {counts} among {parts}{count} element{plural}, the first at {at}", quote(name))
    });
}

/// The index of an element in C order, in the notation `[3, 17]`.
pub(super) fn index(shape: &[u64], mut element: u64) -> String {
    let mut indices = vec![0; shape.len()];
    for (at, dim) in shape.iter().enumerate().rev() {
        indices[at] = element % (*dim).max(1);
        element /= (*dim).max(1);
    }
    brackets(&indices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_indices_match_numpy() {
        assert_eq!(index(&[], 0), "[]");
        assert_eq!(index(&[5], 3), "[3]");
        assert_eq!(index(&[2, 3, 4], 23), "[1, 2, 3]");
        assert_eq!(index(&[2, 3, 4], 13), "[1, 0, 1]");
    }
}
