//! The decoder and the bytes that it needs, for any description.

use crate::cases::is_same;
use proptest::prelude::*;
use std::ops::Range;
use weightfs::codec::quantized::{
    ByteRuns, CodeNumber, CodePacking, Codebooks, DecodedOutput, DequantizeFormula, F32, GatheredParts, GlobalScale,
    LayoutDecoder, MixedColumns, Parts, QuantizedLayout, QuantizedPart, ScaleGrid, ScaleType, SizeMismatch, ZeroPoints,
};

fn real() -> impl Strategy<Value = ScaleType> {
    prop_oneof![
        Just(ScaleType::F32),
        Just(ScaleType::F16),
        Just(ScaleType::Bf16),
        Just(ScaleType::E8M0),
        Just(ScaleType::E4M3),
        (1u64..5).prop_map(|block| ScaleType::Nested { block, offset: 0.25 }),
    ]
}

fn small() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..40, 1 => Just(u64::MAX), 1 => Just(1 << 40)]
}

fn packing() -> impl Strategy<Value = CodePacking> {
    prop_oneof![
        (0u32..10, small()).prop_map(|(bits, row_bytes)| CodePacking::Stream { bits, row_bytes }),
        (0u32..10, small()).prop_map(|(bits, row_bytes)| CodePacking::Words { bits, row_bytes: row_bytes / 4 * 4 }),
        small().prop_map(|row_bytes| CodePacking::HighFirst { row_bytes }),
        Just(CodePacking::RowPairs),
        (0u32..10).prop_map(|bits| CodePacking::Down { bits }),
        Just(CodePacking::Across),
        (0u32..6).prop_map(|bits| CodePacking::RowParts { bits }),
        (real(), small()).prop_map(|(number, row_bytes)| CodePacking::Numbers { number, row_bytes }),
        (small(), 0u32..20, [small(), small()], real())
            .prop_map(|(count, bits, block, number)| CodePacking::Codebooks(Codebooks { count, bits, block, number })),
        ([small(), small(), small()], any::<bool>()).prop_map(|([words, columns, groups], is_permuted)| {
            CodePacking::MixedDown(MixedColumns { words, columns, groups, is_permuted })
        }),
    ]
}

fn number() -> impl Strategy<Value = CodeNumber> {
    prop::sample::select(vec![
        CodeNumber::Unsigned,
        CodeNumber::Signed,
        CodeNumber::Offset,
        CodeNumber::E2M1,
        CodeNumber::E4M3,
        CodeNumber::E5M2,
        CodeNumber::E4M3Fnuz,
        CodeNumber::E5M2Fnuz,
        CodeNumber::Map,
        CodeNumber::Packed,
    ])
}

fn zeros() -> impl Strategy<Value = ZeroPoints> {
    let packed = (0u32..10, small(), small(), any::<bool>(), any::<u32>(), any::<u32>()).prop_map(
        |(bits, along, across, interleaved, add, offset)| ZeroPoints::Packed {
            bits,
            along,
            across,
            interleaved,
            add,
            offset,
        },
    );
    prop_oneof![
        2 => Just(ZeroPoints::None),
        1 => Just(ZeroPoints::Bytes),
        1 => real().prop_map(ZeroPoints::Numbers),
        3 => packed,
    ]
}

fn grid() -> impl Strategy<Value = ScaleGrid> {
    prop_oneof![
        4 => ([small(), small()], small(), [small(), small(), small()])
            .prop_map(|(block, groups, strides)| ScaleGrid::Blocks { block, groups, strides }),
        1 => (small(), small()).prop_map(|(block, groups)| ScaleGrid::Tiled { block, groups: groups / 4 * 4 }),
    ]
}

