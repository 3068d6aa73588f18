//! The transition from the current block to the next one: instructions retire and a branch goes somewhere.
//!
//! A transition is *quiet* if it puts no packet into the output and nothing else is due: a fall-through, a direct jump,
//! or a conditional branch that does not fill its TNT packet, before the clock reaches `quiet_until_clock`. That is
//! true of nearly all. There are three functions, from fast to general, with equal results; a test in `path_memo`
//! compares them:
//!
//! * `follow_quietly`: quiet transitions.
//! * `follow_almost_quietly`: also calls, compressed returns, full short TNTs, REP iterations.
//! * `follow_transition`: all transitions in user code.
//!
//! `follow_block_ids` follows many blocks of the ring in one loop: quiet ones, and calls and compressed returns. The
//! first two functions change nothing and return false if a case is not theirs.
//!
//! `count_common_block` and `count_less_common` do the same where blocks are only counted.
//!
//! `quiet_until_clock` is valid while user code runs. `update_quiet_limit` restores it after anything else.

use std::sync::atomic::Ordering;

use crate::thread::block_arena::{BlockArena, BlockId};
use crate::thread::executed_path::ExecutedPathSource;
use crate::thread::path_memo::MEMO_STEPS;
use crate::thread::thread_state::RecordedThread;
use crate::thread::translation_block::{is_interrupted_inside, BlockExit, TranslationBlock};

impl RecordedThread {
    /// Retires the whole current block; the next instruction is at `next`.
    #[inline(always)]
    pub(crate) fn retire_block(&mut self, next: u64) {
        let block = self.block;
        let done = self.advance_clock(block.instructions);
        if self.truth == ExecutedPathSource::Blocks {
            self.cut_path_at_psb();
            let transfers = next != block.next || block.always_transfers();
            self.path.add_block(block, done, transfers);
        } else if self.truth == ExecutedPathSource::Counts {
            self.counters.count_block(block, next);
        }
    }

    /// Retires the first `count` instructions of the current block.
    pub(crate) fn retire_part(&mut self, count: u32) {
        let block = self.block;
        let done = self.advance_clock(count);
        if self.truth == ExecutedPathSource::Blocks {
            self.cut_path_at_psb();
            self.path.add_part(block, done..count);
        } else if self.truth == ExecutedPathSource::Counts {
            self.counters.count_part(block, count);
        }
    }

    /// Advances the clock. Returns how many of the instructions are in the path already.
    #[inline(always)]
    fn advance_clock(&mut self, count: u32) -> u32 {
        let clock = self.clock_in_instructions() + u64::from(count);
        if clock >= self.next_check {
            return (self.periodic_check)(self, count);
        }
        self.clock.store(clock, Ordering::Relaxed);
        0
    }

    /// Follows any transition of user code to `next`; false if the current block does not lead there.
    #[inline(always)]
    pub(crate) fn follow_transition(&mut self, next: &TranslationBlock) -> bool {
        let (block, start) = (self.block, next.start);
        if is_interrupted_inside(block, next) {
            return false;
        }
        if block.exit == BlockExit::Conditional {
            let taken = start != block.next;
            if taken && start != block.target {
                return false;
            }
            self.retire_block(start);
            self.sync_unit_clock();
            self.branches += 1;
            self.unit.conditional(block.next, block.target, taken);
            return true;
        }
        match block.exit {
            BlockExit::Fall => {
                if start != block.next {
                    return false;
                }
                self.retire_block(start);
            }
            BlockExit::Jump => {
                if start != block.target {
                    return false;
                }
                self.retire_block(start);
                self.sync_unit_clock_unless_plain();
                self.unit.jump(start);
            }
            BlockExit::Call => {
                if start != block.target {
                    return false;
                }
                self.retire_block(start);
                self.sync_unit_clock_unless_plain();
                self.unit.call(block.next, start);
            }
            BlockExit::Return => {
                self.retire_block(start);
                self.sync_unit_clock();
                self.branches += 1;
                self.unit.ret(start);
            }
            BlockExit::IndirectJump => {
                self.retire_block(start);
                self.sync_unit_clock();
                self.branches += 1;
                self.unit.indirect_jump(start);
            }
            BlockExit::IndirectCall => {
                self.retire_block(start);
                self.sync_unit_clock();
                self.branches += 1;
                self.unit.indirect_call(block.next, start);
            }
            // A single instruction may be the far transfer itself, restarted.
            BlockExit::Far if next.instructions > 1 || start != block.last => {
                self.retire_block(start);
                self.sync_unit_clock();
                self.branches += 1;
                self.unit.emit_far_branch(start);
            }
            BlockExit::Repeat if start == block.next => self.retire_block(start),
            BlockExit::Repeat if start == block.last => self.retire_part(block.instructions - 1),
            _ => return false,
        }
        true
    }

