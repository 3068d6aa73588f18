//! The executed path of a thread, as records of a truth file.
//!
//! The path is a sequence of runs, each with a start, a number of instructions and a hash of their addresses. Runs are
//! joined up to a minimum number of instructions; the hash of the whole does not depend on the cuts. A joined run ends
//! at a control transfer, where the decoded path has a boundary too, or where it is sent, so that the path of a killed
//! thread reaches as far as its packets.
//!
//! The path comes from blocks, or, as an independent check, from a callback at each instruction (`StepTracker`).

use std::ops::Range;

use rtit_truth::format::{END, RUNS, RUN_SIZE, THREAD};
use rtit_truth::hash;

use crate::thread::translation_block::{InstructionStep, TranslationBlock};

/// The source of the executed path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExecutedPathSource {
    None,
    /// From the blocks, as the packets.
    Blocks,
    /// From a callback at each instruction.
    Instructions,
    /// No path: executions of blocks are counted (`thread_counters`).
    Counts,
}

impl ExecutedPathSource {
    /// Returns whether the recorder gets records of a truth file.
    pub(crate) fn is_truth_written(self) -> bool {
        matches!(
            self,
            ExecutedPathSource::Blocks | ExecutedPathSource::Instructions
        )
    }
}

/// Bytes of a run.
const RUN: usize = RUN_SIZE as usize;

/// The totals of a thread, and the runs that have not been sent.
#[derive(Default)]
pub(crate) struct ExecutedPath {
    instructions: u64,
    hash: u64,
    start: u64,
    run_instructions: u32,
    run_hash: u64,
    /// Unsent runs, without the head of a record.
    runs: Vec<u8>,
    /// Unsent records that precede those runs.
    records: Vec<u8>,
    /// Instructions from which on a run ends at the next transfer.
    min_run: u32,
    /// The last addition ended with a transfer.
    transferred: bool,
}

impl ExecutedPath {
    /// Creates an empty path. Address filters are checked where a run begins, which requires `min_run` 1.
    pub(crate) fn new(min_run: u32) -> ExecutedPath {
        ExecutedPath {
            min_run,
            ..ExecutedPath::default()
        }
    }

    /// Continues from a number of instructions and their hash, before anything is executed.
    pub(crate) fn continue_hash(&mut self, chain: (u64, u64)) {
        (self.instructions, self.hash) = chain;
    }

    /// Starts a run at an entry into user code.
    pub(crate) fn enter_user_code(&mut self) {
        if self.min_run == 1 {
            self.end_run();
        }
    }

    /// Inserts a record of another type at this point.
    pub(crate) fn insert_record(&mut self, record: &[u8], tid: u32) {
        self.records = self.take_records(tid);
        self.records.extend(record);
    }

    /// Returns the number of instructions and their hash.
    pub(crate) fn count_and_hash(&mut self) -> (u64, u64) {
        self.end_run();
        (self.instructions, self.hash)
    }

    /// Adds a retired block, of which `done` instructions have been added. `transfers`: the next instruction does not
    /// follow it in memory.
    #[inline(always)]
    pub(crate) fn add_block(&mut self, block: &TranslationBlock, done: u32, transfers: bool) {
        if done == 0 {
            self.extend_run(
                block.start,
                block.instructions,
                block.hash,
                block.hash_power,
            );
        } else {
            self.add_part(block, done..block.instructions);
        }
        self.end_run_at_transfer(transfers);
    }

    /// Adds a range of instructions of a block.
    pub(crate) fn add_part(&mut self, block: &TranslationBlock, part: Range<u32>) {
        self.transferred = false;
        let count = part.end - part.start;
        self.extend_run(
            block.start + block.instruction_offset(part.start),
            count,
            block.hash_of_range(part),
            hash::power_of_k(count.into()),
        );
    }

    pub(super) fn add_step(&mut self, step: &InstructionStep, transfers: bool) {
        self.extend_run(step.ip, 1, hash::mix_address(step.ip), hash::K);
        self.end_run_at_transfer(transfers);
    }

    #[inline(always)]
    fn end_run_at_transfer(&mut self, transfers: bool) {
        self.transferred = transfers;
        if transfers && self.run_instructions >= self.min_run {
            self.end_run();
        }
    }

    #[inline(always)]
    fn extend_run(&mut self, start: u64, count: u32, hash: u64, power: u64) {
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
        self.hash = hash::combine_hashes(self.hash, count.into(), run_hash);
        self.instructions += u64::from(count);
        (self.run_instructions, self.run_hash) = (0, 0);
    }

    /// Ends the run: a decoder may start at the next instruction.
    #[cold]
    pub(crate) fn cut_run(&mut self) {
        self.end_run();
    }

    /// Returns whether so much has gathered that it should be sent.
    pub(crate) fn should_send_records(&self) -> bool {
        self.runs.len() >= 1024 * RUN
    }

