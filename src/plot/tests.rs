use std::io::Write;

use proptest::prelude::*;

use super::*;

/// The statistics of `values`, computed naively.
fn stats(values: &[f32]) -> TensorStats {
    let finite: Vec<f64> = values.iter().filter(|value| value.is_finite()).map(|value| f64::from(*value)).collect();
    let count = |test: fn(f32) -> bool| values.iter().filter(|value| test(**value)).count() as u64;
    let fold = |first: f64, of: fn(f64, f64) -> f64| finite.iter().copied().fold(first, of);
    let (low, high) = (fold(f64::INFINITY, f64::min), fold(f64::NEG_INFINITY, f64::max));
    let some = |value| (!finite.is_empty()).then_some(value);
    let mean = finite.iter().sum::<f64>() / finite.len() as f64;
    let mut counts = [0; BINS];
    for value in &finite {
        counts[(((value - low) / (high - low) * BINS as f64) as usize).min(BINS - 1)] += 1;
    }
    TensorStats {
        count: values.len() as u64,
        zeros: count(|value| value == 0.0),
        nan: count(f32::is_nan),
        pos_inf: count(|value| value == f32::INFINITY),
        neg_inf: count(|value| value == f32::NEG_INFINITY),
        min: some(low),
        max: some(high),
        mean: some(mean),
        std: some((finite.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / finite.len() as f64).sqrt()),
        abs_max: some(low.abs().max(high.abs())),
        histogram: ValueHistogram { low, high, counts },
    }
}

/// The picture of a tensor of these values.
fn picture(name: &str, dtype: &str, shape: &[u64], values: &[f32]) -> Vec<u8> {
    let heat = match shape {
        [] => None,
        [len] => Some(HeatMap::new(1, *len)),
        [.., rows, cols] => Some(HeatMap::new(*rows, *cols)),
    };
    let heat = heat.map(|mut heat| {
        heat.add(0, values);
        heat
    });
    render_plot(name, dtype, shape, &stats(values), heat.as_ref()).unwrap()
}

/// Pseudorandom numbers, the same in every run.
struct Noise(u64);

impl Noise {
    fn uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1 << 24) as f32
    }

    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }
}

