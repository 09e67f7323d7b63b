//! EXL2: groups of integers of 2 to 8 bits down the columns of the transposed matrix, with 4-bit scales, whose unit is
//! a part of the largest scale of the group. The columns of the weight may be permuted.
//!
//! Source: `exllamav2`, `exllamav2_ext/cuda/q_matrix.cu`, `reconstruct_kernel`.

use super::scheme::{
    Answer, FoundWeight, WeightRefusal, WeightSite, integer_name, missing_companion, plain_layout, wrong_companion,
};
use crate::codec::quantized::{CodeGroup, CodeNumber, CodePacking, MixedColumns, QuantizedPart, ScaleGrid, ScaleType};
use crate::model::quantization::site::SiteTensor;

const GROUPS: &str = ".q_groups";
const LARGEST: &str = ".q_scale_max";
const PERMUTATION: &str = ".q_invperm";
const BIAS: &str = ".bias";

/// The number of columns of the stored matrix is a multiple of this.
const PADDED: u64 = 32;

/// The tensors whose data is needed, and the size in bytes above which they are not read. A group begins at a 16-bit
/// number, and no matrix with more columns is decoded.
pub const CONTENTS: &[(&str, u64)] = &[(GROUPS, 256 << 10), (PERMUTATION, 4 << 20)];

pub fn recognise_exl2(site: &WeightSite) -> Answer {
    let ("I32", [words, columns]) = (site.values.dtype, site.values.shape) else {
        let found = format!("{} {:?}", site.values.dtype, site.values.shape);
        return Err(WeightRefusal::mismatch("codes of a wrong dtype or shape", found));
    };
    let (words, columns) = (*words, *columns);
    let ("I32", [groups, _]) = (site.scales.dtype, site.scales.shape) else { return Err(site.wrong_scales()) };
    let groups = *groups;
    if !columns.is_multiple_of(PADDED) || *site.scales.shape != [groups, columns / 8] {
        return Err(site.wrong_shape());
    }
    let listed = groups.checked_mul(2).ok_or_else(|| site.wrong_scales())?;
    let list = site.optional(GROUPS, "I16", &[listed])?.ok_or_else(|| missing_companion(GROUPS))?;
    let largest = site.optional(LARGEST, "F16", &[groups])?.ok_or_else(|| missing_companion(LARGEST))?;
    let permutation = site.companion(PERMUTATION);
    let cols = permutation.map(|tensor| permuted(site, tensor)).transpose()?;
    let list_data = site.contents(list).ok_or_else(|| wrong_companion(GROUPS, list))?;
    let code_groups = CodeGroup::parse(list_data, words, cols)
        .map_err(|found| WeightRefusal::mismatch("groups that do not fit the codes", format!("q_groups: {found}")))?;
    let cols: u64 = code_groups.iter().map(|group| group.codes).sum();
    let rows = unpadded(site, columns)?;
    let packing = CodePacking::MixedDown(MixedColumns { words, columns, groups, is_permuted: permutation.is_some() });
    let grid = ScaleGrid::Blocks { block: [1, cols.max(1)], groups: 1, strides: [0, 1, 0] };
    let layout = plain_layout([1, rows, cols], packing, CodeNumber::Packed, grid, ScaleType::F16);
    let mut found = FoundWeight::new(site, width_name(&code_groups), vec![rows, cols], layout)
        .with(QuantizedPart::CodeGroups, Some(list))
        .with(QuantizedPart::NestedScales, Some(largest))
        .with(QuantizedPart::Permutation, permutation);
    found.group = code_groups.iter().map(|group| group.codes).max().filter(|_| groups > 1);
    Ok(Some(found))
}

/// The number of columns that a permutation has.
fn permuted(site: &WeightSite, tensor: SiteTensor) -> Result<u64, WeightRefusal> {
    let ("I32", [cols], Some(data)) = (tensor.dtype, tensor.shape, site.contents(tensor)) else {
        return Err(wrong_companion(PERMUTATION, tensor));
    };
    let places = data.as_chunks::<4>().0;
    let mut seen = vec![false; places.len()];
    for (at, place) in places.iter().enumerate() {
        let place = i32::from_le_bytes(*place);
        let reason = match usize::try_from(place).ok().and_then(|place| seen.get_mut(place)) {
            Some(seen) if !*seen => {
                *seen = true;
                continue;
            }
            Some(_) => "occurs twice",
            None => "is out of range",
        };
        let found = format!("q_invperm: {place} at {at} of {cols} {reason}");
        return Err(WeightRefusal::mismatch("a list that is not a permutation", found));
    }
    Ok(*cols)
}

/// The number of rows of the weight without those that pad it: the size of the bias or, for the last layer, that of the
/// vocabulary, if the stored matrix has so many columns. The other matrices of models are not padded.
fn unpadded(site: &WeightSite, columns: u64) -> Result<u64, WeightRefusal> {
    let fits = |rows: &u64| rows.checked_next_multiple_of(PADDED) == Some(columns);
    if let Some(bias) = site.companion(BIAS) {
        return match bias.shape {
            [rows] if fits(rows) => Ok(*rows),
            _ => {
                let found = format!("bias {:?} for codes of {:?}", bias.shape, site.values.shape);
                Err(WeightRefusal::mismatch("a bias that does not fit the codes", found))
            }
        };
    }
    let is_last = site.stem == "lm_head" || site.stem.ends_with(".lm_head");
    Ok(site.config.vocabulary.filter(|rows| is_last && fits(rows)).unwrap_or(columns))
}

/// The type of the codes, which most weights have of two widths.
fn width_name(groups: &[CodeGroup]) -> &'static str {
    match groups {
        [first, .., last] if first.bits != last.bits => "mixed INT",
        [first, ..] => integer_name(first.bits),
        [] => integer_name(0),
    }
}
