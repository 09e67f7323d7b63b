//! The heat map of a matrix: averages a stream of values to few cells. Does not depend on colours.

/// Available pixels for the longer side of a matrix.
const LONG: u64 = 512;

/// Minimum of the available pixels for the shorter side of a matrix.
const SHORT: u64 = 256;

/// Minimum width and height of a cell in pixels, unless there is only one row or column of cells.
const CELL: u64 = 2;

/// The first matrix of a tensor, averaged to few cells.
#[derive(Debug, Clone)]
pub struct HeatMap {
    pub(super) rows: HeatSide,
    pub(super) cols: HeatSide,
    cells: Vec<HeatCell>,
}

#[derive(Debug, Clone)]
pub(super) struct HeatSide {
    pub len: u64,
    /// The start of each cell, then `len`.
    edges: Vec<u64>,
    pub cell_pixels: u64,
}

/// The values added to a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct HeatCell {
    sum: f64,
    count: u64,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) nan: bool,
    pub(super) inf: bool,
}

const EMPTY: HeatCell =
    HeatCell { sum: 0.0, count: 0, low: f64::INFINITY, high: f64::NEG_INFINITY, nan: false, inf: false };

impl HeatCell {
    pub(super) fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// Adds values one after the other, so that the sum does not depend on how the stream is split.
    #[inline]
    fn add<T: Copy + PartialOrd + Into<f64>>(&mut self, values: &[T]) {
        let Some(first) = values.first() else { return };
        let (mut sum, mut low, mut high) = (self.sum, *first, *first);
        for value in values {
            sum += (*value).into();
            low = if *value < low { *value } else { low };
            high = if *value > high { *value } else { high };
        }
        // A sum is finite only if every value is.
        if sum.is_finite() {
            self.sum = sum;
            self.low = self.low.min(low.into());
            self.high = self.high.max(high.into());
            self.count += values.len() as u64;
        } else {
            values.iter().for_each(|value| self.add_slowly((*value).into()));
        }
    }

    #[cold]
    fn add_slowly(&mut self, value: f64) {
        if value.is_finite() {
            // The sum is clamped, so that it does not overflow to infinity.
            self.sum = (self.sum + value).clamp(f64::MIN, f64::MAX);
            self.low = self.low.min(value);
            self.high = self.high.max(value);
            self.count += 1;
        }
        self.nan |= value.is_nan();
        self.inf |= value.is_infinite();
    }
}

impl HeatSide {
    fn new(len: u64, other: u64) -> Self {
        let room = if len >= other { LONG } else { (LONG as f64 * (len as f64 / other as f64)) as u64 };
        let room = room.clamp(SHORT, LONG);
        let count = len.min(if other == 1 { room } else { room / CELL });
        let edges = (0..=count)
            .map(|at| (u128::from(at) * u128::from(len)).div_ceil(u128::from(count.max(1))) as u64)
            .collect();
        Self { len, edges, cell_pixels: room / count.max(1) }
    }

    fn count(&self) -> usize {
        self.edges.len() - 1
    }

    /// The cell that contains index `at`.
    fn cell(&self, at: u64) -> usize {
        self.edges.partition_point(|edge| *edge <= at).saturating_sub(1)
    }
}

impl HeatMap {
    /// An empty heat map of a matrix of `rows` times `cols`, the last two dimensions of the shape.
    pub fn new(rows: u64, cols: u64) -> Self {
        let (rows, cols) = (HeatSide::new(rows, cols), HeatSide::new(cols, rows));
        let cells = vec![EMPTY; rows.count() * cols.count()];
        Self { rows, cols, cells }
    }

    /// Adds `values`, the elements of the matrix from number `first` on, row by row. Values after its end are ignored.
    pub fn add<T: Copy + PartialOrd + Into<f64>>(&mut self, first: u64, mut values: &[T]) {
        if self.cells.is_empty() {
            return;
        }
        // A single column is stored like a single row, and long rows are faster.
        let (rows, cols) = if self.cols.len == 1 { (&self.cols, &self.rows) } else { (&self.rows, &self.cols) };
        let (mut row, mut col) = (first / cols.len, first % cols.len);
        let (mut down, mut across) = (rows.cell(row), cols.cell(col));
        while !values.is_empty() && row < rows.len {
            let line = &mut self.cells[down * cols.count()..][..cols.count()];
            for (cell, end) in line.iter_mut().zip(&cols.edges[1..]).skip(across) {
                let (run, rest) = values.split_at(values.len().min((end - col) as usize));
                cell.add(run);
                values = rest;
                col += run.len() as u64;
                if values.is_empty() {
                    break;
                }
            }
            (col, across) = (0, 0);
            row += 1;
            down += usize::from(rows.edges.get(down + 1) == Some(&row));
        }
    }

    /// Rows and columns of cells.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.rows.count(), self.cols.count())
    }

    pub(super) fn cells(&self) -> &[HeatCell] {
        &self.cells
    }

    /// The magnitude at which the colours end, on both sides of zero. At most a hundredth of the means lies beyond it
    /// on each side. If it would be 0, it is the largest magnitude. `None` if there are no means.
    pub(super) fn limit(&self) -> Option<f64> {
        let mut means: Vec<f64> = self.cells.iter().filter_map(HeatCell::mean).collect();
        means.sort_unstable_by(f64::total_cmp);
        let last = means.len().checked_sub(1)?;
        let [robust, largest] = [last / 100, 0].map(|left_out| means[left_out].abs().max(means[last - left_out].abs()));
        Some(if robust > 0.0 { robust } else { largest })
    }
}
