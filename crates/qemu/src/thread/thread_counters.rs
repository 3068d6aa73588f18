//! Counts how often each block was left, and which way: two words for each block, in a table of the thread's own.
//!
//! A block counts when the next one starts, or when it is known how it was left. The first word counts the not-taken
//! way of a conditional branch, the end of a REP instruction, and the only way of other blocks. The second word counts
//! taken conditional branches, and REP iterations that another one follows, whose instruction has not retired.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::thread::translation_block::{BlockExit, TranslationBlock};

/// How often a block was left the first way and the second way.
pub(crate) type Counter = [AtomicU64; 2];

/// Returns the id of the first instructions of a block, for blocks that are left before their end.
pub(crate) type PartialBlockId = fn(&TranslationBlock, u32) -> u32;

/// A thread's table. Only the thread writes to it.
#[derive(Clone, Copy)]
pub(crate) struct ThreadCounters {
    cells: *const Counter,
    partial_block_id: PartialBlockId,
}

impl Default for ThreadCounters {
    fn default() -> ThreadCounters {
        ThreadCounters {
            cells: std::ptr::null(),
            partial_block_id: |_, _| 0,
        }
    }
}

impl ThreadCounters {
    /// Uses a table of counters.
    ///
    /// # Safety
    /// There is a counter for every id that a block gets, until the process ends.
    pub(crate) unsafe fn new(
        cells: *const Counter,
        partial_block_id: PartialBlockId,
    ) -> ThreadCounters {
        ThreadCounters {
            cells,
            partial_block_id,
        }
    }

    pub(crate) fn counter_array(&self) -> *const Counter {
        self.cells
    }

    #[inline(always)]
    pub(super) fn increment_counter(&self, number: u32, way: bool) {
        // SAFETY: see `new`.
        let word = unsafe { &(*self.cells.add(number as usize))[usize::from(way)] };
        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Counts the whole block; the next instruction is at `next`.
    pub(super) fn count_block(&self, block: &TranslationBlock, next: u64) {
        self.increment_counter(
            block.counter_id,
            block.exit == BlockExit::Conditional && next != block.next,
        );
    }

    /// Counts the first `count` instructions of the block.
    pub(super) fn count_part(&self, block: &TranslationBlock, count: u32) {
        if block.exit == BlockExit::Repeat && count + 1 == block.instructions {
            self.increment_counter(block.counter_id, true);
        } else if count > 0 {
            self.increment_counter((self.partial_block_id)(block, count), false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts_after(work: impl FnOnce(&ThreadCounters)) -> [[u64; 2]; 3] {
        let cells: [Counter; 3] = Default::default();
        // SAFETY: the numbers below are less than three, and it is used no longer than the cells.
        work(&unsafe { ThreadCounters::new(cells.as_ptr(), |_, count| count) });
        cells.map(|cell| cell.map(AtomicU64::into_inner))
    }

    #[test]
    fn conditional_branch_counts_each_way() {
        // je .+2
        let block = TranslationBlock::new(0x1000, &[2], &[0x74, 0x02], false);
        let found = counts_after(|counters| {
            counters.count_block(&block, 0x1002);
            counters.count_block(&block, 0x1004);
            counters.count_block(&block, 0x1004);
        });
        assert_eq!(found[0], [1, 2]);
    }

    #[test]
    fn iterations_and_partial_blocks_count_separately() {
        // nop; nop; rep movsb
        let block = TranslationBlock::new(0x1000, &[1, 1, 2], &[0x90, 0x90, 0xf3, 0xa4], false);
        let found = counts_after(|counters| {
            counters.count_part(&block, 2);
            counters.count_block(&block, 0x1004);
            counters.count_part(&block, 1);
            counters.count_part(&block, 0);
        });
        assert_eq!(found, [[1, 1], [1, 0], [0, 0]]);
    }
}
