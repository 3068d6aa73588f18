//! Vectors on huge pages: [`Buffer`].
//!
//! # Why
//!
//! A program with large code (a compiler, an interpreter of a language) makes a decoder fill 10 to 30 MB of tables,
//! code nodes and sums within 40 ms. On pages of 4 KB these are thousands of page faults, and lookups miss the TLB. The
//! kernel takes 0.78 ms to provide and free 2 MB as 512 pages, and 0.24 ms as one huge page. Most systems give huge
//! pages only to memory that asks for them (`madvise` in `/sys/kernel/mm/transparent_hugepage/enabled`). So the vectors
//! of `rtit-flow` that grow with the code ask for them.
//!
//! Edges of whole streams and of their first 6 MB, by new decoders on an Intel Xeon. The factor is the CPU time before
//! by the CPU time with huge pages; `bench/results/2026-11-26-large-code.md` has more.
//!
//! | program | page faults | factor | page faults, 6 MB | factor, 6 MB |
//! |---|---|---|---|---|
//! | `cc1` | 27,491 -> 7,183 | 1.06 | 3,788 -> 520 | 1.02 |
//! | `python3` | 8,786 -> 778 | 1.12 | 6,305 -> 762 | 1.12 |
//! | `gzip` | 522 -> 332 | 1.13 | 388 -> 320 | 1.10 |
//!
//! # How
//!
//! Blocks of 32 KB to 8 MB are parts of anonymous maps of 16 MB, so that several vectors share a huge page. The
//! first megabyte of such blocks is on plain pages, because a huge page costs more than it saves in a short decode.
//! Blocks above 8 MB are on plain pages, too: the system grows them without a copy, which would double the peak of
//! memory. A map goes back to the system when no block is left in it. If the system refuses a map, blocks are on
//! plain pages; if it refuses huge pages, the map is. Maps exist on Linux only.
//!
//! This is an allocator for these vectors and not the global one, which is the choice of a program and not of a
//! library. It is the only crate of the decoder with `unsafe` code: safe crates such as `memmap2` provide maps of
//! bytes, and neither vectors of other types nor several vectors in one map.

#[cfg(target_os = "linux")]
mod regions;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator, Global, Layout};
use allocator_api2::vec::{self, Vec};

/// Smaller and larger blocks are always on plain pages.
const MIN_BLOCK: usize = 1 << 15;
const MAX_BLOCK: usize = 1 << 23;

/// Whether a block of this size may be in a map.
fn may_be_in_map(size: usize) -> bool {
    cfg!(target_os = "linux") && (MIN_BLOCK..=MAX_BLOCK).contains(&size)
}

/// The allocator of a [`Buffer`].
#[derive(Clone, Copy, Default, Debug)]
pub struct HugePages;

// SAFETY: a block is one of `Global`, or a part of a map that overlaps no other block and stays mapped until the block
// is deallocated. The allocator has no fields, so any copy of it can deallocate the block.
unsafe impl Allocator for HugePages {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        #[cfg(target_os = "linux")]
        if may_be_in_map(layout.size()) {
            if let Some(block) = regions::REGIONS.allocate(layout) {
                return Ok(NonNull::slice_from_raw_parts(block, layout.size()));
            }
        }
        Global.allocate(layout)
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        #[cfg(target_os = "linux")]
        if may_be_in_map(layout.size()) && regions::REGIONS.deallocate(block, layout) {
            return;
        }
        // SAFETY: the caller passes a block of this allocator, which is in no map, and its layout.
        unsafe { Global.deallocate(block, layout) }
    }

    unsafe fn grow(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        if !may_be_in_map(old.size()) && !may_be_in_map(new.size()) {
            // SAFETY: the contract of the caller; neither block is in a map.
            return unsafe { Global.grow(block, old, new) };
        }
        let grown = self.allocate(new)?;
        // SAFETY: the contract of the caller: the new block is no shorter than the old one, which is deallocated once.
        unsafe {
            grown.cast().copy_from_nonoverlapping(block, old.size());
            self.deallocate(block, old);
        }
        Ok(grown)
    }
}

/// A vector that is on huge pages once it and others are large. It has the methods of a vector.
pub struct Buffer<T>(Vec<T, HugePages>);

impl<T> Buffer<T> {
    pub const fn new() -> Buffer<T> {
        Buffer(Vec::new_in(HugePages))
    }
}

impl<T: Clone> Buffer<T> {
    /// Returns a vector of `len` copies of `value`.
    pub fn filled(value: T, len: usize) -> Buffer<T> {
        Buffer(vec::from_elem_in(value, len, HugePages))
    }
}

impl<T> Default for Buffer<T> {
    fn default() -> Buffer<T> {
        Buffer::new()
    }
}

impl<T: Clone> Clone for Buffer<T> {
    fn clone(&self) -> Buffer<T> {
        Buffer(self.0.clone())
    }
}

impl<T: fmt::Debug> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Deref for Buffer<T> {
    type Target = Vec<T, HugePages>;

    fn deref(&self) -> &Vec<T, HugePages> {
        &self.0
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut Vec<T, HugePages> {
        &mut self.0
    }
}

impl<T> IntoIterator for Buffer<T> {
    type Item = T;
    type IntoIter = vec::IntoIter<T, HugePages>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a Buffer<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T> FromIterator<T> for Buffer<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Buffer<T> {
        let mut buffer = Buffer::new();
        buffer.extend(items);
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_grow_side_by_side_keep_their_elements() {
        let (mut numbers, mut pairs) = (Buffer::new(), Buffer::new());
        let count = if cfg!(miri) { 6_000 } else { 400_000 };
        pairs.reserve(1 << 18);
        for number in 0..count {
            numbers.push(number);
            pairs.push((number, !number));
        }
        numbers.retain(|number| number % 3 == 0);
        numbers.shrink_to_fit();
        let copy = numbers.clone();
        drop(numbers);
        assert!(copy
            .into_iter()
            .eq((0..count).filter(|number| number % 3 == 0)));
        assert!(pairs
            .into_iter()
            .eq((0..count).map(|number| (number, !number))));
    }

    #[test]
    fn elements_are_dropped_once() {
        let element = std::rc::Rc::new(());
        let mut buffer = Buffer::filled(element.clone(), 10_000);
        buffer.truncate(5_000);
        assert_eq!(std::rc::Rc::strong_count(&element), 5_001);
        drop(buffer);
        assert_eq!(std::rc::Rc::strong_count(&element), 1);
    }
}
