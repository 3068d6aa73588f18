//! What QEMU calls: translation, each block, each system call.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use crate::api::{Instruction, PluginId, Translated};
use crate::block::{Block, Step, ALONE, HANDLER, IN_VSYSCALL, START, STOP as STOPS, VSYSCALL};
use crate::config::Truth;
use crate::cpu::{rtit_qemu_block, State};
use crate::process::{process, thread_of};
use crate::thread::{Thread, EDGE, STOP, SWITCH};

/// A block was translated and will run.
pub(crate) extern "C" fn translated(_id: PluginId, tb: *mut Translated) {
    let process = process();
    // SAFETY: QEMU's block, during its callback.
    unsafe {
        let (start, count) = process.api.block(tb);
        let block = if start >= VSYSCALL {
            // Its bytes cannot be read.
            process.translated(Block::vsyscall(start))
        } else {
            let mut sizes = Vec::with_capacity(count);
            let mut code = Vec::with_capacity(8 * count);
            let mut instructions: Vec<*mut Instruction> = Vec::with_capacity(count);
            for index in 0..count {
                let instruction = process.api.instruction(tb, index);
                sizes.push(process.api.place(instruction).1);
                process.api.bytes(instruction, &mut code);
                instructions.push(instruction);
            }
            let steps = process.config.truth == Truth::Instructions;
            let block = process.translated(Block::new(start, &sizes, &code, steps));
            for (step, instruction) in block.steps.iter().zip(instructions) {
                let with = std::ptr::from_ref(step).cast_mut().cast();
                process
                    .api
                    .call_at_instruction(instruction, step_started, with);
            }
            block
        };
        let with = std::ptr::from_ref(block).cast_mut().cast();
        process.api.call_at_block(tb, rtit_qemu_block, with);
    }
}

/// A block starts, on a vCPU whose state is at `state`.
pub(crate) extern "C" fn block_started(vcpu: u32, block: *const Block, state: *const State) {
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
extern "C" fn block_of_note(vcpu: u32, block: *const Block, state: *const State) {
    let mut thread = thread_of(vcpu);
    if thread.is_null() {
        thread = process().begin(vcpu, state);
    }
    // SAFETY: as above.
    let (thread, block) = unsafe { (&mut *thread, &*block) };
    let marks = block.marks.load(Ordering::Relaxed) & !ALONE;
    if marks == 0 && thread.follow(block) {
        thread.block = block;
        // Looked at only now: what was due at the end of the last block is due here.
        if thread.attention.load(Ordering::Relaxed) != 0 {
            attend(thread, block, false);
        }
    } else {
        unusual_block(thread, block);
    }
    thread.settle();
}

#[cold]
#[inline(never)]
fn unusual_block(thread: &mut Thread, block: &'static Block) {
    let process = process();
    let start = block.start;
    let entered = || {
        let registers = thread.cpu.registers();
        process.with(|shared| {
            registers.and_then(|registers| shared.handlers.entered(start, registers))
        })
    };
    let signal = if block.marked(HANDLER) {
        entered()
    } else {
        None
    };
    if let Some(what) = signal {
        thread.interrupt(what);
    }
    let begins = thread.is_out();
    if !thread.follow(block) && !thread.follow_strangely(start) {
        thread.lose(&format!(
            "control went to {start:#x}, where the last instruction cannot lead"
        ));
        thread.follow_strangely(start);
    }
    thread.block = block;
    if block.marked(IN_VSYSCALL) {
        thread.enter_vsyscall(start);
    }
    attend(thread, block, begins);
}

/// What others, or the recording's edges, want of the thread; `begins`: it was not in user code before.
#[cold]
#[inline(never)]
fn attend(thread: &mut Thread, block: &'static Block, begins: bool) {
    let (process, start) = (process(), block.start);
    let attention = thread.attention.load(Ordering::Relaxed);
    if attention & STOP != 0 {
        process.park(thread, start);
    }
    if attention & SWITCH != 0 && !begins {
        thread.attention.fetch_and(!SWITCH, Ordering::AcqRel);
        if !thread.is_out() {
            thread.switch(start);
        }
    }
    if (attention & EDGE != 0 || block.marked(START | STOPS)) && !thread.is_out() {
        thread.look_for_edges(block);
    }
}

/// An instruction is about to execute.
extern "C" fn step_started(vcpu: u32, step: *mut c_void) {
    let thread = thread_of(vcpu);
    // SAFETY: the vCPU's own thread calls, after its block's callback, with a step of a leaked block.
    unsafe {
        if let Some(thread) = thread.as_mut() {
            thread.step(&*step.cast::<Step>());
        }
    }
}