/// Descriptions of any kind. Most are inconsistent.
fn layout() -> impl Strategy<Value = QuantizedLayout> {
    let dims = (prop_oneof![3 => Just(1u64), 1 => small()], small(), small());
    let formula = prop_oneof![
        3 => Just(DequantizeFormula::Scale),
        1 => Just(DequantizeFormula::Divide),
        1 => Just(DequantizeFormula::ScaleThenAdd),
        1 => Just(DequantizeFormula::ScaleTwice(0.1)),
    ];
    let global = prop_oneof![
        Just(GlobalScale::None),
        any::<bool>().prop_map(|each| GlobalScale::Times { each }),
        any::<bool>().prop_map(|each| GlobalScale::Over { each }),
    ];
    ((dims, packing(), number(), grid(), real(), real()), global, zeros(), any::<bool>(), formula).prop_map(
        |(((batch, rows, cols), packing, number, grid, scale, bias), global, zeros, group_index, formula)| {
            QuantizedLayout {
                batch,
                rows,
                cols,
                packing,
                number,
                grid,
                scale,
                bias,
                global,
                zeros,
                group_index,
                formula,
            }
        },
    )
}

/// The number, or another one if codes that are packed like this cannot stand for it.
fn number_of(packing: CodePacking, number: CodeNumber) -> CodeNumber {
    match (packing, number) {
        (CodePacking::Numbers { .. } | CodePacking::Codebooks(_) | CodePacking::MixedDown(_), _) => CodeNumber::Packed,
        (CodePacking::RowParts { .. }, CodeNumber::Signed | CodeNumber::Offset) => number,
        (CodePacking::RowParts { .. }, _) | (_, CodeNumber::Packed) => CodeNumber::Unsigned,
        _ => number,
    }
}

/// The list of at most `most` groups of codes for `cols` columns, as numbers, and the number of their words.
fn code_groups(cols: u64, most: u64) -> (Vec<[u16; 2]>, u64) {
    let (mut list, mut words, mut left) = (Vec::new(), 0, cols);
    for (bits, whole) in [(8, 4), (6, 16), (5, 32), (4, 8), (3, 32), (2, 16)].into_iter().take(most as usize) {
        if left == 0 {
            break;
        }
        let is_last = list.len() as u64 + 1 == most;
        let codes = if is_last { left } else { left.min(whole) };
        list.push([bits as u16, words as u16]);
        words += (codes * bits).div_ceil(32);
        left -= codes;
    }
    (list, words)
}

