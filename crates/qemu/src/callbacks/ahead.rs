//! A block runs in a program that runs ahead: it is kept for who follows (`shared::ring`), and that is all.

use std::arch::global_asm;
use std::ffi::c_void;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use crate::callbacks::execution::block_started;
use crate::interface::cpu::State;
use crate::shared::ring::{self, PLACE};
use crate::shared::threads::thread_of;
use crate::thread::block::Block;

extern "C" {
    /// What generated code calls at a block's start in a process of one thread.
    pub(crate) fn rtit_qemu_keep(vcpu: u32, block: *mut c_void);
}

global_asm!(
    ".globl rtit_qemu_keep",
    ".hidden rtit_qemu_keep",
    ".type rtit_qemu_keep, @function",
    ".p2align 6",
    "rtit_qemu_keep:",
    "mov rax, [rip + {place}]",
    "test eax, {in_chunk}",
    "je 2f",
    "mov ecx, [rsi + {entry}]",
    "test ecx, ecx",
    "je 2f",
    "mov [rax], ecx",
    "add rax, 4",
    "mov [rip + {place}], rax",
    "ret",
    "2:",
    "mov rdx, rbp",
    "jmp {kept_or_followed}",
    place = sym PLACE,
    in_chunk = const ring::SIZE - 1,
    entry = const offset_of!(Block, entry),
    kept_or_followed = sym kept_or_followed,
);

/// The ring is closed, or a chunk is full, or the block asks for more than that it is followed.
extern "C" fn kept_or_followed(vcpu: u32, block: *const Block, state: *const State) {
    let thread = thread_of(vcpu);
    if ring::is_open() {
        // SAFETY: a block that `translated` keeps for good.
        let entry = unsafe { &*block }.entry.load(Ordering::Relaxed);
        if entry != 0 {
            return ring::turn(thread, entry);
        }
        ring::close(thread);
    }
    block_started(vcpu, block, state);
    // SAFETY: the vCPU's own thread calls; it has begun, and the ring is closed.
    unsafe { ring::open(&*thread_of(vcpu)) };
}
