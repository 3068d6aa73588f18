//! A block runs whose number of times is all that is wanted: the hot path of `rtit stat`.
//!
//! As in `execution` there are three ways: the callback, a way apart for what takes longer to find out, and
//! `process::blocks::follow_block` for all else, which follows the path with a trace unit that is off. Of the callback
//! there are two. As long as the process has one thread, that thread's place and cells are known to the code. Before
//! there is a second one QEMU translates all blocks anew, and no other runs a block that was translated before.
//!
//! The inline additions that QEMU offers would cost less, and do not do: they cannot tell which way a branch went, nor
//! an iteration from an instruction, nor how far a block came that a fault has left.

use std::arch::global_asm;
use std::ffi::c_void;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use crate::callbacks::execution::block_of_note;
use crate::interface::cpu::State;
use crate::shared::threads::{thread_of, FIRST};
use crate::thread::block::{Block, ALONE};
use crate::thread::state::Thread;

extern "C" {
    /// What generated code calls at a block's start in a process of one thread.
    pub(crate) fn rtit_qemu_count(vcpu: u32, block: *mut c_void);
    /// The same for many threads.
    pub(crate) fn rtit_qemu_count_of_many(vcpu: u32, block: *mut c_void);
}

// `count_quietly` of the first thread, where nobody asks for its attention: each instruction counts here. The compiler
// would jump where the program's branch goes. The rest is as in `execution`.
global_asm!(
    ".globl rtit_qemu_count",
    ".hidden rtit_qemu_count",
    ".type rtit_qemu_count, @function",
    ".p2align 6",
    "rtit_qemu_count:",
    "mov r8, [rip + {first} + {block}]",
    "mov r9, [rsi + {key}]",
    "xor ecx, ecx",
    "cmp r9, [r8 + {leads}]",
    "setne cl",
    "cmp r9, [r8 + {leads} + rcx * 8]",
    "jne 2f",
    "mov rax, [r8 + {cell}]",
    "mov [rip + {first} + {block}], rsi",
    "inc qword ptr [rax + rcx * 8]",
    "ret",
    "2:",
    "mov rdx, rbp",
    "jmp {of_some_note}",
    ".globl rtit_qemu_count_of_many",
    ".hidden rtit_qemu_count_of_many",
    ".type rtit_qemu_count_of_many, @function",
    "rtit_qemu_count_of_many:",
    "mov rdx, rbp",
    "jmp {started}",
    first = sym FIRST,
    block = const offset_of!(Thread, block),
    key = const offset_of!(Block, key),
    leads = const offset_of!(Block, leads),
    cell = const offset_of!(Block, cell),
    of_some_note = sym block_of_some_note,
    started = sym block_started,
);

extern "C" fn block_started(vcpu: u32, block: *const Block, state: *const State) {
    let thread = thread_of(vcpu);
    if !thread.is_null() {
        // SAFETY: the vCPU's own thread calls, with a block that `translated` leaked.
        let (thread, block) = unsafe { (&mut *thread, &*block) };
        let attention = thread.attention.load(Ordering::Relaxed);
        let marks = block.marks.load(Ordering::Relaxed);
        if attention | u32::from(marks) == 0 && thread.count_quietly(block) {
            thread.block = block;
            return;
        }
    }
    block_of_some_note(vcpu, block, state);
}

/// Apart, so that the callback needs no register that it would have to save.
#[inline(never)]
extern "C" fn block_of_some_note(vcpu: u32, block: *const Block, state: *const State) {
    let thread = thread_of(vcpu);
    if !thread.is_null() {
        // SAFETY: as above.
        let (thread, block) = unsafe { (&mut *thread, &*block) };
        let attention = thread.attention.load(Ordering::Relaxed);
        let marks = block.marks.load(Ordering::Relaxed) & !ALONE;
        if attention | u32::from(marks) == 0 && thread.count_almost_quietly(block) {
            thread.block = block;
            return;
        }
    }
    block_of_note(vcpu, block, state);
}