/// Descriptions that are likely to be consistent.
fn consistent() -> impl Strategy<Value = QuantizedLayout> {
    (layout(), 1u64..4, 1u64..40, 1u64..70, 1u64..9, (1u64..20, 1u64..20), 0u64..3, 0u64..3).prop_map(
        |(mut layout, batch, rows, cols, bits, (below, beside), kind, extra)| {
            layout.number = number_of(layout.packing, layout.number);
            let bits = if let CodeNumber::E2M1 | CodeNumber::Map = layout.number { 4 } else { bits };
            let bits = match layout.number {
                CodeNumber::E4M3 | CodeNumber::E5M2 | CodeNumber::E4M3Fnuz | CodeNumber::E5M2Fnuz => 8,
                _ => bits as u32,
            };
            let is_in_eights =
                matches!(layout.packing, CodePacking::Across | CodePacking::RowPairs | CodePacking::RowParts { .. });
            let rows = if is_in_eights { rows * 8 } else { rows };
            let transposed = layout.packing.has_windows() || matches!(layout.packing, CodePacking::RowParts { .. });
            (layout.batch, layout.rows, layout.cols) = (if transposed { 1 } else { batch }, rows, cols);
            let padded = |bytes: u64| bytes + extra * 4;
            layout.packing = match layout.packing {
                CodePacking::Stream { .. } => {
                    CodePacking::Stream { bits, row_bytes: padded((cols * u64::from(bits)).div_ceil(8)) }
                }
                CodePacking::Words { .. } => {
                    CodePacking::Words { bits, row_bytes: padded(cols.div_ceil(u64::from(32 / bits)) * 4) }
                }
                CodePacking::HighFirst { .. } => CodePacking::HighFirst { row_bytes: padded(cols.div_ceil(2)) },
                CodePacking::Down { .. } => CodePacking::Down { bits },
                CodePacking::RowParts { .. } => CodePacking::RowParts { bits: bits.div_ceil(2) },
                CodePacking::Numbers { number, .. } => {
                    CodePacking::Numbers { number, row_bytes: padded(cols * number.bytes()) }
                }
                CodePacking::Codebooks(books) => CodePacking::Codebooks(Codebooks {
                    count: 1 + books.count % 3,
                    bits: bits + extra as u32,
                    block: if kind == 0 { [1, 1] } else { [rows, cols] },
                    number: books.number,
                }),
                CodePacking::MixedDown(columns) => {
                    let (list, words) = code_groups(cols, 1 + columns.groups % 6);
                    let (columns, groups) = (rows.next_multiple_of(8) + extra * 8, list.len() as u64);
                    CodePacking::MixedDown(MixedColumns { words, columns, groups, is_permuted: kind > 0 })
                }
                packing => packing,
            };
            let groups = cols.div_ceil(beside);
            let count = rows.div_ceil(below);
            let blocks = |strides| ScaleGrid::Blocks { block: [below, beside], groups, strides };
            let is_plain = matches!(layout.scale, ScaleType::E8M0 | ScaleType::E4M3) && layout.batch == 1;
            layout.grid = match kind {
                0 if layout.batch == 1 => ScaleGrid::Blocks { block: [1, beside], groups, strides: [0, 1, rows] },
                1 if is_plain => ScaleGrid::Tiled { block: beside, groups: groups.next_multiple_of(4) },
                _ => blocks([count * groups, groups, 1]),
            };
            layout.group_index = layout.group_index && layout.batch == 1;
            layout.zeros = match layout.zeros {
                ZeroPoints::Packed { add, interleaved, .. } => {
                    let words = (rows * u64::from(bits)).div_ceil(32);
                    let (along, across) = if extra == 0 { (groups, 1) } else { (1, words) };
                    ZeroPoints::Packed {
                        bits,
                        along,
                        across,
                        interleaved: interleaved && bits == 4 && rows % 8 == 0,
                        add,
                        offset: 1,
                    }
                }
                zeros => zeros,
            };
            if let CodePacking::MixedDown(_) = layout.packing {
                (layout.zeros, layout.group_index) = (ZeroPoints::None, false);
                (layout.formula, layout.global) = (DequantizeFormula::Scale, GlobalScale::None);
            }
            layout
        },
    )
}

/// Bytes for each part.
fn parts(layout: &QuantizedLayout, required: &Parts<u64>) -> Parts<Vec<u8>> {
    let mut parts: Parts<Vec<u8>> =
        required.map(|size| (0..size).map(|at| ((at.wrapping_mul(2_654_435_761) ^ size) >> 7) as u8).collect());
    if let (true, ScaleGrid::Blocks { groups, .. }) = (layout.group_index && layout.elements() > 0, layout.grid) {
        // Some groups do not exist, and -1 means that the index is not used.
        let unused = layout.rows.is_multiple_of(3);
        let group = |column: u64| if unused && column == 0 { u32::MAX } else { (column * 7 % (groups + 1)) as u32 };
        let index = (0..layout.cols).flat_map(|column| group(column).to_le_bytes());
        parts[QuantizedPart::GroupIndex as usize] = index.collect();
    }
    if let (true, CodePacking::MixedDown(columns)) = (layout.elements() > 0, layout.packing) {
        let (list, words) = code_groups(layout.cols, columns.groups);
        // Otherwise the list is not one of these columns.
        if (list.len() as u64, words) == (columns.groups, columns.words) {
            let bytes = list.iter().flatten().flat_map(|number| number.to_le_bytes());
            parts[QuantizedPart::CodeGroups as usize] = bytes.collect();
        }
        if columns.is_permuted {
            // Some places do not exist.
            let place = |column: u64| if column % 9 == 8 { u32::MAX } else { (layout.cols - 1 - column) as u32 };
            let places = (0..layout.cols).flat_map(|column| place(column).to_le_bytes());
            parts[QuantizedPart::Permutation as usize] = places.collect();
        }
    }
    parts
}

