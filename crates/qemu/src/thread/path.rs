//! What the thread executed, as records of a truth file.
//!
//! Runs are joined, up to as many instructions as the recorder asked for: the hash does not depend on where a path is
//! cut. A joined run ends where control was transferred, so that the decoded path has a boundary there too, or where
//! something is sent, so that a killed thread's truth reaches as far as its packets.

use std::ops::Range;

use rtit_truth::hash;

use crate::thread::block::{Block, Step};

/// From where the truth comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Truth {
    None,
    /// From the blocks, as the packets.
    Blocks,
    /// From a callback of its own at each instruction.
    Instructions,
    /// No path is kept: it is counted how often each block ran (`tally`).
    Counts,
}

impl Truth {
    /// The recorder gets records of a truth file.
    pub(crate) fn is_told(self) -> bool {
        matches!(self, Truth::Blocks | Truth::Instructions)
    }
}

const THREAD: u32 = 1;
const RUNS: u32 = 2;
const END: u32 = 4;
const RUN: usize = 24;

/// A thread's chain over everything, and runs that wait to be sent.
#[derive(Default)]
pub(crate) struct Path {
    instructions: u64,
    hash: u64,
    start: u64,
    run_instructions: u32,
    run_hash: u64,
    /// Runs that wait, without the record's head.
    runs: Vec<u8>,
    /// Records before those.
    records: Vec<u8>,
    /// Instructions from which on a run ends at the next transfer.
    joined: u32,
    /// What was added last transferred control.
    transferred: bool,
}

impl Path {
    /// Runs of `joined` instructions, or more up to a transfer. Address filters look where a run begins: they need 1.
    pub(crate) fn new(joined: u32) -> Path {
        Path {
            joined,
            ..Path::default()
        }
    }

    /// Goes on from `(instructions, hash)`; nothing has been executed yet.
    pub(crate) fn continue_from(&mut self, chain: (u64, u64)) {
        (self.instructions, self.hash) = chain;
    }

    /// User code is entered from outside.
    pub(crate) fn enter(&mut self) {
        if self.joined == 1 {
            self.end_run();
        }
    }

    /// A record of another kind goes between what was executed and what will be.
    pub(crate) fn note(&mut self, record: &[u8], tid: u32) {
        self.records = self.take(tid);
        self.records.extend(record);
    }

    /// Instructions and hash so far.
    pub(crate) fn chain(&mut self) -> (u64, u64) {
        self.end_run();
        (self.instructions, self.hash)
    }

    /// All instructions of a block retired, of which `done` have been added. `transfers`: the next one is not behind it.
    #[inline(always)]
    pub(crate) fn block(&mut self, block: &Block, done: u32, transfers: bool) {
        if done == 0 {
            self.add(block.start, block.count, block.hash, block.power);
        } else {
            self.part(block, done..block.count);
        }
        self.transfer(transfers);
    }

    /// These instructions of a block retired.
    pub(crate) fn part(&mut self, block: &Block, part: Range<u32>) {
        self.transferred = false;
        let count = part.end - part.start;
        self.add(
            block.start + block.offset(part.start),
            count,
            block.hash_of(part),
            hash::power(count.into()),
        );
    }

    pub(super) fn step(&mut self, step: &Step, transfers: bool) {
        self.add(step.ip, 1, hash::mix(step.ip), hash::K);
        self.transfer(transfers);
    }

    #[inline(always)]
    fn transfer(&mut self, transfers: bool) {
        self.transferred = transfers;
        if transfers && self.run_instructions >= self.joined {
            self.end_run();
        }
    }

    #[inline(always)]
    fn add(&mut self, start: u64, count: u32, hash: u64, power: u64) {
        if self.run_instructions == 0 {
            self.start = start;
        }
        self.run_hash = self.run_hash.wrapping_mul(power).wrapping_add(hash);
        self.run_instructions += count;
    }

    fn end_run(&mut self) {
        if self.run_instructions == 0 {
            return;
        }
        let (count, run_hash) = (self.run_instructions, self.run_hash);
        self.runs.extend(self.start.to_le_bytes());
        self.runs.extend(count.to_le_bytes());
        self.runs.extend([0; 4]);
        self.runs.extend(run_hash.to_le_bytes());
        self.hash = hash::combine(self.hash, count.into(), run_hash);
        self.instructions += u64::from(count);
        (self.run_instructions, self.run_hash) = (0, 0);
    }

    /// The run ends here: a decoder may start at the next instruction.
    #[cold]
    pub(crate) fn cut(&mut self) {
        self.end_run();
    }

    /// So much waits that it should be sent.
    pub(crate) fn is_long(&self) -> bool {
        self.runs.len() >= 1024 * RUN
    }

    /// The decoded path has a boundary here: a run of the truth that ends can be compared.
    pub(crate) fn may_end(&self) -> bool {
        self.run_instructions == 0 || self.transferred
    }

    /// The records of all that waits.
    pub(crate) fn take(&mut self, tid: u32) -> Vec<u8> {
        self.end_run();
        let mut records = std::mem::take(&mut self.records);
        records.reserve(self.runs.len() + 16);
        for runs in self.runs.chunks(2048 * RUN) {
            let head = [RUNS, 8 + runs.len() as u32, tid, (runs.len() / RUN) as u32];
            records.extend(head.iter().flat_map(|word| word.to_le_bytes()));
            records.extend(runs);
        }
        self.runs.clear();
        records
    }

    pub(crate) fn thread(tid: u32, pid: u32) -> Vec<u8> {
        [THREAD, 8, tid, pid]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }

    pub(crate) fn end(&mut self, tid: u32, status: u32) -> Vec<u8> {
        let mut records = self.take(tid);
        records.extend(
            [END, 24, tid, status]
                .iter()
                .flat_map(|word| word.to_le_bytes()),
        );
        records.extend(self.instructions.to_le_bytes());
        records.extend(self.hash.to_le_bytes());
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loop_block() -> &'static Block {
        // nop; jmp to the nop
        Box::leak(Box::new(Block::new(
            0x1000,
            &[1, 2],
            &[0x90, 0xeb, 0xfd],
            true,
        )))
    }

    #[test]
    fn runs_end_at_transfers_and_where_they_are_sent() {
        let cases: [(u32, &[u8]); 3] = [(1, &[2, 2, 2, 2, 1]), (3, &[4, 4, 1]), (100, &[9])];
        for (joined, lengths) in cases {
            let mut path = Path::new(joined);
            (0..4).for_each(|_| path.block(loop_block(), 0, true));
            path.part(loop_block(), 0..1);
            let records = path.take(7);
            let found: Vec<u8> = records[16..].chunks(RUN).map(|run| run[8]).collect();
            assert_eq!(found, lengths);
        }
    }

    #[test]
    fn runs_are_not_to_end_between_transfers() {
        let mut path = Path::new(100);
        assert!(path.may_end());
        path.block(loop_block(), 0, true);
        assert!(path.may_end());
        path.block(loop_block(), 0, false);
        assert!(!path.may_end());
        path.block(loop_block(), 0, true);
        path.part(loop_block(), 0..1);
        assert!(!path.may_end());
        path.cut();
        assert!(path.may_end());
    }

    #[test]
    fn what_waits_is_taken_as_records() {
        let mut path = Path::new(2048);
        path.block(loop_block(), 0, true);
        let records = path.take(7);
        assert_eq!(records.len(), 16 + RUN);
        assert_eq!(
            records[..16],
            [2, 0, 0, 0, 32, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0]
        );
        assert!(path.take(7).is_empty());
    }
}
