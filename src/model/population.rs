//! An ordered selection of a model's tensors.

use super::ids::TensorId;

/// Tensors with consecutive numbers, except for some holes, followed by other tensors. Elements are found by position
/// without a table.
#[derive(Debug, Clone, Copy)]
pub struct TensorPopulation<'m> {
    first: usize,
    /// One past the last consecutive number.
    end: usize,
    /// Numbers between `first` and `end` that are left out; sorted.
    holes: &'m [TensorId],
    /// Numbers from `end` on; sorted.
    others: &'m [TensorId],
}

impl<'m> TensorPopulation<'m> {
    pub(super) fn new(first: usize, end: usize, holes: &'m [TensorId], others: &'m [TensorId]) -> Self {
        Self { first, end, holes, others }
    }

    pub fn len(&self) -> usize {
        self.end - self.first - self.holes.len() + self.others.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tensor at a position. Panics if that is not below [`TensorPopulation::len`].
    pub fn at(&self, position: usize) -> TensorId {
        let consecutive = self.end - self.first - self.holes.len();
        if position >= consecutive {
            return self.others[position - consecutive];
        }
        // Binary search for the number of holes before the tensor.
        let (mut low, mut high) = (0, self.holes.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.holes[middle].index() - self.first - middle <= position { low = middle + 1 } else { high = middle }
        }
        TensorId::new(self.first + position + low)
    }

    pub fn contains(&self, tensor: TensorId) -> bool {
        match tensor.index() {
            index if index < self.end => index >= self.first && self.holes.binary_search(&tensor).is_err(),
            _ => self.others.binary_search(&tensor).is_ok(),
        }
    }

    pub fn iter(self) -> impl ExactSizeIterator<Item = TensorId> + Clone {
        (0..self.len()).map(move |position| self.at(position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn positions_match_a_plain_list(
            first in 0usize..5,
            len in 0usize..40,
            holes in prop::collection::btree_set(0usize..40, 0..20),
            others in prop::collection::btree_set(0usize..40, 0..10),
        ) {
            let end = first + len;
            let holes: Vec<_> = holes.into_iter().filter(|hole| *hole < len).map(|hole| TensorId::new(first + hole)).collect();
            let others: Vec<_> = others.into_iter().map(|other| TensorId::new(end + other)).collect();
            let all = (first..end).map(TensorId::new).filter(|id| !holes.contains(id)).chain(others.iter().copied());
            let expected: Vec<TensorId> = all.collect();
            let population = TensorPopulation::new(first, end, &holes, &others);
            prop_assert_eq!(population.iter().collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(population.is_empty(), expected.is_empty());
            for id in (0..100).map(TensorId::new) {
                prop_assert_eq!(population.contains(id), expected.contains(&id));
            }
        }
    }
}
