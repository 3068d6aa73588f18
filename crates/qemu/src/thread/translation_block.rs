//! A translation block of QEMU, and what is known about it before it runs.
//!
//! QEMU translates straight code up to a branch, a page end or an instruction limit. A block may be interrupted: by a
//! fault, or because QEMU needs exact state for an instruction, which it then runs as a block of its own. A block of
//! one instruction may therefore be the rest of a longer one; `SINGLE_INSTRUCTION` marks them, and
//! `is_interrupted_inside` decides.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering};

use rtit_truth::hash;
use rtit_x86::{CodeMode, InstructionClass};

const PAGE: u64 = 4096;
/// The vsyscall page. The kernel carries out calls into it; QEMU makes a block of one byte of each.
pub(crate) const VSYSCALL: u64 = 0xffff_ffff_ff60_0000;

/// How a block ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(crate) enum BlockExit {
    /// No block: the thread is not in user code.
    Out,
    Fall,
    Conditional,
    Jump,
    Call,
    IndirectJump,
    IndirectCall,
    Return,
    Far,
    Syscall,
    SoftInt,
    /// A REP string instruction; each iteration is a block.
    Repeat,
    /// A transfer from which no user program returns in a known way.
    Unsupported,
}

/// `TranslationBlock::marks`: a signal handler starts here.
pub(crate) const HANDLER_ENTRY: u8 = 1;
/// `TranslationBlock::marks`: an edge of the recording window is in the block.
pub(crate) const WINDOW_START: u8 = 4;
pub(crate) const WINDOW_STOP: u8 = 8;
/// `TranslationBlock::marks`: in the vsyscall page.
pub(crate) const IN_VSYSCALL: u8 = 2;
/// `TranslationBlock::marks`: one instruction, which may be the rest of an interrupted block.
pub(crate) const SINGLE_INSTRUCTION: u8 = 16;
/// `TranslationBlock::marks`: an atomic instruction, which may order the threads of the process.
pub(crate) const ORDERS_THREADS: u8 = 32;

/// An address at which no block starts.
const NO_ADDRESS: u64 = u64::MAX;
/// The `quiet_start` of a block with marks: no block leads there.
const HAS_MARKS: u64 = NO_ADDRESS - 1;

/// An instruction, for the path from instruction callbacks.
#[derive(Debug)]
pub(crate) struct InstructionStep {
    pub(crate) ip: u64,
    pub(crate) next: u64,
    /// A branch, which can jump to itself.
    pub(crate) branch: bool,
    /// Always transfers control; address filters check the target even if it is the next instruction.
    pub(crate) transfers: bool,
    /// INT n, INT3, INT1: never retires.
    pub(crate) interrupt: bool,
}

/// The fields that each execution needs come first, in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct TranslationBlock {
    pub(crate) start: u64,
    /// The address after the block.
    pub(crate) next: u64,
    /// Addresses of the next block for which the transition is quiet (`block_transitions`). When blocks are counted,
    /// also a call's target and an iteration.
    pub(crate) quiet_targets: [u64; 2],
    /// `start`, or `HAS_MARKS`.
    pub(crate) quiet_start: AtomicU64,
    /// When blocks are counted: the address of its counter in the first thread's table.
    pub(crate) counter: usize,
    /// Number of instructions.
    pub(crate) instructions: u32,
    /// Index of its counter in any table.
    pub(crate) counter_id: u32,
    pub(crate) exit: BlockExit,
    pub(crate) marks: AtomicU8,
    /// TNT bits: 1 for a conditional branch.
    pub(crate) results: u8,
    /// Its number in the arena. 0 if it has none, or if the block must be followed at once.
    pub(crate) ring_id: AtomicU32,
    /// The address of the last instruction.
    pub(crate) last: u64,
    /// The target of a direct branch.
    pub(crate) target: u64,
    /// Hash of all instruction addresses, and the factor for the hash of the path before them.
    pub(crate) hash: u64,
    pub(crate) hash_power: u64,
    /// When blocks are counted: the mapping that contains it.
    pub(crate) mapping: u32,
    /// Index of the first instruction that processors and decoders refuse although QEMU runs it; `instructions` if
    /// there is none.
    pub(crate) first_refused: u32,
    /// Offsets of the instructions from `start`.
    offsets: Vec<u16>,
    pub(crate) code: Vec<u8>,
    /// Filled only for the path from instruction callbacks.
    pub(crate) steps: Vec<InstructionStep>,
}

