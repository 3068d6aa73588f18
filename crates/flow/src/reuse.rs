//! Memory of columns that is used again.
//!
//! Columns are handed out as they are, not copied, and what comes next is written to other memory. An allocator gives
//! what is so large back to the system, and to touch what is new costs more than to copy a column there. So while results
//! are made (`Lease`), columns that were handed out and are not needed any more come back (`give_back`), and the next ones
//! are made in their memory, whatever thread they are made by.

use std::hint;
use std::mem::size_of;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Bytes that wait to be used again, at most.
const MOST: usize = 1 << 26;
/// What is smaller an allocator keeps.
const LEAST: usize = 1 << 15;

/// Numbers of which columns are.
pub trait Reusable: Copy + Default + 'static {
    #[doc(hidden)]
    fn shelf(shelves: &mut Shelves) -> &mut Vec<Vec<Self>>;
}

/// Columns that wait, by the size of their numbers.
#[doc(hidden)]
pub struct Shelves {
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
static LEASES: AtomicUsize = AtomicUsize::new(0);

/// Rows by which batches are longer than asked for, mostly at most.
const BEYOND: usize = 1 << 12;

/// Looks are so many before somebody does without: others are done after far fewer.
const PATIENCE: usize = 1 << 10;

/// None: others have it for longer than they need, as in a process that was forked while one of its threads had it.
fn shelves() -> Option<MutexGuard<'static, Shelves>> {
    for _ in 0..PATIENCE {
        match SHELVES.try_lock() {
            Ok(all) => return Some(all),
            Err(TryLockError::Poisoned(all)) => return Some(all.into_inner()),
            Err(TryLockError::WouldBlock) => hint::spin_loop(),
        }
    }
    None
}

fn size<T>(column: &Vec<T>) -> usize {
    column.capacity() * size_of::<T>()
}

impl Shelves {
    const EMPTY: Shelves = Shelves {
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
        if LEASES.load(Ordering::SeqCst) > 0 && bytes <= MOST - self.bytes {
            self.bytes += bytes;
            T::shelf(self).push(column);
        }
    }
}

/// As long as one lives, memory is used again; after the last one none is kept.
pub struct Lease(());

impl Lease {
    #[allow(clippy::new_without_default)] // one is taken out, not made of nothing
    pub fn new() -> Lease {
        LEASES.fetch_add(1, Ordering::SeqCst);
        Lease(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if LEASES.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        if let Some(mut all) = shelves() {
            let old = std::mem::replace(&mut *all, Shelves::EMPTY);
            drop(all);
            drop(old);
        }
    }
}

/// As `to_vec`.
pub(crate) fn copied<T: Reusable>(numbers: &[T]) -> Vec<T> {
    let mut column = empty(numbers.len());
    column.extend_from_slice(numbers);
    column
}

/// An empty column with room for so many numbers.
pub fn empty<T: Reusable>(count: usize) -> Vec<T> {
    let found = match count * size_of::<T>() {
        LEAST.. => shelves().and_then(|mut all| all.take(count)),
        _ => None,
    };
    match found {
        Some(mut column) => {
            column.clear();
            column
        }
        None => Vec::with_capacity(count),
    }
}

/// Takes the first numbers out of a column, in which nothing is left that means anything; its length stays.
///
/// Most of a column is not copied: it goes away as it is, and other memory takes its place.
pub(crate) fn taken<T: Reusable>(column: &mut Vec<T>, count: usize) -> Vec<T> {
    let room = column.len();
    if count <= room / 2 {
        return copied(&column[..count]);
    }
    let found = match room * size_of::<T>() {
        LEAST.. => shelves().and_then(|mut all| all.take(room)),
        _ => None,
    };
    let other = match found {
        Some(mut other) => {
            other.resize(room, T::default());
            other
        }
        None => vec![T::default(); room],
    };
    let mut numbers = std::mem::replace(column, other);
    numbers.truncate(count);
    numbers
}

/// How long columns should be that are to hold `most` rows: not much longer than the batches of about `limit` rows that
/// are taken out of them.
pub(crate) fn room(most: usize, first: usize, limit: usize) -> usize {
    let enough = limit.saturating_add(BEYOND).max(most);
    most.next_power_of_two().max(first).min(enough)
}

/// What is not needed any more, for others to come.
pub fn give_back<T: Reusable>(column: Vec<T>) {
    if size(&column) >= LEAST {
        if let Some(mut all) = shelves() {
            all.put(column);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shelf() -> MutexGuard<'static, Shelves> {
        shelves().unwrap()
    }

    #[test]
    fn columns_are_not_much_longer_than_batches() {
        assert_eq!(room(1, 1 << 10, 1 << 16), 1 << 10);
        assert_eq!(room(3000, 1 << 10, 1 << 16), 1 << 12);
        assert_eq!(room(1 << 16, 1 << 10, 1 << 16), 1 << 16);
        assert_eq!(room((1 << 16) + 1, 1 << 10, 1 << 16), (1 << 16) + BEYOND);
        assert_eq!(room(1 << 20, 1 << 10, 1 << 16), 1 << 20);
        assert_eq!(room(1 << 20, 1 << 10, usize::MAX), 1 << 20);
        assert_eq!(room((1 << 20) + 1, 1 << 10, 1 << 16), (1 << 20) + 1);
    }

    /// All that the shelves do, in one test: they are the process's.
    #[test]
    fn what_came_back_is_used_again_while_somebody_decodes() {
        let numbers: Vec<u64> = (0..LEAST as u64).collect();
        give_back(numbers.clone());
        assert!(shelf().take::<u64>(numbers.len()).is_none());
        let lease = Lease::new();
        give_back(numbers.clone());
        give_back(vec![0_u8; 100]);
        assert!(shelf().octets.is_empty());
        assert_eq!(copied(&numbers[1..]), numbers[1..]);
        assert_eq!(shelf().bytes, 0);
        give_back(numbers.clone());
        // too large for these
        assert!(shelf().take::<u64>(numbers.len() / 2 - 1).is_none());
        assert!(shelf().take::<u64>(numbers.len() + 1).is_none());
        for _ in 0..=MOST / size(&numbers) {
            give_back(numbers.clone());
        }
        assert!(shelf().bytes <= MOST && shelf().bytes > MOST / 2);
        // most of a column goes away as it is, and what came back takes its place; a part of it is copied
        let mut column = numbers.clone();
        let (place, bytes) = (column.as_ptr(), shelf().bytes);
        let most = taken(&mut column, numbers.len() - 1);
        assert_eq!((most.as_ptr(), &most[..]), (place, &numbers[..most.len()]));
        assert_eq!(
            (column.len(), shelf().bytes),
            (numbers.len(), bytes - size(&column))
        );
        assert_ne!(column.as_ptr(), place);
        let place = column.as_ptr();
        column.copy_from_slice(&numbers);
        assert_eq!(
            taken(&mut column, numbers.len() / 2),
            numbers[..numbers.len() / 2]
        );
        assert_eq!(column.as_ptr(), place);
        // whoever has it for ever is not waited for
        let held = shelf();
        let bytes = held.bytes;
        assert_eq!(copied(&numbers), numbers);
        give_back(numbers);
        assert_eq!(held.bytes, bytes);
        drop(held);
        let other = Lease::new();
        drop(lease);
        assert!(shelf().bytes > 0);
        drop(other);
        assert_eq!(shelf().bytes, 0);
        assert!(shelf().words.is_empty());
    }
}
