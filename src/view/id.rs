//! View numbers and sets of views.

/// A view, identified by its index in the table of views.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct View(u8);

impl View {
    /// The view at an index of the table. The table has fewer than 64 rows.
    pub const fn new(index: usize) -> Self {
        Self(index as u8)
    }

    /// The index in the table.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The views that a mount shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown(u64);

impl Default for Shown {
    /// All views.
    fn default() -> Self {
        Self(u64::MAX)
    }
}

impl Shown {
    /// No views.
    pub const NONE: Self = Self(0);

    /// These views and `view`.
    pub fn with(self, view: View) -> Self {
        Self(self.0 | 1 << view.0)
    }

    /// Whether a view is shown.
    pub fn contains(self, view: View) -> bool {
        self.0 >> view.0 & 1 == 1
    }
}
