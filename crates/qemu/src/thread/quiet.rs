//! Blocks that make no packet of their own: the way that nearly all of them take.

use std::sync::atomic::Ordering;

use crate::thread::arena::{Arena, Entry};
use crate::thread::block::{breaks_off, Block, Exit};
use crate::thread::path::Truth;
use crate::thread::state::Thread;
use crate::thread::windows::STEPS;

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

    /// For block after block of `entries` from `from` on, as long as there is nothing unusual; which is the next one. A
    /// TNT that is full, a call and a return that is a result are no reason to stop. The block that runs has to be the
    /// entry before.
    #[inline(never)]
    pub(crate) fn follow_many(&mut self, entries: &[Entry], from: usize, arena: Arena) -> usize {
        let clock = self.now();
        let room = self.unit.room_for_results().min(entries.len() - from);
        let before = |at: usize| arena.block(entries[at - 1]);
        let goes_on = from > 0 && std::ptr::eq(self.block, before(from));
        if clock >= self.quiet_until || room == 0 || !goes_on {
            return from;
        }
        let (mut at, end) = (from, from + room);
        // Instructions that may retire still.
        let mut left = self.quiet_until - clock - 1;
        let windows = &mut self.windows;
        let branches = self.unit.add_results(room, |calls| {
            if let Some(path) = entries[..end].get(at - 1..at + STEPS) {
                let gist = windows.gist(path.try_into().ok()?, arena);
                if gist.instructions() <= left {
                    // Apart from the rest, so that the next window need not wait for what this one says.
                    if gist.is_plain() {
                        left -= gist.instructions();
                        at += STEPS;
                        return Some(gist.results());
                    }
                    let next = at + gist.steps();
                    if next > at && gist.takes_calls(calls, || [next - 1, next].map(before)) {
                        left -= gist.instructions();
                        at = next;
                        return Some(gist.results());
                    }
                }
            }
            let (block, next) = (before(at), arena.block(*entries[..end].get(at)?));
            let taken = block.leads_to(next)?;
            left = left.checked_sub(u64::from(block.count))?;
            at += 1;
            Some((block.results, u64::from(taken)))
        });
        self.block = before(at);
        if at > from {
            self.unit.arrive(self.block.start);
        }
        let clock = self.quiet_until - 1 - left;
        self.clock.store(clock, Ordering::Relaxed);
        self.branches += branches;
        at
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
