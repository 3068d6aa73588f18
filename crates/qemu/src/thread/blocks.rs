//! From one block to the next: instructions retire, branches go somewhere.

use std::sync::atomic::Ordering;

use crate::thread::block::{breaks_off, Block, Exit};
use crate::thread::path::Truth;
use crate::thread::state::Thread;

impl Thread {
    /// The block that runs is through, the next instruction is at `next`.
    #[inline(always)]
    pub(crate) fn finish(&mut self, next: u64) {
        let block = self.block;
        let done = self.retire(block.count);
        if self.truth == Truth::Blocks {
            self.cut_path();
            let transfers = next != block.next || block.transfers();
            self.path.block(block, done, transfers);
        } else if self.truth == Truth::Counts {
            self.tally.whole(block, next);
        }
    }

    /// The first `count` instructions of the block that runs retired.
    pub(crate) fn finish_part(&mut self, count: u32) {
        let block = self.block;
        let done = self.retire(count);
        if self.truth == Truth::Blocks {
            self.cut_path();
            self.path.part(block, done..count);
        } else if self.truth == Truth::Counts {
            self.tally.part(block, count);
        }
    }

    /// How many of them are in the path already.
    #[inline(always)]
    fn retire(&mut self, count: u32) -> u32 {
        let clock = self.now() + u64::from(count);
        if clock >= self.next_look {
            return (self.look)(self, count);
        }
        self.clock.store(clock, Ordering::Relaxed);
        0
    }

    /// A block starts at `next` after the one that runs, and nothing about it is unusual. False if something is.
    #[inline(always)]
    pub(crate) fn follow(&mut self, next: &Block) -> bool {
        let (block, start) = (self.block, next.start);
        if breaks_off(block, next) {
            return false;
        }
        if block.exit == Exit::Conditional {
            let taken = start != block.next;
            if taken && start != block.target {
                return false;
            }
            self.finish(start);
            self.catch_up();
            self.branches += 1;
            self.unit.conditional(block.next, block.target, taken);
            return true;
        }
        match block.exit {
            Exit::Fall => {
                if start != block.next {
                    return false;
                }
                self.finish(start);
            }
            Exit::Jump => {
                if start != block.target {
                    return false;
                }
                self.finish(start);
                self.catch_up_unless_plain();
                self.unit.jump(start);
            }
            Exit::Call => {
                if start != block.target {
                    return false;
                }
                self.finish(start);
                self.catch_up_unless_plain();
                self.unit.call(block.next, start);
            }
            Exit::Return => {
                self.finish(start);
                self.catch_up();
                self.branches += 1;
                self.unit.ret(start);
            }
            Exit::IndirectJump => {
                self.finish(start);
                self.catch_up();
                self.branches += 1;
                self.unit.indirect_jump(start);
            }
            Exit::IndirectCall => {
                self.finish(start);
                self.catch_up();
                self.branches += 1;
                self.unit.indirect_call(block.next, start);
            }
            // An instruction alone may be the last one once more.
            Exit::Far if next.count > 1 || start != block.last => {
                self.finish(start);
                self.catch_up();
                self.branches += 1;
                self.unit.far(start);
            }
            Exit::Repeat if start == block.next => self.finish(start),
            Exit::Repeat if start == block.last => self.finish_part(block.count - 1),
            _ => return false,
        }
        true
    }

    /// A block starts at `start`, in user code already: a restart. False if it is none.
    pub(crate) fn follow_from_inside(&mut self, start: u64) -> bool {
        let block = self.block;
        if let Some(index) = block.index_of(start) {
            if index > block.refused {
                return false;
            }
            self.finish_part(index);
            return true;
        }
        false
    }

    /// The block is through and goes on at `ip`, where no block starts.
    pub(crate) fn complete(&mut self, ip: u64) {
        let block = self.block;
        self.finish(ip);
        self.catch_up();
        let direct = matches!(block.exit, Exit::Jump | Exit::Call);
        let goes_on = matches!(block.exit, Exit::Fall | Exit::Repeat);
        self.branches += u64::from(!direct && !goes_on);
        match block.exit {
            Exit::Conditional => self
                .unit
                .conditional(block.next, block.target, ip != block.next),
            Exit::Jump => self.unit.jump(ip),
            Exit::Call => self.unit.call(block.next, ip),
            Exit::IndirectJump => self.unit.indirect_jump(ip),
            Exit::IndirectCall => self.unit.indirect_call(block.next, ip),
            Exit::Return => self.unit.ret(ip),
            Exit::Far => self.unit.far(ip),
            _ => {}
        }
    }
}
