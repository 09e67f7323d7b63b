//! The numbers of tensors, files, models and folders, each with its own type.

use std::fmt;

/// Defines types for numbers that index a table.
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// The number for an index of the table. No table has 2^32 entries.
            pub fn new(index: usize) -> Self {
                debug_assert!(u32::try_from(index).is_ok());
                Self(index as u32)
            }

            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl From<u32> for $name {
            fn from(number: u32) -> Self {
                Self(number)
            }
        }

        impl From<$name> for u32 {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

ids! {
    /// A tensor of a [`super::Model`].
    TensorId;
    /// A file of a [`super::Model`].
    ModelFileId;
    /// A model of a [`super::Catalog`].
    ModelId;
    /// A folder of a [`super::Catalog`].
    FolderId;
}
