//! What is known of a translation block before it runs.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering};

use rtit_truth::hash;
use rtit_x86::{Class, Mode};

const PAGE: u64 = 4096;
/// The page whose calls the kernel carries out itself; QEMU makes a block of one byte of each.
pub(crate) const VSYSCALL: u64 = 0xffff_ffff_ff60_0000;

/// How a block is left when its last instruction is through.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Not running user code: before the first instruction, in the kernel.
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
    /// The last instruction is a REP string instruction; each iteration is a block.
    Repeat,
    /// A transfer that no user program comes back from in a way we know.
    Strange,
}

/// `Block::marks`: a signal handler starts here.
pub(crate) const HANDLER: u8 = 1;
/// `Block::marks`: the recording is traced from somewhere in it, or up to there.
pub(crate) const START: u8 = 4;
pub(crate) const STOP: u8 = 8;
/// `Block::marks`: it is in the vsyscall page.
pub(crate) const IN_VSYSCALL: u8 = 2;
/// `Block::marks`: one instruction, where a longer block may have been broken off.
pub(crate) const ALONE: u8 = 16;

/// No block starts there.
const NOWHERE: u64 = u64::MAX;
/// The key of a block that has marks: nothing leads there.
const MARKED: u64 = NOWHERE - 1;

/// One instruction, for the truth that looks at each.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) ip: u64,
    pub(crate) next: u64,
    /// It can be its own successor by transferring control to itself.
    pub(crate) branch: bool,
    /// Address filters look at what comes next, wherever it is.
    pub(crate) transfers: bool,
    /// INT n, INT3, INT1: never counts.
    pub(crate) interrupt: bool,
}

/// The fields that each execution needs come first, in one line of the cache.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Block {
    pub(crate) start: u64,
    /// The address after it.
    pub(crate) next: u64,
    /// Where it leads, if nothing but a TNT can come of that; where blocks are counted also by a call or an iteration.
    pub(crate) leads: [u64; 2],
    /// `start`, or nowhere if there are marks.
    pub(crate) key: AtomicU64,
    /// Where blocks are counted, the address of its cell in the first thread's table.
    pub(crate) cell: usize,
    /// Instructions.
    pub(crate) count: u32,
    /// Of its cell in any table.
    pub(crate) number: u32,
    pub(crate) exit: Exit,
    pub(crate) marks: AtomicU8,
    /// Results for the TNT buffer.
    pub(crate) results: u8,
    /// Its number in the arena; 0 if it has none, or marks that its thread looks at before it runs.
    pub(crate) entry: AtomicU32,
    /// Address of the last instruction.
    pub(crate) last: u64,
    /// Of a direct branch.
    pub(crate) target: u64,
    /// Hash of all addresses, and the factor for what came before it.
    pub(crate) hash: u64,
    pub(crate) power: u64,
    /// The mapping that it is in, where blocks are counted.
    pub(crate) mapping: u32,
    /// Which of its instructions is none to a decoder, though QEMU may run it; `count` if all are.
    pub(crate) refused: u32,
    /// Where its instructions start, in bytes from `start`.
    offsets: Vec<u16>,
    pub(crate) code: Vec<u8>,
    /// Empty unless each instruction is looked at.
    pub(crate) steps: Vec<Step>,
}

/// Where a thread is that runs no user code.
pub(crate) static OUT: Block = Block::nowhere(Exit::Out);