/// The block of a thread that runs no user code.
pub(crate) static OUTSIDE: TranslationBlock =
    TranslationBlock::without_instructions(BlockExit::Out);

impl TranslationBlock {
    const fn without_instructions(exit: BlockExit) -> TranslationBlock {
        TranslationBlock {
            start: 0,
            last: 0,
            next: 0,
            target: 0,
            quiet_start: AtomicU64::new(HAS_MARKS),
            counter: 0,
            instructions: 0,
            counter_id: 0,
            exit,
            marks: AtomicU8::new(0),
            results: 0,
            ring_id: AtomicU32::new(0),
            quiet_targets: [NO_ADDRESS; 2],
            hash: 0,
            hash_power: 1,
            mapping: 0,
            first_refused: u32::MAX,
            offsets: Vec::new(),
            code: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Creates a block in the vsyscall page, where no instruction retires.
    pub(crate) fn vsyscall_block(start: u64) -> TranslationBlock {
        TranslationBlock {
            start,
            last: start,
            next: start,
            marks: AtomicU8::new(IN_VSYSCALL),
            ..TranslationBlock::without_instructions(BlockExit::Out)
        }
    }

    /// Creates a block of instructions of these sizes and bytes. QEMU may list one more than it executes.
    pub(crate) fn new(start: u64, sizes: &[usize], code: &[u8], steps: bool) -> TranslationBlock {
        TranslationBlock::new_in_mode(start, sizes, code, steps, CodeMode::Bits64)
    }

    /// Creates a block as `new` does, of code of any width.
    pub(crate) fn new_in_mode(
        start: u64,
        sizes: &[usize],
        code: &[u8],
        steps: bool,
        mode: CodeMode,
    ) -> TranslationBlock {
        let count = executed_instruction_count(start, sizes);
        let mut offsets = Vec::with_capacity(count);
        let mut at = 0usize;
        let mut hash = 0;
        for size in sizes.iter().take(count) {
            offsets.push(at as u16);
            hash = hash::extend_hash(hash, start.wrapping_add(at as u64));
            at += size;
        }
        let last_offset = offsets.last().map_or(0, |&offset| usize::from(offset));
        let last = start.wrapping_add(last_offset as u64);
        let bytes = code.get(last_offset..at).unwrap_or_default();
        let decoded = rtit_x86::decode(bytes, last, mode).ok();
        let exit = decoded
            .as_ref()
            .map_or(BlockExit::Fall, block_exit_of_instruction);
        let code = code.get(..at).unwrap_or_default();
        let first_refused = first_undecodable_instruction(start, &offsets, code, mode);
        // How it continues after that instruction is unknown.
        let exit = if first_refused < count as u32 {
            BlockExit::Unsupported
        } else {
            exit
        };
        let next = start.wrapping_add(at as u64);
        let target = decoded.map_or(0, |instruction| instruction.target);
        let mut block = TranslationBlock {
            last,
            next,
            target,
            quiet_start: AtomicU64::new(if count == 1 { HAS_MARKS } else { start }),
            marks: AtomicU8::new(if count == 1 { SINGLE_INSTRUCTION } else { 0 }),
            results: u8::from(exit == BlockExit::Conditional),
            quiet_targets: match exit {
                BlockExit::Fall => [next, next],
                BlockExit::Conditional => [next, target],
                BlockExit::Jump => [target, target],
                _ => [NO_ADDRESS; 2],
            },
            instructions: count as u32,
            first_refused,
            start,
            hash,
            hash_power: hash::power_of_k(count as u64),
            offsets,
            code: code.into(),
            ..TranslationBlock::without_instructions(exit)
        };
        if steps {
            block.steps = block.instruction_steps();
        }
        block
    }

    /// Assigns a counter. When blocks are counted, more transitions are quiet.
    pub(crate) fn set_counter(&mut self, counter_id: u32, counter: usize) {
        (self.counter_id, self.counter) = (counter_id, counter);
        match self.exit {
            BlockExit::Call => self.quiet_targets = [self.target; 2],
            BlockExit::Repeat => self.quiet_targets = [self.next, self.last],
            _ => {}
        }
    }

    /// Allows a quiet start for a block that is never the rest of another.
    pub(crate) fn allow_quiet_start(&mut self) {
        *self.marks.get_mut() &= !SINGLE_INSTRUCTION;
        if *self.marks.get_mut() == 0 {
            *self.quiet_start.get_mut() = self.start;
        }
    }

    fn instruction_steps(&self) -> Vec<InstructionStep> {
        let ends = self.offsets.iter().skip(1).map(|&offset| u64::from(offset));
        let ends = ends.chain([self.next.wrapping_sub(self.start)]);
        let step = |(&offset, end): (&u16, u64)| {
            let ip = self.start.wrapping_add(u64::from(offset));
            let is_last = ip == self.last;
            InstructionStep {
                ip,
                next: self.start.wrapping_add(end),
                branch: is_last && !matches!(self.exit, BlockExit::Fall | BlockExit::Repeat),
                transfers: is_last && self.always_transfers(),
                interrupt: is_last && self.exit == BlockExit::SoftInt,
            }
        };
        self.offsets.iter().zip(ends).map(step).collect()
    }

    /// For a quiet transition to `next`, returns whether it is the second way (a taken branch); None otherwise.
    #[inline(always)]
    pub(crate) fn quiet_branch_to(&self, next: &TranslationBlock) -> Option<bool> {
        let other = next.start != self.quiet_targets[0];
        (!(other & (next.start != self.quiet_targets[1]))).then_some(other)
    }

    /// Returns whether the last instruction always transfers control, perhaps to the next instruction.
    #[inline(always)]
    pub(crate) fn always_transfers(&self) -> bool {
        !matches!(
            self.exit,
            BlockExit::Fall | BlockExit::Repeat | BlockExit::Conditional
        )
    }

    pub(crate) fn add_mark_bits(&self, mark: u8) {
        self.marks.fetch_or(mark, Ordering::Relaxed);
        self.quiet_start.store(HAS_MARKS, Ordering::Relaxed);
        self.leave_ring_path();
    }

    /// Requires that the block is followed at once.
    pub(crate) fn leave_ring_path(&self) {
        self.ring_id.store(0, Ordering::Relaxed);
    }

    /// Sets its number for the ring.
    pub(crate) fn set_ring_id(&mut self, number: u32) {
        if *self.marks.get_mut() & !SINGLE_INSTRUCTION == 0 {
            *self.ring_id.get_mut() = number;
        }
    }

    /// Removes quiet targets inside of the block itself. `follow_block_ids` does not check whether a block was
    /// interrupted, and a jump there might be that.
    pub(crate) fn drop_inner_targets(&mut self) {
        if self.target > self.start && self.target < self.last {
            self.quiet_targets[1] = self.quiet_targets[0];
            if self.exit == BlockExit::Jump {
                self.quiet_targets = [NO_ADDRESS; 2];
            }
        }
    }

    pub(crate) fn has_mark(&self, mark: u8) -> bool {
        self.marks.load(Ordering::Relaxed) & mark != 0
    }

    /// Returns the index of the instruction at `ip`.
    pub(crate) fn instruction_index_at(&self, ip: u64) -> Option<u32> {
        let offset = u16::try_from(ip.wrapping_sub(self.start)).ok()?;
        self.offsets
            .binary_search(&offset)
            .ok()
            .map(|index| index as u32)
    }

    /// Returns whether an instruction has a LOCK prefix or is an XCHG with memory.
    pub(crate) fn has_atomic_instruction(&self) -> bool {
        let starts = self.offsets.iter().map(|&offset| usize::from(offset));
        starts
            .filter_map(|start| self.code.get(start..))
            .any(is_atomic)
    }

    /// Returns the offset of an instruction from `start`.
    pub(crate) fn instruction_offset(&self, index: u32) -> u64 {
        self.offsets.get(index as usize).map_or(0, |&at| at.into())
    }

    /// Returns the addresses of all instructions but the last.
    pub(crate) fn inner_starts(&self) -> impl Iterator<Item = u64> + '_ {
        let all_but_last = self.offsets.iter().rev().skip(1);
        all_but_last.map(|&offset| self.start.wrapping_add(u64::from(offset)))
    }

    /// Returns the hash of the addresses of these instructions.
    pub(crate) fn hash_of_range(&self, part: Range<u32>) -> u64 {
        let part = part.start as usize..part.end as usize;
        let part = self.offsets.get(part).unwrap_or_default();
        part.iter().fold(0, |sum, &offset| {
            hash::extend_hash(sum, self.start.wrapping_add(u64::from(offset)))
        })
    }

    /// Returns whether user code can continue at `ip` after this block.
    pub(crate) fn may_continue_at(&self, ip: u64) -> bool {
        match self.exit {
            BlockExit::Fall | BlockExit::Repeat => ip == self.next,
            BlockExit::Conditional => ip == self.next || ip == self.target,
            BlockExit::Jump | BlockExit::Call => ip == self.target,
            BlockExit::IndirectJump
            | BlockExit::IndirectCall
            | BlockExit::Return
            | BlockExit::Far => true,
            BlockExit::Out | BlockExit::Syscall | BlockExit::SoftInt | BlockExit::Unsupported => {
                false
            }
        }
    }
}

/// Returns whether the code begins with an instruction that has a LOCK prefix, or with an XCHG with memory.
fn is_atomic(code: &[u8]) -> bool {
    let mut rest = code.iter().copied().skip_while(
        |&byte| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2 | 0xf3 | 0x40..=0x4f),
    );
    match rest.next() {
        Some(0xf0) => true,
        Some(0x86 | 0x87) => rest.next().is_some_and(|modrm| modrm < 0xc0),
        _ => false,
    }
}

