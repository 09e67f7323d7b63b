//! A hash table from names to numbers. The names are stored elsewhere.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// Finds numbers by name. Stores only the numbers; callers pass a function that returns the name of a number.
#[derive(Debug, Default)]
pub struct NameTable {
    table: HashTable<u32>,
    /// Seeded per process, so that a crafted file cannot force collisions.
    hasher: DefaultHashBuilder,
}

impl NameTable {
    pub fn with_capacity(capacity: usize) -> Self {
        Self { table: HashTable::with_capacity(capacity), hasher: DefaultHashBuilder::default() }
    }

    /// The number whose name is `name`.
    pub fn find<'n>(&self, name: &str, name_at: impl Fn(usize) -> &'n str) -> Option<usize> {
        let number = self.table.find(self.hasher.hash_one(name), |number| name_at(*number as usize) == name);
        number.map(|number| *number as usize)
    }

    /// Adds a number unless another one has its name. Returns whether it was added. Numbers must be below 2^32.
    pub fn insert<'n>(&mut self, number: usize, name_at: impl Fn(usize) -> &'n str) -> bool {
        let name = name_at(number);
        let hash = self.hasher.hash_one(name);
        if self.table.find(hash, |other| name_at(*other as usize) == name).is_some() {
            return false;
        }
        self.table.insert_unique(hash, number as u32, |other| self.hasher.hash_one(name_at(*other as usize)));
        true
    }
}