    /// Returns whether the decoded path has a boundary here, so that a run that ends here can be compared.
    pub(crate) fn is_at_boundary(&self) -> bool {
        self.run_instructions == 0 || self.transferred
    }

    /// Ends the run and returns all unsent records.
    pub(crate) fn take_records(&mut self, tid: u32) -> Vec<u8> {
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

    pub(crate) fn thread_record(tid: u32, pid: u32) -> Vec<u8> {
        [THREAD, 8, tid, pid]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }

    pub(crate) fn end_records(&mut self, tid: u32, status: u32) -> Vec<u8> {
        let mut records = self.take_records(tid);
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

/// Builds a path from a callback before each instruction.
#[derive(Default)]
pub(crate) struct StepTracker {
    last: Option<&'static InstructionStep>,
}

impl StepTracker {
    /// Adds the previous instruction. An instruction that comes twice in a row was restarted, or is an iteration of a
    /// REP instruction; it counts once, unless it is a branch to itself.
    pub(crate) fn begin_step(&mut self, step: &'static InstructionStep, path: &mut ExecutedPath) {
        if let Some(last) = self.last {
            if last.ip != step.ip || last.branch {
                retire_step(last, step.ip, path);
            }
        }
        self.last = Some(step);
    }

    /// Adds the last instruction, which left user code.
    pub(crate) fn leave_after_step(&mut self, path: &mut ExecutedPath) {
        if let Some(last) = self.last.take() {
            retire_step(last, last.ip, path);
        }
    }

    /// Adds the last instruction, if it retired before user code was left at `ip`; `faulted`: the instruction at `ip`
    /// had begun.
    pub(crate) fn interrupt_before(&mut self, ip: u64, faulted: bool, path: &mut ExecutedPath) {
        if let Some(last) = self.last.take() {
            if last.ip != ip || (last.branch && !faulted) {
                retire_step(last, ip, path);
            }
        }
    }

    /// Drops the last instruction: it is unknown where user code was left.
    pub(crate) fn forget_step(&mut self) {
        self.last = None;
    }
}

fn retire_step(step: &InstructionStep, next: u64, path: &mut ExecutedPath) {
    if !step.interrupt {
        path.add_step(step, step.next != next || step.transfers);
    }
}

#[cfg(test)]
mod tests {
    use crate::thread::translation_block::TranslationBlock;

    use super::*;

    fn loop_block() -> &'static TranslationBlock {
        // nop; jmp to the nop
        Box::leak(Box::new(TranslationBlock::new(
            0x1000,
            &[1, 2],
            &[0x90, 0xeb, 0xfd],
            true,
        )))
    }

    #[test]
    fn runs_end_at_transfers_and_when_taken() {
        let cases: [(u32, &[u8]); 3] = [(1, &[2, 2, 2, 2, 1]), (3, &[4, 4, 1]), (100, &[9])];
        for (min_run, lengths) in cases {
            let mut path = ExecutedPath::new(min_run);
            (0..4).for_each(|_| path.add_block(loop_block(), 0, true));
            path.add_part(loop_block(), 0..1);
            let records = path.take_records(7);
            let found: Vec<u8> = records[16..].chunks(RUN).map(|run| run[8]).collect();
            assert_eq!(found, lengths);
        }
    }

    #[test]
    fn path_is_at_a_boundary_only_after_transfers() {
        let mut path = ExecutedPath::new(100);
        assert!(path.is_at_boundary());
        path.add_block(loop_block(), 0, true);
        assert!(path.is_at_boundary());
        path.add_block(loop_block(), 0, false);
        assert!(!path.is_at_boundary());
        path.add_block(loop_block(), 0, true);
        path.add_part(loop_block(), 0..1);
        assert!(!path.is_at_boundary());
        path.cut_run();
        assert!(path.is_at_boundary());
    }

    #[test]
    fn unsent_runs_are_taken_as_records() {
        let mut path = ExecutedPath::new(2048);
        path.add_block(loop_block(), 0, true);
        let records = path.take_records(7);
        assert_eq!(records.len(), 16 + RUN);
        assert_eq!(
            records[..16],
            [2, 0, 0, 0, 32, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0]
        );
        assert!(path.take_records(7).is_empty());
    }

    #[test]
    fn blocks_and_steps_give_the_same_hash() {
        let block = loop_block();
        let (mut by_block, mut by_step) = (ExecutedPath::new(2048), ExecutedPath::new(2048));
        let mut steps = StepTracker::default();
        for _ in 0..5000 {
            by_block.add_block(block, 0, true);
            block
                .steps
                .iter()
                .for_each(|step| steps.begin_step(step, &mut by_step));
        }
        by_block.add_part(block, 0..1);
        steps.begin_step(&block.steps[0], &mut by_step);
        steps.begin_step(&block.steps[1], &mut by_step);
        steps.interrupt_before(0x1001, true, &mut by_step);
        assert_eq!(by_block.count_and_hash(), by_step.count_and_hash());
        assert_eq!(by_block.count_and_hash().0, 10_001);
    }
}
