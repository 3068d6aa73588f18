//! How much of an ELF file's tables is read: they may overlap, and names may be shared, so that a small file could ask
//! for any work and any memory.

use std::collections::HashSet;

/// In proportion to the file, but never more of a file that is mostly holes.
const MOST_BYTES: u64 = 1 << 28;
/// So much is free, for small files whose tables share what they hold.
const FREE: u64 = 1 << 20;
/// Above what the largest programs have.
const MOST_SYMBOLS: usize = 1 << 21;

/// What is left.
pub(crate) struct Budget {
    work: u64,
    memory: u64,
    names: u64,
    symbols: usize,
    /// Places and sizes of the tables that are in memory.
    held: HashSet<(u64, u64)>,
}

impl Budget {
    /// For a file of so many bytes: its tables once and over again, its names once.
    pub(crate) fn of(length: u64) -> Budget {
        let once = length.saturating_add(FREE).min(MOST_BYTES);
        Budget {
            work: once.saturating_mul(4),
            memory: once.saturating_mul(2),
            names: once,
            symbols: MOST_SYMBOLS,
            held: HashSet::new(),
        }
    }

    /// Takes what a table costs whose entries are looked at one by one; false if there is not so much left.
    pub(crate) fn scan(&mut self, (offset, size): (u64, u64)) -> bool {
        let left = self.work.checked_sub(size);
        self.work = left.unwrap_or(self.work);
        left.is_some() && self.hold((offset, size))
    }

    /// The same of one that is only in memory.
    pub(crate) fn hold(&mut self, place: (u64, u64)) -> bool {
        if self.held.contains(&place) {
            return true;
        }
        let left = self.memory.checked_sub(place.1);
        self.memory = left.unwrap_or(self.memory);
        left.is_some() && self.held.insert(place)
    }

    /// Takes a symbol and the bytes of its name; false if there is not so much left.
    pub(crate) fn symbol(&mut self, name: usize) -> bool {
        let names = self.names.checked_sub(name as u64);
        let symbols = self.symbols.checked_sub(1);
        if let (Some(names), Some(symbols)) = (names, symbols) {
            (self.names, self.symbols) = (names, symbols);
            return true;
        }
        false
    }
}