/// Returns whether `next` is one of the instructions of `block`, which was interrupted there. A branch into the middle
/// of an instruction is no interruption.
#[inline(always)]
pub(super) fn is_interrupted_inside(block: &TranslationBlock, next: &TranslationBlock) -> bool {
    next.instructions == 1
        && next.start.wrapping_sub(block.start) < block.last.wrapping_sub(block.start)
        && block.instruction_index_at(next.start).is_some()
}

/// Returns the number of instructions that the block executes. QEMU up to 10 also lists an instruction that it has
/// taken back because it crosses a page and is not the first.
fn executed_instruction_count(start: u64, sizes: &[usize]) -> usize {
    let total: usize = sizes.iter().sum();
    let end = start.wrapping_add(total as u64).wrapping_sub(1);
    if sizes.len() > 1 && start / PAGE != end / PAGE {
        // The last instruction may also end exactly at the page's end; then all of them are in one page.
        sizes.len() - 1
    } else {
        sizes.len()
    }
}

/// Returns the index of the first instruction that a decoder does not decode as QEMU does: QEMU runs some that
/// processors refuse (LOCK where it is not allowed, reserved encodings of 8FH, C6H, C7H).
fn first_undecodable_instruction(start: u64, offsets: &[u16], code: &[u8], mode: CodeMode) -> u32 {
    let ends = offsets.iter().skip(1).map(|&offset| usize::from(offset));
    let ends = ends.chain([code.len()]);
    let known = |(&offset, end): (&u16, usize)| {
        let from = usize::from(offset);
        let bytes = code.get(from..end).unwrap_or_default();
        let found = rtit_x86::decode(bytes, start.wrapping_add(from as u64), mode);
        found.is_ok_and(|found| {
            let whole = usize::from(found.length) == bytes.len();
            whole
                && (end == code.len()
                    || matches!(
                        block_exit_of_instruction(&found),
                        BlockExit::Fall | BlockExit::Repeat
                    ))
        })
    };
    let unknown = offsets.iter().zip(ends).position(|part| !known(part));
    unknown.unwrap_or(offsets.len()) as u32
}

