//! Memory of columns that is used again.
//!
//! A sink returns its columns without a copy and writes the next rows to other memory. An allocator returns buffers of
//! this size to the system, and to touch new pages costs more than to copy a column. While results are made
//! (`BufferPoolGuard`), columns that are no longer needed come back (`return_column_to_pool`), and the next columns, of
//! any thread, take their memory.

use std::hint;
use std::mem::{replace, size_of};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Limit of the bytes in the pool.
const MAX_BYTES: usize = 1 << 26;
/// Bytes of a buffer in the pool, at least: an allocator keeps what is smaller.
const MIN_BUFFER: usize = 1 << 15;
/// Rows by which a batch exceeds its limit, at most, in most cases.
const BEYOND_LIMIT: usize = 1 << 12;
/// Attempts to lock the pool. Other threads hold it for far less; in a process that was forked while a thread held it,
/// it stays locked.
const MAX_ATTEMPTS: usize = 1 << 10;

static POOL: Mutex<BufferPool> = Mutex::new(BufferPool::EMPTY);
static GUARDS: AtomicUsize = AtomicUsize::new(0);

/// A number that columns consist of.
pub trait PooledNumber: Copy + Default + 'static {
    #[doc(hidden)]
    fn buffers_of_type(pool: &mut BufferPool) -> &mut Vec<Vec<Self>>;
}

/// Buffers that wait, by the size of their numbers.
#[doc(hidden)]
pub struct BufferPool {
    bytes: usize,
    of_u8: Vec<Vec<u8>>,
    of_u32: Vec<Vec<u32>>,
    of_u64: Vec<Vec<u64>>,
}

impl PooledNumber for u8 {
    fn buffers_of_type(pool: &mut BufferPool) -> &mut Vec<Vec<u8>> {
        &mut pool.of_u8
    }
}

impl PooledNumber for u32 {
    fn buffers_of_type(pool: &mut BufferPool) -> &mut Vec<Vec<u32>> {
        &mut pool.of_u32
    }
}

impl PooledNumber for u64 {
    fn buffers_of_type(pool: &mut BufferPool) -> &mut Vec<Vec<u64>> {
        &mut pool.of_u64
    }
}

fn lock_pool() -> Option<MutexGuard<'static, BufferPool>> {
    for _ in 0..MAX_ATTEMPTS {
        match POOL.try_lock() {
            Ok(pool) => return Some(pool),
            Err(TryLockError::Poisoned(pool)) => return Some(pool.into_inner()),
            Err(TryLockError::WouldBlock) => hint::spin_loop(),
        }
    }
    None
}

fn buffer_size_in_bytes<T>(buffer: &Vec<T>) -> usize {
    buffer.capacity() * size_of::<T>()
}

impl BufferPool {
    const EMPTY: BufferPool = BufferPool {
        bytes: 0,
        of_u8: Vec::new(),
        of_u32: Vec::new(),
        of_u64: Vec::new(),
    };

    /// Takes the last buffer that came back with room for `count` numbers and for less than twice as many.
    fn take_buffer<T: PooledNumber>(&mut self, count: usize) -> Option<Vec<T>> {
        let fits = |buffer: &Vec<T>| (count..=count * 2).contains(&buffer.capacity());
        let buffers = T::buffers_of_type(self);
        let found = buffers.iter().rposition(fits)?;
        let buffer = buffers.swap_remove(found);
        self.bytes -= buffer_size_in_bytes(&buffer);
        Some(buffer)
    }

    fn insert_buffer<T: PooledNumber>(&mut self, buffer: Vec<T>) {
        let bytes = buffer_size_in_bytes(&buffer);
        if GUARDS.load(Ordering::SeqCst) > 0 && bytes <= MAX_BYTES - self.bytes {
            self.bytes += bytes;
            T::buffers_of_type(self).push(buffer);
        }
    }
}

/// Keeps the pool in use. The last guard empties it.
pub struct BufferPoolGuard(());

impl BufferPoolGuard {
    #[allow(clippy::new_without_default)] // it counts
    pub fn new() -> BufferPoolGuard {
        GUARDS.fetch_add(1, Ordering::SeqCst);
        BufferPoolGuard(())
    }
}

impl Drop for BufferPoolGuard {
    fn drop(&mut self) {
        if GUARDS.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        if let Some(mut pool) = lock_pool() {
            let old = replace(&mut *pool, BufferPool::EMPTY);
            drop(pool);
            drop(old);
        }
    }
}

/// Returns a buffer with room for `count` numbers; the numbers in it have no meaning.
fn take_or_allocate_buffer<T: PooledNumber>(count: usize) -> Vec<T> {
    let pool = match count * size_of::<T>() {
        MIN_BUFFER.. => lock_pool(),
        _ => None,
    };
    let found = pool.and_then(|mut pool| pool.take_buffer(count));
    found.unwrap_or_else(|| Vec::with_capacity(count))
}

/// Returns an empty buffer with room for `count` numbers.
pub fn take_empty_buffer<T: PooledNumber>(count: usize) -> Vec<T> {
    let mut buffer = take_or_allocate_buffer(count);
    buffer.clear();
    buffer
}

/// Returns a copy of some numbers.
pub(crate) fn copy_to_buffer<T: PooledNumber>(numbers: &[T]) -> Vec<T> {
    let mut buffer = take_empty_buffer(numbers.len());
    buffer.extend_from_slice(numbers);
    buffer
}

