//! `plots/`: a tensor as a PNG image.

use super::results::ResultKey;
use super::stats::{ComputedFile, stats_count};
use super::values::{each_value, step};
use super::views::ModelViews;
use crate::content::{Content, Error, ReadRequest};
use crate::format::Dtype;
use crate::model::TensorNumbers;
use crate::plot::{self, HeatMap};
use std::ops::Range;

/// The file of a tensor. It is rendered at the first read.
pub fn plot_content(views: &ModelViews, numbers: &TensorNumbers, key: ResultKey) -> Content {
    ComputedFile::content(views, numbers, key, plot::PNG_LEN, render_picture)
}

fn render_picture(numbers: &TensorNumbers, data: &Content, request: &ReadRequest) -> Result<Vec<u8>, Error> {
    let (dtype, shape) = (numbers.dtype(), numbers.shape());
    let stats = stats_count(dtype, data, request)?;
    let heat = match shape {
        _ if stats.count == 0 => None,
        [] => None,
        [len] => Some(heat(1, *len, dtype, data, request)?),
        [.., rows, cols] => Some(heat(*rows, *cols, dtype, data, request)?),
    };
    // A quantized weight is shown with the type of its codes.
    let name = numbers.weight.map_or(dtype.name(), |weight| weight.class.dtype);
    let rendered = plot::render_plot(numbers.name(), name, shape, &stats, heat.as_ref());
    rendered.map_err(|error| Error::Compute(error.to_string()))
}

/// The heat map of the first matrix of a tensor. Values are float64 where float32 is too narrow.
fn heat(rows: u64, cols: u64, dtype: Dtype, data: &Content, request: &ReadRequest) -> Result<HeatMap, Error> {
    let mut heat = HeatMap::new(rows, cols);
    let (Some(block), Some(to_f32)) = (dtype.block(), dtype.to_f32()) else { return Ok(heat) };
    // The last block may contain elements of the next matrix, which the heat map ignores.
    let blocks = rows.saturating_mul(cols).div_ceil(block.elements);
    let part = Range { start: 0, end: blocks.saturating_mul(block.bytes).min(data.len()) };
    let wide: Option<fn([u8; 8]) -> f64> = match dtype {
        Dtype::F64 => Some(f64::from_le_bytes),
        Dtype::I64 => Some(|bytes| i64::from_le_bytes(bytes) as f64),
        Dtype::U64 => Some(|bytes| u64::from_le_bytes(bytes) as f64),
        _ => None,
    };
    let mut first = 0;
    if let Some(wide) = wide {
        each_value(data, part, step(dtype), request, |encoded| {
            let values: Vec<f64> = encoded.as_chunks().0.iter().map(|bytes| wide(*bytes)).collect();
            heat.add(first, &values);
            first += values.len() as u64;
        })?;
        return Ok(heat);
    }
    let (mut decoded, mut values) = (Vec::new(), Vec::<f32>::new());
    each_value(data, part, step(dtype), request, |encoded| {
        block.decode_each(to_f32, encoded, &mut decoded, |decoded| {
            values.clear();
            values.extend(decoded.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            heat.add(first, &values);
            first += values.len() as u64;
        });
    })?;
    Ok(heat)
}
