//! Memory of columns that is used again.
//!
//! The results of several threads wait in more memory than an allocator keeps, and to touch what is new costs more than to
//! copy a column there. So while such results are made (`Lease`), columns that were handed out and are not needed any more
//! come back (`give_back`), and the next ones are made in their memory, whatever thread they are made by.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that wait to be used again, at most.
const MOST: usize = 1 << 26;
/// What is smaller an allocator keeps.
const LEAST: usize = 1 << 15;

/// Numbers of which columns are.
pub trait Reusable: Copy + 'static {
    #[doc(hidden)]
    fn shelf(shelves: &mut Shelves) -> &mut Vec<Vec<Self>>;
}

/// Columns that wait, by the size of their numbers.
#[doc(hidden)]
pub struct Shelves {
    leases: usize,
    bytes: usize,
    octets: Vec<Vec<u8>>,
    halves: Vec<Vec<u32>>,
    words: Vec<Vec<u64>>,
}

impl Reusable for u8 {
    fn shelf(shelves: &mut Shelves) -> &mut Vec<Vec<u8>> {
        &mut shelves.octets
    }
}

impl Reusable for u32 {
    fn shelf(shelves: &mut Shelves) -> &mut Vec<Vec<u32>> {
        &mut shelves.halves
    }
}

impl Reusable for u64 {
    fn shelf(shelves: &mut Shelves) -> &mut Vec<Vec<u64>> {
        &mut shelves.words
    }
}

static SHELVES: Mutex<Shelves> = Mutex::new(Shelves::EMPTY);

fn shelves() -> MutexGuard<'static, Shelves> {
    SHELVES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn size<T>(column: &Vec<T>) -> usize {
    column.capacity() * size_of::<T>()
}

impl Shelves {
    const EMPTY: Shelves = Shelves {
        leases: 0,
        bytes: 0,
        octets: Vec::new(),
        halves: Vec::new(),
        words: Vec::new(),
    };

    /// Memory for so many numbers that is not twice as large: the last that came back and fits.
    fn take<T: Reusable>(&mut self, count: usize) -> Option<Vec<T>> {
        let fits = |column: &Vec<T>| (count..=count * 2).contains(&column.capacity());
        let shelf = T::shelf(self);
        let found = shelf.iter().rposition(fits)?;
        let column = shelf.swap_remove(found);
        self.bytes -= size(&column);
        Some(column)
    }

    fn put<T: Reusable>(&mut self, column: Vec<T>) {
        let bytes = size(&column);
        if self.leases > 0 && bytes <= MOST - self.bytes {
            self.bytes += bytes;
            T::shelf(self).push(column);
        }
    }
}

/// As long as one lives, memory is used again; after the last one none is kept.
pub(crate) struct Lease(());

impl Lease {
    pub fn new() -> Lease {
        shelves().leases += 1;
        Lease(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut all = shelves();
        all.leases -= 1;
        if all.leases == 0 {
            let old = std::mem::replace(&mut *all, Shelves::EMPTY);
            drop(all);
            drop(old);
        }
    }
}

/// As `to_vec`.
pub(crate) fn copied<T: Reusable>(numbers: &[T]) -> Vec<T> {
    if size_of_val(numbers) >= LEAST {
        let found = shelves().take(numbers.len());
        if let Some(mut column) = found {
            column.clear();
            column.extend_from_slice(numbers);
            return column;
        }
    }
    numbers.to_vec()
}

/// What is not needed any more, for others to come.
pub fn give_back<T: Reusable>(column: Vec<T>) {
    if size(&column) >= LEAST {
        shelves().put(column);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that the shelves do, in one test: they are the process's.
    #[test]
    fn what_came_back_is_used_again_while_somebody_decodes() {
        let numbers: Vec<u64> = (0..LEAST as u64).collect();
        give_back(numbers.clone());
        assert!(shelves().take::<u64>(numbers.len()).is_none());
        let lease = Lease::new();
        give_back(numbers.clone());
        give_back(vec![0_u8; 100]);
        assert!(shelves().octets.is_empty());
        assert_eq!(copied(&numbers[1..]), numbers[1..]);
        assert_eq!(shelves().bytes, 0);
        give_back(numbers.clone());
        // too large for these
        assert!(shelves().take::<u64>(numbers.len() / 2 - 1).is_none());
        assert!(shelves().take::<u64>(numbers.len() + 1).is_none());
        for _ in 0..=MOST / size(&numbers) {
            give_back(numbers.clone());
        }
        assert!(shelves().bytes <= MOST && shelves().bytes > MOST / 2);
        let other = Lease::new();
        drop(lease);
        assert!(shelves().bytes > 0);
        drop(other);
        assert_eq!(shelves().bytes, 0);
        assert!(shelves().words.is_empty());
    }
}
