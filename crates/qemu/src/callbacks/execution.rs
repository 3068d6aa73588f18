//! A block runs: the hot path, from generated code to the thread.
//!
//! The callback follows the path at once, on the way that is enough: `block_started` for nearly all blocks,
//! `block_without_packets`, and `process::blocks::follow_block` for all. What `ahead` keeps is followed in the same ways,
//! by `shared::ring`.

use std::arch::global_asm;
use std::ffi::c_void;
use std::sync::atomic::Ordering;

use crate::interface::cpu::State;
use crate::process::blocks::follow_block;
use crate::process::threads;
use crate::shared::threads::thread_of;
use crate::thread::block::{Block, Step, ALONE};

extern "C" {
    /// What generated code calls at a block's start.
    pub(crate) fn rtit_qemu_block(vcpu: u32, block: *mut c_void);
}

// The address of the vCPU's state, in the register that generated code keeps it in, as third argument.
global_asm!(
    ".globl rtit_qemu_block",
    ".hidden rtit_qemu_block",
    ".type rtit_qemu_block, @function",
    "rtit_qemu_block:",
    "mov rdx, rbp",
    "jmp {}",
    sym block_started,
);

/// A block starts, on a vCPU whose state is at `state`.
pub(super) extern "C" fn block_started(vcpu: u32, block: *const Block, state: *const State) {
    let thread = thread_of(vcpu);
    if !thread.is_null() {
        // SAFETY: the vCPU's own thread calls, with a block that `translated` leaked.
        let (thread, block) = unsafe { (&mut *thread, &*block) };
        let attention = thread.attention.load(Ordering::Relaxed);
        let marks = block.marks.load(Ordering::Relaxed);
        if attention | u32::from(marks) == 0 && thread.follow_quietly(block) {
            thread.block = block;
            return;
        }
    }
    block_without_packets(vcpu, block, state);
}

/// Apart from the callback, which so needs no register that it would have to save; so is what follows apart from this.
#[inline(never)]
extern "C" fn block_without_packets(vcpu: u32, block: *const Block, state: *const State) {
    let thread = thread_of(vcpu);
    if !thread.is_null() {
        // SAFETY: as above.
        let (thread, block) = unsafe { (&mut *thread, &*block) };
        let attention = thread.attention.load(Ordering::Relaxed);
        let marks = block.marks.load(Ordering::Relaxed) & !ALONE;
        if attention | u32::from(marks) == 0 && thread.follow_almost_quietly(block) {
            thread.block = block;
            return;
        }
    }
    block_of_note(vcpu, block, state);
}

#[inline(never)]
pub(super) extern "C" fn block_of_note(vcpu: u32, block: *const Block, state: *const State) {
    let mut thread = thread_of(vcpu);
    if thread.is_null() {
        thread = threads::begin(vcpu, state);
    }
    // SAFETY: as above.
    let (thread, block) = unsafe { (&mut *thread, &*block) };
    follow_block(thread, block);
}

/// An instruction is about to execute.
pub(crate) extern "C" fn step_started(vcpu: u32, step: *mut c_void) {
    let thread = thread_of(vcpu);
    // SAFETY: the vCPU's own thread calls, after its block's callback, with a step of a leaked block.
    unsafe {
        if let Some(thread) = thread.as_mut() {
            thread.step(&*step.cast::<Step>());
        }
    }
}
