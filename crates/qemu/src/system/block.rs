//! A block of a whole system: a translation block, and how the processor runs it.

use std::collections::HashMap;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use rtit_unit::CodeWidth;
use rtit_x86::CodeMode;

use super::cpu_state::SystemCpuState;
use crate::thread::translation_block::{BlockExit, TranslationBlock};

const PAGE: u64 = 4096;
const LONGEST_INSTRUCTION: u64 = 15;
const PAUSE: &[u8] = &[0xf3, 0x90];
/// The upper half of the addresses, which is the kernel's.
pub(super) const KERNEL_START: u64 = 1 << 63;

/// How an instruction sets RFLAGS.IF.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FlagChange {
    Clear,
    Set,
    /// POPF: the value is that after the block, which it ends.
    Load,
}

/// An instruction after which the processor waits for an interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Halt {
    Hlt,
    Mwait,
}

pub(super) struct SystemBlock {
    block: TranslationBlock,
    pub(super) user: bool,
    pub(super) width: CodeWidth,
    /// The last instruction is a MOV to CR3.
    pub(super) writes_cr3: bool,
    /// The last instruction.
    pub(super) halt: Option<Halt>,
    /// The last instruction is an IRET.
    pub(super) is_iret: bool,
    /// The end can lead anywhere, or into the block itself: a callback at the last instruction must show that the end
    /// was reached.
    pub(super) needs_last_callback: bool,
    /// Without an event of the log, a transition along `quiet_targets` is the end of the block and nothing else.
    pub(super) has_quiet_end: bool,
    /// Instructions that set RFLAGS.IF, by index.
    pub(super) flag_changes: Vec<(u32, FlagChange)>,
    /// Contains an atomic instruction or PAUSE, by which processors order or wait for each other.
    pub(super) orders_processors: bool,
    /// Address space and version of its code at the last check.
    pub(super) checked: AtomicU64,
    /// The function of the kernel that starts here, as `processor::kernel_function`. Set when the code is checked.
    pub(super) kernel_function: AtomicU8,
}

impl Deref for SystemBlock {
    type Target = TranslationBlock;

    #[inline(always)]
    fn deref(&self) -> &TranslationBlock {
        &self.block
    }
}

impl SystemBlock {
    /// Creates a block of instructions of these sizes and bytes, which runs at this privilege and code width.
    pub(super) fn new(
        start: u64,
        sizes: &[usize],
        code: &[u8],
        user: bool,
        width: CodeWidth,
    ) -> SystemBlock {
        let mode = match width {
            CodeWidth::Bits16 => CodeMode::Bits16,
            CodeWidth::Bits32 => CodeMode::Bits32,
            CodeWidth::Bits64 => CodeMode::Bits64,
        };
        let count = sizes.len() - usize::from(is_last_cut_off(start, sizes, code, mode));
        let sizes = &sizes[..count];
        let block = TranslationBlock::new_in_mode(start, sizes, code, false, mode);
        let last = (block.last - start) as usize;
        let last_bytes = block.code.get(last..).unwrap_or_default();
        let opcode = without_prefixes(last_bytes, mode);
        let inside = |target| (block.start..=block.last).contains(&target);
        let needs_last_callback = match block.exit {
            BlockExit::Conditional | BlockExit::Jump | BlockExit::Call => inside(block.target),
            BlockExit::Fall | BlockExit::Repeat | BlockExit::SoftInt => false,
            _ => true,
        };
        let mut at = 0;
        let mut flag_changes = Vec::new();
        let mut has_pause = false;
        for (index, size) in (0..).zip(sizes.iter().take(block.instructions as usize)) {
            let bytes = block.code.get(at..at + size).unwrap_or_default();
            has_pause |= bytes == PAUSE;
            match without_prefixes(bytes, mode) {
                [0xfa] => flag_changes.push((index, FlagChange::Clear)),
                [0xfb] => flag_changes.push((index, FlagChange::Set)),
                [0x9d] => flag_changes.push((index, FlagChange::Load)),
                _ => {}
            }
            at += size;
        }
        let writes_cr3 = matches!(opcode, [0x0f, 0x22, modrm] if modrm >> 3 & 7 == 3);
        SystemBlock {
            user,
            width,
            writes_cr3,
            has_quiet_end: !writes_cr3 && !needs_last_callback,
            is_iret: opcode == [0xcf],
            halt: match opcode {
                [0xf4] => Some(Halt::Hlt),
                [0x0f, 0x01, 0xc9] => Some(Halt::Mwait),
                _ => None,
            },
            needs_last_callback,
            flag_changes,
            orders_processors: has_pause || block.has_atomic_instruction(),
            checked: AtomicU64::new(u64::MAX),
            kernel_function: AtomicU8::new(0),
            block,
        }
    }

