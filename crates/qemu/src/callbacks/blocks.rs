//! A block is translated, and starts: the hot path of the plugin.
//!
//! QEMU calls one of three functions at the start of each block; `on_translation` chooses which. All of them try the
//! cheap cases first and fall through to the next, more general function. The last one is always
//! `lifecycle::follow_thread_to_block`, which handles everything.
//!
//! * **Tracing.** `on_block` handles blocks that produce no packet (`RecordedThread::follow_quietly`), which are nearly
//!   all. `follow_less_common_block` adds calls, compressed returns, full TNT packets and REP iterations.
//! * **Tracing through the ring.** `rtit_qemu_append_to_ring` stores the block's number and returns; a second thread
//!   follows it later in the same three ways (`shared::block_ring`). For this it needs a process with one thread.
//! * **Counting** (`rtit stat`). `rtit_qemu_count` increments a counter of the first thread directly; the addresses of
//!   that thread and of its counters are constants of the code. QEMU retranslates all blocks before a second thread
//!   starts; from then on `rtit_qemu_count_multithreaded` runs. QEMU's inline additions would be cheaper, but they
//!   cannot count taken and not-taken branches, iterations and instructions, or blocks that a fault has cut short,
//!   separately.
//!
//! Each function is small enough to need no callee-saved register, so that the common case saves none; hence the
//! `#[inline(never)]` between them. QEMU keeps the address of the CPU state in rbp, which the assembly stubs pass as
//! third argument.

use std::arch::global_asm;
use std::ffi::c_void;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use crate::interface::guest_state::QemuCpuState;
use crate::interface::plugin_api::{PluginId, PluginInsn, PluginTb};
use crate::process::lifecycle::{self, follow_thread_to_block};
use crate::shared::block_ring::{self, WRITE_POSITION};
use crate::shared::shared_state::{
    current_thread, is_multithreaded, shared_state, thread_of, FIRST_THREAD,
};
use crate::thread::executed_path::ExecutedPathSource;
use crate::thread::thread_state::RecordedThread;
use crate::thread::translation_block::{
    InstructionStep, TranslationBlock, ORDERS_THREADS, SINGLE_INSTRUCTION, VSYSCALL,
};

extern "C" {
    /// The block callback of generated code, for tracing.
    pub(crate) fn rtit_qemu_block(vcpu: u32, block: *mut c_void);
}

global_asm!(
    ".globl rtit_qemu_block",
    ".hidden rtit_qemu_block",
    ".type rtit_qemu_block, @function",
    "rtit_qemu_block:",
    "mov rdx, rbp",
    "jmp {}",
    sym on_block,
);

/// Goes on to a block by `follow_transition` and returns, if the thread has begun and needs no attention and the block
/// has no mark except `ignored`. A macro, because as an inline function it needs one more callee-saved register.
macro_rules! try_short_path {
    ($vcpu:ident, $block:ident, $ignored:expr, $follow:ident) => {
        let thread = thread_of($vcpu);
        if !thread.is_null() {
            // SAFETY: the vCPU's own thread calls, with a leaked block.
            let (thread, block) = unsafe { (&mut *thread, &*$block) };
            let attention = thread.attention.load(Ordering::Relaxed);
            let marks = block.marks.load(Ordering::Relaxed) & !$ignored;
            if attention | u32::from(marks) == 0 && thread.$follow(block) {
                thread.block = block;
                return;
            }
        }
    };
}

/// Handles the start of a block that produces no packet.
pub(super) extern "C" fn on_block(
    vcpu: u32,
    block: *const TranslationBlock,
    state: *const QemuCpuState,
) {
    try_short_path!(vcpu, block, 0, follow_quietly);
    follow_less_common_block(vcpu, block, state);
}

