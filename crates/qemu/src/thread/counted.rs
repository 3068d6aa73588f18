//! From one block to the next where blocks are counted: the way of nearly all of them.

use crate::thread::block::{breaks_off, Block, Exit};
use crate::thread::state::Thread;

impl Thread {
    /// The block that runs has led to the next as most do: it is counted. False, and nothing has changed, if not.
    #[inline(always)]
    pub(crate) fn count_quietly(&mut self, next: &Block) -> bool {
        let (block, start) = (self.block, next.start);
        let other = start != block.leads[0];
        if other & (start != block.leads[1]) {
            return false;
        }
        self.tally.add(block.number, other);
        true
    }

    /// The same for indirect branches, and for blocks that may be parts of others.
    #[inline(always)]
    pub(crate) fn count_almost_quietly(&mut self, next: &Block) -> bool {
        let block = self.block;
        if breaks_off(block, next) {
            return false;
        }
        match block.exit {
            Exit::Return | Exit::IndirectJump | Exit::IndirectCall => {
                self.tally.add(block.number, false);
                true
            }
            _ => self.count_quietly(next),
        }
    }
}
