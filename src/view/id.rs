//! View numbers and sets of views.

use std::sync::Arc;

/// A view, identified by its index in the table of views.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct View(u8);

impl View {
    /// The view at an index of the table. The table has fewer than 64 rows.
    pub const fn new(index: usize) -> Self {
        Self(index as u8)
    }

    pub const fn index(self) -> u8 {
        self.0
    }
}

/// The views that a mount shows, and its options for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownViews {
    views: u64,
    dequantized: bool,
    /// The separator of key and column in the names of datasets.
    separator: Option<Arc<str>>,
}

impl Default for ShownViews {
    /// All views, with quantized weights dequantized.
    fn default() -> Self {
        Self { views: u64::MAX, dequantized: true, separator: None }
    }
}

impl ShownViews {
    pub const NONE: Self = Self { views: 0, dequantized: true, separator: None };

    /// These views and `view`.
    pub fn with(self, view: View) -> Self {
        Self { views: self.views | 1 << view.0, ..self }
    }

    /// The same views, with the stored numbers of quantized weights.
    pub fn stored(self) -> Self {
        Self { dequantized: false, ..self }
    }

    /// The same views, with this between key and column in the names of datasets in key-value mode.
    pub fn separated(self, separator: &str) -> Self {
        Self { separator: Some(separator.into()), ..self }
    }

    /// The separator of key and column in the names of datasets in key-value mode, if the user has given it.
    pub fn separator(&self) -> Option<&str> {
        self.separator.as_deref()
    }

    pub fn is_dequantized(&self) -> bool {
        self.dequantized
    }

    pub fn contains(&self, view: View) -> bool {
        self.views >> view.0 & 1 == 1
    }
}