/// Writes example pictures: `PLOTS=DIR cargo test --release plot::tests::gallery -- --ignored`. Files of float32 named
/// `NAME+DTYPE+AxBxC.raw` in that directory are drawn too.
#[test]
#[ignore = "writes pictures for visual inspection"]
fn gallery() {
    let dir = std::path::PathBuf::from(std::env::var("PLOTS").unwrap_or_else(|_| "/tmp/plots".to_owned()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut noise = Noise(1);
    let mut normal = |len: usize, scale: f32| (0..len).map(|_| noise.normal() * scale).collect::<Vec<f32>>();
    let show = |file: &str, name: &str, dtype: &str, shape: &[u64], values: &[f32]| {
        let begun = std::time::Instant::now();
        let png = picture(name, dtype, shape, values);
        println!(
            "{file}: {:?}, {} bytes used",
            begun.elapsed(),
            png.windows(4).position(|four| four == b"wfPd").unwrap()
        );
        std::fs::File::create(dir.join(format!("{file}.png"))).unwrap().write_all(&png).unwrap();
    };

    let weights: Vec<f32> = normal(1024 * 1024, 0.02)
        .iter()
        .enumerate()
        .map(|(at, value)| value * (1.0 + (at / 1024) as f32 / 512.0) + if at % 1024 == 300 { 0.05 } else { 0.0 })
        .collect();
    show("normal", "model.layers.0.self_attn.q_proj.weight", "BF16", &[1024, 1024], &weights);
    let mut sparse = normal(500 * 700, 1.0);
    sparse.iter_mut().enumerate().filter(|(at, _)| at % 50 != 0).for_each(|(_, value)| *value = 0.0);
    show("sparse", "sparse.weight", "F32", &[500, 700], &sparse);
    let bimodal: Vec<f32> = normal(300 * 200, 0.1)
        .iter()
        .enumerate()
        .map(|(at, value)| value + if at / 7 % 2 == 0 { 1.0 } else { -1.5 })
        .collect();
    show("bimodal", "blocks.3.mixer.B", "F16", &[300, 200], &bimodal);
    show("constant", "norm.weight", "F32", &[16, 16], &[1.0; 256]);
    let mut nan = normal(200 * 300, 1.0);
    nan[60 * 300..61 * 300].fill(f32::NAN);
    nan[130 * 300 + 7] = f32::INFINITY;
    nan[20 * 300 + 150] = f32::NEG_INFINITY;
    show("nan-row", "decoder.broken", "F32", &[200, 300], &nan);
    let heavy: Vec<f32> = normal(4096 * 256, 1.0).iter().map(|value| value.powi(9) * 1e-3).collect();
    show("heavy", "lm_head.weight", "F32", &[4096, 256], &heavy);
    let f8: Vec<f32> = normal(512 * 512, 16.0)
        .iter()
        .map(|v| {
            let e = v.abs().log2().floor() - 3.0;
            (v / e.exp2()).round() * e.exp2()
        })
        .collect();
    show("f8", "experts.7.down_proj", "F8_E4M3", &[512, 512], &f8);
    show("conv", "features.0.conv.weight", "F32", &[64, 3, 7, 7], &normal(64 * 3 * 49, 0.1)[..]);
    show("one", "logit_scale", "F32", &[1, 1], &[4.6052]);
    let wave: Vec<f32> =
        normal(100_000, 0.2).iter().enumerate().map(|(at, v)| v + (at as f32 / 5000.0).sin()).collect();
    show("wide", "wide", "F32", &[1, 100_000], &wave);
    show("tall", "tall", "F32", &[100_000, 1], &wave);
    show("empty", "empty", "F32", &[0, 128], &[]);
    show("all-nan", "all.nan", "BF16", &[64, 64], &[f32::NAN; 4096]);
    show("scalar", "num_batches_tracked", "I64", &[], &[123_456.0]);
    let mut bias = normal(4096, 0.01);
    bias[777] = 0.4;
    show("vector", "model.layers.31.post_attention_layernorm.bias", "F32", &[4096], &bias);
    show("positive-vector", "ln.weight", "F32", &[60], &normal(60, 0.1).iter().map(|v| v + 1.0).collect::<Vec<_>>());
    show(
        "nan-vector",
        "ln.bias",
        "F32",
        &[3000],
        &normal(3000, 0.1).iter().map(|v| if *v > 0.3 { f32::NAN } else { *v }).collect::<Vec<_>>(),
    );
    show("short-vector", "conv.bias", "F32", &[10], &normal(10, 1.0));
    let bools: Vec<f32> = normal(128 * 128, 1.0).iter().map(|value| f32::from(u8::from(*value > 1.0))).collect();
    show("bool", "attn.mask", "BOOL", &[1, 1, 128, 128], &bools);
    show("long-name", &"модель\n\u{202e}層.".repeat(200), "F32", &[3; 64], &normal(9, 1e-30));
    show("huge", "huge", "F32", &[100, 100], &normal(10_000, 3e37));
    show("narrow", "narrow", "F32", &[100, 100], &normal(10_000, 1e-6).iter().map(|v| v + 1.0).collect::<Vec<_>>());
    let uniform: Vec<f32> = {
        let mut noise = Noise(5);
        (0..1024 * 1024).map(|_| noise.uniform() - 0.5).collect()
    };
    show("noise", "noise", "F32", &[256, 256], &uniform[..65536]);
    for path in std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()) {
        let file = path.file_name().unwrap().to_str().unwrap().to_owned();
        let Some(stem) = file.strip_suffix(".raw") else { continue };
        let mut parts = stem.rsplitn(3, '+');
        let (shape, dtype, name) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        let shape: Vec<u64> = shape.split('x').filter(|dim| !dim.is_empty()).map(|dim| dim.parse().unwrap()).collect();
        let bytes = std::fs::read(&path).unwrap();
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        show(&format!("real-{name}"), name, dtype, &shape, &values);
    }
}

fn decode(png: &[u8]) -> Vec<u8> {
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    reader.finish().unwrap();
    pixels
}

/// The types of the chunks, each run of equal types once. Checks their checksums.
fn chunks(png: &[u8]) -> Vec<String> {
    let (signature, mut rest) = png.split_at(8);
    assert_eq!(signature, b"\x89PNG\r\n\x1a\n");
    let mut types = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
        let sum = u32::from_be_bytes(rest[8 + len..12 + len].try_into().unwrap());
        assert_eq!(sum, crc32fast::hash(&rest[4..8 + len]));
        types.push(String::from_utf8(rest[4..8].to_vec()).unwrap());
        rest = &rest[12 + len..];
    }
    types.dedup();
    types
}