fn gather(parts: &Parts<Vec<u8>>, needs: &Parts<ByteRuns>) -> Parts<Vec<u8>> {
    QuantizedPart::ALL.map(|part| {
        let runs = needs[part as usize].ranges();
        runs.flat_map(|run| parts[part as usize][run.start as usize..run.end as usize].to_vec()).collect()
    })
}

fn decode(decoder: &LayoutDecoder, parts: &Parts<Vec<u8>>, held: &Range<u64>, range: &Range<u64>) -> Vec<f32> {
    let gathered = gather(parts, &decoder.needs(held));
    let mut out: Vec<F32> = vec![[0xaa; 4]; (range.end - range.start) as usize];
    decoder.decode(held, &gathered.each_ref().map(Vec::as_slice), range, DecodedOutput::F32(&mut out)).unwrap();
    out.into_iter().map(f32::from_le_bytes).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// The elements are the same whether they are decoded one by one, in any range, or all at once.
    #[test]
    fn ranges_agree_with_single_elements(layout in consistent(), at in any::<[prop::sample::Index; 4]>()) {
        let Ok(required) = layout.required() else { return Ok(()) };
        let decoder = LayoutDecoder::new(layout, &required).unwrap();
        let parts = parts(&layout, &required);
        let elements = layout.elements();
        let whole = decode(&decoder, &parts, &(0..elements), &(0..elements));
        let place = |at: &prop::sample::Index| at.index(elements as usize + 1) as u64;
        let mut places = [place(&at[0]), place(&at[1]), place(&at[2]), place(&at[3])];
        places.sort_unstable();
        let (held, range) = (places[0]..places[3], places[1]..places[2]);
        for held in [held, range.clone(), layout.window(range.clone())] {
            let found = decode(&decoder, &parts, &held, &range);
            for (found, expected) in found.iter().zip(&whole[range.start as usize..]) {
                prop_assert!(is_same(*found, *expected, true), "{} {}", found, expected);
            }
        }
        for at in range.start..range.end.min(range.start + 20) {
            let found = decode(&decoder, &parts, &(at..at + 1), &(at..at + 1));
            prop_assert!(is_same(found[0], whole[at as usize], true), "{} {}", found[0], whole[at as usize]);
        }
    }

    /// A layout that is not refused needs only bytes that exist.
    #[test]
    fn hostile_descriptions_are_refused_or_work(layout in layout(), at in any::<[prop::sample::Index; 2]>()) {
        let Ok(required) = layout.required() else { return Ok(()) };
        for (part, size) in required.iter().enumerate().filter(|(_, size)| **size > 0) {
            let mut smaller = required;
            smaller[part] = size - 1;
            prop_assert!(LayoutDecoder::new(layout, &smaller).is_err());
        }
        let decoder = LayoutDecoder::new(layout, &required).unwrap();
        let elements = layout.elements();
        let mut places = at.map(|at| if elements < 1 << 40 { at.index(elements as usize + 1) as u64 } else { elements });
        places.sort_unstable();
        for range in [places[0]..places[1], 0..elements] {
            let window = layout.window(range.clone());
            prop_assert!(window.start <= range.start && range.end <= window.end && window.end <= elements.max(range.end));
            for (runs, size) in decoder.needs(&range).iter().zip(required) {
                prop_assert!(runs.count == 0 || runs.start + (runs.count - 1) * runs.stride + runs.len <= size);
                prop_assert!(runs.len <= runs.stride);
            }
        }
        if required.iter().all(|size| *size < 1 << 20) {
            let parts = parts(&layout, &required);
            decode(&decoder, &parts, &(0..elements), &(places[0]..places[1]));
        }
    }
}

#[test]
fn consistent_descriptions_are_common() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut count = 0;
    for _ in 0..1000 {
        count += usize::from(consistent().new_tree(&mut runner).unwrap().current().required().is_ok());
    }
    assert!(count > 300, "{count}");
}