/// Handles the start of a block after a call, a compressed return, a full TNT or an iteration.
#[inline(never)]
extern "C" fn follow_less_common_block(
    vcpu: u32,
    block: *const TranslationBlock,
    state: *const QemuCpuState,
) {
    try_short_path!(vcpu, block, SINGLE_INSTRUCTION, follow_almost_quietly);
    follow_any_block(vcpu, block, state);
}

#[inline(never)]
pub(super) extern "C" fn follow_any_block(
    vcpu: u32,
    block: *const TranslationBlock,
    state: *const QemuCpuState,
) {
    let mut thread = thread_of(vcpu);
    if thread.is_null() {
        thread = lifecycle::begin_thread(vcpu, state);
    }
    // SAFETY: the vCPU's own thread calls, with a leaked block.
    let (thread, block) = unsafe { (&mut *thread, &*block) };
    follow_thread_to_block(thread, block);
}

/// Handles the start of an instruction, where the truth comes from instructions.
pub(crate) extern "C" fn on_instruction(vcpu: u32, step: *mut c_void) {
    let thread = thread_of(vcpu);
    // SAFETY: the vCPU's own thread calls, after its block's callback, with a step of a leaked block.
    unsafe {
        if let Some(thread) = thread.as_mut() {
            thread.begin_step(&*step.cast::<InstructionStep>());
        }
    }
}

extern "C" {
    /// The block callback of generated code, for tracing through the ring.
    pub(crate) fn rtit_qemu_append_to_ring(vcpu: u32, block: *mut c_void);
}

global_asm!(
    ".globl rtit_qemu_append_to_ring",
    ".hidden rtit_qemu_append_to_ring",
    ".type rtit_qemu_append_to_ring, @function",
    ".p2align 6",
    "rtit_qemu_append_to_ring:",
    "mov rax, [rip + {position}]",
    "test eax, {in_chunk}",
    "je 2f",
    "mov ecx, [rsi + {entry}]",
    "test ecx, ecx",
    "je 2f",
    "mov [rax], ecx",
    "add rax, 4",
    "mov [rip + {position}], rax",
    "ret",
    "2:",
    "mov rdx, rbp",
    "jmp {append_or_follow}",
    position = sym WRITE_POSITION,
    in_chunk = const block_ring::CHUNK_SIZE - 1,
    entry = const offset_of!(TranslationBlock, ring_id),
    append_or_follow = sym append_or_follow,
);

/// Handles what the assembly cannot: a closed ring, a full chunk, and a block that must be followed at once (its
/// `ring_id` is 0).
extern "C" fn append_or_follow(
    vcpu: u32,
    block: *const TranslationBlock,
    state: *const QemuCpuState,
) {
    let thread = thread_of(vcpu);
    if block_ring::is_ring_open() {
        // SAFETY: a leaked block.
        let entry = unsafe { &*block }.ring_id.load(Ordering::Relaxed);
        if entry != 0 {
            return block_ring::append_to_next_chunk(thread, entry);
        }
        block_ring::close_ring(thread);
    }
    on_block(vcpu, block, state);
    // SAFETY: the vCPU's own thread calls; it has begun, and the ring is closed.
    unsafe { block_ring::open_ring(&*thread_of(vcpu)) };
}

extern "C" {
    /// The block callback of generated code, for counting in a process of one thread.
    pub(crate) fn rtit_qemu_count(vcpu: u32, block: *mut c_void);
    /// The same in a process of several threads.
    pub(crate) fn rtit_qemu_count_multithreaded(vcpu: u32, block: *mut c_void);
}