    /// Returns this block at another address.
    fn moved_to(&self, start: u64) -> SystemBlock {
        let offsets = (0..self.instructions).map(|index| self.instruction_offset(index) as usize);
        let ends = offsets.clone().skip(1).chain([self.code.len()]);
        let sizes: Vec<usize> = offsets.zip(ends).map(|(from, to)| to - from).collect();
        SystemBlock::new(start, &sizes, &self.code, self.user, self.width)
    }

    /// Returns whether the block ends with a near branch that is taken to `to`.
    pub(super) fn branches_to(&self, to: u64) -> bool {
        match self.exit {
            BlockExit::Conditional => to != self.next,
            BlockExit::Jump
            | BlockExit::Call
            | BlockExit::IndirectJump
            | BlockExit::IndirectCall
            | BlockExit::Return => true,
            _ => false,
        }
    }

    pub(super) fn is_kernel_half(&self) -> bool {
        self.start >= KERNEL_START
    }

    /// Returns RFLAGS.IF after the first `count` instructions, if it was `at_start` before them; None after POPF.
    pub(super) fn interrupt_flag_after(&self, count: u32, at_start: bool) -> Option<bool> {
        let changes = self.flag_changes.iter();
        let last = changes.rev().find(|(index, _)| *index < count);
        match last.map(|(_, change)| change) {
            None => Some(at_start),
            Some(FlagChange::Clear) => Some(false),
            Some(FlagChange::Set) => Some(true),
            Some(FlagChange::Load) => None,
        }
    }
}

/// Code that QEMU has translated, with a block for each address at which it has run: QEMU uses a translation at all
/// virtual addresses of its physical page, and reports only the first one to plugins.
pub(super) struct Translation {
    /// The block that has run last.
    latest: AtomicPtr<SystemBlock>,
    /// All blocks, by address. They are never freed.
    blocks: Mutex<HashMap<u64, &'static SystemBlock>>,
}

impl Translation {
    pub(super) fn new(block: SystemBlock) -> Translation {
        let block: &'static SystemBlock = Box::leak(Box::new(block));
        Translation {
            latest: AtomicPtr::new(ptr::from_ref(block).cast_mut()),
            blocks: Mutex::new(HashMap::from([(block.start, block)])),
        }
    }

    /// Returns the block that starts now on this processor.
    #[inline(always)]
    pub(super) fn block_at_state(&self, cpu: SystemCpuState) -> &'static SystemBlock {
        let block = self.latest_block();
        let start = cpu.code_address(block.width);
        if block.start == start {
            block
        } else {
            self.block_at(start)
        }
    }

    #[inline(always)]
    pub(super) fn latest_block(&self) -> &'static SystemBlock {
        // SAFETY: all values are leaked blocks.
        unsafe { &*self.latest.load(Ordering::Acquire) }
    }

    #[cold]
    #[inline(never)]
    fn block_at(&self, start: u64) -> &'static SystemBlock {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let block: &'static SystemBlock = blocks
            .entry(start)
            .or_insert_with(|| Box::leak(Box::new(self.latest_block().moved_to(start))));
        self.latest
            .store(ptr::from_ref(block).cast_mut(), Ordering::Release);
        block
    }
}

/// Returns whether the last instruction was taken back: QEMU 7.2 lists an instruction that crosses a page and is not
/// the first, with its bytes up to the end of the page.
fn is_last_cut_off(start: u64, sizes: &[usize], code: &[u8], mode: CodeMode) -> bool {
    let Some((&last, before)) = sizes.split_last() else {
        return false;
    };
    let offset: usize = before.iter().sum();
    let ip = start.wrapping_add(offset as u64);
    if before.is_empty() || ip % PAGE + LONGEST_INSTRUCTION <= PAGE {
        return false;
    }
    let bytes = code.get(offset..offset + last).unwrap_or_default();
    let found = rtit_x86::decode(bytes, ip, mode);
    !found.is_ok_and(|found| usize::from(found.length) <= last)
}