    /// Retires the instructions before `start`, at which the current block is restarted; false if none of its
    /// instructions is there.
    pub(crate) fn restart_inside_block(&mut self, start: u64) -> bool {
        let block = self.block;
        if let Some(index) = block.instruction_index_at(start) {
            if index > block.first_refused {
                return false;
            }
            self.retire_part(index);
            return true;
        }
        false
    }

    /// Retires the current block and its branch to `ip`, where no block starts.
    pub(crate) fn retire_block_and_branch_to(&mut self, ip: u64) {
        let block = self.block;
        self.retire_block(ip);
        self.sync_unit_clock();
        let direct = matches!(block.exit, BlockExit::Jump | BlockExit::Call);
        let goes_on = matches!(block.exit, BlockExit::Fall | BlockExit::Repeat);
        self.branches += u64::from(!direct && !goes_on);
        match block.exit {
            BlockExit::Conditional => {
                self.unit
                    .conditional(block.next, block.target, ip != block.next)
            }
            BlockExit::Jump => self.unit.jump(ip),
            BlockExit::Call => self.unit.call(block.next, ip),
            BlockExit::IndirectJump => self.unit.indirect_jump(ip),
            BlockExit::IndirectCall => self.unit.indirect_call(block.next, ip),
            BlockExit::Return => self.unit.ret(ip),
            BlockExit::Far => self.unit.emit_far_branch(ip),
            _ => {}
        }
    }
}

impl RecordedThread {
    /// Follows a quiet transition. A jump that depends on the program's own branch would be mispredicted as often as
    /// that one, so conditions are computed without jumps.
    #[inline(always)]
    pub(crate) fn follow_quietly(&mut self, next: &TranslationBlock) -> bool {
        let (block, start) = (self.block, next.start);
        let clock = self.clock_in_instructions() + u64::from(block.instructions);
        let elsewhere = (start != block.quiet_targets[0]) & (start != block.quiet_targets[1]);
        if elsewhere || clock >= self.quiet_until {
            return false;
        }
        if !self
            .unit
            .try_quiet_branch(block.results, start != block.next, start)
        {
            return false;
        }
        self.clock.store(clock, Ordering::Relaxed);
        self.branches += u64::from(block.results);
        true
    }