// `count_common_block` for the first thread, in assembly because each instruction counts here: the compiler would
// branch on the program's own unpredictable branch. A marked block has a `quiet_start` that matches nothing.
global_asm!(
    ".globl rtit_qemu_count",
    ".hidden rtit_qemu_count",
    ".type rtit_qemu_count, @function",
    ".p2align 6",
    "rtit_qemu_count:",
    "mov r8, [rip + {first} + {block}]",
    "mov r9, [rsi + {key}]",
    "xor ecx, ecx",
    "cmp r9, [r8 + {quiet_targets}]",
    "setne cl",
    "cmp r9, [r8 + {quiet_targets} + rcx * 8]",
    "jne 2f",
    "mov rax, [r8 + {cell}]",
    "mov [rip + {first} + {block}], rsi",
    "inc qword ptr [rax + rcx * 8]",
    "ret",
    "2:",
    "mov rdx, rbp",
    "jmp {count_less_common}",
    ".globl rtit_qemu_count_multithreaded",
    ".hidden rtit_qemu_count_multithreaded",
    ".type rtit_qemu_count_multithreaded, @function",
    "rtit_qemu_count_multithreaded:",
    "mov rdx, rbp",
    "jmp {started}",
    first = sym FIRST_THREAD,
    block = const offset_of!(RecordedThread, block),
    key = const offset_of!(TranslationBlock, quiet_start),
    quiet_targets = const offset_of!(TranslationBlock, quiet_targets),
    cell = const offset_of!(TranslationBlock, counter),
    count_less_common = sym count_less_common_block,
    started = sym on_counted_block,
);

extern "C" fn on_counted_block(
    vcpu: u32,
    block: *const TranslationBlock,
    state: *const QemuCpuState,
) {
    try_short_path!(vcpu, block, 0, count_common_block);
    count_less_common_block(vcpu, block, state);
}

/// Handles the start of a block after an indirect branch, and of one that may be part of another block.
#[inline(never)]
extern "C" fn count_less_common_block(
    vcpu: u32,
    block: *const TranslationBlock,
    state: *const QemuCpuState,
) {
    try_short_path!(vcpu, block, SINGLE_INSTRUCTION, count_less_common);
    follow_any_block(vcpu, block, state);
}

/// Describes the block `tb` and registers its callback.
pub(crate) extern "C" fn on_translation(_id: PluginId, tb: *mut PluginTb) {
    let shared = shared_state();
    // SAFETY: QEMU's block, during its callback.
    unsafe {
        let (start, count) = shared.api.block_start_and_count(tb);
        let block = if start >= VSYSCALL {
            // The vsyscall page cannot be read.
            shared.register_block(TranslationBlock::vsyscall_block(start))
        } else {
            let mut sizes = Vec::with_capacity(count);
            let mut code = Vec::with_capacity(8 * count);
            let mut instructions: Vec<*mut PluginInsn> = Vec::with_capacity(count);
            for index in 0..count {
                let instruction = shared.api.instruction_at(tb, index);
                sizes.push(shared.api.instruction_size(instruction));
                shared.api.append_instruction_bytes(instruction, &mut code);
                instructions.push(instruction);
            }
            let steps = shared.config.truth == ExecutedPathSource::Instructions;
            let block = TranslationBlock::new(start, &sizes, &code, steps);
            if block_ring::is_ring_open() && !shared.knows_block(&block) {
                block_ring::close_ring(current_thread());
            }
            let orders_threads = is_multithreaded() && block.has_atomic_instruction();
            let block = shared.register_block(block);
            if orders_threads && !shared.config.counts_without_trace() {
                block.add_mark_bits(ORDERS_THREADS);
            }
            for (step, instruction) in block.steps.iter().zip(instructions) {
                let with = std::ptr::from_ref(step).cast_mut().cast();
                shared
                    .api
                    .call_before_instruction(instruction, on_instruction, with);
            }
            block
        };
        let with = std::ptr::from_ref(block).cast_mut().cast();
        let call = match (shared.config.counts_without_trace(), is_multithreaded()) {
            (false, false) if shared.config.ring_blocks > 0 => rtit_qemu_append_to_ring,
            (false, _) => rtit_qemu_block,
            (true, false) => rtit_qemu_count,
            (true, true) => rtit_qemu_count_multithreaded,
        };
        shared.api.call_when_block_starts(tb, call, with);
    }
}
