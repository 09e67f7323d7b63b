//! Compares the values of two models: all of them, or a part of the work.

use crate::terminal::progress::ProgressLine;
use std::ops::Range;
use weightfs::codec::quantized::QuantizedPart;
use weightfs::compare::{
    ComparablePair, DEVIATION_STEP, Deviation, SharedFiles, StoredTensor, TensorPair, deviations, have_same_bytes,
    obstacle,
};
use weightfs::model::{Model, TensorId, TensorPartners};
use weightfs::parts::{WorkItem, WorkPart};
use weightfs::view;

pub(super) const COMPARING: &str = "comparing";

/// A model whose stored tensors are compared.
pub(super) struct StoredSide<'m> {
    pub model: &'m Model,
    files: SharedFiles,
}

impl<'m> StoredSide<'m> {
    pub fn new(model: &'m Model) -> Self {
        Self { model, files: SharedFiles::new(model.sources()) }
    }

    pub fn stored(&self, id: TensorId) -> StoredTensor<'_> {
        let tensor = self.model.tensor(id);
        let mut runs = Vec::new();
        view::push_runs(&mut runs, 0, &tensor);
        StoredTensor { files: &self.files, data: self.model.data(&tensor), runs }
    }
}

/// The values of two models.
pub(super) struct ComparedValues<'m> {
    pub a: &'m Model,
    pub b: &'m Model,
    pub partners: &'m TensorPartners,
}

/// A tensor of both models, or a range of its elements.
pub(super) struct PairPiece {
    /// An index of [`TensorPartners::pairs`].
    pub pair: usize,
    /// Of the elements; of a tensor that is not divided, 0 to 1.
    pub range: Range<u64>,
    /// The end of the range of the whole tensor.
    pub len: u64,
    /// About how many bytes are read of both models.
    cost: u64,
}

/// The result of comparing a piece.
pub(super) enum PieceFinding {
    Same,
    /// The deviation of every [`DEVIATION_STEP`] elements. They are not merged, because others may come before them.
    Compared(Vec<Deviation>),
    NotCompared(String),
}

impl PairPiece {
    fn is_whole(&self) -> bool {
        self.range.end - self.range.start == self.len
    }
}

impl<'m> ComparedValues<'m> {
    /// Compares what a part of the work has, in the order of the first model.
    pub fn compare(&self, part: WorkPart) -> anyhow::Result<Vec<(PairPiece, PieceFinding)>> {
        let (side_a, side_b) = (StoredSide::new(self.a), StoredSide::new(self.b));
        let pieces = self.pieces(part, &side_a, &side_b);
        let progress = ProgressLine::new(COMPARING, pieces.iter().map(|piece| piece.cost).fold(0, u64::saturating_add));
        let same = self.are_stored_alike(&pieces, &side_a, &side_b)?;
        let mut found = Vec::with_capacity(pieces.len());
        // The positions of the pieces whose numbers have to be compared.
        let (mut left, mut comparable): (Vec<usize>, Vec<ComparablePair>) = Default::default();
        for (at, (piece, is_same)) in pieces.iter().zip(same).enumerate() {
            let (id_a, id_b) = self.partners.pairs[piece.pair];
            let obstacle = if is_same { None } else { self.obstacle(piece.pair) };
            if is_same || obstacle.is_some() {
                progress.add(piece.cost);
            } else {
                let dtypes = [self.a.numbers(id_a, true).dtype(), self.b.numbers(id_b, true).dtype()];
                left.push(at);
                comparable.push(ComparablePair { dtypes, elements: piece.range.clone() });
            }
            found.push(obstacle.map_or(PieceFinding::Same, PieceFinding::NotCompared));
        }
        let compared = deviations(
            &comparable,
            &|at| {
                let (id_a, id_b) = self.partners.pairs[pieces[left[at]].pair];
                let (of_a, of_b) = (self.a.numbers(id_a, true), self.b.numbers(id_b, true));
                [view::numbers(self.a, &of_a), view::numbers(self.b, &of_b)]
            },
            &|at, elements| {
                let PairPiece { range, cost, .. } = &pieces[left[at]];
                progress.add(share(*cost, elements, range.end - range.start));
            },
        )?;
        for (at, deviations) in left.into_iter().zip(compared) {
            found[at] = PieceFinding::Compared(deviations);
        }
        // Shared blocks are not read, so a changed file may not have been detected yet.
        self.a.verify()?;
        self.b.verify()?;
        Ok(pieces.into_iter().zip(found).collect())
    }