#[test]
fn pictures_are_valid_and_have_the_same_size() {
    let mut noise = Noise(7);
    let worst: Vec<f32> = (0..512 * 512).map(|_| noise.uniform() - 0.5).collect();
    for (shape, values) in [
        (&[512, 512][..], &worst[..]),
        (&[256, 256], &worst[..256 * 256]),
        (&[1, 9, 17], &worst[..153]),
        (&[300], &worst[..300]),
        (&[256], &worst[..256]),
        (&[], &[1.5]),
        (&[2, 0], &[]),
    ] {
        let png = picture(&"a\0é層".repeat(300_000), "F32", shape, values);
        assert_eq!(png.len(), PNG_LEN);
        assert_eq!(chunks(&png), ["IHDR", "PLTE", "IDAT", "wfPd", "IEND"]);
        assert_eq!(decode(&png).len(), (canvas::WIDTH * canvas::HEIGHT) as usize);
        assert_eq!(png, picture(&"a\0é層".repeat(300_000), "F32", shape, values));
    }
}

/// A heat map of random cells fits, however badly it compresses.
#[test]
fn incompressible_matrix_fits() {
    let mut noise = Noise(9);
    let mut pixels = canvas::blank();
    for row in (0..512).step_by(2) {
        let line: Vec<u8> = (0..256).map(|_| (noise.uniform() * 253.0) as u8).flat_map(|color| [color; 2]).collect();
        for row in [row, row + 1] {
            pixels[(100 + row) * canvas::WIDTH as usize + 700..][..512].copy_from_slice(&line);
        }
    }
    let png = canvas::encode_png(&pixels).unwrap();
    assert!(png.windows(4).position(|four| four == b"wfPd").unwrap() < PNG_LEN * 3 / 4);
    assert_eq!(decode(&png), pixels);

    let all: Vec<u8> = pixels.iter().map(|_| (noise.uniform() * 253.0) as u8).collect();
    assert!(matches!(canvas::encode_png(&all), Err(CanvasError::TooLarge { .. })));
}