fn fp8() -> QuantizedLayout {
    QuantizedLayout {
        batch: 1,
        rows: 7168,
        cols: 18432,
        packing: CodePacking::Stream { bits: 8, row_bytes: 18432 },
        number: CodeNumber::E4M3,
        grid: ScaleGrid::Blocks { block: [128, 128], groups: 144, strides: [56 * 144, 144, 1] },
        scale: ScaleType::F32,
        bias: ScaleType::F32,
        global: GlobalScale::None,
        zeros: ZeroPoints::None,
        group_index: false,
        formula: DequantizeFormula::Scale,
    }
}

#[test]
fn row_needs_only_its_codes_and_scales() {
    let needs = |layout: QuantizedLayout, range: Range<u64>| {
        let needs = LayoutDecoder::new(layout, &layout.required().unwrap()).unwrap().needs(&range);
        let first = |part: QuantizedPart| needs[part as usize].ranges().next().unwrap();
        (first(QuantizedPart::Values), first(QuantizedPart::Scales))
    };
    let row = 300 * 18432;
    assert_eq!(needs(fp8(), row..row + 18432), (row..row + 18432, 2 * 144 * 4..3 * 144 * 4));
    assert_eq!(needs(fp8(), row + 200..row + 201), (row + 200..row + 201, (2 * 144 + 1) * 4..(2 * 144 + 2) * 4));
    let transposed = QuantizedLayout {
        packing: CodePacking::Down { bits: 4 },
        number: CodeNumber::Unsigned,
        grid: ScaleGrid::Blocks { block: [1, 128], groups: 144, strides: [0, 1, 7168] },
        ..fp8()
    };
    let decoder = LayoutDecoder::new(transposed, &transposed.required().unwrap()).unwrap();
    let [values, scales, ..] = decoder.needs(&(row..row + 18432));
    assert_eq!(values, ByteRuns { start: 300 * 4, len: 4, stride: 7168 * 4, count: 18432 / 8 });
    assert_eq!(scales, ByteRuns { start: 300 * 4, len: 4, stride: 7168 * 4, count: 144 });
    // A window consists of rows whose codes and scales are at most 4 MiB.
    let window = transposed.window(row..row + 1);
    assert_eq!((window.start % 18432, window.end % 18432, window.contains(&row)), (0, 0, true));
    let bytes = decoder.needs(&window)[QuantizedPart::Values as usize].bytes();
    assert!((1 << 20..=4 << 20).contains(&bytes), "{bytes}");
}

/// A range of rows needs the bytes with their codes, and the decoder goes from part to part.
#[test]
fn rows_in_parts_are_read_part_by_part() {
    let layout = QuantizedLayout {
        rows: 48,
        cols: 64,
        packing: CodePacking::RowParts { bits: 4 },
        number: CodeNumber::Unsigned,
        grid: ScaleGrid::Blocks { block: [1, 64], groups: 1, strides: [0, 1, 0] },
        scale: ScaleType::F16,
        zeros: ZeroPoints::Numbers(ScaleType::F32),
        ..fp8()
    };
    let decoder = LayoutDecoder::new(layout, &layout.required().unwrap()).unwrap();
    let needs = |range: Range<u64>| {
        let [values, scales, zeros, ..] = decoder.needs(&range);
        [values, scales, zeros].map(|runs| runs.ranges().next().unwrap())
    };
    assert_eq!(needs(30 * 64..32 * 64), [6 * 64..8 * 64, 30 * 2..32 * 2, 30 * 4..32 * 4]);
    assert_eq!(needs(5 * 64 + 3..5 * 64 + 7), [5 * 64 + 3..5 * 64 + 7, 5 * 2..6 * 2, 5 * 4..6 * 4]);
    assert_eq!((layout.part_end(5), layout.part_end(24 * 64)), (24 * 64, 48 * 64));
    assert_eq!((layout.step(20 * 64, 2000), layout.step(20 * 64, 100)), (24 * 64, 21 * 64 + 36));
}