/// Takes the first `count` numbers out of a column. The `open` numbers after them become the first, the others have no
/// meaning, and the length stays the same.
///
/// If this is most of the column, its memory goes away with the numbers, and the column gets other memory.
pub(crate) fn take_front_of_column<T: PooledNumber>(
    column: &mut Vec<T>,
    count: usize,
    open: usize,
) -> Vec<T> {
    let room = column.len();
    if room == 0 {
        return Vec::new();
    }
    if count <= room / 2 {
        let numbers = copy_to_buffer(&column[..count]);
        column.copy_within(count..count + open, 0);
        return numbers;
    }
    let mut other = take_or_allocate_buffer(room);
    // a recycled buffer is hardly shorter: few numbers are written
    other.resize(room, T::default());
    other[..open].copy_from_slice(&column[count..count + open]);
    let mut numbers = replace(column, other);
    numbers.truncate(count);
    numbers
}

/// Returns how long columns should be that are to hold `rows` rows: not much longer than batches of about `limit` rows.
pub(crate) fn batch_capacity(rows: usize, first: usize, limit: usize) -> usize {
    let enough = limit.saturating_add(BEYOND_LIMIT).max(rows);
    rows.next_power_of_two().max(first).min(enough)
}

/// Gives the memory of a column to later ones.
pub fn return_column_to_pool<T: PooledNumber>(column: Vec<T>) {
    if buffer_size_in_bytes(&column) >= MIN_BUFFER {
        if let Some(mut pool) = lock_pool() {
            pool.insert_buffer(column);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked_pool() -> MutexGuard<'static, BufferPool> {
        lock_pool().unwrap()
    }

    #[test]
    fn columns_are_not_much_longer_than_batches() {
        assert_eq!(batch_capacity(1, 1 << 10, 1 << 16), 1 << 10);
        assert_eq!(batch_capacity(3000, 1 << 10, 1 << 16), 1 << 12);
        assert_eq!(batch_capacity(1 << 16, 1 << 10, 1 << 16), 1 << 16);
        let beyond = batch_capacity((1 << 16) + 1, 1 << 10, 1 << 16);
        assert_eq!(beyond, (1 << 16) + BEYOND_LIMIT);
        assert_eq!(batch_capacity(1 << 20, 1 << 10, 1 << 16), 1 << 20);
        assert_eq!(batch_capacity(1 << 20, 1 << 10, usize::MAX), 1 << 20);
        let beyond = batch_capacity((1 << 20) + 1, 1 << 10, 1 << 16);
        assert_eq!(beyond, (1 << 20) + 1);
    }

    #[test]
    fn take_front_keeps_open_numbers() {
        for count in 0..8 {
            let mut column: Vec<u32> = (0..10).collect();
            let front = take_front_of_column(&mut column, count, 2);
            assert_eq!(front, (0..count as u32).collect::<Vec<_>>());
            assert_eq!(column[..2], [count as u32, count as u32 + 1]);
            assert_eq!(column.len(), 10);
        }
    }

    /// Everything about the pool in one test: it belongs to the process.
    #[test]
    fn recycled_buffers_are_used_again_while_guarded() {
        let numbers: Vec<u64> = (0..MIN_BUFFER as u64).collect();
        return_column_to_pool(numbers.clone());
        assert!(locked_pool().take_buffer::<u64>(numbers.len()).is_none());
        let guard = BufferPoolGuard::new();
        return_column_to_pool(numbers.clone());
        return_column_to_pool(vec![0_u8; 100]);
        assert!(locked_pool().of_u8.is_empty());
        assert_eq!(copy_to_buffer(&numbers[1..]), numbers[1..]);
        assert_eq!(locked_pool().bytes, 0);
        return_column_to_pool(numbers.clone());
        // too large for these
        assert!(locked_pool()
            .take_buffer::<u64>(numbers.len() / 2 - 1)
            .is_none());
        assert!(locked_pool()
            .take_buffer::<u64>(numbers.len() + 1)
            .is_none());
        for _ in 0..=MAX_BYTES / buffer_size_in_bytes(&numbers) {
            return_column_to_pool(numbers.clone());
        }
        assert!(locked_pool().bytes <= MAX_BYTES && locked_pool().bytes > MAX_BYTES / 2);
        // most of a column goes away without a copy, and the column gets a recycled buffer
        let mut column = numbers.clone();
        let (address, bytes) = (column.as_ptr(), locked_pool().bytes);
        let most = take_front_of_column(&mut column, numbers.len() - 1, 1);
        assert_eq!(
            (most.as_ptr(), &most[..]),
            (address, &numbers[..most.len()])
        );
        assert_eq!(column.len(), numbers.len());
        assert_eq!(locked_pool().bytes, bytes - buffer_size_in_bytes(&column));
        assert_ne!(column.as_ptr(), address);
        // a part is copied
        let address = column.as_ptr();
        column.copy_from_slice(&numbers);
        let half = numbers.len() / 2;
        assert_eq!(take_front_of_column(&mut column, half, 0), numbers[..half]);
        assert_eq!(column.as_ptr(), address);
        // a lock that is never released is not waited for
        let held = locked_pool();
        let bytes = held.bytes;
        assert_eq!(copy_to_buffer(&numbers), numbers);
        return_column_to_pool(numbers);
        assert_eq!(held.bytes, bytes);
        drop(held);
        let other = BufferPoolGuard::new();
        drop(guard);
        assert!(locked_pool().bytes > 0);
        drop(other);
        assert_eq!(locked_pool().bytes, 0);
        assert!(locked_pool().of_u64.is_empty());
    }
}
