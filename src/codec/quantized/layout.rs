//! The layout of a quantized matrix: which numbers are stored where, and how they are combined. Does not decode.

/// Defines the parts with their names for users.
macro_rules! quantized_parts {
    ($($(#[$doc:meta])* $part:ident $name:literal;)*) => {
        /// A stored tensor that the values are computed from.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum QuantizedPart {
            $($(#[$doc])* $part,)*
        }

        impl QuantizedPart {
            pub const COUNT: usize = Self::ALL.len();

            /// All parts, in the order of [`Parts`].
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$part),*];

            pub fn name(self) -> &'static str {
                [$($name),*][self as usize]
            }
        }
    };
}

quantized_parts! {
    Values "codes";
    /// A scale for each group of codes.
    Scales "scales";
    /// A zero point for each group of codes.
    Zeros "zero points";
    /// A number that is added to each group.
    Biases "biases";
    /// The group of each column (GPTQ, "act-order").
    GroupIndex "group index";
    /// A scale of the scales.
    Global "global scale";
    /// The value of each code.
    Map "map";
    NestedScales "nested scales";
    /// The value of each code of quantized scales.
    NestedMap "nested map";
    /// The width of the codes of each group, and where they begin.
    CodeGroups "groups";
    /// The place of each column among the stored codes of a row.
    Permutation "permutation";
}

/// An item for each part, indexed by the part.
pub type Parts<T> = [T; QuantizedPart::COUNT];

/// A quantized matrix, or several of the same shape one after the other.
///
/// An element is computed from its code, the scale of its group, and the other parts, by [`QuantizedLayout::formula`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizedLayout {
    pub batch: u64,
    pub rows: u64,
    pub cols: u64,
    pub packing: CodePacking,
    pub number: CodeNumber,
    /// The place of the scale of an element. Biases are stored at the same indices.
    pub grid: ScaleGrid,
    pub scale: ScaleType,
    /// The type of the biases; only used by [`DequantizeFormula::ScaleThenAdd`].
    pub bias: ScaleType,
    /// The effect of the global scale on the scales.
    pub global: GlobalScale,
    pub zeros: ZeroPoints,
    /// Whether there is a group index. Otherwise the columns are in the order of the groups.
    pub group_index: bool,
    pub formula: DequantizeFormula,
}

/// The packing of codes into the bytes of a row. Bits are counted from the lowest one, and words are little-endian.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CodePacking {
    /// The codes of a row are a stream of bits. A row takes `row_bytes` bytes.
    Stream { bits: u32, row_bytes: u64 },
    /// The codes of a row are in 32-bit words, as many as fit into one. The top bits may be unused.
    Words { bits: u32, row_bytes: u64 },
    /// Two codes of a row in a byte, the first one in the high bits.
    HighFirst { row_bytes: u64 },
    /// Two codes of a column in a byte: an even row in the low bits, and the next row in the high bits.
    RowPairs,
    /// The matrix is transposed: the codes of a row are a stream of bits down a column of a matrix of 32-bit words.
    /// There is one matrix only.
    Down { bits: u32 },
    /// The matrix is transposed: a 32-bit word has a 4-bit code of each of eight rows, in the order 0, 2, 4, 6, 1, 3,
    /// 5, 7. The words of a column are a row of the stored matrix. There is one matrix only.
    Across,
    /// The rows are in equal parts. A byte has the codes of one row of each part, the first part in the highest bits;
    /// with codes of 3 bits, a 32-bit word has those of ten parts in its lower 30 bits, and the last part may have
    /// fewer rows. There is one matrix only.
    RowParts { bits: u32 },
    /// Numbers of this type instead of codes. A row takes `row_bytes` bytes.
    Numbers { number: ScaleType, row_bytes: u64 },
    /// Indices into codebooks. There is one matrix only.
    Codebooks(Codebooks),
    /// The matrix is transposed: the codes of a row are groups of different widths down a column of a matrix of 32-bit
    /// words. Each group is a stream of bits. A number is the code minus half of the number of codes of its width,
    /// times the scale of its group, in half precision. There is one matrix only. The grid is not used.
    MixedDown(MixedColumns),
}

