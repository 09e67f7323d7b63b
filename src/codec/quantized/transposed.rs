//! Copies words of a transposed matrix, so that those of a row are next to each other.

/// Rows of a transposed matrix that are copied at once: those whose words share a line of the cache.
pub(super) const ROWS_AT_ONCE: u64 = 16;

/// Writes the words of each slice to consecutive rows.
pub(super) fn transpose<'s>(stored: impl Iterator<Item = &'s [u8]>, row_bytes: usize, rows: &mut [u8]) {
    for (at, words) in stored.enumerate() {
        for (row, word) in words.as_chunks::<4>().0.iter().enumerate() {
            rows[row * row_bytes + at * 4..][..4].copy_from_slice(word);
        }
    }
}