#[test]
fn cells_hold_the_means_of_their_values() {
    let (rows, cols) = (700, 300);
    let value = |at: usize| {
        if at % 977 == 5 {
            f32::NAN
        } else if at % 1009 == 9 {
            f32::INFINITY
        } else {
            at as f32 * 0.5
        }
    };
    let values: Vec<f32> = (0..rows * cols).map(value).collect();
    let mut heat = HeatMap::new(rows as u64, cols as u64);
    heat.add(0, &values);

    let (down, across) = heat.count();
    let mut expected = vec![(0.0, 0.0, false, false); down * across];
    for (at, value) in values.iter().enumerate() {
        let cell = &mut expected[at / cols * down / rows * across + at % cols * across / cols];
        if value.is_finite() {
            *cell = (cell.0 + f64::from(*value), cell.1 + 1.0, cell.2, cell.3);
        }
        cell.2 |= value.is_nan();
        cell.3 |= value.is_infinite();
    }
    for (found, (sum, count, nan, inf)) in heat.cells().iter().zip(expected) {
        assert_eq!((found.mean(), found.nan, found.inf), ((count > 0.0).then(|| sum / count), nan, inf));
    }

    // In pieces of any size, and with values after the end of the matrix.
    for piece in [1, 7, 300, 301, 65536] {
        let mut cut = HeatMap::new(rows as u64, cols as u64);
        for (at, piece_of) in values.chunks(piece).enumerate() {
            cut.add((at * piece) as u64, piece_of);
        }
        cut.add((rows * cols) as u64, &[1.0; 1000]);
        assert_eq!(cut.cells(), heat.cells());
    }
}

#[test]
fn colour_limit_ignores_outliers() {
    let mut heat = HeatMap::new(10, 100);
    heat.add(0, &(0..1000).map(|at| if at < 5 { -1e30 } else { at as f32 }).collect::<Vec<_>>());
    assert_eq!(heat.limit(), Some(990.0));
    let mut sparse = HeatMap::new(100, 100);
    sparse.add(7, &[-3.0]);
    sparse.add(8, &[f32::NAN; 20]);
    assert_eq!(sparse.limit(), Some(3.0));
    assert_eq!(HeatMap::new(100, 100).limit(), None);
}

/// If NaN is everywhere among other values, the means are shown, and a mark in each cell.
#[test]
fn cells_with_nan_show_the_mean_of_the_others_and_a_mark() {
    let mut values: Vec<f32> = (0..1 << 20).map(|at| (at as f32 * 0.7).sin()).collect();
    let drawn = |values: &[f32]| {
        let mut heat = HeatMap::new(1024, 1024);
        heat.add(0, values);
        let mut canvas = Canvas::new().unwrap();
        draw_matrix(&mut canvas, &heat, &[1024, 1024]);
        let mut black = Canvas::new().unwrap();
        black.fill(PlotFrame { left: 0, top: 0, width: 1, height: 1 }, NAN);
        let marks = canvas.pixels.iter().filter(|color| **color == black.pixels[0]).count();
        (heat, marks)
    };
    let (_, before) = drawn(&values);
    values.iter_mut().step_by(100).for_each(|value| *value = f32::NAN);
    let (heat, marks) = drawn(&values);
    let cells = heat.cells().iter().filter(|cell| cell.nan).count();
    assert!(cells * 10 > heat.cells().len(), "{cells}");
    assert!(heat.limit().is_some_and(|limit| limit > 0.0));
    // A mark has a pixel, and the legend some hundred.
    assert!((cells..cells + 1000).contains(&(marks - before)), "{cells} {before} {marks}");
}

#[test]
fn numbers_and_text_are_formatted_for_display() {
    for (value, expected) in [
        (0.0, "0"),
        (-0.0, "0"),
        (-0.031_246_7, "-0.031247"),
        (1.5, "1.5"),
        (255.0, "255"),
        (12_345.678, "12346"),
        (1e300, "1e300"),
        (-5e-324, "-4.9407e-324"),
        (f64::NAN, "NaN"),
        (f64::NEG_INFINITY, "-inf"),
    ] {
        assert_eq!(format_number(value, 5), expected);
    }
    assert_eq!([grouped(0), grouped(999), grouped(1_234_567)], ["0", "999", "1,234,567"]);
    assert_eq!(
        [short_number(999.0), short_number(12_500.0), short_number(3e6), short_number(1.8e19)],
        ["999", "12.5k", "3M", "18E"]
    );
    assert_eq!(
        [
            percent(0, 9),
            percent(9, 9),
            percent(1, 3),
            percent(1, 1 << 40),
            percent((1 << 40) - 1, 1 << 40),
            percent(0, 0)
        ],
        ["0 %", "100 %", "33.33 %", "< 0.01 %", "> 99.99 %", "0 %"]
    );
    assert_eq!(cut_words("a\n\u{202e}層'", |char| char != '層', |_| true), "a\\n\\u{202e}\\u{5c64}'");
    assert_eq!(cut_words(&"ab".repeat(1 << 19), |_| true, |text| text.chars().count() <= 8), "abab…bab");
}