#[test]
fn distance_of_groups_is_ignored_if_there_is_one() {
    for beside in [0, 1, u64::MAX] {
        let grid = ScaleGrid::Blocks { block: [1, 3], groups: 1, strides: [0, 1, beside] };
        let packing = CodePacking::Stream { bits: 8, row_bytes: 3 };
        let layout = QuantizedLayout { rows: 2, cols: 3, packing, number: CodeNumber::Unsigned, grid, ..fp8() };
        let decoder = LayoutDecoder::new(layout, &layout.required().unwrap()).unwrap();
        let mut parts: Parts<Vec<u8>> = Default::default();
        parts[QuantizedPart::Values as usize] = vec![1, 2, 3, 4, 5, 6];
        parts[QuantizedPart::Scales as usize] = [0.5f32, 2.0].iter().flat_map(|scale| scale.to_le_bytes()).collect();
        assert_eq!(decode(&decoder, &parts, &(0..6), &(0..6)), [0.5, 1.0, 1.5, 8.0, 10.0, 12.0]);
    }
}

#[test]
fn slices_of_wrong_sizes_are_refused() {
    let layout =
        QuantizedLayout { rows: 256, cols: 256, packing: CodePacking::Stream { bits: 8, row_bytes: 256 }, ..fp8() };
    let layout =
        QuantizedLayout { grid: ScaleGrid::Blocks { block: [128, 128], groups: 2, strides: [4, 2, 1] }, ..layout };
    let decoder = LayoutDecoder::new(layout, &layout.required().unwrap()).unwrap();
    let (codes, scales) = (vec![0; 512], vec![0; 16]);
    let mut out = vec![[0; 4]; 512];
    let mut decode = |codes: &[u8], scales: &[u8], held: Range<u64>, range: Range<u64>, len: usize| {
        let mut parts: Parts<&[u8]> = Default::default();
        (parts[0], parts[1]) = (codes, scales);
        decoder.decode(&held, &parts, &range, DecodedOutput::F32(&mut out[..len]))
    };
    assert_eq!(decode(&codes, &scales[..8], 0..512, 0..512, 512), Ok(()));
    assert_eq!(
        decode(&codes[1..], &scales[..8], 0..512, 0..512, 512),
        Err(SizeMismatch { part: Some(QuantizedPart::Values) })
    );
    assert_eq!(decode(&codes, &scales, 0..512, 0..512, 512), Err(SizeMismatch { part: Some(QuantizedPart::Scales) }));
    for (held, range, len) in
        [(0..512, 0..512, 511), (0..512, 0..513, 512), (1..512, 0..512, 512), (0..u64::MAX, 0..1, 1)]
    {
        assert_eq!(decode(&codes, &scales[..8], held, range, len), Err(SizeMismatch { part: None }));
    }
}

proptest! {
    /// Runs of any length and distance are read whole, and nothing outside the bytes that are needed or lie between.
    #[test]
    fn gathered_bytes_are_those_that_are_needed(layout in consistent(), at in any::<[prop::sample::Index; 2]>()) {
        let Ok(required) = layout.required() else { return Ok(()) };
        let decoder = LayoutDecoder::new(layout, &required).unwrap();
        let parts = parts(&layout, &required);
        let elements = layout.elements();
        let mut places = at.map(|at| at.index(elements as usize + 1) as u64);
        places.sort_unstable();
        let range = places[0]..places[1];
        let gathered = GatheredParts::new(range.clone(), decoder.needs(&range), |part, offset, bytes| {
            let part = parts[part as usize].get(offset as usize..offset as usize + bytes.len());
            part.map(|part| bytes.copy_from_slice(part)).ok_or(())
        });
        let gathered = gathered.unwrap();
        let needed: u64 = decoder.needs(&range).iter().map(ByteRuns::bytes).sum();
        prop_assert_eq!(gathered.bytes() as u64, needed);
        let mut out = vec![[0xaa; 4]; (range.end - range.start) as usize];
        gathered.decode(&decoder, &range, DecodedOutput::F32(&mut out)).unwrap();
        let expected = decode(&decoder, &parts, &range, &range);
        let found = out.into_iter().map(f32::from_le_bytes);
        prop_assert!(found.zip(expected).all(|(found, expected)| is_same(found, expected, true)));
    }
}