impl CodePacking {
    pub fn bits(self) -> u32 {
        match self {
            Self::Stream { bits, .. } | Self::Words { bits, .. } | Self::Down { bits } | Self::RowParts { bits } => {
                bits
            }
            Self::HighFirst { .. } | Self::RowPairs | Self::Across => 4,
            Self::Numbers { number, .. } => number.bytes() as u32 * 8,
            Self::Codebooks(Codebooks { bits, .. }) => bits,
            // The largest width.
            Self::MixedDown(_) => 8,
        }
    }

    /// Distance of the rows in bytes; 0 if several rows share bytes.
    pub(super) fn row_bytes(self) -> u64 {
        match self {
            Self::Stream { row_bytes, .. }
            | Self::Words { row_bytes, .. }
            | Self::HighFirst { row_bytes }
            | Self::Numbers { row_bytes, .. } => row_bytes,
            Self::RowPairs
            | Self::Down { .. }
            | Self::Across
            | Self::RowParts { .. }
            | Self::Codebooks(_)
            | Self::MixedDown(_) => 0,
        }
    }

    /// Whether a row of the matrix is spread over the whole tensor.
    pub fn is_transposed(self) -> bool {
        matches!(self, Self::Down { .. } | Self::Across | Self::MixedDown(_))
    }

    /// Whether neighbouring rows need the same bytes, so that a window of rows is read at once and kept.
    pub fn has_windows(self) -> bool {
        self.is_transposed() || matches!(self, Self::Codebooks(_))
    }
}

/// The stored matrix of [`CodePacking::MixedDown`].
///
/// [`QuantizedPart::CodeGroups`] has two 16-bit numbers for each group: the width of its codes, and its first word in a
/// column. [`QuantizedPart::Scales`] has a 4-bit code for each group and column, eight in a 32-bit word, and
/// [`QuantizedPart::NestedScales`] a float16 number for each group, the largest scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MixedColumns {
    /// Number of 32-bit words of a column.
    pub words: u64,
    /// Number of columns. Those after the rows of the matrix are padding.
    pub columns: u64,
    pub groups: u64,
    /// Whether there is a permutation. Otherwise the columns of the matrix are in the order of the codes.
    pub is_permuted: bool,
}

/// Codebooks and the codes for them. The codes of a block are next to each other, and the blocks follow each other row
/// by row. [`QuantizedPart::Map`] has the codebooks: each has an entry for each code, of `block` numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Codebooks {
    pub count: u64,
    /// Width of a code. Codes take 1 byte, or 2 if they are wider.
    pub bits: u32,
    /// Rows and columns of a block.
    pub block: [u64; 2],
    pub number: ScaleType,
}

/// Maximum size of the codebooks of a weight in bytes. It bounds memory, because they are read as a whole. Those of the
/// usual models have at most 2 MiB.
const CODEBOOKS_MAX: u64 = 8 << 20;

/// Maximum number of codebooks of a weight. It bounds the codes of an element, which has one of each codebook. The
/// usual models have at most 8.
const COUNT_MAX: u64 = 64;

/// Maximum size of the codes of a row of blocks in bytes. It bounds memory.
const ROW_MAX: u64 = 4 << 20;

impl Codebooks {
    pub(super) fn code_bytes(&self) -> u64 {
        if self.bits > 8 { 2 } else { 1 }
    }

    pub(super) fn row_bytes(&self, cols: u64) -> u64 {
        (cols / self.block[1]).saturating_mul(self.count).saturating_mul(self.code_bytes())
    }

