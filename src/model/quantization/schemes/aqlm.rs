//! AQLM: each code is the index of a vector of a codebook, and the vectors of several codebooks are added.
//!
//! Source: `aqlm`, `aqlm/utils.py`, `_dequantize_weight`.

use super::scheme::{
    Answer, FoundWeight, WeightRefusal, WeightSite, missing_companion, plain_layout, wide, wrong_companion,
};
use crate::codec::quantized::{CodeNumber, CodePacking, Codebooks, QuantizedPart, ScaleGrid};

const CODEBOOKS: &str = ".codebooks";

/// The names of the usual numbers of codebooks and widths of codes.
const NAMES: [(u64, u32, &str); 12] = [
    (1, 16, "1x16"),
    (1, 15, "1x15"),
    (1, 14, "1x14"),
    (1, 13, "1x13"),
    (1, 12, "1x12"),
    (1, 11, "1x11"),
    (1, 10, "1x10"),
    (1, 8, "1x8"),
    (2, 8, "2x8"),
    (2, 16, "2x16"),
    (4, 8, "4x8"),
    (8, 8, "8x8"),
];

pub fn recognise_aqlm(site: &WeightSite) -> Answer {
    let code_bits = match site.values.dtype {
        "I8" => 8,
        "I16" => 16,
        _ => return Ok(None),
    };
    let Some(books) = site.companion(CODEBOOKS) else {
        return if site.config.is_aqlm() { Err(missing_companion(CODEBOOKS)) } else { Ok(None) };
    };
    let wrong_books = || wrong_companion(CODEBOOKS, books);
    let (Some(number), [count, entries, height, width]) = (wide(books.dtype), books.shape) else {
        return Err(wrong_books());
    };
    let both = || format!("codebooks of {:?} and codes of {:?}", books.shape, site.values.shape);
    let [below, beside, of_each] = site.values.shape else {
        let found = format!("{:?} instead of rows, columns and codebooks", site.values.shape);
        return Err(WeightRefusal::mismatch("codes of a wrong shape", found));
    };
    if of_each != count {
        return Err(WeightRefusal::mismatch("codes for another number of codebooks", both()));
    }
    let bits = entries.checked_ilog2().filter(|bits| *bits > 0 && entries.is_power_of_two());
    let bits = bits.filter(|bits| *bits <= code_bits && (*bits > 8) == (code_bits > 8)).ok_or_else(wrong_books)?;
    let named = [
        ("out_group_size", *height),
        ("in_group_size", *width),
        ("num_codebooks", *count),
        ("nbits_per_codebook", bits.into()),
    ];
    for (key, size) in named {
        if let Some(named) = site.config.number(key).filter(|named| *named != size) {
            let found = format!("{key} {named} for {:?}", books.shape);
            return Err(WeightRefusal::mismatch("codebooks that do not fit the configuration", found));
        }
    }
    let scale = site.wide_scales()?;
    if *site.scales.shape != [*below, 1, 1, 1] {
        return Err(site.wrong_shape());
    }
    let sizes = below.checked_mul(*height).zip(beside.checked_mul(*width));
    let (rows, cols) = sizes.filter(|_| *height > 0 && *width > 0).ok_or_else(wrong_books)?;
    let grid = ScaleGrid::Blocks { block: [*height, cols.max(1)], groups: 1, strides: [0, 1, 0] };
    let packing = CodePacking::Codebooks(Codebooks { count: *count, bits, block: [*height, *width], number });
    let layout = plain_layout([1, rows, cols], packing, CodeNumber::Packed, grid, scale);
    let unfit = |reason| WeightRefusal::mismatch("tensors that do not fit together", format!("{reason}: {}", both()));
    layout.required().map_err(unfit)?;
    let name = NAMES.iter().find(|named| (named.0, named.1) == (*count, bits)).map_or("codebooks", |named| named.2);
    Ok(Some(FoundWeight::new(site, name, vec![rows, cols], layout).with(QuantizedPart::Map, Some(books))))
}