    /// Why the values of a pair cannot be compared, if that is so.
    fn obstacle(&self, pair: usize) -> Option<String> {
        let (id_a, id_b) = self.partners.pairs[pair];
        let (of_a, of_b) = (self.a.numbers(id_a, true), self.b.numbers(id_b, true));
        obstacle((of_a.dtype(), of_a.shape()), (of_b.dtype(), of_b.shape()))
    }

    /// The share of a part of the work. It follows from the headers.
    fn pieces(&self, part: WorkPart, side_a: &StoredSide, side_b: &StoredSide) -> Vec<PairPiece> {
        let items = self.partners.pairs.iter().enumerate().map(|(at, ids)| {
            let cost = stored_size(self.a, ids.0).saturating_add(stored_size(self.b, ids.1));
            match self.obstacle(at) {
                None => WorkItem { cost, len: self.a.numbers(ids.0, true).elements(), step: DEVIATION_STEP },
                // Only bytes can be compared, if at all.
                Some(_) if same_way(side_a, side_b, *ids).is_some() => WorkItem { cost, len: 1, step: 1 },
                Some(_) => WorkItem { cost: 0, len: 1, step: 1 },
            }
        });
        let items: Vec<WorkItem> = items.collect();
        let pieces = part.shares(&items).into_iter().map(|(pair, range)| {
            let WorkItem { cost, len, .. } = items[pair];
            let cost = share(cost, range.end - range.start, len);
            PairPiece { pair, range, len, cost }
        });
        pieces.collect()
    }

    /// Whether both tensors of each piece are stored in the same way and with the same bytes, including the companions.
    /// If so, they have the same numbers. Tensors that are divided are not compared by their bytes, because the errors
    /// of other pieces depend on the numbers of all pieces.
    fn are_stored_alike(
        &self,
        pieces: &[PairPiece],
        side_a: &StoredSide,
        side_b: &StoredSide,
    ) -> anyhow::Result<Vec<bool>> {
        let whole = pieces.iter().enumerate().filter(|(_, piece)| piece.is_whole());
        let comparable =
            whole.filter_map(|(at, piece)| Some((at, same_way(side_a, side_b, self.partners.pairs[piece.pair])?)));
        let (at, groups): (Vec<usize>, Vec<Vec<TensorPair>>) = comparable.unzip();
        let mut alike = vec![false; pieces.len()];
        at.into_iter().zip(have_same_bytes(&groups)?).for_each(|(at, same)| alike[at] = same);
        Ok(alike)
    }
}

/// The share of `cost` that `some` of `all` have.
fn share(cost: u64, some: u64, all: u64) -> u64 {
    (u128::from(cost) * u128::from(some) / u128::from(all.max(1))) as u64
}

/// The size of a tensor, with the companions of a quantized weight.
fn stored_size(model: &Model, id: TensorId) -> u64 {
    model.quantized.weight(id).map_or_else(|| model.tensor(id).info.nbytes, |weight| weight.bytes)
}

/// The tensors whose bytes are to be compared; `None` if the numbers are stored in different ways.
fn same_way<'m>(
    a: &StoredSide<'m>,
    b: &StoredSide<'m>,
    (id_a, id_b): (TensorId, TensorId),
) -> Option<Vec<TensorPair<'m>>> {
    let (of_a, of_b) = (a.model.numbers(id_a, true), b.model.numbers(id_b, true));
    match (of_a.weight, of_b.weight) {
        (None, None) => {
            let (info_a, info_b) = (&of_a.tensor.info, &of_b.tensor.info);
            let is_alike = (info_a.dtype, info_a.shape) == (info_b.dtype, info_b.shape);
            Some(vec![same_size(a, b, (id_a, id_b)).filter(|_| is_alike)?])
        }
        (Some(of_a), Some(of_b)) if of_a.class == of_b.class => {
            let parts = QuantizedPart::ALL.into_iter().map(|part| (of_a.part(part), of_b.part(part)));
            let parts = parts.filter(|parts| *parts != (None, None));
            parts.map(|(part_a, part_b)| same_size(a, b, (TensorId::new(part_a?), TensorId::new(part_b?)))).collect()
        }
        _ => None,
    }
}

fn same_size<'m>(a: &StoredSide<'m>, b: &StoredSide<'m>, ids: (TensorId, TensorId)) -> Option<TensorPair<'m>> {
    let (info_a, info_b) = (a.model.tensor(ids.0).info, b.model.tensor(ids.1).info);
    let len = info_a.nbytes;
    (len == info_b.nbytes).then(|| TensorPair::new(info_a.dtype, len, &a.stored(ids.0), &b.stored(ids.1)))
}
