//! From one block to the next: instructions retire, branches go somewhere.

use std::sync::atomic::Ordering;

use crate::block::{Block, Exit};
use crate::config::Truth;
use crate::process::process;
use crate::thread::Thread;

/// Bytes of packets that a thread holds back, at most: so many, and what `LOOK` instructions more make.
const HELD: usize = 32 * 1024;
pub(super) const LOOK: u64 = 8192;

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
        }
    }

    /// All but the last `left` instructions of the block that runs retired.
    pub(super) fn finish_part(&mut self, count: u32) {
        let block = self.block;
        let done = self.retire(count);
        if self.truth == Truth::Blocks {
            self.cut_path();
            self.path.part(block, done..count);
        }
    }

    /// What follows on the path comes after the last PSB.
    #[inline(always)]
    pub(super) fn cut_path(&mut self) {
        if self.snapshot && self.psbs != self.unit.psbs() {
            self.psbs = self.unit.psbs();
            self.path.cut();
        }
    }

    /// How many of them are in the path already.
    #[inline(always)]
    fn retire(&mut self, count: u32) -> u32 {
        let clock = self.now() + u64::from(count);
        if clock >= self.next_look {
            return self.look(count);
        }
        self.clock.store(clock, Ordering::Relaxed);
        0
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self, count: u32) -> u32 {
        let clock = self.now() + u64::from(count);
        self.next_look = clock + LOOK;
        let done = self.pass_edges(count);
        self.clock.store(clock, Ordering::Relaxed);
        self.catch_up();
        let asked = process().clock.asked();
        if self.unit.output().len() >= HELD || self.path.is_long() || asked != self.asked {
            if self.path.may_end() {
                self.asked = asked;
                self.flush(process());
            } else {
                self.next_look = clock;
            }
        }
        done
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
            Exit::Repeat if start == block.next => self.finish(start),
            Exit::Repeat if start == block.last => self.finish_part(block.count - 1),
            _ => return false,
        }
        true
    }

    /// A block starts at `start` that does not simply follow: begin, resumption, restart, far transfer. False if
    /// nobody can tell how that came.
    pub(crate) fn follow_strangely(&mut self, start: u64) -> bool {
        let block = self.block;
        if block.exit == Exit::Out {
            self.resume(start);
            return true;
        }
        if let Some(index) = block.index_of(start) {
            self.finish_part(index);
            return true;
        }
        if block.exit == Exit::Far {
            self.finish(start);
            self.catch_up();
            self.branches += 1;
            self.unit.far(start);
            return true;
        }
        false
    }

    /// The block is through and goes on at `ip`, where no block starts.
    pub(super) fn complete(&mut self, ip: u64) {
        let block = self.block;
        self.finish(ip);
        self.catch_up();
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

/// A block of one instruction inside the last one: that one was broken off there.
#[inline(always)]
pub(super) fn breaks_off(block: &Block, next: &Block) -> bool {
    next.count == 1 && next.start.wrapping_sub(block.start) < block.last.wrapping_sub(block.start)
}
