//! How often each block was left, and by which way: two words a block in a table of the thread's own.
//!
//! A block counts when the next one starts, or when it is known how it was left. Its first word is for the way to the
//! next instruction of a conditional branch or a repeated instruction, and for all others' only way; the second for a
//! branch that is taken, and for an iteration that another one follows, whose instruction has not retired.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::thread::block::{Block, Exit};

/// How often a block was left by its first way, and by the other.
pub(crate) type Cell = [AtomicU64; 2];

/// Called when a block is left before its end: the number of what has only its first so many instructions.
pub(crate) type Part = fn(&Block, u32) -> u32;

/// A thread's table; only the thread writes to it.
#[derive(Clone, Copy)]
pub(crate) struct Tally {
    cells: *const Cell,
    part: Part,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            cells: std::ptr::null(),
            part: |_, _| 0,
        }
    }
}

impl Tally {
    /// # Safety
    /// There is a cell for every number that a block gets, until the process ends.
    pub(crate) unsafe fn new(cells: *const Cell, part: Part) -> Tally {
        Tally { cells, part }
    }

    pub(crate) fn cells(&self) -> *const Cell {
        self.cells
    }

    #[inline(always)]
    pub(super) fn add(&self, number: u32, way: bool) {
        // SAFETY: see `new`; whoever counts has a table.
        let word = unsafe { &(*self.cells.add(number as usize))[usize::from(way)] };
        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The block is through and the next instruction is at `next`.
    pub(super) fn whole(&self, block: &Block, next: u64) {
        self.add(
            block.number,
            block.exit == Exit::Conditional && next != block.next,
        );
    }

    /// Its first `count` instructions retired.
    pub(super) fn part(&self, block: &Block, count: u32) {
        if block.exit == Exit::Repeat && count + 1 == block.count {
            self.add(block.number, true);
        } else if count > 0 {
            self.add((self.part)(block, count), false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(work: impl FnOnce(&Tally)) -> [[u64; 2]; 3] {
        let cells: [Cell; 3] = Default::default();
        // SAFETY: the numbers below are less than three, and it is used no longer than the cells.
        work(&unsafe { Tally::new(cells.as_ptr(), |_, count| count) });
        cells.map(|cell| cell.map(AtomicU64::into_inner))
    }

    #[test]
    fn a_branch_counts_by_its_way() {
        // je .+2
        let block = Block::new(0x1000, &[2], &[0x74, 0x02], false);
        let found = counted(|tally| {
            tally.whole(&block, 0x1002);
            tally.whole(&block, 0x1004);
            tally.whole(&block, 0x1004);
        });
        assert_eq!(found[0], [1, 2]);
    }

    #[test]
    fn an_iteration_is_no_instruction_and_a_part_no_block() {
        // nop; nop; rep movsb
        let block = Block::new(0x1000, &[1, 1, 2], &[0x90, 0x90, 0xf3, 0xa4], false);
        let found = counted(|tally| {
            tally.part(&block, 2);
            tally.whole(&block, 0x1004);
            tally.part(&block, 1);
            tally.part(&block, 0);
        });
        assert_eq!(found, [[1, 1], [1, 0], [0, 0]]);
    }
}