fn block_exit_of_instruction(instruction: &rtit_x86::Instruction) -> BlockExit {
    match instruction.class {
        InstructionClass::Conditional => BlockExit::Conditional,
        InstructionClass::Jump => BlockExit::Jump,
        InstructionClass::Call => BlockExit::Call,
        InstructionClass::IndirectJump => BlockExit::IndirectJump,
        InstructionClass::IndirectCall => BlockExit::IndirectCall,
        InstructionClass::Return => BlockExit::Return,
        InstructionClass::FarTransfer => BlockExit::Far,
        InstructionClass::Syscall => BlockExit::Syscall,
        InstructionClass::SoftwareInterrupt => BlockExit::SoftInt,
        InstructionClass::VmEntry | InstructionClass::XBegin => BlockExit::Unsupported,
        _ if instruction.repeats => BlockExit::Repeat,
        _ => BlockExit::Fall,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_finds_its_instructions_and_targets() {
        // nop; nop word; je .+2
        let block =
            TranslationBlock::new(0x1000, &[1, 2, 2], &[0x90, 0x66, 0x90, 0x74, 0x02], false);
        assert_eq!(
            (block.last, block.next, block.target, block.instructions),
            (0x1003, 0x1005, 0x1007, 3)
        );
        assert_eq!(block.exit, BlockExit::Conditional);
        assert_eq!(
            [0x1000, 0x1001, 0x1002, 0x1003].map(|ip| block.instruction_index_at(ip)),
            [Some(0), Some(1), None, Some(2)]
        );
        assert_eq!(block.hash_of_range(0..3), block.hash);
        assert!(
            block.may_continue_at(0x1005)
                && block.may_continue_at(0x1007)
                && !block.may_continue_at(0x1000)
        );
    }

    #[test]
    fn block_knows_its_atomic_instructions() {
        let cases: [(&[u8], bool); 7] = [
            (&[0xf0, 0x48, 0x0f, 0xb1, 0x0f], true), // lock cmpxchg [rdi], rcx
            (&[0x66, 0xf0, 0xff, 0x07], true),       // lock inc word [rdi]
            (&[0x48, 0x87, 0x07], true),             // xchg [rdi], rax
            (&[0x86, 0x07], true),                   // xchg [rdi], al
            (&[0x48, 0x87, 0xc7], false),            // xchg rdi, rax
            (&[0x48, 0x89, 0x07], false),            // mov [rdi], rax
            (&[0xb8, 0xf0, 0x87, 0x07, 0x00], false), // mov eax, 0x787f0
        ];
        for (code, expected) in cases {
            let block = TranslationBlock::new(0x1000, &[code.len()], code, false);
            assert_eq!(block.has_atomic_instruction(), expected, "{code:02x?}");
        }
    }

    #[test]
    fn instruction_across_a_page_end_does_not_belong_to_the_block() {
        let nops = [0x90, 0x66, 0x90];
        assert_eq!(
            TranslationBlock::new(0x1ffe, &[1, 2], &nops, false).instructions,
            1
        );
        assert_eq!(
            TranslationBlock::new(0x1ffd, &[1, 2], &nops, false).instructions,
            2
        );
        assert_eq!(
            TranslationBlock::new(0x1fff, &[2], &nops[1..], false).instructions,
            1
        );
    }

    #[test]
    fn branch_into_its_own_block_is_not_quiet_in_the_ring() {
        // nop; nop; je .-3 or jmp .-3
        for (last, quiet_targets) in [(0x74, [0x1004; 2]), (0xeb, [NO_ADDRESS; 2])] {
            let mut block =
                TranslationBlock::new(0x1000, &[1, 1, 2], &[0x90, 0x90, last, 0xfd], false);
            assert_eq!((block.target, block.quiet_targets[1]), (0x1001, 0x1001));
            block.drop_inner_targets();
            assert_eq!(block.quiet_targets, quiet_targets);
        }
    }

    #[test]
    fn branch_into_the_middle_of_an_instruction_is_no_interruption() {
        // nop; mov eax, 0x90909090; jne 0x1002
        let code = [0x90, 0xb8, 0x90, 0x90, 0x90, 0x90, 0x75, 0xfa];
        let block = TranslationBlock::new(0x1000, &[1, 5, 2], &code, false);
        assert_eq!(block.target, 0x1002);
        let alone = |start| TranslationBlock::new(start, &[1], &[0x90], false);
        let broken_off =
            [0x1001, 0x1002, 0x1006].map(|start| is_interrupted_inside(&block, &alone(start)));
        assert_eq!(broken_off, [true, false, false]);
    }

    #[test]
    fn first_refused_instruction_is_found() {
        // lock nop; nop
        let block = TranslationBlock::new(0x1000, &[2, 1], &[0xf0, 0x90, 0x90], false);
        assert_eq!(
            (block.first_refused, block.exit),
            (0, BlockExit::Unsupported)
        );
        // nop; mov byte [rax], 1 with a reserved field
        let block = TranslationBlock::new(0x1000, &[1, 3], &[0x90, 0xc6, 0x08, 1], false);
        assert_eq!(
            (block.first_refused, block.exit),
            (1, BlockExit::Unsupported)
        );
        let block = TranslationBlock::new(0x1000, &[1, 3], &[0x90, 0xc6, 0x00, 1], false);
        assert_eq!((block.first_refused, block.exit), (2, BlockExit::Fall));
    }

    #[test]
    fn only_the_last_instruction_is_a_branch_step() {
        let block = TranslationBlock::new(0x1000, &[1, 2], &[0x90, 0xeb, 0xfd], true);
        let steps: Vec<_> = block
            .steps
            .iter()
            .map(|step| (step.ip, step.next, step.branch))
            .collect();
        assert_eq!(steps, [(0x1000, 0x1001, false), (0x1001, 0x1003, true)]);
        assert_eq!(block.target, 0x1000);
    }
}