    /// The minimum sizes of the codes and of the codebooks in bytes. Fails with a reason if a matrix of this size
    /// cannot have such codes.
    fn required(&self, rows: u64, cols: u64) -> Result<[u64; 2], &'static str> {
        let [height, width] = self.block;
        if !(1..=COUNT_MAX).contains(&self.count) {
            return Err("no codebooks, or more than 64");
        }
        if !(1..=16).contains(&self.bits) {
            return Err("codes for codebooks that are not 1 to 16 bits wide");
        }
        let entries = self.count << self.bits;
        let books = entries.checked_mul(height).and_then(|numbers| numbers.checked_mul(width));
        let books = books.and_then(|numbers| numbers.checked_mul(self.number.bytes()));
        match books {
            Some(1..=CODEBOOKS_MAX) if self.number.is_plain() => {}
            _ => return Err("codebooks that are empty, or larger than 8 MiB"),
        }
        if !rows.is_multiple_of(height) || !cols.is_multiple_of(width) {
            return Err("a matrix that blocks do not fill");
        }
        let row = self.row_bytes(cols);
        let codes = (rows / height).checked_mul(row).filter(|_| row <= ROW_MAX);
        Ok([codes.ok_or("more than 4 MiB of codes in a row")?, books.unwrap_or_default()])
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeNumber {
    /// A non-negative integer.
    Unsigned,
    /// An integer in two's complement.
    Signed,
    /// A non-negative integer, minus half of the number of codes.
    Offset,
    /// OCP E2M1. The codes have 4 bits.
    E2M1,
    /// OCP E4M3. The codes have 8 bits.
    E4M3,
    /// OCP E5M2. The codes have 8 bits.
    E5M2,
    /// E4M3 without infinity and negative zero. The codes have 8 bits.
    E4M3Fnuz,
    /// E5M2 without infinity and negative zero. The codes have 8 bits.
    E5M2Fnuz,
    /// An index into [`QuantizedPart::Map`], 16 float32 numbers. The codes have 4 bits.
    Map,
    /// What the packing says, which has no codes of integers.
    Packed,
}

/// The place of the scale of an element, as an index into the scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleGrid {
    /// Every block of elements has a scale.
    Blocks {
        /// Rows and columns of a block. Blocks at the end of a matrix may be smaller.
        block: [u64; 2],
        /// Number of blocks in a row of blocks.
        groups: u64,
        /// Distances between the scales of consecutive matrices, of vertically adjacent blocks, and of horizontally
        /// adjacent blocks. 0 if they share the scale.
        strides: [u64; 3],
    },
    /// The layout of cuBLAS: scales of one byte in tiles of 128 rows and 4 columns. There is one matrix only.
    Tiled {
        block: u64,
        /// Number of groups of a row, rounded up to a multiple of 4.
        groups: u64,
    },
}

impl ScaleGrid {
    /// Rows and columns that share a scale.
    pub fn block(&self) -> [u64; 2] {
        match *self {
            Self::Blocks { block, .. } => block,
            Self::Tiled { block, .. } => [1, block],
        }
    }

    /// Number of groups of a row.
    pub fn groups(&self) -> u64 {
        match *self {
            Self::Blocks { groups, .. } | Self::Tiled { groups, .. } => groups,
        }
    }

    /// Whether the scales of consecutive rows are next to each other, and those of the groups of a row are not.
    pub(super) fn is_transposed(&self) -> bool {
        matches!(*self, Self::Blocks { groups, strides: [_, down, beside], .. } if groups > 1 && 0 < down && down < beside)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScaleType {
    F32,
    F16,
    Bf16,
    /// OCP E8M0: powers of two and NaN.
    E8M0,
    E4M3,
    /// A byte that is an index into [`QuantizedPart::NestedMap`], 256 float32 numbers. The number there is multiplied
    /// by the element of [`QuantizedPart::NestedScales`] (float32) for the block, and `offset` is added.
    Nested {
        block: u64,
        /// Is added to the product.
        offset: f32,
    },
}

impl ScaleType {
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::E8M0 | Self::E4M3 | Self::Nested { .. } => 1,
        }
    }

    /// Whether the numbers are stored, and not codes of numbers.
    pub(super) fn is_plain(self) -> bool {
        !matches!(self, Self::Nested { .. })
    }
}

/// The parts of [`CodePacking::RowParts`].
#[derive(Debug, Clone, Copy)]
pub(super) struct RowParts {
    pub count: u64,
    /// Number of rows of a part, which is also that of the stored matrix.
    pub rows: u64,
    /// Size in bytes of what has a code of each part.
    pub word: u64,
    bits: u32,
}

impl RowParts {
    /// `None` if the codes do not have 1 to 4 bits.
    pub fn new(bits: u32, rows: u64) -> Option<Self> {
        let (count, word) = match bits {
            1 => (8, 1),
            2 => (4, 1),
            3 => (10, 4),
            4 => (2, 1),
            _ => return None,
        };
        Some(Self { count, rows: rows.div_ceil(count), word, bits })
    }

    /// The lowest bit of the codes of a row.
    pub fn shift(&self, row: u64) -> u32 {
        (self.count - 1).saturating_sub(row / self.rows) as u32 * self.bits
    }
}

/// The effect of [`QuantizedPart::Global`], which is float32, on each scale before it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GlobalScale {
    None,
    /// The scale is multiplied by the global scale.
    Times {
        /// Whether every matrix has a global scale.
        each: bool,
    },
    /// The scale is divided by the global scale.
    Over {
        /// Whether every matrix has a global scale.
        each: bool,
    },
}

