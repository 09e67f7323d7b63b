//! A table of names that are stored elsewhere.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// Finds things by their names. Stores only their numbers; the names are looked up where they are.
#[derive(Debug)]
pub struct NameTable {
    table: HashTable<u32>,
    /// Seeded per process, so that no file can be made to collide.
    hasher: DefaultHashBuilder,
}

impl NameTable {
    /// An empty table with room for `capacity` names.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { table: HashTable::with_capacity(capacity), hasher: DefaultHashBuilder::default() }
    }

    /// The number of the thing called `name`.
    pub fn find<'n>(&self, name: &str, name_at: impl Fn(usize) -> &'n str) -> Option<usize> {
        let number = self.table.find(self.hasher.hash_one(name), |number| name_at(*number as usize) == name);
        number.map(|number| *number as usize)
    }

    /// Adds a thing unless another one has its name; returns whether it was added. Numbers are below 2^32.
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