impl Block {
    const fn nowhere(exit: Exit) -> Block {
        Block {
            start: 0,
            last: 0,
            next: 0,
            target: 0,
            key: AtomicU64::new(MARKED),
            cell: 0,
            count: 0,
            number: 0,
            exit,
            marks: AtomicU8::new(0),
            results: 0,
            entry: AtomicU32::new(0),
            leads: [NOWHERE; 2],
            hash: 0,
            power: 1,
            mapping: 0,
            refused: u32::MAX,
            offsets: Vec::new(),
            code: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// A block in the vsyscall page: no instruction retires there.
    pub(crate) fn vsyscall(start: u64) -> Block {
        Block {
            start,
            last: start,
            next: start,
            marks: AtomicU8::new(IN_VSYSCALL),
            ..Block::nowhere(Exit::Out)
        }
    }

    /// A block of instructions of these sizes, whose bytes are `code`. `count` of them may be less than QEMU listed.
    pub(crate) fn new(start: u64, sizes: &[usize], code: &[u8], steps: bool) -> Block {
        let count = executed(start, sizes);
        let mut offsets = Vec::with_capacity(count);
        let mut at = 0usize;
        let mut hash = 0;
        for size in sizes.iter().take(count) {
            offsets.push(at as u16);
            hash = hash::extend(hash, start.wrapping_add(at as u64));
            at += size;
        }
        let last_offset = offsets.last().map_or(0, |&offset| usize::from(offset));
        let last = start.wrapping_add(last_offset as u64);
        let bytes = code.get(last_offset..at).unwrap_or_default();
        let decoded = rtit_x86::decode(bytes, last, Mode::Bits64).ok();
        let exit = decoded.as_ref().map_or(Exit::Fall, exit_of);
        let code = code.get(..at).unwrap_or_default();
        let refused = refused(start, &offsets, code);
        // What passes it cannot be told.
        let exit = if refused < count as u32 {
            Exit::Strange
        } else {
            exit
        };
        let next = start.wrapping_add(at as u64);
        let target = decoded.map_or(0, |instruction| instruction.target);
        let mut block = Block {
            last,
            next,
            target,
            key: AtomicU64::new(if count == 1 { MARKED } else { start }),
            marks: AtomicU8::new(if count == 1 { ALONE } else { 0 }),
            results: u8::from(exit == Exit::Conditional),
            leads: match exit {
                Exit::Fall => [next, next],
                Exit::Conditional => [next, target],
                Exit::Jump => [target, target],
                _ => [NOWHERE; 2],
            },
            count: count as u32,
            refused,
            start,
            hash,
            power: hash::power(count as u64),
            offsets,
            code: code.into(),
            ..Block::nowhere(exit)
        };
        if steps {
            block.steps = block.make_steps();
        }
        block
    }

    /// It has a cell, and what leads from it makes no packets.
    pub(crate) fn count_as(&mut self, number: u32, cell: usize) {
        (self.number, self.cell) = (number, cell);
        match self.exit {
            Exit::Call => self.leads = [self.target; 2],
            Exit::Repeat => self.leads = [self.next, self.last],
            _ => {}
        }
    }

    /// Of one instruction, and where no other block can be broken off.
    pub(crate) fn stand_alone(&mut self) {
        *self.marks.get_mut() &= !ALONE;
        if *self.marks.get_mut() == 0 {
            *self.key.get_mut() = self.start;
        }
    }

    fn make_steps(&self) -> Vec<Step> {
        let ends = self.offsets.iter().skip(1).map(|&offset| u64::from(offset));
        let ends = ends.chain([self.next.wrapping_sub(self.start)]);
        let step = |(&offset, end): (&u16, u64)| {
            let ip = self.start.wrapping_add(u64::from(offset));
            let is_last = ip == self.last;
            Step {
                ip,
                next: self.start.wrapping_add(end),
                branch: is_last && !matches!(self.exit, Exit::Fall | Exit::Repeat),
                transfers: is_last && self.transfers(),
                interrupt: is_last && self.exit == Exit::SoftInt,
            }
        };
        self.offsets.iter().zip(ends).map(step).collect()
    }

    /// Whether it has led there by a branch that is taken, as most do; None if there is more to it.
    #[inline(always)]
    pub(crate) fn leads_to(&self, next: &Block) -> Option<bool> {
        let other = next.start != self.leads[0];
        (!(other & (next.start != self.leads[1]))).then_some(other)
    }

    /// Its last instruction is a branch that is always taken: to the next instruction perhaps.
    #[inline(always)]
    pub(crate) fn transfers(&self) -> bool {
        !matches!(self.exit, Exit::Fall | Exit::Repeat | Exit::Conditional)
    }

    pub(crate) fn mark(&self, mark: u8) {
        self.marks.fetch_or(mark, Ordering::Relaxed);
        self.key.store(MARKED, Ordering::Relaxed);
        self.step_aside();
    }

    /// Its thread takes a look before it runs.
    pub(crate) fn step_aside(&self) {
        self.entry.store(0, Ordering::Relaxed);
    }

    /// The number that a ring has for it.
    pub(crate) fn enter_as(&mut self, number: u32) {
        if *self.marks.get_mut() & !ALONE == 0 {
            *self.entry.get_mut() = number;
        }
    }

    /// Who follows a ring does not ask whether a block was broken off. What a branch into its own block's inside leads
    /// to may be that as well, and takes the longer way.
    pub(crate) fn lead_outside(&mut self) {
        if self.target > self.start && self.target < self.last {
            self.leads[1] = self.leads[0];
            if self.exit == Exit::Jump {
                self.leads = [NOWHERE; 2];
            }
        }
    }

    pub(crate) fn marked(&self, mark: u8) -> bool {
        self.marks.load(Ordering::Relaxed) & mark != 0
    }

    /// Which of its instructions is at `ip`.
    pub(crate) fn index_of(&self, ip: u64) -> Option<u32> {
        let offset = u16::try_from(ip.wrapping_sub(self.start)).ok()?;
        self.offsets
            .binary_search(&offset)
            .ok()
            .map(|index| index as u32)
    }

    /// Where an instruction starts, in bytes from `start`.
    pub(crate) fn offset(&self, index: u32) -> u64 {
        self.offsets.get(index as usize).map_or(0, |&at| at.into())
    }

    /// The addresses of its instructions but for the last.
    pub(crate) fn inner(&self) -> impl Iterator<Item = u64> + '_ {
        let all_but_last = self.offsets.iter().rev().skip(1);
        all_but_last.map(|&offset| self.start.wrapping_add(u64::from(offset)))
    }

    /// Hash of these instructions' addresses.
    pub(crate) fn hash_of(&self, part: Range<u32>) -> u64 {
        let part = part.start as usize..part.end as usize;
        let part = self.offsets.get(part).unwrap_or_default();
        part.iter().fold(0, |sum, &offset| {
            hash::extend(sum, self.start.wrapping_add(u64::from(offset)))
        })
    }

    /// Whether user code that finished this block can go on at `ip`.
    pub(crate) fn may_reach(&self, ip: u64) -> bool {
        match self.exit {
            Exit::Fall | Exit::Repeat => ip == self.next,
            Exit::Conditional => ip == self.next || ip == self.target,
            Exit::Jump | Exit::Call => ip == self.target,
            Exit::IndirectJump | Exit::IndirectCall | Exit::Return | Exit::Far => true,
            Exit::Out | Exit::Syscall | Exit::SoftInt | Exit::Strange => false,
        }
    }
}

/// A block of one of the last one's instructions: that one was broken off there. A branch may also lead into the
/// middle of an instruction.
#[inline(always)]
pub(super) fn breaks_off(block: &Block, next: &Block) -> bool {
    next.count == 1
        && next.start.wrapping_sub(block.start) < block.last.wrapping_sub(block.start)
        && block.index_of(next.start).is_some()
}

/// QEMU up to 10 lists an instruction that it took back, because it crosses into another page and is not the first.
fn executed(start: u64, sizes: &[usize]) -> usize {
    let total: usize = sizes.iter().sum();
    let end = start.wrapping_add(total as u64).wrapping_sub(1);
    if sizes.len() > 1 && start / PAGE != end / PAGE {
        // It may also be the last one before a page that starts right after it: then all are in one page.
        sizes.len() - 1
    } else {
        sizes.len()
    }
}

/// The first instruction that a decoder does not know as QEMU does: processors refuse some that it runs (LOCK where it
/// has no place, reserved encodings of 8FH, C6H, C7H).
fn refused(start: u64, offsets: &[u16], code: &[u8]) -> u32 {
    let ends = offsets.iter().skip(1).map(|&offset| usize::from(offset));
    let ends = ends.chain([code.len()]);
    let known = |(&offset, end): (&u16, usize)| {
        let from = usize::from(offset);
        let bytes = code.get(from..end).unwrap_or_default();
        let found = rtit_x86::decode(bytes, start.wrapping_add(from as u64), Mode::Bits64);
        found.is_ok_and(|found| {
            let whole = usize::from(found.length) == bytes.len();
            whole && (end == code.len() || matches!(exit_of(&found), Exit::Fall | Exit::Repeat))
        })
    };
    let unknown = offsets.iter().zip(ends).position(|part| !known(part));
    unknown.unwrap_or(offsets.len()) as u32
}

fn exit_of(instruction: &rtit_x86::Instruction) -> Exit {
    match instruction.class {
        Class::Conditional => Exit::Conditional,
        Class::Jump => Exit::Jump,
        Class::Call => Exit::Call,
        Class::IndirectJump => Exit::IndirectJump,
        Class::IndirectCall => Exit::IndirectCall,
        Class::Return => Exit::Return,
        Class::FarTransfer => Exit::Far,
        Class::Syscall => Exit::Syscall,
        Class::SoftwareInterrupt => Exit::SoftInt,
        Class::VmEntry | Class::XBegin => Exit::Strange,
        _ if instruction.repeats => Exit::Repeat,
        _ => Exit::Fall,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_knows_its_instructions() {
        // nop; nop word; je .+2
        let block = Block::new(0x1000, &[1, 2, 2], &[0x90, 0x66, 0x90, 0x74, 0x02], false);
        assert_eq!(
            (block.last, block.next, block.target, block.count),
            (0x1003, 0x1005, 0x1007, 3)
        );
        assert_eq!(block.exit, Exit::Conditional);
        assert_eq!(
            [0x1000, 0x1001, 0x1002, 0x1003].map(|ip| block.index_of(ip)),
            [Some(0), Some(1), None, Some(2)]
        );
        assert_eq!(block.hash_of(0..3), block.hash);
        assert!(block.may_reach(0x1005) && block.may_reach(0x1007) && !block.may_reach(0x1000));
    }

    #[test]
    fn an_instruction_across_a_page_does_not_belong_to_the_block() {
        let nops = [0x90, 0x66, 0x90];
        assert_eq!(Block::new(0x1ffe, &[1, 2], &nops, false).count, 1);
        assert_eq!(Block::new(0x1ffd, &[1, 2], &nops, false).count, 2);
        assert_eq!(Block::new(0x1fff, &[2], &nops[1..], false).count, 1);
    }

    #[test]
    fn a_branch_into_its_own_block_can_take_the_longer_way() {
        // nop; nop; je .-3 or jmp .-3
        for (last, leads) in [(0x74, [0x1004; 2]), (0xeb, [NOWHERE; 2])] {
            let mut block = Block::new(0x1000, &[1, 1, 2], &[0x90, 0x90, last, 0xfd], false);
            assert_eq!((block.target, block.leads[1]), (0x1001, 0x1001));
            block.lead_outside();
            assert_eq!(block.leads, leads);
        }
    }

    #[test]
    fn a_branch_into_the_middle_of_an_instruction_does_not_break_off_its_block() {
        // nop; mov eax, 0x90909090; jne 0x1002
        let code = [0x90, 0xb8, 0x90, 0x90, 0x90, 0x90, 0x75, 0xfa];
        let block = Block::new(0x1000, &[1, 5, 2], &code, false);
        assert_eq!(block.target, 0x1002);
        let alone = |start| Block::new(start, &[1], &[0x90], false);
        let broken_off = [0x1001, 0x1002, 0x1006].map(|start| breaks_off(&block, &alone(start)));
        assert_eq!(broken_off, [true, false, false]);
    }

    #[test]
    fn what_processors_refuse_is_known() {
        // lock nop; nop
        let block = Block::new(0x1000, &[2, 1], &[0xf0, 0x90, 0x90], false);
        assert_eq!((block.refused, block.exit), (0, Exit::Strange));
        // nop; mov byte [rax], 1 with a reserved field
        let block = Block::new(0x1000, &[1, 3], &[0x90, 0xc6, 0x08, 1], false);
        assert_eq!((block.refused, block.exit), (1, Exit::Strange));
        let block = Block::new(0x1000, &[1, 3], &[0x90, 0xc6, 0x00, 1], false);
        assert_eq!((block.refused, block.exit), (2, Exit::Fall));
    }

    #[test]
    fn steps_tell_branches_from_the_rest() {
        let block = Block::new(0x1000, &[1, 2], &[0x90, 0xeb, 0xfd], true);
        let steps: Vec<_> = block
            .steps
            .iter()
            .map(|step| (step.ip, step.next, step.branch))
            .collect();
        assert_eq!(steps, [(0x1000, 0x1001, false), (0x1001, 0x1003, true)]);
        assert_eq!(block.target, 0x1000);
    }
}