/// The zero points: numbers that are subtracted from the codes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ZeroPoints {
    None,
    /// A signed byte for each scale, at the same place as the scale.
    Bytes,
    /// A number of this type for each scale, at the same place as the scale.
    Numbers(ScaleType),
    /// The zero points of a group are a stream of bits in 32-bit words, in the order of the rows of the matrix.
    Packed {
        /// Width of a zero point, from 1 to 8.
        bits: u32,
        /// Distance of two words of a stream, in words.
        along: u64,
        /// Distance of two groups, in words. Either this or `along` is 1.
        across: u64,
        /// Whether the zero points in a word are in the order of [`CodePacking::Across`].
        interleaved: bool,
        /// Is added to the stored number, modulo the number of codes.
        add: u32,
        /// Is subtracted from the sum.
        offset: u32,
    },
}

/// The combination of the number that a code represents (minus the zero point, if there is one) and the scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DequantizeFormula {
    Scale,
    Divide,
    /// The number times the scale, plus the bias.
    ScaleThenAdd,
    /// The number times the scale, times a constant.
    ScaleTwice(f32),
}

/// Maximum number of columns of a transposed matrix. It bounds memory, because all columns of eight rows are read at
/// once. The largest models have 2^16 columns.
const TRANSPOSED_MAX: u64 = 1 << 20;

/// Maximum number of columns with a group index. It bounds memory, because the index is read as a whole.
const INDEX_MAX: u64 = 1 << 21;

