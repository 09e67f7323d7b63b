//! The statistics of parts of a model, which are printed with `--part` and joined.

use super::counted::{CountedHead, CountedModel, CountedPiece, CountedTensor, StatsPrinter};
use super::part_files::{PartModel, PartWriter, are_gapless};
use crate::terminal::output::StandardOutput;
use anyhow::bail;
use serde::{Deserialize, Serialize};
use weightfs::format::Dtype;
use weightfs::stats::{FinishedState, StatsAccumulator, StatsState, TensorStats};
use weightfs::text::quote;

/// The statistics of a tensor, or of a piece of it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PartTensor {
    index: usize,
    name: String,
    dtype: String,
    shape: Vec<u64>,
    /// The piece that was counted, in bytes of the values.
    range: (u64, u64),
    /// The size of all values in bytes.
    len: u64,
    counted: PartCounted,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PartCounted {
    Whole(FinishedState),
    Part(StatsState),
}

/// Counts and prints the share of a part in a model.
pub(super) fn write_share(
    counted: &CountedModel,
    parts: &mut PartWriter,
    out: &mut StandardOutput,
) -> anyhow::Result<()> {
    let CountedHead { source, others } = counted.head();
    let model = PartModel::new(source, counted.model, counted.tensors.len(), others);
    let part = parts.begin_model(model, out)?;
    counted.each_piece(part, &mut |piece, found| {
        let numbers = counted.numbers(counted.tensors[piece.tensor]);
        let tensor = PartTensor {
            index: piece.tensor,
            name: numbers.name().to_owned(),
            dtype: numbers.dtype().name().to_owned(),
            shape: numbers.shape().to_vec(),
            range: (piece.range.start, piece.range.end),
            len: piece.len,
            counted: match found {
                CountedPiece::Whole(stats) => PartCounted::Whole(FinishedState::of(&stats)),
                CountedPiece::Part(state) => PartCounted::Part(state),
            },
        };
        parts.write_item(tensor, out)
    })?;
    Ok(counted.model.verify()?)
}

/// Prints what one process without `--part` prints.
pub(super) fn print_joined(
    models: Vec<(PartModel, Vec<PartTensor>)>,
    printer: StatsPrinter,
    out: &mut StandardOutput,
) -> anyhow::Result<()> {
    let combined = models.into_iter().map(|(model, tensors)| {
        let counted = combine_tensors(&model, tensors)?;
        Ok((CountedHead { source: model.source, others: model.others }, counted))
    });
    // Nothing is printed before everything is known to fit.
    let combined = combined.collect::<anyhow::Result<Vec<(CountedHead, Vec<CountedTensor>)>>>()?;
    printer.begin(out)?;
    for (head, counted) in combined {
        printer.print(&head, &mut |take| counted.iter().try_for_each(&mut *take), out)?;
    }
    Ok(())
}

/// The statistics of all tensors of a model, from the pieces in all parts.
fn combine_tensors(model: &PartModel, mut pieces: Vec<PartTensor>) -> anyhow::Result<Vec<CountedTensor>> {
    pieces.sort_by_key(|piece| (piece.index, piece.range));
    let mut counted = Vec::new();
    model.check_whole(pieces.chunk_by(|a, b| a.index == b.index).map(|same| same[0].index))?;
    for same in pieces.chunk_by(|a, b| a.index == b.index) {
        let PartTensor { name, dtype, shape, .. } = &same[0];
        let Some(stats) = combine_pieces(same) else {
            bail!("{}: the pieces of {} do not fit together", model.source, quote(name));
        };
        let (name, dtype, shape) = (name.clone(), dtype.clone(), shape.clone());
        counted.push(CountedTensor { name, dtype, shape, stats });
    }
    Ok(counted)
}

/// The statistics of a tensor from its pieces, in their order. `None` if they are not those of one tensor.
fn combine_pieces(pieces: &[PartTensor]) -> Option<TensorStats> {
    let first = pieces.first()?;
    let is_one = |piece: &PartTensor| {
        (&piece.name, &piece.dtype, &piece.shape, piece.len) == (&first.name, &first.dtype, &first.shape, first.len)
    };
    if !pieces.iter().all(is_one) || !are_gapless(pieces.iter().map(|piece| piece.range), first.len) {
        return None;
    }
    let dtype = Dtype::ALL.iter().find(|dtype| dtype.name() == first.dtype)?;
    let block = dtype.block()?;
    if let [PartTensor { counted: PartCounted::Whole(stats), shape, .. }] = pieces {
        return stats.stats(shape.iter().try_fold(1, |count: u64, dim| count.checked_mul(*dim))?);
    }
    let mut whole = StatsAccumulator::new(*dtype)?;
    for PartTensor { counted, range: (start, end), .. } in pieces {
        let PartCounted::Part(state) = counted else { return None };
        let blocks = end.checked_sub(*start).filter(|len| *len > 0)? / block.bytes;
        whole.merge(&StatsAccumulator::restore(*dtype, state, blocks.checked_mul(block.elements)?)?);
    }
    Some(whole.finish())
}