#[test]
fn ticks_are_round_numbers() {
    let labels = |low, high| ticks(low, high, 6, 60).into_iter().map(|tick| tick.1).collect::<Vec<_>>();
    assert_eq!(labels(-0.23, 0.22), ["-0.2", "-0.1", "0", "0.1", "0.2"]);
    assert_eq!(labels(0.0, 1e-6), ["0", "2e-7", "4e-7", "6e-7", "8e-7", "1e-6"]);
    assert_eq!(labels(-f64::MAX, f64::MAX), ["-1e308", "0", "1e308"]);
    assert_eq!(labels(0.999_998, 1.000_002), ["0.999998", "0.999999", "1.000000", "1.000001", "1.000002"]);
    for (low, high) in
        [(0.0, 0.0), (1.0, 0.0), (0.0, 5e-324), (1e17, 1e17 + 16.0), (f64::NAN, 1.0), (0.0, f64::INFINITY)]
    {
        assert!(labels(low, high).is_empty(), "{low} {high}");
    }
}

/// Extreme and special numbers.
fn hostile() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        Just(f64::MAX),
        Just(f64::MIN),
        Just(5e-324),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        -1.0..1.0,
        Just(0.0),
        Just(-0.0),
    ]
}

fn dims() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..5, 0u64..2000, Just(u64::MAX), any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_input_gives_a_picture(
        name in any::<String>(),
        shape in prop::collection::vec(any::<u64>(), 0..9),
        figures in prop::collection::vec(prop::option::of(hostile()), 5),
        limits in (hostile(), hostile()),
        counts in prop::collection::vec(prop_oneof![Just(0), 0u64..9, any::<u64>()], BINS),
        others in prop::collection::vec(prop_oneof![0u64..3, any::<u64>()], 5),
        matrix in prop::option::of((dims(), dims(), dims(), prop::collection::vec(any::<f32>(), 0..3000))),
    ) {
        let stats = TensorStats {
            count: others[0],
            zeros: others[1],
            nan: others[2],
            pos_inf: others[3],
            neg_inf: others[4],
            min: figures[0],
            max: figures[1],
            mean: figures[2],
            std: figures[3],
            abs_max: figures[4],
            histogram: ValueHistogram { low: limits.0, high: limits.1, counts: counts.try_into().unwrap() },
        };
        let heat = matrix.map(|(rows, cols, first, values)| {
            let mut heat = HeatMap::new(rows, cols);
            heat.add(first, &values);
            heat.add(0, &values);
            heat
        });
        prop_assert_eq!(render_plot(&name, "F32", &shape, &stats, heat.as_ref()).unwrap().len(), PNG_LEN);
    }
}

#[test]
fn shape_of_many_dimensions_gives_a_picture() {
    let png = render_plot("", "BF16", &[u64::MAX; 8192], &stats(&[1.0, 2.0]), Some(&HeatMap::new(u64::MAX, u64::MAX)));
    assert_eq!(png.unwrap().len(), PNG_LEN);
}

#[test]
fn shape_of_a_million_dimensions_is_not_formatted_in_full() {
    for len in [999, 1000, 1001, 5000] {
        let dims: Vec<u64> = (0..len).collect();
        let whole = format!("{dims:?}");
        let shown = |text: &str| cut_words(text, |_| true, |text| text.len() < 60);
        assert_eq!(shown(&words::shape(&dims)), shown(&whole), "{len}");
    }
    assert!(words::shape(&[1; 1_000_000]).len() < 5000);
}