/// The position of a code of each of eight rows in a word of [`CodePacking::Across`].
pub(super) const INTERLEAVED: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl QuantizedLayout {
    /// Number of elements. [`QuantizedLayout::required`] has checked that it fits into 64 bits.
    pub fn elements(&self) -> u64 {
        self.batch.saturating_mul(self.rows).saturating_mul(self.cols)
    }

    /// Checks parts of these sizes in bytes. Fails with a reason if the layout is inconsistent or a part is too small.
    pub fn check(&self, sizes: &Parts<u64>) -> Result<(), String> {
        for ((part, required), size) in QuantizedPart::ALL.into_iter().zip(self.required()?).zip(sizes) {
            if required > *size {
                return Err(format!("{}: {size} bytes instead of at least {required}", part.name()));
            }
        }
        Ok(())
    }

    /// The minimum size of each part in bytes. Fails with a reason if the layout is inconsistent.
    pub fn required(&self) -> Result<Parts<u64>, &'static str> {
        let Self { batch, rows, cols, .. } = *self;
        let all_rows = batch.checked_mul(rows).ok_or(TOO_LARGE)?;
        let elements = all_rows.checked_mul(cols).ok_or(TOO_LARGE)?;
        elements.checked_mul(8).ok_or(TOO_LARGE)?;
        if elements == 0 {
            return Ok([0; QuantizedPart::COUNT]);
        }
        let mut required = [0; QuantizedPart::COUNT];
        ensure(!self.packing.is_transposed() || cols <= TRANSPOSED_MAX, "a transposed matrix with too many columns")?;
        ensure(!self.group_index || cols <= INDEX_MAX, "a group index of too many columns")?;
        if let CodePacking::MixedDown(columns) = self.packing {
            ensure(batch == 1 && self.number == CodeNumber::Packed, "several matrices with groups of codes")?;
            let is_plain = self.formula == DequantizeFormula::Scale && self.global == GlobalScale::None;
            let has_blocks = self.grid.block().iter().all(|size| *size > 0);
            let has_others = self.zeros != ZeroPoints::None || self.group_index;
            ensure(is_plain && has_blocks && !has_others, "groups of codes with a formula of another scheme")?;
            return columns.required(rows, cols);
        }
        if let CodePacking::Codebooks(books) = self.packing {
            ensure(batch == 1 && self.number == CodeNumber::Packed, "codebooks for several matrices")?;
            let [codes, numbers] = books.required(rows, cols)?;
            required[QuantizedPart::Values as usize] = codes;
            required[QuantizedPart::Map as usize] = numbers;
        } else {
            required[QuantizedPart::Values as usize] = self.required_values(all_rows)?;
        }
        let scales = self.required_scales()?;
        required[QuantizedPart::Scales as usize] = scales.checked_mul(self.scale.bytes()).ok_or(TOO_LARGE)?;
        let is_scaled = self.formula == DequantizeFormula::Scale;
        ensure(
            is_scaled || self.zeros == ZeroPoints::None && !self.group_index,
            "zero points or a group index that the formula does not use",
        )?;
        if self.formula == DequantizeFormula::ScaleThenAdd {
            ensure(self.bias.is_plain(), "biases that are quantized")?;
            required[QuantizedPart::Biases as usize] = scales.checked_mul(self.bias.bytes()).ok_or(TOO_LARGE)?;
        }
        if let ScaleType::Nested { block, .. } = self.scale {
            let is_dense = matches!(self.grid, ScaleGrid::Blocks { strides: [_, _, 0 | 1], .. });
            ensure(block > 0 && is_dense, "quantized scales that are not in blocks")?;
            required[QuantizedPart::NestedScales as usize] = scales.div_ceil(block).checked_mul(4).ok_or(TOO_LARGE)?;
            required[QuantizedPart::NestedMap as usize] = 256 * 4;
        }
        required[QuantizedPart::Zeros as usize] = self.required_zeros(scales)?;
        if self.group_index {
            ensure(batch == 1, "a group index for several matrices")?;
            required[QuantizedPart::GroupIndex as usize] = cols.checked_mul(4).ok_or(TOO_LARGE)?;
        }
        required[QuantizedPart::Global as usize] = match self.global {
            GlobalScale::None => 0,
            GlobalScale::Times { each } | GlobalScale::Over { each } => 4 * if each { batch } else { 1 },
        };
        if self.number == CodeNumber::Map {
            required[QuantizedPart::Map as usize] = 16 * 4;
        }
        Ok(required)
    }

    fn required_values(&self, all_rows: u64) -> Result<u64, &'static str> {
        let Self { batch, rows, cols, packing, .. } = *self;
        if let CodePacking::Numbers { number, row_bytes } = packing {
            let needed = cols.checked_mul(number.bytes()).ok_or(TOO_LARGE)?;
            ensure(self.number == CodeNumber::Packed && number.is_plain(), "numbers that are codes")?;
            ensure(needed <= row_bytes, "rows that overlap")?;
            return all_rows.checked_mul(row_bytes).ok_or(TOO_LARGE);
        }
        let bits = packing.bits();
        ensure((1..=8).contains(&bits), "codes that are not 1 to 8 bits wide")?;
        let width = match self.number {
            CodeNumber::Unsigned | CodeNumber::Signed | CodeNumber::Offset => bits,
            CodeNumber::E2M1 | CodeNumber::Map => 4,
            CodeNumber::E4M3 | CodeNumber::E5M2 | CodeNumber::E4M3Fnuz | CodeNumber::E5M2Fnuz => 8,
            CodeNumber::Packed => 0,
        };
        ensure(bits == width, "codes whose width does not fit the type of their numbers")?;
        let needed = match packing {
            CodePacking::Words { .. } => cols.div_ceil(u64::from(32 / bits)).checked_mul(4).ok_or(TOO_LARGE)?,
            _ => (cols * u64::from(bits)).div_ceil(8),
        };
        match packing {
            CodePacking::Stream { .. } | CodePacking::Words { .. } | CodePacking::HighFirst { .. } => {
                ensure(needed <= packing.row_bytes(), "rows that overlap")?;
                all_rows.checked_mul(packing.row_bytes()).ok_or(TOO_LARGE)
            }
            CodePacking::RowPairs => {
                ensure(rows % 2 == 0, "pairs of an odd number of rows")?;
                Ok(all_rows / 2 * cols)
            }
            CodePacking::Down { bits } => {
                ensure(batch == 1, "several transposed matrices")?;
                (cols * u64::from(bits))
                    .div_ceil(32)
                    .checked_mul(rows)
                    .and_then(|words| words.checked_mul(4))
                    .ok_or(TOO_LARGE)
            }
            CodePacking::Across => {
                ensure(batch == 1 && rows % 8 == 0, "several transposed matrices, or rows that fill no words")?;
                Ok(rows / 8 * cols * 4)
            }
            CodePacking::RowParts { bits } => {
                let parts = RowParts::new(bits, rows).ok_or("rows in parts with codes of more than 4 bits")?;
                let is_integer = matches!(self.number, CodeNumber::Unsigned | CodeNumber::Signed | CodeNumber::Offset);
                ensure(batch == 1 && is_integer, "several matrices with rows in parts")?;
                ensure(parts.word > 1 || rows.is_multiple_of(parts.count), "rows in parts that are not equal")?;
                parts.rows.checked_mul(cols).and_then(|words| words.checked_mul(parts.word)).ok_or(TOO_LARGE)
            }
            CodePacking::Numbers { .. } | CodePacking::Codebooks(_) | CodePacking::MixedDown(_) => Ok(0),
        }
    }

    fn required_scales(&self) -> Result<u64, &'static str> {
        match self.grid {
            ScaleGrid::Blocks { block, groups, strides: [matrix, down, beside] } => {
                ensure(block[0] > 0 && block[1] > 0, "empty blocks")?;
                ensure(groups == self.cols.div_ceil(block[1]), "a wrong number of groups")?;
                ensure(!self.group_index || groups == 1 || beside > 0, "groups that share a scale")?;
                // Scales of consecutive rows must be next to each other, or else all scales must be transposed.
                let below = self.rows.div_ceil(block[0]);
                let is_transposed = self.grid.is_transposed();
                ensure(!is_transposed || self.batch == 1 && down <= 1, "several transposed grids")?;
                let size = size_of_strides([(self.batch, matrix), (below, down), (groups, beside)]);
                if !is_transposed {
                    let row = if groups > 1 { groups.saturating_mul(beside) } else { 1 };
                    ensure(below == 1 || down == 0 || down >= row, "grids whose rows overlap")?;
                }
                let one = if is_transposed { 0 } else { below.saturating_mul(down) };
                ensure(self.batch == 1 || matrix == 0 || matrix >= one, "grids that overlap")?;
                size.ok_or(TOO_LARGE)
            }
            ScaleGrid::Tiled { block, groups } => {
                ensure(self.batch == 1 && !self.group_index, "several tiled grids")?;
                ensure(
                    self.scale.bytes() == 1 && !matches!(self.scale, ScaleType::Nested { .. }),
                    "tiles of wide scales",
                )?;
                ensure(block > 0 && groups % 4 == 0 && groups >= self.cols.div_ceil(block), "tiles that are too few")?;
                self.rows.div_ceil(128).checked_mul(128).and_then(|rows| rows.checked_mul(groups)).ok_or(TOO_LARGE)
            }
        }
    }

    fn required_zeros(&self, scales: u64) -> Result<u64, &'static str> {
        match (self.zeros, self.grid) {
            (ZeroPoints::None, _) => Ok(0),
            (ZeroPoints::Bytes, ScaleGrid::Blocks { .. }) => Ok(scales),
            (ZeroPoints::Numbers(number), ScaleGrid::Blocks { .. }) => {
                ensure(number.is_plain(), "zero points that are quantized")?;
                scales.checked_mul(number.bytes()).ok_or(TOO_LARGE)
            }
            (ZeroPoints::Packed { bits, along, across, interleaved, .. }, ScaleGrid::Blocks { groups, .. }) => {
                ensure((1..=8).contains(&bits) && self.batch == 1, "zero points that are not 1 to 8 bits wide")?;
                ensure(
                    !interleaved || bits == 4 && self.rows.is_multiple_of(8),
                    "interleaved zero points that fill no words",
                )?;
                let words = (self.rows.checked_mul(u64::from(bits)).ok_or(TOO_LARGE)?).div_ceil(32);
                let is_dense = along == 1 && across >= words || across == 1 && along >= groups;
                ensure(is_dense, "zero points that overlap")?;
                let size = size_of_strides([(words, along), (groups, across)]);
                size.and_then(|words| words.checked_mul(4)).ok_or(TOO_LARGE)
            }
            (_, ScaleGrid::Tiled { .. }) => Err("zero points in tiles"),
        }
    }
}

/// The number of elements up to the last one of an array with these counts and strides. No count is 0.
fn size_of_strides<const N: usize>(dims: [(u64, u64); N]) -> Option<u64> {
    dims.into_iter().try_fold(1, |size: u64, (count, stride)| size.checked_add((count - 1).checked_mul(stride)?))
}

pub(super) const TOO_LARGE: &str = "more elements or bytes than 64 bits can count";

fn ensure(holds: bool, otherwise: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(otherwise) }
}