/// Returns the instruction after operand size, segment, repeat and REX prefixes.
fn without_prefixes(mut bytes: &[u8], mode: CodeMode) -> &[u8] {
    while let [first, rest @ ..] = bytes {
        let is_rex = mode == CodeMode::Bits64 && first & 0xf0 == 0x40;
        if !is_rex
            && !matches!(
                first,
                0x66 | 0x2e | 0x3e | 0x26 | 0x36 | 0x64 | 0x65 | 0xf2 | 0xf3
            )
        {
            break;
        }
        bytes = rest;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_at(start: u64, sizes: &[usize], code: &[u8]) -> SystemBlock {
        SystemBlock::new(start, sizes, code, false, CodeWidth::Bits64)
    }

    #[test]
    fn instruction_cut_at_the_end_of_a_page_does_not_belong_to_the_block() {
        // nop; a call that crosses the end of the page
        let block = block_at(0x1ffe, &[1, 1], &[0x90, 0xe8]);
        assert_eq!((block.instructions, block.next), (1, 0x1fff));
        let alone = block_at(0x1fff, &[5], &[0xe8, 0, 0, 0, 0]);
        assert_eq!((alone.instructions, alone.next), (1, 0x2004));
    }

    #[test]
    fn translation_runs_at_the_address_in_the_state() {
        // nop; cli; je +0x10
        let first = block_at(0x1ffc, &[1, 1, 2], &[0x90, 0xfa, 0x74, 0x10]);
        let translation = Translation::new(first);
        let high = 0xffff_ffff_8100_0000;
        for start in [0x1ffc, high + 0xffc, 0x1ffc] {
            let block = translation.block_at(start);
            assert_eq!(
                (block.start, block.last, block.next, block.target),
                (start, start + 2, start + 4, start + 0x14)
            );
            assert_eq!(block.flag_changes, [(1, FlagChange::Clear)]);
            let index = block.instruction_index_at(start + 1);
            assert_eq!((block.instructions, index), (3, Some(1)));
            assert!(std::ptr::eq(block, translation.latest_block()));
            assert!(std::ptr::eq(block, translation.block_at(start)));
        }
        assert!(translation.block_at(high + 0xffc).is_kernel_half());
        assert!(!translation.block_at(0x1ffc).is_kernel_half());
    }

    #[test]
    fn instructions_that_change_the_state_are_found() {
        assert!(block_at(0x1000, &[3], &[0x0f, 0x22, 0xd8]).writes_cr3);
        assert!(!block_at(0x1000, &[3], &[0x0f, 0x22, 0xe0]).writes_cr3);
        assert!(block_at(0x1000, &[2], &[0x48, 0xcf]).is_iret);
        assert_eq!(block_at(0x1000, &[1], &[0xf4]).halt, Some(Halt::Hlt));
        let mwait = block_at(0x1000, &[3], &[0x0f, 0x01, 0xc9]);
        assert_eq!(mwait.halt, Some(Halt::Mwait));
        assert_eq!(block_at(0x1000, &[3], &[0x0f, 0x01, 0xc8]).halt, None);
        let flags = block_at(0x1000, &[1, 1, 1], &[0xfa, 0x90, 0xfb]).flag_changes;
        assert_eq!(flags, [(0, FlagChange::Clear), (2, FlagChange::Set)]);
    }

    #[test]
    fn interrupt_flag_follows_the_instructions_that_retired() {
        // nop; cli; nop; sti, and nop; popf
        let block = block_at(0x1000, &[1, 1, 1, 1], &[0x90, 0xfa, 0x90, 0xfb]);
        let flags = [0, 1, 2, 3, 4].map(|count| block.interrupt_flag_after(count, true));
        assert_eq!(
            flags,
            [Some(true), Some(true), Some(false), Some(false), Some(true)]
        );
        let popf = block_at(0x1000, &[1, 1], &[0x90, 0x9d]);
        assert_eq!(popf.interrupt_flag_after(1, false), Some(false));
        assert_eq!(popf.interrupt_flag_after(2, false), None);
    }

    #[test]
    fn pause_and_atomic_instructions_order_processors() {
        let codes: [(&[u8], bool); 4] = [
            (&[0xf3, 0x90], true),             // pause
            (&[0x90], false),                  // nop
            (&[0xf0, 0x48, 0xff, 0x00], true), // lock inc qword [rax]
            (&[0x48, 0xff, 0x00], false),      // inc qword [rax]
        ];
        for (code, expected) in codes {
            let block = block_at(0x1000, &[code.len()], code);
            assert_eq!(block.orders_processors, expected, "{code:02x?}");
        }
    }

    #[test]
    fn end_that_can_lead_into_the_block_needs_a_callback() {
        // nop; nop; and je to the second nop, je elsewhere, ret
        let ends: [(&[u8], bool); 3] = [
            (&[0x74, 0xfd], true),
            (&[0x74, 0x10], false),
            (&[0xc3], true),
        ];
        for (end, expected) in ends {
            let code = [&[0x90, 0x90], end].concat();
            assert_eq!(
                block_at(0x1000, &[1, 1, end.len()], &code).needs_last_callback,
                expected
            );
        }
    }
}