    /// Follows quiet transitions along `entries` from index `from` on, and also full TNTs, calls and compressed
    /// returns. Returns the index of the first entry that is left. The current block must be the entry before `from`.
    #[inline(never)]
    pub(crate) fn follow_block_ids(
        &mut self,
        entries: &[BlockId],
        from: usize,
        arena: BlockArena,
    ) -> usize {
        let clock = self.clock_in_instructions();
        let room = self.unit.room_for_tnt_bits().min(entries.len() - from);
        let before = |at: usize| arena.block_of_id(entries[at - 1]);
        let goes_on = from > 0 && std::ptr::eq(self.block, before(from));
        if clock >= self.quiet_until || room == 0 || !goes_on {
            return from;
        }
        let (mut at, end) = (from, from + room);
        // Instructions that may still retire before `quiet_until_clock`.
        let mut left = self.quiet_until - clock - 1;
        let memo = &mut self.memo;
        let branches = self.unit.add_tnt_bits(room, |calls| {
            if let Some(path) = entries[..end].get(at - 1..at + MEMO_STEPS) {
                let summary = memo.memoized_summary(path.try_into().ok()?, arena);
                if summary.instruction_count() <= left {
                    // Apart from the general case, so that the next summary need not wait for this one.
                    if summary.covers_whole_path() {
                        left -= summary.instruction_count();
                        at += MEMO_STEPS;
                        return Some(summary.tnt_bits());
                    }
                    let next = at + summary.step_count();
                    if next > at && summary.apply_call(calls, || [next - 1, next].map(before)) {
                        left -= summary.instruction_count();
                        at = next;
                        return Some(summary.tnt_bits());
                    }
                }
            }
            let (block, next) = (before(at), arena.block_of_id(*entries[..end].get(at)?));
            let taken = block.quiet_branch_to(next)?;
            left = left.checked_sub(u64::from(block.instructions))?;
            at += 1;
            Some((block.results, u64::from(taken)))
        });
        self.block = before(at);
        if at > from {
            self.unit.set_ip(self.block.start);
        }
        let clock = self.quiet_until - 1 - left;
        self.clock.store(clock, Ordering::Relaxed);
        self.branches += branches;
        at
    }

    /// Follows a quiet transition, or one by a REP iteration, a call, a compressed return or a full short TNT; also to
    /// a block that may be part of another.
    #[inline(always)]
    pub(crate) fn follow_almost_quietly(&mut self, next: &TranslationBlock) -> bool {
        let (block, start) = (self.block, next.start);
        let clock = self.clock_in_instructions() + u64::from(block.instructions);
        if clock >= self.quiet_until || is_interrupted_inside(block, next) {
            return false;
        }
        let clock = match block.exit {
            BlockExit::Repeat if start == block.next => clock,
            BlockExit::Repeat if start == block.last => clock - 1,
            BlockExit::Call if start == block.target => {
                self.unit.call(block.next, start);
                clock
            }
            BlockExit::Return if self.unit.try_compressed_return(start) => {
                self.branches += 1;
                clock
            }
            BlockExit::Conditional if start == block.next || start == block.target => {
                if !self.unit.try_conditional_branch(start != block.next, start) {
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

    /// Computes the clock up to which transitions may be quiet. Call it after anything but a quiet transition.
    #[inline(always)]
    pub(crate) fn update_quiet_limit(&mut self) {
        self.quiet_until = match self.truth {
            ExecutedPathSource::None => self.unit.next_packet_clock().min(self.next_check),
            _ => 0,
        };
        // Without address ranges PacketEn changes only in the kernel and at window edges.
        if !self.unit.has_plain_branches() {
            self.track_packet_en();
        }
    }

    /// Counts the current block if it leads to `next` in a common way. Changes nothing and returns false otherwise.
    #[inline(always)]
    pub(crate) fn count_common_block(&mut self, next: &TranslationBlock) -> bool {
        let (block, start) = (self.block, next.start);
        let other = start != block.quiet_targets[0];
        if other & (start != block.quiet_targets[1]) {
            return false;
        }
        self.counters.increment_counter(block.counter_id, other);
        true
    }

    /// The same for indirect branches too, and for blocks that may be parts of others.
    #[inline(always)]
    pub(crate) fn count_less_common(&mut self, next: &TranslationBlock) -> bool {
        let block = self.block;
        if is_interrupted_inside(block, next) {
            return false;
        }
        match block.exit {
            BlockExit::Return | BlockExit::IndirectJump | BlockExit::IndirectCall => {
                self.counters.increment_counter(block.counter_id, false);
                true
            }
            _ => self.count_common_block(next),
        }
    }
}
