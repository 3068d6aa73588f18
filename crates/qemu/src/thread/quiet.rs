//! Blocks that make no packet of their own: the way that nearly all of them take.

use std::sync::atomic::Ordering;

use crate::thread::arena::{Arena, Entry};
use crate::thread::block::{Block, Exit};
use crate::thread::blocks::breaks_off;
use crate::thread::path::Truth;
use crate::thread::state::Thread;

impl Thread {
    /// `follow` for most blocks: one has led to the next, and no packet follows. False, and nothing has changed, if it is
    /// not that simple. Where the program's own branch goes must not be guessed here again: few jumps.
    #[inline(always)]
    pub(crate) fn follow_quietly(&mut self, next: &Block) -> bool {
        let (block, start) = (self.block, next.start);
        let clock = self.now() + u64::from(block.count);
        let elsewhere = (start != block.leads[0]) & (start != block.leads[1]);
        if elsewhere || clock >= self.quiet_until {
            return false;
        }
        if !self.unit.quietly(block.results, start != block.next, start) {
            return false;
        }
        self.clock.store(clock, Ordering::Relaxed);
        self.branches += u64::from(block.results);
        true
    }

    /// `follow_quietly` for block after block, as long as it can be; what is left. A TNT that is full is no reason to
    /// stop.
    #[inline(never)]
    pub(crate) fn follow_many<'a>(&mut self, entries: &'a [Entry], arena: Arena) -> &'a [Entry] {
        let clock = self.now();
        let room = self.unit.room_for_results().min(entries.len());
        let now = &entries[..room];
        if clock >= self.quiet_until || room == 0 {
            return entries;
        }
        let (mut block, mut rest) = (self.block, now.iter());
        // Instructions that may retire still.
        let mut left = self.quiet_until - clock - 1;
        let branches = self.unit.add_results(room, || {
            let next = arena.block(*rest.as_slice().first()?);
            let other = next.start != block.leads[0];
            let count = u64::from(block.count);
            if other & (next.start != block.leads[1]) | (count > left) {
                return None;
            }
            left -= count;
            let results = block.results;
            block = next;
            rest.next();
            Some((results, other))
        });
        if rest.len() < room {
            self.unit.arrive(block.start);
        }
        self.clock
            .store(self.quiet_until - 1 - left, Ordering::Relaxed);
        self.branches += branches;
        self.block = block;
        &entries[room - rest.len()..]
    }

    /// The same for what takes longer to find out: iterations, calls, returns, a TNT that is full, blocks that may be
    /// parts of others.
    #[inline(always)]
    pub(crate) fn follow_almost_quietly(&mut self, next: &Block) -> bool {
        let (block, start) = (self.block, next.start);
        let clock = self.now() + u64::from(block.count);
        if clock >= self.quiet_until || breaks_off(block, next) {
            return false;
        }
        let clock = match block.exit {
            Exit::Repeat if start == block.next => clock,
            Exit::Repeat if start == block.last => clock - 1,
            Exit::Call if start == block.target => {
                self.unit.call(block.next, start);
                clock
            }
            Exit::Return if self.unit.ret_quietly(start) => {
                self.branches += 1;
                clock
            }
            Exit::Conditional if start == block.next || start == block.target => {
                if !self.unit.conditional_quietly(start != block.next, start) {
                    return false;
                }
                self.branches += 1;
                clock
            }
            _ => return self.follow_quietly(next),
        };
        self.clock.store(clock, Ordering::Relaxed);
        true
    }

    /// After anything else has happened.
    #[inline(always)]
    pub(crate) fn settle(&mut self) {
        self.quiet_until = match self.truth {
            Truth::None => self.unit.quiet_until().min(self.next_look),
            _ => 0,
        };
        // Without address ranges PacketEn changes in the kernel and at the recording's edges alone.
        if !self.unit.plain() {
            self.follow_packet_en();
        }
    }
}
