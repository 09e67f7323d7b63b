//! Chunk grids: how an array is cut into chunks of equal shape, each of which is one run of its bytes.

/// The most chunks of an array. More than one for each row of a large vocabulary would help no reader.
const CHUNKS_MAX: u64 = 1_000_000;

/// An array, as its bytes are stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredShape<'s> {
    /// Dimensions in elements. Neighbours along the last one lie one after the other. Their product, in bytes, fits
    /// into 64 bits.
    pub dims: &'s [u64],
    /// Size of an element in bytes.
    pub size: u64,
    /// A divisor of the offset, in bytes from the start of the array, of each place where another run of bytes begins.
    /// 0 if there is only one run.
    pub runs: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChunkGrid {
    /// Shape of a chunk. Only one dimension is cut into parts; those before it are 1, and those after it are whole.
    pub chunk: Vec<u64>,
    /// Number of chunks along each dimension. One is 0 if the array has no elements.
    pub counts: Vec<u64>,
    /// Size of a chunk in bytes.
    pub nbytes: u64,
}

impl ChunkGrid {
    /// Cuts an array into chunks of at most `limit` bytes, and as large as possible, unless an element is larger. An
    /// error is the reason why that is not possible.
    pub fn cut(array: StoredShape, limit: u64) -> Result<Self, String> {
        let StoredShape { dims, size, runs } = array;
        if dims.contains(&0) {
            let counts = dims.iter().map(|dim| u64::from(*dim > 0)).collect();
            return Ok(Self { chunk: dims.iter().map(|dim| (*dim).max(1)).collect(), counts, nbytes: 0 });
        }
        let mut row = dims.iter().fold(size, |product, dim| product.saturating_mul(*dim));
        if row <= limit && runs == 0 {
            return Ok(Self { chunk: dims.to_vec(), counts: vec![1; dims.len()], nbytes: row });
        }
        // The number of chunks if those along this dimension were 1.
        let mut before = 1u64;
        for (axis, dim) in dims.iter().enumerate() {
            row /= dim;
            let is_last = axis + 1 == dims.len();
            if (row <= limit || is_last) && runs.is_multiple_of(row) {
                // The number of rows of a chunk divides this.
                let rows = common_divisor(*dim, runs / row);
                let parts = (dim / rows).saturating_mul(before);
                let Some(per_chunk) = largest_divisor(rows, (limit / row).max(1), CHUNKS_MAX / parts.max(1)) else {
                    return Err(format!("it would have more than {CHUNKS_MAX} chunks"));
                };
                let (mut chunk, mut counts) = (dims.to_vec(), vec![1; dims.len()]);
                chunk[..axis].fill(1);
                counts[..axis].copy_from_slice(&dims[..axis]);
                (chunk[axis], counts[axis]) = (per_chunk, dim / per_chunk);
                return Ok(Self { chunk, counts, nbytes: row * per_chunk });
            }
            before = before.saturating_mul(*dim);
        }
        match dims {
            [] if runs == 0 => Ok(Self { chunk: Vec::new(), counts: Vec::new(), nbytes: size }),
            _ => Err("its parts do not begin with an element".into()),
        }
    }

    /// Calls `take` with the index of each chunk along each dimension, in the order of the bytes.
    pub fn each<E>(&self, mut take: impl FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
        if self.counts.contains(&0) {
            return Ok(());
        }
        let mut index = vec![0; self.counts.len()];
        loop {
            take(&index)?;
            let Some(next) = (0..index.len()).rev().find(|at| index[*at] + 1 < self.counts[*at]) else {
                return Ok(());
            };
            index[next] += 1;
            index[next + 1..].fill(0);
        }
    }
}

/// The largest divisor of `number` that is at most `most`, unless it divides the number into more than `parts_max`
/// parts. `number` is at least 1.
fn largest_divisor(number: u64, most: u64, parts_max: u64) -> Option<u64> {
    let fewest = number.div_ceil(most);
    (fewest..=parts_max.min(number)).find(|parts| number.is_multiple_of(*parts)).map(|parts| number / parts)
}

/// The greatest common divisor. 0 is divisible by every number.
pub(super) fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(dims: &[u64], size: u64, runs: u64, limit: u64) -> Result<(Vec<u64>, Vec<u64>), String> {
        ChunkGrid::cut(StoredShape { dims, size, runs }, limit).map(|grid| (grid.chunk, grid.counts))
    }

    /// Dimensions, size, runs, limit, and the expected chunk and counts.
    type CutCase = (&'static [u64], u64, u64, u64, &'static [u64], &'static [u64]);

    #[test]
    fn rows_of_a_chunk_divide_all_rows() {
        let cases: [CutCase; 13] = [
            (&[], 4, 0, 1, &[], &[]),
            (&[0, 3], 4, 0, 100, &[1, 3], &[0, 1]),
            (&[10], 4, 0, 100, &[10], &[1]),
            (&[10], 4, 0, 39, &[5], &[2]),
            (&[10], 4, 0, 1, &[1], &[10]),
            (&[12, 5], 2, 0, 50, &[4, 5], &[3, 1]),
            (&[7, 5], 2, 0, 50, &[1, 5], &[7, 1]),
            // A row is larger than a chunk.
            (&[2, 6, 5], 2, 0, 40, &[1, 3, 5], &[2, 2, 1]),
            (&[3, 10], 1, 0, 4, &[1, 2], &[3, 5]),
            // Joined from runs of 4 and of 6 rows.
            (&[10, 5], 2, 20, 1000, &[2, 5], &[5, 1]),
            (&[10, 5], 2, 10, 1000, &[1, 5], &[10, 1]),
            // A run ends inside of a row.
            (&[4, 6], 1, 9, 1000, &[1, 3], &[4, 2]),
            (&[4], 2, 4, 1000, &[2], &[2]),
        ];
        for (dims, size, runs, limit, chunk, counts) in cases {
            let expected = Ok((chunk.to_vec(), counts.to_vec()));
            assert_eq!(cut(dims, size, runs, limit), expected, "{dims:?} {size} {runs} {limit}");
        }
        assert_eq!(cut(&[4], 2, 3, 100), Err("its parts do not begin with an element".into()));
        // Prime numbers.
        assert_eq!(cut(&[1_000_003], 1, 0, 1000), Err("it would have more than 1000000 chunks".into()));
        assert_eq!(cut(&[(1 << 61) - 1, 2], 2, 0, 1 << 26), Err("it would have more than 1000000 chunks".into()));
    }

    proptest! {
        /// The chunks have equal sizes, lie one after the other, and none goes over the start of a run.
        #[test]
        fn chunks_are_the_bytes_in_their_order(
            dims in prop::collection::vec(1u64..13, 0..4), size in 1u64..5, limit in 1u64..200, runs in 0u64..40,
        ) {
            let Ok(grid) = ChunkGrid::cut(StoredShape { dims: &dims, size, runs }, limit) else { return Ok(()) };
            let strides: Vec<u64> = (0..dims.len()).map(|at| dims[at + 1..].iter().product::<u64>() * size).collect();
            let mut start = 0;
            grid.each(|index| {
                let first: u64 = index.iter().zip(&grid.chunk).zip(&strides).map(|((at, len), step)| at * len * step).sum();
                assert_eq!(first, start);
                start += grid.nbytes;
                Ok::<(), ()>(())
            }).unwrap();
            prop_assert_eq!(start, dims.iter().product::<u64>() * size);
            prop_assert!(grid.nbytes <= limit.max(size));
            prop_assert!(runs == 0 || runs % grid.nbytes == 0);
        }
    }
}
